"""Many WebSocket subscribers in one process, on one epoll: the load for the gateway."""

from __future__ import annotations

import select
import socket
import struct
import time
from collections.abc import Callable, Iterable, Iterator

from benchmarks.harness import Server
from benchmarks.websocket_client import (
    CLOSE,
    END_OF_HEAD,
    PING,
    PONG,
    READ_BYTES,
    TEXT,
    TIMEOUT_S,
    encode_frame,
    find_frame,
    upgrade_request,
)

MARKER = b'"type":"message"'
"""Occurs once in every message, whatever its body is: quotes in a body are escaped."""
NOP = b'{"cmd":"NOP"}'
_SAID = b'"ref":1'
_OPENING_AT_ONCE = 100
_SOCKETS_OF_AN_ADDRESS = 4_000
"""An address has about 28,000 ports, shared with other processes."""
_LOOK_S = 0.02
_SEND_TIMEOUT = struct.pack("ll", int(TIMEOUT_S), 0)
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
# Linux; Python has no name for it. The port is chosen when the peer is known.
_IP_BIND_ADDRESS_NO_PORT = 24


class Member:
    """One socket of a crowd; *took* gets each text frame."""

    __slots__ = (
        "_held",
        "close_code",
        "fileno",
        "has_text",
        "is_open",
        "may_close",
        "receive_into",
        "sock",
        "took",
    )

    def __init__(self, sock: socket.socket, took: Callable[[Member, bytes], None]) -> None:
        self.sock = sock
        self.fileno = sock.fileno()
        self.receive_into = sock.recv_into
        self.is_open = False
        """True after the response to the upgrade."""
        self.has_text = False
        """True after the first text frame: the socket is subscribed."""
        self.took = took
        self.may_close = False
        """True if the gateway may close it."""
        self.close_code: int | None = None
        """The close code; None while it is open."""
        self._held = b""

    def send(self, text: bytes) -> None:
        """Send a text frame."""
        self.sock.sendall(encode_frame(TEXT, text))

    def read(self) -> None:
        """Read once and pass on each complete text; exit on any error."""
        data = self.sock.recv(READ_BYTES)
        if not data:
            raise SystemExit("a socket was closed without a close frame")
        held = self._held + data if self._held else data
        if not self.is_open:
            held = self._upgraded(held)
        at = 0
        while self.is_open and (found := find_frame(held, at)) is not None:
            kind, start, at = found
            self._take(kind, held[start:at])
        self._held = held[at:]

    def _upgraded(self, held: bytes) -> bytes:
        """Return the bytes after the response head, or all of them while the head is incomplete."""
        head, end, rest = held.partition(END_OF_HEAD)
        if not end:
            return held
        if not head.startswith(b"HTTP/1.1 101"):
            raise SystemExit(f"no upgrade:\n{held.decode()}")
        self.is_open = True
        return rest

    def _take(self, kind: int, payload: bytes) -> None:
        if kind == PING:
            self.sock.sendall(encode_frame(PONG, payload))
        elif kind == CLOSE and self.may_close:
            self.close_code = int.from_bytes(payload[:2], "big")
            self.sock.sendall(encode_frame(CLOSE, payload))
        elif kind != TEXT or b'"type":"error"' in payload:
            raise SystemExit(f"unexpected frame of kind {kind}: {payload[:200]!r}")
        else:
            self.has_text = True
            self.took(self, payload)


