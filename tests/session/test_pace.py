"""How fast a client may say commands."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.session.pace import BURST_S, Pace


def test_there_is_no_debt_at_first() -> None:
    """Whoever says nothing owes nothing."""
    assert -math.inf == Pace(10).paid_at


@pytest.mark.parametrize(
    "commands, now, paid_at", [(10, 0.0, 0.0), (11, 0.0, 0.1), (30, 0.0, 2.0), (15, 100.0, 100.5)]
)
def test_a_burst_is_free_and_what_is_beyond_takes_its_time(
    commands: int, now: float, paid_at: float
) -> None:
    """What a second allows may come at once, also after a long silence; then a part for each."""
    pace = Pace(10)

    pace.charge(commands, now)

    assert pytest.approx(paid_at) == pace.paid_at


def test_a_debt_is_paid_by_waiting() -> None:
    """Half of it after half of its time."""
    pace = Pace(10)
    pace.charge(30, 0.0)

    assert pytest.approx([2.0, 1.0, 0.0, -BURST_S]) == [
        pace.debt_s(0, now) for now in (0.0, 1.0, 2.0, 9.0)
    ]


def test_a_debt_can_be_asked_for_before_it_is_made() -> None:
    """It changes nothing."""
    pace = Pace(10)

    debts = [pace.debt_s(commands, 0.0) for commands in (5, 20, 5)]

    assert pytest.approx([-0.5, 1.0, -0.5]) == debts


def test_without_a_limit_nothing_costs_anything() -> None:
    """0 stands for no limit."""
    pace = Pace(0)

    pace.charge(10**9, 0.0)

    assert pace.debt_s(10**9, 0.0) <= 0


@given(st.lists(st.tuples(st.floats(0.0, 2.0), st.integers(0, 40)), max_size=30))
def test_never_more_than_the_rate_and_a_burst_goes_without_debt(
    steps: list[tuple[float, int]],
) -> None:
    """Who says something only when it owes nothing stays below the rate, but for the last turn."""
    pace, now, said, last = Pace(10), 0.0, 0, 0

    for gap_s, commands in steps:
        now += gap_s
        if pace.paid_at <= now:
            pace.charge(commands, now)
            said, last = said + commands, commands

    assert said <= 10 * (now + BURST_S) + last + 1e-6
