"""
A spool: messages on a disk of the driver, finished at nsqd, until Spark has finished them.

One thread appends and one reads. What stands before `end` is durable, and reads the same for as
long as it is there, whatever process asks: that makes a batch repeatable.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeAlias

from gateway.pipeline.schema import Frames
from gateway.pipeline.spool_files import (
    Segment,
    SpoolDamaged,
    SpoolLost,
    Writer,
    lock_folder,
    open_segments,
    unusable,
)
from gateway.pipeline.spool_records import (
    SEGMENT_HEAD_BYTES,
    Names,
    Place,
    Position,
    RecordHead,
    behind_frames,
    count_frames,
    encode_record,
    names_of,
)

_SEGMENT_BYTES = 64 * 1_048_576
_SEGMENTS_OF_A_SPOOL = 8
"""At least so many, or a small bound would be reached by the one that is written."""
_ROOM_BYTES = 4 * 1_048_576
"""What the disk must take again before messages are asked for."""
_KNOWN_PLACES = 8
_MOST_BYTES = 2**62


Group: TypeAlias = "tuple[Names, int, Sequence[bytes], int]"
"""Of one source: whose they are, when they came in us since 1970, their frames, how many."""


class _Found(NamedTuple):
    """A record behind some place."""

    segment: Segment
    fd: int
    byte: int
    """Where it begins."""
    head: RecordHead
    messages: int
    """How many of its messages stand behind the place."""

    @property
    def place(self) -> Position:
        return Position(self.segment.number, self.byte)

    @property
    def behind(self) -> Position:
        """Where it ends."""
        return Position(self.segment.number, self.byte + self.head.size_bytes)

    def data(self) -> bytes:
        """Return all of it; raises SpoolDamaged where it is not as it was written."""
        return self.segment.record(self.fd, self.byte, self.head)


class _Known(NamedTuple):
    """Of a place where a batch ended."""

    record: Position
    """Where the record begins that it is in, or in front of."""
    number: int
    """Messages of the spool before it."""


@dataclass(frozen=True, kw_only=True)
class SpoolOptions:
    """Where a spool is, and how long and large it may be."""

    folder: Path
    max_bytes: int
    retention_s: float = 0.0
    """How long a segment stays that nobody needs any more."""
    lock_wait_s: float = 15.0
    """How long an earlier process may take to end."""


class SpoolStore:
    """The spool of one stream; `open` first, `close` last."""

    def __init__(self, options: SpoolOptions) -> None:
        self._options = options
        self._segment_bytes = min(_SEGMENT_BYTES, options.max_bytes // _SEGMENTS_OF_A_SPOOL)
        self._segments: list[Segment] = []
        self._writer: Writer | None = None
        self._lock_fd = -1
        self._changed = threading.Condition()
        """Held while segments come or go, and told when more is durable."""
        self._released = Position(0, 0)
        self._known: dict[Position, _Known] = {}
        """The places where the last batches ended."""

    # Its life

    def open(self, first_number: int) -> None:
        """
        Take the folder for this process, and get ready.

        *first_number* is for the first segment of a new spool: no earlier spool has had it, so that
        a checkpoint of that one is not taken for one of this.

        Raises:
            SpoolDamaged: Something that was durable is not as it was.
            StartError: The folder cannot be used, or is another process's.
        """
        folder = self._options.folder
        self._lock_fd = lock_folder(folder, self._options.lock_wait_s)
        try:
            self._segments = open_segments(folder)
            self._writer = self._first_writer(first_number)
        except BaseException as error:
            os.close(self._lock_fd)
            if isinstance(error, OSError):
                raise unusable(folder, error) from error
            raise

    def _first_writer(self, first_number: int) -> Writer:
        if not self._segments:
            writer = Writer.create(self._options.folder, first_number, 0)
        elif self._segments[-1].end == SEGMENT_HEAD_BYTES:
            return Writer.reopen(self._segments[-1])
        else:
            last = self._segments[-1]
            writer = Writer.create(self._options.folder, last.number + 1, last.last)
        self._segments.append(writer.segment)
        return writer

    def close(self) -> None:
        """
        Let go of the folder; idempotent.

        The next segment is made now: its head says how many messages are before it, so that damage
        at the end of the last one is not taken for a torn end.
        """
        writer = self._writer
        if writer is not None:
            if writer.segment.end > SEGMENT_HEAD_BYTES:
                with suppress(OSError):  # without it, the end may be torn for all that one knows
                    writer = self._begin_segment(writer)
            self._writer = None
            writer.close()
            os.close(self._lock_fd)

    # What is true now

    @property
    def begin(self) -> Position:
        """Where the oldest message is, or will be."""
        return Position(self._segments[0].number, SEGMENT_HEAD_BYTES)

    @property
    def end(self) -> Position:
        """Up to where it is durable."""
        last = self._segments[-1]
        return Position(last.number, last.end)

    @property
    def size_bytes(self) -> int:
        """Of all segments."""
        # Of a copy, and without the lock: a signal may have caught the reader with it in its hand,
        # and the end of the ingest, which the reader then waits for, asks for this.
        return sum(segment.end for segment in tuple(self._segments))

    @property
    def segments(self) -> int:
        """How many there are."""
        return len(self._segments)

    @property
    def is_full(self) -> bool:
        """Whether it has reached its bound, and that with messages that somebody needs."""
        return self.size_bytes >= self._options.max_bytes and self._released < self.end

    # Writing

    def append(self, groups: Iterable[Group]) -> None:
        """
        Keep *groups*; they are durable when it returns.

        Raises:
            OSError: Nothing of them is kept.
        """
        writer = self._roll()
        segment = writer.segment
        vectors: list[bytes] = []
        number, salt = segment.last, segment.head.salt
        for names, received_us, parts, count in groups:
            place = Place(number, segment.end, received_us)
            vectors.append(encode_record(names, place, parts, count, salt))
            vectors += parts
            number += count
        writer.append(vectors, number - segment.last)
        with self._changed:
            self._changed.notify_all()

    def _roll(self) -> Writer:
        """Return where to write: a new segment, where the one before is large enough."""
        writer = self._writer
        assert writer is not None  # noqa: S101 - opened before
        segment = writer.segment
        is_done = self._released >= self.end and segment.end > SEGMENT_HEAD_BYTES
        is_over = self.size_bytes >= self._options.max_bytes
        if segment.end < self._segment_bytes and not (is_done and is_over):
            return writer
        return self._begin_segment(writer)

    def _begin_segment(self, writer: Writer) -> Writer:
        """Let *writer* end, and return the one behind it; raises OSError, and then it goes on."""
        writer.mend()
        segment = writer.segment
        new = Writer.create(self._options.folder, segment.number + 1, segment.last)
        with self._changed:
            self._segments.append(new.segment)
            self._writer = new
        writer.close()
        return new

    def try_room(self) -> None:
        """Raise OSError unless the disk takes some MiB more."""
        assert self._writer is not None  # noqa: S101 - opened before
        self._writer.try_room(min(_ROOM_BYTES, self._options.max_bytes))

    # Reading

    def wait_behind(self, position: Position, timeout_s: float) -> bool:
        """Return whether something durable stands behind *position*, once it does."""
        with self._changed:
            return self._changed.wait_for(lambda: self._has_behind(position), timeout_s)

    def _has_behind(self, position: Position) -> bool:
        return any(
            segment.end > (position.byte if segment.number == position.segment else 0)
            and segment.end > SEGMENT_HEAD_BYTES
            for segment in self._segments
            if segment.number >= position.segment
        )

    def count_behind(self, position: Position) -> int:
        """Return how many messages stand behind *position*, where a batch ended."""
        known = self._known.get(position)
        return 0 if known is None else self._segments[-1].last - known.number

    def cut(self, start: Position, limit: int, about_bytes: int = _MOST_BYTES) -> Position:
        """
        Return where a batch of at most *limit* messages ends that begins at *start*.

        A record is cut only where it alone has more. The batch ends with the record that makes it
        *about_bytes* long.

        Raises:
            SpoolDamaged, SpoolLost: *start* is no place in this spool.
        """
        left, size_bytes, last = limit, 0, None
        for found in self._records(start):
            if size_bytes >= about_bytes:
                break
            size_bytes += found.head.data_bytes
            if found.messages > left:
                if last is None:
                    return self._inside(found, limit)
                break
            left, last = left - found.messages, found
        if last is None:
            return start
        return self._ended(last.behind, _Known(last.behind, last.head.number + last.head.messages))

    def _inside(self, found: _Found, limit: int) -> Position:
        head, skipped = found.head, found.head.messages - found.messages
        byte = found.byte + behind_frames(found.data(), head.frames_from, skipped + limit)
        known = _Known(found.place, head.number + skipped + limit)
        return self._ended(Position(found.segment.number, byte), known)

    def _ended(self, position: Position, known: _Known) -> Position:
        self._known.pop(position, None)
        self._known[position] = known
        while len(self._known) > _KNOWN_PLACES:
            del self._known[next(iter(self._known))]
        return position

    def _records(self, start: Position) -> Iterator[_Found]:
        """Give each record that something of stands behind *start*."""
        self.check(start)
        for segment in [each for each in self._segments if each.number >= start.segment]:
            begin = Position(segment.number, SEGMENT_HEAD_BYTES)
            fd = os.open(segment.path, os.O_RDONLY)
            try:
                yield from self._records_of(segment, fd, max(start, begin))
            finally:
                os.close(fd)

    def _records_of(self, segment: Segment, fd: int, start: Position) -> Iterator[_Found]:
        if start.byte >= segment.end:
            return
        is_written = segment is self._segments[-1]
        known = self._known.get(start)
        first = SEGMENT_HEAD_BYTES if known is None else known.record.byte
        number = None
        for at, head in segment.records(fd, first):
            number = head.number + head.messages
            if at >= start.byte:
                yield _Found(segment, fd, at, head, head.messages)
            elif at + head.size_bytes > start.byte:
                data, skipped = segment.record(fd, at, head), start.byte - at
                count = count_frames(data, skipped, head.size_bytes)
                if count is None or skipped < head.frames_from:
                    raise SpoolDamaged(segment.path, start.byte, "no message begins there")
                yield _Found(segment, fd, at, head, count)
        if not is_written and number is not None and number != segment.last:
            raise SpoolDamaged(segment.path, segment.end, "records are missing from its end")

    def read(self, start: Position, end: Position) -> Iterator[Frames]:
        """
        Give what stands between, in order.

        Raises:
            SpoolDamaged, SpoolLost: It is not there any more, or not as it was.
        """
        self.check(end)
        for found in self._records(start):
            if found.place >= end:
                return
            data, head = found.data(), found.head
            first = head.frames_from if found.messages == head.messages else start.byte - found.byte
            behind = head.size_bytes if found.behind <= end else end.byte - found.byte
            names = names_of(data, 0, head)
            yield Frames(names.topic, names.nsqd, head.received_us, data[first:behind])
            if found.behind >= end:
                return

    def _segment(self, place: Position) -> Segment:
        return self._segments[place.segment - self._segments[0].number]

    def check(self, position: Position) -> None:
        """Raise SpoolLost where *position* is none of this spool."""
        folder, first, end = self._options.folder, self._segments[0].number, self.end
        if position.segment < first:
            raise SpoolLost(
                f"the checkpoint goes on in segment {position.segment}, which is gone from the "
                f"spool {folder}: what is there begins with segment {first}. The messages before "
                "that are finished at nsqd, and lost unless the folder comes back from a copy. "
                "To go on with what is there, begin with a new checkpoint"
            )
        known = position.segment <= end.segment and position.byte <= self._segment(position).end
        if not known:
            raise SpoolLost(
                f"the checkpoint goes on at byte {position.byte} of segment {position.segment}, "
                f"and the spool {folder} ends at byte {end.byte} of segment {end.segment}: it is "
                "another spool, or its end was lost with what nsqd was told is finished. Name the "
                "right folder (spoolDir), or begin with a new checkpoint to read all that is there"
            )

    # The end of segments

    def release(self, position: Position) -> None:
        """Count nothing before *position* as needed; remove segments whose time is over."""
        self._released = max(self._released, position)
        now = time.monotonic()
        while len(self._segments) > 1:
            segment = self._segments[0]
            if segment.number >= self._released.segment:
                return  # the one that a checkpoint names stays, though it be done with
            segment.released_at = segment.released_at or now
            has_time = now - segment.released_at < self._options.retention_s
            if has_time and self.size_bytes < self._options.max_bytes:
                return
            with self._changed:
                self._segments.pop(0)
            segment.path.unlink(missing_ok=True)

    @property
    def oldest_needed_us(self) -> int | None:
        """When the oldest message came that somebody needs, us since 1970; None: there is none."""
        start = max(self._released, self.begin)
        return next((found.head.received_us for found in self._records(start)), None)
