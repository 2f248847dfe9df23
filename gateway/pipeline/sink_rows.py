"""
PURE. Split Arrow rows into batches for nsqd, and sort out the rows that nsqd would refuse.

nsqd refuses a whole MPUB for one bad message in it and closes the connection. Bad rows are
therefore found before anything is sent. Rows of one topic stay in order.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from gateway.protocol.commands import DeferredPublish, MultiPublish, Publish
from gateway.protocol.wire import is_valid_name

COUNT_BYTES = 4
"""Size of the message count in the body of an MPUB."""
SIZE_BYTES = 4
"""Size of each message's length in the body of an MPUB."""
BODY = "body"
_SHOWN_BODY_BYTES = 1_024
_SHOWN_NAME_CHARS = 200
"""Characters of a name in errors and dead letters: an invalid name may be of any length."""

Numbers = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class RowLayout:
    """Which columns have the topic, delay and key of a row; the body is in the column `body`."""

    topic: str = ""
    """Topic of all rows; empty if each row has its own, in *topic_column*."""
    topic_column: str | None = None
    defer_column: str | None = None
    """Delays in ms; null means no delay."""
    key_column: str | None = None


class RowLimits(NamedTuple):
    """Limits of nsqd for one message and one command, and of the settings for one batch."""

    max_msg_size_bytes: int
    max_body_size_bytes: int
    max_defer_ms: int
    batch_rows: int
    batch_bytes: int


class Rows(NamedTuple):
    """Rows of one topic, in order, as columns of the same length."""

    topic: str
    bodies: pa.Array
    """Binary, without nulls."""
    numbers: Numbers
    """Index of each row in its task, from 0."""
    defers_ms: Numbers | None
    """Delay of each row; None if no row is deferred."""
    keys: pa.Array | None

    def slice(self, start: int, end: int) -> Rows:
        """Return the rows from *start* up to *end*, without copying."""
        return Rows(
            self.topic,
            self.bodies.slice(start, end - start),
            self.numbers[start:end],
            None if self.defers_ms is None else self.defers_ms[start:end],
            None if self.keys is None else self.keys.slice(start, end - start),
        )

    def take(self, rows: NDArray[Any]) -> Rows:
        """Return the rows at the indices *rows*."""
        indices = pa.array(rows)
        return Rows(
            self.topic,
            self.bodies.take(indices),
            self.numbers[rows],
            None if self.defers_ms is None else self.defers_ms[rows],
            None if self.keys is None else self.keys.take(indices),
        )

    @property
    def sizes_bytes(self) -> Numbers:
        """Size of each body in bytes."""
        return _numbers(pc.binary_length(self.bodies))


class BadRow(NamedTuple):
    """A row that nsqd would refuse."""

    number: int
    """Index in its task, from 0."""
    key: str | None
    topic: str
    reason: str
    """One of a few fixed phrases."""
    detail: str
    """A sentence with the value, the limit and units."""
    size_bytes: int
    start: bytes
    """First bytes of the body."""


# Selecting rows that can be published


def group_by_topic(
    batch: pa.RecordBatch, layout: RowLayout, first_number: int
) -> tuple[list[Rows], list[BadRow]]:
    """
    Return the rows of *batch* grouped by topic, and those without a body or a valid topic.

    *first_number* is the index of the first row among all rows of the task.
    """
    bodies = batch.column(BODY).cast(pa.binary())
    every = Rows(
        layout.topic,
        bodies,
        np.arange(first_number, first_number + batch.num_rows, dtype=np.int64),
        _defers_ms(batch, layout),
        None if layout.key_column is None else batch.column(layout.key_column),
    )
    bad: list[BadRow] = []
    topics = None if layout.topic_column is None else batch.column(layout.topic_column)
    if bodies.null_count:
        is_null = bodies.is_null().to_numpy(zero_copy_only=False)
        # Before these rows are taken out of *every*, because *index* counts them.
        for index in np.flatnonzero(is_null).tolist():
            topic = layout.topic if topics is None else topics[index].as_py() or ""
            bad.append(_bad(every._replace(topic=topic), index, "null body", "the body is null"))
        kept = np.flatnonzero(~is_null)
        every = every.take(kept)
        topics = None if topics is None else topics.take(pa.array(kept))
    if topics is None:
        return [every], bad
    by_topic: list[Rows] = []
    for rows in _by_topic(every, topics):
        if is_valid_name(rows.topic.encode("utf-8", "surrogatepass")):
            by_topic.append(rows)
        else:
            bad += [_bad(rows, index, "bad topic", _NO_NAME) for index in range(len(rows.bodies))]
    return by_topic, bad


