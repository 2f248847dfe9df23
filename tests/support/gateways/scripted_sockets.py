"""A gateway with a scripted /sub, for WebSockets and for plain GETs."""

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

from tests.support.websocket.subscriber_client import WAIT_S

Json: TypeAlias = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class HttpAnswer:
    """The response to a request that is no WebSocket upgrade."""

    status: int
    body: object
    headers: Mapping[str, str] = field(default_factory=dict)


NOTHING_WRONG = HttpAnswer(status=426, body={"message": "UPGRADE_REQUIRED", "retryable": False})


def refused(status: int, word: str, *, retryable: bool, **headers: str) -> HttpAnswer:
    """Return an error response; an underscore in a header's name becomes a hyphen."""
    body = {"detail": f"{word} in so many words", "message": word, "retryable": retryable}
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return HttpAnswer(status=status, body=body, headers=named)


class Peer:
    """The gateway's end of one socket."""

    def __init__(self, connection: ServerConnection) -> None:
        self._connection = connection
        self.path = connection.request.path if connection.request else ""

    async def say(self, *told: Json) -> None:
        """Send objects in one frame."""
        await self._connection.send("\n".join(json.dumps(each) for each in told))

    async def say_as_it_is(self, frame: str | bytes) -> None:
        """Send *frame* unchanged."""
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
        """Drop the connection without a close frame."""
        self._connection.transport.abort()

    def hang(self) -> None:
        """Read nothing more, so that nothing is answered, a close neither."""
        self._connection.transport.pause_reading()

    async def ended(self) -> int | None:
        """Read until the socket closes; return the close code."""
        async with asyncio.timeout(WAIT_S):
            try:
                while True:
                    await self._connection.recv()
            except ConnectionClosed:
                await self._connection.wait_closed()
        return self._connection.close_code


class ScriptedSockets:
    """The server of the sockets; make one with `scripted_sockets`."""

    def __init__(self) -> None:
        self.url = ""
        self.refusal: HttpAnswer | None = None
        """Response to upgrades and plain GETs, instead of a socket."""
        self.explanation = NOTHING_WRONG
        """Response to a plain GET otherwise."""
        self.may_answer = asyncio.Event()
        """Clear it to leave a plain GET without an answer."""
        self.may_answer.set()
        self.was_asked = asyncio.Event()
        """Set when a plain GET arrives."""
        self._peers: asyncio.Queue[Peer] = asyncio.Queue()

    async def next(self) -> Peer:
        """Return the next socket, as it was opened."""
        async with asyncio.timeout(WAIT_S):
            return await self._peers.get()

    async def subscribed(self) -> Peer:
        """Return the next socket, once it has been sent SUB."""
        peer = await self.next()
        await peer.subscribe()
        return peer

    async def handle(self, connection: ServerConnection) -> None:
        """Serve one socket until either side closes it."""
        self._peers.put_nowait(Peer(connection))
        await connection.wait_closed()

    async def judge(self, connection: ServerConnection, request: Request) -> Response | None:
        """Respond to plain requests, and to upgrades that are refused."""
        if "Upgrade" in request.headers:
            return _response(self.refusal) if self.refusal else None
        self.was_asked.set()
        await self.may_answer.wait()
        connection.logger.debug("asked for %s", request.path)
        return _response(self.refusal or self.explanation)


def response(cmd: str, data: object, ref: object = None) -> Json:
    """Return a response frame as the gateway sends it."""
    return {"type": "response", "cmd": cmd, "ref": ref, "data": data}


def error(cmd: str | None, code: str, **more: object) -> Json:
    """Return an error frame as the gateway sends it."""
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
    """Run a server on a free port."""
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
