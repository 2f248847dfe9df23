"""
A channel: the queue that delivers a topic's messages to any number of consumers.

A message is queued, in flight with one consumer, or deferred. FIN removes it from the channel; REQ,
a timeout and the end of its delay append it to the queue.

::

               RDY                        FIN
    queued ------------> in flight ----------> (removed)
      ^  ^                 |    |
      |  +-----------------+    | REQ with a delay
      |    REQ, timeout         v
      +---------------------- deferred <---- DPUB
              delay is over

Source: nsqd/channel.go; nsqd/protocol_v2.go, messagePump.
"""

from __future__ import annotations

import enum
import heapq
import math
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from copy import copy
from itertools import chain, islice
from typing import NamedTuple

from gateway.broker.consumer import ChannelConsumer
from gateway.broker.latency import LatencyWindow
from gateway.broker.message import OVERHEAD_BYTES, StoredMessage
from gateway.broker.scheduler import BrokerState, ConsumerBatch
from gateway.protocol.commands import STEP_MESSAGES
from gateway.protocol.wire import is_ephemeral

MAX_BATCH_BYTES = 262_144
"""Bytes of bodies that end a batch; the consumer gets more in the next event loop turn."""


STEP_DUE = STEP_MESSAGES // 4
"""Maximum number of deferred messages that one call of `expire` queues (a millisecond or less)."""


class AckFailure(enum.StrEnum):
    """The reason why FIN, REQ or TOUCH failed, with the text of nsqd's error frames."""

    NOT_IN_FLIGHT = "ID not in flight"
    NOT_OWNER = "client does not own message"


class MessageState(enum.StrEnum):
    """Where a message of a channel is."""

    QUEUED = "queued"
    IN_FLIGHT = "in_flight"
    DEFERRED = "deferred"


class PeekedMessage(NamedTuple):
    """A message that `Channel.peek` shows, as it was then; the channel still has it."""

    state: MessageState
    message: StoredMessage
    """A copy."""
    due_at: float = 0.0
    """When it is to be queued again, monotonic seconds; 0 if it is queued."""
    is_unread: bool = False
    """True if it has not been in memory yet: if it has a delay, that has not begun."""

    @property
    def is_on_disk(self) -> bool:
        """True if its body is on disk only; no message is empty."""
        return not self.message.body and self.message.seq >= 0


class Peek(NamedTuple):
    """What `Channel.peek` shows."""

    messages: list[PeekedMessage]
    has_more: bool
    """True if messages are left out."""


