"""A topic gives what is published to each of its channels."""

from __future__ import annotations

from gateway.broker.channel import Channel
from gateway.broker.message import OVERHEAD_BYTES, StoredMessage
from gateway.broker.scheduler import BrokerLimits
from gateway.broker.topics import Topic
from gateway.protocol.commands import STEP_MESSAGES
from tests.support.brokers.broker_core import START_NS, consumer, context, moment_at, mpub_bodies

MANY = [b"%05d" % number for number in range(2 * STEP_MESSAGES + 7)]
EACH_BYTES = OVERHEAD_BYTES + 5


def bodies(channel: Channel) -> list[bytes]:
    """Return the bodies in the queue of *channel*, in order."""
    receiver = consumer(99)
    channel.subscribe(receiver)
    channel.ready(receiver, 100_000)
    return [message.body for each in channel.deliver(0.0) for message in each.messages]


def test_every_channel_gets_every_message() -> None:
    """In the order of publishing."""
    topic = Topic("t", context())
    channels = [topic.get_channel("a", now=0.0), topic.get_channel("b", now=0.0)]

    topic.publish([b"1", b"2"], moment_at(0.0))

    assert [[b"1", b"2"]] * 2 == [bodies(channel) for channel in channels]


def test_a_message_has_the_same_id_and_time_on_every_channel() -> None:
    """Attempts are counted per channel."""
    topic = Topic("t", context())
    channels = [topic.get_channel("a", now=0.0), topic.get_channel("b", now=0.0)]
    topic.publish([b"1"], moment_at(1.0))

    messages: list[StoredMessage] = []
    for number, channel in enumerate(channels):
        receiver = consumer(number)
        channel.subscribe(receiver)
        channel.ready(receiver, 1)
        messages += channel.deliver(2.0)[0].messages

    assert messages[0] is not messages[1]
    assert [(messages[0].id, START_NS + 10**9, 1)] * 2 == [
        (message.id, message.timestamp_ns, message.attempts) for message in messages
    ]


def test_the_first_channel_gets_the_backlog() -> None:
    """Later ones get only what comes after them."""
    topic = Topic("t", context())
    topic.publish([b"1", b"2"], moment_at(0.0))
    assert 2 == topic.depth

    first = topic.get_channel("first", now=0.0)
    second = topic.get_channel("second", now=0.0)
    topic.publish([b"3"], moment_at(0.0))

    assert [b"1", b"2", b"3"] == bodies(first)
    assert [b"3"] == bodies(second)
    assert 0 == topic.depth


def test_a_channel_is_made_once() -> None:
    """The same name is the same channel."""
    topic = Topic("t", context())

    assert topic.get_channel("c", now=0.0) is topic.get_channel("c", now=0.0)


def test_a_delay_starts_when_a_channel_gets_the_message() -> None:
    """While it waits for a channel, its clock stands still."""
    shared = context()
    topic = Topic("t", shared)
    topic.publish([b"late"], moment_at(0.0), defer_ms=1_000)
    topic.publish([b"now"], moment_at(0.0))

    channel = topic.get_channel("c", now=100.0)

    assert (1, 1, 101.0) == (channel.depth, channel.deferred_count, shared.scheduler.next_due)


def test_a_delay_holds_on_every_channel() -> None:
    """Each channel defers its own copy."""
    topic = Topic("t", context())
    channels = [topic.get_channel("a", now=0.0), topic.get_channel("b", now=0.0)]

    topic.publish([b"late"], moment_at(5.0), defer_ms=1_000)

    for channel in channels:
        channel.expire(5.9)
    assert [(0, 1)] * 2 == [(channel.depth, channel.deferred_count) for channel in channels]
    for channel in channels:
        channel.expire(6.0)
    assert [(1, 0)] * 2 == [(channel.depth, channel.deferred_count) for channel in channels]


def test_a_paused_topic_keeps_what_is_published() -> None:
    """The channels get it after the pause."""
    topic = Topic("t", context())
    channel = topic.get_channel("c", now=0.0)
    topic.pause()

    topic.publish([b"1"], moment_at(0.0))
    topic.get_channel("d", now=0.0)
    assert (1, 0) == (topic.depth, channel.depth)

    topic.unpause(now=0.0)
    assert (0, 1, 1) == (topic.depth, channel.depth, topic.get_channel("d", now=0.0).depth)


def test_messages_and_bytes_are_counted() -> None:
    """Bodies only, once however many channels there are."""
    topic = Topic("t", context())
    topic.get_channel("a", now=0.0)
    topic.get_channel("b", now=0.0)

    topic.publish([b"12", b"345"], moment_at(0.0))

    assert (2, 5) == (topic.message_count, topic.message_bytes)


def test_publishing_nothing_is_right() -> None:
    """An empty text /mpub is OK in nsqd."""
    topic = Topic("t", context(limit_bytes=0))

    assert topic.publish([], moment_at(0.0))
    assert 0 == topic.message_count


