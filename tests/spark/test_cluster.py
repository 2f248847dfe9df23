"""Streams on a cluster with executors in separate JVMs, and two applications at once."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pyspark
import pytest
from pyspark.sql import SparkSession

from tests.support.brokers.killable_broker import KillableBroker
from tests.support.spark.class_archive import java_options
from tests.support.spark.kills import TOPIC, counts, options_for, until
from tests.support.spark.program import SparkProgram, spark_program
from tests.support.spark.stream import archived, end_reading, keep_reading

pytestmark = [
    pytest.mark.java,
    pytest.mark.nsqd,
    pytest.mark.parametrize("broker", ["nsqd"], indirect=True),
]

COUNT = 1_000
OTHER_TOPIC = "other"
_MSG_TIMEOUT_MS = 60_000
_WORK = Path(pyspark.__file__).parent / "work"
"""Folder in which Spark's workers write; local-cluster has no setting for it."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkProgram]:
    """Return a program with two executors, each a separate JVM with one core."""
    before = set(_WORK.glob("app-*"))
    conf = {"spark.executor.extraJavaOptions": java_options()}
    folder = tmp_path_factory.mktemp("cluster")
    with spark_program(folder, master="local-cluster[2,1,1024]", conf=conf) as program:
        yield program
    for left in set(_WORK.glob("app-*")) - before:
        shutil.rmtree(left)


async def publish(http: httpx.AsyncClient, topic: str, first: int) -> None:
    """Publish *count* numbers."""
    body = "\n".join(str(number) for number in range(first, first + COUNT))
    (await http.post("/mpub", params={"topic": topic}, content=body)).raise_for_status()


def read(spark: SparkSession, folder: str, streams: list[dict[str, str]]) -> int:
    """Read the available messages of both *streams* in one query; return the number of rows."""
    one, other = [spark.readStream.format("nsq").options(**each).load() for each in streams]
    query = (
        one.union(other)
        .writeStream.format("parquet")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start(f"{folder}/rows")
    )
    query.awaitTermination()
    return sum(progress["numInputRows"] for progress in query.recentProgress)


def executors(spark: SparkSession) -> int:
    context = spark.sparkContext._jsc.sc()
    return int(context.getExecutorMemoryStatus().size()) - 1


async def numbers(spark: SparkProgram, folder: Path) -> list[int]:
    return sorted(int(body) for _, _, body in await spark.run(archived, str(folder)))


async def test_two_streams_are_one_query_on_two_executors(
    cluster: SparkProgram, broker: KillableBroker, http: httpx.AsyncClient, tmp_path: Path
) -> None:
    """Each stream has a process with its sockets on the driver; tasks run on the executors."""
    await publish(http, TOPIC, 0)
    await publish(http, OTHER_TOPIC, COUNT)
    options = options_for(broker, tmp_path, "commit", _MSG_TIMEOUT_MS)
    streams = [options, options | {"topic": OTHER_TOPIC}]
    rows = [await cluster.run(read, str(tmp_path), streams) for _ in range(2)]

    assert (2, [2 * COUNT, 0]) == (await cluster.run(executors), rows)
    assert list(range(2 * COUNT)) == await numbers(cluster, tmp_path)


async def test_two_applications_on_a_channel_share_its_messages(
    cluster: SparkProgram,
    spark: SparkProgram,
    broker: KillableBroker,
    http: httpx.AsyncClient,
    tmp_path: Path,
) -> None:
    applications = [(cluster, tmp_path / "cluster"), (spark, tmp_path / "local")]
    for program, folder in applications:
        options = options_for(broker, folder, "commit", _MSG_TIMEOUT_MS)
        await program.run(keep_reading, str(folder), options)

    async def both_are_there() -> bool:
        stats = (await http.get("/stats", params={"format": "json", "topic": TOPIC})).json()
        return [2] == [len(each["clients"] or []) for each in stats["topics"][0]["channels"]]

    async def is_drained() -> bool:
        return await counts(http) == (0, 0, 0)

    await until(both_are_there)
    for first in range(0, 4 * COUNT, COUNT):
        await publish(http, TOPIC, first)
    await until(is_drained)
    await asyncio.gather(*(program.run(end_reading, str(path)) for program, path in applications))
    parts = [await numbers(program, folder) for program, folder in applications]

    assert list(range(4 * COUNT)) == sorted(parts[0] + parts[1])
    assert all(parts)
