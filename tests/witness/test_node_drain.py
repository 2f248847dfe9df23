"""A drain of a real nsqd under load: nothing is published there, and it ends at zero."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, NamedTuple

import httpx
import pytest

from gateway.client.connection import ConnectionOptions
from gateway.client.producer import Producer, ProducerOptions
from gateway.protocol.identify import IdentifyRequest
from tests.support.brokers.nsqd import RealNsqd, real_nsqd
from tests.support.gateways.gateway import RunningGateway, gateway_with_nsqd, poll_until
from tests.support.gateways.shell import run
from tests.support.gateways.steady_load import Publisher
from tests.support.manual_clock import turn

pytestmark = pytest.mark.nsqd

_WAIT_S = 120.0
_EFFECT_S = 1.0
"""Within this time, a gateway's publishes go elsewhere."""


class Cluster(NamedTuple):
    """Three nsqds; the first one is drained."""

    nsqds: list[RealNsqd]

    @property
    def node(self) -> str:
        """HTTP address of the nsqd that is drained."""
        return self.nsqds[0].http_address

    @asynccontextmanager
    async def gateway(self) -> AsyncIterator[RunningGateway]:
        """Run a gateway in front of all nsqds."""
        tcp = [nsqd.tcp_address for nsqd in self.nsqds]
        http = [nsqd.http_address for nsqd in self.nsqds]
        async with gateway_with_nsqd(tcp, http) as running:
            yield running

    async def published_there(self) -> int:
        """Return how many messages the drained nsqd has ever got."""
        async with httpx.AsyncClient(trust_env=False) as client:
            answer = await client.get(f"http://{self.node}/stats?format=json")
        return sum(topic["message_count"] for topic in answer.json()["topics"] or ())


@asynccontextmanager
async def cluster() -> AsyncIterator[Cluster]:
    async with AsyncExitStack() as life, asyncio.timeout(_WAIT_S):
        yield Cluster([await life.enter_async_context(real_nsqd()) for _ in range(3)])


@asynccontextmanager
async def load(gateway: RunningGateway) -> AsyncIterator[list[Publisher]]:
    """Publish to four topics; every publish must succeed."""
    publishers = [Publisher(gateway.url, f"t{index}", f"p{index}") for index in range(4)]
    end = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        for publisher in publishers:
            group.create_task(publisher.run(end))
        yield publishers
        end.set()
    assert [] == [failure for publisher in publishers for failure in publisher.failures]


async def some_more(publishers: list[Publisher]) -> None:
    """Return once each of *publishers* has published some more."""
    for publisher in publishers:
        count = len(publisher.published)
        while len(publisher.published) < count + 20:
            await turn()


async def effect_is_due(publishers: list[Publisher]) -> None:
    """Publish until a drain that was begun now must have taken effect."""
    loop = asyncio.get_running_loop()
    due_at = loop.time() + _EFFECT_S
    while loop.time() < due_at:
        await some_more(publishers)


async def report(gateway: RunningGateway, node: str) -> dict[str, Any]:
    """Return what the gateway reports of *node*."""
    answer = await gateway.http.get("/nodes", params={"node": node})
    (found,) = answer.raise_for_status().json()["nodes"]
    assert isinstance(found, dict)
    return found


async def change(gateway: RunningGateway, action: str, node: str) -> httpx.Response:
    return await gateway.http.post(f"/nodes/{action}", params={"node": node})


async def test_no_publish_reaches_a_drained_nsqd() -> None:
    """Of the gateway that was asked, of another one, and of one that starts later."""
    async with cluster() as running, AsyncExitStack() as life:
        asked, other = [await life.enter_async_context(running.gateway()) for _ in range(2)]
        async with load(asked) as publishers, load(other) as others:
            await some_more(publishers + others)
            assert 200 == (await change(asked, "drain", running.node)).status_code
            await effect_is_due(publishers + others)
            count = await running.published_there()
            assert [1.0, 1.0] == [await metric(each, "draining_nsqds") for each in (asked, other)]
            async with running.gateway() as started, load(started) as more:
                await some_more(publishers + others + more)
            after = await running.published_there()
            assert 200 == (await change(other, "undrain", running.node)).status_code
            while await running.published_there() == count:
                await some_more(publishers)

    assert 0 < count == after


async def metric(gateway: RunningGateway, name: str) -> float:
    """Return a metric without labels."""
    async with httpx.AsyncClient(trust_env=False) as client:
        text = (await client.get(f"{gateway.management_url}/metrics")).text
    (line,) = (each for each in text.splitlines() if each.startswith(f"nsq_gateway_{name} "))
    return float(line.split()[1])


