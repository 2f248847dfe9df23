"""Build small archives in a Spark program and compact them."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any, TypeAlias

import duckdb
import pyarrow.dataset as ds
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from gateway.pipeline.jobs.archive import archive_writer, with_partitions
from gateway.pipeline.jobs.committer import PARTITIONS
from gateway.pipeline.jobs.compact import compact
from gateway.settings.loader import load
from gateway.settings.pipeline import CompactSettings

Row: TypeAlias = tuple[str, str, str]
"""Topic, id, body."""

_SCHEMA = "topic string, nsqd string, id string, ts timestamp, attempts int, received timestamp"


def row(topic: str, message_id: str, ts: str, attempts: int = 1) -> dict[str, Any]:
    """Return a row of an archive; its body is its id and its attempts."""
    return {
        "topic": topic,
        "nsqd": "127.0.0.1:4150",
        "id": message_id,
        "ts": ts,
        "attempts": attempts,
        "received": f"2026-11-22T09:00:0{attempts}Z",
        "text": f"{message_id} {attempts}",
    }


def archive_batch(spark: SparkSession, folder: str, rows: list[dict[str, Any]]) -> int:
    """Append *rows* to the archive in *folder*/archive as a batch; return the batch count."""
    stream = stream_of(spark, folder, rows)
    writer = archive_writer(stream, f"{folder}/archive", f"{folder}/checkpoint")
    return _rows_of(writer.trigger(availableNow=True).start())


def archive_old_batch(spark: SparkSession, folder: str, rows: list[dict[str, Any]]) -> int:
    """Append a batch like versions that left the list of committed files to Spark."""
    writer = (
        with_partitions(stream_of(spark, folder, rows))
        .writeStream.format("parquet")
        .partitionBy(*PARTITIONS)
        .option("compression", "zstd")
        .option("checkpointLocation", f"{folder}/checkpoint")
    )
    return _rows_of(writer.trigger(availableNow=True).start(f"{folder}/archive"))


def stream_of(spark: SparkSession, folder: str, rows: list[dict[str, Any]]) -> DataFrame:
    incoming = Path(folder) / "incoming"
    incoming.mkdir(exist_ok=True)
    name = incoming / f"{len(list(incoming.iterdir()))}.json"
    name.write_text("\n".join(map(json.dumps, rows)))
    stream = spark.readStream.schema(f"{_SCHEMA}, text string").json(str(incoming))
    return stream.selectExpr("* except (text)", "cast(text as binary) body")


def _rows_of(query: StreamingQuery) -> int:
    query.awaitTermination()
    return sum(progress["numInputRows"] for progress in query.recentProgress)


def compact_at(
    spark: SparkSession, folder: str, now: str, *, with_current_hour: bool = False
) -> dict[str, Any]:
    """Compact *folder*/archive into *folder*/clean at the time *now*; return result and text."""
    given = {
        "input": f"{folder}/archive",
        "output": f"{folder}/clean",
        "settle_s": 900,
        "include_current_hour": with_current_hour,
    }
    settings = load(CompactSettings, given).settings
    done = compact(spark, settings, datetime.fromisoformat(now))
    return asdict(done) | {"text": str(done)}


def rows_of_spark(spark: SparkSession, folder: str) -> list[Row]:
    rows = spark.read.parquet(folder).selectExpr("topic", "id", "cast(body as string) body")
    return sorted((each.topic, each.id, each.body) for each in rows.collect())


def rows_of_duckdb(folder: str) -> list[Row]:
    files = f"{folder}/**/*.parquet"
    query = "select topic, id, decode(body) from read_parquet(?, hive_partitioning = true)"
    return sorted(duckdb.execute(query, [files]).fetchall())


def rows_of_pyarrow(folder: str) -> list[Row]:
    table = ds.dataset(folder, partitioning="hive").to_table(columns=["topic", "id", "body"])
    return sorted((each["topic"], each["id"], each["body"].decode()) for each in table.to_pylist())
