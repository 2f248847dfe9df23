"""The workers of examples/ as processes, and the webhook that they call."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.support.brokers.nsqd import DaemonLog
from tests.support.project import ROOT
from tests.support.websocket.clients import node_clients

EXAMPLES = ROOT / "examples"

_WAIT_S = 90.0
# What the Python worker runs for each message: as `curl --fail --data-binary @-` would.
_HAND_ON = """
import sys, urllib.request
urllib.request.urlopen(sys.argv[1], data=sys.stdin.buffer.read())
"""


class Hook:
    """A webhook that accepts posts unless a test sets another status."""

    def __init__(self) -> None:
        self.url = ""
        self.tried: list[bytes] = []
        """Every body that was posted, in order."""
        self._refusals: dict[bytes, list[int]] = {}
        self._changed = asyncio.Condition()
        self._answers = asyncio.Event()
        self._answers.set()

    def refuse(self, body: bytes, *statuses: int) -> None:
        """Answer the first posts of *body* with *statuses*."""
        self._refusals[body] = list(statuses)

    def hold(self) -> None:
        """Hold all responses until `release`."""
        self._answers.clear()

    def release(self) -> None:
        """Answer held and future requests."""
        self._answers.set()

    async def tries(self, count: int) -> list[bytes]:
        """Wait for *count* posted bodies; return them sorted."""
        async with asyncio.timeout(_WAIT_S), self._changed:
            await self._changed.wait_for(lambda: len(self.tried) >= count)
        return sorted(self.tried)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Handle one POST request."""
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            size = int(head.partition(b"content-length:")[2].split()[0])
            body = await reader.readexactly(size)
            async with self._changed:
                self.tried.append(body)
                self._changed.notify_all()
            await self._answers.wait()
            statuses = self._refusals.get(body)
            status = statuses.pop(0) if statuses else 200
            writer.write(
                b"HTTP/1.1 %d -\r\nContent-Length: 0\r\nConnection: close\r\n\r\n" % status
            )
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # whoever posted has ended
        finally:
            writer.close()


@asynccontextmanager
async def hook() -> AsyncIterator[Hook]:
    """Run a webhook until the block ends."""
    taking = Hook()
    async with await asyncio.start_server(taking.answer, "127.0.0.1", 0) as server:
        taking.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        yield taking
        taking.release()


class Worker:
    """A running example."""

    def __init__(self, process: Process, log: DaemonLog) -> None:
        self.log = log
        self._process = process

    def terminate(self) -> None:
        """Send SIGTERM to the worker."""
        self._process.send_signal(signal.SIGTERM)

    async def ended(self) -> int:
        """Wait for the worker to end; return its exit status."""
        async with asyncio.timeout(_WAIT_S):
            return await self._process.wait()


@asynccontextmanager
async def worker(
    language: str, folder: Path, where: tuple[str, str, str], target: str, *, secret: str = ""
) -> AsyncIterator[Worker]:
    """
    Run a worker; stop it when the block ends.

    Args:
        language: ``node`` or ``python``.
        folder: Directory for the Node worker, with copies of the module and the library ws.
        where: Gateway, topic and channel.
        target: URL to which each message is posted.
        secret: Secret for the gateway; empty: none.
    """
    if language == "node":
        command = ["node", str(_with_surroundings(folder)), *where, target]
    else:
        hand_on = [sys.executable, "-c", _HAND_ON, target]
        command = [sys.executable, str(EXAMPLES / "worker.py"), *where, *hand_on]
    environment = {
        name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")
    }
    process = await asyncio.create_subprocess_exec(
        *command, stdout=PIPE, stderr=STDOUT, env=environment | {"NSQ_SECRET": secret}
    )
    assert process.stdout is not None
    log = DaemonLog(process.stdout)
    try:
        yield Worker(process, log)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await log.end()


def _with_surroundings(folder: Path) -> Path:
    """Return a copy of the Node worker in a folder with nsq.js and an npm installation of ws."""
    library = node_clients()
    assert library is not None
    copy = folder / "examples" / "worker.mjs"
    if not copy.exists():
        copy.parent.mkdir()
        shutil.copy(EXAMPLES / "worker.mjs", copy)
        (folder / "gateway").symlink_to(ROOT / "gateway")
        (folder / "node_modules").symlink_to(library.parent / "node_modules")
    return copy
