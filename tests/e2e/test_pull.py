"""POST /pull and POST /ack: messages over plain HTTP, with leases."""

from __future__ import annotations

import asyncio
import base64
import signal
import time
from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio

from tests.support.gateways.gateway import RunningGateway, gateway_alone
from tests.support.gateways.pulls import PullClient, pull_client
from tests.support.gateways.workers import gateway_with_two_workers

pytestmark = pytest.mark.asyncio(loop_scope="session")

AT_ONCE_S = 1.0
"""Far above what it takes (milliseconds), far below the message timeout (a minute)."""


@pytest_asyncio.fixture(loop_scope="session")
async def client(gateway: RunningGateway) -> AsyncIterator[PullClient]:
    async with pull_client(gateway.url) as client:
        yield client


async def filled(gateway: RunningGateway, topic: str, count: int, channel: str = "c") -> None:
    """Create the channel and publish messages 0 to *count* - 1."""
    names = {"topic": topic, "channel": channel}
    (await gateway.http.post("/channel/create", params=names)).raise_for_status()
    for number in range(count):
        await gateway.publish(topic, b"%d" % number)


async def test_messages_are_pulled_and_finished(
    gateway: RunningGateway, client: PullClient, topic: str
) -> None:
    await filled(gateway, topic, 5)
    first = await client.pull(topic, "c", max=3)
    second = await client.pull(topic, "c", max=3)
    assert [["0", "1", "2"], ["3", "4"]] == [
        sorted(each["body"] for each in pulled) for pulled in (first, second)
    ]
    for message in first + second:
        assert {"lease", "id", "timestamp_ns", "attempts", "lease_ms", "body"} == message.keys()
        assert 1 == message["attempts"]
        assert 59_000 < message["lease_ms"] <= 60_000
    result = await client.ack(fin=[each["lease"] for each in first + second])

    assert {"done": 5, "refused": []} == result
    assert (0, 0, 0) == await gateway.counts_become(topic, "c", (0, 0, 0))


async def test_a_pull_waits_for_a_message(
    gateway: RunningGateway, client: PullClient, topic: str
) -> None:
    """It is answered as soon as one is there, and RDY falls to 0 then."""
    await filled(gateway, topic, 0)
    waiting = asyncio.create_task(client.pull(topic, "c", wait_ms=30_000))
    await gateway.ready_becomes(topic, "c", 10)
    began_at = time.monotonic()
    await gateway.publish(topic, b"x")
    [message] = await waiting

    assert "x" == message["body"]
    assert time.monotonic() - began_at < AT_ONCE_S
    await gateway.ready_becomes(topic, "c", 0)


async def test_a_pull_without_messages_is_empty(client: PullClient, topic: str) -> None:
    """Also for a topic that does not exist yet, which the pull creates as a socket would."""
    assert [] == await client.pull(topic, "c")
    assert [] == await client.pull(topic, "c", wait_ms=200)


async def test_a_body_that_is_not_utf8_is_base64(
    gateway: RunningGateway, client: PullClient, topic: str
) -> None:
    await filled(gateway, topic, 0)
    await gateway.publish(topic, b"\xff\x00")
    [message] = await client.pull(topic, "c", wait_ms=5_000)

    assert "body" not in message
    assert b"\xff\x00" == base64.b64decode(message["body_base64"])


async def test_a_lease_that_ends_hands_its_message_back(
    gateway: RunningGateway, client: PullClient, topic: str
) -> None:
    """At its end, not after nsqd's timeout; and an ack of it is told that it came too late."""
    await filled(gateway, topic, 1)
    [message] = await client.pull(topic, "c", lease_ms=1_000)
    again = await client.pull(topic, "c", wait_ms=30_000)
    assert [2] == [each["attempts"] for each in again]
    result = await client.ack(fin=[message["lease"]])
    assert 0 == result["done"]
    [refused] = result["refused"]
    assert ("E_FIN_FAILED", False) == (refused["code"], refused["retryable"])
    assert "the lease ended" in refused["message"]

    assert 1 == (await client.ack(fin=[again[0]["lease"]]))["done"]
    assert (0, 0, 0) == await gateway.counts_become(topic, "c", (0, 0, 0))


async def test_a_touch_extends_a_lease_beyond_the_message_timeout(
    gateway: RunningGateway, client: PullClient, topic: str
) -> None:
    await filled(gateway, topic, 1)
    [message] = await client.pull(topic, "c", lease_ms=1_500)
    lease = message["lease"]
    assert 1 == (await client.ack(touch=[{"lease": lease, "lease_ms": 60_000}]))["done"]
    assert [] == await client.pull(topic, "c", wait_ms=2_000)

    assert 1 == (await client.ack(fin=[lease]))["done"]


