"""
The gateway's own programs as processes: started, watched through their log, ended.

They are forked from one process that has imported them already: a test that starts two programs
would otherwise wait two seconds for imports. What runs is `main`, in a process of its own.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess

from tests.support.nsqd import DaemonLog

_END_TIMEOUT_S = 15.0
_SETTINGS = "NSQ_GATEWAY_"
_BUG = r"Traceback|task failed|\"level\": \"(error|critical)\"|never awaited|Warning:"

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(
    [
        "gateway.cli",
        # The command line imports these when they are asked for.
        "gateway.commands.pub",
        "gateway.commands.sub",
        "gateway.workers.supervisor",
        "tests.support.programs",
    ]
)


class Program:
    """A running program and everything that it says."""

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
        """Return the first match of *pattern* in what it says, now or later."""
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
        """End the program at once, frozen or not; nothing in its log may tell of a bug in it."""
        self.signal(signal.SIGKILL)
        await self.ended()
        await self._log.end()
        self._process.close()
        bugs = self._log.matches(_BUG)
        assert not bugs, "\n".join(bugs)


@asynccontextmanager
async def nsq_gateway(
    *arguments: str, environment: Mapping[str, str] | None = None
) -> AsyncIterator[Program]:
    """Run ``nsq-gateway`` with *arguments*, and *environment* on top; end it afterwards."""
    said, says = _context.Pipe(duplex=False)
    process = _context.Process(target=_run, args=(says, arguments, environment or {}))
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


def _run(says: Connection, arguments: tuple[str, ...], environment: Mapping[str, str]) -> None:
    """Be ``nsq-gateway``, with standard output and error going to *says*."""
    from gateway.cli import main  # noqa: PLC0415 - in the new process only

    os.dup2(says.fileno(), sys.stdout.fileno())
    os.dup2(says.fileno(), sys.stderr.fileno())
    says.close()
    # A setting in the environment of whoever runs the tests is not meant for the program.
    for name in [name for name in os.environ if name.startswith(_SETTINGS)]:
        del os.environ[name]
    os.environ.update(environment)
    sys.argv = ["nsq-gateway", *arguments]
    main()
