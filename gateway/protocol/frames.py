"""
What a broker says: responses, errors and messages.

Layout of a frame, big-endian: uint32 size (of type and data), uint32 type, data.
Source: the protocol specification, section Data Format; nsqd/message.go.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

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
