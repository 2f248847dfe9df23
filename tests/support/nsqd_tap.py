"""
A way to a broker that understands NSQ's protocol, and writes down what both sides say.

It reads by its own few lines, not with the gateway's parser: what it bears witness of is that one.
Source: the protocol specification, sections Commands and Data Format.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count

from tests.support.history import History, HungUp, Passed, Refused, Sent, Stored

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
        """What waits for its OK; no other command that is answered comes between."""

    def says(self, data: bytes) -> None:
        """Take what the gateway wrote."""
        self._said += data
        while (end := self._command()) > 0:
            self._said = self._said[end:]

    def hears(self, data: bytes) -> None:
        """Take what the broker wrote."""
        self._heard += data
        while len(self._heard) >= 8:
            size = int.from_bytes(self._heard[:4], "big")
            if len(self._heard) < 4 + size:
                return
            self._frame(int.from_bytes(self._heard[4:8], "big"), self._heard[8 : 4 + size])
            self._heard = self._heard[4 + size :]

    def _command(self) -> int:
        """Take the command at the start; return where it ends, 0 when it is not all there."""
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
            self._history.add(Passed(self.number, verb.decode(), params[0].decode()))
        return end

    def _frame(self, kind: int, data: bytes) -> None:
        if kind == _MESSAGE:
            attempts = int.from_bytes(data[8:10], "big")
            self._history.add(Sent(self.number, data[10:26].decode(), attempts, data[26:].decode()))
        elif kind == _RESPONSE and data == b"OK" and self._publishing:
            self._history.add(Stored(self._publishing.popleft()))
        elif kind == _ERROR:
            if found := _REFUSAL.match(data):
                self._history.add(Refused(self.number, found[1].decode(), found[2].decode()))
            elif self._publishing:
                self._publishing.popleft()


def _bodies(data: bytes) -> tuple[str, ...]:
    """Return the messages of an MPUB, behind its count."""
    bodies, offset = [], _SIZE_BYTES
    while offset < len(data):
        start = offset + _SIZE_BYTES
        offset = start + int.from_bytes(data[offset:start], "big")
        bodies.append(data[start:offset].decode())
    return tuple(bodies)


class NsqdTap:
    """Where the gateway finds the broker; make one with `nsqd_tap`."""

    def __init__(self, upstream: str, history: History) -> None:
        self.address = ""
        """Where it listens."""
        self._upstream = upstream
        self._history = history
        self._numbers = count(1)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry one connection until either side ends it."""
        host, _, port = self._upstream.rpartition(":")
        try:
            broker_reader, broker_writer = await asyncio.open_connection(host, int(port))
        except OSError:
            writer.close()  # there is no broker now
            return
        talk = _Conversation(next(self._numbers), self._history)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(_carry(reader, broker_writer, talk.says))
                group.create_task(_carry(broker_reader, writer, talk.hears))
        finally:
            self._history.add(HungUp(talk.number))
            writer.transport.abort()
            broker_writer.transport.abort()


async def _carry(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, take: Callable[[bytes], None]
) -> None:
    """Carry one direction; its end is the end of both, behind what was written."""
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
async def nsqd_tap(upstream: str, history: History) -> AsyncIterator[NsqdTap]:
    """Listen in front of *upstream* (host:port) until the block ends; then all hang up."""
    tap = NsqdTap(upstream, history)
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
