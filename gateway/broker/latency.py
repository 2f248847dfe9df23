"""
Percentiles of the time from the publish of a message to its FIN.

Times are counted in buckets, each `_WIDTH` times as long as the one before, so that a percentile is
at most 1 % away from that of the times themselves. nsqd's estimator has another error, of the rank
and not of the time. Times below 1 µs count as 1 µs, times above three years as three years: there
are at most some 1 300 buckets. Source of the windows: internal/quantile/quantile.go.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

_WIDTH = 1.02
_LOG_WIDTH = math.log(_WIDTH)
_MIN_NS, _MAX_NS = 1_000, 100_000_000_000_000_000


@dataclass(frozen=True, kw_only=True)
class LatencyOptions:
    """Which percentiles /stats has, and of which time."""

    percentiles: tuple[float, ...] = ()
    """Above 0, at most 1, such as 0.99; empty: no times are measured."""
    window_ms: int = 600_000
    """
    Times are kept for this long, or half of it.

    The older half of a window ends at once.
    """


class LatencyWindow:
    """
    The times of one channel's messages, in the last window.

    Args:
        window_ms: See `LatencyOptions`.
        wall_ns: Returns nanoseconds since 1970.
    """

    def __init__(self, window_ms: int, *, wall_ns: Callable[[], int] = time.time_ns) -> None:
        self._half_ns = max(1, window_ms * 1_000_000 // 2)
        self._wall_ns = wall_ns
        self._began_ns = wall_ns()
        self._current: Counter[int] = Counter()
        self._previous: Counter[int] = Counter()

    def finish(self, published_ns: int) -> None:
        """Count a message that was published at *published_ns* and is finished now."""
        now_ns = self._wall_ns()
        self._move(now_ns)
        latency_ns = min(max(now_ns - published_ns, _MIN_NS), _MAX_NS)
        self._current[math.ceil(math.log(latency_ns) / _LOG_WIDTH)] += 1

    def counts(self) -> Counter[int]:
        """Return the number of times in each bucket."""
        self._move(self._wall_ns())
        return self._current + self._previous

    def _move(self, now_ns: int) -> None:
        halves = (now_ns - self._began_ns) // self._half_ns
        if halves > 0:
            self._previous = self._current if halves == 1 else Counter()
            self._current = Counter()
            self._began_ns += halves * self._half_ns


def percentiles(
    counts: Iterable[Counter[int]], wanted: Iterable[float]
) -> tuple[int, list[tuple[float, float]]]:
    """Return how many times are in *counts*, and each of the percentiles *wanted* in ns."""
    merged: Counter[int] = Counter()
    for each in counts:
        merged.update(each)
    total = merged.total()
    buckets = sorted(merged.items())
    return total, [(each, _percentile(buckets, math.ceil(each * total))) for each in wanted]


def _percentile(buckets: list[tuple[int, int]], rank: int) -> float:
    """Return the time of the message number *rank*, from the shortest time on; 0 for none."""
    for bucket, count in buckets:
        rank -= count
        if rank <= 0:
            # The middle of the bucket: its ends are 1 % away.
            return math.exp((bucket - 0.5) * _LOG_WIDTH)
    return 0.0
