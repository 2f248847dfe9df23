"""A token bucket: a rate, a burst, and what is taken beyond both."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.token_bucket import TokenBucket

BURST_S = 1.0


def limiter(rate_per_s: int) -> TokenBucket:
    return TokenBucket(rate_per_s, burst_s=BURST_S)


def test_there_is_no_debt_at_first() -> None:
    """Whoever says nothing owes nothing."""
    assert -math.inf == limiter(10).empty_at


@pytest.mark.parametrize(
    "commands, now, paid_at", [(10, 0.0, 0.0), (11, 0.0, 0.1), (30, 0.0, 2.0), (15, 100.0, 100.5)]
)
def test_a_burst_is_free_and_what_is_beyond_takes_its_time(
    commands: int, now: float, paid_at: float
) -> None:
    """What a second allows may come at once, also after a long silence; then a part for each."""
    bucket = limiter(10)

    bucket.take(commands, now)

    assert pytest.approx(paid_at) == bucket.empty_at


def test_a_debt_is_paid_by_waiting() -> None:
    """Half of it after half of its time."""
    bucket = limiter(10)
    bucket.take(30, 0.0)

    assert pytest.approx([2.0, 1.0, 0.0, -BURST_S]) == [
        bucket.wait_s(0, now) for now in (0.0, 1.0, 2.0, 9.0)
    ]


def test_a_debt_can_be_asked_for_before_it_is_made() -> None:
    bucket = limiter(10)

    debts = [bucket.wait_s(commands, 0.0) for commands in (5, 20, 5)]

    assert pytest.approx([-0.5, 1.0, -0.5]) == debts


def test_without_a_limit_nothing_costs_anything() -> None:
    """0 stands for no limit."""
    bucket = limiter(0)

    bucket.take(10**9, 0.0)

    assert bucket.wait_s(10**9, 0.0) <= 0


@given(st.lists(st.tuples(st.floats(0.0, 2.0), st.integers(0, 40)), max_size=30))
def test_never_more_than_the_rate_and_a_burst_goes_without_debt(
    steps: list[tuple[float, int]],
) -> None:
    """Who says something only when it owes nothing stays below the rate, but for the last turn."""
    bucket, now, said, last = limiter(10), 0.0, 0, 0

    for gap_s, commands in steps:
        now += gap_s
        if bucket.empty_at <= now:
            bucket.take(commands, now)
            said, last = said + commands, commands

    assert said <= 10 * (now + BURST_S) + last + 1e-6


# A bucket of a hundred errors, of which one per second is forgiven


def is_overdrawn(bucket: TokenBucket, now: float) -> bool:
    """Tell whether more was taken than the bucket held, whatever the rounding."""
    return bucket.wait_s(0, now) > 1e-6


def test_a_burst_may_be_used_up_at_one_moment_and_no_more() -> None:
    """The hundredth token is there, the next is not."""
    bucket = TokenBucket(1, burst_s=100)
    overdrawn = []

    for _ in range(101):
        bucket.take(1, 0.1)
        overdrawn.append(is_overdrawn(bucket, 0.1))

    assert [False] * 100 + [True] == overdrawn


def test_a_token_a_second_may_be_taken_for_ever() -> None:
    bucket = TokenBucket(1, burst_s=100)

    for second in range(1_000):
        bucket.take(1, float(second))

    assert not is_overdrawn(bucket, 999.0)


def test_a_full_bucket_gets_no_fuller() -> None:
    """After an hour there are a hundred tokens again, not more."""
    bucket = TokenBucket(1, burst_s=100)
    bucket.take(1, 0.0)
    assert bucket.is_full(3_600.0)

    bucket.take(101, 3_600.0)

    assert is_overdrawn(bucket, 3_600.0)
