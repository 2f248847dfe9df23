"""
Random HTTP requests, what RFC 9112 requires for them, and an in-memory transport.

A stream is a pipeline of random valid and invalid requests, split anywhere. The model requires, in
order: each request has one response, no request after a close has one, and a message is stored if
and only if the response is 200.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import h11

from gateway.errors import NoBroker, OutcomeUnknown, Overloaded
from tests.support.http.recording_publisher import Done, WaitingPublisher

HIGH_WATER_BYTES = 65_536
MAX_MSG_BYTES = 1_000
MAX_BODY_BYTES = 5_000

_HOST = b"Host: gateway\r\n"
_UPGRADE = (
    b"Connection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
)


@dataclass(frozen=True)
class Request:
    """One request of a stream, with its allowed responses."""

    kind: str
    data: bytes
    statuses: frozenset[int]
    bodies: tuple[bytes, ...] = ()
    """Messages that are published if the status is 200."""
    must_close: bool = False
    is_readable: bool = True
    """True if the request is valid by RFC 9112, so that h11 parses it as well."""
    is_upgrade: bool = False


def _head(method: bytes, target: bytes, *headers: bytes, version: bytes = b"1.1") -> bytes:
    lines = b"".join(header + b"\r\n" for header in headers)
    return method + b" " + target + b" HTTP/" + version + b"\r\n" + _HOST + lines + b"\r\n"


def _chunked(rng: random.Random, body: bytes) -> bytes:
    parts = []
    while body:
        size = rng.randint(1, min(len(body), 40))
        extension = rng.choice([b"", b"", b";a=b", b';a="b;c"'])
        parts.append(b"%x" % size + extension + b"\r\n" + body[:size] + b"\r\n")
        body = body[size:]
    trailer = rng.choice([b"", b"", b"X-Trailer: y\r\n"])
    return b"".join(parts) + b"0\r\n" + trailer + b"\r\n"


def _framed(rng: random.Random, method: bytes, target: bytes, body: bytes) -> bytes:
    """Return a request with *body*, framed in one of the valid ways."""
    more = rng.choice(
        [
            (),
            (b"X-Request-Id: a",),
            (b"Expect: 100-continue ",),
            (b"Connection: Upgrade", b"Upgrade: h2c"),
            (b"Connection: keep-alive",),
            (b"X-Empty:  ",),
        ]
    )
    if rng.random() < 0.3:
        return _head(method, target, *more, b"Transfer-Encoding: chunked") + _chunked(rng, body)
    length = rng.choice([b"%d", b"%d ", b"%d\t", b"0%d"]) % len(body)
    return _head(method, target, *more, b"Content-Length: " + length) + body


def _publish(rng: random.Random, number: int) -> Request:
    body = b"m%d-" % number + b"x" * rng.choice([0, 1, 50, 900])
    data = _framed(rng, b"POST", b"/pub?topic=t", body)
    return Request("publish", data, frozenset({200, 503, 504}), (body,))


def _known_publish(rng: random.Random, number: int) -> Request:
    """Return a publish with the same head as others, which the server caches."""
    body = b"k%06d" % number
    data = _head(b"POST", b"/pub?topic=t", b"Content-Length: 7") + body
    del rng
    return Request("known publish", data, frozenset({200, 503, 504}), (body,))


def _mpub(rng: random.Random, number: int) -> Request:
    bodies = tuple(b"n%d-%d" % (number, each) for each in range(rng.randint(1, 5)))
    body = b"\n".join(bodies) + rng.choice([b"", b"\n"])
    data = _framed(rng, b"POST", b"/mpub?topic=t", body)
    return Request("mpub", data, frozenset({200, 503, 504}), bodies)


def _last_publish(rng: random.Random, number: int) -> Request:
    body = b"l%d" % number
    length = b"Content-Length: %d" % len(body)
    if rng.random() < 0.5:
        data = _head(b"POST", b"/pub?topic=t", length, version=b"1.0") + body
    else:
        closes = rng.choice([b"Connection: close", b"connection: CLOSE", b"Connection: x, close "])
        data = _head(b"POST", b"/pub?topic=t", closes, length) + body
    return Request("last publish", data, frozenset({200, 503, 504}), (body,), must_close=True)


def _refused(rng: random.Random, number: int) -> Request:
    target, body = rng.choice(
        [
            (b"/pub?topic=bad%21", b"r%d" % number),
            (b"/pub", b"r%d" % number),
            (b"/pub?topic=t", b""),
            (b"/pub?topic=t", b"r" * (MAX_MSG_BYTES + 1)),
            (b"/pub?topic=t&defer=x", b"r%d" % number),
            (b"/mpub?topic=bad%21", b"r%d" % number),
            (b"/mpub?topic=t", b"r" * (MAX_BODY_BYTES + 1)),
            (b"/mpub?topic=t&binary=1", b"r%d" % number),
        ]
    )
    return Request("refused", _framed(rng, b"POST", target, body), frozenset({400, 413}))


def _app(rng: random.Random, number: int) -> Request:
    method, target, body, status = rng.choice(
        [
            (b"GET", b"/ping", b"", 200),
            (b"GET", b"/ping", b"a body", 200),
            (b"GET", b"http://other/ping", b"", 200),
            (b"GET", b"/PING", b"", 301),
            (b"PUT", b"/pub?topic=t", b"y%d" % number, 405),
            (b"GET", b"/nothing", b"z" * 2_000, 404),
            (b"CONNECT", b"/nothing", b"%d" % number, 404),
            (b"POST", b"/ping", b"%d" % number, 405),
        ]
    )
    data = _framed(rng, method, target, body) if body else _head(method, target)
    if not body and rng.random() < 0.2:
        data = _head(method, target, b"Connection: close")
        return Request("last of the app", data, frozenset({status}), must_close=True)
    return Request("app", data, frozenset({status}))


def _unreadable(rng: random.Random, number: int) -> Request:
    del number
    length = b"Content-Length: 1"
    data = rng.choice(
        [
            b"garbage\r\n\r\n",
            b"\0\1\2\3\r\n\r\n",
            b"GET /ping HTTP/1.1\r\n\r\n",
            b"GET /ping HTTP/1.1\r\nHost: a b\r\n\r\n",
            b"GET  /ping HTTP/1.1\r\nHost: a\r\n\r\n",
            b"GET /ping HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n",
            b"GET /ping RTSP/1.0\r\nHost: a\r\n\r\n",
            b"GET /ping\r\n\r\n",
            b"PRI * HTTP/2.0\r\n\r\n",
            _head(b"POST", b"/pub?topic=t", length, length) + b"x",
            _head(b"POST", b"/pub?topic=t", b"Content-Length: x") + b"x",
            _head(b"POST", b"/pub?topic=t", length, b"Transfer-Encoding: chunked") + b"1\r\nx\r\n",
            _head(b"POST", b"/pub?topic=t", b"Transfer-Encoding: gzip") + b"x",
            _head(b"POST", b"/pub?topic=t", b"Transfer-Encoding: chunked", version=b"1.0"),
            _head(b"POST", b"/pub?topic=t", b"Expect: something", length) + b"x",
            _head(b"POST", b"/pub?topic=t", b"X: y\n", length) + b"x",
            b"POST /pub?topic=t HTTP/1.1\r\n" + b"X-Long: " + b"x" * 70_000 + b"\r\n\r\n",
        ]
    )
    return Request(
        "unreadable", data, frozenset({400, 417, 431}), must_close=True, is_readable=False
    )


def _bad_chunks(rng: random.Random, number: int) -> Request:
    del number
    target, statuses = rng.choice(
        [
            (b"/pub?topic=t", {400}),
            (b"/mpub?topic=t", {400}),
            # The application does not read the body, so its response comes first.
            (b"/ping", {405}),
        ]
    )
    chunks = rng.choice([b"x\r\n", b"-1\r\n", b"1\r\nabc", b"1\r\na\r\n\r\n", b"f" * 17 + b"\r\n"])
    data = _head(b"POST", target, b"Transfer-Encoding: chunked") + chunks
    return Request("bad chunks", data, frozenset(statuses), must_close=True, is_readable=False)


def _upgrade(rng: random.Random, number: int) -> Request:
    del number
    kind = rng.choice(["socket", "socket", "refused", "body"])
    if kind == "socket":
        data = b"GET /sub?topic=t HTTP/1.1\r\n" + _HOST + _UPGRADE + b"\r\n"
        return Request("upgrade", data, frozenset({101}), must_close=True, is_upgrade=True)
    if kind == "refused":
        data = b"GET /elsewhere HTTP/1.1\r\n" + _HOST + _UPGRADE + b"\r\n"
        return Request("refused upgrade", data, frozenset({404}), must_close=True)
    data = b"GET /sub?topic=t HTTP/1.1\r\n" + _HOST + _UPGRADE + b"Content-Length: 3\r\n\r\nabc"
    return Request("upgrade with a body", data, frozenset({400}), must_close=True)


_KINDS: Sequence[tuple[int, Callable[[random.Random, int], Request]]] = (
    (6, _publish),
    (4, _known_publish),
    (2, _mpub),
    (3, _refused),
    (4, _app),
    (1, _last_publish),
    (1, _unreadable),
    (1, _bad_chunks),
    (1, _upgrade),
)


def draw_stream(rng: random.Random) -> list[Request]:
    weights = [weight for weight, _ in _KINDS]
    kinds = [kind for _, kind in _KINDS]
    count = rng.choice([1, 2, 3, 5, 8, 100 if rng.random() < 0.1 else 4])
    return [kind(rng, number) for number, kind in enumerate(rng.choices(kinds, weights, k=count))]


def draw_cuts(rng: random.Random, stream: bytes) -> list[bytes]:
    way = rng.choice(["whole", "bytes", "few", "many"])
    if way == "whole" or len(stream) < 2:
        return [stream]
    if way == "bytes" and len(stream) < 3_000:
        return [stream[at : at + 1] for at in range(len(stream))]
    count = min(len(stream) - 1, 3 if way == "few" else 40)
    ends = sorted(rng.sample(range(1, len(stream)), count))
    return [stream[a:b] for a, b in zip([0, *ends], [*ends, len(stream)], strict=True)]


def check_with_h11(requests: Sequence[Request]) -> None:
    """Check that h11 parses the same requests from the same bytes."""
    readable = []
    for request in requests:
        if not request.is_readable or request.is_upgrade or b"CONNECT" in request.data:
            break
        readable.append(request)
        if request.must_close:
            break
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=100_000)
    connection.receive_data(b"".join(request.data for request in readable))
    for request in readable:
        event = connection.next_event()
        assert isinstance(event, h11.Request), (request, event)
        assert request.data.startswith(event.method + b" ")
        body = b""
        while not isinstance(event := connection.next_event(), h11.EndOfMessage):
            assert isinstance(event, h11.Data), (request, event)
            body += event.data
        assert all(each in body for each in request.bodies)
        connection.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
        connection.send(h11.EndOfMessage())
        if connection.our_state is h11.DONE and connection.their_state is h11.DONE:
            connection.start_next_cycle()
        else:
            assert request.must_close or request.kind == "refused upgrade", request


class LatePublisher(WaitingPublisher):
    """Respond when the driver calls for it, with an outcome that it draws."""

    def __init__(self, rng: random.Random, *, limit_bytes: int) -> None:
        super().__init__()
        self.begun: list[tuple[bytes, ...]] = []
        """Bodies of each publish received, in order."""
        self.stored: list[tuple[bytes, ...]] = []
        """Bodies of each publish answered with success."""
        self._unanswered: deque[tuple[bytes, ...]] = deque()
        self._rng = rng
        self._limit_bytes = limit_bytes

    def answer(self, done: Done) -> None:
        """Record the publish, and answer at once or later."""
        super().answer(done)
        topic, bodies, defer_ms = self.published[-1]
        assert (topic, defer_ms, self.secrets[-1]) == ("t", 0, None)
        self.begun.append(tuple(bodies))
        self._unanswered.append(tuple(bodies))
        if self._rng.random() < 0.2:
            self.settle()

    def settle(self) -> bool:
        """Answer the oldest publish; return False if there is none."""
        if not self.waiting:
            return False
        done, bodies = self.waiting.pop(0), self._unanswered.popleft()
        error = self._rng.choice([None, None, None, NoBroker("none"), OutcomeUnknown("late")])
        if error is None:
            self.stored.append(bodies)
        done(error)
        return True

    def reserve(self, size_bytes: int) -> None:
        """Reserve *size_bytes*, or raise `Overloaded` above the limit."""
        if self.held_bytes + size_bytes > self._limit_bytes:
            raise Overloaded(
                waiting_bytes=self.held_bytes,
                size_bytes=size_bytes,
                limit_bytes=self._limit_bytes,
            )
        super().reserve(size_bytes)


class MemoryTransport(asyncio.Transport):
    """
    One end of a connection in memory, as strict as uvloop's.

    It always rejects misuse that real transports reject only sometimes: a write after EOF, reading
    after a pause. The test driver acts as the peer.
    """

    def __init__(self, *, is_secure: bool = False) -> None:
        super().__init__()
        self.written = bytearray()
        self.unsent_bytes = 0
        self.peer_reads = True
        self.is_paused = False
        self.is_end_written = False
        self.lost = False
        self.is_secure = is_secure
        self._closes = False
        self._is_writing_paused = False
        self._protocol: Any = None

    def get_extra_info(self, name: str, default: Any = None) -> Any:  # noqa: ANN401
        """Return the values of a loopback socket."""
        known = {
            "peername": ("127.0.0.1", 40_000),
            "sockname": ("127.0.0.1", 8_080),
            "sslcontext": object() if self.is_secure else None,
        }
        return known.get(name, default)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Set the protocol that receives events."""
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Return the current protocol."""
        protocol: asyncio.BaseProtocol = self._protocol
        return protocol

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        """Buffer *data* until the peer reads it."""
        assert not self.is_end_written, "a write behind the end"
        if self._closes:
            return
        self.written += data
        if not self.peer_reads:
            self.unsent_bytes += len(data)
            if self.unsent_bytes > HIGH_WATER_BYTES and not self._is_writing_paused:
                self._is_writing_paused = True
                self._protocol.pause_writing()

    def read_on(self) -> None:
        """Let the peer read all waiting data."""
        self.peer_reads = True
        self.unsent_bytes = 0
        if self._is_writing_paused:
            self._is_writing_paused = False
            self._protocol.resume_writing()
        if self._closes:
            self.lose()

    def get_write_buffer_size(self) -> int:
        """Return the number of bytes that the peer has not read."""
        return self.unsent_bytes

    def can_write_eof(self) -> bool:
        """Return whether half-close is supported; TLS does not support it."""
        return not self.is_secure

    def write_eof(self) -> None:
        """Close the write side."""
        assert not self.is_secure
        self.is_end_written = True

    def pause_reading(self) -> None:
        """Stop delivering data."""
        self.is_paused = True

    def resume_reading(self) -> None:
        """Resume delivering data."""
        self.is_paused = False

    def is_closing(self) -> bool:
        """Return whether the transport is closing."""
        return self._closes

    def close(self) -> None:
        """Close once the peer has read all data."""
        if not self._closes:
            self._closes = True
            if not self.unsent_bytes:
                asyncio.get_running_loop().call_soon(self.lose)

    def abort(self) -> None:
        """Close at once, discarding unread data."""
        self._closes = True
        asyncio.get_running_loop().call_soon(self.lose)

    def lose(self, error: Exception | None = None) -> None:
        """Call the protocol's `connection_lost`, once."""
        self._closes = True
        if not self.lost:
            self.lost = True
            self._protocol.connection_lost(error)

    # The peer

    @property
    def takes(self) -> bool:
        """Return whether data from the peer is delivered now."""
        return not (self.is_paused or self._closes)

    def deliver(self, data: bytes) -> None:
        """Deliver data from the peer."""
        self._protocol.data_received(data)

    def deliver_end(self) -> None:
        """Deliver EOF from the peer; TLS then closes both ways, whatever `eof_received` returns."""
        stays = self._protocol.eof_received()
        if self.is_secure or not stays:
            self.close()


@dataclass(frozen=True)
class SeenAnswer:
    """A response as read from the connection."""

    status: int
    closes: bool


def read_answers(data: bytes) -> tuple[list[SeenAnswer], bytes]:
    """Return the final responses in *data*, and the rest after a 101 or an incomplete one."""
    answers = []
    while b"\r\n\r\n" in data:
        head, _, rest = data.partition(b"\r\n\r\n")
        lines = head.split(b"\r\n")
        status = int(lines[0].split()[1])
        headers = {
            name.lower(): value.strip()
            for name, _, value in (line.partition(b":") for line in lines[1:])
        }
        if status == 101:
            answers.append(SeenAnswer(status, closes=True))
            return answers, rest
        if status < 200:
            data = rest
            continue
        size = int(headers[b"content-length"])
        if len(rest) < size:
            break
        answers.append(SeenAnswer(status, closes=headers.get(b"connection") == b"close"))
        data = rest[size:]
    return answers, data
