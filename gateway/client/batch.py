"""
PURE. What waits to be published over one connection, and how it becomes commands.

Group commit (one command in flight for each connection, what comes meanwhile fills the next one)
needs no timer: a lone message goes at once as PUB, and load makes MPUBs by itself.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec

from gateway.errors import GatewayError
from gateway.protocol.commands import DeferredPublish, MultiPublish, Publish
from gateway.protocol.wire import Limits

MAX_BATCH_BYTES = 1_048_576
"""A batch is closed at this size even where the broker takes more: the next caller waits less."""

COUNT_BYTES = 4
"""What an MPUB takes besides its messages."""
SIZE_BYTES = 4
"""What each message takes in it besides its body."""

PublishCommand: TypeAlias = Publish | MultiPublish | DeferredPublish


class PendingPublish(msgspec.Struct, eq=False):
    """One caller's publish: one body, or several that go all or none."""

    topic: str
    bodies: Sequence[bytes]
    defer_ms: int
    size_bytes: int
    """What the bodies take in an MPUB, their sizes included."""
    deadline: float
    """When the caller stops waiting, monotonic seconds."""
    done: Callable[[GatewayError | None], None]
    """Called once with the outcome: None is OK."""
    goes_alone: bool = False
    """Set after a batch that held it was refused: alone it gets an answer of its own."""


def size_in_mpub(lengths: Sequence[int]) -> int:
    """Return what bodies of *lengths* take in an MPUB, each with its size; without the count."""
    return SIZE_BYTES * len(lengths) + sum(lengths)


class Batch(msgspec.Struct, eq=False):
    """The publishes of one topic that one command carries."""

    topic: str
    publishes: list[PendingPublish]
    """At least one until it is written; those whose time is over are taken out then too."""
    size_bytes: int
    deadline: float
    """The earliest of its publishes."""
    takes_more: bool
    """Whether others may join; not where its one publish is deferred, or is to go alone."""

    @property
    def message_count(self) -> int:
        """How many messages there are in its publishes."""
        return sum([len(publish.bodies) for publish in self.publishes])

    def command(self) -> PublishCommand:
        """Return PUB for one message, DPUB for a deferred one, MPUB for more."""
        publishes = self.publishes
        first = publishes[0]
        if first.defer_ms:
            return DeferredPublish(self.topic, first.defer_ms, first.bodies[0])
        bodies = (
            first.bodies
            if len(publishes) == 1
            else [body for publish in publishes for body in publish.bodies]
        )
        if len(bodies) == 1:
            return Publish(self.topic, bodies[0])
        return MultiPublish(self.topic, bodies)

    def take_overdue(self, now: float) -> list[PendingPublish]:
        """Take out those whose deadline has come by *now*; the others stay in order."""
        if self.deadline > now:
            return []
        overdue = [publish for publish in self.publishes if publish.deadline <= now]
        kept = [publish for publish in self.publishes if publish.deadline > now]
        self.publishes = kept
        self.size_bytes = sum(publish.size_bytes for publish in kept)
        self.deadline = min((publish.deadline for publish in kept), default=math.inf)
        return overdue


def _batch_of(publish: PendingPublish) -> Batch:
    takes_more = not (publish.defer_ms or publish.goes_alone)
    return Batch(publish.topic, [publish], publish.size_bytes, publish.deadline, takes_more)


class PublishQueue:
    """
    Publishes that wait, by topic, as the batches they will go in; topics take turns.

    A publish is put into the last batch of its topic where it fits, so that nothing walks over
    single publishes when a batch is taken, or when their deadlines are looked at.
    """

    def __init__(self, limits: Limits) -> None:
        self._topics: dict[str, deque[Batch]] = {}
        self._max_batch_bytes = min(MAX_BATCH_BYTES, limits.max_body_size_bytes) - COUNT_BYTES

    def __bool__(self) -> bool:
        """Tell whether anything waits."""
        return bool(self._topics)

    def __contains__(self, topic: object) -> bool:
        """Tell whether anything of *topic* waits."""
        return topic in self._topics

    def add(self, publish: PendingPublish) -> None:
        """Put *publish* behind the others of its topic."""
        batches = self._topics.get(publish.topic)
        if batches is None:
            self._topics[publish.topic] = deque((_batch_of(publish),))
            return
        batch = batches[-1]
        # The bound on bytes bounds the count too: a message takes five bytes at least.
        size_bytes = batch.size_bytes + publish.size_bytes
        is_full = size_bytes > self._max_batch_bytes or not batch.takes_more
        if is_full or publish.defer_ms or publish.goes_alone:
            batches.append(_batch_of(publish))
            return
        batch.publishes.append(publish)
        batch.size_bytes = size_bytes
        if publish.deadline < batch.deadline:  # noqa: PLR1730 - a call each costs more
            # One that has come from another connection.
            batch.deadline = publish.deadline

    def add_first(self, publishes: Sequence[PendingPublish]) -> None:
        """Put *publishes* of one topic back before all others of it, in order, each to go alone."""
        if not publishes:
            return
        batches = self._topics.setdefault(publishes[0].topic, deque())
        for publish in publishes:
            publish.goes_alone = True
        batches.extendleft(map(_batch_of, reversed(publishes)))

    def take(self) -> Batch | None:
        """Return the next batch, of the topic whose turn it is; None when nothing waits."""
        if not self._topics:
            return None
        topic = next(iter(self._topics))
        # Taken out and put back behind the others, so that a busy topic does not starve them.
        batches = self._topics.pop(topic)
        batch = batches.popleft()
        if batches:
            self._topics[topic] = batches
        return batch

    def take_overdue(self, now: float) -> list[PendingPublish]:
        """Take out what has waited past its deadline."""
        overdue: list[PendingPublish] = []
        for topic, batches in list(self._topics.items()):
            gone = [publish for batch in batches for publish in batch.take_overdue(now)]
            if not gone:
                continue
            overdue += gone
            kept = deque(batch for batch in batches if batch.publishes)
            if kept:
                self._topics[topic] = kept
            else:
                del self._topics[topic]
        return overdue

    def take_up_to(self, max_bytes: float = math.inf) -> list[PendingPublish]:
        """Take out batches until there are *max_bytes* of them or more; without: everything."""
        taken: list[PendingPublish] = []
        while max_bytes > 0 and (batch := self.take()) is not None:
            max_bytes -= batch.size_bytes
            taken += batch.publishes
        return taken
