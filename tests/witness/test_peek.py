"""A peek at real nsqds costs one attempt and nothing else; at the embedded broker, nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.brokers.nsqd import RealNsqd, real_nsqd
from tests.support.gateways.gateway import RunningGateway, gateway_alone, gateway_with_nsqd
from tests.support.gateways.shell import run

pytestmark = pytest.mark.nsqd

_WAIT_S = 120.0
_NAMES = {"topic": "t", "channel": "c"}


@asynccontextmanager
async def cluster(*depths: int) -> AsyncIterator[tuple[RunningGateway, list[RealNsqd]]]:
    """Run an nsqd for each of *depths*, with so many messages in channel c of topic t."""
    async with AsyncExitStack() as life, asyncio.timeout(_WAIT_S):
        nsqds = [await life.enter_async_context(real_nsqd()) for _ in depths]
        for nsqd, depth in zip(nsqds, depths, strict=True):
            await post(nsqd, "/topic/create?topic=t")
            await post(nsqd, "/channel/create?topic=t&channel=c")
            for number in range(depth):
                await post(nsqd, "/pub?topic=t", b"%d" % number)
        tcp = [nsqd.tcp_address for nsqd in nsqds]
        http = [nsqd.http_address for nsqd in nsqds]
        yield await life.enter_async_context(gateway_with_nsqd(tcp, http)), nsqds


async def post(nsqd: RealNsqd, path: str, body: bytes = b"") -> None:
    async with httpx.AsyncClient(trust_env=False) as http:
        (await http.post(f"http://{nsqd.http_address}{path}", content=body)).raise_for_status()


async def counts(gateway: RunningGateway) -> list[tuple[int, int, int, int]]:
    """Return depth, in flight, requeued and consumers of the channel at each nsqd."""
    answer = await gateway.http.get("/stats", params={"format": "json", "topic": "t"})
    names = ("depth", "in_flight_count", "requeue_count", "client_count")
    return [
        tuple(channel[name] for name in names)
        for topic in answer.json()["topics"]
        for channel in topic["channels"]
    ]


async def peek(gateway: RunningGateway, method: str, **query: int | str) -> tuple[int, Any]:
    answer = await gateway.http.request(method, "/channel/peek", params={**_NAMES, **query})
    return answer.status_code, answer.json()


async def test_nsqd_does_not_show_messages_for_free() -> None:
    """The refusal says what it would cost, and nothing has happened."""
    async with cluster(2) as (gateway, _):
        status, problem = await peek(gateway, "GET")
        after = await counts(gateway)

    assert (409, "PEEK_TAKES") == (status, problem["message"])
    assert "adds 1 to their attempts" in problem["detail"]
    assert [(2, 0, 0, 0)] == after


async def test_what_is_taken_is_given_back_at_once() -> None:
    """So many as are shown, shared out over the nsqds; each has one attempt more."""
    async with cluster(5, 1, 0) as (gateway, nsqds):
        status, peeked = await peek(gateway, "POST", max=4)
        after = await counts(gateway)
        _, again = await peek(gateway, "POST", max=100)

    assert 200 == status
    assert (False, True) == (peeked["is_free"], peeked["more"])
    assert ["0", "0", "1", "2"] == sorted(each["body"] for each in peeked["messages"])
    assert {1} == {each["attempts"] for each in peeked["messages"]}
    nodes = {nsqd.http_address for nsqd in nsqds[:2]}
    assert nodes == {each["node"] for each in peeked["messages"]}
    assert [(5, 0, 3, 0), (1, 0, 1, 0), (0, 0, 0, 0)] == sorted(after, reverse=True)
    assert [1, 1, 2, 2, 2, 2] == sorted(each["attempts"] for each in again["messages"])
    assert not again["more"]


async def test_a_paused_channel_gives_nothing() -> None:
    """nsqd delivers nothing there: the answer comes at once."""
    async with cluster(2) as (gateway, nsqds):
        await post(nsqds[0], "/channel/pause?topic=t&channel=c")
        status, peeked = await peek(gateway, "POST")
        after = await counts(gateway)

    assert (200, []) == (status, peeked["messages"])
    assert [(2, 0, 0, 0)] == after


async def test_a_channel_that_nobody_has_is_not_created() -> None:
    async with cluster(1) as (gateway, _):
        answers = [
            await gateway.http.post("/channel/peek", params={"topic": topic, "channel": "none"})
            for topic in ("t", "none")
        ]
        channels = await counts(gateway)

    assert [404, 404] == [answer.status_code for answer in answers]
    assert ["CHANNEL_NOT_FOUND", "TOPIC_NOT_FOUND"] == [
        answer.json()["message"] for answer in answers
    ]
    assert 1 == len(channels)


@pytest.mark.parametrize("is_durable", [False, True])
async def test_the_embedded_broker_shows_for_free(tmp_path: Path, is_durable: bool) -> None:  # noqa: FBT001
    """In flight and deferred ones as well; a POST and the command do not take either."""
    flags = [f"--broker-data-path={tmp_path}"] if is_durable else []
    async with gateway_alone(*flags) as gateway:
        for path in ("/topic/create?topic=t", "/channel/create?topic=t&channel=c"):
            (await gateway.http.post(path)).raise_for_status()
        await gateway.publish("t", b"one")
        await gateway.publish("t", b"\xff", defer=60_000)
        answers = [await peek(gateway, method) for method in ("GET", "POST")]
        printed = await run("peek", "t", "c", "--take", settings={"url": gateway.url})
        after = await counts(gateway)

    assert [200, 200] == [status for status, _ in answers]
    for _, peeked in answers:
        assert (True, False) == (peeked["is_free"], peeked["more"])
        assert [("queued", "one"), ("deferred", "/w==")] == [
            (each["state"], each.get("body") or each["body_base64"]) for each in peeked["messages"]
        ]
        assert {gateway.broker_http_address} == {each["node"] for each in peeked["messages"]}
    assert (0, b"one\n\xff\n") == printed[:2]
    assert [(1, 0, 0, 0)] == after


async def test_the_command_asks_before_it_takes() -> None:
    """`peek` fails with what it would cost, unless --take accepts it."""
    async with cluster(3) as (gateway, _):
        settings = {"url": gateway.url}
        refused = await run("peek", "t", "c", settings=settings)
        taken = await run("peek", "t", "c", "--take", "-n", "2", settings=settings)
        as_json = await run("peek", "t", "c", "--take", "--json", settings=settings)
        without = await run("peek", "t", "c", settings={"nsqd_http_address": "127.0.0.1:1"})

    assert 1 == refused[0]
    assert "--take" in refused[2]
    assert (0, b"0\n1\n") == taken[:2]
    assert "1 more" in taken[2] or "more messages" in taken[2]
    assert 3 == len(as_json[1].splitlines())
    assert 2 == without[0]
