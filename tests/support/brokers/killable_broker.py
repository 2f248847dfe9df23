"""A broker that a test kills, suspends, and restarts on the same ports."""

from __future__ import annotations

import itertools
import os
import random
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from tests.support.brokers.nsqd import real_nsqd
from tests.support.gateways.programs import nsq_gateway

EMBEDDED_LISTENS = r"broker \(.+\): TCP (\S+), HTTP (\S+)"
"""What ``nsq-gateway broker`` prints when it listens; its groups are the two addresses."""
_BELOW_EPHEMERAL_PORTS = range(20_000, 30_000)
"""Ports below Linux's default ephemeral range, so that a stopped broker's port stays free."""
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))


def _ports() -> Iterator[int]:
    """Yield the ports of this pytest worker, cyclically."""
    ports = _BELOW_EPHEMERAL_PORTS[_WORKER::_WORKERS]
    # Not `random` itself: pytest-randomly seeds it alike in runs that are repeated at once.
    first = random.SystemRandom().randrange(len(ports))
    return itertools.cycle([*ports[first:], *ports[:first]])


_PORTS = _ports()


class KillableBroker:
    """nsqd, or ``nsq-gateway broker``; make one with `killable_broker`."""

    def __init__(self, kind: str, life: AsyncExitStack, *flags: str) -> None:
        self._kind = kind
        self._flags = flags
        self._life = life
        self.pid = 0
        self._signal: Callable[[signal.Signals], None] = _ignore
        self._ended: Callable[[], Awaitable[int | None]] | None = None
        self.tcp_address = f"127.0.0.1:{free_port()}"
        self.http_address = f"127.0.0.1:{free_port()}"

    async def start(self) -> None:
        """Start, for the first time or again; without a data path, nothing is left."""
        addresses = f"--tcp-address={self.tcp_address}", f"--http-address={self.http_address}"
        flags = (*addresses, *self._flags)
        if self._kind == "nsqd":
            process = (await self._life.enter_async_context(real_nsqd(*flags))).process
            self.pid, self._signal, self._ended = process.pid, process.send_signal, process.wait
            return
        program = await self._life.enter_async_context(nsq_gateway("broker", *flags))
        self.pid, self._signal, self._ended = program.pid, program.signal, program.ended
        await program.said(EMBEDDED_LISTENS)

    async def kill(self) -> None:
        """Kill the broker with SIGKILL; return once it has ended."""
        self._signal(signal.SIGKILL)
        assert self._ended is not None
        await self._ended()
        self._signal = _ignore

    def freeze(self) -> None:
        """Stop by SIGSTOP: connections stay, nothing is answered from now on."""
        self._signal(signal.SIGSTOP)
        while not all(_is_stopped(thread) for thread in Path(f"/proc/{self.pid}/task").glob("*")):
            pass  # a thread that runs takes the signal at its next step

    def thaw(self) -> None:
        """Resume the broker (SIGCONT)."""
        self._signal(signal.SIGCONT)


def _is_stopped(thread: Path) -> bool:
    """Return whether a thread is in state T, or has ended (Linux)."""
    try:
        state = (thread / "stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return True  # it has ended
    return state == "T"


def _ignore(number: signal.Signals) -> None:
    """Ignore the signal *number*."""


@asynccontextmanager
async def killable_broker(kind: str, *flags: str) -> AsyncIterator[KillableBroker]:
    """Run a broker of *kind*, ``nsqd`` or ``embedded``, in a subprocess, with these *flags*."""
    async with AsyncExitStack() as life:
        broker = KillableBroker(kind, life, *flags)
        await broker.start()
        try:
            yield broker
        finally:
            broker.thaw()


def free_port() -> int:
    """
    Return a free port of 127.0.0.1 that no other test has got.

    A port without a listener may belong to a stopped broker that will restart on it.
    """
    for port in _PORTS:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
    raise AssertionError  # a cycle has no end
