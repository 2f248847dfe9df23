"""
What the disk knows of topics and channels, without I/O: sequence numbers, chunks and pages.

A topic numbers its messages from 0, and stores them in *chunks*: the messages of one commit, at
most `CHUNK_BYTES`. A channel keeps 2 bytes for each message that it has begun with, in *pages* of
`PAGE_MESSAGES`: the number of its deliveries, or that it is finished. A chunk lies within one page,
and is deleted when all channels have finished that page.

::

    topic    | chunk | chunk | chunk | chunk | ...        sequence numbers ->
    channel  | page 0: done  | page 1: 3 attempts, finished, ... | page 2: no row, not begun
                             ^ first_page: all pages before it are done
                                     ^ next_seq: all messages before it have been in memory

A channel reads on from `next_seq` when its queue in memory runs low, so that a backlog of any
length takes no memory.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Iterator, Sequence
from itertools import repeat

import msgspec

from gateway.broker.message import StoredMessage
from gateway.errors import StoreDamaged

PAGE_BITS = 10
PAGE_MESSAGES = 1 << PAGE_BITS
"""Messages of a page."""
_PAGE_MASK = PAGE_MESSAGES - 1

CHUNK_BYTES = 262_144
"""Bytes of bodies after which a chunk ends; a larger message has a chunk of its own."""

FINISHED = 0xFFFF
"""In place of the number of deliveries, in a page."""
_MAX_ATTEMPTS = FINISHED - 1

_CRC_BYTES = 4


class _Columns(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The content of a chunk, by columns: that takes half the time of a list of messages."""

    timestamps_ns: list[int]
    ids: bytes
    """16 bytes for each message."""
    bodies: list[bytes]
    defer_ms: list[int]
    """Empty if no message is deferred."""


_encode = msgspec.msgpack.Encoder().encode
_decode_columns = msgspec.msgpack.Decoder(_Columns).decode


def split_chunks(
    messages: Sequence[StoredMessage], first_seq: int
) -> Iterator[tuple[int, Sequence[StoredMessage]]]:
    """Yield the chunks of *messages*, which start at *first_seq*: first number and messages."""
    start, size_bytes = 0, 0
    for index, message in enumerate(messages):
        is_page_start = not (first_seq + index) & _PAGE_MASK
        if index > start and (is_page_start or size_bytes + len(message.body) > CHUNK_BYTES):
            yield first_seq + start, messages[start:index]
            start, size_bytes = index, 0
        size_bytes += len(message.body)
    if start < len(messages):
        yield first_seq + start, messages[start:]


def encode_chunk(messages: Sequence[StoredMessage]) -> bytes:
    """Return *messages* as the content of a chunk: CRC32, then MessagePack."""
    defer_ms = [message.defer_ms for message in messages]
    data = _encode(
        _Columns(
            [message.timestamp_ns for message in messages],
            b"".join([message.id for message in messages]),
            [message.body for message in messages],
            defer_ms if any(defer_ms) else [],
        )
    )
    return zlib.crc32(data).to_bytes(_CRC_BYTES, "big") + data


def decode_chunk(first_seq: int, content: bytes) -> list[StoredMessage]:
    """
    Return the messages of a chunk, without deliveries.

    Raises:
        StoreDamaged: The content is not what was written.
    """
    data = _checked(content, f"messages from number {first_seq}")
    try:
        columns = _decode_columns(data)
    except msgspec.DecodeError as error:  # not reached after the check, except with other formats
        raise StoreDamaged(f"messages from number {first_seq}: {error}") from error
    ids = columns.ids
    return [
        StoredMessage(timestamp_ns, 0, ids[at : at + 16], body, defer_ms, seq=seq)
        for seq, at, timestamp_ns, body, defer_ms in zip(
            range(first_seq, first_seq + len(columns.bodies)),
            range(0, len(ids), 16),
            columns.timestamps_ns,
            columns.bodies,
            columns.defer_ms or repeat(0),
            strict=False,
        )
    ]