class Channel:
    """The messages and consumers of one channel."""

    def __init__(self, topic_name: str, name: str, context: BrokerState) -> None:
        self.topic_name = topic_name
        self.name = name
        self.is_ephemeral = is_ephemeral(name)
        """True if the channel ends with its last consumer and mem_queue_size limits its queue."""
        self.is_paused = False
        self.message_count = 0
        self.requeue_count = 0
        self.timeout_count = 0
        self.consumers: dict[int, ChannelConsumer] = {}
        """Consumers by id, in the order of SUB."""
        self.next_due = math.inf
        """When the next call of `expire` is due, monotonic seconds; infinite for never."""
        self._limits = context.limits
        self._memory = context.memory
        self._discard_queue = context.discard_queue
        self._scheduler = context.scheduler
        self._random = context.random
        self._max_msg_timeout_s = context.limits.protocol.max_msg_timeout_ms / 1000
        self._queue: deque[StoredMessage] = deque()
        # A heap. Ids are unique in a channel, so comparisons never reach the messages.
        self._deferred: list[tuple[float, bytes, StoredMessage]] = []
        # Consumers that may have capacity, the longest unserved first; `deliver` checks again.
        self._waiting: OrderedDict[ChannelConsumer, None] = OrderedDict()
        # Disconnected consumers with messages in flight, which stay so until their timeout, as in
        # nsqd.
        self._disconnected: list[ChannelConsumer] = []
        latency = context.limits.latency
        self.latency = LatencyWindow(latency.window_ms) if latency.percentiles else None
        """Times from publish to FIN; None if they are not measured."""

    @property
    def depth(self) -> int:
        """The number of queued messages, without those in flight or deferred."""
        return len(self._queue)

    @property
    def deferred_count(self) -> int:
        """The number of deferred messages."""
        return len(self._deferred)

    @property
    def in_flight_count(self) -> int:
        """The number of messages in flight, including those of disconnected clients."""
        all_consumers = (*self.consumers.values(), *self._disconnected)
        return sum(consumer.in_flight_count for consumer in all_consumers)

    # Consumers

    def subscribe(self, consumer: ChannelConsumer) -> bool:
        """Add *consumer*; return False if the channel already has max_channel_consumers."""
        limit = self._limits.max_channel_consumers
        if limit and len(self.consumers) >= limit:
            return False
        self.consumers[consumer.id] = consumer
        return True

    def remove_consumer(self, consumer: ChannelConsumer) -> bool:
        """Remove *consumer*; return True if the channel is ephemeral and has no consumers left."""
        if self.consumers.pop(consumer.id, None) is None:
            # This channel has been deleted. False, because the caller deletes by name, and a new
            # channel may have that name by now.
            return False
        consumer.ready_count = 0
        self._waiting.pop(consumer, None)
        if consumer.in_flight_count:
            self._disconnected.append(consumer)
        return self.is_ephemeral and not self.consumers

    def ready(self, consumer: ChannelConsumer, count: int) -> None:
        """Set the RDY count of *consumer*, its maximum number of messages in flight."""
        consumer.ready_count = count
        self.add_waiting(consumer)

    def add_waiting(self, consumer: ChannelConsumer) -> None:
        """
        Add *consumer* to those that `deliver` serves, if it has capacity.

        Call this whenever its capacity may have increased.
        """
        if consumer not in self._waiting and consumer.capacity > 0:
            self._waiting[consumer] = None
            self._schedule_delivery()

    # Messages

    def put(self, messages: Sequence[StoredMessage]) -> None:
        """Queue *messages*; the caller has reserved their memory."""
        self.message_count += len(messages)
        self._enqueue(messages)

    def put_deferred(self, messages: Sequence[StoredMessage], now: float) -> None:
        """Defer each of *messages* by its delay; the caller has reserved their memory."""
        self.message_count += len(messages)
        for message in messages:
            self._defer(message, now + message.defer_ms / 1000)

    def finish(self, consumer: ChannelConsumer, message_id: bytes) -> AckFailure | None:
        """Remove a message finished by *consumer*; return None, or the reason for a failure."""
        message = consumer.pop(message_id)
        if message is None:
            return self._ack_failure(message_id)
        self._memory.used_bytes -= OVERHEAD_BYTES + len(message.body)
        self._on_finished(message)
        consumer.finish_count += 1
        if self.latency is not None:
            self.latency.finish(message.timestamp_ns)
        self.add_waiting(consumer)
        return None

    def requeue(
        self, consumer: ChannelConsumer, message_id: bytes, *, delay_ms: int, now: float
    ) -> AckFailure | None:
        """Requeue a message, now or after *delay_ms*; return None, or the reason for a failure."""
        message = consumer.pop(message_id)
        if message is None:
            return self._ack_failure(message_id)
        self.requeue_count += 1
        consumer.requeue_count += 1
        if delay_ms:
            self._defer(message, now + delay_ms / 1000)
        else:
            self._enqueue((message,))
        self.add_waiting(consumer)
        return None

    def touch(
        self, consumer: ChannelConsumer, message_id: bytes, *, now: float
    ) -> AckFailure | None:
        """Restart the timeout of a message; return None, or the reason for a failure."""
        if not consumer.touch(message_id, now=now, max_timeout_s=self._max_msg_timeout_s):
            return self._ack_failure(message_id)
        # The scheduler keeps the old, earlier deadline; `expire` then schedules the new one. That
        # is cheaper than removing an entry from the heap with every TOUCH.
        return None

    def _ack_failure(self, message_id: bytes) -> AckFailure:
        # Until it times out, a message of a disconnected consumer belongs to that consumer.
        all_consumers = (*self.consumers.values(), *self._disconnected)
        if any(consumer.has_in_flight(message_id) for consumer in all_consumers):
            return AckFailure.NOT_OWNER
        return AckFailure.NOT_IN_FLIGHT

    def _defer(self, message: StoredMessage, until: float) -> None:
        heapq.heappush(self._deferred, (until, message.id, message))
        self._scheduler.schedule(self, until)

    def _end_deferral(self, messages: list[StoredMessage]) -> None:
        """Queue *messages*, whose delay is over."""
        self._enqueue(messages)

    def _on_delivered(self, messages: Sequence[StoredMessage]) -> None:
        """Called with *messages* that are in flight now; `DurableChannel` keeps their attempts."""

    def _on_finished(self, message: StoredMessage) -> None:
        """Called with a message that has left the channel; `DurableChannel` keeps that."""

    def _enqueue(self, messages: Sequence[StoredMessage]) -> None:
        # For an ephemeral channel, nsqd has no queue on disk: it drops what its memory queue cannot
        # hold. All other queues grow up to the memory budget.
        if self.is_ephemeral:
            capacity = max(0, self._limits.mem_queue_size - len(self._queue))
            self._memory.free(messages[capacity:])
            for message in messages[capacity:]:
                self._on_finished(message)
            messages = messages[:capacity]
        self._queue.extend(messages)
        self._schedule_delivery()

    def _schedule_delivery(self) -> None:
        if self._queue and self._waiting and not self.is_paused:
            self._scheduler.add_deliverable(self)

    # Delivery

    def deliver(self, now: float) -> list[ConsumerBatch]:
        """
        Assign queued messages to consumers with capacity: a batch each, in equal shares.

        If messages are left, the channel is scheduled again for the next turn of the event loop. A
        consumer is skipped then if this batch has filled its write buffer.
        """
        deliveries: list[ConsumerBatch] = []
        if self.is_paused:
            return deliveries
        queue, waiting = self._queue, self._waiting
        for unserved in range(len(waiting), 0, -1):
            if not queue:
                break
            consumer, _ = waiting.popitem(last=False)
            # Rounded up; else 3 messages for 4 consumers would be shares of 0.
            count = min(consumer.capacity, -(-len(queue) // unserved))
            messages = self._send(consumer, count, now) if count > 0 else []
            if messages:
                deliveries.append(ConsumerBatch(consumer, messages))
            # At the end of the order, so that the others are served first in the next turn.
            if consumer.capacity > 0:
                waiting[consumer] = None
        self._schedule_delivery()
        return deliveries

    def _send(self, consumer: ChannelConsumer, count: int, now: float) -> list[StoredMessage]:
        """Put up to *count* queued messages in flight with *consumer*, and return them."""
        queue, in_flight, rate = self._queue, consumer.in_flight, consumer.sample_rate
        deadline = now + consumer.msg_timeout_s
        messages: list[StoredMessage] = []
        size_bytes = 0
        while queue and len(messages) < count and size_bytes < MAX_BATCH_BYTES:
            message = queue.popleft()
            if rate and self._random(100) > rate:
                # Sampling discards the message for the whole channel, as in nsqd.
                self._memory.free((message,))
                self._on_finished(message)
                continue
            # An attempt counts when the message is sent, even if the client never reads it
            # (nsqd/protocol_v2.go, messagePump).
            message.attempts += 1
            message.delivered_at = now
            message.deadline = deadline
            in_flight[message.id] = message
            size_bytes += len(message.body)
            messages.append(message)
        consumer.message_count += len(messages)
        if messages:
            self._on_delivered(messages)
            self._scheduler.schedule(self, deadline)
        return messages

    def expire(self, now: float) -> None:
        """
        Append to the queue: messages that have timed out, and deferred ones whose delay is over.

        One call queues at most `STEP_DUE` deferred messages; if more are due, the channel is
        scheduled again.
        """
        timed_out: list[StoredMessage] = []
        next_due = math.inf
        for consumer in (*self.consumers.values(), *self._disconnected):
            timed_out += consumer.pop_expired(now)
            next_due = min(next_due, consumer.next_deadline)
            self.add_waiting(consumer)  # no effect on disconnected ones, whose RDY count is 0
        self._disconnected = [
            consumer for consumer in self._disconnected if consumer.in_flight_count
        ]
        # Each consumer's messages are in order already, those of all consumers together are not.
        timed_out.sort(key=lambda message: message.deadline)
        self.timeout_count += len(timed_out)
        self._enqueue(timed_out)
        due: list[StoredMessage] = []
        while self._deferred and self._deferred[0][0] <= now and len(due) < STEP_DUE:
            due.append(heapq.heappop(self._deferred)[2])
        self._end_deferral(due)
        if self._deferred:
            next_due = min(next_due, self._deferred[0][0])
        if next_due < math.inf:
            self._scheduler.schedule(self, next_due)

    # Peeking

    async def peek(self, *, max_count: int, max_bytes: int) -> Peek:
        """
        Return messages in the order of their next delivery; nothing is delivered or changed.

        Queued messages come first, then those in flight or deferred, the earliest deadline or due
        time first. At most *max_count*, and *max_bytes* of bodies, but at least one message.

        The first n messages cost n steps, whatever the number of messages; the first one that is
        not queued also costs a step for each consumer, and for each message that TOUCH cannot
        extend further. In memory, nothing is awaited. Bodies that are on disk are read while the
        channel goes on: all messages are shown as they were at the call, and one that is gone at
        the end is left out.

        Raises:
            StoreFailed: The disk cannot be read.
        """
        queued, is_cut = _first_of(self._iter_queued(), max_count, max_bytes)
        behind: Iterator[PeekedMessage] = iter(()) if is_cut else self._iter_later()
        later, is_later_cut = _first_of(behind, max_count, max_bytes)
        shown: list[PeekedMessage] = []
        size_bytes = 0
        has_more = is_cut or is_later_cut
        while source := queued or later:
            if source[0].is_on_disk:
                await self._load_first(source, later)
                continue
            size_bytes += len(source[0].message.body)
            is_full = len(shown) == max_count or (shown and size_bytes > max_bytes)
            # Those that are left of `queued` come before the others.
            if is_full or (shown and source is later and is_cut):
                has_more = True
                break
            shown.append(source.popleft())
        there = [each for each in shown if not self._is_gone(each.message)]
        return Peek(there, has_more)

    async def _load_first(self, source: deque[PeekedMessage], later: deque[PeekedMessage]) -> None:
        """
        Read the first message of *source*, and some behind it; drop what is gone.

        *later* gets those whose delay has not begun. Only `DurableChannel` has messages on disk.
        """
        raise NotImplementedError

    def _is_gone(self, message: StoredMessage) -> bool:
        """Return whether the channel has lost *message* since it was copied for `peek`."""
        del message
        return False  # nothing was awaited

    def _iter_queued(self) -> Iterator[PeekedMessage | None]:
        """
        Yield the queued messages in order; None at the end: there may be others.

        The channel must not change meanwhile.
        """
        for message in self._queue:
            yield PeekedMessage(MessageState.QUEUED, copy(message))

    def _iter_later(self) -> Iterator[PeekedMessage]:
        """Yield the other messages, the earliest first. The channel must not change meanwhile."""
        return heapq.merge(
            self._iter_in_flight(), self._iter_deferred(), key=lambda each: each.due_at
        )

    def _iter_in_flight(self) -> Iterator[PeekedMessage]:
        """Yield each message in flight, the earliest deadline first."""
        all_consumers = (*self.consumers.values(), *self._disconnected)
        at_max = chain.from_iterable(each.at_max_timeout.values() for each in all_consumers)
        ordered = [iter(each.in_flight.values()) for each in all_consumers]
        unordered = iter(sorted(at_max, key=lambda message: message.deadline))
        for message in heapq.merge(*ordered, unordered, key=lambda message: message.deadline):
            yield PeekedMessage(MessageState.IN_FLIGHT, copy(message), message.deadline)

    def _iter_deferred(self) -> Iterator[PeekedMessage]:
        """Yield each deferred message, the earliest due time first."""
        # A walk down the heap, which stays as it is: sorting a million entries takes a second.
        heap = self._deferred
        frontier = [(*entry[:2], 0) for entry in islice(heap, 1)]
        while frontier:
            until, _, index = heapq.heappop(frontier)
            yield PeekedMessage(MessageState.DEFERRED, copy(heap[index][2]), until)
            for child in (2 * index + 1, 2 * index + 2):
                if child < len(heap):
                    heapq.heappush(frontier, (*heap[child][:2], child))

    # Administration

    def pause(self) -> None:
        """Stop deliveries; published messages are still queued."""
        self.is_paused = True

    def unpause(self) -> None:
        """Resume deliveries."""
        self.is_paused = False
        self._schedule_delivery()

    def empty(self) -> None:
        """
        Remove all messages: queued, deferred and in flight. A FIN for one of these then fails.

        `DiscardQueue` frees the memory of many messages over several turns of the event loop.
        """
        release = self._discard_queue.add
        queue, self._queue = self._queue, deque()
        release(queue)
        deferred, self._deferred = self._deferred, []
        release(deferred)
        for consumer in (*self.consumers.values(), *self._disconnected):
            for in_flight in consumer.pop_all():
                release(in_flight)
            self.add_waiting(consumer)
        self._disconnected.clear()

    def delete(self) -> list[ChannelConsumer]:
        """Remove all messages and consumers; the caller must disconnect the returned consumers."""
        self.empty()
        consumers = list(self.consumers.values())
        for consumer in consumers:
            self.remove_consumer(consumer)
        return consumers


def _first_of(
    messages: Iterator[PeekedMessage | None], max_count: int, max_bytes: int
) -> tuple[deque[PeekedMessage], bool]:
    """
    Return the first of *messages*, one more than the limits allow, and whether there are others.

    Bodies that are on disk do not count.
    """
    first: deque[PeekedMessage] = deque()
    size_bytes = 0
    for each in messages:
        is_full = len(first) > max_count or (len(first) > 1 and size_bytes > max_bytes)
        if each is None or is_full:
            return first, True
        first.append(each)
        size_bytes += len(each.message.body)
    return first, False
