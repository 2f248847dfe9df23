"""A running gateway in front of either broker: its addresses and the broker's counts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import TypeAlias, TypeVar
from uuid import uuid4

import httpx

from tests.support.gateways.programs import Program, nsq_gateway
from tests.support.http.plain import NO_TLS
from tests.support.websocket.subscriber_client import (
    Json,
    SubscriberClient,
    sub_url,
    subscribe,
)

T = TypeVar("T")

Counts: TypeAlias = tuple[int, int, int]
"""Depth, in flight, deferred."""

_WAIT_S = 90.0
_ANNOUNCED = r"listening on (http://\S+) \(management: (http://\S+)/readyz\)"
_EMBEDDED = r"embedded broker \((?:in memory|messages in \S+); TCP (\S+), HTTP (\S+)\)"

ON_FREE_PORTS = ("--listen=127.0.0.1:0", "--management-listen=127.0.0.1:0")
WITH_EMBEDDED_BROKER = ("--broker-tcp-address=127.0.0.1:0", "--broker-http-address=127.0.0.1:0")


class RunningGateway:
    """A running `nsq-gateway serve`; *broker_http* is the HTTP API of its broker."""

    def __init__(
        self, program: Program, urls: tuple[str, str], broker_http: httpx.AsyncClient
    ) -> None:
        self.program = program
        self.url, self.management_url = urls
        self.http = httpx.AsyncClient(
            base_url=self.url, timeout=_WAIT_S, trust_env=False, verify=NO_TLS
        )
        self.warm_topics: list[str] = []
        """Topics that have had a channel "c" from the start; see `warm_up`."""
        self._broker_http = broker_http
        self.broker_http_address = broker_http.base_url.netloc.decode()
        """HTTP host:port of the broker that the counts come from."""

    @property
    def address(self) -> str:
        """Host and port of the public port."""
        return self.url.removeprefix("http://")

    @property
    def websocket_url(self) -> str:
        """The public port for WebSockets."""
        return self.url.replace("http", "ws", 1)

    # The doors

    async def post(self, path: str, body: bytes, **query: str | int) -> None:
        """Send a POST; check that the response is OK."""
        answer = await self.http.post(path, content=body, params=query)
        assert (200, "OK") == (answer.status_code, answer.text)

    async def publish(self, topic: str, body: bytes, **query: int) -> None:
        """Publish one message; check that the response is OK."""
        await self.post("/pub", body, topic=topic, **query)

    def sub_url(self, topic: str, channel: str | None = None, **query: str | int) -> str:
        """Return the address of a subscription."""
        return sub_url(self.url, topic, channel, **query)

    def subscribe(
        self, topic: str, channel: str | None = None, **query: str | int
    ) -> AbstractAsyncContextManager[SubscriberClient]:
        """Return a client that has been subscribed."""
        return subscribe(self.url, topic, channel, **query)

    # The broker's own account

    async def counts_become(self, topic: str, channel: str, expected: Counts) -> Counts:
        """Return the broker's counts of a channel once they are *expected*, or at the timeout."""
        return await poll_until(partial(self._counts, topic, channel), expected)

    async def ready_becomes(self, topic: str, channel: str, *expected: int) -> None:
        """Return once the consumers of a channel have these RDY at the broker, least first."""
        counts = list(expected)
        assert counts == await poll_until(partial(self._ready, topic, channel), counts)

    async def channels_become(self, topic: str, expected: Sequence[str]) -> list[str]:
        """Return the names of a topic's channels, once they are *expected* or time is up."""
        return await poll_until(partial(self._channel_names, topic), sorted(expected))

    async def empty_channel(self, topic: str, channel: str) -> None:
        """Empty a channel at the broker, messages in flight included."""
        names = {"topic": topic, "channel": channel}
        (await self._broker_http.post("/channel/empty", params=names)).raise_for_status()

    async def warm_up(self, count: int) -> None:
        """Make *count* topics with a channel "c"."""
        for _ in range(count):
            topic = f"warm-{uuid4().hex}"
            for path, names in (
                ("/topic/create", {"topic": topic}),
                ("/channel/create", {"topic": topic, "channel": "c"}),
            ):
                (await self._broker_http.post(path, params=names)).raise_for_status()
            self.warm_topics.append(topic)

    async def _channels(self, topic: str) -> list[Json]:
        query = {"format": "json", "topic": topic}
        answer = await self._broker_http.get("/stats", params=query)
        topics = answer.raise_for_status().json()["topics"]
        return [channel for each in topics or [] for channel in each["channels"] or []]

    async def _channel_names(self, topic: str) -> list[str]:
        return sorted(channel["channel_name"] for channel in await self._channels(topic))

    async def _channel(self, topic: str, name: str) -> Json | None:
        found = [each for each in await self._channels(topic) if each["channel_name"] == name]
        return found[0] if found else None

    async def _counts(self, topic: str, name: str) -> Counts:
        channel = await self._channel(topic, name)
        if channel is None:
            return (0, 0, 0)
        return (channel["depth"], channel["in_flight_count"], channel["deferred_count"])

    async def _ready(self, topic: str, name: str) -> list[int]:
        channel = await self._channel(topic, name)
        return sorted(client["ready_count"] for client in channel["clients"]) if channel else []


