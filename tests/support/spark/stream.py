"""Streams in a Spark program that restart when they fail."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pyarrow import RecordBatch
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from gateway.pipeline.jobs.archive import archive_writer

_LOOK_S = 0.05
HOLD = "hold"
"""While a file of this name is in the folder, no task of a stream there gets on."""
HELD = "held"
"""A file of this name tells that a task waits for the end of `HOLD`."""


def start(
    spark: SparkSession, folder: str, options: Mapping[str, str], *, available_now: bool = False
) -> StreamingQuery:
    """Start the archive of the format nsq in *folder*: rows, checkpoint."""
    stream = spark.readStream.format("nsq").options(**options).load()

    def hold(batches: Iterator[RecordBatch]) -> Iterator[RecordBatch]:
        for batch in batches:
            while Path(folder, HOLD).exists():
                Path(folder, HELD).touch()
                threading.Event().wait(_LOOK_S)
            yield batch

    rows = stream.mapInArrow(hold, stream.schema)
    writer = archive_writer(rows, f"{folder}/rows", f"{folder}/checkpoint")
    if available_now:
        writer = writer.trigger(availableNow=True)
    return writer.start()


class _Supervised:
    """A stream that restarts whenever it fails."""

    def __init__(self, spark: SparkSession, folder: str, options: Mapping[str, str]) -> None:
        self.failures = 0
        self._begin = spark, folder, options
        self._ends = threading.Event()
        self._query = start(*self._begin)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ends.is_set():
            try:
                self._query.awaitTermination()
            except PySparkException:
                if not self._ends.is_set():
                    self.failures += 1
                    self._query = start(*self._begin)

    def end(self) -> None:
        """Stop the query."""
        self._ends.set()
        self._query.stop()
        self._thread.join()


_running: dict[str, _Supervised] = {}
"""Running streams, by folder."""


def keep_reading(spark: SparkSession, folder: str, options: dict[str, str]) -> None:
    """Read, and restart after failures, until `end_reading`."""
    _running[folder] = _Supervised(spark, folder, options)


def end_reading(spark: SparkSession, folder: str) -> int:
    """Stop; return the number of failures."""
    del spark
    stream = _running.pop(folder)
    stream.end()
    return stream.failures


def read_to_the_end(spark: SparkSession, folder: str, options: dict[str, str]) -> int:
    """Read the available messages; return the number of rows."""
    query = start(spark, folder, options, available_now=True)
    query.awaitTermination()
    return sum(progress["numInputRows"] for progress in query.recentProgress)


def archived(spark: SparkSession, folder: str) -> list[list[Any]]:
    """Return nsqd, id and body of all rows, as a reader that lists folders sees them."""
    rows = spark.read.parquet(f"{folder}/rows").selectExpr("nsqd", "id", "cast(body as string)")
    return [list(row) for row in rows.collect()]
