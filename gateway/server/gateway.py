"""
The composition root of a gateway process: publishing and subscribing behind the public port.

The embedded broker and the management port are elsewhere: in `service` for one process, in
`workers` for several.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import Literal, NamedTuple, TypeAlias, get_args

import gateway
from gateway.access.control import AccessControl
from gateway.addresses import has_loopback_host, split_address
from gateway.client.admin import Administration, AuthProbe
from gateway.client.channel_monitor import ChannelMonitor
from gateway.client.connection import ConnectionOptions
from gateway.client.discovery import Discovery, TopicWatch
from gateway.client.from_settings import (
    NsqdAccess,
    NsqdAddresses,
    read_admin_secret,
    read_lease_key,
)
from gateway.client.node_drains import NodeDrains
from gateway.client.nsqd_http import NsqdHttp
from gateway.client.peek import ChannelPeek
from gateway.client.producer import Producer, ProducerOptions
from gateway.credentials import Secret
from gateway.lifecycle import LifecycleState, ProcessLifecycle
from gateway.listener import HttpListener
from gateway.open_files import (
    ClientFiles,
    OpenFilesBudget,
    OpenFilesMonitor,
    raise_open_files_limit,
)
from gateway.protocol.wire import Limits
from gateway.server.capacity import (
    files_needed,
    files_per_nsqd_connection,
    limits_of_callers,
    limits_within_buffers,
    max_secrets,
    open_files_budget,
)
from gateway.server.limits import fetch_limits, settings_limits
from gateway.server.metrics import GatewayMetrics
from gateway.server.runner import stop_in_order
from gateway.session.pulls import PullOptions
from gateway.settings.serve import ServeSettings
from gateway.telemetry import FLUSH_S, fast_counter, gauge, get_logger
from gateway.tls import Certificate
from gateway.web.admin.merge import GatewayIdentity
from gateway.web.admin.routes import AdminContext, admin_router
from gateway.web.app import AppContext, create_app
from gateway.web.auth import AccessPolicy, AdminAccess
from gateway.web.http.protocol import HttpProtocol
from gateway.web.http.publish import PublishHandler
from gateway.web.http.server_state import HttpLimits, HttpServerState
from gateway.web.metrics import SESSION_METRICS
from gateway.web.origins import OriginPolicy
from gateway.web.proxies import TrustedProxies
from gateway.web.rate_limit import PublishBuckets
from gateway.web.site.assets import static_files_router
from gateway.web.site.docs import docs_router
from gateway.web.site.static_dir import StaticDir
from gateway.web.subscribe.acks import AckForwarder, LeaseAcks
from gateway.web.subscribe.endpoint import SubscribeEndpoint, SubscribeOptions
from gateway.web.subscribe.publishing import SocketPublishing
from gateway.web.subscribe.pull import LeaseIssuer, PullLimits
from gateway.web.subscribe.pull_http import PullRoutes, StreamRoute
from gateway.web.tracing import PublishSpans, RequestSpans
from gateway.web.websocket.protocol import WebSocketServerState
from gateway.web.whoami import whoami_router

logger = get_logger()

Kind: TypeAlias = Literal["sockets", "messages", "requests"]
"""Kinds of work that a drain may abort: requests are HTTP requests without a response."""
KINDS: tuple[Kind, ...] = get_args(Kind)

_ABORTED = fast_counter(
    "drain_cut_total",
    "Sockets closed, messages not requeued and requests not answered when a drain timed out.",
    ["kind"],
    zeros=[(kind,) for kind in KINDS],
)
_DURATION = gauge("drain_duration_seconds", "Duration of the drain; 0 until it has ended.")


class DrainReport:
    """The result of a drain, for the log and the metrics."""

    def __init__(self) -> None:
        self.drained = 0
        """Sockets that closed during the drain, for whatever reason."""
        self.requeued_on_close = 0
        """Messages requeued when their sockets closed, including aborted sockets."""
        self._aborted: Counter[Kind] = Counter()
        self._began_at_s: float | None = None
        self._took_s = 0.0
        self._is_logged = False

    def start_clock(self) -> None:
        """Measure the duration of the drain from now on, even if it began before."""
        self._began_at_s = time.monotonic()

    def stop_clock(self) -> None:
        """Set the gauge ``drain_duration_seconds`` to the time since `start_clock`, if any."""
        if self._began_at_s is not None:
            self._took_s = time.monotonic() - self._began_at_s
            _DURATION.set(self._took_s)

    def add_aborted(self, kind: Kind, count: int) -> None:
        """Count *count* sockets, messages or requests (*kind*) that were aborted."""
        self._aborted[kind] += count
        _ABORTED.counts[kind,] += count

    def log(self) -> None:
        """Log the result, once; do nothing if no drain has begun."""
        if self._is_logged or self._began_at_s is None:
            return
        self._is_logged = True
        logger.info(
            "drained",
            sockets=self.drained,
            requeued_on_close=self.requeued_on_close,
            **{f"aborted_{kind}": self._aborted[kind] for kind in KINDS},
            took_s=round(self._took_s, 3),
        )


PUBLIC_NAME = "the gateway (--listen)"

_DRAIN_GRACE_S = 10.0
"""Time beyond the drain window: last frames, closing handshakes, leaving nsqd."""
_LAST_REQUEST_S = 1.0
"""Time for busy publishers to get one more response, which has ``Connection: close``."""
_ANSWER_S = 1.0
"""Time for the response to a publish beyond the publish timeout."""


def max_drain_s(settings: ServeSettings) -> float:
    """Return the time limit of a drain, in seconds, without --drain-delay-s before it."""
    return settings.drain_in_flight_s + settings.drain_window_s + _DRAIN_GRACE_S


def max_answer_s(settings: ServeSettings) -> float:
    """Return the longest time from a publish to its response, 200 or 504."""
    return settings.publish_timeout_ms / 1_000 + _ANSWER_S


def listener_certificate(settings: ServeSettings) -> Certificate | None:
    """Return the certificate of the public port, not loaded yet; None without TLS."""
    if settings.tls_cert is None or settings.tls_key is None:
        return None
    return Certificate(settings.tls_cert, settings.tls_key, min_version=settings.tls_min_version)


def check_certificate(settings: ServeSettings) -> None:
    """Check the certificate of the public port; raises SettingsError."""
    if (certificate := listener_certificate(settings)) is not None:
        certificate.check()


_EVERY_ADDRESS = ("0.0.0.0", "::")  # noqa: S104 - compared with


class _Callers(NamedTuple):
    """What callers may do: origins that browsers may come from, and the use of secrets."""

    origins: OriginPolicy
    access: AccessPolicy


class _Nsq(NamedTuple):
    """Access to nsqds: their discovery, the state of their channels, options of connections."""

    discovery: Discovery
    channel_monitor: ChannelMonitor
    connection: ConnectionOptions
    secret: Secret | None
    """The gateway's own."""

    @property
    def with_secret(self) -> ConnectionOptions:
        """Options of connections for the gateway itself."""
        return replace(self.connection, secret=self.secret)


