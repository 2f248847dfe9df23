"""The report of a drain."""

from __future__ import annotations

from structlog.testing import capture_logs

from gateway.server.gateway import KINDS, DrainReport
from gateway.telemetry import REGISTRY


def shown(metric: str, **labels: str) -> float | None:
    return REGISTRY.get_sample_value(f"nsq_gateway_{metric}", labels)


def test_a_drain_is_told_once_with_what_was_cut() -> None:
    """The log and the metrics have the aborted sockets, messages and requests."""
    account = DrainReport()
    before = {kind: shown("drain_cut_total", kind=kind) or 0.0 for kind in KINDS}

    with capture_logs() as lines:
        account.start_clock()
        account.stop_clock()
        account.drained, account.requeued_on_close = 7, 3
        account.add_aborted("sockets", 2)
        account.add_aborted("messages", 5)
        account.log()
        account.log()

    after = {kind: shown("drain_cut_total", kind=kind) or 0.0 for kind in KINDS}
    [line] = lines
    assert line.pop("took_s") == round(shown("drain_duration_seconds") or -1.0, 3)
    assert {
        "event": "drained",
        "log_level": "info",
        "sockets": 7,
        "requeued_on_close": 3,
        "aborted_sockets": 2,
        "aborted_messages": 5,
        "aborted_requests": 0,
    } == line
    assert [2, 5, 0] == [after[kind] - before[kind] for kind in KINDS]


def test_where_no_drain_has_begun_none_is_told() -> None:
    """A failed start is stopped without a drain."""
    with capture_logs() as lines:
        DrainReport().log()

    assert [] == lines