class Crowd:
    """
    Sockets on /sub of *server*; *took* gets each text and its receiver.

    A socket that is closed, refused or gets an error ends the benchmark.
    """

    def __init__(
        self,
        server: Server,
        took: Callable[[Member, bytes], None] = lambda _member, _text: None,
    ) -> None:
        host, port = server.http.split(":")
        self._address = (host, int(port))
        self._server = server
        self._took = took
        self._epoll = select.epoll()
        self._members: dict[int, Member] = {}
        """By file descriptor."""

    def __len__(self) -> int:
        """Return the number of open sockets."""
        return len(self._members)

    def __iter__(self) -> Iterator[Member]:
        """Iterate over the open sockets."""
        return iter(self._members.values())

    def join(self, queries: Iterable[str], *, is_answered: bool = True) -> list[Member]:
        """
        Open a socket for each query, many at a time; return them when all are open.

        With *is_answered*, wait for the first text as well, which confirms the subscription.
        Messages may follow it in the same frame.
        """
        waiting, opening, joined = iter(queries), list[Member](), list[Member]()
        while True:
            for query in waiting:
                opening.append(self._connect(query))
                if len(opening) >= _OPENING_AT_ONCE:
                    break
            joined += (each for each in opening if _has_joined(each, is_answered))
            opening = [each for each in opening if not _has_joined(each, is_answered)]
            if not opening:
                return joined
            self.turn()

    def _connect(self, query: str) -> Member:
        """Return a socket that has sent its upgrade; blocking, so that sends can wait."""
        sock = socket.socket()
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _SEND_TIMEOUT)
        sock.setsockopt(socket.IPPROTO_IP, _IP_BIND_ADDRESS_NO_PORT, 1)
        sock.bind((f"127.0.0.{1 + len(self) // _SOCKETS_OF_AN_ADDRESS}", 0))
        sock.connect(self._address)
        sock.sendall(upgrade_request(self._server, query))
        member = Member(sock, self._took)
        self._members[member.fileno] = member
        self._epoll.register(member.fileno, select.EPOLLIN)
        return member

    def turn(self, timeout_s: float = TIMEOUT_S) -> None:
        """Read each readable socket; exit if there is none within the timeout."""
        if not self._read(timeout_s):
            raise SystemExit(f"nothing was received for {timeout_s:g} s")

    def rest(self, seconds: float) -> None:
        """Read and answer pings for some time."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self._read(left)

    def _read(self, timeout_s: float) -> bool:
        members = self._members
        ready = self._epoll.poll(timeout_s)
        for fileno, _ in ready:
            members[fileno].read()
        return bool(ready)

    def count(self, each: int) -> bytes:
        """
        Read until every socket has received *each* messages; return all bytes of one socket.

        It neither parses nor answers: this is the cheapest reader that still counts. It polls every
        20 ms, so that everything a socket receives meanwhile is one read.
        """
        buffer = bytearray(READ_BYTES)
        missing = dict.fromkeys(self._members, each)
        tails: dict[int, bytes] = {}
        receive_into = {fileno: each.receive_into for fileno, each in self._members.items()}
        witness, seen = next(iter(self._members)), list[bytes]()
        left = each * len(missing)
        while left > 0:
            ready = self._epoll.poll(TIMEOUT_S, len(self))
            if not ready:
                raise SystemExit(
                    f"nothing was received for {TIMEOUT_S:g} s; {left} messages are missing"
                )
            time.sleep(_LOOK_S)
            for fileno, _ in ready:
                if not (size := receive_into[fileno](buffer)):
                    raise SystemExit("a socket was closed without a close frame")
                if fileno in tails:
                    # Keep less than a marker, so that none is counted twice.
                    found = (tails.pop(fileno) + buffer[:size]).count(MARKER)
                else:
                    found = buffer.count(MARKER, 0, size)
                if buffer[size - 1] != 125:  # not the end of a message: "}"
                    tails[fileno] = bytes(buffer[max(0, size - len(MARKER) + 1) : size])
                if fileno == witness:
                    seen.append(bytes(buffer[:size]))
                missing[fileno] -= found
                left -= found
        if wrong := [count for count in missing.values() if count]:
            raise SystemExit(f"{len(wrong)} sockets have more or less than {each}: {wrong[:9]}")
        return b"".join(seen)

    def send_to_all(self, text: bytes) -> None:
        """Send *text* on all sockets; return when the gateway has processed it."""
        answered: set[int] = set()

        def took(member: Member, text: bytes) -> None:
            if _SAID in text:
                answered.add(member.fileno)
            self._took(member, text)

        for member in self:
            member.took = took
            member.send(text + b'\n{"cmd":"NOP",' + _SAID + b"}")
        while len(answered) < len(self):
            self.turn()
        for member in self:
            member.took = self._took

    def wait_until_closed(self) -> list[tuple[float, int]]:
        """Read until the gateway has closed every socket; return the times and close codes."""
        seen: list[tuple[float, int]] = []
        for member in self:
            member.may_close = True
        while self._members:
            ready = self._epoll.poll(TIMEOUT_S)
            if not ready:
                raise SystemExit(
                    f"nothing was received for {TIMEOUT_S:g} s; {len(self)} sockets are open"
                )
            for fileno, _ in ready:
                member = self._members[fileno]
                member.read()
                if member.close_code is not None:
                    seen.append((time.monotonic(), member.close_code))
                    self._epoll.unregister(fileno)
                    member.sock.close()
                    del self._members[fileno]
        return seen

    def leave(self) -> None:
        """Reset all sockets, so that their ports are free at once."""
        for member in self:
            self._epoll.unregister(member.fileno)
            member.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            member.sock.close()
        self._members.clear()


def _has_joined(member: Member, is_answered: bool) -> bool:  # noqa: FBT001 - its one caller has it
    return member.has_text if is_answered else member.is_open
