"""Brokers that do what a test tells them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.support.scripted_broker import ScriptedBroker


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
