"""
PURE. Messages as the broker sent them, for who hands them on and decodes them elsewhere.

Finding where a frame ends and what its id is takes a third of making a `Message` of it.
"""

from __future__ import annotations

import struct

import msgspec

from gateway.protocol.wire import FRAME_MESSAGE, MESSAGE_FRAME_HEAD

_HEAD_BYTES = MESSAGE_FRAME_HEAD.size
_LEAST_SIZE = _HEAD_BYTES - 4
_ALIKE = 4
"""After so many frames of one size in a row the next ones are tried as a table."""


class RawMessages(msgspec.Struct, frozen=True):
    """Messages that came in a row, at least one, in order."""

    data: bytes
    """Their frames, whole, and nothing else."""
    ids: list[bytes]
    """Of each, 16 bytes."""


def find_messages(data: bytes, offset: int, ids: list[bytes]) -> int:
    """
    Append to *ids* those of the messages whose frames stand in *data* from *offset* on, in a row.

    Returns where the last of them ends: there *data* ends, or something else begins, or a frame
    that is not complete.
    """
    unpack = MESSAGE_FRAME_HEAD.unpack_from
    end = len(data)
    last = end - _HEAD_BYTES
    size_before, alike = 0, 0
    while offset <= last:
        size, kind, _, _, message_id = unpack(data, offset)
        behind = offset + 4 + size
        if kind != FRAME_MESSAGE or behind > end or size < _LEAST_SIZE:
            break
        ids.append(message_id)
        offset = behind
        if size != size_before:
            size_before, alike = size, 0
            continue
        alike += 1
        if alike == _ALIKE:
            alike = 0
            offset = _find_alike(data, offset, size, ids)
    return offset


def _find_alike(data: bytes, offset: int, size: int, ids: list[bytes]) -> int:
    """Append those from *offset* on whose frames have this *size*: as a table, in half the time."""
    frame_bytes = 4 + size
    stop = offset + (len(data) - offset) // frame_bytes * frame_bytes
    layout = f">II10x16s{size - _LEAST_SIZE}x"
    for each_size, kind, message_id in struct.iter_unpack(layout, memoryview(data)[offset:stop]):
        if each_size != size or kind != FRAME_MESSAGE:
            break
        ids.append(message_id)
        offset += frame_bytes
    return offset


def split_messages(messages: RawMessages, count: int) -> tuple[RawMessages, RawMessages]:
    """Return the first *count* of *messages*, and the rest; both have some."""
    data, offset = messages.data, 0
    for _ in range(count):
        offset += 4 + int.from_bytes(data[offset : offset + 4], "big")
    return (
        RawMessages(data[:offset], messages.ids[:count]),
        RawMessages(data[offset:], messages.ids[count:]),
    )
