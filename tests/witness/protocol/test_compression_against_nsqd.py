"""The real nsqd and our filters read each other: snappy, and deflate at three levels."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import pytest_asyncio

from gateway.protocol.commands import Command, Finish, Identify, Publish, Ready, Subscribe
from gateway.protocol.compression import DeflateCodec, SnappyCodec
from gateway.protocol.connection import (
    Codec,
    Event,
    HeartbeatReceived,
    Identified,
    MessagesReceived,
    Role,
    V2Connection,
)
from gateway.protocol.frames import OK
from gateway.protocol.identify import IdentifyRequest, IdentifyResponse
from gateway.protocol.wire import MAGIC
from tests.support.brokers.nsqd import RealNsqd, real_nsqd

pytestmark = [pytest.mark.nsqd, pytest.mark.asyncio(loop_scope="module")]

_WAIT_S = 60.0
_AT_ONCE_S = 1.0
_READ_BYTES = 65_536
_MAX_MESSAGE_BYTES = 1_048_576
_IN_FLIGHT = 100

OFFERS = {
    "snappy": IdentifyRequest(feature_negotiation=True, snappy=True),
    **{
        f"deflate-{level}": IdentifyRequest(
            feature_negotiation=True, deflate=True, deflate_level=level
        )
        for level in (1, 6, 9)
    },
}
ALL_OFFERS = pytest.mark.parametrize("offer", OFFERS.values(), ids=OFFERS.keys())


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def nsqd() -> AsyncIterator[RealNsqd]:
    """One real nsqd that takes level 9 too (its default is 6 at most)."""
    async with real_nsqd("--max-deflate-level=9") as daemon:
        yield daemon


def filter_for(answer: IdentifyResponse) -> Codec:
    """Return what nsqd speaks after *answer*."""
    return SnappyCodec() if answer.snappy else DeflateCodec(answer.deflate_level)


class Peer:
    """A client's side on a socket of its own, after IDENTIFY and the upgrade."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.answer = IdentifyResponse()
        self._reader = reader
        self._writer = writer
        self._protocol = V2Connection(Role.CLIENT)
        self._events: list[Event] = []

    async def identify(self, offer: IdentifyRequest) -> None:
        """Upgrade to what *offer* asks for; nsqd's OK to that is compressed already."""
        self._writer.write(self._protocol.send_magic())
        await self.send(Identify(offer.to_json()))
        answered = await self.event()
        assert isinstance(answered, Identified)
        self.answer = answered.response
        self._events += self._protocol.upgrade(filter_for(self.answer))
        assert OK == await self.event()

    async def send(self, *commands: Command) -> None:
        """Write *commands*, each by itself."""
        for command in commands:
            self._writer.write(self._protocol.send(command))
            await self._writer.drain()

    async def finish(self, ids: list[bytes]) -> None:
        """Write FIN for *ids*."""
        self._writer.write(self._protocol.send_finishes(ids))
        await self._writer.drain()

    async def event(self) -> Event:
        """Return the next event, heartbeats aside."""
        while not self._events:
            data = await self._reader.read(_READ_BYTES)
            assert data, "nsqd has closed the connection"
            self._events += [
                event
                for event in self._protocol.receive_data(data)
                if not isinstance(event, HeartbeatReceived)
            ]
        return self._events.pop(0)


@asynccontextmanager
async def connected(nsqd: RealNsqd, offer: IdentifyRequest) -> AsyncIterator[Peer]:
    host, _, port = nsqd.tcp_address.rpartition(":")
    async with asyncio.timeout(_WAIT_S):
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            peer = Peer(reader, writer)
            await peer.identify(offer)
            yield peer
        finally:
            writer.close()


def mixed_bodies() -> list[bytes]:
    """Return 1,000 different bodies of 1 byte to 1 MiB, half of which nothing makes shorter."""
    chance = random.Random(1)
    sizes = [chance.choice([1, 24, 200, 1_000, 16_384, 65_535, 65_536]) for _ in range(990)]
    sizes += [65_537, 131_072, *[_MAX_MESSAGE_BYTES] * 8]
    chance.shuffle(sizes)
    bodies = []
    for number, size_bytes in enumerate(sizes):
        text = b"%d," % number
        body = text + chance.randbytes(size_bytes) if number % 2 else text * size_bytes
        bodies.append(body[: max(size_bytes, len(text))])
    return bodies


async def publish_all(peer: Peer, topic: str, bodies: list[bytes]) -> None:
    """Publish *bodies* without waiting for each OK, which all come in the end."""

    async def read() -> None:
        for _ in bodies:
            assert OK == await peer.event()

    async with asyncio.TaskGroup() as group:
        group.create_task(read())
        await peer.send(*(Publish(topic, body) for body in bodies))


