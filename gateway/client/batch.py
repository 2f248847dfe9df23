"""
PURE. Queue publishes for one connection, and combine them into commands.

Group commit needs no timer: with one command in flight per connection, a lone message is sent at
once as PUB, and publishes that arrive meanwhile form the next MPUB.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec

from gateway.errors import GatewayError
from gateway.protocol.commands import (
    Bodies,
    DeferredPublish,
    MultiPublish,
    PackedBodies,
    Publish,
    join_bodies,
)
from gateway.protocol.wire import Limits

MAX_BATCH_BYTES = 1_048_576
"""Maximum size of a batch, even if nsqd accepts more: small batches are answered sooner."""

COUNT_BYTES = 4
"""Size of the message count of an MPUB."""
SIZE_BYTES = 4
"""Size of the length prefix of each message in an MPUB."""

PublishCommand: TypeAlias = Publish | MultiPublish | DeferredPublish


class PendingPublish(msgspec.Struct, eq=False):
    """One caller's publish: one body, or several that are published all or none."""

    topic: str
    bodies: Bodies
    """`PackedBodies` if there may be very many."""
    defer_ms: int
    size_bytes: int
    """Size of the bodies in an MPUB, with their length prefixes."""
    deadline: float
    """When the caller stops waiting, monotonic seconds."""
    done: Callable[[GatewayError | None], None]
    """Called once with the error, or with None once published."""
    goes_alone: bool = False
    """True after its batch was refused: it is retried in a command of its own."""


def size_in_mpub(bodies: Bodies) -> int:
    """Return the size of *bodies* in an MPUB, with their length prefixes and without the count."""
    if isinstance(bodies, PackedBodies):
        return bodies.size_bytes
    return SIZE_BYTES * len(bodies) + sum(map(len, bodies))


class Batch(msgspec.Struct, eq=False):
    """Publishes of one topic that share a command."""

    topic: str
    publishes: list[PendingPublish]
    """Overdue ones are removed; thus it may be empty after the batch was written, not before."""
    size_bytes: int
    deadline: float
    """Earliest deadline of its publishes."""
    takes_more: bool
    """True if other publishes may join; False if its only publish is deferred or goes alone."""

    @property
    def message_count(self) -> int:
        """Number of messages in all its publishes."""
        return sum([len(publish.bodies) for publish in self.publishes])

    def command(self) -> PublishCommand:
        """Return PUB for one message, DPUB for a deferred one, MPUB for more."""
        publishes = self.publishes
        first = publishes[0]
        # A deferred publish has one body, and is the only one in its batch.
        if first.defer_ms:
            (body,) = first.bodies
            return DeferredPublish(self.topic, first.defer_ms, body)
        bodies: Bodies
        if len(publishes) == 1:
            bodies = first.bodies
        elif PackedBodies in {type(publish.bodies) for publish in publishes}:
            bodies = join_bodies([publish.bodies for publish in publishes])
        else:
            bodies = [body for publish in publishes for body in publish.bodies]
        if len(bodies) == 1:
            (body,) = bodies
            return Publish(self.topic, body)
        return MultiPublish(self.topic, bodies)

    def take_overdue(self, now: float) -> list[PendingPublish]:
        """Remove and return publishes whose deadline is *now* or earlier."""
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
    Publishes queued by topic, already grouped in batches; `take` serves the topics in turns.

    A publish joins the last batch of its topic if it fits. Thus neither taking a batch nor checking
    deadlines has to iterate over single publishes.
    """

    def __init__(self, limits: Limits) -> None:
        self._topics: dict[str, deque[Batch]] = {}
        self._max_batch_bytes = min(MAX_BATCH_BYTES, limits.max_body_size_bytes) - COUNT_BYTES

    def __bool__(self) -> bool:
        """Return whether anything is queued."""
        return bool(self._topics)

    def __contains__(self, topic: object) -> bool:
        """Return whether anything of *topic* is queued."""
        return topic in self._topics

    def add(self, publish: PendingPublish) -> None:
        """Queue *publish* behind the others of its topic."""
        batches = self._topics.get(publish.topic)
        if batches is None:
            self._topics[publish.topic] = deque((_batch_of(publish),))
            return
        batch = batches[-1]
        # The size limits the number too: a message takes at least five bytes in an MPUB.
        size_bytes = batch.size_bytes + publish.size_bytes
        is_full = size_bytes > self._max_batch_bytes or not batch.takes_more
        # A DPUB has one message; a retried publish is alone, so that nsqd refuses no other one.
        if is_full or publish.defer_ms or publish.goes_alone:
            batches.append(_batch_of(publish))
            return
        batch.publishes.append(publish)
        batch.size_bytes = size_bytes
        if publish.deadline < batch.deadline:  # noqa: PLR1730 - a call each costs more
            # Only for publishes moved from another connection, where they were queued earlier.
            batch.deadline = publish.deadline

    def add_first(self, publishes: Sequence[PendingPublish]) -> None:
        """Queue *publishes* of one topic in front of its others, each in its own batch."""
        if not publishes:
            return
        batches = self._topics.setdefault(publishes[0].topic, deque())
        for publish in publishes:
            publish.goes_alone = True
        # Reversed twice, by `extendleft` too, so that they keep their order.
        batches.extendleft(map(_batch_of, reversed(publishes)))

    def take(self) -> Batch | None:
        """Remove and return the first batch of the topic whose turn it is; None: nothing queued."""
        if not self._topics:
            return None
        topic = next(iter(self._topics))
        # Reinserted below behind the other topics, so that a busy topic does not starve them.
        batches = self._topics.pop(topic)
        batch = batches.popleft()
        if batches:
            self._topics[topic] = batches
        return batch

    def take_overdue(self, now: float) -> list[PendingPublish]:
        """Remove and return publishes whose deadline has passed."""
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
        """Remove and return whole batches of publishes, until they have *max_bytes* or more."""
        taken: list[PendingPublish] = []
        while max_bytes > 0 and (batch := self.take()) is not None:
            max_bytes -= batch.size_bytes
            taken += batch.publishes
        return taken
