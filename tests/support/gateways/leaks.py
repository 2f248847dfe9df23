"""Find tasks, timers and descriptors that a test leaves behind."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.support.manual_clock import turn

_PROCESSES = Path("/proc")
_MAX_TURNS = 1_000


def live_resources() -> set[object]:
    """
    Return the tasks, pending timers, and open descriptors.

    Timers are seen in asyncio's own loop only, descriptors on Linux only.
    """
    loop = asyncio.get_running_loop()
    timers = (timer for timer in getattr(loop, "_scheduled", ()) if not timer.cancelled())
    return {*asyncio.all_tasks(), *timers, *_descriptors(_PROCESSES / "self")}


def connections_of(pid: int) -> list[str]:
    """Return the TCP sockets of a process as the system lists them, for failure messages."""
    process = _PROCESSES / str(pid)
    inodes = {each.partition("socket:[")[2].rstrip("]") for each in _descriptors(process)}
    lines = (process / "net" / "tcp").read_text().splitlines()[1:]
    return [" ".join(line.split()[1:4]) for line in lines if line.split()[9] in inodes]


def _descriptors(process: Path) -> list[str]:
    found = []
    folder = process / "fd"
    for entry in folder.iterdir() if folder.exists() else ():
        with contextlib.suppress(FileNotFoundError):  # that of the listing itself is gone
            found.append(f"descriptor {entry.name}: {entry.readlink()}")
    return found


@asynccontextmanager
async def no_leaks() -> AsyncIterator[None]:
    """Check that everything started in the block ends with it, within a few loop turns."""
    before = live_resources()
    yield
    for _ in range(_MAX_TURNS):
        left = live_resources() - before
        if not left:
            return
        await turn()
    raise AssertionError("\n".join(["left behind:", *map(repr, left)]))
