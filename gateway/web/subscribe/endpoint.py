"""
GET /sub: check upgrade requests, open sockets, limit their age, and drain them.

"Socket" means a client's WebSocket with its subscription, a `SubscriberSocket`. To *drain* a socket
is to announce the close to its client, to wait for its acknowledgments, and to close it.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

import msgspec

from gateway.client.channel_monitor import ChannelMonitor
from gateway.client.connection import ConnectionOptions
from gateway.client.discovery import Discovery
from gateway.client.error_cache import ErrorCache
from gateway.client.subscription import SubscriptionOptions
from gateway.errors import AuthRequired, GatewayError, LimitReached
from gateway.open_files import OpenFilesBudget
from gateway.protocol.wire import Limits, is_ephemeral
from gateway.session.types import CloseReason, SessionOptions
from gateway.telemetry import Tracing, fast_counter, gauge, get_logger
from gateway.web.auth import (
    AccessPolicy,
    Principal,
    authorization_values,
    bearer_secret,
    single_secret,
    take_subprotocol_secret,
)
from gateway.web.errors import DRAINING, CloseCode, problem_response, render_problem
from gateway.web.metrics import OPEN_FILES, OPENED, SESSION_METRICS, count_socket_limit
from gateway.web.origins import OriginPolicy, origins_and_host
from gateway.web.responses import HttpResponse, request_id_from
from gateway.web.subscribe.access import AccessExpiry, check_subscription
from gateway.web.subscribe.connection_limits import (
    ConnectionLimits,
    SocketsBuffer,
    UnauthenticatedLimit,
)
from gateway.web.subscribe.event_stream import EventStream
from gateway.web.subscribe.fanout import FanoutRegistry
from gateway.web.subscribe.publishing import SocketPublishing
from gateway.web.subscribe.pull import LeaseIssuer, PullContext, PullLimits, Pulls
from gateway.web.subscribe.reauth import Reauthenticator
from gateway.web.subscribe.request import (
    SubscribeRequest,
    choose_subprotocol,
    new_channel_name,
    parse_subscribe_request,
)
from gateway.web.subscribe.socket import (
    SocketOptions,
    SubscribeContext,
    SubscriberSocket,
    ViewerSocket,
)
from gateway.web.subscribe.upstream import UpstreamContext
from gateway.web.tracing import trace_fields
from gateway.web.websocket.protocol import ABNORMAL, Accepted, Upgrade

SOCKETS_PER_TURN = 50
"""Sockets drained in one turn of the event loop."""

_RECONNECT_WITHIN_MS = 5_000
"""Clients that are asked to reconnect do so spread over this time."""
_POLL_INTERVAL_S = 0.02
"""Interval at which `drain_all` checks whether the sockets are idle."""
_TIMER_INTERVAL_S = 1.0
_JITTER = 0.2
"""Part of the maximum age by which a socket may be drained earlier."""


def reconnect_after_ms() -> int:
    """Return a random delay for one client in ms, so that clients do not reconnect at once."""
    return random.randrange(_RECONNECT_WITHIN_MS)  # noqa: S311 - it spreads, and is no secret


async def drain_all(
    sockets: Sequence[SubscriberSocket], *, in_flight_s: float, window_s: float
) -> None:
    """
    Announce the close to the clients of *sockets*, wait until these are idle, schedule the closes.

    A socket is idle once its client has acknowledged all deliveries and has all responses. Waits
    for at most *in_flight_s*. The sockets close after this returns, spread over *window_s*.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + in_flight_s
    # In random order, so that the close time does not depend on the age of a socket.
    draining = random.sample(sockets, len(sockets))
    await _announce_close(draining, deadline, window_s)
    busy = draining.copy()
    # Polling one busy socket costs less than a callback from each.
    while _drop_idle(busy) and loop.time() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(min(_POLL_INTERVAL_S, deadline - loop.time()))
    # An earlier deadline replaces a later one, so this only moves the closes forward.
    await _announce_close(draining, loop.time(), window_s)


