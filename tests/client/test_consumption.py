"""What a consumer holds, and what is written when it answers."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.client.consumption import (
    Action,
    Consumption,
    ConsumptionOptions,
    Delivery,
    Finish,
    Ready,
    Requeue,
    Touch,
    claim,
)
from gateway.client.ready import ReadyOptions, ReadyPlan
from gateway.errors import AlreadyAnswered, SettingsError
from gateway.protocol.answered import REMEMBERED_IDS
from gateway.protocol.identify import Answer
from tests.support.deliveries import TIMESTAMP_NS, message, message_id, messages

A, B, C = (message_id(number) for number in (0xA, 0xB, 0xC))
WINDOW = 2_500


class Shell:
    """Two connections, 1 and 2, with a message timeout of 60 s and at most 90 s with TOUCH."""

    def __init__(self, **options: int) -> None:
        self.plan = ReadyPlan(WINDOW, ReadyOptions(), random=lambda: 0.0)
        self.consumption = Consumption(
            ConsumptionOptions(**options), self.plan, self, topic="orders", channel="billing"
        )
        answer = Answer(msg_timeout=60_000, max_msg_timeout=90_000)
        for source in (1, 2):
            self.consumption.source_opened(source, f"127.0.0.1:{source}", answer)
            self.plan.source_opened(source, max_rdy_count=WINDOW, now=0.0)
        self.now = 0.0
        self.actions: list[Action] = []

    def hold(self, *numbers: int, source: int = 1, now: float = 0.0) -> list[Delivery]:
        """Let messages *numbers* arrive."""
        deliveries, given_up = self.consumption.arrived(source, messages(*numbers), now)
        assert [] == given_up
        return deliveries

    def finish(self, deliveries: Any) -> None:  # noqa: ANN401 - any sequence
        """Keep what is to be written."""
        self.actions += self.consumption.finished(deliveries, self.now)

    def requeue(self, deliveries: Any, *, delay_ms: int | None, backoff: bool) -> None:  # noqa: ANN401
        """Keep what is to be written."""
        self.actions += self.consumption.requeued(
            deliveries, self.now, delay_ms=delay_ms, backoff=backoff
        )

    def touch(self, deliveries: Any) -> None:  # noqa: ANN401
        """Keep what is to be written."""
        self.actions += self.consumption.touched(deliveries, self.now)


@pytest.fixture
def shell() -> Shell:
    """Return a shell with the default options."""
    return Shell()


# In


def test_a_delivery_says_what_came_and_from_where(shell: Shell) -> None:
    """Body, id, time of publishing, attempts; topic, channel and broker; the deadline."""
    (delivery,), _ = shell.consumption.arrived(2, [message(0xA, b"body", attempts=3)], 5.0)

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
    assert (65.0, 5.0) == (delivery.deadline, delivery.arrival.arrived_at)
    assert (False, True) == (delivery.is_answered, delivery.is_in_flight)


def test_the_text_of_a_delivery_is_without_its_body(shell: Shell) -> None:
    """Bodies may be long, and nobody's business in a log."""
    (delivery,), _ = shell.consumption.arrived(1, [message(0xA, b"4111 1111")], 0.0)

    assert f"<Delivery {A.decode()} attempts=1 nsqd=127.0.0.1:1>" == repr(delivery)


def test_what_one_read_brought_has_one_arrival(shell: Shell) -> None:
    """The deadline is kept once for all of them."""
    first, second = shell.hold(0xA, 0xB)
    (third,) = shell.hold(0xC)

    assert first.arrival is second.arrival
    assert first.arrival is not third.arrival


def test_a_read_without_messages_brings_nothing(shell: Shell) -> None:
    """Which a connection does not tell of, but may."""
    assert ([], []) == shell.consumption.arrived(1, [], 0.0)


def test_what_came_too_often_is_set_apart() -> None:
    """More than max_attempts times; it is held until it is finished."""
    shell = Shell(max_attempts=2)
    came = [message(number, attempts=number) for number in (1, 2, 3, 4)]

    deliveries, given_up = shell.consumption.arrived(1, came, 0.0)

    assert [[1, 2], [3, 4]] == [[each.attempts for each in row] for row in (deliveries, given_up)]
    assert 4 == shell.consumption.in_flight


# FIN


def test_finish_writes_fin_where_the_message_came_from(shell: Shell) -> None:
    """On the connection that brought it."""
    (delivery,) = shell.hold(0xA, source=2)

    delivery.finish()

    assert [Finish(2, [A])] == shell.actions
    assert (True, False) == (delivery.is_answered, delivery.is_in_flight)
    assert 0 == shell.consumption.in_flight


