"""Metrics and progress of a running query, and the management port with its probes."""

from __future__ import annotations

import json
import platform
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from socketserver import TCPServer, ThreadingMixIn
from threading import Thread
from typing import Any, NamedTuple
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

import pyspark
from prometheus_client import make_wsgi_app
from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    JStreamingQueryListener,
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

import gateway
from gateway.addresses import TrustedHosts, join_address, split_address
from gateway.errors import StartError
from gateway.pipeline.jobs.console import FinishedBatch, ProgressReport
from gateway.pipeline.jobs.failures import Failure
from gateway.settings.pipeline import SourceJobSettings, StreamJobSettings
from gateway.telemetry import OTHER, REGISTRY, LabelLimiter, counter, gauge, get_logger, histogram

logger = get_logger()


class ProgressListener(StreamingQueryListener):
    """
    Listen to streaming queries, with the progress of each batch as Spark's own JSON object.

    PySpark's listener builds a Python object from each event by iterating over five Java arrays.
    Each iteration ends in a Java exception, whose class takes seventy calls to find. That is 100 to
    200 ms of CPU per batch; the JSON takes 3 ms (docs/decisions/0012).

    Spark calls the methods in threads of its own. Exceptions are logged and do not reach Spark.
    """

    def on_progress(self, progress: dict[str, Any]) -> None:
        """Called with the progress of a batch, or of a trigger without data, as parsed JSON."""
        raise NotImplementedError

    # Spark's names from here on

    @property
    def _jlistener(self) -> Any:  # noqa: ANN401 - of Java
        """The listener object in the JVM, as in PySpark, but with `_JvmListener` as its target."""
        if not hasattr(self, "_jlistenerobj"):
            jvm: Any = SparkContext._jvm  # noqa: SLF001 - where PySpark keeps it
            self._jlistenerobj = jvm.PythonStreamingQueryListenerWrapper(_JvmListener(self))
        return self._jlistenerobj

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Read the event as `_JvmListener` does; some versions of PySpark call this instead."""
        self.on_json(event.progress.json)

    def on_json(self, text: str) -> None:
        """Called with the progress of a batch as JSON *text*."""
        try:
            self.on_progress(json.loads(text))
        except Exception:
            logger.exception("batch metrics failed")

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Do nothing."""

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Do nothing."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Do nothing."""


@contextmanager
def listening(spark: SparkSession, listener: ProgressListener) -> Iterator[None]:
    """Context manager: *listener* gets the events of *spark*'s queries until the block ends."""
    spark.streams.addListener(listener)
    try:
        yield
    finally:
        with suppress(Exception):  # the JVM may have ended first
            spark.streams.removeListener(listener)


class _JvmListener(JStreamingQueryListener):
    """The object that the JVM calls; overrides PySpark's conversion of progress events."""

    pylistener: ProgressListener

    def onQueryProgress(self, jevent: Any) -> None:  # noqa: ANN401, N802 - Spark's
        self.pylistener.on_json(jevent.progress().json())


_QUERY = ("query",)
_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_BATCHES = counter("pipeline_batches_total", "Finished batches with rows.", _QUERY)
_ROWS = counter("pipeline_input_rows_total", "Rows of finished batches.", _QUERY)
_INPUT_RATE = gauge(
    "pipeline_input_rows_per_second",
    "Rows of the last batch divided by the time since the previous one.",
    _QUERY,
)
_PROCESSED_RATE = gauge(
    "pipeline_processed_rows_per_second", "Rows of the last batch divided by its duration.", _QUERY
)
_DURATION = histogram(
    "pipeline_batch_duration_seconds",
    "Duration of batches, by phase.",
    ("phase",),
    buckets=_BUCKETS,
)
_BATCH_ID = gauge("pipeline_batch_id", "Number of the last batch.", _QUERY)
_BUFFERED = gauge(
    "pipeline_source_buffered_messages", "Messages received and not in a batch yet.", _QUERY
)
_IN_FLIGHT = gauge(
    "pipeline_source_in_flight_messages", "Messages received and not finished.", _QUERY
)
_DEPTH = gauge(
    "pipeline_source_depth_messages", "Messages waiting in nsqd for this stream.", _QUERY
)
_OLDEST = gauge(
    "pipeline_source_oldest_unfinished_seconds", "Age of the oldest unfinished message.", _QUERY
)
_RESTARTS = counter(
    "pipeline_query_restarts_total",
    "Failed queries that were restarted, by error class.",
    ("error",),
)
_LAST = gauge(
    "pipeline_last_progress_timestamp_seconds", "When a query last reported an event.", _QUERY
)
_STATE_ROWS = gauge(
    "pipeline_state_rows", "Rows that a query keeps in its state between batches.", _QUERY
)

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
"""Interval at which Spark reports that a query is idle."""
_LAST_EVENTS_MS = 2_000
"""Maximum wait for the last events, which arrive after the end of the query."""
_MAX_MISSED_TRIGGERS = 3
"""Number of triggers without progress after which a query is not ready."""
_errors = LabelLimiter(50)


