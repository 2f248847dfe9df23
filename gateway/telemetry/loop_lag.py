"""How late the event loop is: what it does at the moment, everybody else waits for."""

from __future__ import annotations

import asyncio
import time

from gateway.telemetry.metrics import histogram

_INTERVAL_S = 0.25

_LAG = histogram(
    "event_loop_lag_seconds",
    "How late a timer of the event loop came, looked at four times a second.",
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0),
).labels()


class LoopLag:
    """Measures from `start` to `stop`."""

    def __init__(self) -> None:
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0

    def start(self) -> None:
        """Measure, in the running event loop, four times a second."""
        # A real clock: that of uvloop stands still during a turn.
        self._due = time.perf_counter() + _INTERVAL_S
        self._timer = asyncio.get_running_loop().call_later(_INTERVAL_S, self._look)

    def _look(self) -> None:
        _LAG.observe(max(0.0, time.perf_counter() - self._due))
        self.start()

    def stop(self) -> None:
        """Measure no more; idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
