"""A stream that is told to end, and one that is slow: what it holds is nobody's loss."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

from tests.support.gateway import become
from tests.support.mortal_broker import MortalBroker
from tests.support.spark_job import archive_job
from tests.support.spark_kills import MOST_ROWS, TOPIC, counts, options_for, until
from tests.support.spark_program import SparkProgram
from tests.support.spark_stream import HOLD, archived, end_reading, keep_reading, read_to_the_end

pytestmark = [
    pytest.mark.java,
    pytest.mark.nsqd,
    pytest.mark.parametrize("broker", ["nsqd"], indirect=True),
]

LONG_MS = 600_000
"""Nothing comes back by itself while a test runs."""
COUNT = 300


async def publish(http: httpx.AsyncClient, first: int = 0) -> None:
    """Publish as many numbers."""
    body = "\n".join(str(number) for number in range(first, first + COUNT))
    (await http.post("/mpub", params={"topic": TOPIC}, content=body)).raise_for_status()


async def has(http: httpx.AsyncClient, *, in_flight: int) -> bool:
    """Whether so many messages are in flight, and no others are there."""
    return await counts(http) == (0, in_flight, 0)


async def numbers(spark: SparkProgram, folder: Path) -> list[int]:
    """Return what is in the archive."""
    return sorted(int(body) for _, _, body in await spark.run(archived, str(folder)))


async def test_a_query_that_stops_gives_back_what_it_holds(
    broker: MortalBroker, http: httpx.AsyncClient, spark: SparkProgram, tmp_path: Path
) -> None:
    """In the middle of a batch, and at once; the next run archives all of it, once."""
    options = options_for(broker, tmp_path, "commit", LONG_MS)
    (tmp_path / HOLD).touch()
    await publish(http)
    await spark.run(keep_reading, str(tmp_path), options)
    await until((tmp_path / "checkpoint" / "offsets" / "0").exists)
    await until(lambda: has(http, in_flight=COUNT))
    await spark.run(end_reading, str(tmp_path))
    given_back = await become(lambda: counts(http), (COUNT, 0, 0))
    (tmp_path / HOLD).unlink()
    await spark.run(read_to_the_end, str(tmp_path), options)

    assert (COUNT, 0, 0) == given_back
    assert list(range(COUNT)) == await numbers(spark, tmp_path)


async def test_a_batch_longer_than_the_timeout_comes_once(
    broker: MortalBroker, http: httpx.AsyncClient, spark: SparkProgram, tmp_path: Path
) -> None:
    """Its messages are touched meanwhile, so nobody is given them again."""
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
async def test_a_job_whose_processes_are_all_told_to_end_leaves_nothing_behind(
    ack_mode: str,
    broker: MortalBroker,
    http: httpx.AsyncClient,
    spark: SparkProgram,
    tmp_path: Path,
) -> None:
    """SIGTERM for its JVM too: nsqd has everything back at once, and the next run archives it."""
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