class GatewayServer:
    """
    The public port, with publishing and subscribing.

    Call `bind` or `adopt_socket`, then `start`; to end, `drain` and `stop`.

    *access_control* identifies callers by --access-file; the caller starts and stops it. None
    without a file. *leases* has the key of leases in place of --lease-key-file, for workers.
    """

    def __init__(
        self,
        settings: ServeSettings,
        *,
        access_control: AccessControl | None = None,
        leases: LeaseIssuer | None = None,
    ) -> None:
        self._access_control = access_control
        self._leases = leases
        self._acks: LeaseAcks | None = None
        self._forwarder: AckForwarder | None = None
        self._lifecycle = ProcessLifecycle()
        self._process = GatewayMetrics()
        self._drain_report = DrainReport()
        self._settings = settings
        self._public = HttpListener(
            PUBLIC_NAME,
            settings.listen,
            # A publish that was accepted always gets its response, 200 or 504.
            grace_s=max_answer_s(settings),
            certificate=listener_certificate(settings),
        )
        self._files = OpenFilesBudget()
        self._files_monitor = OpenFilesMonitor()
        self._max_secrets = settings.max_secrets
        self._nodes: TopicWatch | None = None
        """All known nsqds."""
        self._discovery: Discovery | None = None
        self._nsqd_http: NsqdHttp | None = None
        self._channel_monitor: ChannelMonitor | None = None
        self._node_drains: NodeDrains | None = None
        self._publisher: Producer | None = None
        self._subscribe: SubscribeEndpoint | None = None
        self._port: HttpServerState | None = None

    @property
    def state(self) -> LifecycleState:
        """The state of this process."""
        return self._lifecycle.state

    @property
    def address(self) -> str:
        """host:port of the public port, once bound."""
        return self._public.address

    @property
    def nsqd_http(self) -> NsqdHttp:
        """The HTTP client of all known nsqds, from the end of `start` to the begin of `stop`."""
        assert self._nsqd_http is not None  # noqa: S101 - the caller's order
        return self._nsqd_http

    @property
    def max_shutdown_s(self) -> float:
        """Longest time that a drain, its delay included, and a stop take."""
        settings = self._settings
        flush_s = FLUSH_S if settings.tracing else 0.0
        drain_s = settings.drain_delay_s + max_drain_s(settings)
        return drain_s + max_answer_s(settings) + flush_s

    def bind(self) -> None:
        """Listen on the public address; raises StartError."""
        self._public.bind()

    def adopt_socket(self, listener: socket.socket) -> None:
        """Serve on *listener*, a listening socket, instead of calling `bind`; `stop` closes it."""
        self._public.adopt_socket(listener)

    async def start(self, nsqds: NsqdAddresses, access: NsqdAccess) -> list[str]:
        """
        Start publishing and subscribing, and open the public port.

        Return warnings, such as one for each unreachable nsqd. If it raises, the caller has to call
        `stop`.

        Raises:
            SettingsError: The file of --admin-secret-file or --lease-key-file is invalid.
            StartError: The limit of open files is too low.
        """
        settings = self._settings
        # Start each part before its users. The port is bound already: connections wait in its
        # backlog until `self._public.start`, the last step.
        self._limit_files(nsqds)
        admin_secret = read_admin_secret(settings)
        leases = self._leases or new_lease_issuer(settings)
        discovery = self._discovery = Discovery(nsqds.tcp, access.lookup)
        await discovery.start()
        # Without a callback: only the current `addresses` are read, when they are needed.
        self._nodes = discovery.watch_nodes(lambda _addresses: None)
        nsqd_http = self._nsqd_http = NsqdHttp(nsqds.http, discovery)
        await nsqd_http.start()
        channel_monitor = self._channel_monitor = ChannelMonitor(nsqd_http, discovery)
        # nsqd closes the connection when a message exceeds its limit (FatalClientErr), which fails
        # the publishes of other callers on it: the gateway has to check the limits first.
        limits, lines = await fetch_limits(settings_limits(settings), settings.nsqd_http_address)
        limits = limits_within_buffers(limits, settings)
        publisher = self._publisher = self._new_publisher(discovery, limits, access)
        self._process.start(settings, publisher)
        tracing = self._process.tracing
        lines += [f"{line}; trying again" for line in await publisher.start()]
        drains = self._node_drains = NodeDrains(
            nsqd_http,
            discovery,
            publisher.set_draining,
            poll_interval_s=settings.node_drain_poll_s,
        )
        await drains.start()
        if not self._nodes.addresses:
            lines.append("no nsqd is known yet; publishes get 503 until nsqlookupd returns one")
        _warn_auth_not_enforced(settings, publisher)
        callers = _callers(settings, access, self._access_control)
        handler = PublishHandler(
            publisher,
            limits_of_callers(limits, settings),
            origins=callers.origins,
            access=callers.access,
            rate_limit=_publish_buckets(settings),
            spans=None if tracing is None else PublishSpans(tracing),
        )
        nsq = _Nsq(discovery, channel_monitor, access.connection, access.secret)
        self._subscribe = self._new_subscribe(nsq, handler, callers, leases)
        admin = self._admin_parts(nsq, drains, publisher, admin_secret, callers.access)
        self._forwarder = AckForwarder()
        self._acks = LeaseAcks(self._subscribe.pulls, leases, self._forwarder)
        app = create_app(self._web_parts(admin, callers, self._subscribe, handler.limits))
        port = self._port = self._new_http_port(handler, self._subscribe)
        await self._public.start(app, http=partial(HttpProtocol, port))
        self._lifecycle.advance(LifecycleState.READY)
        return lines

    def _limit_files(self, nsqds: NsqdAddresses) -> None:
        """Raise the limit of open files, and set how many of them clients and secrets may use."""
        settings = self._settings
        limit = raise_open_files_limit(files_needed(settings, nsqds))
        self._files = open_files_budget(limit, settings, nsqds)
        self._files.get_client_files = self._client_files
        self._files.update_metric()
        self._files_monitor.start()
        self._max_secrets = max_secrets(limit, settings, nsqds)

    def _client_files(self) -> ClientFiles:
        """Return how many files clients use, at the public port and at nsqd."""
        port, subscribe = self._port, self._subscribe
        if port is None or subscribe is None:
            return ClientFiles(0, 0)
        sockets = subscribe.socket_count
        # `open_connections` includes WebSockets, and refused connections, which linger within a
        # limit of their own.
        connections = self._public.open_connections - len(port.refused) - sockets
        return ClientFiles(connections, sockets + subscribe.nsqd_connections)

    def _files_per_consumer(self) -> int:
        """Return how many files one consumer may use: a connection to every known nsqd."""
        # Before nsqlookupd has returned an nsqd, assume one.
        nsqds = 0 if self._nodes is None else len(self._nodes.addresses)
        return max(1, nsqds) * files_per_nsqd_connection(self._settings)

    def receive_ack(self, body: bytes, signature: str) -> bytes | None:
        """Carry out an ack that another replica has sent on; see `LeaseAcks.receive`."""
        return None if self._acks is None else self._acks.receive(body, signature)

    def _web_parts(
        self,
        admin: AdminContext,
        callers: _Callers,
        subscribe: SubscribeEndpoint,
        limits: Limits,
    ) -> AppContext:
        settings = self._settings
        assert self._acks is not None  # noqa: S101 - the caller has set it
        tracing = self._process.tracing
        spans = None if tracing is None else RequestSpans(tracing)
        routes = PullRoutes(subscribe.pulls, self._acks, callers.access, limits, spans)
        files = static_files_router(console=settings.console)
        return AppContext(
            origins=callers.origins,
            routers=(admin_router(admin), whoami_router(callers.access), docs_router(), files),
            has_console=settings.console,
            static_dir=None if settings.static_dir is None else StaticDir(settings.static_dir),
            refuse_upgrade=subscribe.refuse,
            direct={("POST", "/pull"): routes.pull, ("POST", "/ack"): routes.ack},
            stream=StreamRoute(subscribe, spans),
        )

    def _admin_parts(
        self,
        nsq: _Nsq,
        drains: NodeDrains,
        publisher: Producer,
        secret: Secret | None,
        policy: AccessPolicy,
    ) -> AdminContext:
        require_auth = self._settings.require_auth
        nsqd_http = self.nsqd_http
        return AdminContext(
            nsqds=nsqd_http,
            administration=Administration(nsqd_http, nsq.discovery),
            drains=drains,
            peek=ChannelPeek(nsqd_http, nsq.discovery, nsq.with_secret),
            access=AdminAccess(
                secret,
                # Evaluated for each request: an nsqd that connects later may require AUTH.
                is_closed=lambda: require_auth or publisher.requires_auth,
                probe_auth=AuthProbe(nsqd_http).probe_auth,
                policy=policy,
            ),
            identity=self._identity(),
            user_agent=nsq.connection.offer.user_agent,
        )

    def _new_http_port(
        self, handler: PublishHandler, subscribe: SubscribeEndpoint
    ) -> HttpServerState:
        settings = self._settings
        tracing = self._process.tracing
        return HttpServerState(
            handler,
            proxies=TrustedProxies(settings.trusted_proxy) if settings.trusted_proxy else None,
            limits=HttpLimits(
                request_timeout_s=settings.request_timeout_s,
                keep_alive_s=settings.http_keep_alive_s,
                response_timeout_s=settings.response_timeout_s,
                max_connections=settings.max_http_connections,
                files=self._files,
            ),
            websockets=WebSocketServerState(
                subscribe,
                max_frame_bytes=settings.max_frame_bytes,
                ping_interval_s=settings.ping_interval_s,
                ping_timeout_s=settings.ping_timeout_s,
                incomplete=handler.producer,
                spans=None if tracing is None else RequestSpans(tracing),
            ),
        )

    def _new_subscribe(
        self, nsq: _Nsq, handler: PublishHandler, callers: _Callers, leases: LeaseIssuer
    ) -> SubscribeEndpoint:
        settings = self._settings
        return SubscribeEndpoint(
            SubscribeOptions(
                discovery=nsq.discovery,
                channel_monitor=nsq.channel_monitor,
                connection=nsq.connection,
                publishing=SocketPublishing(handler.producer, handler.rate_limiter, callers.access),
                limits=handler.limits,
                origins=callers.origins,
                access=callers.access,
                max_sockets=settings.max_sockets,
                max_sockets_per_address=settings.max_sockets_per_address,
                max_sockets_per_secret=settings.max_sockets_per_secret,
                max_in_flight_limit=settings.max_in_flight_limit,
                socket_buffer_bytes=settings.socket_buffer_bytes,
                sockets_buffer_bytes=settings.sockets_buffer_bytes,
                slow_consumer_s=settings.slow_consumer_s,
                broker_outage_s=settings.broker_outage_s,
                command_rate_limit=settings.command_rate_limit,
                tracing=self._process.tracing,
                drain_in_flight_s=settings.drain_in_flight_s,
                socket_max_age_s=settings.socket_max_age_s,
                files=self._files,
                files_per_consumer=self._files_per_consumer,
                pulls=_pull_limits(settings),
                leases=leases,
            )
        )

    def _identity(self) -> GatewayIdentity:
        """Return what /info shows about this gateway."""
        settings = self._settings
        hostname = settings.hostname or socket.gethostname()
        host, port = split_address(self.address)
        return GatewayIdentity(
            version=gateway.__version__,
            # nsqadmin and nsq_stat connect to this address. The host name only works if the gateway
            # listens on every address.
            broadcast_address=settings.broadcast_address
            or (hostname if host in _EVERY_ADDRESS else host),
            hostname=hostname,
            http_port=settings.broadcast_http_port or port,
            start_time=int(time.time()),
        )

    def _new_publisher(self, discovery: Discovery, limits: Limits, access: NsqdAccess) -> Producer:
        settings = self._settings
        return Producer(
            options=ProducerOptions(
                connections_per_nsqd=settings.nsqd_connections,
                timeout_ms=settings.publish_timeout_ms,
                buffer_bytes=settings.publish_buffer_bytes,
                buffer_per_nsqd_bytes=settings.publish_buffer_per_nsqd_bytes,
                max_secrets=self._max_secrets,
                own_secret=access.secret,
                limits=limits,
                connection=access.connection,
            ),
            discovery=discovery,
        )

    async def drain(self) -> None:
        """Fail readiness; after --drain-delay-s, close sockets over --drain-window-s."""
        self._lifecycle.advance(LifecycleState.DRAINING)
        if self._subscribe is None or self._port is None:
            return
        self._drain_report.start_clock()
        deadline_s = max_drain_s(self._settings)
        try:
            await self._delay_drain()
            # Kept-alive connections get "Connection: close" with their next response.
            self._port.drain()
            async with asyncio.timeout(deadline_s):
                await self._subscribe.drain(self._settings.drain_window_s)
                await self._public.wait_disconnected(_LAST_REQUEST_S)
        except TimeoutError:
            logger.warning("drain timed out, closing what is left", within_s=deadline_s)
        finally:
            # Also if a second signal cancelled the drain: report what it leaves open.
            self._drain_report.stop_clock()
            self._drain_report.drained = self._subscribe.closed_in_drain
            self._drain_report.add_aborted("sockets", self._subscribe.open_sockets)

    async def _delay_drain(self) -> None:
        """Keep serving for ``--drain-delay-s``: load balancers first have to see /readyz fail."""
        delay_s = self._settings.drain_delay_s
        if not delay_s:
            return
        logger.info("not ready, draining after a delay", delay_s=delay_s)
        await asyncio.sleep(delay_s)
        # The duration of the drain excludes the delay.
        self._drain_report.start_clock()

    async def stop(self) -> None:
        """Stop every part, the public port first; idempotent."""
        self._lifecycle.advance(LifecycleState.DRAINING)
        if self._nodes is not None:
            self._nodes.close()
        try:
            # The public port before the producer: its open requests need the producer for their
            # responses. Discovery after the parts that watch nsqds with it.
            await stop_in_order(
                self._files_monitor,
                self._public,
                None if self._subscribe is None else self._subscribe.pulls,
                self._forwarder,
                self._node_drains,
                self._publisher,
                self._channel_monitor,
                self._nsqd_http,
                self._discovery,
                self._process,
            )
        finally:
            # Also if the stop is cancelled, because it took too long after an abort.
            self._finish()

    def abort(self) -> None:
        """Abort every connection; call it while `stop` is running, which then returns."""
        self._public.abort()
        if self._publisher is not None:
            self._publisher.abort()

    def _finish(self) -> None:
        """Enter STOPPED and log the result of the drain, once."""
        if self.state is LifecycleState.STOPPED:
            return
        # Only now: sockets that are aborted during the stop still requeue their messages.
        if self._subscribe is not None:
            self._drain_report.requeued_on_close = self._subscribe.requeued_on_close
            self._drain_report.add_aborted("messages", self._subscribe.in_flight_messages)
        self._drain_report.add_aborted("requests", self._public.aborted_requests)
        self._drain_report.log()
        self._lifecycle.advance(LifecycleState.STOPPED)


