"""Text for people: counts, sizes, durations, and a line on a terminal that shows progress."""

from __future__ import annotations

import contextlib
import os
from typing import TextIO

_KIB = 1_024
_CLEAR_LINE = "\r\x1b[K"


def pluralize(count: int, noun: str) -> str:
    """Return ``1 message``, ``2 messages``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def printable(text: str) -> str:
    """
    Return *text* with ``�`` for each character that would control a terminal; lines stay.

    What other programs have named or said may be meant to deceive.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each == "\n" else "\ufffd" for each in text)


def format_bytes(size_bytes: float) -> str:
    """Return a size as ``512 B``, ``1.5 KiB``, ``2.0 MiB`` or ``3.2 GiB``."""
    for unit in ("B", "KiB", "MiB"):
        if size_bytes < _KIB:
            return f"{size_bytes:.{0 if unit == 'B' else 1}f} {unit}"
        size_bytes /= _KIB
    return f"{size_bytes:.1f} GiB"


def format_duration(elapsed_s: float) -> str:
    """Return a duration as ``m:ss`` or ``h:mm:ss``."""
    minutes, seconds = divmod(int(elapsed_s), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


class TerminalLine:
    """
    A status line, redrawn in place if *out* is a terminal; otherwise it is never drawn.

    The cursor stays at the start of the line, so that a log line overwrites it.
    """

    INTERVAL_S = 0.5
    """Time between two redraws."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self.is_terminal = out.isatty()

    def draw(self, text: str) -> None:
        """Replace the status line by *text*, cut at the width of the terminal."""
        if self.is_terminal:
            self.write(f"{_CLEAR_LINE}{self._cut(text)}\r")

    def finish(self, text: str) -> None:
        """
        Replace the status line by *text* and a newline; if *text* is empty, only remove the line.

        Do nothing if *out* is not a terminal.
        """
        if self.is_terminal:
            self.write(f"{_CLEAR_LINE}{text}\n" if text else _CLEAR_LINE)

    def write(self, text: str) -> None:
        """Write *text*, terminal or not; ignore a closed *out*."""
        # ValueError: Python's own stream is closed. Progress must not end the command.
        with contextlib.suppress(OSError, ValueError):
            self._out.write(text)
            self._out.flush()

    def _cut(self, text: str) -> str:
        # A redraw only clears one row: a text that wraps would leave its first rows behind.
        try:
            columns = os.get_terminal_size(self._out.fileno()).columns
        except (OSError, ValueError):
            columns = 0
        return text[: columns - 1] if columns else text
