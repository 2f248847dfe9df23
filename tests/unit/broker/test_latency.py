"""Percentiles of times: near the exact ones, bounded in memory, and of the last window only."""

from __future__ import annotations

import math
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from gateway.broker.latency import LatencyWindow, percentiles

WINDOW_MS = 1_000
HALF_NS = WINDOW_MS * 1_000_000 // 2


class Wall:
    """A wall clock that the test moves."""

    def __init__(self) -> None:
        self.now_ns = 1_000_000_000_000_000_000

    def __call__(self) -> int:
        """Return nanoseconds since 1970."""
        return self.now_ns


def finished(*times_ns: int) -> LatencyWindow:
    """Return a window in which messages took these times."""
    wall = Wall()
    window = LatencyWindow(WINDOW_MS, wall_ns=wall)
    for time_ns in times_ns:
        window.finish(wall.now_ns - time_ns)
    return window


def one(counts: Counter[int], quantile: float) -> float:
    """Return one percentile."""
    _, [(_, value)] = percentiles([counts], [quantile])
    return value


@given(
    st.lists(st.integers(1_000, 10**15), min_size=1, max_size=200),
    st.floats(0, 1, exclude_min=True),
)
def test_a_percentile_is_within_one_percent_of_the_exact_one(
    times_ns: list[int], quantile: float
) -> None:
    exact = sorted(times_ns)[math.ceil(quantile * len(times_ns)) - 1]

    found = one(finished(*times_ns).counts(), quantile)

    assert abs(found - exact) <= 0.01 * exact


def test_channels_are_taken_together_message_by_message() -> None:
    fast, slow = finished(*[1_000_000] * 99), finished(1_000_000_000)

    count, found = percentiles([fast.counts(), slow.counts()], [0.99, 1.0])

    assert (100, [1, 1_000]) == (count, [round(value / 1e6) for _, value in found])


def test_without_messages_a_percentile_is_zero() -> None:
    assert (0, [(0.5, 0.0)]) == percentiles([Counter()], [0.5])


def test_a_time_is_forgotten_after_a_window_at_the_latest() -> None:
    wall = Wall()
    window = LatencyWindow(WINDOW_MS, wall_ns=wall)
    window.finish(wall.now_ns - 1_000_000)
    kept = []
    for _ in range(3):
        kept.append(window.counts().total())
        wall.now_ns += HALF_NS

    assert [1, 1, 0] == kept


def test_a_long_pause_forgets_both_halves() -> None:
    wall = Wall()
    window = LatencyWindow(WINDOW_MS, wall_ns=wall)
    window.finish(wall.now_ns)
    wall.now_ns += 100 * HALF_NS

    assert 0 == window.counts().total()


def test_times_outside_of_all_bounds_do_not_grow_the_buckets() -> None:
    window = finished(-(10**18), 0, 10**30, *(10**power for power in range(31)))

    assert set(window.counts()) <= set(range(340, 2_000))
