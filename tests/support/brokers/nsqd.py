"""
The real nsqd and nsqlookupd as processes on free ports of 127.0.0.1.

They are version 1.3.0, or the one in NSQ_GATEWAY_NSQD (`make verify-old-nsqd`).

They log the ports that they got, so there are no guessed ports and no fixed waits.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import tempfile
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.project import ROOT

CURRENT_VERSION = "1.3.0"
NSQD_VERSION = os.environ.get("NSQ_GATEWAY_NSQD") or CURRENT_VERSION
"""Version of the nsqd and nsqlookupd that tests use."""
is_older_nsqd = NSQD_VERSION != CURRENT_VERSION

_TOOLS = ROOT / "tools" / "bin"
_BUILT_BY_MAKE = _TOOLS / f"nsqd-{NSQD_VERSION}" if is_older_nsqd else _TOOLS

# nsqd 1.2.1 has go-diskqueue 1.0.0, which goes on at the write position that it saved last; 1.3.0
# has 1.1.0, which starts a new file if the last one is longer (retrieveMetaData).
LOSES_MESSAGES_WHEN_KILLED = f"nsqd {NSQD_VERSION} overwrites messages on its disk after a SIGKILL"
loses_messages_when_killed = pytest.mark.skipif(is_older_nsqd, reason=LOSES_MESSAGES_WHEN_KILLED)
"""Marks tests of messages that nsqd has to keep when it is killed."""

_LOG_TIMEOUT_S = 90.0
_STOP_TIMEOUT_S = 60.0

# The whole line is: [nsqd] 2025/01/31 12:00:00.000000 INFO: TCP: listening on 127.0.0.1:40123
_TCP_LISTENING = r"TCP: listening on (\S+)$"
_HTTP_LISTENING = r"HTTP: listening on (\S+)$"


class DaemonLog:
    """
    The log of one process, with a wait for events in it.

    It is read until its end: a full pipe would stop the process.
    """

    def __init__(self, stream: asyncio.StreamReader) -> None:
        self._lines: deque[str] = deque(maxlen=1000)
        self._ended = False
        self._changed = asyncio.Condition()
        self._reading = asyncio.create_task(self._read(stream))

    async def match(self, pattern: str) -> re.Match[str]:
        """
        Return the first match of *pattern* in a kept line, old or still to come.

        Raises:
            RuntimeError: The log ended, or the timeout expired, without a match; the message has
                the last lines.
        """
        try:
            async with asyncio.timeout(_LOG_TIMEOUT_S), self._changed:
                while True:
                    for line in self._lines:
                        if found := re.search(pattern, line):
                            return found
                    if self._ended:
                        raise self._missing(pattern, "before the log ended")
                    await self._changed.wait()
        except TimeoutError:
            raise self._missing(pattern, f"within {_LOG_TIMEOUT_S:g} s") from None

    def matches(self, pattern: str) -> list[str]:
        """Return the recorded lines that match *pattern*."""
        return [line for line in self._lines if re.search(pattern, line)]

    async def end(self) -> None:
        """Return when the process has closed its log."""
        await self._reading

    async def _read(self, stream: asyncio.StreamReader) -> None:
        async for line in stream:
            async with self._changed:
                self._lines.append(line.decode(errors="replace").rstrip())
                self._changed.notify_all()
        async with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _missing(self, pattern: str, when: str) -> RuntimeError:
        return RuntimeError("\n".join([f"no {pattern!r} {when}:", *list(self._lines)[-20:]]))


@dataclass(frozen=True, kw_only=True)
class RealNsqd:
    """A running nsqd: its addresses, its log, and its process for fault injection."""

    tcp_address: str
    http_address: str
    log: DaemonLog
    process: Process


@dataclass(frozen=True, kw_only=True)
class RealNsqlookupd:
    """A running nsqlookupd: nsqds register by TCP, clients query by HTTP."""

    tcp_address: str
    http_address: str
    log: DaemonLog
    process: Process


def as_current_nsqd(data: bytes) -> bytes:
    """
    Return what the nsqd under test sent, in the words of the current version.

    The embedded broker is compared with the current version; these words are the only ones that
    the tests see differ. Each has the same length in both, so frames stay whole.
    """
    version = f'"version":"{NSQD_VERSION}"', f'"version":"{CURRENT_VERSION}"'
    for its_words, current_words in (version, ("Invalid Message ID", "invalid message ID")):
        data = data.replace(its_words.encode(), current_words.encode())
    return data


def nsqd_binary() -> Path | None:
    """Return the path of the real nsqd, or None if it is not built."""
    return _binary("nsqd")


@asynccontextmanager
async def real_nsqd(*flags: str) -> AsyncIterator[RealNsqd]:
    """
    Run a real nsqd with an empty data folder; stop it when the block ends.

    Args:
        flags: nsqd's command line flags; the last of two equal flags counts, so
            ``--tcp-address=127.0.0.1:4150`` replaces the free port, and ``--data-path=…`` the
            folder. The log level stays info.

    Raises:
        RuntimeError: nsqd ended, or did not listen in time; the message has its last log lines.
    """
    with tempfile.TemporaryDirectory(prefix="nsqd-") as data_path:
        defaults = (
            f"--data-path={data_path}",
            "--broadcast-address=127.0.0.1",
            "--https-address=127.0.0.1:0",  # used with --tls-cert; 0.0.0.0:4152 by default
        )
        async with _running("nsqd", *defaults, *flags) as (process, log):
            yield RealNsqd(
                tcp_address=(await log.match(_TCP_LISTENING))[1],
                http_address=(await log.match(_HTTP_LISTENING))[1],
                log=log,
                process=process,
            )


@asynccontextmanager
async def real_nsqlookupd(*flags: str) -> AsyncIterator[RealNsqlookupd]:
    """
    Run a real nsqlookupd; *flags* and errors as in `real_nsqd`.

    An nsqd finds it with ``--lookupd-tcp-address``.
    """
    async with _running("nsqlookupd", *flags) as (process, log):
        yield RealNsqlookupd(
            tcp_address=(await log.match(_TCP_LISTENING))[1],
            http_address=(await log.match(_HTTP_LISTENING))[1],
            log=log,
            process=process,
        )


@asynccontextmanager
async def _running(program: str, *flags: str) -> AsyncIterator[tuple[Process, DaemonLog]]:
    """Run *program* on free ports."""
    ports = ("--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0")
    async with running(_binary(program), program, *ports, *flags) as (process, log):
        yield process, log


@asynccontextmanager
async def running(
    binary: Path | None, name: str, *arguments: str
) -> AsyncIterator[tuple[Process, DaemonLog]]:
    """Run *binary*; stop it by its process id, and read all of its output."""
    if binary is None:
        message = f"no {name} to start: make witnesses"
        raise RuntimeError(message)
    process = await asyncio.create_subprocess_exec(
        binary, *arguments, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT
    )
    assert process.stdout is not None
    log = DaemonLog(process.stdout)
    try:
        yield process, log
    finally:
        await _stop(process)
        await log.end()


async def _stop(process: Process) -> None:
    """Stop *process* with SIGTERM, and with SIGKILL if that takes too long."""
    if process.returncode is not None:
        return
    process.terminate()
    try:
        await asyncio.wait_for(process.wait(), _STOP_TIMEOUT_S)
    except TimeoutError:
        process.kill()
        await process.wait()


def _binary(program: str) -> Path | None:
    """Return *program* from NSQ_GATEWAY_TEST_NSQD_DIR, or from ``make witnesses``."""
    folder = os.environ.get("NSQ_GATEWAY_TEST_NSQD_DIR") or _BUILT_BY_MAKE
    found = shutil.which(program, path=folder)
    return Path(found) if found else None
