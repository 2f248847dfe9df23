"""
Hours of mixed load leak no memory, no descriptor, and no task.

In short here; as long as wanted with ``NSQ_GATEWAY_SOAK_S=1800``, which `make soak` sets.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.support.brokers.killable_broker import killable_broker
from tests.support.gateways.gateway import RunningGateway, gateway_alone, gateway_with_nsqd
from tests.support.gateways.soak import HeldResources, growth_kib, held_resources, run_round

pytestmark = pytest.mark.asyncio(loop_scope="session")

SOAK_S = float(os.environ.get("NSQ_GATEWAY_SOAK_S", "0"))
WARM_UP_ROUNDS, LEAST_ROUNDS = 3, 6
QUIET = "--log-level=warning"
TREND_KIB = 1_024.0
"""What memory may seem to grow over the second half: allocators take pages now and then."""
BRIEF_TREND_KIB = 4_096.0
"""The same over a few rounds, in which caches and arenas fill still."""


@asynccontextmanager
async def fresh_gateway(kind: str) -> AsyncIterator[RunningGateway]:
    """Run a gateway of the test's own, with its embedded broker or in front of nsqd."""
    if kind == "embedded":
        async with gateway_alone(QUIET) as gateway:
            yield gateway
        return
    async with (
        killable_broker(kind) as nsqd,
        gateway_with_nsqd([nsqd.tcp_address], [nsqd.http_address], QUIET) as gateway,
    ):
        yield gateway


async def test_mixed_load_leaves_nothing_behind(kind: str, topic: str) -> None:
    """After every round all descriptors and tasks are back, and memory has no upward trend."""
    chance = random.Random(topic)
    async with fresh_gateway(kind) as gateway:
        for _ in range(WARM_UP_ROUNDS):
            await run_round(gateway, topic, chance)
        at_rest = await held_resources(gateway)
        rounds: list[HeldResources] = []
        until = time.monotonic() + SOAK_S
        while len(rounds) < LEAST_ROUNDS or time.monotonic() < until:
            await run_round(gateway, topic, chance)
            rounds.append(await held_resources(gateway, at_rest))
            assert rounds[-1].is_within(at_rest), f"round {len(rounds)}: {rounds[-1]}, {at_rest}"

    trend = growth_kib(rounds[len(rounds) // 2 :])
    print(f"{len(rounds)} rounds, {trend:+.0f} KiB in the second half, {rounds[-1]}")  # noqa: T201 - how hard it was
    assert trend <= (TREND_KIB if SOAK_S else BRIEF_TREND_KIB)
