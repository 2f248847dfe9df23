"""
The deliveries that a client holds, and how many more it may get.

A delivery occupies the window until the client answers it, even after the broker has timed it
out: otherwise a tab that is frozen would draw in a new window at every timeout. The broker no
longer counts such a delivery, so RDY must go down by one for each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import repeat

import msgspec

from gateway.protocol.frames import Message
from gateway.protocol.wire import MESSAGE_ID_BYTES
from gateway.session.account import NOBODY, Account

MARGIN_S = 0.25
"""RDY goes down this long before a deadline: the broker's clock started before ours."""


class Batch(msgspec.Struct, gc=False, eq=False):
    """What messages that came together have in common: one object for all of them."""

    source: int
    timeout_s: float
    deadline: float
    """When the broker gives them to somebody again, monotonic seconds."""
    ceiling: float
    """The latest deadline that TOUCH can reach."""


class Window:
    """
    Deliveries by id, in the order in which they were sent.

    A delivery's id is the message's 16 digits, a dash and the number of its batch on this socket:
    a redelivery has the same digits, and the ids of a topic repeat over its channels.
    """

    __slots__ = ("_account", "_held", "_last_number", "due", "overdue", "size", "timed_out")

    def __init__(self, size: int, account: Account = NOBODY) -> None:
        self.size = size
        self.timed_out = 0
        """Deliveries that NSQ has given to somebody again, or is about to."""
        self._account = account
        self.overdue: dict[str, Batch] = {}
        """What the client still holds, and the broker counts no more."""
        self._held: dict[str, Batch] = {}
        self.due = math.inf
        """When to call `expire`; it may find nothing then."""
        self._last_number = 0

    def __len__(self) -> int:
        """Return how many deliveries wait for an answer."""
        return len(self._held) + len(self.overdue)

    @property
    def room(self) -> int:
        """The RDY that fits: the size less what is overdue, which the broker does not count."""
        return max(0, self.size - len(self.overdue))

    def add(self, batch: Batch, messages: Sequence[Message]) -> list[str]:
        """Hold *messages* and return their delivery ids."""
        self._last_number = number = self._last_number + 1
        if batch.deadline - MARGIN_S < self.due:  # noqa: PLR1730 - min() takes its time
            self.due = batch.deadline - MARGIN_S
        held = self._held
        if len(messages) == 1:
            delivery_id = f"{messages[0].id.decode('latin-1')}-{number}"
            held[delivery_id] = batch
            return [delivery_id]
        before = len(held)
        ids = delivery_ids(messages, number)
        for delivery_id in ids:
            held[delivery_id] = batch
        if len(held) - before < len(ids):
            # Timed out and delivered again before the first was read: one number each.
            ids = self._number_apart(messages, batch)
        return ids

    def _number_apart(self, messages: Sequence[Message], batch: Batch) -> list[str]:
        """Hold *messages*, of which some are there twice; the first of each is held already."""
        seen: set[str] = set()
        ids = []
        number = self._last_number
        for message in messages:
            digits = message.id.decode("latin-1")
            if (delivery_id := f"{digits}-{number}") in seen:
                self._last_number += 1
                delivery_id = f"{digits}-{self._last_number}"
            seen.add(delivery_id)
            self._held[delivery_id] = batch
            ids.append(delivery_id)
        return ids

    def take(self, delivery_id: str, now: float) -> int | None:
        """
        Let go of a delivery that the client has answered.

        Returns its source, or None where the answer comes too late or the id is not held.
        """
        batch = self._held.pop(delivery_id, None) or self.overdue.pop(delivery_id, None)
        return batch.source if batch is not None and batch.deadline > now else None

    def take_many(self, ids: list[str], now: float) -> tuple[dict[int, list[bytes]], list[str]]:
        """
        Let go of the deliveries *ids*, at least one, which the client has answered.

        Returns the message ids that can be answered by source, and the delivery ids that cannot,
        for the reasons that `take` has.
        """
        pop = self._held.pop
        first = pop(ids[0], None)
        is_one = len(ids) == 1
        batches = [first] if is_one else [first, *map(pop, ids[1:], repeat(None))]
        if first is not None and first.deadline > now:
            if is_one:
                return {first.source: [message_id(ids[0])]}, []
            if batches.count(first) == len(ids):
                return {first.source: _message_ids(ids)}, []
        taken: dict[int, list[bytes]] = {}
        refused = []
        for delivery_id, held in zip(ids, batches, strict=True):
            batch = held or self.overdue.pop(delivery_id, None)
            if batch is None or batch.deadline <= now:
                refused.append(delivery_id)
            else:
                taken.setdefault(batch.source, []).append(message_id(delivery_id))
        return taken, refused

    def touch(self, delivery_id: str, now: float) -> int | None:
        """Put the deadline of a delivery off; returns as `take` does, and holds it on."""
        batch = self._held.get(delivery_id) or self.overdue.get(delivery_id)
        if batch is None or batch.deadline <= now:
            return None
        self._held.pop(delivery_id, None)
        self.overdue.pop(delivery_id, None)
        deadline = min(now + batch.timeout_s, batch.ceiling)
        self._held[delivery_id] = Batch(batch.source, batch.timeout_s, deadline, batch.ceiling)
        # At its ceiling it is due before others that were sent before it.
        self.due = min(self.due, deadline - MARGIN_S)
        return batch.source

    def expire(self, now: float) -> None:
        """Count as overdue what the broker is about to time out."""
        if self.due > now:
            return
        held = self._held
        due = [key for key, batch in held.items() if batch.deadline - MARGIN_S <= now]
        for delivery_id in due:
            self.overdue[delivery_id] = held.pop(delivery_id)
        self.timed_out += len(due)
        self._account.timed_out(len(due))
        self._look_for_due()

    def _look_for_due(self) -> None:
        first = min((batch.deadline for batch in self._held.values()), default=math.inf)
        self.due = first - MARGIN_S

    def supersede(self, source: int, messages: Sequence[Message]) -> None:
        """
        Give up the earlier deliveries of *messages*, which *source* has sent again.

        Its clock timed them out a little before ours: an answer to the earlier delivery would
        count for the later one, since V2 tells deliveries of one connection apart by nothing.
        """
        again = {message.id for message in messages}
        given_up = Batch(source, 0.0, -math.inf, -math.inf)
        for delivery_id, batch in self.overdue.items():
            if batch.source == source and message_id(delivery_id) in again:
                self.overdue[delivery_id] = given_up

    def answerable(self, source: int, now: float) -> list[bytes]:
        """Return the message ids of *source* that are held and have not timed out, oldest first."""
        return [
            message_id(delivery_id)
            for held in (self.overdue, self._held)
            for delivery_id, batch in held.items()
            if batch.source == source and batch.deadline > now
        ]

    def lose(self, source: int) -> list[str]:
        """Forget what *source* delivered and return the ids."""
        lost = []
        for held in (self._held, self.overdue):
            ids = [delivery_id for delivery_id, batch in held.items() if batch.source == source]
            for delivery_id in ids:
                del held[delivery_id]
            lost += ids
        self._look_for_due()
        return lost

    def take_all(self, now: float) -> dict[int, list[bytes]]:
        """Forget everything; return the message ids that can still be answered, by source."""
        left: dict[int, list[bytes]] = {}
        for held in (self.overdue, self._held):
            for delivery_id, batch in held.items():
                if batch.deadline > now:
                    left.setdefault(batch.source, []).append(message_id(delivery_id))
            held.clear()
        self.due = math.inf
        return left


def delivery_ids(messages: Sequence[Message], number: int) -> list[str]:
    """Return the names of deliveries: the digits of each message, a dash and *number*."""
    # All in one text, and that cut: half the time of a text for each.
    end = b"-%d\n" % number
    text = end.join([message.id for message in messages]) + end[:-1]
    ids = text.decode("latin-1").split("\n")
    if len(ids) == len(messages):
        return ids
    # An id is opaque: it may hold a newline.
    return [f"{message.id.decode('latin-1')}-{number}" for message in messages]


def message_id(delivery_id: str) -> bytes:
    """Return the broker's id of a delivery."""
    return delivery_id[:MESSAGE_ID_BYTES].encode("latin-1")


def _message_ids(ids: list[str]) -> list[bytes]:
    """Return the broker's id of each of *ids*, which mostly have the same number."""
    # The way back of `delivery_ids`. Where each newline ends an id, none of them is cut.
    text = ("\n".join(ids) + "\n").encode("latin-1")
    end = ids[0][MESSAGE_ID_BYTES:].encode("latin-1") + b"\n"
    if text.count(b"\n") == len(ids) == text.count(end):
        return text.split(end)[:-1]
    return [message_id(delivery_id) for delivery_id in ids]
