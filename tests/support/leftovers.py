"""What is alive in an event loop and its process, to see that nothing is left behind."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.support.manual_clock import turn

_DESCRIPTORS = Path("/proc/self/fd")
_MAX_TURNS = 1_000


def alive() -> set[object]:
    """
    Return the tasks, the timers that have not been cancelled, and what descriptors lead to.

    Timers are seen in asyncio's own loop only, descriptors on Linux only.
    """
    loop = asyncio.get_running_loop()
    timers = (timer for timer in getattr(loop, "_scheduled", ()) if not timer.cancelled())
    return {*asyncio.all_tasks(), *timers, *_descriptors()}


def _descriptors() -> list[str]:
    found = []
    for entry in _DESCRIPTORS.iterdir() if _DESCRIPTORS.exists() else ():
        with contextlib.suppress(FileNotFoundError):  # that of the listing itself is gone
            found.append(f"descriptor {entry.name}: {entry.readlink()}")
    return found


@asynccontextmanager
async def nothing_left_behind() -> AsyncIterator[None]:
    """Check that what is begun in the block ends with it, a few turns of the loop later."""
    before = alive()
    yield
    for _ in range(_MAX_TURNS):
        left = alive() - before
        if not left:
            return
        await turn()
    raise AssertionError("\n".join(["left behind:", *map(repr, left)]))
