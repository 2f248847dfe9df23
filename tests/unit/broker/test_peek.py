"""GET /channel/peek of the broker: messages are shown, and nothing changes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from gateway.broker import durable
from gateway.broker.broker import Broker, BrokerOptions
from gateway.broker.http import MAX_PEEK_BYTES
from gateway.broker.message_log import PAGE_MESSAGES
from gateway.broker.store import Store
from tests.support.brokers.durable_core import DurableCore, held_reads
from tests.support.brokers.embedded_broker import embedded_broker
from tests.support.brokers.v2_peer import v2_peer
from tests.support.http.raw_http import RawAnswer, exchange
from tests.support.manual_clock import until

PEEK = "/channel/peek?topic=t&channel=c"


@pytest_asyncio.fixture(params=["in memory", "on disk", "on disk but one"])
async def broker(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Broker]:
    """A broker with an empty channel; *on disk but one*: of it, one message is in memory."""
    options = BrokerOptions()
    if request.param != "in memory":
        options = replace(options, data_path=tmp_path)
    if request.param == "on disk but one":
        options = replace(options, mem_queue_size=1)
    async with embedded_broker(options, has_http=True) as running:
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


async def test_a_start_shows_what_was_there_before(tmp_path: Path) -> None:
    """Of messages that are on disk only, deferred ones too, with the attempts that they had."""
    options = BrokerOptions(data_path=tmp_path)
    async with embedded_broker(options, has_http=True) as broker:
        await create_channel(broker)
        await publish(broker, b"later", defer_ms=600_000)
        await publish(broker, b"first")
        async with v2_peer(broker.tcp_address) as consumer:
            await consumer.ask(b"SUB t c\nRDY 1\n")
            await consumer.frame()
        await publish(broker, b"second")
        before = (await peek(broker))["messages"]
    async with embedded_broker(options, has_http=True) as broker:
        shown = await peek(broker)

    assert not shown["more"]
    assert [("first", "queued", 1), ("second", "queued", 0), ("later", "deferred", 0)] == [
        (each["body"], each["state"], each["attempts"]) for each in shown["messages"]
    ]
    unchanged = ("id", "timestamp_ns", "body")
    assert sorted([each[name] for name in unchanged] for each in before) == sorted(
        [each[name] for name in unchanged] for each in shown["messages"]
    )


async def test_a_delay_that_has_not_begun_shows_the_message_as_deferred(tmp_path: Path) -> None:
    """It begins when a consumer takes the backlog from before the channel."""
    async with embedded_broker(BrokerOptions(data_path=tmp_path), has_http=True) as broker:
        await publish(broker, b"later", defer_ms=600_000)
        await publish(broker, b"now")
        await create_channel(broker)

        shown = await peek(broker)

    assert [("now", "queued"), ("later", "deferred")] == [
        (each["body"], each["state"]) for each in shown["messages"]
    ]


@pytest.mark.parametrize("action, token", [("delete", "CHANNEL_NOT_FOUND"), ("empty", "")])
async def test_a_channel_that_changes_meanwhile(tmp_path: Path, action: str, token: str) -> None:
    """What is removed while the disk is read is not shown, and no publish waits for the read."""
    options = BrokerOptions(data_path=tmp_path, mem_queue_size=1)
    async with embedded_broker(options, has_http=True) as broker:
        await create_channel(broker)
        await publish(broker, b"a", b"b")
        with held_reads(store_of(broker)) as reads:
            answer = asyncio.create_task(get(broker, PEEK))
            await until(lambda: not reads.empty())
            changed = await exchange(
                broker.http_address, "POST", f"/channel/{action}?topic=t&channel=c"
            )
            await publish(broker, b"c")
        shown = await answer

    assert 200 == changed.status
    body = json.loads(shown.body)
    if token:
        assert (404, token) == (shown.status, body["message"])
    else:
        assert (200, []) == (shown.status, body["messages"])


async def test_a_disk_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    options = BrokerOptions(data_path=tmp_path, mem_queue_size=1)
    async with embedded_broker(options, has_http=True) as broker:
        await create_channel(broker)
        await publish(broker, b"a", b"b")
        store_of(broker)._reader.close()

        answer = await get(broker, PEEK)

    assert (500, b'{"message":"INTERNAL_ERROR"}') == (answer.status, answer.body)


def test_a_peek_looks_through_a_bounded_part_of_a_backlog(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that one turn of the event loop stays short; that there is more is told."""
    monkeypatch.setattr(durable, "PEEKED_PAGES", 2)
    core = DurableCore(tmp_path)
    channel = core.backlog(4 * PAGE_MESSAGES)

    messages, has_more = core.run(channel.peek(max_count=10_000, max_bytes=2**40))

    assert (2 * PAGE_MESSAGES, True) == (len(messages), has_more)
    core.kill()


def test_messages_that_the_disk_has_lost_are_left_out(tmp_path: Path) -> None:
    core = DurableCore(tmp_path)
    channel = core.backlog(3)
    with core.journal.store._writer as writer:
        (first,) = writer.execute("SELECT min(id) FROM chunk").fetchone()
        writer.execute("UPDATE chunk SET content = 'damaged' WHERE id = ?", (first + 1,))

    messages, has_more = core.run(channel.peek(max_count=10, max_bytes=2**40))

    assert (["0", "2"], False) == ([each.message.body.decode() for each in messages], has_more)
    core.kill()


def store_of(broker: Broker) -> Store:
    assert broker._journal is not None
    return broker._journal.store


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
