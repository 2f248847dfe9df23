"""
The composition root: builds the parts, starts them, drains them, stops them, in this order.

SIGTERM and SIGINT are taken here. The first one drains: not ready any more, sockets told and
closed over a while, publishes still answered. A second one, whenever it comes, cuts this short.
"""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

import httpx

import gateway
from gateway.broker.broker import Broker
from gateway.broker.options import BrokerOptions
from gateway.client.connection import ConnectionOptions
from gateway.client.publisher import Publisher, PublisherOptions
from gateway.listener import HttpListener
from gateway.protocol.identify import Offer
from gateway.protocol.wire import Limits
from gateway.settings import BrokerSettings, ServeSettings
from gateway.telemetry import REGISTRY, get_logger, spawn
from gateway.web.app import WebParts, create_app
from gateway.web.health import ManagementApp, Phase
from gateway.web.subscribe import SubscribeEndpoint, SubscribeOptions
from gateway.web.websocket_protocol import WebSocketProtocol

logger = get_logger()

_CONFIG_TIMEOUT_S = 2.0
_DRAIN_GRACE_S = 10.0
"""What sockets get beyond the drain window: last frames, the close, leaving NSQ."""
_HURRY_S = 2.0
"""What a stop gets after a second signal: enough to hand messages back, where nsqd answers."""
_ANSWER_S = 1.0
"""What the answer to a publish gets beyond the publish timeout."""
_NS_PER_MS = 1_000_000


class Service:
    """`nsq-gateway serve`: the gateway, with its embedded broker where no nsqd is named."""

    def __init__(self, settings: ServeSettings) -> None:
        self._settings = settings
        self._phase = Phase.STARTING
        self._public = HttpListener(
            "the gateway",
            settings.listen,
            # A publish that has been taken is answered 200 or 504 by then, never cut before.
            grace_s=settings.publish_timeout_ms / 1_000 + _ANSWER_S,
            ws=WebSocketProtocol,
            ws_max_size=settings.max_frame_bytes,
            ws_ping_interval=settings.ping_interval_s,
            ws_ping_timeout=settings.ping_timeout_s,
            ws_per_message_deflate=False,
        )
        self._management = HttpListener("the management port", settings.management_listen)
        self._broker: Broker | None = None
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
            StartError: An address cannot be listened on; what had been started is stopped.
        """
        try:
            # Both addresses first: what cannot be had should be known before anything runs.
            self._public.bind()
            self._management.bind()
            await self._management.start(ManagementApp(lambda: self._phase, REGISTRY))
            nsqds, lines = await self._start_broker()
            lines += await self._start_planes(nsqds)
        except BaseException:
            await self.stop()
            raise
        self._phase = Phase.READY
        return [*lines, *self._invitation()]

    async def _start_broker(self) -> tuple[Sequence[str], list[str]]:
        """Return the addresses of the nsqd to use, and a line that says which they are."""
        settings = self._settings
        if not settings.uses_embedded_broker:
            nsqds = settings.nsqd_tcp_address
            return nsqds, [f"nsq-gateway {gateway.__version__} with nsqd at {', '.join(nsqds)}"]
        self._broker = Broker(
            BrokerOptions(
                tcp_address=settings.broker_tcp_address,
                http_address=settings.broker_http_address,
                limits=settings_limits(settings),
            )
        )
        await self._broker.start()
        tcp, http = self._broker.tcp_address, self._broker.http_address
        line = (
            f"nsq-gateway {gateway.__version__} with its embedded broker "
            f"(in memory; TCP {tcp}, HTTP {http})"
        )
        return [tcp], [line]

    async def _start_planes(self, nsqds: Sequence[str]) -> list[str]:
        """Start publishing and subscribing; return a line for each nsqd that is not there."""
        settings = self._settings
        limits, lines = await learn_limits(settings_limits(settings), settings.nsqd_http_address)
        offer = Offer(
            client_id="nsq-gateway",
            hostname=socket.gethostname(),
            user_agent=f"nsq-gateway/{gateway.__version__}",
            feature_negotiation=True,
            heartbeat_interval=settings.heartbeat_interval_ms,
        )
        self._publisher = Publisher(
            nsqds,
            PublisherOptions(
                connections_per_nsqd=settings.nsqd_connections,
                timeout_ms=settings.publish_timeout_ms,
                buffer_bytes=settings.publish_buffer_bytes,
                limits=limits,
                connection=ConnectionOptions(offer=offer),
            ),
        )
        unreachable = await self._publisher.start()
        lines += [f"{line}; trying again, publishes answer 503 meanwhile" for line in unreachable]
        self._subscribe = SubscribeEndpoint(
            SubscribeOptions(
                nsqd_addresses=nsqds,
                limits=limits,
                allow_origin=settings.allow_origin,
                max_sockets=settings.max_sockets,
                max_in_flight_limit=settings.max_in_flight_limit,
                socket_buffer_bytes=settings.socket_buffer_bytes,
                slow_consumer_s=settings.slow_consumer_s,
                broker_outage_s=settings.broker_outage_s,
                offer=offer,
            )
        )
        parts = WebParts(
            publisher=self._publisher,
            limits=limits,
            subscribe=self._subscribe,
            allow_origin=settings.allow_origin,
        )
        await self._public.start(create_app(parts))
        return lines

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
        await self._public.stop()
        if self._publisher is not None:
            await self._publisher.stop()
        if self._broker is not None:
            await self._broker.stop()
        await self._management.stop()

    def abort(self) -> None:
        """Cut whoever is connected still."""
        self._public.abort()


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
        await self._broker.start()
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


def broker_limits(settings: BrokerSettings) -> Limits:
    """Return the limits that the broker's settings name."""
    return Limits(
        max_msg_size_bytes=settings.max_msg_size,
        max_body_size_bytes=settings.max_body_size,
        max_req_timeout_ms=settings.max_req_timeout,
        max_rdy_count=settings.max_rdy_count,
        msg_timeout_ms=settings.msg_timeout,
        max_msg_timeout_ms=settings.max_msg_timeout,
        max_heartbeat_interval_ms=settings.max_heartbeat_interval,
        max_output_buffer_size_bytes=settings.max_output_buffer_size,
        max_output_buffer_timeout_ms=settings.max_output_buffer_timeout,
    )


