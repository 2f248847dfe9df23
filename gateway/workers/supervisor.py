"""
The parent of the workers: embedded broker, management port, and a keeper for each worker.

The workers answer on the public address; nothing that a client sends comes by here, unless it
goes to the embedded broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from prometheus_client.registry import Collector

from gateway.broker.broker import Broker
from gateway.lifetime import HURRY_S, stop_in_order
from gateway.nsqd_access import NsqdAccess, read_access, read_admin_secret
from gateway.open_files import allow_open_files
from gateway.phase import Phase, Stand
from gateway.planes import PUBLIC_NAME, check_certificate, longest_answer_s, longest_drain_s
from gateway.process_account import check_tracing
from gateway.service import (
    check_page,
    invitation,
    management_listener,
    start_broker,
)
from gateway.settings import ServeSettings
from gateway.telemetry import REGISTRY, get_logger
from gateway.web.health import ManagementApp
from gateway.workers.accounts import Merged, families
from gateway.workers.channel import Order
from gateway.workers.keeper import Keeper
from gateway.workers.shared_address import SharedAddress

logger = get_logger()

T = TypeVar("T")

SUPERVISOR = "supervisor"
"""What the label of its own samples says."""

_PHASE_TIMEOUT_S = 0.5
"""Below the second that a probe waits by default."""
_METRICS_TIMEOUT_S = 2.0
_CLOSING_S = 10.0
"""What a worker gets to leave nsqd, beyond its drain and the answers that it owes."""
_STOP_S = HURRY_S + 1.0
"""What workers get that are told to hurry: they cut what is left after `HURRY_S`."""


class Supervisor:
    """`nsq-gateway serve --workers N`, N above 1."""

    def __init__(self, settings: ServeSettings) -> None:
        self._settings = settings
        self._stand = Stand()
        self._shared = SharedAddress(PUBLIC_NAME, settings.listen)
        self._management = management_listener(settings)
        self._broker: Broker | None = None
        self._keepers: list[Keeper] = []

    @property
    def address(self) -> str:
        """Where the workers listen, host:port, once started."""
        return self._shared.address

    @property
    def longest_end_s(self) -> float:
        """Within how many seconds a drain and a stop are over."""
        return _longest_drain_s(self._settings) + _STOP_S

    @property
    def management_address(self) -> str:
        """Where the management port listens, host:port, once started."""
        return self._management.address

    async def start(self) -> list[str]:
        """
        Start everything and return what to tell the person who started it, a line each.

        Raises:
            SettingsError: A file that the settings name cannot be used.
            StartError: An address cannot be listened on, or a worker does not start; what had been
                started is stopped.
        """
        try:
            access = read_access(self._settings)
            read_admin_secret(self._settings)  # the workers do; what is wrong is said here
            check_page(self._settings)
            check_certificate(self._settings)
            check_tracing(self._settings)
            self._shared.bind()
            self._management.bind()
            allow_open_files(_files_of_broker(self._settings))
            await self._management.start(ManagementApp(self))
            self._broker, nsqds, line = await start_broker(self._settings)
            settings = _with_secret(self._settings, access)
            self._keepers = [
                Keeper(Order(worker=number, settings=settings, nsqds=nsqds), self._shared)
                for number in range(settings.workers)
            ]
            told = await _all_or_none([keeper.start() for keeper in self._keepers])
        except BaseException:
            await self.stop()
            raise
        self._stand.enter(Phase.READY)
        lines = dict.fromkeys(line for lines in told for line in lines)
        return [line, *lines, *invitation(self._settings, self.address, self.management_address)]

    # The account of the management port

    async def readiness(self) -> tuple[bool, str]:
        """Return whether every worker is ready, and which ones are not."""
        if self._stand.phase is not Phase.READY:
            return False, self._stand.phase.value
        phases = await self._ask("phase", _PHASE_TIMEOUT_S)
        others = [
            f"worker {number} {phase or 'does not answer'}"
            for number, phase in phases.items()
            if phase != Phase.READY.value
        ]
        return not others, ", ".join(others) or Phase.READY.value

    async def metrics(self) -> Collector:
        """Return the metrics of every worker that answers, and our own, labelled."""
        answers = await self._ask("metrics", _METRICS_TIMEOUT_S)
        return Merged(
            {
                SUPERVISOR: families(REGISTRY),
                **{str(number): answer for number, answer in answers.items() if answer is not None},
            }
        )

    async def _ask(self, question: str, timeout_s: float) -> dict[int, Any]:
        """Ask all workers at once; None for each that does not answer in time."""
        answers = await asyncio.gather(
            *(keeper.ask(question, timeout_s) for keeper in self._keepers)
        )
        return {
            keeper.number: answer for keeper, answer in zip(self._keepers, answers, strict=True)
        }

    # The end

    async def drain(self) -> None:
        """Say "not ready", and let the workers drain and end, all together."""
        self._stand.enter(Phase.DRAINING)
        for keeper in self._keepers:
            keeper.end()
        deadline_s = _longest_drain_s(self._settings)
        if not await self._ended_within(deadline_s):
            logger.warning("drain incomplete, what is left is cut", within_s=deadline_s)

    async def stop(self) -> None:
        """End the workers that are left, then the broker; idempotent."""
        self._stand.enter(Phase.DRAINING)
        for keeper in self._keepers:
            keeper.hurry()
        if not await self._ended_within(_STOP_S):
            self.abort()
            await self._ended_within(None)
        self._shared.close()
        self._stand.enter(Phase.STOPPED)
        await stop_in_order(self._broker, self._management)

    def abort(self) -> None:
        """End every worker that is left, whatever it does."""
        for keeper in self._keepers:
            keeper.kill()

    async def _ended_within(self, timeout_s: float | None) -> bool:
        """Return whether all workers have ended by then; None is whenever that may be."""
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.gather(*(keeper.ended() for keeper in self._keepers))
        except TimeoutError:
            return False
        return True


def _longest_drain_s(settings: ServeSettings) -> float:
    """Return what the workers get to drain and to end."""
    return longest_drain_s(settings) + longest_answer_s(settings) + _CLOSING_S


def _files_of_broker(settings: ServeSettings) -> dict[str, int]:
    """Return how many files all workers may have us open, of our own broker."""
    if not settings.uses_embedded_broker:
        return {}
    return {
        "--max-sockets": settings.workers * settings.max_sockets,
        "--nsqd-connections": settings.workers * settings.nsqd_connections,
    }


def _with_secret(settings: ServeSettings, access: NsqdAccess) -> ServeSettings:
    """Return *settings* with our own secret in them: its file is read once, for all workers."""
    secret = {"auth_secret": access.secret, "auth_secret_file": None}
    return settings.model_copy(update=secret)


async def _all_or_none(starts: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Return what each of *starts* returns; where one fails, the others have ended as well."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(start) for start in starts]
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return [task.result() for task in tasks]
