"""A gateway that answers as a test tells it, and keeps what it was asked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, TypeAlias

from gateway.listener import HttpListener

Send: TypeAlias = Callable[[object], Awaitable[None]]


class Said(NamedTuple):
    """One answer."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = {}


OK = Said(200, b"OK")


def problem(status: int, word: str = "TOKEN", *, retryable: bool = False, **headers: str) -> Said:
    """Return an answer as a gateway refuses; an underscore in a header's name is a hyphen."""
    body = {"detail": "in so many words", "message": word, "retryable": retryable}
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return Said(status, json.dumps(body).encode(), names)


class Asked(NamedTuple):
    """One request; *at* is when it was whole, in the time of the event loop."""

    path: str
    query: str
    secrets: Sequence[bytes]
    body: bytes
    at: float


class ScriptedGateway:
    """Gives *answers* one after the other, the last of them for ever."""

    def __init__(self, *answers: Said) -> None:
        self._answers = list(answers)
        self.url = ""
        self.asked: list[Asked] = []
        self.was_asked = asyncio.Event()
        self.may_answer = asyncio.Event()
        """Clear it to hold answers back."""
        self.may_answer.set()

    @property
    def bodies(self) -> list[bytes]:
        """What was sent, in order."""
        return [asked.body for asked in self.asked]

    async def __call__(
        self, scope: dict[str, Any], receive: Callable[[], Awaitable[dict[str, Any]]], send: Send
    ) -> None:
        """Answer."""
        event = await receive()
        body: bytes = event["body"]
        while event.get("more_body"):
            event = await receive()
            body += event["body"]
        secrets = [value for name, value in scope["headers"] if name == b"authorization"]
        at = asyncio.get_running_loop().time()
        self.asked.append(Asked(scope["path"], scope["query_string"].decode(), secrets, body, at))
        self.was_asked.set()
        await self.may_answer.wait()
        said = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        headers = [(name.encode(), value.encode()) for name, value in said.headers.items()]
        start = {"type": "http.response.start", "status": said.status, "headers": headers}
        await send(start)
        await send({"type": "http.response.body", "body": said.body})


@asynccontextmanager
async def scripted_gateway(
    *answers: Said, listen: str = "127.0.0.1:0"
) -> AsyncIterator[ScriptedGateway]:
    """Run a gateway that gives *answers*, on a free port unless it is told where."""
    scripted = ScriptedGateway(*answers)
    listener = HttpListener("scripted", listen)
    await listener.start(scripted)
    scripted.url = f"http://{listener.address}"
    try:
        yield scripted
    finally:
        await listener.stop()
