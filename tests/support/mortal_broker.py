"""A broker that a test may kill, freeze and bring back on the same ports."""

from __future__ import annotations

import random
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from tests.support.nsqd import real_nsqd
from tests.support.programs import nsq_gateway

_EMBEDDED_LISTENS = r"broker \(in memory\): TCP (\S+), HTTP (\S+)"
_BELOW_EPHEMERAL_PORTS = range(20_000, 30_000)
"""No outgoing connection takes a port of these while the broker is away (Linux, by default)."""
_CHANCE = random.SystemRandom()
"""Not `random` itself: pytest-randomly seeds it alike in all workers, who then take one port."""


class MortalBroker:
    """nsqd, or ``nsq-gateway broker``; make one with `mortal_broker`."""

    def __init__(self, kind: str, life: AsyncExitStack) -> None:
        self._kind = kind
        self._life = life
        self._pid = 0
        self._signal: Callable[[signal.Signals], None] = _ignore
        self._ended: Callable[[], Awaitable[int | None]] | None = None
        self.tcp_address = f"127.0.0.1:{free_port()}"
        self.http_address = f"127.0.0.1:{free_port()}"

    async def start(self) -> None:
        """Start, for the first time or again; nothing of an earlier life is left."""
        flags = (f"--tcp-address={self.tcp_address}", f"--http-address={self.http_address}")
        if self._kind == "nsqd":
            process = (await self._life.enter_async_context(real_nsqd(*flags))).process
            self._pid, self._signal, self._ended = process.pid, process.send_signal, process.wait
            return
        program = await self._life.enter_async_context(nsq_gateway("broker", *flags))
        self._pid, self._signal, self._ended = program.pid, program.signal, program.ended
        await program.said(_EMBEDDED_LISTENS)

    async def kill(self) -> None:
        """End by SIGKILL; return once it has ended."""
        self._signal(signal.SIGKILL)
        assert self._ended is not None
        await self._ended()
        self._signal = _ignore

    def freeze(self) -> None:
        """Stop by SIGSTOP: connections stay, nothing is answered from now on."""
        self._signal(signal.SIGSTOP)
        while not all(_is_stopped(thread) for thread in Path(f"/proc/{self._pid}/task").glob("*")):
            pass  # a thread that runs takes the signal at its next step

    def thaw(self) -> None:
        """Go on by SIGCONT."""
        self._signal(signal.SIGCONT)


def _is_stopped(thread: Path) -> bool:
    """Whether a thread is in state T (Linux; elsewhere nobody asks)."""
    try:
        state = (thread / "stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return True  # it has ended
    return state == "T"


def _ignore(number: signal.Signals) -> None:
    """Nobody is there to be told *number*."""


@asynccontextmanager
async def mortal_broker(kind: str) -> AsyncIterator[MortalBroker]:
    """Run a broker of *kind*, ``nsqd`` or ``embedded``, in a process of its own."""
    async with AsyncExitStack() as life:
        broker = MortalBroker(kind, life)
        await broker.start()
        try:
            yield broker
        finally:
            broker.thaw()


def free_port() -> int:
    """Return a port of 127.0.0.1 that nothing listens on."""
    while True:
        port = _CHANCE.choice(_BELOW_EPHEMERAL_PORTS)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
