"""A stream that is stopped by a signal, or is slow, loses no message."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

from tests.support.brokers.killable_broker import KillableBroker
from tests.support.gateways.gateway import poll_until
from tests.support.spark.job import archive_job
from tests.support.spark.kills import MOST_ROWS, TOPIC, counts, options_for, until
from tests.support.spark.program import SparkProgram
from tests.support.spark.stream import (
    HELD,
    HOLD,
    archived,
    end_reading,
    keep_reading,
    read_to_the_end,
)

pytestmark = [
    pytest.mark.java,
    pytest.mark.nsqd,
    pytest.mark.parametrize("broker", ["nsqd"], indirect=True),
]

LONG_MS = 600_000
"""A message timeout so long that nothing is redelivered during a test."""
COUNT = 300


async def publish(http: httpx.AsyncClient, first: int = 0) -> None:
    """Publish *count* numbers."""
    body = "\n".join(str(number) for number in range(first, first + COUNT))
    (await http.post("/mpub", params={"topic": TOPIC}, content=body)).raise_for_status()


async def has(http: httpx.AsyncClient, *, in_flight: int) -> bool:
    """Whether so many messages are in flight, and no others are there."""
    return await counts(http) == (0, in_flight, 0)


async def numbers(spark: SparkProgram, folder: Path) -> list[int]:
    return sorted(int(body) for _, _, body in await spark.run(archived, str(folder)))


async def test_a_stopped_query_requeues_its_messages(
    broker: KillableBroker, http: httpx.AsyncClient, spark: SparkProgram, tmp_path: Path
) -> None:
    """They are requeued at once, even in the middle of a batch; the next run archives all, once."""
    options = options_for(broker, tmp_path, "commit", LONG_MS)
    (tmp_path / HOLD).touch()
    await publish(http)
    await spark.run(keep_reading, str(tmp_path), options)
    # Before its first task a batch can still begin: Hadoop's `mkdirs` ignores an interrupt.
    await until((tmp_path / HELD).exists)
    await until(lambda: has(http, in_flight=COUNT))
    await spark.run(end_reading, str(tmp_path))
    given_back = await poll_until(lambda: counts(http), (COUNT, 0, 0))
    (tmp_path / HOLD).unlink()
    await spark.run(read_to_the_end, str(tmp_path), options)

    assert (COUNT, 0, 0) == given_back
    assert list(range(COUNT)) == await numbers(spark, tmp_path)


async def test_a_batch_longer_than_the_timeout_is_delivered_once(
    broker: KillableBroker, http: httpx.AsyncClient, spark: SparkProgram, tmp_path: Path
) -> None:
    """Its messages are touched, so nsqd does not deliver them again."""
    options = options_for(broker, tmp_path, "commit", 1_000)
    (tmp_path / HOLD).touch()
    await publish(http)
    await spark.run(keep_reading, str(tmp_path), options)
    await until(lambda: has(http, in_flight=COUNT))
    loop = asyncio.get_running_loop()
    later = loop.time() + 3.5
    await until(lambda: loop.time() > later)
    (tmp_path / HOLD).unlink()
    await until(lambda: has(http, in_flight=0))
    await spark.run(end_reading, str(tmp_path))

    assert list(range(COUNT)) == await numbers(spark, tmp_path)


@pytest.mark.parametrize("ack_mode", ["commit", "spool"])
async def test_sigterm_to_all_processes_of_a_job_leaves_nothing_behind(
    ack_mode: str,
    broker: KillableBroker,
    http: httpx.AsyncClient,
    spark: SparkProgram,
    tmp_path: Path,
) -> None:
    """The JVM gets SIGTERM too. Messages are requeued at once, and the next run archives them."""
    options = options_for(broker, tmp_path, ack_mode, LONG_MS)
    await publish(http)
    async with archive_job(tmp_path, options) as job:
        await until((tmp_path / "checkpoint" / "commits" / "0").exists)
        await publish(http, COUNT)
        job.terminate_all()
        status = await job.ended()
        _, in_flight, _ = await counts(http)
    await spark.run(read_to_the_end, str(tmp_path), options)
    found = await numbers(spark, tmp_path)

    assert (0, 0) == (status, in_flight), job.said
    assert list(range(2 * COUNT)) == sorted(set(found))
    assert len(found) - len(set(found)) <= MOST_ROWS