class SourceTotals(NamedTuple):
    """Totals of the reports of a query's sources; a field is None if unknown."""

    buffered: int | None
    in_flight: int | None
    depth: int | None
    oldest_unfinished_s: float | None

    @property
    def waiting(self) -> int | None:
        """Number of messages without a batch, here and in nsqd; None if both are unknown."""
        known = [each for each in (self.buffered, self.depth) if each is not None]
        return sum(known) if known else None


def sum_sources(reports: Iterable[str | None]) -> SourceTotals:
    """Return the totals of *reports*, JSON objects of the sources; unusable ones are ignored."""
    found = [each for each in map(_read, reports) if each]

    def numbers(name: str) -> list[float]:
        return [each[name] for each in found if isinstance(each.get(name), int | float)]

    def total(name: str) -> int | None:
        found = numbers(name)
        return int(sum(found)) if found else None

    return SourceTotals(
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


class QueryMonitor(ProgressListener):
    """
    Update the metrics of a job's queries from Spark's events, and derive the job's readiness.

    Spark calls the methods in its event threads, and delays other events until they return.
    """

    def __init__(
        self, report: ProgressReport, trigger_s: float, *, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._report = report
        self._limit_s = _MAX_MISSED_TRIGGERS * max(trigger_s, _IDLE_EVENTS_S)
        self._now = now
        self._progress_at: float | None = None
        """Monotonic time of the last event of the query; None if no query runs."""
        self._reason = "starting"
        """Why no query runs; empty if one runs."""
        self._run_id = ""
        self._query = _UNNAMED
        """Name of the query that started last: idle events do not have a name."""

    def describe_readiness(self) -> tuple[bool, str]:
        """Return whether a query runs and makes progress, and the text of the /readyz response."""
        progress_at = self._progress_at
        if progress_at is None:
            return False, self._reason
        silence_s = self._now() - progress_at
        if silence_s > self._limit_s:
            return False, (
                f"the query has reported nothing for {silence_s:.0f} s, the limit is "
                f"{self._limit_s:g} s ({_MAX_MISSED_TRIGGERS} triggers)"
            )
        return True, "ready"

    def on_restart(self, failure: Failure) -> None:
        """Called before a failed query is restarted: count it, and report the job as not ready."""
        self._progress_at = None
        self._reason = f"the query failed and will be restarted: {failure}"
        _RESTARTS.labels(_errors.label_of(failure.kind)).inc()

    # Spark's names from here on

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Called when a query has started: the job is ready from now on."""
        self._query = event.name or _UNNAMED
        self._mark_alive(self._query)
        self._reason = ""
        # A restart has a new run id, by which late events of the earlier run are told apart.
        self._run_id = str(event.runId)
        logger.info("query started", query=self._query, run_id=self._run_id)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Called every 10 s while no messages arrive: the job stays ready."""
        if str(event.runId) != self._run_id:
            return  # the event of an earlier run may be late
        self._mark_alive(self._query)
        self._report.idle()

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Called when a query has ended or failed: the job is not ready any more."""
        if str(event.runId) == self._run_id:
            self._progress_at = None
            ended = "the query has ended" if event.exception is None else "the query has failed"
            # `on_restart` may have set a reason before, which says more.
            self._reason = self._reason or ended

    def on_progress(self, progress: dict[str, Any]) -> None:
        """Update the metrics from the progress of a batch."""
        query = progress.get("name") or _UNNAMED
        self._mark_alive(query)
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
        source = sum_sources(_text(each.get("latestOffset")) for each in progress["sources"])
        for metric, value in (
            (_BUFFERED, source.buffered),
            (_IN_FLIGHT, source.in_flight),
            (_DEPTH, source.depth),
            (_OLDEST, source.oldest_unfinished_s),
        ):
            if value is not None:
                metric.labels(query).set(value)
            else:
                # Prometheus would show a stale value as current.
                metric.remove(query)
        self._report.add_batch(
            FinishedBatch(
                number=progress["batchId"],
                rows=rows,
                took_s=durations.get("triggerExecution", 0) / 1_000,
                rows_per_second=rate or processed_rate,  # the first batch has only this one
                waiting=source.waiting,
            )
        )

    def _mark_alive(self, query: str) -> None:
        self._progress_at = self._now()
        _LAST.labels(query).set_to_current_time()


def _number(value: Any) -> float:  # noqa: ANN401 - Spark's JSON: a number, "NaN", or missing
    return float(value) if isinstance(value, int | float) else 0.0


def _text(value: Any) -> str | None:  # noqa: ANN401 - Spark's JSON: an object, or its text
    return value if value is None or isinstance(value, str) else json.dumps(value)


def _backlog_hint(settings: StreamJobSettings) -> str:
    """
    Return a hint on messages that an available-now run may miss; empty if it misses none.

    Without nsqd's HTTP API a run ends when no more messages arrive. Messages that a killed run had
    in flight return only after their timeout, and deferred ones even later.
    """
    if not (settings.available_now and isinstance(settings, SourceJobSettings)):
        return ""
    if settings.nsqd_http_address or settings.lookupd_http_address:
        return ""
    return (
        "deferred messages, and those in flight to other consumers, may remain unread; "
        "set --nsqd-http-address to wait for them"
    )


@contextmanager
def monitored(
    spark: SparkSession,
    settings: StreamJobSettings,
    port: ManagementPort,
    report: ProgressReport | None = None,
) -> Iterator[QueryMonitor]:
    """
    Context manager: monitor the queries of *spark*, and serve their readiness on *port*.

    *report* shows their progress to the user; None means the report for streams.
    """
    hint = _backlog_hint(settings)
    if hint:
        logger.warning("backlog unknown: nsqd HTTP address not configured", hint=hint)
    report = report or ProgressReport(sys.stderr, hint=hint)
    monitor = QueryMonitor(report, 0.0 if settings.available_now else settings.trigger_s)
    port.readiness = monitor.describe_readiness
    with ExitStack() as stack:
        stack.enter_context(listening(spark, monitor))
        report.start()
        stack.callback(report.end)
        yield monitor
        # The report's totals need the last batch, whose event Spark sends from another thread.
        with suppress(Exception):  # the JVM may be gone
            spark._jsc.sc().listenerBus().waitUntilEmpty(_LAST_EVENTS_MS)  # noqa: SLF001


Readiness = Callable[[], tuple[bool, str]]
"""Returns True if the job is ready, and the text for /readyz."""

_BUILD = gauge(
    "pipeline_build_info",
    "Always 1; the versions of the package, Python and PySpark are labels.",
    ["version", "python", "spark"],
)
_REQUEST_S = 10
_TEXT = ("Content-Type", "text/plain; charset=utf-8")


class _ManagementServer(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = 64

    def server_bind(self) -> None:
        """Bind without a reverse DNS lookup, which may take long."""
        TCPServer.server_bind(self)
        host, port = self.server_address[:2]
        self.server_name, self.server_port = str(host), port
        self.setup_environ()


class _ManagementServer6(_ManagementServer):
    address_family = socket.AF_INET6


class _RequestHandler(WSGIRequestHandler):
    timeout = _REQUEST_S
    """Seconds after which a connection that sends nothing is closed."""

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002, ANN401 - the library's
        """Do not log requests."""


class ManagementPort:
    """The management port of a job; created by `management`."""

    def __init__(self) -> None:
        self.address: str | None = None
        """Address that the port listens on, host:port; None if it does not listen."""
        self.readiness: Readiness = lambda: (False, "starting")
        """Called for each request of /readyz."""


@contextmanager
def management(listen: str) -> Iterator[ManagementPort]:
    """
    Context manager: serve /livez, /readyz and /metrics on the address *listen*.

    If *listen* is empty, no port is opened. A job opens the port before Spark starts, so that an
    address in use is reported at once.

    Raises:
        StartError: The address is in use, or does not belong to this machine.
    """
    _BUILD.labels(gateway.__version__, platform.python_version(), pyspark.__version__).set(1)
    port = ManagementPort()
    if not listen:
        yield port
        return
    host, number = split_address(listen)
    kind = _ManagementServer6 if ":" in host else _ManagementServer
    try:
        server = make_server(
            host, number, application(port, TrustedHosts(listen)), kind, _RequestHandler
        )
    except OSError as error:
        raise StartError(
            f"the job cannot listen on {listen} (--management-listen): "
            f"{error.strerror or error}; "
            "stop the process that listens there, or use another address"
        ) from error
    port.address = join_address(host, server.server_port)
    logger.info("management port listening", address=port.address)
    thread = Thread(target=server.serve_forever, name="management", daemon=True)
    thread.start()
    try:
        yield port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def application(port: ManagementPort, hosts: TrustedHosts) -> WSGIApplication:
    """
    Return the WSGI application of *port*.

    A request whose Host header *hosts* rejects gets 403: a web page could otherwise read the port
    by DNS rebinding.
    """
    metrics: WSGIApplication = make_wsgi_app(REGISTRY)

    def answer(environment: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        is_browser = "HTTP_ACCEPT_LANGUAGE" in environment
        why = hosts.rejection_reason(environment.get("HTTP_HOST", ""), is_browser=is_browser)
        if why is not None:
            start("403 Forbidden", [_TEXT])
            return [f"{why}\n".encode()]
        path = environment.get("PATH_INFO", "")
        if environment.get("REQUEST_METHOD") not in ("GET", "HEAD"):
            start("405 Method Not Allowed", [_TEXT, ("Allow", "GET, HEAD")])
            return [b"only GET is allowed\n"]
        if path == "/metrics":
            return metrics(environment, start)
        if path == "/livez":
            start("200 OK", [_TEXT])
            return [b"alive\n"]
        if path == "/readyz":
            is_ready, reason = port.readiness()
            start("200 OK" if is_ready else "503 Service Unavailable", [_TEXT])
            return [f"{reason}\n".encode()]
        start("404 Not Found", [_TEXT])
        return [b"not found; try /livez, /readyz or /metrics\n"]

    return answer
