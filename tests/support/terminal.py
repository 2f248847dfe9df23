"""A pseudo-terminal with recorded output."""

from __future__ import annotations

import asyncio
import os
import pty
import re
from collections.abc import Iterator
from contextlib import contextmanager

_WAIT_S = 90.0


class Terminal:
    """Pass `descriptor` to a program; make one with `terminal`."""

    def __init__(self, ours: int, descriptor: int) -> None:
        self.descriptor = descriptor
        self.text = ""
        """Output so far, including escape sequences."""
        self._ours = ours
        self._changed = asyncio.Event()
        asyncio.get_running_loop().add_reader(ours, self._read)

    def _read(self) -> None:
        self.text += os.read(self._ours, 65_536).decode()
        self._changed.set()

    def type(self, text: str) -> None:
        """Send *text* to the program, as the keyboard does."""
        os.write(self._ours, text.encode())

    async def shows(self, pattern: str) -> re.Match[str]:
        """Wait for *pattern* in the output; return the first match."""
        async with asyncio.timeout(_WAIT_S):
            while not (found := re.search(pattern, self.text)):
                self._changed.clear()
                await self._changed.wait()
        return found


@contextmanager
def terminal() -> Iterator[Terminal]:
    """Open a terminal of unknown width."""
    ours, theirs = pty.openpty()
    try:
        yield Terminal(ours, theirs)
    finally:
        asyncio.get_running_loop().remove_reader(ours)
        os.close(ours)
        os.close(theirs)
