"""
PURE. What waits to be published over one connection, and how it becomes commands.

Group commit (one command in flight for each connection, what comes meanwhile fills the next one)
needs no timer: a lone message goes at once as PUB, and load makes MPUBs by itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec

from gateway.errors import GatewayError
from gateway.protocol.commands import DeferredPublish, MultiPublish, Publish
from gateway.protocol.wire import Limits
from gateway.secret import Secret

MAX_BATCH_BYTES = 1_048_576
"""A batch is closed at this size even where the broker takes more: the next caller waits less."""

_COUNT_BYTES = 4
_SIZE_BYTES = 4

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
    is_held: bool = False
    """Whether a publisher has taken it and not answered yet."""
    secret: Secret | None = None
    """Whose publish it is; None: nobody's in particular."""


def size_in_mpub(lengths: Sequence[int]) -> int:
    """Return what bodies of *lengths* take in an MPUB, each with its size; without the count."""
    return _SIZE_BYTES * len(lengths) + sum(lengths)


class Batch:
    """The publishes that one command carries, at least one."""

    __slots__ = ("publishes", "size_bytes")

    def __init__(self, first: PendingPublish) -> None:
        self.publishes = [first]
        self.size_bytes = first.size_bytes

    def command(self) -> PublishCommand:
        """Return PUB for one message, DPUB for a deferred one, MPUB for more."""
        first = self.publishes[0]
        if first.defer_ms:
            return DeferredPublish(first.topic, first.defer_ms, first.bodies[0])
        bodies = (
            first.bodies
            if len(self.publishes) == 1
            else [body for publish in self.publishes for body in publish.bodies]
        )
        if len(bodies) == 1:
            return Publish(first.topic, bodies[0])
        return MultiPublish(first.topic, bodies)


class PublishQueue:
    """Publishes that wait, by topic; topics take turns."""

    def __init__(self, limits: Limits) -> None:
        self._topics: dict[str, deque[PendingPublish]] = {}
        self._max_batch_bytes = min(MAX_BATCH_BYTES, limits.max_body_size_bytes) - _COUNT_BYTES
        self.waiting_bytes = 0

    def __len__(self) -> int:
        """Return how many publishes wait."""
        return sum(map(len, self._topics.values()))

    def __contains__(self, topic: object) -> bool:
        """Tell whether anything of *topic* waits."""
        return topic in self._topics

    def add(self, publish: PendingPublish) -> None:
        """Put *publish* behind the others of its topic."""
        self._topics.setdefault(publish.topic, deque()).append(publish)
        self.waiting_bytes += publish.size_bytes

    def add_first(self, publishes: Sequence[PendingPublish]) -> None:
        """Put *publishes* of one topic back before all others of it, in their order."""
        waiting = self._topics.setdefault(publishes[0].topic, deque())
        waiting.extendleft(reversed(publishes))
        self.waiting_bytes += sum(publish.size_bytes for publish in publishes)

    def take(self) -> Batch | None:
        """Return the next batch, of the topic whose turn it is; None when nothing waits."""
        if not self._topics:
            return None
        topic = next(iter(self._topics))
        # Taken out and put back behind the others, so that a busy topic does not starve them.
        waiting = self._topics.pop(topic)
        batch = Batch(waiting.popleft())
        if not _travels_alone(batch.publishes[0]):
            while waiting and not _travels_alone(waiting[0]):
                # The bound on bytes bounds the count too: a message takes five bytes at least.
                size_bytes = batch.size_bytes + waiting[0].size_bytes
                if size_bytes > self._max_batch_bytes:
                    break
                batch.publishes.append(waiting.popleft())
                batch.size_bytes = size_bytes
        if waiting:
            self._topics[topic] = waiting
        self.waiting_bytes -= batch.size_bytes
        return batch

    def take_overdue(self, now: float) -> list[PendingPublish]:
        """Take out what has waited past its deadline."""
        return self._take_where(lambda publish: publish.deadline <= now)

    def take_all(self) -> list[PendingPublish]:
        """Take everything out."""
        return self._take_where(lambda _publish: True)

    def _take_where(self, goes: Callable[[PendingPublish], bool]) -> list[PendingPublish]:
        taken = []
        for topic, waiting in list(self._topics.items()):
            gone = [publish for publish in waiting if goes(publish)]
            if not gone:
                continue
            taken += gone
            kept = deque(publish for publish in waiting if not goes(publish))
            if kept:
                self._topics[topic] = kept
            else:
                del self._topics[topic]
        self.waiting_bytes -= sum(publish.size_bytes for publish in taken)
        return taken


def _travels_alone(publish: PendingPublish) -> bool:
    return publish.goes_alone or publish.defer_ms > 0
