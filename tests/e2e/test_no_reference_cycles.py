"""Whoever has gone is gone at once: what knows itself in a circle would stay until a long look."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

import httpx

from gateway.server.service import Service
from gateway.telemetry import REGISTRY
from tests.support.brokers.auth_broker import AuthBroker
from tests.support.gateways.free_port_settings import serve_settings
from tests.support.manual_clock import turn, until
from tests.support.websocket.raw_socket import raw_socket
from tests.support.websocket.subscriber_client import (
    open_socket,
    refused_upgrade,
    sub_url,
    subscribe,
)

Live: TypeAlias = Callable[[str], Awaitable[None]]

PATIENCE_S = 60.0
POST = b"POST /pub?topic=u HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\nx"
UPGRADE = (
    b"GET /sub?topic=u&channel=c HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\n"
    b"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
CONNECTIONS: tuple[tuple[str, dict[str, str]], ...] = (
    ("nsq_gateway_sockets_open", {}),
    ("nsq_gateway_fanouts_open", {}),
    ("nsq_gateway_nsqd_connections", {"role": "subscriber"}),
)


async def lives(address: str) -> None:
    """Publish, break off, consume, view, be refused, and go."""
    async with httpx.AsyncClient(trust_env=False) as client:
        await client.post(f"http://{address}/pub?topic=t", content=b"x")
    async with raw_socket(address) as raw:
        await raw.send(b"POST /pub?topic=t HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\nhalf")
        await turn(10)
    async with raw_socket(address) as raw:
        await raw.send(POST)
        await raw.read_until(b"OK")
        await raw.send(UPGRADE)
        await raw.read_until(b'"cmd":"SUB"')
    url = f"http://{address}"
    async with subscribe(url, "t", "c") as consumer, subscribe(url, "t"):
        await consumer.finish(await consumer.message())
    status, _ = await refused_upgrade(sub_url(url, "no name"))
    assert 400 == status


async def refused_lives(address: str) -> None:
    """Bring a secret that is refused, in each way, and go."""
    url = f"http://{address}"
    for channel in ("c", None):
        headers = {"Authorization": "Bearer wrong"}
        status, _ = await refused_upgrade(sub_url(url, "t", channel), headers=headers)
        assert 403 == status
        async with open_socket(sub_url(url, "t", channel)) as client:
            await client.send({"cmd": "AUTH", "secret": "wrong"})
            assert 4503 == (await client.closed())[0]


def connections() -> list[float]:
    """Return how many there are on either side, but those that publish."""
    return [REGISTRY.get_sample_value(name, labels) or 0 for name, labels in CONNECTIONS]


@contextmanager
def circles() -> Iterator[Counter[str]]:
    """Give what of ours was in circles, or hung on one, when the block has ended."""
    found: Counter[str] = Counter()
    gc.collect()
    gc.disable()
    try:
        yield found
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        kinds = (type(each) for each in gc.garbage)
        found.update(kind.__qualname__ for kind in kinds if kind.__module__.startswith("gateway."))
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


async def test_who_has_gone_leaves_no_circle() -> None:
    """A publish, half of one, one before an upgrade, a consumer, a viewer, a refused upgrade."""
    assert Counter() == await left_by(lives)


async def test_who_was_refused_leaves_no_circle() -> None:
    """By its secret: a consumer and a viewer, before the upgrade and after it."""
    broker = AuthBroker()
    await broker.start()

    found = await left_by(refused_lives, nsqd_tcp_address=broker.address)
    await broker.stop()

    assert Counter() == found


async def left_by(live: Live, **values: object) -> Counter[str]:
    """Return what is in circles after a gateway with the settings *values* has seen *live*."""
    service = Service(serve_settings(**values))
    await service.start()
    before = connections()
    with circles() as found:
        await live(service.address)
        async with asyncio.timeout(PATIENCE_S):
            await until(lambda: connections() == before)
    await service.stop()
    return found
