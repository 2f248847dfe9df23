"""Fixtures: a socket that echoes every text; messages have at most 100 000 bytes."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.support.websocket.echo_handler import EchoUpgradeHandler, echo_server
from tests.support.websocket.raw_socket import RawWebSocket, raw_websocket


@pytest.fixture(scope="module")
def gate() -> EchoUpgradeHandler:
    return EchoUpgradeHandler()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def address(gate: EchoUpgradeHandler) -> AsyncIterator[str]:
    async with echo_server(gate) as address:
        yield address


@pytest_asyncio.fixture(loop_scope="session")
async def raw(address: str) -> AsyncIterator[RawWebSocket]:
    async with raw_websocket(f"ws://{address}/sub?") as raw:
        yield raw
