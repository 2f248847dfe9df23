"""Forward clients that speak plain V2 to a broker, through a layer that they know nothing of."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from gateway.errors import RemoteProtocolError
from gateway.protocol.compression import DeflateCodec, SnappyCodec
from gateway.protocol.connection import Codec
from gateway.protocol.wire import MAGIC
from tests.support.brokers.v2_peer import identify

_OK_BYTES = 10
_READ_BYTES = 65_536


@asynccontextmanager
async def layer_proxy(address: str, layer: str) -> AsyncIterator[str]:
    """Yield the address of a proxy to the broker at *address*; *layer* is snappy or deflate."""
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        # The broker or the client may end before the layer begins, and nsqd may leave it.
        with suppress(ConnectionError, asyncio.IncompleteReadError, RemoteProtocolError):
            await _serve(reader, writer, address, layer)
        writer.close()
        tasks.discard(task)

    listener = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=2_048)
    try:
        yield ":".join(map(str, listener.sockets[0].getsockname()))
    finally:
        listener.close()
        await asyncio.gather(*tasks)


async def _serve(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, address: str, layer: str
) -> None:
    magic = await reader.readexactly(len(MAGIC))
    host, _, port = address.rpartition(":")
    broker_reader, broker_writer = await asyncio.open_connection(host, int(port))
    codec: Codec | None = None
    try:
        broker_writer.write(magic)
        if magic == MAGIC:
            codec = SnappyCodec() if layer == "snappy" else DeflateCodec(6)
            writer.write(await _start(broker_reader, broker_writer, codec, layer))
        sending = asyncio.create_task(_send(reader, broker_writer, codec))
        try:
            while data := await broker_reader.read(_READ_BYTES):
                writer.write(data if codec is None else b"".join(codec.decode(data)))
        finally:
            sending.cancel()
    finally:
        broker_writer.close()


async def _start(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, codec: Codec, layer: str
) -> bytes:
    """Start *codec*; return what came behind its OK."""
    writer.write(identify(json.dumps({"feature_negotiation": True, layer: True}).encode()))
    size_bytes = int.from_bytes(await reader.readexactly(4), "big")
    await reader.readexactly(size_bytes)
    clear = b""
    while len(clear) < _OK_BYTES:
        data = await reader.read(_READ_BYTES)
        if not data:
            raise ConnectionResetError
        clear += b"".join(codec.decode(data))
    return clear[_OK_BYTES:]


async def _send(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, codec: Codec | None
) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(_READ_BYTES):
            writer.write(data if codec is None else codec.encode(data))
            await writer.drain()
        writer.write_eof()
