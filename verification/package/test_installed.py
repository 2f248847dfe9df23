"""The installed wheel, used as a user would: the command, its pages, and the client."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from gateway import __version__
from tests.support.brokers.nsqd import DaemonLog
from verification.package.conftest import ROOT, run

STATIC = ROOT / "gateway" / "web" / "site" / "static"
ON_FREE_PORTS = (
    "--listen=127.0.0.1:0",
    "--management-listen=127.0.0.1:0",
    "--broker-tcp-address=127.0.0.1:0",
    "--broker-http-address=127.0.0.1:0",
)
_TIMEOUT_S = 60.0
SERVED = {
    "/asyncapi.yaml": ROOT / "asyncapi.yaml",
    "/console": STATIC / "console" / "index.html",
    "/console/console.js": STATIC / "console" / "console.js",
    "/docs": STATIC / "docs.html",
    "/nsq.d.ts": STATIC / "nsq.d.ts",
    "/nsq.js": STATIC / "nsq.js",
    "/openapi.json": STATIC / "openapi.json",
    "/openapi.yaml": ROOT / "openapi.yaml",
}
PUBLISH_AND_CONSUME = """
import asyncio, sys
from gateway.client import Consumer, Producer

async def main():
    async with Producer([sys.argv[1]]) as producer:
        await producer.publish("orders", b"one")
    async with Consumer("orders", "billing", [sys.argv[1]]) as consumer:
        async for delivery in consumer:
            delivery.finish()
            print(delivery.body.decode())
            return

asyncio.run(main())
"""


@asynccontextmanager
async def serving(installed: Path) -> AsyncIterator[tuple[DaemonLog, asyncio.subprocess.Process]]:
    """Run the installed `nsq-gateway serve` on free ports, away from the checkout."""
    process = await asyncio.create_subprocess_exec(
        installed / "bin" / "nsq-gateway",
        "serve",
        *ON_FREE_PORTS,
        cwd=installed,
        env={"PATH": os.environ["PATH"]},
        stdout=PIPE,
        stderr=STDOUT,
    )
    assert process.stdout is not None
    log = DaemonLog(process.stdout)
    try:
        yield log, process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await log.end()


def test_the_command_tells_its_version(installed: Path) -> None:
    assert f"nsq-gateway, version {__version__}\n" == run(
        installed / "bin" / "nsq-gateway", "--version", cwd=installed
    )


def test_the_package_comes_from_the_wheel(installed: Path) -> None:
    program = "import gateway; print(gateway.__file__)"

    assert run(installed / "bin" / "python", "-c", program, cwd=installed).startswith(
        str(installed)
    )


def test_the_environment_has_no_broken_requirement(installed: Path) -> None:
    run(installed / "bin" / "python", "-m", "pip", "check", cwd=installed)


async def test_the_installed_gateway_serves_its_pages_and_ends_with_status_0(
    installed: Path,
) -> None:
    async with serving(installed) as (log, process), httpx.AsyncClient() as http:
        url = (await log.match(r"(http://127\.0\.0\.1:\d+)"))[1]
        ping = await http.get(f"{url}/ping")
        pages = {path: (await http.get(f"{url}{path}")).content for path in SERVED}
        published = await http.post(f"{url}/pub?topic=orders", content=b"one")
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(_TIMEOUT_S):
            status = await process.wait()

    assert (b"OK", b"OK", 0) == (ping.content, published.content, status)
    assert {} == {
        path: page[:80] for path, page in pages.items() if SERVED[path].read_bytes() != page
    }


async def test_the_installed_client_publishes_and_consumes(installed: Path) -> None:
    async with serving(installed) as (log, _):
        address = (await log.match(r"TCP (127\.0\.0\.1:\d+)"))[1]
        program = (installed / "bin" / "python", "-c", PUBLISH_AND_CONSUME, address)

        assert "one\n" == await asyncio.to_thread(run, *program, cwd=installed)


@pytest.mark.parametrize(
    "module", ["fastapi", "starlette", "uvicorn", "pydantic", "pydantic_settings"]
)
def test_a_program_with_the_client_loads_no_package_of_the_server(
    installed: Path, module: str
) -> None:
    program = "import gateway.client, json, sys; print(json.dumps(sorted(sys.modules)))"
    loaded = json.loads(run(installed / "bin" / "python", "-c", program, cwd=installed))

    assert "gateway.client.consumer" in loaded
    assert module not in loaded
