"""Supervision of a query: restarts, final failures, and stops."""

from __future__ import annotations

import signal
import subprocess
import threading
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark import SparkContext
from pyspark.sql.streaming.query import StreamingQuery

from gateway.errors import SettingRefused
from gateway.pipeline.jobs import runner
from gateway.pipeline.jobs.failures import Failure
from gateway.pipeline.jobs.runner import JobFailed, JobResult, source_options, trigger_of
from gateway.settings.loader import load
from gateway.settings.pipeline import ArchiveSettings, QueryJobSettings


class Query:
    """A fake query that ends at once, perhaps with an error, or when it is stopped."""

    def __init__(
        self,
        error: str | None = None,
        *,
        ends: bool = True,
        batches: int = 0,
        idle_at: int | None = None,
    ) -> None:
        self.status: dict[str, Any] = {"isTriggerActive": False}
        self.lastProgress = {"batchId": batches - 1, "numInputRows": 1} if batches else None
        if idle_at is not None:
            self.lastProgress = {"batchId": idle_at, "numInputRows": 0}
        self.is_stopped = False
        self.looks: list[Callable[[], None]] = []
        self._error = error
        self._has_ended = threading.Event()
        if ends:
            self._has_ended.set()

    def awaitTermination(self) -> None:  # noqa: N802 - Spark's
        """Wait for the end; raise the query's error."""
        self._has_ended.wait()
        if self._error is not None:
            raise RuntimeError(self._error)

    def stop(self) -> None:
        """End."""
        self.is_stopped = True
        self._has_ended.set()


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "_FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(runner, "_SETTLE_S", 0.01)


def settings_of(**given: object) -> QueryJobSettings:
    return load(QueryJobSettings, given).settings


def supervise(
    start: Callable[[], object],
    settings: QueryJobSettings,
    *,
    on_restart: Callable[[Failure], None],
) -> JobResult:
    """Call `supervise` with fake queries from *start*."""
    return runner.supervise(
        cast("Callable[[], StreamingQuery]", start), settings, on_restart=on_restart
    )


def run(queries: Sequence[Query], **given: object) -> tuple[JobResult, list[Failure]]:
    """Run a job with *queries*; return its result, and the failures before restarts."""
    left = list(queries)
    failures: list[Failure] = []
    ending = supervise(lambda: left.pop(0), settings_of(**given), on_restart=failures.append)
    assert [] == left
    return ending, failures


def test_a_query_that_ends_by_itself_is_done() -> None:
    assert (JobResult.DONE, []) == run([Query()])


def test_a_query_that_failed_is_started_again() -> None:
    """Until a query ends without an error."""
    ending, failures = run([Query("java.io.IOException: full"), Query("x"), Query()])

    assert JobResult.DONE is ending
    assert ["IOException: full", "Spark: x"] == [str(each) for each in failures]


def test_a_query_that_fails_too_often_is_given_up() -> None:
    """After --retries consecutive failures, with the last reason."""
    with pytest.raises(JobFailed, match=r"3 times in a row \(--retries\): Spark: c"):
        run([Query("a"), Query("b"), Query("c")], retries=2)


def test_a_successful_batch_resets_the_failures() -> None:
    """A job that fails once a day is always restarted."""
    often = [Query("x", batches=number) for number in range(1, 6)]

    assert JobResult.DONE is run([*often, Query()], retries=1)[0]


def test_an_idle_query_does_not_reset_the_failures() -> None:
    """Spark also reports the next batch: a job whose batch fails each time is given up."""
    with pytest.raises(JobFailed, match=r"3 times in a row \(--retries\): Spark: disk full"):
        run([Query("disk full", idle_at=57) for _ in range(3)], retries=2)


def test_a_batch_after_an_idle_time_resets_the_failures() -> None:
    """The next batch has a higher number then."""
    often = [Query("x", idle_at=number) for number in range(57, 62)]

    assert JobResult.DONE is run([*often, Query()], retries=1)[0]


def test_a_permanent_failure_ends_at_once() -> None:
    """For example an invalid setting."""
    error = "Traceback (most recent call last):\ngateway.errors.SettingsError: topic is 1"

    with pytest.raises(JobFailed, match="would fail again: SettingsError: topic is 1"):
        run([Query(error)])


