"""The TCP side of an nsqlookupd, whose answers the test decides."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

INFO = json.dumps({"broadcast_address": "127.0.0.1", "version": "1.3.0"}).encode()
Answer = Callable[[bytes], bytes]


def framed(data: bytes) -> bytes:
    """Return *data* after its size, as nsqlookupd answers."""
    return struct.pack(">i", len(data)) + data


def as_nsqlookupd(info: bytes = INFO) -> Answer:
    """Answer IDENTIFY with *info*, and everything else with OK."""
    return lambda command: framed(info if command == b"IDENTIFY" else b"OK")


class LookupdPeer:
    """What brokers send to an nsqlookupd; answers are those of `answer`."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.identities: list[dict[str, object]] = []
        self._commands: asyncio.Queue[bytes] = asyncio.Queue()
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self) -> str:
        """Listen; return host:port."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        return f"{host}:{port}"

    async def stop(self) -> None:
        """Stop listening, and close all connections."""
        self._server.close()
        self.cut()
        await self._server.wait_closed()

    def cut(self) -> None:
        """Close all connections, as an nsqlookupd that ends."""
        for writer in self._writers:
            writer.transport.abort()

    def say(self, data: bytes) -> None:
        """Send *data* unasked."""
        for writer in self._writers:
            writer.write(data)

    async def commands(self, count: int) -> list[bytes]:
        """Return the next *count* commands, IDENTIFY included."""
        async with asyncio.timeout(30):
            return [await self._commands.get() for _ in range(count)]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            assert b"  V1" == await reader.readexactly(4)
            while line := (await reader.readline()).strip():
                if line == b"IDENTIFY":
                    (size,) = struct.unpack(">i", await reader.readexactly(4))
                    self.identities.append(json.loads(await reader.readexactly(size)))
                self._commands.put_nowait(line)
                writer.write(self.answer(line))
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()


@asynccontextmanager
async def lookupd_peer(answer: Answer | None = None) -> AsyncIterator[tuple[LookupdPeer, str]]:
    """Run one; yield it and its address."""
    peer = LookupdPeer(answer or as_nsqlookupd())
    address = await peer.start()
    try:
        yield peer, address
    finally:
        await peer.stop()
