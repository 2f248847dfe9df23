"""
Run go-nsq's own tests of its consumer, and each rule of its backoff, command by command.

go-nsq (1.1.0, mock_test.go) runs them against a scripted nsqd in real time, with periods of a few
milliseconds. Here the test moves the clock, so that the default periods can be used, and compares
the commands that a broker's side of V2 has parsed.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gateway.client.deliveries import Delivery, DeliveryOptions
from gateway.client.rdy import SETTLE_S, RdyOptions
from tests.support.brokers.simulated_consumer import SimulatedConsumer
from tests.support.websocket.session_messages import message, message_id

GOOD, BAD, NO_BACKOFF = (message_id(number) for number in (0x600D, 0xBAD, 0xB0FF))
FIN = f"FIN {GOOD.decode()}"
REQ = f"REQ {BAD.decode()} 90000"
OPENING = ["IDENTIFY", "SUB orders billing"]


def drawing(*draws: float) -> Iterator[float]:
    yield from draws
    while True:
        yield draws[-1]


def deliver(dialogue: SimulatedConsumer, number: bytes, source: int = 1) -> Delivery:
    (delivery,) = dialogue.deliver(message(int(number, 16)), source=source)
    return delivery


def good(dialogue: SimulatedConsumer, source: int = 1) -> None:
    """Deliver a message and finish it."""
    deliver(dialogue, GOOD, source).finish()


def bad(dialogue: SimulatedConsumer, source: int = 1) -> None:
    """Deliver a message and requeue it as a failure."""
    deliver(dialogue, BAD, source).requeue()


def at_level(level: int, *, sources: int = 1, window: int = 5) -> SimulatedConsumer:
    """Return a consumer on *sources* at the beginning of a backoff period of *level*."""
    dialogue = SimulatedConsumer(window)
    for source in range(1, sources + 1):
        dialogue.open(source)
    bad(dialogue)
    for n in range(1, level):
        dialogue.advance(2.0**n)
        bad(dialogue)
    assert level == dialogue.rdy.level
    return dialogue


# go-nsq's dialogues


def test_consumer_backoff() -> None:
    """Two failures and two successes: two levels up, one down, then the full window."""
    dialogue = SimulatedConsumer(5)
    dialogue.open()

    good(dialogue)
    good(dialogue)
    good(dialogue)
    bad(dialogue)
    dialogue.advance(2.0)
    bad(dialogue)
    dialogue.advance(4.0)
    good(dialogue)
    dialogue.advance(2.0)
    good(dialogue)

    expected = [*OPENING, "RDY 5", FIN, FIN, FIN]
    expected += ["RDY 0", REQ, "RDY 1", "RDY 0", REQ]
    expected += ["RDY 1", "RDY 0", FIN, "RDY 1", "RDY 5", FIN]
    assert expected == dialogue.commands()


def test_consumer_backoff_to_the_second() -> None:
    """The periods are 2 s, 4 s and, one level down, 2 s."""
    dialogue = SimulatedConsumer(5)
    dialogue.open()

    bad(dialogue)
    dialogue.advance(10.0)
    bad(dialogue)
    dialogue.advance(10.0)
    good(dialogue)
    dialogue.advance(10.0)
    good(dialogue)

    expected = [(0.0, "RDY 0"), (0.0, REQ), (2.0, "RDY 1"), (10.0, "RDY 0"), (10.0, REQ)]
    expected += [(14.0, "RDY 1"), (20.0, "RDY 0"), (20.0, FIN), (22.0, "RDY 1")]
    expected += [(30.0, "RDY 5"), (30.0, FIN)]
    assert expected == dialogue.timed(since=3)


def test_consumer_requeue_no_backoff() -> None:
    """REQ without backoff repeats the level; with a window of 1, RDY 1 is the full window."""
    dialogue = SimulatedConsumer(1)
    dialogue.open()

    bad(dialogue)
    dialogue.advance(2.0)
    deliver(dialogue, NO_BACKOFF).requeue(backoff=False)
    dialogue.advance(2.0)
    good(dialogue)

    expected = [*OPENING, "RDY 1", "RDY 0", REQ]
    expected += ["RDY 1", "RDY 0", f"REQ {NO_BACKOFF.decode()} 90000", "RDY 1", FIN]
    assert expected == dialogue.commands()
    assert 0 == dialogue.rdy.level


def test_consumer_backoff_disconnect() -> None:
    """After the connection with RDY 1 is lost, the redistribution gives it to the next."""
    dialogue = SimulatedConsumer(5)
    dialogue.open()
    good(dialogue)
    bad(dialogue)
    dialogue.advance(2.0)
    bad(dialogue)
    dialogue.advance(4.0)
    good(dialogue)
    dialogue.advance(2.0)
    before = dialogue.commands()

    dialogue.lose(1)
    dialogue.open(2)
    dialogue.advance(5.0)
    good(dialogue, source=2)
    good(dialogue, source=2)

    expected = [*OPENING, "RDY 5", FIN, "RDY 0", REQ]
    expected += ["RDY 1", "RDY 0", REQ, "RDY 1", "RDY 0", FIN, "RDY 1"]
    assert expected == before
    again = [*OPENING, "RDY 1", "RDY 5", FIN, FIN]
    assert again == dialogue.commands(since=len(before))


def test_consumer_pause() -> None:
    """A window of 0 stops messages; the old window lets them continue."""
    dialogue = SimulatedConsumer(5)
    dialogue.open()

    good(dialogue)
    dialogue.set_window(0)
    dialogue.set_window(5)

    assert [*OPENING, "RDY 5", FIN, "RDY 0", "RDY 5"] == dialogue.commands()


@pytest.mark.parametrize(
    "max_attempts, attempts, is_handled", [(5, 5, True), (5, 6, False), (0, 65_535, True)]
)
def test_consumer_max_attempts(max_attempts: int, attempts: int, is_handled: bool) -> None:  # noqa: FBT001
    """Above the limit the hook gets the message, and FIN is written; 0 means no limit."""
    dialogue = SimulatedConsumer(5, tracker=DeliveryOptions(max_attempts=max_attempts))
    dialogue.open()

    handled = dialogue.deliver(message(0x600D, attempts=attempts))

    assert is_handled == bool(handled)
    assert is_handled != bool(dialogue.gave_up)
    assert ([] if is_handled else [FIN]) == dialogue.commands(since=3)


def test_giving_up_is_a_success_to_the_backoff() -> None:
    """As in go-nsq, a message that is given up counts as finished."""
    dialogue = at_level(1)
    dialogue.advance(2.0)

    dialogue.deliver(message(0x600D, attempts=6))

    assert ["RDY 5", FIN] == dialogue.commands(since=6)
    assert not dialogue.rdy.in_backoff


@pytest.mark.parametrize(
    "attempts, expected_ms",
    [(1, 90_000), (2, 180_000), (9, 810_000), (10, 900_000), (11, 900_000), (65_535, 900_000)],
)
def test_the_default_delay_grows_with_the_attempts(attempts: int, expected_ms: int) -> None:
    """The delay is 90 s times the attempts, up to 15 minutes."""
    dialogue = SimulatedConsumer(5, tracker=DeliveryOptions(max_attempts=0))
    dialogue.open()
    (delivery,) = dialogue.deliver(message(0xBAD, attempts=attempts))

    delivery.requeue()

    assert f"REQ {BAD.decode()} {expected_ms}" == dialogue.commands()[-1]


@pytest.mark.parametrize("delay_ms", [0, 1, 3_600_000])
def test_a_delay_that_is_named_goes_out_as_it_is(delay_ms: int) -> None:
    """The maximum applies to the default delay only; nsqd has a maximum of its own."""
    dialogue = SimulatedConsumer(5)
    dialogue.open()

    deliver(dialogue, BAD).requeue(delay_ms)

    assert f"REQ {BAD.decode()} {delay_ms}" == dialogue.commands()[-1]


# Rule 1: levels and their durations


def test_durations_double_and_stop_at_the_last_that_is_allowed() -> None:
    """2, 4, 8, 16, 32, 64 s; level 7 would be 128 s, above the maximum of 120 s."""
    dialogue = SimulatedConsumer(5)
    dialogue.open()

    waited = []
    for _ in range(8):
        bad(dialogue)
        due = dialogue.rdy.next_wake()
        assert due is not None
        waited.append(due - dialogue.now)
        dialogue.advance(waited[-1])

    assert [2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 64.0, 64.0] == waited
    assert 6 == dialogue.rdy.level


def test_full_jitter_draws_below_the_duration() -> None:
    """The durations are random parts of those of exponential; the levels are the same."""
    draws = drawing(0.25, 0.0, 0.75, 0.0, 0.001, 0.0)
    ready = RdyOptions(backoff_strategy="full_jitter")
    dialogue = SimulatedConsumer(5, ready, random=lambda: next(draws))
    dialogue.open()

    bad(dialogue)
    dialogue.advance(2.0)
    bad(dialogue)
    dialogue.advance(4.0)
    bad(dialogue)
    dialogue.advance(8.0)

    periods = [(0.0, "RDY 0"), (0.5, "RDY 1"), (2.0, "RDY 0"), (5.0, "RDY 1")]
    periods += [(6.0, "RDY 0"), (6.008, "RDY 1")]
    assert periods == [each for each in dialogue.timed(since=3) if each[1] != REQ]


def test_no_maximum_is_no_backoff() -> None:
    """With max_backoff_duration 0 a failure is requeued, and RDY does not change."""
    dialogue = SimulatedConsumer(5, RdyOptions(max_backoff_duration_s=0.0))
    dialogue.open()

    bad(dialogue)

    assert [*OPENING, "RDY 5", REQ] == dialogue.commands()
    assert None is dialogue.rdy.next_wake()


def test_a_maximum_below_the_first_duration_is_no_backoff() -> None:
    """Level 1 would last 2 s, so it is never reached."""
    dialogue = SimulatedConsumer(5, RdyOptions(max_backoff_duration_s=1.9))
    dialogue.open()

    bad(dialogue)

    assert [*OPENING, "RDY 5", REQ] == dialogue.commands()


# Rule 2: RDY 0 everywhere, and deaf until the timer


def test_all_connections_go_to_zero_before_the_requeue() -> None:
    dialogue = SimulatedConsumer(9)
    for source in (1, 2, 3):
        dialogue.open(source)
    since = len(dialogue.heard)

    bad(dialogue, source=2)

    expected = ["1: RDY 0", "2: RDY 0", "3: RDY 0", f"2: {REQ}"]
    assert expected == dialogue.addressed(since=since)


def test_outcomes_within_the_period_change_nothing() -> None:
    """Outcomes of messages delivered before the period are ignored, of whatever kind."""
    dialogue = SimulatedConsumer(5)
    dialogue.open()
    first, second, third, fourth = dialogue.deliver(*[message(number) for number in range(4)])
    first.requeue(0)
    since = len(dialogue.heard)

    second.requeue(0)
    third.finish()
    fourth.requeue(0, backoff=False)
    dialogue.advance(1.9)

    expected = [f"REQ {second.id.decode()} 0", f"FIN {third.id.decode()}"]
    expected += [f"REQ {fourth.id.decode()} 0"]
    assert expected == dialogue.commands(since=since)
    assert 1 == dialogue.rdy.level


# Rule 3: one connection tests the waters


@pytest.mark.parametrize("draw, chosen", [(0.0, 1), (0.4, 2), (0.99, 3)])
def test_the_timer_gives_rdy_1_to_one_connection_drawn_at_random(draw: float, chosen: int) -> None:
    dialogue = SimulatedConsumer(9, random=lambda: draw)
    for source in (1, 2, 3):
        dialogue.open(source)
    bad(dialogue)
    since = len(dialogue.heard)

    dialogue.advance(2.0)

    assert [f"{chosen}: RDY 1"] == dialogue.addressed(since=since)


def test_without_a_connection_the_timer_tries_again_each_second() -> None:
    """A connection that opens meanwhile waits for the next attempt."""
    dialogue = at_level(1)
    dialogue.lose(1)
    dialogue.advance(4.5)
    since = len(dialogue.heard)

    dialogue.open(2)
    dialogue.advance(10.0)

    expected = [(4.5, "IDENTIFY"), (4.5, "SUB orders billing"), (5.0, "RDY 1")]
    assert expected == dialogue.timed(since=since)


# Rule 4: the one message decides


def test_a_success_leads_one_level_down() -> None:
    """From level 3 over 2 and 1 to the full window, each after its own period."""
    dialogue = at_level(3)
    since = len(dialogue.heard)

    for _ in range(3):
        dialogue.advance(8.0)
        good(dialogue)

    expected = [(14.0, "RDY 1"), (14.0, "RDY 0"), (14.0, FIN)]
    expected += [(18.0, "RDY 1"), (22.0, "RDY 0"), (22.0, FIN)]
    expected += [(24.0, "RDY 1"), (30.0, "RDY 5"), (30.0, FIN)]
    assert expected == dialogue.timed(since=since)


def test_the_end_of_the_backoff_gives_all_connections_their_share() -> None:
    """The connection that tested rises from RDY 1, the others from 0."""
    dialogue = at_level(1, sources=3, window=9)
    dialogue.advance(2.0)
    since = len(dialogue.heard)

    good(dialogue)

    expected = ["1: RDY 3", "2: RDY 3", "3: RDY 3", f"1: {FIN}"]
    assert expected == dialogue.addressed(since=since)


# Rule 5: REQ without backoff


@pytest.mark.parametrize("level", [1, 2, 5])
def test_a_requeue_without_backoff_repeats_the_level(level: int) -> None:
    """RDY is 0 everywhere for another period of the same duration."""
    dialogue = at_level(level)
    dialogue.advance(2.0**level)

    deliver(dialogue, NO_BACKOFF).requeue(0, backoff=False)

    assert level == dialogue.rdy.level
    assert dialogue.now + 2.0**level == dialogue.rdy.next_wake()
    assert ["RDY 0", f"REQ {NO_BACKOFF.decode()} 0"] == dialogue.commands()[-2:]


def test_a_requeue_without_backoff_does_not_begin_one() -> None:
    """At level 0 only the REQ is written."""
    dialogue = SimulatedConsumer(5)
    dialogue.open()

    deliver(dialogue, NO_BACKOFF).requeue(0, backoff=False)

    assert [f"REQ {NO_BACKOFF.decode()} 0"] == dialogue.commands(since=3)


# Rule 6: connections that come and go


@pytest.mark.parametrize("waits_s", [0.0, 2.0], ids=["in the period", "behind it"])
def test_a_new_connection_gets_no_rdy_in_backoff(waits_s: float) -> None:
    dialogue = at_level(1, window=6)
    dialogue.advance(waits_s)
    dialogue.open(2)
    opened = dialogue.addressed()[-1]

    dialogue.advance(2.0 - waits_s)
    good(dialogue)

    assert "2: SUB orders billing" == opened
    assert ["1: RDY 3", "2: RDY 3", f"1: {FIN}"] == dialogue.addressed()[-3:]


def test_the_rdy_1_of_a_lost_connection_goes_to_another_at_the_next_tick() -> None:
    """That takes at most five seconds, and RDY 1 goes to one connection only."""
    dialogue = at_level(1, sources=3, window=9)
    dialogue.advance(2.0)
    since = len(dialogue.heard)

    dialogue.lose(1)
    dialogue.advance(5.0)

    assert [(7.0, "RDY 1")] == dialogue.timed(since=since)
    assert 1 == dialogue.rdy.total


def test_the_rdy_1_moves_on_from_a_connection_without_messages() -> None:
    """Ten seconds after its last message, another connection tests."""
    dialogue = at_level(1, sources=2, window=4)
    since = len(dialogue.heard)

    dialogue.advance(12.0)

    expected = [(2.0, 1, "RDY 1"), (12.0, 1, "RDY 0"), (12.0, 2, "RDY 1")]
    assert expected == dialogue.heard[since:]


# The budget of RDY


def test_those_that_are_there_are_lowered_before_a_new_one_is_raised() -> None:
    """The sum of written RDY never exceeds the window."""
    dialogue = SimulatedConsumer(6)
    dialogue.open(1)
    dialogue.open(2)
    since = len(dialogue.heard)

    dialogue.open(3)

    expected = ["3: IDENTIFY", "3: SUB orders billing", "1: RDY 2", "2: RDY 2", "3: RDY 2"]
    assert expected == dialogue.addressed(since=since)
    assert 6 == dialogue.most_ready


def test_rdy_is_never_above_what_the_broker_takes() -> None:
    """max_rdy_count is in the answer to IDENTIFY."""
    dialogue = SimulatedConsumer(5_000)

    dialogue.open(1, max_rdy_count=100)

    assert "RDY 100" == dialogue.commands()[-1]


def test_a_connection_too_many_waits_for_its_turn() -> None:
    """With a window of 1 it gets RDY after the first was idle for 10 s and has settled."""
    dialogue = SimulatedConsumer(1)
    dialogue.open(1)
    dialogue.open(2)
    since = len(dialogue.heard)

    dialogue.advance(10.0 + SETTLE_S)

    assert [(10.0, 1, "RDY 0"), (10.0 + SETTLE_S, 2, "RDY 1")] == dialogue.heard[since:]


def test_a_busy_connection_gives_up_after_30_s() -> None:
    """Messages do not extend the 30 s."""
    dialogue = SimulatedConsumer(1)
    dialogue.open(1)
    dialogue.open(2)
    for _ in range(7):
        dialogue.advance(4.0)
        good(dialogue)
    since = len(dialogue.heard)

    dialogue.advance(4.0)

    assert [(30.0, 1, "RDY 0"), (30.0 + SETTLE_S, 2, "RDY 1")] == dialogue.heard[since:]
