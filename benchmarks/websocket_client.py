"""A WebSocket subscriber that costs as little as it can, so that it is not what limits."""

from __future__ import annotations

import re
import socket
import struct

from benchmarks.harness import Server

IDS = re.compile(rb'"id":"([^"]+)"')
_READ_BYTES = 262_144
_TIMEOUT_S = 30.0
_TEXT, _CLOSE, _PING, _PONG = 1, 8, 9, 10


class WebSocket:
    """
    A socket on /sub of *server*; blocking, and without any parsing of JSON.

    Masks are zero: masking is the client's cost, not the gateway's.
    """

    def __init__(self, server: Server, query: str) -> None:
        host, port = server.http.split(":")
        self._socket = socket.create_connection((host, int(port)), _TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.sendall(
            (
                f"GET /sub?{query} HTTP/1.1\r\nHost: {server.http}\r\n"
                "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
                "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
            ).encode()
        )
        self._held = b""
        self._first = b""
        head = self._take(self._find_end_of_head())
        if not head.startswith(b"HTTP/1.1 101"):
            raise SystemExit(f"no upgrade:\n{head.decode()}")
        self._first = self.receive()
        """The answer to SUB; messages may stand behind it in the same frame."""

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
            if kind == _PING:
                self._send_frame(_PONG, payload)
            elif kind != _TEXT or b'"type":"error"' in payload:
                raise SystemExit(f"unexpected frame of kind {kind}: {payload[:200]!r}")
            else:
                return payload

    def finish(self, ids: list[bytes], *, by_ids: bool) -> None:
        """Finish *ids*, if there are any, with one frame: one command for all, or one each."""
        if not ids:
            return
        if by_ids:
            self.send(b'{"cmd":"FIN","ids":["' + b'","'.join(ids) + b'"]}')
        else:
            self.send(b'{"cmd":"FIN","id":"' + b'"}\n{"cmd":"FIN","id":"'.join(ids) + b'"}')

    def send(self, text: bytes) -> None:
        """Send a text frame."""
        self._send_frame(_TEXT, text)

    def wait_until_read(self) -> None:
        """Return once the gateway has carried out everything that was sent."""
        self.send(b'{"cmd":"NOP","ref":1}')
        self.receive()

    def close(self) -> None:
        """Close the connection."""
        self._send_frame(_CLOSE, b"\x03\xe8")
        self._socket.close()

    def _receive_frame(self) -> tuple[int, bytes]:
        head = self._take(2)
        length = head[1]
        if length == 126:
            (length,) = struct.unpack(">H", self._take(2))
        elif length == 127:
            (length,) = struct.unpack(">Q", self._take(8))
        return head[0] & 0x0F, self._take(length)

    def _send_frame(self, kind: int, payload: bytes) -> None:
        size = len(payload)
        if size < 126:
            head = bytes((0x80 | kind, 0x80 | size))
        elif size < 65_536:
            head = struct.pack(">BBH", 0x80 | kind, 0xFE, size)
        else:
            head = struct.pack(">BBQ", 0x80 | kind, 0xFF, size)
        self._socket.sendall(head + bytes(4) + payload)

    def _take(self, size: int) -> bytes:
        """Return the next *size* bytes."""
        held = self._held
        while len(held) < size:
            held += self._read()
        self._held = held[size:]
        return held[:size]

    def _find_end_of_head(self) -> int:
        while b"\r\n\r\n" not in self._held:
            self._held += self._read()
        return self._held.index(b"\r\n\r\n") + 4

    def _read(self) -> bytes:
        data = self._socket.recv(_READ_BYTES)
        if not data:
            raise SystemExit("the gateway has closed the socket")
        return data
