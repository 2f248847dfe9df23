"""A client of `nsq.json.v1` like a browser's, with a limit on every wait."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeAlias
from urllib.parse import urlencode

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Subprotocol

Json: TypeAlias = dict[str, Any]

WAIT_S = 60.0
"""Timeout of waits; longer than nsqd's scan for new channels, every 5 s."""


class SubscriberClient:
    """One open socket; frames are split into objects, received one at a time."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection
        self._lines: deque[Json] = deque()

    async def send(self, *commands: Json) -> None:
        """Send *commands* in one frame."""
        await self.connection.send("\n".join(json.dumps(command) for command in commands))

    async def send_text(self, text: str) -> None:
        """Send *text* as one frame."""
        await self.connection.send(text)

    async def receive(self, *, within_s: float = WAIT_S) -> Json:
        """Return the next object; raises TimeoutError, or ConnectionClosed at the end."""
        async with asyncio.timeout(within_s):
            while not self._lines:
                frame = await self.connection.recv()
                self._lines += [json.loads(line) for line in str(frame).split("\n")]
        return self._lines.popleft()

    async def message(self, *, within_s: float = WAIT_S) -> Json:
        """Return the next object, which must be a delivery."""
        received = await self.receive(within_s=within_s)
        assert "message" == received["type"], received
        return received

    async def messages(self, count: int) -> list[Json]:
        """Return the next *count* objects, which must be deliveries."""
        return [await self.message() for _ in range(count)]

    async def ask(self, command: Json) -> Json:
        """Send *command* and return the next object, its answer."""
        await self.send(command)
        return await self.receive()

    async def finish(self, *deliveries: Json) -> None:
        """FIN each of *deliveries*; return once the gateway has passed that on."""
        ids = [delivery["id"] for delivery in deliveries]
        answer = await self.ask({"cmd": "FIN", "ids": ids, "ref": "finish"})
        assert "OK" == answer.get("data"), answer

    async def next_delivery(self) -> Json:
        """Send a NOP; return the next frame, a delivery or the response to the NOP."""
        return await self.ask({"cmd": "NOP", "ref": "nothing came"})

    async def receive_until(self, ref: object) -> list[Json]:
        """Return the objects up to the answer that carries *ref*, included."""
        received = [await self.receive()]
        while received[-1].get("ref") != ref:
            received.append(await self.receive())
        return received

    async def stays_silent(self, *, for_s: float) -> None:
        """Wait for that time; fail if a frame arrives."""
        try:
            received = await self.receive(within_s=for_s)
        except TimeoutError:
            return
        raise AssertionError(f"{received} came within {for_s} s")

    async def closed(self) -> tuple[int, str]:
        """Read until the close; return its code and reason."""
        try:
            while True:
                await self.receive()
        except ConnectionClosed:
            return self.connection.close_code or 0, self.connection.close_reason or ""


@asynccontextmanager
async def open_socket(
    url: str, *, headers: Json | None = None, subprotocols: Sequence[str] | None = None
) -> AsyncIterator[SubscriberClient]:
    """Open the WebSocket at *url*; raise websockets' InvalidStatus if it is refused."""
    connection = await connect(
        url,
        additional_headers=headers,
        subprotocols=[Subprotocol(name) for name in subprotocols] if subprotocols else None,
        compression=None,
        proxy=None,
        ping_interval=None,
        max_size=None,
        close_timeout=2,
    )
    try:
        yield SubscriberClient(connection)
    finally:
        await connection.close()


@asynccontextmanager
async def subscribe(
    gateway_url: str, topic: str, channel: str | None = None, **query: str | int
) -> AsyncIterator[SubscriberClient]:
    """Subscribe at *gateway_url*; continue once the gateway has confirmed."""
    async with open_socket(sub_url(gateway_url, topic, channel, **query)) as client:
        answer = await client.receive()
        assert "SUB" == answer.get("cmd"), answer
        yield client


def sub_url(
    gateway_url: str, topic: str | None, channel: str | None = None, **query: str | int
) -> str:
    """Return the address of a subscription at the gateway at *gateway_url* (http://…)."""
    names = {"topic": topic, "channel": channel}
    given = {name: value for name, value in names.items() if value is not None}
    return f"{gateway_url.replace('http', 'ws', 1)}/sub?{urlencode({**given, **query})}"


async def refused_upgrade(
    url: str, *, headers: Json | None = None, subprotocols: Sequence[str] | None = None
) -> tuple[int, Json]:
    """Return the status and problem body of the refused upgrade at *url*."""
    try:
        async with open_socket(url, headers=headers, subprotocols=subprotocols):
            raise AssertionError(f"{url} was not refused")
    except InvalidStatus as error:
        return error.response.status_code, json.loads(error.response.body or b"{}")
