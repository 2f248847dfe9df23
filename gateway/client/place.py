"""The place of one broker in a subscription: its connection, or the tries to get one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from gateway.client.attempts import Attempts
from gateway.client.connection import BrokerConnection, ConnectionOptions
from gateway.client.connection_account import SUBSCRIBER
from gateway.client.connection_options import share
from gateway.client.mark import Mark
from gateway.client.opening import open_connection
from gateway.client.ready import ReadyRow
from gateway.errors import AuthRequired, BrokerRefused, BrokerUnreachable, GatewayError, alike
from gateway.protocol.frames import ErrorFrame, Message
from gateway.protocol.raw_messages import RawMessages

IsGone: TypeAlias = Callable[[str, str, str, float], Awaitable[bool]]
"""
Tells whether a channel was deleted: (address of the nsqd, topic, channel, since when there was a
subscription, on the event loop's clock); it answers within seconds. `ChannelSurvey.is_gone` is one.
"""


_PLAIN = ConnectionOptions()


@dataclass(frozen=True, kw_only=True, slots=True)
class PlaceOptions:
    """What is subscribed to, and how to connect."""

    topic: str
    channel: str
    connection: ConnectionOptions = _PLAIN
    is_gone: IsGone | None = None
    """
    Asked before a lost broker is connected to again; None: nobody is.

    Whoever subscribes to a channel that somebody has deleted makes it anew.
    """

    take_raw: Callable[[int, RawMessages], None] | None = None
    """
    Takes messages undecoded, with the number of their source; None: the listener gets messages.

    For who hands them on to other processes, which decode them.
    """

    def __post_init__(self) -> None:
        """Share what is alike with others."""
        object.__setattr__(self, "connection", share(self.connection))


class SourceListener(Protocol):
    """Who is told what a source brings."""

    def messages_arrived(self, source: int, messages: list[Message]) -> None:
        """Take *messages*, all that one read of *source* brought, in order."""


class PlaceOwner(Protocol):
    """The subscription, as its places see it."""

    @property
    def listener(self) -> SourceListener:
        """Who is told what comes."""

    @property
    def options(self) -> PlaceOptions:
        """What is subscribed to, and how."""

    def next_number(self) -> int:
        """Return the number of the next source."""

    def source_opened(self, place: Place) -> None:
        """Count on a new source."""

    def source_lost(self, place: Place, error: BrokerUnreachable) -> None:
        """Count on a source no more."""

    def channel_gone(self, place: Place) -> None:
        """Learn that the channel was deleted there; no more tries are made."""

    def is_wanted(self, place: Place) -> bool:
        """Tell whether the broker is to be tried again; where it is not, no more tries are made."""

    def try_failed(self, error: GatewayError) -> None:
        """Learn why a try failed."""

    def answer_refused(self, source: int, frame: ErrorFrame) -> None:
        """Learn that the broker refused an earlier finish, requeue or touch."""


class Place:
    """One broker; `open` first, `close` last."""

    __slots__ = (
        "_attempts",
        "_held_s",
        "_subscription",
        "_was_open_at",
        "address",
        "connection",
        "error",
        "is_in_question",
        "number",
        "row",
    )

    def __init__(self, subscription: PlaceOwner, address: str) -> None:
        self._subscription = subscription
        self.address = address
        self.number = 0
        """Of the source that is open here, or was the last one."""
        self.row: ReadyRow | None = None
        """What the plan knows of the source that is counted on here; None: there is none."""
        self.connection: BrokerConnection | None = None
        self.error: GatewayError | None = None
        """Why it could not be opened; None before the first try."""
        self.is_in_question = False
        """Whether it is lost, and not yet known whether the channel is gone there."""
        self._was_open_at: float | None = None
        """
        When the connection was opened that was subscribed on last, event loop's clock.

        Not when SUB was answered: a loop that was late to learn of it may take that moment after
        the broker's end.
        """
        self._held_s = 0.0
        self._attempts = Attempts("subscribe on", address)

    @property
    def is_open(self) -> bool:
        """Whether there is a connection, or one is being subscribed on."""
        return self.connection is not None

    @property
    def tried(self) -> Mark:
        """Set after the first try."""
        return self._attempts.tried

    def open(self) -> None:
        """Try at once, and then for ever, until messages can come."""
        self._attempts.begin_now(self._connect)

    async def _connect(self) -> bool:
        """Try to connect and subscribe; False where it is to be tried again, `error` says why."""
        subscription = self._subscription
        options = subscription.options
        if options.is_gone is not None and self._was_open_at is not None:
            is_gone = await options.is_gone(
                self.address, options.topic, options.channel, self._was_open_at
            )
            self.is_in_question = False
            if is_gone:
                subscription.channel_gone(self)
            if is_gone or not subscription.is_wanted(self):
                return True
        connection = None
        try:
            take_raw = None if options.take_raw is None else self._raw_messages_arrived
            connection = await open_connection(self.address, options.connection, self, take_raw)
            connection.account.opened(SUBSCRIBER, self.address)
            # Known before SUB is answered: a message could follow the answer in the same read.
            self.number = subscription.next_number()
            self.connection = connection
            await connection.subscribe(options.topic, options.channel)
        except (BrokerUnreachable, AuthRequired, BrokerRefused) as error:
            self.connection = None
            self.error = alike(error)
            subscription.try_failed(error)
            return False
        except BaseException:
            if connection is not None:
                connection.abort()
            raise
        self._was_open_at = connection.opened_at
        subscription.source_opened(self)
        return True

    # What the connection tells

    def messages_arrived(self, connection: BrokerConnection, messages: list[Message]) -> None:
        """Hand on what came; what comes before the source counts, or after, goes back at once."""
        row = self.row
        if row is None:
            connection.requeue([message.id for message in messages], delay_ms=0)
        else:
            row.last_message_at = connection.last_read
            self._subscription.listener.messages_arrived(self.number, messages)

    def _raw_messages_arrived(self, connection: BrokerConnection, messages: RawMessages) -> None:
        row, take = self.row, self._subscription.options.take_raw
        if row is None or take is None:
            connection.requeue(messages.ids, delay_ms=0)
        else:
            row.last_message_at = connection.last_read
            take(self.number, messages)

    def command_refused(self, connection: BrokerConnection, frame: ErrorFrame) -> None:
        """Hand on that an answer was refused."""
        del connection
        self._subscription.answer_refused(self.number, frame)

    def connection_ended(self, connection: BrokerConnection, error: BrokerUnreachable) -> None:
        """Tell the subscription, once it had counted on this connection."""
        connection.account.ended(error)
        if connection is self.connection:
            self.connection = None
            self._held_s = asyncio.get_running_loop().time() - connection.opened_at
            self._subscription.source_lost(self, error)

    def reopen(self) -> None:
        """Try for ever, the first time after a moment; first see whether the channel is there."""
        self.is_in_question = self._subscription.options.is_gone is not None
        self._attempts.begin_later(self._connect, held_s=self._held_s)

    # The end

    def cancel(self) -> None:
        """Try no more."""
        self._attempts.cancel()

    async def close(self) -> None:
        """Leave the broker with CLS, or stop trying to reach it."""
        connection, self.connection = self.connection, None
        if not await self._attempts.close() and connection is not None:
            await connection.close()
