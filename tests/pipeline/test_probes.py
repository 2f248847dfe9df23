"""
What Spark does today and the source is built on, shown by a source that only writes down calls.

None of it is promised anywhere. A test that fails after an upgrade of Spark says that something
here has become simpler, or has to be thought through anew; its docstring says what.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.support.gateway import become
from tests.support.spark_probe import CHECKPOINT, FAIL, Call, ProbeDataSource, calls
from tests.support.spark_program import SparkFailed, SparkProgram

pytestmark = pytest.mark.java


def probe(spark: SparkSession, folder: str, **options: str) -> DataFrame:
    """Return the stream of the probe that writes to *folder*."""
    spark.dataSource.register(ProbeDataSource)
    return spark.readStream.format("probe").options(folder=folder, **options).load()


def read_all(spark: SparkSession, folder: str) -> int:
    """Read two batches of one row to the end of them; return how many rows came."""
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
    """Start a query, wait for its first batch, stop it."""
    query = (
        probe(spark, folder)
        .writeStream.format("noop")
        .option("checkpointLocation", f"{folder}/{CHECKPOINT}")
        .start()
    )
    query.processAllAvailable()
    query.stop()


def read_with_module(spark: SparkSession, folder: str, archive: str, module: str) -> int:
    """Read one batch, where Spark was given a module in a zip; return how many rows came."""
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
    `commit(end)` comes with the next batch that has rows; the last one's never comes.

    So messages are finished in `latestOffset(start)`. Where `commit` comes for every batch, it is
    enough, and the source needs no `latestOffset` with a start: Spark 4.0 would do.
    """
    rows = await spark.run(read_all, str(tmp_path))
    committed = [call.offset for call in calls(tmp_path) if call.name == "commit"]

    assert (2, [1]) == (rows, committed)


async def test_a_batch_is_in_the_log_before_the_next_is_asked_for(
    spark: SparkProgram, tmp_path: Path
) -> None:
    """
    When `latestOffset(start)` comes, commits/N of the batch that ends at start is on the disk.

    Finishing messages there stands on it. Where it is not so any more, the source loses messages:
    nothing may be finished there, only in `commit`.
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

    So the source handles SIGTERM. Where `stop` is called and waited for, the handler can go.
    """
    await spark.run(start_and_stop, str(tmp_path))

    async def ends() -> list[str]:
        return [call.name for call in calls(tmp_path) if call.name in {"SIGTERM", "stop"}]

    assert ["SIGTERM"] == await become(ends, ["SIGTERM"])


async def test_a_batch_that_failed_is_asked_for_again(spark: SparkProgram, tmp_path: Path) -> None:
    """
    A batch that is planned, and not in the log of commits, is asked for again by its old offsets.

    By then its sockets are gone: with ackMode=commit a range of another process has no rows, and
    with spool the same bytes. Where Spark asks for new offsets instead, epochs can go.
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
    What `addPyFile` and --py-files bring reaches the tasks, and not the process of a stream.

    So the package has to be installed on every host. Where the source finds it, a zip will do.
    """
    module = "a_module_of_a_zip"
    archive = tmp_path / f"{module}.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr(f"{module}.py", "")
    await spark.run(read_with_module, str(tmp_path), str(archive), module)
    found = {call.name for call in calls(tmp_path) if "found" in call.name}

    assert {"not found in source", "found in task"} == found
