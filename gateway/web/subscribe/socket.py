"""
One subscriber socket: it connects a client's WebSocket and an NSQ consumer by a `Session`.

Each event, from either side, is passed to the session. The socket executes the actions that the
session returns, and writes the frames that wait, in the same iteration of the event loop: no task
and no queue is in between.

However a socket ends, it first requeues the deliveries that the client has not acknowledged, before
it awaits anything. If nsqd requires a secret and the upgrade had none, the socket subscribes after
the client's AUTH.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from gateway.aio import spawn
from gateway.client.metrics import count_auth
from gateway.client.subscription import SubscriptionOptions
from gateway.credentials import Secret
from gateway.errors import (
    AuthRequired,
    BrokerRefused,
    BrokerUnreachable,
    CredentialRefused,
    GatewayError,
    PermissionDenied,
)
from gateway.protocol.frames import ErrorFrame, Message
from gateway.protocol.identify import IdentifyResponse
from gateway.session.types import (
    Action,
    CloseReason,
    CloseSocket,
    DrainReason,
    FinishDeliveries,
    PauseReading,
    PublishBodies,
    Refusal,
    RenewSecret,
    RequeueDeliveries,
    ResubscribeWithSecret,
    SessionOptions,
)
from gateway.telemetry import get_logger
from gateway.web.auth import ANONYMOUS, AccessPolicy, Principal
from gateway.web.errors import CloseCode, with_names
from gateway.web.metrics import COMMAND, RATE_LIMITED, SLOW
from gateway.web.subscribe.access import (
    SubscribeError,
    access_response,
    check_renewal,
    check_subscription,
    explain_subscribe_error,
)
from gateway.web.subscribe.connection_limits import SocketsBuffer, UnauthenticatedLimit
from gateway.web.subscribe.fanout import FanoutRegistry, SharedUpstream
from gateway.web.subscribe.publishing import SocketPublishing
from gateway.web.subscribe.session_socket import SessionSocket, no_event
from gateway.web.subscribe.upstream import DedicatedUpstream, Upstream, UpstreamContext
from gateway.web.websocket.protocol import WebSocket

CLOSE_CODES: dict[CloseReason, CloseCode] = {
    CloseReason.DONE: CloseCode.NORMAL,
    CloseReason.DRAINED: CloseCode.RESTART,
    CloseReason.AGED: CloseCode.RESTART,
    CloseReason.SLOW: CloseCode.SLOW,
    CloseReason.NO_BROKER: CloseCode.NO_BROKER,
    CloseReason.TOO_MANY_ERRORS: CloseCode.TOO_MANY_ERRORS,
    CloseReason.TOO_FAST: CloseCode.TOO_MANY_ERRORS,
    CloseReason.CHANNEL_GONE: CloseCode.CHANNEL_GONE,
    CloseReason.FULL: CloseCode.FULL,
    CloseReason.NO_AUTH: CloseCode.NO_AUTH,
    CloseReason.FORBIDDEN: CloseCode.FORBIDDEN,
    CloseReason.SECRET_REFUSED: CloseCode.SECRET_REFUSED,
    CloseReason.FAILED: CloseCode.INTERNAL,
}


class SocketRegistry(Protocol):
    """
    The registry of all sockets.

    A protocol, because its one implementation, `SubscribeEndpoint`, imports this module.
    """

    def on_socket_open(self, socket: SubscriberSocket) -> None:
        """Called once the upgrade of *socket* is complete."""

    def acquire_caller(self, socket: SubscriberSocket) -> None:
        """Called when `principal` of *socket* is known by AUTH; raises LimitReached."""

    def on_socket_closed(self, socket: SubscriberSocket) -> None:
        """Called once the WebSocket and all nsqd connections of *socket* are closed."""


class SubscribeContext(NamedTuple):
    """The services and limits that all sockets share."""

    registry: SocketRegistry
    upstream: UpstreamContext
    fanouts: FanoutRegistry
    unauthenticated: UnauthenticatedLimit
    publishing: SocketPublishing
    buffer: SocketsBuffer
    access: AccessPolicy = AccessPolicy()


@dataclass(frozen=True, kw_only=True, slots=True)
class SocketOptions:
    """The options of one socket: its session, its subscription and its client."""

    session: SessionOptions
    subscription: SubscriptionOptions
    peer: str
    request_id: str
    trace_id: str | None = None
    """The trace of the upgrade; None if it is not recorded."""


logger = get_logger()


class SubscriberSocket(SessionSocket):
    """
    The `WebSocketHandler` of one subscriber.

    Call `open` or `wait_for_auth` first. If the upgrade fails after that, call `release`. Otherwise
    the WebSocket calls `on_open` and finally `on_close`.
    """

    __slots__ = (
        "_close_reason",
        "_context",
        "_has_subscribed",
        "_has_unsubscribed",
        "_is_disconnected",
        "_opened_at",
        "_subscribing",
        "_unsubscribing",
        "_upstream",
        "close_code",
        "finished",
        "is_closed_by_client",
        "max_age_due",
        "peer",
        "principal",
        "requeued",
        "requeued_on_close",
        "trace_id",
    )

    def __init__(self, options: SocketOptions, context: SubscribeContext) -> None:
        super().__init__(options.session, options.request_id)
        self.trace_id = options.trace_id
        self.peer = options.peer
        """The client's host."""
        self._context = context
        self._upstream = self._new_upstream(options)
        self.principal = ANONYMOUS
        """Who the client is; `ANONYMOUS` before its AUTH."""
        self._has_subscribed = False
        self._subscribing: asyncio.Task[None] | None = None
        """The attempt to subscribe with the secret of an AUTH; None while there is none."""
        self._unsubscribing: asyncio.Task[None] | None = None
        """The task that ends the subscription; None before the close."""
        self._close_reason = ""
        """The reason in the gateway's close frame; empty without one."""
        self._has_unsubscribed = False
        self._is_disconnected = False
        """True once the WebSocket is closed."""
        self._opened_at = self._loop.time()
        self.finished = 0
        """Number of messages for which FIN was sent to nsqd."""
        self.requeued = 0
        """Number of requeued messages, without those that had too many attempts."""
        self.requeued_on_close = 0
        """Number of messages requeued because the socket or the gateway closes."""
        self.max_age_due = 0
        """The second in which `MaxConnectionAge` drains the socket; for that class only."""
        self.close_code: int = CloseCode.INTERNAL
        self.is_closed_by_client = False

    def _new_upstream(self, options: SocketOptions) -> Upstream:
        # Empty if the name is random: the error cache then has one entry for all such channels.
        asked = options.session.channel
        return DedicatedUpstream(
            self._context.upstream, options.subscription, self, refusal_channel=asked
        )

    @property
    def is_viewer(self) -> bool:
        """True for a `ViewerSocket`: its client only watches, and shares a consumer."""
        return self._session.options.is_viewer

    @property
    def is_auto_ack(self) -> bool:
        """True if the gateway finishes messages once they are written."""
        return self._session.options.is_auto_ack

    @property
    def delivered(self) -> int:
        """Number of messages written to the client."""
        return self._session.delivered

    @property
    def totals(self) -> dict[str, object]:
        """The totals of this socket, for the log event when it is closed."""
        return {
            "reason": self._close_reason or "the client disconnected",
            "delivered": self.delivered,
            "finished": self.finished,
            "requeued": self.requeued,
            "timed_out": self._session.stats.timed_out,
            "requeued_on_close": self.requeued_on_close,
            "bytes_out": 0 if self._socket is None else self._socket.sent_bytes,
            "seconds": round(self._loop.time() - self._opened_at, 3),
        }

    @property
    def in_flight(self) -> int:
        """Number of deliveries that the client has not acknowledged."""
        return self._session.stats.held

    @property
    def is_waited_for(self) -> bool:
        """True while a drain must wait: the client holds deliveries, or waits for a response."""
        return not self._is_closed and self._session.is_open

    @property
    def topic(self) -> str:
        """The topic of the subscription."""
        return self._session.options.topic

    @property
    def channel(self) -> str:
        """The channel; empty for a viewer that has not joined its fan-out yet."""
        return self._session.channel

    @property
    def secret(self) -> Secret | None:
        """The secret of the current or last subscription; None without one."""
        return self._upstream.secret

    @property
    def log_fields(self) -> dict[str, str]:
        """The fields of log events that tell who the client is; empty without a secret."""
        return self._publishing_principal.log_fields

    # Access

    @property
    def expires_at(self) -> float | None:
        """When the client's token ends, in seconds since 1970; None without an access file."""
        identity = self.principal.identity
        return None if identity is None else identity.expires_at

    @property
    def _publishing_principal(self) -> Principal:
        """The principal for publishes: its secret may be one that nsqd has not required yet."""
        if self.principal.identity is not None:
            return self.principal
        # A broker of the producer may require AUTH although no broker of the topic does.
        return Principal(self.secret or self._session.unused_secret)

    def recheck_access(self) -> None:
        """Identify the client again, and end the socket if it may no longer subscribe."""
        try:
            principal = self._context.access.identify(self.principal.secret)
            check_subscription(principal, self._session.options)
        except (CredentialRefused, PermissionDenied) as error:
            self.end_access(str(error), explain_subscribe_error(error).code)
        else:
            self.principal = principal

    def end_access(self, message: str, code: str = "E_AUTH_FAILED") -> None:
        """Send the client an error, because its secret no longer counts, and close with 4003."""
        reason = CloseReason.SECRET_REFUSED
        self._on_event(lambda _: self._session.on_auth_failed(code, message, reason))

    def _renew(self, renewal: RenewSecret) -> None:
        """Go on with the fresher token of *renewal*, or tell the client why not."""
        try:
            principal = self._context.access.identify(renewal.secret)
            check_renewal(self.principal, principal)
            check_subscription(principal, self._session.options)
        except GatewayError as error:
            why = explain_subscribe_error(error)
            self._on_event(
                lambda now: self._session.on_renewal_refused(
                    renewal.ref, why.code, why.message, now
                )
            )
            return
        self.principal = principal
        if self._upstream.secret is None:
            self._session.keep_unused(renewal.secret)
        else:
            policy = self._context.access
            self._upstream.renew_secret(policy.secret_for_nsqd(principal, requires_auth=True))
        response = access_response(principal, self._context.access)
        assert response is not None  # noqa: S101 - only sessions with an access file renew
        self._on_event(lambda _: self._session.on_renewed(renewal.ref, response))

    # Subscribing

    async def open(self, principal: Principal, *, may_wait: bool = True) -> None:
        """
        Subscribe at nsqd for *principal*; if nsqd requires a secret and there is none, wait for it.

        Raises:
            AuthRequired: There is none, and *may_wait* is False: the client cannot send AUTH.
            BrokerRefused: nsqd refuses the secret, or the subscription.
            NoBroker: No nsqd can be reached.
            LimitReached: Too many sockets wait for their AUTH.
        """
        try:
            await self._subscribe_for(principal)
        except AuthRequired:
            if not may_wait:
                raise
            self.wait_for_auth()

    async def _subscribe_for(self, principal: Principal, *, requires_auth: bool = False) -> None:
        """
        Subscribe with the secret that nsqd gets for *principal*; see `_subscribe`.

        *requires_auth* is True if an nsqd of the topic is known to require AUTH.
        """
        self.principal = principal
        if principal.identity is None:
            await self._subscribe(principal.secret)
            return
        policy = self._context.access
        forced = policy.secret_for_nsqd(principal, requires_auth=True)
        secret = forced if requires_auth else self._context.publishing.secret_for_nsqd(principal)
        try:
            await self._subscribe(secret)
        except AuthRequired:
            if secret is not None:
                raise
            # No nsqd for publishing requires AUTH, but one of the topic does.
            secret = forced
            await self._subscribe(secret)
        if secret is None and principal.secret is not None:
            self._session.keep_unused(principal.secret)

    def wait_for_auth(self) -> None:
        """Require the client's AUTH; raises LimitReached if too many sockets wait for AUTH."""
        self._context.unauthenticated.acquire(self)
        self._on_event(self._session.on_secret_missing)

    async def _subscribe(self, secret: Secret | None) -> None:
        """End an earlier subscription, and subscribe with *secret*; see `Upstream.subscribe`."""
        upstream = self._upstream
        if self._has_subscribed:
            # Its connections become new sources, even to the same brokers.
            self._execute(self._session.drop_sources(self._loop.time()))
            # In a task, because this one is cancelled when the client disconnects, and the old
            # connections must be closed even then.
            await asyncio.wait({spawn("leave a subscription", upstream.unsubscribe())})
            # Drop sources that opened meanwhile, too, and send the status frames.
            self._on_event(self._session.drop_sources)
        await upstream.subscribe(secret)
        self._context.unauthenticated.release(self)
        self._has_subscribed = True
        if not upstream.sources:
            # No nsqd has the topic yet, so that no source would make the session send SUB.
            self._session.channel = upstream.channel
            self._on_event(self._session.on_no_source, upstream.msg_timeout_ms)
        if self._socket is not None:
            self._on_ready(self._socket)

    def _on_ready(self, socket: WebSocket) -> None:
        """Called once the WebSocket is open and subscribed; for `ViewerSocket`."""

    async def _authenticate(self, secret: Secret) -> None:
        """Subscribe with the secret of the client's AUTH; if that fails, tell it, and close."""
        why = await self._subscribe_with_secret(secret)
        if why is None:
            # Commands that followed AUTH were queued until it was verified.
            self._on_event(self._session.run_waiting)
            return
        self._on_event(
            lambda _: self._session.on_auth_failed(
                why.code, why.message, why.reason, retryable=why.is_retryable
            )
        )

    async def _subscribe_with_secret(self, secret: Secret) -> SubscribeError | None:
        """Subscribe with the secret of the client's AUTH; return its error, None for success."""
        try:
            principal = self.principal
            is_known = principal.identity is not None and principal.secret == secret
            if not is_known:
                principal = self._context.access.identify(secret)
                check_subscription(principal, self._session.options)
                self.principal = principal
                self._context.registry.acquire_caller(self)
                if response := access_response(principal, self._context.access):
                    self._session.set_auth_response(response)
            await self._subscribe_for(principal, requires_auth=is_known)
        except Exception as error:
            if not isinstance(error, GatewayError):
                logger.exception("subscription failed", request_id=self.request_id)
            return explain_subscribe_error(error)
        finally:
            self._subscribing = None
        return None

    def _unsent_changed(self, unsent_bytes: int) -> None:
        self._context.buffer.update(self, unsent_bytes, is_paused=self._session.is_slow)

    def on_buffer_limit(self) -> None:
        """Stop reading from nsqd until the client has taken a part of what waits for it."""
        if not self._is_closed:
            self._on_event(self._session.on_buffer_limit)

    # From NSQ

    def on_messages(self, source: int, messages: list[Message], sent_after: float) -> None:
        """Queue *messages* for the client."""
        self._upstream.trace_messages(source, messages)
        self._on_event(lambda now: self._session.on_messages(source, messages, now, sent_after))

    def in_flight_by_source(self) -> Mapping[int, int]:
        """Return by source the number of this socket's messages that are in flight at nsqd."""
        return self._session.in_flight_by_source()

    def on_ack_refused(self, source: int, frame: ErrorFrame) -> None:
        """Called when nsqd refused the client's FIN, REQ or TOUCH: send the client its error."""
        self._on_event(lambda _: self._session.on_ack_refused(frame, source))

    def on_source_opened(self, source: int, answer: IdentifyResponse) -> None:
        """Called when an nsqd is connected: send the client SUB the first time, then NOP."""
        self._session.channel = self._upstream.channel
        authorization = self._upstream.add_source(source, answer)
        self._on_event(lambda _: self._session.on_source_opened(source, answer, authorization))

    def on_source_lost(self, source: int, error: BrokerUnreachable) -> None:
        """Called when an nsqd connection is lost: send the client NOP, with what it lost."""
        del error
        self._upstream.remove_source(source)
        self._on_event(self._session.on_source_lost, source)

    def on_channel_gone(self, address: str) -> None:
        """Called when the channel was deleted at nsqd: send the client CHANNEL_GONE, and close."""
        logger.info("channel deleted", request_id=self.request_id, nsqd=address)
        self._on_event(lambda _: self._session.on_channel_gone())

    def on_channel_paused(self, is_paused: bool) -> None:  # noqa: FBT001 - a listener's signature
        """Called when the channel was paused or unpaused at nsqd: send the client NOP."""
        self._on_event(lambda _: self._session.on_paused(is_paused))

    def on_secret_missing(self) -> None:
        """Called when nsqd requires AUTH, and no secret is set; see `Session.on_secret_missing`."""
        self._on_event(self._session.on_secret_missing)

    def auth_addresses(self) -> Sequence[str]:
        """Return the addresses of the connected nsqds that require AUTH."""
        return self._upstream.auth_addresses()

    def on_secret_refused(self, error: BrokerRefused) -> None:
        """Called when nsqd no longer accepts the secret: send the client the error, and close."""
        message = with_names(error, self.topic, self.channel).description
        reason = CloseReason.SECRET_REFUSED
        self._on_event(lambda _: self._session.on_auth_failed(error.code, message, reason))

    # From the client

    def on_open(self, socket: WebSocket) -> None:
        """Send the client the frames that were ready before the 101, and start to receive."""
        self._socket = socket
        self._opened_at = self._loop.time()
        self._context.registry.on_socket_open(self)
        if self._is_closed:
            # The session ended between the subscription and the 101.
            self._send_close(socket)
            return
        self._on_event(no_event)
        if self._has_subscribed:
            self._on_ready(socket)

    def on_close(self, code: int) -> None:
        """Called when the WebSocket is closed: requeue the client's deliveries, unsubscribe."""
        self._is_disconnected = True
        # The first close counts: after `close`, the client's code is only the answer to it.
        if not self._is_closed:
            self.close_code = code
            if self._socket is not None:
                self.is_closed_by_client = self._socket.is_closed_by_client
                # The WebSocket layer closes by itself, too: invalid frames, a missed pong.
                self._close_reason = self._socket.close_reason
            self._requeue_and_unsubscribe()
        if self._has_unsubscribed:
            self._on_finished()

    # Actions

    def _execute(self, actions: list[Action]) -> None:
        """Execute the session's *actions* in order, and count them in the totals."""
        for action in actions:
            if isinstance(action, FinishDeliveries):  # first, because most actions are FINs
                self.finished += len(action.ids)
                self._upstream.execute(action)
            elif isinstance(action, PublishBodies):
                self._context.publishing.begin(
                    action, self._publishing_principal, self.peer, self._published
                )
            elif isinstance(action, ResubscribeWithSecret):
                task = self._authenticate(action.secret)
                self._subscribing = spawn("subscribe with a secret", task)
            elif isinstance(action, RenewSecret):
                self._renew(action)
            elif isinstance(action, CloseSocket):
                _count_close(action.reason)
                self.close(CLOSE_CODES[action.reason], action.reason.value)
            else:
                if isinstance(action, RequeueDeliveries):
                    self.requeued += len(action.ids)
                    if action.is_socket_ending:
                        self.requeued_on_close += len(action.ids)
                elif isinstance(action, PauseReading):
                    SLOW.counts["paused",] += 1
                self._upstream.execute(action)

    def _published(self, publish: PublishBodies, refusal: Refusal | None) -> None:
        """Send the client the response to *publish*; does nothing once the socket is closed."""
        if not self._is_closed:
            self._on_event(lambda _: self._session.on_published(publish, refusal))

    # Closing

    def drain(self, reason: DrainReason, *, close_at: float, reconnect_after_ms: int) -> None:
        """Announce the close to the client, and later close with 1012; see `Session.drain`."""
        self._on_event(
            lambda _: self._session.drain(
                reason, close_at=close_at, reconnect_after_ms=reconnect_after_ms
            )
        )

    async def release(self) -> None:
        """Unsubscribe, and release a socket whose upgrade failed before `on_open`."""
        if not self._is_closed:
            self._requeue_and_unsubscribe()
        if self._unsubscribing is not None:
            await asyncio.wait({self._unsubscribing})
        self._upstream.release()

    def close(self, code: CloseCode, reason: str) -> None:
        """Requeue unacknowledged deliveries, send the queued frames, and close; idempotent."""
        if self._is_closed:
            return
        self.close_code = code
        self._close_reason = reason
        if code is CloseCode.SLOW:
            SLOW.counts["closed",] += 1
        self._requeue_and_unsubscribe()
        # Before the 101 there is no socket; `on_open` then sends the close.
        if self._socket is not None:
            self._send_close(self._socket)

    def _send_close(self, socket: WebSocket) -> None:
        """Send the client the responses that wait, and close; its messages are requeued already."""
        try:
            self.send_all()
        except Exception:
            logger.exception("subscriber failed", request_id=self.request_id)
        socket.close(self.close_code, self._close_reason)

    def _requeue_and_unsubscribe(self) -> None:
        """Requeue unacknowledged deliveries now, and start a task that unsubscribes."""
        # First, so that events caused by the actions below send no frame and set no timer.
        self._stop_timer()
        # The task starts after this method returns: REQ is written before connections close.
        self._unsubscribing = spawn("leave NSQ", self._unsubscribe())
        if self._subscribing is not None:
            self._subscribing.cancel()
        self._context.unauthenticated.release(self)
        try:
            self._execute(self._session.close(self._loop.time()))
        except Exception:
            logger.exception("subscriber failed", request_id=self.request_id)
        finally:
            self._update_gauges()

    async def _unsubscribe(self) -> None:
        """Unsubscribe; deregister the socket if its WebSocket is closed already."""
        try:
            if self._subscribing is not None:
                # Cancelled above, but it may open a connection until it has ended.
                await asyncio.wait({self._subscribing})
            await self._upstream.unsubscribe()
        finally:
            self._has_unsubscribed = True
            if self._is_disconnected:
                self._on_finished()

    def _on_finished(self) -> None:
        """Called once both the WebSocket and the subscription are closed, in either order."""
        self._context.registry.on_socket_closed(self)
        self._upstream.release()


