"""Tests of `RdyDistributor`: a window split into RDY counts over several connections."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.client.rdy import SETTLE_S, RdyDistributor, RdyOptions, shares
from gateway.errors import SettingsError

CEILING = 2_500


def distributor(
    window: int,
    *sources: int,
    options: RdyOptions | None = None,
    random: Callable[[], float] = lambda: 0.0,
    in_flight: Callable[[], Mapping[int, int]] = dict,
) -> RdyDistributor:
    """Return a distributor with *sources* added at time 0."""
    made = RdyDistributor(window, options or RdyOptions(), random=random, in_flight=in_flight)
    for index, source in enumerate(sources, 1):
        expected = len(sources) - index
        made.add_source(source, max_rdy_count=CEILING, now=0.0, expected=expected)
    return made


def settle(made: RdyDistributor, now: float) -> list[tuple[int, int]]:
    """Let the RDY written before *now* settle; return the changes that follow."""
    return made.wake(now + SETTLE_S)


def counts(made: RdyDistributor, *sources: int) -> list[int]:
    return [made.ready(source) for source in sources]


def test_without_a_connection_an_answer_moves_nothing() -> None:
    assert [] == distributor(5).answered(1, 0.0)


# The even split


@pytest.mark.parametrize(
    "window, count, expected",
    [
        (10, 0, []),
        (0, 3, [0, 0, 0]),
        (10, 1, [10]),
        (10, 3, [4, 3, 3]),
        (11, 3, [4, 4, 3]),
        (9, 3, [3, 3, 3]),
        (3, 3, [1, 1, 1]),
        (2, 3, [1, 1, 0]),
    ],
)
def test_a_window_is_split_evenly(window: int, count: int, expected: list[int]) -> None:
    """The first connections get the remainder."""
    assert expected == shares(window, [CEILING] * count)


def test_no_share_is_above_its_brokers_ceiling() -> None:
    """nsqd closes a connection whose RDY exceeds max_rdy_count."""
    assert [5, 2, 5] == shares(15, [CEILING, 2, CEILING])


@given(st.integers(0, 5_000), st.lists(st.integers(0, 3_000), max_size=12))
def test_the_shares_never_exceed_the_window(window: int, ceilings: list[int]) -> None:
    """Shares are within ceilings and never negative; without ceilings they use the whole window."""
    split = shares(window, ceilings)

    assert sum(split) <= window
    assert all(0 <= share <= ceiling for share, ceiling in zip(split, ceilings, strict=True))
    if ceilings and min(ceilings) >= window:
        assert window == sum(split)
        assert max(split) - min(split) <= 1


# Connections come and go


def test_each_new_connection_gets_its_share_once_the_others_have_settled() -> None:
    """The others are lowered at once; until that settles, their earlier RDY counts."""
    made = distributor(10, 1)

    opened = made.add_source(2, max_rdy_count=CEILING, now=1.0)

    assert ([(1, 5)], 1.0 + SETTLE_S) == (opened, made.next_wake())
    assert [(2, 5)] == settle(made, 1.0)


def test_each_connection_that_is_expected_gets_its_share_at_once() -> None:
    """A share was reserved for it; if it fails to open, the others get that share."""
    made = distributor(10)
    made.expect(1, 0.0)

    first = made.add_source(1, max_rdy_count=CEILING, now=0.0, expected=1)
    second = made.add_source(2, max_rdy_count=CEILING, now=0.0)

    assert [[(1, 5)], [(2, 5)]] == [first, second]


def test_the_room_of_a_connection_that_does_not_come_goes_to_the_others() -> None:
    """After a failed first attempt, the reserved share is distributed."""
    made = distributor(10)
    made.add_source(1, max_rdy_count=CEILING, now=0.0, expected=1)

    assert [(1, 10)] == made.expect(0, 2.0)


# What is in flight


def test_what_one_connection_has_in_flight_counts_against_the_others() -> None:
    """With 10 of 10 in flight on the first, the second gets RDY as messages are answered."""
    held = {1: 10}
    made = RdyDistributor(10, RdyOptions(), random=lambda: 0.0, in_flight=lambda: held)
    made.add_source(1, max_rdy_count=CEILING, now=0.0)

    opened = made.add_source(2, max_rdy_count=CEILING, now=1.0)
    settled = settle(made, 1.0)
    held[1] = 8
    answered = made.answered(2, 2.0)

    assert [[(1, 5)], [], [(2, 2)]] == [opened, settled, answered]
    assert made.is_short


def test_a_window_of_1_moves_on_once_its_message_is_answered() -> None:
    """The second connection gets no RDY before, however long the first message takes."""
    held = {1: 1}
    made = RdyDistributor(1, RdyOptions(), random=lambda: 0.0, in_flight=lambda: held)
    for source in (1, 2):
        made.add_source(source, max_rdy_count=CEILING, now=0.0)

    looks = [made.wake(10.0), *[made.wake(10.0 + 0.25 * look) for look in range(1, 400)]]
    held.clear()
    answered = made.answered(1, 200.0)

    assert ([(1, 0)], [[]] * 399) == (looks[0], looks[1:])
    assert [(2, 1)] == answered


def test_what_crosses_a_rdy_of_0_for_too_long_does_not_fit() -> None:
    """Its room went to another connection meanwhile, so it is requeued."""
    held: dict[int, int] = {}
    made = RdyDistributor(1, RdyOptions(), random=lambda: 0.0, in_flight=lambda: held)
    for source in (1, 2):
        made.add_source(source, max_rdy_count=CEILING, now=0.0)
    made.wake(10.0)
    in_time = made.has_room_for_late(1, 1, 10.1)
    settle(made, 10.0)

    assert (True, False) == (in_time, made.has_room_for_late(1, 1, 10.5))


def test_nothing_settles_while_nothing_is_read() -> None:
    """Messages may wait in the socket, so the earlier RDY counts until reading resumes."""
    made = distributor(10, 1)
    made.add_source(2, max_rdy_count=CEILING, now=1.0)
    made.set_reading(is_reading=False, now=1.1)
    paused = made.wake(6.1)
    made.set_reading(is_reading=True, now=7.0)

    assert ([], 7.0 + SETTLE_S) == (paused, made.next_wake())
    assert [(2, 5)] == settle(made, 7.0)


def test_a_connection_is_raised_in_steps() -> None:
    """RDY rises by a quarter of the share at a time, not with every answer elsewhere."""
    held = {1: 1_000}
    made = RdyDistributor(1_000, RdyOptions(), random=lambda: 0.0, in_flight=lambda: held)
    made.add_source(1, max_rdy_count=CEILING, now=0.0)
    made.add_source(2, max_rdy_count=CEILING, now=1.0)
    settle(made, 1.0)

    written = []
    for left in range(999, -1, -1):
        held[1] = left
        written += made.answered(1, 2.0)

    assert [(2, 1), (2, 126), (2, 251), (2, 376), (2, 500)] == written


def test_what_a_lost_connection_had_goes_to_the_others_at_once() -> None:
    made = distributor(10, 1, 2)

    assert [(2, 10)] == made.remove_source(1, 1.0)
    assert [] == made.remove_source(2, 1.0)
    assert 0 == made.total


def test_losing_what_was_never_opened_changes_nothing() -> None:
    """A connection may be lost before it has subscribed."""
    made = distributor(10, 1)

    assert [] == made.remove_source(7, 1.0)
    assert 10 == made.total


def test_nothing_is_known_of_a_source_that_is_not_open() -> None:
    """The RDY of an unknown source is 0."""
    made = distributor(10, 1)

    assert 0 == made.ready(7)


# The window changes


@pytest.mark.parametrize(
    "count, expected",
    [
        (10, []),
        (20, [(1, 10), (2, 10)]),
        (3, [(1, 2), (2, 1)]),
        (1, [(1, 0), (2, 1)]),
        (0, [(1, 0), (2, 0)]),
    ],
)
def test_a_window_may_change_while_running(count: int, expected: list[tuple[int, int]]) -> None:
    """The window is split again; if it is too small for all, random connections keep RDY 1."""
    made = distributor(10, 1, 2)

    assert expected == made.set_window(count, 1.0)
    assert count == made.window


def test_a_window_of_nothing_waits_for_nothing() -> None:
    """A pause needs no timer, however many connections exist."""
    made = distributor(0, 1, 2, 3)

    assert None is made.next_wake()
    assert [(1, 1), (2, 1), (3, 1)] == made.set_window(3, 1.0)


def test_a_window_that_shrinks_below_the_connections_leaves_rdy_1_on_some() -> None:
    """Two of three random connections give up RDY; the sum of RDY follows the window at once."""
    made = distributor(30, 1, 2, 3, random=lambda: 0.5)

    written = made.set_window(1, 1.0)

    assert [(1, 1), (2, 0), (3, 0)] == written
    assert 6.0 == made.next_wake()


def test_a_smaller_window_leaves_no_room_beside_what_others_have_in_flight() -> None:
    """Five messages timed out at 1 while 2 has its five in flight, so 1 gets no RDY."""
    held = {2: 5}
    made = distributor(10, 1, 2, in_flight=lambda: held)

    written = made.set_window(5, 1.0)
    settled = made.wake(1.0 + SETTLE_S)
    held[2] = 4
    answered = made.answered(1, 2.0)

    assert [[(1, 0), (2, 2)], [], [(1, 1)]] == [written, settled, answered]


def test_a_smaller_window_is_left_to_those_that_have_room_in_it() -> None:
    """Messages in flight stay; the rest of the window is split."""
    made = distributor(12, 1, 2, 3, in_flight=lambda: {1: 4})

    assert [(1, 3), (2, 2), (3, 2)] == made.set_window(8, 1.0)


def test_what_is_too_much_is_answered_before_one_connection_may_bring_more() -> None:
    """Ten messages exceed a window of 7: at RDY 2, four of five must be answered first."""
    held = {1: 5, 2: 5}
    made = distributor(10, 1, 2, in_flight=lambda: held)

    assert [(1, 2), (2, 2)] == made.set_window(7, 1.0)
    settle(made, 1.0)
    held[2] = 3
    assert [(1, 4)] == made.answered(2, 2.0)
    held[2] = 0
    assert [] == made.answered(3, 2.0)
    held[1] = 4
    assert [(2, 3)] == made.answered(1, 2.0)


def test_what_came_under_an_earlier_rdy_lowers_the_others() -> None:
    """The message was on its way when the window was made smaller."""
    held: dict[int, int] = {}
    made = distributor(10, 1, 2, in_flight=lambda: held)
    written = made.set_window(5, 1.0)
    held[2] = 5

    assert [[(1, 3), (2, 2)], [(1, 0)]] == [written, made.rebalance(1.01)]


def test_a_smaller_window_counts_what_may_lie_in_the_sockets() -> None:
    """Until the sockets are read, all messages that RDY allowed count as in flight."""
    made = distributor(10, 1, 2)
    made.set_reading(is_reading=False, now=1.0)

    written = made.set_window(5, 2.0)
    made.set_reading(is_reading=True, now=3.0)

    assert [[(1, 0), (2, 0)], [(1, 3), (2, 2)]] == [written, settle(made, 3.0)]


# More connections than window


def test_enough_for_all_needs_no_redistribution() -> None:
    """With as many connections as window, RDY does not move."""
    assert None is distributor(3, 1, 2, 3).next_wake()


def test_the_first_connections_hold_on_to_their_rdy() -> None:
    """One connection too many gets no RDY; a redistribution is due in 5 s."""
    made = distributor(2, 1, 2)

    assert [] == made.add_source(3, max_rdy_count=CEILING, now=7.0)
    assert [1, 1, 0] == counts(made, 1, 2, 3)
    assert 12.0 == made.next_wake()


def test_what_a_lost_connection_had_goes_to_one_that_waits() -> None:
    """A random connection among those without RDY gets it."""
    made = distributor(2, 1, 2, 3, 4, random=lambda: 0.9)

    assert [(4, 1)] == made.remove_source(1, 1.0)


def test_enough_again_ends_the_redistribution() -> None:
    """Once there are no more connections than window, no redistribution is due."""
    made = distributor(2, 1, 2, 3)

    made.remove_source(1, 1.0)

    assert [1, 1] == counts(made, 2, 3)
    assert None is made.next_wake()


def test_a_look_too_early_changes_nothing() -> None:
    """A timer may fire slightly early; `wake` does nothing then, and the timer is set again."""
    made = distributor(1, 1, 2)

    assert [] == made.wake(4.999)
    assert 5.0 == made.next_wake()


def test_nothing_moves_before_a_connection_is_idle_or_old() -> None:
    """After 5 s all connections keep their RDY; the next redistribution is 5 s later."""
    made = distributor(1, 1, 2)

    assert [] == made.wake(5.0)
    assert 10.0 == made.next_wake()


@pytest.mark.parametrize("draw", [0.0, 0.99])
def test_an_idle_connection_gives_up_to_one_that_waits(draw: float) -> None:
    made = distributor(2, 1, 2, 3, random=lambda: draw)
    made.share_of(2).last_message_at = 5.0

    assert [[(1, 0)], [(3, 1)]] == [made.wake(10.0), settle(made, 10.0)]


def test_a_connection_is_idle_since_its_last_message() -> None:
    """As in go-nsq, a connection without messages for 10 s gives up its RDY."""
    made = distributor(1, 1, 2)
    made.wake(10.0)
    settle(made, 10.0)

    assert [[(2, 0)], [(1, 1)]] == [made.wake(15.0), settle(made, 15.0)]


def test_a_busy_connection_gives_up_what_it_has_held_for_30_s() -> None:
    """Messages do not extend the 30 s."""
    made = distributor(1, 1, 2)
    for now in (5.0, 10.0, 15.0, 20.0, 25.0):
        made.share_of(1).last_message_at = now
        assert [] == made.wake(now)
    made.share_of(1).last_message_at = 30.0

    assert [[(1, 0)], [(2, 1)]] == [made.wake(30.0), settle(made, 30.0)]


def test_what_goes_back_to_the_same_connection_is_not_written() -> None:
    """With two idle connections and one waiting, one of the two keeps its RDY."""
    made = distributor(2, 1, 2, 3)

    assert [[(2, 0)], [(3, 1)]] == [made.wake(10.0), settle(made, 10.0)]
    assert [1, 0, 1] == counts(made, 1, 2, 3)


def test_what_goes_back_to_the_same_connection_is_held_anew() -> None:
    """It keeps RDY for another 30 s, although nothing was written."""
    made = distributor(2, 1, 2, 3)

    def busy(now: float) -> list[tuple[int, int]]:
        for source in (1, 2, 3):
            made.share_of(source).last_message_at = now
        return made.wake(now) + settle(made, now)

    written = [busy(5.0 * look) for look in range(1, 13)]

    assert [(2, 0), (3, 1)] == written[5]
    assert [[]] * 5 == written[6:11]
    assert [(1, 0), (2, 1)] == written[11]


def test_a_broker_that_takes_no_rdy_gets_none() -> None:
    """RDY 1 would exceed its max_rdy_count, so another connection is chosen."""
    made = distributor(1, 1)
    made.add_source(2, max_rdy_count=0, now=0.0)
    made.add_source(3, max_rdy_count=CEILING, now=0.0)

    assert [[(1, 0)], [(3, 1)]] == [made.wake(10.0), settle(made, 10.0)]


def test_over_time_every_connection_gets_its_turn() -> None:
    """Idle connections give up RDY each time, and the random choice omits none for ever."""
    made = distributor(2, *range(8), random=Random(7).random)

    had = {source for source in range(8) if made.ready(source)}
    for look in range(1, 40):
        made.wake(5.0 * look)
        had |= {source for source, count in settle(made, 5.0 * look) if count}
        assert 2 == made.total

    assert set(range(8)) == had


# Backoff: what the dialogues with one consumer do not show


def test_who_never_fails_is_never_in_backoff() -> None:
    """Successes and requeues without backoff need no timer."""
    made = distributor(10, 1)

    assert [] == made.succeeded(1.0) + made.continued(1.0)
    assert (False, 0, None) == (made.in_backoff, made.level, made.next_wake())


def test_a_pause_in_a_period_stays_one_behind_it() -> None:
    """The end of the period gives no RDY while paused; after the pause one connection tests."""
    made = distributor(10, 1)
    made.failed(0.0)
    made.set_window(0, 1.0)

    assert [] == made.wake(2.0)
    assert None is made.next_wake()
    assert [(1, 1)] == made.set_window(10, 5.0)


def test_a_pause_takes_the_rdy_1_away() -> None:
    """After the pause, one connection gets RDY 1 again."""
    made = distributor(10, 1, 2)
    made.failed(0.0)
    made.wake(2.0)

    assert [(1, 0)] == made.set_window(0, 3.0)
    assert [(1, 1)] == made.set_window(10, 4.0)


def test_another_window_in_backoff_waits_for_its_end() -> None:
    """A new window changes no RDY during the period, nor while one connection tests."""
    made = distributor(10, 1, 2)
    made.failed(0.0)
    in_period = made.set_window(20, 1.0)
    made.wake(2.0)
    behind = made.set_window(30, 3.0)

    assert [[], []] == [in_period, behind]
    assert [(1, 15), (2, 15)] == made.succeeded(4.0)


def test_the_backoff_ends_into_a_window_that_is_not_enough() -> None:
    """The connection that tested keeps RDY 1, and the pending redistribution keeps its time."""
    made = distributor(1, 1, 2)
    made.failed(0.0)
    made.wake(2.0)

    assert [] == made.succeeded(3.0)
    assert [1, 0] == counts(made, 1, 2)
    assert 7.0 == made.next_wake()


def test_a_backoff_without_any_connection_goes_on_when_one_comes() -> None:
    """After all were lost, the first connection that opens gets RDY 1 at the end of the period."""
    made = distributor(10, 1)
    made.failed(0.0)
    made.wake(2.0)
    made.remove_source(1, 3.0)
    while_empty = made.next_wake()

    opened = made.add_source(2, max_rdy_count=CEILING, now=60.0)

    assert (None, []) == (while_empty, opened)
    assert [(2, 1)] == made.wake(65.0)


@pytest.mark.parametrize(
    "options",
    [
        {"low_rdy_idle_timeout_s": 0.9},
        {"low_rdy_timeout_s": 300.1},
        {"rdy_redistribute_interval_s": 0.0},
        {"max_backoff_duration_s": -1.0},
        {"backoff_multiplier_s": 3_600.1},
        {"backoff_strategy": "linear"},
        {"low_rdy_timeout_s": float("nan")},
    ],
    ids=str,
)
def test_options_have_go_nsqs_ranges(options: dict[str, Any]) -> None:
    """Outside of the range, the error names the option and the allowed values."""
    with pytest.raises(SettingsError, match="allowed: ") as raised:
        RdyOptions(**options)

    assert [raised.value.name] == list(options)
