"""
The deliveries that a client holds, and how many more it may get.

A delivery occupies the window until the client answers it, even after the broker has timed it
out: otherwise a tab that is frozen would draw in a new window at every timeout. The broker no
longer counts such a delivery, so RDY must go down by one for each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from gateway.protocol.frames import Message
from gateway.protocol.wire import MESSAGE_ID_BYTES

MARGIN_S = 0.25
"""RDY goes down this long before a deadline: the broker's clock started before ours."""


class Batch:
    """What messages that came together have in common: one object for all of them."""

    __slots__ = ("ceiling", "deadline", "source", "timeout_s")

    def __init__(self, source: int, *, now: float, timeout_s: float, ceiling: float) -> None:
        self.source = source
        self.timeout_s = timeout_s
        self.deadline = min(now + timeout_s, ceiling)
        """When the broker gives them to somebody again, monotonic seconds."""
        self.ceiling = ceiling
        """The latest deadline that TOUCH can reach."""


class Window:
    """
    Deliveries by id, in the order in which they were sent.

    A delivery's id is the message's 16 digits, a dash and the number of its batch on this socket:
    a redelivery has the same digits, and the ids of a topic repeat over its channels.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._held: dict[str, Batch] = {}
        self._overdue: dict[str, Batch] = {}
        self._first_deadline = math.inf
        """No delivery in `_held` is due before; it is looked for anew when it has passed."""
        self._last_number = 0

    def __len__(self) -> int:
        """Return how many deliveries wait for an answer."""
        return len(self._held) + len(self._overdue)

    @property
    def room(self) -> int:
        """The RDY that fits: the size less what is overdue, which the broker does not count."""
        return max(0, self.size - len(self._overdue))

    def add(self, batch: Batch, messages: Sequence[Message]) -> list[str]:
        """Hold *messages* and return their delivery ids."""
        self._last_number += 1
        suffix = f"-{self._last_number}"
        held = self._held
        ids = []
        for message in messages:
            delivery_id = message.id.decode("latin-1") + suffix
            if delivery_id in held:
                # Timed out and delivered again before the first was read: one number each.
                self._last_number += 1
                suffix = f"-{self._last_number}"
                delivery_id = message.id.decode("latin-1") + suffix
            held[delivery_id] = batch
            ids.append(delivery_id)
        self._first_deadline = min(self._first_deadline, batch.deadline)
        return ids

    def take(self, delivery_id: str, now: float) -> int | None:
        """
        Let go of a delivery that the client has answered.

        Returns its source, or None where the answer comes too late or the id is not held.
        """
        batch = self._held.pop(delivery_id, None) or self._overdue.pop(delivery_id, None)
        return batch.source if batch is not None and batch.deadline > now else None

    def touch(self, delivery_id: str, now: float) -> int | None:
        """Put the deadline of a delivery off; returns as `take` does, and holds it on."""
        batch = self._held.get(delivery_id) or self._overdue.get(delivery_id)
        if batch is None or batch.deadline <= now:
            return None
        self._held.pop(delivery_id, None)
        self._overdue.pop(delivery_id, None)
        touched = Batch(batch.source, now=now, timeout_s=batch.timeout_s, ceiling=batch.ceiling)
        self._held[delivery_id] = touched
        # At its ceiling it is due before others that were sent before it.
        self._first_deadline = min(self._first_deadline, touched.deadline)
        return touched.source

    def expire(self, now: float) -> None:
        """Count as overdue what the broker is about to time out."""
        if self._first_deadline - MARGIN_S > now:
            return
        held = self._held
        due = [key for key, batch in held.items() if batch.deadline - MARGIN_S <= now]
        for delivery_id in due:
            self._overdue[delivery_id] = held.pop(delivery_id)
        self._first_deadline = min((batch.deadline for batch in held.values()), default=math.inf)

    def supersede(self, source: int, messages: Sequence[Message]) -> None:
        """
        Give up the earlier deliveries of *messages*, which *source* has sent again.

        Its clock timed them out a little before ours: an answer to the earlier delivery would
        count for the later one, since V2 tells deliveries of one connection apart by nothing.
        """
        if not self._overdue:
            return
        again = {message.id for message in messages}
        given_up = Batch(source, now=-math.inf, timeout_s=0.0, ceiling=-math.inf)
        for delivery_id, batch in self._overdue.items():
            if batch.source == source and message_id(delivery_id) in again:
                self._overdue[delivery_id] = given_up

    def next_expiry(self) -> float | None:
        """Return when to call `expire`, None while nothing is held; it may find nothing then."""
        return self._first_deadline - MARGIN_S if self._held else None

    def lose(self, source: int) -> list[str]:
        """Forget what *source* delivered and return the ids."""
        lost = []
        for held in (self._held, self._overdue):
            ids = [delivery_id for delivery_id, batch in held.items() if batch.source == source]
            for delivery_id in ids:
                del held[delivery_id]
            lost += ids
        return lost

    def take_all(self, now: float) -> dict[int, list[bytes]]:
        """Forget everything; return the message ids that can still be answered, by source."""
        left: dict[int, list[bytes]] = {}
        for held in (self._overdue, self._held):
            for delivery_id, batch in held.items():
                if batch.deadline > now:
                    left.setdefault(batch.source, []).append(message_id(delivery_id))
            held.clear()
        return left


def message_id(delivery_id: str) -> bytes:
    """Return the broker's id of a delivery."""
    return delivery_id[:MESSAGE_ID_BYTES].encode("latin-1")
