"""What a query does, for Prometheus, for probes, and for who looks at it."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, NamedTuple

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
)

from gateway.pipeline.failures import Failure
from gateway.pipeline.management import management
from gateway.pipeline.progress import ProgressListener, listening
from gateway.pipeline.reporting import Batch, Report
from gateway.settings_jobs import StreamJobSettings
from gateway.telemetry import OTHER, FirstNames, counter, gauge, get_logger, histogram

logger = get_logger()

_QUERY = ("query",)
_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_BATCHES = counter("pipeline_batches_total", "Batches that are done.", _QUERY)
_ROWS = counter("pipeline_input_rows_total", "Rows of the batches that are done.", _QUERY)
_INPUT_RATE = gauge(
    "pipeline_input_rows_per_second", "Rows of the last batch by the time since the last.", _QUERY
)
_PROCESSED_RATE = gauge(
    "pipeline_processed_rows_per_second", "Rows of the last batch by the time it took.", _QUERY
)
_DURATION = histogram(
    "pipeline_batch_duration_seconds", "What a batch took, by phase.", ("phase",), buckets=_BUCKETS
)
_BATCH_ID = gauge("pipeline_batch_id", "The number of the last batch.", _QUERY)
_BUFFERED = gauge("pipeline_source_buffered_messages", "Here, and in no batch yet.", _QUERY)
_IN_FLIGHT = gauge("pipeline_source_in_flight_messages", "Here, and not finished.", _QUERY)
_DEPTH = gauge("pipeline_source_depth_messages", "Waiting in nsqd for this stream.", _QUERY)
_OLDEST = gauge(
    "pipeline_source_oldest_unfinished_seconds", "Age of the oldest that is not finished.", _QUERY
)
_RESTARTS = counter(
    "pipeline_query_restarts_total", "Queries that failed and were started again.", ("error",)
)
_LAST = gauge(
    "pipeline_last_progress_timestamp_seconds", "When a query last told anything.", _QUERY
)
_STATE_ROWS = gauge("pipeline_state_rows", "Rows that a query keeps between batches.", _QUERY)

_PHASES = frozenset(
    {
        "triggerExecution",
        "latestOffset",
        "queryPlanning",
        "getBatch",
        "addBatch",
        "walCommit",
        "commitOffsets",
        "commitBatch",
    }
)
_UNNAMED = "unnamed"
_IDLE_EVENTS_S = 10.0
"""How often Spark says that a query has nothing to do."""
_LAST_EVENTS_MS = 2_000
"""How long the last events may take, which come when the query has ended already."""
_MISSED = 3
"""Of triggers: after so many without a word a query is not well."""
_errors = FirstNames(50)


class SourceStanding(NamedTuple):
    """What the sources of a query say of themselves, together; None: nobody says."""

    buffered: int | None
    in_flight: int | None
    depth: int | None
    oldest_unfinished_s: float | None

    @property
    def waiting(self) -> int | None:
        """Messages that no batch has yet, here and in nsqd, as far as anybody says."""
        known = [each for each in (self.buffered, self.depth) if each is not None]
        return sum(known) if known else None


def standing_of(reports: Iterable[str | None]) -> SourceStanding:
    """Return what the *reports* of sources come to, each a JSON object, or nothing of use."""
    told = [each for each in map(_read, reports) if each]

    def numbers(name: str) -> list[float]:
        return [each[name] for each in told if isinstance(each.get(name), int | float)]

    def total(name: str) -> int | None:
        found = numbers(name)
        return int(sum(found)) if found else None

    return SourceStanding(
        buffered=total("buffered"),
        in_flight=total("in_flight"),
        depth=total("depth"),
        oldest_unfinished_s=max(numbers("oldest_unfinished_s"), default=None),
    )


def _read(report: str | None) -> dict[str, Any]:
    try:
        found = json.loads(report or "null")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


class Observation(ProgressListener):
    """
    Counts what the queries of a job do, and knows whether that is well.

    Spark calls it in threads of its own; it is fast.
    """

    def __init__(
        self, report: Report, trigger_s: float, *, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._report = report
        self._limit_s = _MISSED * max(trigger_s, _IDLE_EVENTS_S)
        self._now = now
        self._heard_at: float | None = None
        """When a query last told anything; None: none runs."""
        self._words = "starting"
        """Why none runs; empty: one does."""
        self._run_id = ""
        self._query = _UNNAMED
        """The name of the query that was started last: to be idle has none."""

    def readiness(self) -> tuple[bool, str]:
        """Return whether a query runs and tells so, and that in words."""
        heard_at = self._heard_at
        if heard_at is None:
            return False, self._words
        silence_s = self._now() - heard_at
        if silence_s > self._limit_s:
            return False, (
                f"the query has told nothing for {silence_s:.0f} s, the limit is "
                f"{self._limit_s:g} s ({_MISSED} triggers)"
            )
        return True, "ready"

    def restarted(self, failure: Failure) -> None:
        """Count a query that failed and is started again."""
        self._heard_at = None
        self._words = f"the query failed and is started again: {failure}"
        _RESTARTS.labels(_errors.label_of(failure.kind)).inc()

    # Spark's names from here on

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Begin to hear of it."""
        self._query = event.name or _UNNAMED
        self._hear(self._query)
        self._words = ""
        self._run_id = str(event.runId)
        logger.info("query started", query=self._query, run_id=self._run_id)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Know that it lives, and that nothing comes."""
        if str(event.runId) != self._run_id:
            return  # Spark's words may come late
        self._hear(self._query)
        self._report.idle()

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Know that it runs no more."""
        if str(event.runId) == self._run_id:
            self._heard_at = None
            ended = "the query has ended" if event.exception is None else "the query has failed"
            self._words = self._words or ended

    def progress(self, progress: dict[str, Any]) -> None:
        """Count a batch."""
        query = progress.get("name") or _UNNAMED
        self._hear(query)
        rows = int(progress["numInputRows"])
        rate = _number(progress.get("inputRowsPerSecond"))
        processed_rate = _number(progress.get("processedRowsPerSecond"))
        durations = progress.get("durationMs") or {}
        if rows:
            _BATCHES.labels(query).inc()
            _ROWS.labels(query).inc(rows)
            for phase, took_ms in durations.items():
                _DURATION.labels(phase if phase in _PHASES else OTHER).observe(took_ms / 1_000)
        _INPUT_RATE.labels(query).set(rate)
        _PROCESSED_RATE.labels(query).set(processed_rate)
        _BATCH_ID.labels(query).set(progress["batchId"])
        operators = progress.get("stateOperators") or ()
        _STATE_ROWS.labels(query).set(sum(each.get("numRowsTotal", 0) for each in operators))
        standing = standing_of(_text(each.get("latestOffset")) for each in progress["sources"])
        for metric, value in (
            (_BUFFERED, standing.buffered),
            (_IN_FLIGHT, standing.in_flight),
            (_DEPTH, standing.depth),
            (_OLDEST, standing.oldest_unfinished_s),
        ):
            if value is not None:
                metric.labels(query).set(value)
            else:
                # The last one that was told would look like one of now.
                metric.remove(query)
        self._report.batch(
            Batch(
                number=progress["batchId"],
                rows=rows,
                took_s=durations.get("triggerExecution", 0) / 1_000,
                rows_per_second=rate or processed_rate,  # of a first batch only this one is known
                waiting=standing.waiting,
            )
        )

    def _hear(self, query: str) -> None:
        self._heard_at = self._now()
        _LAST.labels(query).set_to_current_time()


