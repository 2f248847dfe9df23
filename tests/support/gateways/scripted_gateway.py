"""A gateway that returns scripted responses and records its requests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, TypeAlias

from gateway.listener import HttpListener

Send: TypeAlias = Callable[[object], Awaitable[None]]


class ScriptedResponse(NamedTuple):
    """One response."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = {}


OK = ScriptedResponse(200, b"OK")


def problem(
    status: int, word: str = "TOKEN", *, retryable: bool = False, **headers: str
) -> ScriptedResponse:
    """Return a gateway's error response; an underscore in a header's name becomes a hyphen."""
    body = {"detail": "in so many words", "message": word, "retryable": retryable}
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return ScriptedResponse(status, json.dumps(body).encode(), names)


class ReceivedRequest(NamedTuple):
    """One request; *at* is the event loop's time when it was complete."""

    path: str
    query: str
    secrets: Sequence[bytes]
    body: bytes
    at: float


class ScriptedGateway:
    """Return *answers* in order, and repeat the last one."""

    def __init__(self, *answers: ScriptedResponse) -> None:
        self._answers = list(answers)
        self.url = ""
        self.asked: list[ReceivedRequest] = []
        self.was_asked = asyncio.Event()
        self.may_answer = asyncio.Event()
        """Clear it to hold responses back."""
        self.may_answer.set()

    @property
    def bodies(self) -> list[bytes]:
        """The bodies of the requests, in order."""
        return [asked.body for asked in self.asked]

    async def __call__(
        self, scope: dict[str, Any], receive: Callable[[], Awaitable[dict[str, Any]]], send: Send
    ) -> None:
        """Respond."""
        event = await receive()
        body: bytes = event["body"]
        while event.get("more_body"):
            event = await receive()
            body += event["body"]
        secrets = [value for name, value in scope["headers"] if name == b"authorization"]
        at = asyncio.get_running_loop().time()
        self.asked.append(
            ReceivedRequest(scope["path"], scope["query_string"].decode(), secrets, body, at)
        )
        self.was_asked.set()
        await self.may_answer.wait()
        said = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        headers = [(name.encode(), value.encode()) for name, value in said.headers.items()]
        start = {"type": "http.response.start", "status": said.status, "headers": headers}
        await send(start)
        await send({"type": "http.response.body", "body": said.body})


@asynccontextmanager
async def scripted_gateway(
    *answers: ScriptedResponse, listen: str = "127.0.0.1:0"
) -> AsyncIterator[ScriptedGateway]:
    """Run a gateway that returns *answers*, on a free port by default."""
    scripted = ScriptedGateway(*answers)
    listener = HttpListener("scripted", listen)
    await listener.start(scripted)
    scripted.url = f"http://{listener.address}"
    try:
        yield scripted
    finally:
        await listener.stop()