_NO_NAME = "a topic name is 1 to 64 of a-z A-Z 0-9 . _ -, optionally followed by #ephemeral"


def _by_topic(rows: Rows, topics: pa.Array) -> Iterator[Rows]:
    """Yield the *rows* of each topic, in order; *topics* has the topic of each row."""
    # A row without a topic gets an empty one, which is invalid and makes it a bad row.
    coded = topics.fill_null("").dictionary_encode()
    names = coded.dictionary.to_pylist()
    if len(names) == 1:
        yield rows._replace(topic=names[0])
        return
    codes = coded.indices.to_numpy()
    order = np.argsort(codes, kind="stable")  # keeps the order of rows within a topic
    ends = np.cumsum(np.bincount(codes, minlength=len(names)))
    start = 0
    for name, end in zip(names, ends.tolist(), strict=True):
        yield rows.take(order[start:end])._replace(topic=name)
        start = end


def _defers_ms(batch: pa.RecordBatch, layout: RowLayout) -> Numbers | None:
    if layout.defer_column is None:
        return None
    defers_ms = _numbers(batch.column(layout.defer_column).cast(pa.int64()).fill_null(0))
    # With delays of 0 only, the rows can go into an MPUB, which has no delay.
    return defers_ms if defers_ms.any() else None


def split_bad_rows(rows: Rows, limits: RowLimits) -> tuple[Rows, list[BadRow]]:
    """Return the *rows* that are within *limits*, and the other ones."""
    sizes_bytes = rows.sizes_bytes
    longest = limits.max_msg_size_bytes
    is_good = (sizes_bytes > 0) & (sizes_bytes <= longest)
    if rows.defers_ms is not None:
        is_good &= (rows.defers_ms >= 0) & (rows.defers_ms <= limits.max_defer_ms)
    if is_good.all():
        return rows, []
    bad = []
    for index in np.flatnonzero(~is_good).tolist():
        size_bytes = int(sizes_bytes[index])
        if not size_bytes:
            reason, detail = "empty body", "the body is empty, which nsqd refuses"
        elif size_bytes > longest:
            reason = "body too big"
            detail = f"the body has {size_bytes} bytes, nsqd accepts at most {longest} bytes"
        else:
            assert rows.defers_ms is not None  # noqa: S101 - else it is good
            reason = "bad defer"
            detail = (
                f"the delay is {rows.defers_ms[index]} ms, nsqd accepts 0 to "
                f"{limits.max_defer_ms} ms"
            )
        bad.append(_bad(rows, index, reason, detail))
    return rows.take(np.flatnonzero(is_good)), bad


def _bad(rows: Rows, index: int, reason: str, detail: str) -> BadRow:
    body = rows.bodies[index].as_py() or b""
    key = None if rows.keys is None else rows.keys[index].as_py()
    text = key.decode("utf-8", "replace") if isinstance(key, bytes) else str(key)
    return BadRow(
        int(rows.numbers[index]),
        None if key is None else text[:_SHOWN_NAME_CHARS],
        rows.topic[:_SHOWN_NAME_CHARS],
        reason,
        detail,
        len(body),
        body[:_SHOWN_BODY_BYTES],
    )


