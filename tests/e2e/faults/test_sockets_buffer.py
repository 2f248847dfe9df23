"""Many clients stop reading at once: together they hold a bounded number of bytes."""

from __future__ import annotations

from contextlib import AsyncExitStack

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.brokers.channel_admin import gateway_before
from tests.support.brokers.killable_broker import KillableBroker
from tests.support.gateways.gateway import RunningGateway, poll_until
from tests.support.websocket.raw_socket import raw_websocket

pytestmark = pytest.mark.asyncio(loop_scope="session")

KIB, MIB = 1_024, 1_048_576
SOCKETS, MESSAGES = 20, 100
BODY = b"x" * 64 * KIB
BOUND_BYTES = 16 * MIB
"""Of what would be 125 MiB: each socket alone may hold 8 MiB."""


async def metric(gateway: RunningGateway, name: str, **labels: str) -> float:
    """Return the value of a metric; 0 where there is none."""
    async with httpx.AsyncClient(base_url=gateway.management_url, trust_env=False) as http:
        text = (await http.get("/metrics")).text
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == f"nsq_gateway_{name}" and labels.items() <= sample.labels.items():
                return sample.value
    return 0


async def test_all_sockets_together_hold_no_more_than_their_bound(
    shared_broker: KillableBroker, topic: str
) -> None:
    """Those that do not read are paused, and closed with 4001; one that reads waits for nothing."""
    flags = (f"--sockets-buffer-bytes={BOUND_BYTES}", "--slow-consumer-s=2")
    async with gateway_before(shared_broker, *flags) as gateway, AsyncExitStack() as life:
        for number in range(SOCKETS):
            url = gateway.sub_url(topic, f"c{number}", max_in_flight=2_500)
            await life.enter_async_context(raw_websocket(url, has_small_buffer=True))
        quick = await life.enter_async_context(gateway.subscribe(topic, "quick"))
        held = []
        for number in range(MESSAGES):
            await gateway.publish(topic, b"%03d" % number + BODY)
            delivery = await quick.message(within_s=5)
            await quick.finish(delivery)
            held.append(await metric(gateway, "socket_unsent_bytes"))

        async def any_is_closed() -> bool:
            held.append(await metric(gateway, "socket_unsent_bytes"))
            return bool(await metric(gateway, "sockets_closed_total", code="4001"))

        assert await poll_until(any_is_closed, expected=True)
        limit_bytes = await metric(gateway, "sockets_buffer_limit_bytes")
        paused = await metric(gateway, "slow_consumers_total", action="paused")
        await gateway.publish(topic, b"after")
        after = await quick.message(within_s=5)

    assert BOUND_BYTES == limit_bytes
    assert BOUND_BYTES / 4 < max(held) <= BOUND_BYTES
    assert 0 < paused
    assert "after" == after["body"]