def _count_close(reason: CloseReason) -> None:
    """Count a close in the metrics of rate limits or AUTH; the registry counts close codes."""
    if reason is CloseReason.TOO_FAST:
        RATE_LIMITED.counts[COMMAND,] += 1
    elif reason is CloseReason.NO_AUTH:
        count_auth("missing")


class ViewerSocket(SubscriberSocket):
    """
    A `SubscriberSocket` whose client named no channel, and gets the messages of a shared `Fanout`.

    The fan-out does not wait for a slow client: its socket is closed.
    """

    __slots__ = ("_shared", "_slow_timer")

    def __init__(self, options: SocketOptions, context: SubscribeContext) -> None:
        super().__init__(options, context)
        self._slow_timer: asyncio.TimerHandle | None = None
        """Closes the socket after `slow_consumer_s` with a full write buffer; None if it is not."""

    @property
    def delivered(self) -> int:
        """Number of messages written to the client."""
        return self._shared.delivered

    def _new_upstream(self, options: SocketOptions) -> Upstream:
        wanted = options.subscription
        sample_rate = wanted.connection.offer.sample_rate
        self._shared = SharedUpstream(self._context.fanouts, wanted.topic, sample_rate, self)
        return self._shared

    def _on_ready(self, socket: WebSocket) -> None:
        """Send the session's frames (SUB), then let the fan-out write messages to *socket*."""
        self.send_all()
        self._shared.start_sending(socket)

    def check_slow(self) -> bool:
        """
        Return True if the fan-out may write, although the write buffer is full.

        Otherwise close the socket: its buffer is over `buffer_bytes`. The first call starts a timer
        that closes the socket after `slow_consumer_s`, if the buffer is full all that time.
        """
        options = self._session.options
        self._update_gauges()
        if self._is_closed:
            return False
        if self._socket is not None and self._socket.unsent_bytes > options.buffer_bytes:
            self._close_slow()
        elif self._slow_timer is None:
            self._slow_timer = self._loop.call_later(options.slow_consumer_s, self._close_slow)
        return not self._is_closed

    def _unsent_changed(self, unsent_bytes: int) -> None:
        # Viewers of one fan-out hold references to the same bytes, which are counted once.
        self._context.buffer.update_viewer(self._shared.joined_fanout, self, unsent_bytes)

    def on_buffer_limit(self) -> None:
        """Close, because the fan-out cannot stop reading from nsqd for one viewer."""
        if not self._is_closed:
            self._close_slow()

    def _close_slow(self) -> None:
        self.close(CloseCode.SLOW, CloseReason.SLOW.value)

    def on_writable(self) -> None:
        """Stop the timer for slow clients, since the write buffer has room again; send on."""
        self._stop_slow_timer()
        super().on_writable()

    def _requeue_and_unsubscribe(self) -> None:
        self._stop_slow_timer()
        # Now, not in the task that unsubscribes: no message may be counted after the close frame.
        self._shared.stop_sending()
        super()._requeue_and_unsubscribe()

    def _stop_slow_timer(self) -> None:
        if self._slow_timer is not None:
            self._slow_timer.cancel()
            self._slow_timer = None
