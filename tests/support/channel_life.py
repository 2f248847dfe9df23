"""What tests of a channel's life do to it: over the gateway's own administration."""

from __future__ import annotations

import time
from contextlib import AbstractAsyncContextManager

import httpx

from tests.support.gateway import RunningGateway, become, gateway_with_nsqd
from tests.support.mortal_broker import MortalBroker

PAUSE_SEEN_S = 20.0
"""Pauses are looked for every 5 s; a busy machine takes longer."""


def in_front_of(broker: MortalBroker, *flags: str) -> AbstractAsyncContextManager[RunningGateway]:
    """Return a gateway of the test's own."""
    return gateway_with_nsqd([broker.tcp_address], [broker.http_address], *flags)


async def administer(gateway: RunningGateway, path: str, **names: str) -> None:
    """Do something to a topic or a channel at every broker."""
    (await gateway.http.post(path, params=names)).raise_for_status()


async def broker_is_older(broker: MortalBroker) -> None:
    """Return once the broker has run for 3 s: a younger one is not told from the one before."""

    async def is_older() -> bool:
        async with httpx.AsyncClient(trust_env=False) as client:
            info = (await client.get(f"http://{broker.http_address}/info")).json()
        return bool(time.time() - info["start_time"] > 3)

    assert await become(is_older, expected=True)