def test_a_publish_beyond_the_memory_is_refused_whole() -> None:
    """Nothing of it is stored or counted."""
    shared = context(limit_bytes=2 * (OVERHEAD_BYTES + 1))
    topic = Topic("t", shared)

    assert [True, False] == [
        topic.publish([b"1"], moment_at(0.0)),
        topic.publish([b"2", b"3"], moment_at(0.0)),
    ]
    assert (1, 1, OVERHEAD_BYTES + 1) == (
        topic.depth,
        topic.message_count,
        shared.memory.used_bytes,
    )


def test_each_channel_uses_memory_of_its_own() -> None:
    """Two channels hold half as many messages."""
    shared = context(limit_bytes=2 * (OVERHEAD_BYTES + 1))
    topic = Topic("t", shared)
    topic.get_channel("a", now=0.0)
    topic.get_channel("b", now=0.0)

    assert [True, False] == [
        topic.publish([b"1"], moment_at(0.0)),
        topic.publish([b"2"], moment_at(0.0)),
    ]
    assert shared.memory.limit_bytes == shared.memory.used_bytes


def test_a_backlog_uses_the_memory_of_its_copies() -> None:
    """Its distribution, which cannot be refused, stays within the limit."""
    each_bytes = OVERHEAD_BYTES + 1
    shared = context(limit_bytes=5 * each_bytes)
    topic = Topic("t", shared)
    topic.get_channel("a", now=0.0)
    topic.get_channel("b", now=0.0)
    topic.pause()

    accepted = [topic.publish([b"x"], moment_at(0.0)) for _ in range(3)]
    paused_bytes = shared.memory.used_bytes
    topic.unpause(now=0.0)

    assert [True, True, False] == accepted
    assert (4 * each_bytes, 4 * each_bytes) == (paused_bytes, shared.memory.used_bytes)


