"""A channel: queue, in flight, deferred, and who gets what."""

from __future__ import annotations

import pytest

from gateway.broker.channel import MAX_BATCH_BYTES, STEP_DUE, AckFailure, Channel
from gateway.broker.consumer import ChannelConsumer
from gateway.broker.scheduler import BrokerLimits, BrokerState
from gateway.protocol.wire import Limits
from tests.support.brokers.broker_core import consumer, context, message_id, new_messages, numbers


def channel_with(
    count: int, *, shared: BrokerState | None = None, name: str = "c", body: bytes = b"x"
) -> Channel:
    """Return a channel with *count* messages in its queue."""
    shared = shared or context()
    channel = Channel("t", name, shared)
    messages = new_messages(count, body=body)
    shared.memory.take(messages)
    channel.put(messages)
    return channel


def subscribed(
    channel: Channel, number: int = 1, *, ready: int = 1, msg_timeout_s: float = 60.0
) -> ChannelConsumer:
    """Return a consumer of *channel* with this RDY."""
    receiver = consumer(number, msg_timeout_s=msg_timeout_s)
    assert channel.subscribe(receiver)
    channel.ready(receiver, ready)
    return receiver


def counts(channel: Channel) -> tuple[int, int, int]:
    """Return how many messages are queued, in flight, deferred."""
    return channel.depth, channel.in_flight_count, channel.deferred_count


# Delivery


def test_messages_are_delivered_in_order_up_to_rdy() -> None:
    """RDY bounds what is in flight; the rest stays queued."""
    channel = channel_with(3)
    subscribed(channel, ready=2)

    assert {1: [1, 2]} == numbers(channel.deliver(0.0))
    assert (1, 2, 0) == counts(channel)


def test_without_rdy_nothing_is_delivered() -> None:
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
    """Messages are divided among the waiting consumers, in their order."""
    channel = channel_with(7)
    for number in (1, 2, 3):
        subscribed(channel, number, ready=100)

    assert {1: [1, 2, 3], 2: [4, 5], 3: [6, 7]} == numbers(channel.deliver(0.0))


def test_a_served_consumer_goes_to_the_end_of_the_queue() -> None:
    """Single messages go round."""
    shared = context()
    channel = Channel("t", "c", shared)
    for number in (1, 2):
        subscribed(channel, number, ready=100)

    receivers = []
    for number in (1, 2, 3):
        channel.put(new_messages(1, first=number))
        receivers += list(numbers(channel.deliver(0.0)))

    assert [1, 2, 1] == receivers


def test_messages_beyond_one_capacity_go_to_the_others() -> None:
    """A small RDY leaves more for a big one, in the next round."""
    channel = channel_with(10)
    subscribed(channel, 1, ready=1)
    subscribed(channel, 2, ready=100)

    assert {1: [1], 2: [2, 3, 4, 5, 6, 7, 8, 9, 10]} == numbers(channel.deliver(0.0))


