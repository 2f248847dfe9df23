"""
PURE. Rows of Arrow as batches for nsqd, and the rows that no nsqd would take.

nsqd refuses a whole MPUB for one message in it, and closes the connection: what it would not take
is found before. Rows of one topic stay in order.
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
SIZE_BYTES = 4
BODY = "body"
_SHOWN_BODY_BYTES = 1_024
_SHOWN_NAME_CHARS = 200
"""A name that is none may be of any length."""

Numbers = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Which columns mean what, and where rows go."""

    topic: str = ""
    """The topic of all rows; empty: the one of its own that each row has."""
    topic_column: str | None = None
    defer_column: str | None = None
    """Delays in ms; null is none."""
    key_column: str | None = None


class RowLimits(NamedTuple):
    """What one message and one command may be."""

    max_msg_size_bytes: int
    max_body_size_bytes: int
    max_defer_ms: int
    batch_rows: int
    batch_bytes: int


class Rows(NamedTuple):
    """Rows of one topic, in order; each list is as long as *bodies*."""

    topic: str
    bodies: pa.Array
    """Binary, no null."""
    numbers: Numbers
    """Of each row in its task, from 0."""
    defers_ms: Numbers | None
    """None: nothing is deferred."""
    keys: pa.Array | None

    def part(self, start: int, end: int) -> Rows:
        """Return the rows from *start* to before *end*, of the same memory."""
        return Rows(
            self.topic,
            self.bodies.slice(start, end - start),
            self.numbers[start:end],
            None if self.defers_ms is None else self.defers_ms[start:end],
            None if self.keys is None else self.keys.slice(start, end - start),
        )

    def chosen(self, chosen: NDArray[Any]) -> Rows:
        """Return the rows with the indices *chosen*."""
        indices = pa.array(chosen)
        return Rows(
            self.topic,
            self.bodies.take(indices),
            self.numbers[chosen],
            None if self.defers_ms is None else self.defers_ms[chosen],
            None if self.keys is None else self.keys.take(indices),
        )

    @property
    def sizes_bytes(self) -> Numbers:
        """How long each body is."""
        return _numbers(pc.binary_length(self.bodies))


class BadRow(NamedTuple):
    """A row that nsqd would not take."""

    number: int
    """In its task, from 0."""
    key: str | None
    topic: str
    reason: str
    """A few words, of which there are few."""
    detail: str
    """Value, limit and unit."""
    size_bytes: int
    start: bytes
    """The first of its body."""


# From rows to those that can be published


def rows_of(
    batch: pa.RecordBatch, layout: Layout, first_number: int
) -> tuple[list[Rows], list[BadRow]]:
    """Return the rows of *batch* by topic, and those that have no body or no topic."""
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
        for index in np.flatnonzero(is_null).tolist():
            topic = layout.topic if topics is None else topics[index].as_py() or ""
            bad.append(_bad(every._replace(topic=topic), index, "null body", "the body is null"))
        kept = np.flatnonzero(~is_null)
        every = every.chosen(kept)
        topics = None if topics is None else topics.take(pa.array(kept))
    if topics is None:
        return [every], bad
    named: list[Rows] = []
    for rows in _by_topic(every, topics):
        if is_valid_name(rows.topic.encode("utf-8", "surrogatepass")):
            named.append(rows)
        else:
            bad += [_bad(rows, index, "bad topic", _NO_NAME) for index in range(len(rows.bodies))]
    return named, bad


_NO_NAME = "the name of a topic is 1 to 64 of a-z A-Z 0-9 . _ -, then #ephemeral or nothing"


def _by_topic(rows: Rows, topics: pa.Array) -> Iterator[Rows]:
    """Yield *rows* by the topic of each, in order."""
    coded = topics.fill_null("").dictionary_encode()
    names = coded.dictionary.to_pylist()
    if len(names) == 1:
        yield rows._replace(topic=names[0])
        return
    codes = coded.indices.to_numpy()
    order = np.argsort(codes, kind="stable")
    ends = np.cumsum(np.bincount(codes, minlength=len(names)))
    start = 0
    for name, end in zip(names, ends.tolist(), strict=True):
        yield rows.chosen(order[start:end])._replace(topic=name)
        start = end


