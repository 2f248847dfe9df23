"""A Spark stream reader called like Spark calls it, and its broker's counts."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any, Protocol

import httpx
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import StructType

from gateway.pipeline.datasource import NsqDataSource
from gateway.pipeline.reader import NsqStreamReader, Offset
from tests.support.websocket.subscriber_client import Json

CHANNEL = "spark"
_WAIT_S = 90.0


class Broker(Protocol):
    """The addresses of a running broker."""

    @property
    def tcp_address(self) -> str:
        """Return the TCP address of V2."""

    @property
    def http_address(self) -> str:
        """Return the HTTP address."""


def call(method: Callable[..., Any], *arguments: object) -> asyncio.Future[Any]:
    """Call *method* in a thread, since it blocks."""
    return asyncio.ensure_future(asyncio.to_thread(method, *arguments))


def reader_of(broker: Broker, **options: str) -> NsqStreamReader:
    given = {"topic": "t", "channel": CHANNEL, "nsqdTcpAddress": broker.tcp_address} | options
    return NsqDataSource(given).streamReader(StructType())


class Stream:
    """A reader, with the counts of its broker."""

    def __init__(self, reader: NsqStreamReader, http: httpx.AsyncClient) -> None:
        self.reader = reader
        self.http = http
        self.offset: Offset = reader.initialOffset()

    async def publish(self, bodies: int | Iterable[int], topic: str = "t") -> None:
        """Publish *bodies*, or that number of bodies, as one MPUB."""
        numbers = range(bodies) if isinstance(bodies, int) else bodies
        body = b"\n".join(b"%d" % number for number in numbers)
        answer = await self.http.post("/mpub", params={"topic": topic}, content=body)
        answer.raise_for_status()

    async def latest(self, most: int = 1_000) -> Offset:
        """Wait for the next batch; return its end offset."""
        async with asyncio.timeout(_WAIT_S):
            while True:
                end: Offset = await call(self.reader.latestOffset, self.offset, ReadMaxRows(most))
                if end != self.offset:
                    return end

    async def rows(self, start: Offset, end: Offset) -> list[bytes]:
        """Return the bodies between, as executors decode them."""
        return [row["body"] for row in await self.full_rows(start, end)]

    async def full_rows(self, start: Offset, end: Offset) -> list[Json]:
        """Return the rows between, as executors decode them."""
        partitions = await call(self.reader.partitions, start, end)
        return [
            row
            for partition in pickle.loads(pickle.dumps(partitions))  # noqa: S301 - our own
            for batch in self.reader.read(partition)
            for row in batch.to_pylist()
        ]

    async def next_rows(self, most: int = 1_000) -> list[bytes]:
        """Return the bodies of the next batch, and advance the offset."""
        end = await self.latest(most)
        rows = await self.rows(self.offset, end)
        self.offset = end
        return rows

    async def take(self, count: int, most: int = 1_000) -> list[bytes]:
        """Return *count* different bodies and more, batch by batch."""
        bodies: list[bytes] = []
        while len(set(bodies)) < count:
            bodies += await self.next_rows(most)
        return bodies

    async def run(self) -> list[bytes]:
        """Return the bodies of a run that ends by itself."""
        self.reader.prepareForTriggerAvailableNow()
        bodies: list[bytes] = []
        limit = ReadAllAvailable()
        async with asyncio.timeout(_WAIT_S):
            while (end := await call(self.reader.latestOffset, self.offset, limit)) != self.offset:
                bodies += await self.rows(self.offset, end)
                self.offset = end
        return bodies

    async def channel(self, topic: str = "t") -> Json:
        """Return the broker's counts of the channel."""
        return await channel_of(self.http, topic)

    async def counts(self) -> tuple[int, int]:
        """Return depth and in flight of the channel."""
        channel = await self.channel()
        return channel["depth"], channel["in_flight_count"]


@asynccontextmanager
async def http_of(broker: Broker) -> AsyncIterator[httpx.AsyncClient]:
    url = f"http://{broker.http_address}"
    async with httpx.AsyncClient(base_url=url, trust_env=False) as http:
        yield http


async def channel_of(http: httpx.AsyncClient, topic: str = "t") -> Json:
    """Return the broker's statistics of the channel that is read."""
    answer = await http.get("/stats", params={"format": "json", "topic": topic})
    [found_topic] = answer.json()["topics"]
    found: Json
    [found] = found_topic["channels"]
    return found


async def make_channel(http: httpx.AsyncClient, topic: str = "t") -> None:
    """Create *topic* with the channel that is read, before anything is published."""
    for path in ("/topic/create", "/channel/create"):
        params = {"topic": topic, "channel": CHANNEL}
        (await http.post(path, params=params)).raise_for_status()


@asynccontextmanager
async def open_stream(broker: Broker, **options: str) -> AsyncIterator[Stream]:
    """Read topic "t" of *broker*; requeue unread messages at the end."""
    reader = reader_of(broker, **options)
    async with http_of(broker) as http:
        await make_channel(http)
        try:
            yield Stream(reader, http)
        finally:
            await call(reader.stop)
