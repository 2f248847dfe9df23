"""
An nsqlookupd on a real socket that gives scripted responses: nsqds, errors, garbage, nothing.

By default, /lookup responds 404, and /nodes is empty. `ScriptedLookupd.rule` sets other responses.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

_WAIT_S = 60.0

NOT_FOUND = b'{"message":"TOPIC_NOT_FOUND"}'


class LookupRequest:
    """One request, and the connection on which to answer it."""

    def __init__(self, head: bytes, writer: asyncio.StreamWriter) -> None:
        first, *lines = head.decode("latin-1").split("\r\n")
        self.target = first.split()[1]
        fields = (line.partition(":") for line in lines if line)
        self.headers = {name.lower(): value.strip() for name, _, value in fields}
        self.writer = writer
        self.gone = asyncio.Event()
        """Set when the client has closed the connection."""


Rule: TypeAlias = Callable[[LookupRequest], Coroutine[Any, Any, None]]


class ScriptedLookupd:
    """Answer each request by `rule`."""

    def __init__(self) -> None:
        self.rule: Rule = _knows_nothing
        self.questions: list[LookupRequest] = []
        """All requests, in order."""
        self._new: asyncio.Queue[LookupRequest] = asyncio.Queue()
        self._open: dict[asyncio.StreamWriter, asyncio.Event] = {}
        """Open connections, each with an event that is set at its end."""

    async def start(self, port: int = 0) -> None:
        """Listen on 127.0.0.1."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        self.port: int = self._server.sockets[0].getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"

    async def stop(self) -> None:
        """Stop listening, and close all connections."""
        self._server.close()
        for writer, has_ended in list(self._open.items()):
            writer.transport.abort()
            await has_ended.wait()
        await self._server.wait_closed()

    def knows(self, *addresses: str) -> None:
        """Answer every question with nsqds at *addresses* (host:port)."""
        self.rule = respond(200, json.dumps(document(*addresses)).encode())

    async def question(self) -> LookupRequest:
        """Return the next request that was not returned before."""
        async with asyncio.timeout(_WAIT_S):
            return await self._new.get()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        has_ended = self._open[writer] = asyncio.Event()
        try:
            question = LookupRequest(await reader.readuntil(b"\r\n\r\n"), writer)
            self.questions.append(question)
            self._new.put_nowait(question)
            async with asyncio.TaskGroup() as group:
                group.create_task(_until_gone(reader, question))
                await self.rule(question)
                writer.close()
        except (ConnectionError, asyncio.IncompleteReadError, ExceptionGroup):
            pass  # The client does not wait for the end.
        finally:
            writer.transport.abort()
            del self._open[writer]
            has_ended.set()


async def _until_gone(reader: asyncio.StreamReader, question: LookupRequest) -> None:
    try:
        await reader.read()
    except ConnectionError:
        pass
    finally:
        question.gone.set()


@asynccontextmanager
async def scripted_lookupd(*addresses: str) -> AsyncIterator[ScriptedLookupd]:
    """Run an nsqlookupd that lists nsqds at *addresses*; without any, no nsqd."""
    lookupd = ScriptedLookupd()
    if addresses:
        lookupd.knows(*addresses)
    await lookupd.start()
    try:
        yield lookupd
    finally:
        await lookupd.stop()


def document(*addresses: str) -> dict[str, Any]:
    """Return nsqlookupd's response when nsqds at *addresses* (host:port) have the topic."""
    return {"channels": [], "producers": [_producer(address) for address in addresses]}


def _producer(address: str) -> dict[str, Any]:
    host, _, port = address.rpartition(":")
    return {
        "remote_address": f"{host}:50000",
        "hostname": "host",
        "broadcast_address": host.strip("[]"),
        "tcp_port": int(port),
        "http_port": int(port) + 1,
        "version": "1.3.0",
    }


# Rules


def respond(status: int, body: bytes, *fields: str) -> Rule:
    """Return a rule that answers with *status*, *body* and header *fields* (``Location: /``)."""

    async def rule(question: LookupRequest) -> None:
        lines = [f"HTTP/1.1 {status} Said", f"Content-Length: {len(body)}", *fields, "", ""]
        question.writer.write("\r\n".join(lines).encode() + body)
        await question.writer.drain()

    return rule


def send_raw(data: bytes) -> Rule:
    """Return a rule that writes *data* and closes."""

    async def rule(question: LookupRequest) -> None:
        question.writer.write(data)
        await question.writer.drain()

    return rule


async def endless(question: LookupRequest) -> None:
    """Send a response that never ends."""
    question.writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
    while not question.gone.is_set():
        question.writer.write(b" " * 65_536)
        await question.writer.drain()


async def silent(question: LookupRequest) -> None:
    """Send nothing while the client waits; the test may write to it."""
    await question.gone.wait()


async def _knows_nothing(question: LookupRequest) -> None:
    if question.target.startswith("/nodes"):
        await respond(200, b'{"producers":[]}')(question)
    else:
        await respond(404, NOT_FOUND)(question)
