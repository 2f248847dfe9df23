"""A worker's process from outside: asked, ended, reaped; and one that cannot be started."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gateway.errors import StartError
from gateway.listener import bind_tcp
from gateway.nsqd_access import Nsqds
from gateway.secret import Secret
from gateway.settings import ServeSettings
from gateway.workers.channel import Order
from gateway.workers.process import WorkerProcess
from tests.support.leftovers import nothing_left_behind

SETTINGS = ServeSettings(
    lookupd_http_address=("127.0.0.1:1",), drain_window_s=0, auth_secret=Secret(b"hunter2")
)
ORDER = Order(worker=0, settings=SETTINGS, nsqds=Nsqds((), ()))


@asynccontextmanager
async def started() -> AsyncIterator[WorkerProcess]:
    """Give a worker that answers; end it afterwards, and see that nothing is left."""
    with bind_tcp("test", "127.0.0.1:0") as listener:
        worker = await WorkerProcess.start(ORDER, listener)
        try:
            await worker.ready()
            yield worker
        finally:
            worker.kill()
            await worker.ended()


async def test_it_answers_until_it_is_told_to_end() -> None:
    """The exit status is 0, and whoever asks afterwards gets no answer at once."""
    async with nothing_left_behind(), started() as worker:
        phase = await worker.ask("phase", 5)
        command_line = await _command_line(worker.pid)
        worker.end()
        status = await worker.ended()

        assert ("ready", 0, None) == (phase, status, await worker.ask("phase", 5))
        assert b"hunter2" not in command_line


async def _command_line(pid: int) -> bytes:
    with open(f"/proc/{pid}/cmdline", "rb") as file:  # noqa: ASYNC230, PTH123 - the kernel's
        return file.read()


async def test_one_that_does_not_answer_is_asked_in_vain_and_killed() -> None:
    """The answer that comes too late is nobody's."""
    async with started() as worker:
        os.kill(worker.pid, signal.SIGSTOP)
        answer = await worker.ask("phase", 0.01)
        os.kill(worker.pid, signal.SIGCONT)
        later = await worker.ask("phase", 5)
        os.kill(worker.pid, signal.SIGSTOP)
        worker.kill()

        assert (None, "ready", -signal.SIGKILL) == (answer, later, await worker.ended())


async def test_a_question_that_is_open_when_it_dies_is_answered_with_none() -> None:
    """Nobody waits until the time is up."""
    async with started() as worker:
        os.kill(worker.pid, signal.SIGSTOP)
        worker.kill()

        assert await worker.ask("phase", 60) is None


async def test_one_that_ends_before_it_is_ready_is_a_failed_start() -> None:
    """Whoever waits for it is told, and its status can be had."""
    with bind_tcp("test", "127.0.0.1:0") as listener:
        worker = await WorkerProcess.start(ORDER, listener)
        worker.kill()

        with pytest.raises(StartError, match="worker 0: it ended before it was ready"):
            await worker.ready()
        assert -signal.SIGKILL == await worker.ended()


async def test_a_process_that_cannot_be_had_is_a_failed_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The system's reason is told, and nothing is left behind."""
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    async with nothing_left_behind():
        with (
            bind_tcp("test", "127.0.0.1:0") as listener,
            pytest.raises(StartError, match=r"worker 0 cannot be started: .*No such file"),
        ):
            await WorkerProcess.start(ORDER, listener)
