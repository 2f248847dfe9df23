"""
The parent process of the workers, with the embedded broker and the other ports.

Each worker listens on the public address with a socket of its own (SO_REUSEPORT); Linux distributes
connections by a hash of their addresses (docs/decisions/0006-a-socket-for-each-worker.md). Clients
of the gateway never connect to the supervisor.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import socket
import time
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from prometheus_client.registry import Collector

from gateway.addresses import join_address, local_address
from gateway.aio import spawn
from gateway.broker.broker import Broker
from gateway.client.backoff import Backoff
from gateway.client.discovery import Discovery
from gateway.client.from_settings import (
    NsqdAccess,
    NsqdAddresses,
    read_access,
    read_admin_secret,
)
from gateway.client.nsqd_http import NsqdHttp
from gateway.errors import StartError
from gateway.lifecycle import LifecycleState, ProcessLifecycle
from gateway.listener import listen_tcp
from gateway.open_files import raise_open_files_limit
from gateway.server.access import (
    auth_server_banner,
    new_access_control,
    new_auth_server,
    start_access,
)
from gateway.server.capacity import auth_files_needed
from gateway.server.gateway import PUBLIC_NAME, check_certificate, max_answer_s, max_drain_s
from gateway.server.metrics import check_tracing
from gateway.server.runner import FORCED_STOP_S, stop_in_order
from gateway.server.service import (
    check_pages,
    log_started,
    management_hosts,
    management_listener,
    new_broker_metrics,
    start_broker,
    startup_banner,
)
from gateway.server.workers.metrics import WORKER, MergedCollector, families
from gateway.server.workers.process import WorkerConfig, WorkerProcess
from gateway.settings.serve import ServeSettings
from gateway.telemetry import REGISTRY, counter, get_logger
from gateway.web.management import ManagementApp


class SharedAddress:
    """The public address, on which each worker listens with a socket of its own."""

    def __init__(self, name: str, address: str) -> None:
        self._name = name
        self._first: socket.socket | None = None
        self.address = address
        """host:port; after `bind` with the port that the system chose for port 0."""

    def bind(self) -> None:
        """
        Listen on the address; clients that connect wait for the first worker.

        Raises:
            StartError: The address is in use, or not one of this machine.
        """
        # Bind without SO_REUSEPORT first, which fails if another gateway uses the address.
        with listen_tcp(self._name, self.address) as alone:
            host, port = alone.getsockname()[:2]
            self.address = join_address(host, port)
        self._first = self.listener()

    def listener(self) -> socket.socket:
        """Return a socket that listens on the address, a new one each time; raises StartError."""
        # The first caller gets the socket of `bind`, with the connections that wait in its backlog.
        first, self._first = self._first, None
        return first or listen_tcp(self._name, self.address, shares_port=True)

    def close(self) -> None:
        """Close the socket of `bind` if no worker has got it; idempotent."""
        if self._first is not None:
            self._first.close()
            self._first = None


logger = get_logger()

_RESTARTS = counter("worker_restarts_total", "Restarts of a worker, by worker.", [WORKER])
_SILENCES = counter(
    "worker_silences_total",
    "Requests of the supervisor without a response of the worker in time, by worker.",
    [WORKER],
)

_MIN_RESTART_DELAY_S, _MAX_RESTART_DELAY_S = 0.2, 5.0


class WorkerSlot:
    """
    Keep one worker running, from `start` to `shut_down`, with backoff between restarts.

    If a process ends after it was ready, the supervisor keeps its listening socket open, and new
    connections wait there for the next process. If a process fails to become ready, the supervisor
    closes the socket, and new connections go to the other workers.
    """

    def __init__(self, config: WorkerConfig, address: SharedAddress) -> None:
        self.number = config.worker
        self._config = config
        self._address = address
        self._listener: socket.socket | None = None
        self._process: WorkerProcess | None = None
        self._restarter: asyncio.Task[None] | None = None
        self._ready_at_s: float | None = None
        self._backoff = Backoff(
            random.random, initial_delay_s=_MIN_RESTART_DELAY_S, max_delay_s=_MAX_RESTART_DELAY_S
        )

    @property
    def pid(self) -> int | None:
        """Process id of the worker; None while no process is running."""
        return self._process.pid if self._process else None

    async def start(self) -> list[str]:
        """Start the first process; return its warnings once it is ready. Raises StartError."""
        for total in (_RESTARTS, _SILENCES):
            # Create the series with 0: Prometheus sees no increase in a series that begins with 1.
            total.labels(self.number)
        lines = await self._start()
        self._restarter = spawn(f"keep worker {self.number}", self._run())
        return lines

    async def request(self, name: str, timeout_s: float, **more: object) -> Any | None:  # noqa: ANN401 - as JSON
        """Ask the worker as `WorkerProcess.request` does; None if no answer comes."""
        result = await self._process.request(name, timeout_s, **more) if self._process else None
        if result is None:
            _SILENCES.labels(self.number).inc()
        return result

    def shut_down(self) -> None:
        """Request that the process drains and stops; do not restart it."""
        self._stop_restarting()
        if self._process is not None:
            self._process.shut_down()

    def force(self) -> None:
        """Request that the process stops at once; do not restart it."""
        self._stop_restarting()
        if self._process is not None:
            self._process.force()

    def kill(self) -> None:
        """Kill the process with SIGKILL; do not restart it."""
        self._stop_restarting()
        if self._process is not None:
            self._process.kill()

    async def wait(self) -> None:
        """Wait for the end of the process, after `shut_down`, `force` or `kill`."""
        # Wait for the cancelled restarter first: until it has ended, it may still set `_process`.
        if self._restarter is not None:
            await asyncio.wait({self._restarter})
        if self._process is not None:
            await self._process.wait()
            self._process = None

    def _stop_restarting(self) -> None:
        # Linux distributes connections to every listening socket. As long as the supervisor's copy
        # is open, this socket gets connections that no process accepts.
        self._close_listener()
        if self._restarter is not None:
            self._restarter.cancel()

    def _close_listener(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    async def _start(self) -> list[str]:
        if self._listener is None:
            self._listener = self._address.listener()
        self._process = await WorkerProcess.start(self._config, self._listener)
        lines = await self._process.ready()
        self._ready_at_s = time.monotonic()
        logger.info("worker ready", worker=self.number, pid=self._process.pid)
        return lines

    async def _run(self) -> None:
        while True:
            if self._process is not None:
                status = await self._process.wait()
                self._process = None
                # Only the time after `ready` counts: a slow failure must not reset the backoff.
                if self._ready_at_s is not None:
                    self._backoff.reset_after(time.monotonic() - self._ready_at_s)
                    self._ready_at_s = None
                logger.warning("worker ended", worker=self.number, status=status)
            delay_s = self._backoff.next_delay_s()
            await asyncio.sleep(delay_s)
            # Count attempts: a worker that fails at every start must show in the metric, too.
            _RESTARTS.labels(self.number).inc()
            try:
                await self._start()
            except StartError as error:
                # After a crash the listener stays open: new connections wait in its backlog for the
                # restart. After a failed start close it, so that other workers get them.
                self._close_listener()
                logger.warning("worker failed to start", worker=self.number, error=str(error))


T = TypeVar("T")

SUPERVISOR = "supervisor"
"""Value of the label `WORKER` for the supervisor's own metrics."""

