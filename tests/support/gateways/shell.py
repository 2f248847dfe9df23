"""`nsq-gateway pub` and `sub` as a shell runs them: processes with pipes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from base64 import b64decode
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeAlias

import httpx

Settings: TypeAlias = Mapping[str, str]
"""Environment variables."""

WAIT_S = 60.0

_COMMAND = Path(sys.executable).with_name("nsq-gateway")
_SETTINGS = "NSQ_GATEWAY_"


class Shell:
    """A running command; every wait has a limit."""

    def __init__(self, process: Process) -> None:
        self.process = process

    async def write(self, data: bytes) -> None:
        """Write to the command's standard input."""
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        await self.process.stdin.drain()

    async def line(self) -> bytes:
        """Return the next line of the command's standard output."""
        assert self.process.stdout is not None
        async with asyncio.timeout(WAIT_S):
            return await self.process.stdout.readline()

    def close_output(self) -> None:
        """Read its standard output no more, as `head` does when it has enough."""
        # asyncio has no public way to close the reading end alone.
        transport = self.process._transport.get_pipe_transport(1)  # type: ignore[attr-defined]
        transport.close()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the command."""
        self.process.send_signal(number)

    async def end(self, data: bytes = b"") -> tuple[int, bytes, str]:
        """Write *data*, end the input; return status, rest of the output, standard error."""
        async with asyncio.timeout(WAIT_S):
            output, errors = await self.process.communicate(data)
        assert self.process.returncode is not None
        return self.process.returncode, output or b"", (errors or b"").decode()


@asynccontextmanager
async def shell(
    *arguments: str,
    stdin: int = PIPE,
    stdout: int = PIPE,
    stderr: int = PIPE,
    settings: Settings | None = None,
) -> AsyncIterator[Shell]:
    """
    Run ``nsq-gateway`` with *arguments*, and *settings* in its environment; stop it at the end.

    *stdin*, *stdout* and *stderr* are file descriptors, where a test has its own.
    """
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(_SETTINGS)
    }
    process = await asyncio.create_subprocess_exec(
        _COMMAND,
        *arguments,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        env=environment
        | {_SETTINGS + name.upper(): text for name, text in (settings or {}).items()},
    )
    try:
        yield Shell(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


async def run(
    *arguments: str, given: bytes = b"", settings: Settings | None = None
) -> tuple[int, bytes, str]:
    """Run ``nsq-gateway`` to its end; return status, standard output and standard error."""
    async with shell(*arguments, settings=settings) as command:
        return await command.end(given)


async def bodies_of(tcp_address: str, topic: str, count: int) -> list[bytes]:
    """Return the bodies of *count* messages of channel "c", and finish them."""
    arguments = ("sub", topic, "c", "--json", "-n", str(count))
    status, output, errors = await run(*arguments, settings={"nsqd_tcp_address": tcp_address})
    assert (0, "") == (status, errors)
    messages = [json.loads(line) for line in output.splitlines()]
    return [
        message["body"].encode() if "body" in message else b64decode(message["body_base64"])
        for message in messages
    ]


class TopicStats:
    """nsqd's counts of a topic; see `topic_stats`."""

    def __init__(self, http: httpx.AsyncClient, topic: str) -> None:
        self._http = http
        self.topic = topic

    async def post(self, path: str, body: bytes = b"", **query: str) -> None:
        """Send a POST request about the topic; check that the response is OK."""
        query["topic"] = self.topic
        (await self._http.post(path, params=query, content=body)).raise_for_status()

    async def publish(self, *bodies: bytes) -> None:
        """Publish *bodies* in one request; they must not contain newlines."""
        await self.post("/mpub", b"\n".join(bodies))

    async def message_count(self) -> int:
        """Return how many messages the topic has been sent."""
        query = {"format": "json", "topic": self.topic}
        topics = (await self._http.get("/stats", params=query)).raise_for_status().json()["topics"]
        return sum(topic["message_count"] for topic in topics or [])

    async def counts(self) -> dict[str, int]:
        """Return depth, in flight, deferred and requeued of the channel "c"."""
        query = {"format": "json", "topic": self.topic, "channel": "c"}
        topics = (await self._http.get("/stats", params=query)).raise_for_status().json()["topics"]
        return {
            name: sum(channel[name] for topic in topics for channel in topic["channels"])
            for name in ("depth", "in_flight_count", "deferred_count", "requeue_count")
        }


@asynccontextmanager
async def topic_stats(http_address: str, topic: str) -> AsyncIterator[TopicStats]:
    """Return the counts of *topic* at *http_address*; create its channel "c" first."""
    url = f"http://{http_address}"
    async with httpx.AsyncClient(base_url=url, timeout=WAIT_S, trust_env=False) as http:
        account = TopicStats(http, topic)
        await account.post("/topic/create")
        await account.post("/channel/create", channel="c")
        yield account
