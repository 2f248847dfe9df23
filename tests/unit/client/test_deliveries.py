"""Tests of `DeliveryTracker`: unanswered deliveries, and the commands for their answers."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.client.deliveries import (
    Action,
    Delivery,
    DeliveryOptions,
    DeliveryTracker,
    SendFin,
    SendRdy,
    SendReq,
    SendTouch,
    claim,
)
from gateway.client.rdy import RdyDistributor, RdyOptions
from gateway.errors import AlreadyResponded, SettingsError
from gateway.protocol.identify import IdentifyResponse
from gateway.protocol.recent_acks import REMEMBERED_IDS
from tests.support.websocket.session_messages import TIMESTAMP_NS, message, message_id, messages

A, B, C = (message_id(number) for number in (0xA, 0xB, 0xC))
WINDOW = 2_500


class Shell:
    """A tracker with sources 1 and 2; msg_timeout is 60 s, max_msg_timeout 90 s."""

    def __init__(self, **options: int) -> None:
        self.rdy = RdyDistributor(WINDOW, RdyOptions(), random=lambda: 0.0)
        self.tracker = DeliveryTracker(
            DeliveryOptions(**options), self.rdy, self, topic="orders", channel="billing"
        )
        answer = IdentifyResponse(msg_timeout=60_000, max_msg_timeout=90_000)
        for source in (1, 2):
            self.tracker.add_source(source, f"127.0.0.1:{source}", answer)
            self.rdy.add_source(source, max_rdy_count=WINDOW, now=-1.0)
        self.rdy.wake(0.0)
        self.now = 0.0
        self.actions: list[Action] = []

    def hold(self, *numbers: int, source: int = 1, now: float = 0.0) -> list[Delivery]:
        """Let the messages of *numbers* arrive."""
        deliveries, given_up = self.tracker.arrived(source, messages(*numbers), now)
        assert [] == given_up
        return deliveries

    def finish(self, deliveries: Any) -> None:  # noqa: ANN401 - any sequence
        """Record what is to be written."""
        self.actions += self.tracker.finished(deliveries, self.now)

    def requeue(self, deliveries: Any, *, delay_ms: int | None, backoff: bool) -> None:  # noqa: ANN401
        """Record what is to be written."""
        self.actions += self.tracker.requeued(
            deliveries, self.now, delay_ms=delay_ms, backoff=backoff
        )

    def touch(self, deliveries: Any) -> None:  # noqa: ANN401
        """Record what is to be written."""
        self.actions += self.tracker.touched(deliveries, self.now)


@pytest.fixture
def shell() -> Shell:
    """Return a tracker with the default options."""
    return Shell()


# In


def test_a_delivery_says_what_came_and_from_where(shell: Shell) -> None:
    """A delivery has body, id, timestamp, attempts, topic, channel, nsqd and deadline."""
    (delivery,), _ = shell.tracker.arrived(2, [message(0xA, b"body", attempts=3)], 5.0)

    assert (b"body", A, TIMESTAMP_NS, 3) == (
        delivery.body,
        delivery.id,
        delivery.timestamp_ns,
        delivery.attempts,
    )
    assert ("orders", "billing", "127.0.0.1:2") == (
        delivery.topic,
        delivery.channel,
        delivery.nsqd,
    )
    assert (65.0, 5.0) == (delivery.deadline, delivery.arrival.sent_after)
    assert (False, True) == (delivery.is_answered, delivery.is_in_flight)


def test_the_text_of_a_delivery_is_without_its_body(shell: Shell) -> None:
    """A body may be long or confidential, so `repr` omits it."""
    (delivery,), _ = shell.tracker.arrived(1, [message(0xA, b"4111 1111")], 0.0)

    assert f"<Delivery {A.decode()} attempts=1 nsqd=127.0.0.1:1>" == repr(delivery)


def test_what_one_read_brought_has_one_arrival(shell: Shell) -> None:
    """All deliveries of one read share a deadline."""
    first, second = shell.hold(0xA, 0xB)
    (third,) = shell.hold(0xC)

    assert first.arrival is second.arrival
    assert first.arrival is not third.arrival


def test_a_read_without_messages_brings_nothing(shell: Shell) -> None:
    """No delivery results from an empty list."""
    assert ([], []) == shell.tracker.arrived(1, [], 0.0)


def test_what_came_too_often_is_set_apart() -> None:
    """Deliveries above max_attempts are returned apart, and tracked until finished."""
    shell = Shell(max_attempts=2)
    came = [message(number, attempts=number) for number in (1, 2, 3, 4)]

    deliveries, given_up = shell.tracker.arrived(1, came, 0.0)

    assert [[1, 2], [3, 4]] == [[each.attempts for each in row] for row in (deliveries, given_up)]
    assert 4 == shell.tracker.in_flight


# FIN


def test_finish_writes_fin_where_the_message_came_from(shell: Shell) -> None:
    """FIN is written on the connection that delivered the message."""
    (delivery,) = shell.hold(0xA, source=2)

    delivery.finish()

    assert [SendFin(2, [A])] == shell.actions
    assert (True, False) == (delivery.is_answered, delivery.is_in_flight)
    assert 0 == shell.tracker.in_flight


def test_a_list_is_finished_with_one_action_for_each_connection(shell: Shell) -> None:
    """FINs keep the order of the list, whatever the order of connections."""
    first, third = shell.hold(0xA, 0xC, source=1)
    (second,) = shell.hold(0xB, source=2)

    claim([first, second, third])
    shell.finish([first, second, third])

    assert [SendFin(1, [A, C]), SendFin(2, [B])] == shell.actions


def test_nothing_is_written_for_nothing(shell: Shell) -> None:
    """An empty list results in no actions."""
    claim([])
    shell.finish([])
    shell.requeue([], delay_ms=None, backoff=True)
    shell.touch([])

    assert [] == shell.actions
    assert not shell.rdy.in_backoff


@pytest.mark.parametrize("answer", [Delivery.finish, Delivery.requeue, Delivery.touch])
@pytest.mark.parametrize("before", [Delivery.finish, Delivery.requeue])
def test_what_is_answered_cannot_be_answered_again(shell: Shell, answer: Any, before: Any) -> None:  # noqa: ANN401
    """Neither is it touched; the error has the message id, and nothing is written."""
    (delivery,) = shell.hold(0xA)
    before(delivery)
    written = list(shell.actions)

    with pytest.raises(AlreadyResponded, match=A.decode()):
        answer(delivery)

    assert written == shell.actions


def test_a_list_is_claimed_whole_or_not_at_all(shell: Shell) -> None:
    """If one delivery is answered already, the others stay unclaimed."""
    first, second, third = shell.hold(0xA, 0xB, 0xC)
    second.finish()

    with pytest.raises(AlreadyResponded, match=B.decode()):
        claim([first, second, third])

    assert [False, True, False] == [each.is_answered for each in (first, second, third)]


def test_a_list_names_each_delivery_once(shell: Shell) -> None:
    """A delivery that is in the list twice is refused and stays unanswered."""
    (delivery,) = shell.hold(0xA)

    with pytest.raises(AlreadyResponded):
        claim([delivery, delivery])

    assert not delivery.is_answered


# REQ


def test_requeue_without_a_delay_waits_for_each_attempt() -> None:
    """The delay is 90 s times the attempts; equal delays share a REQ."""
    shell = Shell(max_attempts=0)
    came = [message(0xA, attempts=1), message(0xB, attempts=11), message(0xC, attempts=1)]
    deliveries, _ = shell.tracker.arrived(1, came, 0.0)

    claim(deliveries)
    shell.requeue(deliveries, delay_ms=None, backoff=False)

    assert [SendReq(1, [A, C], 90_000), SendReq(1, [B], 900_000)] == shell.actions


def test_the_default_delay_can_be_set() -> None:
    shell = Shell(default_requeue_delay_ms=500, max_requeue_delay_ms=800)
    came = [message(0xA, attempts=1), message(0xB, attempts=2)]
    deliveries, _ = shell.tracker.arrived(1, came, 0.0)

    claim(deliveries)
    shell.requeue(deliveries, delay_ms=None, backoff=False)

    assert [SendReq(1, [A], 500), SendReq(1, [B], 800)] == shell.actions


def test_a_failure_writes_rdy_0_before_the_requeue(shell: Shell) -> None:
    """RDY 0 is written to every connection; a list counts as one failure."""
    deliveries = shell.hold(0xA, 0xB)

    claim(deliveries)
    shell.requeue(deliveries, delay_ms=7, backoff=True)

    assert [SendRdy(1, 0), SendRdy(2, 0), SendReq(1, [A, B], 7)] == shell.actions
    assert 1 == shell.rdy.level


def test_a_success_writes_the_full_rdy_before_the_fin(shell: Shell) -> None:
    """The full RDY returns at the end of the backoff."""
    first, second = shell.hold(0xA, 0xB)
    first.requeue(0)
    shell.rdy.wake(2.0)
    shell.actions.clear()

    second.finish()

    assert [SendRdy(1, 1_250), SendRdy(2, 1_250), SendFin(1, [B])] == shell.actions


# TOUCH


def test_touch_starts_the_timeout_anew(shell: Shell) -> None:
    """Only the touched delivery gets a new deadline, not others of the same read."""
    first, second = shell.hold(0xA, 0xB)
    shell.now = 10.0

    first.touch()

    assert [SendTouch(1, [A])] == shell.actions
    assert (70.0, 60.0) == (first.deadline, second.deadline)


def test_touch_reaches_no_further_than_the_ceiling(shell: Shell) -> None:
    """nsqd times a message out at max_msg_timeout after its delivery, even if touched."""
    (delivery,) = shell.hold(0xA, now=5.0)

    deadlines = []
    for shell.now in (30.0, 50.0, 90.0):
        delivery.touch()
        deadlines.append(delivery.deadline)

    assert [90.0, 95.0, 95.0] == deadlines


# Connections that end


def test_what_a_lost_connection_brought_is_returned(shell: Shell) -> None:
    """Unanswered deliveries are returned in order of arrival; those of other sources stay."""
    first, second, third = shell.hold(0xA, 0xB, 0xC)
    (other,) = shell.hold(0xA, source=2)
    second.finish()

    lost = shell.tracker.remove_source(1)

    assert [first, third] == lost
    assert [False, True] == [first.is_in_flight, other.is_in_flight]
    assert 1 == shell.tracker.in_flight


def test_what_is_lost_is_answered_with_nothing(shell: Shell) -> None:
    """Nothing is raised, written or reported to the backoff, but the answer is counted."""
    first, second, third = shell.hold(0xA, 0xB, 0xC)
    shell.tracker.remove_source(1)

    first.finish()
    second.requeue()
    third.touch()

    assert [] == shell.actions
    assert 2 == shell.tracker.lost_count
    assert not shell.rdy.in_backoff


def test_what_is_lost_ends_no_backoff(shell: Shell) -> None:
    """The connection that tests has not had an outcome yet."""
    (failing,) = shell.hold(0xA)
    (lost,) = shell.hold(0xB, source=2)
    failing.requeue()
    shell.rdy.wake(2.0)
    shell.tracker.remove_source(2)
    shell.actions.clear()

    lost.finish()

    assert [] == shell.actions
    assert 1 == shell.rdy.level


def test_only_the_lost_part_of_a_list_is_left_out(shell: Shell) -> None:
    """The rest is written, and counts as a success."""
    (first,) = shell.hold(0xA, source=1)
    (second,) = shell.hold(0xB, source=2)
    shell.tracker.remove_source(1)

    claim([first, second])
    shell.finish([first, second])

    assert [SendFin(2, [B])] == shell.actions
    assert 1 == shell.tracker.lost_count


def test_losing_what_was_never_opened_loses_nothing(shell: Shell) -> None:
    """A connection may be lost before it has subscribed."""
    assert [] == shell.tracker.remove_source(7)


def test_a_message_that_comes_again_takes_the_place_of_its_first_delivery(shell: Shell) -> None:
    """Otherwise an answer to the first delivery, which timed out, would answer the second."""
    (first,) = shell.hold(0xA)
    (second,) = shell.hold(0xA)

    first.finish()
    written = list(shell.actions)
    second.finish()

    assert [] == written
    assert [SendFin(1, [A])] == shell.actions
    assert 1 == shell.tracker.lost_count


def test_the_same_id_on_another_connection_is_another_message(shell: Shell) -> None:
    """Ids repeat between nsqds, so they are kept by source."""
    (first,) = shell.hold(0xA, source=1)
    (second,) = shell.hold(0xA, source=2)

    second.finish()
    first.finish()

    assert [SendFin(2, [A]), SendFin(1, [A])] == shell.actions


# Deadlines


def test_what_is_overdue_is_told_once(shell: Shell) -> None:
    """It is reported at its deadline, and can still be answered."""
    (first,) = shell.hold(0xA, now=0.0)
    (second,) = shell.hold(0xB, source=2, now=10.0)

    told = [shell.tracker.overdue(now) for now in (59.9, 60.0, 61.0, 70.0, 99.0)]
    first.finish()

    assert [[], [first], [], [second], []] == told
    assert [SendFin(1, [A])] == shell.actions


def test_a_look_for_the_overdue_is_due_with_the_first_deadline(shell: Shell) -> None:
    """None without deliveries; after a call, the earliest of the remaining deadlines."""
    due = [shell.tracker.next_deadline()]
    (delivery,) = shell.hold(0xA, now=0.0)
    shell.hold(0xB, now=10.0)
    due.append(shell.tracker.next_deadline())
    delivery.finish()
    shell.tracker.overdue(60.0)
    due.append(shell.tracker.next_deadline())
    shell.tracker.overdue(70.0)
    due.append(shell.tracker.next_deadline())

    assert [None, 60.0, 70.0, None] == due


def test_what_was_touched_is_overdue_later(shell: Shell) -> None:
    """It is reported again at its new deadline."""
    (delivery,) = shell.hold(0xA)
    shell.tracker.overdue(60.0)
    shell.now = 61.0

    delivery.touch()

    assert 90.0 == shell.tracker.next_deadline()
    assert [delivery] == shell.tracker.overdue(90.0)


def test_what_is_dropped_is_held_no_more(shell: Shell) -> None:
    """A later answer is counted and not written."""
    first, second = shell.hold(0xA, 0xB)

    shell.tracker.dropped([first])
    first.finish()

    assert [] == shell.actions
    assert (1, 1) == (shell.tracker.in_flight, shell.tracker.lost_count)
    assert second.is_in_flight


def test_what_was_answered_is_not_dropped(shell: Shell) -> None:
    (delivery,) = shell.hold(0xA)
    claim([delivery])

    shell.tracker.dropped([delivery])
    shell.finish([delivery])

    assert [SendFin(1, [A])] == shell.actions


# Handing back


def test_what_is_not_answered_is_handed_back(shell: Shell) -> None:
    """REQ 0 is written to each connection, without backoff; later answers write nothing."""
    first, second = shell.hold(0xA, 0xB, source=1)
    shell.hold(0xC, source=2)
    second.finish()
    shell.actions.clear()

    back = shell.tracker.hand_back(1.0)
    first.finish()

    assert [SendReq(1, [A], 0), SendReq(2, [C], 0)] == back
    assert [] == shell.actions
    assert (0, 1) == (shell.tracker.in_flight, shell.tracker.lost_count)
    assert not shell.rdy.in_backoff


def test_what_nsqd_has_timed_out_is_not_handed_back(shell: Shell) -> None:
    """nsqd would refuse a REQ; the delivery is no longer tracked."""
    shell.hold(0xA, now=0.0)
    shell.hold(0xB, now=10.0)

    assert [SendReq(1, [B], 0)] == shell.tracker.hand_back(60.0)
    assert 0 == shell.tracker.in_flight
    assert [] == shell.tracker.hand_back(60.0)


def test_what_is_claimed_is_not_handed_back(shell: Shell) -> None:
    """Its pending FIN is written afterwards."""
    first, second = shell.hold(0xA, 0xB)
    claim([first])

    back = shell.tracker.hand_back(1.0)
    shell.finish([first])

    assert [SendReq(1, [second.id], 0)] == back
    assert [SendFin(1, [A])] == shell.actions


# Refusals


@pytest.mark.parametrize("verb", ["FIN", "REQ"])
def test_a_late_refusal_finds_its_message(shell: Shell, verb: str) -> None:
    """Recent answers are remembered; an unknown id returns None."""
    (delivery,) = shell.hold(0xA, source=2)
    if verb == "FIN":
        delivery.finish()
    else:
        delivery.requeue()

    refused = shell.tracker.refused(2, A, verb)

    assert refused is not None
    assert ("127.0.0.1:2", A, verb) == (refused.nsqd, refused.message_id, refused.verb)
    assert None is shell.tracker.refused(2, B, verb)
    assert None is shell.tracker.refused(7, A, verb)


def test_a_touch_that_is_refused_ends_the_delivery(shell: Shell) -> None:
    """nsqd has timed the message out, so an answer would be refused as well."""
    (delivery,) = shell.hold(0xA)
    delivery.touch()
    shell.actions.clear()

    assert shell.tracker.refused(1, A, "TOUCH") is not None
    delivery.finish()

    assert [] == shell.actions
    assert 1 == shell.tracker.lost_count


def test_what_is_remembered_is_bounded(shell: Shell) -> None:
    """The oldest answers are dropped."""
    for number in range(REMEMBERED_IDS + 1):
        (delivery,) = shell.hold(number)
        delivery.finish()

    assert None is shell.tracker.refused(1, message_id(0), "FIN")
    assert shell.tracker.refused(1, message_id(1), "FIN") is not None


# Starved


@pytest.mark.parametrize(
    "window, held, is_starved",
    [(20, 0, False), (20, 7, False), (20, 8, True), (20, 10, True), (2, 0, False), (2, 1, True)],
)
def test_a_connection_with_85_percent_of_its_rdy_in_flight_is_starved(
    window: int,
    held: int,
    is_starved: bool,  # noqa: FBT001
) -> None:
    """At RDY 10 that is 8 messages, at RDY 1 it is 1; without messages it is never starved."""
    shell = Shell()
    shell.rdy.set_window(window, 0.0)

    shell.hold(*range(held))

    assert is_starved == shell.tracker.is_starved


# Options


@pytest.mark.parametrize(
    "options",
    [
        {"max_attempts": -1},
        {"max_attempts": 65_536},
        {"default_requeue_delay_ms": -1},
        {"max_requeue_delay_ms": 3_600_001},
    ],
    ids=str,
)
def test_options_have_go_nsqs_ranges(options: dict[str, int]) -> None:
    """Outside of the range, the error names the option and the allowed values."""
    with pytest.raises(SettingsError, match="allowed: 0 to ") as raised:
        DeliveryOptions(**options)

    assert [raised.value.name] == list(options)