def _number(value: Any) -> float:  # noqa: ANN401 - of Spark's JSON: a number, "NaN", or nothing
    return float(value) if isinstance(value, int | float) else 0.0


def _text(value: Any) -> str | None:  # noqa: ANN401 - of Spark's JSON: an object, or its text
    return value if value is None or isinstance(value, str) else json.dumps(value)


@contextmanager
def observed(
    spark: SparkSession, settings: StreamJobSettings, report: Report | None = None
) -> Iterator[Observation]:
    """
    Observe the queries of *spark* meanwhile, and answer for them on --management-listen.

    What *report* makes of it is what a person sees; None: as streams are told of.

    Raises:
        StartError: That cannot be listened on.
    """
    report = report or Report(sys.stderr)
    observation = Observation(report, 0.0 if settings.available_now else settings.trigger_s)
    with ExitStack() as stack:
        if settings.management_listen:
            address = stack.enter_context(
                management(settings.management_listen, observation.readiness)
            )
            logger.info("management port listens", address=address)
        stack.enter_context(listening(spark, observation))
        report.start()
        stack.callback(report.end)
        yield observation
        with suppress(Exception):  # a JVM that has gone; then what came is what is told
            spark._jsc.sc().listenerBus().waitUntilEmpty(_LAST_EVENTS_MS)  # noqa: SLF001
