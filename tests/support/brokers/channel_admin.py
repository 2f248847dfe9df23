"""Create, pause, empty and delete channels through the gateway's admin API."""

from __future__ import annotations

import time
from contextlib import AbstractAsyncContextManager

import httpx

from tests.support.brokers.killable_broker import KillableBroker
from tests.support.gateways.gateway import RunningGateway, gateway_with_nsqd, poll_until

PAUSE_SEEN_S = 20.0
"""Timeout for noticing a pause; the gateway polls every 5 s, and a busy machine takes longer."""


def gateway_before(
    broker: KillableBroker, *flags: str
) -> AbstractAsyncContextManager[RunningGateway]:
    """Run a gateway in front of *broker*."""
    return gateway_with_nsqd([broker.tcp_address], [broker.http_address], *flags)


async def post_admin(gateway: RunningGateway, path: str, **names: str) -> None:
    """Send an admin request; the gateway forwards it to every nsqd."""
    (await gateway.http.post(path, params=names)).raise_for_status()


async def broker_uptime_above_3_s(broker: KillableBroker) -> None:
    """Return once the broker has run for 3 s; a younger one may count as just restarted."""

    async def is_older() -> bool:
        async with httpx.AsyncClient(trust_env=False) as client:
            info = (await client.get(f"http://{broker.http_address}/info")).json()
        return bool(time.time() - info["start_time"] > 3)

    assert await poll_until(is_older, expected=True)
