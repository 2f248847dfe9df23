"""
The planes of one process: publish and subscribe, with the public port in front.

They know nsqd by its address. Who runs a broker, and who tells how this process stands, is not
said here: `service` for one process, `workers` for several.
"""

from __future__ import annotations

import asyncio
import socket
import time
from functools import partial
from typing import NamedTuple

import gateway
from gateway.addresses import is_loopback, split_address
from gateway.bounds import files_needed, limits_of_callers, limits_of_room
from gateway.certificate import Certificate
from gateway.client.administration import Administration
from gateway.client.auth_survey import AuthSurvey
from gateway.client.channel_survey import ChannelSurvey
from gateway.client.connection import ConnectionOptions
from gateway.client.lookup import Discovery
from gateway.client.nsqd_http import NsqdHttp
from gateway.client.publisher import Publisher, PublisherOptions
from gateway.drain_account import DrainAccount
from gateway.lifetime import stop_in_order
from gateway.listener import HttpListener
from gateway.nsqd_access import NsqdAccess, Nsqds, read_admin_secret
from gateway.open_files import allow_open_files
from gateway.phase import Phase, Stand
from gateway.process_account import ProcessAccount
from gateway.protocol.wire import Limits
from gateway.secret import Secret
from gateway.settings import ServeSettings
from gateway.settings_limits import learn_limits, settings_limits
from gateway.telemetry import FLUSH_S, get_logger
from gateway.web.admin import AdminParts, admin_router
from gateway.web.admin_access import AdminAccess
from gateway.web.app import WebParts, create_app
from gateway.web.credentials import AccessPolicy
from gateway.web.docs import docs_router
from gateway.web.http_port import HttpBounds, HttpPort
from gateway.web.http_protocol import HttpProtocol
from gateway.web.node_reports import Identity
from gateway.web.origins import OriginPolicy
from gateway.web.page_folder import PageFolder
from gateway.web.proxies import TrustedProxies
from gateway.web.publish import PublishPlane
from gateway.web.publish_spans import PublishSpans
from gateway.web.quota import PublishQuota
from gateway.web.socket_publishing import SocketPublishing
from gateway.web.static_files import static_files_router
from gateway.web.subscribe import SubscribeEndpoint, SubscribeOptions
from gateway.web.upgrade_spans import UpgradeSpans
from gateway.web.websocket_port import WebSocketPort

logger = get_logger()

PUBLIC_NAME = "the gateway (--listen)"

_DRAIN_GRACE_S = 10.0
"""What sockets get beyond the drain window: last frames, the close, leaving NSQ."""
_LAST_REQUEST_S = 1.0
"""What a client that publishes again and again gets to be told to go elsewhere."""
_ANSWER_S = 1.0
"""What the answer to a publish gets beyond the publish timeout."""


def longest_drain_s(settings: ServeSettings) -> float:
    """Return when a drain is given up, counted from its begin."""
    return settings.drain_in_flight_s + settings.drain_window_s + _DRAIN_GRACE_S


def longest_answer_s(settings: ServeSettings) -> float:
    """Return within which time a publish that has been taken is answered 200 or 504."""
    return settings.publish_timeout_ms / 1_000 + _ANSWER_S


def listener_certificate(settings: ServeSettings) -> Certificate | None:
    """Return the certificate of the public port, not read yet; None: there is no TLS."""
    if settings.tls_cert is None or settings.tls_key is None:
        return None
    return Certificate(settings.tls_cert, settings.tls_key, min_version=settings.tls_min_version)


def check_certificate(settings: ServeSettings) -> None:
    """See that the certificate of the public port can be used; raises SettingsError."""
    if (certificate := listener_certificate(settings)) is not None:
        certificate.check()


class _Callers(NamedTuple):
    """What callers are held to, whatever they want."""

    origins: OriginPolicy
    access: AccessPolicy


class _Nsq(NamedTuple):
    """Where nsqd is, and how it is connected to."""

    discovery: Discovery
    survey: ChannelSurvey
    connection: ConnectionOptions


