"""The notebook of examples/, as it stands, on the embedded broker."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE, STDOUT
from pathlib import Path

import httpx
import pytest

from tests.support.mortal_broker import mortal_broker
from tests.support.spark_classes import java_options
from tests.support.spark_program import program_environment

pytestmark = pytest.mark.java

NOTEBOOK = Path(__file__).parents[2] / "examples" / "notebook.py"
_WAIT_S = 180.0


async def test_the_notebook_counts_orders_and_publishes_the_totals(tmp_path: Path) -> None:
    """Six orders of two items become two rows, which are two messages."""
    orders = [f'{{"item": "{item}", "count": {n}}}' for item in ("book", "pen") for n in (1, 2, 3)]
    async with (
        mortal_broker("embedded") as broker,
        httpx.AsyncClient(base_url=f"http://{broker.http_address}", trust_env=False) as http,
    ):
        params = {"topic": "sales"}
        (await http.post("/mpub", params=params, content="\n".join(orders))).raise_for_status()
        said = await _run(tmp_path, broker.tcp_address)
        stats = (await http.get("/stats", params={"format": "json"})).json()

    counts = {topic["topic_name"]: topic["message_count"] for topic in stats["topics"]}
    assert {"sales": 6, "totals": 2} == counts
    assert "|book|    3|     6|" in said
    assert "| pen|    3|     6|" in said


async def _run(folder: Path, tcp_address: str) -> str:
    """Return what the notebook shows."""
    environment = program_environment(folder) | {"JDK_JAVA_OPTIONS": java_options()}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(NOTEBOOK),
        stdout=PIPE,
        stderr=STDOUT,
        cwd=folder,
        env=environment | {"NSQD_TCP_ADDRESS": tcp_address, "FOLDER": str(folder)},
    )
    try:
        async with asyncio.timeout(_WAIT_S):
            output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert 0 == process.returncode, output.decode()
    return output.decode()
