"""
NSQ's own programs, and programs on clients of other people, as subprocesses.

The programs on clients are alike; ``clients/program.py`` says what they do.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import httpx

from tests.support.brokers.killable_broker import EMBEDDED_LISTENS
from tests.support.brokers.nsqd import running
from tests.support.gateways.programs import nsq_gateway
from tests.support.project import ROOT

_BUILT_BY_MAKE = ROOT / "tools" / "bin"
_NSQJS = _BUILT_BY_MAKE / "nsqjs" / "client.mjs"
_APPS = ("nsqadmin", "nsq_stat", "nsq_tail", "nsq_to_file", "nsq_to_nsq", "to_nsq")
_WAIT_S = 60.0


@dataclass(frozen=True, kw_only=True)
class BrokerAddresses:
    """Where a broker that is a process listens."""

    tcp_address: str
    http_address: str


@asynccontextmanager
async def broker_program(*flags: str) -> AsyncIterator[BrokerAddresses]:
    """Run ``nsq-gateway broker`` with *flags* on free ports, and stop it at the end."""
    ports = ("--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0")
    async with nsq_gateway("broker", *ports, *flags) as program:
        listens = await program.said(EMBEDDED_LISTENS)
        yield BrokerAddresses(tcp_address=listens[1], http_address=listens[2])


def app(name: str) -> Path:
    """Return the path of a program of NSQ."""
    return _BUILT_BY_MAKE / name


def nsq_apps() -> Path | None:
    """Return a program of NSQ, or None unless all are built."""
    return app("nsqadmin") if all(app(name).exists() for name in _APPS) else None


def nsq_clients() -> Path | None:
    """Return the program on go-nsq, or None unless all clients are there."""
    go_nsq = app("go-nsq-client")
    has_node = _NSQJS.exists() and shutil.which("node") is not None
    return go_nsq if go_nsq.exists() and has_node and find_spec("nsq") else None


def client_command(client: str) -> list[str]:
    """Return how to start the program on *client*."""
    if client == "go-nsq":
        return [str(app("go-nsq-client"))]
    if client == "nsqjs":
        return ["node", str(_NSQJS)]
    return [sys.executable, "-m", f"tests.support.brokers.clients.on_{client}"]


class ClientProgram:
    """A running program on a client, and the deliveries that it prints."""

    def __init__(self, process: Process) -> None:
        self._process = process

    async def deliveries(self, count: int) -> list[tuple[str, int]]:
        """Return body and attempts of the next *count* deliveries."""
        return [await self._delivery() for _ in range(count)]

    async def _delivery(self) -> tuple[str, int]:
        assert self._process.stdout is not None
        async with asyncio.timeout(_WAIT_S):
            line = await self._process.stdout.readline()
        assert line, "the client ended; its own words are above"
        body, attempts = json.loads(line)
        return body, attempts


@asynccontextmanager
async def client_program(
    client: str, address: str, topic: str, options: Sequence[str] = ()
) -> AsyncIterator[ClientProgram]:
    """Run the program on *client*; it ends with the block."""
    command = (*client_command(client), *options, address, topic)
    process = await asyncio.create_subprocess_exec(
        *command, cwd=ROOT, env=_environment(), stdin=PIPE, stdout=PIPE
    )
    try:
        yield ClientProgram(process)
    finally:
        await _end(process)


async def run_app(name: str, *arguments: str, standard_input: bytes = b"") -> str:
    """Run a program of NSQ to its end; return what it printed."""
    process = await asyncio.create_subprocess_exec(
        app(name), *arguments, env=_environment(), stdin=PIPE, stdout=PIPE
    )
    async with asyncio.timeout(_WAIT_S):
        printed, _ = await process.communicate(standard_input)
    assert 0 == process.returncode
    return printed.decode()


@asynccontextmanager
async def running_app(name: str, *arguments: str) -> AsyncIterator[Process]:
    """Run a program of NSQ beside the block; at its end it has to stop on SIGTERM."""
    process = await asyncio.create_subprocess_exec(
        app(name), *arguments, env=_environment(), stdin=DEVNULL, stdout=DEVNULL
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
        async with asyncio.timeout(_WAIT_S):
            await process.wait()


def _environment() -> dict[str, str]:
    # A proxy in the environment is not meant for loopback.
    return {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}


async def _end(process: Process) -> None:
    """End a program by the end of its input; kill it if that takes too long."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        await asyncio.wait_for(process.communicate(), _WAIT_S)
    except TimeoutError:
        process.kill()
        await process.communicate()
        raise


@asynccontextmanager
async def nsqadmin(source: str) -> AsyncIterator[httpx.AsyncClient]:
    """Run nsqadmin in front of the nodes that the flag *source* names."""
    async with running(app("nsqadmin"), "nsqadmin", source, "--http-address=127.0.0.1:0") as (
        _,
        log,
    ):
        address = (await log.match(r"HTTP: listening on (\S+)$"))[1]
        async with httpx.AsyncClient(
            base_url=f"http://{address}", trust_env=False, timeout=_WAIT_S
        ) as http:
            yield http