def test_a_batch_ends_with_the_message_that_fills_it() -> None:
    """Big bodies come in several batches, so that a slow reader is noticed in between."""
    shared = context()
    channel = channel_with(3, shared=shared, body=bytes(MAX_BATCH_BYTES // 2))
    subscribed(channel, ready=100)

    assert {1: [1, 2]} == numbers(channel.deliver(0.0))
    assert [channel] == shared.scheduler.pop_deliverable()
    assert {1: [3]} == numbers(channel.deliver(0.0))


def test_a_blocked_consumer_is_left_out() -> None:
    """Others get its share; it is served again once it is offered again."""
    channel = channel_with(2)
    slow, quick = subscribed(channel, 1), subscribed(channel, 2)
    slow.is_blocked = True

    assert {2: [1]} == numbers(channel.deliver(0.0))

    slow.is_blocked = False
    channel.add_waiting(slow)
    assert {1: [2]} == numbers(channel.deliver(0.0))
    assert 1 == quick.in_flight_count


def test_rdy_zero_stops_the_delivery() -> None:
    """Messages in flight stay in flight."""
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
def test_messages_outside_the_sample_are_lost_for_the_channel(
    chance: int, expected: dict[int, list[int]]
) -> None:
    """Random numbers of 0 to 99 above the rate are dropped: rate 25 lets 26 of 100 pass."""
    shared = context(random=lambda _below: chance)
    channel = channel_with(3, shared=shared)
    receiver = consumer()
    receiver.sample_rate = 25
    channel.subscribe(receiver)
    channel.ready(receiver, 10)

    assert expected == numbers(channel.deliver(0.0))
    assert 0 == channel.depth


def test_dropped_samples_take_no_memory() -> None:
    """They are gone altogether."""
    shared = context(random=lambda _below: 99)
    channel = channel_with(3, shared=shared)
    receiver = subscribed(channel, ready=10)
    receiver.sample_rate = 1

    channel.deliver(0.0)

    assert (0, (0, 0, 0)) == (shared.memory.used_bytes, counts(channel))


# The scheduler


def test_a_channel_is_scheduled_when_it_can_deliver() -> None:
    """It takes a message, and somebody with room."""
    shared = context()
    channel = channel_with(1, shared=shared)
    assert not shared.scheduler.has_deliverable

    subscribed(channel)

    assert [channel] == shared.scheduler.pop_deliverable()


def test_a_message_for_somebody_who_waits_is_scheduled() -> None:
    """The consumer was there first."""
    shared = context()
    channel = Channel("t", "c", shared)
    subscribed(channel)
    assert not shared.scheduler.has_deliverable

    channel.put(new_messages(1))

    assert shared.scheduler.has_deliverable


def test_a_channel_that_gave_all_it_could_is_not_scheduled() -> None:
    """Nobody has room any more."""
    shared = context()
    channel = channel_with(3, shared=shared)
    subscribed(channel)
    shared.scheduler.pop_deliverable()

    channel.deliver(0.0)

    assert not shared.scheduler.has_deliverable


def test_the_scheduler_knows_the_first_deadline() -> None:
    """A delivery is looked at after its timeout."""
    shared = context()
    channel = channel_with(1, shared=shared)
    subscribed(channel)

    channel.deliver(5.0)

    assert 65.0 == shared.scheduler.next_due


# FIN, REQ, TOUCH


def test_a_finished_message_is_removed() -> None:
    """It takes no memory and makes room for the next."""
    shared = context()
    channel = channel_with(2, shared=shared)
    receiver = subscribed(channel)
    channel.deliver(0.0)

    assert channel.finish(receiver, message_id(1)) is None

    assert {1: [2]} == numbers(channel.deliver(0.0))
    assert channel.finish(receiver, message_id(2)) is None
    assert (0, 2) == (shared.memory.used_bytes, receiver.finish_count)


@pytest.mark.parametrize("verb", ["finish", "requeue", "touch"])
def test_an_ack_of_a_message_not_in_flight_fails(verb: str) -> None:
    """Nothing changes by it."""
    channel = channel_with(1)
    receiver = subscribed(channel, ready=0)

    assert AckFailure.NOT_IN_FLIGHT == command(channel, verb, receiver, message_id(1))
    assert (1, 0, 0) == counts(channel)


@pytest.mark.parametrize("verb", ["finish", "requeue", "touch"])
def test_an_ack_of_another_clients_message_fails(verb: str) -> None:
    """Only who got the message can answer it."""
    channel = channel_with(1)
    subscribed(channel, 1)
    channel.deliver(0.0)
    other = subscribed(channel, 2)

    assert AckFailure.NOT_OWNER == command(channel, verb, other, message_id(1))
    assert (0, 1, 0) == counts(channel)


@pytest.mark.parametrize("verb", ["finish", "requeue", "touch"])
def test_a_message_of_a_lost_client_still_belongs_to_it(verb: str) -> None:
    """Until it times out nobody else can answer it."""
    channel = channel_with(1)
    lost, other = subscribed(channel, 1), subscribed(channel, 2, ready=0)
    channel.deliver(0.0)
    channel.remove_consumer(lost)

    assert AckFailure.NOT_OWNER == command(channel, verb, other, message_id(1))


def command(
    channel: Channel, verb: str, receiver: ChannelConsumer, which: bytes
) -> AckFailure | None:
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
    shared = context()
    channel = channel_with(1, shared=shared)
    receiver = subscribed(channel)
    channel.deliver(0.0)

    channel.requeue(receiver, message_id(1), delay_ms=500, now=10.0)

    assert ((0, 0, 1), 10.5) == (counts(channel), shared.scheduler.next_due)
    channel.expire(10.5)
    assert {1: [1]} == numbers(channel.deliver(10.5))


def test_a_message_without_an_ack_times_out() -> None:
    """It goes to the tail; timeout_count says so, requeue_count does not."""
    shared = context()
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

    assert AckFailure.NOT_IN_FLIGHT == channel.finish(receiver, message_id(1))


def test_messages_of_several_consumers_time_out_in_order_of_their_deadlines() -> None:
    """The order does not depend on the consumer."""
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
    """It is not taken back at the first deadline; the scheduler learns the new one there."""
    shared = context()
    channel = channel_with(1, shared=shared)
    receiver = subscribed(channel, msg_timeout_s=2.0)
    channel.deliver(0.0)

    assert channel.touch(receiver, message_id(1), now=1.5) is None

    for moved in shared.scheduler.pop_due(2.0):
        moved.expire(2.0)
    assert (0, 3.5) == (channel.timeout_count, shared.scheduler.next_due)


def test_touch_ends_at_max_msg_timeout_after_the_delivery() -> None:
    """However often it is said."""
    limits = BrokerLimits(protocol=Limits(max_msg_timeout_ms=3_000))
    channel = channel_with(1, shared=context(limits))
    receiver = subscribed(channel, msg_timeout_s=2.0)
    channel.deliver(0.0)

    for now in (1.5, 2.5, 2.9):
        channel.touch(receiver, message_id(1), now=now)
    channel.expire(3.0)

    assert 1 == channel.timeout_count


def test_deferred_messages_come_in_order_of_their_time() -> None:
    """They are not queued earlier."""
    channel = Channel("t", "c", context())
    channel.put_deferred(new_messages(1, first=1, defer_ms=2_000), now=0.0)
    channel.put_deferred(new_messages(1, first=2, defer_ms=1_000), now=0.0)
    subscribed(channel, ready=2)

    channel.expire(0.9)
    assert (0, 0, 2) == counts(channel)
    channel.expire(2.0)
    assert {1: [2, 1]} == numbers(channel.deliver(2.0))


# Consumers


def test_a_lost_clients_messages_wait_for_their_timeout() -> None:
    """As in nsqd they are not given back at once."""
    shared = context()
    channel = channel_with(1, shared=shared)
    lost = subscribed(channel, 1, msg_timeout_s=2.0)
    channel.deliver(0.0)

    channel.remove_consumer(lost)

    subscribed(channel, 2)
    assert (0, 1, 0) == counts(channel)
    channel.expire(2.0)
    assert {2: [1]} == numbers(channel.deliver(2.0))
    assert 1 == channel.timeout_count


def test_a_removed_consumer_gets_nothing() -> None:
    """Its place in the line goes with it."""
    shared = context()
    channel = Channel("t", "c", shared)
    channel.remove_consumer(subscribed(channel))

    channel.put(new_messages(1))

    assert not shared.scheduler.has_deliverable
    assert [] == channel.deliver(0.0)


def test_the_last_consumer_of_an_ephemeral_channel_ends_it() -> None:
    """Only the last one, and only there."""
    channel, durable = Channel("t", "c#ephemeral", context()), Channel("t", "c", context())
    first, last = subscribed(channel, 1), subscribed(channel, 2)

    assert [False, True] == [channel.remove_consumer(first), channel.remove_consumer(last)]
    assert not channel.remove_consumer(last)
    assert not durable.remove_consumer(subscribed(durable))


def test_a_full_channel_takes_no_more_consumers() -> None:
    """Until one leaves."""
    channel = Channel("t", "c", context(BrokerLimits(max_channel_consumers=1)))
    first = subscribed(channel, 1)

    assert not channel.subscribe(consumer(2))
    channel.remove_consumer(first)
    assert channel.subscribe(consumer(2))


def test_many_deferred_messages_due_at_once_are_queued_in_steps() -> None:
    """In order; the channel stays scheduled until all are there."""
    shared = context()
    channel = channel_with(0, shared=shared)
    later = new_messages(3 * STEP_DUE + 7, defer_ms=1_000)
    shared.memory.take(later)
    channel.put_deferred(later, now=0.0)

    depths = []
    while due := shared.scheduler.pop_due(1.0):
        for each in due:
            each.expire(1.0)
        depths.append(channel.depth)

    assert [STEP_DUE, 2 * STEP_DUE, 3 * STEP_DUE, len(later)] == depths
    assert (0, None) == (channel.deferred_count, shared.scheduler.next_due)
    subscribed(channel, ready=len(later))
    assert {1: [int(message.id) for message in later]} == numbers(channel.deliver(1.0))


# Bounds and administration


def test_an_ephemeral_channel_drops_messages_beyond_its_queue() -> None:
    """Dropped messages are counted, and use no memory."""
    shared = context(BrokerLimits(mem_queue_size=2))
    channel = channel_with(5, shared=shared, name="c#ephemeral")
    kept_bytes = shared.memory.used_bytes

    assert ((2, 0, 0), 5) == (counts(channel), channel.message_count)
    subscribed(channel, ready=9)
    assert {1: [1, 2]} == numbers(channel.deliver(0.0))
    channel.empty()
    assert (True, 0) == (kept_bytes > 0, shared.memory.used_bytes)


def test_a_durable_channel_drops_nothing() -> None:
    """Messages that nsqd would write to disk stay in memory."""
    channel = channel_with(5, shared=context(BrokerLimits(mem_queue_size=2)))

    assert 5 == channel.depth


def test_a_paused_channel_delivers_nothing() -> None:
    """Messages come in all the same, and go out after the pause."""
    shared = context()
    channel = channel_with(1, shared=shared)
    channel.pause()
    subscribed(channel, ready=2)
    assert (False, []) == (shared.scheduler.has_deliverable, channel.deliver(0.0))

    channel.unpause()

    assert shared.scheduler.has_deliverable
    assert {1: [1]} == numbers(channel.deliver(0.0))


def test_an_emptied_channel_has_nothing_anywhere() -> None:
    """Queue, in flight with anybody, deferred: all gone, with their memory."""
    shared = context()
    channel = channel_with(4, shared=shared)
    here, lost = subscribed(channel, 1), subscribed(channel, 2)
    channel.deliver(0.0)
    channel.remove_consumer(lost)
    later = new_messages(1, first=9, defer_ms=1_000)
    shared.memory.take(later)
    channel.put_deferred(later, now=0.0)

    channel.empty()

    assert ((0, 0, 0), 0) == (counts(channel), shared.memory.used_bytes)
    assert AckFailure.NOT_IN_FLIGHT == channel.finish(here, message_id(1))


def test_an_emptied_channel_still_delivers() -> None:
    """Its consumers have all their room again."""
    channel = channel_with(2)
    subscribed(channel, ready=1)
    channel.deliver(0.0)

    channel.empty()
    channel.put(new_messages(1, first=3))

    assert {1: [3]} == numbers(channel.deliver(0.0))


def test_a_deleted_channel_names_its_consumers() -> None:
    """They have to be disconnected; none of them gets anything more."""
    channel = channel_with(2)
    receivers = [subscribed(channel, 1), subscribed(channel, 2)]

    assert receivers == channel.delete()
    assert (0, []) == (len(channel.consumers), channel.deliver(0.0))
