"""
docs/websocket.md holds over a running gateway, with either broker.

First whole dialogues, each word of which is held against asyncapi.yaml; then sentences of the page
about the kinds of socket, frames and limits. The table at its end names the tests of the others.
"""

from __future__ import annotations

import re
import signal
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from functools import partial

import httpx
import pytest
import pytest_asyncio
from websockets.exceptions import InvalidStatus

from tests.support.brokers.auth_server import Grant, auth_server
from tests.support.brokers.channel_admin import (
    PAUSE_SEEN_S,
    broker_uptime_above_3_s,
    gateway_before,
    post_admin,
)
from tests.support.brokers.killable_broker import KillableBroker
from tests.support.brokers.nsqd import real_nsqd
from tests.support.gateways.gateway import RunningGateway, gateway_with_nsqd, poll_until
from tests.support.websocket.raw_socket import raw_websocket
from tests.support.websocket.recording_client import Record
from tests.support.websocket.subscriber_client import (
    Json,
    SubscriberClient,
    open_socket,
    refused_upgrade,
)

pytestmark = pytest.mark.asyncio(loop_scope="session")

ID = "0123456789abcdef-1"


# Whole dialogues


async def gathered(client: SubscriberClient, *, answers: int, messages: int) -> list[str]:
    """Receive that number of responses and deliveries, in any order; return delivery ids."""
    received = [await client.receive() for _ in range(answers + messages)]
    held = [each["id"] for each in received if each["type"] == "message"]
    assert messages == len(held), received
    return held


async def talk_of_a_consumer(record: Record, gateway: RunningGateway, topic: str) -> int:
    """Say every command; return the close code."""
    async with record.open(gateway.sub_url(topic, "c")) as client:
        await client.receive()
        await client.send(
            {"cmd": "AUTH", "secret": "nobody asks", "ref": 1},
            {"cmd": "PUB", "topic": topic, "body": "one", "ref": True},
            {"cmd": "PUB", "topic": topic, "body_base64": "/w==", "ref": 0.5},
            {"cmd": "DPUB", "topic": topic, "body": "two", "defer_ms": 10, "ref": "later"},
            {"cmd": "MPUB", "topic": topic, "bodies": ["three", "four"], "ref": 2},
            {"cmd": "MPUB", "topic": topic, "bodies_base64": ["NQ=="]},
        )
        held = await gathered(client, answers=6, messages=6)
        await client.ask({"cmd": "TOUCH", "ids": held[:2], "ref": 3})
        await client.ask({"cmd": "FIN", "ids": [held[0], ID], "ref": 4})
        await client.send({"cmd": "FIN", "id": held[1]})
        await client.ask({"cmd": "RDY", "count": 0, "ref": 5})
        await client.ask({"cmd": "REQ", "id": held[2], "timeout_ms": 5, "ref": 6})
        for verb in ("FIN", "REQ", "TOUCH"):
            await client.ask({"cmd": verb, "id": ID})
        await client.ask({"cmd": "AUTH", "secret": "again", "ref": 7})
        await client.ask({"cmd": "NOP", "ref": "there"})
        await client.ask({"cmd": "CLS", "ref": 8})
        await client.ask({"cmd": "CLS"})
        await client.ask({"cmd": "PUB", "topic": topic, "body": "the last"})
        await client.send({"cmd": "FIN", "ids": held[3:]})
        return (await client.closed())[0]


async def talk_of_a_viewer(record: Record, gateway: RunningGateway, topic: str) -> int:
    """Look on, try what only consumers may, publish; return the close code."""
    async with record.open(gateway.sub_url(topic)) as client:
        await client.receive()
        await client.ask({"cmd": "NOP", "ref": False})
        await client.send({"cmd": "PUB", "topic": topic, "body_base64": "/w==", "ref": 1})
        [held] = await gathered(client, answers=1, messages=1)
        for verb in ("FIN", "REQ", "TOUCH"):
            assert "E_INVALID" == (await client.ask({"cmd": verb, "id": held}))["code"]
        assert "E_INVALID" == (await client.ask({"cmd": "RDY", "count": 1}))["code"]
        await client.ask({"cmd": "CLS"})
        return (await client.closed())[0]


