"""The broker's HTTP API over a real socket; its words are compared in test_against_nsqd.py."""

from __future__ import annotations

import json
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio

from gateway.aio import spawn
from gateway.broker.broker import Broker, BrokerOptions
from gateway.broker.message import OVERHEAD_BYTES
from gateway.broker.topics import TopicRegistry
from gateway.protocol.commands import STEP_MESSAGES
from gateway.protocol.wire import Limits
from tests.support.brokers.embedded_broker import embedded_broker
from tests.support.brokers.v2_peer import length_prefixed, publish, v2_peer
from tests.support.http.raw_http import RawAnswer, exchange
from tests.support.manual_clock import turn, until
from tests.support.websocket.raw_socket import raw_socket

FREE = BrokerOptions()
SMALL = BrokerOptions(limits=Limits(max_msg_size_bytes=10, max_body_size_bytes=100))


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running() -> AsyncIterator[Broker]:
    """A broker with HTTP, messages up to 10 and bodies up to 100 bytes."""
    async with embedded_broker(SMALL, has_http=True) as broker:
        yield broker


@pytest.fixture
def broker(running: Broker) -> Broker:
    """The same broker, without topics."""
    assert running._server is not None
    for name in list(running._server.registry.topics):
        running._server.registry.delete_topic(name)
    return running


async def post(broker: Broker, target: str, body: bytes = b"") -> RawAnswer:
    """Return the answer to a POST."""
    return await exchange(broker.http_address, "POST", target, body)


async def get(broker: Broker, target: str) -> RawAnswer:
    """Return the answer to a GET."""
    return await exchange(broker.http_address, "GET", target)


async def topic_stats(broker: Broker, name: str) -> Any:  # noqa: ANN401 - JSON
    """Return what /stats says of one topic."""
    answer = await get(broker, f"/stats?format=json&topic={name}")
    (topic,) = json.loads(answer.body)["topics"]
    return topic


async def test_ping_is_ok(broker: Broker) -> None:
    """As text, and without nsqd's header, as in nsqd."""
    answer = await get(broker, "/ping")

    assert (200, b"OK") == (answer.status, answer.body)
    assert "x-nsq-content-type" not in answer.headers


class _Sick(Broker):
    """A broker whose store has failed."""

    def health(self) -> str | None:
        """Return the failure."""
        return "no space left on device"


async def test_an_error_of_the_store_is_shown_by_ping_and_stats() -> None:
    """As plain text without nsqd's header, and as the health."""
    broker = _Sick(BrokerOptions(tcp_address="127.0.0.1:0", http_address="127.0.0.1:0"))
    await broker.start()
    try:
        ping = await get(broker, "/ping")
        stats = json.loads((await get(broker, "/stats?format=json")).body)
    finally:
        await broker.stop()

    error = "NOK - no space left on device"
    assert (500, error.encode(), error) == (ping.status, ping.body, stats["health"])
    assert "x-nsq-content-type" not in ping.headers


async def test_a_publish_reaches_a_consumer(broker: Broker) -> None:
    """Answered OK with nsqd's header."""
    async with v2_peer(broker.tcp_address) as consumer:
        await consumer.ask(b"SUB t c\nRDY 1\n")

        answer = await post(broker, "/pub?topic=t", b"hello")

        assert (200, b"OK") == (answer.status, answer.body)
        assert "nsq; version=1.0" == answer.headers["x-nsq-content-type"]
        assert b"hello" == (await consumer.frame())[1][26:]


async def test_a_deferred_publish_is_deferred(broker: Broker) -> None:
    """The channel shows it."""
    await post(broker, "/topic/create?topic=t")
    await post(broker, "/channel/create?topic=t&channel=c")

    await post(broker, "/pub?topic=t&defer=60000", b"later")

    (channel,) = (await topic_stats(broker, "t"))["channels"]
    assert (0, 1) == (channel["depth"], channel["deferred_count"])


async def test_mpub_publishes_one_message_a_line(broker: Broker) -> None:
    """Empty lines are none."""
    answer = await post(broker, "/mpub?topic=t", b"a\n\nbb\nccc")

    topic = await topic_stats(broker, "t")
    assert (200, 3, 6) == (answer.status, topic["message_count"], topic["message_bytes"])


