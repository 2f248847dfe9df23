"""Time that passes when a test says so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class ManualClock:
    """
    Takes the place of the running event loop's clock: timers fire when the test moves it.

    Sockets go on as always. A wait with a timeout waits for ever unless the clock is moved.
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
        """Let time pass by itself from here on, for what ends only after a while."""
        ahead_s = self._now - self._real_time()
        self._loop.time = lambda: self._real_time() + ahead_s  # type: ignore[method-assign]

    async def advance(self, seconds: float) -> None:
        """Let *seconds* pass, and what was due in them happen, each timer at most once."""
        self._now += seconds
        # Once for the timers, then for the tasks that waited for them.
        await turn(3)


def run_on() -> None:
    """Let time pass by itself from here on, where a test has stopped it."""
    clock = getattr(asyncio.get_running_loop().time, "__self__", None)
    if isinstance(clock, ManualClock):
        clock.run_on()


async def turn(count: int = 1) -> None:
    """Let the event loop go round *count* times."""
    loop = asyncio.get_running_loop()
    for _ in range(count):
        went_round = loop.create_future()
        loop.call_soon(went_round.set_result, None)
        await went_round


async def until(condition: Callable[[], bool]) -> None:
    """Let the event loop go round until *condition* is true."""
    while not condition():
        await turn()
