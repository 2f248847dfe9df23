"""What a listener hears of a batch on a real Spark, and what PySpark's own would cost."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from pyspark.errors.exceptions import captured
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import QueryProgressEvent

from gateway.pipeline.progress import ProgressListener, listening
from tests.support.spark_program import SparkProgram

_WAIT_MS = 30_000
_ROWS = 3


class Ours(ProgressListener):
    """Keeps what it hears of batches with rows."""

    def __init__(self) -> None:
        self.batches: list[dict[str, Any]] = []

    def progress(self, progress: dict[str, Any]) -> None:
        """Keep it."""
        if progress["numInputRows"]:
            self.batches.append(progress)


class Theirs(Ours):
    """The same, of events as PySpark makes them."""

    @property
    def _jlistener(self) -> Any:  # noqa: ANN401 - of Java
        """Return PySpark's."""
        return super(ProgressListener, self)._jlistener

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's
        """Keep what it holds."""
        progress = event.progress
        names = ("batchId", "numInputRows")
        self.progress({name: getattr(progress, name) for name in names})


def listen_to_a_batch(
    spark: SparkSession, folder: str, *, is_ours: bool
) -> tuple[list[dict[str, Any]], int]:
    """
    Read a folder of one file, and hear of it; runs in the program.

    Returns what came, and how many exceptions of Java's Python has taken apart meanwhile.
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
    """One batch of three rows."""

    async def test_a_batch_comes_as_the_json_of_spark(
        self, spark: SparkProgram, tmp_path: Path
    ) -> None:
        """With nothing of Java's to take apart."""
        [batch], exceptions = await spark.run(listen_to_a_batch, str(tmp_path), is_ours=True)

        assert (0, _ROWS) == (batch["batchId"], batch["numInputRows"])
        assert {"durationMs", "sources", "sink", "batchDuration"} <= set(batch)
        assert 0 == exceptions

    async def test_an_event_of_pyspark_costs_exceptions(
        self, spark: SparkProgram, tmp_path: Path
    ) -> None:
        """
        To walk an array of Java's ends with an exception from there, several times a batch.

        Where there is none any more, `gateway.pipeline.progress` may go: see decision 12.
        """
        batches, exceptions = await spark.run(listen_to_a_batch, str(tmp_path), is_ours=False)

        assert [{"batchId": 0, "numInputRows": _ROWS}] == batches
        assert exceptions >= 1


def test_what_cannot_be_read_is_passed_over() -> None:
    """It would end the counting, and nobody would know."""
    listener = Ours()
    listener.told("no JSON")
    listener.told("{}")
    listener.told('{"numInputRows": 1}')

    assert [{"numInputRows": 1}] == listener.batches
