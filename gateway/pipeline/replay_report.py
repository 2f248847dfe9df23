"""How far a replay is: a bar on a terminal, else a line of the log now and then."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import TextIO

from gateway.pipeline.reporting import Batch, Report, bar_of
from gateway.telemetry import get_logger
from gateway.words import as_clock

logger = get_logger()

_LOG_S = 10.0

Tasks = tuple[int, int]
"""Of the batch in work: how many are done, and how many there are."""


class ReplayReport(Report):
    """Tells of the rows that are published, of those that were counted before."""

    def __init__(
        self,
        out: TextIO,
        *,
        total_rows: int,
        done_rows: int,
        tasks: Callable[[], Tasks | None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Begin at this moment.

        Args:
            out: Where a person reads.
            total_rows: What was counted.
            done_rows: Those that an earlier run has published.
            tasks: Tells of the batch in work, for batches that last.
            clock: A clock that goes forward only.
        """
        super().__init__(out, clock=clock)
        self._told_s = 0.0
        self._total_rows = total_rows
        self._before_rows = done_rows
        self._tasks = tasks
        self.rows = 0
        """Published by this run."""
        self._size_bytes = 0
        self._took_s = 0.0
        """All batches, without the start of the query."""

    @property
    def done_rows(self) -> int:
        """Published by this run and those before it."""
        return self._before_rows + self.rows

    def replayed(self, rows: int, size_bytes: int, took_s: float) -> None:
        """Count what a batch has published, which took *took_s*."""
        self.rows += rows
        self._took_s += took_s
        self._size_bytes += size_bytes
        age_s = self._line.age_s()
        if rows and not self._line.is_terminal and age_s - self._told_s >= _LOG_S:
            self._told_s = age_s
            logger.info("replaying", **self._fields(), left_s=self._left_s())

    def batch(self, batch: Batch) -> None:
        """Nothing: what Spark has read is not what was published."""

    def text(self) -> str:
        """Return the line that moves."""
        total = max(self._total_rows, self.done_rows)
        share = self.done_rows / total if total else 1.0
        parts = [f"{bar_of(share)} {self.done_rows:,} of {total:,} rows", f"{self._rate():,.0f}/s"]
        left_s = self._left_s()
        parts.append("time left not known yet" if left_s is None else f"{as_clock(left_s)} left")
        with contextlib.suppress(Exception):  # of a JVM that has gone
            tasks = self._tasks()
            if tasks is not None:
                parts.append(f"this batch {tasks[0]} of {tasks[1]} tasks")
        return ", ".join(parts)

    def end(self) -> None:
        """Leave the sum: on a line of its own, or in the log."""
        elapsed = as_clock(self._line.age_s())
        self._line.end(f"{self.done_rows:,} of {self._total_rows:,} rows are replayed, {elapsed}")
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
