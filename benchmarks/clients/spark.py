"""
A Spark program that runs commands, one per line of JSON, in one session.

One session for all, because it and its first queries take many seconds to warm up.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import QueryStartedEvent, QueryTerminatedEvent
from pyspark.sql.streaming.query import StreamingQuery

from gateway.pipeline.jobs.monitoring import ProgressListener
from gateway.pipeline.jobs.storage import HadoopFolder, avoid_checkpoint_processes

_DEADLINE_S = 170.0


class Rows(ProgressListener):
    """Count the rows of the running query."""

    def __init__(self) -> None:
        self._count = 0
        self._changed = threading.Condition()
        self._batches: list[dict[str, int]] = []

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's
        """Reset the count."""
        del event
        with self._changed:
            self._count = 0
            self._batches.clear()

    def on_progress(self, progress: dict[str, Any]) -> None:
        """Count the rows of a batch."""
        with self._changed:
            self._count += progress["numInputRows"]
            if progress["numInputRows"]:
                self._batches.append(progress["durationMs"])
            self._changed.notify_all()

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's
        """Wake `wait_for`."""
        del event
        with self._changed:
            self._changed.notify_all()

    def wait_for(self, count: int, query: StreamingQuery) -> list[dict[str, int]]:
        """Wait for *count* rows; return the durations of the batches by phase."""
        with self._changed:
            while self._count < count:
                if not self._changed.wait(_DEADLINE_S) or not query.isActive:
                    raise SystemExit(f"{self._count} of {count} rows: {query.exception()}")
            return list(self._batches)


class Program:
    """The commands of the program."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._spark = (
            SparkSession.builder.master("local[2,4]")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.local.dir", f"{folder}/local")
            .config("spark.sql.warehouse.dir", f"{folder}/warehouse")
            .getOrCreate()
        )
        avoid_checkpoint_processes(self._spark, HadoopFolder(self._spark, folder))  # as the jobs do
        self._rows = Rows()
        self._spark.streams.addListener(self._rows)
        self._query: StreamingQuery | None = None
        self._runs = 0

    def stream(self, options: dict[str, str], sink: str) -> None:
        """Start a query from NSQ to *sink*: noop, or parquet as the archive writes it."""
        self._runs += 1
        place = self._folder / f"run{self._runs}"
        rows = self._spark.readStream.format("nsq").options(**options).load()
        if sink == "parquet":
            day = "date_format(ts, 'yyyy-MM-dd') date"
            rows = rows.selectExpr("*", day, "date_format(ts, 'HH') hour")
            writer = rows.writeStream.partitionBy("topic", "date", "hour")
            writer = writer.option("compression", "zstd").option("path", str(place / "rows"))
        else:
            writer = rows.writeStream
        self._query = (
            writer.format(sink).option("checkpointLocation", str(place / "checkpoint")).start()
        )

    def rows(self, count: int) -> list[dict[str, int]]:
        """Wait for *count* rows since the query started; return the durations of the batches."""
        assert self._query is not None  # noqa: S101 - stream comes first
        return self._rows.wait_for(count, self._query)

    def stop(self) -> None:
        """Stop the query."""
        assert self._query is not None  # noqa: S101 - stream comes first
        self._query.stop()

    def publish(self, options: dict[str, str], count: int, body_bytes: int) -> float:
        """Publish *count* messages in one task; return the seconds."""
        frame = self._messages(count, body_bytes)
        started = time.perf_counter()
        frame.write.format("nsq").options(**options).mode("append").save()
        return time.perf_counter() - started

    def _messages(self, count: int, body_bytes: int) -> DataFrame:
        column = f"rpad(cast(id as string), {body_bytes}, 'x') body"
        frame = self._spark.range(0, count, 1, 1).selectExpr(column).cache()
        frame.count()
        return frame


def main(folder: str) -> None:
    """Run the command of each input line, and answer each with a line."""
    program = Program(folder)
    _tell(None)
    for line in sys.stdin:
        asked: dict[str, Any] = json.loads(line)
        _tell(getattr(program, asked.pop("do"))(**asked))


def _tell(value: object) -> None:
    sys.stdout.write(f"answer {json.dumps(value)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
