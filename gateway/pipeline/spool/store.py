"""
A spool: messages on a disk of the driver, finished at nsqd and not yet committed by Spark.

One thread appends, and one reads. Data before `end` is durable and does not change until its
segment is removed, so any process can read a batch again.
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
from gateway.pipeline.spool.records import (
    SEGMENT_HEAD_BYTES,
    Names,
    Position,
    RecordHead,
    RecordPosition,
    count_frames,
    encode_record,
    names_of,
    skip_frames,
)
from gateway.pipeline.spool.segments import (
    Segment,
    SpoolDamaged,
    SpoolLost,
    Writer,
    lock_folder,
    open_segments,
    unusable,
)

_SEGMENT_BYTES = 64 * 1_048_576
_SEGMENTS_OF_A_SPOOL = 8
"""Minimum number of segments in a full spool: the last one is not removed, and must not fill it."""
_SPACE_NEEDED_BYTES = 4 * 1_048_576
"""Free disk space that is required to restore RDY after a disk error."""
_REMEMBERED_BATCHES = 8
_UNLIMITED_BYTES = 2**62


Group: TypeAlias = "tuple[Names, int, Sequence[bytes], int]"
"""Messages of one connection: names, arrival time in µs since 1970, frames, and count."""


class _FoundRecord(NamedTuple):
    """A record found by a search from some position."""

    segment: Segment
    fd: int
    byte: int
    """Offset of the record in the segment."""
    head: RecordHead
    messages: int
    """Number of its messages after the position of the search."""

    @property
    def start(self) -> Position:
        return Position(self.segment.number, self.byte)

    @property
    def end(self) -> Position:
        """Return the position behind the record."""
        return Position(self.segment.number, self.byte + self.head.record_size_bytes)

    def data(self) -> bytes:
        """Return the whole record; raises SpoolDamaged if it is not as it was written."""
        return self.segment.record(self.fd, self.byte, self.head)


class _BatchEnd(NamedTuple):
    """Details of a batch's end, so that the next batch can start there without a search."""

    record: Position
    """Start of the record that contains the position, or starts at it."""
    number: int
    """Number of messages in the spool before the position."""


@dataclass(frozen=True, kw_only=True)
class SpoolOptions:
    """Location, size and retention of a spool."""

    folder: Path
    max_bytes: int
    retention_s: float = 0.0
    """Time for which a released segment is kept."""
    lock_wait_s: float = 15.0
    """Maximum wait for an earlier process to unlock the folder."""


