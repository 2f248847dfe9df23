"""The routes of nodes: what they report, who is drained, and a topic that leaves one node."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing, suppress
from typing import Any, NamedTuple, TypeAlias

import httpx
import pytest

from gateway.broker.broker import Broker
from gateway.client.discovery import Discovery
from gateway.client.node_drains import MarkReader, NodeDrains
from gateway.client.nsqd_http import NsqdHttp
from tests.support.brokers.embedded_broker import embedded_broker
from tests.support.brokers.killable_broker import free_port
from tests.support.brokers.scripted_lookupd import respond, scripted_lookupd
from tests.support.http.admin_app import AdminAppOptions, admin_app
from tests.support.http.raw_http import exchange
from tests.support.manual_clock import now, until

pytestmark = pytest.mark.asyncio

_MARK = "gw.draining"

Avoided: TypeAlias = list[frozenset[str]]
"""Each set of addresses that a producer was told to avoid."""


class Cluster(NamedTuple):
    """Brokers, a gateway's routes, and the addresses that its producer was told to avoid."""

    brokers: list[Broker]
    gateway: httpx.AsyncClient
    avoided: Avoided

    async def nodes(self, query: str = "") -> list[dict[str, Any]]:
        """Return the nodes of GET /nodes."""
        answer = await self.gateway.get(f"/nodes{query}")
        assert 200 == answer.status_code, answer.text
        nodes: list[dict[str, Any]] = answer.json()["nodes"]
        return nodes

    async def states(self) -> list[str]:
        """Return the state of each broker, in their order."""
        states = {node["node"]: node["state"] for node in await self.nodes()}
        return [states[broker.http_address] for broker in self.brokers]

    async def change(self, action: str, node: str) -> tuple[int, str]:
        """POST /nodes/…; return the status and the token of an error."""
        answer = await self.gateway.post(f"/nodes/{action}", params={"node": node})
        return answer.status_code, answer.json()["message"] if answer.text else ""


@asynccontextmanager
async def cluster(count: int, *more: str) -> AsyncIterator[Cluster]:
    """Run *count* brokers, and a gateway that knows them and the nodes *more*."""
    avoided: Avoided = []
    async with AsyncExitStack() as life:
        brokers = [
            await life.enter_async_context(embedded_broker(has_http=True)) for _ in range(count)
        ]
        setup = AdminAppOptions(
            tcp_addresses=tuple(broker.tcp_address for broker in brokers),
            on_drains=avoided.append,
        )
        nodes = [broker.http_address for broker in brokers]
        gateway = await life.enter_async_context(admin_app(*nodes, *more, setup=setup))
        yield Cluster(brokers, gateway, avoided)


async def post(broker: Broker, target: str, body: bytes = b"") -> None:
    """Send a request that must succeed."""
    answer = await exchange(broker.http_address, "POST", target, body)
    assert 200 == answer.status


async def topics_of(broker: Broker) -> list[str]:
    """Return the names of its topics."""
    answer = await exchange(broker.http_address, "GET", "/stats?format=json")
    return [topic["topic_name"] for topic in json.loads(answer.body)["topics"]]


# Reports


async def test_each_node_reports_what_it_has() -> None:
    async with cluster(2) as running:
        first, second = running.brokers
        await post(first, "/topic/create?topic=t")
        await post(first, "/channel/create?topic=t&channel=c")
        for _ in range(3):
            await post(first, "/pub?topic=t", b"x")
        await post(first, "/pub?topic=t&defer=60000", b"x")
        await post(second, "/pub?topic=u", b"x")
        found = {node["node"]: node for node in await running.nodes()}

    names = ("state", "health", "topics", "channels", "depth", "in_flight", "deferred")
    assert ["active", "OK", 1, 1, 3, 0, 1] == [found[first.http_address][each] for each in names]
    assert ["active", "OK", 1, 0, 1, 0, 0] == [found[second.http_address][each] for each in names]
    assert "producers" not in found[first.http_address]


async def test_a_node_that_does_not_answer_says_why() -> None:
    gone = f"127.0.0.1:{free_port()}"
    async with cluster(1, gone) as running:
        found = {node["node"]: node for node in await running.nodes()}

    assert {"node": gone, "state": "unreachable", "error": "Connection refused"} == found[gone]


async def test_one_node_is_reported_alone_and_must_be_known() -> None:
    async with cluster(2) as running:
        (node,) = await running.nodes(f"?node={running.brokers[1].http_address}")
        unknown = await running.gateway.get("/nodes?node=x%00y:1")

    assert running.brokers[1].http_address == node["node"]
    assert [] == node["producers"]
    assert (404, "NODE_NOT_FOUND") == (unknown.status_code, unknown.json()["message"])


