"""Worker number n: its socket, the process that it has now, and the next one when that dies."""

from __future__ import annotations

import asyncio
import random
import socket
import time
from typing import Any

from gateway.client.backoff import Backoff
from gateway.errors import StartError
from gateway.telemetry import counter, get_logger, spawn
from gateway.workers.accounts import WORKER
from gateway.workers.channel import Order
from gateway.workers.process import WorkerProcess
from gateway.workers.shared_address import SharedAddress

logger = get_logger()

_RESTARTS = counter("worker_restarts_total", "Processes that took a dead one's place.", [WORKER])
_SILENCES = counter("worker_silences_total", "Questions that a worker did not answer.", [WORKER])

_FIRST_DELAY_S, _LONGEST_DELAY_S = 0.2, 5.0


class Keeper:
    """
    Keeps one worker running, from `start` to `end`; it never gives up.

    The listening socket outlives a process that was ready: who connects meanwhile waits for the
    next one. A process that does not get that far takes it along, and newcomers go to the others.
    """

    def __init__(self, order: Order, address: SharedAddress) -> None:
        self.number = order.worker
        self._order = order
        self._address = address
        self._listener: socket.socket | None = None
        self._process: WorkerProcess | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._ready_at_s = 0.0
        self._backoff = Backoff(random.random, first_s=_FIRST_DELAY_S, ceiling_s=_LONGEST_DELAY_S)

    @property
    def pid(self) -> int | None:
        """The process that it has now; None while there is none."""
        return self._process.pid if self._process else None

    async def start(self) -> list[str]:
        """Start the first process; return what it tells once it answers. Raises StartError."""
        for total in (_RESTARTS, _SILENCES):
            # From zero on: Prometheus sees no increase where a series begins with 1.
            total.labels(self.number)
        lines = await self._start()
        self._keeping = spawn(f"keep worker {self.number}", self._keep())
        return lines

    async def ask(self, question: str, timeout_s: float) -> Any | None:  # noqa: ANN401 - as JSON
        """Return the answer of the process; None when there is none within *timeout_s*."""
        answer = await self._process.ask(question, timeout_s) if self._process else None
        if answer is None:
            _SILENCES.labels(self.number).inc()
        return answer

    def end(self) -> None:
        """Tell the process to drain and end; no other one comes after it."""
        self._stop_keeping()
        if self._process is not None:
            self._process.end()

    def hurry(self) -> None:
        """Tell it to end at once."""
        self._stop_keeping()
        if self._process is not None:
            self._process.hurry()

    def kill(self) -> None:
        """End it, whatever it does."""
        self._stop_keeping()
        if self._process is not None:
            self._process.kill()

    async def ended(self) -> None:
        """Return once there is no process any more, after `end`, `hurry` or `kill`."""
        if self._keeping is not None:
            await asyncio.wait({self._keeping})
        if self._process is not None:
            await self._process.ended()
            self._process = None

    def _stop_keeping(self) -> None:
        # Our own copy: what the worker closes is to be closed.
        self._close_listener()
        if self._keeping is not None:
            self._keeping.cancel()

    def _close_listener(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    async def _start(self) -> list[str]:
        if self._listener is None:
            self._listener = self._address.listener()
        self._process = await WorkerProcess.start(self._order, self._listener)
        lines = await self._process.ready()
        self._ready_at_s = time.monotonic()
        logger.info("worker ready", worker=self.number, pid=self._process.pid)
        return lines

    async def _keep(self) -> None:
        while True:
            if self._process is not None:
                status = await self._process.ended()
                self._process = None
                self._backoff.connection_held(time.monotonic() - self._ready_at_s)
                logger.warning("worker ended", worker=self.number, status=status)
            delay_s = self._backoff.next_delay_s()
            await asyncio.sleep(delay_s)
            _RESTARTS.labels(self.number).inc()
            try:
                await self._start()
            except StartError as error:
                self._close_listener()
                logger.warning("worker does not start", worker=self.number, error=str(error))