async def test_a_message_is_requeued_with_a_delay(
    gateway: RunningGateway, client: PullClient, topic: str
) -> None:
    await filled(gateway, topic, 1)
    [message] = await client.pull(topic, "c")
    requeue = {"lease": message["lease"], "timeout_ms": 3_000}
    assert {"done": 1, "refused": []} == await client.ack(req=[requeue])
    assert (0, 0, 1) == await gateway.counts_become(topic, "c", (0, 0, 1))
    [again] = await client.pull(topic, "c", wait_ms=30_000)

    assert 2 == again["attempts"]


async def test_a_client_that_leaves_takes_nothing(
    gateway: RunningGateway, client: PullClient, topic: str
) -> None:
    """While it waits: RDY falls, and the next message is for the next pull."""
    await filled(gateway, topic, 0)
    waiting = asyncio.create_task(client.pull(topic, "c", wait_ms=30_000))
    await gateway.ready_becomes(topic, "c", 10)
    began_at = time.monotonic()
    waiting.cancel()
    await gateway.ready_becomes(topic, "c", 0)
    assert time.monotonic() - began_at < AT_ONCE_S
    await gateway.publish(topic, b"x")
    [message] = await client.pull(topic, "c", wait_ms=30_000)

    assert 1 == message["attempts"]


@pytest.mark.parametrize("change", ["cut", "flipped", "other", "empty"])
async def test_what_is_no_lease_harms_no_other(
    gateway: RunningGateway, client: PullClient, topic: str, change: str
) -> None:
    await filled(gateway, topic, 1)
    [message] = await client.pull(topic, "c")
    lease = message["lease"]
    flipped = lease[:40] + ("A" if lease[40] != "A" else "B") + lease[41:]
    wrong = {"cut": lease[:-1], "flipped": flipped, "other": "x" * 96, "empty": ""}[change]
    result = await client.ack(fin=[wrong, lease])

    assert 1 == result["done"]
    assert [(wrong, "E_INVALID")] == [(each["lease"], each["code"]) for each in result["refused"]]


async def test_a_lease_is_for_its_caller_only(
    gateway: RunningGateway, client: PullClient, topic: str
) -> None:
    """Who else gets hold of it can do nothing with it."""
    await filled(gateway, topic, 1)
    async with pull_client(gateway.url, "ada") as ada, pull_client(gateway.url, "eve") as eve:
        [message] = await ada.pull(topic, "c")
        for other in (eve, client):
            result = await other.ack(fin=[message["lease"]])
            assert ["E_INVALID"] == [each["code"] for each in result["refused"]]

        assert 1 == (await ada.ack(fin=[message["lease"]]))["done"]


async def test_a_lease_is_answered_once(
    gateway: RunningGateway, client: PullClient, topic: str
) -> None:
    """Within one ack as well, and by two acks at once."""
    await filled(gateway, topic, 2)
    first, second = [each["lease"] for each in await client.pull(topic, "c")]
    result = await client.ack(fin=[first, first])
    assert (1, ["E_FIN_FAILED"]) == (result["done"], [each["code"] for each in result["refused"]])
    results = await asyncio.gather(*(client.ack(fin=[second]) for _ in range(5)))

    assert [0, 0, 0, 0, 1] == sorted(each["done"] for each in results)


@pytest.mark.parametrize(
    "query,token",
    [
        ({"max": 0}, "INVALID_ARG_MAX"),
        ({"max": 1_001}, "INVALID_ARG_MAX"),
        ({"wait_ms": -1}, "INVALID_ARG_WAIT_MS"),
        ({"wait_ms": 30_001}, "INVALID_ARG_WAIT_MS"),
        ({"lease_ms": 999}, "INVALID_ARG_LEASE_MS"),
        ({"lease_ms": 900_001}, "INVALID_ARG_LEASE_MS"),
        ({"max_in_flight": 1}, "INVALID_ARG"),
        ({"max": "x"}, "INVALID_ARG_MAX"),
        ({"channel": ""}, "INVALID_ARG_CHANNEL"),
    ],
)
async def test_a_wrong_parameter_is_named(
    client: PullClient, topic: str, query: dict[str, int | str], token: str
) -> None:
    answer = await client.http.post("/pull", params={"topic": topic, "channel": "c", **query})

    assert (400, token) == (answer.status_code, answer.json()["message"])


@pytest.mark.parametrize(
    "query", [{"max": 1}, {"max": 1_000}, {"lease_ms": 1_000}, {"lease_ms": 900_000}]
)
async def test_every_parameter_has_its_limits(
    client: PullClient, topic: str, query: dict[str, int]
) -> None:
    assert 200 == (await client.ask(topic, "c", **query)).status_code


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b"{",
        b'{"fin":"x"}',
        b'{"fin":[1]}',
        b'{"fin":["x"],"other":1}',
        b'{"req":[{"timeout_ms":1}]}',
        b'{"req":[{"lease":"x","timeout_ms":-1}]}',
        b'{"req":[{"lease":"x","timeout_ms":3600001}]}',
        b'{"touch":[{"lease":"x","lease_ms":999}]}',
        b'{"touch":[{"lease":"x","lease_ms":900001}]}',
        b'{"fin":[' + b'"x",' * 10_000 + b'"x"]}',
        b"[" * 100_000,
    ],
)
async def test_a_wrong_ack_is_refused(client: PullClient, body: bytes) -> None:
    answer = await client.http.post("/ack", content=body)

    assert (400, "INVALID_REQUEST") == (answer.status_code, answer.json()["message"])