async def test_it_is_drained_only_once_nothing_is_left() -> None:
    """A message that waits, is in flight or deferred keeps it draining."""
    async with (
        cluster() as running,
        running.gateway() as gateway,
        httpx.AsyncClient(base_url=f"http://{running.node}", trust_env=False) as nsqd,
    ):
        await nsqd.post("/topic/create?topic=t")
        await nsqd.post("/channel/create?topic=t&channel=c")
        await nsqd.post("/pub?topic=t", content=b"waits")
        assert (1, 0, 0) == await gateway.counts_become("t", "c", (1, 0, 0))
        assert 200 == (await change(gateway, "drain", running.node)).status_code
        states = [await report(gateway, running.node)]
        async with gateway.subscribe("t", "c") as client:
            first = await client.receive()
            while first["type"] != "message":
                first = await client.receive()
            states.append(await report(gateway, running.node))
            await client.send({"cmd": "REQ", "id": first["id"], "timeout_ms": 60_000})
            await gateway.counts_become("t", "c", (0, 0, 1))
            states.append(await report(gateway, running.node))
            await nsqd.post("/channel/empty?topic=t&channel=c")
            states.append(await report(gateway, running.node))

    names = ("state", "depth", "in_flight", "deferred")
    assert [
        ("draining", 1, 0, 0),
        ("draining", 0, 1, 0),
        ("draining", 0, 0, 1),
        ("drained", 0, 0, 0),
    ] == [tuple(state[name] for name in names) for state in states]


async def test_who_publishes_past_the_gateway_is_listed() -> None:
    """With what it has published; the gateway's own connections are not."""
    offer = IdentifyRequest(user_agent="billing/2.0", hostname="billing-1")
    options = ProducerOptions(connection=ConnectionOptions(offer=offer))
    async with (
        cluster() as running,
        running.gateway() as gateway,
        Producer([running.nsqds[0].tcp_address], options) as billing,
        load(gateway) as publishers,
    ):
        await billing.publish("orders", b"x")
        while not await running.published_there():
            await some_more(publishers)
        found = await report(gateway, running.node)

    producers = [
        (each["user_agent"], each["hostname"], each["topics"]) for each in found["producers"]
    ]
    assert ("billing/2.0", "billing-1", [{"topic": "orders", "messages": 1}]) in producers
    assert {"billing/2.0"} == {user_agent for user_agent, _, _ in producers}


async def test_the_last_nsqd_is_not_drained_and_the_others_may_fail() -> None:
    """Without any other nsqd, publishes go to the drained ones again: they are not lost."""
    async with cluster() as running, running.gateway() as gateway:
        *drained, last = running.nsqds
        answers = [
            (await change(gateway, "drain", nsqd.http_address)).status_code
            for nsqd in running.nsqds
        ]
        last.process.kill()
        await last.process.wait()

        async def published() -> int:
            return (await gateway.http.post("/pub?topic=t", content=b"x")).status_code

        statuses = [await poll_until(published, 200) for _ in drained]

    assert [200, 200, 409] == answers
    assert [200, 200] == statuses


async def test_the_commands_drain_by_a_gateway_or_without_one() -> None:
    """`drain --wait` ends with the drain, and `nodes` names the state."""
    async with cluster() as running, running.gateway() as gateway:
        addresses = ",".join(nsqd.http_address for nsqd in running.nsqds)
        by_gateway = {"url": gateway.url}
        ways = [by_gateway, {"nsqd_http_address": addresses}]
        outputs = []
        for settings in ways:
            drained = await run("drain", running.node, "--wait", settings=settings)
            nodes = await run("nodes", "--json", settings=settings)
            rows = {row["node"]: row for row in map(json.loads, nodes[1].splitlines())}
            undrained = await run("undrain", running.node, settings=settings)
            outputs.append((drained, rows[running.node]["state"], undrained))
        unknown = await run("drain", "10.0.0.1:4151", settings=by_gateway)

    text = f"draining {running.node}: no message waits\ndrained {running.node}: "
    for drained, state, undrained in outputs:
        assert (0, "") == (drained[0], drained[2])
        assert drained[1].decode().startswith(text)
        assert "drained" == state
        assert (0, f"undrained {running.node}\n".encode(), "") == undrained
    assert 1 == unknown[0]
    assert "no nsqd with the HTTP address '10.0.0.1:4151' is known" in unknown[2]
