"""Requests to nsqd's HTTP as bytes, and talks: the requests of one connection."""

from __future__ import annotations

import re
import struct
import zlib
from typing import TypeAlias

MAX_MSG_SIZE_BYTES = 100
MAX_BODY_SIZE_BYTES = 1_000
MAX_REQ_TIMEOUT_MS = 60_000
"""Limits that make every size cheap; the brokers of the tables have them."""

NSQD_FLAGS = (
    f"--max-msg-size={MAX_MSG_SIZE_BYTES}",
    f"--max-body-size={MAX_BODY_SIZE_BYTES}",
    f"--max-req-timeout={MAX_REQ_TIMEOUT_MS}ms",
)

TOPIC = b"<topic>"
"""Placeholder for a topic unique to each talk."""
END = b""
"""Last piece of a talk: the client half-closes together with the piece before it."""

_LONGEST_SLUG = 40
"""Leaves room for #ephemeral and more within 64 bytes."""

Talk: TypeAlias = bytes | tuple[bytes, ...]
"""Pieces to send, each when the one before it has an answer."""


def request(
    method: str, target: str | bytes, body: bytes | None = None, *headers: str | bytes
) -> bytes:
    """Return a request that keeps the connection open; without *body*, no Content-Length."""
    lines = [b"%b %b HTTP/1.1" % (method.encode(), _encoded(target)), b"Host: nsq"]
    lines += map(_encoded, headers)
    if body is not None:
        lines.append(b"Content-Length: %d" % len(body))
    return b"\r\n".join((*lines, b"", body or b""))


def post(target: str | bytes, body: bytes = b"", *headers: str | bytes) -> bytes:
    return request("POST", target, body, *headers)


def get(target: str | bytes, *headers: str | bytes) -> bytes:
    return request("GET", target, None, *headers)


def pub(query: str | bytes = "topic=<topic>", body: bytes = b"x", *headers: str | bytes) -> bytes:
    return post(b"/pub?" + _encoded(query), body, *headers)


def mpub(query: str | bytes = "topic=<topic>", body: bytes = b"x", *headers: str | bytes) -> bytes:
    return post(b"/mpub?" + _encoded(query), body, *headers)


def chunked(target: str | bytes, *chunks: bytes, end: bytes = b"0\r\n\r\n") -> bytes:
    head = request("POST", target, None, "Transfer-Encoding: chunked")
    return head + b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + end


def framed(*bodies: bytes, count: int | None = None) -> bytes:
    """Return the binary body of /mpub, with a *count* that may be wrong."""
    frames = b"".join(struct.pack(">i", len(body)) + body for body in bodies)
    return struct.pack(">i", len(bodies) if count is None else count) + frames


def topic_of(name: str) -> str:
    """Return the prefix of the topics that only the talk *name* uses."""
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower())[:_LONGEST_SLUG]
    return f"{slug}-{zlib.crc32(name.encode()):08x}."


def with_topic(name: str, talk: Talk) -> tuple[bytes, ...]:
    pieces = (talk,) if isinstance(talk, bytes) else talk
    return tuple(piece.replace(TOPIC, topic_of(name).encode()) for piece in pieces)


def _encoded(text: str | bytes) -> bytes:
    return text.encode("latin-1") if isinstance(text, str) else text
