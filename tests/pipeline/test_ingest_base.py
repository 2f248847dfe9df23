"""Where the messages of a stream come from: topics, and nsqd that come, go and come back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TypeAlias

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from gateway.nsqd_access import read_access
from gateway.pipeline.ingest import Ingest
from gateway.pipeline.source import read_settings
from tests.support.gateway import become
from tests.support.lasting_nsqd import lasting_nsqd
from tests.support.mortal_broker import MortalBroker, mortal_broker
from tests.support.nsqd import real_nsqd, real_nsqlookupd
from tests.support.streams import CHANNEL, Stream, call, http_of, make_channel, streaming
from tests.support.subscriber_client import Json

Options: TypeAlias = dict[str, str]
KINDS = ["embedded", pytest.param("nsqd", marks=pytest.mark.nsqd)]


@pytest.fixture(params=["commit", "spool"])
def options(request: pytest.FixtureRequest, tmp_path: Path) -> Options:
    """Return the options of a stream, in either mode."""
    return {"ackMode": request.param, "spoolDir": str(tmp_path)}


async def finish(stream: Stream) -> None:
    """Let the stream know that what it has given is done."""
    await call(stream.reader.latestOffset, stream.offset, ReadMaxRows(1))


async def test_a_stream_reads_several_topics(broker: MortalBroker, options: Options) -> None:
    """A row says of which it is."""
    async with streaming(broker, **(options | {"topic": "t, u"})) as stream:
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
async def test_an_nsqd_that_dies_in_a_batch_takes_no_other_along(
    kind: str, options: Options
) -> None:
    """Its batch is read all the same; what the other one brought is finished, and more comes."""
    async with mortal_broker(kind) as one, mortal_broker(kind) as two:
        both = {"nsqdTcpAddress": f"{one.tcp_address},{two.tcp_address}"}
        async with streaming(one, **(options | both)) as stream, http_of(two) as http:
            await make_channel(http)
            await stream.publish(20)
            await Stream(stream.reader, http).publish(range(20, 40))
            bodies = await stream.take(40)
            await two.kill()
            await stream.publish(range(40, 50))
            bodies += await stream.take(10)
            await finish(stream)
            finished = await become(stream.counts, (0, 0))

    assert (0, 0) == finished
    assert [b"%d" % number for number in range(50)] == sorted(bodies, key=int)


@pytest.mark.nsqd
async def test_an_nsqd_that_comes_later_is_read_too(options: Options) -> None:
    """An nsqlookupd names it, and where it tells how much it has."""
    async with (
        real_nsqlookupd() as lookupd,
        real_nsqd(f"--lookupd-tcp-address={lookupd.tcp_address}") as one,
    ):
        found = {
            "nsqdTcpAddress": "",
            "lookupdHttpAddress": lookupd.http_address,
            "lookupdPollIntervalS": "1",
        }
        async with streaming(one, **(options | found)) as stream:
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
    """What was not finished comes again; none is missing, and none stays."""
    async with lasting_nsqd("--mem-queue-size=0") as nsqd, streaming(nsqd, **options) as stream:
        await stream.publish(50)
        bodies = await stream.take(50, most=30)
        await nsqd.end()
        await nsqd.start()
        await stream.publish(range(50, 60))
        async for more in more_of(stream, b"59"):
            bodies += more

    assert {b"%d" % number for number in range(60)} == set(bodies)


async def test_a_connection_that_was_opened_while_nothing_is_read_is_read_later(
    broker: MortalBroker,
) -> None:
    """There is room again before it stands: it is given its part of the window, and reads it."""
    given = {"topic": "t", "channel": CHANNEL, "nsqdTcpAddress": broker.tcp_address}
    settings = read_settings(given | {"maxInFlight": "20"})
    ingest = Ingest(settings, read_access(settings))

    async def hold(size_bytes: int) -> None:
        ingest.ledger.size_bytes = size_bytes
        ingest.regulate()

    async def grow() -> None:
        await hold(settings.max_buffer_bytes + 1)
        async with asyncio.TaskGroup() as group:
            group.create_task(ingest._add_intake("t"))
            group.create_task(hold(0))
        ingest.sources_changed()

    async def buffered() -> int:
        standing = await call(ingest.standing)
        return 0 if standing is None else standing.buffered

    async with http_of(broker) as http:
        await make_channel(http)
        await call(ingest.start)
        await call(ingest.call, grow())
        content = b"\n".join([b"x"] * 40)
        await http.post("/mpub", params={"topic": "t"}, content=content)
        came = await become(buffered, 20)
        await call(ingest.stop)

    assert 20 == came


async def more_of(stream: Stream, last: bytes) -> AsyncIterator[list[bytes]]:
    """Give batches until *last* has come, and the channel is empty."""
    has_come = False
    while not has_come or await stream.counts() != (0, 0):
        end = await call(stream.reader.latestOffset, stream.offset, ReadMaxRows(1_000))
        rows = await stream.rows(stream.offset, end)
        stream.offset = end
        has_come = has_come or last in rows
        yield rows
