"""A channel: queue, in flight, deferred, and who gets what."""

from __future__ import annotations

import pytest

from gateway.broker.channel import MAX_BATCH_BYTES, Channel, Refusal
from gateway.broker.common import Common, Rules
from gateway.broker.consumer import Consumer
from gateway.protocol.wire import Limits
from tests.support.broker_core import common, consumer, message_id, numbers, stored


def channel_with(
    count: int, *, shared: Common | None = None, name: str = "c", body: bytes = b"x"
) -> Channel:
    """Return a channel with *count* messages in its queue."""
    shared = shared or common()
    channel = Channel("t", name, shared)
    messages = stored(count, body=body)
    shared.memory.take(messages)
    channel.put(messages)
    return channel


def subscribed(
    channel: Channel, number: int = 1, *, ready: int = 1, msg_timeout_s: float = 60.0
) -> Consumer:
    """Return a consumer of *channel* with this RDY."""
    receiver = consumer(number, msg_timeout_s=msg_timeout_s)
    assert channel.subscribe(receiver)
    channel.ready(receiver, ready)
    return receiver


def counts(channel: Channel) -> tuple[int, int, int]:
    """Return how many messages are queued, in flight, deferred."""
    return channel.depth, channel.in_flight_count, channel.deferred_count


# Delivery


def test_messages_come_in_order_and_as_many_as_rdy() -> None:
    """RDY bounds what is in flight; the rest stays queued."""
    channel = channel_with(3)
    subscribed(channel, ready=2)

    assert {1: [1, 2]} == numbers(channel.deliver(0.0))
    assert (1, 2, 0) == counts(channel)


def test_without_rdy_nothing_comes() -> None:
    """A new consumer has RDY 0."""
    channel = channel_with(1)
    channel.subscribe(consumer())

    assert [] == channel.deliver(0.0)


def test_a_delivery_counts_as_an_attempt() -> None:
    """Attempts is 1 at the first delivery, 2 at the next."""
    channel = channel_with(1)
    receiver = subscribed(channel)

    first = channel.deliver(0.0)[0].messages[0].attempts
    channel.requeue(receiver, message_id(1), delay_ms=0, now=0.0)

    assert [1, 2] == [first, channel.deliver(0.0)[0].messages[0].attempts]


def test_consumers_get_equal_shares() -> None:
    """What is there is divided among those who wait, in order of waiting."""
    channel = channel_with(7)
    for number in (1, 2, 3):
        subscribed(channel, number, ready=100)

    assert {1: [1, 2, 3], 2: [4, 5], 3: [6, 7]} == numbers(channel.deliver(0.0))


def test_who_was_served_goes_to_the_end_of_the_line() -> None:
    """Single messages go round."""
    shared = common()
    channel = Channel("t", "c", shared)
    for number in (1, 2):
        subscribed(channel, number, ready=100)

    receivers = []
    for number in (1, 2, 3):
        channel.put(stored(1, first=number))
        receivers += list(numbers(channel.deliver(0.0)))

    assert [1, 2, 1] == receivers


def test_what_one_has_no_room_for_goes_to_the_others() -> None:
    """A small RDY leaves more for a big one, in the next round."""
    channel = channel_with(10)
    subscribed(channel, 1, ready=1)
    subscribed(channel, 2, ready=100)

    assert {1: [1], 2: [2, 3, 4, 5, 6, 7, 8, 9, 10]} == numbers(channel.deliver(0.0))


