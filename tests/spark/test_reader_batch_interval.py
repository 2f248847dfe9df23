"""When the source cuts the next batch: in a job, batchS decides and not Spark's trigger."""

from __future__ import annotations

from gateway.pipeline.reader import CommitReader
from gateway.settings.loader import load
from gateway.settings.pipeline import SourceSettings


def reader_of(**given: object) -> CommitReader:
    given |= {"nsqd_tcp_address": "127.0.0.1:1", "topic": "a,b", "poll_ms": 1}
    return CommitReader(load(SourceSettings, given).settings)


def test_the_first_batch_is_due_at_once() -> None:
    """Messages that are present do not wait."""
    assert reader_of(batch_s=3_600).is_due(is_full=False)


def test_the_next_one_is_due_when_the_time_of_a_batch_is_over_or_it_is_full() -> None:
    reader = reader_of(batch_s=3_600)
    reader.record_batch_start(1)

    assert not reader.is_due(is_full=False)
    assert reader.is_due(is_full=True)


def test_a_run_with_an_end_does_not_wait() -> None:
    """An available-now run reads at once."""
    reader = reader_of(batch_s=3_600)
    reader.record_batch_start(1)
    reader.prepareForTriggerAvailableNow()

    assert reader.is_due(is_full=False)


def test_without_the_setting_spark_alone_decides() -> None:
    reader = reader_of()
    reader.record_batch_start(1)

    assert reader.is_due(is_full=False)


def test_a_batch_is_full_when_one_topic_cannot_have_more() -> None:
    """Topics share the window, and half of a share can always arrive."""
    assert 500 == reader_of()._full_rows(20_000, 2_000)
    assert 100 == reader_of()._full_rows(100, 2_000)
    assert 1 == reader_of()._full_rows(20_000, 1)
