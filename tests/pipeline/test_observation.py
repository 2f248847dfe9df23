"""What is counted of a query, and when it is well."""

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

from gateway.pipeline.failures import Failure
from gateway.pipeline.observation import _LAST, Observation, SourceStanding, standing_of
from gateway.pipeline.reporting import Report
from gateway.telemetry import REGISTRY

RUN = uuid4()


class Clock:
    """A clock that is moved."""

    now = 100.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now


def observation(clock: Clock, trigger_s: float = 60) -> Observation:
    """Return one that nobody has told anything."""
    return Observation(Report(io.StringIO(), clock=clock), trigger_s, now=clock)


def started() -> QueryStartedEvent:
    """Return what Spark says when a query begins."""
    return QueryStartedEvent(RUN, RUN, "q", "2026-11-22T04:00:00.000Z", set())


def terminated(run: Any = RUN, error: str | None = None) -> QueryTerminatedEvent:  # noqa: ANN401
    """Return what Spark says when a query has ended."""
    return QueryTerminatedEvent(RUN, run, error, None)


def progress(query: str) -> dict[str, Any]:
    """Return what Spark says of a batch."""
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
    """Return what /metrics shows."""
    return REGISTRY.get_sample_value(f"nsq_gateway_pipeline_{name}", labels)


def test_a_batch_is_counted() -> None:
    """Its rows, its time by phase, and what its sources say together."""
    watched = observation(Clock())
    before = sample("batch_duration_seconds_count", phase="addBatch") or 0

    watched.progress(progress("counted"))

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


def test_what_nobody_says_is_not_shown() -> None:
    """A depth of 0 would mean that nothing waits."""
    observation(Clock()).progress(progress("silent"))

    assert sample("source_depth_messages", query="silent") is None


def test_what_nobody_says_any_more_is_not_shown() -> None:
    """An old depth would look like one of now."""
    watched = observation(Clock())
    told = progress("hushed")
    told["sources"] = [{"latestOffset": {"depth": 9, "buffered": 1}}]
    watched.progress(told)
    assert 9 == sample("source_depth_messages", query="hushed")

    watched.progress(progress("hushed"))

    assert sample("source_depth_messages", query="hushed") is None
    assert 6 == sample("source_buffered_messages", query="hushed")


@pytest.mark.parametrize("report", [None, "", "null", "no JSON", "[1]", '{"depth": "x"}'])
def test_a_report_of_no_use_is_none(report: str | None) -> None:
    """Another source than ours says what it likes."""
    assert SourceStanding(None, None, None, None) == standing_of([report])


def test_what_no_batch_has_yet_is_waiting() -> None:
    """Here, or in nsqd; what is in a batch is done soon."""
    standing = standing_of(['{"buffered": 5, "in_flight": 30, "depth": 100}'])

    assert 105 == standing.waiting


def test_it_is_ready_while_a_query_tells_something() -> None:
    """A batch, or that there is nothing; three triggers without a word are too many."""
    clock = Clock()
    watched = observation(clock)
    assert (False, "starting") == watched.readiness()

    watched.onQueryStarted(started())
    clock.now += 180
    assert (True, "ready") == watched.readiness()

    clock.now += 1
    is_ready, words = watched.readiness()
    assert not is_ready
    assert "the query has told nothing for 181 s, the limit is 180 s (3 triggers)" == words

    watched.onQueryIdle(QueryIdleEvent(RUN, RUN, ""))
    assert watched.readiness()[0]


def test_to_be_idle_is_a_word_of_the_query_that_runs() -> None:
    """Spark does not name it; without a batch for long it would look as if it hung."""
    watched = observation(Clock())
    watched.onQueryStarted(started())
    _LAST.labels("q").set(0)

    watched.onQueryIdle(QueryIdleEvent(RUN, RUN, ""))

    assert sample("last_progress_timestamp_seconds", query="q")


def test_that_an_earlier_run_was_idle_says_nothing_of_this_one() -> None:
    """Spark's words may come late."""
    watched = observation(Clock())
    watched.onQueryStarted(started())
    _LAST.labels("q").set(0)

    watched.onQueryIdle(QueryIdleEvent(RUN, uuid4(), ""))

    assert 0 == sample("last_progress_timestamp_seconds", query="q")


def test_a_short_trigger_gives_as_long_as_spark_takes_to_say_that_nothing_comes() -> None:
    """That is once in ten seconds."""
    clock = Clock()
    watched = observation(clock, trigger_s=0)
    watched.onQueryStarted(started())
    clock.now += 30

    assert watched.readiness()[0]


def test_a_query_that_failed_is_not_ready_until_it_runs_again() -> None:
    """It says why, and counts it."""
    watched = observation(Clock())
    watched.onQueryStarted(started())
    watched.restarted(Failure("SomeError", "no", can_heal=True))
    watched.onQueryTerminated(terminated(error="x"))

    words = "the query failed and is started again: SomeError: no"
    assert (False, words) == watched.readiness()
    assert 1 == sample("query_restarts_total", error="SomeError")
    watched.onQueryStarted(started())
    assert watched.readiness()[0]


def test_the_end_of_an_earlier_query_is_none_of_this_one() -> None:
    """Spark's words may come late."""
    watched = observation(Clock())
    watched.onQueryStarted(started())
    watched.onQueryTerminated(terminated(run=uuid4()))
    assert watched.readiness()[0]

    watched.onQueryTerminated(terminated())
    assert (False, "the query has ended") == watched.readiness()
