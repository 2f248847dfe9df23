"""How far a stream is: one line that moves on a terminal, else a line of the log now and then."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import Event, Thread
from typing import Self, TextIO

from gateway.telemetry import get_logger
from gateway.words import as_clock

logger = get_logger()

_DRAW_S = 0.5
_LOG_S = 10.0
_CLEAR_LINE = "\r\x1b[K"
_BAR = 20


@dataclass(frozen=True, kw_only=True)
class Batch:
    """A batch that is done."""

    number: int
    rows: int
    took_s: float
    rows_per_second: float
    """Since the batch before it."""
    waiting: int | None
    """Messages that no batch has yet, in NSQ and here; None: nobody says."""


class _Line:
    """
    The line of a terminal that moves, if *out* is one; nothing elsewhere.

    The cursor stays at its front, so that a log line takes its place.
    """

    def __init__(self, out: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._out = out
        self._now = clock
        self._began_at = clock()
        self._is_over = Event()
        self.is_terminal = out.isatty()

    def age_s(self) -> float:
        """Return how long it is there."""
        return self._now() - self._began_at

    def start(self, text: Callable[[], str]) -> None:
        """Show what *text* says, twice a second."""
        if self.is_terminal:
            Thread(target=self._move, args=(text,), name="progress", daemon=True).start()

    def end(self, text: str) -> None:
        """Show *text* for good; nothing where it is empty."""
        self._is_over.set()
        if self.is_terminal:
            self._write(f"{_CLEAR_LINE}{text}\n" if text else _CLEAR_LINE)

    def _move(self, text: Callable[[], str]) -> None:
        while not self._is_over.wait(_DRAW_S):
            self._write(f"{_CLEAR_LINE}{self._cut(text())}\r")

    def _write(self, text: str) -> None:
        # Who looks may have gone; that is no reason to stop.
        with contextlib.suppress(OSError, ValueError):
            self._out.write(text)
            self._out.flush()

    def _cut(self, text: str) -> str:
        """Return as much of *text* as one line shows; of a second one the front would stay."""
        try:
            columns = os.get_terminal_size(self._out.fileno()).columns
        except (OSError, ValueError):
            columns = 0
        return text[: columns - 1] if columns else text


class Report:
    """Tells of batches; any thread may call."""

    def __init__(self, out: TextIO, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin at 0, at this moment."""
        self._line = _Line(out, clock)
        self._now = clock
        self._logged_at = clock()
        self._rows = self._batches = 0
        self._logged_rows = self._logged_batches = 0
        self._last: Batch | None = None

    def start(self) -> None:
        """Move on the terminal, if it is one, until `end`."""
        self._line.start(self.text)

    def batch(self, batch: Batch) -> None:
        """Count *batch*."""
        self._last = batch
        self._rows += batch.rows
        self._batches += batch.rows > 0
        if not self._line.is_terminal and batch.rows and self._now() - self._logged_at >= _LOG_S:
            self._log()

    def idle(self) -> None:
        """Say that nothing comes."""
        if self._last is not None:
            self._last = Batch(
                number=self._last.number,
                rows=0,
                took_s=0.0,
                rows_per_second=0.0,
                waiting=self._last.waiting,
            )

    def end(self) -> None:
        """Leave the sum: on a line of its own, or in the log."""
        self._line.end(self._sum())
        if not self._line.is_terminal:
            logger.info(
                "job ended",
                rows=self._rows,
                batches=self._batches,
                seconds=round(self._line.age_s(), 1),
            )

    def text(self) -> str:
        """Return the line that moves."""
        parts = [f"{self._rows:,} rows"]
        if self._last is None:
            parts.append("waiting for the first batch")
        else:
            parts.append(f"{self._last.rows_per_second:,.0f}/s")
            parts.append(f"batch {self._last.number}")
            if self._last.rows:
                parts[-1] += f": {self._last.rows:,} rows in {self._last.took_s:.1f} s"
            if self._last.waiting is not None:
                parts.append(f"{self._last.waiting:,} behind")
        return ", ".join([*parts, as_clock(self._line.age_s())])

    def _sum(self) -> str:
        batches = "1 batch" if self._batches == 1 else f"{self._batches:,} batches"
        return f"{self._rows:,} rows in {batches}, {as_clock(self._line.age_s())}"

    def _log(self) -> None:
        last, now = self._last, self._now()
        assert last is not None  # noqa: S101 - there was a batch
        logger.info(
            "rows written",
            rows=self._rows - self._logged_rows,
            batches=self._batches - self._logged_batches,
            rows_per_second=round((self._rows - self._logged_rows) / (now - self._logged_at)),
            last_batch=last.number,
            last_batch_s=round(last.took_s, 3),
            waiting=last.waiting,
        )
        self._logged_at, self._logged_rows, self._logged_batches = now, self._rows, self._batches


def bar_of(share: float) -> str:
    """Return how much of a whole *share* is, 0 to 1."""
    full = int(share * _BAR)
    return "█" * full + "░" * (_BAR - full)


class Steps:
    """How many of a known number of steps are done: a line that moves on a terminal, else none."""

    def __init__(self, out: TextIO, total: int, what: str) -> None:
        """Begin with none of *total* done; *what* they are is said."""
        self._line = _Line(out)
        self._total = total
        self._what = what
        self._done = 0
        self._rows = 0
        self._now = ""

    def __enter__(self) -> Self:
        """Begin to move."""
        self._line.start(self._text)
        return self

    def __exit__(self, *error: object) -> None:
        """Leave the line as it is now, for whoever looks."""
        self._line.end(self._text() if self._total else "")

    def begin(self, step: str) -> None:
        """Say what is worked at."""
        self._now = step

    def done(self, rows: int) -> None:
        """Count a step; *rows* are those of all steps so far."""
        self._done += 1
        self._rows = rows
        self._now = ""

    def _text(self) -> str:
        share = self._done / self._total if self._total else 1.0
        parts = [f"{bar_of(share)} {self._done}/{self._total} {self._what}", f"{self._rows:,} rows"]
        return ", ".join(
            [*parts, *([self._now] if self._now else []), as_clock(self._line.age_s())]
        )