async def test_mpub_of_no_message_is_ok(broker: Broker) -> None:
    """The topic is there afterwards, also one with a channel."""
    await post(broker, "/topic/create?topic=t")
    await post(broker, "/channel/create?topic=t&channel=c")

    answer = await post(broker, "/mpub?topic=t", b"\n\n")

    assert (200, b"OK") == (answer.status, answer.body)
    assert 0 == (await topic_stats(broker, "t"))["message_count"]


async def test_a_fragment_is_a_part_of_the_name(broker: Broker) -> None:
    """As in Go: otherwise an ephemeral topic would lose its suffix, and be a lasting one."""
    await post(broker, "/topic/create?topic=t#ephemeral")

    assert "t#ephemeral" == (await topic_stats(broker, "t%23ephemeral"))["topic_name"]


async def test_mpub_takes_binary_bodies(broker: Broker) -> None:
    """A count, then sizes and bodies; a newline is a byte like any other."""
    body = struct.pack(">I", 2) + length_prefixed(b"a\nb") + length_prefixed(b"c")

    answer = await post(broker, "/mpub?topic=t&binary=true", body)

    topic = await topic_stats(broker, "t")
    assert (200, 2, 4) == (answer.status, topic["message_count"], topic["message_bytes"])


@pytest.mark.parametrize(
    "target,body,status,token",
    [
        ("/pub", b"", 400, "MSG_EMPTY"),
        ("/pub", b"x", 400, "MISSING_ARG_TOPIC"),
        ("/pub?topic=a%0a", b"x", 400, "INVALID_TOPIC"),
        ("/pub?topic=%zz", b"x", 400, "INVALID_REQUEST"),
        ("/pub?topic=t&defer=x", b"x", 400, "INVALID_DEFER"),
        ("/pub?topic=t", b"x" * 11, 413, "MSG_TOO_BIG"),
        ("/mpub?topic=t", b"x" * 101, 413, "BODY_TOO_BIG"),
        ("/mpub?topic=t", b"x" * 11, 413, "MSG_TOO_BIG"),
        ("/mpub?topic=t&binary=1", b"\0", 413, "BAD_BODY"),
        ("/topic/create", b"", 400, "MISSING_ARG_TOPIC"),
        ("/topic/delete?topic=none", b"", 404, "TOPIC_NOT_FOUND"),
        ("/topic/delete?topic=%ff", b"", 404, "TOPIC_NOT_FOUND"),
        ("/topic/empty?topic=none", b"", 404, "TOPIC_NOT_FOUND"),
        ("/topic/pause?topic=none", b"", 404, "TOPIC_NOT_FOUND"),
        ("/topic/unpause?topic=none", b"", 404, "TOPIC_NOT_FOUND"),
        ("/channel/create?topic=none&channel=c", b"", 404, "TOPIC_NOT_FOUND"),
        ("/channel/create?topic=no!&channel=c", b"", 400, "INVALID_ARG_TOPIC"),
        ("/channel/delete?topic=there&channel=none", b"", 404, "CHANNEL_NOT_FOUND"),
        ("/channel/empty?topic=there&channel=none", b"", 404, "CHANNEL_NOT_FOUND"),
        ("/channel/pause?topic=there", b"", 400, "MISSING_ARG_CHANNEL"),
        ("/channel/unpause?topic=there&channel=no!", b"", 400, "INVALID_ARG_CHANNEL"),
        ("/nothing", b"", 404, "NOT_FOUND"),
        ("/ping", b"", 405, "METHOD_NOT_ALLOWED"),
    ],
)
async def test_errors_have_nsqds_texts(
    broker: Broker, target: str, body: bytes, status: int, token: str
) -> None:
    """A status and a token, as JSON."""
    await post(broker, "/topic/create?topic=there")

    answer = await post(broker, target, body)

    assert (status, token) == (answer.status, answer.message)
    assert "application/json; charset=utf-8" == answer.headers["content-type"]


