"""
Random commands of several WebSocket clients to the running program, with either broker.

What must come of them is in tests/support/websocket/model.py. `make fuzz` tries new seeds
for as long as NSQ_GATEWAY_FUZZ_S says.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from uuid import uuid4

import httpx
import pytest

from tests.support.brokers.nsqd import real_nsqd
from tests.support.fuzz import fuzz_seeds, print_seed
from tests.support.gateways.gateway import (
    RunningGateway,
    gateway_alone,
    gateway_with_nsqd,
    poll_until,
)
from tests.support.gateways.gauges import gauge, gauges_become_zero
from tests.support.gateways.leaks import connections_of
from tests.support.websocket.model import LARGEST_WINDOW, ChannelModel, ModelClient
from tests.support.websocket.subscriber_client import open_socket

SEEDS = 20
TIME_LIMIT_S = 120.0
OPEN_FILES = "process_open_fds"
TASKS = "nsq_gateway_tasks"
PUBLISHERS = 'nsq_gateway_nsqd_connections{role="publisher"}'


@asynccontextmanager
async def running(kind: str) -> AsyncIterator[RunningGateway]:
    """Run a gateway of the test's own."""
    async with AsyncExitStack() as life:
        if kind == "embedded":
            yield await life.enter_async_context(gateway_alone())
        else:
            nsqd = await life.enter_async_context(real_nsqd())
            addresses = [nsqd.tcp_address], [nsqd.http_address]
            yield await life.enter_async_context(gateway_with_nsqd(*addresses))


@asynccontextmanager
async def model_client(
    gateway: RunningGateway, channel: ChannelModel, rng: random.Random, kind: str
) -> AsyncIterator[ModelClient]:
    """Open a socket, and read from it until it has ended."""
    window = rng.randint(1, LARGEST_WINDOW)
    query: dict[str, str | int] = {} if kind == "viewer" else {"max_in_flight": window}
    if kind == "auto":
        query["ack"] = "auto"
    url = gateway.sub_url(channel.topic, None if kind == "viewer" else "c", **query)
    async with open_socket(url) as socket, asyncio.TaskGroup() as group:
        client = ModelClient(socket.connection, channel, rng, kind=kind, window=window)
        group.create_task(client.read())
        yield client


async def live(gateway: RunningGateway, channel: ChannelModel, seed: int, kind: str) -> None:
    """Be one client: say random things, then end in one way or another."""
    rng = random.Random(seed)
    async with model_client(gateway, channel, rng, kind) as client:
        for _ in range(rng.randint(2, 12)):
            await client.say()
        # What the gateway has written to a socket with ack=auto is finished, read or not.
        ways = [client.say_cls, client.finish_and_close, client.end_suddenly]
        await (ways[0] if kind == "auto" else rng.choice(ways))()


async def collect(gateway: RunningGateway, channel: ChannelModel) -> None:
    """Take what is left of a channel: all that was not finished comes again, once, and no more."""
    must, allowed = channel.unfinished, channel.maybe_published | channel.published
    channel.holders.clear()
    before = set(channel.finished)
    async with model_client(gateway, channel, random.Random(0), "auto") as last:
        await last.until(lambda: must <= channel.finished)
        assert (0, 0, 0) == await gateway.counts_become(channel.topic, "c", (0, 0, 0))
        await last.say_cls()
    assert channel.finished - before <= allowed


async def play(gateway: RunningGateway, seed: int) -> None:
    """Live one history: some clients at once on one channel, then one that takes what is left."""
    rng = random.Random(seed)
    # With nsqd, what is deferred on a channel that is new waits for up to 5 s.
    topic = gateway.warm_topics.pop() if gateway.warm_topics else f"t-{uuid4().hex}"
    channel = ChannelModel(topic)
    kinds = rng.choices(["client", "auto", "viewer"], [8, 1, 1], k=rng.randint(2, 4))
    # The first messages are there before anybody says a word.
    async with model_client(gateway, channel, rng, "client") as first:
        for _ in range(rng.randint(1, 8)):
            await first.say()
        await first.finish_and_close()
    async with asyncio.timeout(TIME_LIMIT_S), asyncio.TaskGroup() as group:
        for kind in kinds:
            group.create_task(live(gateway, channel, rng.getrandbits(48), kind))
    await collect(gateway, channel)


async def left(management: httpx.AsyncClient, kind: str) -> tuple[float, float]:
    """Return open files and tasks; connections for publishing are kept, and not counted."""
    publishers = await gauge(management, PUBLISHERS)
    # The embedded broker has the other ends.
    files = await gauge(management, OPEN_FILES) - publishers * (2 if kind == "embedded" else 1)
    return files, await gauge(management, TASKS)


@pytest.mark.fuzz
@pytest.mark.parametrize("kind", ["embedded", pytest.param("nsqd", marks=pytest.mark.nsqd)])
async def test_each_socket_is_answered_and_no_message_is_lost(kind: str) -> None:
    """For any commands and any ends of sockets; nothing leaks, and the log is quiet."""
    async with (
        running(kind) as gateway,
        httpx.AsyncClient(base_url=gateway.management_url, trust_env=False) as management,
    ):
        await gateway.warm_up(1 + SEEDS)
        await play(gateway, 0)
        before, connections = await left(management, kind), connections_of(gateway.program.pid)
        for seed in fuzz_seeds(SEEDS):
            with print_seed(seed):
                await play(gateway, seed)
        await gauges_become_zero(
            management,
            "sockets_open",
            "viewers_open",
            "fanouts_open",
            "socket_unsent_bytes",
            "socket_unsent_max_bytes",
            "messages_in_flight",
            "ready_messages",
            "publish_buffer_bytes",
            r'nsqd_connections\{role="subscriber"\}',
        )

        async def is_back() -> bool:
            return all(
                now <= then for now, then in zip(await left(management, kind), before, strict=True)
            )

        is_empty = await poll_until(is_back, expected=True)
        now = await left(management, kind), connections_of(gateway.program.pid)
        assert is_empty, (before, connections, *now)
