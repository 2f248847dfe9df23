"""A V2 client that starts TLS and compression when a test says so, and tells what it hears."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gateway.errors import RemoteProtocolError
from gateway.protocol.compression import DeflateCodec, SnappyCodec
from gateway.protocol.connection import Codec
from tests.support.brokers.v2_peer import V2Peer
from tests.support.websocket.raw_socket import RawSocket

_WAIT_S = 60.0
_READ_BYTES = 65_536


class LayeredSocket(RawSocket):
    """A TCP connection under TLS and compression, as far as they have been started."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._codec: Codec | None = None
        self._read = b""

    async def start_tls(self, context: ssl.SSLContext) -> None:
        """Start TLS; raises ssl.SSLError or ConnectionError if the handshake fails."""
        await self._writer.start_tls(context, server_hostname="127.0.0.1")

    def compress(self, codec: Codec) -> None:
        """Compress everything from here on, and decompress it."""
        self._codec = codec
        # The peer may have sent compressed bytes right behind its last frame.
        self._read = b"".join(codec.decode(self._read))

    async def send(self, data: bytes) -> None:
        """Write all of *data* through the layers."""
        await self.send_raw(data if self._codec is None else self._codec.encode(data))

    async def send_raw(self, data: bytes) -> None:
        """Write *data* beside the compression."""
        self._writer.write(data)
        await self._writer.drain()

    async def _read_more(self) -> None:
        async with asyncio.timeout(_WAIT_S):
            data = await self._reader.read(_READ_BYTES)
        if not data:
            raise EOFError
        try:
            self._read += data if self._codec is None else b"".join(self._codec.decode(data))
        except RemoteProtocolError as error:
            raise AssertionError(f"{data[:40]!r} is not of the layer") from error

    def end(self) -> None:
        """Half-close: the peer's data can still be read; not under TLS."""
        self._writer.write_eof()

    def close(self) -> None:
        """Close the connection."""
        self._writer.close()


class LayeredPeer(V2Peer):
    """One connection, whose layers `upgrade` starts."""

    def __init__(self, layers: LayeredSocket) -> None:
        super().__init__(layers)
        self.layers = layers

    async def upgrade(self, name: str, context: ssl.SSLContext) -> None:
        """Start the layer *name*: tls, snappy or deflate."""
        if name == "tls":
            await self.layers.start_tls(context)
        else:
            self.layers.compress(SnappyCodec() if name == "snappy" else DeflateCodec(6))


@asynccontextmanager
async def layered_peer(address: str, *, magic: bytes = b"  V2") -> AsyncIterator[LayeredPeer]:
    """Connect to a broker at *address*, host:port."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    peer = LayeredPeer(LayeredSocket(reader, writer))
    await peer.layers.send_raw(magic)
    try:
        yield peer
    finally:
        writer.transport.abort()
