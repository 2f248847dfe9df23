"""
The subscription of one socket or fan-out at nsqd, its secret, and the checks of that secret.

A client may send its secret after the upgrade, so a subscription can be replaced by one with the
secret. The new one has the same window, and is not read either if the old one was not. "Broker"
means nsqd; a *source* is the number of one nsqd connection of the subscription.

`SharedUpstream`, for sockets that share a subscription, is in `fanout`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

from gateway.client.channel_monitor import ChannelMonitor, PauseWatch
from gateway.client.discovery import Discovery
from gateway.client.error_cache import ErrorCache
from gateway.client.subscription import Subscription, SubscriptionListener, SubscriptionOptions
from gateway.credentials import Secret
from gateway.errors import AuthRequired, BrokerRefused, copy_error
from gateway.protocol.frames import Message
from gateway.protocol.identify import AuthResponse, IdentifyResponse
from gateway.protocol.wire import is_ephemeral
from gateway.session.types import (
    DelayedRequeue,
    FinishDeliveries,
    PauseReading,
    RequeueCause,
    RequeueDeliveries,
    ResumeReading,
    SetReady,
    TouchDeliveries,
)
from gateway.telemetry import Tracing, fast_counter
from gateway.web.errors import with_names
from gateway.web.metrics import REQUEUED
from gateway.web.subscribe.reauth import Grant, GrantUser, Reauthenticator
from gateway.web.tracing import DeliverySpans

NsqAction: TypeAlias = (
    FinishDeliveries
    | SetReady
    | RequeueDeliveries
    | DelayedRequeue
    | TouchDeliveries
    | PauseReading
    | ResumeReading
)
"""The actions of a session that are for nsqd; an `Upstream` executes them."""

_ANSWERED = fast_counter(
    "messages_answered_total",
    "Messages for which FIN, REQ or TOUCH was sent to nsqd, by verb.",
    ("verb",),
    zeros=[("FIN",), ("REQ",), ("TOUCH",)],
)
_PUT_OFF = fast_counter(
    "messages_put_off_total",
    "Messages requeued with a delay because they had more than max_attempts attempts.",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class UpstreamContext:
    """The services that the subscriptions of all sockets share."""

    discovery: Discovery
    error_cache: ErrorCache
    reauthenticator: Reauthenticator | None
    """Checks secrets at nsqd; None with an access file, by which the gateway checks them."""
    channel_monitor: ChannelMonitor | None = None
    """Reports paused channels; None if channels are not monitored."""
    tracing: Tracing | None = None
    """None if deliveries are not traced."""


class UpstreamListener(SubscriptionListener, GrantUser, Protocol):
    """Listens to an upstream: a `SubscriberSocket` or a `Fanout`."""

    def on_channel_paused(self, is_paused: bool) -> None:  # noqa: FBT001 - a listener's signature
        """Called when the channel or its topic was paused (True) or unpaused at nsqd."""


class Upstream(Protocol):
    """
    A socket's side towards nsqd: a `DedicatedUpstream`, or a `SharedUpstream`.

    Call `subscribe` first, then `unsubscribe`, and `release` last.
    """

    @property
    def channel(self) -> str:
        """The channel; valid once subscribed."""

    @property
    def secret(self) -> Secret | None:
        """The secret of the last `subscribe`; None without one."""

    @property
    def msg_timeout_ms(self) -> int:
        """The message timeout to assume until an nsqd names one."""

    @property
    def sources(self) -> Sequence[int]:
        """The sources that are connected now."""

    async def subscribe(self, secret: Secret | None) -> None:
        """
        End an earlier subscription, remove its sources, and subscribe with *secret*.

        Raises:
            AuthRequired: An nsqd requires AUTH, and there is no secret.
            BrokerRefused: An nsqd refuses the secret or the subscription, or has done so recently.
            NoBroker: No nsqd can be reached.
        """

    def renew_secret(self, secret: Secret | None) -> None:
        """Use *secret*, a fresher one of the same caller, for connections opened from now on."""

    def add_source(self, source: int, answer: IdentifyResponse) -> AuthResponse | None:
        """
        Note that *source* is connected; *answer* is its nsqd's response to IDENTIFY.

        Returns the nsqd's response to AUTH; None if it required none.
        """

    def remove_source(self, source: int) -> None:
        """Note that *source* is lost."""

    def trace_messages(self, source: int, messages: Sequence[Message]) -> None:
        """Note *messages* for tracing; call it before they are delivered to the client."""

    def auth_addresses(self) -> Sequence[str]:
        """Return the addresses of the connected nsqds that require AUTH."""

    def execute(self, action: NsqAction) -> None:
        """Send *action* to nsqd; RDY and pauses of reading also apply to a later subscription."""

    async def unsubscribe(self) -> None:
        """End the subscription, and close its nsqd connections; idempotent."""

    def release(self) -> None:
        """Drop the reference to the listener after `unsubscribe`; call once."""


class DedicatedUpstream:
    """
    An `Upstream` with a consumer (connections to nsqd) of its own.

    Args:
        context: The services that all upstreams share.
        options: What to subscribe to, without a secret.
        listener: Is notified of messages and sources.
        refusal_channel: The name under which the error cache keeps a refusal; None: the channel's.
            With a random channel name, pass a fixed one: otherwise no refusal is found again.
    """

    __slots__ = (
        "_context",
        "_grant",
        "_is_reading",
        "_listener",
        "_options",
        "_refusal_channel",
        "_secret",
        "_sources",
        "_spans",
        "_subscription",
        "_watch",
        "_window",
    )

    def __init__(
        self,
        context: UpstreamContext,
        options: SubscriptionOptions,
        listener: UpstreamListener,
        *,
        refusal_channel: str | None = None,
    ) -> None:
        self._context = context
        self._options = options
        self._listener = listener
        self._refusal_channel = refusal_channel
        tracing = context.tracing
        self._spans = None if tracing is None else DeliverySpans(tracing, options.topic)
        self._secret: Secret | None = None
        self._subscription: Subscription | None = None
        self._sources: dict[int, IdentifyResponse] = {}
        self._grant: Grant | None = None
        self._watch: PauseWatch | None = None
        self._window = 0
        self._is_reading = True

    @property
    def channel(self) -> str:
        """The channel of the subscription."""
        return self._options.channel

    @property
    def secret(self) -> Secret | None:
        """The secret that the last subscription used or tries to use; None if it has no secret."""
        return self._secret

    @property
    def msg_timeout_ms(self) -> int:
        """The message timeout to assume until an nsqd names one."""
        return self._options.connection.offer.msg_timeout or IdentifyResponse().msg_timeout

    @property
    def sources(self) -> Sequence[int]:
        """The sources that are connected now."""
        return list(self._sources)

    @property
    def answers(self) -> Mapping[int, IdentifyResponse]:
        """The response of each source's nsqd to IDENTIFY, in the order of connection."""
        return self._sources

    @property
    def awaits_topic(self) -> bool:
        """True while this is subscribed without any nsqd, because no nsqd has the topic yet."""
        subscription = self._subscription
        return subscription is not None and subscription.awaits_topic

    async def subscribe(self, secret: Secret | None) -> None:
        """End an earlier subscription, and subscribe with *secret*; see `Upstream.subscribe`."""
        try:
            await self._subscribe(secret)
        except BrokerRefused as error:
            raise with_names(error, self._options.topic, self._options.channel) from None

    async def _subscribe(self, secret: Secret | None) -> None:
        """Subscribe as `subscribe` does; an error names no topic and channel yet."""
        loop = asyncio.get_running_loop()
        refusals = self._context.error_cache
        channel = self.channel if self._refusal_channel is None else self._refusal_channel
        key = (secret, self._options.topic, channel)
        if (refused := refusals.find(key, loop.time())) is not None:
            # A copy: each raise would add frames to the traceback of the cached error.
            raise copy_error(refused)
        await self.unsubscribe()
        options = self._options_with(secret)
        subscription = Subscription(self._context.discovery, options, self._listener)
        self._subscription, self._secret = subscription, options.connection.secret
        # Before the start, so that the first connection has the right RDY, and a client that is
        # still slow gets no messages.
        subscription.set_window(self._window)
        if not self._is_reading:
            subscription.pause_reading()
        try:
            await subscription.start()
        except (AuthRequired, BrokerRefused) as error:
            # Only refusals of the secret are remembered; a full channel may soon have room.
            if isinstance(error, AuthRequired) or error.is_auth_error:
                refusals.remember(key, error, loop.time())
            raise
        self._watch_grant_and_pause(options)

    def renew_secret(self, secret: Secret | None) -> None:
        """Use *secret* for connections that are opened from now on."""
        self._secret = secret
        if self._subscription is not None:
            self._subscription.renew_secret(secret)

    def _options_with(self, secret: Secret | None) -> SubscriptionOptions:
        """Return the options with *secret*; if it is None, the object that sockets share."""
        options = self._options
        if secret is None:
            return options
        return replace(options, connection=replace(options.connection, secret=secret))

    def _watch_grant_and_pause(self, options: SubscriptionOptions) -> None:
        """Start the periodic checks of the secret, and watch for pauses of the channel."""
        secret, channel_monitor = options.connection.secret, self._context.channel_monitor
        reauthenticator = self._context.reauthenticator
        if secret is not None and reauthenticator is not None:
            self._grant = Grant(secret=secret, topic=options.topic, channel=options.channel)
            reauthenticator.watch(self._grant, options.connection, self._listener)
        if channel_monitor is not None and not is_ephemeral(options.channel):
            self._watch = channel_monitor.watch(
                options.topic, options.channel, self._listener.on_channel_paused
            )

    def add_source(self, source: int, answer: IdentifyResponse) -> AuthResponse | None:
        """Note that *source* is connected; return the response to AUTH, as `auth_response_of`."""
        self._sources[source] = answer
        return self.auth_response_of(source)

    def auth_response_of(self, source: int) -> AuthResponse | None:
        """Return the response to AUTH of the nsqd of *source*; None if it required none."""
        subscription = self._subscription
        return None if subscription is None else subscription.auth_response_of(source)

    def remove_source(self, source: int) -> None:
        """Note that *source* is lost, and end the spans of its deliveries."""
        self._sources.pop(source, None)
        if self._spans is not None:
            self._spans.on_lost(source)

    def auth_addresses(self) -> Sequence[str]:
        """Return the addresses of the connected nsqds that require AUTH."""
        subscription = self._subscription
        if subscription is None:
            return ()
        return [
            subscription.address_of(source)
            for source, said in self._sources.items()
            if said.auth_required
        ]

    def trace_messages(self, source: int, messages: Sequence[Message]) -> None:
        """Note *messages* for tracing; call it before they are delivered to the client."""
        if self._spans is not None:
            self._spans.on_delivered(source, messages, self._options.channel)

    def execute(self, action: NsqAction) -> None:
        """Send *action* to nsqd; RDY and pauses of reading also apply to a later subscription."""
        subscription = self._subscription
        if self._spans is not None and isinstance(
            action, FinishDeliveries | RequeueDeliveries | DelayedRequeue
        ):
            verb = "FIN" if isinstance(action, FinishDeliveries) else "REQ"
            self._spans.on_acknowledged(action.source, action.ids, verb)
        if isinstance(action, FinishDeliveries):  # first, because most actions are FINs
            if subscription is not None:
                _ANSWERED.counts["FIN",] += len(action.ids)
                subscription.finish(action.source, action.ids)
            return
        if isinstance(action, SetReady | PauseReading | ResumeReading):
            self._set_flow(action)
        elif subscription is None:
            return
        elif isinstance(action, DelayedRequeue):
            _PUT_OFF.counts[()] += len(action.ids)
            REQUEUED.counts[RequeueCause.MAX_ATTEMPTS.value,] += len(action.ids)
            subscription.requeue(action.source, action.ids, delay_ms=action.delay_ms)
        elif isinstance(action, RequeueDeliveries):
            _ANSWERED.counts["REQ",] += len(action.ids)
            REQUEUED.counts[action.cause.value,] += len(action.ids)
            subscription.requeue(action.source, action.ids, delay_ms=action.delay_ms)
        else:
            _ANSWERED.counts["TOUCH",] += len(action.ids)
            subscription.touch(action.source, action.ids)

    def _set_flow(self, action: SetReady | PauseReading | ResumeReading) -> None:
        """Apply RDY or a pause of reading, and keep it for a later subscription."""
        subscription = self._subscription
        match action:
            case SetReady(count):
                self._window = count
                if subscription is not None:
                    subscription.set_window(count)
            case PauseReading():
                self._is_reading = False
                if subscription is not None:
                    subscription.pause_reading()
            case ResumeReading():
                self._is_reading = True
                if subscription is not None:
                    subscription.resume_reading()

    async def unsubscribe(self) -> None:
        """End the subscription, and close its nsqd connections; idempotent."""
        # Before the await: no check and no pause may reach the listener after it has left.
        reauthenticator = self._context.reauthenticator
        if self._grant is not None and reauthenticator is not None:
            reauthenticator.forget(self._grant, self._listener)
            self._grant = None
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        self._sources.clear()
        if self._spans is not None:
            self._spans.on_lost()
        subscription = self._subscription
        if subscription is not None:
            await subscription.close()
            # A `subscribe` during the await may have replaced it.
            if self._subscription is subscription:
                self._subscription = None

    def release(self) -> None:
        """Drop the reference to the listener after `unsubscribe`; call once."""
        # Breaks the reference cycle with the socket, so that no garbage collection is needed.
        del self._listener
