"""
PURE. What a stream holds between nsqd and Spark: chunks that wait, and batches by their number.

A batch is what Spark has been promised under one number. It is kept until Spark is known to have
finished it: then its messages are, too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

import msgspec

from gateway.protocol.raw_messages import RawMessages, split_messages

SourceT = TypeVar("SourceT", bound=Hashable)


class Chunk(msgspec.Struct, Generic[SourceT]):
    """What one read of *source* brought, as it came."""

    source: SourceT
    messages: RawMessages
    arrived_at: float
    """When nsqd had delivered it, monotonic seconds."""
    received_us: int
    """The same moment as us since 1970."""
    touched_at: float

    @property
    def count(self) -> int:
        """How many messages it has."""
        return len(self.messages.ids)

    def split(self, count: int) -> tuple[Chunk[SourceT], Chunk[SourceT]]:
        """Return its first *count* messages, and the rest."""
        first, rest = split_messages(self.messages, count)
        replace = msgspec.structs.replace
        return replace(self, messages=first), replace(self, messages=rest)


class Ledger(Generic[SourceT]):
    """The chunks of one stream, from their arrival to their end."""

    def __init__(self) -> None:
        self.buffered = 0
        """Messages that wait for a batch."""
        self.in_batches = 0
        """Messages of batches that Spark has not finished."""
        self.size_bytes = 0
        """Of all that is held."""
        self._waiting: deque[Chunk[SourceT]] = deque()
        self._batches: dict[int, list[Chunk[SourceT]]] = {}
        self._last_number = 0
        self._lost: set[SourceT] = set()

    @property
    def held(self) -> int:
        """All messages that are not finished."""
        return self.buffered + self.in_batches

    @property
    def in_flight(self) -> int:
        """Those of them that nsqd does not deliver again by itself: it counts them as ours."""
        return self.held - sum(
            chunk.count for chunk in self._in_batches() if chunk.source in self._lost
        )

    @property
    def waits_since(self) -> float | None:
        """When the first came of those that wait, monotonic seconds; None: none wait."""
        return self._waiting[0].arrived_at if self._waiting else None

    @property
    def oldest_at(self) -> float | None:
        """When the oldest of them came, monotonic seconds; None: there is none."""
        chunk = next(iter(self._in_batches()), None) or next(iter(self._waiting), None)
        return None if chunk is None else chunk.arrived_at

    def held_of(self, source: SourceT) -> int:
        """Return how many of them *source* has brought."""
        chunks = (*self._in_batches(), *self._waiting)
        return sum(chunk.count for chunk in chunks if chunk.source == source)

    # In

    def arrived(
        self, source: SourceT, messages: RawMessages, *, now: float, received_us: int
    ) -> None:
        """Hold *messages*, which *source* has brought."""
        self._waiting.append(Chunk(source, messages, now, received_us, now))
        self.buffered += len(messages.ids)
        self.size_bytes += len(messages.data)

    def source_lost(self, source: SourceT) -> int:
        """
        Count on *source* no more; return how many messages are forgotten.

        nsqd delivers again what it had brought. What waits is forgotten; what is in a batch stays
        there, and is not finished.
        """
        self._lost.add(source)
        gone = [chunk for chunk in self._waiting if chunk.source == source]
        self._waiting = deque(chunk for chunk in self._waiting if chunk.source != source)
        if not any(chunk.source == source for chunk in self._in_batches()):
            self._lost.discard(source)
        return self._forget(gone)

    def _forget(self, gone: Iterable[Chunk[SourceT]]) -> int:
        count = sum(chunk.count for chunk in gone)
        self.buffered -= count
        self.size_bytes -= sum(len(chunk.messages.data) for chunk in gone)
        return count

    def _in_batches(self) -> Iterable[Chunk[SourceT]]:
        return (chunk for chunks in self._batches.values() for chunk in chunks)

    # Batches

    def seal(self, limit: int, *, about_bytes: int | None = None) -> int | None:
        """
        Make a batch of at most *limit* waiting messages; return its number, None: none wait.

        It ends with the chunk that makes it *about_bytes* long.
        """
        if not self._waiting:
            return None
        chunks: list[Chunk[SourceT]] = []
        left, size_bytes = limit, 0
        while left and self._waiting and (about_bytes is None or size_bytes < about_bytes):
            chunk = self._waiting.popleft()
            size_bytes += len(chunk.messages.data)
            if chunk.count > left:
                chunk, rest = chunk.split(left)
                self._waiting.appendleft(rest)
            chunks.append(chunk)
            left -= chunk.count
        self._last_number += 1
        self._batches[self._last_number] = chunks
        self.buffered -= limit - left
        self.in_batches += limit - left
        return self._last_number

    def chunks(self, after: int, up_to: int) -> list[Chunk[SourceT]]:
        """Return what is in the batches behind number *after*, up to *up_to*, in order."""
        return [
            chunk
            for number, chunks in self._batches.items()
            if after < number <= up_to
            for chunk in chunks
        ]

    def finished(self, up_to: int) -> dict[SourceT, list[bytes]]:
        """Let go of the batches up to number *up_to*; return which ids to finish, by source."""
        ids: dict[SourceT, list[bytes]] = {}
        for number in [number for number in self._batches if number <= up_to]:
            for chunk in self._batches.pop(number):
                self.in_batches -= chunk.count
                self.size_bytes -= len(chunk.messages.data)
                if chunk.source not in self._lost:
                    ids.setdefault(chunk.source, []).extend(chunk.messages.ids)
        self._lost &= {chunk.source for chunk in self._in_batches()}
        return ids

    # Time

    def to_touch(self, now: float, interval_s: float) -> dict[SourceT, list[bytes]]:
        """Return the ids whose time is to begin anew, for it began *interval_s* ago or earlier."""
        ids: dict[SourceT, list[bytes]] = {}
        for chunk in (*self._in_batches(), *self._waiting):
            if chunk.source not in self._lost and now - chunk.touched_at >= interval_s:
                chunk.touched_at = now
                ids.setdefault(chunk.source, []).extend(chunk.messages.ids)
        return ids

    def drop_older_than(self, time: float) -> int:
        """Forget what waits and came before *time*, since nsqd has taken it back; how many."""
        gone = []
        while self._waiting and self._waiting[0].arrived_at < time:
            gone.append(self._waiting.popleft())
        return self._forget(gone)

    def hand_back(self) -> dict[SourceT, list[bytes]]:
        """Let go of everything; return which ids to requeue, by source."""
        ids: dict[SourceT, list[bytes]] = {}
        for chunk in (*self._in_batches(), *self._waiting):
            if chunk.source not in self._lost:
                ids.setdefault(chunk.source, []).extend(chunk.messages.ids)
        self._waiting.clear()
        self._batches.clear()
        self._lost.clear()
        self.buffered = self.in_batches = self.size_bytes = 0
        return ids
