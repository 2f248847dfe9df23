"""Metrics and readiness of a query."""

from __future__ import annotations

import io
from typing import Any
from uuid import uuid4

import pytest
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
)

from gateway.pipeline.jobs.console import ProgressReport
from gateway.pipeline.jobs.failures import Failure
from gateway.pipeline.jobs.monitoring import (
    _LAST,
    QueryMonitor,
    SourceTotals,
    _backlog_hint,
    sum_sources,
)
from gateway.settings.pipeline import ArchiveSettings
from gateway.telemetry import REGISTRY

RUN = uuid4()


class Clock:
    """A clock that a test sets."""

    now = 100.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now


def monitor(clock: Clock, trigger_s: float = 60) -> QueryMonitor:
    """Return a monitor without events."""
    return QueryMonitor(ProgressReport(io.StringIO(), clock=clock), trigger_s, now=clock)


def started() -> QueryStartedEvent:
    """Return Spark's event for a started query."""
    return QueryStartedEvent(RUN, RUN, "q", "2026-11-22T04:00:00.000Z", set())


def terminated(run: Any = RUN, error: str | None = None) -> QueryTerminatedEvent:  # noqa: ANN401
    """Return Spark's event for an ended query."""
    return QueryTerminatedEvent(RUN, run, error, None)


def progress(query: str) -> dict[str, Any]:
    """Return Spark's progress of a batch."""
    return {
        "name": query,
        "batchId": 7,
        "numInputRows": 400,
        "inputRowsPerSecond": "NaN",
        "processedRowsPerSecond": 250.5,
        "durationMs": {"triggerExecution": 800, "addBatch": 600, "somethingNew": 1},
        "stateOperators": [{"numRowsTotal": 3}, {"numRowsTotal": 4}],
        "sources": [
            {"latestOffset": '{"buffered": 5, "in_flight": 405, "depth": null}'},
            {"latestOffset": {"buffered": 1, "in_flight": 2, "oldest_unfinished_s": 1.5}},
            {"latestOffset": None},
        ],
    }


def sample(name: str, **labels: str) -> float | None:
    """Return a sample of the registry."""
    return REGISTRY.get_sample_value(f"nsq_gateway_pipeline_{name}", labels)


def test_a_batch_is_counted() -> None:
    """Its rows, its duration by phase, and the totals of its sources."""
    watched = monitor(Clock())
    before = sample("batch_duration_seconds_count", phase="addBatch") or 0

    watched.on_progress(progress("counted"))

    query = {"query": "counted"}
    assert (1, 400) == (sample("batches_total", **query), sample("input_rows_total", **query))
    assert (0, 250.5) == (
        sample("input_rows_per_second", **query),
        sample("processed_rows_per_second", **query),
    )
    assert (7, 7) == (sample("batch_id", **query), sample("state_rows", **query))
    assert 1 == (sample("batch_duration_seconds_count", phase="addBatch") or 0) - before
    assert (6, 407, 1.5) == (
        sample("source_buffered_messages", **query),
        sample("source_in_flight_messages", **query),
        sample("source_oldest_unfinished_seconds", **query),
    )


def test_an_unknown_gauge_is_not_exported() -> None:
    """A depth of 0 would mean an empty channel."""
    monitor(Clock()).on_progress(progress("silent"))

    assert sample("source_depth_messages", query="silent") is None


def test_a_gauge_that_became_unknown_is_removed() -> None:
    """An old depth would look current."""
    watched = monitor(Clock())
    told = progress("hushed")
    told["sources"] = [{"latestOffset": {"depth": 9, "buffered": 1}}]
    watched.on_progress(told)
    assert 9 == sample("source_depth_messages", query="hushed")

    watched.on_progress(progress("hushed"))

    assert sample("source_depth_messages", query="hushed") is None
    assert 6 == sample("source_buffered_messages", query="hushed")


