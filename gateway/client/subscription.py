"""
Consume one channel from several nsqds.

A *source* is one subscribed connection; its number is never reused. FIN, REQ and TOUCH go to the
source that delivered the message or nowhere, because nsqd accepts them only there. A lost nsqd is
retried with growing jittered delays while discovery returns its address. A working connection is
kept even if no nsqlookupd returns its nsqd any more.
"""

from __future__ import annotations

import asyncio
import enum
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

from gateway.aio import LazyEvent, call_after_reads, spawn
from gateway.client.connection import BrokerConnection, ConnectionOptions, intern_options
from gateway.client.discovery import Discovery, TopicWatch
from gateway.client.handshake import open_connection
from gateway.client.metrics import SUBSCRIBER
from gateway.client.rdy import RdyDistributor, RdyOptions, RdyShare
from gateway.client.reconnect import Reconnector
from gateway.credentials import Secret
from gateway.errors import (
    AuthRequired,
    BrokerRefused,
    BrokerUnreachable,
    GatewayError,
    NoBroker,
    copy_error,
)
from gateway.protocol.frames import ErrorFrame, Message, RawMessages
from gateway.protocol.identify import AuthResponse, IdentifyResponse
from gateway.protocol.wire import check_channel, check_topic

IsGone: TypeAlias = Callable[[str, str, str, float], Awaitable[bool]]
"""
Finds out within seconds whether nsqd has deleted a channel; see `ChannelMonitor.is_gone`.

Its arguments are the nsqd's address, the topic, the channel, and when the lost connection was
opened (event loop's clock).
"""

_DEFAULT_CONNECTION = ConnectionOptions()
_DEFAULT_RDY = RdyOptions()


@dataclass(frozen=True, kw_only=True, slots=True)
class SubscriptionOptions:
    """Topic, channel and options of a subscription."""

    topic: str
    channel: str
    connection: ConnectionOptions = _DEFAULT_CONNECTION
    is_gone: IsGone | None = None
    """
    Called before reconnecting to a lost nsqd; None: always subscribe again.

    Subscribing to a deleted channel would create it again.
    """
    on_raw_messages: Callable[[int, RawMessages, float], None] | None = None
    """Called with undecoded messages, instead of the listener's `on_messages`."""
    rdy: RdyOptions = _DEFAULT_RDY

    def __post_init__(self) -> None:
        """Share equal connection options between subscriptions."""
        # The dataclass is frozen.
        object.__setattr__(self, "connection", intern_options(self.connection))


class SubscriptionListener(Protocol):
    """Callbacks of a subscription."""

    def on_messages(self, source: int, messages: list[Message], sent_after: float) -> None:
        """
        Called with consecutive *messages* of one read of *source*.

        *sent_after* (event loop's clock) is the earliest time at which nsqd may have sent them and
        started their timeouts.
        """

    def in_flight_by_source(self) -> Mapping[int, int]:
        """
        Return by source the number of messages in flight, neither answered nor timed out.

        They count against the RDY of the other sources. This may take time proportional to the
        messages in flight: it is only called for several sources, and only while one of them waits
        for room in the window, or after the window was made smaller.
        """

    def on_ack_refused(self, source: int, frame: ErrorFrame) -> None:
        """Called when nsqd refused an earlier FIN, REQ or TOUCH."""

    def on_source_opened(self, source: int, answer: IdentifyResponse) -> None:
        """Called when *source* has subscribed; *answer* is nsqd's answer to IDENTIFY."""

    def on_source_lost(self, source: int, error: BrokerUnreachable) -> None:
        """Called at the end of *source*; nsqd delivers its unanswered messages again."""

    def on_channel_gone(self, address: str) -> None:
        """
        Called when the channel was deleted at the nsqd at *address*, whose source was lost.

        The subscription does not reconnect to that nsqd while discovery returns it. Never called
        without the option `is_gone`.
        """

    def on_secret_missing(self) -> None:
        """Called when an nsqd found after `start` requires AUTH and no secret is configured."""


class SubscriptionConnectionState(enum.Enum):
    """Lifecycle of a subscription's connection; see `SubscriptionConnection`."""

    CONNECTING = enum.auto()
    SUBSCRIBING = enum.auto()
    OPEN = enum.auto()
    CHECKING = enum.auto()
    RETRYING = enum.auto()
    CLOSED = enum.auto()