@pytest.mark.parametrize("path,token", [("/pub", "MSG_TOO_BIG"), ("/mpub", "BODY_TOO_BIG")])
async def test_a_chunked_body_is_read_up_to_its_limit(
    broker: Broker, path: str, token: str
) -> None:
    """Nobody announced its size."""
    answer = await exchange(
        broker.http_address, "POST", f"{path}?topic=t", b"x" * 1_000, chunked=True
    )

    assert (413, token) == (answer.status, answer.message)
    assert "close" == answer.headers["connection"]


async def test_a_body_that_breaks_off_is_not_published(broker: Broker) -> None:
    """Half a message is none."""
    async with raw_socket(broker.http_address) as raw:
        head = b"POST /pub?topic=t HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n"
        await raw.send(head + b"half")
        # The answer to another request shows that this one has begun.
        await get(broker, "/ping")

    await post(broker, "/topic/create?topic=t")
    assert 0 == (await topic_stats(broker, "t"))["message_count"]


async def test_a_full_memory_is_503() -> None:
    """With nsqd's token for "not stored"."""
    options = BrokerOptions(max_memory_bytes=100)
    async with embedded_broker(options, has_http=True) as broker:
        answer = await post(broker, "/pub?topic=t", b"x")

    assert (503, "EXITING") == (answer.status, answer.message)


async def test_a_paused_topic_keeps_its_messages(broker: Broker) -> None:
    """Its channel gets them when the pause ends."""
    await post(broker, "/topic/create?topic=t")
    await post(broker, "/channel/create?topic=t&channel=c")
    await post(broker, "/topic/pause?topic=t")
    await post(broker, "/pub?topic=t", b"x")
    paused = await topic_stats(broker, "t")

    await post(broker, "/topic/unpause?topic=t")

    topic = await topic_stats(broker, "t")
    assert (1, 0) == (paused["depth"], paused["channels"][0]["depth"])
    assert (0, 1) == (topic["depth"], topic["channels"][0]["depth"])


async def test_a_paused_channel_delivers_after_the_pause(broker: Broker) -> None:
    """Without another message coming in."""
    async with v2_peer(broker.tcp_address) as consumer:
        await consumer.ask(b"SUB t c\nRDY 1\n")
        await post(broker, "/channel/pause?topic=t&channel=c")
        # The only frame that comes while the channel is paused is the answer.
        await consumer.ask(publish(b"t", b"x"))

        await post(broker, "/channel/unpause?topic=t&channel=c")

        assert b"x" == (await consumer.frame())[1][26:]


@pytest.mark.parametrize("target", ["/topic/empty?topic=t", "/channel/empty?topic=t&channel=c"])
async def test_emptying_leaves_nothing(broker: Broker, target: str) -> None:
    """A topic's backlog, or all that a channel has."""
    await post(broker, "/pub?topic=t", b"x")
    if "channel" in target:
        await post(broker, "/channel/create?topic=t&channel=c")

    answer = await post(broker, target)

    topic = await topic_stats(broker, "t")
    assert (200, b"", 0) == (answer.status, answer.body, topic["depth"])
    assert [0 for _ in topic["channels"]] == [each["depth"] for each in topic["channels"]]


@pytest.mark.parametrize("target", ["/topic/delete?topic=t", "/channel/delete?topic=t&channel=c"])
async def test_deleting_closes_the_consumers(broker: Broker, target: str) -> None:
    """Without a frame; the name is free again."""
    async with v2_peer(broker.tcp_address) as consumer:
        await consumer.ask(b"SUB t c\n")

        answer = await post(broker, target)

        assert ([], 200) == (await consumer.frames_to_end(), answer.status)


async def test_stats_are_text_unless_json_is_requested(broker: Broker) -> None:
    """Any other format is text too."""
    answer = await get(broker, "/stats?format=xml")

    assert answer.body.startswith(b"nsqd v1.3.0 ")
    assert "text/plain; charset=utf-8" == answer.headers["content-type"]


