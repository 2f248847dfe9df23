"""
openapi.yaml holds for a running gateway, with either broker, for random requests.

Schemathesis makes requests from the contract: its examples, the edges of every parameter, and
random ones, well-formed and not. Always the same ones, so that a failure is there again. Each
answer has to be a documented one: status, type, headers, shape; none may be of the gateway's or a
broker's failing, and a method that is not there is 405 with ``Allow``.

It is run as the program that it is: its plugin for pytest would run it in this process, where
nothing would read meanwhile what the gateway and nsqd log.
"""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.support.brokers.nsqd import real_nsqd
from tests.support.gateways.gateway import RunningGateway, gateway_alone, gateway_with_nsqd
from tests.support.project import ROOT

CONTRACT = ROOT / "openapi.yaml"

_PAGE = "https://example.org"
_KEPT = {"topic": "kept", "channel": "kept"}
# From a page that nobody knows everything would be 403, and for a name that is made up 404.
_CONFIG = f"""
[parameters]
"header.Origin" = "{_PAGE}"

[[operations]]
include-path-regex = "^/(topic|channel)/(empty|pause|unpause)$"
parameters = {{ "query.topic" = "{_KEPT["topic"]}", "query.channel" = "{_KEPT["channel"]}" }}

# An event stream does not end: `test_event_stream` looks at it.
[[operations]]
include-path = "/sub"
headers = {{ Accept = "application/problem+json" }}

[[operations]]
include-path = "/pull"
parameters = {{ "query.wait_ms" = 0 }}
"""
_CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "unsupported_method",
    "allow_header_conformance",
    # Not `negative_data_rejection`: nsqd takes what it does not know for true, for text or for
    # nothing at all, and an X-Request-Id of another form is replaced. Not
    # `positive_data_acceptance`: whether a topic is there, and whether a body holds what `binary`
    # says, no schema tells.
)
_EXAMPLES = 10
_TIMEOUT_S = 300.0


@asynccontextmanager
async def running(kind: str) -> AsyncIterator[RunningGateway]:
    """Run a gateway of its own: here topics are deleted that others may have."""
    allow = f"--allow-origin={_PAGE}"
    if kind == "embedded":
        async with gateway_alone(allow) as gateway:
            yield gateway
        return
    async with (
        real_nsqd() as nsqd,
        gateway_with_nsqd([nsqd.tcp_address], [nsqd.http_address], allow) as gateway,
    ):
        yield gateway


async def schemathesis(url: str, folder: Path) -> tuple[int | None, str]:
    """Run the contract against *url*; return the exit status and the report."""
    (folder / "schemathesis.toml").write_text(_CONFIG)
    process = await asyncio.create_subprocess_exec(
        Path(sys.executable).with_name("schemathesis"),
        "run",
        CONTRACT,
        f"--url={url}",
        f"--checks={','.join(_CHECKS)}",
        f"--max-examples={_EXAMPLES}",
        "--phases=examples,coverage,fuzzing",
        "--generation-deterministic",
        "--no-color",
        cwd=folder,
        env={**os.environ, "NO_PROXY": "127.0.0.1"},
        stdout=PIPE,
        stderr=STDOUT,
    )
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            report, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return process.returncode, report.decode()


async def test_every_response_is_in_the_contract(kind: str, tmp_path: Path) -> None:
    """Schemathesis finds no answer that the contract does not promise."""
    async with running(kind) as gateway:
        (await gateway.http.post("/channel/create", params=_KEPT)).raise_for_status()

        status, report = await schemathesis(gateway.url, tmp_path)

    assert 0 == status, report
