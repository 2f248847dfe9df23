"""
Topics, and the registry of all topics and clients.

Large numbers of messages are stored and distributed to channels in steps of `STEP_MESSAGES`: a
million at once would block the event loop for seconds. As in nsqd, consumers may receive the first
message of an MPUB before the last one is stored.

After each change, the caller checks `TopicRegistry.has_deliverable` and `TopicRegistry.next_due`.
Source: nsqd/topic.go; nsqd/nsqd.go.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Sequence
from itertools import islice
from typing import Protocol

from gateway.broker.channel import Channel
from gateway.broker.client import Client
from gateway.broker.consumer import ChannelConsumer
from gateway.broker.message import OVERHEAD_BYTES, ClockReading, IdFactory, StoredMessage
from gateway.broker.scheduler import BrokerState, ConsumerBatch
from gateway.protocol.commands import STEP_MESSAGES, PackedBodies
from gateway.protocol.wire import is_ephemeral


class Topic:
    """A topic: its channels, and a backlog of messages that no channel has received yet."""

    is_durable = False
    """True if messages are on disk before they are acknowledged."""
    refused_count = 0
    """Messages that could not be written to disk."""

    def __init__(self, name: str, context: BrokerState) -> None:
        self.name = name
        self.is_ephemeral = is_ephemeral(name)
        """True if the topic ends with its last channel and mem_queue_size limits its backlog."""
        self.is_paused = False
        self.is_held = False
        """True while channels are being looked up that must get the first messages, too."""
        self.message_count = 0
        self.message_bytes = 0
        self.channels: dict[str, Channel] = {}
        self._context = context
        self._ids = IdFactory(node_id=context.limits.node_id)
        self._backlog: deque[StoredMessage] = deque()
        self._backlog_bytes = 0
        """Memory of the backlog, without copies."""
        self._reserved_bytes = 0
        """Memory reserved for the copies that all channels but one will get of the backlog."""
        self._is_deleted = False

    @property
    def depth(self) -> int:
        """The number of messages in the backlog."""
        return len(self._backlog)

    def publish(self, bodies: Sequence[bytes], at: ClockReading, *, defer_ms: int = 0) -> bool:
        """
        Store a message for each of *bodies*; if memory is full, store none and return False.

        All messages get the same timestamp. The delay starts when a channel gets the message.
        """
        # Check the copies for all channels before the first is made: all messages or none.
        body_bytes = sum(map(len, bodies))
        size_bytes = body_bytes + len(bodies) * OVERHEAD_BYTES
        if not self._context.memory.has_room(size_bytes * self._copies):
            return False
        self._store(bodies, body_bytes, at, defer_ms=defer_ms)
        return True

    def publish_steps(
        self, bodies: PackedBodies, at: ClockReading
    ) -> Generator[None, None, None] | None:
        """
        Return a generator that stores a part of *bodies* per `next()`.

        Return None instead if the memory is full. This call already reserves the memory of all
        messages. If the topic is deleted between two steps, the remaining messages are dropped.
        """
        # One reservation for all copies, so that memory cannot run out between the steps.
        # size_bytes of packed bodies includes 4 bytes for the size of each.
        size_bytes = bodies.size_bytes + len(bodies) * (OVERHEAD_BYTES - 4)
        copies = self._copies
        if not self._context.memory.has_room(size_bytes * copies):
            return None
        self._context.memory.used_bytes += size_bytes * copies
        return self._store_in_steps(bodies, at, size_bytes * copies, copies)

    def _store_in_steps(
        self, bodies: PackedBodies, at: ClockReading, reserved_bytes: int, copies: int
    ) -> Generator[None, None, None]:
        memory = self._context.memory
        waiting = iter(bodies)
        try:
            while not self._is_deleted and (step := list(islice(waiting, self._step_messages))):
                # `_store` and `_distribute` count the stored messages; give back the reservation,
                # with its own *copies*: channels may come and go between the steps.
                body_bytes = sum(map(len, step))
                taken_bytes = (body_bytes + len(step) * OVERHEAD_BYTES) * copies
                memory.used_bytes -= taken_bytes
                reserved_bytes -= taken_bytes
                self._store(step, body_bytes, at)
                yield
        finally:
            # More than 0 if the topic was deleted, or the generator was closed, before the end.
            memory.used_bytes -= reserved_bytes

    def _store(
        self, bodies: Sequence[bytes], body_bytes: int, at: ClockReading, *, defer_ms: int = 0
    ) -> None:
        """Create a message for each of *bodies*; the caller has checked that memory has room."""
        self._context.memory.used_bytes += body_bytes + len(bodies) * OVERHEAD_BYTES
        ids = self._ids.generate(len(bodies), wall_ns=at.wall_ns)
        wall_ns = at.wall_ns
        messages = [
            StoredMessage(wall_ns, 0, message_id, body, defer_ms)
            for message_id, body in zip(ids, bodies, strict=True)
        ]
        self.message_count += len(bodies)
        self.message_bytes += body_bytes
        self._accept(messages, at)

    def _accept(self, messages: list[StoredMessage], at: ClockReading) -> None:
        """Give *messages* to the channels, or keep them: all with the same delay, or with none."""
        # With a backlog, new messages must follow it, to keep their order.
        if self._is_distributing and not self._backlog:
            self._distribute(messages, now=at.now, deferred=messages[0].defer_ms > 0)
        else:
            self._append_backlog(messages)

    def get_channel(self, name: str, *, now: float) -> Channel:
        """Return the channel; create it if necessary. The first channel gets the backlog."""
        channel = self.channels.get(name)
        if channel is None:
            channel = self.channels[name] = Channel(self.name, name, self._context)
            self._reserve_copies()
            self._distribute_backlog(now)
            self._context.announce(self.name, name)
        return channel

    def delete_channel(self, name: str) -> list[ChannelConsumer]:
        """Delete an existing channel; the caller must disconnect the returned consumers."""
        channel = self.channels.pop(name)
        self._reserve_copies()
        consumers = channel.delete()
        self._context.announce(self.name, name, is_deleted=True)
        return consumers

    def pause(self) -> None:
        """Keep new messages in the backlog; channels still deliver the messages that they have."""
        self.is_paused = True

    def unpause(self, *, now: float) -> None:
        """Distribute the backlog and new messages to the channels again."""
        self.is_paused = False
        self._distribute_backlog(now)

    def end_hold(self, *, now: float) -> None:
        """End `is_held`: distribute the backlog to the channels that exist by now."""
        self.is_held = False
        if not self.is_paused:
            self.unpause(now=now)

    def empty(self) -> None:
        """Remove the backlog; the channels keep their messages. `DiscardQueue` frees the memory."""
        backlog, self._backlog = self._backlog, deque()
        self._backlog_bytes = 0
        self._reserve_copies()
        self._context.discard_queue.add(backlog)

    def delete(self) -> list[ChannelConsumer]:
        """Delete all channels and messages; the caller must disconnect the returned consumers."""
        # A generator of `publish_steps` may still hold this topic; it stops at its next step.
        self._is_deleted = True
        self.empty()
        return [consumer for name in list(self.channels) for consumer in self.delete_channel(name)]

    @property
    def _is_distributing(self) -> bool:
        return bool(self.channels) and not self.is_paused and not self.is_held

    @property
    def _copies(self) -> int:
        """The number of copies of each message: one per channel."""
        return max(1, len(self.channels))

    @property
    def _step_messages(self) -> int:
        """Maximum number of messages per step; a copy for a channel costs as much as a message."""
        return max(1, STEP_MESSAGES // self._copies)

    def _append_backlog(self, messages: list[StoredMessage]) -> None:
        # While the backlog is being distributed, only the channels limit their queues.
        if self.is_ephemeral and not self._is_distributing:
            capacity = max(0, self._context.limits.mem_queue_size - len(self._backlog))
            self._context.memory.free(messages[capacity:])
            messages = messages[:capacity]
        self._backlog += messages
        self._backlog_bytes += _memory_of(messages)
        self._reserve_copies()

    def _reserve_copies(self) -> None:
        """
        Reserve the memory of the backlog's copies; call this after each change of either.

        Without it, publishes would be accepted that do not fit once the backlog is distributed. A
        new channel is never refused, so its copies may exceed the limit; publishes are then.
        """
        reserved_bytes = self._backlog_bytes * (self._copies - 1)
        self._context.memory.used_bytes += reserved_bytes - self._reserved_bytes
        self._reserved_bytes = reserved_bytes

    def deliver(self, now: float) -> list[ConsumerBatch]:
        """
        Move some messages of the backlog to the channels, which deliver them in the next turn.

        Return an empty list: a topic has no consumers of its own.
        """
        self._distribute_backlog(now)
        return []

    def _distribute_backlog(self, now: float) -> None:
        """Distribute one step of the backlog now, and the rest in the next event loop turns."""
        if not self._is_distributing or not self._backlog:
            return
        backlog = self._backlog
        count = min(len(backlog), self._step_messages)
        step = [backlog.popleft() for _ in range(count)]
        # `_distribute` counts the copies that it makes.
        self._backlog_bytes -= _memory_of(step)
        self._reserve_copies()
        deferred = [message for message in step if message.defer_ms]
        self._distribute(deferred, now=now, deferred=True)
        self._distribute([message for message in step if not message.defer_ms], now=now)
        if backlog:
            self._context.scheduler.add_deliverable(self)

    def _distribute(
        self, messages: list[StoredMessage], *, now: float, deferred: bool = False
    ) -> None:
        """Give every channel a copy of *messages*; the caller has reserved memory for one copy."""
        is_original = True
        for channel in self.channels.values():
            # A channel changes attempts and deadline, so each needs objects of its own.
            own = messages
            if not is_original:
                own = [message.copy() for message in messages]
                self._context.memory.take(own)
            is_original = False
            if deferred:
                channel.put_deferred(own, now)
            else:
                channel.put(own)


def _memory_of(messages: Sequence[StoredMessage]) -> int:
    """Return the memory of *messages*, in bytes."""
    return sum([OVERHEAD_BYTES + len(message.body) for message in messages])


class Storage(Protocol):
    """Where durable topics come from; a Protocol, because `durable` imports this module."""

    @property
    def version(self) -> int:
        """Rises with each change whose response has to wait for the disk."""

    def create_topic(self, name: str) -> Topic:
        """Return a new topic whose messages are on disk."""


class TopicRegistry:
    """All topics and clients of a broker."""

    def __init__(self, context: BrokerState, storage: Storage | None = None) -> None:
        self.context = context
        self.storage = storage
        """None keeps all messages in memory."""
        self.topics: dict[str, Topic] = {}
        self.clients: dict[int, Client] = {}
        """All clients by the id of their consumer."""

    def get_topic(self, name: str) -> Topic:
        """Return the topic; create it if necessary."""
        topic = self.topics.get(name)
        if topic is None:
            if self.storage is None or is_ephemeral(name):
                topic = Topic(name, self.context)
            else:
                topic = self.storage.create_topic(name)
            self.topics[name] = topic
            self.context.announce(name)
        return topic

    @property
    def version(self) -> int:
        """Changes with every change whose response has to wait for the disk; 0 without a disk."""
        return 0 if self.storage is None else self.storage.version

    def find_channel(self, topic: str, channel: str) -> Channel | None:
        """Return the channel; None if it or its topic does not exist."""
        found = self.topics.get(topic)
        return None if found is None else found.channels.get(channel)

    def delete_topic(self, name: str) -> list[ChannelConsumer] | None:
        """Delete a topic; return the consumers to disconnect, or None if there is no such topic."""
        topic = self.topics.pop(name, None)
        if topic is None:
            return None
        consumers = topic.delete()
        self.context.announce(name, is_deleted=True)
        return consumers

    def delete_channel(self, topic: str, channel: str) -> list[ChannelConsumer] | None:
        """
        Delete a channel; an ephemeral topic is deleted with its last channel.

        Return the consumers to disconnect, or None if there is no such channel.
        """
        if self.find_channel(topic, channel) is None:
            return None
        parent = self.topics[topic]
        consumers = parent.delete_channel(channel)
        if parent.is_ephemeral and not parent.channels:
            self.delete_topic(topic)
        return consumers

    def remove_client(self, client: Client) -> None:
        """Remove *client*; its messages in flight stay until their timeout, as in nsqd."""
        self.clients.pop(client.consumer.id, None)
        channel = client.channel
        # The list of consumers is empty here: an ephemeral channel is deleted after its last one.
        if channel is not None and channel.remove_consumer(client.consumer):
            self.delete_channel(channel.topic_name, channel.name)

    # Scheduling

    @property
    def has_deliverable(self) -> bool:
        """True if a channel or topic has something to deliver."""
        return self.context.scheduler.has_deliverable

    @property
    def next_due(self) -> float | None:
        """When `expire` is due, monotonic seconds; None for never."""
        return self.context.scheduler.next_due

    def deliver(self, now: float) -> list[ConsumerBatch]:
        """
        Return batches for the consumers with capacity; their messages are in flight now.

        Also distribute one step of each waiting backlog to its channels.
        """
        return [
            delivery
            for entry in self.context.scheduler.pop_deliverable()
            for delivery in entry.deliver(now)
        ]

    def expire(self, now: float) -> None:
        """Append to the queues: messages that have timed out, and deferred ones that are due."""
        for channel in self.context.scheduler.pop_due(now):
            channel.expire(now)
