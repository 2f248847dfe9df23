"""A gateway's /sub that says what a test tells it, and answers a plain GET as it is told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, TypeAlias

from websockets.asyncio.server import ServerConnection, serve
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol

from tests.support.subscriber_client import WAIT_S

Json: TypeAlias = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class HttpAnswer:
    """What a request gets that is no WebSocket's."""

    status: int
    body: object
    headers: Mapping[str, str] = field(default_factory=dict)


NOTHING_WRONG = HttpAnswer(status=426, body={"message": "UPGRADE_REQUIRED", "retryable": False})


def refused(status: int, word: str, *, retryable: bool, **headers: str) -> HttpAnswer:
    """Return a problem; an underscore in a header's name is a hyphen."""
    body = {"detail": f"{word} in so many words", "message": word, "retryable": retryable}
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return HttpAnswer(status=status, body=body, headers=named)


class Peer:
    """One socket, from the gateway's side."""

    def __init__(self, connection: ServerConnection) -> None:
        self._connection = connection
        self.path = connection.request.path if connection.request else ""

    async def say(self, *told: Json) -> None:
        """Send objects in one frame."""
        await self._connection.send("\n".join(json.dumps(each) for each in told))

    async def say_as_it_is(self, frame: str | bytes) -> None:
        """Send *frame*, whatever it is."""
        await self._connection.send(frame)

    async def subscribe(self, *, msg_timeout_ms: int = 60_000) -> None:
        """Answer SUB."""
        await self.say(response("SUB", {"msg_timeout_ms": msg_timeout_ms}))

    async def deliver(self, *ids: str, body: str = "x", deadline_ms: int = 60_000) -> None:
        """Deliver messages in one frame."""
        fixed = {"topic": "t", "channel": "c", "timestamp_ns": "1", "attempts": 1}
        told = {"type": "message", **fixed, "body": body, "deadline_ms": deadline_ms}
        await self.say(*({**told, "id": each} for each in ids))

    async def heard(self) -> list[Json]:
        """Return the objects of the next frame."""
        async with asyncio.timeout(WAIT_S):
            frame = await self._connection.recv()
        return [json.loads(line) for line in str(frame).split("\n")]

    async def close(self, code: int, reason: str = "") -> None:
        """Close the socket."""
        await self._connection.close(code, reason)

    def abort(self) -> None:
        """Drop the connection without a word."""
        self._connection.transport.abort()

    def hang(self) -> None:
        """Read nothing more, so that nothing is answered, a close neither."""
        self._connection.transport.pause_reading()

    async def ended(self) -> int | None:
        """Return the code of the close once the socket has ended, past what comes before."""
        async with asyncio.timeout(WAIT_S):
            try:
                while True:
                    await self._connection.recv()
            except ConnectionClosed:
                await self._connection.wait_closed()
        return self._connection.close_code


class ScriptedSockets:
    """Where sockets come to; make one with `scripted_sockets`."""

    def __init__(self) -> None:
        self.url = ""
        self.refusal: HttpAnswer | None = None
        """What an upgrade gets instead of a socket, and a plain GET too."""
        self.explanation = NOTHING_WRONG
        """What a plain GET gets otherwise."""
        self.may_answer = asyncio.Event()
        """Clear it to leave a plain GET without an answer."""
        self.may_answer.set()
        self.was_asked = asyncio.Event()
        """A plain GET has come."""
        self._peers: asyncio.Queue[Peer] = asyncio.Queue()

    async def next(self) -> Peer:
        """Return the next socket, as it was opened."""
        async with asyncio.timeout(WAIT_S):
            return await self._peers.get()

    async def subscribed(self) -> Peer:
        """Return the next socket, once it was told that it is subscribed."""
        peer = await self.next()
        await peer.subscribe()
        return peer

    async def handle(self, connection: ServerConnection) -> None:
        """Keep one socket open until either side ends it."""
        self._peers.put_nowait(Peer(connection))
        await connection.wait_closed()

    async def judge(self, connection: ServerConnection, request: Request) -> Response | None:
        """Answer what is no upgrade, or is to be refused."""
        if "Upgrade" in request.headers:
            return _response(self.refusal) if self.refusal else None
        self.was_asked.set()
        await self.may_answer.wait()
        connection.logger.debug("asked for %s", request.path)
        return _response(self.refusal or self.explanation)


def response(cmd: str, data: object, ref: object = None) -> Json:
    """Return a response as the gateway says it."""
    return {"type": "response", "cmd": cmd, "ref": ref, "data": data}


def error(cmd: str | None, code: str, **more: object) -> Json:
    """Return an error as the gateway says it."""
    told = {"type": "error", "cmd": cmd, "ref": None, "code": code, "retryable": False}
    return {**told, "message": f"{code} in so many words", **more}


def _response(answer: HttpAnswer) -> Response:
    text = answer.body if isinstance(answer.body, str) else json.dumps(answer.body)
    content = text.encode()
    given = {"Content-Length": str(len(content)), "Connection": "close", **answer.headers}
    status = HTTPStatus(answer.status)
    return Response(status.value, status.phrase, Headers(given), content)


@asynccontextmanager
async def scripted_sockets() -> AsyncIterator[ScriptedSockets]:
    """Run one on a free port."""
    sockets = ScriptedSockets()
    async with serve(
        sockets.handle,
        "127.0.0.1",
        0,
        subprotocols=[Subprotocol("nsq.json.v1")],
        process_request=sockets.judge,
        ping_interval=None,
    ) as server:
        host, port = next(iter(server.sockets)).getsockname()[:2]
        sockets.url = f"http://{host}:{port}"
        yield sockets
        sockets.may_answer.set()
