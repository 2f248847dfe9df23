"""
A stream that is looked after: started again when it fails, and stopped in good order.

The first SIGTERM or SIGINT lets the batch in work finish, within a time, and stops the query; what
it had not finished goes back to nsqd. A second one ends the process at once.
"""

from __future__ import annotations

import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Any, Protocol, TypeAlias

from pyspark.sql import SparkSession

from gateway.errors import GatewayError
from gateway.pipeline.failures import Failure, explain
from gateway.pipeline.jvm_end import jvm_ending
from gateway.pipeline.observation import observed
from gateway.pipeline.options import option_of, options_of
from gateway.pipeline.reporting import Report
from gateway.pipeline.storage import Storage, clear_draft, spare_processes
from gateway.settings_jobs import QueryJobSettings, SourceJobSettings, StreamJobSettings
from gateway.settings_pipeline import SourceSettings
from gateway.telemetry import get_logger

logger = get_logger()

_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 60.0
_LOOK_S = 0.1
_ASK_S = 1.0
"""How often the source is asked for a batch, at least: by then the last one is finished."""
_SETTLE_S = _ASK_S + 0.3
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_STOPPED = re.compile(r"SparkContext was shut ?down|stopped SparkContext|dagScheduler\(\)")


class Query(Protocol):
    """What is used of a `StreamingQuery`."""

    @property
    def status(self) -> dict[str, Any]:
        """What it is at."""

    @property
    def lastProgress(self) -> Any:  # noqa: ANN401, N802 - Spark's
        """The last batch; None: there was none."""

    def awaitTermination(self) -> Any:  # noqa: ANN401, N802 - Spark's
        """Return when it has ended; raises what it failed of."""

    def stop(self) -> None:
        """End it."""


def source_options(settings: SourceJobSettings) -> dict[str, str]:
    """
    Return the options of the source of a job.

    The source waits for the time of a batch, and not Spark: what a batch has finished is told to
    nsqd soon then, and a batch that is full does not wait.
    """
    options = options_of(settings, SourceSettings)
    return options | {option_of("batch_s"): f"{settings.batch_s or settings.trigger_s:g}"}


def trigger_of(settings: StreamJobSettings) -> dict[str, Any]:
    """Return when Spark asks the source for a batch, as `DataStreamWriter.trigger` takes it."""
    if settings.available_now:
        return {"availableNow": True}
    every_ms = int(min(settings.trigger_s, _ASK_S) * 1_000)
    return {"processingTime": f"{every_ms} milliseconds"}


class JobFailed(GatewayError):
    """A stream failed, and to start it again is of no use, or was tried often enough."""


class Ending(Enum):
    """Why a job ended that did not fail."""

    DONE = "done"
    """There was nothing left, and it was to end then."""
    TERMINATED = "terminated"
    """SIGTERM."""
    INTERRUPTED = "interrupted"
    """SIGINT."""


@dataclass(frozen=True)
class _Signalled:
    number: signal.Signals


@dataclass(frozen=True)
class _Ended:
    query: Query
    error: Exception | None


_Event: TypeAlias = _Signalled | _Ended
Start: TypeAlias = Callable[[], Query]


def run_stream(
    spark: SparkSession,
    start: Start,
    settings: StreamJobSettings,
    *,
    report: Report | None = None,
) -> Ending:
    """
    Run the query that *start* starts, and starts again, until it ends or a signal comes.

    To be called in the main thread. Meanwhile the query is counted, told about, and answered for on
    --management-listen; *report* tells of it, None: the one that streams have.

    Raises:
        JobFailed: It failed for good.
        StartError: --management-listen cannot be listened on.
    """

    def begin() -> Query:
        checkpoint = Storage(spark, settings.checkpoint)
        clear_draft(checkpoint)
        spare_processes(spark, checkpoint)
        return start()

    with observed(spark, settings, report) as observation:
        return supervise(begin, settings, restarted=observation.restarted)


def supervise(
    start: Start, settings: QueryJobSettings, *, restarted: Callable[[Failure], None]
) -> Ending:
    """
    Do what `run_stream` does, unobserved; *restarted* is told of each failure that is tried again.

    Raises:
        JobFailed: It failed for good.
    """
    events: SimpleQueue[_Event] = SimpleQueue()
    with _signals_to(events), jvm_ending(lambda: events.put(_Signalled(signal.SIGTERM)), settings):
        return _Run(start, settings, events, restarted).until_end()


