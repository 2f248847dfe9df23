"""What one task publishes: its window of batches without an answer, its pace, its bad rows."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage

from gateway.errors import BrokerRefused, GatewayError, NoBroker, OutcomeUnknown, RowRefused
from gateway.pipeline.outlet import LimitLearned, Outlet
from gateway.pipeline.sink_rows import (
    BadRow,
    Layout,
    RowLimits,
    Rows,
    batches,
    dead_letters,
    name_of,
    rows_of,
    sift,
)
from gateway.telemetry import get_logger

logger = get_logger()

_SHOWN_KEYS = 5
_SMOOTHING = 4
"""With a rate, so many commands a second at least."""
_GRACE_S = 10.0
"""How much later than it should an outlet may come to its end before a task stops waiting."""


@dataclass
class Published(WriterCommitMessage):
    """What a task has published, as nsqd said OK to it."""

    rows: int
    size_bytes: int
    bad_rows: int = 0
    """Rows that the dead-letter topic was told of."""
    repeated_rows: int = 0
    """Rows of batches that were sent again because an answer was lost: duplicates, perhaps."""


class Pace:
    """An even share of a rate: what was published is waited for behind it."""

    def __init__(
        self,
        rate_per_s: float,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], object] | None = None,
    ) -> None:
        self._rate_per_s = rate_per_s
        self._clock = clock
        self._wait = wait or threading.Event().wait
        self._free_at = clock()

    def published(self, count: int) -> None:
        """Return when *count* messages may have taken their time; at once without a rate."""
        if not self._rate_per_s:
            return
        # Time in which nothing came is not saved up for later.
        self._free_at = max(self._free_at, self._clock()) + count / self._rate_per_s
        while (left_s := self._free_at - self._clock()) > 0:
            self._wait(min(left_s, 1.0))


class Window:
    """What one task publishes, as far as it waits for its OK."""

    def __init__(self, outlet: Outlet) -> None:
        self._outlet = outlet
        self._most = outlet.settings.max_unanswered
        self._wait_s = outlet.settings.answer_timeout_ms / 1_000 + _GRACE_S
        self._waiting: deque[tuple[Rows, Future[None]]] = deque()
        self.sent_rows = 0
        """Those that nsqd has said OK to."""
        self.sent_bytes = 0
        """The bodies of those."""
        self.is_careful = False
        """Whether nothing is sent before all has its OK."""
        self.too_much: deque[Rows] = deque()
        """Not published, for nsqd takes less than was known: whoever sent it cuts it anew."""

    @property
    def unanswered_rows(self) -> int:
        """Those that are on their way and have no OK."""
        return sum(len(rows.bodies) for rows, _ in self._waiting)

    def send(self, rows: Rows) -> None:
        """Publish *rows*, a part of `batches`, once there is room for it; raises as `finish`."""
        while len(self._waiting) >= (1 if self.is_careful else self._most):
            self._settle()
        self._waiting.append((rows, self._outlet.publish(rows)))

    def finish(self) -> None:
        """Wait for each OK; raises as `Outlet.publish` does."""
        while self._waiting:
            self._settle()

    def _settle(self) -> None:
        rows, outcome = self._waiting[0]
        try:
            outcome.result(self._wait_s)
        except LimitLearned:
            self._waiting.popleft()
            self.too_much.append(rows)
            return
        except TimeoutError:
            text = (
                f"no end of {len(rows.bodies)} rows for topic {rows.topic} within {self._wait_s} s"
            )
            raise OutcomeUnknown(text) from None
        self._waiting.popleft()
        self.sent_rows += len(rows.bodies)
        self.sent_bytes += int(rows.sizes_bytes.sum())

    def cancel(self) -> None:
        """Wait for nothing more, and try nothing again."""
        for _, outcome in self._waiting:
            outcome.cancel()


class Task:
    """The rows of one partition on their way to nsqd."""

    def __init__(self, outlet: Outlet, layout: Layout, partition: int, pace: Pace) -> None:
        self._outlet = outlet
        self._settings = outlet.settings
        self._layout = layout
        self._partition = partition
        self._pace = pace
        self._window = Window(outlet)
        self._bad: list[str] = []
        """The keys of the first bad rows."""
        self._bad_count = 0
        self._letters_count = 0
        self._letters_bytes = 0
        self._seen = 0

    def run(self, record_batches: Iterator[pa.RecordBatch]) -> Published:
        """Publish all of *record_batches*; raises as `Outlet.publish` does, and RowRefused."""
        repeated = self._outlet.repeated_rows
        try:
            for batch in record_batches:
                named, bad = rows_of(batch, self._layout, self._seen)
                self._seen += batch.num_rows
                self._send(named, bad)
                self._send_again()
            self._finish()
        except BaseException as error:
            self._window.cancel()
            if isinstance(error, RowRefused) or not isinstance(error, GatewayError):
                raise
            raise self._told(error) from error
        if self._bad_count:
            logger.warning(
                "rows went to the dead-letter topic",
                topic=self._settings.dead_letter_topic,
                rows=self._bad_count,
                partition=self._partition,
                keys=self._bad,
            )
        return Published(
            self._window.sent_rows - self._letters_count,
            self._window.sent_bytes - self._letters_bytes,
            self._bad_count,
            self._outlet.repeated_rows - repeated,
        )

    def _finish(self) -> None:
        """Return when there is an OK for all that was sent."""
        self._window.finish()
        while self._window.too_much:
            self._send_again()
            self._window.finish()

    def _send_again(self) -> None:
        # nsqd may have another limit that is not known yet, and closes behind a refusal: what it
        # had not answered by then would be published twice.
        self._window.is_careful = True
        while self._window.too_much:
            self._send([self._window.too_much.popleft()], [])
        self._window.is_careful = False

    def _send(self, named: Sequence[Rows], bad: list[BadRow]) -> None:
        """Publish the good ones, and tell of the others."""
        limits = self._limits()
        good: list[Rows] = []
        for rows in named:
            kept, refused = sift(rows, limits)
            good.append(kept)
            bad += refused
        if bad:
            self._refuse(bad, limits)
        for rows in good:
            for part in batches(rows, limits):
                self._window.send(part)
                self._pace.published(len(part.bodies))

    def _limits(self) -> RowLimits:
        limits = self._outlet.limits
        share = self._settings.rate / max(1, self._settings.rate_tasks)
        if not share:
            return limits
        return limits._replace(batch_rows=min(limits.batch_rows, max(1, int(share / _SMOOTHING))))

    def _refuse(self, bad: list[BadRow], limits: RowLimits) -> None:
        """Fail, or tell the dead-letter topic of the rows in *bad*."""
        bad.sort(key=lambda row: row.number)
        if self._settings.bad_rows == "fail":
            # What stood before it is on its way.
            self._finish()
            first = bad[0]
            raise RowRefused(
                name_of(first, self._partition),
                f"{first.reason}: {first.detail} (topic {first.topic!r}, partition "
                f"{self._partition}, row {first.number}; {len(bad)} such rows are seen so far, "
                f"{self._window.sent_rows} rows of this task are published). Correct it, or say "
                "badRows=dead-letter",
            )
        topic = self._settings.dead_letter_topic
        letters, refused = sift(dead_letters(bad, topic, self._partition), limits)
        if refused:
            first = bad[0]
            raise RowRefused(
                name_of(first, self._partition),
                f"{first.reason}: {first.detail}; what tells {topic} of it is not taken: "
                f"{refused[0].detail}",
            )
        self._bad_count += len(bad)
        room = _SHOWN_KEYS - len(self._bad)
        self._bad += [name_of(row, self._partition) for row in bad[:room]]
        for part in batches(letters, limits):
            self._window.send(part)
            self._pace.published(len(part.bodies))
            self._letters_count += len(part.bodies)
            self._letters_bytes += int(part.sizes_bytes.sum())

    def _told(self, error: GatewayError) -> GatewayError:
        """Return *error* with how far the task has come."""
        how_far = (
            f"partition {self._partition}: {self._window.sent_rows} rows have their OK, "
            f"{self._window.unanswered_rows} were on their way and have none, the others were not "
            "sent"
        )
        if isinstance(error, BrokerRefused):
            return BrokerRefused(error.code, f"{error.description}; {how_far}")
        if isinstance(error, NoBroker):
            return NoBroker(f"{error}; {how_far}")
        if isinstance(error, OutcomeUnknown):
            return OutcomeUnknown(f"{error}; {how_far}")
        return error
