"""`ProgressListener` on a real Spark, compared with PySpark's own listener."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from pyspark.errors.exceptions import captured
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import QueryProgressEvent

from gateway.pipeline.jobs.monitoring import ProgressListener, listening
from tests.support.spark.program import SparkProgram

_WAIT_MS = 30_000
_ROWS = 3


class Ours(ProgressListener):
    """A `ProgressListener` that records the progress of batches with rows."""

    def __init__(self) -> None:
        self.batches: list[dict[str, Any]] = []

    def on_progress(self, progress: dict[str, Any]) -> None:
        """Record the progress."""
        if progress["numInputRows"]:
            self.batches.append(progress)


class Theirs(Ours):
    """A listener that records PySpark's own events of batches with rows."""

    @property
    def _jlistener(self) -> Any:  # noqa: ANN401 - of Java
        """Return PySpark's own listener object."""
        return super(ProgressListener, self)._jlistener

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's
        """Record the event's progress."""
        progress = event.progress
        names = ("batchId", "numInputRows")
        self.on_progress({name: getattr(progress, name) for name in names})


def listen_to_a_batch(
    spark: SparkSession, folder: str, *, is_ours: bool
) -> tuple[list[dict[str, Any]], int]:
    """
    Run a query over one file, with a listener; this runs in the Spark program.

    Return the progress received, and the number of Java exceptions that Python has handled.
    """
    rows = spark.range(_ROWS).coalesce(1)
    rows.write.parquet(f"{folder}/rows")
    listener = Ours() if is_ours else Theirs()
    convert = mock.patch.object(
        captured, "convert_exception", side_effect=captured.convert_exception
    )
    with convert as converted, listening(spark, listener):
        query = (
            spark.readStream.schema(rows.schema)
            .parquet(f"{folder}/rows")
            .writeStream.format("noop")
            .option("checkpointLocation", f"{folder}/checkpoint")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        spark._jsc.sc().listenerBus().waitUntilEmpty(_WAIT_MS)
    return listener.batches, converted.call_count


@pytest.mark.java
class TestOnSpark:
    """Tests with one batch of three rows."""

    async def test_a_batch_is_passed_on_as_json(self, spark: SparkProgram, tmp_path: Path) -> None:
        """Without a Java exception."""
        [batch], exceptions = await spark.run(listen_to_a_batch, str(tmp_path), is_ours=True)

        assert (0, _ROWS) == (batch["batchId"], batch["numInputRows"])
        assert {"durationMs", "sources", "sink", "batchDuration"} <= set(batch)
        assert 0 == exceptions

    async def test_an_event_of_pyspark_costs_exceptions(
        self, spark: SparkProgram, tmp_path: Path
    ) -> None:
        """
        Iterating over a Java array ends with a Java exception, several times per batch.

        If there is none any more, `ProgressListener` can be dropped: see decision 12.
        """
        batches, exceptions = await spark.run(listen_to_a_batch, str(tmp_path), is_ours=False)

        assert [{"batchId": 0, "numInputRows": _ROWS}] == batches
        assert exceptions >= 1


def test_unreadable_progress_is_ignored() -> None:
    """An exception would silently end the metrics."""
    listener = Ours()
    listener.on_json("no JSON")
    listener.on_json("{}")
    listener.on_json('{"numInputRows": 1}')

    assert [{"numInputRows": 1}] == listener.batches