def _defers_ms(batch: pa.RecordBatch, layout: Layout) -> Numbers | None:
    if layout.defer_column is None:
        return None
    defers_ms = _numbers(batch.column(layout.defer_column).cast(pa.int64()).fill_null(0))
    return defers_ms if defers_ms.any() else None


def sift(rows: Rows, limits: RowLimits) -> tuple[Rows, list[BadRow]]:
    """Return *rows* without those that *limits* do not allow, and these."""
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
            reason, detail = "empty body", "the body is empty, and nsqd takes none that is"
        elif size_bytes > longest:
            reason = "body too big"
            detail = f"the body has {size_bytes} bytes, nsqd takes {longest} bytes at most"
        else:
            assert rows.defers_ms is not None  # noqa: S101 - else it is good
            reason = "bad defer"
            detail = (
                f"it is to be deferred by {rows.defers_ms[index]} ms, nsqd takes 0 to "
                f"{limits.max_defer_ms} ms"
            )
        bad.append(_bad(rows, index, reason, detail))
    return rows.chosen(np.flatnonzero(is_good)), bad


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


# From those to commands


def batches(rows: Rows, limits: RowLimits) -> Iterator[Rows]:
    """
    Yield *rows*, which `sift` has let through, as parts for one command each.

    Those that are deferred have a command each, which go together all the same.
    """
    if rows.defers_ms is None:
        yield from _packed(rows, limits)
        return
    is_deferred = rows.defers_ms > 0
    now, later = np.flatnonzero(~is_deferred), np.flatnonzero(is_deferred)
    if len(now):
        yield from _packed(rows.chosen(now)._replace(defers_ms=None), limits)
    if len(later):
        yield from _packed(rows.chosen(later), limits)


def _packed(rows: Rows, limits: RowLimits) -> Iterator[Rows]:
    most_bytes = min(limits.batch_bytes, limits.max_body_size_bytes) - COUNT_BYTES
    ends_bytes = np.cumsum(rows.sizes_bytes + SIZE_BYTES)
    count, start, start_bytes = len(rows.bodies), 0, 0
    while start < count:
        end = int(np.searchsorted(ends_bytes, start_bytes + most_bytes, side="right"))
        end = min(max(end, start + 1), start + limits.batch_rows)
        yield rows.part(start, end)
        start, start_bytes = end, int(ends_bytes[end - 1])


def fits(rows: Rows, limits: RowLimits) -> bool:
    """Tell whether a part that `batches` has made is one under *limits*, too."""
    sizes_bytes = rows.sizes_bytes
    if rows.defers_ms is not None and rows.defers_ms.max() > limits.max_defer_ms:
        return False
    is_alone = len(rows.bodies) == 1 or rows.defers_ms is not None
    total_bytes = int(sizes_bytes.sum()) + SIZE_BYTES * len(sizes_bytes) + COUNT_BYTES
    return int(sizes_bytes.max()) <= limits.max_msg_size_bytes and (
        is_alone or total_bytes <= limits.max_body_size_bytes
    )


def commands(rows: Rows) -> Sequence[Publish | MultiPublish | DeferredPublish]:
    """Return what publishes a part that `batches` has made; each has an OK of its own."""
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


# The rows that cannot be published


def name_of(row: BadRow, partition: int) -> str:
    """Return the key of *row*, or where it stands."""
    return row.key if row.key is not None else f"partition {partition}, row {row.number}"


def dead_letters(bad: Sequence[BadRow], topic: str, partition: int) -> Rows:
    """Return what tells *topic* of the rows in *bad*: a JSON object each."""
    letters = [
        json.dumps(
            {
                "key": name_of(row, partition),
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
