"""A proxy in front of a broker that forwards and records every byte."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Wiretap:
    """The bytes of all connections so far; make one with `wiretap`."""

    def __init__(self, upstream: str) -> None:
        self.address = ""
        """The address for clients."""
        self.said = bytearray()
        """Bytes from clients."""
        self.heard = bytearray()
        """Bytes from the broker."""
        self._upstream = upstream

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward one connection until it ends."""
        host, _, port = self._upstream.rpartition(":")
        upstream_reader, upstream_writer = await asyncio.open_connection(host, int(port))
        async with asyncio.TaskGroup() as group:
            group.create_task(_carry(reader, upstream_writer, self.said))
            group.create_task(_carry(upstream_reader, writer, self.heard))


async def _carry(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kept: bytearray
) -> None:
    try:
        while data := await reader.read(65_536):
            kept += data
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()


@asynccontextmanager
async def wiretap(upstream: str) -> AsyncIterator[Wiretap]:
    """Listen in front of *upstream* (host:port) until the block ends and all connections closed."""
    tap = Wiretap(upstream)
    calls: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        call = asyncio.current_task()
        assert call is not None
        calls.add(call)
        await tap.serve(reader, writer)

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        tap.address = ":".join(map(str, server.sockets[0].getsockname()))
        yield tap
        server.close()
        await asyncio.gather(*calls)
