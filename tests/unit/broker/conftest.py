"""Fixtures of the tests of the broker's servers."""

from collections.abc import AsyncIterator

import pytest

from gateway.broker.broker import Broker
from tests.support.brokers.embedded_broker import embedded_broker


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    """A broker with nsqd's defaults."""
    async with embedded_broker() as running:
        yield running
