"""`WorkerProcess`: requests, shutdown, and failed starts."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gateway.client.from_settings import NsqdAddresses
from gateway.credentials import Secret
from gateway.errors import StartError
from gateway.listener import listen_tcp
from gateway.server.workers.process import WorkerConfig, WorkerProcess
from gateway.settings.serve import ServeSettings
from tests.support.gateways.leaks import no_leaks

SETTINGS = ServeSettings(
    lookupd_http_address=("127.0.0.1:1",), drain_window_s=0, auth_secret=Secret(b"hunter2")
)
ORDER = WorkerConfig(worker=0, settings=SETTINGS, nsqds=NsqdAddresses((), ()))


@asynccontextmanager
async def started() -> AsyncIterator[WorkerProcess]:
    """Yield a running worker; afterwards end it, and check that nothing is left."""
    with listen_tcp("test", "127.0.0.1:0") as listener:
        worker = await WorkerProcess.start(ORDER, listener)
        try:
            await worker.ready()
            yield worker
        finally:
            worker.kill()
            await worker.wait()


async def test_it_answers_until_it_is_told_to_end() -> None:
    """It exits with 0; later requests return None at once."""
    async with no_leaks(), started() as worker:
        phase = await worker.request("state", 5)
        command_line = await _command_line(worker.pid)
        worker.shut_down()
        status = await worker.wait()

        assert ("ready", 0, None) == (phase, status, await worker.request("state", 5))
        assert b"hunter2" not in command_line


async def _command_line(pid: int) -> bytes:
    with open(f"/proc/{pid}/cmdline", "rb") as file:  # noqa: ASYNC230, PTH123 - the kernel's
        return file.read()


async def test_one_that_does_not_answer_is_asked_in_vain_and_killed() -> None:
    """A response after the timeout is discarded."""
    async with started() as worker:
        os.kill(worker.pid, signal.SIGSTOP)
        answer = await worker.request("state", 0.01)
        os.kill(worker.pid, signal.SIGCONT)
        later = await worker.request("state", 5)
        os.kill(worker.pid, signal.SIGSTOP)
        worker.kill()

        assert (None, "ready", -signal.SIGKILL) == (answer, later, await worker.wait())


async def test_a_question_that_is_open_when_it_dies_is_answered_with_none() -> None:
    """A pending request does not wait for its timeout."""
    async with started() as worker:
        os.kill(worker.pid, signal.SIGSTOP)
        worker.kill()

        assert await worker.request("state", 60) is None


async def test_one_that_ends_before_it_is_ready_is_a_failed_start() -> None:
    """`ready` raises StartError, and `wait` returns the exit status."""
    with listen_tcp("test", "127.0.0.1:0") as listener:
        worker = await WorkerProcess.start(ORDER, listener)
        worker.kill()

        with pytest.raises(StartError, match="worker 0: the process ended before it was ready"):
            await worker.ready()
        assert -signal.SIGKILL == await worker.wait()


async def test_a_process_that_cannot_be_had_is_a_failed_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The error contains the system's reason, and no descriptor is left open."""
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    async with no_leaks():
        with (
            listen_tcp("test", "127.0.0.1:0") as listener,
            pytest.raises(StartError, match=r"worker 0 cannot be started: .*No such file"),
        ):
            await WorkerProcess.start(ORDER, listener)