class _Run:
    """One run: queries, one after the other."""

    def __init__(
        self,
        start: Start,
        settings: QueryJobSettings,
        events: SimpleQueue[_Event],
        restarted: Callable[[Failure], None],
    ) -> None:
        self._start = start
        self._settings = settings
        self._events = events
        self._restarted = restarted
        self._failures = 0
        """In a row."""
        self._batches = 0
        """Those that had succeeded when a query failed last."""

    def until_end(self) -> Ending:
        """Return why it ended; raises JobFailed."""
        while True:
            query, failure = self._begin()
            if query is not None:
                event = self._events.get()
                if isinstance(event, _Signalled):
                    return self._stop(query, event.number)
                if event.error is None:
                    return Ending.DONE
                batches = _batches(query)
                if batches > self._batches:
                    self._failures, self._batches = 0, batches
                failure = _explained(event.error)
            if failure is not None:
                ending = self._pause_after(failure)
                if ending is not None:
                    return ending

    def _begin(self) -> tuple[Query | None, Failure | None]:
        try:
            query = self._start()
        except GatewayError:
            raise
        except Exception as error:  # noqa: BLE001 - Spark raises anything
            return None, _explained(error)
        threading.Thread(target=self._watch, args=(query,), name="query", daemon=True).start()
        return query, None

    def _watch(self, query: Query) -> None:
        error: Exception | None = None
        try:
            query.awaitTermination()
        except Exception as caught:  # noqa: BLE001 - whatever ended it
            error = caught
        self._events.put(_Ended(query, error))

    def _pause_after(self, failure: Failure) -> Ending | None:
        """Wait before the next start; return the ending when a signal comes meanwhile."""
        self._failures += 1
        if not failure.can_heal:
            raise JobFailed(f"the query failed, and would again: {failure}")
        if self._failures > self._settings.retries:
            times = f"{self._failures} times in a row" if self._settings.retries else "once"
            raise JobFailed(f"the query failed {times} (--retries): {failure}")
        pause_s = min(_FIRST_PAUSE_S * 2 ** (self._failures - 1), _LONGEST_PAUSE_S)
        logger.warning(
            "query failed, starting it again",
            error=failure.kind,
            reason=failure.sentence,
            in_a_row=self._failures,
            retries=self._settings.retries,
            pause_s=pause_s,
        )
        self._restarted(failure)
        try:
            event = self._events.get(timeout=pause_s)
        except Empty:
            return None
        assert isinstance(event, _Signalled)  # noqa: S101 - no query is there that could end
        return _ENDINGS[event.number]

    def _stop(self, query: Query, number: signal.Signals) -> Ending:
        """Let the batch in work finish, within a time, and stop."""
        logger.info("stopping", signal=number.name, at_most_s=self._settings.stop_wait_s)
        with suppress(Exception):  # a query that has failed by itself meanwhile, or a lost JVM
            self._let_finish(query)
        with suppress(Exception):
            query.stop()
        return _ENDINGS[number]

    def _let_finish(self, query: Query) -> None:
        """Return when the batch in work is done, and finished at nsqd, or its time is over."""
        deadline = time.monotonic() + self._settings.stop_wait_s
        batches = _batches(query)
        while query.status["isTriggerActive"] and _batches(query) == batches:
            if self._has_ended_after(min(_LOOK_S, deadline - time.monotonic())):
                return
        # The source is asked for more once again, and so hears what Spark's log of commits holds.
        self._has_ended_after(min(_SETTLE_S, deadline - time.monotonic()))

    def _has_ended_after(self, time_s: float) -> bool:
        """Tell whether the query has ended, or there is no time; returns after *time_s* at most."""
        if time_s <= 0:
            return True
        try:
            self._events.get(timeout=time_s)
        except Empty:
            return False
        return True


_ENDINGS = {signal.SIGTERM: Ending.TERMINATED, signal.SIGINT: Ending.INTERRUPTED}


def _batches(query: Query) -> int:
    """Return how many batches have succeeded, as far as *query* has told; 0: it has not."""
    try:
        progress = query.lastProgress
        if progress is None:
            return 0
        # Without rows it may be one that is to come: Spark tells of the time it waits, too.
        return int(progress["batchId"]) + bool(progress["numInputRows"])
    except Exception:  # noqa: BLE001 - the JVM may have gone
        return 0


def _explained(error: Exception) -> Failure:
    text = str(error)
    logger.debug("query failed", trace=text)
    if (
        type(error).__name__ == "Py4JNetworkError"
        or isinstance(error, ConnectionError)
        or _STOPPED.search(text)
    ):
        return Failure("JvmLost", "Spark's JVM has gone, or is on its way", can_heal=False)
    return explain(text if text.strip() else type(error).__name__)


@contextmanager
def _signals_to(events: SimpleQueue[_Event]) -> Iterator[None]:
    """Put the first signal into *events*; the next one ends the process at once."""

    def first(number: int, frame: FrameType | None) -> None:
        del frame
        for each in _SIGNALS:
            signal.signal(each, signal.SIG_DFL)
        events.put(_Signalled(signal.Signals(number)))

    before = {number: signal.signal(number, first) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
