"""
The admin API in front of real nodes: each response compared with nsqd's, and its effect.

The gateway's application runs in this process; nsqd, nsqlookupd and the embedded broker are real.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import httpx
import pytest

from gateway.broker.broker import Broker
from gateway.client.nsqd_http import NsqdHttpOptions
from gateway.credentials import Secret
from tests.support.brokers.auth_server import auth_server
from tests.support.brokers.embedded_broker import embedded_broker
from tests.support.brokers.killable_broker import free_port
from tests.support.brokers.nsqd import (
    NSQD_VERSION,
    RealNsqd,
    RealNsqlookupd,
    real_nsqd,
    real_nsqlookupd,
)
from tests.support.brokers.scripted_lookupd import scripted_lookupd, silent
from tests.support.http.admin_app import IDENTITY, AdminAppOptions, admin_app

pytestmark = pytest.mark.nsqd

_WAIT_S = 60.0
SECRET = "of-the-administrator"
TOPIC_ACTIONS = ["create", "delete", "empty", "pause", "unpause"]
ADMINISTRATION = [
    *(("POST", f"/{kind}/{action}") for kind in ("topic", "channel") for action in TOPIC_ACTIONS),
    ("GET", "/stats"),
    ("GET", "/stats?format=json"),
    ("GET", "/info"),
]


def http(address: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=f"http://{address}", trust_env=False, timeout=_WAIT_S)


def lone_broker() -> AbstractAsyncContextManager[Broker]:
    """Run the embedded broker with its HTTP port."""
    return embedded_broker(has_http=True)


Start: TypeAlias = Callable[[], AbstractAsyncContextManager[RealNsqd | Broker]]
BOTH = pytest.mark.parametrize("start", [real_nsqd, lone_broker], ids=["nsqd", "embedded"])


# Beside nsqd's own answers

BEFORE = [
    "/topic/create?topic=t",
    "/channel/create?topic=t&channel=c",
    "/pub?topic=t",
    "/topic/create?topic=paused",
    "/topic/pause?topic=paused",
]
NAMES = [
    "",
    "?topic=t",
    "?topic=",
    "?topic=nowhere",
    "?topic=a+b",
    "?topic=a%0Ab",
    "?topic=%FF",
    "?topic=t;",
    "?topic=%zz",
    "?topic=t%23ephemeral",
    "?topic=t&topic=nowhere",
    "?topic=" + "x" * 64,
    "?topic=" + "x" * 65,
    "?channel=c",
    "?topic=t&channel=c",
    "?topic=t&channel=",
    "?topic=t&channel=a+b",
    "?topic=t&channel=nowhere",
    "?topic=nowhere",
    "?topic=made&channel=c",
    "?topic=a+b&channel=a+b",
    "?topic=t&channel=c%23ephemeral",
    "?topic=t&channel=c;",
]
REQUESTS = [
    ("POST", f"/{kind}/{action}{names}")
    for kind in ("channel", "topic")
    for action in ("create", "empty", "pause", "unpause", "delete")
    for names in NAMES
]
REPORTS = [
    "/stats?format=json",
    "/stats?format=json&topic=t",
    "/stats?format=json&topic=nowhere",
    "/stats?format=json&topic=t&channel=c",
    "/stats?format=json&channel=nowhere",
    "/stats?format=json&topic=t&channel=nowhere",
    "/stats?format=json&include_clients=false",
    "/stats?format=json&include_clients=0&include_mem=0",
    "/stats?format=json&include_clients=nonsense&include_mem=",
    "/stats?format=json&topic=&channel=",
    "/stats?format=json&format=text",
]
MAKES_THE_TOPIC = "/channel/create?topic=made&channel=c"
"""nsqd says 404 TOPIC_NOT_FOUND; here the topic is made first, and so it is there from then on."""


def answer_of(answer: httpx.Response) -> tuple[int, str | bytes, str | None]:
    """Return what a client of nsqd looks at: status, token or body, the header of NSQ."""
    body: str | bytes = answer.content
    if answer.status_code >= 400:
        body = answer.json()["message"]
    return answer.status_code, body, answer.headers.get("x-nsq-content-type")


def counted(report: dict[str, Any]) -> dict[str, Any]:
    """Return a report without what is different from process to process, and without nodes."""
    kept = {key: value for key, value in report.items() if key not in {"start_time", "nodes"}}
    if "memory" in kept:
        kept["memory"] = sorted(kept["memory"])
    if kept["topics"] is not None:
        kept["topics"] = [{**topic, "node": None} for topic in kept["topics"]]
    return kept


@BOTH
async def test_every_answer_is_nsqds_own(start: Start) -> None:
    """Request by request, on two nodes with the same past; then both have the same in them."""
    async with (
        start() as behind,
        real_nsqd() as own,
        admin_app(behind.http_address, setup=AdminAppOptions(looks_for_auth=True)) as gateway,
        http(behind.http_address) as behind_http,
        http(own.http_address) as nsqd,
    ):
        different = []
        for client in (behind_http, nsqd):
            for path in BEFORE:
                assert 200 == (await client.post(path, content=b"x")).status_code
        for method, path in REQUESTS:
            got = answer_of(await gateway.request(method, path))
            if path == MAKES_THE_TOPIC:
                not_there = answer_of(await nsqd.request(method, path))
                assert ((200, b""), (404, "TOPIC_NOT_FOUND")) == (got[:2], not_there[:2])
                await nsqd.post("/topic/create?topic=made")
            expected = answer_of(await nsqd.request(method, path))
            if got != expected:
                different.append((method, path, got, expected))
        after = [(await client.get("/stats?format=json")).json() for client in (gateway, nsqd)]

    assert [] == different
    assert counted(after[1])["topics"] == counted(after[0])["topics"]


async def test_every_report_is_nsqds_own() -> None:
    """All filters, with the node beside each topic; the text to the letter but for its clock."""
    async with (
        real_nsqd() as node,
        admin_app(node.http_address, setup=AdminAppOptions(looks_for_auth=True)) as gateway,
        http(node.http_address) as nsqd,
    ):
        for path in BEFORE:
            await nsqd.post(path, content=b"x")
        pairs = []
        for path in REPORTS:
            got, expected = await gateway.get(path), await nsqd.get(path)
            assert expected.headers["content-type"] == got.headers["content-type"]
            pairs.append((got.json(), expected.json()))
        texts = [
            (await client.get("/stats?topic=t&include_mem=false")).text.splitlines()
            for client in (gateway, nsqd)
        ]

    assert [counted(expected) for _, expected in pairs] == [counted(got) for got, _ in pairs]
    assert [[*expected, "nodes"] for _, expected in pairs] == [list(got) for got, _ in pairs]
    assert {node.http_address} == {
        topic["node"] for got, _ in pairs for topic in got["topics"] or ()
    }
    without_clock = [[line for line in text if "uptime" not in line] for text in texts]
    assert without_clock[1] == without_clock[0]


@BOTH
async def test_info_has_nsqds_keys(start: Start) -> None:
    """In its order, with the gateway's own name and port; limits are the node's."""
    async with (
        start() as node,
        admin_app(node.http_address) as gateway,
        http(node.http_address) as nsqd,
    ):
        got = (await gateway.get("/info")).json()
        expected = (await nsqd.get("/info")).json()

    of_the_gateway = {
        "broadcast_address": IDENTITY.broadcast_address,
        "hostname": IDENTITY.hostname,
        "http_port": IDENTITY.http_port,
        "tcp_port": -1,
        "start_time": IDENTITY.start_time,
    }
    known = {key: value for key, value in expected.items() if not key.startswith("topology")}
    nodes = [{**expected, "node": node.http_address}]
    assert {
        **known,
        **of_the_gateway,
        "gateway": IDENTITY.version,
        "nodes": nodes,
    } == got
    assert list(known) == list(got)[: len(known)]


# A cluster


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Two nsqds, the first named by the settings, the second by nsqlookupd alone."""

    named: RealNsqd
    found: RealNsqd
    lookupd: RealNsqlookupd
    gateway: httpx.AsyncClient
    clients: dict[str, httpx.AsyncClient]
    """Of each node by its HTTP address."""

    @property
    def nodes(self) -> list[str]:
        """The nsqds, in order of address."""
        return sorted([self.named.http_address, self.found.http_address])

    async def post(self, path: str) -> tuple[int, str]:
        """Return the status, and the token of an error."""
        status, body, _ = answer_of(await self.gateway.post(path))
        return status, body if isinstance(body, str) else ""

    async def ask(self, node: str, path: str) -> Any:  # noqa: ANN401 - any JSON
        """Return what *node* itself says."""
        return (await self.clients[node].get(path)).json()

    async def topics(self, node: str) -> dict[str, dict[str, Any]]:
        """Return what an nsqd has, by name of the topic."""
        return {
            each["topic_name"]: each
            for each in (await self.ask(node, "/stats?format=json"))["topics"]
        }