async def test_info_has_the_addresses_of_the_broker() -> None:
    """Its ports, and the address that clients are told."""
    options = BrokerOptions(broadcast_address="broker.example")
    async with embedded_broker(options, has_http=True) as broker:
        info = json.loads((await get(broker, "/info")).body)

        expected = ("broker.example", broker.tcp_address, broker.http_address)
    config = (
        info["broadcast_address"],
        f"127.0.0.1:{info['tcp_port']}",
        f"127.0.0.1:{info['http_port']}",
    )
    assert expected == config


@pytest.mark.parametrize(
    "name,status,body",
    [
        ("max_msg_size", 200, b"10"),
        ("max_req_timeout", 200, b"3600000000000"),
        ("tls_cert", 200, b""),
        ("nothing", 400, b'{"message":"INVALID_OPTION"}'),
    ],
)
async def test_an_option_can_be_read(broker: Broker, name: str, status: int, body: bytes) -> None:
    """Numbers as JSON, durations in nanoseconds, text as it is."""
    answer = await get(broker, f"/config/{name}")

    assert (status, body) == (answer.status, answer.body)


async def test_no_option_can_be_set(broker: Broker) -> None:
    """The limits stay as they were given at the start."""
    answer = await exchange(broker.http_address, "PUT", "/config/max_msg_size", b"1")

    assert (400, "INVALID_OPTION") == (answer.status, answer.message)


async def test_a_path_that_is_nearly_right_is_redirected(broker: Broker) -> None:
    """With its query."""
    answer = await post(broker, "/Pub/?topic=t", b"x")

    assert (307, "/pub?topic=t") == (answer.status, answer.headers["location"])


async def test_options_tells_the_methods(broker: Broker) -> None:
    """The response has no body."""
    answer = await exchange(broker.http_address, "OPTIONS", "/pub")

    assert (200, b"", "OPTIONS, POST") == (answer.status, answer.body, answer.headers["allow"])


# Large bodies

LINES = b"x\n" * (20 * STEP_MESSAGES)
MESSAGES = struct.pack(">I", 20 * STEP_MESSAGES) + length_prefixed(b"x") * (20 * STEP_MESSAGES)


@pytest.mark.parametrize(
    "target,body", [("/mpub?topic=t", LINES), ("/mpub?topic=t&binary=1", MESSAGES)]
)
async def test_others_have_their_turn_while_a_large_mpub_is_stored(
    target: str, body: bytes
) -> None:
    """Parsed and stored in steps; a neighbour's commands are answered between them."""
    async with (
        embedded_broker(has_http=True) as broker,
        v2_peer(broker.tcp_address) as other,
    ):
        sending = spawn("post", post(broker, target, body))
        answers = 0
        while not sending.done():
            await other.ask(publish(b"u", b"x"))
            answers += 1
        answer = await sending
        topic = await topic_stats(broker, "t")

    assert (200, 20 * STEP_MESSAGES) == (answer.status, topic["message_count"])
    assert answers >= 8


async def test_a_large_mpub_beyond_the_memory_is_503() -> None:
    """Nothing of it is stored."""
    options = BrokerOptions(max_memory_bytes=1_000_000)
    async with embedded_broker(options, has_http=True) as broker:
        answer = await post(broker, "/mpub?topic=t", LINES)

        assert (503, "EXITING") == (answer.status, answer.message)
        assert 0 == (await topic_stats(broker, "t"))["message_count"]


async def test_a_large_mpub_is_refused_for_its_last_message() -> None:
    """Found in a later step than the first."""
    async with embedded_broker(has_http=True) as broker:
        answer = await post(broker, "/mpub?topic=t&binary=1", MESSAGES[:-1])

        assert (413, "BAD_MESSAGE") == (answer.status, answer.message)
        assert 0 == (await topic_stats(broker, "t"))["message_count"]


# Large queues

MANY = 20 * STEP_MESSAGES
EMPTYING = pytest.mark.parametrize(
    "target",
    [
        "/topic/empty?topic=t",
        "/topic/delete?topic=t",
        "/channel/empty?topic=t&channel=c",
        "/channel/delete?topic=t&channel=c",
    ],
)