async def test_what_only_one_nsqlookupd_knows_is_missing_at_the_other() -> None:
    gone = "10.0.0.9:4150"
    async with (
        scripted_lookupd("10.0.0.1:4150", gone) as knowing,
        scripted_lookupd("10.0.0.1:4150") as other,
        scripted_lookupd() as failing,
        embedded_broker(has_http=True) as broker,
    ):
        failing.rule = respond(500, b"")
        lookupds = knowing, other, failing
        setup = AdminAppOptions(lookupds=tuple(each.address for each in lookupds), found=2)
        async with admin_app(broker.http_address, setup=setup) as gateway:
            answer = await gateway.get("/nodes", params={"node": broker.http_address})

    found = {each["lookupd"]: each for each in answer.json()["lookupds"]}
    assert [[], [gone]] == [found[each.address]["missing"] for each in (knowing, other)]
    assert "answered with status 500" == found[failing.address]["error"]
    assert ["10.0.0.1:4150", gone] == [
        node["tcp_address"] for node in found[knowing.address]["nodes"]
    ]


# Drains


async def test_a_drained_node_is_avoided_until_the_drain_ends() -> None:
    """It is draining as long as it has a message, wherever that is."""
    async with cluster(2) as running:
        broker, _ = running.brokers
        await post(broker, "/pub?topic=t", b"x")
        node = broker.http_address
        assert (200, "") == await running.change("drain", node)
        states = [await running.states()]
        await post(broker, "/topic/empty?topic=t")
        states.append(await running.states())
        assert (200, "") == await running.change("drain", node)
        assert (200, "") == await running.change("undrain", node)
        assert (200, "") == await running.change("undrain", node)
        states.append(await running.states())
        topics = await topics_of(broker)

    assert [["draining", "active"], ["drained", "active"], ["active", "active"]] == states
    assert [frozenset({broker.tcp_address}), frozenset()] == running.avoided
    assert _MARK not in topics


async def test_the_last_node_is_not_drained() -> None:
    """Neither the only one, nor the last that is left or that answers."""
    gone = f"127.0.0.1:{free_port()}"
    async with cluster(1, gone) as alone, cluster(2) as running:
        only = await alone.change("drain", alone.brokers[0].http_address)
        first, last = (broker.http_address for broker in running.brokers)
        first_answer = await running.change("drain", first)
        last_answer = await running.change("drain", last)
        states = await running.states()

    assert [(409, "DRAIN_REFUSED"), (200, ""), (409, "DRAIN_REFUSED")] == [
        only,
        first_answer,
        last_answer,
    ]
    assert ["drained", "active"] == states
    assert [] == alone.avoided


async def test_a_node_whose_tcp_address_is_unknown_is_not_drained() -> None:
    """Its publishes could not be sent elsewhere."""
    async with embedded_broker(has_http=True) as other, cluster(1, other.http_address) as running:
        answer = await running.change("drain", other.http_address)
        states = [node["state"] for node in await running.nodes()]

    assert (409, "DRAIN_REFUSED") == answer
    assert ["active", "active"] == states


@pytest.mark.parametrize("action", ["drain", "undrain"])
async def test_only_a_known_node_is_drained(action: str) -> None:
    async with cluster(2) as running:
        unknown = await running.change(action, "10.0.0.1:4151")
        missing = await running.gateway.post(f"/nodes/{action}")

    assert (404, "NODE_NOT_FOUND") == unknown
    assert (400, "MISSING_ARG_NODE") == (missing.status_code, missing.json()["message"])


@asynccontextmanager
async def another_gateway(
    running: Cluster, *more: str
) -> AsyncIterator[tuple[NodeDrains, list[frozenset[str]]]]:
    """Run the drains of one more process, which polls by itself."""
    avoided: Avoided = []
    discovery = Discovery([broker.tcp_address for broker in running.brokers])
    nodes = [broker.http_address for broker in running.brokers]
    nsqds = NsqdHttp([*nodes, *more], discovery)
    await discovery.start()
    await nsqds.start()
    drains = NodeDrains(nsqds, discovery, avoided.append, poll_interval_s=0.01)
    try:
        await drains.start()
        yield drains, avoided
    finally:
        await drains.stop()
        await nsqds.stop()
        await discovery.stop()


async def test_another_process_learns_of_a_drain() -> None:
    """One that runs, within its interval; one that starts, before it publishes anything."""
    async with cluster(2) as running, another_gateway(running) as (_, avoided):
        broker = running.brokers[0]
        await running.change("drain", broker.http_address)
        await until(lambda: len(avoided) == 1)
        async with another_gateway(running) as (_, at_once):
            assert [frozenset({broker.tcp_address})] == avoided == at_once
        await running.change("undrain", broker.http_address)
        await until(lambda: len(avoided) == 2)

    assert frozenset() == avoided[1]