WRONG: list[Json] = [
    {},
    {"cmd": "JUMP"},
    {"cmd": "NOP", "ref": [1]},
    {"cmd": "FIN"},
    {"cmd": "REQ", "id": ID, "timeout_ms": -1},
    {"cmd": "RDY", "count": 2_501},
    {"cmd": "AUTH"},
    {"cmd": "PUB", "body": "x"},
    {"cmd": "PUB", "topic": "a b", "body": "x"},
    {"cmd": "PUB", "topic": "t", "body": ""},
    {"cmd": "PUB", "topic": "t", "body_base64": "?"},
    {"cmd": "DPUB", "topic": "t", "body": "x", "defer_ms": 3_600_001},
    {"cmd": "MPUB", "topic": "t", "bodies": []},
]


async def talk_of_somebody_wrong(record: Record, gateway: RunningGateway, topic: str) -> int:
    """Say what the contract does not know, each answered by its own refusal."""
    async with record.open(gateway.sub_url(topic, "c")) as client:
        await client.receive()
        for number, command in enumerate(WRONG):
            refused = await client.ask_wrongly({"ref": number, **command})
            assert "error" == refused["type"]
        await client.send_text("no JSON")
        await client.receive()
        await client.connection.close(code=1000)
        return (await client.closed())[0]


async def test_every_frame_of_a_session_is_in_the_contract(
    gateway: RunningGateway, topic: str
) -> None:
    """All commands, right and wrong, of a consumer and of a viewer."""
    record = Record()
    codes = [
        await talk_of_a_consumer(record, gateway, f"{topic}-1"),
        await talk_of_a_viewer(record, gateway, f"{topic}-2"),
        await talk_of_somebody_wrong(record, gateway, f"{topic}-3"),
    ]

    assert [1000, 1000, 1000] == codes
    assert [] == record.breaches
    assert {"message", "subscribed", "authenticated", "ok", "closeWait", "error"} == record.messages
    assert record.codes == {
        "E_INVALID",
        "E_BAD_TOPIC",
        "E_BAD_MESSAGE",
        "E_BAD_BODY",
        "E_FIN_FAILED",
        "E_REQ_FAILED",
        "E_TOUCH_FAILED",
    }


async def test_every_frame_during_faults_is_in_the_contract(
    broker: KillableBroker, topic: str
) -> None:
    """The broker goes and comes back, the channel is paused and deleted, the gateway drains."""
    record = Record()
    async with gateway_before(
        broker, "--drain-window-s=0.1", "--drain-in-flight-s=0.2", "--broker-outage-s=60"
    ) as gateway:
        async with record.open(gateway.sub_url(topic, "c")) as client:
            await client.receive()
            await client.send({"cmd": "PUB", "topic": topic, "body": "lost", "ref": 1})
            await gathered(client, answers=1, messages=1)
            await broker.kill()
            await client.receive()
            await gateway.program.said("publisher disconnected")
            await client.ask({"cmd": "PUB", "topic": topic, "body": "x", "ref": 2})
            await broker.start()
            await client.receive()
            await post_admin(gateway, "/channel/pause", topic=topic, channel="c")
            await client.receive(within_s=PAUSE_SEEN_S)
            await post_admin(gateway, "/channel/unpause", topic=topic, channel="c")
            await client.receive(within_s=PAUSE_SEEN_S)
        await broker_uptime_above_3_s(broker)
        async with record.open(gateway.sub_url(topic, "d")) as client:
            await client.receive()
            await post_admin(gateway, "/channel/delete", topic=topic, channel="d")
            gone = await client.closed()
        async with record.open(gateway.sub_url(topic, "e")) as client:
            await client.receive()
            gateway.program.signal(signal.SIGTERM)
            drained = await client.closed()

    assert [] == record.breaches
    assert {"message", "subscribed", "ok", "status", "closeWait", "error"} == record.messages
    assert {"NO_BROKER", "CHANNEL_GONE"} == record.codes
    states = [each["data"]["state"] for each in record.received if "state" in each.get("data", "")]
    assert states == [
        *("disconnected", "connected"),
        *("channel_paused", "connected"),
        "disconnected",  # nsqd ends the connections of a channel that is deleted
        "CLOSE_WAIT",
    ]
    assert (4004, 1012) == (gone[0], drained[0])


