"""How much waits for a stream, as its progress shows it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from tests.support.gateway import become
from tests.support.mortal_broker import MortalBroker, free_port
from tests.support.streams import Stream, call, streaming


async def depth_of(stream: Stream) -> int | None:
    """Return what progress shows."""
    report = await call(stream.reader.reportLatestOffset)
    depth: int | None = report["depth"]
    return depth


async def test_progress_shows_what_waits(broker: MortalBroker) -> None:
    """Beside what the stream holds, and for how long it has held it."""
    options = {"nsqdHttpAddress": broker.http_address, "maxInFlight": "10"}
    async with streaming(broker, **options) as stream:
        await stream.publish(100)
        held = 0
        while held < 10:
            end = await stream.latest()
            held = len(await stream.rows(stream.offset, end))
            stream.offset = end if held < 10 else stream.offset
        expected: int | None = 90
        assert expected == await become(partial(depth_of, stream), expected)
        report = await call(stream.reader.reportLatestOffset)

    assert (10, 0, 0, 1) == tuple(
        report[name] for name in ("in_flight", "buffered", "refused", "sources")
    )
    assert 0 < report["oldest_unfinished_s"] < 60


async def test_a_sum_that_lacks_an_nsqd_is_not_shown(broker: MortalBroker, tmp_path: Path) -> None:
    """Where HTTP is not known of each, or one does not answer; asking harms nothing."""
    addresses = [{}, {"nsqdHttpAddress": f"127.0.0.1:{free_port()}"}]
    for number, where in enumerate(addresses):
        spool = {"ackMode": "spool", "spoolDir": str(tmp_path / str(number))}
        async with streaming(broker, **(spool | where)) as stream:
            await stream.publish(1)
            await stream.next_rows()
            assert [None] * 3 == [await depth_of(stream) for _ in range(3)]
