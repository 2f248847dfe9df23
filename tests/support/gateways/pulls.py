"""A client that pulls messages and answers their leases, over plain HTTP."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import httpx

Json: TypeAlias = dict[str, Any]
_WAIT_S = 90.0


class PullClient:
    """Pulls from one gateway, or from the balancer in front of several."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.http = client

    async def pull(self, topic: str, channel: str, **query: int) -> list[Json]:
        """Return the messages of a pull that must succeed."""
        answer = await self.ask(topic, channel, **query)
        assert 200 == answer.status_code, answer.text
        messages: list[Json] = answer.json()["messages"]
        return messages

    async def ask(self, topic: str, channel: str, **query: int | str) -> httpx.Response:
        """Return the response to a pull."""
        params = {"topic": topic, "channel": channel, **query}
        return await self.http.post("/pull", params=params)

    async def ack(self, **answers: Sequence[str] | Sequence[Json]) -> Json:
        """Return the response to an ack that must succeed: fin=, req=, touch=."""
        answer = await self.http.post("/ack", json=answers)
        assert 200 == answer.status_code, answer.text
        result: Json = answer.json()
        return result

    @asynccontextmanager
    async def stream(self, topic: str, **query: int | str) -> AsyncIterator[EventReader]:
        """Open an event stream that must be accepted."""
        params = {"topic": topic, **query}
        headers = {"Accept": "text/event-stream"}
        async with self.http.stream("GET", "/sub", params=params, headers=headers) as answer:
            if answer.status_code != httpx.codes.OK:
                raise AssertionError((await answer.aread()).decode())
            yield EventReader(answer)


class EventReader:
    """The events of one stream."""

    def __init__(self, answer: httpx.Response) -> None:
        self.headers = answer.headers
        self.comments = 0
        self._lines = answer.aiter_lines()

    async def next(self) -> tuple[str, Json]:
        """Return the next event: its type and its data."""
        kind, data = "message", ""
        async for line in self._lines:
            if line.startswith(":"):
                self.comments += 1
            elif line.startswith("event: "):
                kind = line.removeprefix("event: ")
            elif line.startswith("data: "):
                data += line.removeprefix("data: ")
            elif not line and data:
                return kind, json.loads(data)
        raise EOFError

    async def messages(self, count: int) -> list[Json]:
        """Return the next messages; other events are skipped."""
        found: list[Json] = []
        while len(found) < count:
            _, data = await self.next()
            if data.get("type") == "message":
                found.append(data)
        return found


@asynccontextmanager
async def pull_client(url: str, secret: str | None = None) -> AsyncIterator[PullClient]:
    """Return a client of the gateway at *url*."""
    headers = {} if secret is None else {"Authorization": f"Bearer {secret}"}
    async with httpx.AsyncClient(
        base_url=url, timeout=_WAIT_S, trust_env=False, headers=headers
    ) as client:
        yield PullClient(client)
