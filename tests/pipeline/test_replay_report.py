"""How far a replay is, on a terminal and in the log."""

from __future__ import annotations

import io

from structlog.testing import capture_logs

from gateway.pipeline.replay_report import ReplayReport, Tasks


class Terminal(io.StringIO):
    """Says that it is one."""

    def isatty(self) -> bool:
        """Return True."""
        return True


class Clock:
    """Shows what a test sets."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        """Return it."""
        return self.now_s


def _report(out: io.StringIO, clock: Clock, tasks: Tasks | None = None) -> ReplayReport:
    return ReplayReport(out, total_rows=1_000, done_rows=400, tasks=lambda: tasks, clock=clock)


def test_a_bar_shows_share_rate_and_what_is_left() -> None:
    """Rows of an earlier run are done, and are none of the rate."""
    clock = Clock()
    report = _report(Terminal(), clock, (3, 8))

    before = report.text()
    clock.now_s += 10
    report.replayed(100, 900, 5.0)

    assert "████████░░░░░░░░░░░░ 400 of 1,000 rows, 0/s, time left not known yet" in before
    assert (
        "██████████░░░░░░░░░░ 500 of 1,000 rows, 20/s, 0:25 left, this batch 3 of 8 tasks"
        == report.text()
    )


def test_more_rows_than_were_counted_are_no_more_than_all() -> None:
    """An archive grows; a batch that was in work at a kill is published twice."""
    report = _report(Terminal(), Clock())

    report.replayed(700, 0, 1.0)

    assert report.text().startswith("████████████████████ 1,100 of 1,100 rows")


def test_a_lost_jvm_takes_nothing_from_the_line() -> None:
    """It is asked for the tasks."""

    def lost() -> Tasks | None:
        raise ConnectionError

    report = ReplayReport(Terminal(), total_rows=0, done_rows=0, tasks=lost)

    assert "0 of 0 rows" in report.text()


def test_the_sum_stays_on_the_terminal() -> None:
    """On a line of its own."""
    clock, out = Clock(), Terminal()
    report = _report(out, clock)

    report.replayed(600, 0, 1.0)
    clock.now_s += 75
    report.end()

    assert out.getvalue().endswith("1,000 of 1,000 rows are replayed, 1:15\n")


def test_without_a_terminal_the_log_has_a_line_every_ten_seconds_and_the_sum() -> None:
    """And nothing is drawn."""
    clock, out = Clock(), io.StringIO()
    report = _report(out, clock)

    with capture_logs() as logs:
        for _ in range(4):
            clock.now_s += 5
            report.replayed(50, 100, 5.0)
        report.end()

    assert "" == out.getvalue()
    assert ["replaying", "replaying", "replay ended"] == [line["event"] for line in logs]
    assert {"rows": 100, "done_rows": 500, "left_s": 50}.items() <= logs[0].items()
    assert {"rows": 200, "bytes": 400, "done_rows": 600, "total_rows": 1_000}.items() <= logs[
        -1
    ].items()
