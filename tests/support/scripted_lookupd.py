"""
An nsqlookupd on a real socket that answers what a test tells it: nsqds, errors, nonsense, nothing.

By itself it knows nothing: /lookup is 404, /nodes is empty. `ScriptedLookupd.rule` says otherwise.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

_WAIT_S = 10.0

NOT_FOUND = b'{"message":"TOPIC_NOT_FOUND"}'


class Question:
    """One request that has come, and the connection on which it can be answered."""

    def __init__(self, head: bytes, writer: asyncio.StreamWriter) -> None:
        first, *lines = head.decode("latin-1").split("\r\n")
        self.target = first.split()[1]
        fields = (line.partition(":") for line in lines if line)
        self.headers = {name.lower(): value.strip() for name, _, value in fields}
        self.writer = writer
        self.gone = asyncio.Event()
        """Set when the client has closed the connection."""


Rule: TypeAlias = Callable[[Question], Coroutine[Any, Any, None]]


class ScriptedLookupd:
    """Answers each question by `rule`."""

    def __init__(self) -> None:
        self.rule: Rule = _knows_nothing
        self.questions: list[Question] = []
        """Every one, in order."""
        self._new: asyncio.Queue[Question] = asyncio.Queue()
        self._open: dict[asyncio.StreamWriter, asyncio.Event] = {}
        """Connections, and what is set when each has ended."""

    async def start(self, port: int = 0) -> None:
        """Listen on 127.0.0.1."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        self.port: int = self._server.sockets[0].getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"

    async def stop(self) -> None:
        """Listen no more, and close what is open."""
        self._server.close()
        for writer, has_ended in list(self._open.items()):
            writer.transport.abort()
            await has_ended.wait()
        await self._server.wait_closed()

    def knows(self, *addresses: str) -> None:
        """Answer every question with nsqds at *addresses* (host:port)."""
        self.rule = answering(200, json.dumps(document(*addresses)).encode())

    async def question(self) -> Question:
        """Return the next question that has not been asked for."""
        async with asyncio.timeout(_WAIT_S):
            return await self._new.get()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        has_ended = self._open[writer] = asyncio.Event()
        try:
            question = Question(await reader.readuntil(b"\r\n\r\n"), writer)
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


async def _until_gone(reader: asyncio.StreamReader, question: Question) -> None:
    try:
        await reader.read()
    except ConnectionError:
        pass
    finally:
        question.gone.set()


@asynccontextmanager
async def scripted_lookupd(*addresses: str) -> AsyncIterator[ScriptedLookupd]:
    """Run one that knows nsqds at *addresses*; without them, nothing."""
    lookupd = ScriptedLookupd()
    if addresses:
        lookupd.knows(*addresses)
    await lookupd.start()
    try:
        yield lookupd
    finally:
        await lookupd.stop()


def document(*addresses: str) -> dict[str, Any]:
    """Return what nsqlookupd answers when nsqds at *addresses* (host:port) have the topic."""
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


def answering(status: int, body: bytes, *fields: str) -> Rule:
    """Answer with *status* and *body*, and further header *fields* (``Location: /``)."""

    async def rule(question: Question) -> None:
        lines = [f"HTTP/1.1 {status} Said", f"Content-Length: {len(body)}", *fields, "", ""]
        question.writer.write("\r\n".join(lines).encode() + body)
        await question.writer.drain()

    return rule


def saying(data: bytes) -> Rule:
    """Write *data*, whatever it is, and close."""

    async def rule(question: Question) -> None:
        question.writer.write(data)
        await question.writer.drain()

    return rule


async def endless(question: Question) -> None:
    """Begin an answer that never ends."""
    question.writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
    while not question.gone.is_set():
        question.writer.write(b" " * 65_536)
        await question.writer.drain()


async def silent(question: Question) -> None:
    """Answer nothing as long as the client waits; the test may write to it."""
    await question.gone.wait()


async def _knows_nothing(question: Question) -> None:
    if question.target.startswith("/nodes"):
        await answering(200, b'{"producers":[]}')(question)
    else:
        await answering(404, NOT_FOUND)(question)
