"""
The frames that a broker sends: responses, errors and messages.

Layout, big-endian: uint32 size (of type and data), uint32 type, data. Messages are read as
`Message` objects, or as `RawMessages` (bytes and ids only), which takes a third of the time.

Source: the protocol specification, section Data Format; nsqd/message.go.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Literal, overload

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
"""Codes of errors that leave the connection open; after any other, nsqd closes it."""

_MESSAGE_FRAME_HEAD_BYTES = MESSAGE_FRAME_HEAD.size
_MIN_MESSAGE_SIZE = MESSAGE_FRAME_HEAD.size - 4
"""The size field of a message with an empty body: type, timestamp, attempts and id."""
_MIN_EQUAL_FRAMES = 4
"""Number of consecutive frames of equal size after which `iter_unpack` reads further ones."""
_MAX_FRAME_BYTES = 2**28
"""Largest accepted frame size; a peer that announces a larger frame does not speak V2."""
_MAX_ERROR_BYTES = 65_536
"""Largest accepted error frame; nsqd quotes at most a line of a command."""


class Message(msgspec.Struct, gc=False):
    """A message as one channel delivers it."""

    timestamp_ns: int
    """Time of publishing: ns since 1970 by the broker's clock."""
    attempts: int
    """Number of deliveries on this channel, including this one."""
    id: bytes
    """16 bytes; the same on every channel of the topic and for every redelivery."""
    body: bytes


class RawMessages(msgspec.Struct, frozen=True):
    """One or more consecutive messages, as undecoded frames."""

    data: bytes
    """The complete frames of the messages."""
    ids: list[bytes]
    """The id of each message, 16 bytes."""


class Response(msgspec.Struct, frozen=True, gc=False):
    """A response frame: ``OK``, ``CLOSE_WAIT``, JSON, or a heartbeat."""

    data: bytes

    def encode(self) -> bytes:
        """Return the bytes of the frame."""
        return FRAME_HEAD.pack(len(self.data) + 4, FRAME_RESPONSE) + self.data


class ErrorFrame(msgspec.Struct, frozen=True, gc=False):
    """An error frame: NSQ's error code and the broker's description."""

    code: str
    description: str

    @property
    def is_fatal(self) -> bool:
        """True if nsqd closes the connection after it has sent this frame."""
        return self.code not in NON_FATAL_CODES

    @property
    def refused_command(self) -> tuple[str, str]:
        """
        The verb and the message id of the FIN, REQ or TOUCH that nsqd refused by this frame.

        nsqd: "E_FIN_FAILED FIN 0123456789abcdef failed ID not in flight".
        """
        verb, _, rest = self.description.partition(" ")
        return verb, rest.partition(" ")[0]

    def encode(self) -> bytes:
        """Return the bytes of the frame: the code, then a space and the description, if any."""
        data = f"{self.code} {self.description}" if self.description else self.code
        # The description may quote what the client sent, which need not be UTF-8.
        payload = data.encode("utf-8", "surrogateescape")
        return FRAME_HEAD.pack(len(payload) + 4, FRAME_ERROR) + payload


OK = Response(b"OK")
CLOSE_WAIT = Response(b"CLOSE_WAIT")
HEARTBEAT_FRAME = Response(HEARTBEAT)


@overload
def read_messages(data: bytes, offset: int, found: list[Message]) -> int: ...
@overload
def read_messages(
    data: bytes, offset: int, found: list[bytes], *, ids_only: Literal[True]
) -> int: ...
def read_messages(data: bytes, offset: int, found: list[Any], *, ids_only: bool = False) -> int:
    """
    Append the consecutive messages that start at *offset* to *found*; with *ids_only*, their ids.

    Return the offset after the last complete message. At that offset, *data* ends, or has a frame
    that is incomplete or not a message.
    """
    unpack = MESSAGE_FRAME_HEAD.unpack_from
    end = len(data)
    last = end - _MESSAGE_FRAME_HEAD_BYTES
    last_size, equal_frames = 0, 0
    while offset <= last:
        size, kind, timestamp_ns, attempts, message_id = unpack(data, offset)
        frame_end = offset + 4 + size
        if kind != FRAME_MESSAGE or frame_end > end or size < _MIN_MESSAGE_SIZE:
            break  # the caller checks the head of this frame
        if ids_only:
            found.append(message_id)
        else:
            body = data[offset + _MESSAGE_FRAME_HEAD_BYTES : frame_end]
            found.append(Message(timestamp_ns, attempts, message_id, body))
        offset = frame_end
        if size != last_size:
            last_size, equal_frames = size, 0
            continue
        equal_frames += 1
        if equal_frames == _MIN_EQUAL_FRAMES:
            equal_frames = 0
            offset = _read_equal_frames(data, offset, size, found, ids_only=ids_only)
    return offset


