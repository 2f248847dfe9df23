"""A terminal that a program writes to: what a person would see, as text to wait for."""

from __future__ import annotations

import asyncio
import os
import pty
import re
from collections.abc import Iterator
from contextlib import contextmanager

_WAIT_S = 20.0


class Terminal:
    """Give `descriptor` to a program; make one with `terminal`."""

    def __init__(self, ours: int, descriptor: int) -> None:
        self.descriptor = descriptor
        self.text = ""
        """All that was written so far, with what moves the cursor."""
        self._ours = ours
        self._changed = asyncio.Event()
        asyncio.get_running_loop().add_reader(ours, self._read)

    def _read(self) -> None:
        self.text += os.read(self._ours, 65_536).decode()
        self._changed.set()

    async def shows(self, pattern: str) -> re.Match[str]:
        """Return the first match of *pattern* in what was written, now or later."""
        async with asyncio.timeout(_WAIT_S):
            while not (found := re.search(pattern, self.text)):
                self._changed.clear()
                await self._changed.wait()
        return found


@contextmanager
def terminal() -> Iterator[Terminal]:
    """Open a terminal of no known width."""
    ours, theirs = pty.openpty()
    try:
        yield Terminal(ours, theirs)
    finally:
        asyncio.get_running_loop().remove_reader(ours)
        os.close(ours)
        os.close(theirs)
