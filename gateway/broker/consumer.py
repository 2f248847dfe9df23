"""
A consumer of a channel: its RDY count and its messages in flight.

Source: nsqd/client_v2.go; nsqd/channel.go, the in-flight queue.
"""

from __future__ import annotations

import math

from gateway.broker.message import StoredMessage


class ChannelConsumer:
    """
    A client as consumer: its RDY count and its messages in flight.

    RDY limits the number of messages in flight; it is not a credit that deliveries use up. All
    deliveries to a consumer have the same timeout, so `in_flight` is ordered by deadline. Messages
    that TOUCH has extended to max_msg_timeout would break the order; these are in `at_max_timeout`.
    """

    __slots__ = (
        "at_max_timeout",
        "finish_count",
        "id",
        "in_flight",
        "is_blocked",
        "message_count",
        "msg_timeout_s",
        "ready_count",
        "requeue_count",
        "sample_rate",
    )

    def __init__(self, number: int, *, msg_timeout_s: float) -> None:
        self.id = number
        """Number of the connection, from 1, unique in this process."""
        self.msg_timeout_s = msg_timeout_s
        self.sample_rate = 0
        """Percentage of messages to deliver; the channel discards the rest. 0 delivers all."""
        self.ready_count = 0
        self.is_blocked = False
        """True while deliveries are stopped because the client does not read."""
        self.in_flight: dict[bytes, StoredMessage] = {}
        """Messages in flight by id, ordered by deadline."""
        self.at_max_timeout: dict[bytes, StoredMessage] = {}
        """Messages in flight that TOUCH cannot extend further; by id, unordered."""
        self.message_count = 0
        self.finish_count = 0
        self.requeue_count = 0

    @property
    def in_flight_count(self) -> int:
        """The number of messages in flight: neither finished, requeued nor timed out."""
        return len(self.in_flight) + len(self.at_max_timeout)

    @property
    def capacity(self) -> int:
        """The number of messages that may be sent now; 0 or less means none."""
        if self.is_blocked:
            return 0
        return self.ready_count - len(self.in_flight) - len(self.at_max_timeout)

    @property
    def next_deadline(self) -> float:
        """The earliest deadline, monotonic seconds; infinite if nothing is in flight."""
        # `in_flight` is ordered by deadline, so its first message is enough.
        nearest = next(iter(self.in_flight.values()), None)
        deadline = math.inf if nearest is None else nearest.deadline
        capped = (message.deadline for message in self.at_max_timeout.values())
        return min(deadline, min(capped, default=math.inf))

    def has_in_flight(self, message_id: bytes) -> bool:
        """Return whether the message is in flight with this consumer."""
        return message_id in self.in_flight or message_id in self.at_max_timeout

    def pop(self, message_id: bytes) -> StoredMessage | None:
        """Remove and return the message in flight with this id; return None if there is none."""
        message = self.in_flight.pop(message_id, None)
        if message is None and self.at_max_timeout:
            return self.at_max_timeout.pop(message_id, None)
        return message

    def touch(self, message_id: bytes, *, now: float, max_timeout_s: float) -> bool:
        """
        Restart the timeout of a message; return False if it is not in flight with this consumer.

        The new deadline is at most *max_timeout_s* after the delivery.

        Source: nsqd/channel.go, TouchMessage.
        """
        message = self.in_flight.get(message_id)
        if message is None:
            # A message at the maximum keeps its deadline, and as in nsqd, its TOUCH succeeds.
            return message_id in self.at_max_timeout
        latest = message.delivered_at + max_timeout_s
        # Reinsert the message at the end, since `in_flight` is ordered by deadline.
        del self.in_flight[message_id]
        if now + self.msg_timeout_s < latest:
            message.deadline = now + self.msg_timeout_s
            self.in_flight[message_id] = message
        else:
            message.deadline = latest
            self.at_max_timeout[message_id] = message
        return True

    def pop_expired(self, now: float) -> list[StoredMessage]:
        """Remove and return the messages whose deadline is at or before *now*."""
        expired = []
        for message in self.in_flight.values():
            if message.deadline > now:
                break  # ordered by deadline: all others are later
            expired.append(message)
        expired += [message for message in self.at_max_timeout.values() if message.deadline <= now]
        # Only now: a dict must not change while it is iterated.
        for message in expired:
            self.pop(message.id)
        return expired

    def pop_all(self) -> tuple[dict[bytes, StoredMessage], dict[bytes, StoredMessage]]:
        """Remove and return all messages in flight, by id, in constant time."""
        taken = self.in_flight, self.at_max_timeout
        self.in_flight, self.at_max_timeout = {}, {}
        return taken