def _read_equal_frames(
    data: bytes, offset: int, size: int, found: list[Any], *, ids_only: bool
) -> int:
    """
    Continue `read_messages` while all frames have this *size*, and return the offset as it does.

    `iter_unpack` takes half the time of `unpack_from` for each frame.
    """
    frame_bytes, body_bytes = 4 + size, size - _MIN_MESSAGE_SIZE
    # iter_unpack needs a multiple of the frame's length, and assumes that all sizes are equal: the
    # loops stop at the first frame of another size or type.
    stop = offset + (len(data) - offset) // frame_bytes * frame_bytes
    frames = memoryview(data)[offset:stop]
    if ids_only:
        for each_size, kind, message_id in struct.iter_unpack(f">II10x16s{body_bytes}x", frames):
            if each_size != size or kind != FRAME_MESSAGE:
                break
            found.append(message_id)
            offset += frame_bytes
        return offset
    for each_size, kind, timestamp_ns, attempts, message_id, body in struct.iter_unpack(
        f">IIqH16s{body_bytes}s", frames
    ):
        if each_size != size or kind != FRAME_MESSAGE:
            break
        found.append(Message(timestamp_ns, attempts, message_id, body))
        offset += frame_bytes
    return offset


def split_messages(messages: RawMessages, count: int) -> tuple[RawMessages, RawMessages]:
    """Split *messages* after the first *count*; both parts must have at least one message."""
    data, offset = messages.data, 0
    # Only the sizes are read: the messages stay undecoded.
    for _ in range(count):
        offset += 4 + int.from_bytes(data[offset : offset + 4], "big")
    return (
        RawMessages(data[:offset], messages.ids[:count]),
        RawMessages(data[offset:], messages.ids[count:]),
    )


def encode_messages(messages: Sequence[Message]) -> bytes:
    """Return the frames of *messages*."""
    pack, head_bytes = MESSAGE_FRAME_HEAD.pack, 4 + MESSAGE_HEAD.size
    parts = []
    for message in messages:
        body = message.body
        size = head_bytes + len(body)
        parts.append(
            # attempts has 16 bits on the wire; in nsqd, it also wraps around.
            pack(size, FRAME_MESSAGE, message.timestamp_ns, message.attempts & 0xFFFF, message.id)
        )
        parts.append(body)
    return b"".join(parts)


def parse_error(data: bytes) -> ErrorFrame:
    """Split the data of an error frame at its first space into code and description."""
    # nsqd may quote bytes from a command, which need not be UTF-8.
    code, _, description = data.decode("utf-8", "replace").partition(" ")
    return ErrorFrame(code, description)


def check_frame_head(size: int, kind: int) -> None:
    """
    Check the head of a frame before waiting for its data.

    Raises:
        RemoteProtocolError: The type is unknown, or the size is out of range for it.
    """
    if kind not in (FRAME_RESPONSE, FRAME_ERROR, FRAME_MESSAGE):
        raise RemoteProtocolError("E_INVALID", f"unknown frame type {kind}; allowed: 0, 1, 2")
    min_bytes = _MIN_MESSAGE_SIZE if kind == FRAME_MESSAGE else 4
    max_bytes = _MAX_ERROR_BYTES if kind == FRAME_ERROR else _MAX_FRAME_BYTES
    if not min_bytes <= size <= max_bytes:
        allowed = f"{min_bytes} to {max_bytes} bytes"
        raise RemoteProtocolError("E_INVALID", f"frame of {size} bytes, allowed: {allowed}")
