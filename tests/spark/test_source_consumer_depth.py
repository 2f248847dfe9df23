"""The backlog of a stream in Spark's progress report."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from gateway.pipeline import source_consumer as depth
from tests.support.brokers.killable_broker import KillableBroker, free_port
from tests.support.gateways.gateway import poll_until
from tests.support.spark.stream_reader import Stream, call, open_stream


async def depth_of(stream: Stream) -> int | None:
    report = await call(stream.reader.reportLatestOffset)
    waiting: int | None = report["depth"]
    return waiting


async def test_progress_shows_the_depth(broker: KillableBroker) -> None:
    """With the number of held messages and their age."""
    options = {"nsqdHttpAddress": broker.http_address, "maxInFlight": "10"}
    async with open_stream(broker, **options) as stream:
        await stream.publish(100)
        held = 0
        while held < 10:
            end = await stream.latest()
            held = len(await stream.rows(stream.offset, end))
            stream.offset = end if held < 10 else stream.offset
        expected: int | None = 90
        assert expected == await poll_until(partial(depth_of, stream), expected)
        report = await call(stream.reader.reportLatestOffset)

    assert (10, 0, 0, 1) == tuple(
        report[name] for name in ("in_flight", "buffered", "refused", "sources")
    )
    assert 0 < report["oldest_unfinished_s"] < 60


async def test_the_depth_is_recent(broker: KillableBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """An older depth includes messages read since, which would count twice."""
    monkeypatch.setattr(depth, "_MAX_AGE_S", 0.0)
    options = {"nsqdHttpAddress": broker.http_address, "maxInFlight": "10"}
    async with open_stream(broker, **options) as stream:
        await stream.publish(100)
        read = len(await stream.next_rows())
        assert (90, 10) == await poll_until(stream.counts, (90, 10))
        behind = await depth_of(stream)
        await stream.take(100 - read)
        nothing = await depth_of(stream)

    assert (90, 0) == (behind, nothing)


async def test_a_sum_that_lacks_an_nsqd_is_not_shown(
    broker: KillableBroker, tmp_path: Path
) -> None:
    """If an HTTP address is unknown, or an nsqd does not answer; the stream goes on."""
    addresses = [{}, {"nsqdHttpAddress": f"127.0.0.1:{free_port()}"}]
    for number, where in enumerate(addresses):
        spool = {"ackMode": "spool", "spoolDir": str(tmp_path / str(number))}
        async with open_stream(broker, **(spool | where)) as stream:
            await stream.publish(1)
            await stream.next_rows()
            assert [None] * 3 == [await depth_of(stream) for _ in range(3)]
