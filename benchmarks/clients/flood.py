"""
Overload a gateway with publishes over hundreds of connections, for some seconds.

Each connection publishes again after every response; the slow ones send a part of a body and wait.
Prints the number of responses by kind and status; 0 is a connection that ended without one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections import Counter
from dataclasses import dataclass

import uvloop

_TARGET = "/pub?topic=bench%23ephemeral"


@dataclass(frozen=True)
class Kind:
    """A kind of connections."""

    name: str
    connections: int
    body_bytes: int
    sent_bytes: int
    """Bytes of the body that they send; if fewer than all, they never send the rest."""
    chunk_bytes: int | None = None
    """Chunk size of a chunked body; None for Content-Length."""

    @property
    def is_whole(self) -> bool:
        """True if the whole body is sent."""
        return self.sent_bytes == self.body_bytes

    def request(self) -> bytes:
        """Return the bytes of the request."""
        head = f"POST {_TARGET} HTTP/1.1\r\nHost: gateway\r\n"
        if self.chunk_bytes is None:
            head += f"Content-Length: {self.body_bytes}\r\n\r\n"
            return head.encode() + b"x" * self.sent_bytes
        chunk = b"%x\r\n%b\r\n" % (self.chunk_bytes, b"x" * self.chunk_bytes)
        head += "Transfer-Encoding: chunked\r\n\r\n"
        return head.encode() + chunk * (self.sent_bytes // self.chunk_bytes)


KINDS = (
    Kind("200 B", 256, 200, 200),
    Kind("64 KiB", 1_024, 65_536, 65_536),
    Kind("1 MiB, half sent", 64, 1_048_576, 524_288),
    Kind("1 MiB in chunks of 2 B, a quarter sent", 16, 1_048_576, 262_144, chunk_bytes=2),
)


class FloodConnection(asyncio.Protocol):
    """Consecutive requests, over consecutive connections."""

    def __init__(self, address: tuple[str, int], request: bytes, answers: Counter[int]) -> None:
        self._address = address
        self._request = request
        self._answers = answers
        self._transport: asyncio.Transport
        self._read = b""
        self._is_answered = False
        self._connecting: asyncio.Task[object] | None = None

    def connect(self) -> None:
        """Connect."""
        loop = asyncio.get_running_loop()
        self._connecting = loop.create_task(loop.create_connection(lambda: self, *self._address))

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Send the first request."""
        self._transport = transport
        self._ask()

    def _ask(self) -> None:
        self._is_answered = False
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Count the response and send the next request."""
        self._read += data
        head, found, body = self._read.partition(b"\r\n\r\n")
        if not found or len(body) < _content_length(head):
            return
        self._read = b""
        self._is_answered = True
        self._answers[int(head[9:12])] += 1
        if b"connection: close" not in head.lower():
            self._ask()

    def connection_lost(self, exc: Exception | None) -> None:
        """Reconnect."""
        del exc
        if not self._is_answered:
            self._answers[0] += 1
        self._read = b""
        self.connect()


def _content_length(head: bytes) -> int:
    return int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])


async def flood(address: tuple[str, int], seconds: float) -> dict[str, Counter[int]]:
    """Send requests for *seconds*; return the responses by kind and status."""
    answers = {kind.name: Counter[int]() for kind in KINDS}
    for kind in KINDS:
        request = kind.request()
        for _ in range(kind.connections):
            FloodConnection(address, request, answers[kind.name]).connect()
    await asyncio.sleep(seconds)
    return {name: Counter(counted) for name, counted in answers.items()}


def main() -> None:
    """Run the flood."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--address", required=True, metavar="HOST:PORT")
    parser.add_argument("--seconds", type=float, required=True)
    asked = parser.parse_args()
    host, _, port = asked.address.rpartition(":")
    print(json.dumps(uvloop.run(flood((host, int(port)), asked.seconds))))


if __name__ == "__main__":
    main()