@asynccontextmanager
async def full_broker(target: str, options: BrokerOptions = FREE) -> AsyncIterator[Broker]:
    """Run a broker with `MANY` messages where *target* looks for them, a part of them in flight."""
    async with embedded_broker(options, has_http=True) as broker:
        await post(broker, "/mpub?topic=t", LINES)
        if "channel" in target:
            await post(broker, "/channel/create?topic=t&channel=c")
            found = core(broker).find_channel("t", "c")
            assert found is not None
            await until(lambda: found.depth == MANY)
        yield broker


def core(broker: Broker) -> TopicRegistry:
    """Return what a running broker holds."""
    assert broker._server is not None
    return broker._server.registry


@EMPTYING
async def test_many_messages_are_released_in_steps(target: str) -> None:
    """No turn of the event loop releases more than two steps; the answer comes after the last."""
    async with full_broker(target) as broker:
        memory = core(broker).context.memory
        sending = spawn("post", post(broker, target))
        falls = []
        before = memory.used_bytes
        while not sending.done():
            await turn()
            falls.append(before - memory.used_bytes)
            before = memory.used_bytes
        answer = await sending

        assert (200, 0) == (answer.status, memory.used_bytes)
    assert max(falls) <= 2 * STEP_MESSAGES * (OVERHEAD_BYTES + 1)


@EMPTYING
async def test_an_emptied_channel_is_empty_before_its_memory_is_free(target: str) -> None:
    """Its counters are 0, a deleted name is free, and a new publish is not released with it."""
    async with full_broker(target) as broker:
        memory = core(broker).context.memory
        before = memory.used_bytes
        sending = spawn("post", post(broker, target))
        await until(lambda: memory.used_bytes < before)
        assert memory.used_bytes > 0
        await post(broker, "/pub?topic=t", b"new")
        topic = await topic_stats(broker, "t")
        assert memory.used_bytes > OVERHEAD_BYTES + 3
        await sending

        count = 1 if "topic/delete" in target else MANY + 1
        depths = [topic["depth"], *(each["depth"] for each in topic["channels"])]
        assert (count, 1) == (topic["message_count"], sum(depths))
        assert OVERHEAD_BYTES + 3 == memory.used_bytes


async def test_memory_is_free_after_the_response_to_an_empty() -> None:
    """A broker that was full takes as much again, right after the answer."""
    target = "/topic/empty?topic=t"
    options = BrokerOptions(max_memory_bytes=MANY * (OVERHEAD_BYTES + 1))
    async with full_broker(target, options) as broker:
        refused = await post(broker, "/pub?topic=t", b"x")
        await post(broker, target)
        taken = await post(broker, "/mpub?topic=t", LINES)

    assert (503, 200) == (refused.status, taken.status)


async def test_an_ephemeral_channel_is_released_in_steps() -> None:
    """An ephemeral channel is deleted by nobody."""
    options = BrokerOptions(mem_queue_size=MANY)
    async with embedded_broker(options, has_http=True) as broker:
        memory = core(broker).context.memory
        async with v2_peer(broker.tcp_address) as consumer:
            await consumer.ask(b"SUB t c#ephemeral\n")
            await post(broker, "/mpub?topic=t", LINES)
            before = memory.used_bytes
        falls = []
        while memory.used_bytes:
            await turn()
            falls.append(before - memory.used_bytes)
            before = memory.used_bytes

    assert max(falls) <= 2 * STEP_MESSAGES * (OVERHEAD_BYTES + 1)


@pytest.mark.parametrize("form", ["json", "text"])
async def test_other_requests_run_while_thousands_of_topics_are_shown(form: str) -> None:
    """The answer is made in steps, and a neighbour's commands are answered between them."""
    async with embedded_broker(has_http=True) as broker, v2_peer(broker.tcp_address) as other:
        for number in range(5_000):
            core(broker).get_topic(f"t{number}").get_channel("c", now=0.0)
        asking = spawn("get", get(broker, f"/stats?format={form}"))
        answers = 0
        while not asking.done():
            await other.ask(publish(b"t0", b"x"))
            answers += 1
        answer = await asking

    mark = b"[t" if form == "text" else b"topic_name"
    assert (200, 5_000) == (answer.status, answer.body.count(mark))
    assert answers >= 8
