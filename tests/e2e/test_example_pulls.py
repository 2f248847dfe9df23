"""The examples that pull: a script with curl and jq, a PHP script, and a cloud function."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from asyncio.subprocess import PIPE, STDOUT

import pytest

from tests.support.gateways.gateway import RunningGateway
from tests.support.project import ROOT

pytestmark = pytest.mark.asyncio(loop_scope="session")

EXAMPLES = ROOT / "examples"


async def run(*command: str, **environment: str) -> tuple[int | None, str]:
    process = await asyncio.create_subprocess_exec(
        *command, stdout=PIPE, stderr=STDOUT, env={**os.environ, "NO_PROXY": "*", **environment}
    )
    output, _ = await process.communicate()
    return process.returncode, output.decode()


async def filled(gateway: RunningGateway, topic: str, *bodies: bytes) -> None:
    names = {"topic": topic, "channel": "c"}
    (await gateway.http.post("/channel/create", params=names)).raise_for_status()
    for body in bodies:
        await gateway.publish(topic, body)


@pytest.mark.skipif(not (shutil.which("curl") and shutil.which("jq")), reason="needs curl and jq")
async def test_curl_runs_a_command_for_each_message(gateway: RunningGateway, topic: str) -> None:
    """What fails is delivered again; the script ends when nothing is left."""
    await filled(gateway, topic, b"one", b'{"two": "2"}', "größe".encode())
    script = str(EXAMPLES / "pull.sh")
    shell = asyncio.create_task(run("sh", script, gateway.url, topic, "c", "sh", "-c", "cat; echo"))
    assert (0, 0, 0) == await gateway.counts_become(topic, "c", (0, 0, 0))
    # Nothing else comes: it ends after its wait of 20 s.
    status, output = await shell

    assert (0, ["one", '{"two": "2"}', "größe"]) == (status, output.splitlines())


@pytest.mark.skipif(not shutil.which("php"), reason="needs php")
async def test_a_php_script_works_on_batches(gateway: RunningGateway, topic: str) -> None:
    """A message that fails is delivered again, until it is finished; then nothing is left."""
    await filled(gateway, topic, *(json.dumps({"order": each}).encode() for each in range(60)))
    await gateway.publish(topic, b"no JSON")
    script = str(EXAMPLES / "pull_worker.php")
    worker = asyncio.create_task(run("php", script, gateway.url, topic, "c"))
    assert (0, 0, 1) == await gateway.counts_become(topic, "c", (0, 0, 1))
    (
        await gateway.http.post("/channel/empty", params={"topic": topic, "channel": "c"})
    ).raise_for_status()
    # Nothing else comes: it ends after its wait of 20 s.
    status, output = await worker

    assert 0 == status, output
    assert {f"order {each}" for each in range(60)} <= set(output.splitlines())
    assert "attempt 1: Syntax error" in output


@pytest.mark.skipif(not shutil.which("php"), reason="needs php")
async def test_a_php_script_tells_what_the_gateway_says(gateway: RunningGateway) -> None:
    status, output = await run("php", str(EXAMPLES / "pull_worker.php"), gateway.url, "a b", "c")

    assert 255 == status
    assert "topic" in output


async def test_a_function_works_on_what_waits(gateway: RunningGateway, topic: str) -> None:
    """A message that fails is requeued with a delay."""
    await filled(gateway, topic, *(json.dumps({"order": each}).encode() for each in range(60)))
    await gateway.publish(topic, b"no JSON")
    script = str(EXAMPLES / "pull_function.py")
    where = {"GATEWAY_URL": gateway.url, "TOPIC": topic, "CHANNEL": "c"}
    status, output = await run(sys.executable, script, **where)

    assert 0 == status, output
    assert "{'finished': 60, 'failed': 1}" == output.splitlines()[-1]
    assert (0, 0, 1) == await gateway.counts_become(topic, "c", (0, 0, 1))
