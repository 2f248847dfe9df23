"""
The planes of one process: publish and subscribe, with the public port in front.

They know nsqd by its address. Who runs a broker, and who tells how this process stands, is not
said here: `service` for one process, `workers` for several.
"""

from __future__ import annotations

import asyncio
import socket
import time
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import gateway
from gateway.addresses import is_loopback, split_address
from gateway.client.administration import Administration
from gateway.client.auth_survey import AuthSurvey
from gateway.client.batch import SIZE_BYTES
from gateway.client.channel_survey import ChannelSurvey
from gateway.client.connection import ConnectionOptions
from gateway.client.lookup import Discovery
from gateway.client.nsqd_http import NsqdHttp
from gateway.client.publisher import Publisher, PublisherOptions
from gateway.listener import HttpListener
from gateway.nsqd_access import NsqdAccess, Nsqds, read_admin_secret
from gateway.open_files import OWN_FILES, allow_open_files
from gateway.protocol.wire import Limits
from gateway.secret import Secret
from gateway.settings import ServeSettings
from gateway.settings_limits import learn_limits, settings_limits
from gateway.telemetry import get_logger
from gateway.web.admin import AdminParts, admin_router
from gateway.web.admin_access import AdminAccess
from gateway.web.app import WebParts, create_app
from gateway.web.credentials import AccessPolicy
from gateway.web.docs import docs_router
from gateway.web.health import Phase
from gateway.web.http_port import HttpPort
from gateway.web.http_protocol import HttpProtocol
from gateway.web.node_reports import Identity
from gateway.web.origins import OriginPolicy
from gateway.web.publish import PublishPlane
from gateway.web.quota import PublishQuota
from gateway.web.socket_publishing import SocketPublishing
from gateway.web.subscribe import SubscribeEndpoint, SubscribeOptions
from gateway.web.websocket_port import WebSocketPort

logger = get_logger()

PUBLIC_NAME = "the gateway (--listen)"

_DRAIN_GRACE_S = 10.0
"""What sockets get beyond the drain window: last frames, the close, leaving NSQ."""
_ANSWER_S = 1.0
"""What the answer to a publish gets beyond the publish timeout."""


def longest_drain_s(settings: ServeSettings) -> float:
    """Return when a drain is given up, counted from its begin."""
    return settings.drain_window_s + _DRAIN_GRACE_S


