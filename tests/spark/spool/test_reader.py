"""The stream reader in mode spool, called as by Spark, with both brokers."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from gateway.errors import SettingRefused, StartError
from gateway.pipeline.spool.segments import SpoolLost
from tests.support.brokers.killable_broker import KillableBroker
from tests.support.gateways.gateway import poll_until
from tests.support.spark.stream_reader import Stream, call, open_stream

MIB = 1_048_576


def spooled(folder: Path, **options: str) -> dict[str, str]:
    return {"ackMode": "spool", "spoolDir": str(folder)} | options


async def test_a_message_is_finished_once_it_is_in_a_file(
    broker: KillableBroker, tmp_path: Path
) -> None:
    """Before Spark has read it; a batch has the same rows whenever it is read."""
    async with open_stream(broker, **spooled(tmp_path)) as stream:
        await stream.publish(5)
        end = await stream.latest()
        finished = await poll_until(stream.counts, (0, 0))
        rows = [await stream.rows(stream.offset, end) for _ in range(2)]

    assert ((0, 0), rows[0]) == (finished, rows[1])
    assert [b"%d" % number for number in range(5)] == sorted(rows[0])


async def test_a_batch_is_read_again_by_the_next_process(
    broker: KillableBroker, tmp_path: Path
) -> None:
    """Spark requests it if the previous process ended between plan and commit."""
    async with open_stream(broker, **spooled(tmp_path)) as stream:
        await stream.publish(100)
        start, end = stream.offset, await stream.latest(30)
        rows = await stream.full_rows(start, end)
    async with open_stream(broker, **spooled(tmp_path)) as stream:
        assert rows == await stream.full_rows(start, end)
        stream.offset = end
        left = await stream.take(70)

    bodies = [row["body"] for row in rows] + left
    assert [b"%d" % number for number in range(100)] == sorted(bodies, key=int)
    assert len(rows) <= 30


async def test_no_batch_of_a_spool_is_larger_than_spark_allows(
    broker: KillableBroker, tmp_path: Path
) -> None:
    """The rest is in the next batches, each message once."""
    bodies: list[bytes] = []
    async with open_stream(broker, **spooled(tmp_path)) as stream:
        await stream.publish(100)
        while len(bodies) < 100:
            rows = await stream.next_rows(7)
            assert 0 < len(rows) <= 7
            bodies += rows

    assert [b"%d" % number for number in range(100)] == sorted(bodies, key=int)


async def test_a_spool_at_its_bound_asks_for_nothing(
    broker: KillableBroker, tmp_path: Path
) -> None:
    """It sets RDY to 0 until Spark has committed messages; the rest waits at nsqd."""
    options = spooled(tmp_path, maxSpoolBytes=str(MIB), maxInFlight="50")
    async with open_stream(broker, **options) as stream:
        for number in range(8):
            body = (b"%03d" % number) + b"x" * 20_000
            content = b"\n".join([body] * 20)
            await stream.http.post("/mpub", params={"topic": "t"}, content=content)
        end = await stream.latest()
        waiting = await settled(stream)
        rows = len(await stream.rows(stream.offset, end))
        stream.offset = end
        assert 0 < waiting < 160 - 1_048_576 // 20_100
        while rows < 160:
            rows += len(await stream.next_rows())
        assert 160 == rows
        # Only now what it holds is finished, and removed.
        assert (0, 0) == await poll_until(stream.counts, (0, 0))
        await call(stream.reader.latestOffset, stream.offset, ReadMaxRows(1))
        report = await call(stream.reader.reportLatestOffset)
        assert 2 * MIB > report["spool_bytes"]


async def settled(stream: Stream) -> int:
    """Return the depth once nothing is in flight and the depth is stable."""
    depth, in_flight = await stream.counts()
    for _ in range(100):
        await call(stream.reader.reportLatestOffset)
        before, (depth, in_flight) = (depth, in_flight), await stream.counts()
        if before == (depth, 0) and depth:
            break
    return depth


async def test_messages_that_are_not_durable_are_requeued_at_the_end(
    broker: KillableBroker, tmp_path: Path
) -> None:
    """Durable messages stay for the next process; none is lost."""
    async with open_stream(broker, **spooled(tmp_path)) as stream:
        await stream.publish(500)
        first = await stream.next_rows()
        await call(stream.reader.stop)
        depth, _ = await poll_until(stream.counts, (0, 0))
        offset = stream.offset
    async with open_stream(broker, **spooled(tmp_path)) as stream:
        stream.offset = offset
        rest = await stream.take(500 - len(first)) if len(first) < 500 else []

    assert 0 <= depth <= 500
    assert {b"%d" % number for number in range(500)} == set(first + rest)


async def test_a_checkpoint_of_an_earlier_spool_is_refused(
    broker: KillableBroker, tmp_path: Path
) -> None:
    """An emptied folder is a new spool, without the messages of the earlier one."""
    async with open_stream(broker, **spooled(tmp_path / "a")) as stream:
        await stream.publish(1)
        end = await stream.latest()
    async with open_stream(broker, **spooled(tmp_path / "b")) as stream:
        with pytest.raises(SpoolLost, match="new checkpoint"):
            await call(stream.reader.latestOffset, end, ReadMaxRows(1))
        with pytest.raises(SpoolLost, match="new checkpoint"):
            await call(stream.reader.partitions, stream.offset, end)


async def test_a_checkpoint_of_the_other_mode_is_refused(
    broker: KillableBroker, tmp_path: Path
) -> None:
    """From commit to spool, and from spool to commit."""
    async with (
        open_stream(broker) as held,
        open_stream(broker, **spooled(tmp_path)) as kept,
    ):
        for stream, offset in ((held, kept.offset), (kept, held.offset)):
            with pytest.raises(SettingRefused, match=r"ackMode.*new checkpoint"):
                await call(stream.reader.latestOffset, offset, ReadMaxRows(1))


async def test_progress_tells_of_the_spool(broker: KillableBroker, tmp_path: Path) -> None:
    """Progress has the messages without a batch, and the age of the oldest."""
    async with open_stream(broker, **spooled(tmp_path, maxRowsPerBatch="4")) as stream:
        assert await call(stream.reader.reportLatestOffset) is None
        await stream.publish(10)
        stream.offset = await stream.latest(4)
        report = await call(stream.reader.reportLatestOffset)
        while report["buffered"] != 6:
            report = await call(stream.reader.reportLatestOffset)

    assert (1, 0) == (report["segments"], report["in_flight"])
    assert report["oldest_unfinished_s"] > 0
    assert report["spool_bytes"] > 10 * 30


async def test_a_second_stream_on_a_folder_is_refused(
    broker: KillableBroker, tmp_path: Path
) -> None:
    """After a wait, because the process of an earlier run may be about to exit."""
    async with open_stream(broker, **spooled(tmp_path)) as stream:
        await stream.publish(1)
        await stream.next_rows()
        program = (
            "import sys\n"
            "from gateway.errors import StartError\n"
            "from gateway.pipeline.spool.store import SpoolOptions, SpoolStore\n"
            "from pathlib import Path\n"
            "options = SpoolOptions(folder=Path(sys.argv[1]), max_bytes=1, lock_wait_s=0.1)\n"
            "try:\n"
            "    SpoolStore(options).open(1)\n"
            "except StartError as error:\n"
            "    print(error)\n"
        )
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", program, str(tmp_path), stdout=PIPE
        )
        said, _ = await process.communicate()

    assert b"is in use by another process" in said
    with pytest.raises(StartError):
        raise StartError(said.decode())
