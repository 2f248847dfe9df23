"""A V2 client that sends exactly what a test asks for and returns every frame."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.support.websocket.raw_socket import RawSocket, raw_socket

RESPONSE, ERROR, MESSAGE = 0, 1, 2
OK = (RESPONSE, b"OK")
HEARTBEAT = (RESPONSE, b"_heartbeat_")

Frame = tuple[int, bytes]
"""Type and data."""


def body_and_attempts(frame: Frame) -> tuple[bytes, int]:
    """Return the body and the attempts of a message frame."""
    kind, data = frame
    assert kind == MESSAGE
    return data[26:], int.from_bytes(data[8:10], "big")


class V2Peer:
    """One connection, after its magic."""

    def __init__(self, raw: RawSocket) -> None:
        self.raw = raw
        self.message_ids: list[bytes] = []
        """Ids of received messages, without duplicates, in order."""

    async def send(self, data: bytes) -> None:
        """Write *data*; in it, ``<id-0>`` is the id of the first message, and so on."""
        for number, message_id in enumerate(self.message_ids):
            data = data.replace(b"<id-%d>" % number, message_id)
        await self.raw.send(data)

    async def frame(self) -> Frame:
        """Return the next frame; raises EOFError when the peer closes in place of it."""
        size, kind = struct.unpack(">II", await self.raw.read_exactly(8))
        data = await self.raw.read_exactly(size - 4)
        if kind == MESSAGE and data[10:26] not in self.message_ids:
            self.message_ids.append(data[10:26])
        return kind, data

    async def frames(self, count: int) -> list[Frame]:
        """Return the next *count* frames."""
        return [await self.frame() for _ in range(count)]

    async def frames_to_end(self) -> list[Frame]:
        """Read frames until the peer closes; return them all."""
        frames = []
        try:
            while True:
                frames.append(await self.frame())
        except (EOFError, ConnectionError):
            return frames

    async def ask(self, data: bytes) -> Frame:
        """Send *data* and return the next frame."""
        await self.send(data)
        return await self.frame()


@asynccontextmanager
async def v2_peer(address: str, *, magic: bytes = b"  V2") -> AsyncIterator[V2Peer]:
    """Connect to a broker at *address*, host:port."""
    async with raw_socket(address) as raw:
        await raw.send(magic)
        yield V2Peer(raw)


def publish(topic: bytes, body: bytes) -> bytes:
    """Return a PUB."""
    return b"PUB %b\n" % topic + length_prefixed(body)


def multi_publish(topic: bytes, *bodies: bytes) -> bytes:
    """Return an MPUB."""
    return b"MPUB %b\n" % topic + length_prefixed(
        struct.pack(">I", len(bodies)) + b"".join(map(length_prefixed, bodies))
    )


def identify(body: bytes) -> bytes:
    """Return an IDENTIFY."""
    return b"IDENTIFY\n" + length_prefixed(body)


def length_prefixed(data: bytes) -> bytes:
    """Return *data* after its size."""
    return struct.pack(">I", len(data)) + data