def test_a_batch_ends_with_the_message_that_fills_it() -> None:
    """Big bodies come in several batches, so that a slow reader is noticed in between."""
    shared = common()
    channel = channel_with(3, shared=shared, body=bytes(MAX_BATCH_BYTES // 2))
    subscribed(channel, ready=100)

    assert {1: [1, 2]} == numbers(channel.deliver(0.0))
    assert [channel] == shared.agenda.take_deliverable()
    assert {1: [3]} == numbers(channel.deliver(0.0))


def test_a_blocked_consumer_is_left_out() -> None:
    """Others get its share; it is served again once it is offered again."""
    channel = channel_with(2)
    slow, quick = subscribed(channel, 1), subscribed(channel, 2)
    slow.is_blocked = True

    assert {2: [1]} == numbers(channel.deliver(0.0))

    slow.is_blocked = False
    channel.offer(slow)
    assert {1: [2]} == numbers(channel.deliver(0.0))
    assert 1 == quick.in_flight_count


def test_rdy_zero_stops_the_delivery() -> None:
    """What is in flight stays there."""
    channel = channel_with(2)
    receiver = subscribed(channel)
    channel.deliver(0.0)

    channel.ready(receiver, 0)
    channel.finish(receiver, message_id(1))

    assert [] == channel.deliver(0.0)


@pytest.mark.parametrize(
    "chance,expected",
    [(24, {1: [1, 2, 3]}), (25, {1: [1, 2, 3]}), (26, {})],
    ids=["below", "at the rate", "above"],
)
def test_what_is_over_the_sample_rate_is_lost_for_the_channel(
    chance: int, expected: dict[int, list[int]]
) -> None:
    """Of 0 to 99, what is above the rate is dropped: rate 25 lets 26 of 100 pass."""
    shared = common(random=lambda _below: chance)
    channel = channel_with(3, shared=shared)
    receiver = consumer()
    receiver.sample_rate = 25
    channel.subscribe(receiver)
    channel.ready(receiver, 10)

    assert expected == numbers(channel.deliver(0.0))
    assert 0 == channel.depth


def test_dropped_samples_take_no_memory() -> None:
    """They are gone altogether."""
    shared = common(random=lambda _below: 99)
    channel = channel_with(3, shared=shared)
    receiver = subscribed(channel, ready=10)
    receiver.sample_rate = 1

    channel.deliver(0.0)

    assert (0, (0, 0, 0)) == (shared.memory.used_bytes, counts(channel))


# The agenda


def test_a_channel_is_on_the_agenda_when_it_can_deliver() -> None:
    """It takes a message, and somebody with room."""
    shared = common()
    channel = channel_with(1, shared=shared)
    assert not shared.agenda.has_deliverable

    subscribed(channel)

    assert [channel] == shared.agenda.take_deliverable()


def test_a_message_for_somebody_who_waits_is_on_the_agenda() -> None:
    """The consumer was there first."""
    shared = common()
    channel = Channel("t", "c", shared)
    subscribed(channel)
    assert not shared.agenda.has_deliverable

    channel.put(stored(1))

    assert shared.agenda.has_deliverable


def test_a_channel_that_gave_all_it_could_is_not_on_the_agenda() -> None:
    """Nobody has room any more."""
    shared = common()
    channel = channel_with(3, shared=shared)
    subscribed(channel)
    shared.agenda.take_deliverable()

    channel.deliver(0.0)

    assert not shared.agenda.has_deliverable


def test_the_agenda_knows_the_first_deadline() -> None:
    """A delivery is looked at after its timeout."""
    shared = common()
    channel = channel_with(1, shared=shared)
    subscribed(channel)

    channel.deliver(5.0)

    assert 65.0 == shared.agenda.next_moment


# FIN, REQ, TOUCH


def test_a_finished_message_is_gone() -> None:
    """It takes no memory and makes room for the next."""
    shared = common()
    channel = channel_with(2, shared=shared)
    receiver = subscribed(channel)
    channel.deliver(0.0)

    assert channel.finish(receiver, message_id(1)) is None

    assert {1: [2]} == numbers(channel.deliver(0.0))
    assert channel.finish(receiver, message_id(2)) is None
    assert (0, 2) == (shared.memory.used_bytes, receiver.finish_count)


@pytest.mark.parametrize("verb", ["finish", "requeue", "touch"])
def test_what_is_not_in_flight_is_refused(verb: str) -> None:
    """Nothing changes by it."""
    channel = channel_with(1)
    receiver = subscribed(channel, ready=0)

    assert Refusal.NOT_IN_FLIGHT == command(channel, verb, receiver, message_id(1))
    assert (1, 0, 0) == counts(channel)


@pytest.mark.parametrize("verb", ["finish", "requeue", "touch"])
def test_a_foreign_message_is_refused(verb: str) -> None:
    """Only who got the message can answer it."""
    channel = channel_with(1)
    subscribed(channel, 1)
    channel.deliver(0.0)
    other = subscribed(channel, 2)

    assert Refusal.NOT_OWNER == command(channel, verb, other, message_id(1))
    assert (0, 1, 0) == counts(channel)


@pytest.mark.parametrize("verb", ["finish", "requeue", "touch"])
def test_the_message_of_a_lost_client_has_still_its_owner(verb: str) -> None:
    """Until it times out nobody else can answer it."""
    channel = channel_with(1)
    lost, other = subscribed(channel, 1), subscribed(channel, 2, ready=0)
    channel.deliver(0.0)
    channel.leave(lost)

    assert Refusal.NOT_OWNER == command(channel, verb, other, message_id(1))


def command(channel: Channel, verb: str, receiver: Consumer, which: bytes) -> Refusal | None:
    """Carry out one of the three commands at time 0."""
    if verb == "finish":
        return channel.finish(receiver, which)
    if verb == "requeue":
        return channel.requeue(receiver, which, delay_ms=0, now=0.0)
    return channel.touch(receiver, which, now=0.0)


def test_requeue_without_delay_is_the_tail_of_the_queue() -> None:
    """Others come first; requeue_count says so, timeout_count does not."""
    channel = channel_with(2)
    receiver = subscribed(channel)
    channel.deliver(0.0)

    assert channel.requeue(receiver, message_id(1), delay_ms=0, now=0.0) is None

    channel.ready(receiver, 2)
    assert {1: [2, 1]} == numbers(channel.deliver(0.0))
    assert (1, 0, 1) == (channel.requeue_count, channel.timeout_count, receiver.requeue_count)


def test_requeue_with_delay_waits_for_its_end() -> None:
    """The message is deferred until then, and makes room meanwhile."""
    shared = common()
    channel = channel_with(1, shared=shared)
    receiver = subscribed(channel)
    channel.deliver(0.0)

    channel.requeue(receiver, message_id(1), delay_ms=500, now=10.0)

    assert ((0, 0, 1), 10.5) == (counts(channel), shared.agenda.next_moment)
    channel.expire(10.5)
    assert {1: [1]} == numbers(channel.deliver(10.5))


def test_a_message_that_is_not_answered_times_out() -> None:
    """It goes to the tail; timeout_count says so, requeue_count does not."""
    shared = common()
    channel = channel_with(1, shared=shared)
    receiver = subscribed(channel, msg_timeout_s=2.0)
    channel.deliver(0.0)

    channel.expire(2.0)

    assert (1, 0) == (channel.timeout_count, channel.requeue_count)
    assert 2 == channel.deliver(2.0)[0].messages[0].attempts
    assert 1 == receiver.in_flight_count


def test_a_late_fin_is_refused() -> None:
    """After the timeout the message belongs to the channel again."""
    channel = channel_with(1)
    receiver = subscribed(channel, msg_timeout_s=2.0)
    channel.deliver(0.0)
    channel.expire(2.0)

    assert Refusal.NOT_IN_FLIGHT == channel.finish(receiver, message_id(1))


def test_messages_of_several_consumers_time_out_in_order_of_their_deadlines() -> None:
    """Whoever had them."""
    channel = channel_with(2)
    slow = subscribed(channel, 1, msg_timeout_s=10.0)
    quick = subscribed(channel, 2, msg_timeout_s=5.0)
    channel.deliver(0.0)
    channel.ready(slow, 0)
    channel.ready(quick, 0)

    channel.expire(10.0)

    subscribed(channel, 3, ready=2)
    assert {3: [2, 1]} == numbers(channel.deliver(10.0))


def test_a_touched_message_has_a_whole_timeout_again() -> None:
    """It is not taken back at the first deadline; the agenda learns the new one there."""
    shared = common()
    channel = channel_with(1, shared=shared)
    receiver = subscribed(channel, msg_timeout_s=2.0)
    channel.deliver(0.0)

    assert channel.touch(receiver, message_id(1), now=1.5) is None

    for moved in shared.agenda.take_due(2.0):
        moved.expire(2.0)
    assert (0, 3.5) == (channel.timeout_count, shared.agenda.next_moment)


def test_touch_ends_at_max_msg_timeout_after_the_delivery() -> None:
    """However often it is said."""
    rules = Rules(limits=Limits(max_msg_timeout_ms=3_000))
    channel = channel_with(1, shared=common(rules))
    receiver = subscribed(channel, msg_timeout_s=2.0)
    channel.deliver(0.0)

    for now in (1.5, 2.5, 2.9):
        channel.touch(receiver, message_id(1), now=now)
    channel.expire(3.0)

    assert 1 == channel.timeout_count


def test_deferred_messages_come_in_order_of_their_time() -> None:
    """And not before it."""
    channel = Channel("t", "c", common())
    channel.put_deferred(stored(1, first=1, defer_ms=2_000), now=0.0)
    channel.put_deferred(stored(1, first=2, defer_ms=1_000), now=0.0)
    subscribed(channel, ready=2)

    channel.expire(0.9)
    assert (0, 0, 2) == counts(channel)
    channel.expire(2.0)
    assert {1: [2, 1]} == numbers(channel.deliver(2.0))


# Consumers


def test_a_lost_clients_messages_wait_for_their_timeout() -> None:
    """As in nsqd they are not given back at once."""
    shared = common()
    channel = channel_with(1, shared=shared)
    lost = subscribed(channel, 1, msg_timeout_s=2.0)
    channel.deliver(0.0)

    channel.leave(lost)

    subscribed(channel, 2)
    assert (0, 1, 0) == counts(channel)
    channel.expire(2.0)
    assert {2: [1]} == numbers(channel.deliver(2.0))
    assert 1 == channel.timeout_count


def test_who_left_gets_nothing() -> None:
    """Its place in the line goes with it."""
    shared = common()
    channel = Channel("t", "c", shared)
    channel.leave(subscribed(channel))

    channel.put(stored(1))

    assert not shared.agenda.has_deliverable
    assert [] == channel.deliver(0.0)


def test_the_last_consumer_of_an_ephemeral_channel_ends_it() -> None:
    """Only the last one, and only there."""
    channel, durable = Channel("t", "c#ephemeral", common()), Channel("t", "c", common())
    first, last = subscribed(channel, 1), subscribed(channel, 2)

    assert [False, True] == [channel.leave(first), channel.leave(last)]
    assert not channel.leave(last)
    assert not durable.leave(subscribed(durable))


def test_a_full_channel_takes_no_more_consumers() -> None:
    """Until one leaves."""
    channel = Channel("t", "c", common(Rules(max_channel_consumers=1)))
    first = subscribed(channel, 1)

    assert not channel.subscribe(consumer(2))
    channel.leave(first)
    assert channel.subscribe(consumer(2))


# Bounds and administration


def test_an_ephemeral_channel_drops_what_its_queue_cannot_hold() -> None:
    """What is dropped was counted as a message, and takes no memory."""
    shared = common(Rules(mem_queue_size=2))
    channel = channel_with(5, shared=shared, name="c#ephemeral")
    kept_bytes = shared.memory.used_bytes

    assert ((2, 0, 0), 5) == (counts(channel), channel.message_count)
    subscribed(channel, ready=9)
    assert {1: [1, 2]} == numbers(channel.deliver(0.0))
    channel.empty()
    assert (True, 0) == (kept_bytes > 0, shared.memory.used_bytes)


def test_a_durable_channel_drops_nothing() -> None:
    """What nsqd writes to disk stays in memory."""
    channel = channel_with(5, shared=common(Rules(mem_queue_size=2)))

    assert 5 == channel.depth


def test_a_paused_channel_delivers_nothing() -> None:
    """Messages come in all the same, and go out after the pause."""
    shared = common()
    channel = channel_with(1, shared=shared)
    channel.pause()
    subscribed(channel, ready=2)
    assert (False, []) == (shared.agenda.has_deliverable, channel.deliver(0.0))

    channel.unpause()

    assert shared.agenda.has_deliverable
    assert {1: [1]} == numbers(channel.deliver(0.0))


def test_an_emptied_channel_has_nothing_anywhere() -> None:
    """Queue, in flight with anybody, deferred: all gone, with their memory."""
    shared = common()
    channel = channel_with(4, shared=shared)
    here, lost = subscribed(channel, 1), subscribed(channel, 2)
    channel.deliver(0.0)
    channel.leave(lost)
    later = stored(1, first=9, defer_ms=1_000)
    shared.memory.take(later)
    channel.put_deferred(later, now=0.0)

    channel.empty()

    assert ((0, 0, 0), 0) == (counts(channel), shared.memory.used_bytes)
    assert Refusal.NOT_IN_FLIGHT == channel.finish(here, message_id(1))


def test_an_emptied_channel_goes_on() -> None:
    """Its consumers have all their room again."""
    channel = channel_with(2)
    subscribed(channel, ready=1)
    channel.deliver(0.0)

    channel.empty()
    channel.put(stored(1, first=3))

    assert {1: [3]} == numbers(channel.deliver(0.0))


def test_a_deleted_channel_names_its_consumers() -> None:
    """They have to be disconnected; none of them gets anything more."""
    channel = channel_with(2)
    receivers = [subscribed(channel, 1), subscribed(channel, 2)]

    assert receivers == channel.delete()
    assert (0, []) == (len(channel.consumers), channel.deliver(0.0))
