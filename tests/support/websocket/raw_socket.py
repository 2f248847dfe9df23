"""TCP and WebSocket clients on raw sockets, for slow, silent and invalid peers."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA

_WAIT_S = 60.0
_SMALL_RECEIVE_BUFFER_BYTES = 4_096


class RawSocket:
    """A TCP connection that reads only on request."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._read = b""

    async def send(self, data: bytes) -> None:
        """Write all of *data*; a test that floods a peer bounds the wait itself."""
        await self._loop.sock_sendall(self._sock, data)

    async def read_exactly(self, size_bytes: int) -> bytes:
        """Return the next *size_bytes*; raises EOFError when the peer ends before."""
        while len(self._read) < size_bytes:
            await self._read_more()
        data, self._read = self._read[:size_bytes], self._read[size_bytes:]
        return data

    async def read_until(self, marker: bytes) -> bytes:
        """Read up to *marker*, inclusive."""
        while marker not in self._read:
            await self._read_more()
        data, _, self._read = self._read.partition(marker)
        return data + marker

    async def read_to_end(self) -> bytes:
        """Read all data until the peer closes or resets."""
        try:
            while True:
                await self._read_more()
        except (EOFError, ConnectionError):
            data, self._read = self._read, b""
            return data

    async def _read_more(self) -> None:
        async with asyncio.timeout(_WAIT_S):
            data = await self._loop.sock_recv(self._sock, 65_536)
        if not data:
            raise EOFError
        self._read += data

    def end(self) -> None:
        """Half-close: the peer's data can still be read."""
        self._sock.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        """End with RST, as a crashed machine or a firewall does."""
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._sock.close()

    def close(self) -> None:
        """Close the TCP connection with FIN, without a close frame."""
        self._sock.close()


class RawWebSocket(RawSocket):
    """Send valid or invalid frames; nothing is answered automatically."""

    async def send_frame(self, opcode: int, payload: bytes, *, is_final: bool = True) -> None:
        """Write one frame with a mask of zeros, which leaves the payload unchanged."""
        await self.send(frame_bytes(opcode, payload, is_final=is_final))

    async def send_frames_until_stuck(
        self, payload: bytes, *, limit_bytes: int, stuck_s: float
    ) -> None:
        """Send text frames; raise TimeoutError if the peer reads none for *stuck_s*."""
        for _ in range(limit_bytes // len(payload)):
            async with asyncio.timeout(stuck_s):
                await self.send_frame(TEXT, payload)

    async def read_frame(self) -> tuple[int, bytes]:
        """Return opcode and payload of the next frame."""
        first, second = await self.read_exactly(2)
        size_bytes = second & 0x7F
        if size_bytes == 126:
            (size_bytes,) = struct.unpack(">H", await self.read_exactly(2))
        elif size_bytes == 127:
            (size_bytes,) = struct.unpack(">Q", await self.read_exactly(8))
        return first & 0x0F, await self.read_exactly(size_bytes)

    async def close_code(self) -> int:
        """Read up to the close frame; return its code."""
        while True:
            opcode, payload = await self.read_frame()
            if opcode == CLOSE:
                code: int = struct.unpack(">H", payload[:2])[0]
                return code


def frame_bytes(opcode: int, payload: bytes, *, is_final: bool = True) -> bytes:
    """Return a client's frame with a mask of zeros (RFC 6455 §5.2)."""
    first = opcode | (0x80 if is_final else 0)
    size_bytes = len(payload)
    if size_bytes < 126:
        head = struct.pack(">BB", first, 0x80 | size_bytes)
    elif size_bytes < 65_536:
        head = struct.pack(">BBH", first, 0x80 | 126, size_bytes)
    else:
        head = struct.pack(">BBQ", first, 0x80 | 127, size_bytes)
    return head + bytes(4) + payload


@asynccontextmanager
async def raw_socket(address: str) -> AsyncIterator[RawSocket]:
    """Connect to *address* (host:port) by TCP."""
    sock = await _connect(address, has_small_buffer=False)
    try:
        yield RawSocket(sock)
    finally:
        sock.close()


@asynccontextmanager
async def raw_websocket(url: str, *, has_small_buffer: bool = False) -> AsyncIterator[RawWebSocket]:
    """
    Open the WebSocket at *url*; nothing after the 101 has been read.

    With a small receive buffer, a reader that does not read is felt by the peer soon.
    """
    parts = urlsplit(url)
    sock = await _connect(parts.netloc, has_small_buffer=has_small_buffer)
    try:
        raw = RawWebSocket(sock)
        await raw.send(handshake(parts.netloc, f"{parts.path}?{parts.query}"))
        answer = await raw.read_until(b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 101 "), answer
        yield raw
    finally:
        sock.close()


def handshake(host: str, target: str) -> bytes:
    """Return the request for a WebSocket at *target* of *host*."""
    return (
        f"GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    ).encode()


async def _connect(address: str, *, has_small_buffer: bool) -> socket.socket:
    host, _, port = address.rpartition(":")
    sock = socket.socket()
    sock.setblocking(False)
    if has_small_buffer:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SMALL_RECEIVE_BUFFER_BYTES)
    try:
        await asyncio.get_running_loop().sock_connect(sock, (host, int(port)))
    except BaseException:
        sock.close()
        raise
    return sock
