"""Show the progress of a job: one line on a terminal, or log lines without a terminal."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import Event, Thread
from typing import Self, TextIO

from gateway.telemetry import get_logger
from gateway.terminal import TerminalLine, format_duration

logger = get_logger()

_LOG_S = 10.0
_BAR = 20


@dataclass(frozen=True, kw_only=True)
class FinishedBatch:
    """Figures of a finished batch."""

    number: int
    rows: int
    took_s: float
    rows_per_second: float
    """Rows divided by the time since the previous batch."""
    waiting: int | None
    """Messages without a batch when this one started, in nsqd and here; None if unknown."""


class _Line(TerminalLine):
    """A `TerminalLine` that is redrawn by a thread of its own."""

    def __init__(self, out: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(out)
        self._now = clock
        self._began_at = clock()
        self._is_over = Event()

    def age_s(self) -> float:
        """Return the seconds since this object was created."""
        return self._now() - self._began_at

    def start(self, text: Callable[[], str]) -> None:
        """Draw the result of *text* twice a second, if there is a terminal."""
        if self.is_terminal:
            Thread(target=self._run, args=(text,), name="progress", daemon=True).start()

    def end(self, text: str) -> None:
        """Stop redrawing, and leave *text* as the last line; an empty text removes the line."""
        self._is_over.set()
        self.finish(text)

    def _run(self, text: Callable[[], str]) -> None:
        while not self._is_over.wait(self.INTERVAL_S):
            self.draw(text())


class ProgressReport:
    """Report the batches of a stream; methods may be called from any thread."""

    def __init__(
        self, out: TextIO, *, hint: str = "", clock: Callable[[], float] = time.monotonic
    ) -> None:
        """
        Start the clock.

        *hint* is shown with the totals; it says what the job may have missed, if anything.
        """
        self._line = _Line(out, clock)
        self._hint = hint
        self._now = clock
        self._logged_at = clock()
        self._rows = self._batches = 0
        self._logged_rows = self._logged_batches = 0
        self._last: FinishedBatch | None = None

    def start(self) -> None:
        """Redraw the line until `end`, if there is a terminal."""
        self._line.start(self.text)

    def add_batch(self, batch: FinishedBatch) -> None:
        """Add *batch* to the totals; without a terminal, log them at most every 10 s."""
        self._last = batch
        self._rows += batch.rows
        self._batches += batch.rows > 0
        if not self._line.is_terminal and batch.rows and self._now() - self._logged_at >= _LOG_S:
            self._log()

    def idle(self) -> None:
        """Called when no messages arrive; show a rate of 0."""
        if self._last is not None:
            self._last = FinishedBatch(
                number=self._last.number,
                rows=0,
                took_s=0.0,
                rows_per_second=0.0,
                waiting=None,  # what waited at the last batch has been read since
            )

    def end(self) -> None:
        """Show the totals, on a terminal or in the log."""
        self._line.end(self._sum())
        if not self._line.is_terminal:
            logger.info(
                "job ended",
                rows=self._rows,
                batches=self._batches,
                seconds=round(self._line.age_s(), 1),
                **({"hint": self._hint} if self._hint else {}),
            )

    def text(self) -> str:
        """Return the text of the progress line as of now."""
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
        return ", ".join([*parts, format_duration(self._line.age_s())])

    def _sum(self) -> str:
        batches = "1 batch" if self._batches == 1 else f"{self._batches:,} batches"
        text = f"{self._rows:,} rows in {batches}, {format_duration(self._line.age_s())}"
        return f"{text}; {self._hint}" if self._hint else text

    def _log(self) -> None:
        last, now = self._last, self._now()
        assert last is not None  # noqa: S101 - called after a batch
        logger.info(
            "rows written",
            rows=self._rows - self._logged_rows,
            batches=self._batches - self._logged_batches,
            rows_per_second=round((self._rows - self._logged_rows) / (now - self._logged_at)),
            last_batch=last.number,
            last_batch_s=round(last.took_s, 3),
            waiting=last.waiting,
            # The backlog is from the start of the batch, which took that long.
            waiting_age_s=None if last.waiting is None else round(last.took_s, 3),
        )
        self._logged_at, self._logged_rows, self._logged_batches = now, self._rows, self._batches


def draw_bar(share: float) -> str:
    """Return a progress bar for *share*, from 0 to 1, as text."""
    full = int(share * _BAR)
    return "█" * full + "░" * (_BAR - full)


class ProgressBar:
    """A progress bar for a known number of steps; shows nothing without a terminal."""

    def __init__(
        self, out: TextIO, total: int, what: str, amount: Callable[[int], str] = "{:,} rows".format
    ) -> None:
        """Start at 0 of *total* steps, named *what*; *amount* formats the count of `end_step`."""
        self._line = _Line(out)
        self._amount = amount
        self._total = total
        self._what = what
        self._done = 0
        self._count = 0
        self._now = ""

    def __enter__(self) -> Self:
        """Start drawing."""
        self._line.start(self._text)
        return self

    def __exit__(self, *error: object) -> None:
        """Stop drawing, and leave the last line."""
        self._line.end(self._text() if self._total else "")

    def begin_step(self, step: str) -> None:
        """Show *step* as the current one."""
        self._now = step

    def end_step(self, count: int) -> None:
        """Mark the current step as done; *count* is the rows or bytes of all steps so far."""
        self._done += 1
        self._count = count
        self._now = ""

    def _text(self) -> str:
        share = self._done / self._total if self._total else 1.0
        parts = [
            f"{draw_bar(share)} {self._done}/{self._total} {self._what}",
            self._amount(self._count),
        ]
        return ", ".join(
            [*parts, *([self._now] if self._now else []), format_duration(self._line.age_s())]
        )


TaskCount = tuple[int, int]
"""Finished and total tasks of the batch in progress."""


class ReplayReport(ProgressReport):
    """Report how many rows a replay has published, of those counted before its start."""

    def __init__(
        self,
        out: TextIO,
        *,
        total_rows: int,
        done_rows: int,
        tasks: Callable[[], TaskCount | None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Start the clock.

        Args:
            out: Where to write.
            total_rows: Number of rows to replay, including *done_rows*.
            done_rows: Number of them that earlier runs have published.
            tasks: Returns finished and total tasks of the batch in progress, None if there is none.
            clock: A monotonic clock.
        """
        super().__init__(out, clock=clock)
        self._logged_at_s = 0.0
        self._total_rows = total_rows
        self._before_rows = done_rows
        self._tasks = tasks
        self.rows = 0
        """Rows published by this run."""
        self._size_bytes = 0
        self._took_s = 0.0
        """Seconds spent in batches, without the start of the query."""

    @property
    def done_rows(self) -> int:
        """Rows published by this run and by earlier ones."""
        return self._before_rows + self.rows

    def add_rows(self, rows: int, size_bytes: int, took_s: float) -> None:
        """Add the rows of a batch that took *took_s* seconds."""
        self.rows += rows
        self._took_s += took_s
        self._size_bytes += size_bytes
        age_s = self._line.age_s()
        if rows and not self._line.is_terminal and age_s - self._logged_at_s >= _LOG_S:
            self._logged_at_s = age_s
            logger.info("replaying", **self._fields(), left_s=self._left_s())

    def add_batch(self, batch: FinishedBatch) -> None:
        """Do nothing: Spark counts the rows it reads, of which some are not published."""

    def text(self) -> str:
        """Return the text of the progress line as of now."""
        # Files that were added after the count may make the rows done exceed those counted.
        total = max(self._total_rows, self.done_rows)
        share = self.done_rows / total if total else 1.0
        parts = [
            f"{draw_bar(share)} {self.done_rows:,} of {total:,} rows",
            f"{self._rate():,.0f}/s",
        ]
        left_s = self._left_s()
        parts.append("time left unknown" if left_s is None else f"{format_duration(left_s)} left")
        with contextlib.suppress(Exception):  # the JVM may be gone
            tasks = self._tasks()
            if tasks is not None:
                parts.append(f"this batch {tasks[0]} of {tasks[1]} tasks")
        return ", ".join(parts)

    def end(self) -> None:
        """Show the totals, on a terminal or in the log."""
        elapsed = format_duration(self._line.age_s())
        self._line.end(f"{self.done_rows:,} of {self._total_rows:,} rows replayed, {elapsed}")
        if not self._line.is_terminal:
            logger.info("replay ended", **self._fields())

    def _fields(self) -> dict[str, int]:
        return {
            "rows": self.rows,
            "bytes": self._size_bytes,
            "done_rows": self.done_rows,
            "total_rows": self._total_rows,
            "rows_per_second": round(self._rate()),
        }

    def _rate(self) -> float:
        return self.rows / max(self._took_s, 0.001)

    def _left_s(self) -> int | None:
        rate = self._rate()
        left = max(0, self._total_rows - self.done_rows)
        return None if rate == 0 else round(left / rate)
