"""NSQ on Spark compared with NSQ's own programs: source, ingest alone, archive and sink."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from benchmarks import backlog
from benchmarks.backlog import CHANNEL, TOPIC
from benchmarks.harness import WITNESSES, Server, Usage, cpu_seconds, fetch, real_nsqd
from benchmarks.spark_session import Session, spark_session
from benchmarks.table import Benchmark, Row, compare, in_turn

_BODY_BYTES = 200
_BATCH = 1_000
"""Messages per MPUB."""
_FILE_WINDOW = 2_500
"""nsq_to_file syncs and finishes at this number in flight; counts are multiples of it."""
_DEADLINE_S = 170.0
_COUNT = 500_000


@dataclass(frozen=True)
class Reading:
    """A mode of reading a stream."""

    name: str
    ack_mode: str
    rows: int
    """Rows per batch; 0 lets the source choose."""
    goal: float

    @property
    def warm_up(self) -> int:
        """Rows before the measurement: some batches, and those in which batches grow."""
        return 4 * self.rows or 400_000


READINGS = (
    Reading("source, commit, batches by themselves", "commit", 0, 0.8),
    Reading("source, spool, batches by themselves", "spool", 0, 1.8),
    Reading("source, commit, batches of 20 000", "commit", 20_000, 0.7),
    Reading("source, commit, batches of 50 000", "commit", 50_000, 0.7),
    Reading("source, spool, batches of 100 000", "spool", 100_000, 1.8),
)


def plan(*, quick: bool) -> Benchmark:
    """Return the benchmark."""
    count, rounds = (100_000, 1) if quick else (_COUNT, 3)
    about = (
        f"a real nsqd, bodies of {_BODY_BYTES} B, {count:,} messages a round that are there before "
        f"the clock starts, {rounds} rounds; Spark in local[2,4] after a warm-up, until the rows "
        "of the last batch are done; go-nsq's consumer at window 2500, from its first message to "
        f"its last; nsq_to_file at window {_FILE_WINDOW}, until nsqd has all FINs; the sink in "
        "one task"
    )
    return Benchmark(about, _rows(count, rounds))


def _rows(count: int, rounds: int) -> Iterator[Row]:
    with real_nsqd() as nsqd, spark_session() as spark, tempfile.TemporaryDirectory() as folder:
        place = _Place(nsqd, spark, folder)
        consumer = backlog.go_nsq_consumer(nsqd, window=2_500, count=count)
        sides: dict[str, Callable[[], Usage]] = {
            reading.name: partial(place.read, reading, "noop", count) for reading in READINGS
        }
        sides["go-nsq"] = partial(place.consume, consumer, count)
        sides["ingest"] = partial(place.consume, place.ingest(count), count)
        spent = in_turn(sides, rounds=rounds)
        for reading in READINGS:
            ours = [each.rate for each in spent[reading.name]]
            yield _rates(f"{reading.name} ÷ go-nsq's consumer", ours, spent["go-nsq"], reading.goal)
        cpu, peer_cpu = ([each.cpu_us for each in spent[side]] for side in ("ingest", "go-nsq"))
        name = "ingest alone ÷ go-nsq's consumer"
        yield compare(name, "µs CPU a message", cpu, peer_cpu, "goal: at most 0.12")
        archive = Reading("archive", "commit", 50_000, 0.7)
        spent = in_turn(
            {
                "ours": partial(place.read, archive, "parquet", count),
                "peer": partial(place.to_file, count),
            },
            rounds=rounds,
        )
        ours = [each.rate for each in spent["ours"]]
        yield _rates("archive to Parquet ÷ nsq_to_file", ours, spent["peer"], archive.goal)
        spent = in_turn(
            {"ours": partial(place.publish, count), "peer": partial(place.go_publish, count)},
            rounds=rounds,
        )
        ours = [each.rate for each in spent["ours"]]
        name = f"sink, one task ÷ go-nsq, MPUB of {_BATCH:,}"
        yield _rates(name, ours, spent["peer"], 0.08)


def _rates(name: str, ours: list[float], peer: list[Usage], goal: float) -> Row:
    return compare(name, "messages/s", ours, [each.rate for each in peer], f"goal: {goal:g}")


class _Place:
    """The nsqd, the Spark session, and an output folder."""

    def __init__(self, nsqd: Server, spark: Session, folder: str) -> None:
        self._nsqd = nsqd
        self._spark = spark
        self._folder = folder
        self._runs = 0

    def ingest(self, count: int) -> tuple[str, ...]:
        """Return the command line of the ingest without Spark."""
        program = (sys.executable, "-m", "benchmarks.clients.ingest")
        return (*program, self._nsqd.tcp, TOPIC, CHANNEL, "20000", str(count))

    def consume(self, arguments: Sequence[str], count: int) -> Usage:
        """Run a consuming program."""
        with backlog.channel(self._nsqd, count=count):
            return backlog.run_client(arguments)

    def read(self, reading: Reading, sink: str, count: int) -> Usage:
        """Read with Spark."""
        self._runs += 1
        warm_up = reading.warm_up
        options = {
            "nsqdTcpAddress": self._nsqd.tcp,
            "topic": TOPIC,
            "channel": CHANNEL,
            "maxRowsPerBatch": str(reading.rows),
            "ackMode": reading.ack_mode,
        }
        if reading.ack_mode == "spool":
            options["spoolDir"] = f"{self._folder}/spool{self._runs}"
        with backlog.channel(self._nsqd, count=0):
            self._spark.run("stream", options=options, sink=sink)
            backlog.publish_only(self._nsqd, warm_up)
            self._spark.run("rows", count=warm_up)
            with self._paused():
                backlog.publish(self._nsqd, count)
                started = time.perf_counter()
            self._spark.run("rows", count=warm_up + count)
            seconds = time.perf_counter() - started
            # What the last batch had is finished a moment later.
            backlog.wait_until_empty(self._nsqd)
            self._spark.run("stop")
        return Usage(count, seconds, 0.0)

    @contextlib.contextmanager
    def _paused(self) -> Iterator[None]:
        """Pause the channel."""
        names = f"topic={TOPIC}&channel={CHANNEL}"
        fetch(self._nsqd, f"/channel/pause?{names}", method="POST")
        yield
        fetch(self._nsqd, f"/channel/unpause?{names}", method="POST")

    def to_file(self, count: int) -> Usage:
        """Write and finish all messages with nsq_to_file."""
        arguments = (
            *(str(WITNESSES / "nsq_to_file"), "--topic", TOPIC, "--channel", CHANNEL),
            *("--nsqd-tcp-address", self._nsqd.tcp, "--output-dir", self._folder),
            *("--max-in-flight", str(_FILE_WINDOW), "--log-level", "error"),
        )
        with backlog.channel(self._nsqd, count=0):
            with self._paused():
                backlog.publish(self._nsqd, count)
                process = subprocess.Popen(arguments, stderr=subprocess.DEVNULL)
                backlog.wait_until_consumed(self._nsqd)
                started = time.perf_counter()
            backlog.wait_until_empty(self._nsqd, _DEADLINE_S)
            seconds, cpu = time.perf_counter() - started, cpu_seconds(process.pid)
            process.terminate()
            process.wait(_DEADLINE_S)
        return Usage(count, seconds, cpu)

    def publish(self, count: int) -> Usage:
        """Publish with the sink; the first call of a session also warms it up."""
        options = {"nsqdTcpAddress": self._nsqd.tcp, "topic": f"{TOPIC}-out#ephemeral"}
        asked = {"options": options, "count": count, "body_bytes": _BODY_BYTES}
        return Usage(count, self._spark.run("publish", **asked), 0.0)

    def go_publish(self, count: int) -> Usage:
        """Publish with NSQ's own Go client."""
        return backlog.run_client(
            (
                *(str(WITNESSES / "go-nsq-publisher"), "--nsqd-tcp-address", self._nsqd.tcp),
                *("--topic", f"{TOPIC}-out#ephemeral", "--body-bytes", str(_BODY_BYTES)),
                *("--batch", str(_BATCH), "--count", str(count)),
            )
        )
