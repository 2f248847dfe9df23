"""How long a client waits between two tries to connect."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.client.backoff import Backoff


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
    """Each lies in the upper half of its full length, where the draw says."""
    backoff = Backoff(lambda: drawn, first_s=0.1, ceiling_s=1.0)

    delays = [backoff.next_delay_s() for _ in expected]

    assert pytest.approx(expected) == delays


@pytest.mark.parametrize("held_s, expected", [(1.0, 0.05), (0.999, 0.2)])
def test_a_connection_that_held_starts_again(held_s: float, expected: float) -> None:
    """One that went at once does not: a broker that drops everybody is not hammered."""
    backoff = Backoff(lambda: 0.0, first_s=0.1, ceiling_s=1.0)
    backoff.next_delay_s()
    backoff.next_delay_s()

    backoff.connection_held(held_s)

    assert expected == backoff.next_delay_s()


@given(st.lists(st.floats(0.0, 1.0, exclude_max=True), min_size=1, max_size=50))
def test_no_delay_is_ever_out_of_bounds(draws: list[float]) -> None:
    """However long it goes on: never at once, never above the ceiling."""
    left = iter(draws)
    backoff = Backoff(lambda: next(left), first_s=0.1, ceiling_s=15.0)

    delays = [backoff.next_delay_s() for _ in draws]

    assert 0.05 <= min(delays)
    assert max(delays) <= 15.0
