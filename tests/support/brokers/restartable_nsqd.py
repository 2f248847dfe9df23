"""An nsqd that can be killed and restarted with its disk, at the same address or another."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from tests.support.brokers.killable_broker import free_port
from tests.support.brokers.nsqd import RealNsqd, real_nsqd


class RestartableNsqd:
    """One data folder, and one process after another; make one with `restartable_nsqd`."""

    def __init__(self, life: AsyncExitStack, data_path: str, flags: tuple[str, ...]) -> None:
        self._life = life
        self._flags = (*flags, f"--data-path={data_path}")
        self._move()

    @property
    def tcp_address(self) -> str:
        """The TCP address, also while nsqd is stopped."""
        return f"127.0.0.1:{self._tcp_port}"

    @property
    def http_address(self) -> str:
        """The HTTP address, also while nsqd is stopped."""
        return f"127.0.0.1:{self._http_port}"

    async def start(self, *, elsewhere: bool = False) -> RealNsqd:
        """Start, for the first time or after `kill`; *elsewhere*: on ports it never had."""
        if elsewhere:
            self._move()
        self.nsqd = await self._life.enter_async_context(
            real_nsqd(
                *self._flags,
                f"--tcp-address={self.tcp_address}",
                f"--http-address={self.http_address}",
            )
        )
        return self.nsqd

    async def kill(self) -> None:
        """Kill nsqd with SIGKILL; return once it has ended. Data in memory is lost."""
        self.nsqd.process.kill()
        await self.nsqd.process.wait()

    async def end(self) -> None:
        """End by SIGTERM; return once it has ended, with everything on its disk."""
        self.nsqd.process.terminate()
        await self.nsqd.process.wait()

    async def settle(self) -> None:
        """
        After `kill`, start nsqd and stop it gracefully, so that its queues store their metadata.

        A killed disk queue continues in a new file, but stores that only at the next sync. If it
        is killed again before, it overwrites messages that were answered OK (go-diskqueue,
        retrieveMetaData).
        """
        async with real_nsqd(*self._flags):
            pass

    def _move(self) -> None:
        self._tcp_port, self._http_port = free_port(), free_port()


@asynccontextmanager
async def restartable_nsqd(*flags: str) -> AsyncIterator[RestartableNsqd]:
    """
    Run a real nsqd with these *flags* until the block ends.

    With ``--mem-queue-size=0`` and ``--sync-every=1``, a message is on disk once the next one of
    its topic is answered OK. The last OK may precede the write of its message (go-diskqueue,
    ioLoop).
    """
    async with AsyncExitStack() as life:
        data_path = life.enter_context(tempfile.TemporaryDirectory(prefix="nsqd-"))
        lasting = RestartableNsqd(life, data_path, flags)
        await lasting.start()
        yield lasting
