"""The rows of the format `nsq`, and how frames of nsqd become them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa

from gateway.protocol.frames import Message, read_messages

ROW_SCHEMA = (
    "topic string, nsqd string, id string, ts timestamp, attempts int, received timestamp, "
    "body binary"
)
"""As Spark reads it; `ts` is nsqd's time of publishing, `received` when it came here."""

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
"""The same for Arrow, column by column."""

_MOST_ROWS = 10_000
"""Of one batch of Arrow; Spark's own default."""


class Frames(NamedTuple):
    """Frames of messages in a row, and what they do not say themselves."""

    topic: str
    nsqd: str
    """Who sent them, host:port."""
    received_us: int
    """When they came, us since 1970."""
    data: bytes


def decode(parts: Sequence[Frames]) -> Iterator[pa.RecordBatch]:
    """Give the rows of *parts*, in order, some thousand at a time."""
    rows: list[Message] = []
    counts: list[int] = []
    begun: list[Frames] = []
    for part in parts:
        before = len(rows)
        read_messages(part.data, 0, rows)
        begun.append(part)
        counts.append(len(rows) - before)
        if len(rows) >= _MOST_ROWS:
            yield _batch(begun, counts, rows)
            rows, counts, begun = [], [], []
    if rows:
        yield _batch(begun, counts, rows)


def _batch(parts: Sequence[Frames], counts: Sequence[int], rows: list[Message]) -> pa.RecordBatch:
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
