"""The progress of a job, on a terminal and in the log."""

from __future__ import annotations

import io
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from gateway.pipeline.jobs import console as reporting
from gateway.pipeline.jobs.console import FinishedBatch, ProgressBar, ProgressReport


class Clock:
    """A clock that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now


class Screen(io.StringIO):
    """A terminal of unknown width."""

    def isatty(self) -> bool:
        """Return True."""
        return True


def batch(number: int, rows: int, **changed: Any) -> FinishedBatch:  # noqa: ANN401 - any field
    """Return a batch."""
    values = {"took_s": 0.5, "rows_per_second": 100.0, "waiting": 7} | changed
    return FinishedBatch(number=number, rows=rows, **values)


@pytest.fixture(autouse=True)
def _fresh_logger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporting, "logger", structlog.get_logger())


def test_the_line_shows_rows_rate_batch_and_backlog() -> None:
    """And the time since the start."""
    clock = Clock()
    report = ProgressReport(Screen(), clock=clock)
    report.add_batch(batch(3, 1_234, rows_per_second=2_500.4))
    clock.now = 65

    expected = "1,234 rows, 2,500/s, batch 3: 1,234 rows in 0.5 s, 7 behind, 1:05"
    assert expected == report.text()


def test_the_line_waits_for_the_first_batch() -> None:
    """Spark needs ten seconds until then."""
    assert (
        "0 rows, waiting for the first batch, 0:00"
        == ProgressReport(Screen(), clock=Clock()).text()
    )


def test_the_rate_of_an_idle_query_is_0() -> None:
    """The last batch's rate and backlog are not shown for ever."""
    report = ProgressReport(Screen(), clock=Clock())
    report.add_batch(batch(3, 10))
    report.idle()

    assert "10 rows, 0/s, batch 3, 0:00" == report.text()


def test_a_terminal_has_the_sum_at_the_end_and_the_log_nothing() -> None:
    """The totals are on their own line."""
    screen = Screen()
    report = ProgressReport(screen, clock=Clock())
    with capture_logs() as lines:
        report.start()
        report.add_batch(batch(0, 10))
        report.end()

    assert screen.getvalue().endswith("10 rows in 1 batch, 0:00\n")
    assert [] == lines


def test_the_log_has_a_line_in_ten_seconds_at_most() -> None:
    """With the totals since the last line."""
    clock = Clock()
    report = ProgressReport(io.StringIO(), clock=clock)
    with capture_logs() as lines:
        for number in range(20):
            clock.now = float(number)
            report.add_batch(batch(number, 100))
        report.end()

    first, last = lines
    assert ("rows written", 1_100, 11, 110) == (
        first["event"],
        first["rows"],
        first["batches"],
        first["rows_per_second"],
    )
    assert (7, 0.5) == (first["waiting"], first["waiting_age_s"])
    assert ("job ended", 2_000, 20) == (last["event"], last["rows"], last["batches"])


def test_a_batch_without_rows_is_no_line() -> None:
    """Spark also reports batches without rows."""
    clock = Clock()
    report = ProgressReport(io.StringIO(), clock=clock)
    clock.now = 60
    with capture_logs() as lines:
        report.add_batch(batch(0, 0))

    assert [] == lines


def test_steps_are_a_bar() -> None:
    """With finished and total steps, and the current one."""
    screen = Screen()
    with ProgressBar(screen, 4, "hours") as steps:
        steps.begin_step("orders 2026-11-22 04:00")
        steps.end_step(1_000)

    assert screen.getvalue().endswith("█████░░░░░░░░░░░░░░░ 1/4 hours, 1,000 rows, 0:00\n")


def test_a_bar_draws_nothing_without_a_terminal() -> None:
    """The log has a line for each hour instead."""
    out = io.StringIO()
    with ProgressBar(out, 4, "hours") as steps:
        steps.end_step(1)

    assert "" == out.getvalue()


def test_the_last_line_has_the_hint() -> None:
    """On a terminal and in the log: 0 rows need not mean an empty channel."""
    screen, hint = Screen(), "messages in flight are not counted"
    ProgressReport(screen, hint=hint, clock=Clock()).end()
    with capture_logs() as logs:
        ProgressReport(io.StringIO(), hint=hint, clock=Clock()).end()

    assert f"0 rows in 0 batches, 0:00; {hint}" in screen.getvalue()
    assert [hint] == [each["hint"] for each in logs]
