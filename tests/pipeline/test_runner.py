"""How a query is looked after: started again, given up, stopped."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from gateway.errors import SettingRefused
from gateway.pipeline import runner
from gateway.pipeline.failures import Failure
from gateway.pipeline.runner import Ending, JobFailed, source_options, supervise, trigger_of
from gateway.settings_jobs import ArchiveSettings, QueryJobSettings
from gateway.settings_sources import load


class Query:
    """A query that ends as it is told: at once with an error, or when it is stopped."""

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
        """Return, or raise, at the end."""
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
    """Return the settings of a job."""
    return load(QueryJobSettings, given).settings


def run(queries: Sequence[Query], **given: object) -> tuple[Ending, list[Failure]]:
    """Return how a job ended that had *queries*, and what it was started again after."""
    left = list(queries)
    failures: list[Failure] = []
    ending = supervise(lambda: left.pop(0), settings_of(**given), restarted=failures.append)
    assert [] == left
    return ending, failures


def test_a_query_that_ends_by_itself_is_done() -> None:
    """As with --available-now."""
    assert (Ending.DONE, []) == run([Query()])


def test_a_query_that_failed_is_started_again() -> None:
    """Until it ends without an error."""
    ending, failures = run([Query("java.io.IOException: full"), Query("x"), Query()])

    assert Ending.DONE is ending
    assert ["IOException: full", "Spark: x"] == [str(each) for each in failures]


def test_a_query_that_fails_too_often_is_given_up() -> None:
    """In a row, as --retries says; the last reason is told."""
    with pytest.raises(JobFailed, match=r"3 times in a row \(--retries\): Spark: c"):
        run([Query("a"), Query("b"), Query("c")], retries=2)


def test_a_batch_that_succeeded_begins_anew() -> None:
    """A job that fails once a day lives for ever."""
    often = [Query("x", batches=number) for number in range(1, 6)]

    assert Ending.DONE is run([*often, Query()], retries=1)[0]


def test_a_query_that_has_only_waited_does_not_begin_anew() -> None:
    """Spark tells of the batch that is to come, too: one that fails each time is given up."""
    with pytest.raises(JobFailed, match=r"3 times in a row \(--retries\): Spark: disk full"):
        run([Query("disk full", idle_at=57) for _ in range(3)], retries=2)


def test_what_came_behind_an_idle_time_begins_anew() -> None:
    """The batch that is to come has another number then."""
    often = [Query("x", idle_at=number) for number in range(57, 62)]

    assert Ending.DONE is run([*often, Query()], retries=1)[0]


def test_what_cannot_heal_ends_at_once() -> None:
    """A setting, say."""
    error = "Traceback (most recent call last):\ngateway.errors.SettingsError: topic is 1"

    with pytest.raises(JobFailed, match="would again: SettingsError: topic is 1"):
        run([Query(error)])


def test_a_jvm_that_has_gone_ends_at_once() -> None:
    """There is nothing to start a query in."""

    def start() -> Query:
        raise ConnectionRefusedError

    with pytest.raises(JobFailed, match="JVM has gone"):
        supervise(start, settings_of(), restarted=lambda _: None)


def test_a_query_that_does_not_start_is_tried_again() -> None:
    """What Spark says then is told as of one that ran."""
    left: list[Exception | Query] = [ValueError("not now"), Query()]
    failures: list[str] = []

    def start() -> Query:
        found = left.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    ending = supervise(start, settings_of(), restarted=lambda each: failures.append(str(each)))

    assert (Ending.DONE, ["Spark: not now"]) == (ending, failures)


def test_an_error_of_ours_at_the_start_is_raised_as_it_is() -> None:
    """So that wrong use has its own status."""

    def start() -> Query:
        raise SettingRefused("--output", "no")

    with pytest.raises(SettingRefused):
        supervise(start, settings_of(), restarted=lambda _: None)


@pytest.mark.parametrize(
    "number, expected",
    [(signal.SIGTERM, Ending.TERMINATED), (signal.SIGINT, Ending.INTERRUPTED)],
)
def test_a_signal_stops_the_query(number: signal.Signals, expected: Ending) -> None:
    """And the handlers are afterwards what they were."""
    query = Query(ends=False)
    before = signal.getsignal(number)

    def start() -> Query:
        signal.raise_signal(number)
        return query

    ending = supervise(start, settings_of(), restarted=lambda _: None)

    assert expected is ending
    assert query.is_stopped
    assert before is signal.getsignal(number)


def test_the_batch_in_work_may_finish() -> None:
    """The query is stopped when it has, and not before."""
    query = Query(ends=False)
    looks = 0

    class Status(dict[str, Any]):
        """At work, until it was looked at three times."""

        def __getitem__(self, name: str) -> bool:
            nonlocal looks
            looks += 1
            assert not query.is_stopped
            return looks < 3

    query.status = Status()

    def start() -> Query:
        signal.raise_signal(signal.SIGTERM)
        return query

    supervise(start, settings_of(), restarted=lambda _: None)

    assert (3, True) == (looks, query.is_stopped)


def test_a_batch_that_takes_too_long_is_not_waited_for() -> None:
    """--stop-wait-s is the longest."""
    query = Query(ends=False)
    query.status = {"isTriggerActive": True}

    def start() -> Query:
        signal.raise_signal(signal.SIGTERM)
        return query

    supervise(start, settings_of(stop_wait_s=0.2), restarted=lambda _: None)

    assert query.is_stopped


def test_a_signal_ends_the_pause_before_the_next_start() -> None:
    """Nobody waits a minute for a job that does nothing."""

    def restarted(failure: Failure) -> None:
        del failure
        signal.raise_signal(signal.SIGTERM)

    ending = supervise(lambda: Query("x"), settings_of(), restarted=restarted)

    assert Ending.TERMINATED is ending


def test_the_source_waits_for_the_time_of_a_batch_and_spark_asks_often() -> None:
    """What a batch has finished is told to nsqd within a second."""
    settings = load(ArchiveSettings, {"trigger_s": "60"}).settings

    assert "60" == source_options(settings)["batchS"]
    assert {"processingTime": "1000 milliseconds"} == trigger_of(settings)


def test_available_now_beats_the_trigger() -> None:
    """It takes what is there, and ends."""
    given = {"trigger_s": "60", "available_now": True}

    assert {"availableNow": True} == trigger_of(load(ArchiveSettings, given).settings)
