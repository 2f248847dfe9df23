"""GET /sub as text/event-stream: a subscription without a WebSocket, answered by leases."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio

from tests.support.gateways.gateway import RunningGateway, gateway_alone
from tests.support.gateways.pulls import PullClient, pull_client

pytestmark = pytest.mark.asyncio(loop_scope="session")

AT_ONCE_S = 1.0
"""Far above what it takes (milliseconds), far below the interval of comments (15 s)."""


@pytest_asyncio.fixture(loop_scope="session")
async def client(gateway: RunningGateway) -> AsyncIterator[PullClient]:
    async with pull_client(gateway.url) as client:
        yield client


async def test_a_stream_delivers_and_its_leases_are_answered(
    gateway: RunningGateway, client: PullClient, topic: str
) -> None:
    """FIN, REQ and TOUCH by POST /ack; the window is that of a socket."""
    async with client.stream(topic, channel="c", max_in_flight=3) as events:
        assert "text/event-stream; charset=utf-8" == events.headers["content-type"]
        kind, data = await events.next()
        assert ("message", "SUB") == (kind, data["cmd"])
        for number in range(5):
            await gateway.publish(topic, b"%d" % number)
        held = await events.messages(3)
        assert ["0", "1", "2"] == [each["body"] for each in held]
        assert (2, 3, 0) == await gateway.counts_become(topic, "c", (2, 3, 0))
        leases = [each["lease"] for each in held]
        result = await client.ack(
            fin=leases[:1],
            req=[{"lease": leases[1], "timeout_ms": 60_000}],
            touch=[{"lease": leases[2]}],
        )
        assert {"done": 3, "refused": []} == result
        assert ["3", "4"] == [each["body"] for each in await events.messages(2)]
        assert (0, 3, 1) == await gateway.counts_become(topic, "c", (0, 3, 1))
        again = await client.ack(fin=leases[:1])
        assert ["E_FIN_FAILED"] == [each["code"] for each in again["refused"]]

    assert (3, 0, 1) == await gateway.counts_become(topic, "c", (3, 0, 1))


async def test_what_is_open_when_a_stream_ends_goes_back_at_once(
    gateway: RunningGateway, client: PullClient, topic: str
) -> None:
    async with client.stream(topic, channel="c") as events:
        await events.next()
        await gateway.publish(topic, b"x")
        [message] = await events.messages(1)
        began_at = time.monotonic()
    assert (1, 0, 0) == await gateway.counts_become(topic, "c", (1, 0, 0))
    assert time.monotonic() - began_at < AT_ONCE_S
    result = await client.ack(fin=[message["lease"]])

    assert 0 == result["done"]


async def test_a_stream_may_finish_by_itself(
    gateway: RunningGateway, client: PullClient, topic: str
) -> None:
    """ack=auto: messages have no lease, and are finished once they are written."""
    async with client.stream(topic, channel="c", ack="auto") as events:
        await events.next()
        await gateway.publish(topic, b"x")
        [message] = await events.messages(1)
        assert "lease" not in message
        assert (0, 0, 0) == await gateway.counts_become(topic, "c", (0, 0, 0))


async def test_viewers_share_one_consumer(
    gateway: RunningGateway, client: PullClient, topic: str
) -> None:
    """Also with a WebSocket."""
    async with client.stream(topic) as one, client.stream(topic) as other:
        await asyncio.gather(one.next(), other.next())
        await gateway.publish(topic, "größe\n".encode())
        for events in (one, other):
            [message] = await events.messages(1)
            assert "größe\n" == message["body"]
            assert "lease" not in message


async def test_a_large_message_is_one_event(
    gateway: RunningGateway, client: PullClient, topic: str
) -> None:
    async with client.stream(topic, channel="c") as events:
        await events.next()
        await gateway.publish(topic, b"x" * 1_000_000)
        [message] = await events.messages(1)
        assert 1_000_000 == len(message["body"])


async def test_a_wrong_parameter_is_a_problem(client: PullClient, topic: str) -> None:
    headers = {"Accept": "text/event-stream"}
    params = {"topic": topic, "max_in_flight": "0"}
    answer = await client.http.get("/sub", params=params, headers=headers)

    assert (400, "INVALID_ARG_MAX_IN_FLIGHT") == (answer.status_code, answer.json()["message"])
    assert "application/problem+json" == answer.headers["content-type"]


async def test_without_the_header_a_get_tells_both_ways(client: PullClient, topic: str) -> None:
    answer = await client.http.get("/sub", params={"topic": topic})

    assert 426 == answer.status_code
    assert "text/event-stream" in answer.json()["detail"]


@pytest.mark.parametrize(
    "headers,status",
    [
        ({"Origin": "https://evil.example"}, 403),
        ({"Accept-Language": "en"}, 403),
        ({"Accept-Language": "en", "Sec-Fetch-Site": "cross-site"}, 403),
        ({"Accept-Language": "en", "Sec-Fetch-Site": "same-origin"}, 200),
        ({"Accept-Language": "en", "Nsq-Gateway-Client": "nsq.js"}, 200),
        ({}, 200),
    ],
)
async def test_a_page_of_another_origin_consumes_nothing(
    client: PullClient, topic: str, headers: dict[str, str], status: int
) -> None:
    """A page may send a GET without telling its origin, in the mode no-cors."""
    headers = {"Accept": "text/event-stream", **headers}
    params = {"topic": topic, "channel": "c"}
    request = client.http.build_request("GET", "/sub", params=params, headers=headers)
    answer: httpx.Response = await client.http.send(request, stream=True)
    await answer.aclose()

    assert status == answer.status_code


async def test_a_drain_ends_streams() -> None:
    """With the code that a WebSocket would get, after the announcement."""
    async with (
        gateway_alone("--drain-in-flight-s=0", "--drain-window-s=0") as gateway,
        pull_client(gateway.url) as client,
        client.stream("t", channel="c") as events,
    ):
        await events.next()
        gateway.program.signal(signal.SIGTERM)
        _, announced = await events.next()
        assert ("CLS", "drain") == (announced["cmd"], announced["data"]["reason"])
        kind, closed = await events.next()
        assert ("close", 1012) == (kind, closed["code"])
        with pytest.raises(EOFError):
            await events.next()


async def test_a_stream_needs_a_secret_where_one_is_required() -> None:
    """It cannot send one later, as a socket can."""
    async with gateway_alone("--require-auth") as gateway, pull_client(gateway.url) as client:
        headers = {"Accept": "text/event-stream"}
        answer = await client.http.get("/sub", params={"topic": "t"}, headers=headers)
        assert (401, "AUTH_REQUIRED") == (answer.status_code, answer.json()["message"])
        async with pull_client(gateway.url, "s") as caller, caller.stream("t") as events:
            assert "SUB" == (await events.next())[1]["cmd"]


@pytest.mark.parametrize("channel", ["", "&channel=c"], ids=["viewer", "consumer"])
async def test_a_client_that_does_not_read_is_closed(channel: str) -> None:
    """As a WebSocket is: its bytes are bounded, and nobody else waits for it."""
    async with gateway_alone(
        "--socket-buffer-bytes=100000", "--slow-consumer-s=0.5", "--log-format=json"
    ) as gateway:
        host, port = gateway.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port), limit=1)
        query = f"topic=t{channel}&max_in_flight=2500"
        head = f"GET /sub?{query} HTTP/1.1\r\nHost: {host}\r\n"
        writer.write(f"{head}Accept: text/event-stream\r\n\r\n".encode())
        await gateway.program.said(r'.*"event": "subscriber connected".*')
        for _ in range(200):
            await gateway.publish("t", b"x" * 100_000)
        ended = await gateway.program.said(r'.*"event": "subscriber disconnected".*')
        assert '"close_code": 4001' in ended[0]
        writer.close()
        del reader


async def test_the_next_request_follows_a_stream_on_its_connection() -> None:
    """Its response ends as every other one does, though nothing of the request is kept."""
    async with gateway_alone("--socket-max-age-s=1", "--drain-in-flight-s=0") as gateway:
        host, port = gateway.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        stream = f"GET /sub?topic=t HTTP/1.1\r\nHost: {host}\r\nAccept: text/event-stream\r\n\r\n"
        # The second request is there before the first response has ended.
        writer.write(f"{stream}GET /livez HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        events = await reader.readuntil(b"\r\n0\r\n\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        writer.close()

    assert b"event: close\n" in events
    assert head.startswith(b"HTTP/1.1 ")
