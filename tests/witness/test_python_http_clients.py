"""The HTTP clients of gnsq and ansq work with the gateway as with nsqd's port 4151."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE

import pytest

from tests.support.brokers.nsqd import real_nsqd
from tests.support.gateways.gateway import gateway_with_nsqd
from tests.support.project import ROOT

_PROGRAM_TIMEOUT_S = 120.0


async def outcomes(program: str, address: str) -> list[list[str]]:
    """Return what *program* of tests/support/ made of its calls to *address*."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        f"tests.support.http.{program}",
        address,
        cwd=ROOT,
        # A proxy in the environment is not meant for loopback.
        env={name: value for name, value in os.environ.items() if "proxy" not in name.lower()},
        stdin=DEVNULL,
        stdout=PIPE,
        stderr=PIPE,
    )
    try:
        async with asyncio.timeout(_PROGRAM_TIMEOUT_S):
            said, complaint = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        raise
    assert 0 == process.returncode, complaint.decode()
    made: list[list[str]] = json.loads(said)
    return made


@pytest.mark.nsqd
@pytest.mark.parametrize("program", ["gnsq_calls", "ansq_calls"])
async def test_a_client_cannot_tell_the_gateway_from_nsqd(program: str) -> None:
    """Every call that the client has returns or raises the same."""
    async with (
        real_nsqd() as nsqd,
        real_nsqd() as behind,
        gateway_with_nsqd([behind.tcp_address], [behind.http_address]) as gateway,
    ):
        expected, actual = await asyncio.gather(
            outcomes(program, nsqd.http_address), outcomes(program, gateway.address)
        )

    assert ["ping", "'OK'"] == [text.replace("b'", "'") for text in expected[0]]
    assert expected == actual