def test_a_list_is_finished_with_one_action_for_each_connection(shell: Shell) -> None:
    """In the order of the list, however the connections stand in it."""
    first, third = shell.hold(0xA, 0xC, source=1)
    (second,) = shell.hold(0xB, source=2)

    claim([first, second, third])
    shell.finish([first, second, third])

    assert [Finish(1, [A, C]), Finish(2, [B])] == shell.actions


def test_nothing_is_written_for_nothing(shell: Shell) -> None:
    """An empty list has no actions."""
    claim([])
    shell.finish([])
    shell.requeue([], delay_ms=None, backoff=True)
    shell.touch([])

    assert [] == shell.actions
    assert not shell.plan.in_backoff


@pytest.mark.parametrize("answer", [Delivery.finish, Delivery.requeue, Delivery.touch])
@pytest.mark.parametrize("before", [Delivery.finish, Delivery.requeue])
def test_what_is_answered_cannot_be_answered_again(shell: Shell, answer: Any, before: Any) -> None:  # noqa: ANN401
    """Nor touched: the error names the message, and nothing more is written."""
    (delivery,) = shell.hold(0xA)
    before(delivery)
    written = list(shell.actions)

    with pytest.raises(AlreadyAnswered, match=A.decode()):
        answer(delivery)

    assert written == shell.actions


def test_a_list_is_claimed_whole_or_not_at_all(shell: Shell) -> None:
    """One that was answered before leaves the others as they were."""
    first, second, third = shell.hold(0xA, 0xB, 0xC)
    second.finish()

    with pytest.raises(AlreadyAnswered, match=B.decode()):
        claim([first, second, third])

    assert [False, True, False] == [each.is_answered for each in (first, second, third)]


def test_a_list_names_each_delivery_once(shell: Shell) -> None:
    """A delivery that stands there twice is refused, and stays unanswered."""
    (delivery,) = shell.hold(0xA)

    with pytest.raises(AlreadyAnswered):
        claim([delivery, delivery])

    assert not delivery.is_answered


# REQ


def test_requeue_without_a_delay_waits_for_each_attempt() -> None:
    """90 s for each; those with the same delay go together."""
    shell = Shell(max_attempts=0)
    came = [message(0xA, attempts=1), message(0xB, attempts=11), message(0xC, attempts=1)]
    deliveries, _ = shell.consumption.arrived(1, came, 0.0)

    claim(deliveries)
    shell.requeue(deliveries, delay_ms=None, backoff=False)

    assert [Requeue(1, [A, C], 90_000), Requeue(1, [B], 900_000)] == shell.actions


def test_the_default_delay_can_be_set() -> None:
    """And its maximum, which may be below it."""
    shell = Shell(default_requeue_delay_ms=500, max_requeue_delay_ms=800)
    came = [message(0xA, attempts=1), message(0xB, attempts=2)]
    deliveries, _ = shell.consumption.arrived(1, came, 0.0)

    claim(deliveries)
    shell.requeue(deliveries, delay_ms=None, backoff=False)

    assert [Requeue(1, [A], 500), Requeue(1, [B], 800)] == shell.actions


def test_a_failure_writes_rdy_0_before_the_requeue(shell: Shell) -> None:
    """To every connection; the failures of one list are one failure."""
    deliveries = shell.hold(0xA, 0xB)

    claim(deliveries)
    shell.requeue(deliveries, delay_ms=7, backoff=True)

    assert [Ready(1, 0), Ready(2, 0), Requeue(1, [A, B], 7)] == shell.actions
    assert 1 == shell.plan.level


def test_a_success_writes_the_full_rdy_before_the_fin(shell: Shell) -> None:
    """At the end of a backoff."""
    first, second = shell.hold(0xA, 0xB)
    first.requeue(0)
    shell.plan.wake(2.0)
    shell.actions.clear()

    second.finish()

    assert [Ready(1, 1_250), Ready(2, 1_250), Finish(1, [B])] == shell.actions


# TOUCH


def test_touch_starts_the_timeout_anew(shell: Shell) -> None:
    """For the one delivery, not for those that came with it."""
    first, second = shell.hold(0xA, 0xB)
    shell.now = 10.0

    first.touch()

    assert [Touch(1, [A])] == shell.actions
    assert (70.0, 60.0) == (first.deadline, second.deadline)


