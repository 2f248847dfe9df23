"""
Undocumented behaviour of Spark on which the source relies, shown by a source that records calls.

Spark documents none of this. If a test fails after an upgrade of Spark, some code can become
simpler, or has to change; the test's docstring says which.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.support.gateways.gateway import poll_until
from tests.support.spark.probe import CHECKPOINT, FAIL, Call, ProbeDataSource, calls
from tests.support.spark.program import SparkFailed, SparkProgram

pytestmark = pytest.mark.java


def probe(spark: SparkSession, folder: str, **options: str) -> DataFrame:
    """Return a stream of the recording source, which writes to *folder*."""
    spark.dataSource.register(ProbeDataSource)
    return spark.readStream.format("probe").options(folder=folder, **options).load()


def read_all(spark: SparkSession, folder: str) -> int:
    """Read two batches of one row each; return the number of rows."""
    query = (
        probe(spark, folder, batches="2")
        .writeStream.format("noop")
        .option("checkpointLocation", f"{folder}/{CHECKPOINT}")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return sum(progress["numInputRows"] for progress in query.recentProgress)


def start_and_stop(spark: SparkSession, folder: str) -> None:
    """Start a query, wait for its first batch, and stop it."""
    query = (
        probe(spark, folder)
        .writeStream.format("noop")
        .option("checkpointLocation", f"{folder}/{CHECKPOINT}")
        .start()
    )
    query.processAllAvailable()
    query.stop()


def read_with_module(spark: SparkSession, folder: str, archive: str, module: str) -> int:
    """Read one batch after Spark got a module in a zip; return the number of rows."""
    spark.sparkContext.addPyFile(archive)
    query = (
        probe(spark, folder, module=module)
        .writeStream.format("noop")
        .option("checkpointLocation", f"{folder}/{CHECKPOINT}")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return sum(progress["numInputRows"] for progress in query.recentProgress)


async def test_the_last_batch_is_never_committed(spark: SparkProgram, tmp_path: Path) -> None:
    """
    Spark calls `commit(end)` with the next batch that has rows, so never for the last batch.

    Messages are therefore finished in `latestOffset(start)`. If Spark calls `commit` for every
    batch, that suffices, and the source could also run on Spark 4.0.
    """
    rows = await spark.run(read_all, str(tmp_path))
    committed = [call.offset for call in calls(tmp_path) if call.name == "commit"]

    assert (2, [1]) == (rows, committed)


async def test_a_batch_is_in_the_log_before_the_next_is_asked_for(
    spark: SparkProgram, tmp_path: Path
) -> None:
    """
    Before `latestOffset(start)`, Spark writes commits/N for the batch that ends at *start*.

    Finishing messages in `latestOffset` depends on this. If it no longer holds, the source loses
    messages, and may finish them in `commit` only.
    """
    await spark.run(read_all, str(tmp_path))
    asked = {call.offset: call for call in calls(tmp_path) if call.name == "latestOffset"}

    assert [Call("latestOffset", 1, ["0"]), Call("latestOffset", 2, ["0", "1"])] == [
        asked[1],
        asked[2],
    ]


async def test_the_end_of_a_query_is_a_signal(spark: SparkProgram, tmp_path: Path) -> None:
    """
    `query.stop()` sends SIGTERM to the process of the source, and `stop()` is not called.

    The source therefore handles SIGTERM. If Spark calls `stop` and waits for it, the handler can
    be dropped.
    """
    await spark.run(start_and_stop, str(tmp_path))

    async def ends() -> list[str]:
        return [call.name for call in calls(tmp_path) if call.name in {"SIGTERM", "stop"}]

    assert ["SIGTERM"] == await poll_until(ends, ["SIGTERM"])


async def test_a_batch_that_failed_is_asked_for_again(spark: SparkProgram, tmp_path: Path) -> None:
    """
    Spark requests a batch that is planned and not committed again, with its old offsets.

    Its process has ended by then. With ackMode=commit a range of another process has no rows, with
    spool it has the same bytes. If Spark plans new offsets instead, epochs can be dropped.
    """
    (tmp_path / FAIL).touch()
    with pytest.raises(SparkFailed, match="told to fail"):
        await spark.run(read_all, str(tmp_path))
    before = len(calls(tmp_path))
    (tmp_path / FAIL).unlink()
    rows = await spark.run(read_all, str(tmp_path))
    again = [call for call in calls(tmp_path)[before:] if call.name != "latestOffset"]

    assert (2, Call("partitions", 1, [])) == (rows, again[0])


async def test_a_module_that_spark_is_given_is_not_where_the_source_is(
    spark: SparkProgram, tmp_path: Path
) -> None:
    """
    Tasks can import modules of `addPyFile` and --py-files; the process of a stream cannot.

    The package must therefore be installed on every host. If the source can import them, a zip is
    enough.
    """
    module = "a_module_of_a_zip"
    archive = tmp_path / f"{module}.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr(f"{module}.py", "")
    await spark.run(read_with_module, str(tmp_path), str(archive), module)
    found = {call.name for call in calls(tmp_path) if "found" in call.name}

    assert {"not found in source", "found in task"} == found
