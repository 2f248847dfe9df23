"""Replays and metrics in a program on Spark (`spark_program`), and an archive for them."""

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
from gateway.pipeline.archive import PARTITIONS, with_partitions
from gateway.pipeline.metrics_job import body_of, in_windows, start_metrics
from gateway.pipeline.replay import replay_in
from gateway.pipeline.replay_report import ReplayReport, Tasks
from gateway.pipeline.replay_rows import Count
from gateway.pipeline.storage import Storage, clear_draft, spare_processes
from gateway.settings_replay import MetricsSettings, ReplaySettings
from gateway.settings_sources import load
from tests.support.nsqd import RealNsqd
from tests.support.spark_classes import java_options
from tests.support.spark_job import SparkJob
from tests.support.spark_program import program_environment
from tests.support.v2_peer import ERROR, MESSAGE, RESPONSE, identify

Flags: TypeAlias = Mapping[str, Any]
Json: TypeAlias = dict[str, Any]

BEGIN = datetime(2026, 11, 1, 10, 0, tzinfo=UTC)
STEP_S = 10
"""From one message of the archive to the next."""

_PROGRAM = "from gateway.cli import main; main()"
_WAIT_S = 120.0
_SCHEMA = (
    "topic string, nsqd string, id string, ts timestamp, attempts int, received timestamp, "
    "body binary"
)


class Witness:
    """An `Audience` that remembers."""

    def __init__(self, *, agrees: bool, meanwhile: Callable[[], None] = lambda: None) -> None:
        self.agrees = agrees
        self.meanwhile = meanwhile
        self.seen: Json = {"tallies": [], "before": 0, "reasons": [], "said": ""}
        self._out = StringIO()
        self.made: ReplayReport | None = None

    def counted(self, count: Count) -> None:
        """Remember it."""
        self.seen |= {"tallies": [list(tally) for tally in count.tallies]}
        self.seen |= {"before": count.done_rows}

    def agree(self, reasons: Sequence[str]) -> None:
        """Remember them; raise where nobody agrees."""
        self.seen["reasons"] = list(reasons)
        if not self.agrees:
            raise SettingsError("--yes", "no", allowed="yes")

    def report(self, count: Count, tasks: Callable[[], Tasks | None]) -> ReplayReport:
        """Return one that nobody reads; a moment later the replay begins."""
        self.meanwhile()
        self.made = ReplayReport(
            self._out, total_rows=count.rows, done_rows=count.done_rows, tasks=tasks
        )
        return self.made


def write_archive(spark: SparkSession, folder: str, count: int) -> None:
    """
    Write an archive as the job does, through a stream: *count* messages of two topics.

    Message n has the body ``n``, is of `orders` where n is even, else of `refunds`, and was taken
    STEP_S after the one before it; the first ten messages are there twice.
    """
    rows = [_row(number) for number in [*range(count), *range(min(10, count))]]
    spark.createDataFrame(rows, _SCHEMA).coalesce(2).write.parquet(f"{folder}.raw")
    query = (
        with_partitions(spark.readStream.schema(_SCHEMA).parquet(f"{folder}.raw"))
        .writeStream.format("parquet")
        .partitionBy(*PARTITIONS)
        .option("checkpointLocation", f"{folder}.checkpoint")
        .trigger(availableNow=True)
        .start(folder)
    )
    query.awaitTermination()


def _row(number: int) -> tuple[Any, ...]:
    ts = BEGIN + timedelta(seconds=number * STEP_S)
    topic = "orders" if number % 2 == 0 else "refunds"
    return (topic, "n:1", f"{number:016x}", ts, 1, ts, str(number).encode())


def add_topic(spark: SparkSession, folder: str, topic: str, count: int) -> None:
    """Add *count* messages of *topic* to the files at *folder*, as `compact` does."""
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
    Replay, and return what whoever looked on has seen; `refused` is why it did not begin.

    Messages of the topic *newcomer* come between the count and the start.
    """
    witness = Witness(agrees=agrees)
    if newcomer:
        witness.meanwhile = lambda: add_topic(spark, flags["input"], newcomer, 3)
    try:
        settings = load(ReplaySettings, flags).settings
        ending = replay_in(spark, settings, witness, is_dry_run=is_dry_run)
    except SettingsError as error:
        return witness.seen | {"refused": str(error), "rows": 0}
    except GatewayError as error:
        return witness.seen | {"failed": str(error), "rows": 0}
    rows = witness.made.rows if witness.made else 0
    return witness.seen | {"ending": ending.value, "rows": rows}


def begin_metrics(spark: SparkSession, flags: Flags) -> None:
    """Start the metrics; `SparkHouse.tidy` stops them."""
    start_metrics(spark, load(MetricsSettings, flags).settings)


def count_in_windows(spark: SparkSession, flags: Flags, rows: Sequence[Sequence[Any]]) -> list[str]:
    """Return the messages that the metrics make of *rows*: topic, ts and received in us, more."""
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
    windows = in_windows(frame, load(MetricsSettings, flags).settings)
    return [body_of(row.asDict()).decode() for row in windows.sort("start_us", "topic").collect()]


def use_storage(spark: SparkSession, path: str) -> list[str | bool | None]:
    """Write and read in the folder *path*; runs in the program."""
    folder = Storage(spark, path)
    before = folder.read("note")
    folder.write("note", "née\n")
    folder.write("rows", "12")
    folder.write("rows", "13")
    there = folder.exists("note"), ",".join(folder.names(""))
    return [before, folder.read("note"), folder.read("rows"), *there, folder.whole_path]


def clear_draft_of(spark: SparkSession, checkpoint: str) -> None:
    """Do what is done before a query begins; runs in the program."""
    clear_draft(Storage(spark, checkpoint))


def file_manager_of(spark: SparkSession, checkpoint: str, chosen: str | None = None) -> str | None:
    """Return what writes the checkpoint of a job, where *chosen* was there; runs in the program."""
    name = "spark.sql.streaming.checkpointFileManagerClass"
    if chosen is not None:
        spark.conf.set(name, chosen)
    try:
        spare_processes(spark, Storage(spark, checkpoint))
        return spark.conf.get(name, None)
    finally:
        spark.conf.unset(name)


def misuse_storage(spark: SparkSession, path: str) -> str:
    """Return what is said of the folder *path*; runs in the program."""
    try:
        Storage(spark, path).write("note", "x")
    except StartError as error:
        return str(error)
    return ""


# From outside of Spark


@asynccontextmanager
async def job(folder: Path, *arguments: str) -> AsyncIterator[SparkJob]:
    """Run ``nsq-gateway pipeline`` with *arguments* as a user does; it is gone afterwards."""
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
    """A consumer of one channel, which finishes what it gets; make one with `consumer`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._came: asyncio.Queue[bytes] = asyncio.Queue()
        self.bodies: list[bytes] = []
        """Those that were taken."""

    async def subscribe(self, topic: str, channel: str) -> None:
        """Begin; topic and channel are there then."""
        body = b'{"output_buffer_timeout": 25}'
        self._writer.write(b"  V2" + identify(body) + f"SUB {topic} {channel}\n".encode())
        assert [(RESPONSE, b"OK"), (RESPONSE, b"OK")] == [await self._frame(), await self._frame()]
        self._writer.write(b"RDY 2500\n")

    async def read(self) -> None:
        """Keep what comes, until the connection ends."""
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
    """Subscribe to *channel* of *topic*."""
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
