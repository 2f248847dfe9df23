"""The spool's consumer: groups, records, and a full or slow disk."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.client.from_settings import read_access
from gateway.errors import StartError
from gateway.pipeline.datasource import read_settings
from gateway.pipeline.pending_batches import Chunk
from gateway.pipeline.spool.consumer import SpoolConsumer, group_into_records
from gateway.pipeline.spool.segments import lock_folder
from gateway.pipeline.spool.store import Group, SpoolOptions, SpoolStore
from gateway.protocol.frames import RawMessages
from tests.support.brokers.killable_broker import KillableBroker
from tests.support.gateways.gateway import poll_until
from tests.support.spark.stream_reader import CHANNEL, channel_of, http_of, make_channel
from tests.support.websocket.subscriber_client import Json

COUNT = 200
_WAIT_S = 60.0


@asynccontextmanager
async def full_disk(
    broker: KillableBroker, folder: Path, count: int
) -> AsyncIterator[tuple[asyncio.StreamWriter, asyncio.StreamReader, httpx.AsyncClient]]:
    """Run a program with a full disk on a broker with messages; yield its stdin and stdout."""
    program = (sys.executable, "-m", "tests.support.spark.full_disk")
    arguments = (broker.tcp_address, str(folder), str(count))
    async with http_of(broker) as http:
        await make_channel(http)
        content = b"\n".join(b"%03d" % number + b"x" * 1_000 for number in range(COUNT))
        await http.post("/mpub", params={"topic": "t"}, content=content)
        process = await asyncio.create_subprocess_exec(
            *program, *arguments, stdin=PIPE, stdout=PIPE, stderr=STDOUT
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            async with asyncio.timeout(_WAIT_S):
                yield process.stdin, process.stdout, http
                await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


async def test_a_full_disk_finishes_nothing_and_loses_nothing(
    broker: KillableBroker, tmp_path: Path
) -> None:
    """Messages are requeued and the log has path and free space; with space it continues."""
    lines: list[Json] = []
    async with full_disk(broker, tmp_path / "spool", COUNT) as (ear, mouth, http):
        async for line in mouth:
            lines.append(read(line))
            if lines[-1].get("event") == "spool not writable":
                break
        stats = lines[-1]
        ear.write(b"room\n")
        lines.extend([read(line) async for line in mouth])
        left = await poll_until(partial(counts_of, http), (0, 0))
    bodies = [body for line in lines for body in line.get("bodies", [])]

    assert (str(tmp_path / "spool"), "File too large") == (stats["path"], stats["reason"])
    assert 0 < int(str(stats["free_bytes"]))
    assert [f"{number:03d}" for number in range(COUNT)] == sorted(bodies)
    assert (0, 0) == left
    assert "spool writable again" in [line.get("event") for line in lines]


async def test_an_available_now_run_fails_if_the_disk_does(
    broker: KillableBroker, tmp_path: Path
) -> None:
    """It fails with the path; the messages are still at nsqd."""
    async with full_disk(broker, tmp_path / "spool", 0) as (_, mouth, http):
        lines = [read(line) async for line in mouth]
        depth, in_flight = await poll_until(partial(counts_of, http), (COUNT, 0))
    [error] = [line["error"] for line in lines if "error" in line]
    read_before = sum(len(line.get("bodies", [])) for line in lines)

    assert f"the spool {tmp_path / 'spool'} cannot be written (File too large)" in error
    assert (COUNT - read_before, 0) == (depth, in_flight)


class SlowDisk(SpoolStore):
    """A spool on a disk that blocks until the test releases it."""

    def __init__(self, options: SpoolOptions) -> None:
        super().__init__(options)
        self.is_asked = threading.Event()
        self.may_write = threading.Event()

    def append(self, groups: Iterable[Group]) -> None:
        """Append *groups* once the test releases the disk."""
        self.is_asked.set()
        self.may_write.wait(_WAIT_S)
        super().append(groups)


async def test_the_folder_is_kept_while_the_disk_is_at_work(
    broker: KillableBroker, tmp_path: Path
) -> None:
    """`stop` does not wait for a hanging disk, and the folder stays locked meanwhile."""
    options = {"topic": "t", "nsqdTcpAddress": broker.tcp_address, "channel": CHANNEL}
    settings = read_settings(options | {"ackMode": "spool", "spoolDir": str(tmp_path)})
    store = SlowDisk(SpoolOptions(folder=tmp_path, max_bytes=2**30))
    store.open(1)
    consumer = SpoolConsumer(settings, read_access(settings), store)
    async with http_of(broker) as http:
        await make_channel(http)
        await http.post("/pub", params={"topic": "t"}, content=b"1")
        await asyncio.to_thread(consumer.start)
        await asyncio.to_thread(store.is_asked.wait, _WAIT_S)
        await asyncio.to_thread(consumer.stop)
        with pytest.raises(StartError, match="in use by another process"):
            lock_folder(tmp_path, 0)
        store.may_write.set()
        lock = await asyncio.to_thread(lock_folder, tmp_path, _WAIT_S)
        os.close(lock)
        left = await poll_until(partial(counts_of, http), (1, 0))

    assert (1, 0) == left


def read(line: bytes) -> Json:
    """Return a line as JSON; empty if it is not JSON."""
    stats: Json = json.loads(line) if line.startswith(b"{") else {}
    return stats


async def counts_of(http: httpx.AsyncClient) -> tuple[int, int]:
    """Return depth and number in flight of the channel."""
    channel = await channel_of(http)
    return channel["depth"], channel["in_flight_count"]


@dataclass(frozen=True, eq=False)
class Source:
    """A source that is compared by identity."""

    topic: str
    nsqd: str = "a:1"


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(1, 3), st.integers(0, 700_000))))
def test_a_record_has_messages_of_one_time(arrivals: list[tuple[int, int, int]]) -> None:
    """From one source, in order, within a millisecond, and with a bounded size."""
    sources = [Source("x"), Source("y")]
    chunks, now_us = [], 0
    for index, count, size in arrivals:
        now_us += size % 1_300
        messages = RawMessages(bytes(size), [b"i" * 16] * count)
        chunks.append(Chunk(sources[index], messages, 0.0, now_us, 0.0))
    groups = list(group_into_records(chunks))  # type: ignore[arg-type]

    for index, topic in enumerate("xy"):
        mine = [(parts, count) for names, _, parts, count in groups if names.topic == topic]
        parts = [part for parts, _ in mine for part in parts]
        expected = [chunk for chunk in chunks if chunk.source is sources[index]]
        assert [chunk.messages.data for chunk in expected] == parts
        assert sum(chunk.count for chunk in expected) == sum(count for _, count in mine)
    assert all(len(parts) == 1 or sum(map(len, parts)) <= 1_048_576 for _, _, parts, _ in groups)
