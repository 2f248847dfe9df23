"""Archive jobs in a Spark program that stop while a file is written."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

from pyarrow import RecordBatch
from pyspark.sql import DataFrame, SparkSession

from gateway.pipeline.jobs.archive import archive_writer
from gateway.pipeline.jobs.committer import (
    RECORDS,
    FileCommitter,
    last_committed,
    read_record,
    staging_folder,
)
from gateway.pipeline.jobs.storage import HadoopFolder
from tests.support.spark.compaction import stream_of

_BODY_BYTES = 200_000
"""More than Python's buffer for data to the writer process."""


def stop_in_a_batch(spark: SparkSession, folder: str, rows: list[dict[str, Any]]) -> None:
    """Start the archive of `archive_batch` with *rows*; its task blocks after the first row."""
    # Otherwise the writer sorts first, and opens no file before it has all rows.
    spark.conf.set("spark.sql.maxConcurrentOutputFileWriters", 10)

    def hold(batches: Iterator[RecordBatch]) -> Iterator[RecordBatch]:
        for batch in batches:
            yield batch
            threading.Event().wait()

    rows = [each | {"text": "x" * _BODY_BYTES} for each in rows]
    stream = stream_of(spark, folder, rows)
    held = stream.mapInArrow(hold, stream.schema)
    archive_writer(held, f"{folder}/archive", f"{folder}/checkpoint").start()


def undo_renames(spark: SparkSession, folder: str) -> int:
    """Move the files of the last batch back to staging; return the number of files."""
    output = HadoopFolder(spark, f"{folder}/archive")
    last = last_committed(output)
    assert last is not None
    staging = staging_folder(spark, output)
    files = read_record(output, last)
    for path, staged in files.items():
        staging.move_from(output, path, staged)
    return len(files)


def commit_twice(spark: SparkSession, folder: str) -> str:
    """Commit the same batch in two archives; return the error of the second."""
    rows = spark.sql("select 'a' topic, '2026-11-22' date, '03' hour, cast('x' as binary) body")
    committers = [FileCommitter(spark, f"{folder}/archive", f"{folder}/ck") for _ in range(2)]
    for committer in committers:
        committer.recover()
    committers[0].write(rows, 0)
    try:
        committers[1].write(rows, 0)
    except Exception as error:  # noqa: BLE001 - the test compares it
        return f"{type(error).__name__}: {error}"
    return ""


def write_batches(spark: SparkSession, folder: str, numbers: list[int]) -> list[str]:
    """Commit a batch of one row for each of *numbers*; return the names of the kept records."""
    committer = FileCommitter(spark, f"{folder}/archive", f"{folder}/ck")
    committer.recover()
    for number in numbers:
        committer.write(_one_row(spark, number), number)
    return HadoopFolder(spark, f"{folder}/archive").names(RECORDS)


def _one_row(spark: SparkSession, number: int) -> DataFrame:
    row = f"'a' topic, '2026-11-22' date, '03' hour, '{number}' id, cast('{number}' as binary) body"
    return spark.sql(f"select {row}")
