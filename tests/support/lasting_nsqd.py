"""An nsqd that is killed and started again with what it had on its disk, here or elsewhere."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from tests.support.mortal_broker import free_port
from tests.support.nsqd import RealNsqd, real_nsqd


class LastingNsqd:
    """One data folder, and one process after the other; make one with `lasting_nsqd`."""

    def __init__(self, life: AsyncExitStack, data_path: str, flags: tuple[str, ...]) -> None:
        self._life = life
        self._flags = (*flags, f"--data-path={data_path}")
        self._move()

    @property
    def tcp_address(self) -> str:
        """Where it listens, or would listen."""
        return f"127.0.0.1:{self._tcp_port}"

    @property
    def http_address(self) -> str:
        """Where it listens for HTTP, or would."""
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
        """End by SIGKILL; return once it has ended. What was in its memory is lost."""
        self.nsqd.process.kill()
        await self.nsqd.process.wait()

    async def end(self) -> None:
        """End by SIGTERM; return once it has ended, with everything on its disk."""
        self.nsqd.process.terminate()
        await self.nsqd.process.wait()

    async def settle(self) -> None:
        """
        After `kill`: let its queues write down where their files end; it has ended as before.

        A queue that was killed goes on in a new file, and says so on its disk only at the next
        sync: killed again before, it would write over what it had answered OK to
        (go-diskqueue, retrieveMetaData).
        """
        async with real_nsqd(*self._flags):
            pass

    def _move(self) -> None:
        self._tcp_port, self._http_port = free_port(), free_port()


@asynccontextmanager
async def lasting_nsqd(*flags: str) -> AsyncIterator[LastingNsqd]:
    """
    Run a real nsqd with *flags* of its own, until the block ends.

    With ``--mem-queue-size=0`` and ``--sync-every=1`` a message is on its disk when the next one
    of its topic has its OK; the OK of the last one comes a moment before that
    (go-diskqueue, ioLoop).
    """
    async with AsyncExitStack() as life:
        data_path = life.enter_context(tempfile.TemporaryDirectory(prefix="nsqd-"))
        lasting = LastingNsqd(life, data_path, flags)
        await lasting.start()
        yield lasting