async def _announce_close(
    draining: Sequence[SubscriberSocket], begin: float, window_s: float
) -> None:
    """
    Call `drain` of each socket, with deadlines that are spread over *window_s* after *begin*.

    Yields to the event loop after every `SOCKETS_PER_TURN` sockets.
    """
    step_s = window_s / max(1, len(draining))
    for number, socket in enumerate(draining, start=1):
        socket.drain(
            CloseReason.DRAINED,
            close_at=begin + step_s * number,
            reconnect_after_ms=reconnect_after_ms(),
        )
        if number % SOCKETS_PER_TURN == 0:
            await asyncio.sleep(0)


def _drop_idle(sockets: list[SubscriberSocket]) -> bool:
    """Remove idle sockets from the end of the list; return True if a busy one is left."""
    # Only the last one is examined: the others matter once it is idle.
    while sockets and not sockets[-1].is_waited_for:
        sockets.pop()
    return bool(sockets)


class MaxConnectionAge:
    """
    Drain each socket when it reaches *max_age_s*, or up to 20 % earlier.

    One timer serves all sockets. Each socket is in the set of the second in which it is due.

    Args:
        max_age_s: 0 is no limit.
        in_flight_s: Time for a client to acknowledge its deliveries; then its socket closes.
        random: Returns a number in [0, 1).
    """

    def __init__(
        self,
        max_age_s: float,
        *,
        in_flight_s: float,
        random: Callable[[], float] = random.random,
    ) -> None:
        self._max_age_s = max_age_s
        self._in_flight_s = in_flight_s
        self._random = random
        self._due_by_second: dict[int, set[SubscriberSocket]] = {}
        """The sockets by the second, in the event loop's time, in which they are due."""
        self._last_second = 0
        """The last second whose sockets are drained."""
        self._timer: asyncio.TimerHandle | None = None

    def schedule_drain(self, socket: SubscriberSocket) -> None:
        """Drain *socket* at its age limit; `cancel_drain` cancels that."""
        if not self._max_age_s:
            return
        loop = asyncio.get_running_loop()
        now = loop.time()
        # Sockets opened together, as after a restart, must not reconnect together again.
        socket.max_age_due = int(now + self._max_age_s * (1 - _JITTER * self._random()))
        if self._timer is not None:
            # A processed second is not processed again.
            socket.max_age_due = max(socket.max_age_due, self._last_second + 1)
        self._due_by_second.setdefault(socket.max_age_due, set()).add(socket)
        if self._timer is None:
            self._last_second = min(int(now), socket.max_age_due) - 1
            self._schedule(loop)

    def cancel_drain(self, socket: SubscriberSocket) -> None:
        """Do not drain *socket* for its age; idempotent."""
        due = self._due_by_second.get(socket.max_age_due)
        if due is not None:
            due.discard(socket)
            if not due:
                del self._due_by_second[socket.max_age_due]

    def stop(self) -> None:
        """Drain no more sockets for their age, nor those added later."""
        self._due_by_second.clear()
        self._max_age_s = 0.0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _schedule(
        self, loop: asyncio.AbstractEventLoop, delay_s: float = _TIMER_INTERVAL_S
    ) -> None:
        self._timer = loop.call_later(delay_s, self._drain_due)

    def _drain_due(self) -> None:
        """Drain due sockets, at most `SOCKETS_PER_TURN` per iteration of the event loop."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        drained = 0
        while self._last_second < int(now):
            due = self._due_by_second.get(self._last_second + 1, set())
            while due and drained < SOCKETS_PER_TURN:
                drained += 1
                self._drain(due.pop(), now)
            if due:
                # Other callbacks run first; then the same second continues.
                self._schedule(loop, 0)
                return
            self._last_second += 1
            self._due_by_second.pop(self._last_second, None)
        self._timer = None
        if self._due_by_second:
            self._schedule(loop)

    def _drain(self, socket: SubscriberSocket, now: float) -> None:
        socket.drain(
            CloseReason.AGED,
            close_at=now + self._in_flight_s,
            reconnect_after_ms=reconnect_after_ms(),
        )


_MAX_CACHED = 1_024
_MAX_QUERY_BYTES = 512
"""Maximum size of a cached query; bounds the cache's memory."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SubscribeParams:
    """The options that follow from a query of GET /sub; sockets with equal queries share them."""

    request: SubscribeRequest
    session: SessionOptions
    session_with_secret: SessionOptions
    """The same, with `has_secret`: the upgrade or --auth-anonymous brought a secret."""
    subscription: SubscriptionOptions
    """Without a secret, and with an empty channel if the client named none."""


