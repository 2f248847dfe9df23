"""A clock for the event loop, controlled by the test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class ManualClock:
    """
    Replace the running event loop's clock: timers fire when the test advances it.

    Sockets work as usual. A timeout never expires unless the clock is advanced.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._real_time = self._loop.time
        self._now = self._loop.time()
        # An attribute of the instance goes before the method of the class.
        self._loop.time = self._time  # type: ignore[method-assign]

    def _time(self) -> float:
        return self._now

    def run_on(self) -> None:
        """Let time pass normally again, for operations that need real time."""
        ahead_s = self._now - self._real_time()
        self._loop.time = lambda: self._real_time() + ahead_s  # type: ignore[method-assign]

    async def advance(self, seconds: float) -> None:
        """Advance the clock by *seconds* and run due timers, each at most once."""
        self._now += seconds
        # Once for the timers, then for the tasks that waited for them.
        await turn(3)


def run_on() -> None:
    """Let time pass normally again."""
    clock = getattr(asyncio.get_running_loop().time, "__self__", None)
    if isinstance(clock, ManualClock):
        clock.run_on()


async def turn(count: int = 1) -> None:
    """Run the event loop for *count* iterations."""
    loop = asyncio.get_running_loop()
    for _ in range(count):
        went_round = loop.create_future()
        loop.call_soon(went_round.set_result, None)
        await went_round


async def until(condition: Callable[[], bool]) -> None:
    """Run the event loop until *condition* is true."""
    while not condition():
        await turn()


def now() -> float:
    """Return the time on the running event loop's clock."""
    return asyncio.get_running_loop().time()