def _checked(content: bytes, what: str) -> bytes:
    data = content[_CRC_BYTES:]
    if zlib.crc32(data) != int.from_bytes(content[:_CRC_BYTES], "big"):
        raise StoreDamaged(f"{what}: the checksum does not match")
    return data


_PLACES = frozenset(range(PAGE_MESSAGES))


class Page:
    """What a channel knows of up to `PAGE_MESSAGES` consecutive messages."""

    __slots__ = ("ahead", "due_ns", "finished_count", "states")

    def __init__(self) -> None:
        self.states = array("H", bytes(2 * PAGE_MESSAGES))
        """The number of deliveries of each message, or `FINISHED`; empty once all are finished."""
        self.finished_count = 0
        self.due_ns: dict[int, int] = {}
        """When a deferred message is due: ns since 1970, by its place; until it is delivered."""
        self.ahead: set[int] = set()
        """Places of deferred messages that were delivered before the channel has read so far."""

    @property
    def is_done(self) -> bool:
        """True if all messages are finished."""
        return self.finished_count == PAGE_MESSAGES

    def finish(self, place: int) -> bool:
        """Mark a message as finished; return False if it was already."""
        if self.finished_count == PAGE_MESSAGES or self.states[place] == FINISHED:
            return False
        self.states[place] = FINISHED
        self.finished_count += 1
        if self.due_ns:
            self.due_ns.pop(place, None)
        if self.finished_count == PAGE_MESSAGES:
            self.states = array("H")
        return True

    def is_waiting(self, place: int) -> bool:
        """Return whether the message is neither finished nor in memory, deferred ones included."""
        return not (
            self.is_done
            or self.states[place] == FINISHED
            or place in self.due_ns
            or place in self.ahead
        )

    def waiting(self) -> list[int]:
        """Return the places that `is_waiting` holds for, in order; it takes 50 µs or less."""
        if self.finished_count + len(self.due_ns) == PAGE_MESSAGES:
            return []
        places = _PLACES - self.due_ns.keys() - self.ahead
        states = self.states
        return [place for place in sorted(places) if states[place] != FINISHED]

    def encode(self) -> bytes:
        """Return the page as a row's content; without bytes if all messages are finished."""
        if self.is_done:
            return b""
        data = _encode((self.states.tobytes(), self.due_ns))
        return zlib.crc32(data).to_bytes(_CRC_BYTES, "big") + data

    @classmethod
    def decode(cls, content: bytes, what: str) -> Page:
        """
        Return the page of a row's *content*; *what* names it in an error.

        Raises:
            StoreDamaged: The content is not what was written.
        """
        page = cls()
        if not content:
            page.states, page.finished_count = array("H"), PAGE_MESSAGES
            return page
        states, page.due_ns = msgspec.msgpack.decode(
            _checked(content, what), type=tuple[bytes, dict[int, int]]
        )
        page.states = array("H", states)
        page.finished_count = page.states.count(FINISHED)
        return page


