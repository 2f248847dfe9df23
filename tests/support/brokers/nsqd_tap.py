"""
A proxy in front of a broker that decodes NSQ's protocol and records both directions.

It has its own small parser, because it is used to check the gateway's.
Source: the protocol specification, sections Commands and Data Format.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import count

from tests.support.history.events import (
    AckForwarded,
    AckRefused,
    ConnectionClosed,
    History,
    MessageSent,
    PublishStored,
)

_MAGIC = b"  V2"
_RESPONSE, _ERROR, _MESSAGE = 0, 1, 2
_SIZE_BYTES = 4
_REFUSAL = re.compile(rb"E_(FIN|REQ|TOUCH)_FAILED \w+ (\w{16})")


class _Conversation:
    """Both directions of one connection."""

    def __init__(self, number: int, history: History) -> None:
        self.number = number
        self._history = history
        self._said = b""
        self._heard = b""
        self._publishing: deque[tuple[str, ...]] = deque()
        """Publishes that await OK, in order; no other pending command has a response."""

    def says(self, data: bytes) -> None:
        """Parse data from the gateway."""
        self._said += data
        while (end := self._command()) > 0:
            self._said = self._said[end:]

    def hears(self, data: bytes) -> None:
        """Parse data from the broker."""
        self._heard += data
        while len(self._heard) >= 8:
            size = int.from_bytes(self._heard[:4], "big")
            if len(self._heard) < 4 + size:
                return
            self._frame(int.from_bytes(self._heard[4:8], "big"), self._heard[8 : 4 + size])
            self._heard = self._heard[4 + size :]

    def _command(self) -> int:
        """Record the first command; return its length, or 0 if it is incomplete."""
        said = self._said.removeprefix(_MAGIC)
        skipped = len(self._said) - len(said)
        line, newline, rest = said.partition(b"\n")
        verb, *params = line.split(b" ")
        if not newline:
            return 0
        end = skipped + len(line) + 1
        if verb in (b"IDENTIFY", b"AUTH", b"PUB", b"DPUB", b"MPUB"):
            size = int.from_bytes(rest[:_SIZE_BYTES], "big")
            if len(rest) < _SIZE_BYTES + size:
                return 0
            body = rest[_SIZE_BYTES : _SIZE_BYTES + size]
            if verb in (b"PUB", b"DPUB"):
                self._publishing.append((body.decode(),))
            elif verb == b"MPUB":
                self._publishing.append(_bodies(body))
            return end + _SIZE_BYTES + size
        if verb in (b"FIN", b"REQ", b"TOUCH"):
            self._history.add(AckForwarded(self.number, verb.decode(), params[0].decode()))
        return end

    def _frame(self, kind: int, data: bytes) -> None:
        if kind == _MESSAGE:
            attempts = int.from_bytes(data[8:10], "big")
            self._history.add(
                MessageSent(self.number, data[10:26].decode(), attempts, data[26:].decode())
            )
        elif kind == _RESPONSE and data == b"OK" and self._publishing:
            self._history.add(PublishStored(self._publishing.popleft()))
        elif kind == _ERROR:
            if found := _REFUSAL.match(data):
                self._history.add(AckRefused(self.number, found[1].decode(), found[2].decode()))
            elif self._publishing:
                self._publishing.popleft()


def _bodies(data: bytes) -> tuple[str, ...]:
    """Return the messages of an MPUB, after its count."""
    bodies, offset = [], _SIZE_BYTES
    while offset < len(data):
        start = offset + _SIZE_BYTES
        offset = start + int.from_bytes(data[offset:start], "big")
        bodies.append(data[start:offset].decode())
    return tuple(bodies)


class NsqdTap:
    """A running proxy; make one with `nsqd_tap`."""

    def __init__(self, upstream: str, history: History, numbers: Iterator[int]) -> None:
        self.address = ""
        """The address for clients."""
        self._upstream = upstream
        self._history = history
        self._numbers = numbers

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward one connection until either side closes it."""
        host, _, port = self._upstream.rpartition(":")
        try:
            broker_reader, broker_writer = await asyncio.open_connection(host, int(port))
        except OSError:
            writer.close()  # there is no broker now
            return
        talk = _Conversation(next(self._numbers), self._history)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(carry(reader, broker_writer, talk.says))
                group.create_task(carry(broker_reader, writer, talk.hears))
        finally:
            self._history.add(ConnectionClosed(talk.number))
            writer.transport.abort()
            broker_writer.transport.abort()


async def carry(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, take: Callable[[bytes], object]
) -> None:
    """Forward one direction, after giving it to *take*; its end closes both, after what is left."""
    try:
        while data := await reader.read(65_536):
            # Written down before it goes on, so that what follows from it stands behind it.
            take(data)
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()


@asynccontextmanager
async def nsqd_tap(
    upstream: str, history: History, numbers: Iterator[int] | None = None
) -> AsyncIterator[NsqdTap]:
    """
    Listen in front of *upstream* (host:port) until the block ends, then close everything.

    *numbers* are those of the connections; several taps of one history share them.
    """
    tap = NsqdTap(upstream, history, numbers or count(1))
    calls: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        call = asyncio.current_task()
        assert call is not None
        calls.add(call)
        try:
            await tap.serve(reader, writer)
        except asyncio.CancelledError:
            pass  # the block has ended
        finally:
            calls.discard(call)

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        tap.address = ":".join(map(str, server.sockets[0].getsockname()))
        try:
            yield tap
        finally:
            server.close()
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
