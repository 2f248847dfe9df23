"""Replay and metrics jobs in a `spark_program`, and an archive for them."""

from __future__ import annotations

import asyncio
import struct
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path
from typing import Any, TypeAlias

from pyspark.sql import SparkSession

from gateway.errors import GatewayError, SettingsError, StartError
from gateway.pipeline.jobs.archive import archive_writer, with_partitions
from gateway.pipeline.jobs.committer import PARTITIONS
from gateway.pipeline.jobs.console import ReplayReport, TaskCount
from gateway.pipeline.jobs.metrics import aggregate_by_window, encode_window, start_metrics_query
from gateway.pipeline.jobs.monitoring import management
from gateway.pipeline.jobs.replay import ReplayPrompt, replay_in
from gateway.pipeline.jobs.replay_plan import ReplayCount
from gateway.pipeline.jobs.storage import (
    HadoopFolder,
    avoid_checkpoint_processes,
    remove_partial_offsets,
)
from gateway.settings.loader import load
from gateway.settings.pipeline import MetricsSettings, ReplaySettings
from tests.support.brokers.nsqd import RealNsqd
from tests.support.brokers.v2_peer import ERROR, MESSAGE, RESPONSE, identify
from tests.support.spark.class_archive import java_options
from tests.support.spark.job import SparkJob
from tests.support.spark.program import program_environment

Flags: TypeAlias = Mapping[str, Any]
Json: TypeAlias = dict[str, Any]

BEGIN = datetime(2026, 11, 1, 10, 0, tzinfo=UTC)
STEP_S = 10
"""Time between two messages of the archive."""

_PROGRAM = "from gateway.cli.main import main; main()"
_WAIT_S = 120.0
_SCHEMA = (
    "topic string, nsqd string, id string, ts timestamp, attempts int, received timestamp, "
    "body binary"
)


class RecordingPrompt(ReplayPrompt):
    """A `ReplayPrompt` that records its calls."""

    def __init__(self, *, agrees: bool, meanwhile: Callable[[], None] = lambda: None) -> None:
        super().__init__(is_confirmed=agrees)
        self.agrees = agrees
        self.meanwhile = meanwhile
        self.seen: Json = {"tallies": [], "before": 0, "reasons": [], "said": ""}
        self._out = StringIO()
        self.made: ReplayReport | None = None

    def show_count(self, count: ReplayCount) -> None:
        """Record the count."""
        self.seen |= {"tallies": [list(plan) for plan in count.topics]}
        self.seen |= {"before": count.done_rows}

    def confirm(self, reasons: Sequence[str]) -> None:
        """Record the arguments; raise if the test does not agree."""
        self.seen["reasons"] = list(reasons)
        if not self.agrees:
            raise SettingsError("--yes", "no", allowed="yes")

    def report(self, count: ReplayCount, tasks: Callable[[], TaskCount | None]) -> ReplayReport:
        """Return a new report that is not read; the replay begins shortly afterwards."""
        self.meanwhile()
        self.made = ReplayReport(
            self._out, total_rows=count.rows, done_rows=count.done_rows, tasks=tasks
        )
        return self.made


def write_archive(spark: SparkSession, folder: str, count: int) -> None:
    """
    Write an archive through a stream, like the job: *count* messages of two topics.

    Message n has the body ``n`` and a timestamp STEP_S after the previous one. Even messages are in
    the topic `orders`, odd ones in `refunds`. The first ten messages are stored twice.
    """
    rows = [_row(number) for number in [*range(count), *range(min(10, count))]]
    spark.createDataFrame(rows, _SCHEMA).coalesce(2).write.parquet(f"{folder}.raw")
    stream = spark.readStream.schema(_SCHEMA).parquet(f"{folder}.raw")
    writer = archive_writer(stream, folder, f"{folder}.checkpoint")
    writer.trigger(availableNow=True).start().awaitTermination()


def _row(number: int) -> tuple[Any, ...]:
    ts = BEGIN + timedelta(seconds=number * STEP_S)
    topic = "orders" if number % 2 == 0 else "refunds"
    return (topic, "n:1", f"{number:016x}", ts, 1, ts, str(number).encode())


def add_topic(spark: SparkSession, folder: str, topic: str, count: int) -> None:
    """Add *count* messages of *topic* to the files at *folder*, like `compact`."""
    rows = [(topic, *_row(number)[1:]) for number in range(count)]
    frame = with_partitions(spark.createDataFrame(rows, _SCHEMA)).coalesce(1)
    frame.write.mode("append").partitionBy(*PARTITIONS).parquet(folder)


def replay(
    spark: SparkSession,
    flags: Flags,
    *,
    is_dry_run: bool = False,
    agrees: bool = False,
    newcomer: str = "",
) -> Json:
    """
    Replay, and return the prompt's record; `refused` is the reason if it did not start.

    Messages of the topic *newcomer* are archived between the count and the start.
    """
    witness = RecordingPrompt(agrees=agrees)
    if newcomer:
        witness.meanwhile = lambda: add_topic(spark, flags["input"], newcomer, 3)
    try:
        settings = load(ReplaySettings, flags).settings
        with management(settings.management_listen) as port:
            ending = replay_in(spark, settings, witness, port, is_dry_run=is_dry_run)
    except SettingsError as error:
        return witness.seen | {"refused": str(error), "rows": 0}
    except GatewayError as error:
        return witness.seen | {"failed": str(error), "rows": 0}
    rows = witness.made.rows if witness.made else 0
    return witness.seen | {"ending": ending.value, "rows": rows}


