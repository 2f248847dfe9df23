"""
What a broker says: responses, errors and messages.

Layout of a frame, big-endian: uint32 size (of type and data), uint32 type, data.
Source: the protocol specification, section Data Format; nsqd/message.go.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import msgspec

from gateway.errors import RemoteProtocolError
from gateway.protocol.wire import (
    FRAME_ERROR,
    FRAME_HEAD,
    FRAME_MESSAGE,
    FRAME_RESPONSE,
    HEARTBEAT,
    MESSAGE_FRAME_HEAD,
    MESSAGE_HEAD,
)

NON_FATAL_CODES = frozenset({"E_FIN_FAILED", "E_REQ_FAILED", "E_TOUCH_FAILED"})
"""After an error frame with any other code nsqd closes the connection."""


class Message(msgspec.Struct, gc=False):
    """A message as one channel delivers it."""

    timestamp_ns: int
    """Time of publishing, ns since 1970 on the broker's clock."""
    attempts: int
    """Deliveries so far on this channel, this one included."""
    id: bytes
    """16 bytes; the same on every channel of the topic and at every redelivery."""
    body: bytes


class Response(msgspec.Struct, frozen=True, gc=False):
    """The answer to a command (``OK``, ``CLOSE_WAIT``, JSON), or a heartbeat."""

    data: bytes

    def encode(self) -> bytes:
        """Return the frame."""
        return FRAME_HEAD.pack(len(self.data) + 4, FRAME_RESPONSE) + self.data


class ErrorFrame(msgspec.Struct, frozen=True, gc=False):
    """A refusal: NSQ's code and what the broker says about it."""

    code: str
    description: str

    @property
    def is_fatal(self) -> bool:
        """Whether nsqd closes the connection behind this frame."""
        return self.code not in NON_FATAL_CODES

    def encode(self) -> bytes:
        """Return the frame; a code without description stands alone."""
        data = f"{self.code} {self.description}" if self.description else self.code
        payload = data.encode("utf-8", "surrogateescape")
        return FRAME_HEAD.pack(len(payload) + 4, FRAME_ERROR) + payload


_MESSAGE_FRAME_HEAD_BYTES = MESSAGE_FRAME_HEAD.size
_LEAST_MESSAGE_SIZE = MESSAGE_FRAME_HEAD.size - 4
"""What the size of a message's frame says at least: type, time, attempts and id."""
_ALIKE = 4
"""After so many frames of one size in a row the next ones are tried as a table."""


def read_messages(data: bytes, offset: int, row: list[Message]) -> int:
    """
    Append to *row* the messages whose frames stand in *data* from *offset* on, in a row.

    Returns where the last of them ends: there *data* ends, or something else begins, or a frame
    that is not complete.
    """
    unpack = MESSAGE_FRAME_HEAD.unpack_from
    end = len(data)
    last = end - _MESSAGE_FRAME_HEAD_BYTES
    size_before, alike = 0, 0
    while offset <= last:
        size, kind, timestamp_ns, attempts, message_id = unpack(data, offset)
        behind = offset + 4 + size
        if kind != FRAME_MESSAGE or behind > end or size < _LEAST_MESSAGE_SIZE:
            break
        body = data[offset + _MESSAGE_FRAME_HEAD_BYTES : behind]
        row.append(Message(timestamp_ns, attempts, message_id, body))
        offset = behind
        if size != size_before:
            size_before, alike = size, 0
            continue
        alike += 1
        if alike == _ALIKE:
            alike = 0
            offset = _read_alike(data, offset, size, row)
    return offset


def _read_alike(data: bytes, offset: int, size: int, row: list[Message]) -> int:
    """Append those from *offset* on whose frames have this *size*: as a table, in half the time."""
    frame_bytes = 4 + size
    stop = offset + (len(data) - offset) // frame_bytes * frame_bytes
    layout = f">IIqH16s{size - _LEAST_MESSAGE_SIZE}s"
    for each_size, kind, timestamp_ns, attempts, message_id, body in struct.iter_unpack(
        layout, memoryview(data)[offset:stop]
    ):
        if each_size != size or kind != FRAME_MESSAGE:
            break
        row.append(Message(timestamp_ns, attempts, message_id, body))
        offset += frame_bytes
    return offset


OK = Response(b"OK")
CLOSE_WAIT = Response(b"CLOSE_WAIT")
HEARTBEAT_FRAME = Response(HEARTBEAT)


def parse_error(data: bytes) -> ErrorFrame:
    """Split the data of an error frame at its first space into code and description."""
    code, _, description = data.decode("utf-8", "replace").partition(" ")
    return ErrorFrame(code, description)


def encode_messages(messages: Sequence[Message]) -> bytes:
    """Return the frames of *messages*, one behind the other."""
    pack, head_bytes = MESSAGE_FRAME_HEAD.pack, 4 + MESSAGE_HEAD.size
    parts = []
    for message in messages:
        body = message.body
        size = head_bytes + len(body)
        parts.append(
            # attempts is 16 bits wide and wraps in nsqd too.
            pack(size, FRAME_MESSAGE, message.timestamp_ns, message.attempts & 0xFFFF, message.id)
        )
        parts.append(body)
    return b"".join(parts)


_MAX_FRAME_BYTES = 2**28
"""No broker sends such a frame; a peer that announces one speaks something else."""


def fault_of_head(size: int, kind: int) -> RemoteProtocolError | None:
    """Return what is wrong with a frame's head, None when nothing is."""
    least = _LEAST_MESSAGE_SIZE if kind == FRAME_MESSAGE else 4
    if kind not in (FRAME_RESPONSE, FRAME_ERROR, FRAME_MESSAGE):
        return RemoteProtocolError("E_INVALID", f"frame type {kind} is none of 0, 1, 2")
    if not least <= size <= _MAX_FRAME_BYTES:
        allowed = f"{least} to {_MAX_FRAME_BYTES} bytes"
        return RemoteProtocolError("E_INVALID", f"frame of {size} bytes, allowed: {allowed}")
    return None