class Planes:
    """Publishing and subscribing; `bind` or `adopt`, then `start`, `drain`, `stop`."""

    def __init__(self, settings: ServeSettings) -> None:
        self._stand = Stand()
        self._process = ProcessAccount()
        self._account = DrainAccount()
        self._settings = settings
        self._public = HttpListener(
            PUBLIC_NAME,
            settings.listen,
            # A publish that has been taken is never cut before its answer.
            grace_s=longest_answer_s(settings),
            certificate=listener_certificate(settings),
        )
        self._discovery: Discovery | None = None
        self._nsqd_http: NsqdHttp | None = None
        self._survey: ChannelSurvey | None = None
        self._publisher: Publisher | None = None
        self._subscribe: SubscribeEndpoint | None = None
        self._port: HttpPort | None = None

    @property
    def phase(self) -> Phase:
        """Where this process stands in its life."""
        return self._stand.phase

    @property
    def address(self) -> str:
        """Where the public port is, host:port, once bound."""
        return self._public.address

    @property
    def longest_end_s(self) -> float:
        """Within how many seconds a drain and a stop are over."""
        flush_s = FLUSH_S if self._settings.tracing else 0.0
        return longest_drain_s(self._settings) + longest_answer_s(self._settings) + flush_s

    def bind(self) -> None:
        """Take the public address; raises StartError."""
        self._public.bind()

    def adopt(self, listener: socket.socket) -> None:
        """Answer on *listener*, which listens already, in place of `bind`."""
        self._public.adopt(listener)

    async def start(self, nsqds: Nsqds, access: NsqdAccess) -> list[str]:
        """
        Start both planes for *nsqds* and those that nsqlookupd names, and open the public port.

        Returns a line for each nsqd that is not there. Who calls stops what a failed start leaves.

        Raises:
            SettingsError: The file of the administrator's secret cannot be used.
            StartError: This process may have hardly any file open.
        """
        settings = self._settings
        allow_open_files(files_needed(settings, nsqds))
        admin_secret = read_admin_secret(settings)
        discovery = self._discovery = Discovery(nsqds.tcp, access.lookup)
        await discovery.start()
        nsqd_http = self._nsqd_http = NsqdHttp(nsqds.http, discovery)
        await nsqd_http.start()
        survey = self._survey = ChannelSurvey(nsqd_http, discovery)
        limits, lines = await learn_limits(settings_limits(settings), settings.nsqd_http_address)
        limits = limits_of_room(limits, settings)
        publisher = self._publisher = self._new_publisher(discovery, limits, access)
        self._process.begin(settings, publisher)
        tracing = self._process.tracing
        lines += [f"{line}; trying again" for line in await publisher.start()]
        if not _knows_any(discovery):
            lines.append("no nsqd is known yet; publishes answer 503 until nsqlookupd names one")
        _warn_without_lock(settings, publisher)
        callers = _callers(settings, access)
        plane = PublishPlane(
            publisher,
            limits_of_callers(limits, settings),
            origins=callers.origins,
            access=callers.access,
            quota=_quota(settings),
            spans=None if tracing is None else PublishSpans(tracing),
        )
        nsq = _Nsq(discovery, survey, access.connection)
        self._subscribe = self._new_subscribe(nsq, plane, callers)
        admin = self._admin_parts(nsqd_http, discovery, publisher, admin_secret)
        app = create_app(self._web_parts(admin, callers, self._subscribe))
        port = self._port = self._new_http_port(plane, self._subscribe)
        await self._public.start(app, http=partial(HttpProtocol, port))
        self._stand.enter(Phase.READY)
        return lines

    def _web_parts(
        self, admin: AdminParts, callers: _Callers, subscribe: SubscribeEndpoint
    ) -> WebParts:
        settings = self._settings
        files = static_files_router(console=settings.console)
        return WebParts(
            origins=callers.origins,
            routers=(admin_router(admin), docs_router(), files),
            has_console=settings.console,
            page_folder=None if settings.static_dir is None else PageFolder(settings.static_dir),
            refuse_upgrade=subscribe.refuse,
        )

    def _admin_parts(
        self,
        nsqd_http: NsqdHttp,
        discovery: Discovery,
        publisher: Publisher,
        secret: Secret | None,
    ) -> AdminParts:
        require_auth = self._settings.require_auth
        return AdminParts(
            nsqds=nsqd_http,
            administration=Administration(nsqd_http, discovery),
            access=AdminAccess(
                secret,
                is_closed=lambda: require_auth or publisher.asks_for_auth,
                finds_auth=AuthSurvey(nsqd_http).finds_auth,
            ),
            identity=self._identity(),
        )

    def _new_http_port(self, plane: PublishPlane, subscribe: SubscribeEndpoint) -> HttpPort:
        settings = self._settings
        tracing = self._process.tracing
        return HttpPort(
            plane,
            proxies=TrustedProxies(settings.trusted_proxy) if settings.trusted_proxy else None,
            bounds=HttpBounds(
                request_timeout_s=settings.request_timeout_s,
                keep_alive_s=settings.http_keep_alive_s,
                response_timeout_s=settings.response_timeout_s,
                max_connections=settings.max_http_connections,
            ),
            websockets=WebSocketPort(
                subscribe,
                max_frame_bytes=settings.max_frame_bytes,
                ping_interval_s=settings.ping_interval_s,
                ping_timeout_s=settings.ping_timeout_s,
                spans=None if tracing is None else UpgradeSpans(tracing),
            ),
        )

    def _new_subscribe(
        self, nsq: _Nsq, plane: PublishPlane, callers: _Callers
    ) -> SubscribeEndpoint:
        settings = self._settings
        return SubscribeEndpoint(
            SubscribeOptions(
                discovery=nsq.discovery,
                survey=nsq.survey,
                connection=nsq.connection,
                publishing=SocketPublishing(plane.publisher, plane.callers),
                limits=plane.limits,
                origins=callers.origins,
                access=callers.access,
                max_sockets=settings.max_sockets,
                max_sockets_per_address=settings.max_sockets_per_address,
                max_sockets_per_secret=settings.max_sockets_per_secret,
                max_in_flight_limit=settings.max_in_flight_limit,
                socket_buffer_bytes=settings.socket_buffer_bytes,
                slow_consumer_s=settings.slow_consumer_s,
                broker_outage_s=settings.broker_outage_s,
                command_rate_limit=settings.command_rate_limit,
                tracing=self._process.tracing,
                drain_in_flight_s=settings.drain_in_flight_s,
                socket_max_age_s=settings.socket_max_age_s,
            )
        )

    def _identity(self) -> Identity:
        """Return what the gateway says of itself in /info."""
        hostname = self._settings.hostname or socket.gethostname()
        _, port = split_address(self.address)
        return Identity(
            version=gateway.__version__,
            broadcast_address=hostname,
            hostname=hostname,
            http_port=port,
            start_time=int(time.time()),
        )

    def _new_publisher(self, discovery: Discovery, limits: Limits, access: NsqdAccess) -> Publisher:
        settings = self._settings
        return Publisher(
            options=PublisherOptions(
                connections_per_nsqd=settings.nsqd_connections,
                timeout_ms=settings.publish_timeout_ms,
                buffer_bytes=settings.publish_buffer_bytes,
                buffer_per_nsqd_bytes=settings.publish_buffer_per_nsqd_bytes,
                max_secrets=settings.max_secrets,
                limits=limits,
                connection=access.connection,
            ),
            discovery=discovery,
        )

    async def drain(self) -> None:
        """Say "not ready", and let every socket go within the drain window."""
        self._stand.enter(Phase.DRAINING)
        if self._subscribe is None or self._port is None:
            return
        self._account.begin()
        # Who publishes on a connection that stays is told, with the next answer, to go elsewhere.
        self._port.drain()
        deadline_s = longest_drain_s(self._settings)
        try:
            async with asyncio.timeout(deadline_s):
                await self._subscribe.drain(self._settings.drain_window_s)
                await self._public.left(_LAST_REQUEST_S)
        except TimeoutError:
            logger.warning("drain incomplete, what is left is cut", within_s=deadline_s)
        finally:
            # Also when a second signal has cancelled it.
            self._account.end()
            self._account.drained = self._subscribe.departed
            self._account.cut("sockets", self._subscribe.open_sockets)

    async def stop(self) -> None:
        """Stop what has been started, the public port first; idempotent."""
        self._stand.enter(Phase.DRAINING)
        try:
            await stop_in_order(
                self._public,
                self._publisher,
                self._survey,
                self._nsqd_http,
                self._discovery,
                self._process,
            )
        finally:
            # Also when the stop itself is cut.
            self._tell_end()

    def abort(self) -> None:
        """Cut whoever is connected still; to be called during a `stop`, which then ends."""
        self._public.abort()
        if self._publisher is not None:
            self._publisher.abort()

    def _tell_end(self) -> None:
        """Stand at the end, and say what it came to; once."""
        if self.phase is Phase.STOPPED:
            return
        self._stand.enter(Phase.STOPPED)
        if self._subscribe is not None:
            self._account.handed_back = self._subscribe.handed_back
            self._account.cut("messages", self._subscribe.held_messages)
        self._account.cut("requests", self._public.cut_requests)
        self._account.tell()