def test_channels_that_come_and_go_change_the_memory_of_a_backlog() -> None:
    """It counts once for each channel; an emptied one does not count."""
    shared = context()
    topic = Topic("t", shared)
    topic.pause()
    topic.publish([b"x"], moment_at(0.0))
    used = [shared.memory.used_bytes]
    for name in "abc":
        topic.get_channel(name, now=0.0)
        used.append(shared.memory.used_bytes)
    topic.delete_channel("b")
    used.append(shared.memory.used_bytes)
    topic.empty()
    used.append(shared.memory.used_bytes)

    assert [1, 1, 2, 3, 2, 0] == [size_bytes // (OVERHEAD_BYTES + 1) for size_bytes in used]


def test_an_emptied_topic_has_no_backlog() -> None:
    """Its channels keep what they have."""
    shared = context()
    topic = Topic("t", shared)
    channel = topic.get_channel("c", now=0.0)
    topic.publish([b"1"], moment_at(0.0))
    topic.pause()
    topic.publish([b"2"], moment_at(0.0))

    topic.empty()

    assert (0, 1) == (topic.depth, channel.depth)
    assert OVERHEAD_BYTES + 1 == shared.memory.used_bytes


def test_an_ephemeral_topic_drops_messages_beyond_its_backlog() -> None:
    """The oldest stay, as they came first."""
    shared = context(BrokerLimits(mem_queue_size=2))
    topic = Topic("t#ephemeral", shared)

    topic.publish([b"1", b"2", b"3"], moment_at(0.0))
    topic.publish([b"4"], moment_at(0.0))

    assert (2, 4, 2 * (OVERHEAD_BYTES + 1)) == (
        topic.depth,
        topic.message_count,
        shared.memory.used_bytes,
    )
    assert [b"1", b"2"] == bodies(topic.get_channel("c", now=0.0))


def test_a_deleted_topic_names_the_consumers_of_all_channels() -> None:
    """Its memory is free."""
    shared = context()
    topic = Topic("t", shared)
    receivers = [consumer(1), consumer(2)]
    topic.get_channel("a", now=0.0).subscribe(receivers[0])
    topic.get_channel("b", now=0.0).subscribe(receivers[1])
    topic.publish([b"1"], moment_at(0.0))

    assert receivers == topic.delete()
    assert ({}, 0) == (topic.channels, shared.memory.used_bytes)


# In steps


def test_many_messages_are_stored_in_steps() -> None:
    """In order, each step a bounded number, with the room for all of them taken at first."""
    shared = context()
    topic = Topic("t", shared)
    steps = topic.publish_steps(mpub_bodies(MANY), moment_at(0.0))
    assert steps is not None
    sizes: list[int] = []
    for _ in steps:
        sizes.append(topic.depth - sum(sizes))
        assert shared.memory.used_bytes == len(MANY) * EACH_BYTES

    assert [STEP_MESSAGES, STEP_MESSAGES, 7] == sizes
    assert (len(MANY), 5 * len(MANY)) == (topic.message_count, topic.message_bytes)


def test_a_step_is_smaller_the_more_channels_there_are() -> None:
    """Each of them gets copies, which are work as well."""
    topic = Topic("t", context())
    channels = [topic.get_channel(name, now=0.0) for name in "abcd"]
    steps = topic.publish_steps(mpub_bodies(MANY), moment_at(0.0))
    assert steps is not None

    next(steps)
    assert [STEP_MESSAGES // 4] * 4 == [channel.depth for channel in channels]
    list(steps)
    assert [MANY] * 4 == [bodies(channel) for channel in channels]


def test_many_messages_beyond_the_memory_are_refused_whole() -> None:
    """Before the first step, with what each channel takes."""
    shared = context(limit_bytes=2 * len(MANY) * EACH_BYTES - 1)
    topic = Topic("t", shared)
    topic.get_channel("a", now=0.0)
    topic.get_channel("b", now=0.0)

    assert topic.publish_steps(mpub_bodies(MANY), moment_at(0.0)) is None
    assert (0, 0) == (topic.message_count, shared.memory.used_bytes)


def test_publishes_between_steps_are_refused_without_memory() -> None:
    """The room is taken, although the messages are not there yet."""
    topic = Topic("t", context(limit_bytes=len(MANY) * EACH_BYTES))
    steps = topic.publish_steps(mpub_bodies(MANY), moment_at(0.0))
    assert steps is not None
    next(steps)

    assert not topic.publish([b"x"], moment_at(0.0))


def test_deleting_a_topic_between_steps_drops_the_rest() -> None:
    """Their memory is free."""
    shared = context()
    topic = Topic("t", shared)
    topic.get_channel("c", now=0.0)
    steps = topic.publish_steps(mpub_bodies(MANY), moment_at(0.0))
    assert steps is not None
    next(steps)

    topic.delete()
    list(steps)

    assert (0, 0, STEP_MESSAGES) == (topic.depth, shared.memory.used_bytes, topic.message_count)


def test_steps_that_end_early_free_their_memory() -> None:
    """As when the broker stops."""
    shared = context()
    topic = Topic("t", shared)
    steps = topic.publish_steps(mpub_bodies(MANY), moment_at(0.0))
    assert steps is not None
    next(steps)

    steps.close()

    assert STEP_MESSAGES * EACH_BYTES == shared.memory.used_bytes


def test_a_topic_emptied_between_steps_keeps_later_messages() -> None:
    """As with nsqd, which stores one message after the other."""
    shared = context()
    topic = Topic("t", shared)
    steps = topic.publish_steps(mpub_bodies(MANY), moment_at(0.0))
    assert steps is not None
    next(steps)

    topic.empty()
    list(steps)

    left = MANY[STEP_MESSAGES:]
    assert (len(left), len(left) * EACH_BYTES) == (topic.depth, shared.memory.used_bytes)


def test_channels_created_between_steps_get_the_rest() -> None:
    """The first one everything, a second one what is stored after it; each has its own memory."""
    shared = context()
    topic = Topic("t", shared)
    steps = topic.publish_steps(mpub_bodies(MANY), moment_at(0.0))
    assert steps is not None
    next(steps)
    first = topic.get_channel("first", now=0.0)
    next(steps)
    second = topic.get_channel("second", now=0.0)
    list(steps)

    assert [MANY, MANY[2 * STEP_MESSAGES :]] == [bodies(first), bodies(second)]
    assert (len(MANY) + 7) * EACH_BYTES == shared.memory.used_bytes


def test_a_long_backlog_is_handed_out_in_steps() -> None:
    """One at once, each other when the scheduler runs it; what is published meanwhile follows."""
    shared = context()
    topic = Topic("t", shared)
    topic.publish(MANY, moment_at(0.0))

    channel = topic.get_channel("c", now=0.0)
    assert (STEP_MESSAGES, STEP_MESSAGES + 7) == (channel.depth, topic.depth)
    topic.publish([b"later"], moment_at(0.0))
    while shared.scheduler.has_deliverable:
        before = channel.depth
        for entry in shared.scheduler.pop_deliverable():
            assert [] == entry.deliver(0.0)
        assert channel.depth - before <= STEP_MESSAGES

    assert [*MANY, b"later"] == bodies(channel)
    assert 0 == topic.depth


def test_a_pause_stops_the_handing_out_of_a_backlog() -> None:
    """It goes on after the pause."""
    shared = context()
    topic = Topic("t", shared)
    topic.publish(MANY, moment_at(0.0))
    channel = topic.get_channel("c", now=0.0)

    topic.pause()
    topic.deliver(0.0)
    assert STEP_MESSAGES == channel.depth
    topic.unpause(now=0.0)
    assert 2 * STEP_MESSAGES == channel.depth


def test_an_ephemeral_topic_drops_nothing_while_its_backlog_is_distributed() -> None:
    """Its bound is for messages that have no channel; the channels have bounds of their own."""
    topic = Topic("t#ephemeral", context(BrokerLimits(mem_queue_size=len(MANY))))
    topic.publish(MANY, moment_at(0.0))
    channel = topic.get_channel("c", now=0.0)

    topic.publish(MANY, moment_at(0.0))

    assert 2 * len(MANY) == channel.depth + topic.depth