def begin_metrics(spark: SparkSession, flags: Flags) -> None:
    """Start the metrics job; `SharedSpark.tidy` stops it."""
    start_metrics_query(spark, load(MetricsSettings, flags).settings)


def count_in_windows(spark: SparkSession, flags: Flags, rows: Sequence[Sequence[Any]]) -> list[str]:
    """Return the metrics messages for *rows*: topic, ts and received in us, more."""
    frame = spark.createDataFrame(
        [tuple(row) for row in rows],
        "topic string, ts_us bigint, received_us bigint, attempts int, body string",
    ).selectExpr(
        "topic",
        "timestamp_micros(ts_us) ts",
        "timestamp_micros(received_us) received",
        "attempts",
        "cast(body as binary) body",
    )
    windows = aggregate_by_window(frame, load(MetricsSettings, flags).settings)
    return [
        encode_window(row.asDict()).decode() for row in windows.sort("start_us", "topic").collect()
    ]


def use_storage(spark: SparkSession, path: str) -> list[str | bool | None]:
    """Write and read in the folder *path*; runs in the program."""
    folder = HadoopFolder(spark, path)
    before = folder.read("note")
    folder.write("note", "née\n")
    folder.write("rows", "12")
    folder.write("rows", "13")
    there = folder.exists("note"), ",".join(folder.names(""))
    return [before, folder.read("note"), folder.read("rows"), *there, folder.qualified_path]


def clear_draft_of(spark: SparkSession, checkpoint: str) -> None:
    """Run the preparation before a query starts; runs in the program."""
    remove_partial_offsets(HadoopFolder(spark, checkpoint))


def file_manager_of(spark: SparkSession, checkpoint: str, chosen: str | None = None) -> str | None:
    """Return the class that writes a job's checkpoint, with *chosen* set; runs in the program."""
    name = "spark.sql.streaming.checkpointFileManagerClass"
    if chosen is not None:
        spark.conf.set(name, chosen)
    try:
        avoid_checkpoint_processes(spark, HadoopFolder(spark, checkpoint))
        return spark.conf.get(name, None)
    finally:
        spark.conf.unset(name)


def misuse_storage(spark: SparkSession, path: str) -> str:
    """Return the errors for the folder *path*; runs in the program."""
    try:
        HadoopFolder(spark, path).write("note", "x")
    except StartError as error:
        return str(error)
    return ""


# From outside of Spark


@asynccontextmanager
async def job(folder: Path, *arguments: str) -> AsyncIterator[SparkJob]:
    """Run ``nsq-gateway pipeline`` with *arguments* like a user; stop it at the end."""
    home = folder / "job"
    home.mkdir(parents=True, exist_ok=True)
    log = folder / "job.log"
    conf = {"spark.driver.extraJavaOptions": java_options(), "spark.sql.shuffle.partitions": "1"}
    with log.open("ab") as output:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", _PROGRAM, "pipeline", *arguments, "--master=local[2,4]"),
            *(f"--spark-conf={name}={value}" for name, value in conf.items()),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=asyncio.subprocess.STDOUT,
            cwd=home,
            env=program_environment(home),
            start_new_session=True,
        )
    running = SparkJob(process, log)
    try:
        yield running
    finally:
        await running.kill()


class Consumer:
    """A consumer of one channel that finishes every message; make one with `consumer`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._came: asyncio.Queue[bytes] = asyncio.Queue()
        self.bodies: list[bytes] = []
        """Bodies of accepted messages."""

    async def subscribe(self, topic: str, channel: str) -> None:
        """Subscribe; this creates topic and channel."""
        body = b'{"output_buffer_timeout": 25}'
        self._writer.write(b"  V2" + identify(body) + f"SUB {topic} {channel}\n".encode())
        assert [(RESPONSE, b"OK"), (RESPONSE, b"OK")] == [await self._frame(), await self._frame()]
        self._writer.write(b"RDY 2500\n")

    async def read(self) -> None:
        """Record messages until the connection ends."""
        while True:
            kind, data = await self._frame()
            assert kind != ERROR, data
            if kind == MESSAGE:
                self._writer.write(b"FIN %b\n" % data[10:26])
                self._came.put_nowait(data[26:])
            else:
                self._writer.write(b"NOP\n")

    async def next(self) -> bytes:
        """Return the next body."""
        async with asyncio.timeout(_WAIT_S):
            self.bodies.append(await self._came.get())
        return self.bodies[-1]

    async def take(self, count: int) -> list[bytes]:
        """Return the next *count* bodies."""
        return [await self.next() for _ in range(count)]

    async def _frame(self) -> tuple[int, bytes]:
        size, kind = struct.unpack(">II", await self._reader.readexactly(8))
        return kind, await self._reader.readexactly(size - 4)


@asynccontextmanager
async def consumer(nsqd: RealNsqd, topic: str, channel: str = "c") -> AsyncIterator[Consumer]:
    host, port = nsqd.tcp_address.rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))
    subscribed = Consumer(reader, writer)
    reading = None
    try:
        await subscribed.subscribe(topic, channel)
        reading = asyncio.create_task(subscribed.read())
        yield subscribed
    finally:
        if reading is not None:
            reading.cancel()
        writer.close()