class ChannelLog:
    """
    Which messages of a topic a channel has finished, delivered or deferred.

    Messages are known by `StoredMessage.seq`. The channel calls a method for each change;
    `take_changes` returns what to write.
    """

    def __init__(self, number: int, first_seq: int, *, is_saved: bool) -> None:
        self.id = number
        """Number of the channel's rows in the store."""
        self.is_saved = is_saved
        """False for an ephemeral channel: it reads from the disk, and writes nothing."""
        self.first_page = first_seq >> PAGE_BITS
        """All pages before this one are done."""
        self.next_seq = first_seq
        """Messages from this number on have not been in memory yet, except `Page.ahead`."""
        self.end_seq = first_seq
        """Messages from this number on do not belong to the channel (yet)."""
        self.unfinished_count = 0
        """Messages that are not finished: queued, in flight or deferred, in memory or not."""
        self.restored_seq = 0
        """Messages before this number were published before the last start."""
        self.pages: dict[int, Page] = {}
        """The pages from `first_page` on that the channel has begun with."""
        self._changed_pages: set[int] = set()
        self._saved_first_page = self.first_page
        for seq in range(first_seq & ~_PAGE_MASK, first_seq):
            self._page(seq >> PAGE_BITS).finish(seq & _PAGE_MASK)
            self._changed_pages.add(seq >> PAGE_BITS)

    @property
    def has_unread(self) -> bool:
        """True if there are messages that have not been in memory yet."""
        return self.next_seq < self.end_seq

    @property
    def has_changes(self) -> bool:
        """True if `take_changes` would return something to write."""
        return self.is_saved and bool(
            self._changed_pages or self._saved_first_page != self.first_page
        )

    def is_done(self, number: int) -> bool:
        """Return whether page *number* is done."""
        if number < self.first_page:
            return True
        page = self.pages.get(number)
        return page is not None and page.is_done

    def is_finished(self, seq: int) -> bool:
        """Return whether the message is finished."""
        number = seq >> PAGE_BITS
        if number < self.first_page:
            return True
        page = self.pages.get(number)
        return page is not None and (page.is_done or page.states[seq & _PAGE_MASK] == FINISHED)

    def extend(self, end_seq: int) -> None:
        """Add the messages up to *end_seq* to the channel."""
        self.unfinished_count += end_seq - self.end_seq
        self.end_seq = end_seq

    def read_on(self, messages: Sequence[StoredMessage], end_seq: int) -> list[StoredMessage]:
        """
        Return those of *messages*, which were read from `next_seq` on, that are to be queued.

        Their attempts are set. The channel reads on from *end_seq* the next time.
        """
        wanted: list[StoredMessage] = []
        for message in messages:
            seq = message.seq
            number = seq >> PAGE_BITS
            if number < self.first_page or seq < self.next_seq:
                continue
            page = self.pages.get(number)
            if page is not None:
                place = seq & _PAGE_MASK
                if not page.is_waiting(place):
                    page.ahead.discard(place)
                    continue
                message.attempts = page.states[place]
            wanted.append(message)
        self.next_seq = max(self.next_seq, end_seq)
        return wanted

    def unread(self) -> Iterator[list[tuple[int, int]]]:
        """
        Yield the messages that are to be read from the disk: number and attempts, in order.

        Each list is of a page; it may be empty. Pages that are done are left out, as are messages
        that are deferred, or were delivered ahead. The log must not change meanwhile.
        """
        seq = self.next_seq
        while seq < self.end_seq:
            number = seq >> PAGE_BITS
            first, end = number << PAGE_BITS, min((number + 1) << PAGE_BITS, self.end_seq)
            page = self.pages.get(number)
            if page is None:
                yield [(each, 0) for each in range(seq, end)]
            elif not page.is_done:
                states = page.states
                yield [
                    (first + place, states[place])
                    for place in page.waiting()
                    if seq <= first + place < end
                ]
            seq = end

    def deliver(self, messages: Sequence[StoredMessage]) -> None:
        """Keep the attempts of *messages*, which are being delivered."""
        last_number, page = -1, Page()
        for message in messages:
            seq, attempts = message.seq, message.attempts
            number, place = seq >> PAGE_BITS, seq & _PAGE_MASK
            if number != last_number:  # consecutive messages are in one page
                last_number, page = number, self._page(number)
                self._changed_pages.add(number)
            page.states[place] = attempts if attempts < FINISHED else _MAX_ATTEMPTS
            if place in page.due_ns:
                del page.due_ns[place]
                if seq >= self.next_seq:
                    page.ahead.add(place)

    def finish(self, seq: int) -> int | None:
        """Mark a message as finished; return the number of its page if that is done by this."""
        number = seq >> PAGE_BITS
        page = self.pages.get(number)
        if page is None:
            if number < self.first_page:
                return None
            page = self._page(number)
        if not page.finish(seq & _PAGE_MASK):
            return None
        self.unfinished_count -= 1
        self._changed_pages.add(number)
        if page.finished_count < PAGE_MESSAGES:
            return None
        self._advance()
        return number

    def skip(self, end_seq: int) -> list[int]:
        """
        Finish all messages before *end_seq*, and return the pages that are done by that.

        Pages that no message of the channel is in are done at once, however many there are.
        """
        start_page = self.first_page
        end_page = end_seq >> PAGE_BITS
        for number in [number for number in self.pages if number < end_page]:
            del self.pages[number]
        self._changed_pages = {number for number in self._changed_pages if number >= end_page}
        self.first_page = max(self.first_page, end_page)
        for seq in range(end_page << PAGE_BITS, end_seq):
            self._page(end_page).finish(seq & _PAGE_MASK)
            self._changed_pages.add(end_page)
        self.next_seq = max(self.next_seq, end_seq)
        self._advance()
        self.unfinished_count = self._count_unfinished()
        return [*range(start_page, self.first_page)]

    def skip_unread(self) -> list[int]:
        """Finish the messages that have not been in memory; return the pages that are done."""
        done: list[int] = []
        seq = self.next_seq
        while seq < self.end_seq:
            number, place = seq >> PAGE_BITS, seq & _PAGE_MASK
            page = self.pages.get(number)
            if page is None and not place and seq + PAGE_MESSAGES <= self.end_seq:
                # A whole page at once: there may be thousands of them.
                self.pages[number] = Page.decode(b"", "")
                self._changed_pages.add(number)
                self.unfinished_count -= PAGE_MESSAGES
                done.append(number)
                seq += PAGE_MESSAGES
                continue
            if page is None or page.is_waiting(place):
                finished = self.finish(seq)
                done += [] if finished is None else [finished]
            seq += 1
        self._advance()
        self.next_seq = self.end_seq
        return done

    def exclude(self, first_seq: int, end_seq: int) -> list[int]:
        """
        Let the messages from *first_seq* to *end_seq* not belong to the channel.

        *first_seq* is its end until now. Return the pages that are done by that.
        """
        first_whole, end_whole = (first_seq + _PAGE_MASK) >> PAGE_BITS, end_seq >> PAGE_BITS
        for number in range(first_whole, end_whole):
            self.pages[number] = Page.decode(b"", "")
        parts = [*range(first_seq, min(end_seq, first_whole << PAGE_BITS))]
        parts += range(max(first_seq, end_whole << PAGE_BITS), end_seq)
        for seq in dict.fromkeys(parts):
            self._page(seq >> PAGE_BITS).finish(seq & _PAGE_MASK)
        changed = [*range(first_seq >> PAGE_BITS, (end_seq >> PAGE_BITS) + 1)]
        changed = [number for number in changed if number in self.pages]
        self._changed_pages.update(changed)
        done = [number for number in changed if self.is_done(number)]
        self._advance()
        self.end_seq = end_seq
        return done

    def defer(self, message: StoredMessage, due_ns: int) -> None:
        """Keep when a message is due, ns since 1970."""
        number, place = message.seq >> PAGE_BITS, message.seq & _PAGE_MASK
        self._page(number).due_ns[place] = due_ns
        self._changed_pages.add(number)

    def deferred(self) -> Iterator[tuple[int, int]]:
        """Yield number and due time, ns since 1970, of each deferred message."""
        for number, page in self.pages.items():
            for place, due_ns in page.due_ns.items():
                yield (number << PAGE_BITS) + place, due_ns

    def attempts(self, seq: int) -> int:
        """Return how often a message was delivered; 0 if it is finished."""
        page = self.pages.get(seq >> PAGE_BITS)
        if page is None or page.is_done:
            return 0
        state = page.states[seq & _PAGE_MASK]
        return 0 if state == FINISHED else state

    def restore(self, pages: dict[int, Page], end_seq: int) -> None:
        """Take the *pages* of the store, for messages up to *end_seq*, and begin at the first."""
        self.pages = pages
        self.end_seq = self.restored_seq = end_seq
        self.next_seq = self.first_page << PAGE_BITS
        self._changed_pages.clear()
        self._advance()
        self._saved_first_page = self.first_page
        self.unfinished_count = self._count_unfinished()

    def take_changes(self) -> ChannelChanges:
        """Return what has changed since the last call, for one transaction."""
        pages = [
            (number, self.pages[number].encode())
            for number in self._changed_pages
            if number >= self.first_page and number in self.pages
        ]
        changes = ChannelChanges(self, pages, self._saved_first_page, self.first_page)
        self._changed_pages = set()
        self._saved_first_page = self.first_page
        return changes

    def restore_changes(self, changes: ChannelChanges) -> None:
        """Take back changes that could not be written: the next `take_changes` has them again."""
        self._changed_pages.update(number for number, _ in changes.pages)
        self._saved_first_page = min(self._saved_first_page, changes.old_first_page)

    def _page(self, number: int) -> Page:
        page = self.pages.get(number)
        if page is None:
            page = self.pages[number] = Page()
        return page

    def _advance(self) -> None:
        """Move `first_page` over the pages that are done."""
        while (page := self.pages.get(self.first_page)) is not None and page.is_done:
            del self.pages[self.first_page]
            self.first_page += 1
        self.next_seq = max(self.next_seq, self.first_page << PAGE_BITS)

    def _count_unfinished(self) -> int:
        finished = sum(page.finished_count for page in self.pages.values())
        return max(0, self.end_seq - (self.first_page << PAGE_BITS) - finished)