_CONNECTING, _SUBSCRIBING, _OPEN, _CHECKING, _RETRYING, _CLOSED = SubscriptionConnectionState

_NEXT_STATES: Mapping[SubscriptionConnectionState, frozenset[SubscriptionConnectionState]] = {
    _CONNECTING: frozenset({_SUBSCRIBING, _RETRYING, _CLOSED}),
    _SUBSCRIBING: frozenset({_OPEN, _RETRYING, _CLOSED}),
    _OPEN: frozenset({_CHECKING, _RETRYING, _CLOSED}),
    _CHECKING: frozenset({_RETRYING, _CLOSED}),
    _RETRYING: frozenset({_SUBSCRIBING, _RETRYING, _CLOSED}),
    _CLOSED: frozenset({_CLOSED}),
}


class SubscriptionConnection:
    """
    A subscription's connection to one nsqd, and its reconnects. Call `open` first, `close` last.

    ::

        CONNECTING ── connected ─▶ SUBSCRIBING ── OK to SUB ─▶ OPEN
        CONNECTING, SUBSCRIBING ── failed ─▶ RETRYING ── connected ─▶ SUBSCRIBING
        OPEN ── lost ─▶ RETRYING, or CHECKING where the channel may have been deleted
        SUBSCRIBING, OPEN ── unexpected exception in `_connect` ─▶ RETRYING
        CHECKING ── the channel exists ─▶ RETRYING
        any ── channel deleted, nsqd no longer named, or subscription closing ─▶ CLOSED
    """

    __slots__ = (
        "_broker_opened_at",
        "_reconnector",
        "_state",
        "_subscription",
        "_uptime_s",
        "address",
        "broker",
        "error",
        "share",
        "source",
    )

    def __init__(self, subscription: Subscription, address: str) -> None:
        self._subscription = subscription
        self.address = address
        self.source = 0
        """Number of the current or last source; 0 before the first."""
        self.share: RdyShare | None = None
        """RDY of the open source. While it is None, messages that arrive are requeued."""
        self.broker: BrokerConnection | None = None
        self.error: GatewayError | None = None
        """Error of the last failed attempt to subscribe; None if none has failed."""
        self._state = _CONNECTING
        self._broker_opened_at: float | None = None
        """
        When the TCP connection of the last source was opened, event loop's clock.

        The time of nsqd's OK to SUB would be unsafe: after a long turn of the event loop it may be
        later than the end of that nsqd process.
        """
        self._uptime_s = 0.0
        self._reconnector = Reconnector("subscribe on", address)

    def _enter(self, state: SubscriptionConnectionState) -> None:
        assert state in _NEXT_STATES[self._state]  # noqa: S101 - the table is complete
        self._state = state

    @property
    def is_kept(self) -> bool:
        """True if the connection stays although discovery no longer returns its nsqd."""
        return self._state in {_SUBSCRIBING, _OPEN, _CHECKING}

    @property
    def is_new(self) -> bool:
        """True until the first attempt has ended."""
        return self.error is None and self._broker_opened_at is None

    @property
    def attempted(self) -> LazyEvent:
        """Set after the first attempt."""
        return self._reconnector.attempted

    def open(self) -> None:
        """Connect and subscribe in the background, and retry for ever."""
        self._reconnector.start_now(self._connect)

    async def _connect(self) -> bool:
        """Try to connect and subscribe; after a failure set `error` and return False, to retry."""
        if await self._has_ended():
            self._enter(_CLOSED)
            return True
        subscription = self._subscription
        options = subscription.options
        broker = None
        try:
            on_raw = None if options.on_raw_messages is None else self._on_raw_messages
            broker = await open_connection(self.address, options.connection, self, on_raw)
            broker.metrics.opened(SUBSCRIBER, self.address)
            # Before SUB: a message may arrive in the same read as its OK.
            self.source = subscription.new_source_id()
            self.broker = broker
            self._enter(_SUBSCRIBING)
            await broker.subscribe(options.topic, options.channel)
        except (BrokerUnreachable, AuthRequired, BrokerRefused) as error:
            self.broker = None
            self.error = copy_error(error)
            self._enter(_RETRYING)
            self._reconnector.is_auth_missing = isinstance(error, AuthRequired)
            subscription.on_attempt_failed(error)
            return False
        except Exception as error:
            self._on_unexpected(broker, error)
            raise
        except BaseException:
            # On cancellation: `close` does not close the connection of an unfinished attempt.
            if broker is not None:
                broker.abort()
            raise
        self._broker_opened_at = broker.opened_at
        try:
            self._enter(_OPEN)
            subscription.on_source_opened(self)
        except Exception as error:
            # Any error, also one of those above: nsqd has accepted the subscription.
            self._on_unexpected(broker, error)
            raise
        return True

    def _on_unexpected(self, broker: BrokerConnection | None, error: Exception) -> None:
        """Abandon an attempt that failed by a bug, which the reconnector logs before the next."""
        # None before the abort: its end is no loss of a source, and starts no second reconnect.
        self.broker = None
        if broker is not None:
            broker.abort()
        self._enter(_RETRYING)
        text = f"unexpected {type(error).__name__} while subscribing, which is in the log"
        failure = self.error = BrokerUnreachable(self.address, text)
        self._subscription.on_opening_failed(self, failure)

    async def _has_ended(self) -> bool:
        """Return True if, after a loss, the channel was deleted or discovery dropped the nsqd."""
        subscription = self._subscription
        options = subscription.options
        if options.is_gone is None or self._broker_opened_at is None:
            return False
        is_gone = await options.is_gone(
            self.address, options.topic, options.channel, self._broker_opened_at
        )
        self._enter(_RETRYING)
        if is_gone:
            # No SUB: it would create the deleted channel again.
            subscription.on_channel_gone(self)
        return is_gone or not subscription.is_wanted(self)

    # Called by the connection

    def on_messages(self, connection: BrokerConnection, messages: list[Message]) -> None:
        """Pass *messages* to the listener; requeue them if the source is closed or has no room."""
        # RDY 0 does not stop messages that nsqd has already sent.
        share = self.share
        if share is None or (
            share.ready == 0 and not self._subscription.has_room_for_late(self, len(messages))
        ):
            connection.requeue([message.id for message in messages], delay_ms=0)
        else:
            share.last_message_at = connection.last_read
            self._subscription.listener.on_messages(self.source, messages, connection.sent_after)
            if share.granted > share.ready:
                self._subscription.on_messages_above_rdy()

    def _on_raw_messages(self, connection: BrokerConnection, messages: RawMessages) -> None:
        share, on_raw_messages = self.share, self._subscription.options.on_raw_messages
        if (
            share is None
            or on_raw_messages is None
            or (
                share.ready == 0
                and not self._subscription.has_room_for_late(self, len(messages.ids))
            )
        ):
            connection.requeue(messages.ids, delay_ms=0)
        else:
            share.last_message_at = connection.last_read
            on_raw_messages(self.source, messages, connection.sent_after)
            if share.granted > share.ready:
                self._subscription.on_messages_above_rdy()

    def on_ack_refused(self, connection: BrokerConnection, frame: ErrorFrame) -> None:
        """Report to the subscription that nsqd refused a FIN, REQ or TOUCH."""
        del connection
        self._subscription.on_ack_refused(self.source, frame)

    def on_connection_lost(self, connection: BrokerConnection, error: BrokerUnreachable) -> None:
        """Report the end of *connection* to the subscription, if it is the current one."""
        connection.metrics.ended(error)
        # Not the current one if its SUB failed, or `close` has taken it.
        if connection is self.broker:
            self.broker = None
            self._uptime_s = asyncio.get_running_loop().time() - connection.opened_at
            self._subscription.on_source_lost(self, error)

    def reopen(self) -> None:
        """Reconnect after a delay, for ever; with `is_gone`, stop if the channel was deleted."""
        self._enter(_RETRYING if self._subscription.options.is_gone is None else _CHECKING)
        self._reconnector.start_later(self._connect, uptime_s=self._uptime_s)

    # Closing

    def cancel(self) -> None:
        """Make no more attempts."""
        self._enter(_CLOSED)
        self._reconnector.cancel()

    async def close(self) -> None:
        """Close the connection with CLS, or stop connecting."""
        self._enter(_CLOSED)
        # An attempt that is cancelled aborts its own connection; only an open one needs CLS.
        broker, self.broker = self.broker, None
        if not await self._reconnector.close() and broker is not None:
            await broker.close()


