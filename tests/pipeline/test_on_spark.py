"""The format `nsq` on a real Spark, which finds it by itself."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from pyspark.sql import SparkSession

from tests.support.gateway import become
from tests.support.nsqd import real_nsqd
from tests.support.spark_program import SparkProgram

pytestmark = [pytest.mark.nsqd, pytest.mark.java]

COUNT = 1_000


def read_twice(spark: SparkSession, tcp_address: str, folder: str) -> tuple[list[int], list[str]]:
    """Read what is there twice; return how many rows each run had, and all bodies."""
    # Nobody has registered the format: Spark finds it by the name of its module.
    stream = spark.readStream.format("nsq").options(
        topic="t", nsqdTcpAddress=tcp_address, idleS="1", maxRowsPerBatch="400"
    )
    runs = []
    for _ in range(2):
        query = (
            stream.load()
            .writeStream.format("parquet")
            .option("checkpointLocation", f"{folder}/checkpoint")
            .trigger(availableNow=True)
            .start(f"{folder}/rows")
        )
        query.awaitTermination()
        runs.append(sum(progress["numInputRows"] for progress in query.recentProgress))
    rows = spark.read.parquet(f"{folder}/rows").selectExpr("cast(body as string) body").collect()
    return runs, [row.body for row in rows]


async def test_what_is_there_is_read_once_and_finished(spark: SparkProgram, tmp_path: Path) -> None:
    """The last batch too, which Spark's `commit` never tells of; a second run has nothing."""
    names = {"topic": "t", "channel": "spark"}
    bodies = [str(number) for number in range(COUNT)]
    async with (
        real_nsqd() as nsqd,
        httpx.AsyncClient(base_url=f"http://{nsqd.http_address}", trust_env=False) as http,
    ):
        for path in ("/topic/create", "/channel/create"):
            (await http.post(path, params=names)).raise_for_status()
        answer = await http.post("/mpub", params=names, content="\n".join(bodies))
        answer.raise_for_status()
        rows_of_runs, found = await spark.run(read_twice, nsqd.tcp_address, str(tmp_path))

        async def left() -> tuple[int, int]:
            stats = (await http.get("/stats", params={"format": "json"})).json()
            [channel] = stats["topics"][0]["channels"]
            return channel["depth"], channel["in_flight_count"]

        assert (0, 0) == await become(left, (0, 0))

    assert [COUNT, 0] == rows_of_runs
    assert bodies == sorted(found, key=int)
