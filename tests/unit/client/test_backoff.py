"""Tests of `Backoff` and `BackoffLevel`: delays between connects and after failures."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.client.backoff import Backoff, BackoffLevel


@pytest.mark.parametrize(
    "drawn, expected",
    [
        (0.0, [0.05, 0.1, 0.2, 0.4, 0.5, 0.5]),
        (0.5, [0.075, 0.15, 0.3, 0.6, 0.75, 0.75]),
        (0.999999999, [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]),
    ],
    ids=["lowest", "middle", "highest"],
)
def test_delays_double_up_to_the_ceiling(drawn: float, expected: list[float]) -> None:
    """Each delay is in the upper half of its full length, depending on *random*."""
    backoff = Backoff(lambda: drawn, initial_delay_s=0.1, max_delay_s=1.0)

    delays = [backoff.next_delay_s() for _ in expected]

    assert pytest.approx(expected) == delays


@pytest.mark.parametrize("uptime_s, expected", [(1.0, 0.05), (0.999, 0.2)])
def test_a_connection_that_held_starts_again(uptime_s: float, expected: float) -> None:
    """A short-lived connection resets nothing, so that a faulty broker is not flooded."""
    backoff = Backoff(lambda: 0.0, initial_delay_s=0.1, max_delay_s=1.0)
    backoff.next_delay_s()
    backoff.next_delay_s()

    backoff.reset_after(uptime_s)

    assert expected == backoff.next_delay_s()


@given(st.lists(st.floats(0.0, 1.0, exclude_max=True), min_size=1, max_size=50))
def test_no_delay_is_ever_out_of_bounds(draws: list[float]) -> None:
    """No delay is near 0 or above the maximum, however many attempts."""
    left = iter(draws)
    backoff = Backoff(lambda: next(left), initial_delay_s=0.1, max_delay_s=15.0)

    delays = [backoff.next_delay_s() for _ in draws]

    assert 0.05 <= min(delays)
    assert max(delays) <= 15.0


def levels(*, multiplier_s: float = 1.0, max_duration_s: float = 120.0) -> BackoffLevel:
    return BackoffLevel(lambda: 0.5, multiplier_s=multiplier_s, max_duration_s=max_duration_s)


def test_a_duration_doubles_with_each_level() -> None:
    """go-nsq's defaults give 2, 4, 8, 16, 32, 64 s, and no more."""
    made = levels()

    durations = []
    for _ in range(8):
        made.increase()
        durations.append(made.next_duration_s())

    assert [2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 64.0, 64.0] == durations
    assert 6 == made.value


def test_levels_go_down_to_zero() -> None:
    """The level does not fall below 0."""
    made = levels()
    made.increase()
    made.increase()

    went = []
    for _ in range(3):
        made.decrease()
        went.append(made.value)

    assert [1, 0, 0] == went


@pytest.mark.parametrize(
    "multiplier_s, max_duration_s, expected",
    [
        (1.0, 128.0, 7),
        (1.0, 127.999, 6),
        (1.0, 2.0, 1),
        (1.0, 1.999, 0),
        (1.0, 0.0, 0),
        (0.01, 0.02, 1),
        (30.0, 120.0, 2),
        (0.0, 0.0, 0),
        (0.0, 120.0, 62),
        (1e-300, 3_600.0, 62),
    ],
)
def test_the_highest_level_is_the_last_that_the_maximum_allows(
    multiplier_s: float, max_duration_s: float, expected: int
) -> None:
    """A maximum of 0 allows no level; with a multiplier of 0 the level is still limited."""
    made = levels(multiplier_s=multiplier_s, max_duration_s=max_duration_s)

    for _ in range(100):
        made.increase()

    assert expected == made.value
    assert made.next_duration_s() <= max(max_duration_s, multiplier_s)


def test_full_jitter_draws_each_period_anew() -> None:
    """The duration is uniform from 0 to that of the level, which is not random."""
    draws = iter([0.0, 0.5, 0.75])
    made = BackoffLevel(lambda: next(draws), strategy="full_jitter")
    made.increase()
    made.increase()

    durations = [made.next_duration_s() for _ in range(3)]

    assert [0.0, 2.0, 3.0] == durations
    assert 2 == made.value


def test_an_nsqd_is_tried_again_within_fifteen_seconds() -> None:
    """Without options; the first delay is at most 0.1 s."""
    backoff = Backoff(lambda: 1.0)

    delays = [backoff.next_delay_s() for _ in range(12)]

    assert (0.1, 15.0) == (delays[0], max(delays))