class SubscribeParamsCache:
    """
    Cache the parameters of each query, since all clients of an application send the same one.

    *read* parses a query; it raises InvalidRequest for an invalid one, which is not cached.
    """

    def __init__(self, read: Callable[[bytes], SubscribeParams]) -> None:
        self._read = read
        self._params: dict[bytes, SubscribeParams] = {}

    def __len__(self) -> int:
        """Return the number of cached queries."""
        return len(self._params)

    def find(self, raw_query: bytes) -> SubscribeParams:
        """Return the parameters of *raw_query*; raises InvalidRequest if it is invalid."""
        params = self._params.get(raw_query)
        if params is None:
            params = self._read(raw_query)
            # Not `lru_cache`: a client could fill it with queries of any length.
            if len(raw_query) <= _MAX_QUERY_BYTES:
                # The oldest entry goes, used or not: dicts keep the order of insertion.
                if len(self._params) >= _MAX_CACHED:
                    del self._params[next(iter(self._params))]
                self._params[raw_query] = params
        return params


logger = get_logger()

OUTPUT_BUFFER_TIMEOUT_MS = 25
"""
The `output_buffer_timeout` of IDENTIFY; nsqd's default would delay a single message by 250 ms.

25 ms is the least that nsqd accepts by default (--min-output-buffer-timeout).
"""

_BY_CLIENT = "client"
_CLOSED_SOCKETS = fast_counter(
    "sockets_closed_total",
    "WebSocket connections closed, by the gateway's close code, or by the client.",
    ["code"],
    zeros=[*((str(int(code)),) for code in (*CloseCode, ABNORMAL)), (_BY_CLIENT,)],
)
_OPEN_SOCKETS = gauge("sockets_open", "Open WebSocket connections.")
_OPEN_VIEWERS = gauge("viewers_open", "Open WebSocket connections without a channel.")


@dataclass(frozen=True, kw_only=True)
class SubscribeOptions:
    """The services and limits of the endpoint; `SessionOptions` explains those per socket."""

    discovery: Discovery
    """Finds nsqds; the caller starts and stops it."""
    publishing: SocketPublishing
    """Publishes for PUB, DPUB and MPUB commands."""
    channel_monitor: ChannelMonitor | None = None
    """Reports paused and deleted channels; None: nobody does. The caller stops it."""
    connection: ConnectionOptions = field(default_factory=ConnectionOptions)
    """The options of all connections to nsqd; a client's request may override some."""
    limits: Limits = field(default_factory=Limits)
    """nsqd's limits, which the gateway checks before nsqd does."""
    origins: OriginPolicy = field(default_factory=OriginPolicy)
    access: AccessPolicy = field(default_factory=AccessPolicy)
    max_sockets: int = 1_000
    max_sockets_per_address: int = 0
    """0 is no limit."""
    max_sockets_per_secret: int = 0
    """0 is no limit."""
    max_in_flight_limit: int = 2_500
    socket_buffer_bytes: int = 8 * 1_048_576
    sockets_buffer_bytes: int = 512 * 1_048_576
    slow_consumer_s: float = 30.0
    broker_outage_s: float = 300.0
    command_rate_limit: int = 10_000
    drain_in_flight_s: float = 10.0
    """Time for clients to acknowledge their deliveries during a drain."""
    socket_max_age_s: float = 0.0
    """0 is no limit."""
    tracing: Tracing | None = None
    """None if deliveries are not traced."""
    files: OpenFilesBudget = field(default_factory=OpenFilesBudget)
    files_per_consumer: Callable[[], int] = lambda: 1
    """Returns the number of connections to nsqd of one consumer."""
    pulls: PullLimits = field(default_factory=PullLimits)
    leases: LeaseIssuer = field(default_factory=LeaseIssuer)