def test_a_lost_jvm_ends_the_job_at_once() -> None:
    def start() -> Query:
        raise ConnectionRefusedError

    with pytest.raises(JobFailed, match=r"^Spark's JVM has exited, .* with the same flags"):
        supervise(start, settings_of(), on_restart=lambda _: None)


@pytest.mark.parametrize(
    "program, said",
    [
        ("kill -9 $$", r"\) was killed by SIGKILL, as happens when memory runs out: "),
        ("kill -15 $$", r"\) was killed by SIGTERM\."),
        ("exit 3", r"\) exited with status 3; see the log above\."),
    ],
)
def test_a_lost_jvm_is_reported_with_its_exit(
    monkeypatch: pytest.MonkeyPatch, program: str, said: str
) -> None:
    with subprocess.Popen(["/bin/sh", "-c", program]) as process:
        gateway = SimpleNamespace(proc=process)
        monkeypatch.setattr(SparkContext, "_gateway", gateway)
        failed = "org.apache.spark.SparkException: Job 1 cancelled, SparkContext was shut down"
        with pytest.raises(
            JobFailed, match=rf"^Spark's JVM \(process {process.pid}{said}"
        ) as ended:
            run([Query(failed)])

    assert "Nothing is lost: start it again with the same flags, and it continues" in str(
        ended.value
    )
    assert "would fail again" not in str(ended.value)


def test_a_query_that_does_not_start_is_tried_again() -> None:
    """Errors at the start are handled like those of a running query."""
    left: list[Exception | Query] = [ValueError("not now"), Query()]
    failures: list[str] = []

    def start() -> Query:
        found = left.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    ending = supervise(start, settings_of(), on_restart=lambda each: failures.append(str(each)))

    assert (JobResult.DONE, ["Spark: not now"]) == (ending, failures)


def test_our_error_at_the_start_is_raised_unchanged() -> None:
    """So that a usage error keeps its exit status."""

    def start() -> Query:
        raise SettingRefused("--output", "no")

    with pytest.raises(SettingRefused):
        supervise(start, settings_of(), on_restart=lambda _: None)


@pytest.mark.parametrize(
    "number, expected",
    [(signal.SIGTERM, JobResult.TERMINATED), (signal.SIGINT, JobResult.INTERRUPTED)],
)
def test_a_signal_stops_the_query(number: signal.Signals, expected: JobResult) -> None:
    query = Query(ends=False)
    before = signal.getsignal(number)

    def start() -> Query:
        signal.raise_signal(number)
        return query

    ending = supervise(start, settings_of(), on_restart=lambda _: None)

    assert expected is ending
    assert query.is_stopped
    assert before is signal.getsignal(number)


def test_the_batch_in_work_may_finish() -> None:
    query = Query(ends=False)
    looks = 0

    class Status(dict[str, Any]):
        """A status that is active for the first three reads."""

        def __getitem__(self, name: str) -> bool:
            nonlocal looks
            looks += 1
            assert not query.is_stopped
            return looks < 3

    query.status = Status()

    def start() -> Query:
        signal.raise_signal(signal.SIGTERM)
        return query

    supervise(start, settings_of(), on_restart=lambda _: None)

    assert (3, True) == (looks, query.is_stopped)


def test_a_batch_that_takes_too_long_is_not_waited_for() -> None:
    query = Query(ends=False)
    query.status = {"isTriggerActive": True}

    def start() -> Query:
        signal.raise_signal(signal.SIGTERM)
        return query

    supervise(start, settings_of(stop_wait_s=0.2), on_restart=lambda _: None)

    assert query.is_stopped


def test_a_signal_ends_the_pause_before_the_next_start() -> None:
    def on_restart(failure: Failure) -> None:
        del failure
        signal.raise_signal(signal.SIGTERM)

    ending = supervise(lambda: Query("x"), settings_of(), on_restart=on_restart)

    assert JobResult.TERMINATED is ending


def test_the_source_waits_for_the_time_of_a_batch_and_spark_asks_often() -> None:
    """So the messages of a committed batch are finished within a second."""
    settings = load(ArchiveSettings, {"trigger_s": "60"}).settings

    assert "60" == source_options(settings)["batchS"]
    assert {"processingTime": "1000 milliseconds"} == trigger_of(settings)


def test_available_now_beats_the_trigger() -> None:
    """Such a run reads the available messages and ends."""
    given = {"trigger_s": "60", "available_now": True}

    assert {"availableNow": True} == trigger_of(load(ArchiveSettings, given).settings)
