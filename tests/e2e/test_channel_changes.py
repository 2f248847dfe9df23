"""A channel is deleted, paused or emptied under its sockets; an nsqd appears, or is full."""

from __future__ import annotations

from functools import partial

import pytest
from websockets.exceptions import InvalidStatus

from tests.support.brokers.channel_admin import (
    PAUSE_SEEN_S,
    broker_uptime_above_3_s,
    gateway_before,
    post_admin,
)
from tests.support.brokers.killable_broker import KillableBroker
from tests.support.brokers.nsqd import real_nsqd, real_nsqlookupd
from tests.support.gateways.gateway import (
    RunningGateway,
    gateway_by_lookup,
    gateway_with_nsqd,
    poll_until,
)
from tests.support.websocket.subscriber_client import refused_upgrade

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_channel_that_is_deleted_ends_its_sockets_with_4004(
    shared_broker: KillableBroker, topic: str
) -> None:
    """After an error frame; a new subscription creates the channel again."""
    async with gateway_before(shared_broker) as gateway:
        await broker_uptime_above_3_s(shared_broker)
        async with gateway.subscribe(topic, "c") as client:
            await post_admin(gateway, "/channel/delete", topic=topic, channel="c")
            told = await client.receive()
            while told.get("cmd") == "NOP":
                told = await client.receive()
            code, _ = await client.closed()
        async with gateway.subscribe(topic, "c") as client:
            await gateway.publish(topic, b"x")
            again = await client.message()

    assert ("error", "SUB", None, "CHANNEL_GONE", True) == (
        told["type"],
        told["cmd"],
        told["ref"],
        told["code"],
        told["retryable"],
    )
    assert (4004, "x") == (code, again["body"])


@pytest.mark.parametrize("what", ["channel", "topic"])
async def test_pause_and_unpause_send_status_frames(
    gateway: RunningGateway, topic: str, what: str
) -> None:
    """Of the channel or of its topic; meanwhile nothing new comes, and answers are taken."""
    names = {"topic": topic, "channel": "c"}
    if what == "topic":
        del names["channel"]
    async with gateway.subscribe(topic, "c") as client:
        await gateway.publish(topic, b"before")
        held = await client.message()
        await post_admin(gateway, f"/{what}/pause", **names)
        paused = await client.receive(within_s=PAUSE_SEEN_S)
        await gateway.publish(topic, b"meanwhile")
        await client.finish(held)
        assert "nothing came" == (await client.next_delivery())["ref"]
        await post_admin(gateway, f"/{what}/unpause", **names)
        received = [await client.receive(within_s=PAUSE_SEEN_S) for _ in range(2)]

    assert {"state": "channel_paused", "nsqds": 1, "lost_ids": []} == paused["data"]
    states = [each["data"]["state"] for each in received if each["type"] == "response"]
    bodies = [each["body"] for each in received if each["type"] == "message"]
    assert (["connected"], ["meanwhile"]) == (states, bodies)


async def test_emptying_a_channel_sends_no_frame(gateway: RunningGateway, topic: str) -> None:
    """No frame is sent; later messages are delivered as usual."""
    async with gateway.subscribe(topic, "c", max_in_flight=1) as client:
        for body in (b"held", b"waits"):
            await gateway.publish(topic, body)
        await client.message()
        await gateway.empty_channel(topic, "c")
        assert "nothing came" == (await client.next_delivery())["ref"]
        await client.ask({"cmd": "RDY", "count": 2, "ref": 1})
        await gateway.publish(topic, b"next")

        assert "next" == (await client.message())["body"]


async def test_a_deleted_ephemeral_channel_is_created_again(
    gateway: RunningGateway, topic: str
) -> None:
    """Its socket stays: that it is gone says nothing, for it goes with its last consumer."""
    async with gateway.subscribe(topic, "c#ephemeral") as client:
        await post_admin(gateway, "/channel/delete", topic=topic, channel="c#ephemeral")
        states = [(await client.receive())["data"]["state"] for _ in range(2)]
        await gateway.publish(topic, b"x")
        delivery = await client.message()

    assert (["disconnected", "connected"], "x") == (states, delivery["body"])


@pytest.mark.nsqd
async def test_an_nsqd_that_takes_a_publish_is_joined_at_once(topic: str) -> None:
    """The topic is new, and nsqlookupd is polled once a minute only."""
    async with (
        real_nsqlookupd() as lookupd,
        real_nsqd(
            "--broadcast-address=127.0.0.1", f"--lookupd-tcp-address={lookupd.tcp_address}"
        ) as nsqd,
        gateway_by_lookup(
            lookupd.http_address, nsqd.http_address, "--lookupd-poll-interval-s=60"
        ) as gateway,
    ):
        assert 200 == await poll_until(partial(status_of_publish, gateway, f"{topic}-else"), 200)
        async with gateway.subscribe(topic, "c") as client:
            assert 200 == await status_of_publish(gateway, topic)
            received = await client.receive(within_s=5)
            while received["type"] != "message":
                received = await client.receive(within_s=5)

    assert "x" == received["body"]


@pytest.mark.nsqd
async def test_a_topic_that_is_deleted_under_a_viewer_keeps_no_other_out(topic: str) -> None:
    """No nsqlookupd names an nsqd for it any more: SUB is answered, as before its first message."""
    async with (
        real_nsqlookupd() as lookupd,
        real_nsqd(
            "--broadcast-address=127.0.0.1", f"--lookupd-tcp-address={lookupd.tcp_address}"
        ) as nsqd,
        gateway_by_lookup(
            lookupd.http_address, nsqd.http_address, "--lookupd-poll-interval-s=1"
        ) as gateway,
    ):
        assert 200 == await poll_until(partial(status_of_publish, gateway, topic), 200)
        async with gateway.subscribe(topic) as one:
            await post_admin(gateway, "/topic/delete", topic=topic)
            assert await poll_until(partial(is_let_in, gateway, topic), True)
            async with gateway.subscribe(topic) as two:
                await gateway.publish(topic, b"anew")
                for viewer in (one, two):
                    received = await viewer.receive(within_s=5)
                    while received.get("body") != "anew":
                        received = await viewer.receive(within_s=5)


async def is_let_in(gateway: RunningGateway, topic: str) -> bool:
    """Tell whether a viewer is subscribed."""
    try:
        async with gateway.subscribe(topic):
            pass
    except InvalidStatus:
        return False
    return True


async def status_of_publish(gateway: RunningGateway, topic: str) -> int:
    answer = await gateway.http.post("/pub", content=b"x", params={"topic": topic})
    return answer.status_code


@pytest.mark.nsqd
async def test_a_channel_that_has_no_room_is_503(topic: str) -> None:
    """nsqd takes no further consumer: SUB_FAILED, to be tried later."""
    async with (
        real_nsqd("--max-channel-consumers=1") as nsqd,
        gateway_with_nsqd([nsqd.tcp_address], [nsqd.http_address]) as gateway,
        gateway.subscribe(topic, "c"),
    ):
        status, problem = await refused_upgrade(gateway.sub_url(topic, "c"))

    assert (503, "SUB_FAILED", True) == (status, problem["message"], problem["retryable"])
