"""
The gateway's programs as subprocesses, observed through their log.

They are forked from a process that has imported their modules already, because importing takes a
second for each program. Each child runs `main`.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import re
import resource
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess

from tests.support.brokers.nsqd import DaemonLog

_END_TIMEOUT_S = 60.0
_SETTINGS = "NSQ_GATEWAY_"
_EXPECTED = "broker store not writable"
"""The error that a test of a full disk causes."""
_BUG = r"Traceback|task failed|\"level\": \"(error|critical)\"|never awaited|Warning:"

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(
    [
        "gateway.cli.main",
        # The command line imports these when they are asked for.
        "gateway.cli.pub",
        "gateway.cli.sub",
        "gateway.server.workers.supervisor",
        "tests.support.gateways.programs",
    ]
)


class Program:
    """A running program and its output."""

    def __init__(self, process: ForkServerProcess, log: DaemonLog) -> None:
        assert process.pid is not None
        self.pid = process.pid
        self._process = process
        self._log = log
        self._has_ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(process.sentinel, self._on_end)

    def _on_end(self) -> None:
        asyncio.get_running_loop().remove_reader(self._process.sentinel)
        self._has_ended.set()

    async def said(self, pattern: str) -> re.Match[str]:
        """Wait for *pattern* in the output; return the first match."""
        return await self._log.match(pattern)

    async def ended(self) -> int | None:
        """Return the exit status, once the program has ended; below zero it is a signal."""
        async with asyncio.timeout(_END_TIMEOUT_S):
            await self._has_ended.wait()
        return self._process.exitcode

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the program, if it is there still."""
        if not self._has_ended.is_set():
            os.kill(self.pid, number)

    async def kill(self) -> None:
        """Kill the program, frozen or not; its log must not contain an unexpected error."""
        self.signal(signal.SIGKILL)
        await self.ended()
        await self._log.end()
        self._process.close()
        bugs = [line for line in self._log.matches(_BUG) if _EXPECTED not in line]
        assert not bugs, "\n".join(bugs)


@asynccontextmanager
async def nsq_gateway(
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    open_files: int | None = None,
) -> AsyncIterator[Program]:
    """
    Run ``nsq-gateway`` with *arguments* and additional *environment*; stop it at the end.

    *open_files* is the hard limit of its files; None is that of the tests.
    """
    said, says = _context.Pipe(duplex=False)
    process = _context.Process(target=_run, args=(says, arguments, environment or {}, open_files))
    process.start()
    says.close()
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(os.dup(said.fileno()), "rb")
    )
    said.close()
    program = Program(process, DaemonLog(reader))
    try:
        yield program
    finally:
        await program.kill()
        transport.close()


def _run(
    says: Connection,
    arguments: tuple[str, ...],
    environment: Mapping[str, str],
    open_files: int | None,
) -> None:
    """Run ``nsq-gateway`` with standard output and error redirected to *says*."""
    from gateway.cli.main import main  # noqa: PLC0415 - in the new process only

    os.dup2(says.fileno(), sys.stdout.fileno())
    os.dup2(says.fileno(), sys.stderr.fileno())
    says.close()
    # A setting in the environment of whoever runs the tests is not meant for the program.
    for name in [name for name in os.environ if name.startswith(_SETTINGS)]:
        del os.environ[name]
    os.environ.update(environment)
    # A shell that runs the tests in the background has made it ignored, and the program keeps that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if open_files is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (open_files, open_files))
    sys.argv = ["nsq-gateway", *arguments]
    main()