class _CheckedUpgrade(NamedTuple):
    """What is known of an upgrade that has passed all checks that need no connection to nsqd."""

    principal: Principal | None
    """None if the client has to send AUTH."""
    caller: Hashable | None
    """The key under which the limits count the client; None before its AUTH."""
    params: SubscribeParams
    subprotocol: str | None


class SubscribeEndpoint:
    """Handle the upgrades of /sub, and keep the registry of open sockets."""

    def __init__(self, options: SubscribeOptions) -> None:
        self._options = options
        self._limits = ConnectionLimits(
            options.max_sockets,
            limit_per_address=options.max_sockets_per_address,
            limit_per_secret=options.max_sockets_per_secret,
        )
        self._consumers = 0
        """Number of sockets with a consumer of their own, those being opened included."""
        self._callers: dict[object, Hashable] = {}
        """The key under which each socket counts in the limits; only sockets with a secret."""
        self._sockets: set[SubscriberSocket] = set()
        self._params_cache = SubscribeParamsCache(self._read)
        upstream = UpstreamContext(
            discovery=options.discovery,
            error_cache=ErrorCache(),
            # With an access file, nsqd's auth server is no authority of its own: `AccessExpiry`.
            reauthenticator=Reauthenticator(options.access.reauth_interval_s, random=random.random)
            if options.access.control is None
            else None,
            channel_monitor=options.channel_monitor,
            tracing=options.tracing,
        )
        self.pulls = Pulls(
            PullContext(
                upstream=upstream,
                options_of=lambda topic, channel: self._subscription(topic, channel, 0),
                access=options.access,
                publishing=options.publishing,
                issuer=options.leases,
                limits=options.pulls,
                check_files=lambda: self._check_files(options.files_per_consumer()),
            )
        )
        """The consumers of POST /pull."""
        share = options.access.unauthenticated_share
        self._context = SubscribeContext(
            registry=self,
            upstream=upstream,
            fanouts=FanoutRegistry(
                upstream, self._subscription, max_in_flight=options.max_in_flight_limit
            ),
            access=options.access,
            unauthenticated=UnauthenticatedLimit(max(1, int(options.max_sockets * share))),
            publishing=options.publishing,
            buffer=SocketsBuffer(options.sockets_buffer_bytes, lambda: self._consumers),
        )
        self._max_age = MaxConnectionAge(
            options.socket_max_age_s, in_flight_s=options.drain_in_flight_s
        )
        control = options.access.control
        self._expiry = None if control is None else AccessExpiry(control)
        self._is_draining = False
        self.closed_in_drain = 0
        """Number of sockets closed since the drain began."""
        self._requeued_on_close = 0
        """Number of messages requeued by sockets that were closed in the drain."""
        self._all_closed = asyncio.Event()

    # Before the upgrade

    async def accept(self, upgrade: Upgrade) -> Accepted:
        """
        Check the upgrade, subscribe at nsqd, and return the new socket as the WebSocket's handler.

        After an error or a cancellation the socket is neither counted nor subscribed.

        Raises:
            GatewayError: The upgrade is refused.
        """
        checked = self._check(upgrade)
        caller = checked.caller
        is_viewer = checked.params.request.is_viewer
        # Counted before the first await, or upgrades in parallel could exceed the limits.
        self._limits.acquire(upgrade.peer, caller)
        self._consumers += not is_viewer
        try:
            admission = await self._open(upgrade, checked)
        except BaseException:  # a cancellation, too: the client disconnected
            self._limits.release(upgrade.peer, caller)
            self._consumers -= not is_viewer
            raise
        if caller is not None:
            self._callers[admission.handler] = caller
        return admission

    def refuse(self, upgrade: Upgrade) -> HttpResponse | None:
        """
        Return the response that would refuse *upgrade*; None if only nsqd could refuse it.

        A page can request it with an ordinary GET, because browsers hide the response to a failed
        upgrade from scripts.
        """
        try:
            self._check(upgrade)
        except GatewayError as error:
            return self._answer(error, request_id_from(upgrade.headers))
        return None

    def _check(self, upgrade: Upgrade) -> _CheckedUpgrade:
        """Check *upgrade* without side effects; raises GatewayError if it is refused."""
        self._refuse_when_draining()
        entry, subprotocols = take_subprotocol_secret(upgrade.subprotocols)
        secret_sent = single_secret(bearer_secret(authorization_values(upgrade.headers)), entry)
        principal = None
        caller: Hashable | None = secret_sent
        try:
            principal = self._options.access.identify(secret_sent)
            if principal.identity is not None:
                caller = principal.quota_key
        except AuthRequired:
            # A browser can send it only in a frame.
            if not upgrade.has_commands:
                raise
        self._limits.check(upgrade.peer, caller)
        self._options.origins.check(*origins_and_host(upgrade.headers), is_secure=upgrade.is_secure)
        params = self._params_cache.find(upgrade.query)
        if principal is not None:
            check_subscription(principal, params.session)
        checked = _CheckedUpgrade(
            principal=principal,
            caller=caller,
            params=params,
            subprotocol=choose_subprotocol(subprotocols),
        )
        is_viewer = params.request.is_viewer
        self._check_files(0 if is_viewer else self._options.files_per_consumer())
        return checked

    def _check_files(self, files: int) -> None:
        """Raise LimitReached if a socket, or a pull, that needs *files* more exceeds the limit."""
        if not self._options.files.has_files_for_socket(files):
            text = "too many files are open in this gateway for one more socket; try again later"
            raise LimitReached(text, OPEN_FILES)

    @property
    def socket_count(self) -> int:
        """Number of sockets, those being opened included."""
        return len(self._limits)

    @property
    def nsqd_connections(self) -> int:
        """Estimated number of connections to nsqd of all sockets, those being opened included."""
        consumers = self._consumers + len(self._context.fanouts) + len(self.pulls)
        return consumers * self._options.files_per_consumer()

    async def _open(self, upgrade: Upgrade, checked: _CheckedUpgrade) -> Accepted:
        """Create the socket, and subscribe it, or make it wait for AUTH; raises GatewayError."""
        principal = checked.principal
        kind = ViewerSocket if checked.params.request.is_viewer else SubscriberSocket
        socket = kind(_socket_options(checked.params, upgrade, principal), self._context)
        try:
            if principal is None:
                socket.wait_for_auth()
            else:
                await socket.open(principal, may_wait=upgrade.has_commands)
            # A drain that began meanwhile has not seen this socket.
            self._refuse_when_draining()
        except BaseException:
            await socket.release()
            raise
        return Accepted(socket, checked.subprotocol, socket.principal.span_attributes)

    def _refuse_when_draining(self) -> None:
        if self._is_draining:
            text = "this gateway is shutting down; connect again, to another one"
            raise LimitReached(text, "draining")

    def refusal(self, error: BaseException, request_id: str) -> HttpResponse:
        """Return the response that refuses an upgrade because of *error*, and log it."""
        if not isinstance(error, GatewayError):
            logger.error("subscriber failed", request_id=request_id, exc_info=error)
            return problem_response(error, request_id)
        logger.info("subscriber refused", request_id=request_id, reason=str(error))
        return self._answer(error, request_id)

    def _answer(self, error: GatewayError, request_id: str) -> HttpResponse:
        if self._is_draining and isinstance(error, LimitReached):
            return render_problem(DRAINING, str(error), request_id)
        return problem_response(error, request_id)

    def use_leases(self, socket: SubscriberSocket, stream: EventStream) -> None:
        """Let the client of *socket*, which is served by *stream*, answer by leases."""
        if socket.is_auto_ack:
            return
        issuer = self._options.leases
        number = self.pulls.add_holder(stream)
        writer = issuer.writer(number, socket.principal)
        socket.use_leases(
            lambda delivery_id, left_s: writer.write(
                [delivery_id], time.time_ns() // 1_000_000 + int(left_s * 1000)
            )[0]
        )
        stream.on_ended = partial(self.pulls.remove_holder, number)

    # Parameters

    def _read(self, raw_query: bytes) -> SubscribeParams:
        """Return the parameters of *raw_query*; raises InvalidRequest if it is invalid."""
        options = self._options
        request = parse_subscribe_request(
            raw_query, max_in_flight_limit=options.max_in_flight_limit, limits=options.limits
        )
        session = SessionOptions(
            topic=request.topic,
            channel=request.channel or "",
            # Viewers share one window of the maximum size.
            max_in_flight=(
                options.max_in_flight_limit if request.is_viewer else request.max_in_flight
            ),
            max_in_flight_limit=options.max_in_flight_limit,
            is_auto_ack=request.is_auto_ack,
            requeue_on_close_ms=request.requeue_on_close_ms,
            buffer_bytes=options.socket_buffer_bytes,
            slow_consumer_s=options.slow_consumer_s,
            broker_outage_s=options.broker_outage_s,
            is_viewer=request.is_viewer,
            max_attempts=request.max_attempts,
            limits=options.limits,
            command_rate_limit=options.command_rate_limit,
            renews_secret=options.access.control is not None,
            observer=SESSION_METRICS,
        )
        return SubscribeParams(
            request=request,
            session=session,
            session_with_secret=replace(session, has_secret=True),
            subscription=self._subscription(
                request.topic,
                request.channel or "",
                request.sample_rate,
                msg_timeout_ms=request.msg_timeout_ms,
            ),
        )

    def _subscription(
        self, topic: str, channel: str, sample_rate: int, *, msg_timeout_ms: int = 0
    ) -> SubscriptionOptions:
        """
        Return the options for subscribing to *topic* and *channel* at nsqd, without a secret.

        A *msg_timeout_ms* of 0 is nsqd's default, a *sample_rate* of 0 is all messages.
        """
        options = self._options
        offer = msgspec.structs.replace(
            options.connection.offer,
            output_buffer_timeout=OUTPUT_BUFFER_TIMEOUT_MS,
            msg_timeout=msg_timeout_ms,
            sample_rate=sample_rate,
        )
        # nsqd deletes an ephemeral channel with its last consumer: reconnecting recreates it.
        asks = options.channel_monitor is not None and not is_ephemeral(channel)
        return SubscriptionOptions(
            topic=topic,
            channel=channel,
            connection=replace(options.connection, offer=offer, secret=None),
            is_gone=options.channel_monitor.is_gone
            if options.channel_monitor is not None and asks
            else None,
        )

    # The sockets

    def on_socket_open(self, socket: SubscriberSocket) -> None:
        """Register *socket*, whose upgrade is complete, for drains and its maximum age; log it."""
        self._sockets.add(socket)
        self._max_age.schedule_drain(socket)
        if self._expiry is not None:
            self._expiry.watch(socket)
        OPENED.counts[()] += 1
        _OPEN_SOCKETS.set(len(self._sockets))
        if socket.is_viewer:
            _OPEN_VIEWERS.inc()
        logger.info(
            "subscriber connected",
            request_id=socket.request_id,
            topic=socket.topic,
            channel=socket.channel,
            client=socket.peer,
            **socket.log_fields,
            **trace_fields(socket.trace_id),
        )

    def acquire_caller(self, socket: SubscriberSocket) -> None:
        """
        Count *socket* for its principal, which is known by AUTH, and watch its token.

        Raises LimitReached if too many sockets have this secret, or this identity.
        """
        caller = socket.principal.quota_key
        if caller is None:
            return
        try:
            self._limits.acquire_caller(caller)
        except LimitReached as error:
            count_socket_limit(error)
            raise
        self._callers[socket] = caller
        if self._expiry is not None:
            self._expiry.watch(socket)

    def on_socket_closed(self, socket: SubscriberSocket) -> None:
        """Deregister *socket*, stop counting it, and log its totals."""
        self._sockets.discard(socket)
        self._max_age.cancel_drain(socket)
        if self._expiry is not None:
            self._expiry.forget(socket)
        if self._is_draining:
            self.closed_in_drain += 1
            self._requeued_on_close += socket.requeued_on_close
        self._limits.release(socket.peer, self._callers.pop(socket, None))
        self._consumers -= not socket.is_viewer
        _OPEN_SOCKETS.set(len(self._sockets))
        if socket.is_viewer:
            _OPEN_VIEWERS.dec()
        _CLOSED_SOCKETS.counts[_code_label(socket),] += 1
        if not self._sockets:
            self._all_closed.set()
        logger.info(
            "subscriber disconnected",
            request_id=socket.request_id,
            topic=socket.topic,
            channel=socket.channel,
            close_code=int(socket.close_code),
            closed_by=_closed_by(socket),
            **socket.totals,
            **trace_fields(socket.trace_id),
            **socket.log_fields,
        )

    async def drain(self, window_s: float) -> None:
        """
        Drain all sockets: close them with 1012 after their clients' acknowledgments.

        New sockets are refused from now on. The closes are spread over *window_s*. Returns once all
        sockets are closed.
        """
        # First of all: a socket that is being opened checks this after it has subscribed.
        self._is_draining = True
        # A socket drained for its age would close earlier than its place in the window.
        self._max_age.stop()
        in_flight_s = self._options.drain_in_flight_s
        await asyncio.gather(
            self.pulls.drain(in_flight_s),
            drain_all(list(self._sockets), in_flight_s=in_flight_s, window_s=window_s),
        )
        # A loop, because an upgrade that was accepted before may still open its socket.
        while self._sockets:
            self._all_closed.clear()
            await self._all_closed.wait()

    @property
    def requeued_on_close(self) -> int:
        """Number of messages requeued by sockets closed in the drain and by open sockets."""
        return self._requeued_on_close + sum(socket.requeued_on_close for socket in self._sockets)

    @property
    def open_sockets(self) -> int:
        """Number of open sockets."""
        return len(self._sockets)

    @property
    def in_flight_messages(self) -> int:
        """Number of deliveries that clients have not acknowledged, and of leases."""
        return sum(socket.in_flight for socket in self._sockets) + self.pulls.lease_count


def _socket_options(
    params: SubscribeParams, upgrade: Upgrade, principal: Principal | None
) -> SocketOptions:
    """Return the options of one socket, with a random channel if the client named none."""
    secret = None if principal is None else principal.secret
    subscription = params.subscription
    if params.request.channel is None and not params.request.is_viewer:
        subscription = replace(subscription, channel=new_channel_name(), is_gone=None)
    return SocketOptions(
        session=params.session if secret is None else params.session_with_secret,
        subscription=subscription,
        peer=upgrade.peer,
        request_id=request_id_from(upgrade.headers),
        trace_id=upgrade.trace_id,
    )


def _closed_by(socket: SubscriberSocket) -> str:
    """Return which side closed *socket*; a connection lost without a close frame: the client."""
    is_lost = socket.close_code == ABNORMAL
    return _BY_CLIENT if is_lost or socket.is_closed_by_client else "gateway"


def _code_label(socket: SubscriberSocket) -> str:
    """
    Return the metric's label for the close of *socket*: the gateway's close code, or `_BY_CLIENT`.

    A client may send any code, so its code is no label: the number of labels must stay small.
    """
    return _BY_CLIENT if socket.is_closed_by_client else str(int(socket.close_code))
