"""A producer in front of scripted brokers, and the results of its publishes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gateway.client.producer import Producer, ProducerOptions
from gateway.errors import GatewayError
from gateway.protocol.commands import Bodies, Command, MultiPublish, Publish
from gateway.protocol.frames import OK, ErrorFrame
from tests.support.brokers.scripted_broker import Peer, ScriptedBroker


@asynccontextmanager
async def running_producer(
    *brokers: ScriptedBroker, options: ProducerOptions | None = None
) -> AsyncIterator[Producer]:
    """Run a producer with one connection to each of *brokers*; close it when the block ends."""
    one_each = ProducerOptions(connections_per_nsqd=1)
    publisher = Producer([broker.address for broker in brokers], options or one_each)
    await publisher.start()
    try:
        yield publisher
    finally:
        publisher.abort()
        await publisher.stop()


async def outcomes(*publishes: asyncio.Task[None]) -> list[GatewayError | None]:
    """Wait for *publishes*; return the error of each, None for OK."""
    errors = []
    for error in await asyncio.gather(*publishes, return_exceptions=True):
        assert error is None or isinstance(error, GatewayError), error
        errors.append(error)
    return errors


def start_publishes(
    publisher: Producer, *bodies: bytes, topic: str = "t"
) -> list[asyncio.Task[None]]:
    """Start to publish each of *bodies*; return the tasks."""
    return [asyncio.ensure_future(publisher.publish(topic, body)) for body in bodies]


def refuse_bad_bodies(peer: Peer, command: Command) -> None:
    """Refuse bodies that begin with "bad" as nsqd does, alone or in an MPUB; accept others."""
    assert isinstance(command, Publish | MultiPublish)
    bodies: Bodies = [command.body] if isinstance(command, Publish) else command.bodies
    if any(body.startswith(b"bad") for body in bodies):
        peer.send(ErrorFrame("E_BAD_MESSAGE", "message too big"))
        peer.close()
    else:
        peer.send(OK)


class HeldPublishes:
    """A rule that answers nothing and records which connection received each publish."""

    def __init__(self, *brokers: ScriptedBroker) -> None:
        self.peers: asyncio.Queue[Peer] = asyncio.Queue()
        for broker in brokers:
            broker.on(Publish, self)

    def __call__(self, peer: Peer, command: Command) -> None:
        """Record the connection."""
        del command
        self.peers.put_nowait(peer)
