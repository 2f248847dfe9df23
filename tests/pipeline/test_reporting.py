"""What a person, or the log, is told of a job that goes on."""

from __future__ import annotations

import io
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from gateway.pipeline import reporting
from gateway.pipeline.reporting import Batch, Report, Steps


class Clock:
    """A clock that is moved."""

    now = 0.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now


class Screen(io.StringIO):
    """A terminal, of no known width."""

    def isatty(self) -> bool:
        """Say so."""
        return True


def batch(number: int, rows: int, **changed: Any) -> Batch:  # noqa: ANN401 - any field
    """Return a batch."""
    values = {"took_s": 0.5, "rows_per_second": 100.0, "waiting": 7} | changed
    return Batch(number=number, rows=rows, **values)


@pytest.fixture(autouse=True)
def _fresh_logger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporting, "logger", structlog.get_logger())


def test_the_line_says_rows_rate_batch_and_what_is_behind() -> None:
    """And for how long it goes on."""
    clock = Clock()
    report = Report(Screen(), clock=clock)
    report.batch(batch(3, 1_234, rows_per_second=2_500.4))
    clock.now = 65

    expected = "1,234 rows, 2,500/s, batch 3: 1,234 rows in 0.5 s, 7 behind, 1:05"
    assert expected == report.text()


def test_before_the_first_batch_it_says_so() -> None:
    """Spark takes ten seconds to it."""
    assert "0 rows, waiting for the first batch, 0:00" == Report(Screen(), clock=Clock()).text()


def test_when_nothing_comes_the_rate_is_none() -> None:
    """The last batch is not told for ever as if it went on."""
    report = Report(Screen(), clock=Clock())
    report.batch(batch(3, 10))
    report.idle()

    assert "10 rows, 0/s, batch 3, 7 behind, 0:00" == report.text()


def test_a_terminal_has_the_sum_at_the_end_and_the_log_nothing() -> None:
    """On a line of its own."""
    screen = Screen()
    report = Report(screen, clock=Clock())
    with capture_logs() as lines:
        report.start()
        report.batch(batch(0, 10))
        report.end()

    assert screen.getvalue().endswith("10 rows in 1 batch, 0:00\n")
    assert [] == lines


def test_the_log_has_a_line_in_ten_seconds_at_most() -> None:
    """With what came since the last one."""
    clock = Clock()
    report = Report(io.StringIO(), clock=clock)
    with capture_logs() as lines:
        for number in range(20):
            clock.now = float(number)
            report.batch(batch(number, 100))
        report.end()

    first, last = lines
    assert ("rows written", 1_100, 11, 110) == (
        first["event"],
        first["rows"],
        first["batches"],
        first["rows_per_second"],
    )
    assert ("job ended", 2_000, 20) == (last["event"], last["rows"], last["batches"])


def test_a_batch_without_rows_is_no_line() -> None:
    """Spark tells of some."""
    clock = Clock()
    report = Report(io.StringIO(), clock=clock)
    clock.now = 60
    with capture_logs() as lines:
        report.batch(batch(0, 0))

    assert [] == lines


def test_steps_are_a_bar() -> None:
    """How many of how many, and what is worked at."""
    screen = Screen()
    with Steps(screen, 4, "hours") as steps:
        steps.begin("orders 2026-11-22 04:00")
        steps.done(1_000)

    assert screen.getvalue().endswith("█████░░░░░░░░░░░░░░░ 1/4 hours, 1,000 rows, 0:00\n")


def test_steps_say_nothing_where_nobody_looks() -> None:
    """The log tells of each hour."""
    out = io.StringIO()
    with Steps(out, 4, "hours") as steps:
        steps.done(1)

    assert "" == out.getvalue()
