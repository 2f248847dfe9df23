"""The progress of a command: a line on a terminal, and totals at the end."""

from __future__ import annotations

import asyncio
from typing import TextIO

from gateway.terminal import TerminalLine, format_bytes, format_duration, pluralize


class ProgressLine:
    """Count messages; show rate and elapsed time on a terminal twice a second."""

    def __init__(
        self, out: TextIO, *, is_verbose: bool = False, is_interactive: bool = False
    ) -> None:
        """
        Start to measure the elapsed time.

        Args:
            out: Stream to write to.
            is_verbose: Write the totals at the end even if *out* is not a terminal.
            is_interactive: The user types the input: show only delays, so that the line does not
                mix with the typed text.
        """
        self.messages = 0
        self._bytes = 0
        self._line = TerminalLine(out)
        self._is_verbose = is_verbose
        self._is_interactive = is_interactive
        self._loop = asyncio.get_running_loop()
        self._started_at = self._loop.time()
        self._delay: tuple[str, float] | None = None
        """The reason of the current delay, and its end on the loop's clock."""
        self._timer: asyncio.TimerHandle | None = None
        if self._line.is_terminal:
            self._timer = self._loop.call_later(TerminalLine.INTERVAL_S, self._on_timer)

    def add(self, *, messages: int, size_bytes: int) -> None:
        """Count published messages; the next tick shows them."""
        self.messages += messages
        self._bytes += size_bytes

    def show_delay(self, reason: str, until: float) -> None:
        """Show *reason*, and the time left until a retry at *until*, a time of the event loop."""
        self._delay = reason, until
        self._line.draw(self._text())

    def clear_delay(self) -> None:
        """Remove the delay from the line."""
        self._delay = None
        self._line.draw(self._text())

    def close(self) -> None:
        """Stop redrawing the line, and write the totals; see *is_verbose*."""
        if self._timer is not None:
            self._timer.cancel()
        self._delay = None
        self._line.finish(self._text())
        if not self._line.is_terminal and self._is_verbose:
            self.print(self._text())

    def print(self, text: str) -> None:
        """Write *text* as a line of its own, terminal or not."""
        self._line.write(f"nsq-gateway: {text}\n")

    def _on_timer(self) -> None:
        self._timer = self._loop.call_later(TerminalLine.INTERVAL_S, self._on_timer)
        if not self._is_interactive or self._delay is not None:
            self._line.draw(self._text())

    def _text(self) -> str:
        now = self._loop.time()
        elapsed_s = now - self._started_at
        rate = self.messages / max(elapsed_s, 0.001)
        parts = [
            pluralize(self.messages, "message"),
            format_bytes(self._bytes),
            f"{rate:.{1 if 0 < rate < 10 else 0}f}/s",  # noqa: PLR2004 - one digit is enough
            format_duration(elapsed_s),
        ]
        if self._delay is not None:
            reason, until = self._delay
            parts.append(f"waiting: {reason}, next try in {max(until - now, 0):.1f} s")
        return ", ".join(parts)
