"""
A channel: one queue of a topic's messages for any number of consumers.

A message is in one of three places: queued, in flight with one consumer, or deferred. FIN takes it
out of the channel; REQ, a timeout and the end of a delay bring it to the tail of the queue.
Source: nsqd/channel.go; nsqd/protocol_v2.go, messagePump.
"""

from __future__ import annotations

import enum
import heapq
import math
from collections import OrderedDict, deque
from collections.abc import Sequence

from gateway.broker.agenda import Delivery
from gateway.broker.common import Common
from gateway.broker.consumer import Consumer
from gateway.broker.message import OVERHEAD_BYTES, StoredMessage
from gateway.protocol.wire import is_ephemeral

MAX_BATCH_BYTES = 262_144
"""A delivery ends with the message that reaches this; the next one waits for the next turn."""


class Refusal(enum.StrEnum):
    """Why FIN, REQ or TOUCH failed, in nsqd's words."""

    NOT_IN_FLIGHT = "ID not in flight"
    NOT_OWNER = "client does not own message"


class Channel:
    """The messages of one channel and who consumes them."""

    def __init__(self, topic_name: str, name: str, common: Common) -> None:
        self.topic_name = topic_name
        self.name = name
        self.is_ephemeral = is_ephemeral(name)
        """Whether the channel goes with its last consumer, and drops what its queue cannot hold."""
        self.is_paused = False
        self.message_count = 0
        self.requeue_count = 0
        self.timeout_count = 0
        self.consumers: dict[int, Consumer] = {}
        """By number, in order of SUB."""
        self.next_moment = math.inf
        """When the agenda will call `expire`; infinite for never."""
        self._rules = common.rules
        self._memory = common.memory
        self._agenda = common.agenda
        self._random = common.random
        self._max_msg_timeout_s = common.rules.limits.max_msg_timeout_ms / 1000
        self._queue: deque[StoredMessage] = deque()
        # Ids are unique in a channel, so two messages are never compared.
        self._deferred: list[tuple[float, bytes, StoredMessage]] = []
        # Consumers that may have room, the longest unserved first; room is looked at when served.
        self._waiting: OrderedDict[Consumer, None] = OrderedDict()
        # nsqd leaves what a lost client had in flight until its timeout.
        self._departed: list[Consumer] = []

    @property
    def depth(self) -> int:
        """How many messages are queued; neither in flight nor deferred."""
        return len(self._queue)

    @property
    def deferred_count(self) -> int:
        """How many messages wait for the end of a delay."""
        return len(self._deferred)

    @property
    def in_flight_count(self) -> int:
        """How many messages are with a consumer, or were when it was lost."""
        everybody = (*self.consumers.values(), *self._departed)
        return sum(consumer.in_flight_count for consumer in everybody)

    # Consumers

    def subscribe(self, consumer: Consumer) -> bool:
        """Take *consumer* in, with RDY 0; False when the channel has its most already."""
        most = self._rules.max_channel_consumers
        if most and len(self.consumers) >= most:
            return False
        self.consumers[consumer.id] = consumer
        return True

    def leave(self, consumer: Consumer) -> bool:
        """Let *consumer* go; True when the channel has to be deleted, as nobody is left."""
        if self.consumers.pop(consumer.id, None) is None:
            return False
        consumer.ready_count = 0
        self._waiting.pop(consumer, None)
        if consumer.in_flight_count:
            self._departed.append(consumer)
        return self.is_ephemeral and not self.consumers

    def ready(self, consumer: Consumer, count: int) -> None:
        """Let at most *count* messages be in flight with *consumer*."""
        consumer.ready_count = count
        self.offer(consumer)

    def offer(self, consumer: Consumer) -> None:
        """Let *consumer* stand in line again; to be called when it may have room again."""
        if consumer not in self._waiting and consumer.room > 0:
            self._waiting[consumer] = None
            self._note_deliverable()

    # Messages

    def put(self, messages: Sequence[StoredMessage]) -> None:
        """Take *messages* of the topic, for which the memory is taken already."""
        self.message_count += len(messages)
        self._enqueue(messages)

    def put_deferred(self, messages: Sequence[StoredMessage], now: float) -> None:
        """Take *messages* of the topic, each to be queued after its delay."""
        self.message_count += len(messages)
        for message in messages:
            self._defer(message, now + message.defer_ms / 1000)

    def finish(self, consumer: Consumer, message_id: bytes) -> Refusal | None:
        """Forget a message that is done; a refusal when it is not in flight there."""
        message = consumer.take(message_id)
        if message is None:
            return self._refusal(message_id)
        self._memory.used_bytes -= OVERHEAD_BYTES + len(message.body)
        consumer.finish_count += 1
        self.offer(consumer)
        return None

    def requeue(
        self, consumer: Consumer, message_id: bytes, *, delay_ms: int, now: float
    ) -> Refusal | None:
        """Put a message in flight to the tail of the queue, at once or after *delay_ms*."""
        message = consumer.take(message_id)
        if message is None:
            return self._refusal(message_id)
        self.requeue_count += 1
        consumer.requeue_count += 1
        if delay_ms:
            self._defer(message, now + delay_ms / 1000)
        else:
            self._enqueue((message,))
        self.offer(consumer)
        return None

    def touch(self, consumer: Consumer, message_id: bytes, *, now: float) -> Refusal | None:
        """Start the timeout of a message anew, within max_msg_timeout of its delivery."""
        if not consumer.touch(message_id, now=now, ceiling_s=self._max_msg_timeout_s):
            return self._refusal(message_id)
        # The agenda holds the earlier deadline; `expire` will find the new one then.
        return None

    def _refusal(self, message_id: bytes) -> Refusal:
        everybody = (*self.consumers.values(), *self._departed)
        if any(consumer.owns(message_id) for consumer in everybody):
            return Refusal.NOT_OWNER
        return Refusal.NOT_IN_FLIGHT

    def _defer(self, message: StoredMessage, until: float) -> None:
        heapq.heappush(self._deferred, (until, message.id, message))
        self._agenda.schedule(self, until)

    def _enqueue(self, messages: Sequence[StoredMessage]) -> None:
        if self.is_ephemeral:
            room = max(0, self._rules.mem_queue_size - len(self._queue))
            self._memory.free(messages[room:])
            messages = messages[:room]
        self._queue.extend(messages)
        self._note_deliverable()

    def _note_deliverable(self) -> None:
        if self._queue and self._waiting and not self.is_paused:
            self._agenda.add_deliverable(self)

    # Out

    def deliver(self, now: float) -> list[Delivery]:
        """
        Send queued messages to consumers with room, one batch each and in equal shares.

        What is left after that puts the channel on the agenda again, so that a consumer who has
        become too slow by this batch is left out of the next.
        """
        deliveries: list[Delivery] = []
        if self.is_paused:
            return deliveries
        queue, waiting = self._queue, self._waiting
        for unserved in range(len(waiting), 0, -1):
            if not queue:
                break
            consumer, _ = waiting.popitem(last=False)
            count = min(consumer.room, -(-len(queue) // unserved))
            messages = self._send(consumer, count, now) if count > 0 else []
            if messages:
                deliveries.append(Delivery(consumer, messages))
            if consumer.room > 0:
                waiting[consumer] = None
        self._note_deliverable()
        return deliveries

    def _send(self, consumer: Consumer, count: int, now: float) -> list[StoredMessage]:
        """Bring up to *count* messages in flight with *consumer*."""
        queue, in_flight, rate = self._queue, consumer.in_flight, consumer.sample_rate
        deadline = now + consumer.msg_timeout_s
        messages: list[StoredMessage] = []
        size_bytes = 0
        while queue and len(messages) < count and size_bytes < MAX_BATCH_BYTES:
            message = queue.popleft()
            if rate and self._random(100) > rate:
                # Gone for the whole channel, as in nsqd.
                self._memory.free((message,))
                continue
            # Counted when sent, not when requeued: a message that times out unseen has still
            # used a try (nsqd/protocol_v2.go, messagePump).
            message.attempts += 1
            message.delivered_at = now
            message.deadline = deadline
            in_flight[message.id] = message
            size_bytes += len(message.body)
            messages.append(message)
        consumer.message_count += len(messages)
        if messages:
            self._agenda.schedule(self, deadline)
        return messages

    def expire(self, now: float) -> None:
        """Bring to the tail of the queue what has timed out and what was deferred until now."""
        timed_out: list[StoredMessage] = []
        next_moment = math.inf
        for consumer in (*self.consumers.values(), *self._departed):
            timed_out += consumer.take_overdue(now)
            next_moment = min(next_moment, consumer.next_deadline)
            self.offer(consumer)
        self._departed = [consumer for consumer in self._departed if consumer.in_flight_count]
        timed_out.sort(key=lambda message: message.deadline)
        self.timeout_count += len(timed_out)
        self._enqueue(timed_out)
        due: list[StoredMessage] = []
        while self._deferred and self._deferred[0][0] <= now:
            due.append(heapq.heappop(self._deferred)[2])
        self._enqueue(due)
        if self._deferred:
            next_moment = min(next_moment, self._deferred[0][0])
        if next_moment < math.inf:
            self._agenda.schedule(self, next_moment)

    # Administration

    def pause(self) -> None:
        """Deliver nothing until `unpause`; messages keep coming in."""
        self.is_paused = True

    def unpause(self) -> None:
        """Deliver again."""
        self.is_paused = False
        self._note_deliverable()

    def empty(self) -> None:
        """Forget every message, also those in flight and deferred; FIN of one is refused then."""
        self._memory.free(self._queue)
        self._memory.free(message for _, _, message in self._deferred)
        self._queue.clear()
        self._deferred.clear()
        for consumer in (*self.consumers.values(), *self._departed):
            self._memory.free(consumer.take_all())
            self.offer(consumer)
        self._departed.clear()

    def delete(self) -> list[Consumer]:
        """Forget everything; return the consumers, whose connections have to be closed."""
        self.empty()
        consumers = list(self.consumers.values())
        for consumer in consumers:
            self.leave(consumer)
        return consumers
