"""GET /channel/peek of the broker: messages are shown, and nothing changes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from gateway.broker.broker import Broker, BrokerOptions
from gateway.broker.http import MAX_PEEK_BYTES
from tests.support.brokers.embedded_broker import embedded_broker
from tests.support.brokers.v2_peer import v2_peer
from tests.support.http.raw_http import RawAnswer, exchange

PEEK = "/channel/peek?topic=t&channel=c"

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[Broker]:
    """A broker in memory, with an empty channel."""
    async with embedded_broker(has_http=True) as running:
        await create_channel(running)
        yield running


async def create_channel(broker: Broker) -> None:
    """Create topic t with channel c."""
    await exchange(broker.http_address, "POST", "/topic/create?topic=t")
    await exchange(broker.http_address, "POST", "/channel/create?topic=t&channel=c")


async def publish(broker: Broker, *bodies: bytes, defer_ms: int = 0) -> None:
    """Publish each body."""
    for body in bodies:
        target = f"/pub?topic=t&defer={defer_ms}"
        assert 200 == (await exchange(broker.http_address, "POST", target, body)).status


async def get(broker: Broker, target: str) -> RawAnswer:
    """Return the answer to a GET."""
    return await exchange(broker.http_address, "GET", target)


async def peek(broker: Broker, query: str = "") -> Any:  # noqa: ANN401 - JSON
    """Return what a successful peek shows."""
    answer = await get(broker, PEEK + query)
    assert 200 == answer.status
    return json.loads(answer.body)


async def test_an_empty_channel_has_nothing_to_show(broker: Broker) -> None:
    assert {"more": False, "messages": []} == await peek(broker)


async def test_each_message_has_its_state_and_attempts(broker: Broker) -> None:
    await publish(broker, b"first")
    async with v2_peer(broker.tcp_address) as consumer:
        await consumer.ask(b"SUB t c\nRDY 1\n")
        await consumer.frame()
        await publish(broker, b"second")
        # Later than the timeout of the message in flight, one minute.
        await publish(broker, b"later", defer_ms=600_000)

        shown = await peek(broker)

    assert not shown["more"]
    assert [("second", "queued", 0), ("first", "in_flight", 1), ("later", "deferred", 0)] == [
        (each["body"], each["state"], each["attempts"]) for each in shown["messages"]
    ]


async def test_peeking_changes_neither_stats_nor_the_deliveries(broker: Broker) -> None:
    await publish(broker, b"a", b"b", b"c")
    before = (await get(broker, "/stats?format=json&topic=t")).body

    shown = [await peek(broker) for _ in range(3)]

    assert before == (await get(broker, "/stats?format=json&topic=t")).body
    async with v2_peer(broker.tcp_address) as consumer:
        await consumer.ask(b"SUB t c\nRDY 3\n")
        frames = [(await consumer.frame())[1] for _ in range(3)]
    # After the timestamp: attempts, id and body.
    delivered = [(frame[8:10], frame[10:26].decode(), frame[26:].decode()) for frame in frames]
    assert [(b"\0\1", each["id"], each["body"]) for each in shown[0]["messages"]] == delivered
    assert shown[0] == shown[1] == shown[2]


async def test_a_body_that_is_not_utf_8_is_base64(broker: Broker) -> None:
    await publish(broker, b"\xff")

    (message,) = (await peek(broker))["messages"]

    assert ("/w==", False) == (message["body_base64"], "body" in message)


@pytest.mark.parametrize("query, count", [("", 10), ("&max=1", 1), ("&max=1000", 11)])
async def test_max_limits_the_messages(broker: Broker, query: str, count: int) -> None:
    await publish(broker, *(b"%d" % number for number in range(11)))

    shown = await peek(broker, query)

    assert [str(number) for number in range(count)] == [each["body"] for each in shown["messages"]]
    assert (count < 11) == shown["more"]


@pytest.mark.parametrize("value", ["", "0", "1001", "-1", "+1", "1.5", "x", "9" * 5_000])
async def test_another_max_is_refused(broker: Broker, value: str) -> None:
    answer = await get(broker, f"{PEEK}&max={value}")

    assert (400, b'{"message":"INVALID_REQUEST"}') == (answer.status, answer.body)


@pytest.mark.parametrize("excess_bytes, count", [(0, 2), (1, 1)])
async def test_bodies_end_at_the_limit(broker: Broker, excess_bytes: int, count: int) -> None:
    half_bytes = MAX_PEEK_BYTES // 2
    await publish(broker, b"x" * half_bytes, b"y" * (half_bytes + excess_bytes))

    shown = await peek(broker)

    assert (count, bool(excess_bytes)) == (len(shown["messages"]), shown["more"])


@pytest.mark.parametrize(
    "target, token",
    [
        ("/channel/peek?topic=none&channel=c", "TOPIC_NOT_FOUND"),
        ("/channel/peek?topic=t&channel=none", "CHANNEL_NOT_FOUND"),
    ],
)
async def test_an_unknown_channel_is_not_created(broker: Broker, target: str, token: str) -> None:
    before = (await get(broker, "/stats?format=json")).body

    answer = await get(broker, target)

    assert (404, token) == (answer.status, json.loads(answer.body)["message"])
    assert before == (await get(broker, "/stats?format=json")).body


async def test_a_broker_that_requires_auth_does_not_have_the_route() -> None:
    options = BrokerOptions(auth_http_address=("127.0.0.1:1",))
    async with embedded_broker(options, has_http=True) as broker:
        await create_channel(broker)

        answer = await get(broker, PEEK)

    assert (404, b'{"message":"NOT_FOUND"}') == (answer.status, answer.body)


async def test_a_channel_on_disk_does_not_have_the_route(tmp_path: Path) -> None:
    async with embedded_broker(BrokerOptions(data_path=tmp_path), has_http=True) as broker:
        await create_channel(broker)

        answer = await get(broker, PEEK)

    assert (404, b'{"message":"NOT_FOUND"}') == (answer.status, answer.body)


@pytest.mark.parametrize(
    "host, status", [("127.0.0.1:4151", 200), ("localhost", 200), ("evil.example:4151", 403)]
)
async def test_a_page_reads_no_messages_through_a_name_of_its_own(
    broker: Broker, host: str, status: int
) -> None:
    """DNS rebinding: to the browser, the broker is the page's own origin."""
    await publish(broker, b"hello")

    async with httpx.AsyncClient(trust_env=False) as http:
        answer = await http.get(f"http://{broker.http_address}{PEEK}", headers={"Host": host})

    assert (status, status == 200) == (answer.status_code, b"hello" in answer.content)
    assert (status == 403) == ("use an IP address" in answer.json().get("detail", ""))
