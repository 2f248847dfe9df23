"""Publishing at a gateway: what each answer means for the lines that were sent."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gateway.commands.publish_target import GatewayTarget
from gateway.errors import (
    AuthRequired,
    Forbidden,
    GatewayError,
    InvalidRequest,
    NoBroker,
    OutcomeUnknown,
)
from gateway.listener import HttpListener
from gateway.nsqd_access import read_access
from gateway.settings_commands import PubSettings
from gateway.settings_sources import load

Send = Callable[[object], Awaitable[None]]


class Scripted:
    """A gateway that answers everything in one way, and keeps what it was asked."""

    def __init__(self, status: int, body: bytes) -> None:
        self._answer = status, body
        self.asked: list[tuple[str, str, list[bytes], bytes]] = []

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
        self.asked.append((scope["path"], scope["query_string"].decode(), secrets, body))
        status, answer = self._answer
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": answer})


@asynccontextmanager
async def target_at(scripted: Scripted, **flags: str) -> AsyncIterator[GatewayTarget]:
    """Return a target for a gateway that is *scripted*."""
    listener = HttpListener("scripted", "127.0.0.1:0")
    await listener.start(scripted)
    settings = load(PubSettings, {"url": f"http://{listener.address}", **flags}).settings
    try:
        async with GatewayTarget(settings.gateway_url or "", settings, read_access(settings)) as it:
            yield it
    finally:
        await listener.stop()


async def test_lines_go_as_one_mpub_with_the_secret_in_the_header() -> None:
    """Which is how the gateway takes it; addresses end up in logs."""
    scripted = Scripted(200, b"OK")
    async with target_at(scripted, auth_secret="word") as target:
        await target.publish("a#ephemeral", [b"one", b"two"], defer_ms=0)

    assert [("/mpub", "topic=a%23ephemeral", [b"Bearer word"], b"one\ntwo")] == scripted.asked


async def test_what_is_deferred_goes_one_by_one() -> None:
    """NSQ has no deferred MPUB."""
    scripted = Scripted(200, b"OK")
    async with target_at(scripted) as target:
        await target.publish("t", [b"one"], defer_ms=5)

    assert [("/pub", "topic=t&defer=5", [], b"one")] == scripted.asked


@pytest.mark.parametrize(
    "status,error",
    [
        (302, InvalidRequest),
        (400, InvalidRequest),
        (401, AuthRequired),
        (403, Forbidden),
        (404, InvalidRequest),
        (413, InvalidRequest),
        (503, NoBroker),
        (500, OutcomeUnknown),
        (504, OutcomeUnknown),
    ],
)
async def test_each_status_says_whether_it_is_published(
    status: int, error: type[GatewayError]
) -> None:
    """4xx and 503 are "no"; anything else is "nobody knows"."""
    problem = {"detail": "in so many words", "message": "TOKEN"}
    async with target_at(Scripted(status, json.dumps(problem).encode())) as target:
        with pytest.raises(error, match=f"answered {status}: in so many words"):
            await target.publish("t", [b"one"], defer_ms=0)


@pytest.mark.parametrize("status,body", [(200, b"<html>"), (204, b""), (502, b"[1]")])
async def test_an_answer_that_no_gateway_gives_proves_nothing(status: int, body: bytes) -> None:
    """A proxy's page is not nsqd's OK."""
    async with target_at(Scripted(status, body)) as target:
        with pytest.raises(OutcomeUnknown, match="is this one"):
            await target.publish("t", [b"one"], defer_ms=0)