@pytest.mark.nsqd
async def test_every_frame_of_auth_is_in_the_contract(topic: str) -> None:
    """With a real nsqd and its auth server: secrets that are known, not known, not good enough."""
    record = Record()
    async with (
        auth_server() as server,
        real_nsqd(f"--auth-http-address={server.address}") as nsqd,
        gateway_with_nsqd([nsqd.tcp_address], [nsqd.http_address]) as gateway,
    ):
        server.grant("good", Grant(topic="^t-"), identity="alice")
        server.grant("elsewhere", Grant(topic="^other$"))
        url = gateway.sub_url(topic, "c")
        async with record.open(url) as client:
            await client.send({"cmd": "AUTH", "secret": "good", "ref": 1})
            known, subscribed = await client.receive(), await client.receive()
            await client.send({"cmd": "PUB", "topic": topic, "body": "x", "ref": 2})
            await gathered(client, answers=1, messages=1)
            refused = await client.ask({"cmd": "PUB", "topic": "other", "body": "x", "ref": 3})
        codes = []
        for command in (
            {"cmd": "AUTH", "secret": "unknown", "ref": 1},
            {"cmd": "AUTH", "secret": "elsewhere"},
            {"cmd": "NOP", "ref": 1},
        ):
            async with record.open(url) as client:
                await client.send(command)
                codes.append((await client.closed())[0])

    assert [] == record.breaches
    assert ("alice", "SUB") == (known["data"]["identity"], subscribed["cmd"])
    assert ("E_UNAUTHORIZED", 3, False) == (refused["code"], refused["ref"], refused["retryable"])
    assert {"E_AUTH_FAILED", "E_UNAUTHORIZED", "E_AUTH_FIRST"} == record.codes
    assert [4503, 4503, 4501] == codes


# Two kinds of socket


async def test_viewers_of_a_topic_share_a_consumer(gateway: RunningGateway, topic: str) -> None:
    """One channel for all that look at the same, another one for another share; none is left."""
    async with AsyncExitStack() as life:
        told = []
        for sample_rate in (0, 0, 50):
            url = gateway.sub_url(topic, sample_rate=sample_rate)
            client = await life.enter_async_context(open_socket(url))
            told.append((await client.receive())["data"])
        channels = [each["channel"] for each in told]
        assert sorted(set(channels)) == sorted(await gateway.channels_become(topic, channels[1:]))
        await gateway.ready_becomes(topic, channels[0], told[0]["max_in_flight"])

    assert channels[0] == channels[1] != channels[2]
    assert all(re.fullmatch(r"gw\.[a-z2-7]{26}#ephemeral", channel) for channel in channels)
    assert [] == await gateway.channels_become(topic, [])


async def test_a_message_reaches_every_viewer_and_is_finished_once(
    gateway: RunningGateway, topic: str
) -> None:
    """Ten sockets, one consumer: the broker delivers it once."""
    async with AsyncExitStack() as life:
        clients = [await life.enter_async_context(gateway.subscribe(topic)) for _ in range(10)]
        await gateway.publish(topic, b"x")
        seen = [await client.message() for client in clients]
        [channel] = {delivery["channel"] for delivery in seen}
        assert (0, 0, 0) == await gateway.counts_become(topic, channel, (0, 0, 0))

    assert {("x", 1)} == {(delivery["body"], delivery["attempts"]) for delivery in seen}


