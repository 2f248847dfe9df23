"""The numbers of topics and channels are nsqadmin's and nsq_stat's, on clusters after churn."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, NamedTuple

import httpx
import pytest

from tests.support.brokers.nsq_clients import nsqadmin, run_app
from tests.support.brokers.nsqd import RealNsqd, RealNsqlookupd, real_nsqd, real_nsqlookupd
from tests.support.gateways.gateway import RunningGateway, gateway_by_lookup
from tests.support.gateways.shell import run
from tests.support.websocket.subscriber_client import SubscriberClient

pytestmark = [pytest.mark.nsq_apps, pytest.mark.nsqd]

_WAIT_S = 60.0
_OF_NSQADMIN = {
    "depth": "depth",
    "in_flight": "in_flight_count",
    "deferred": "deferred_count",
    "requeued": "requeue_count",
    "timed_out": "timeout_count",
    "messages": "message_count",
    "consumers": "client_count",
    "paused": "paused",
}
_TOPICS, _CHANNELS = ("t0", "t1", "t2"), ("c0", "c1")


class Cluster(NamedTuple):
    """Three nsqds, registered with two nsqlookupds, and a gateway in front of them."""

    nsqds: list[RealNsqd]
    lookupds: list[RealNsqlookupd]
    gateway: RunningGateway

    @property
    def lookupd_http_addresses(self) -> list[str]:
        return [each.http_address for each in self.lookupds]


@asynccontextmanager
async def cluster() -> AsyncIterator[Cluster]:
    async with AsyncExitStack() as life:
        enter = life.enter_async_context
        lookupds = [await enter(real_nsqlookupd()) for _ in range(2)]
        flags = [f"--lookupd-tcp-address={each.tcp_address}" for each in lookupds]
        nsqds = [await enter(real_nsqd("--mem-queue-size=2", *flags)) for _ in range(3)]
        for nsqd in nsqds:
            await post(nsqd, "/topic/create?topic=t0")
            await post(nsqd, "/channel/create?topic=t0&channel=mine")
        for lookupd in lookupds:
            await registered(lookupd, "t0", len(nsqds))
        gateway = await enter(
            gateway_by_lookup(
                lookupds[0].http_address,
                nsqds[0].http_address,
                f"--lookupd-http-address={lookupds[1].http_address}",
            )
        )
        yield Cluster(nsqds, lookupds, gateway)


async def post(nsqd: RealNsqd, path: str, body: bytes = b"") -> None:
    """Send a request to *nsqd*, which may refuse it."""
    async with httpx.AsyncClient(trust_env=False) as http:
        await http.post(f"http://{nsqd.http_address}{path}", content=body)


async def registered(lookupd: RealNsqlookupd, topic: str, count: int) -> None:
    """Wait until *lookupd* knows *count* nsqds that have *topic*."""
    url = f"http://{lookupd.http_address}/lookup?topic={topic}"
    async with httpx.AsyncClient(trust_env=False) as http:
        while len((await http.get(url)).json().get("producers", ())) < count:
            pass


async def churn(cluster: Cluster, client: SubscriberClient, chance: random.Random) -> None:
    """Do what changes the numbers, at random nsqds."""
    for _ in range(120):
        nsqd = chance.choice(cluster.nsqds)
        topic, channel = chance.choice(_TOPICS), chance.choice(_CHANNELS)
        names = f"topic={topic}&channel={channel}"
        path = chance.choices(
            [
                f"/pub?topic={topic}",
                f"/pub?topic={topic}&defer=60000",
                f"/channel/create?{names}",
                f"/channel/pause?{names}",
                f"/channel/unpause?{names}",
                f"/channel/empty?{names}",
                f"/channel/delete?{names}",
                f"/topic/pause?topic={topic}",
                f"/topic/unpause?topic={topic}",
            ],
            [40, 5, 10, 2, 4, 1, 1, 1, 2],
        )[0]
        await post(nsqd, path, b"hello")
    for nsqd in cluster.nsqds:
        await post(nsqd, "/topic/unpause?topic=t0")
    for index in range(4):
        await cluster.gateway.publish("t0", b"for the consumer")
        received = await client.receive()
        while received["type"] != "message":
            received = await client.receive()
        command = "FIN" if index % 2 else "REQ"
        await client.send({"cmd": command, "id": received["id"], "timeout_ms": 60_000})


async def by_command(settings: dict[str, str]) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the rows of `channels`, by topic and channel."""
    status, output, errors = await run("channels", "--json", settings=settings)
    assert (0, "") == (status, errors)
    rows = map(json.loads, output.splitlines())
    return {
        (row["topic"], row["channel"]): {name: row[name] for name in _OF_NSQADMIN} for row in rows
    }


async def by_nsqadmin(cluster: Cluster) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the same from nsqadmin, which asks the nsqds that an nsqlookupd knows."""
    found = {}
    async with nsqadmin(f"--lookupd-http-address={cluster.lookupd_http_addresses[0]}") as admin:
        for topic in (await admin.get("/api/topics")).json()["topics"]:
            for channel in (await admin.get(f"/api/topics/{topic}")).json()["channels"]:
                found[topic, channel["channel_name"]] = {
                    name: channel[theirs] for name, theirs in _OF_NSQADMIN.items()
                }
    return found


@pytest.mark.parametrize("seed", range(3))
async def test_the_numbers_are_those_of_nsqadmin(seed: int) -> None:
    """By a gateway, by nsqlookupd, and at the nsqds: depth, in flight and the others agree."""
    chance = random.Random(seed)
    async with (
        asyncio.timeout(_WAIT_S),
        cluster() as running,
        running.gateway.subscribe("t0", "mine", max_in_flight=8) as client,
    ):
        await churn(running, client, chance)
        await client.ask({"cmd": "NOP", "ref": "all commands are at nsqd"})
        addresses = ",".join(nsqd.http_address for nsqd in running.nsqds)
        lookupds = ",".join(running.lookupd_http_addresses)
        expected = await by_nsqadmin(running)
        found = [
            await by_command(settings)
            for settings in (
                {"url": running.gateway.url},
                {"lookupd_http_address": lookupds},
                {"nsqd_http_address": addresses},
            )
        ]

    assert len(expected) > 3
    assert [expected] * 3 == found


async def test_the_numbers_are_those_of_nsq_stat() -> None:
    """Its line has rates; depth, its parts, in flight, deferred; and counters of the channel."""
    async with asyncio.timeout(_WAIT_S), cluster() as running:
        for nsqd in running.nsqds:
            for _ in range(3):
                await post(nsqd, "/pub?topic=t0", b"hello")
        lookupd = running.lookupd_http_addresses[0]
        output = await run_app(
            "nsq_stat",
            *("-topic=t0", "-channel=mine", "-count=1", "-interval=100ms"),
            f"-lookupd-http-address={lookupd}",
        )
        found = (await by_command({"lookupd_http_address": lookupd}))["t0", "mine"]

    _, depths, counters = output.splitlines()[-1].split("|")
    total, _, _, in_flight, deferred = map(int, depths.split())
    requeued, timed_out, messages, consumers = map(int, counters.split())
    assert 9 == total
    assert {
        "depth": total,
        "in_flight": in_flight,
        "deferred": deferred,
        "requeued": requeued,
        "timed_out": timed_out,
        "messages": messages,
        "consumers": consumers,
        "paused": False,
    } == found