# From rows to commands


def split_rows(rows: Rows, limits: RowLimits) -> Iterator[Rows]:
    """
    Split *rows*, each of which is within *limits*, into parts for `SinkProducer.publish`.

    A part is published by one PUB or MPUB, or by a DPUB for each row if its rows are deferred. The
    parts with deferred rows come last.
    """
    if rows.defers_ms is None:
        yield from _split(rows, limits)
        return
    is_deferred = rows.defers_ms > 0
    now, later = np.flatnonzero(~is_deferred), np.flatnonzero(is_deferred)
    if len(now):
        yield from _split(rows.take(now)._replace(defers_ms=None), limits)
    if len(later):
        yield from _split(rows.take(later), limits)


def _split(rows: Rows, limits: RowLimits) -> Iterator[Rows]:
    """Yield parts of at most batch_rows and batch_bytes; a longer row is a part of its own."""
    most_bytes = min(limits.batch_bytes, limits.max_body_size_bytes) - COUNT_BYTES
    ends_bytes = np.cumsum(rows.sizes_bytes + SIZE_BYTES)
    count, start, start_bytes = len(rows.bodies), 0, 0
    while start < count:
        # The rows up to here fit by their bytes; at least one row, at most batch_rows.
        end = int(np.searchsorted(ends_bytes, start_bytes + most_bytes, side="right"))
        end = min(max(end, start + 1), start + limits.batch_rows)
        yield rows.slice(start, end)
        start, start_bytes = end, int(ends_bytes[end - 1])


def fits(rows: Rows, limits: RowLimits) -> bool:
    """Return True if *rows*, a part made by `split_rows`, are still within *limits*."""
    sizes_bytes = rows.sizes_bytes
    if rows.defers_ms is not None and rows.defers_ms.max() > limits.max_defer_ms:
        return False
    # Only an MPUB has a body of several messages; a PUB or DPUB is limited by its one message.
    is_alone = len(rows.bodies) == 1 or rows.defers_ms is not None
    total_bytes = int(sizes_bytes.sum()) + SIZE_BYTES * len(sizes_bytes) + COUNT_BYTES
    return int(sizes_bytes.max()) <= limits.max_msg_size_bytes and (
        is_alone or total_bytes <= limits.max_body_size_bytes
    )


def commands(rows: Rows) -> Sequence[Publish | MultiPublish | DeferredPublish]:
    """Return the commands that publish *rows*, a part made by `split_rows`."""
    bodies = rows.bodies.to_pylist()
    if rows.defers_ms is not None:
        delays_ms = rows.defers_ms.tolist()
        return [
            DeferredPublish(rows.topic, delay_ms, body)
            for delay_ms, body in zip(delays_ms, bodies, strict=True)
        ]
    if len(bodies) == 1:
        return [Publish(rows.topic, bodies[0])]
    return [MultiPublish(rows.topic, bodies)]


# Dead letters


def row_name(row: BadRow, partition: int) -> str:
    """Return the key of *row*, or its partition and index if it has no key."""
    return row.key if row.key is not None else f"partition {partition}, row {row.number}"


def dead_letters(bad: Sequence[BadRow], topic: str, partition: int) -> Rows:
    """Return a dead letter for each row in *bad*: a JSON object, to be published to *topic*."""
    letters = [
        json.dumps(
            {
                "key": row_name(row, partition),
                "topic": row.topic,
                "reason": row.reason,
                "detail": row.detail,
                "size_bytes": row.size_bytes,
                "body_base64": base64.b64encode(row.start).decode(),
            }
        ).encode()
        for row in bad
    ]
    numbers = np.array([row.number for row in bad], dtype=np.int64)
    return Rows(topic, pa.array(letters, pa.binary()), numbers, None, None)


def _numbers(values: pa.Array) -> Numbers:
    array: Numbers = values.to_numpy(zero_copy_only=False).astype(np.int64)
    return array