async def test_a_viewer_that_leaves_disturbs_no_other(gateway: RunningGateway, topic: str) -> None:
    """The channel stays until the last one has gone."""
    async with gateway.subscribe(topic) as last:
        async with gateway.subscribe(topic):
            pass
        await gateway.publish(topic, b"x")

        assert "x" == (await last.message())["body"]


async def test_a_share_of_the_messages_may_be_asked_for(
    gateway: RunningGateway, topic: str
) -> None:
    """Of 400 about half come, on an ephemeral channel; the others are gone for it."""
    async with gateway.subscribe(topic, "c#ephemeral", sample_rate=50, ack="auto") as client:
        for _ in range(4):
            await gateway.post("/mpub", b"\n".join([b"x"] * 100), topic=topic)
        assert (0, 0, 0) == await gateway.counts_become(topic, "c#ephemeral", (0, 0, 0))
        await client.send({"cmd": "NOP", "ref": "end"})
        received = await client.receive_until("end")

    assert 100 < len(received) - 1 < 300


async def test_a_viewer_that_stops_is_closed_and_delays_nobody(
    shared_broker: KillableBroker, topic: str
) -> None:
    """Another viewer of the same consumer gets everything at once; the slow one gets 4001."""
    limits = ("--socket-buffer-bytes=1000000", "--slow-consumer-s=1")
    async with (
        gateway_before(shared_broker, *limits) as gateway,
        gateway.subscribe(topic) as quick,
        raw_websocket(gateway.sub_url(topic), has_small_buffer=True) as slow,
    ):
        for number in range(50):
            await gateway.publish(topic, b"%03d" % number + b"x" * 100_000)
            assert f"{number:03d}" == (await quick.message(within_s=2))["body"][:3]

        assert await slow.close_code() in {4001, 1006}


# The window, and too much of something


async def test_a_message_above_max_attempts_is_requeued_and_never_finished(
    gateway: RunningGateway, topic: str
) -> None:
    """With max_attempts=1 the second delivery does not come; nsqd keeps it for later."""
    async with gateway.subscribe(topic, "c") as first:
        await gateway.publish(topic, b"x")
        await first.send({"cmd": "REQ", "id": (await first.message())["id"], "timeout_ms": 0})
        again = await first.message()
        async with gateway.subscribe(topic, "c", max_attempts=1, max_in_flight=1) as second:
            await first.send({"cmd": "RDY", "count": 0})
            await gateway.ready_becomes(topic, "c", 0, 1)
            await first.send({"cmd": "REQ", "id": again["id"], "timeout_ms": 0})
            assert (0, 0, 1) == await gateway.counts_become(topic, "c", (0, 0, 1))

            assert "nothing came" == (await second.next_delivery())["ref"]

    async with httpx.AsyncClient(base_url=gateway.management_url, trust_env=False) as management:
        metrics = (await management.get("/metrics")).text
    assert re.search(r"^nsq_gateway_messages_put_off_total(\{.*\})? [1-9]", metrics, re.MULTILINE)


async def test_a_frame_ends_before_it_has_64_kib(gateway: RunningGateway, topic: str) -> None:
    """What waits comes in several, and a message that is larger comes alone."""
    bodies = [*["x" * 1_000] * 200, "y" * 100_000, "z"]
    for number in range(0, 200, 50):
        lines = "\n".join(bodies[number : number + 50])
        await gateway.post("/mpub", lines.encode(), topic=topic)
    for body in bodies[200:]:
        await gateway.publish(topic, body.encode())
    frames = []
    async with open_socket(gateway.sub_url(topic, "c", max_in_flight=300, ack="auto")) as client:
        received = 0
        while received < 1 + len(bodies):
            frame = str(await client.connection.recv())
            frames.append(frame)
            received += len(frame.split("\n"))

    large = [frame for frame in frames if len(frame) > 65_536]
    assert [1] == [len(frame.split("\n")) for frame in large]
    assert "y" * 100_000 in large[0]


