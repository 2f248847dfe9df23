"""
PURE. The bytes of a spool: segments of records, and how far they hold after a crash.

A segment is a head, then records. A record is what one source brought, frames of nsqd as they
came, behind a head that says whose they are and how many. Each has a checksum that begins with a
number drawn for the segment, so that no message can pass for a record.

A group of records becomes durable as one, so a crash may leave any part of the last group behind:
its tail is torn, and is cut. What a record says of `durable` tells this from damage: a record that
was durable before a later one was written is never cut.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple
from zlib import crc32

MAGIC = b"NSQSPOOL"
_VERSION = 1
_SEGMENT_HEAD = struct.Struct(">8sIIQQI")
"""Magic, version, salt, number of the segment, messages before it, checksum of all that."""
_MARK = b"\xabREC"
_CHECKED_FROM = 8
"""What stands before it in a record is the mark and the checksum itself."""
_RECORD_HEAD = struct.Struct(">4sIIIQQQHH")
"""Mark, checksum, bytes of frames, count, number, durable, received, bytes of topic and nsqd."""
_LENGTH = struct.Struct(">I")

SEGMENT_HEAD_BYTES = _SEGMENT_HEAD.size
RECORD_HEAD_BYTES = _RECORD_HEAD.size


class Position(NamedTuple):
    """A place between two messages of a spool."""

    segment: int
    byte: int


class SegmentHead(NamedTuple):
    """What stands before the records of a segment."""

    segment: int
    """Its number."""
    first: int
    """Messages of the spool that stand in segments before it."""
    salt: int
    """Where the checksums of its records begin, 32 bits."""

    def encode(self) -> bytes:
        """Return its bytes, `SEGMENT_HEAD_BYTES` of them."""
        head = _SEGMENT_HEAD.pack(MAGIC, _VERSION, self.salt, self.segment, self.first, 0)[:-4]
        return head + _LENGTH.pack(crc32(head))


def read_segment_head(data: bytes) -> SegmentHead | None:
    """Return the head that *data* begins with; None where that is none, or not all of it."""
    if len(data) < SEGMENT_HEAD_BYTES:
        return None
    magic, version, salt, segment, first, checksum = _SEGMENT_HEAD.unpack_from(data)
    is_ours = magic == MAGIC and version == _VERSION
    if not is_ours or checksum != crc32(data[: SEGMENT_HEAD_BYTES - 4]):
        return None
    return SegmentHead(segment, first, salt)


class RecordHead(NamedTuple):
    """What stands before the frames of a record, without its names."""

    checksum: int
    data_bytes: int
    """Of its frames."""
    messages: int
    """How many stand in it."""
    number: int
    """Messages of the spool that stand before it."""
    durable: int
    """Up to where the segment was durable when it was written, in bytes."""
    received_us: int
    """When its messages came, us since 1970."""
    topic_bytes: int
    nsqd_bytes: int

    @property
    def frames_from(self) -> int:
        """Where its frames begin, in bytes from where it begins."""
        return RECORD_HEAD_BYTES + self.topic_bytes + self.nsqd_bytes

    @property
    def size_bytes(self) -> int:
        """Of all of it."""
        return self.frames_from + self.data_bytes


class Names(NamedTuple):
    """Whose messages stand in a record."""

    topic: str
    nsqd: str
    """Host:port."""


class Place(NamedTuple):
    """Where a record stands, and when it came."""

    number: int
    durable: int
    received_us: int


def encode_record(
    names: Names, place: Place, parts: Sequence[bytes], count: int, salt: int
) -> bytes:
    """Return what stands before the frames *parts*, *count* messages, which follow as they are."""
    written = names.topic.encode() + names.nsqd.encode()
    head = _RECORD_HEAD.pack(
        _MARK,
        0,
        sum(map(len, parts)),
        count,
        place.number,
        place.durable,
        place.received_us,
        len(names.topic),
        len(written) - len(names.topic),
    )
    checked = head[_CHECKED_FROM:] + written
    checksum = crc32(checked, salt)
    for part in parts:
        checksum = crc32(part, checksum)
    return _MARK + _LENGTH.pack(checksum) + checked


def read_record_head(data: bytes, offset: int = 0) -> RecordHead | None:
    """Return the head at *offset*; None where there is none, or not all. Nothing is checked."""
    if offset + RECORD_HEAD_BYTES > len(data):
        return None
    mark, *fields = _RECORD_HEAD.unpack_from(data, offset)
    return RecordHead(*fields) if mark == _MARK else None


def is_whole(data: bytes, offset: int, head: RecordHead, salt: int) -> bool:
    """Tell whether the record at *offset*, which begins with *head*, is all there and as it was."""
    behind = offset + head.size_bytes
    if behind > len(data):
        return False
    return crc32(memoryview(data)[offset + _CHECKED_FROM : behind], salt) == head.checksum


def names_of(data: bytes, offset: int, head: RecordHead) -> Names:
    """Return whose messages stand in the record at *offset*, which is whole."""
    at = offset + RECORD_HEAD_BYTES
    behind = at + head.topic_bytes
    return Names(data[at:behind].decode(), data[behind : behind + head.nsqd_bytes].decode())


class Scan(NamedTuple):
    """What a segment comes to after a crash."""

    end: int
    """Where its last record ends that holds, in bytes; what stands behind is torn."""
    number: int
    """Messages of the spool up to there."""
    damage: int | None
    """Where something is wrong that was durable, in bytes; None: nowhere."""


def scan(data: bytes, head: SegmentHead) -> Scan:
    """Look through *data*, a whole segment that begins with *head*."""
    offset, number = SEGMENT_HEAD_BYTES, head.first
    while (record := read_record_head(data, offset)) is not None:
        if record.number != number or not is_whole(data, offset, record, head.salt):
            break
        offset += record.size_bytes
        number += record.messages
    was_durable = offset < len(data) and _is_known_durable(data, offset, head.salt)
    return Scan(offset, number, offset if was_durable else None)


def _is_known_durable(data: bytes, fault: int, salt: int) -> bool:
    """Tell whether a whole record behind *fault* says that the byte there was durable before."""
    at = data.find(_MARK, fault + 1)
    while at >= 0:
        record = read_record_head(data, at)
        if record is not None and fault < record.durable <= at and is_whole(data, at, record, salt):
            return True
        at = data.find(_MARK, at + 1)
    return False


def behind_frames(data: bytes, offset: int, count: int) -> int:
    """Return where *count* frames end that begin at *offset*."""
    for _ in range(count):
        offset += 4 + _LENGTH.unpack_from(data, offset)[0]
    return offset


def count_frames(data: bytes, offset: int, end: int) -> int | None:
    """Return how many frames stand from *offset* to *end*; None where none ends there."""
    count = 0
    while offset < end:
        offset += 4 + _LENGTH.unpack_from(data, offset)[0] if offset + 4 <= end else end + 1
        count += 1
    return count if offset == end else None