@asynccontextmanager
async def cluster(**setup: Any) -> AsyncIterator[Cluster]:  # noqa: ANN401 - of AdminAppOptions
    """Run a cluster and a gateway that knows all of it."""
    async with AsyncExitStack() as life:
        lookupd = await life.enter_async_context(real_nsqlookupd())
        register = f"--lookupd-tcp-address={lookupd.tcp_address}"
        named = await life.enter_async_context(real_nsqd())
        found = await life.enter_async_context(real_nsqd(register))
        known = AdminAppOptions(
            lookupds=(lookupd.http_address,), found=1, looks_for_auth=True, **setup
        )
        gateway = await life.enter_async_context(admin_app(named.http_address, setup=known))
        addresses = (named.http_address, found.http_address, lookupd.http_address)
        clients = {each: await life.enter_async_context(http(each)) for each in addresses}
        yield Cluster(named=named, found=found, lookupd=lookupd, gateway=gateway, clients=clients)


async def becomes(look: Callable[[], Awaitable[object]], expected: object) -> None:
    """Return once *look* returns *expected*: nsqd tells nsqlookupd in its own time."""
    async with asyncio.timeout(_WAIT_S):
        while await look() != expected:
            pass


async def test_a_channel_is_made_everywhere_with_its_topic() -> None:
    """On both nsqds, and at nsqlookupd, also for nsqds to come."""
    async with cluster() as it:
        assert (200, "") == await it.post("/channel/create?topic=t&channel=c")

        made = [await it.topics(node) for node in it.nodes]
        known = await it.ask(it.lookupd.http_address, "/channels?topic=t")

    assert [["c"], ["c"]] == [
        [channel["channel_name"] for channel in topics["t"]["channels"]] for topics in made
    ]
    assert {"channels": ["c"]} == known


