"""A publisher in front of scripted brokers, and what its callers get."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from gateway.client.publisher import Publisher, PublisherOptions
from gateway.errors import GatewayError
from gateway.protocol.commands import Command, MultiPublish, Publish
from gateway.protocol.frames import OK, ErrorFrame
from tests.support.scripted_broker import Peer, ScriptedBroker


@asynccontextmanager
async def publishing(
    *brokers: ScriptedBroker, options: PublisherOptions | None = None
) -> AsyncIterator[Publisher]:
    """Run a publisher with one connection to each of *brokers*; nothing of it stays."""
    one_each = PublisherOptions(connections_per_nsqd=1)
    publisher = Publisher([broker.address for broker in brokers], options or one_each)
    await publisher.start()
    try:
        yield publisher
    finally:
        publisher.abort()
        await publisher.stop()


async def outcomes(*publishes: asyncio.Task[None]) -> list[GatewayError | None]:
    """Wait for *publishes*; return what each raised, None for OK."""
    errors = []
    for error in await asyncio.gather(*publishes, return_exceptions=True):
        assert error is None or isinstance(error, GatewayError), error
        errors.append(error)
    return errors


def start(publisher: Publisher, *bodies: bytes, topic: str = "t") -> list[asyncio.Task[None]]:
    """Begin to publish each of *bodies*."""
    return [asyncio.ensure_future(publisher.publish(topic, body)) for body in bodies]


def refuse_bad_bodies(peer: Peer, command: Command) -> None:
    """Refuse what begins with "bad" as nsqd refuses it, whatever it is in, and take the rest."""
    assert isinstance(command, Publish | MultiPublish)
    bodies: Sequence[bytes] = [command.body] if isinstance(command, Publish) else command.bodies
    if any(body.startswith(b"bad") for body in bodies):
        peer.send(ErrorFrame("E_BAD_MESSAGE", "message too big"))
        peer.close()
    else:
        peer.send(OK)


class Held:
    """A rule that answers nothing and tells which connection got a command."""

    def __init__(self, *brokers: ScriptedBroker) -> None:
        self.peers: asyncio.Queue[Peer] = asyncio.Queue()
        for broker in brokers:
            broker.on(Publish, self)

    def __call__(self, peer: Peer, command: Command) -> None:
        """Keep the connection."""
        del command
        self.peers.put_nowait(peer)
