"""The place of one broker in a subscription: its connection, or the tries to get one."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Protocol

from gateway.client.attempts import Attempts
from gateway.client.connection import BrokerConnection, ConnectionOptions
from gateway.client.opening import open_connection
from gateway.errors import AuthRequired, BrokerRefused, BrokerUnreachable, GatewayError
from gateway.protocol.frames import ErrorFrame, Message


@dataclass(frozen=True, kw_only=True)
class PlaceOptions:
    """What is subscribed to, and how to connect."""

    topic: str
    channel: str
    connection: ConnectionOptions = field(default_factory=ConnectionOptions)


class PlaceOwner(Protocol):
    """The subscription, as its places see it."""

    @property
    def options(self) -> PlaceOptions:
        """What is subscribed to, and how."""

    def has_source(self, number: int) -> bool:
        """Tell whether *number* is a source that is open."""

    def next_number(self) -> int:
        """Return the number of the next source."""

    def source_opened(self, place: Place) -> None:
        """Count on a new source."""

    def source_lost(self, place: Place, error: BrokerUnreachable) -> None:
        """Count on a source no more."""

    def try_failed(self, error: GatewayError) -> None:
        """Learn why a try failed."""

    def messages_arrived(self, source: int, messages: list[Message]) -> None:
        """Take what came."""

    def answer_refused(self, source: int, frame: ErrorFrame) -> None:
        """Learn that the broker refused an earlier finish, requeue or touch."""


class Place:
    """One broker; `open` first, `close` last."""

    def __init__(self, subscription: PlaceOwner, address: str) -> None:
        self._subscription = subscription
        self.address = address
        self.number = 0
        """Of the source that is open here, or was the last one."""
        self.connection: BrokerConnection | None = None
        self.error: GatewayError | None = None
        """Why it could not be opened; None before the first try."""
        self._held_s = 0.0
        self._attempts = Attempts(f"subscribe on {address}", self._connect)

    @property
    def is_open(self) -> bool:
        """Whether there is a connection, or one is being subscribed on."""
        return self.connection is not None

    @property
    def tried(self) -> asyncio.Event:
        """Set after the first try."""
        return self._attempts.tried

    def open(self) -> None:
        """Try at once, and then for ever, until messages can come."""
        self._attempts.begin_now()

    async def _connect(self) -> bool:
        """Try to connect and subscribe; True when messages can come, else `error` says why not."""
        subscription = self._subscription
        options = subscription.options
        connection = None
        try:
            connection = await open_connection(self.address, options.connection, self)
            # Known before SUB is answered: a message could follow the answer in the same read.
            self.number = subscription.next_number()
            self.connection = connection
            await connection.subscribe(options.topic, options.channel)
        except (BrokerUnreachable, AuthRequired, BrokerRefused) as error:
            self.connection = None
            self.error = error
            subscription.try_failed(error)
            return False
        except BaseException:
            if connection is not None:
                connection.abort()
            raise
        subscription.source_opened(self)
        return True

    # What the connection tells

    def messages_arrived(self, connection: BrokerConnection, messages: list[Message]) -> None:
        """Hand on what came; what comes before the source counts, or after, goes back at once."""
        if self._subscription.has_source(self.number):
            self._subscription.messages_arrived(self.number, messages)
        else:
            connection.requeue([message.id for message in messages], delay_ms=0)

    def command_refused(self, connection: BrokerConnection, frame: ErrorFrame) -> None:
        """Hand on that an answer was refused."""
        del connection
        self._subscription.answer_refused(self.number, frame)

    def connection_ended(self, connection: BrokerConnection, error: BrokerUnreachable) -> None:
        """Tell the subscription, once it had counted on this connection."""
        if connection is self.connection:
            self.connection = None
            self._held_s = asyncio.get_running_loop().time() - connection.opened_at
            self._subscription.source_lost(self, error)

    def reopen(self) -> None:
        """Try for ever, the first time after a moment."""
        self._attempts.begin_later(held_s=self._held_s)

    # The end

    def cancel(self) -> None:
        """Try no more."""
        self._attempts.cancel()

    async def close(self) -> None:
        """Leave the broker with CLS, or stop trying to reach it."""
        connection, self.connection = self.connection, None
        if not await self._attempts.close() and connection is not None:
            await connection.close()
