"""A gateway that knows only nsqlookupd, and the nsqds that register there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx

from tests.support.brokers.nsqd import RealNsqlookupd, real_nsqlookupd
from tests.support.brokers.restartable_nsqd import RestartableNsqd, restartable_nsqd
from tests.support.gateways.gateway import RunningGateway, gateway_by_lookup

POLL_S = 0.2
ON_DISK = ("--mem-queue-size=0", "--sync-every=1")


@asynccontextmanager
async def found(
    *, nsqds: int = 1
) -> AsyncIterator[tuple[RunningGateway, list[RestartableNsqd], RealNsqlookupd]]:
    """Run nsqlookupd, *nsqds* that register there, and a gateway that knows the first only."""
    async with real_nsqlookupd() as lookupd:
        where = f"--lookupd-tcp-address={lookupd.tcp_address}"
        flags = (*ON_DISK, "--broadcast-address=127.0.0.1", where)
        async with restartable_nsqd(*flags) as first, restartable_nsqd(*flags) as second:
            if nsqds == 1:
                await second.kill()
            known = [first, second][:nsqds]
            await registered(lookupd, *known)
            async with gateway_by_lookup(
                lookupd.http_address,
                first.http_address,
                f"--lookupd-poll-interval-s={POLL_S}",
            ) as gateway:
                yield gateway, known, lookupd


async def registered(lookupd: RealNsqlookupd, *nsqds: RestartableNsqd) -> None:
    """Return once nsqlookupd names all of *nsqds*."""
    ports = {int(nsqd.tcp_address.rpartition(":")[2]) for nsqd in nsqds}
    async with httpx.AsyncClient(trust_env=False) as client, asyncio.timeout(15):
        while True:
            answer = await client.get(f"http://{lookupd.http_address}/nodes")
            producers = answer.json()["producers"]
            if ports <= {producer["tcp_port"] for producer in producers}:
                return
