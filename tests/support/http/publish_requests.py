"""Requests to POST /pub and /mpub of all kinds: valid, invalid, large, and aborted."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tests.support.http.publish_check import LOST


@dataclass(frozen=True, kw_only=True)
class Request:
    """One request of a client."""

    target: str
    content: bytes
    bodies: tuple[bytes, ...] = ()
    expected: int = 200
    """Status without a fault; LOST: the client disconnects before the response."""
    sent_bytes: int | None = None
    """Bytes of *content* that are sent; None: all."""


@dataclass(frozen=True, kw_only=True)
class Mix:
    """Message sizes and topics of the requests."""

    topics: Sequence[str]
    large_bytes: int = 40_000
    """Message size of one request in twenty; other messages have 50 to 400 bytes."""
    refused_by_nsqd_bytes: int | None = None
    """Message size that the gateway accepts and nsqd refuses; None: no such requests."""
    too_big_bytes: int
    """Message size that the gateway refuses without closing the connection."""


def requests(client: str, mix: Mix) -> Iterator[Request]:
    """Yield the requests of *client* for ever; the sequence is deterministic."""
    made = _Maker(client, mix)
    kinds: dict[Callable[[], Request], int] = {
        made.pub: 60,
        made.lines: 15,
        made.binary: 10,
        made.large: 5,
        made.empty: 1,
        made.bad_topic: 1,
        made.too_big: 1,
        made.refused_by_nsqd: 0 if mix.refused_by_nsqd_bytes is None else 3,
        made.empty_in_binary: 1,
        made.left: 3,
        made.half: 2,
    }
    while True:
        yield made.chance.choices(list(kinds), list(kinds.values()))[0]()


class _Maker:
    """Factory of requests of each kind."""

    def __init__(self, client: str, mix: Mix) -> None:
        self.chance = random.Random(client)
        self._client = client
        self._mix = mix
        self._count = 0

    def pub(self) -> Request:
        """Publish one message."""
        return self._pub(self._body())

    def large(self) -> Request:
        """Publish one message larger than a packet."""
        return self._pub(self._body(self._mix.large_bytes))

    def lines(self) -> Request:
        """Publish several messages, separated by newlines."""
        bodies = self._bodies()
        return Request(target=self._target("mpub"), content=b"\n".join(bodies), bodies=bodies)

    def binary(self) -> Request:
        """Publish several messages in binary format, each with a length prefix."""
        bodies = self._bodies()
        return Request(target=self._binary_target(), content=_framed(bodies), bodies=bodies)

    # Refused requests

    def empty(self) -> Request:
        """Publish an empty body."""
        return Request(target=self._target("pub"), content=b"", expected=400)

    def bad_topic(self) -> Request:
        """Publish to an invalid topic name."""
        body = self._body()
        return Request(target="/pub?topic=a+b", content=body, bodies=(body,), expected=400)

    def too_big(self) -> Request:
        """Publish a message above the gateway's limit."""
        return self._pub(self._body(self._mix.too_big_bytes), expected=413)

    def refused_by_nsqd(self) -> Request:
        """Publish a message above nsqd's limit, batched with others."""
        return self._pub(self._body(self._mix.refused_by_nsqd_bytes), expected=413)

    def empty_in_binary(self) -> Request:
        """Publish several messages, one of them empty: the whole request is refused."""
        bodies = self._bodies()
        content = _framed((*bodies, b""))
        target = self._binary_target()
        return Request(target=target, content=content, bodies=bodies, expected=413)

    # Clients that disconnect early

    def left(self) -> Request:
        """Disconnect without waiting for the response."""
        return self._pub(self._body(), expected=LOST)

    def half(self) -> Request:
        """Disconnect in the middle of the body."""
        body = self._body()
        target = self._target("pub")
        half = len(body) // 2
        return Request(target=target, content=body, bodies=(body,), expected=LOST, sent_bytes=half)

    # Parts

    def _pub(self, body: bytes, *, expected: int = 200) -> Request:
        target = self._target("pub")
        return Request(target=target, content=body, bodies=(body,), expected=expected)

    def _target(self, route: str) -> str:
        return f"/{route}?topic={self.chance.choice(self._mix.topics)}"

    def _binary_target(self) -> str:
        return f"{self._target('mpub')}&binary=true"

    def _bodies(self) -> tuple[bytes, ...]:
        return tuple(self._body() for _ in range(self.chance.randint(1, 20)))

    def _body(self, size_bytes: int | None = None) -> bytes:
        """Return a unique message."""
        self._count += 1
        name = f"{self._client}-{self._count} ".encode()
        return name.ljust(size_bytes or self.chance.randint(50, 400), b".")


def _framed(bodies: Sequence[bytes]) -> bytes:
    """Return the body of a binary /mpub."""
    messages = [struct.pack(">I", len(body)) + body for body in bodies]
    return struct.pack(">I", len(bodies)) + b"".join(messages)
