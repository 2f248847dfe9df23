"""What a test of the compaction asks of Spark: an archive of its own making, and the work on it."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any, TypeAlias

import duckdb
import pyarrow.dataset as ds
from pyspark.sql import SparkSession

from gateway.pipeline.archive import PARTITIONS, with_partitions
from gateway.pipeline.compaction import compact
from gateway.settings_jobs import CompactSettings
from gateway.settings_sources import load

Row: TypeAlias = tuple[str, str, str]
"""Topic, id, body."""

_SCHEMA = "topic string, nsqd string, id string, ts timestamp, attempts int, received timestamp"


def row(topic: str, message_id: str, ts: str, attempts: int = 1) -> dict[str, Any]:
    """Return a row of an archive; its body is its id, with how often it was tried."""
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
    """Add *rows* to the archive in *folder*/archive as one batch more; return how many it was."""
    incoming = Path(folder) / "incoming"
    incoming.mkdir(exist_ok=True)
    name = incoming / f"{len(list(incoming.iterdir()))}.json"
    name.write_text("\n".join(map(json.dumps, rows)))
    stream = spark.readStream.schema(f"{_SCHEMA}, text string").json(str(incoming))
    query = (
        with_partitions(stream.selectExpr("* except (text)", "cast(text as binary) body"))
        .writeStream.format("parquet")
        .partitionBy(*PARTITIONS)
        .option("compression", "zstd")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start(f"{folder}/archive")
    )
    query.awaitTermination()
    return sum(progress["numInputRows"] for progress in query.recentProgress)


def compact_at(spark: SparkSession, folder: str, now: str) -> dict[str, int]:
    """Compact *folder*/archive into *folder*/clean as at *now*; return the sum."""
    given = {"input": f"{folder}/archive", "output": f"{folder}/clean", "settle_s": 900}
    settings = load(CompactSettings, given).settings
    return asdict(compact(spark, settings, datetime.fromisoformat(now)))


def rows_of_spark(spark: SparkSession, folder: str) -> list[Row]:
    """Return what Spark reads in *folder*."""
    rows = spark.read.parquet(folder).selectExpr("topic", "id", "cast(body as string) body")
    return sorted((each.topic, each.id, each.body) for each in rows.collect())


def rows_of_duckdb(folder: str) -> list[Row]:
    """Return what DuckDB reads in *folder*."""
    files = f"{folder}/**/*.parquet"
    query = "select topic, id, decode(body) from read_parquet(?, hive_partitioning = true)"
    return sorted(duckdb.execute(query, [files]).fetchall())


def rows_of_pyarrow(folder: str) -> list[Row]:
    """Return what pyarrow reads in *folder*."""
    table = ds.dataset(folder, partitioning="hive").to_table(columns=["topic", "id", "body"])
    return sorted((each["topic"], each["id"], each["body"].decode()) for each in table.to_pylist())
