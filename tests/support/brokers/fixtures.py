"""Fixtures with scripted brokers."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from gateway.client.connection import BrokerConnection
from gateway.client.handshake import open_connection
from gateway.client.metrics import NSQDS
from gateway.client.producer import TOPICS
from tests.support.brokers.connection_listener import OPTIONS, Listener
from tests.support.brokers.scripted_broker import Peer, ScriptedBroker

__all__ = [
    "broker",
    "connection",
    "listener",
    "other",
    "own_labels",
    "peer",
    "subscribed",
]
"""What a conftest.py gets; others import by name."""


@pytest.fixture(autouse=True)
def own_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reset the label limits, which other tests may have used up."""
    for names in (NSQDS, TOPICS):
        monkeypatch.setattr(names, "limit", 100_000)


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[ScriptedBroker]:
    """Return a scripted broker."""
    broker = ScriptedBroker()
    await broker.start()
    yield broker
    await broker.stop()


@pytest_asyncio.fixture
async def other() -> AsyncIterator[ScriptedBroker]:
    """Return a second scripted broker."""
    other = ScriptedBroker()
    await other.start()
    yield other
    await other.stop()


@pytest.fixture
def listener() -> Listener:
    """Return a listener that records events."""
    return Listener()


@pytest_asyncio.fixture
async def connection(broker: ScriptedBroker, listener: Listener) -> AsyncIterator[BrokerConnection]:
    """Return a connection for publishing."""
    connection = await open_connection(broker.address, OPTIONS, listener)
    yield connection
    connection.abort()


@pytest_asyncio.fixture
async def peer(broker: ScriptedBroker, connection: BrokerConnection) -> Peer:
    """Return the broker's end of `connection`."""
    assert connection.is_open
    return await broker.peer()


@pytest_asyncio.fixture
async def subscribed(peer: Peer, connection: BrokerConnection) -> Peer:
    """Return the broker's end of `connection`, which has subscribed."""
    await connection.subscribe("t", "c")
    return peer
