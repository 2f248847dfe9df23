"""A listener that records the events of a connection to a broker."""

from __future__ import annotations

import asyncio

from gateway.client.connection import BrokerConnection, ConnectionOptions, Reply
from gateway.errors import BrokerUnreachable
from gateway.protocol.commands import Publish
from gateway.protocol.frames import ErrorFrame, Message
from gateway.protocol.identify import IdentifyRequest

HEARTBEAT_S = 30.0
OPTIONS = ConnectionOptions(
    offer=IdentifyRequest(feature_negotiation=True, heartbeat_interval=30_000)
)
SHORT_TIMEOUTS = ConnectionOptions(connect_timeout_ms=400, close_timeout_ms=400)


class Listener:
    """Record the events of a connection."""

    def __init__(self) -> None:
        self.messages: asyncio.Queue[list[Message]] = asyncio.Queue()
        self.refusals: asyncio.Queue[ErrorFrame] = asyncio.Queue()
        self.ends: asyncio.Queue[BrokerUnreachable] = asyncio.Queue()

    def on_messages(self, connection: BrokerConnection, messages: list[Message]) -> None:
        """Record the messages."""
        del connection
        self.messages.put_nowait(messages)

    def on_ack_refused(self, connection: BrokerConnection, frame: ErrorFrame) -> None:
        """Record the refusal."""
        del connection
        self.refusals.put_nowait(frame)

    def on_connection_lost(self, connection: BrokerConnection, error: BrokerUnreachable) -> None:
        """Record the end."""
        assert not connection.is_open
        self.ends.put_nowait(error)

    @property
    def heard(self) -> int:
        """Number of recorded events that were not taken yet."""
        return self.messages.qsize() + self.refusals.qsize() + self.ends.qsize()


def publish_each(connection: BrokerConnection, *bodies: bytes) -> list[Reply]:
    """Publish *bodies*; return the list to which their replies are appended."""
    replies: list[Reply] = []
    for body in bodies:
        connection.send_request(Publish("t", body), replies.append)
    return replies
