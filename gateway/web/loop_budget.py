"""
Budgets for one iteration of the event loop, so that no connection starves the others.

WebSockets share a `FrameBudget`, HTTP connections a `ReadTimeBudget`. They are separate because
frames of one size cost about the same, so they are counted, without a clock on the hot path. The
cost of HTTP requests varies, so they are timed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from gateway.aio import per_loop

UNITS_PER_TURN = 256
"""Units of `FrameBudget` per iteration of the event loop; see `frame_cost`."""
_BYTES_PER_UNIT = 128
_MIN_SHARE = 4
"""Minimum units for each waiting callback, however many are waiting."""
_LOW_UNITS = UNITS_PER_TURN // 2


def frame_cost(size_bytes: int) -> int:
    """Return the units that *size_bytes* of a frame cost: one, and one more per 128 bytes."""
    return 1 + size_bytes // _BYTES_PER_UNIT


class FrameBudget:
    """
    A budget shared by all WebSockets, renewed in every iteration of the event loop.

    Once the budget is exhausted, sockets wait for later iterations in FIFO order, and share the
    units of each iteration equally.
    """

    __slots__ = ("__weakref__", "_is_scheduled", "_waiting", "left")

    def __init__(self) -> None:
        self.left = UNITS_PER_TURN
        """Units left; negative after a large frame."""
        self._waiting: deque[Callable[[int], None]] = deque()
        self._is_scheduled = False

    @property
    def is_exhausted(self) -> bool:
        """True if callers must `wait` instead of reading frames now."""
        # Also while others wait, even with units left: a newcomer must not overtake them.
        return self.left <= 0 or bool(self._waiting)

    def spend(self, units: int) -> None:
        """Subtract *units* from the budget, even if fewer are left."""
        self.left -= units
        # Schedule a renewal only when needed, so that an idle event loop does not wake up.
        if self.left < _LOW_UNITS and not self._is_scheduled:
            self._schedule()

    def wait(self, callback: Callable[[int], None]) -> None:
        """Call *callback* once, in a later iteration, with the units that it may spend then."""
        self._waiting.append(callback)
        if not self._is_scheduled:
            self._schedule()

    def _schedule(self) -> None:
        asyncio.get_running_loop().call_soon(self._begin)
        self._is_scheduled = True

    def _begin(self) -> None:
        """Renew the budget, and call the waiting callbacks, each at most once."""
        self._is_scheduled = False
        self.left = UNITS_PER_TURN
        waiting = self._waiting
        share = max(_MIN_SHARE, UNITS_PER_TURN // max(1, len(waiting)))
        try:
            # Not those that call `wait` again during the loop: they come in the next iteration.
            for _ in range(len(waiting)):
                if self.left <= 0:
                    break
                waiting.popleft()(share)
        finally:
            # A callback that fails must not block the others.
            if waiting and not self._is_scheduled:
                self._schedule()


frame_budget_of = per_loop(FrameBudget)
"""Return the budget of an event loop, which all its WebSockets share."""


TURN_S = 0.004
"""Seconds of reading per iteration of the event loop, for all connections of a port together."""
SLICE_S = 0.001
"""Maximum seconds that one connection may read before others run."""
_WAITING_S = TURN_S / 2
"""Seconds per iteration for waiting connections; the rest is for connections with new input."""


class ReadTimeBudget:
    """
    Divide reading time between HTTP connections that have much to read.

    Waiting connections are served in the order in which they called `wait`. A connection that has
    just received a single request reads it at once, as long as the iteration has time left.
    """

    def __init__(self) -> None:
        self._spent_s = 0.0
        """Seconds spent since the budget was last renewed, one or more iterations ago."""
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_scheduled = False

    @property
    def slice_s(self) -> float:
        """Seconds that the caller may spend now; if not positive, it must `wait` instead."""
        return min(SLICE_S, TURN_S - self._spent_s)

    def spend(self, seconds: float) -> None:
        """Subtract *seconds* of reading from the budget."""
        self._spent_s += seconds
        if self._spent_s > SLICE_S:
            # Below one slice, iterations may share a budget: a callback in each of them would cost
            # more than the reading.
            self._schedule()

    def wait(self, callback: Callable[[], None]) -> None:
        """Call *callback* once, in a later iteration, to continue reading."""
        self._waiting.append(callback)
        self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._begin)

    def _begin(self) -> None:
        """Renew the budget, and call the waiting callbacks, each at most once."""
        self._is_scheduled = False
        self._spent_s = 0.0
        waiting = self._waiting
        try:
            for _ in range(len(waiting)):
                if self._spent_s >= _WAITING_S:
                    break
                waiting.popleft()()
        finally:
            # A callback that fails must not block the others.
            if waiting:
                self._schedule()
