"""
Run a streaming query: restart it after a failure, and stop it gracefully on a signal.

On the first SIGTERM or SIGINT the batch in progress may finish within a time limit; then the query
is stopped and unfinished messages are requeued. A second signal ends the process at once.

Under spark-submit the JVM gets SIGTERM and this process does not, so Spark would stop in the middle
of a batch. A shutdown hook in the JVM therefore runs before Spark's and waits for this process.
"""

from __future__ import annotations

import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Any, TypeAlias

from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]
from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from gateway.errors import GatewayError
from gateway.pipeline.jobs.console import ProgressReport
from gateway.pipeline.jobs.failures import Failure, explain
from gateway.pipeline.jobs.monitoring import ManagementPort, monitored
from gateway.pipeline.jobs.spark import is_submitted
from gateway.pipeline.jobs.storage import (
    HadoopFolder,
    avoid_checkpoint_processes,
    remove_partial_offsets,
)
from gateway.pipeline.options import option_of, options_of
from gateway.settings.pipeline import (
    QueryJobSettings,
    SourceJobSettings,
    SourceSettings,
    StreamJobSettings,
)
from gateway.telemetry import get_logger

_BEFORE_SPARK = 1_000
"""Priority of our shutdown hook. Higher priorities run first; Spark's own are below 100."""
_MIN_WAIT_S = 5.0
_STOPPED = re.compile(r"SparkContext was shut ?down|stopped SparkContext|dagScheduler\(\)")
_EXIT_TIMEOUT_S = 5.0
"""Time to wait for the exit of a JVM that does not answer."""


class _Hook:
    """A java.lang.Runnable that the JVM calls when it shuts down."""

    def __init__(self, callback: Callable[[], None], wait_s: float) -> None:
        self._callback = callback
        self._wait_s = wait_s
        self.is_done = threading.Event()

    def run(self) -> None:
        """Call the callback, and hold up the JVM's shutdown until `is_done`, or for *wait_s*."""
        self._callback()
        self.is_done.wait(self._wait_s)

    class Java:
        """Declare the Java interface, for py4j."""

        implements = ("java.lang.Runnable",)


@contextmanager
def shutdown_hook(callback: Callable[[], None], settings: QueryJobSettings) -> Iterator[None]:
    """
    Context manager: call *callback* when spark-submit's JVM begins to shut down.

    The JVM then waits until the block has ended, for a limited time. Without spark-submit, nothing
    happens.
    """
    jvm = SparkContext._jvm  # noqa: SLF001 - the only way to it
    if jvm is None or not is_submitted():
        yield
        return
    hook = _Hook(callback, settings.stop_wait_s + _MIN_WAIT_S)
    thread = jvm.java.lang.Thread(hook)  # Hadoop runs it and tells hooks apart by it
    hooks = jvm.org.apache.hadoop.util.ShutdownHookManager.get()
    hooks.addShutdownHook(thread, _BEFORE_SPARK)
    try:
        yield
    finally:
        # If the JVM shuts down, it waits for this in `_Hook.run`.
        hook.is_done.set()
        with suppress(Exception):  # a JVM that shuts down rejects this
            hooks.removeShutdownHook(thread)


def is_jvm_lost(error: Exception) -> bool:
    """Return True if *error* means that the JVM has exited or its session was stopped."""
    is_connection_lost = isinstance(error, ConnectionError | Py4JNetworkError)
    return is_connection_lost or _STOPPED.search(str(error)) is not None


def describe_jvm_loss() -> str:
    """Return the error text for a lost JVM: how the JVM ended, and what to do."""
    return (
        f"{_describe_exit(getattr(SparkContext._gateway, 'proc', None))}. "  # noqa: SLF001 - as PySpark
        "This job ends with it. Nothing is lost: start it again with the same flags, and it "
        "continues after the last finished batch"
    )