async def test_an_nsqd_that_does_not_answer_delays_no_drain_of_another() -> None:
    """Nor one that answers in another way, or breaks off: its own state stays as it is."""
    async with AsyncExitStack() as life:
        odd = [
            await life.enter_async_context(responding_with(data))
            for data in (None, b"", b"SSH-2.0\r\n\r\n", b"HTTP/1.1 101 Switching\r\n\r\n")
        ]
        running = await life.enter_async_context(cluster(2))
        drains, avoided = await life.enter_async_context(another_gateway(running, *odd))
        broker = running.brokers[0]
        await running.change("drain", broker.http_address)
        began_at = now()
        await until(lambda: len(avoided) == 1)
        took_s = now() - began_at
        async with drains._changing:
            marks = await drains._read_marks()

    assert took_s < 1.0
    assert marks == {each.http_address: each is broker for each in running.brokers}


async def test_a_connection_that_was_closed_meanwhile_is_opened_again() -> None:
    """Chunked, as a proxy may send it."""
    body = b'{"version":"1.3.0","health":"OK","start_time":1,"topics":[]}'
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    answer = head + b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    async with responding_with(answer) as node:
        reader = MarkReader(node)
        marks = [await reader.read(5.0) for _ in range(3)]
        reader.close()

    assert [False] * 3 == marks


async def test_a_connect_that_hangs_is_not_repeated_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each occupies a thread while its name is looked up, and all connects share a few."""
    connects: list[str] = []

    async def hang(host: str, _port: int) -> None:
        connects.append(host)
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncio, "open_connection", hang)
    reader = MarkReader("nowhere:4151")

    assert [None, None] == [await reader.read(0.01) for _ in range(2)]
    assert ["nowhere"] == connects


@asynccontextmanager
async def responding_with(data: bytes | None) -> AsyncIterator[str]:
    """Answer the request of each connection with *data*, and close it; None: never answer."""

    async def respond_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer), suppress(asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            if data is None:
                await reader.read()
            writer.write(data or b"")

    server = await asyncio.start_server(respond_once, "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()
        yield f"{host}:{port}"


async def test_a_topic_of_that_name_is_no_drain_until_it_is_paused() -> None:
    """Whoever may publish can create it."""
    async with cluster(2) as running:
        broker = running.brokers[0]
        await post(broker, f"/pub?topic={_MARK}", b"x")
        states = await running.states()
        async with another_gateway(running) as (_, avoided):
            pass

    assert ["active", "active"] == states
    assert [] == avoided


async def test_a_drained_node_that_does_not_answer_stays_drained() -> None:
    """An outage must not bring publishes back to it."""
    async with cluster(2) as running:
        broker, _ = running.brokers
        await running.change("drain", broker.http_address)
        async with another_gateway(running) as (drains, avoided):
            await broker.stop()
            await drains._poll(drains._read_marks)

    assert [frozenset({broker.tcp_address})] == avoided


# A topic leaves one node


async def test_a_tombstoned_topic_leaves_one_node_only() -> None:
    """The nsqlookupds hide it first, so that no consumer creates it again."""
    async with scripted_lookupd() as lookupd, cluster(2) as both:
        lookupd.rule = respond(200, b"")
        first, _ = both.brokers
        for broker in both.brokers:
            await post(broker, "/pub?topic=t", b"x")
        setup = AdminAppOptions(lookupds=(lookupd.address,))
        nodes = [broker.http_address for broker in both.brokers]
        async with admin_app(*nodes, setup=setup) as gateway:
            names = {"topic": "t", "node": first.http_address}
            done = await gateway.post("/topic/tombstone", params=names)
            again = await gateway.post("/topic/tombstone", params=names)

        topics = [await topics_of(broker) for broker in both.brokers]

    assert 200 == done.status_code
    assert (404, "TOPIC_NOT_FOUND") == (again.status_code, again.json()["message"])
    node = first.http_address.replace(":", "%3A")
    asked = [each.target for each in lookupd.questions if "tombstone" in each.target]
    assert [f"/topic/tombstone?topic=t&node={node}"] * 2 == asked
    assert [[], ["t"]] == topics


@pytest.mark.parametrize(
    "query,expected",
    [
        ("", (400, "MISSING_ARG_TOPIC")),
        ("?topic=a%20b&node=x", (400, "INVALID_TOPIC")),
        ("?topic=t", (400, "MISSING_ARG_NODE")),
        ("?topic=t&node=10.0.0.1:4151", (404, "NODE_NOT_FOUND")),
    ],
)
async def test_a_tombstone_that_makes_no_sense_changes_nothing(
    query: str, expected: tuple[int, str]
) -> None:
    async with cluster(1) as running:
        answer = await running.gateway.post(f"/topic/tombstone{query}")

    assert expected == (answer.status_code, answer.json()["message"])
