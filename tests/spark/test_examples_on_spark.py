"""The Spark programs of examples/, unchanged, on the embedded broker."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from tests.support.brokers.killable_broker import KillableBroker, killable_broker
from tests.support.project import ROOT
from tests.support.spark.examples import connect_server, run_example

pytestmark = pytest.mark.java

DELTA = ROOT / ".venv-delta" / "bin" / "python"
"""Python of an environment with the Spark version that Delta supports."""
SALES = [f'{{"item": "{item}", "count": {n}}}' for item in ("book", "pen") for n in (1, 2, 3)]
"""Six orders, with six pieces of each item."""


@pytest.fixture
async def broker() -> AsyncIterator[KillableBroker]:
    async with killable_broker("embedded") as running:
        yield running


async def publish(broker: KillableBroker, bodies: list[str], channel: str | None = None) -> None:
    """Publish to the topic sales, after creating *channel* there."""
    async with httpx.AsyncClient(base_url=f"http://{broker.http_address}", trust_env=False) as http:
        if channel is not None:
            for path in ("/topic/create", "/channel/create"):
                params = {"topic": "sales", "channel": channel}
                (await http.post(path, params=params)).raise_for_status()
        answer = await http.post("/mpub", params={"topic": "sales"}, content="\n".join(bodies))
        answer.raise_for_status()


async def counts_of(broker: KillableBroker) -> dict[str, int]:
    """Return the number of messages that each topic has received."""
    async with httpx.AsyncClient(trust_env=False) as http:
        url = f"http://{broker.http_address}/stats"
        topics = (await http.get(url, params={"format": "json"})).json()["topics"]
    return {topic["topic_name"]: topic["message_count"] for topic in topics}


async def test_the_notebook_counts_orders_and_publishes_the_totals(
    broker: KillableBroker, tmp_path: Path
) -> None:
    """Six orders of two items become two rows, and so two messages."""
    await publish(broker, SALES)
    said = await run_example("notebook.py", tmp_path, {"NSQD_TCP_ADDRESS": broker.tcp_address})

    assert {"sales": 6, "totals": 2} == await counts_of(broker)
    assert "|book|    3|     6|" in said
    assert "| pen|    3|     6|" in said


async def test_a_client_of_spark_connect_reads_and_publishes(
    broker: KillableBroker, tmp_path: Path
) -> None:
    """The stream, its sockets and the sink run in the server; the client is pure Python."""
    await publish(broker, SALES)
    async with connect_server(tmp_path) as remote:
        environment = {"NSQD_TCP_ADDRESS": broker.tcp_address, "SPARK_REMOTE": remote}
        said = await run_example("spark_connect.py", tmp_path, environment)

    assert {"sales": 6, "totals": 2} == await counts_of(broker)
    assert "|book|     6|" in said
    assert "| pen|     6|" in said


@pytest.mark.skipif(not DELTA.exists(), reason="`make .venv-delta` installs Spark 4.2 with Delta")
async def test_a_delta_table_is_written_and_published(
    broker: KillableBroker, tmp_path: Path
) -> None:
    """Each message becomes a row of the table, and each row a message of another topic."""
    await publish(broker, SALES)
    environment = {"NSQD_TCP_ADDRESS": broker.tcp_address}
    said = await run_example("spark_delta.py", tmp_path, environment, python=str(DELTA))

    assert "|       6|" in said
    assert {"sales": 6, "sales.copy": 6} == await counts_of(broker)


async def test_drivers_on_one_channel_share_its_messages(
    broker: KillableBroker, tmp_path: Path
) -> None:
    """Each has its own checkpoint and folder; together they have each message once."""
    environment = {"NSQD_TCP_ADDRESS": broker.tcp_address}
    for name in ("one", "two"):  # one after the other; test_cluster.py has two at work at once
        await publish(broker, SALES, "drivers")
        said = await run_example("spark_drivers.py", tmp_path, environment, name)

    assert {"one": "6", "two": "6"} == dict(re.findall(r"\|driver=(\w+)\| +(\d+)\|", said))


async def test_the_notebook_for_databricks_runs_on_spark(
    broker: KillableBroker, tmp_path: Path
) -> None:
    """The notebook registers the format, which Spark knows already, and writes a catalog table."""
    await publish(broker, SALES)
    said = await run_example(
        "spark_databricks.py", tmp_path, {"NSQD_TCP_ADDRESS": broker.tcp_address}
    )

    assert "|       6|" in said
