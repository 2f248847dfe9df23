"""
One connection's side of a subscription: its RDY, and what it has in flight.

Source: nsqd/client_v2.go; nsqd/channel.go, in-flight part.
"""

from __future__ import annotations

import math

from gateway.broker.message import StoredMessage


class Consumer:
    """
    What a channel knows of one of its clients.

    RDY is a ceiling on what is in flight, not a credit that counts down. All deliveries to one
    consumer have the same timeout, so `in_flight` is in order of deadline by itself; only what
    TOUCH brought to its ceiling would stand in the wrong place, and is kept apart.
    """

    __slots__ = (
        "at_ceiling",
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
        """Number of the connection, from 1; never used again in this process."""
        self.msg_timeout_s = msg_timeout_s
        self.sample_rate = 0
        """0 is every message; else what is above it in 0 to 99 is thrown away."""
        self.ready_count = 0
        self.is_blocked = False
        """Whether the peer reads too slowly to be sent more now."""
        self.in_flight: dict[bytes, StoredMessage] = {}
        """By id, the nearest deadline first."""
        self.at_ceiling: dict[bytes, StoredMessage] = {}
        """In flight too, and no TOUCH can move the deadline any more; by id, in no order."""
        self.message_count = 0
        self.finish_count = 0
        self.requeue_count = 0

    @property
    def in_flight_count(self) -> int:
        """How many messages were sent and are neither answered nor timed out."""
        return len(self.in_flight) + len(self.at_ceiling)

    @property
    def room(self) -> int:
        """How many messages may be sent now; 0 or less is none."""
        if self.is_blocked:
            return 0
        return self.ready_count - len(self.in_flight) - len(self.at_ceiling)

    @property
    def next_deadline(self) -> float:
        """The nearest deadline, monotonic seconds; infinite when nothing is in flight."""
        nearest = next(iter(self.in_flight.values()), None)
        deadline = math.inf if nearest is None else nearest.deadline
        capped = (message.deadline for message in self.at_ceiling.values())
        return min(deadline, min(capped, default=math.inf))

    def owns(self, message_id: bytes) -> bool:
        """Tell whether the message is in flight here."""
        return message_id in self.in_flight or message_id in self.at_ceiling

    def take(self, message_id: bytes) -> StoredMessage | None:
        """Return the message, which is no longer in flight; None when it was not."""
        message = self.in_flight.pop(message_id, None)
        if message is None and self.at_ceiling:
            return self.at_ceiling.pop(message_id, None)
        return message

    def touch(self, message_id: bytes, *, now: float, ceiling_s: float) -> bool:
        """
        Start the timeout anew, up to *ceiling_s* after the delivery; False when not in flight.

        Source: nsqd/channel.go, TouchMessage.
        """
        message = self.in_flight.get(message_id)
        if message is None:
            return message_id in self.at_ceiling
        ceiling = message.delivered_at + ceiling_s
        del self.in_flight[message_id]
        if now + self.msg_timeout_s < ceiling:
            message.deadline = now + self.msg_timeout_s
            self.in_flight[message_id] = message
        else:
            message.deadline = ceiling
            self.at_ceiling[message_id] = message
        return True

    def take_overdue(self, now: float) -> list[StoredMessage]:
        """Return messages whose deadline is at or before *now*; they are no longer in flight."""
        overdue = []
        for message in self.in_flight.values():
            if message.deadline > now:
                break
            overdue.append(message)
        overdue += [message for message in self.at_ceiling.values() if message.deadline <= now]
        for message in overdue:
            self.take(message.id)
        return overdue

    def take_all(self) -> list[StoredMessage]:
        """Return all that was in flight."""
        messages = [*self.in_flight.values(), *self.at_ceiling.values()]
        self.in_flight.clear()
        self.at_ceiling.clear()
        return messages