async def poll_until(look: Callable[[], Awaitable[T]], expected: T) -> T:
    """Call *look* until it returns *expected* or time is up; return the last value."""
    deadline = asyncio.get_running_loop().time() + _WAIT_S
    seen = await look()
    while seen != expected and asyncio.get_running_loop().time() < deadline:
        seen = await look()
    return seen


@asynccontextmanager
async def gateway_with_nsqd(
    tcp_addresses: Sequence[str],
    http_addresses: Sequence[str],
    *flags: str,
    open_files: int | None = None,
) -> AsyncIterator[RunningGateway]:
    """
    Run a gateway in front of running brokers; counts come from the first one.

    *open_files* is its hard limit of open files; None: inherited.
    """
    where = (
        *(f"--nsqd-tcp-address={address}" for address in tcp_addresses),
        *(f"--nsqd-http-address={address}" for address in http_addresses),
    )
    async with (
        nsq_gateway("serve", *ON_FREE_PORTS, *where, *flags, open_files=open_files) as program,
        _opened(program, http_addresses[0]) as running,
    ):
        yield running


@asynccontextmanager
async def gateway_by_lookup(
    lookupd_http_address: str, broker_http_address: str, *flags: str
) -> AsyncIterator[RunningGateway]:
    """Run a gateway that finds nsqds by nsqlookupd; counts come from *broker_http_address*."""
    where = f"--lookupd-http-address={lookupd_http_address}"
    async with (
        nsq_gateway("serve", *ON_FREE_PORTS, where, *flags) as program,
        _opened(program, broker_http_address) as running,
    ):
        yield running


@asynccontextmanager
async def gateway_alone(
    *flags: str, environment: Mapping[str, str] | None = None
) -> AsyncIterator[RunningGateway]:
    """Run a gateway with its embedded broker; *environment* is for the process."""
    arguments = ("serve", *ON_FREE_PORTS, *WITH_EMBEDDED_BROKER, *flags)
    async with nsq_gateway(*arguments, environment=environment) as program:
        broker_http_address = (await program.said(_EMBEDDED))[2]
        async with _opened(program, broker_http_address) as running:
            yield running


@asynccontextmanager
async def _opened(program: Program, broker_http_address: str) -> AsyncIterator[RunningGateway]:
    announced = await program.said(_ANNOUNCED)
    url = f"http://{broker_http_address}"
    async with httpx.AsyncClient(
        base_url=url, timeout=_WAIT_S, trust_env=False, verify=NO_TLS
    ) as broker_http:
        running = RunningGateway(program, (announced[1], announced[2]), broker_http)
        async with running.http:
            yield running
