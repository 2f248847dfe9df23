"""Sockets that stop reading fill their buffers and no more, as the memory formula says."""

from __future__ import annotations

import re
import sys
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import pytest

from tests.support.brokers.channel_admin import gateway_before
from tests.support.brokers.killable_broker import KillableBroker
from tests.support.gateways.gateway import RunningGateway, poll_until
from tests.support.websocket.raw_socket import raw_websocket

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc"),
]

KIB, MIB = 1_024, 1_048_576
SOCKETS = 40
BUFFER_BYTES = MIB
ON_THE_WAY_BYTES = 8 * MIB
"""More than the system holds of one connection, so that every buffer is full."""
BESIDE_BYTES = 512 * KIB
"""What else a socket may take: one read beyond its bound, and its consumer's connection."""


def resident_bytes(gateway: RunningGateway) -> int:
    """Return how much memory the process of *gateway* has."""
    status = Path(f"/proc/{gateway.program.pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) * KIB


async def has_settled(gateway: RunningGateway) -> bool:
    """Tell whether nothing was added while the gateway answered some questions."""
    before_bytes = resident_bytes(gateway)
    for _ in range(50):
        await gateway.http.get("/ping")
    return resident_bytes(gateway) - before_bytes < 64 * KIB


@pytest.mark.parametrize("size_bytes", [64 * KIB, 1_000_000], ids=["small", "large"])
async def test_full_buffers_on_all_sockets_stay_below_the_formula(
    shared_broker: KillableBroker, topic: str, size_bytes: int
) -> None:
    """For each socket its buffer, two messages as they come and go, and half a MiB."""
    flags = (f"--socket-buffer-bytes={BUFFER_BYTES}", "--slow-consumer-s=60")
    async with gateway_before(shared_broker, *flags) as gateway, AsyncExitStack() as life:
        await gateway.publish(topic, b"warm")
        before_bytes = resident_bytes(gateway)
        for number in range(SOCKETS):
            url = gateway.sub_url(topic, f"c{number}", max_in_flight=2_500)
            await life.enter_async_context(raw_websocket(url, has_small_buffer=True))
        for _ in range((BUFFER_BYTES + ON_THE_WAY_BYTES) // size_bytes):
            await gateway.publish(topic, b"x" * size_bytes)
        assert await poll_until(partial(has_settled, gateway), expected=True)
        grown_bytes = resident_bytes(gateway) - before_bytes

    each_mib = grown_bytes / SOCKETS / MIB
    print(f"{each_mib:.2f} MiB a socket")  # noqa: T201 - a measurement
    assert 0.8 * SOCKETS * BUFFER_BYTES < grown_bytes
    assert grown_bytes < SOCKETS * (BUFFER_BYTES + 2 * size_bytes + BESIDE_BYTES)