class ChannelChanges(msgspec.Struct, frozen=True):
    """What one transaction writes of a channel."""

    log: ChannelLog
    pages: list[tuple[int, bytes]]
    """Number and content of each changed page."""
    old_first_page: int
    first_page: int
    """The rows of pages from *old_first_page* on, and before this one, are deleted."""


class TopicLog:
    """Where a topic's messages are, and which of them its channels still need."""

    def __init__(self, number: int, *, end_seq: int = 0) -> None:
        self.id = number
        """Number of the topic's rows in the store."""
        self.end_seq = end_seq
        """The number of the next message that is stored."""
        self.distributed_seq = end_seq
        """Messages from this number on are in no channel yet: there is none, or a pause."""
        self.channels: dict[str, ChannelLog] = {}

    @property
    def held_count(self) -> int:
        """The number of messages that are in no channel yet."""
        return self.end_seq - self.distributed_seq

    def distribute(self) -> None:
        """Add all messages that are in no channel to each channel."""
        self.distributed_seq = self.end_seq
        for channel in self.channels.values():
            channel.extend(self.end_seq)

    def release(self, pages: Sequence[int]) -> list[tuple[int, int]]:
        """
        Return the messages to delete, since a channel has done *pages*: first one, and end.

        A page is kept as long as a channel needs it, or messages are added to it.
        """
        end_page = self.end_seq >> PAGE_BITS
        channels = self.channels.values()
        ranges: list[tuple[int, int]] = []
        for number in pages:
            if number >= end_page or not all(channel.is_done(number) for channel in channels):
                continue
            first_seq, end_seq = number << PAGE_BITS, (number + 1) << PAGE_BITS
            if ranges and ranges[-1][1] == first_seq:
                ranges[-1] = (ranges[-1][0], end_seq)
            else:
                ranges.append((first_seq, end_seq))
        return ranges

    def release_all(self) -> list[tuple[int, int]]:
        """Return the messages to delete after a start, or the end of a channel: first, and end."""
        if not self.channels:
            return [(0, self.distributed_seq)] if self.distributed_seq else []
        first_page = min(channel.first_page for channel in self.channels.values())
        ranges = [(0, first_page << PAGE_BITS)] if first_page else []
        return ranges + self.release([*range(first_page, self.end_seq >> PAGE_BITS)])
