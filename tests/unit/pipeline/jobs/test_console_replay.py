"""The progress of a replay, on a terminal and in the log."""

from __future__ import annotations

import io

from structlog.testing import capture_logs

from gateway.pipeline.jobs.console import ReplayReport, TaskCount


class Terminal(io.StringIO):
    """A text stream that claims to be a terminal."""

    def isatty(self) -> bool:
        """Return True."""
        return True


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now_s


def _report(out: io.StringIO, clock: Clock, tasks: TaskCount | None = None) -> ReplayReport:
    return ReplayReport(out, total_rows=1_000, done_rows=400, tasks=lambda: tasks, clock=clock)


def test_a_bar_shows_share_rate_and_time_left() -> None:
    """Rows of earlier runs count as done, but not for the rate."""
    clock = Clock()
    report = _report(Terminal(), clock, (3, 8))

    before = report.text()
    clock.now_s += 10
    report.add_rows(100, 900, 5.0)

    assert "████████░░░░░░░░░░░░ 400 of 1,000 rows, 0/s, time left unknown" in before
    assert (
        "██████████░░░░░░░░░░ 500 of 1,000 rows, 20/s, 0:25 left, this batch 3 of 8 tasks"
        == report.text()
    )


def test_more_rows_than_were_counted_are_no_more_than_all() -> None:
    """The archive may grow, and a batch may be published twice after a kill."""
    report = _report(Terminal(), Clock())

    report.add_rows(700, 0, 1.0)

    assert report.text().startswith("████████████████████ 1,100 of 1,100 rows")


def test_a_lost_jvm_does_not_break_the_line() -> None:
    """The line queries the JVM for the tasks."""

    def lost() -> TaskCount | None:
        raise ConnectionError

    report = ReplayReport(Terminal(), total_rows=0, done_rows=0, tasks=lost)

    assert "0 of 0 rows" in report.text()


def test_the_sum_stays_on_the_terminal() -> None:
    """The totals are on their own line."""
    clock, out = Clock(), Terminal()
    report = _report(out, clock)

    report.add_rows(600, 0, 1.0)
    clock.now_s += 75
    report.end()

    assert out.getvalue().endswith("1,000 of 1,000 rows replayed, 1:15\n")


def test_without_a_terminal_the_log_has_a_line_every_ten_seconds_and_the_sum() -> None:
    """Nothing is drawn."""
    clock, out = Clock(), io.StringIO()
    report = _report(out, clock)

    with capture_logs() as logs:
        for _ in range(4):
            clock.now_s += 5
            report.add_rows(50, 100, 5.0)
        report.end()

    assert "" == out.getvalue()
    assert ["replaying", "replaying", "replay ended"] == [line["event"] for line in logs]
    assert {"rows": 100, "done_rows": 500, "left_s": 50}.items() <= logs[0].items()
    assert {"rows": 200, "bytes": 400, "done_rows": 600, "total_rows": 1_000}.items() <= logs[
        -1
    ].items()
