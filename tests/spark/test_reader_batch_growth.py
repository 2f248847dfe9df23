"""Batches grow under a backlog: calls as by Spark, with both brokers and no JVM."""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from gateway.pipeline.datasource import NsqDataSource
from gateway.pipeline.reader import NsqStreamReader
from gateway.settings.pipeline import FIRST_ROWS
from tests.support.brokers.killable_broker import KillableBroker
from tests.support.brokers.nsqd import real_nsqd
from tests.support.spark.stream_reader import Stream, call, open_stream

Options: TypeAlias = dict[str, str]
COUNT = 100_000


@pytest.fixture(params=["commit", "spool"])
def options(request: pytest.FixtureRequest, tmp_path: Path) -> Options:
    return {"ackMode": "spool", "spoolDir": str(tmp_path)} if request.param == "spool" else {}


def limit_of(reader: NsqStreamReader) -> int:
    """Return the read limit that Spark requests once."""
    limit = reader.getDefaultReadLimit()
    assert isinstance(limit, ReadMaxRows)
    return limit.max_rows


async def batches(stream: Stream, count: int, *, has_backlog: bool = False) -> list[list[bytes]]:
    """Return the bodies of *count* different messages; *has_backlog*: a full batch waits always."""
    read: list[list[bytes]] = []
    seen: set[bytes] = set()
    while len(seen) < count:
        read.append(await stream.next_rows(limit_of(stream.reader)))
        seen.update(read[-1])
        if has_backlog:
            await full_batch_waits(stream, count - len(seen))
    return read


async def full_batch_waits(stream: Stream, left: int) -> None:
    """Wait for as many messages as a batch may have, or for all *left* ones."""
    report = None
    while report is None or report["buffered"] < min(report["max_rows"], left):
        report = await call(stream.reader.reportLatestOffset)


async def test_batches_grow_by_themselves_under_a_backlog(
    broker: KillableBroker, options: Options
) -> None:
    """They start at the default; no message is lost or duplicated; progress has the limit."""
    # However slow the machine is: a batch never takes so long that the next one is smaller.
    async with open_stream(broker, **options, batchTargetS="600") as stream:
        await stream.publish(COUNT)
        read = await batches(stream, COUNT, has_backlog=True)
        report = await call(stream.reader.reportLatestOffset)

    bodies = [body for batch in read for body in batch]
    assert [b"%d" % number for number in range(COUNT)] == sorted(bodies, key=int)
    assert len(read[0]) <= FIRST_ROWS < max(map(len, read)) <= report["max_rows"]


async def test_a_number_that_is_given_bounds_every_batch(
    broker: KillableBroker, options: Options
) -> None:
    """However many messages are waiting."""
    async with open_stream(broker, **options, maxRowsPerBatch="900") as stream:
        await stream.publish(10_000)
        read = await batches(stream, 10_000)
        report = await call(stream.reader.reportLatestOffset)

    assert (900, 900) == (max(map(len, read)), report["max_rows"])


async def test_a_batch_ends_at_its_bytes(broker: KillableBroker, options: Options) -> None:
    """It ends at a quarter of the buffer, plus the rest of the last read."""
    async with open_stream(broker, **options, maxBufferBytes="4194304") as stream:
        body = b"x" * 10_000
        for _ in range(20):
            answer = await stream.http.post(
                "/mpub", params={"topic": "t"}, content=b"\n".join([body] * 40)
            )
            answer.raise_for_status()
        sizes: list[int] = []
        while sum(sizes) < 800:
            sizes.append(len(await stream.next_rows(limit_of(stream.reader))))

    assert (800, True) == (sum(sizes), max(sizes) <= 220), sizes


@pytest.mark.nsqd
async def test_a_batch_does_not_wait_for_more_than_can_be_in_flight() -> None:
    """64 connections with RDY 2 have 128 messages in flight, so a batch is full with 64."""
    options = {"maxRowsPerBatch": "100000", "batchS": "3600"}
    async with real_nsqd("--max-rdy-count=2") as nsqd, open_stream(nsqd, **options) as stream:
        await stream.publish(1)
        bodies = await stream.next_rows()  # the first one is due at once
        await stream.publish(range(1, 500))
        bodies += await stream.next_rows()

    assert len(set(bodies)) > 1


def test_the_default_read_limit_is_max_rows_per_batch() -> None:
    """Without the option it is unreachable, because Spark requests it once, before any batch."""
    given = {"topic": "t", "nsqdTcpAddress": "a:1"}
    readers = [
        NsqDataSource(given | more).streamReader(None)  # type: ignore[arg-type]
        for more in ({}, {"maxRowsPerBatch": "7"})
    ]

    assert [1_000_000, 7] == list(map(limit_of, readers))
