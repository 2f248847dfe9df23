"""The sinks `nsq` on a real Spark, which finds the format without registration."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from tests.support.brokers.nsqd import RealNsqd, real_nsqd
from tests.support.spark.program import SparkProgram
from tests.support.spark.sink_calls import messages_of
from tests.support.spark.sinks import (
    create_table_as,
    insert_into_table,
    insert_into_view,
    publish_batch,
    publish_stream,
    publish_updates,
    select,
)

pytestmark = [pytest.mark.nsqd, pytest.mark.java]

COUNT = 1_000


@pytest.fixture
async def nsqd() -> AsyncIterator[RealNsqd]:
    """Return a broker without any topic."""
    async with real_nsqd() as running:
        yield running


async def counts_of(nsqd: RealNsqd) -> dict[str, int]:
    """Return the number of messages that each topic has received."""
    async with httpx.AsyncClient(trust_env=False) as http:
        stats = await http.get(f"http://{nsqd.http_address}/stats", params={"format": "json"})
    return {topic["topic_name"]: topic["message_count"] for topic in stats.json()["topics"]}


async def test_a_batch_is_published_and_a_bad_row_fails_it(
    spark: SparkProgram, nsqd: RealNsqd
) -> None:
    """The error has its key. Other tasks have published; the failing one is tried four times."""
    at = nsqd.tcp_address
    told = [
        await spark.run(publish_batch, at, "good"),
        await spark.run(publish_batch, at, "bad", bad_id=777),
        await spark.run(publish_batch, at, "never", mode="overwrite"),
    ]
    counts = await counts_of(nsqd)

    assert "" == told[0]
    assert "row 777 cannot be published: null body" in told[1]
    assert "cannot be overwritten; use mode append" in told[2]
    assert COUNT == counts.pop("good")
    assert counts.pop("bad", 0) <= COUNT * 3 // 4
    assert {} == counts


async def test_a_stream_is_published_and_so_are_updates(
    spark: SparkProgram, nsqd: RealNsqd, tmp_path: Path
) -> None:
    """Updates are published after each batch; each message of the source arrives once."""
    at = nsqd.tcp_address
    numbers = [b"%d" % number for number in range(COUNT)]
    ids = tmp_path / "ids"
    ids.mkdir()
    (ids / "ids.json").write_text('{"id": 1}\n{"id": 2}\n')
    base_url = f"http://{nsqd.http_address}"
    async with httpx.AsyncClient(base_url=base_url, trust_env=False) as http:
        names = {"topic": "source", "channel": "spark"}
        for path in ("/topic/create", "/channel/create"):
            (await http.post(path, params=names)).raise_for_status()
        answer = await http.post("/mpub", params=names, content=b"\n".join(numbers))
        answer.raise_for_status()
    told = [
        await spark.run(publish_stream, at, str(tmp_path)),
        await spark.run(publish_updates, at, str(tmp_path)),
    ]

    assert ["", ""] == told
    assert numbers == sorted(await messages_of(at, "stream", COUNT), key=int)
    assert [b"2"] == await messages_of(at, "update", 1)
    assert {"source": COUNT, "stream": COUNT, "update": 1} == await counts_of(nsqd)


async def test_sql_publishes_where_spark_hands_on_the_options(
    spark: SparkProgram, nsqd: RealNsqd
) -> None:
    """With options of a view and of INSERT, but not of a table; SELECT is refused."""
    at = nsqd.tcp_address
    told = [
        await spark.run(insert_into_view, at),
        await spark.run(insert_into_table, at),
        await spark.run(create_table_as, at),
        await spark.run(select, "nsq_view"),
    ]

    assert ["", ""] == told[:2]
    assert "nsqdTcpAddress: the address of nsqd is required" in told[2]
    assert "use spark.readStream" in told[3]
    assert {"view": 5, "table": 5} == await counts_of(nsqd)
