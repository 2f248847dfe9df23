"""The source `nsq` on a real Spark, which finds the format without registration."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.support.brokers.nsqd import real_nsqd
from tests.support.gateways.gateway import poll_until
from tests.support.spark.program import SparkProgram

pytestmark = [pytest.mark.nsqd, pytest.mark.java]

COUNT = 1_000


def read_twice(spark: SparkSession, tcp_address: str, folder: str) -> tuple[list[int], list[str]]:
    """Run an available-now query twice; return the rows of each run, and all bodies."""
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


async def test_messages_are_read_once_and_finished(spark: SparkProgram, tmp_path: Path) -> None:
    """The last batch too, for which Spark does not call `commit`; a second run reads nothing."""
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

        assert (0, 0) == await poll_until(left, (0, 0))

    assert [COUNT, 0] == rows_of_runs
    assert bodies == sorted(found, key=int)


def refusal(spark: SparkSession, way: str, folder: str) -> str:
    """Return Spark's error for invalid options: at load, at save, or of a query."""

    def load() -> None:
        options = {"topic": "t", "nsqdTcpAddress": "a:1", "maxOffsetsPerTrigger": "9"}
        spark.readStream.format("nsq").options(**options).load()

    def save() -> None:
        options = {"topic": "t", "nsqdTcpAddress": "a:1", "badRows": "dead-letter"}
        rows = spark.sql("select 'x' body")
        rows.write.format("nsq").options(**options).mode("append").save()

    def run(columns: str) -> None:
        # A stream that brings its own columns is asked for none at load().
        stream = spark.readStream.format("nsq").schema(columns).option("topic", "t").load()
        query = stream.writeStream.format("parquet").trigger(availableNow=True)
        query = query.option("checkpointLocation", f"{folder}/checkpoint")
        query.start(f"{folder}/rows").awaitTermination()

    own = "topic string, nsqd string, id string, ts timestamp, attempts int, received timestamp, "
    ways: dict[str, Callable[[], None]] = {
        "load": load,
        "save": save,
        "query": lambda: run(own + "body binary"),
        "columns": lambda: run("body binary"),
    }
    try:
        ways[way]()
    except PySparkException as error:
        return str(error)
    return ""


async def test_invalid_options_are_refused_in_one_sentence(
    spark: SparkProgram, tmp_path: Path
) -> None:
    """The error has no traceback and no text of Spark except its prefix."""
    ways = ("load", "save", "query", "columns")
    at_load, at_save, of_query, of_columns = [
        await spark.run(refusal, way, str(tmp_path / way)) for way in ways
    ]

    assert "SettingRefused: maxOffsetsPerTrigger: use maxRowsPerBatch instead" in at_load
    assert (
        "SettingRefused: badRows: the value 'dead-letter' needs the setting deadLetterTopic"
        in at_save
    )
    assert (
        "SettingRefused: nsqdTcpAddress: the address of nsqd is required: set this, or lookupd"
        in of_query
    )
    assert "SettingRefused: schema(struct<body:binary>): rows of the format nsq have" in of_columns
    for said in (at_load, at_save, of_query, of_columns):
        assert "Traceback" not in said
        assert "UnboundLocalError" not in said
        assert len(said.splitlines()[0]) < 500  # a query that failed shows its plan below