_STATE_TIMEOUT_S = 0.5
"""Less than the default timeout of Kubernetes probes, 1 s."""
_METRICS_TIMEOUT_S = 2.0
_ACK_TIMEOUT_S = 0.9
"""Less than another replica waits."""
_CLOSING_S = 10.0
"""Time for a worker to disconnect from nsqd, after its drain and its last responses."""
_STOP_S = FORCED_STOP_S + 1.0
"""Time for a forced shutdown of workers, which abort connections after `FORCED_STOP_S`."""


class Supervisor:
    """The service of `nsq-gateway serve --workers N`, N above 1."""

    def __init__(self, settings: ServeSettings) -> None:
        self._settings = settings
        self._lifecycle = ProcessLifecycle()
        self._shared = SharedAddress(PUBLIC_NAME, settings.listen)
        self._management = management_listener(settings)
        self._access = new_access_control(settings)
        self._auth_server = new_auth_server(settings, self._access)
        self._broker: Broker | None = None
        self._broker_metrics = new_broker_metrics(settings)
        self._discovery: Discovery | None = None
        self._nsqd_http: NsqdHttp | None = None
        """For the metrics of the nsqds; the workers have their own."""
        self._slots: list[WorkerSlot] = []

    @property
    def address(self) -> str:
        """host:port of the workers, once started."""
        return self._shared.address

    @property
    def max_shutdown_s(self) -> float:
        """Longest time that a drain and a stop take."""
        return _longest_drain_s(self._settings) + _STOP_S

    @property
    def management_address(self) -> str:
        """host:port of the management port, once started."""
        return self._management.address

    @property
    def auth_address(self) -> str | None:
        """host:port of the auth server, once started; None if there is none."""
        return None if self._auth_server is None else self._auth_server.address

    async def start(self) -> list[str]:
        """
        Start everything; return the lines of the startup banner.

        Raises:
            SettingsError: A file named by the settings is invalid.
            StartError: Listening on an address failed, or a worker did not start; everything is
                stopped again.
        """
        try:
            access = read_access(self._settings)
            # Only the workers use this secret; read it here so that an error ends the start.
            read_admin_secret(self._settings)
            check_pages(self._settings)
            check_certificate(self._settings)
            check_tracing(self._settings)
            if self._access is not None:
                self._access.load()
            self._shared.bind()
            self._management.bind()
            if self._auth_server is not None:
                self._auth_server.bind()
            log_started(self._settings, self.address, self.management_address)
            raise_open_files_limit(_files_needed(self._settings))
            # Before the workers: /livez gets 200 and /readyz 503 while they start.
            await self._management.start(
                ManagementApp(
                    self,
                    management_hosts(self._settings),
                    broker_metrics=self._broker_metrics,
                )
            )
            # Without an auth server, only the workers use the access file.
            used_access = None if self._auth_server is None else self._access
            own_warnings = await start_access(used_access, self._auth_server)
            self._broker, nsqds, line = await start_broker(self._settings)
            await self._start_broker_metrics(nsqds, access)
            settings = _with_secret(self._settings, access)
            lease_key = secrets.token_hex(32)
            self._slots = [
                WorkerSlot(
                    WorkerConfig(
                        worker=number,
                        settings=settings,
                        nsqds=nsqds,
                        lease_key=lease_key,
                        management_address=local_address(self.management_address),
                    ),
                    self._shared,
                )
                for number in range(settings.workers)
            ]
            warnings = await _all_or_none([slot.start() for slot in self._slots])
        except BaseException:
            await self.stop()
            raise
        self._lifecycle.advance(LifecycleState.READY)
        lines = dict.fromkeys(line for lines in (own_warnings, *warnings) for line in lines)
        return [
            line,
            *lines,
            *startup_banner(self._settings, self.address, self.management_address),
            *auth_server_banner(self._auth_server),
        ]

    async def _start_broker_metrics(self, nsqds: NsqdAddresses, access: NsqdAccess) -> None:
        if self._broker_metrics is None:
            return
        discovery = self._discovery = Discovery((), access.lookup)
        await discovery.start()
        http = self._nsqd_http = NsqdHttp(nsqds.http, discovery)
        await http.start()
        self._broker_metrics.start(http)

    # The status source of the management port

    async def describe_readiness(self) -> tuple[bool, str]:
        """Return whether every worker is ready, and a text that names those which are not."""
        if self._lifecycle.state is not LifecycleState.READY:
            return False, self._lifecycle.state.value
        states = await self._request("state", _STATE_TIMEOUT_S)
        others = [
            f"worker {number} {state or 'does not answer'}"
            for number, state in states.items()
            if state != LifecycleState.READY.value
        ]
        return not others, ", ".join(others) or LifecycleState.READY.value

    async def metrics_collector(self) -> Collector:
        """Return the metrics of the supervisor and of every worker that responds, with a label."""
        results = await self._request("metrics", _METRICS_TIMEOUT_S)
        return MergedCollector(
            {
                SUPERVISOR: families(REGISTRY),
                **{str(number): result for number, result in results.items() if result is not None},
            }
        )

    async def receive_ack(self, body: bytes, signature: str, worker: int) -> bytes | None:
        """Pass an ack on to *worker*, and return its response; None if it has none."""
        slot = next((slot for slot in self._slots if slot.number == worker), None)
        try:
            text = body.decode()
        except UnicodeDecodeError:
            return None
        if slot is None:
            return None
        result = await slot.request("ack", _ACK_TIMEOUT_S, body=text, signature=signature)
        return None if result is None else str(result).encode()

    async def _request(self, name: str, timeout_s: float) -> dict[int, Any]:
        """Send the request *name* to all workers; return each one's result, None if it is late."""
        results = await asyncio.gather(*(slot.request(name, timeout_s) for slot in self._slots))
        return {slot.number: result for slot, result in zip(self._slots, results, strict=True)}

    # Shutdown

    async def drain(self) -> None:
        """Fail readiness, and let all workers drain and stop."""
        self._lifecycle.advance(LifecycleState.DRAINING)
        for slot in self._slots:
            slot.shut_down()
        deadline_s = _longest_drain_s(self._settings)
        if not await self._wait_for_workers(deadline_s):
            logger.warning("drain timed out, closing what is left", within_s=deadline_s)

    async def stop(self) -> None:
        """Force the shutdown of workers that still run, then stop the broker; idempotent."""
        self._lifecycle.advance(LifecycleState.DRAINING)
        for slot in self._slots:
            slot.force()
        # A forced worker aborts its connections by itself. Kill only workers that hang.
        if not await self._wait_for_workers(_STOP_S):
            self.abort()
            await self._wait_for_workers(None)
        self._shared.close()
        # The broker after its clients, the workers: they requeue messages until their end.
        try:
            await stop_in_order(
                self._broker_metrics,
                self._nsqd_http,
                self._discovery,
                self._broker,
                self._auth_server,
                self._access,
                self._management,
            )
        finally:
            self._lifecycle.advance(LifecycleState.STOPPED)

    def abort(self) -> None:
        """Kill every worker that still runs."""
        for slot in self._slots:
            slot.kill()

    async def _wait_for_workers(self, timeout_s: float | None) -> bool:
        """
        Wait until all workers have ended; return False if they have not after *timeout_s*.

        None means no time limit. A timeout only ends the wait, it does not affect the workers.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.gather(*(slot.wait() for slot in self._slots))
        except TimeoutError:
            return False
        return True


def _longest_drain_s(settings: ServeSettings) -> float:
    """Return the seconds that workers have to drain, --drain-delay-s included, and to stop."""
    drain_s = settings.drain_delay_s + max_drain_s(settings)
    return drain_s + max_answer_s(settings) + _CLOSING_S


def _files_needed(settings: ServeSettings) -> dict[str, int]:
    """Return the files of this process, by setting: those of auth server and embedded broker."""
    needs = auth_files_needed(settings)
    if not settings.uses_embedded_broker:
        return needs
    return {
        **needs,
        "--max-sockets": settings.workers * settings.max_sockets,
        "--nsqd-connections": settings.workers * settings.nsqd_connections,
    }


def _with_secret(settings: ServeSettings, access: NsqdAccess) -> ServeSettings:
    """Return *settings* with the secret in place of its file, which only this process reads."""
    secret = {"auth_secret": access.secret, "auth_secret_file": None}
    return settings.model_copy(update=secret)


async def _all_or_none(starts: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Run *starts* concurrently and return their results; if one fails, cancel the others."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(start) for start in starts]
    except BaseExceptionGroup as failed:
        # The others were cancelled because of the first: callers expect it alone, not a group.
        raise failed.exceptions[0] from None
    return [task.result() for task in tasks]
