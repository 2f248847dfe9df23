"""A WebSocket subscriber with minimal cost, so that it is not the bottleneck."""

from __future__ import annotations

import re
import socket
import struct

from benchmarks.harness import Server

IDS = re.compile(rb'"id":"([^"]+)"')
READ_BYTES = 262_144
TIMEOUT_S = 30.0
TEXT, CLOSE, PING, PONG = 1, 8, 9, 10
END_OF_HEAD = b"\r\n\r\n"


def upgrade_request(server: Server, query: str) -> bytes:
    """Return the upgrade request of a socket on /sub."""
    return (
        f"GET /sub?{query} HTTP/1.1\r\nHost: {server.http}\r\n"
        "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    ).encode()


def fin(ids: list[bytes], *, by_ids: bool) -> bytes:
    """Return the text that finishes *ids*: one command for all, or one per id."""
    if by_ids:
        return b'{"cmd":"FIN","ids":["' + b'","'.join(ids) + b'"]}'
    return b'{"cmd":"FIN","id":"' + b'"}\n{"cmd":"FIN","id":"'.join(ids) + b'"}'


def encode_frame(kind: int, payload: bytes) -> bytes:
    """Return a client frame; its mask is zero, because masking is the client's cost."""
    size = len(payload)
    if size < 126:
        head = bytes((0x80 | kind, 0x80 | size))
    elif size < 65_536:
        head = struct.pack(">BBH", 0x80 | kind, 0xFE, size)
    else:
        head = struct.pack(">BBQ", 0x80 | kind, 0xFF, size)
    return head + bytes(4) + payload


def find_frame(data: bytes, at: int) -> tuple[int, int, int] | None:
    """Return kind, payload start and end of the frame at *at*; None if it is incomplete."""
    if len(data) < at + 2:
        return None
    length, start = data[at + 1], at + 2
    if length == 126:
        length, start = int.from_bytes(data[start : start + 2], "big"), start + 2
    elif length == 127:
        length, start = int.from_bytes(data[start : start + 8], "big"), start + 8
    end = start + length
    # Check for the length bytes first: a truncated length would be too small.
    return (data[at] & 0x0F, start, end) if start <= len(data) and end <= len(data) else None


class WebSocket:
    """A blocking socket on /sub of *server*, without JSON parsing."""

    def __init__(self, server: Server, query: str) -> None:
        host, port = server.http.split(":")
        self._socket = socket.create_connection((host, int(port)), TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.sendall(upgrade_request(server, query))
        self._held = b""
        self._first = b""
        while END_OF_HEAD not in self._held:
            self._held += self._read()
        head, _, self._held = self._held.partition(END_OF_HEAD)
        if not head.startswith(b"HTTP/1.1 101"):
            raise SystemExit(f"no upgrade:\n{head.decode()}")
        self._first = self.receive()
        """The response to SUB; messages may follow it in the same frame."""

    def receive(self) -> bytes:
        """
        Return the text of the next frame; leaves when it says that something went wrong.

        The first one is there as soon as the socket is subscribed.
        """
        if first := self._first:
            self._first = b""
            return first
        while True:
            kind, payload = self._receive_frame()
            if kind == PING:
                self._send_frame(PONG, payload)
            elif kind != TEXT or b'"type":"error"' in payload:
                raise SystemExit(f"unexpected frame of kind {kind}: {payload[:200]!r}")
            else:
                return payload

    def finish(self, ids: list[bytes], *, by_ids: bool) -> None:
        """Finish *ids*, if any, with one frame: one command for all, or one per id."""
        if ids:
            self.send(fin(ids, by_ids=by_ids))

    def send(self, text: bytes) -> None:
        """Send a text frame."""
        self._send_frame(TEXT, text)

    def wait_until_read(self) -> None:
        """Wait until the gateway has processed everything sent."""
        self.send(b'{"cmd":"NOP","ref":1}')
        self.receive()

    def close(self) -> None:
        """Close the connection."""
        self._send_frame(CLOSE, b"\x03\xe8")
        self._socket.close()

    def _receive_frame(self) -> tuple[int, bytes]:
        while (found := find_frame(self._held, 0)) is None:
            self._held += self._read()
        kind, start, end = found
        payload, self._held = self._held[start:end], self._held[end:]
        return kind, payload

    def _send_frame(self, kind: int, payload: bytes) -> None:
        self._socket.sendall(encode_frame(kind, payload))

    def _read(self) -> bytes:
        data = self._socket.recv(READ_BYTES)
        if not data:
            raise SystemExit("the gateway closed the socket")
        return data
