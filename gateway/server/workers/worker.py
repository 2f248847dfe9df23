"""
A worker: a gateway process that its supervisor controls through a channel.

A signal starts a drain, but a second signal does not end it early: terminals and service managers
signal every process, and only the supervisor decides. If the supervisor dies, the worker stops at
once: the embedded broker may have died too, and a new gateway needs the address.
"""

from __future__ import annotations

import asyncio
import socket

import structlog

from gateway.aio import spawn
from gateway.client.from_settings import read_access
from gateway.errors import GatewayError
from gateway.server.access import new_access_control, start_access
from gateway.server.gateway import GatewayServer, new_lease_issuer
from gateway.server.runner import Shutdown, ending_signals, run_until, stop_in_order
from gateway.server.workers.metrics import families
from gateway.server.workers.process import Message, WorkerChannel, WorkerConfig, parse_config
from gateway.telemetry import REGISTRY, configure_logging, get_logger, log_uncaught

logger = get_logger()

DONE, FAILED = 0, 1


class Worker:
    """The service of a worker process."""

    def __init__(
        self, config: WorkerConfig, listener: socket.socket, channel: WorkerChannel
    ) -> None:
        self._config = config
        self._channel = channel
        self._access = new_access_control(config.settings)
        leases = new_lease_issuer(
            config.settings,
            key=bytes.fromhex(config.lease_key),
            address=config.management_address,
            worker=config.worker,
        )
        self._gateway = GatewayServer(config.settings, access_control=self._access, leases=leases)
        self._gateway.adopt_socket(listener)

    @property
    def max_shutdown_s(self) -> float:
        """Longest time that a drain and a stop take."""
        return self._gateway.max_shutdown_s

    async def start(self) -> list[str]:
        """Start the gateway, and report its warnings to the supervisor."""
        try:
            access = read_access(self._config.settings)
            if self._access is not None:
                self._access.load()
            # Not the auth server, which the supervisor has.
            warnings = await start_access(self._access, None)
            lines = [*warnings, *await self._gateway.start(self._config.nsqds, access)]
        except BaseException:
            await self.stop()
            raise
        self._channel.send({"ready": lines})
        return []

    async def drain(self) -> None:
        """Fail readiness, and close sockets over --drain-window-s."""
        await self._gateway.drain()

    async def stop(self) -> None:
        """Stop the gateway."""
        await stop_in_order(self._gateway, self._access)

    def abort(self) -> None:
        """Abort every open connection."""
        self._gateway.abort()

    def get(self, name: str, message: Message) -> object:
        """Return what the supervisor asks for in *message*: ``metrics``, ``state`` or ``ack``."""
        if name == "ack":
            body = self._gateway.receive_ack(message["body"].encode(), message["signature"])
            return None if body is None else body.decode()
        return families(REGISTRY) if name == "metrics" else self._gateway.state.value


async def work(end_of_channel: socket.socket) -> int:
    """Run a worker until its shutdown; return the exit status."""
    channel = await WorkerChannel.open(end_of_channel)
    try:
        # None: the supervisor ended before it sent the configuration.
        message = await channel.receive()
        return DONE if message is None else await _work(message, channel)
    finally:
        await channel.close()


async def _work(message: Message, channel: WorkerChannel) -> int:
    config, listener = parse_config(message)
    # Each log line of this process then has the number of its worker.
    structlog.contextvars.bind_contextvars(worker=config.worker)
    configure_logging(config.settings.log_format, config.settings.log_level)
    log_uncaught()
    worker = Worker(config, socket.socket(fileno=listener), channel)
    shutdown = Shutdown()
    loop = asyncio.get_running_loop()
    # `request` for every signal: only the supervisor forces a shutdown.
    for number in ending_signals():
        loop.add_signal_handler(number, shutdown.request)
    serving = spawn("serve the supervisor", _serve(channel, worker, shutdown))
    try:
        # The supervisor prints the banner.
        await run_until(shutdown, worker, lambda _line: None)
    except GatewayError as error:
        channel.send({"failed": str(error)})
        return FAILED
    finally:
        serving.cancel()
    return DONE


async def _serve(channel: WorkerChannel, worker: Worker, shutdown: Shutdown) -> None:
    """Execute the supervisor's messages; when the supervisor ends, force the shutdown."""
    while (message := await channel.receive()) is not None:
        if "get" in message:
            channel.send({"id": message["id"], "result": worker.get(message["get"], message)})
        elif "shutdown" in message:
            shutdown.request()
        elif "force" in message:
            shutdown.force()
    # The kernel closes the channel of a supervisor that was killed, too.
    logger.warning("supervisor ended, stopping")
    shutdown.force()
