"""The sources of a stream: several topics, and nsqds that start, fail and return."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TypeAlias

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from gateway.client.from_settings import read_access
from gateway.pipeline.datasource import read_settings
from gateway.pipeline.source_consumer import CommitConsumer
from tests.support.brokers.killable_broker import KillableBroker, killable_broker
from tests.support.brokers.nsqd import real_nsqd, real_nsqlookupd
from tests.support.brokers.restartable_nsqd import restartable_nsqd
from tests.support.gateways.gateway import poll_until
from tests.support.spark.stream_reader import (
    CHANNEL,
    Stream,
    call,
    http_of,
    make_channel,
    open_stream,
)
from tests.support.websocket.subscriber_client import Json

Options: TypeAlias = dict[str, str]
KINDS = ["embedded", pytest.param("nsqd", marks=pytest.mark.nsqd)]


@pytest.fixture(params=["commit", "spool"])
def options(request: pytest.FixtureRequest, tmp_path: Path) -> Options:
    return {"ackMode": "spool", "spoolDir": str(tmp_path)} if request.param == "spool" else {}


async def finish(stream: Stream) -> None:
    """Tell the stream that its last batch is committed."""
    await call(stream.reader.latestOffset, stream.offset, ReadMaxRows(1))


async def test_a_stream_reads_several_topics(broker: KillableBroker, options: Options) -> None:
    async with open_stream(broker, **(options | {"topic": "t, u"})) as stream:
        await make_channel(stream.http, "u")
        await stream.publish(30, "t")
        await stream.publish(range(30, 50), "u")
        rows: list[Json] = []
        while len(rows) < 50:
            end = await stream.latest()
            rows += await stream.full_rows(stream.offset, end)
            stream.offset = end

    seen = sorted((int(row["body"]), row["topic"], row["nsqd"]) for row in rows)
    expected = [(number, "t" if number < 30 else "u", broker.tcp_address) for number in range(50)]
    assert expected == seen


@pytest.mark.parametrize("kind", KINDS)
async def test_an_nsqd_that_dies_in_a_batch_affects_no_other(kind: str, options: Options) -> None:
    """Its batch can still be read; messages of the other nsqd are finished, and more arrive."""
    async with killable_broker(kind) as one, killable_broker(kind) as two:
        both = {"nsqdTcpAddress": f"{one.tcp_address},{two.tcp_address}"}
        async with open_stream(one, **(options | both)) as stream, http_of(two) as http:
            await make_channel(http)
            await stream.publish(20)
            await Stream(stream.reader, http).publish(range(20, 40))
            bodies = await stream.take(40)
            await two.kill()
            await stream.publish(range(40, 50))
            bodies += await stream.take(10)
            await finish(stream)
            finished = await poll_until(stream.counts, (0, 0))

    assert (0, 0) == finished
    assert [b"%d" % number for number in range(50)] == sorted(bodies, key=int)


@pytest.mark.nsqd
async def test_a_topic_that_no_nsqd_has_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """A misspelled name would look like a topic without messages."""
    async with real_nsqlookupd() as lookupd:
        where = {"lookupdHttpAddress": lookupd.http_address, "topic": "orders"}
        settings = read_settings(where)
        consumer = CommitConsumer(settings, read_access(settings))
        try:
            await asyncio.to_thread(consumer.start)
        finally:
            await asyncio.to_thread(consumer.stop)

    assert "no nsqd has the topic yet" in caplog.text
    assert "orders" in caplog.text


@pytest.mark.nsqd
async def test_an_nsqd_that_appears_later_is_read_too(options: Options) -> None:
    """nsqlookupd reports it, with the HTTP address for its depth."""
    async with (
        real_nsqlookupd() as lookupd,
        real_nsqd(f"--lookupd-tcp-address={lookupd.tcp_address}") as one,
    ):
        found = {
            "nsqdTcpAddress": "",
            "lookupdHttpAddress": lookupd.http_address,
            "lookupdPollIntervalS": "1",
        }
        async with open_stream(one, **(options | found)) as stream:
            await stream.publish(5)
            bodies = await stream.take(5)
            async with (
                real_nsqd(f"--lookupd-tcp-address={lookupd.tcp_address}") as two,
                http_of(two) as http,
            ):
                await make_channel(http)
                await Stream(stream.reader, http).publish(range(5, 9))
                bodies += await stream.take(4)
                await finish(stream)
                report = await call(stream.reader.reportLatestOffset)
                while report["depth"] is None:
                    report = await call(stream.reader.reportLatestOffset)

    assert [b"%d" % number for number in range(9)] == sorted(bodies, key=int)
    assert 0 == report["depth"]


@pytest.mark.nsqd
async def test_an_nsqd_that_is_started_again_in_a_batch_loses_nothing(options: Options) -> None:
    """Unfinished messages are delivered again; none is lost, and none is left."""
    async with (
        restartable_nsqd("--mem-queue-size=0") as nsqd,
        open_stream(nsqd, **options) as stream,
    ):
        await stream.publish(50)
        bodies = await stream.take(50, most=30)
        await nsqd.end()
        await nsqd.start()
        await stream.publish(range(50, 60))
        async for more in more_of(stream, b"59"):
            bodies += more

    assert {b"%d" % number for number in range(60)} == set(bodies)


async def test_a_connection_that_was_opened_while_nothing_is_read_is_read_later(
    broker: KillableBroker,
) -> None:
    """Reading resumes before the connection is open; it then gets its share of RDY and reads."""
    given = {"topic": "t", "channel": CHANNEL, "nsqdTcpAddress": broker.tcp_address}
    settings = read_settings(given | {"maxInFlight": "20"})
    consumer = CommitConsumer(settings, read_access(settings))

    async def hold(size_bytes: int) -> None:
        consumer.pending.size_bytes = size_bytes
        consumer.on_buffer_limit()

    async def grow() -> None:
        await hold(settings.max_buffer_bytes + 1)
        async with asyncio.TaskGroup() as group:
            group.create_task(consumer._add_consumer("t"))
            group.create_task(hold(0))
        consumer.on_sources_changed()

    async def buffered() -> int:
        backlog = await call(consumer.backlog)
        return 0 if backlog is None else backlog.buffered

    async with http_of(broker) as http:
        await make_channel(http)
        await call(consumer.start)
        await call(consumer.call, grow())
        content = b"\n".join([b"x"] * 40)
        await http.post("/mpub", params={"topic": "t"}, content=content)
        came = await poll_until(buffered, 20)
        await call(consumer.stop)

    assert 20 == came


async def more_of(stream: Stream, last: bytes) -> AsyncIterator[list[bytes]]:
    """Yield batches until *last* has arrived and the channel is empty."""
    has_come = False
    while not has_come or await stream.counts() != (0, 0):
        end = await call(stream.reader.latestOffset, stream.offset, ReadMaxRows(1_000))
        rows = await stream.rows(stream.offset, end)
        stream.offset = end
        has_come = has_come or last in rows
        yield rows
