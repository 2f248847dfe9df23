"""More clients than file descriptors: probes, metrics and publishers are still served."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.brokers.killable_broker import KillableBroker
from tests.support.gateways.gateway import RunningGateway, gateway_with_nsqd, poll_until
from tests.support.http.raw_http import read_response
from tests.support.websocket.raw_socket import RawSocket, handshake, raw_socket

pytestmark = pytest.mark.asyncio(loop_scope="session")

FILES, CROWD = 200, 400
PING = b"GET /ping HTTP/1.1\r\nHost: gateway\r\n\r\n"


@asynccontextmanager
async def with_few_files(broker: KillableBroker) -> AsyncIterator[RunningGateway]:
    """Run a gateway that may have `FILES` open."""
    where = [broker.tcp_address], [broker.http_address]
    async with gateway_with_nsqd(*where, "--log-format=json", open_files=FILES) as gateway:
        yield gateway


async def status_of(url: str, path: str, topic: str | None = None) -> int:
    """Return the answer to a request on a connection of its own; a POST where *topic* is given."""
    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=15) as http:
        if topic is None:
            return (await http.get(path)).status_code
        try:
            return (await http.post(path, content=b"x", params={"topic": topic})).status_code
        except httpx.ReadError:
            return 0  # its bytes have crossed a refusal


async def management(gateway: RunningGateway) -> list[int]:
    """Return what probes and Prometheus are answered, on connections of their own."""
    paths = ("/livez", "/readyz", "/metrics")
    return [await status_of(gateway.management_url, path) for path in paths]


async def metric(gateway: RunningGateway, name: str, **labels: str) -> float:
    """Return the value of a metric; -1 where there is none."""
    async with httpx.AsyncClient(base_url=gateway.management_url, trust_env=False) as http:
        text = (await http.get("/metrics")).text
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == name and labels.items() <= sample.labels.items():
                return sample.value
    return -1


async def ask(address: str, request: bytes, crowd: AsyncExitStack) -> tuple[RawSocket, int]:
    """Send *request* and keep the connection; return it, and the status, 0 for none."""
    socket = await crowd.enter_async_context(raw_socket(address))
    try:
        await socket.send(request)
        return socket, (await read_response(socket)).status
    except (ConnectionError, EOFError):
        return socket, 0


async def test_a_crowd_of_sockets_leaves_files_for_everybody_else(
    shared_broker: KillableBroker, topic: str
) -> None:
    """All are answered: 101 or 503; nothing else notices them, and no descriptor is missing."""
    async with with_few_files(shared_broker) as gateway, AsyncExitStack() as crowd:
        await gateway.publish(topic, b"before")  # and keeps its connection
        request = handshake(gateway.address, f"/sub?topic={topic}&channel=c")
        opened = [await ask(gateway.address, request, crowd) for _ in range(CROWD)]
        statuses = Counter(status for _, status in opened)
        probes = await management(gateway)
        await gateway.publish(topic, b"kept")

        async def publishes() -> int:
            return await status_of(gateway.url, "/pub", topic)

        newcomer = await poll_until(publishes, 200)
        sockets = await metric(gateway, "nsq_gateway_sockets_open")
        refused = await metric(gateway, "nsq_gateway_sockets_refused_total", reason="open_files")
        exhausted = await metric(gateway, "nsq_gateway_open_files_exhausted_total")
        await crowd.aclose()

        async def sockets_open() -> float:
            return await metric(gateway, "nsq_gateway_sockets_open")

        assert 0 == await poll_until(sockets_open, 0.0)
        again = Counter([(await ask(gateway.address, request, crowd))[1] for _ in range(20)])

    assert {101, 503} == set(statuses)
    assert (statuses[101], 0, {101: 20}) == (sockets, exhausted, again)
    assert refused > 0
    assert statuses[101] >= 30
    assert ([200, 200, 200], 200) == (probes, newcomer)


async def test_connections_that_stay_idle_leave_files_for_probes_and_metrics(
    shared_broker: KillableBroker, topic: str
) -> None:
    """Those beyond their share get 503 and a close, before they say anything; then all is well."""
    async with with_few_files(shared_broker) as gateway:
        await gateway.publish(topic, b"before")
        async with AsyncExitStack() as crowd:
            opened = [await ask(gateway.address, PING, crowd) for _ in range(CROWD)]
            statuses = Counter(status for _, status in opened)
            probes = await management(gateway)
            await gateway.publish(topic, b"kept")
            exhausted = await metric(gateway, "nsq_gateway_open_files_exhausted_total")
            refused = await metric(
                gateway, "nsq_gateway_http_connections_refused_total", reason="open_files"
            )

        async def publishes() -> int:
            return await status_of(gateway.url, "/pub", topic)

        afterwards = await poll_until(publishes, 200)
        async with gateway.subscribe(topic, "c") as client:
            message = await client.message()

    # Bytes that cross the refusal may lose it: no answer, and nothing was done.
    assert statuses[200] >= 50
    assert statuses[503] >= 50
    assert (CROWD - statuses[200], 0) == (refused, exhausted)
    assert ([200, 200, 200], 200) == (probes, afterwards)
    assert "before" == message["body"]


async def test_a_crowd_at_once_leaves_probes_alone(
    shared_broker: KillableBroker, topic: str
) -> None:
    async with with_few_files(shared_broker) as gateway, AsyncExitStack() as crowd:
        request = handshake(gateway.address, f"/sub?topic={topic}&channel=c")
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(ask(gateway.address, request, crowd)) for _ in range(CROWD)]
            probes = [await management(gateway) for _ in range(5)]
        statuses = Counter(task.result()[1] for task in asked)
        exhausted = await metric(gateway, "nsq_gateway_open_files_exhausted_total")

    assert [[200, 200, 200]] * 5 == probes
    assert statuses[101] >= 30
    assert (CROWD, 0) == (statuses.total(), exhausted)
    assert set(statuses) <= {101, 503, 0}
