"""
Fixtures: a gateway in front of both brokers.

Tests without a fault in them share one gateway of each kind, in one event loop, and each has topics
of its own. Tests that hurt something start what they hurt.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from uuid import uuid4

import pytest
import pytest_asyncio

from tests.support.brokers.killable_broker import KillableBroker, killable_broker
from tests.support.brokers.nsqd import real_nsqd
from tests.support.gateways.gateway import RunningGateway, gateway_alone, gateway_with_nsqd

WARM_TOPICS = 12


@pytest.fixture(scope="session", params=["embedded", pytest.param("nsqd", marks=pytest.mark.nsqd)])
def kind(request: pytest.FixtureRequest) -> str:
    """Return which broker it is: everything here runs with both."""
    assert isinstance(request.param, str)
    return request.param


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def gateway(kind: str) -> AsyncIterator[RunningGateway]:
    """Return a gateway with its embedded broker, then one in front of a real nsqd."""
    async with AsyncExitStack() as life:
        if kind == "embedded":
            running = await life.enter_async_context(gateway_alone())
        else:
            nsqd = await life.enter_async_context(real_nsqd())
            addresses = [nsqd.tcp_address], [nsqd.http_address]
            running = await life.enter_async_context(gateway_with_nsqd(*addresses))
        await running.warm_up(WARM_TOPICS)
        yield running


@pytest.fixture
def warm_topic(gateway: RunningGateway) -> str:
    """
    Return a topic that no other test uses, and whose channel "c" has been there for a while.

    nsqd looks every five seconds which channels it has to scan for timeouts: what waits for one
    would take so long on a channel that is new.
    """
    return gateway.warm_topics.pop()


@pytest.fixture
def topic() -> str:
    return f"t-{uuid4().hex}"


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def shared_broker(kind: str) -> AsyncIterator[KillableBroker]:
    """Return a broker in a process of its own, for tests that hurt the gateway only."""
    async with killable_broker(kind) as broker:
        yield broker


@pytest_asyncio.fixture(loop_scope="session")
async def broker(kind: str) -> AsyncIterator[KillableBroker]:
    async with killable_broker(kind) as broker:
        yield broker
