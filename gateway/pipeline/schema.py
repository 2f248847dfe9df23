"""
The row schema of the format `nsq`, and the decoding of message frames into rows on executors.

Every executor process imports this module, so the module imports only what decoding needs.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from gateway.protocol.frames import Message, read_messages

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def now_us() -> int:
    """Return the current time in µs since 1970."""
    return time.time_ns() // 1_000


def format_time(moment_us: int, timespec: str = "auto") -> str:
    """
    Return *moment_us* (µs since 1970) as RFC 3339, in UTC, with a Z.

    *timespec* is the argument of `datetime.isoformat`, for example "milliseconds".
    """
    moment = _EPOCH + timedelta(microseconds=moment_us)
    return moment.isoformat(timespec=timespec).replace("+00:00", "Z")


ROW_SCHEMA = (
    "topic string, nsqd string, id string, ts timestamp, attempts int, received timestamp, "
    "body binary"
)
"""
Columns of a row, in Spark's DDL. `ts` is the time at which nsqd accepted the message; `received` is
the time at which the process that is subscribed to nsqd read the message.
"""

_TIME = pa.timestamp("us", "UTC")
ARROW_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("nsqd", pa.string()),
        ("id", pa.string()),
        ("ts", _TIME),
        ("attempts", pa.int32()),
        ("received", _TIME),
        ("body", pa.binary()),
    ]
)
"""Columns of a row, for Arrow."""

_MAX_ROWS = 10_000
"""Rows at which an Arrow batch is complete; Spark's own default."""


class Frames(NamedTuple):
    """Consecutive message frames of one connection, with their topic, nsqd and arrival time."""

    topic: str
    nsqd: str
    """Address of the nsqd that sent them, host:port."""
    received_us: int
    """Arrival time, µs since 1970."""
    data: bytes


def decode(parts: Sequence[Frames]) -> Iterator[pa.RecordBatch]:
    """Decode *parts* into Arrow batches of about 10 000 rows, in order."""
    rows: list[Message] = []
    counts: list[int] = []
    pending: list[Frames] = []
    for part in parts:
        before = len(rows)
        read_messages(part.data, 0, rows)
        pending.append(part)
        counts.append(len(rows) - before)
        if len(rows) >= _MAX_ROWS:
            yield _batch(pending, counts, rows)
            rows, counts, pending = [], [], []
    if rows:
        yield _batch(pending, counts, rows)


def _batch(parts: Sequence[Frames], counts: Sequence[int], rows: list[Message]) -> pa.RecordBatch:
    """Return *rows* as an Arrow batch; the first counts[0] rows are from parts[0], and so on."""
    per_part = list(zip(parts, counts, strict=True))
    return pa.record_batch(
        [
            pa.array([part.topic for part, count in per_part for _ in range(count)], pa.string()),
            pa.array([part.nsqd for part, count in per_part for _ in range(count)], pa.string()),
            pa.array([row.id.decode("latin-1") for row in rows], pa.string()),
            pa.array([row.timestamp_ns // 1_000 for row in rows], _TIME),
            pa.array([row.attempts for row in rows], pa.int32()),
            pa.array([part.received_us for part, count in per_part for _ in range(count)], _TIME),
            pa.array([row.body for row in rows], pa.binary()),
        ],
        schema=ARROW_SCHEMA,
    )


_PARTITION_BYTES = 8 * 1_048_576
_MIN_PARTITIONS = 2


class FramesPartition(InputPartition):
    """The frames that one Spark task decodes."""

    def __init__(self, parts: Sequence[Frames]) -> None:
        self.parts = list(parts)


class FramesReader(DataSourceStreamReader):
    """Base class of the readers: decode partitions on executors."""

    def __reduce__(self) -> tuple[type[FramesReader], tuple[()]]:
        """Pickle only this class, so that state and secrets stay in the source's process."""
        return FramesReader, ()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Decode *partition* into rows, on an executor."""
        assert isinstance(partition, FramesPartition)  # noqa: S101 - `partitions` made it
        return decode(partition.parts)


def pack_partitions(frames: Iterable[Frames], wanted: int) -> list[InputPartition]:
    """
    Pack *frames* into *wanted* partitions of similar size; 0 means the default of 2.

    There are more partitions if one would exceed 8 MiB, and fewer if there are not enough `Frames`,
    because one of them is never split.
    """
    all_frames = list(frames)
    total_bytes = sum(len(part.data) for part in all_frames)
    count = max(wanted or _MIN_PARTITIONS, -(-total_bytes // _PARTITION_BYTES))
    share_bytes = -(-total_bytes // count)  # rounded up
    tasks: list[InputPartition] = []
    parts: list[Frames] = []
    size_bytes = 0
    for part in all_frames:
        parts.append(part)
        size_bytes += len(part.data)
        if size_bytes >= share_bytes:
            tasks.append(FramesPartition(parts))
            parts, size_bytes = [], 0
    if parts:
        tasks.append(FramesPartition(parts))
    return tasks
