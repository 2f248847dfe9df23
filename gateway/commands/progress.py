"""How far a command is, for a person who looks at a terminal."""

from __future__ import annotations

import time
from typing import TextIO

_INTERVAL_S = 0.5
_KIB = 1_024
_CLEAR_LINE = "\r\x1b[K"


class Progress:
    """Counts, and tells on a terminal twice a second; elsewhere it says nothing."""

    def __init__(self, terminal: TextIO) -> None:
        self.messages = 0
        self._bytes = 0
        self._terminal = terminal if terminal.isatty() else None
        self._started_at = self._told_at = time.monotonic()

    def add(self, *, messages: int, size_bytes: int) -> None:
        """Count what is done."""
        self.messages += messages
        self._bytes += size_bytes
        now = time.monotonic()
        if self._terminal is not None and now >= self._told_at + _INTERVAL_S:
            self._told_at = now
            self._terminal.write(f"{_CLEAR_LINE}{self._text(now)}")
            self._terminal.flush()

    def end(self) -> None:
        """Leave the last count on a line of its own."""
        if self._terminal is not None:
            self._terminal.write(f"{_CLEAR_LINE}{self._text(time.monotonic())}\n")
            self._terminal.flush()

    def _text(self, now: float) -> str:
        elapsed_s = max(now - self._started_at, 0.001)
        size = in_words(self._bytes)
        return f"{self.messages} messages, {size}, {self.messages / elapsed_s:.0f}/s"


def in_words(size_bytes: float) -> str:
    """Return a number of bytes as a person reads it."""
    for unit in ("B", "KiB", "MiB"):
        if size_bytes < _KIB:
            return f"{size_bytes:.{0 if unit == 'B' else 1}f} {unit}"
        size_bytes /= _KIB
    return f"{size_bytes:.1f} GiB"
