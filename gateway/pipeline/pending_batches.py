"""
PURE. Messages that a stream has received and not finished: waiting chunks and numbered batches.

A batch has a number, by which Spark may request it several times. Its messages stay the same until
Spark has committed it; only then may they be finished at nsqd.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

import msgspec

from gateway.protocol.frames import RawMessages, split_messages

SourceT = TypeVar("SourceT", bound=Hashable)


class Chunk(msgspec.Struct, Generic[SourceT]):
    """Undecoded messages from one read of one connection."""

    source: SourceT
    messages: RawMessages
    sent_after: float
    """Earliest time at which nsqd may have sent the messages, monotonic seconds."""
    received_us: int
    """When the messages were read, µs since 1970."""
    touched_at: float
    """Time of the last TOUCH of these messages, at first *sent_after*; monotonic seconds."""

    @property
    def count(self) -> int:
        """Number of messages in the chunk."""
        return len(self.messages.ids)

    def split(self, count: int) -> tuple[Chunk[SourceT], Chunk[SourceT]]:
        """Return the first *count* messages, and the rest."""
        first, rest = split_messages(self.messages, count)
        replace = msgspec.structs.replace
        return replace(self, messages=first), replace(self, messages=rest)


class PendingBatches(Generic[SourceT]):
    """Hold all chunks of one stream, from their arrival until FIN or REQ."""

    def __init__(self) -> None:
        self.buffered = 0
        """Number of messages without a batch."""
        self.in_batches = 0
        """Number of messages in batches that Spark has not committed."""
        self.size_bytes = 0
        """Bytes of all held frames."""
        self.waiting_bytes = 0
        """Bytes of the frames without a batch."""
        self._waiting: deque[Chunk[SourceT]] = deque()
        self._batches: dict[int, list[Chunk[SourceT]]] = {}
        self._last_number = 0
        self._lost_sources: set[SourceT] = set()
        """Closed connections with messages still in batches: no command can be sent for those."""

    @property
    def held_messages(self) -> int:
        """Number of messages received for which neither FIN nor REQ was sent."""
        return self.buffered + self.in_batches

    @property
    def in_flight(self) -> int:
        """
        Number of held messages that came on connections that are still open.

        The others cannot be finished any more: nsqd sends them again after their timeout.
        """
        return self.held_messages - sum(
            chunk.count for chunk in self._batched_chunks() if chunk.source in self._lost_sources
        )

    @property
    def waiting_since(self) -> float | None:
        """Lowest `sent_after` of the chunks without a batch; None if there is none."""
        return min((chunk.sent_after for chunk in self._waiting), default=None)

    @property
    def oldest_at(self) -> float | None:
        """Lowest `sent_after` of all held chunks; None if nothing is held."""
        chunks = (*self._batched_chunks(), *self._waiting)
        return min((chunk.sent_after for chunk in chunks), default=None)

    def held_by_source(self) -> Counter[SourceT]:
        """Return the number of held messages by connection."""
        by_source: Counter[SourceT] = Counter()
        for chunk in (*self._batched_chunks(), *self._waiting):
            by_source[chunk.source] += chunk.count
        return by_source

    def count_of(self, source: SourceT) -> int:
        """Return the number of held messages of *source*."""
        chunks = (*self._batched_chunks(), *self._waiting)
        return sum(chunk.count for chunk in chunks if chunk.source == source)

    # Arrivals

    def add(
        self, source: SourceT, messages: RawMessages, *, sent_after: float, received_us: int
    ) -> None:
        """Add *messages* of one read from *source*; the times are those of `Chunk`."""
        self._waiting.append(Chunk(source, messages, sent_after, received_us, sent_after))
        self.buffered += len(messages.ids)
        self.size_bytes += len(messages.data)
        self.waiting_bytes += len(messages.data)

    def drop_unbatched(self, source: SourceT) -> int:
        """
        Drop the messages of the lost connection *source* that wait for a batch; return the count.

        nsqd sends all messages of the connection again. Those in a batch stay there, because a
        batch must not change, but no FIN is sent for them: Spark gets them twice.
        """
        self._lost_sources.add(source)
        gone = [chunk for chunk in self._waiting if chunk.source == source]
        self._waiting = deque(chunk for chunk in self._waiting if chunk.source != source)
        # Remembered only for messages in batches, for which no FIN may be sent.
        if not any(chunk.source == source for chunk in self._batched_chunks()):
            self._lost_sources.discard(source)
        return self._discount(gone)

    def _discount(self, gone: list[Chunk[SourceT]]) -> int:
        """Subtract the waiting chunks *gone* from the counts; return their number of messages."""
        count = sum(chunk.count for chunk in gone)
        size_bytes = sum(len(chunk.messages.data) for chunk in gone)
        self.buffered -= count
        self.size_bytes -= size_bytes
        self.waiting_bytes -= size_bytes
        return count

    def _batched_chunks(self) -> Iterable[Chunk[SourceT]]:
        return (chunk for chunks in self._batches.values() for chunk in chunks)

    # Batches

    def cut_batch(self, limit: int, *, target_bytes: int | None = None) -> int | None:
        """
        Cut a batch of at most *limit* waiting messages; return its number.

        Return None, and cut no batch, if no message is waiting.

        The batch ends with the chunk that reaches *target_bytes*; None means no such limit.
        """
        if not self._waiting:
            return None
        chunks: list[Chunk[SourceT]] = []
        left, size_bytes = limit, 0
        while left and self._waiting and (target_bytes is None or size_bytes < target_bytes):
            chunk = self._waiting.popleft()
            size_bytes += len(chunk.messages.data)
            # Only the row limit splits a chunk; the bytes may exceed the target by one chunk.
            if chunk.count > left:
                chunk, rest = chunk.split(left)
                self._waiting.appendleft(rest)
            chunks.append(chunk)
            left -= chunk.count
            self.waiting_bytes -= len(chunk.messages.data)
        self._last_number += 1
        self._batches[self._last_number] = chunks
        self.buffered -= limit - left
        self.in_batches += limit - left
        return self._last_number

    def chunks(self, after: int, up_to: int) -> list[Chunk[SourceT]]:
        """Return the chunks of the batches numbered above *after*, up to *up_to*, in order."""
        return [
            chunk
            for number, chunks in self._batches.items()
            if after < number <= up_to
            for chunk in chunks
        ]

    def take_up_to(self, up_to: int) -> dict[SourceT, list[bytes]]:
        """
        Remove the batches up to number *up_to*; return their message ids, by connection.

        The caller sends FIN for these ids.
        """
        ids: dict[SourceT, list[bytes]] = {}
        for number in [number for number in self._batches if number <= up_to]:
            for chunk in self._batches.pop(number):
                self.in_batches -= chunk.count
                self.size_bytes -= len(chunk.messages.data)
                # nsqd accepts FIN only on the connection that got the message.
                if chunk.source not in self._lost_sources:
                    ids.setdefault(chunk.source, []).extend(chunk.messages.ids)
        # Forget lost connections that have no messages in batches any more.
        self._lost_sources &= {chunk.source for chunk in self._batched_chunks()}
        return ids

    # Timeouts

    def due_touches(self, now: float, interval_s: float) -> dict[SourceT, list[bytes]]:
        """
        Return the ids of held messages without a TOUCH since *interval_s*, by connection.

        They count as touched from *now* on; the caller sends the TOUCHes.
        """
        ids: dict[SourceT, list[bytes]] = {}
        for chunk in (*self._batched_chunks(), *self._waiting):
            if chunk.source not in self._lost_sources and now - chunk.touched_at >= interval_s:
                chunk.touched_at = now
                ids.setdefault(chunk.source, []).extend(chunk.messages.ids)
        return ids

    def drop_older_than(self, time: float) -> int:
        """
        Drop the waiting messages with `sent_after` before *time*; return their number.

        nsqd may have requeued them. Messages in batches stay, because a batch must not change.
        """
        # All chunks: they are in the order of arrival, and what one connection delivers late may
        # have been sent before what another one has delivered already.
        gone = [chunk for chunk in self._waiting if chunk.sent_after < time]
        if gone:
            self._waiting = deque(chunk for chunk in self._waiting if chunk.sent_after >= time)
        return self._discount(gone)

    def clear(self) -> dict[SourceT, list[bytes]]:
        """
        Remove all messages, also those in batches; return their ids, by connection.

        The caller sends REQ for these ids.
        """
        ids: dict[SourceT, list[bytes]] = {}
        for chunk in (*self._batched_chunks(), *self._waiting):
            if chunk.source not in self._lost_sources:
                ids.setdefault(chunk.source, []).extend(chunk.messages.ids)
        self._waiting.clear()
        self._batches.clear()
        self._lost_sources.clear()
        self.buffered = self.in_batches = self.size_bytes = self.waiting_bytes = 0
        return ids
