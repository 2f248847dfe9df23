"""A socket to whoever says every text back; one message may have 100 000 bytes."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.support.echo_gate import EchoGate, echo_port
from tests.support.raw_socket import RawWebSocket, raw_websocket


@pytest.fixture(scope="module")
def gate() -> EchoGate:
    """Who lets everybody in."""
    return EchoGate()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def address(gate: EchoGate) -> AsyncIterator[str]:
    """Where every text is said back."""
    async with echo_port(gate) as address:
        yield address


@pytest_asyncio.fixture(loop_scope="session")
async def raw(address: str) -> AsyncIterator[RawWebSocket]:
    """An open socket."""
    async with raw_websocket(f"ws://{address}/sub?") as raw:
        yield raw
