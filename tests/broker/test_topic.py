"""A topic gives what is published to each of its channels."""

from __future__ import annotations

from gateway.broker.channel import Channel
from gateway.broker.common import Rules
from gateway.broker.message import OVERHEAD_BYTES, StoredMessage
from gateway.broker.topic import Topic
from tests.support.broker_core import START_NS, at, common, consumer


def bodies(channel: Channel) -> list[bytes]:
    """Return the bodies in the queue of *channel*, in order."""
    receiver = consumer(99)
    channel.subscribe(receiver)
    channel.ready(receiver, 1_000)
    return [message.body for each in channel.deliver(0.0) for message in each.messages]


def test_every_channel_gets_every_message() -> None:
    """In the order of publishing."""
    topic = Topic("t", common())
    channels = [topic.channel("a", now=0.0), topic.channel("b", now=0.0)]

    topic.publish([b"1", b"2"], at(0.0))

    assert [[b"1", b"2"]] * 2 == [bodies(channel) for channel in channels]


def test_a_message_has_the_same_id_and_time_on_every_channel() -> None:
    """And attempts of its own on each."""
    topic = Topic("t", common())
    channels = [topic.channel("a", now=0.0), topic.channel("b", now=0.0)]
    topic.publish([b"1"], at(1.0))

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
    topic = Topic("t", common())
    topic.publish([b"1", b"2"], at(0.0))
    assert 2 == topic.depth

    first = topic.channel("first", now=0.0)
    second = topic.channel("second", now=0.0)
    topic.publish([b"3"], at(0.0))

    assert [b"1", b"2", b"3"] == bodies(first)
    assert [b"3"] == bodies(second)
    assert 0 == topic.depth


def test_a_channel_is_made_once() -> None:
    """The same name is the same channel."""
    topic = Topic("t", common())

    assert topic.channel("c", now=0.0) is topic.channel("c", now=0.0)


def test_a_delay_starts_when_a_channel_gets_the_message() -> None:
    """While it waits for a channel, its clock stands still."""
    shared = common()
    topic = Topic("t", shared)
    topic.publish([b"late"], at(0.0), defer_ms=1_000)
    topic.publish([b"now"], at(0.0))

    channel = topic.channel("c", now=100.0)

    assert (1, 1, 101.0) == (channel.depth, channel.deferred_count, shared.agenda.next_moment)


def test_a_delay_holds_on_every_channel() -> None:
    """Each channel defers its own copy."""
    topic = Topic("t", common())
    channels = [topic.channel("a", now=0.0), topic.channel("b", now=0.0)]

    topic.publish([b"late"], at(5.0), defer_ms=1_000)

    for channel in channels:
        channel.expire(5.9)
    assert [(0, 1)] * 2 == [(channel.depth, channel.deferred_count) for channel in channels]
    for channel in channels:
        channel.expire(6.0)
    assert [(1, 0)] * 2 == [(channel.depth, channel.deferred_count) for channel in channels]


def test_a_paused_topic_keeps_what_is_published() -> None:
    """The channels get it after the pause."""
    topic = Topic("t", common())
    channel = topic.channel("c", now=0.0)
    topic.pause()

    topic.publish([b"1"], at(0.0))
    topic.channel("d", now=0.0)
    assert (1, 0) == (topic.depth, channel.depth)

    topic.unpause(now=0.0)
    assert (0, 1, 1) == (topic.depth, channel.depth, topic.channel("d", now=0.0).depth)


def test_messages_and_bytes_are_counted() -> None:
    """Bodies only, once however many channels there are."""
    topic = Topic("t", common())
    topic.channel("a", now=0.0)
    topic.channel("b", now=0.0)

    topic.publish([b"12", b"345"], at(0.0))

    assert (2, 5) == (topic.message_count, topic.message_bytes)


def test_publishing_nothing_is_right() -> None:
    """An empty text /mpub is OK in nsqd."""
    topic = Topic("t", common(limit_bytes=0))

    assert topic.publish([], at(0.0))
    assert 0 == topic.message_count


def test_a_publish_beyond_the_memory_is_refused_whole() -> None:
    """Nothing of it is stored or counted."""
    shared = common(limit_bytes=2 * (OVERHEAD_BYTES + 1))
    topic = Topic("t", shared)

    assert [True, False] == [
        topic.publish([b"1"], at(0.0)),
        topic.publish([b"2", b"3"], at(0.0)),
    ]
    assert (1, 1, OVERHEAD_BYTES + 1) == (
        topic.depth,
        topic.message_count,
        shared.memory.used_bytes,
    )


def test_each_channel_takes_memory_of_its_own() -> None:
    """Two channels hold half as many messages."""
    shared = common(limit_bytes=2 * (OVERHEAD_BYTES + 1))
    topic = Topic("t", shared)
    topic.channel("a", now=0.0)
    topic.channel("b", now=0.0)

    assert [True, False] == [topic.publish([b"1"], at(0.0)), topic.publish([b"2"], at(0.0))]
    assert shared.memory.limit_bytes == shared.memory.used_bytes


def test_an_emptied_topic_has_no_backlog() -> None:
    """Its channels keep what they have."""
    shared = common()
    topic = Topic("t", shared)
    channel = topic.channel("c", now=0.0)
    topic.publish([b"1"], at(0.0))
    topic.pause()
    topic.publish([b"2"], at(0.0))

    topic.empty()

    assert (0, 1) == (topic.depth, channel.depth)
    assert OVERHEAD_BYTES + 1 == shared.memory.used_bytes


def test_an_ephemeral_topic_drops_what_its_backlog_cannot_hold() -> None:
    """The oldest stay, as they came first."""
    shared = common(Rules(mem_queue_size=2))
    topic = Topic("t#ephemeral", shared)

    topic.publish([b"1", b"2", b"3"], at(0.0))
    topic.publish([b"4"], at(0.0))

    assert (2, 4, 2 * (OVERHEAD_BYTES + 1)) == (
        topic.depth,
        topic.message_count,
        shared.memory.used_bytes,
    )
    assert [b"1", b"2"] == bodies(topic.channel("c", now=0.0))


def test_a_deleted_topic_names_the_consumers_of_all_channels() -> None:
    """Its memory is free."""
    shared = common()
    topic = Topic("t", shared)
    receivers = [consumer(1), consumer(2)]
    topic.channel("a", now=0.0).subscribe(receivers[0])
    topic.channel("b", now=0.0).subscribe(receivers[1])
    topic.publish([b"1"], at(0.0))

    assert receivers == topic.delete()
    assert ({}, 0) == (topic.channels, shared.memory.used_bytes)