def longest_answer_s(settings: ServeSettings) -> float:
    """Return within which time a publish that has been taken is answered 200 or 504."""
    return settings.publish_timeout_ms / 1_000 + _ANSWER_S


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
        self.phase = Phase.STARTING
        """Where this process stands in its life."""
        self._settings = settings
        self._public = HttpListener(
            PUBLIC_NAME,
            settings.listen,
            # A publish that has been taken is never cut before its answer.
            grace_s=longest_answer_s(settings),
        )
        self._discovery: Discovery | None = None
        self._nsqd_http: NsqdHttp | None = None
        self._survey: ChannelSurvey | None = None
        self._publisher: Publisher | None = None
        self._subscribe: SubscribeEndpoint | None = None

    @property
    def address(self) -> str:
        """Where the public port is, host:port, once bound."""
        return self._public.address

    @property
    def longest_end_s(self) -> float:
        """Within how many seconds a drain and a stop are over."""
        return longest_drain_s(self._settings) + longest_answer_s(self._settings)

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
        """
        settings = self._settings
        allow_open_files(_files_of_sockets(settings, nsqds) + OWN_FILES)
        admin_secret = read_admin_secret(settings)
        discovery = self._discovery = Discovery(nsqds.tcp, access.lookup)
        await discovery.start()
        nsqd_http = self._nsqd_http = NsqdHttp(nsqds.http, discovery)
        await nsqd_http.start()
        survey = self._survey = ChannelSurvey(nsqd_http, discovery)
        limits, lines = await learn_limits(settings_limits(settings), settings.nsqd_http_address)
        limits = _limits_of_room(limits, settings)
        publisher = self._publisher = self._new_publisher(discovery, limits, access)
        lines += [f"{line}; trying again" for line in await publisher.start()]
        if not _knows_any(discovery):
            lines.append("no nsqd is known yet; publishes answer 503 until nsqlookupd names one")
        callers = _Callers(
            origins=OriginPolicy(
                settings.allow_origin, trusts_host=not is_loopback(settings.listen)
            ),
            access=AccessPolicy(
                require_auth=settings.require_auth,
                anonymous_secret=access.secret if settings.auth_anonymous else None,
                recheck_s=settings.auth_recheck_s,
            ),
        )
        plane = PublishPlane(
            publisher,
            _limits_of_callers(limits, settings),
            origins=callers.origins,
            access=callers.access,
            quota=_quota(settings),
        )
        nsq = _Nsq(discovery, survey, access.connection)
        self._subscribe = self._new_subscribe(nsq, plane, callers)
        admin = self._admin_parts(nsqd_http, discovery, publisher, admin_secret)
        app = create_app(
            WebParts(origins=callers.origins, routers=(admin_router(admin), docs_router()))
        )
        port = self._new_http_port(plane, self._subscribe)
        await self._public.start(app, http=partial(HttpProtocol, port))
        self.phase = Phase.READY
        return lines

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
        return HttpPort(
            plane,
            request_timeout_s=settings.request_timeout_s,
            keep_alive_s=settings.http_keep_alive_s,
            websockets=WebSocketPort(
                subscribe,
                max_frame_bytes=settings.max_frame_bytes,
                ping_interval_s=settings.ping_interval_s,
                ping_timeout_s=settings.ping_timeout_s,
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
                max_in_flight_limit=settings.max_in_flight_limit,
                socket_buffer_bytes=settings.socket_buffer_bytes,
                slow_consumer_s=settings.slow_consumer_s,
                broker_outage_s=settings.broker_outage_s,
                command_rate_limit=settings.command_rate_limit,
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
        self.phase = Phase.DRAINING
        if self._subscribe is None:
            return
        window_s = self._settings.drain_window_s
        try:
            async with asyncio.timeout(longest_drain_s(self._settings)):
                sockets = await self._subscribe.drain(window_s)
        except TimeoutError:
            logger.warning("drain incomplete, what is left is cut", window_s=window_s)
        else:
            logger.info("drained", sockets=sockets)

    async def stop(self) -> None:
        """Stop what has been started, the public port first; idempotent."""
        self.phase = Phase.DRAINING
        parts = (
            self._public,
            self._publisher,
            self._survey,
            self._nsqd_http,
            self._discovery,
        )
        for part in parts:
            if part is None:
                continue
            try:
                await part.stop()
            except Exception:
                # The others are to be stopped all the same.
                logger.exception("stop failed", part=type(part).__name__)

    def abort(self) -> None:
        """Cut whoever is connected still."""
        self._public.abort()
        if self._publisher is not None:
            self._publisher.abort()


def _files_of_sockets(settings: ServeSettings, nsqds: Nsqds) -> int:
    """
    Return how many files --max-sockets sockets may take here.

    Each is one, and one for every nsqd that it consumes from; of those that nsqlookupd names at
    least one is counted. A broker in this process has the other ends.
    """
    connections = max(1, len(nsqds.tcp))
    has_broker = settings.uses_embedded_broker and settings.workers == 1
    return settings.max_sockets * (1 + connections * (2 if has_broker else 1))


def _limits_of_room(limits: Limits, settings: ServeSettings) -> Limits:
    """Return *limits*, or less where nsqd takes more than may wait here."""
    most_bytes = min(settings.publish_buffer_bytes, settings.publish_buffer_per_nsqd_bytes)
    return replace(
        limits,
        max_msg_size_bytes=min(limits.max_msg_size_bytes, most_bytes - SIZE_BYTES),
        max_body_size_bytes=min(limits.max_body_size_bytes, most_bytes),
    )


def _limits_of_callers(limits: Limits, settings: ServeSettings) -> Limits:
    """Return *limits*, or less where callers are to have less."""
    most_bytes = settings.publish_body_limit_bytes or limits.max_body_size_bytes
    return replace(
        limits,
        max_msg_size_bytes=min(limits.max_msg_size_bytes, most_bytes),
        max_body_size_bytes=min(limits.max_body_size_bytes, most_bytes),
    )


def _quota(settings: ServeSettings) -> PublishQuota | None:
    """Return how much each caller may publish; None: any amount."""
    if settings.publish_rate_limit is None:
        return None
    return PublishQuota(settings.publish_rate_limit, burst=settings.publish_rate_burst)


def _knows_any(discovery: Discovery) -> bool:
    """Tell whether there is any nsqd to publish to, reachable or not."""
    watch = discovery.watch_nodes(lambda _addresses: None)
    try:
        return bool(watch.addresses)
    finally:
        watch.close()