def settings_limits(settings: ServeSettings) -> Limits:
    """Return the limits that the settings name."""
    return Limits(
        max_msg_size_bytes=settings.max_msg_size,
        max_body_size_bytes=settings.max_body_size,
        max_req_timeout_ms=settings.max_req_timeout,
    )


async def learn_limits(
    limits: Limits, nsqd_http_addresses: Sequence[str]
) -> tuple[Limits, list[str]]:
    """
    Ask each nsqd for its limits over HTTP; the smallest of all hold, IDENTIFY does not tell them.

    Returns the limits, and a line for each nsqd that did not answer: *limits* stand for it.
    """
    learned: list[Limits] = []
    lines = []
    # A proxy in the environment is for the world outside; nsqd is not there.
    async with httpx.AsyncClient(timeout=_CONFIG_TIMEOUT_S, trust_env=False) as client:
        for address in nsqd_http_addresses:
            try:
                msg, body, req = [
                    int(
                        (await client.get(f"http://{address}/config/{option}"))
                        .raise_for_status()
                        .text
                    )
                    for option in ("max_msg_size", "max_body_size", "max_req_timeout")
                ]
            except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
                lines.append(f"nsqd at {address} does not tell its limits: {error!r}")
                learned.append(limits)
                continue
            learned.append(
                replace(
                    limits,
                    max_msg_size_bytes=msg,
                    max_body_size_bytes=body,
                    max_req_timeout_ms=req // _NS_PER_MS,
                )
            )
    if not learned:
        return limits, lines
    smallest = replace(
        limits,
        max_msg_size_bytes=min(each.max_msg_size_bytes for each in learned),
        max_body_size_bytes=min(each.max_body_size_bytes for each in learned),
        max_req_timeout_ms=min(each.max_req_timeout_ms for each in learned),
    )
    return smallest, lines
