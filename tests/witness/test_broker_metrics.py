"""The metrics of real nsqds: equal to their statistics, and gone with an nsqd that is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.brokers.nsqd import RealNsqd, real_nsqd
from tests.support.gateways.gateway import RunningGateway, gateway_with_nsqd
from tests.support.websocket.subscriber_client import Json, SubscriberClient

pytestmark = pytest.mark.nsqd

_WAIT_S = 60.0
_PREFIX = "nsq_gateway_broker_"
_AGE = f"{_PREFIX}statistics_age_seconds"
_OF_CHANNELS = {
    "channel_depth": "depth",
    "channel_backend_depth": "backend_depth",
    "channel_in_flight": "in_flight_count",
    "channel_deferred": "deferred_count",
    "channel_clients": "client_count",
    "channel_paused": "paused",
    "channel_messages_total": "message_count",
    "channel_requeued_total": "requeue_count",
    "channel_timed_out_total": "timeout_count",
}
_OF_TOPICS = {
    "topic_depth": "depth",
    "topic_backend_depth": "backend_depth",
    "topic_paused": "paused",
    "topic_messages_total": "message_count",
}

Values = dict[tuple[str, ...], float]


@asynccontextmanager
async def cluster(size: int, *flags: str) -> AsyncIterator[tuple[list[RealNsqd], RunningGateway]]:
    """Run *size* nsqds that keep two messages in memory, and a gateway in front of them."""
    async with AsyncExitStack() as life:
        nsqds = [
            await life.enter_async_context(real_nsqd("--mem-queue-size=2")) for _ in range(size)
        ]
        tcp = [nsqd.tcp_address for nsqd in nsqds]
        http = [nsqd.http_address for nsqd in nsqds]
        yield nsqds, await life.enter_async_context(gateway_with_nsqd(tcp, http, *flags))


async def metrics(gateway: RunningGateway) -> Values:
    """Return the metrics of the nsqds, by name without the prefix, and label values."""
    async with httpx.AsyncClient(trust_env=False, timeout=_WAIT_S) as http:
        answer = await http.get(f"{gateway.management_url}/metrics")
    return {
        (sample.name.removeprefix(_PREFIX), *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
        if sample.name.startswith(_PREFIX) and sample.name != _AGE
    }


async def expected(nsqds: Sequence[RealNsqd]) -> Values:
    """Return what `metrics` should be, from nsqd's own /stats, but for the age."""
    values: Values = {("topics_left_out",): 0.0}
    async with httpx.AsyncClient(trust_env=False) as http:
        for nsqd in nsqds:
            node = nsqd.http_address
            answer = await http.get(f"http://{node}/stats?format=json")
            stats = answer.json()
            values["up", node] = values["info", node, stats["version"]] = 1.0
            values["start_time_seconds", node] = stats["start_time"]
            for topic in stats["topics"]:
                values |= _values(_OF_TOPICS, topic, topic["topic_name"], node)
                for channel in topic["channels"]:
                    names = (topic["topic_name"], channel["channel_name"], node)
                    values |= _values(_OF_CHANNELS, channel, *names)
    return values


def _values(names: dict[str, str], stats: dict[str, Any], *labels: str) -> Values:
    return {(name, *labels): float(stats[member]) for name, member in names.items()}


async def post(address: str, path: str, body: bytes = b"") -> None:
    async with httpx.AsyncClient(trust_env=False) as http:
        (await http.post(f"http://{address}{path}", content=body)).raise_for_status()


async def deliveries(client: SubscriberClient, count: int) -> list[Json]:
    """Return the next *count* deliveries; between them come nsqds that are connected later."""
    found: list[Json] = []
    while len(found) < count:
        received = await client.receive()
        if received["type"] == "message":
            found.append(received)
    return found


async def test_the_numbers_are_those_of_nsqd() -> None:
    """Of three nsqds, with every number above 0 somewhere but timeouts."""
    async with (
        asyncio.timeout(_WAIT_S),
        cluster(3, "--broker-metrics-interval-s=1") as (nsqds, gateway),
        gateway.subscribe("t", "c", max_in_flight=6) as client,
    ):
        for number, nsqd in enumerate(nsqds):
            for name in ("t&channel=c", "t&channel=paused", "paused&channel=c"):
                await post(nsqd.http_address, f"/topic/create?topic={name}")
                await post(nsqd.http_address, f"/channel/create?topic={name}")
            await post(nsqd.http_address, "/channel/pause?topic=t&channel=paused")
            await post(nsqd.http_address, "/topic/pause?topic=paused")
            for _ in range(4 + number):
                await post(nsqd.http_address, "/pub?topic=paused", b"waits")
                await post(nsqd.http_address, "/pub?topic=t", b"hello")
            await post(nsqd.http_address, "/pub?topic=t&defer=60000", b"later")
        first, second = await deliveries(client, 2)
        await client.ask({"cmd": "RDY", "count": 1, "ref": "no more"})
        await client.send({"cmd": "REQ", "id": first["id"], "timeout_ms": 60_000})
        await client.send({"cmd": "FIN", "id": second["id"]})
        while (found := await metrics(gateway)) != await expected(nsqds):
            pass

    numbers = {key[0] for key, value in found.items() if value}
    assert {"channel_timed_out_total"} == {*_OF_TOPICS, *_OF_CHANNELS} - numbers


async def test_a_lost_nsqd_is_down_and_its_numbers_are_gone() -> None:
    """Old numbers would look as if nothing had happened."""
    async with (
        asyncio.timeout(_WAIT_S),
        cluster(2, "--broker-metrics-interval-s=1") as (nsqds, gateway),
    ):
        kept, lost = nsqds
        for nsqd in nsqds:
            await post(nsqd.http_address, "/topic/create?topic=t")
        assert 2 == len([key for key in await metrics(gateway) if key[0] == "topic_depth"])
        lost.process.kill()
        await lost.process.wait()
        while (found := await metrics(gateway))["up", lost.http_address]:
            pass

    assert [("up", lost.http_address)] == [key for key in found if lost.http_address in key]
    assert 1 == found["up", kept.http_address]


async def test_nsqd_is_asked_only_while_somebody_scrapes() -> None:
    """nsqd logs each request; a gateway that nobody scrapes makes none."""
    async with cluster(1) as ((nsqd,), gateway):
        await gateway.publish("t", b"hello")
        before = nsqd.log.matches("GET /stats")
        found = await metrics(gateway)
        await nsqd.log.match("GET /stats")
        again = await metrics(gateway)

    assert [] == before
    assert 1.0 == found["topic_messages_total", "t", nsqd.http_address]
    assert found == again
    assert 1 == len(nsqd.log.matches("GET /stats"))


async def test_without_metrics_of_the_nsqds_there_are_none() -> None:
    async with cluster(1, "--no-broker-metrics") as (_, gateway):
        assert {} == await metrics(gateway)
