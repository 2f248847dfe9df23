"""
The composition root: builds the parts, starts them, drains them, stops them, in this order.

SIGTERM and SIGINT are taken here. The first one drains: not ready any more, sockets told and
closed over a while, publishes still answered. A second one, whenever it comes, cuts this short.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Sequence
from typing import Protocol

import gateway
from gateway.broker.broker import Broker
from gateway.broker.options import BrokerOptions
from gateway.client.lookup import Discovery
from gateway.client.publisher import Publisher, PublisherOptions
from gateway.errors import StartError
from gateway.listener import HttpListener
from gateway.nsqd_access import NsqdAccess, read_access
from gateway.protocol.wire import Limits
from gateway.settings import BrokerSettings, ServeSettings
from gateway.settings_limits import broker_limits, learn_limits, settings_limits
from gateway.telemetry import REGISTRY, get_logger, spawn
from gateway.web.app import WebParts, create_app
from gateway.web.credentials import AccessPolicy
from gateway.web.health import ManagementApp, Phase
from gateway.web.subscribe import SubscribeEndpoint, SubscribeOptions
from gateway.web.websocket_protocol import WebSocketProtocol

logger = get_logger()

_DRAIN_GRACE_S = 10.0
"""What sockets get beyond the drain window: last frames, the close, leaving NSQ."""
_HURRY_S = 2.0
"""What a stop gets after a second signal: enough to hand messages back, where nsqd answers."""
_ANSWER_S = 1.0
"""What the answer to a publish gets beyond the publish timeout."""


class Service:
    """`nsq-gateway serve`: the gateway, with its embedded broker where no nsqd is named."""

    def __init__(self, settings: ServeSettings) -> None:
        self._settings = settings
        self._phase = Phase.STARTING
        self._public = HttpListener(
            "the gateway (--listen)",
            settings.listen,
            # A publish that has been taken is answered 200 or 504 by then, never cut before.
            grace_s=settings.publish_timeout_ms / 1_000 + _ANSWER_S,
            ws=WebSocketProtocol,
            ws_max_size=settings.max_frame_bytes,
            ws_ping_interval=settings.ping_interval_s,
            ws_ping_timeout=settings.ping_timeout_s,
            ws_per_message_deflate=False,
        )
        self._management = HttpListener(
            "the management port (--management-listen)", settings.management_listen
        )
        self._broker: Broker | None = None
        self._discovery: Discovery | None = None
        self._publisher: Publisher | None = None
        self._subscribe: SubscribeEndpoint | None = None

    @property
    def address(self) -> str:
        """Where the gateway listens, host:port, once started."""
        return self._public.address

    @property
    def management_address(self) -> str:
        """Where the management port listens, host:port, once started."""
        return self._management.address

    async def start(self) -> list[str]:
        """
        Start everything and return what to tell the person who started it, a line each.

        Raises:
            SettingsError: A file that the settings name cannot be used.
            StartError: An address cannot be listened on; what had been started is stopped.
        """
        try:
            # First what may not be had at all, before anything runs.
            access = read_access(self._settings)
            self._public.bind()
            self._management.bind()
            await self._management.start(ManagementApp(lambda: self._phase, REGISTRY))
            nsqds, lines = await self._start_broker()
            self._discovery = Discovery(nsqds, access.lookup)
            await self._discovery.start()
            lines += await self._start_planes(self._discovery, access)
        except BaseException:
            await self.stop()
            raise
        self._phase = Phase.READY
        return [*lines, *self._invitation()]

    async def _start_broker(self) -> tuple[Sequence[str], list[str]]:
        """Return the addresses of the nsqd to use, and a line that says which they are."""
        settings = self._settings
        if not settings.uses_embedded_broker:
            return settings.nsqd_tcp_address, [
                f"nsq-gateway {gateway.__version__} {_where(settings)}"
            ]
        broker = Broker(
            BrokerOptions(
                tcp_address=settings.broker_tcp_address,
                http_address=settings.broker_http_address,
                limits=settings_limits(settings),
            )
        )
        await _start_naming(broker, "--broker-tcp-address", "--broker-http-address")
        self._broker = broker
        tcp, http = broker.tcp_address, broker.http_address
        line = (
            f"nsq-gateway {gateway.__version__} with its embedded broker "
            f"(in memory; TCP {tcp}, HTTP {http})"
        )
        return [tcp], [line]

    async def _start_planes(self, discovery: Discovery, access: NsqdAccess) -> list[str]:
        """Start publishing and subscribing; return a line for each nsqd that is not there."""
        settings = self._settings
        limits, lines = await learn_limits(settings_limits(settings), settings.nsqd_http_address)
        self._publisher = self._new_publisher(discovery, limits, access)
        lines += [f"{line}; trying again" for line in await self._publisher.start()]
        if not _knows_any(discovery):
            lines.append("no nsqd is known yet; publishes answer 503 until nsqlookupd names one")
        policy = AccessPolicy(
            require_auth=settings.require_auth,
            anonymous_secret=access.secret if settings.auth_anonymous else None,
            recheck_s=settings.auth_recheck_s,
        )
        self._subscribe = SubscribeEndpoint(
            SubscribeOptions(
                discovery=discovery,
                limits=limits,
                allow_origin=settings.allow_origin,
                max_sockets=settings.max_sockets,
                max_in_flight_limit=settings.max_in_flight_limit,
                socket_buffer_bytes=settings.socket_buffer_bytes,
                slow_consumer_s=settings.slow_consumer_s,
                broker_outage_s=settings.broker_outage_s,
                connection=access.connection,
                access=policy,
            )
        )
        parts = WebParts(
            publisher=self._publisher,
            limits=limits,
            subscribe=self._subscribe,
            allow_origin=settings.allow_origin,
            access=policy,
        )
        await self._public.start(create_app(parts))
        return lines

    def _new_publisher(self, discovery: Discovery, limits: Limits, access: NsqdAccess) -> Publisher:
        settings = self._settings
        return Publisher(
            options=PublisherOptions(
                connections_per_nsqd=settings.nsqd_connections,
                timeout_ms=settings.publish_timeout_ms,
                buffer_bytes=settings.publish_buffer_bytes,
                max_secrets=settings.max_secrets,
                limits=limits,
                connection=access.connection,
            ),
            discovery=discovery,
        )

    def _invitation(self) -> list[str]:
        where = self.address
        return [
            f"listening on http://{where} (management: http://{self.management_address}/readyz)",
            f"publish:    curl -d 'hello' 'http://{where}/pub?topic=greetings'",
            f"subscribe:  ws://{where}/sub?topic=greetings&channel=readers",
        ]

    async def drain(self) -> None:
        """Say "not ready", and let every socket go within the drain window."""
        self._phase = Phase.DRAINING
        if self._subscribe is None:
            return
        window_s = self._settings.drain_window_s
        try:
            async with asyncio.timeout(window_s + _DRAIN_GRACE_S):
                sockets = await self._subscribe.drain(window_s)
        except TimeoutError:
            logger.warning("drain incomplete, what is left is cut", window_s=window_s)
        else:
            logger.info("drained", sockets=sockets)

    async def stop(self) -> None:
        """Stop what has been started, the broker last; idempotent."""
        self._phase = Phase.DRAINING
        parts = (self._public, self._publisher, self._discovery, self._broker, self._management)
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


class BrokerService:
    """`nsq-gateway broker`: the embedded broker alone."""

    def __init__(self, settings: BrokerSettings) -> None:
        self._broker = Broker(
            BrokerOptions(
                tcp_address=settings.tcp_address,
                http_address=settings.http_address,
                broadcast_address=settings.broadcast_address,
                limits=broker_limits(settings),
                mem_queue_size=settings.mem_queue_size,
                max_memory_bytes=settings.max_memory_bytes,
                max_connections=settings.max_connections,
                max_channel_consumers=settings.max_channel_consumers,
            )
        )

    async def start(self) -> list[str]:
        """Start, and return what to tell the person who started it; raises StartError."""
        await _start_naming(self._broker, "--tcp-address", "--http-address")
        tcp, http = self._broker.tcp_address, self._broker.http_address
        return [
            f"nsq-gateway {gateway.__version__} broker (in memory): TCP {tcp}, HTTP {http}",
            f"publish:  curl -d 'hello' 'http://{http}/pub?topic=greetings'",
        ]

    async def drain(self) -> None:
        """Nobody has to be told: clients reconnect when their connection ends."""

    async def stop(self) -> None:
        """Stop."""
        await self._broker.stop()

    def abort(self) -> None:
        """Nobody waits for long: the broker bounds its stop by itself."""


async def _start_naming(broker: Broker, *flags: str) -> None:
    """Start *broker*; a StartError names the *flags* that say where it listens."""
    try:
        await broker.start()
    except StartError as error:
        raise StartError(f"{error} with {' or '.join(flags)}") from error


def _knows_any(discovery: Discovery) -> bool:
    """Tell whether there is any nsqd to publish to, reachable or not."""
    watch = discovery.watch_nodes(lambda _addresses: None)
    try:
        return bool(watch.addresses)
    finally:
        watch.close()


def _where(settings: ServeSettings) -> str:
    """Return in words where nsqd is looked for."""
    places = []
    if settings.nsqd_tcp_address:
        places.append(f"with nsqd at {', '.join(settings.nsqd_tcp_address)}")
    if settings.lookupd_http_address:
        places.append(f"with what nsqlookupd knows at {', '.join(settings.lookupd_http_address)}")
    return " and ".join(places)


class Runnable(Protocol):
    """What a command runs until it is told to end."""

    async def start(self) -> list[str]:
        """Start, and return what to tell the person who started it."""

    async def drain(self) -> None:
        """Let those who are connected go in good order."""

    async def stop(self) -> None:
        """Let answers that have begun end, and stop."""

    def abort(self) -> None:
        """Cut what holds up a stop."""


async def run_until_signal(part: Runnable, announce: Callable[[str], None]) -> signal.Signals:
    """
    Start *part*, announce what it says, wait for SIGTERM or SIGINT, drain it and stop it.

    A second signal ends the drain, and leaves the stop `_HURRY_S`. Returns the first one; raises
    StartError.
    """
    loop = asyncio.get_running_loop()
    received: asyncio.Queue[signal.Signals] = asyncio.Queue()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, received.put_nowait, number)
    for line in await part.start():
        announce(line)
    first = await received.get()
    logger.info("stopping", signal=first.name)
    again = spawn("wait for a second signal", received.get())
    drain = spawn("drain", part.drain())
    await asyncio.wait({drain, again}, return_when=asyncio.FIRST_COMPLETED)
    drain.cancel()
    stop = spawn("stop", part.stop())
    await asyncio.wait({stop, again}, return_when=asyncio.FIRST_COMPLETED)
    if again.done():
        await asyncio.wait({stop}, timeout=_HURRY_S)
    again.cancel()
    if not stop.done():
        logger.warning("stop incomplete, what is left is cut", within_s=_HURRY_S)
        part.abort()
        return first
    await stop
    return first
