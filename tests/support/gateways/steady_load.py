"""Clients that survive restarts of gateways: publishers, and consumers that reconnect."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from random import Random

import httpx
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from tests.support.websocket.subscriber_client import sub_url

_FIRST_WAIT_S = 0.5
"""Maximum random wait before a reconnect, in addition to the announced one."""
_PAUSE_S = 0.002
"""Pause between two publishes of one client."""
_ANSWER_S = 10.0


class Publisher:
    """Publish one message after another on a persistent connection, until stopped."""

    def __init__(self, url: str, topic: str, name: str) -> None:
        self.url = url
        self._topic = topic
        self._name = name
        self.published: set[str] = set()
        """Bodies with the response 200."""
        self.failures: list[str] = []
        """Other results of requests."""
        self.closes = 0
        """Number of responses with `Connection: close`."""

    async def run(self, end: asyncio.Event) -> None:
        """Publish until *end* is set."""
        async with httpx.AsyncClient(
            base_url=self.url, timeout=_ANSWER_S, trust_env=False
        ) as client:
            number = 0
            while not await _is_set(end, _PAUSE_S):
                body = f"{self._name}-{number}"
                number += 1
                try:
                    answer = await client.post("/pub", params={"topic": self._topic}, content=body)
                except httpx.HTTPError as error:
                    self.failures.append(f"{body}: {error!r}")
                    continue
                self.closes += answer.headers.get("connection") == "close"
                if answer.status_code == 200:
                    self.published.add(body)
                else:
                    self.failures.append(f"{body}: {answer.status_code} {answer.text}")


@dataclass
class Goodbye:
    """The end of a socket."""

    reason: str | None
    """Reason in the preceding CLOSE_WAIT; None without one."""
    code: int
    at_s: float
    told_at_s: float


@dataclass
class Consumer:
    """
    Finish every message, and reconnect like nsq.js.

    The wait is `reconnect_after_ms` times *hastes*, plus a random time.
    """

    url: str
    topic: str
    channel: str | None
    chance: Random
    hastes: float = 1.0
    received: set[str] = field(default_factory=set)
    goodbyes: list[Goodbye] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    is_connected: bool = False

    async def run(self, end: asyncio.Event, *, comes_back: bool = True) -> None:
        """Consume until *end* is set, or without *comes_back* until the first socket ends."""
        while not end.is_set():
            wait_s = self.chance.uniform(0, _FIRST_WAIT_S)
            try:
                connection = await self._connect()
            except Exception as error:  # noqa: BLE001 - whatever it is, the test shows it
                self.failures.append(repr(error))
            else:
                wait_s += await self._consume(connection, end)
            if not comes_back or await _is_set(end, wait_s):
                return

    async def _connect(self) -> ClientConnection:
        return await connect(
            sub_url(self.url, self.topic, self.channel, max_in_flight=100),
            compression=None,
            proxy=None,
            ping_interval=None,
            close_timeout=2,
        )

    async def _consume(self, connection: ClientConnection, end: asyncio.Event) -> float:
        """Consume until the socket or *end*; return the announced wait in seconds."""
        loop = asyncio.get_running_loop()
        goodbye = Goodbye(None, 0, 0.0, 0.0)
        wait_ms = 0
        closing = loop.create_task(_close_at(end, connection))
        try:
            while True:
                lines = [json.loads(line) for line in str(await connection.recv()).split("\n")]
                for line in lines:
                    if line.get("cmd") == "SUB":
                        self.is_connected = True
                    if line.get("cmd") == "CLS":
                        goodbye.reason = line["data"]["reason"]
                        goodbye.told_at_s = loop.time()
                        wait_ms = line["data"]["reconnect_after_ms"]
                if messages := [line for line in lines if line["type"] == "message"]:
                    self.received.update(message["body"] for message in messages)
                    ids = [message["id"] for message in messages]
                    if self.channel is not None:
                        await connection.send(json.dumps({"cmd": "FIN", "ids": ids}))
        except ConnectionClosed:
            self.is_connected = False
        finally:
            closing.cancel()
        if not end.is_set():
            goodbye.code = connection.close_code or 0
            goodbye.at_s = loop.time()
            self.goodbyes.append(goodbye)
        return wait_ms / 1_000 * self.hastes


async def _close_at(end: asyncio.Event, connection: ClientConnection) -> None:
    await end.wait()
    await connection.close()


async def _is_set(event: asyncio.Event, within_s: float) -> bool:
    try:
        async with asyncio.timeout(within_s):
            await event.wait()
    except TimeoutError:
        return False
    return True
