"""How far a command is, for a person who looks at a terminal, or asks for the sum."""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import TextIO

from gateway.words import as_clock, counted, in_words

_INTERVAL_S = 0.5
_CLEAR_LINE = "\r\x1b[K"


class Progress:
    """
    Counts, and tells on a terminal twice a second; elsewhere the sum at most.

    The cursor stays at the front of the line, so that what else is written there, as a log line,
    takes its place.
    """

    def __init__(self, report: TextIO, *, is_verbose: bool = False, is_typed: bool = False) -> None:
        """
        Begin at 0, at this moment of the event loop.

        Args:
            report: Where the person reads.
            is_verbose: Whether the sum is told where there is no terminal, too.
            is_typed: Whether the input comes from the keyboard: between a person's lines only what
                there is to wait for is told.
        """
        self.messages = 0
        self._bytes = 0
        self._report = report
        self._is_terminal = report.isatty()
        self._is_verbose = is_verbose
        self._is_typed = is_typed
        self._loop = asyncio.get_running_loop()
        self._started_at = self._loop.time()
        self._waits: tuple[str, float] | None = None
        """What for, and until when."""
        self._timer: asyncio.TimerHandle | None = None
        if self._is_terminal:
            self._timer = self._loop.call_later(_INTERVAL_S, self._tick)

    def add(self, *, messages: int, size_bytes: int) -> None:
        """Count what is done; it is told with the next tick."""
        self.messages += messages
        self._bytes += size_bytes

    def wait(self, reason: str, until: float) -> None:
        """Tell that nothing is done before *until*, a moment of the event loop."""
        self._waits = reason, until
        self._draw()

    def go_on(self) -> None:
        """Wait no more."""
        self._waits = None
        self._draw()

    def end(self) -> None:
        """Leave the sum on a line of its own."""
        if self._timer is not None:
            self._timer.cancel()
        self._waits = None
        if self._is_terminal:
            self._write(f"{_CLEAR_LINE}{self._text()}\n")
        elif self._is_verbose:
            self.tell(self._text())

    def tell(self, text: str) -> None:
        """Write a line of its own, terminal or not."""
        self._write(f"nsq-gateway: {text}\n")

    def _tick(self) -> None:
        self._timer = self._loop.call_later(_INTERVAL_S, self._tick)
        if not self._is_typed or self._waits is not None:
            self._draw()

    def _draw(self) -> None:
        if self._is_terminal:
            self._write(f"{_CLEAR_LINE}{self._cut(self._text())}\r")

    def _write(self, text: str) -> None:
        # Who looks may have gone; that is no reason to publish no more.
        with contextlib.suppress(OSError):
            self._report.write(text)
            self._report.flush()

    def _cut(self, text: str) -> str:
        """Return as much of *text* as one line shows; of a second one the front would stay."""
        try:
            columns = os.get_terminal_size(self._report.fileno()).columns
        except OSError:
            columns = 0
        return text[: columns - 1] if columns else text

    def _text(self) -> str:
        now = self._loop.time()
        elapsed_s = now - self._started_at
        rate = self.messages / max(elapsed_s, 0.001)
        parts = [
            counted(self.messages, "message"),
            in_words(self._bytes),
            f"{rate:.{1 if 0 < rate < 10 else 0}f}/s",  # noqa: PLR2004 - a digit is enough
            as_clock(elapsed_s),
        ]
        if self._waits is not None:
            reason, until = self._waits
            parts.append(f"waiting: {reason}, next try in {max(until - now, 0):.1f} s")
        return ", ".join(parts)