async def test_a_topic_that_one_nsqd_has_is_found() -> None:
    """404 from the other is no failure; a channel that neither has is 404, as is a topic."""
    async with cluster() as it:
        await it.clients[it.named.http_address].post("/channel/create?topic=t&channel=c")
        await it.clients[it.named.http_address].post("/topic/create?topic=t")
        await it.clients[it.named.http_address].post("/channel/create?topic=t&channel=c")
        answers = [
            await it.post("/topic/pause?topic=t"),
            await it.post("/channel/pause?topic=t&channel=c"),
            await it.post("/channel/pause?topic=t&channel=d"),
            await it.post("/channel/pause?topic=u&channel=c"),
            await it.post("/topic/pause?topic=u"),
            await it.post("/channel/delete?topic=t&channel=c"),
            await it.post("/channel/delete?topic=t&channel=c"),
        ]
        topic = (await it.topics(it.named.http_address))["t"]

    assert [
        (200, ""),
        (200, ""),
        (404, "CHANNEL_NOT_FOUND"),
        (404, "TOPIC_NOT_FOUND"),
        (404, "TOPIC_NOT_FOUND"),
        (200, ""),
        (404, "CHANNEL_NOT_FOUND"),
    ] == answers
    assert (True, []) == (topic["paused"], topic["channels"])


async def test_empty_applies_to_every_node() -> None:
    """Messages that wait for channels to come, and those of a channel."""
    async with cluster() as it:
        for node in it.nodes:
            await it.clients[node].post("/pub?topic=t", content=b"x")
            await it.clients[node].post("/pub?topic=u", content=b"x")
        assert (200, "") == await it.post("/topic/empty?topic=t")
        assert (200, "") == await it.post("/channel/create?topic=u&channel=c")
        for node in it.nodes:
            # The message goes from the topic to its channel in nsqd's own time.
            await becomes(lambda node=node: _depth(it, node), 1)  # type: ignore[misc]
        assert (200, "") == await it.post("/channel/empty?topic=u&channel=c")
        left = [await it.topics(node) for node in it.nodes]

    assert [0, 0] == [topics["t"]["depth"] for topics in left]
    assert [0, 0] == [topics["u"]["channels"][0]["depth"] for topics in left]


async def _depth(it: Cluster, node: str) -> object:
    return (await it.topics(node))["u"]["channels"][0]["depth"]


async def test_a_deleted_topic_is_found_nowhere() -> None:
    """Neither on an nsqd nor at nsqlookupd; deleted once more it is 404."""
    async with cluster() as it:
        await it.post("/channel/create?topic=t&channel=c")
        answers = [await it.post("/topic/delete?topic=t"), await it.post("/topic/delete?topic=t")]
        left = [await it.topics(node) for node in it.nodes]

        async def known() -> object:
            return (await it.ask(it.lookupd.http_address, "/topics"))["topics"]

        await becomes(known, [])

    assert [(200, ""), (404, "TOPIC_NOT_FOUND")] == answers
    assert [{}, {}] == left


