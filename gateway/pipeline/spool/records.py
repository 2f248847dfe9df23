"""
PURE. The file format of a spool: encode and parse segments, and check them after a crash.

A segment is a header followed by records. A record is a header with topic, nsqd and count, followed
by message frames from one connection, as received. Each checksum starts from a random salt of the
segment, so that no message body can pass for a record.

A group of records is written and made durable as a whole, so a crash may leave any part of the last
group. This torn tail is cut off. The `durable` field of a later record tells a torn tail from
damage: bytes that were durable before a later record was written are never cut off.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple
from zlib import crc32

MAGIC = b"NSQSPOOL"
_VERSION = 1
_SEGMENT_HEAD = struct.Struct(">8sIIQQI")
"""Magic, version, salt, segment number, number of messages before it, checksum of these."""
_MARK = b"\xabREC"
_CHECKED_FROM = 8
"""Offset from which the checksum covers a record: after the mark and the checksum itself."""
_RECORD_HEAD = struct.Struct(">4sIIIQQQHH")
"""Mark, and the fields of `RecordHead`."""
_LENGTH = struct.Struct(">I")

SEGMENT_HEAD_BYTES = _SEGMENT_HEAD.size
RECORD_HEAD_BYTES = _RECORD_HEAD.size


class Position(NamedTuple):
    """A position between two messages of a spool."""

    segment: int
    """Number of the segment."""
    byte: int
    """Offset in the segment's file."""


class SegmentHead(NamedTuple):
    """The header of a segment."""

    segment: int
    """Number of the segment."""
    first: int
    """Number of messages in earlier segments."""
    salt: int
    """Start value for the checksums of its records, 32 bits."""

    def encode(self) -> bytes:
        """Return the header as bytes, `SEGMENT_HEAD_BYTES` long."""
        # Without the last field, the checksum of those before it.
        head = _SEGMENT_HEAD.pack(MAGIC, _VERSION, self.salt, self.segment, self.first, 0)[:-4]
        return head + _LENGTH.pack(crc32(head))


def read_segment_head(data: bytes) -> SegmentHead | None:
    """Parse the segment header at the start of *data*; None if it is incomplete or invalid."""
    if len(data) < SEGMENT_HEAD_BYTES:
        return None
    magic, version, salt, segment, first, checksum = _SEGMENT_HEAD.unpack_from(data)
    is_ours = magic == MAGIC and version == _VERSION
    if not is_ours or checksum != crc32(data[: SEGMENT_HEAD_BYTES - 4]):
        return None
    return SegmentHead(segment, first, salt)


class RecordHead(NamedTuple):
    """The header of a record, without the names that follow it."""

    checksum: int
    data_bytes: int
    """Size of the frames."""
    messages: int
    """Number of messages."""
    number: int
    """Number of messages in the spool before this record."""
    durable: int
    """Size up to which the segment was durable when this record was written, in bytes."""
    received_us: int
    """Arrival time of its messages, µs since 1970."""
    topic_bytes: int
    nsqd_bytes: int

    @property
    def frames_offset(self) -> int:
        """Offset of the frames from the start of the record."""
        return RECORD_HEAD_BYTES + self.topic_bytes + self.nsqd_bytes

    @property
    def record_size_bytes(self) -> int:
        """Size of the whole record."""
        return self.frames_offset + self.data_bytes


class Names(NamedTuple):
    """Topic and nsqd of the messages in a record."""

    topic: str
    nsqd: str
    """Address of the nsqd, host:port."""


class RecordPosition(NamedTuple):
    """The fields of a `RecordHead` that depend on where and when the record is written."""

    number: int
    durable: int
    received_us: int


def encode_record(
    names: Names, position: RecordPosition, parts: Sequence[bytes], count: int, salt: int
) -> bytes:
    """
    Return the header of a record and its names, without the frames.

    The caller writes *parts* after it, which contain *count* frames.
    """
    written = names.topic.encode() + names.nsqd.encode()
    head = _RECORD_HEAD.pack(
        _MARK,
        0,
        sum(map(len, parts)),
        count,
        position.number,
        position.durable,
        position.received_us,
        len(names.topic),
        len(written) - len(names.topic),
    )
    # The salt starts the checksum: a body copied from another segment's record cannot match it.
    checked = head[_CHECKED_FROM:] + written
    checksum = crc32(checked, salt)
    for part in parts:
        checksum = crc32(part, checksum)
    return _MARK + _LENGTH.pack(checksum) + checked


def read_record_head(data: bytes, offset: int = 0) -> RecordHead | None:
    """Parse the record header at *offset*, or return None; the checksum is not checked."""
    if offset + RECORD_HEAD_BYTES > len(data):
        return None
    mark, *fields = _RECORD_HEAD.unpack_from(data, offset)
    return RecordHead(*fields) if mark == _MARK else None


def is_whole(data: bytes, offset: int, head: RecordHead, salt: int) -> bool:
    """Return True if the record at *offset* with header *head* is complete and undamaged."""
    end = offset + head.record_size_bytes
    if end > len(data):
        return False
    return crc32(memoryview(data)[offset + _CHECKED_FROM : end], salt) == head.checksum


def names_of(data: bytes, offset: int, head: RecordHead) -> Names:
    """Return topic and nsqd of the complete record at *offset*."""
    at = offset + RECORD_HEAD_BYTES
    end = at + head.topic_bytes
    return Names(data[at:end].decode(), data[end : end + head.nsqd_bytes].decode())


class Scan(NamedTuple):
    """The part of a segment that is valid after a crash."""

    end: int
    """End of the last valid record, in bytes; the rest is torn or damaged."""
    number: int
    """Number of messages in the spool up to *end*."""
    damage: int | None
    """Offset of damage in durable bytes; None if there is none."""


def scan(data: bytes, head: SegmentHead) -> Scan:
    """Find the last valid record in *data*, the whole file of a segment, and any damage."""
    offset, number = SEGMENT_HEAD_BYTES, head.first
    while (record := read_record_head(data, offset)) is not None:
        if record.number != number or not is_whole(data, offset, record, head.salt):
            break
        offset += record.record_size_bytes
        number += record.messages
    # Bytes behind the last valid record are a torn tail, unless they are known to be durable.
    was_durable = offset < len(data) and _is_known_durable(data, offset, head.salt)
    return Scan(offset, number, offset if was_durable else None)


def _is_known_durable(data: bytes, fault: int, salt: int) -> bool:
    """Return True if a later valid record proves that the byte at *fault* was durable."""
    # The mark may also be in a message body; the checksum tells a record from that.
    at = data.find(_MARK, fault + 1)
    while at >= 0:
        record = read_record_head(data, at)
        # A record can state only what was durable before it, so at most up to its own start.
        if record is not None and fault < record.durable <= at and is_whole(data, at, record, salt):
            return True
        at = data.find(_MARK, at + 1)
    return False


def skip_frames(data: bytes, offset: int, count: int) -> int:
    """Return the offset behind *count* frames, the first of which starts at *offset*."""
    for _ in range(count):
        offset += 4 + _LENGTH.unpack_from(data, offset)[0]
    return offset


def count_frames(data: bytes, offset: int, end: int) -> int | None:
    """Return the number of frames from *offset* to *end*; None if no frame ends at *end*."""
    count = 0
    while offset < end:
        # A size field that *end* cuts off: go beyond *end*, so that the result is None.
        offset += 4 + _LENGTH.unpack_from(data, offset)[0] if offset + 4 <= end else end + 1
        count += 1
    return count if offset == end else None
