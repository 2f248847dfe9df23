"""The gateway's wall clock jumps; nsqd's name does not resolve, then moves."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import httpx
import pytest

from tests.support.brokers.killable_broker import free_port
from tests.support.brokers.nsqd import real_nsqd
from tests.support.gateways.gateway import WITH_EMBEDDED_BROKER, poll_until
from tests.support.gateways.preloaded_gateway import PreloadedGateway, preloaded_gateway
from tests.support.websocket.subscriber_client import SubscriberClient, subscribe

pytestmark = pytest.mark.asyncio(loop_scope="session")

HOUR_S = 3_600
NAME = "nsqd.moving.test"


async def status_of_publish(
    gateway: PreloadedGateway, topic: str, body: bytes = b"x", **query: int
) -> int:
    async with httpx.AsyncClient(trust_env=False) as http:
        params = {"topic": topic, **{name: str(value) for name, value in query.items()}}
        answer = await http.post(f"{gateway.url}/pub", content=body, params=params)
    return answer.status_code


# F19


async def passes(gateway: PreloadedGateway, topic: str, client: SubscriberClient) -> float:
    """Publish and receive a message; return how far its time is ahead of ours, in seconds."""
    assert 200 == await status_of_publish(gateway, topic, b"now")
    delivery = await client.message(within_s=2)
    await client.finish(delivery)
    assert "now" == delivery["body"]
    return int(delivery["timestamp_ns"]) / 1e9 - time.time()


async def test_a_clock_jump_changes_no_deadline(topic: str, tmp_path: Path) -> None:
    """An hour ahead, then an hour back: what is put off stays so, what is held is held."""
    pings = ("--ping-interval-s=0.3", "--ping-timeout-s=0.3")
    async with (
        preloaded_gateway(tmp_path, *WITH_EMBEDDED_BROKER, *pings) as gateway,
        subscribe(gateway.url, topic, "c", msg_timeout_ms=60_000) as client,
    ):
        assert 200 == await status_of_publish(gateway, topic, b"later", defer=HOUR_S * 500)
        assert 200 == await status_of_publish(gateway, topic, b"held")
        held = await client.message()
        ahead_s = []
        for jump_s in (HOUR_S, -HOUR_S):
            gateway.jump(jump_s)
            ahead_s.append(await passes(gateway, topic, client))
            # Neither what was put off, nor what is held, nor a missed pong; some pings long.
            await client.stays_silent(for_s=1)
        await client.finish(held)
        await client.send({"cmd": "CLS"})
        closed, _ = await client.closed()

    assert [HOUR_S, -HOUR_S] == [round(each / 60) * 60 for each in ahead_s]
    assert 1000 == closed


# F23


@asynccontextmanager
async def nsqd_at(address: str) -> AsyncIterator[None]:
    """Run an nsqd that listens there only."""
    async with real_nsqd(f"--tcp-address={address}"):
        yield


@pytest.mark.nsqd
async def test_a_name_is_resolved_for_each_connection_attempt(topic: str, tmp_path: Path) -> None:
    """It leads nowhere, then to an nsqd, then to another: each is found without a restart."""
    port = free_port()
    where = f"--nsqd-tcp-address={NAME}:{port}"
    async with preloaded_gateway(tmp_path, where) as gateway:
        publish = partial(status_of_publish, gateway, topic)
        assert 503 == await publish()
        async with nsqd_at(f"127.0.0.1:{port}"):
            gateway.resolve({NAME: "127.0.0.1"})
            assert 200 == await poll_until(publish, 200)
        assert 503 == await poll_until(publish, 503)
        async with nsqd_at(f"127.0.0.2:{port}"):
            gateway.resolve({NAME: "127.0.0.2"})
            assert 200 == await poll_until(publish, 200)