def _describe_exit(process: subprocess.Popen[bytes] | None) -> str:
    """
    Return how the JVM ended.

    *process* is the JVM's process, or None if spark-submit has started the JVM.
    """
    if process is None:
        return "Spark's JVM has exited, or its session was stopped; see spark-submit's log"
    name = f"Spark's JVM (process {process.pid})"
    try:
        status = process.wait(_EXIT_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return f"{name} still runs, but its session was stopped, for example with its cluster"
    if status >= 0:
        return f"{name} exited with status {status}; see the log above"
    text = f"{name} was killed by {signal.Signals(-status).name}"
    if -status == signal.SIGKILL:
        text += ", as happens when memory runs out: give it more memory, or use smaller batches"
    return text


logger = get_logger()

_FIRST_PAUSE_S = 1.0
_MAX_PAUSE_S = 60.0
_LOOK_S = 0.1
_SOURCE_POLL_S = 1.0
"""Maximum interval between requests to the source: each one finishes the last committed batch."""
_SETTLE_S = _SOURCE_POLL_S + 0.3
"""Time in which one more request reaches the source."""
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_JVM_LOST = "JvmLost"


def source_options(settings: SourceJobSettings) -> dict[str, str]:
    """
    Return the options for the source of a job.

    The source, not Spark's trigger, waits between batches. So Spark polls it often, which finishes
    committed messages soon, and a full batch is cut without waiting.
    """
    options = options_of(settings, SourceSettings)
    return options | {option_of("batch_s"): f"{settings.batch_s or settings.trigger_s:g}"}


def trigger_of(settings: StreamJobSettings) -> dict[str, Any]:
    """Return the trigger of a job, as arguments of `DataStreamWriter.trigger`."""
    if settings.available_now:
        return {"availableNow": True}
    every_ms = int(min(settings.trigger_s, _SOURCE_POLL_S) * 1_000)
    return {"processingTime": f"{every_ms} milliseconds"}


class JobFailed(GatewayError):
    """A job failed, and is not restarted: a restart would not help, or --retries is reached."""


class JobResult(Enum):
    """Why a job ended without failing."""

    DONE = "done"
    """All messages or files have been processed."""
    TERMINATED = "terminated"
    """Stopped by SIGTERM."""
    INTERRUPTED = "interrupted"
    """Stopped by SIGINT."""


@dataclass(frozen=True)
class _Signalled:
    number: signal.Signals


@dataclass(frozen=True)
class _Ended:
    query: StreamingQuery
    error: Exception | None


_Event: TypeAlias = _Signalled | _Ended
Start: TypeAlias = Callable[[], StreamingQuery]


def run_stream(
    spark: SparkSession,
    start: Start,
    settings: StreamJobSettings,
    port: ManagementPort,
    *,
    report: ProgressReport | None = None,
) -> JobResult:
    """
    Run the query that *start* returns, and restart it, until it ends or a signal arrives.

    Call this in the main thread, because it handles signals. The query has metrics, and readiness
    on *port*. *report* shows its progress; None means the report for streams.

    Raises:
        JobFailed: The query failed and is not restarted.
    """

    def begin() -> StreamingQuery:
        checkpoint = HadoopFolder(spark, settings.checkpoint)
        remove_partial_offsets(checkpoint)
        avoid_checkpoint_processes(spark, checkpoint)
        return start()

    with monitored(spark, settings, port, report) as monitor:
        return supervise(begin, settings, on_restart=monitor.on_restart)


def supervise(
    start: Start, settings: QueryJobSettings, *, on_restart: Callable[[Failure], None]
) -> JobResult:
    """
    Like `run_stream`, but without metrics; *on_restart* is called before each restart.

    Raises:
        JobFailed: The query failed and is not restarted.
    """
    events: SimpleQueue[_Event] = SimpleQueue()
    with (
        _signals_to(events),
        shutdown_hook(lambda: events.put(_Signalled(signal.SIGTERM)), settings),
    ):
        return _Run(start, settings, events, on_restart).run_until_end()


class _Run:
    """One run of a job: its query, and the restarts of the query."""

    def __init__(
        self,
        start: Start,
        settings: QueryJobSettings,
        events: SimpleQueue[_Event],
        on_restart: Callable[[Failure], None],
    ) -> None:
        self._start = start
        self._settings = settings
        self._events = events
        self._on_restart = on_restart
        self._failures = 0
        """Number of failures since the last successful batch."""
        self._batches = 0
        """Number of successful batches at the last failure."""

    def run_until_end(self) -> JobResult:
        """
        Run the query, with restarts, until it ends or a signal arrives; return why the job ended.

        Raises:
            JobFailed: The query failed and is not restarted.
        """
        while True:
            query, failure = self._begin()
            if query is not None:
                event = self._events.get()
                if isinstance(event, _Signalled):
                    return self._stop(query, event.number)
                if event.error is None:
                    return JobResult.DONE
                batches = _batches(query)
                # A batch succeeded since the last failure: count failures from 0 again.
                if batches > self._batches:
                    self._failures, self._batches = 0, batches
                failure = _failure_of(event.error)
            if failure is not None:
                result = self._pause_after(failure)
                if result is not None:
                    return result

    def _begin(self) -> tuple[StreamingQuery | None, Failure | None]:
        """Start the query, and a thread that waits for its end; return the query or the failure."""
        try:
            query = self._start()
        except GatewayError:
            raise  # such as an unusable setting or folder, which a retry does not change
        except Exception as error:  # noqa: BLE001 - Spark raises anything
            return None, _failure_of(error)
        threading.Thread(target=self._watch, args=(query,), name="query", daemon=True).start()
        return query, None

    def _watch(self, query: StreamingQuery) -> None:
        # A thread waits for the query, so that the main thread can wait for its end or a signal.
        error: Exception | None = None
        try:
            query.awaitTermination()
        except Exception as caught:  # noqa: BLE001 - whatever ended it
            error = caught
        self._events.put(_Ended(query, error))

    def _pause_after(self, failure: Failure) -> JobResult | None:
        """
        Wait before a restart, with exponential backoff.

        Return the job's result if a signal arrives meanwhile; None means to restart.

        Raises:
            JobFailed: A restart would not help, or --retries is reached.
        """
        self._failures += 1
        if failure.kind == _JVM_LOST:
            raise JobFailed(failure.sentence)
        if not failure.is_retryable:
            raise JobFailed(f"the query failed, and a retry would fail again: {failure}")
        if self._failures > self._settings.retries:
            times = f"{self._failures} times in a row" if self._settings.retries else "once"
            raise JobFailed(f"the query failed {times} (--retries): {failure}")
        pause_s = min(_FIRST_PAUSE_S * 2 ** (self._failures - 1), _MAX_PAUSE_S)
        logger.warning(
            "query failed, restarting it",
            error=failure.kind,
            reason=failure.sentence,
            in_a_row=self._failures,
            retries=self._settings.retries,
            pause_s=pause_s,
        )
        self._on_restart(failure)
        try:
            event = self._events.get(timeout=pause_s)
        except Empty:
            return None
        assert isinstance(event, _Signalled)  # noqa: S101 - no query is running
        return _RESULTS[event.number]

    def _stop(self, query: StreamingQuery, number: signal.Signals) -> JobResult:
        """Let the batch in progress finish within stop_wait_s, and stop the query."""
        logger.info("stopping", signal=number.name, max_duration_s=self._settings.stop_wait_s)
        with suppress(Exception):  # the query may have failed meanwhile, or the JVM may be gone
            self._finish_batch(query)
        with suppress(Exception):  # the JVM may be gone
            query.stop()
        return _RESULTS[number]

    def _finish_batch(self, query: StreamingQuery) -> None:
        """Wait up to stop_wait_s until the batch in progress is committed and finished at nsqd."""
        deadline = time.monotonic() + self._settings.stop_wait_s
        batches = _batches(query)
        while query.status["isTriggerActive"] and _batches(query) == batches:
            if self._wait_for_end(min(_LOOK_S, deadline - time.monotonic())):
                return
        # Wait for one more request to the source, which then finishes the committed batch.
        self._wait_for_end(min(_SETTLE_S, deadline - time.monotonic()))

    def _wait_for_end(self, time_s: float) -> bool:
        """Wait up to *time_s* for the query to end; return True if it has ended, or at 0 s left."""
        if time_s <= 0:
            return True
        try:
            self._events.get(timeout=time_s)
        except Empty:
            return False
        return True


_RESULTS = {signal.SIGTERM: JobResult.TERMINATED, signal.SIGINT: JobResult.INTERRUPTED}


def _batches(query: StreamingQuery) -> int:
    """Return the number of successful batches of *query*; 0 if unknown."""
    try:
        progress = query.lastProgress
        if progress is None:
            return 0
        # Without rows this may be the next batch: Spark also reports progress while it waits.
        return int(progress["batchId"]) + bool(progress["numInputRows"])
    except Exception:  # noqa: BLE001 - the JVM may be gone
        return 0


def _failure_of(error: Exception) -> Failure:
    text = str(error)
    logger.debug("query failed", trace=text)
    if is_jvm_lost(error):
        return Failure(_JVM_LOST, describe_jvm_loss(), is_retryable=False)
    return explain(text if text.strip() else type(error).__name__)


@contextmanager
def _signals_to(events: SimpleQueue[_Event]) -> Iterator[None]:
    """
    Context manager: put the first SIGTERM or SIGINT into *events*.

    A second signal ends the process at once.
    """

    def first(number: int, frame: FrameType | None) -> None:
        del frame
        # With the default action, the second signal ends the process at once.
        for each in _SIGNALS:
            signal.signal(each, signal.SIG_DFL)
        events.put(_Signalled(signal.Signals(number)))

    before = {number: signal.signal(number, first) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