@pytest.mark.parametrize("report", [None, "", "null", "no JSON", "[1]", '{"depth": "x"}'])
def test_an_unusable_report_is_none(report: str | None) -> None:
    """Other sources may report anything."""
    assert SourceTotals(None, None, None, None) == sum_sources([report])


def test_messages_without_a_batch_are_waiting() -> None:
    """Here or in nsqd; messages in a batch do not count."""
    standing = sum_sources(['{"buffered": 5, "in_flight": 30, "depth": 100}'])

    assert 105 == standing.waiting


def test_it_is_ready_while_a_query_tells_something() -> None:
    """A batch or an idle event; after three triggers without events it is not ready."""
    clock = Clock()
    watched = monitor(clock)
    assert (False, "starting") == watched.describe_readiness()

    watched.onQueryStarted(started())
    clock.now += 180
    assert (True, "ready") == watched.describe_readiness()

    clock.now += 1
    is_ready, words = watched.describe_readiness()
    assert not is_ready
    assert "the query has reported nothing for 181 s, the limit is 180 s (3 triggers)" == words

    watched.onQueryIdle(QueryIdleEvent(RUN, RUN, ""))
    assert watched.describe_readiness()[0]


def test_to_be_idle_is_a_word_of_the_query_that_runs() -> None:
    """An idle event has no query name; without it an idle query would look stuck."""
    watched = monitor(Clock())
    watched.onQueryStarted(started())
    _LAST.labels("q").set(0)

    watched.onQueryIdle(QueryIdleEvent(RUN, RUN, ""))

    assert sample("last_progress_timestamp_seconds", query="q")


def test_that_an_earlier_run_was_idle_says_nothing_of_this_one() -> None:
    """Spark's events may be late."""
    watched = monitor(Clock())
    watched.onQueryStarted(started())
    _LAST.labels("q").set(0)

    watched.onQueryIdle(QueryIdleEvent(RUN, uuid4(), ""))

    assert 0 == sample("last_progress_timestamp_seconds", query="q")


def test_a_short_trigger_allows_for_idle_events() -> None:
    """Idle events arrive every ten seconds."""
    clock = Clock()
    watched = monitor(clock, trigger_s=0)
    watched.onQueryStarted(started())
    clock.now += 30

    assert watched.describe_readiness()[0]


def test_a_query_that_failed_is_not_ready_until_it_runs_again() -> None:
    """/readyz has the reason, and the restart is counted."""
    watched = monitor(Clock())
    watched.onQueryStarted(started())
    watched.on_restart(Failure("SomeError", "no", is_retryable=True))
    watched.onQueryTerminated(terminated(error="x"))

    words = "the query failed and will be restarted: SomeError: no"
    assert (False, words) == watched.describe_readiness()
    assert 1 == sample("query_restarts_total", error="SomeError")
    watched.onQueryStarted(started())
    assert watched.describe_readiness()[0]


def test_the_end_of_an_earlier_query_is_ignored() -> None:
    """Spark's events may be late."""
    watched = monitor(Clock())
    watched.onQueryStarted(started())
    watched.onQueryTerminated(terminated(run=uuid4()))
    assert watched.describe_readiness()[0]

    watched.onQueryTerminated(terminated())
    assert (False, "the query has ended") == watched.describe_readiness()


@pytest.mark.parametrize(
    "given,is_blind",
    [
        ({"available_now": True}, True),
        ({"available_now": True, "nsqd_http_address": "127.0.0.1:4151"}, False),
        ({"available_now": False}, False),
    ],
)
def test_an_available_now_run_without_http_logs_a_hint(
    given: dict[str, Any], *, is_blind: bool
) -> None:
    """Messages in flight to a killed run return after their timeout, when this run has ended."""
    basics = {"topic": "t", "output": "/x", "nsqd_tcp_address": "127.0.0.1:4150"}
    settings = ArchiveSettings.model_validate(basics | given)

    hint = _backlog_hint(settings)

    assert (is_blind, is_blind) == (bool(hint), "--nsqd-http-address" in hint)
