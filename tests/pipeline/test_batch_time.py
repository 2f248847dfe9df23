"""When the source makes the next batch, which it and not Spark's trigger decides for a job."""

from __future__ import annotations

from gateway.pipeline.reader import CommitReader
from gateway.settings_pipeline import SourceSettings
from gateway.settings_sources import load


def reader_of(**given: object) -> CommitReader:
    """Return a reader that has no sockets yet."""
    given |= {"nsqd_tcp_address": "127.0.0.1:1", "topic": "a,b", "poll_ms": 1}
    return CommitReader(load(SourceSettings, given).settings)


def test_the_first_batch_is_due_at_once() -> None:
    """Nobody waits for what is there already."""
    assert reader_of(batch_s=3_600).is_due(is_full=False)


def test_the_next_one_is_due_when_the_time_of_a_batch_is_over_or_it_is_full() -> None:
    """So a topic with more than a batch an hour is not held up."""
    reader = reader_of(batch_s=3_600)
    reader.made_batch()

    assert not reader.is_due(is_full=False)
    assert reader.is_due(is_full=True)


def test_a_run_with_an_end_does_not_wait() -> None:
    """It takes what is there now."""
    reader = reader_of(batch_s=3_600)
    reader.made_batch()
    reader.prepareForTriggerAvailableNow()

    assert reader.is_due(is_full=False)


def test_without_the_setting_spark_alone_decides() -> None:
    """As for any other source."""
    reader = reader_of()
    reader.made_batch()

    assert reader.is_due(is_full=False)


def test_a_batch_is_full_when_one_topic_cannot_have_more() -> None:
    """The window is shared by all, and half of a share is always to be had."""
    assert 500 == reader_of(max_in_flight=2_000)._enough(20_000)
    assert 100 == reader_of(max_in_flight=2_000)._enough(100)
    assert 1 == reader_of(max_in_flight=1)._enough(20_000)
