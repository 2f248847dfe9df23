"""How a window is split into RDY over the connections of a subscriber."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.client.ready import changes, shares

CEILING = 2_500


@pytest.mark.parametrize(
    "window, count, turn, expected",
    [
        (10, 0, 0, []),
        (0, 3, 0, [0, 0, 0]),
        (10, 1, 0, [10]),
        (10, 3, 0, [4, 3, 3]),
        (10, 3, 1, [3, 4, 3]),
        (11, 3, 2, [4, 3, 4]),
        (9, 3, 5, [3, 3, 3]),
        (2, 3, 0, [1, 1, 0]),
        (2, 3, 1, [0, 1, 1]),
        (2, 3, 2, [1, 0, 1]),
        (2, 3, 3, [1, 1, 0]),
    ],
)
def test_a_window_is_split_evenly(window: int, count: int, turn: int, expected: list[int]) -> None:
    """The remainder goes to those whose turn it is."""
    assert expected == shares(window, [CEILING] * count, turn=turn)


def test_no_share_is_above_its_brokers_ceiling() -> None:
    """A RDY above max_rdy_count would end the connection."""
    assert [5, 2, 5] == shares(15, [CEILING, 2, CEILING], turn=0)


@given(
    st.integers(0, 5_000),
    st.lists(st.integers(0, 3_000), max_size=12),
    st.integers(0, 1_000),
)
def test_the_shares_never_exceed_the_window(window: int, ceilings: list[int], turn: int) -> None:
    """Nor a ceiling, nor do they go below zero; without ceilings they are the whole window."""
    split = shares(window, ceilings, turn=turn)

    assert sum(split) <= window
    assert all(0 <= share <= ceiling for share, ceiling in zip(split, ceilings, strict=True))
    if ceilings and min(ceilings) >= window:
        assert window == sum(split)
        assert max(split) - min(split) <= 1


@given(st.integers(1, 20), st.integers(1, 20), st.integers(0, 1_000))
def test_every_connection_gets_its_turn(window: int, count: int, turn: int) -> None:
    """Over as many turns as there are connections, all have had the same."""
    had = [0] * count
    for step in range(count):
        for index, share in enumerate(shares(window, [CEILING] * count, turn=turn + step)):
            had[index] += share

    assert [window] * count == had


@pytest.mark.parametrize(
    "current, wanted, expected",
    [
        ({}, {}, []),
        ({1: 5}, {1: 5}, []),
        ({}, {1: 5}, [(1, 5)]),
        ({}, {1: 0}, []),
        ({1: 10}, {1: 5, 2: 5}, [(1, 5), (2, 5)]),
        ({1: 0, 2: 2}, {1: 1, 2: 1}, [(2, 1), (1, 1)]),
        ({1: 5, 2: 5}, {2: 10}, [(2, 10)]),
    ],
)
def test_only_what_changes_is_sent(
    current: dict[int, int], wanted: dict[int, int], expected: list[tuple[int, int]]
) -> None:
    """What sinks comes first; a new connection is at zero, and one that is gone has no RDY."""
    assert expected == changes(current, wanted)


@given(st.data(), st.integers(1, 10), st.integers(0, 100))
def test_the_sum_never_exceeds_the_window_on_the_way(
    data: st.DataObject, count: int, window: int
) -> None:
    """Whatever the turn before was, each single step stays within the window."""
    before, after = (data.draw(st.integers(0, 20)) for _ in range(2))
    current = dict(enumerate(shares(window, [CEILING] * count, turn=before)))
    wanted = dict(enumerate(shares(window, [CEILING] * count, turn=after)))

    now = dict(current)
    for key, ready in changes(current, wanted):
        now[key] = ready
        assert sum(now.values()) <= window

    assert wanted == now
