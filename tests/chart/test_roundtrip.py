"""The pod of `helm test`: what its containers run, run against a real gateway."""

from __future__ import annotations

import asyncio
import os
import sys

import pytest

from tests.support.brokers.nsqd import real_nsqd
from tests.support.chart.render import Json, render, scenario
from tests.support.gateways.gateway import gateway_with_nsqd

_TIMEOUT_S = 180.0


async def ran(container: Json, url: str) -> bytes:
    """Return what a container of the pod prints, with *url* for that of its Service."""
    entry = container.get("command", ["python", "-m", "gateway"])
    words = [*entry, *container.get("args", [])]
    service = [word for word in words if word.startswith("--url=")]
    assert ["--url=http://t-nsq-gateway:80"] == service
    command = [f"--url={url}" if word in service else word for word in words]
    assert "python" == command[0]
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("NSQ_GATEWAY_")
    }
    program = await asyncio.create_subprocess_exec(
        sys.executable,
        *command[1:],
        env=environment,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        output, errors = await asyncio.wait_for(program.communicate(), _TIMEOUT_S)
    finally:
        if program.returncode is None:
            program.kill()
            await program.wait()
    assert 0 == program.returncode, errors.decode()
    return output


@pytest.mark.nsqd
async def test_a_message_goes_round() -> None:
    """It is published without any standard input, and comes back over a WebSocket."""
    pod = render(scenario("insecure")).one("Pod")["spec"]
    (publish,), (subscribe,) = pod["initContainers"], pod["containers"]

    async with (
        real_nsqd() as nsqd,
        gateway_with_nsqd([nsqd.tcp_address], [nsqd.http_address]) as gateway,
    ):
        await ran(publish, gateway.url)
        output = await ran(subscribe, gateway.url)

    assert b"helm test\n" == output
