"""Messages in flight with one consumer, and their deadlines."""

from __future__ import annotations

import math

from gateway.broker.consumer import ChannelConsumer
from gateway.broker.message import StoredMessage
from tests.support.brokers.broker_core import consumer, message_id, new_messages


def with_in_flight(count: int, *, msg_timeout_s: float = 60.0) -> ChannelConsumer:
    """Return a consumer that got *count* messages, one each second from 0 on."""
    receiver = consumer(msg_timeout_s=msg_timeout_s)
    receiver.ready_count = 10
    for second, message in enumerate(new_messages(count)):
        message.delivered_at = float(second)
        message.deadline = second + msg_timeout_s
        receiver.in_flight[message.id] = message
    return receiver


def ids(messages: list[StoredMessage]) -> list[int]:
    """Return the numbers of *messages*."""
    return [int(message.id) for message in messages]


def test_capacity_is_rdy_minus_in_flight() -> None:
    """RDY is a ceiling on what is in flight."""
    assert 7 == with_in_flight(3).capacity


def test_a_blocked_consumer_has_no_room() -> None:
    """A peer that does not read gets nothing more, whatever its RDY."""
    receiver = with_in_flight(3)

    receiver.is_blocked = True

    assert 0 == receiver.capacity


def test_a_message_is_taken_once() -> None:
    """A second FIN finds nothing."""
    receiver = with_in_flight(1)

    taken = [receiver.pop(message_id(1)), receiver.pop(message_id(1))]

    assert [True, False] == [message is not None for message in taken]


def test_expired_messages_are_in_order_of_deadline() -> None:
    """A deadline that is exactly now counts; later ones stay."""
    receiver = with_in_flight(4)

    overdue = receiver.pop_expired(61.0)

    assert [1, 2] == ids(overdue)
    assert 2 == receiver.in_flight_count


def test_touch_starts_the_timeout_anew() -> None:
    """The deadline is a whole timeout from now, and others come before it."""
    receiver = with_in_flight(3)

    touched = receiver.touch(message_id(1), now=30.0, max_timeout_s=900.0)

    assert touched
    assert [2, 3] == ids(receiver.pop_expired(62.0))
    assert 90.0 == receiver.next_deadline


def test_touch_reaches_no_further_than_the_ceiling_from_the_delivery() -> None:
    """At the ceiling the deadline stands still, whatever is delivered later."""
    receiver = with_in_flight(2)

    receiver.touch(message_id(1), now=50.0, max_timeout_s=70.0)
    receiver.touch(message_id(1), now=69.0, max_timeout_s=70.0)

    assert (61.0, 2) == (receiver.next_deadline, receiver.in_flight_count)
    assert [2, 1] == ids(receiver.pop_expired(70.0))
    assert math.inf == receiver.next_deadline


def test_a_message_at_the_ceiling_is_in_flight_like_any_other() -> None:
    """It takes room, is owned, and can be finished."""
    receiver = with_in_flight(1)

    receiver.touch(message_id(1), now=50.0, max_timeout_s=70.0)

    assert (9, True) == (receiver.capacity, receiver.has_in_flight(message_id(1)))
    assert receiver.pop(message_id(1)) is not None
    assert not receiver.has_in_flight(message_id(1))


def test_touch_needs_a_message_in_flight() -> None:
    """An unknown id changes nothing."""
    assert not with_in_flight(1).touch(message_id(2), now=1.0, max_timeout_s=900.0)


def test_taking_all_leaves_nothing_in_flight() -> None:
    """Messages at the ceiling are among them."""
    receiver = with_in_flight(3)
    receiver.touch(message_id(2), now=50.0, max_timeout_s=70.0)

    taken = [message for part in receiver.pop_all() for message in part.values()]

    assert [1, 3, 2] == ids(taken)
    assert 0 == receiver.in_flight_count
