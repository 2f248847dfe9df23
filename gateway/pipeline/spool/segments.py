"""The segment files of a spool: the last is appended to, earlier ones are read and removed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from gateway.errors import GatewayError, StartError
from gateway.pipeline.spool.records import (
    RECORD_HEAD_BYTES,
    SEGMENT_HEAD_BYTES,
    RecordHead,
    SegmentHead,
    is_whole,
    read_record_head,
    read_segment_head,
    scan,
)
from gateway.telemetry import get_logger

logger = get_logger()

_NAME = re.compile(r"[0-9]{20}\.spool")
_LOCK = "lock"
_LOCK_RETRY_S = 0.05
_MAX_VECTORS = 1_000
"""Maximum buffers of one system call; Linux allows 1 024 (IOV_MAX)."""


class SpoolDamaged(GatewayError):
    """Durable data is missing or changed; the text has instructions to recover."""

    def __init__(self, path: Path, byte: int, reason: str) -> None:
        super().__init__(
            f"the spool is damaged: {path} at byte {byte}: {reason}. Everything before that byte "
            "is intact. Restore the file from a copy; or remove it and the later ones, start with "
            "a new checkpoint, and publish their messages again"
        )
        self.path = path
        self.byte = byte


class SpoolLost(GatewayError):
    """A checkpoint refers to a position that is not in the spool; the text says what to do."""


class Segment:
    """One segment file: its header, durable size, and number of messages."""

    __slots__ = ("end", "head", "last", "path", "released_at")

    def __init__(self, path: Path, head: SegmentHead, end: int, last: int) -> None:
        self.path = path
        self.head = head
        self.end = end
        """Durable size in bytes."""
        self.last = last
        """Number of messages in the spool up to the end of this segment."""
        self.released_at: float | None = None
        """Monotonic time at which the segment was released; None while it is needed."""

    @property
    def number(self) -> int:
        """Number of the segment; numbers are consecutive."""
        return self.head.segment

    def records(self, fd: int, byte: int) -> Iterator[tuple[int, RecordHead]]:
        """
        Yield offset and header of each record, from the one that starts at *byte*.

        Raises:
            SpoolDamaged: There is no record where one must start.
        """
        while byte < self.end:
            head = read_record_head(os.pread(fd, RECORD_HEAD_BYTES, byte))
            if head is None or byte + head.record_size_bytes > self.end:
                raise SpoolDamaged(self.path, byte, "a record is missing")
            yield byte, head
            byte += head.record_size_bytes

    def record(self, fd: int, byte: int, head: RecordHead) -> bytes:
        """Return the record at *byte*; raises SpoolDamaged if it is not as it was written."""
        data = os.pread(fd, head.record_size_bytes, byte)
        if not is_whole(data, 0, head, self.head.salt):
            raise SpoolDamaged(self.path, byte, "a record is not as it was written")
        return data


def free_bytes(folder: Path) -> int:
    """Return the free bytes on the disk of *folder* for this user; -1 if unknown."""
    try:
        stats = os.statvfs(folder)
    except OSError:
        return -1
    return stats.f_bavail * stats.f_frsize


def lock_folder(folder: Path, wait_s: float) -> int:
    """
    Create *folder* and lock it, until the returned file descriptor is closed.

    Raises:
        StartError: The folder cannot be used, or another process has it locked for *wait_s*.
    """
    until = time.monotonic() + wait_s
    try:
        new = [each for each in (folder, *folder.parents) if not each.exists()]
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # A new folder is durable only once its parent is synced.
        for each in new:
            sync_folder(each.parent)
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise unusable(folder, error) from error
    while True:
        try:
            # The kernel unlocks it when the process dies, in whatever way.
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                os.close(lock)
                raise StartError(
                    f"the spool {folder} is in use by another process, and was for {wait_s:g} s; "
                    "each stream needs its own folder (spoolDir), and one process at a time"
                ) from None
            time.sleep(_LOCK_RETRY_S)  # an earlier process of the same query may be about to exit
        except OSError as error:
            os.close(lock)
            raise unusable(folder, error) from error
        else:
            return lock


def unusable(folder: Path, error: OSError) -> StartError:
    """Return a StartError for *error* in *folder*, with advice."""
    return StartError(
        f"the spool {folder} cannot be used ({error.strerror}); spoolDir must name a folder on a "
        "persistent disk that this user may write to"
    )


def open_segments(folder: Path) -> list[Segment]:
    """
    Return the segments of *folder* in order; cut off a torn tail of the last one.

    Raises:
        SpoolDamaged: A segment is missing, or durable data changed.
        StartError: The files cannot be read.
    """
    try:
        paths = sorted(path for path in folder.iterdir() if _NAME.fullmatch(path.name))
        return _read_segments(paths)
    except OSError as error:
        raise unusable(folder, error) from error


def _read_segments(paths: Sequence[Path]) -> list[Segment]:
    segments: list[Segment] = []
    for path in paths:
        is_last = path == paths[-1]
        size_bytes = path.stat().st_size
        with path.open("rb") as file:
            head = read_segment_head(file.read(SEGMENT_HEAD_BYTES))
        if head is None or path.name != _name(head.segment):
            if is_last and size_bytes <= SEGMENT_HEAD_BYTES:
                path.unlink()  # it was being created when the process died, and is empty
                break
            raise SpoolDamaged(path, 0, "its header does not match its name")
        if segments and head.segment != segments[-1].number + 1:
            raise SpoolDamaged(path, 0, f"the segment before it, {head.segment - 1}, is missing")
        # A header counts the messages before it, so earlier segments need not be read. Only the
        # last one can end in a torn record: a segment is whole before the next one is created.
        if segments:
            segments[-1].last = head.first
        segments.append(Segment(path, head, size_bytes, head.first))
    if segments:
        _cut_torn_end(segments[-1])
    return segments


def _cut_torn_end(segment: Segment) -> None:
    """Truncate *segment* after its last valid record; raises SpoolDamaged for durable damage."""
    data = segment.path.read_bytes()
    found = scan(data, segment.head)
    if found.damage is not None:
        raise SpoolDamaged(segment.path, found.damage, "a record is not as it was written")
    segment.end, segment.last = found.end, found.number
    if found.end == len(data):
        return
    fd = os.open(segment.path, os.O_RDWR)
    try:
        os.ftruncate(fd, found.end)
        os.fsync(fd)
    finally:
        os.close(fd)
    torn_bytes = len(data) - found.end
    logger.warning(
        "spool: incomplete last record removed", path=str(segment.path), bytes=torn_bytes
    )


def _name(number: int) -> str:
    return f"{number:020d}.spool"


class Writer:
    """Append to the last segment; `Segment.end` is the durable size."""

    def __init__(self, segment: Segment, fd: int) -> None:
        self.segment = segment
        self._fd = fd
        self._is_torn = False
        """True if bytes of a failed write may follow the durable end."""

    @classmethod
    def create(cls, folder: Path, number: int, first: int) -> Writer:
        """Create a segment, durable on return; after an OSError no file is left."""
        head = SegmentHead(number, first, secrets.randbits(32))
        path = folder / _name(number)
        with contextlib.suppress(FileNotFoundError):  # a leftover of a failed attempt
            if path.stat().st_size <= SEGMENT_HEAD_BYTES:
                path.unlink()
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            _write_all(fd, [head.encode()], 0)
            os.fsync(fd)
            sync_folder(folder)
        except BaseException:
            os.close(fd)
            path.unlink()
            raise
        return cls(Segment(path, head, SEGMENT_HEAD_BYTES, first), fd)

    @classmethod
    def open_existing(cls, segment: Segment) -> Writer:
        """Continue *segment*, which must not have a torn tail; raises OSError."""
        return cls(segment, os.open(segment.path, os.O_RDWR))

    def append(self, vectors: Sequence[bytes], count: int) -> None:
        """
        Append *vectors*, with *count* messages; they are durable on return.

        Raises:
            OSError: Nothing is appended; a partial write is cut off now or by the next `truncate`.
        """
        self.truncate()
        try:
            end = _write_all(self._fd, vectors, self.segment.end)
            os.fdatasync(self._fd)
        except OSError:
            self._is_torn = True
            with contextlib.suppress(OSError):
                self.truncate()
            raise
        # `end` last: another thread reads up to it, and then counts by `last`.
        self.segment.last += count
        self.segment.end = end

    def truncate(self) -> None:
        """Cut off a partial write of a failed `append`, if any; raises OSError."""
        if self._is_torn:
            os.ftruncate(self._fd, self.segment.end)
            os.fsync(self._fd)
            self._is_torn = False

    def check_space(self, size_bytes: int) -> None:
        """Raise OSError unless the disk has *size_bytes* free."""
        self.truncate()
        # Allocate the space, because statvfs does not report a user's quota. This also makes the
        # file longer, so it has to be cut off again, even if the allocation fails in the middle.
        self._is_torn = True
        os.posix_fallocate(self._fd, self.segment.end, size_bytes)
        self.truncate()

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


def sync_folder(folder: Path) -> None:
    """Make the entries of *folder* durable; raises OSError."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _write_all(fd: int, vectors: Sequence[bytes], offset: int) -> int:
    """Write *vectors* at *offset*; return the offset after them."""
    left: list[bytes | memoryview] = list(vectors)
    first = 0
    while first < len(left):
        written = os.pwritev(fd, left[first : first + _MAX_VECTORS], offset)
        offset += written
        # A write may be partial: skip the buffers that are written, and continue in the next one.
        while first < len(left) and written >= len(left[first]):
            written -= len(left[first])
            first += 1
        if written:
            left[first] = memoryview(left[first])[written:]
    return offset