def test_touch_reaches_no_further_than_the_ceiling(shell: Shell) -> None:
    """max_msg_timeout after the arrival nsqd times it out whatever is touched."""
    (delivery,) = shell.hold(0xA, now=5.0)

    deadlines = []
    for shell.now in (30.0, 50.0, 90.0):
        delivery.touch()
        deadlines.append(delivery.deadline)

    assert [90.0, 95.0, 95.0] == deadlines


# Connections that end


def test_what_a_lost_connection_brought_is_returned(shell: Shell) -> None:
    """In the order in which it came, without what was answered; the others stay."""
    first, second, third = shell.hold(0xA, 0xB, 0xC)
    (other,) = shell.hold(0xA, source=2)
    second.finish()

    lost = shell.consumption.source_lost(1)

    assert [first, third] == lost
    assert [False, True] == [first.is_in_flight, other.is_in_flight]
    assert 1 == shell.consumption.in_flight


def test_what_is_lost_is_answered_with_nothing(shell: Shell) -> None:
    """No error, nothing written, no signal to the backoff; but it is counted."""
    first, second, third = shell.hold(0xA, 0xB, 0xC)
    shell.consumption.source_lost(1)

    first.finish()
    second.requeue()
    third.touch()

    assert [] == shell.actions
    assert 2 == shell.consumption.lost_count
    assert not shell.plan.in_backoff


def test_what_is_lost_ends_no_backoff(shell: Shell) -> None:
    """The one that tests the waters has said nothing yet."""
    (failing,) = shell.hold(0xA)
    (lost,) = shell.hold(0xB, source=2)
    failing.requeue()
    shell.plan.wake(2.0)
    shell.consumption.source_lost(2)
    shell.actions.clear()

    lost.finish()

    assert [] == shell.actions
    assert 1 == shell.plan.level


def test_only_the_lost_part_of_a_list_is_left_out(shell: Shell) -> None:
    """The rest is written, and counts as a success."""
    (first,) = shell.hold(0xA, source=1)
    (second,) = shell.hold(0xB, source=2)
    shell.consumption.source_lost(1)

    claim([first, second])
    shell.finish([first, second])

    assert [Finish(2, [B])] == shell.actions
    assert 1 == shell.consumption.lost_count


def test_losing_what_was_never_opened_loses_nothing(shell: Shell) -> None:
    """A connection may end before it has subscribed."""
    assert [] == shell.consumption.source_lost(7)


def test_a_message_that_comes_again_takes_the_place_of_its_first_delivery(shell: Shell) -> None:
    """The answer to the first, which was timed out, would count for the second."""
    (first,) = shell.hold(0xA)
    (second,) = shell.hold(0xA)

    first.finish()
    written = list(shell.actions)
    second.finish()

    assert [] == written
    assert [Finish(1, [A])] == shell.actions
    assert 1 == shell.consumption.lost_count


def test_the_same_id_on_another_connection_is_another_message(shell: Shell) -> None:
    """Ids repeat over nsqds, and a message that was timed out may come by way of another."""
    (first,) = shell.hold(0xA, source=1)
    (second,) = shell.hold(0xA, source=2)

    second.finish()
    first.finish()

    assert [Finish(2, [A]), Finish(1, [A])] == shell.actions


# Deadlines


def test_what_is_overdue_is_told_once(shell: Shell) -> None:
    """When its deadline has passed; it can still be answered."""
    (first,) = shell.hold(0xA, now=0.0)
    (second,) = shell.hold(0xB, source=2, now=10.0)

    told = [shell.consumption.overdue(now) for now in (59.9, 60.0, 61.0, 70.0, 99.0)]
    first.finish()

    assert [[], [first], [], [second], []] == told
    assert [Finish(1, [A])] == shell.actions


def test_a_look_for_the_overdue_is_due_with_the_first_deadline(shell: Shell) -> None:
    """None while nothing is held; behind a look it is the deadline of what is left."""
    due = [shell.consumption.next_overdue()]
    (delivery,) = shell.hold(0xA, now=0.0)
    shell.hold(0xB, now=10.0)
    due.append(shell.consumption.next_overdue())
    delivery.finish()
    shell.consumption.overdue(60.0)
    due.append(shell.consumption.next_overdue())
    shell.consumption.overdue(70.0)
    due.append(shell.consumption.next_overdue())

    assert [None, 60.0, 70.0, None] == due