async def test_stats_of_two_nodes_are_one_report() -> None:
    """Each topic with its node, producers of both, and what the nodes are."""
    async with cluster() as it:
        await it.post("/topic/create?topic=b")
        await it.clients[it.found.http_address].post("/topic/create?topic=a")
        report = (await it.gateway.get("/stats?format=json")).json()
        text = (await it.gateway.get("/stats")).text
        info = (await it.gateway.get("/info")).json()

    first, second = it.nodes
    assert [("a", it.found.http_address), ("b", first), ("b", second)] == [
        (topic["topic_name"], topic["node"]) for topic in report["topics"]
    ]
    assert [first, second] == [node["node"] for node in report["nodes"]]
    assert all(node["memory"]["heap_objects"] for node in report["nodes"])
    assert [first, second] == [node["node"] for node in info["nodes"]]
    assert (NSQD_VERSION, "OK") == (report["version"], report["health"])
    assert [f"node {first}", f"node {second}"] == [
        line for line in text.splitlines() if line.startswith("node ")
    ]


async def test_a_node_that_was_killed_is_named() -> None:
    """Changes get 502 with its line and apply to the other; reports continue without it."""
    async with cluster() as it:
        it.named.process.kill()
        await it.named.process.wait()
        answer = await it.gateway.post("/topic/create?topic=t")
        made = await it.topics(it.found.http_address)
        missing = await it.post("/topic/delete?topic=u")
        report = await it.gateway.get("/stats?format=json")
        info = await it.gateway.get("/info")

    line = f"nsqd {it.named.http_address}: Connection refused"
    assert (502, "PARTLY_DONE", line) == (
        answer.status_code,
        answer.json()["message"],
        answer.json()["detail"].splitlines()[-1],
    )
    assert ["t"] == list(made)
    assert (502, "PARTLY_DONE") == missing
    assert (200, 200) == (report.status_code, info.status_code)
    error = {"error": "Connection refused", "node": it.named.http_address}
    assert error in report.json()["nodes"]
    assert error in info.json()["nodes"]
    assert report.json()["health"].startswith("NOK")
    assert [it.found.http_address] == [topic["node"] for topic in report.json()["topics"]]


async def test_a_node_that_hangs_delays_responses_by_its_timeout_only() -> None:
    """It takes connections and says nothing."""
    setup = AdminAppOptions(options=NsqdHttpOptions(timeout_s=0.5))
    async with real_nsqd() as nsqd, scripted_lookupd() as hanging:
        hanging.rule = silent
        async with admin_app(nsqd.http_address, hanging.address, setup=setup) as gateway:
            answer = await gateway.post("/topic/create?topic=t")

    assert f"nsqd {hanging.address}: no complete answer within 0.5 s" in answer.json()["detail"]


async def test_an_nsqlookupd_that_was_killed_is_named() -> None:
    """Only where something is made or deleted; the nsqds do it all the same."""
    async with cluster() as it:
        it.lookupd.process.kill()
        await it.lookupd.process.wait()
        answer = await it.gateway.post("/topic/create?topic=t")
        paused = await it.post("/topic/pause?topic=t")
        made = [list(await it.topics(node)) for node in it.nodes]

    line = f"nsqlookupd {it.lookupd.http_address}: Connection refused"
    assert (502, line) == (answer.status_code, answer.json()["detail"].splitlines()[-1])
    assert (200, "") == paused
    assert [["t"], ["t"]] == made


async def test_all_nodes_gone_is_502_for_reports_too() -> None:
    async with admin_app(f"127.0.0.1:{free_port()}") as gateway:
        answers = [
            (await gateway.request(method, f"{path}{'&' if '?' in path else '?'}topic=t&channel=c"))
            for method, path in ADMINISTRATION
        ]

    assert {(502, "PARTLY_DONE")} == {
        (answer.status_code, answer.json()["message"]) for answer in answers
    }


# AUTH


async def test_an_nsqd_that_asks_for_auth_closes_administration() -> None:
    """Its own HTTP lets everybody in; the gateway is not the way there."""
    async with auth_server() as auth, AsyncExitStack() as life:
        flags = f"--auth-http-address={auth.address}"
        guarded = await life.enter_async_context(real_nsqd(flags))
        free = await life.enter_async_context(real_nsqd())
        addresses = guarded.http_address, free.http_address
        closed = await life.enter_async_context(
            admin_app(*addresses, setup=AdminAppOptions(looks_for_auth=True))
        )
        setup = AdminAppOptions(looks_for_auth=True, secret=Secret(SECRET.encode()))
        opened = await life.enter_async_context(admin_app(*addresses, setup=setup))
        refused = [await closed.request(*request) for request in ADMINISTRATION]
        # Made first: what comes after it is there to be paused, emptied and deleted.
        headers = {"Authorization": f"Bearer {SECRET}"}
        url = "/channel/create?topic=t&channel=c"
        without = await opened.post(url)
        made = await opened.post(url, headers=headers)
        stats = await opened.get("/stats?format=json", headers=headers)

    assert {(403, "FORBIDDEN")} == {(it.status_code, it.json()["message"]) for it in refused}
    assert (401, 200) == (without.status_code, made.status_code)
    assert sorted(addresses) == [topic["node"] for topic in json.loads(stats.content)["topics"]]