def new_lease_issuer(
    settings: ServeSettings, *, key: bytes | None = None, address: str = "", worker: int = 0
) -> LeaseIssuer:
    """
    Return the issuer of leases with the key of --lease-key-file, or else with *key*.

    *address* is that of the management port for processes of this machine, *worker* the number of
    a worker process. Raises SettingsError.
    """
    return LeaseIssuer(
        read_lease_key(settings) or key,
        address=settings.advertise_address or address,
        worker=worker,
    )


def _pull_limits(settings: ServeSettings) -> PullLimits:
    return PullLimits(
        max_pulls=settings.max_pulls,
        max_leases=settings.max_leases,
        max_leases_per_caller=settings.max_leases_per_caller,
        idle_s=settings.pull_idle_s,
        session=PullOptions(
            max_leases=settings.max_in_flight_limit,
            answer_bytes=settings.socket_buffer_bytes,
            buffer_bytes=settings.socket_buffer_bytes,
            linger_s=settings.pull_linger_ms / 1_000,
            observer=SESSION_METRICS,
        ),
    )


def _callers(
    settings: ServeSettings, access: NsqdAccess, control: AccessControl | None
) -> _Callers:
    """Return what callers may do according to *settings*."""
    return _Callers(
        origins=OriginPolicy(
            settings.allow_origin, trusts_host=not has_loopback_host(settings.listen)
        ),
        access=AccessPolicy(
            control=control,
            nsqd_secret=access.secret if settings.nsqd_auth == "own" else None,
            require_auth=settings.require_auth,
            anonymous_secret=access.secret if settings.auth_anonymous else None,
            reauth_interval_s=settings.auth_recheck_s,
        ),
    )


def _publish_buckets(settings: ServeSettings) -> PublishBuckets | None:
    """Return the buckets that limit publishes; None without --publish-rate-limit."""
    if settings.publish_rate_limit is None:
        return None
    return PublishBuckets(settings.publish_rate_limit, burst=settings.publish_rate_burst)


def _warn_auth_not_enforced(settings: ServeSettings, publisher: Producer) -> None:
    """Warn if --require-auth has no effect, because no nsqd requires AUTH and checks secrets."""
    # Only the response to IDENTIFY says whether an nsqd requires AUTH: without a connection it is
    # unknown. The embedded broker has a warning of its own.
    is_known = publisher.has_open_connection and not settings.uses_embedded_broker
    if settings.require_auth and is_known and not publisher.requires_auth:
        logger.warning(
            "AUTH not enforced: no nsqd requires it",
            advice="set --auth-http-address for every nsqd, or restrict access to the gateway",
        )
