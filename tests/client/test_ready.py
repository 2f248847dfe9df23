"""How a window of messages is split into RDY over the connections of a subscription."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway.client.ready import ReadyOptions, ReadyPlan, changes, shares
from gateway.errors import SettingsError

CEILING = 2_500


def plan(
    window: int,
    *sources: int,
    options: ReadyOptions | None = None,
    random: Callable[[], float] = lambda: 0.0,
) -> ReadyPlan:
    """Return a plan to which *sources* were opened at time 0."""
    made = ReadyPlan(window, options or ReadyOptions(), random=random)
    for source in sources:
        made.source_opened(source, max_rdy_count=CEILING, now=0.0)
    return made


def counts(made: ReadyPlan, *sources: int) -> list[int]:
    """Return the RDY of *sources*."""
    return [made.ready(source) for source in sources]


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
    """The remainder goes to the first."""
    assert expected == shares(window, [CEILING] * count)


def test_no_share_is_above_its_brokers_ceiling() -> None:
    """A RDY above max_rdy_count would end the connection."""
    assert [5, 2, 5] == shares(15, [CEILING, 2, CEILING])


@given(st.integers(0, 5_000), st.lists(st.integers(0, 3_000), max_size=12))
def test_the_shares_never_exceed_the_window(window: int, ceilings: list[int]) -> None:
    """Nor a ceiling, nor do they go below zero; without ceilings they are the whole window."""
    split = shares(window, ceilings)

    assert sum(split) <= window
    assert all(0 <= share <= ceiling for share, ceiling in zip(split, ceilings, strict=True))
    if ceilings and min(ceilings) >= window:
        assert window == sum(split)
        assert max(split) - min(split) <= 1


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


# Connections come and go


def test_each_new_connection_gets_its_share_at_once() -> None:
    """The others are lowered before it is raised."""
    made = plan(10)

    written = [made.source_opened(source, max_rdy_count=CEILING, now=0.0) for source in (1, 2, 3)]

    assert [[(1, 10)], [(1, 5), (2, 5)], [(1, 4), (2, 3), (3, 3)]] == written


def test_what_a_lost_connection_had_goes_to_the_others_at_once() -> None:
    """They need not wait for a redistribution."""
    made = plan(10, 1, 2)

    assert [(2, 10)] == made.source_lost(1, 1.0)
    assert [] == made.source_lost(2, 1.0)
    assert 0 == made.total


def test_losing_what_was_never_opened_changes_nothing() -> None:
    """A connection may end before it has subscribed."""
    made = plan(10, 1)

    assert [] == made.source_lost(7, 1.0)
    assert 10 == made.total


def test_nothing_is_known_of_a_source_that_is_not_open() -> None:
    """Its RDY is 0."""
    made = plan(10, 1)

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
    """It is split anew; where it is not enough for all, some are drawn to keep RDY 1."""
    made = plan(10, 1, 2)

    assert expected == made.set_window(count, 1.0)
    assert count == made.window


def test_a_window_of_nothing_waits_for_nothing() -> None:
    """A pause needs no timer, however many connections there are."""
    made = plan(0, 1, 2, 3)

    assert None is made.next_wake()
    assert [(1, 1), (2, 1), (3, 1)] == made.set_window(3, 1.0)


def test_a_window_that_shrinks_below_the_connections_leaves_rdy_1_on_some() -> None:
    """Two of three are drawn to give up; the sum follows the window at once."""
    made = plan(30, 1, 2, 3, random=lambda: 0.5)

    written = made.set_window(1, 1.0)

    assert [(1, 1), (2, 0), (3, 0)] == written
    assert 6.0 == made.next_wake()


# More connections than window


def test_enough_for_all_needs_no_redistribution() -> None:
    """With as many connections as window there is nothing to move."""
    assert None is plan(3, 1, 2, 3).next_wake()


def test_the_first_connections_hold_on_to_their_rdy() -> None:
    """One more than the window allows gets none, and a look is due in 5 s."""
    made = plan(2, 1, 2)

    assert [] == made.source_opened(3, max_rdy_count=CEILING, now=7.0)
    assert [1, 1, 0] == counts(made, 1, 2, 3)
    assert 12.0 == made.next_wake()


def test_what_a_lost_connection_had_goes_to_one_that_waits() -> None:
    """Drawn among those that have none."""
    made = plan(2, 1, 2, 3, 4, random=lambda: 0.9)

    assert [(4, 1)] == made.source_lost(1, 1.0)


def test_enough_again_ends_the_redistribution() -> None:
    """Once the connections are as many as the window, nothing is due."""
    made = plan(2, 1, 2, 3)

    made.source_lost(1, 1.0)

    assert [1, 1] == counts(made, 2, 3)
    assert None is made.next_wake()


def test_a_look_too_early_changes_nothing() -> None:
    """A timer may fire a little before its time; it is set again."""
    made = plan(1, 1, 2)

    assert [] == made.wake(4.999)
    assert 5.0 == made.next_wake()


def test_nothing_moves_before_a_connection_is_idle_or_old() -> None:
    """After 5 s all hold what they have; the next look is 5 s later."""
    made = plan(1, 1, 2)

    assert [] == made.wake(5.0)
    assert 10.0 == made.next_wake()


@pytest.mark.parametrize("draw", [0.0, 0.99])
def test_an_idle_connection_gives_up_to_one_that_waits(draw: float) -> None:
    """Not to another idle one, as long as somebody waits."""
    made = plan(2, 1, 2, 3, random=lambda: draw)
    made.row(2).last_message_at = 5.0

    assert [(1, 0), (3, 1)] == made.wake(10.0)


def test_a_connection_is_idle_since_its_last_message() -> None:
    """One that has had none for long gives its RDY up at the next look, as go-nsq has it."""
    made = plan(1, 1, 2)
    made.wake(10.0)

    assert [(2, 0), (1, 1)] == made.wake(15.0)


def test_a_busy_connection_gives_up_what_it_has_held_for_30_s() -> None:
    """Messages do not put that off."""
    made = plan(1, 1, 2)
    for now in (5.0, 10.0, 15.0, 20.0, 25.0):
        made.row(1).last_message_at = now
        assert [] == made.wake(now)
    made.row(1).last_message_at = 30.0

    assert [(1, 0), (2, 1)] == made.wake(30.0)


def test_what_goes_back_to_the_same_connection_is_not_written() -> None:
    """Two idle ones, one that waits: one of the two has its RDY anew."""
    made = plan(2, 1, 2, 3)

    assert [(2, 0), (3, 1)] == made.wake(10.0)
    assert [1, 0, 1] == counts(made, 1, 2, 3)


def test_what_goes_back_to_the_same_connection_is_held_anew() -> None:
    """Another 30 s, although nothing was written."""
    made = plan(2, 1, 2, 3)

    def busy(now: float) -> list[tuple[int, int]]:
        for source in (1, 2, 3):
            made.row(source).last_message_at = now
        return made.wake(now)

    written = [busy(5.0 * look) for look in range(1, 13)]

    assert [(2, 0), (3, 1)] == written[5]
    assert [[]] * 5 == written[6:11]
    assert [(3, 0), (2, 1)] == written[11]


def test_a_broker_that_takes_no_rdy_gets_none() -> None:
    """RDY 1 there would end the connection, so another one is drawn."""
    made = plan(1, 1)
    made.source_opened(2, max_rdy_count=0, now=0.0)
    made.source_opened(3, max_rdy_count=CEILING, now=0.0)

    assert [(1, 0), (3, 1)] == made.wake(10.0)


def test_over_time_every_connection_gets_its_turn() -> None:
    """The idle ones give up at each look, and the draw leaves nobody out for ever."""
    made = plan(2, *range(8), random=Random(7).random)

    had = {source for source in range(8) if made.ready(source)}
    for look in range(1, 40):
        had |= {source for source, count in made.wake(5.0 * look) if count}
        assert 2 == made.total

    assert set(range(8)) == had


# Backoff: what the dialogues with one consumer do not show


def test_who_never_fails_is_never_in_backoff() -> None:
    """Successes and requeues without backoff ask for no timer."""
    made = plan(10, 1)

    assert [] == made.succeeded(1.0) + made.continued(1.0)
    assert (False, 0, None) == (made.in_backoff, made.level, made.next_wake())


def test_a_pause_in_a_period_stays_one_behind_it() -> None:
    """The timer gives RDY 1 to nobody; once the window is open again, one tests the waters."""
    made = plan(10, 1)
    made.failed(0.0)
    made.set_window(0, 1.0)

    assert [] == made.wake(2.0)
    assert None is made.next_wake()
    assert [(1, 1)] == made.set_window(10, 5.0)


def test_a_pause_takes_the_rdy_1_away() -> None:
    """And a window gives it again, to one connection."""
    made = plan(10, 1, 2)
    made.failed(0.0)
    made.wake(2.0)

    assert [(1, 0)] == made.set_window(0, 3.0)
    assert [(1, 1)] == made.set_window(10, 4.0)


def test_another_window_in_backoff_waits_for_its_end() -> None:
    """Neither in the period nor behind it."""
    made = plan(10, 1, 2)
    made.failed(0.0)
    in_period = made.set_window(20, 1.0)
    made.wake(2.0)
    behind = made.set_window(30, 3.0)

    assert [[], []] == [in_period, behind]
    assert [(1, 15), (2, 15)] == made.succeeded(4.0)


def test_the_backoff_ends_into_a_window_that_is_not_enough() -> None:
    """The one that was tested keeps RDY 1, and the look that was due comes when it was due."""
    made = plan(1, 1, 2)
    made.failed(0.0)
    made.wake(2.0)

    assert [] == made.succeeded(3.0)
    assert [1, 0] == counts(made, 1, 2)
    assert 7.0 == made.next_wake()


def test_a_backoff_without_any_connection_goes_on_when_one_comes() -> None:
    """Of all that had gone, the first that opens gets RDY 1 five seconds later."""
    made = plan(10, 1)
    made.failed(0.0)
    made.wake(2.0)
    made.source_lost(1, 3.0)
    while_empty = made.next_wake()

    opened = made.source_opened(2, max_rdy_count=CEILING, now=60.0)

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
    """Outside of them the error names the option and what is allowed."""
    with pytest.raises(SettingsError, match="allowed: ") as raised:
        ReadyOptions(**options)

    assert [raised.value.name] == list(options)


# Whatever happens


class AnyLife(RuleBasedStateMachine):
    """Connections, windows, outcomes and time in any order; what is written is replayed."""

    def __init__(self) -> None:
        super().__init__()
        self.draws: list[float] = [0.0]
        self.drawn = 0
        self.plan = ReadyPlan(5, ReadyOptions(), random=self.draw)
        self.now = 0.0
        self.ceilings: dict[int, int] = {}
        self.ready: dict[int, int] = {}
        self.limit = 5
        self.last_source = 0

    def draw(self) -> float:
        """Return the numbers that were thought up, round and round."""
        self.drawn += 1
        return self.draws[self.drawn % len(self.draws)]

    def write(self, written: list[tuple[int, int]]) -> None:
        """Carry out *written* one by one: no count too high on the way, none without a change."""
        for source, count in written:
            assert self.ready[source] != count
            assert 0 <= count <= self.ceilings[source]
            rises = count > self.ready[source]
            self.ready[source] = count
            assert not rises or sum(self.ready.values()) <= self.plan.window

    @rule(draws=st.lists(st.floats(0.0, 1.0, exclude_max=True), min_size=1, max_size=5))
    def think_up(self, draws: list[float]) -> None:
        """Change what is drawn."""
        self.draws = draws

    @rule(ceiling=st.sampled_from([0, 1, 3, CEILING]))
    def open(self, ceiling: int) -> None:
        """Open a new source."""
        self.last_source += 1
        self.ceilings[self.last_source] = ceiling
        self.ready[self.last_source] = 0
        opened = self.plan.source_opened(self.last_source, max_rdy_count=ceiling, now=self.now)
        self.write(opened)

    @precondition(lambda self: self.ready)
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        """Lose any source."""
        source = data.draw(st.sampled_from(sorted(self.ready)))
        del self.ready[source]
        self.write(self.plan.source_lost(source, self.now))

    @rule(count=st.integers(0, 12))
    def set_window(self, count: int) -> None:
        """Change the window."""
        self.write(self.plan.set_window(count, self.now))

    @precondition(lambda self: self.ready)
    @rule(data=st.data())
    def arrive(self, data: st.DataObject) -> None:
        """Let messages arrive."""
        source = data.draw(st.sampled_from(sorted(self.ready)))
        self.plan.row(source).last_message_at = self.now

    @rule(signal=st.sampled_from(["succeeded", "failed", "continued"]))
    def end(self, signal: str) -> None:
        """Let a message end somehow."""
        self.write(getattr(self.plan, signal)(self.now))

    @rule(seconds=st.floats(0.0, 40.0))
    def advance(self, seconds: float) -> None:
        """Let time pass, with all that is due in it."""
        until = self.now + seconds
        while (due := self.plan.next_wake()) is not None and due <= until:
            assert due >= self.now
            self.now = due
            self.write(self.plan.wake(due))
        self.now = until

    @invariant()
    def the_sum_is_within_the_window(self) -> None:
        """The plan knows what is on the wire; in backoff that is 1 at most."""
        assert self.ready == {source: self.plan.ready(source) for source in self.ready}
        assert sum(self.ready.values()) == self.plan.total <= self.plan.window
        assert not self.plan.in_backoff or self.plan.total <= 1

    @invariant()
    def nothing_starves(self) -> None:
        """Where something could flow and does not, a timer is set."""
        could_flow = self.plan.window > 0 and any(self.ceilings[each] for each in self.ready)
        if could_flow and self.plan.total == 0:
            assert self.plan.next_wake() is not None


TestAnyLife = AnyLife.TestCase