class SpoolStore:
    """The spool of one stream; call `open` first and `close` last."""

    def __init__(self, options: SpoolOptions) -> None:
        self._options = options
        self._segment_bytes = min(_SEGMENT_BYTES, options.max_bytes // _SEGMENTS_OF_A_SPOOL)
        self._segments: list[Segment] = []
        self._writer: Writer | None = None
        self._lock_fd = -1
        self._changed = threading.Condition()
        """Lock for changes of the list of segments; notified when more data is durable."""
        # After a restart nothing is released until Spark names its position again.
        self._released = Position(0, 0)
        self._batch_ends: dict[Position, _BatchEnd] = {}
        """Recent batch ends; the oldest is first."""

    # Opening and closing

    def open(self, first_number: int) -> None:
        """
        Lock the folder and read its segments.

        *first_number* is the number of the first segment of a new spool. It must differ from those
        of earlier spools, so that a checkpoint of an earlier spool does not match this one.

        Raises:
            SpoolDamaged: Durable data is missing or changed.
            StartError: The folder cannot be used, or belongs to another process.
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
            return Writer.open_existing(self._segments[-1])
        else:
            last = self._segments[-1]
            writer = Writer.create(self._options.folder, last.number + 1, last.last)
        self._segments.append(writer.segment)
        return writer

    def close(self) -> None:
        """
        Close the files and unlock the folder; idempotent.

        This creates the next segment, whose header has the number of messages before it: damage at
        the end of the last segment is then not mistaken for a torn tail.
        """
        writer = self._writer
        if writer is not None:
            if writer.segment.end > SEGMENT_HEAD_BYTES:
                with suppress(OSError):  # a protection, not a condition for closing
                    writer = self._begin_segment(writer)
            self._writer = None
            writer.close()
            os.close(self._lock_fd)

    # State

    @property
    def start(self) -> Position:
        """Position of the oldest message, or of the first one to come."""
        return Position(self._segments[0].number, SEGMENT_HEAD_BYTES)

    @property
    def end(self) -> Position:
        """Position up to which data is durable."""
        last = self._segments[-1]
        return Position(last.number, last.end)

    @property
    def size_bytes(self) -> int:
        """Size of all segments."""
        # A copy instead of the lock: SIGTERM may have interrupted the reader while it has the lock,
        # and its handler waits for the end of the consumer, which calls this: a deadlock.
        return sum(segment.end for segment in tuple(self._segments))

    @property
    def segments(self) -> int:
        """Number of segments."""
        return len(self._segments)

    @property
    def is_full(self) -> bool:
        """True if the size limit is reached and some messages are still needed."""
        return self.size_bytes >= self._options.max_bytes and self._released < self.end

    # Writing

    def append(self, groups: Iterable[Group]) -> None:
        """
        Append *groups*, which are durable on return.

        Raises:
            OSError: None of them is appended.
        """
        writer = self._roll()
        segment = writer.segment
        vectors: list[bytes] = []
        number, salt = segment.last, segment.head.salt
        for names, received_us, parts, count in groups:
            position = RecordPosition(number, segment.end, received_us)
            vectors.append(encode_record(names, position, parts, count, salt))
            vectors += parts
            number += count
        writer.append(vectors, number - segment.last)
        with self._changed:
            self._changed.notify_all()

    def _roll(self) -> Writer:
        """Return the writer, after starting a new segment if the current one is large enough."""
        writer = self._writer
        assert writer is not None  # noqa: S101 - opened before
        segment = writer.segment
        # A spool above its limit whose messages are all released can shrink only if the segment
        # being written is closed, because only earlier segments are removed.
        is_done = self._released >= self.end and segment.end > SEGMENT_HEAD_BYTES
        is_over = self.size_bytes >= self._options.max_bytes
        if segment.end < self._segment_bytes and not (is_done and is_over):
            return writer
        return self._begin_segment(writer)

    def _begin_segment(self, writer: Writer) -> Writer:
        """Start the next segment and close *writer*; after an OSError *writer* is still in use."""
        writer.truncate()
        segment = writer.segment
        new = Writer.create(self._options.folder, segment.number + 1, segment.last)
        with self._changed:
            self._segments.append(new.segment)
            self._writer = new
        writer.close()
        return new

    def check_space(self) -> None:
        """Raise OSError unless the disk has 4 MiB free, or the spool's maximum size if less."""
        assert self._writer is not None  # noqa: S101 - opened before
        self._writer.check_space(min(_SPACE_NEEDED_BYTES, self._options.max_bytes))

    # Reading

    def wait_after(self, position: Position, timeout_s: float) -> bool:
        """Wait up to *timeout_s* for durable data after *position*; return True if there is any."""
        with self._changed:
            return self._changed.wait_for(lambda: self._has_after(position), timeout_s)

    def _has_after(self, position: Position) -> bool:
        # Any record in a later segment is after *position*; a new segment has only its header.
        return any(
            segment.end > (position.byte if segment.number == position.segment else 0)
            and segment.end > SEGMENT_HEAD_BYTES
            for segment in self._segments
            if segment.number >= position.segment
        )

    def count_after(self, position: Position) -> int:
        """Return the number of messages after *position*, a recent batch end; 0 if unknown."""
        known = self._batch_ends.get(position)
        return 0 if known is None else self._segments[-1].last - known.number

    def count_between(self, start: Position, end: Position) -> int:
        """Return the number of messages between two recent batch ends; 0 if unknown."""
        first, last = self._batch_ends.get(start), self._batch_ends.get(end)
        return 0 if first is None or last is None else last.number - first.number

    def cut(self, start: Position, limit: int, target_bytes: int = _UNLIMITED_BYTES) -> Position:
        """
        Return the end of a batch of at most *limit* messages that starts at *start*.

        A record is split only if it alone has more messages than *limit*. The batch ends with the
        record that reaches *target_bytes*.

        Raises:
            SpoolDamaged, SpoolLost: *start* is not a position in this spool.
        """
        left, size_bytes, last = limit, 0, None
        for found in self._records(start):
            if size_bytes >= target_bytes:
                break
            size_bytes += found.head.data_bytes
            if found.messages > left:
                if last is None:
                    return self._cut_inside(found, limit)
                break
            left, last = left - found.messages, found
        # No records after *start*: an empty batch ends where it starts.
        if last is None:
            return start
        return self._remember(last.end, _BatchEnd(last.end, last.head.number + last.head.messages))

    def _cut_inside(self, found: _FoundRecord, limit: int) -> Position:
        """Return the position after *limit* messages of the record *found*."""
        head, skipped = found.head, found.head.messages - found.messages
        byte = found.byte + skip_frames(found.data(), head.frames_offset, skipped + limit)
        known = _BatchEnd(found.start, head.number + skipped + limit)
        return self._remember(Position(found.segment.number, byte), known)

    def _remember(self, position: Position, known: _BatchEnd) -> Position:
        self._batch_ends.pop(position, None)
        self._batch_ends[position] = known
        while len(self._batch_ends) > _REMEMBERED_BATCHES:
            del self._batch_ends[next(iter(self._batch_ends))]
        return position

    def _records(self, start: Position) -> Iterator[_FoundRecord]:
        """Yield each record with messages after *start*."""
        self.check(start)
        # A list of its own: the thread that appends may add a segment during the iteration.
        for segment in [each for each in self._segments if each.number >= start.segment]:
            first = Position(segment.number, SEGMENT_HEAD_BYTES)
            fd = os.open(segment.path, os.O_RDONLY)
            try:
                yield from self._records_of(segment, fd, max(start, first))
            finally:
                os.close(fd)

    def _records_of(self, segment: Segment, fd: int, start: Position) -> Iterator[_FoundRecord]:
        if start.byte >= segment.end:
            return
        is_written = segment is self._segments[-1]
        # A batch usually starts where the last one ended: search from there, not from the start.
        known = self._batch_ends.get(start)
        first = SEGMENT_HEAD_BYTES if known is None else known.record.byte
        number = None
        for at, head in segment.records(fd, first):
            number = head.number + head.messages
            if at >= start.byte:
                yield _FoundRecord(segment, fd, at, head, head.messages)
            elif at + head.record_size_bytes > start.byte:
                data, skipped = segment.record(fd, at, head), start.byte - at
                count = count_frames(data, skipped, head.record_size_bytes)
                if count is None or skipped < head.frames_offset:
                    raise SpoolDamaged(segment.path, start.byte, "no message starts there")
                yield _FoundRecord(segment, fd, at, head, count)
        # The next segment's header has the number of messages that this one must have.
        if not is_written and number is not None and number != segment.last:
            raise SpoolDamaged(segment.path, segment.end, "records are missing from its end")

    def read(self, start: Position, end: Position) -> Iterator[Frames]:
        """
        Yield the frames between two positions, in order.

        Raises:
            SpoolDamaged, SpoolLost: The frames are missing, or are not as they were written.
        """
        self.check(end)
        for found in self._records(start):
            if found.start >= end:
                return
            data, head = found.data(), found.head
            # The range may begin and end inside a record, which `cut` splits if it is too large.
            first = (
                head.frames_offset if found.messages == head.messages else start.byte - found.byte
            )
            last = head.record_size_bytes if found.end <= end else end.byte - found.byte
            names = names_of(data, 0, head)
            yield Frames(names.topic, names.nsqd, head.received_us, data[first:last])
            if found.end >= end:
                return

    def _segment(self, position: Position) -> Segment:
        return self._segments[position.segment - self._segments[0].number]

    def check(self, position: Position) -> None:
        """Raise SpoolLost if *position* is not in this spool."""
        folder, first, end = self._options.folder, self._segments[0].number, self.end
        if position.segment < first:
            raise SpoolLost(
                f"the checkpoint continues in segment {position.segment}, but the spool {folder} "
                f"starts with segment {first}. nsqd will not send the messages between the two "
                "again: they are lost unless the folder is restored from a copy. To continue with "
                "the messages that are left, start with a new checkpoint"
            )
        known = position.segment <= end.segment and position.byte <= self._segment(position).end
        if not known:
            raise SpoolLost(
                f"the checkpoint continues at byte {position.byte} of segment {position.segment}, "
                f"but the spool {folder} ends at byte {end.byte} of segment {end.segment}: it is "
                "another spool, or lost its end with messages finished at nsqd. Name the right "
                "folder (spoolDir), or start with a new checkpoint to read all that is left"
            )

    # Removing segments

    def release(self, position: Position) -> None:
        """
        Mark the messages before *position* as no longer needed, and remove segments of such ones.

        A segment is kept for the retention time, but not if the spool is at its size limit.
        """
        self._released = max(self._released, position)
        now = time.monotonic()
        while len(self._segments) > 1:
            segment = self._segments[0]
            if segment.number >= self._released.segment:
                return  # a checkpoint refers to this segment, so it stays
            segment.released_at = segment.released_at or now
            has_time = now - segment.released_at < self._options.retention_s
            if has_time and self.size_bytes < self._options.max_bytes:
                return
            # First the list, then the file: a reader must not find a segment without a file.
            with self._changed:
                self._segments.pop(0)
            segment.path.unlink(missing_ok=True)

    @property
    def oldest_needed_us(self) -> int | None:
        """Arrival time of the oldest message still needed, µs since 1970; None if there is none."""
        start = max(self._released, self.start)
        return next((found.head.received_us for found in self._records(start)), None)