async def test_a_single_message_is_delivered_at_once(gateway: RunningGateway, topic: str) -> None:
    """
    No timer waits for a second one: nsqd's own default would be 250 ms, for each of them.

    A machine that is busy may make most of them late, and none of them fast.
    """
    elapsed_s = []
    async with gateway.subscribe(topic, "c", ack="auto") as client:
        for _ in range(21):
            started = time.monotonic()
            await gateway.publish(topic, b"x")
            await client.message()
            elapsed_s.append(time.monotonic() - started)

    assert statistics.quantiles(elapsed_s)[0] < 0.15


@pytest_asyncio.fixture(loop_scope="session")
async def strict_gateway(shared_broker: KillableBroker) -> AsyncIterator[RunningGateway]:
    """Return a gateway that takes 200 commands a second and two sockets of one address."""
    limits = ("--command-rate-limit=200", "--max-sockets-per-address=2")
    async with gateway_before(shared_broker, *limits) as gateway:
        yield gateway


async def test_commands_above_the_rate_wait_for_their_turn(
    strict_gateway: RunningGateway, topic: str
) -> None:
    """All are answered, in their order: some at once, the rest when these are paid for."""
    async with strict_gateway.subscribe(topic, "c") as client:
        started = time.monotonic()
        await client.send(*({"cmd": "NOP", "ref": number} for number in range(800)))
        answers = await client.receive_until(799)

    assert list(range(800)) == [answer["ref"] for answer in answers]
    assert 1.4 <= time.monotonic() - started


async def test_commands_far_above_the_rate_close_the_socket(
    strict_gateway: RunningGateway, topic: str
) -> None:
    """More than five seconds' worth of them at once is 4508."""
    async with strict_gateway.subscribe(topic, "c") as client:
        await client.send(*({"cmd": "NOP", "ref": number} for number in range(5_000)))

        assert 4508 == (await client.closed())[0]


async def test_fin_of_held_messages_is_not_rate_limited(
    strict_gateway: RunningGateway, topic: str
) -> None:
    """2,000 FINs at once, and the next command is answered: counted, it would take 9 s."""
    await strict_gateway.post("/mpub", b"\n".join([b"x"] * 2_000), topic=topic)
    async with strict_gateway.subscribe(topic, "c", max_in_flight=2_000) as client:
        held = await client.messages(2_000)
        started = time.monotonic()
        await client.send(*({"cmd": "FIN", "id": each["id"]} for each in held))
        assert "nothing came" == (await client.next_delivery())["ref"]
        elapsed_s = time.monotonic() - started

        assert (0, 0, 0) == await strict_gateway.counts_become(topic, "c", (0, 0, 0))
    assert elapsed_s < 6


async def test_a_socket_too_many_of_one_address_is_503(
    strict_gateway: RunningGateway, topic: str
) -> None:
    """It is FULL, names the address and the limit; when one has left there is room."""
    async with strict_gateway.subscribe(topic, "c"):
        async with strict_gateway.subscribe(topic, "c"):
            status, problem = await refused_upgrade(strict_gateway.sub_url(topic, "c"))
        assert await poll_until(partial(has_room, strict_gateway, topic), expected=True)

    assert (503, "FULL", True) == (status, problem["message"], problem["retryable"])
    assert "127.0.0.1" in problem["detail"]
    assert "2" in problem["detail"]


async def has_room(gateway: RunningGateway, topic: str) -> bool:
    """Tell whether a further socket is taken."""
    try:
        async with gateway.subscribe(topic, "c"):
            return True
    except InvalidStatus:
        return False