class Subscription:
    """
    Consume one channel on several nsqds. Call `start` first and `close` last.

    Raises:
        InvalidRequest: The topic or the channel of *options* is invalid.
    """

    __slots__ = (
        "_connections",
        "_discovery",
        "_first_source",
        "_is_reading",
        "_is_started",
        "_last_source",
        "_sources",
        "_timer",
        "_wakes_at",
        "_watch",
        "is_closing",
        "listener",
        "options",
        "rdy",
    )

    def __init__(
        self, discovery: Discovery, options: SubscriptionOptions, listener: SubscriptionListener
    ) -> None:
        check_topic(options.topic)
        check_channel(options.channel)
        self.options = options
        self.listener = listener
        self.is_closing = False
        self.rdy = RdyDistributor(
            0, options.rdy, random=random.random, in_flight=listener.in_flight_by_source
        )
        self._discovery = discovery
        self._watch: TopicWatch | None = None
        self._connections: dict[str, SubscriptionConnection] = {}
        """By the nsqd's address."""
        self._sources: dict[int, SubscriptionConnection] = {}
        """Open connections by source, in the order in which they subscribed."""
        self._last_source = 0
        self._is_started = False
        self._is_reading = True
        self._first_source = LazyEvent()
        self._timer: asyncio.TimerHandle | None = None
        self._wakes_at = 0.0
        """When the timer fires; kept here, because uvloop rounds its handles' times to ms."""

    # Opening

    def renew_secret(self, secret: Secret | None) -> None:
        """Use *secret* for connections that are opened from now on; open ones stay."""
        connection = replace(self.options.connection, secret=secret)
        self.options = replace(self.options, connection=connection)

    async def start(self) -> None:
        """
        Subscribe on every nsqd; return after the first OK, and continue with the others.

        Return also if the nsqlookupds have answered and no nsqd has the topic yet.

        Raises:
            AuthRequired: The nsqds require a secret, and there is none.
            BrokerRefused: The nsqds refuse the subscription (E_AUTH_FAILED, E_UNAUTHORIZED, …).
            NoBroker: No nsqd can be reached now.

        After an error, no connection and no task is left.
        """
        try:
            await self._start()
        except BaseException:
            await self.close()
            raise
        self._is_started = True

    async def _start(self) -> None:
        watch = self._watch = self._discovery.watch_topic(self.options.topic, self._on_addresses)
        self._on_addresses(watch.addresses)
        opened = spawn("wait for a first source", self._first_source.wait())
        all_attempted = spawn("try every nsqd once", self._wait_all_attempted(watch))
        try:
            await asyncio.wait({opened, all_attempted}, return_when=asyncio.FIRST_COMPLETED)
            if self._first_source.is_set():
                return
            is_answered = all_attempted.result()
        finally:
            # Also if `start` is cancelled: neither task may outlive it.
            opened.cancel()
            all_attempted.cancel()
            await asyncio.wait({opened, all_attempted})
        # No nsqd has the topic yet; its first publish creates it, and discovery finds it.
        is_early = is_answered and self._discovery.has_lookups and not self._connections
        if not is_early:
            raise self._unavailable()

    async def _wait_all_attempted(self, watch: TopicWatch) -> bool:
        """Wait for one attempt on each nsqd; return True if an nsqlookupd has answered."""
        is_answered = await watch.first_answer()
        # The callback of the watch may not have run yet.
        self._on_addresses(watch.addresses)
        # A copy: discovery may add and remove connections meanwhile.
        for connection in list(self._connections.values()):
            await connection.attempted.wait()
        return is_answered

    def _unavailable(self) -> GatewayError:
        """Return why no source is open; prefer a refusal to an unreachable nsqd."""
        errors = {address: each.error for address, each in self._connections.items()}
        for error in errors.values():
            if isinstance(error, AuthRequired | BrokerRefused):
                return error
        text = "; ".join(map(str, errors.values())) or "no address of an nsqd is known"
        return NoBroker(f"no nsqd can be subscribed to ({text})")

    def _on_addresses(self, addresses: frozenset[str]) -> None:
        """Subscribe on new nsqds, and stop connecting to those not in *addresses*."""
        for address in sorted(addresses - self._connections.keys()):
            connection = self._connections[address] = SubscriptionConnection(self, address)
            connection.open()
        for address in self._connections.keys() - addresses:
            if not self._connections[address].is_kept:
                self._connections.pop(address).cancel()
        self._reserve_shares()

    def _reserve_shares(self) -> None:
        """Reserve shares of the window for nsqds whose first attempt is pending."""
        self.write_ready(self.rdy.expect(self._count_new(), self._now()))

    def _count_new(self) -> int:
        return sum(connection.is_new for connection in self._connections.values())

    @property
    def awaits_topic(self) -> bool:
        """True while the subscription runs without any nsqd, because the topic does not exist."""
        is_running = self._is_started and not self.is_closing
        return is_running and self._discovery.has_lookups and not self._connections

    # Called by the connections

    def new_source_id(self) -> int:
        """Return the number for a new source."""
        self._last_source += 1
        return self._last_source

    def has_room_for_late(self, connection: SubscriptionConnection, count: int) -> bool:
        """Return whether *count* messages that arrived at RDY 0 fit into the window."""
        return self.rdy.has_room_for_late(connection.source, count, self._now())

    def on_messages_above_rdy(self) -> None:
        """
        Called when messages arrived from a source that may still send under an earlier RDY.

        If more messages are in flight than a window made smaller allows, the RDY is lowered.
        """
        if self.rdy.is_over:
            self.write_ready(self.rdy.rebalance(self._now()))

    def on_source_opened(self, connection: SubscriptionConnection) -> None:
        """Add a source, and give it its share of the window."""
        broker, source = connection.broker, connection.source
        assert broker is not None  # noqa: S101 - it has just subscribed
        self._sources[source] = connection
        if not self._is_reading:
            # `pause_reading` came before this source, and applies to it too.
            broker.pause_reading()
        # Before RDY is written: the listener must know the source of the first message.
        self.listener.on_source_opened(source, broker.answer)
        changes = self.rdy.add_source(
            source,
            max_rdy_count=broker.answer.max_rdy_count,
            now=self._now(),
            expected=self._count_new(),
        )
        connection.share = self.rdy.share_of(source)
        self.write_ready(changes)
        # Last: `start` must not return if anything above fails.
        self._first_source.set()

    def on_source_lost(self, connection: SubscriptionConnection, error: BrokerUnreachable) -> None:
        """Remove the source, distribute its share of the window, and reconnect."""
        connection.share = None
        if self._sources.pop(connection.source, None) is None:
            # Lost before nsqd's OK to SUB, or the subscription is closing.
            return
        self.listener.on_source_lost(connection.source, error)
        self.write_ready(self.rdy.remove_source(connection.source, self._now()))
        if self.is_closing or self._watch is None:
            return
        # The nsqd may be back at another address already.
        self._watch.refresh()
        # A deletion may reach nsqlookupd first, so that discovery has already dropped the nsqd.
        # Only the check in `reopen` finds out that it was one.
        if self.options.is_gone is not None or self.is_wanted(connection):
            connection.reopen()
        else:
            connection.cancel()

    def on_opening_failed(
        self, connection: SubscriptionConnection, error: BrokerUnreachable
    ) -> None:
        """Called after a bug while *connection* subscribed: remove its source if it was added."""
        connection.share = None
        try:
            if self._sources.pop(connection.source, None) is not None:
                # The listener may have added the source before it failed.
                self.listener.on_source_lost(connection.source, error)
        finally:
            self.write_ready(self.rdy.remove_source(connection.source, self._now()))
            self.on_attempt_failed(error)

    def on_channel_gone(self, connection: SubscriptionConnection) -> None:
        """
        Report to the listener that the channel was deleted at the nsqd of *connection*.

        While discovery returns this nsqd, the closed connection stays in the table, so that no new
        one is opened.
        """
        # Only for its effect: it removes the connection if discovery has dropped the nsqd.
        self.is_wanted(connection)
        self.listener.on_channel_gone(connection.address)

    def is_wanted(self, connection: SubscriptionConnection) -> bool:
        """Return True if discovery returns the nsqd of *connection*; else remove *connection*."""
        if self._watch is None or connection.address not in self._watch.addresses:
            self._connections.pop(connection.address, None)
            return False
        return True

    def on_attempt_failed(self, error: GatewayError) -> None:
        """Update the reserved shares; after `start`, tell the listener about a missing secret."""
        self._reserve_shares()
        if self._is_started and isinstance(error, AuthRequired):
            self.listener.on_secret_missing()

    def on_ack_refused(self, source: int, frame: ErrorFrame) -> None:
        """Report to the listener that nsqd refused a FIN, REQ or TOUCH."""
        self.listener.on_ack_refused(source, frame)
        self.rebalance()  # after a refused TOUCH the message is no longer in flight

    # The window

    def set_window(self, count: int) -> None:
        """Limit the messages in flight over all nsqds to *count*; 0 pauses."""
        self.write_ready(self.rdy.set_window(count, self._now()))

    def rebalance(self) -> None:
        """Recompute RDY after messages have timed out, if a source waits for room in the window."""
        if self.rdy.is_short:
            self.write_ready(self.rdy.rebalance(self._now()))

    def write_ready(self, changes: Sequence[tuple[int, int]]) -> None:
        """Write RDY for each (source, count) of *changes*, in order, and update the timer."""
        for source, count in changes:
            if broker := self._broker_of(source):
                broker.ready(count)
        self.update_timer()

    def update_timer(self) -> None:
        """Set the timer to `rdy.next_wake`, or keep an earlier one."""
        # An early timer is harmless: `wake` does nothing then. Setting it at each answer is not.
        due = None if self.is_closing else self.rdy.next_wake()
        if self._timer is not None:
            if due is not None and self._wakes_at <= due:
                return
            self._timer.cancel()
            self._timer = None
        if due is not None:
            self._wakes_at = due
            self._timer = asyncio.get_running_loop().call_at(due, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        # After a stop of the process, messages of an earlier RDY wait in the sockets. They must
        # be counted before that RDY is taken as settled.
        call_after_reads(self._wake)

    def _wake(self) -> None:
        if not self.is_closing:
            self.write_ready(self.rdy.wake(self._now()))

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def pause_reading(self) -> None:
        """Stop reading from all sockets."""
        self._is_reading = False
        for connection in self._sources.values():
            if connection.broker is not None:
                connection.broker.pause_reading()
        self.write_ready(self.rdy.set_reading(is_reading=False, now=self._now()))

    def resume_reading(self) -> None:
        """Resume reading from all sockets."""
        self._is_reading = True
        for connection in self._sources.values():
            if connection.broker is not None:
                connection.broker.resume_reading()
        self.write_ready(self.rdy.set_reading(is_reading=True, now=self._now()))

    # Answers

    def _broker_of(self, source: int) -> BrokerConnection | None:
        connection = self._sources.get(source)
        return None if connection is None else connection.broker

    def address_of(self, source: int) -> str:
        """Return the nsqd's host:port of a source that is open."""
        return self._sources[source].address

    def auth_response_of(self, source: int) -> AuthResponse | None:
        """Return the nsqd's answer to AUTH; None if it does not require AUTH."""
        broker = self._broker_of(source)
        return None if broker is None else broker.authorization

    def finish(self, source: int, ids: Sequence[bytes]) -> None:
        """Write FIN for *ids*, never empty, to the source that sent them; no-op if that is lost."""
        connection = self._sources.get(source)
        if connection is not None and connection.broker is not None:
            connection.broker.finish(ids)
        # Only while a connection waits for room: this runs for every list of FINs.
        if self.rdy.is_short:
            self.write_ready(self.rdy.answered(len(ids), self._now()))

    def requeue(self, source: int, ids: Sequence[bytes], *, delay_ms: int) -> None:
        """Write REQ for *ids* to the source that sent them; no-op if that source is lost."""
        if broker := self._broker_of(source):
            broker.requeue(ids, delay_ms=delay_ms)
        if self.rdy.is_short:
            self.write_ready(self.rdy.answered(len(ids), self._now()))

    def touch(self, source: int, ids: Sequence[bytes]) -> None:
        """Write TOUCH for *ids* to the source that sent them; no-op if that source is lost."""
        if broker := self._broker_of(source):
            broker.touch(ids)

    # Closing

    async def close(self) -> None:
        """Close every connection with CLS; idempotent."""
        self.is_closing = True
        # None from here on: no connection that is lost now reconnects.
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.close()
        if self._timer is not None:
            self._timer.cancel()
        for connection in self._sources.values():
            connection.share = None  # messages that still arrive are requeued
        self._sources.clear()
        # Emptied before the wait: a second call finds nothing left to close.
        connections, self._connections = self._connections, {}
        # Separate tasks, so that every connection is closed even if the caller is cancelled.
        closing = [spawn("leave an nsqd", each.close()) for each in connections.values()]
        if closing:
            await asyncio.wait(closing)
