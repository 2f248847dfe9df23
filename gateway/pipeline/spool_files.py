"""The files of a spool: one segment at a time is written, the others are read until they go."""

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
from gateway.pipeline.spool_records import (
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
_LOCK_TRY_S = 0.05
_MOST_VECTORS = 1_000
"""Of one call of the system, which takes 1 024."""


class SpoolDamaged(GatewayError):
    """What was durable is not there any more, or not as it was; the text says what to do."""

    def __init__(self, path: Path, byte: int, reason: str) -> None:
        super().__init__(
            f"the spool is damaged: {path} at byte {byte}: {reason}. What stands before it is "
            "whole. Bring the file back from a copy; or take it and the later ones away, begin "
            "with a new checkpoint, and publish again what they held"
        )
        self.path = path
        self.byte = byte


class SpoolLost(GatewayError):
    """A checkpoint names what the spool does not have; the text says what to do."""


class Segment:
    """One file: its head, and how much of it is durable."""

    __slots__ = ("end", "head", "last", "path", "released_at")

    def __init__(self, path: Path, head: SegmentHead, end: int, last: int) -> None:
        self.path = path
        self.head = head
        self.end = end
        """Up to where it is durable, in bytes."""
        self.last = last
        """Messages of the spool up to its end."""
        self.released_at: float | None = None
        """Since when nobody needs it, monotonic seconds."""

    @property
    def number(self) -> int:
        """Return its number; later ones have larger ones, without a gap."""
        return self.head.segment

    def records(self, fd: int, byte: int) -> Iterator[tuple[int, RecordHead]]:
        """
        Give where each record begins and its head, from the record at *byte* on.

        Raises:
            SpoolDamaged: There is none where one should be.
        """
        while byte < self.end:
            head = read_record_head(os.pread(fd, RECORD_HEAD_BYTES, byte))
            if head is None or byte + head.size_bytes > self.end:
                raise SpoolDamaged(self.path, byte, "no record stands there")
            yield byte, head
            byte += head.size_bytes

    def record(self, fd: int, byte: int, head: RecordHead) -> bytes:
        """Return the record at *byte*; raises SpoolDamaged where it is not as it was written."""
        data = os.pread(fd, head.size_bytes, byte)
        if not is_whole(data, 0, head, self.head.salt):
            raise SpoolDamaged(self.path, byte, "a record is not as it was written")
        return data


def free_bytes(folder: Path) -> int:
    """Return what the disk of *folder* has left for us; -1 where it does not say."""
    try:
        told = os.statvfs(folder)
    except OSError:
        return -1
    return told.f_bavail * told.f_frsize


def lock_folder(folder: Path, wait_s: float) -> int:
    """
    Make *folder* and take it for this process, until the file that is returned is closed.

    Raises:
        StartError: It cannot be used, or another process has it for longer than *wait_s*.
    """
    until = time.monotonic() + wait_s
    try:
        new = [each for each in (folder, *folder.parents) if not each.exists()]
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for each in new:
            sync_folder(each.parent)
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise unusable(folder, error) from error
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                os.close(lock)
                raise StartError(
                    f"the spool {folder} is another process's, and was for {wait_s:g} s; each "
                    "stream needs a folder of its own (spoolDir), and one process at a time"
                ) from None
            time.sleep(_LOCK_TRY_S)  # an earlier process of the same query is about to end
        except OSError as error:
            os.close(lock)
            raise unusable(folder, error) from error
        else:
            return lock


def unusable(folder: Path, error: OSError) -> StartError:
    """Return what *error* means for a spool in *folder*."""
    return StartError(
        f"the spool {folder} cannot be used ({error.strerror}); spoolDir names a folder on a disk "
        "that lasts, and that this user may write to"
    )


def open_segments(folder: Path) -> list[Segment]:
    """
    Return the segments of *folder* in order, the torn end of the last one cut.

    Raises:
        SpoolDamaged: A segment is missing, or something that was durable is not as it was.
        StartError: They cannot be read.
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
                path.unlink()  # the crash came while it was made: nothing was ever in it
                break
            raise SpoolDamaged(path, 0, "it does not begin as a segment of this name does")
        if segments and head.segment != segments[-1].number + 1:
            raise SpoolDamaged(path, 0, f"the segment before it, {head.segment - 1}, is missing")
        if segments:
            segments[-1].last = head.first
        segments.append(Segment(path, head, size_bytes, head.first))
    if segments:
        _cut_torn_end(segments[-1])
    return segments


def _cut_torn_end(segment: Segment) -> None:
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
    logger.warning("the torn end of a spool is cut", path=str(segment.path), bytes=torn_bytes)


def _name(number: int) -> str:
    return f"{number:020d}.spool"


class Writer:
    """The segment that is written to; durable is what `Segment.end` says."""

    def __init__(self, segment: Segment, fd: int) -> None:
        self.segment = segment
        self._fd = fd
        self._is_torn = False
        """Whether something may stand behind the end."""

    @classmethod
    def create(cls, folder: Path, number: int, first: int) -> Writer:
        """Make a segment that is there after a crash too; raises OSError, and leaves none."""
        head = SegmentHead(number, first, secrets.randbits(32))
        path = folder / _name(number)
        with contextlib.suppress(FileNotFoundError):  # else what a failed try could not undo
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
    def reopen(cls, segment: Segment) -> Writer:
        """Go on in *segment*, whose end is not torn; raises OSError."""
        return cls(segment, os.open(segment.path, os.O_RDWR))

    def append(self, vectors: Sequence[bytes], count: int) -> None:
        """
        Write *vectors*, which hold *count* messages, behind the end; durable when it returns.

        Raises:
            OSError: It is not; what was written of them is cut off, now or at the next `mend`.
        """
        self.mend()
        try:
            end = _write_all(self._fd, vectors, self.segment.end)
            os.fdatasync(self._fd)
        except OSError:
            self._is_torn = True
            with contextlib.suppress(OSError):
                self.mend()
            raise
        self.segment.last += count
        self.segment.end = end

    def mend(self) -> None:
        """Cut off what a failed `append` has left; raises OSError."""
        if self._is_torn:
            os.ftruncate(self._fd, self.segment.end)
            os.fsync(self._fd)
            self._is_torn = False

    def try_room(self, size_bytes: int) -> None:
        """Raise OSError unless the disk takes so much more."""
        self.mend()
        self._is_torn = True
        os.posix_fallocate(self._fd, self.segment.end, size_bytes)
        self.mend()

    def close(self) -> None:
        """Write no more."""
        os.close(self._fd)


def sync_folder(folder: Path) -> None:
    """Make durable which files there are; raises OSError."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _write_all(fd: int, vectors: Sequence[bytes], offset: int) -> int:
    """Write *vectors* from *offset* on; return where they end."""
    left: list[bytes | memoryview] = list(vectors)
    first = 0
    while first < len(left):
        written = os.pwritev(fd, left[first : first + _MOST_VECTORS], offset)
        offset += written
        while first < len(left) and written >= len(left[first]):
            written -= len(left[first])
            first += 1
        if written:
            left[first] = memoryview(left[first])[written:]
    return offset
