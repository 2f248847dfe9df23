"""Who is told what a connection to a broker brings."""

from __future__ import annotations

import asyncio

from gateway.client.connection import BrokerConnection, ConnectionOptions, Reply
from gateway.errors import BrokerUnreachable
from gateway.protocol.commands import Publish
from gateway.protocol.frames import ErrorFrame, Message
from gateway.protocol.identify import Offer

HEARTBEAT_S = 30.0
OPTIONS = ConnectionOptions(offer=Offer(feature_negotiation=True, heartbeat_interval=30_000))
IN_A_HURRY = ConnectionOptions(connect_timeout_ms=400, close_timeout_ms=400)


class Listener:
    """Keeps what a connection tells."""

    def __init__(self) -> None:
        self.messages: asyncio.Queue[list[Message]] = asyncio.Queue()
        self.refusals: asyncio.Queue[ErrorFrame] = asyncio.Queue()
        self.ends: asyncio.Queue[BrokerUnreachable] = asyncio.Queue()

    def messages_arrived(self, connection: BrokerConnection, messages: list[Message]) -> None:
        """Keep a list."""
        del connection
        self.messages.put_nowait(messages)

    def command_refused(self, connection: BrokerConnection, frame: ErrorFrame) -> None:
        """Keep a refusal."""
        del connection
        self.refusals.put_nowait(frame)

    def connection_ended(self, connection: BrokerConnection, error: BrokerUnreachable) -> None:
        """Keep the end."""
        assert not connection.is_open
        self.ends.put_nowait(error)

    @property
    def heard(self) -> int:
        """How much was told and not taken."""
        return self.messages.qsize() + self.refusals.qsize() + self.ends.qsize()


def ask(connection: BrokerConnection, *bodies: bytes) -> list[Reply]:
    """Publish *bodies*; return the list that their replies will come into."""
    replies: list[Reply] = []
    for body in bodies:
        connection.ask(Publish("t", body), replies.append)
    return replies