def test_what_was_touched_is_overdue_later(shell: Shell) -> None:
    """At its new deadline, once more where it was told before."""
    (delivery,) = shell.hold(0xA)
    shell.consumption.overdue(60.0)
    shell.now = 61.0

    delivery.touch()

    assert 90.0 == shell.consumption.next_overdue()
    assert [delivery] == shell.consumption.overdue(90.0)


def test_what_is_dropped_is_held_no_more(shell: Shell) -> None:
    """Without an answer; one that comes all the same is counted, and not written."""
    first, second = shell.hold(0xA, 0xB)

    shell.consumption.dropped([first])
    first.finish()

    assert [] == shell.actions
    assert (1, 1) == (shell.consumption.in_flight, shell.consumption.lost_count)
    assert second.is_in_flight


def test_what_was_answered_is_not_dropped(shell: Shell) -> None:
    """Its answer waits to be written."""
    (delivery,) = shell.hold(0xA)
    claim([delivery])

    shell.consumption.dropped([delivery])
    shell.finish([delivery])

    assert [Finish(1, [A])] == shell.actions


# Handing back


def test_what_is_not_answered_is_handed_back(shell: Shell) -> None:
    """REQ 0 for each connection, which is no failure; a later answer writes nothing."""
    first, second = shell.hold(0xA, 0xB, source=1)
    shell.hold(0xC, source=2)
    second.finish()
    shell.actions.clear()

    back = shell.consumption.hand_back(1.0)
    first.finish()

    assert [Requeue(1, [A], 0), Requeue(2, [C], 0)] == back
    assert [] == shell.actions
    assert (0, 1) == (shell.consumption.in_flight, shell.consumption.lost_count)
    assert not shell.plan.in_backoff


def test_what_nsqd_has_timed_out_is_not_handed_back(shell: Shell) -> None:
    """It would be refused; it is held no more all the same."""
    shell.hold(0xA, now=0.0)
    shell.hold(0xB, now=10.0)

    assert [Requeue(1, [B], 0)] == shell.consumption.hand_back(60.0)
    assert 0 == shell.consumption.in_flight
    assert [] == shell.consumption.hand_back(60.0)


def test_what_is_claimed_is_not_handed_back(shell: Shell) -> None:
    """Its FIN waits to be written, and is."""
    first, second = shell.hold(0xA, 0xB)
    claim([first])

    back = shell.consumption.hand_back(1.0)
    shell.finish([first])

    assert [Requeue(1, [second.id], 0)] == back
    assert [Finish(1, [A])] == shell.actions


# Refusals


@pytest.mark.parametrize("verb", ["FIN", "REQ"])
def test_a_late_refusal_finds_its_message(shell: Shell, verb: str) -> None:
    """What was answered is remembered; a stranger's id is not."""
    (delivery,) = shell.hold(0xA, source=2)
    if verb == "FIN":
        delivery.finish()
    else:
        delivery.requeue()

    refused = shell.consumption.refused(2, A, verb)

    assert refused is not None
    assert ("127.0.0.1:2", A, verb) == (refused.nsqd, refused.message_id, refused.verb)
    assert None is shell.consumption.refused(2, B, verb)
    assert None is shell.consumption.refused(7, A, verb)


def test_a_touch_that_is_refused_ends_the_delivery(shell: Shell) -> None:
    """The broker has timed it out, so an answer would be refused as well."""
    (delivery,) = shell.hold(0xA)
    delivery.touch()
    shell.actions.clear()

    assert shell.consumption.refused(1, A, "TOUCH") is not None
    delivery.finish()

    assert [] == shell.actions
    assert 1 == shell.consumption.lost_count


def test_what_is_remembered_is_bounded(shell: Shell) -> None:
    """The oldest answers are forgotten."""
    for number in range(REMEMBERED_IDS + 1):
        (delivery,) = shell.hold(number)
        delivery.finish()

    assert None is shell.consumption.refused(1, message_id(0), "FIN")
    assert shell.consumption.refused(1, message_id(1), "FIN") is not None


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
    """Of 10, the share of one of two connections, that is 8; of 1 it is 1; nothing never is."""
    shell = Shell()
    shell.plan.set_window(window, 0.0)

    shell.hold(*range(held))

    assert is_starved == shell.consumption.is_starved


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
    """Outside of them the error names the option and what is allowed."""
    with pytest.raises(SettingsError, match="allowed: 0 to ") as raised:
        ConsumptionOptions(**options)

    assert [raised.value.name] == list(options)