async def test_ten_thousand_leases_are_answered(client: PullClient) -> None:
    """The most that one ack may name."""
    result = await client.ack(fin=["x" * 96] * 10_000)

    assert (0, 10_000) == (result["done"], len(result["refused"]))


async def test_leases_are_answered_in_steps(
    gateway: RunningGateway, client: PullClient, topic: str
) -> None:
    """And one that is named twice is answered once, though in another step."""
    await filled(gateway, topic, 0)
    bodies = b"\n".join(b"%d" % number for number in range(1_000))
    await gateway.http.post("/mpub", params={"topic": topic}, content=bodies)
    leases: list[str] = []
    while len(leases) < 1_000:
        pulled = await client.pull(topic, "c", max=1_000, wait_ms=5_000)
        leases += [each["lease"] for each in pulled]
    result = await client.ack(fin=[*leases, leases[0]])

    assert (1_000, ["E_FIN_FAILED"]) == (
        result["done"],
        [each["code"] for each in result["refused"]],
    )
    assert (0, 0, 0) == await gateway.counts_become(topic, "c", (0, 0, 0))


async def test_an_ack_that_is_cut_is_not_carried_out(
    gateway: RunningGateway, client: PullClient, topic: str
) -> None:
    """Even if what has arrived would be an ack by itself."""
    await filled(gateway, topic, 1)
    [message] = await client.pull(topic, "c")
    body = b'{"fin":["%b"]}' % message["lease"].encode()
    url = httpx.URL(gateway.url)
    reader, writer = await asyncio.open_connection(url.host, url.port)
    head = f"POST /ack HTTP/1.1\r\nHost: {url.host}\r\nContent-Length: {len(body) + 100}\r\n\r\n"
    writer.write(head.encode() + body)
    writer.write_eof()
    response = await reader.read()
    writer.close()

    assert not response.startswith(b"HTTP/1.1 200")
    assert 1 == (await client.ack(fin=[message["lease"]]))["done"]


async def test_a_body_that_is_too_long_is_refused(client: PullClient) -> None:
    answer = await client.http.post("/ack", content=b" " * (8 * 1_048_576 + 1))

    assert (413, "BODY_TOO_BIG") == (answer.status_code, answer.json()["message"])


async def test_a_drain_answers_pulls_and_hands_leases_back() -> None:
    """Waiting pulls at once, leases after --drain-in-flight-s; an ack in time counts."""
    async with gateway_alone(
        "--drain-in-flight-s=2", "--drain-window-s=0", "--log-format=json"
    ) as gateway:
        async with pull_client(gateway.url) as client, pull_client(gateway.url) as other:
            await filled(gateway, "t", 2)
            first, _second = await client.pull("t", "c")
            waiting = asyncio.create_task(other.pull("t", "d", wait_ms=30_000))
            await gateway.ready_becomes("t", "d", 10)
            gateway.program.signal(signal.SIGTERM)
            assert [] == await waiting
            assert 1 == (await client.ack(fin=[first["lease"]]))["done"]
        ended = await gateway.program.said(r'.*"event": "drained".*')
    assert '"aborted_messages": 0' in ended[0]


async def test_acks_reach_the_worker_that_has_the_lease() -> None:
    """Two processes share the port, and a new connection goes to either."""
    async with gateway_with_two_workers() as gateway:
        await filled(gateway, "t", 40)
        done = 0
        for _ in range(40):
            async with pull_client(gateway.url) as client:
                messages = await client.pull("t", "c", max=1, wait_ms=5_000)
            async with pull_client(gateway.url) as client:
                done += (await client.ack(fin=[each["lease"] for each in messages]))["done"]

        assert 40 == done
        assert (0, 0, 0) == await gateway.counts_become("t", "c", (0, 0, 0))


async def test_a_pull_needs_a_secret_where_one_is_required() -> None:
    async with gateway_alone("--require-auth") as gateway, pull_client(gateway.url) as client:
        answer = await client.ask("t", "c")
        assert (401, "AUTH_REQUIRED") == (answer.status_code, answer.json()["message"])
        assert 401 == (await client.http.post("/ack", json={"fin": ["x"]})).status_code
        async with pull_client(gateway.url, "s") as caller:
            assert [] == await caller.pull("t", "c")


async def test_a_page_of_another_origin_pulls_nothing(client: PullClient, topic: str) -> None:
    headers = {"Origin": "https://evil.example"}
    for path in (f"/pull?topic={topic}&channel=c", "/ack"):
        answer: httpx.Response = await client.http.post(path, headers=headers)
        assert 403 == answer.status_code
