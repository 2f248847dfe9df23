"""
`nsq-gateway broker`: the embedded broker in a process of its own.

This module does not import the gateway: with FastAPI, httpx and the client the broker would start
in 1 s instead of 0.4 s.
"""

from __future__ import annotations

import gateway
from gateway.broker.broker import Broker, BrokerOptions
from gateway.errors import StartError
from gateway.server.limits import broker_limits
from gateway.server.runner import FORCED_STOP_S
from gateway.settings.serve import BrokerSettings
from gateway.telemetry import get_logger

logger = get_logger()


class BrokerService:
    """The embedded broker alone."""

    def __init__(self, settings: BrokerSettings) -> None:
        self._is_started = False
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

    @property
    def max_shutdown_s(self) -> float:
        """Longest time that a stop takes."""
        return FORCED_STOP_S

    async def start(self) -> list[str]:
        """Start; return the lines of the startup banner. Raises StartError."""
        await start_broker_with_hint(self._broker, "--tcp-address", "--http-address")
        tcp, http = self._broker.tcp_address, self._broker.http_address
        logger.info("started", version=gateway.__version__, tcp_address=tcp, http_address=http)
        self._is_started = True
        return [
            f"nsq-gateway {gateway.__version__} broker (in memory): TCP {tcp}, HTTP {http}",
            f"publish:  curl -d 'hello' 'http://{http}/pub?topic=greetings'",
        ]

    async def drain(self) -> None:
        """Do nothing: NSQ clients reconnect by themselves after `stop` closes their connections."""

    async def stop(self) -> None:
        """Stop the broker, and close its connections."""
        await self._broker.stop()
        if self._is_started:
            logger.info("stopped")

    def abort(self) -> None:
        """Do nothing: the broker itself limits how long its stop takes."""


async def start_broker_with_hint(broker: Broker, *flags: str) -> None:
    """Start *broker*; add the *flags* of its addresses to the text of a StartError."""
    try:
        await broker.start()
    except StartError as error:
        # The broker has stopped itself: `Broker.start` does so before it raises StartError.
        raise StartError(f"{error} with {' or '.join(flags)}") from error
    except BaseException:
        await broker.stop()
        raise
