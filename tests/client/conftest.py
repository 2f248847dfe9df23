"""Brokers that do what a test tells them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from gateway.client.connection import BrokerConnection
from gateway.client.opening import open_connection
from tests.support.connection_listener import OPTIONS, Listener
from tests.support.scripted_broker import Peer, ScriptedBroker


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[ScriptedBroker]:
    """Return a broker that listens."""
    broker = ScriptedBroker()
    await broker.start()
    yield broker
    await broker.stop()


@pytest_asyncio.fixture
async def other() -> AsyncIterator[ScriptedBroker]:
    """Return a second broker that listens."""
    other = ScriptedBroker()
    await other.start()
    yield other
    await other.stop()


@pytest.fixture
def listener() -> Listener:
    """Return who is told."""
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