async def consume(peer: Peer, topic: str, count: int) -> list[bytes]:
    """Return the bodies of *count* messages, each read of them finished at once."""
    await peer.send(Subscribe(topic, "c"))
    assert OK == await peer.event()
    await peer.send(Ready(_IN_FLIGHT))
    bodies: list[bytes] = []
    while len(bodies) < count:
        arrived = await peer.event()
        assert isinstance(arrived, MessagesReceived), arrived
        bodies += [message.body for message in arrived.messages]
        await peer.finish([message.id for message in arrived.messages])
    return bodies


@ALL_OFFERS
async def test_a_thousand_messages_go_through_nsqd_unchanged(
    nsqd: RealNsqd, offer: IdentifyRequest
) -> None:
    """A message published on one compressed connection is delivered on another, byte for byte."""
    bodies = mixed_bodies()
    topic = f"witness_{offer.snappy:d}_{offer.deflate_level}"

    async with (
        connected(nsqd, offer) as publisher,
        connected(nsqd, offer) as consumer,
        asyncio.TaskGroup() as group,
    ):
        consumed = group.create_task(consume(consumer, topic, len(bodies)))
        await publish_all(publisher, topic, bodies)
        received = await consumed

    assert (1_000, _MAX_MESSAGE_BYTES) == (len(bodies), max(map(len, bodies)))
    # A bool, for the difference of two lists of 30 MB is nothing to print.
    assert True is (sorted(bodies) == sorted(received))


@ALL_OFFERS
async def test_finishes_reach_nsqd_through_the_codec(
    nsqd: RealNsqd, offer: IdentifyRequest
) -> None:
    """A FIN through compression takes effect: the second FIN fails."""
    topic = f"finished_{offer.snappy:d}_{offer.deflate_level}"
    async with connected(nsqd, offer) as peer:
        await peer.send(Publish(topic, b"body"), Subscribe(topic, "c"))
        assert [OK, OK] == [await peer.event(), await peer.event()]
        await peer.send(Ready(1))
        arrived = await peer.event()
        assert isinstance(arrived, MessagesReceived)
        (message,) = arrived.messages
        await peer.send(Finish(message.id), Finish(message.id))

        refused = await peer.event()

    assert f"code='E_FIN_FAILED', description='FIN {message.id.decode()}" in str(refused)


@ALL_OFFERS
async def test_nsqd_grants_the_level(nsqd: RealNsqd, offer: IdentifyRequest) -> None:
    async with connected(nsqd, offer) as peer:
        answer = peer.answer

    expected = (offer.snappy, offer.deflate, offer.deflate_level or 6)
    assert expected == (answer.snappy, answer.deflate, answer.deflate_level)


@asynccontextmanager
async def answered(nsqd: RealNsqd, offer: IdentifyRequest) -> AsyncIterator[asyncio.StreamReader]:
    """Give what nsqd writes after its answer to IDENTIFY, as it stands on the wire."""
    host, _, port = nsqd.tcp_address.rpartition(":")
    async with asyncio.timeout(_WAIT_S):
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            writer.write(MAGIC + Identify(offer.to_json()).encode())
            await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
            yield reader
        finally:
            writer.close()


async def test_nsqd_writes_snappy_as_we_do(nsqd: RealNsqd) -> None:
    """nsqd's first OK is byte for byte ours: identifier, uncompressed chunk, checksum."""
    ours = SnappyCodec().encode(OK.encode())

    async with answered(nsqd, OFFERS["snappy"]) as reader:
        theirs = await reader.readexactly(len(ours))

    assert ours == theirs


async def test_nsqd_ends_its_first_ok_in_two_empty_blocks(nsqd: RealNsqd) -> None:
    """nsqd flushes deflate twice after the upgrade, and one of them says nothing."""
    blocks: list[bytes] = []
    async with asyncio.timeout(_WAIT_S):
        while len(blocks) < 2:
            # The second flush is another goroutine's, which at times comes before the upgrade.
            blocks = await blocks_at_once(nsqd)

    layer = DeflateCodec(6)
    # In either order, for the same reason.
    assert [[], [OK.encode()]] == sorted(list(layer.decode(block)) for block in blocks)


async def blocks_at_once(nsqd: RealNsqd) -> list[bytes]:
    """Return the blocks of deflate that follow the answer to IDENTIFY, two at most."""
    blocks: list[bytes] = []
    async with answered(nsqd, OFFERS["deflate-6"]) as reader:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_AT_ONCE_S):
                while len(blocks) < 2:
                    blocks.append(await reader.readuntil(b"\x00\x00\xff\xff"))
    return blocks
