"""The place of one broker in a subscription: its connection, or the tries to get one."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from typing import Protocol

from gateway.client.backoff import Backoff
from gateway.client.connection import BrokerConnection, ConnectionOptions
from gateway.client.opening import open_connection
from gateway.errors import AuthRequired, BrokerRefused, BrokerUnreachable, GatewayError
from gateway.protocol.frames import ErrorFrame, Message
from gateway.telemetry import spawn


class Wanted(Protocol):
    """What a place needs to know of `SubscriptionOptions`."""

    @property
    def topic(self) -> str:
        """What is subscribed to."""

    @property
    def channel(self) -> str:
        """On which channel."""

    @property
    def connection(self) -> ConnectionOptions:
        """How to connect."""


class Hearer(Protocol):
    """What a place needs of `SubscriptionListener`."""

    def answer_refused(self, source: int, frame: ErrorFrame) -> None:
        """Learn that the broker refused an earlier finish, requeue or touch."""


class PlaceOwner(Protocol):
    """The subscription, as its places see it."""

    is_closing: bool

    @property
    def options(self) -> Wanted:
        """What to subscribe to."""

    @property
    def listener(self) -> Hearer:
        """Who is told of refusals."""

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
        self.tried = asyncio.Event()
        """Set after the first try."""
        self._backoff = Backoff(random.random)
        self._opening: asyncio.Task[None] | None = None

    @property
    def is_open(self) -> bool:
        """Whether there is a connection, or one is being subscribed on."""
        return self.connection is not None

    def open(self) -> None:
        """Try at once, and then for ever, until messages can come."""
        self._spawn(self._open())

    def reopen(self) -> None:
        """Try for ever, the first time after a moment."""
        self._spawn(self._reopen())

    def _spawn(self, opening: Coroutine[None, None, None]) -> None:
        self._opening = spawn(f"subscribe on {self.address}", opening)

    async def _open(self) -> None:
        if not await self._connect():
            await self._reopen()

    async def _reopen(self) -> None:
        while True:
            await asyncio.sleep(self._backoff.next_delay_s())
            if await self._connect():
                return

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
            self.tried.set()
            subscription.try_failed(error)
            return False
        except BaseException:
            if connection is not None:
                connection.abort()
            raise
        subscription.source_opened(self)
        self.tried.set()
        return True

    # What the connection tells

    def messages_arrived(self, connection: BrokerConnection, messages: list[Message]) -> None:
        """Hand on what came; what was on its way when the subscription ended goes back at once."""
        if self._subscription.is_closing:
            connection.requeue([message.id for message in messages], delay_ms=0)
            return
        self._subscription.messages_arrived(self.number, messages)

    def command_refused(self, connection: BrokerConnection, frame: ErrorFrame) -> None:
        """Hand on that an answer was refused."""
        del connection
        self._subscription.listener.answer_refused(self.number, frame)

    def connection_ended(self, connection: BrokerConnection, error: BrokerUnreachable) -> None:
        """Tell the subscription, once it had counted on this connection."""
        if connection is self.connection:
            self.connection = None
            held_s = asyncio.get_running_loop().time() - connection.opened_at
            self._backoff.connection_held(held_s)
            self._subscription.source_lost(self, error)

    # The end

    def cancel(self) -> None:
        """Try no more."""
        if self._opening is not None:
            self._opening.cancel()

    async def close(self) -> None:
        """Leave the broker with CLS, or stop trying to reach it."""
        connection, self.connection = self.connection, None
        if self._opening is not None and not self._opening.done():
            self._opening.cancel()
            await asyncio.wait({self._opening})
        elif connection is not None:
            await connection.close()
