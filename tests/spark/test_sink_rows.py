"""Rows as batches for nsqd: splitting, and rows that cannot be published."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from itertools import chain

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.pipeline.sink_rows import (
    BadRow,
    RowLayout,
    RowLimits,
    Rows,
    commands,
    dead_letters,
    fits,
    group_by_topic,
    row_name,
    split_bad_rows,
    split_rows,
)
from gateway.protocol.commands import Command, DeferredPublish, MultiPublish, Publish

LIMITS = RowLimits(
    max_msg_size_bytes=100,
    max_body_size_bytes=500,
    max_defer_ms=1_000,
    batch_rows=10,
    batch_bytes=400,
)
BY_COLUMN = RowLayout(topic_column="topic", defer_column="defer_ms", key_column="id")


def one_topic(*bodies: bytes | None, topic: str = "t") -> tuple[list[Rows], list[BadRow]]:
    batch = pa.RecordBatch.from_pydict({"body": pa.array(bodies, pa.binary())})
    return group_by_topic(batch, RowLayout(topic=topic), 0)


def published(by_topic: Sequence[Rows], limits: RowLimits) -> tuple[list[Command], list[BadRow]]:
    written: list[Command] = []
    bad: list[BadRow] = []
    for rows in by_topic:
        good, refused = split_bad_rows(rows, limits)
        bad += refused
        for part in split_rows(good, limits):
            assert fits(part, limits)
            written += commands(part)
    return written, bad


def bodies_of(command: Command) -> list[bytes]:
    if isinstance(command, MultiPublish):
        return list(command.bodies)
    assert isinstance(command, Publish | DeferredPublish)
    return [command.body]


rows_anywhere = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "c#ephemeral", "no topic", None]),
        st.one_of(st.none(), st.binary(max_size=130)),
        st.one_of(st.none(), st.sampled_from([0, 0, 0, 1, 1_000, 1_001, -1])),
    ),
    max_size=60,
)
limits_anywhere = st.builds(
    RowLimits,
    st.integers(50, 120),
    st.integers(130, 600),
    st.just(1_000),
    st.integers(1, 12),
    st.integers(64, 600),
)


@given(rows_anywhere, limits_anywhere)
def test_every_row_is_published_once_or_reported_within_all_limits(
    given_rows: list[tuple[str | None, bytes | None, int | None]], limits: RowLimits
) -> None:
    """Rows of a topic stay in order, both the deferred ones and the others."""
    batch = pa.RecordBatch.from_pydict(
        {
            "id": pa.array(range(len(given_rows)), pa.int64()),
            "topic": pa.array([topic for topic, _, _ in given_rows], pa.string()),
            "body": pa.array([body for _, body, _ in given_rows], pa.binary()),
            "defer_ms": pa.array([defer for _, _, defer in given_rows], pa.int32()),
        }
    )
    by_topic, bad = group_by_topic(batch, BY_COLUMN, 7)
    written, refused = published(by_topic, limits)
    bad += refused

    def expected(name: str, *, is_deferred: bool) -> list[bytes]:
        return [
            body
            for topic, body, defer in given_rows
            if topic == name
            and body
            and len(body) <= limits.max_msg_size_bytes
            and 0 <= (defer or 0) <= 1_000
            and bool(defer) == is_deferred
        ]

    for name in ("a", "b", "c#ephemeral"):
        mine = [each for each in written if getattr(each, "topic", None) == name]
        deferred = [each for each in mine if isinstance(each, DeferredPublish)]
        at_once = [each for each in mine if not isinstance(each, DeferredPublish)]
        assert expected(name, is_deferred=True) == [each.body for each in deferred]
        assert expected(name, is_deferred=False) == list(chain(*map(bodies_of, at_once)))
    for each in written:
        bodies = bodies_of(each)
        size_bytes = 4 + sum(4 + len(body) for body in bodies)
        assert 1 == len(bodies) or size_bytes <= min(limits.batch_bytes, limits.max_body_size_bytes)
        assert len(bodies) <= limits.batch_rows
    assert len(given_rows) == len(bad) + sum(len(bodies_of(each)) for each in written)
    assert len(bad) == len({row.number for row in bad})
    assert all(str(row.number - 7) == row.key for row in bad)


@pytest.mark.parametrize(
    "body, reason, detail",
    [
        (None, "null body", "the body is null"),
        (b"", "empty body", "the body is empty, which nsqd refuses"),
        (bytes(101), "body too big", "the body has 101 bytes, nsqd accepts at most 100 bytes"),
    ],
)
def test_a_row_that_nsqd_would_refuse_is_found_before(
    body: bytes | None, reason: str, detail: str
) -> None:
    """One bad message would make nsqd refuse its whole command."""
    by_topic, bad = one_topic(b"before", body, bytes(100))
    written, refused = published(by_topic, LIMITS)

    [row] = bad + refused
    assert (1, None, "t", reason, detail) == row[:5]
    assert [b"before", bytes(100)] == bodies_of(written[0])


def test_a_text_is_published_as_utf_8() -> None:
    """A column of strings needs no cast."""
    batch = pa.RecordBatch.from_pydict({"body": pa.array(["grün"], pa.string())})
    by_topic, _ = group_by_topic(batch, RowLayout(topic="t"), 0)

    assert [Publish("t", "grün".encode())] == published(by_topic, LIMITS)[0]


def test_a_learned_limit_splits_rows_differently() -> None:
    """`fits` reports that an earlier part exceeds the new limit."""
    [rows], _ = one_topic(*[bytes(90)] * 4)
    [part] = split_rows(rows, LIMITS)
    lower = LIMITS._replace(max_body_size_bytes=200)

    assert (True, False) == (fits(part, LIMITS), fits(part, lower))
    assert [2, 2] == [len(bodies_of(each)) for each in published([part], lower)[0]]
    assert not fits(part, LIMITS._replace(max_msg_size_bytes=89))


def test_a_message_longer_than_a_batch_goes_alone() -> None:
    """By PUB, which is limited by the maximum message size only."""
    [rows], _ = one_topic(b"a", bytes(90), b"b")
    written, _ = published([rows], LIMITS._replace(max_body_size_bytes=64))

    assert [Publish("t", b"a"), Publish("t", bytes(90)), Publish("t", b"b")] == written


def test_a_dead_letter_describes_its_row() -> None:
    """With the first bytes of its body, and at most 200 characters of a name."""
    batch = pa.RecordBatch.from_pydict(
        {"id": ["k" * 300], "topic": ["no topic" * 100], "body": [bytes(2_000)]}
    )
    _, bad = group_by_topic(batch, RowLayout(topic_column="topic", key_column="id"), 0)
    [letter] = dead_letters(bad, "dead", 3).bodies.to_pylist()
    told = json.loads(letter)

    assert ("k" * 200, "bad topic", 2_000) == (told["key"], told["reason"], told["size_bytes"])
    assert bytes(1_024) == base64.b64decode(told["body_base64"])
    assert 200 == len(told["topic"])


def test_a_row_without_a_key_is_named_by_its_position() -> None:
    """So a reader of the error can find the row."""
    _, [bad] = one_topic(b"first", None)

    assert "partition 3, row 1" == row_name(bad, 3)
