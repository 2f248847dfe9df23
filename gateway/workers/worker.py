"""
One worker: the planes of the gateway, on orders of the supervisor at the other end of a channel.

Its end comes from there. A signal drains it, and no signal hurries it: a terminal and a service
manager send theirs to every process, and the supervisor says the rest. When the supervisor is
gone, so is the broker, maybe, and the port is wanted: the worker ends at once.
"""

from __future__ import annotations

import asyncio
import socket

import structlog

from gateway.errors import GatewayError
from gateway.lifetime import End, ending_signals, run_until
from gateway.nsqd_access import read_access
from gateway.planes import Planes
from gateway.telemetry import REGISTRY, configure_logging, get_logger, spawn
from gateway.workers.accounts import families
from gateway.workers.channel import Channel, Message, Order, read_order

logger = get_logger()

DONE, FAILED = 0, 1


class Worker:
    """What a worker runs, and what it answers the supervisor."""

    def __init__(self, order: Order, listener: socket.socket, channel: Channel) -> None:
        self._order = order
        self._channel = channel
        self._planes = Planes(order.settings)
        self._planes.adopt(listener)

    @property
    def longest_end_s(self) -> float:
        """Within how many seconds a drain and a stop are over."""
        return self._planes.longest_end_s

    async def start(self) -> list[str]:
        """Start the planes, and tell the supervisor what there is to tell."""
        try:
            access = read_access(self._order.settings)
            lines = await self._planes.start(self._order.nsqds, access)
        except BaseException:
            await self.stop()
            raise
        self._channel.send({"ready": lines})
        return []

    async def drain(self) -> None:
        """Let every socket go within the drain window."""
        await self._planes.drain()

    async def stop(self) -> None:
        """Stop."""
        await self._planes.stop()

    def abort(self) -> None:
        """Cut whoever is connected still."""
        self._planes.abort()

    def answer(self, question: str) -> object:
        """Return where this process stands, or its metrics."""
        return families(REGISTRY) if question == "metrics" else self._planes.phase.value


async def work(end_of_channel: socket.socket) -> int:
    """Be a worker until told otherwise; return the exit status."""
    channel = await Channel.open(end_of_channel)
    try:
        message = await channel.receive()
        return DONE if message is None else await _work(message, channel)
    finally:
        await channel.close()


async def _work(message: Message, channel: Channel) -> int:
    order, listener = read_order(message)
    structlog.contextvars.bind_contextvars(worker=order.worker)
    configure_logging(order.settings.log_format, order.settings.log_level)
    worker = Worker(order, socket.socket(fileno=listener), channel)
    end = End()
    loop = asyncio.get_running_loop()
    for number in ending_signals():
        loop.add_signal_handler(number, end.ask)
    listening = spawn("listen to the supervisor", _listen(channel, worker, end))
    try:
        await run_until(end, worker, lambda _line: None)
    except GatewayError as error:
        channel.send({"failed": str(error)})
        return FAILED
    finally:
        listening.cancel()
    return DONE


async def _listen(channel: Channel, worker: Worker, end: End) -> None:
    """Answer the supervisor and do what it says, until it is gone."""
    while (message := await channel.receive()) is not None:
        if "ask" in message:
            channel.send({"id": message["id"], "answer": worker.answer(message["ask"])})
        elif "end" in message:
            end.ask()
        elif "hurry" in message:
            end.hurry()
    logger.warning("the supervisor is gone")
    end.hurry()
