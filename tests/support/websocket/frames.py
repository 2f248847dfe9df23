"""WebSocket frames of a client, valid and invalid (RFC 6455 §5.2)."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable
from typing import NamedTuple

from tests.support.manual_clock import turn
from tests.support.websocket.raw_socket import CLOSE, RawWebSocket

FIN, RSV1, RSV2, RSV3 = 0x80, 0x40, 0x20, 0x10
MASK = b"\x5a\x00\xff\x13"


def wire_frame(
    first: int, payload: bytes = b"", *, mask: bytes | None = MASK, width: int | None = None
) -> bytes:
    """
    Return a frame with *first* as its first byte.

    A *mask* of None leaves the mask bit unset. *width* is the number of extended length bytes: 0, 2
    or 8; None: the minimum.
    """
    size_bytes = len(payload)
    if width is None:
        width = 0 if size_bytes < 126 else 2 if size_bytes < 65_536 else 8
    masked = 0 if mask is None else 0x80
    if width == 0:
        head = struct.pack(">BB", first, masked | size_bytes)
    elif width == 2:
        head = struct.pack(">BBH", first, masked | 126, size_bytes)
    else:
        head = struct.pack(">BBQ", first, masked | 127, size_bytes)
    if mask is None:
        return head + payload
    return head + mask + bytes(byte ^ mask[at % 4] for at, byte in enumerate(payload))


def close_payload(code: int, reason: bytes = b"") -> bytes:
    """Return the payload of a close frame (§5.5.1)."""
    return struct.pack(">H", code) + reason


async def send_separately(raw: RawWebSocket, pieces: Iterable[bytes]) -> None:
    """Send *pieces* to a server in this event loop so that it reads them one by one."""
    raw._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for piece in pieces:
        await raw.send(piece)
        await turn(2)


class Closed(NamedTuple):
    """The close of a socket by the server."""

    code: int
    """1005: its close frame had none; 1006: there was no close frame."""
    before: list[tuple[int, bytes]]
    """Opcode and payload of each frame before the close frame."""
    after: bytes
    """Bytes received after the close frame."""


async def read_closed(raw: RawWebSocket) -> Closed:
    """Read to the end of the connection, which the server must close."""
    before: list[tuple[int, bytes]] = []
    try:
        while True:
            opcode, payload = await raw.read_frame()
            if opcode == CLOSE:
                break
            before.append((opcode, payload))
    except (EOFError, ConnectionError):
        return Closed(1006, before, b"")
    code = struct.unpack(">H", payload[:2])[0] if payload else 1005
    return Closed(code, before, await raw.read_to_end())