def _callers(settings: ServeSettings, access: NsqdAccess) -> _Callers:
    """Return what callers are held to."""
    return _Callers(
        origins=OriginPolicy(settings.allow_origin, trusts_host=not is_loopback(settings.listen)),
        access=AccessPolicy(
            require_auth=settings.require_auth,
            anonymous_secret=access.secret if settings.auth_anonymous else None,
            recheck_s=settings.auth_recheck_s,
        ),
    )


def _quota(settings: ServeSettings) -> PublishQuota | None:
    """Return how much each caller may publish; None: any amount."""
    if settings.publish_rate_limit is None:
        return None
    return PublishQuota(settings.publish_rate_limit, burst=settings.publish_rate_burst)


def _warn_without_lock(settings: ServeSettings, publisher: Publisher) -> None:
    """Log that --require-auth keeps nobody out, where that is seen: nsqd alone knows secrets."""
    is_seen = publisher.has_open_lane and not settings.uses_embedded_broker
    if settings.require_auth and is_seen and not publisher.asks_for_auth:
        logger.warning(
            "no nsqd asks for AUTH, any secret is taken",
            advice="give every nsqd an --auth-http-address, or keep strangers out in front",
        )


def _knows_any(discovery: Discovery) -> bool:
    """Tell whether there is any nsqd to publish to, reachable or not."""
    watch = discovery.watch_nodes(lambda _addresses: None)
    try:
        return bool(watch.addresses)
    finally:
        watch.close()
