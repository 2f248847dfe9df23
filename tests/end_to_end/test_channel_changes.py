"""A channel is deleted, paused or emptied under its sockets; an nsqd turns up, or has no room."""

from __future__ import annotations

from functools import partial

import pytest

from tests.support.channel_life import (
    PAUSE_SEEN_S,
    administer,
    broker_is_older,
    in_front_of,
)
from tests.support.gateway import RunningGateway, become, gateway_by_lookup, gateway_with_nsqd
from tests.support.mortal_broker import MortalBroker
from tests.support.nsqd import real_nsqd, real_nsqlookupd
from tests.support.subscriber_client import refusal

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_channel_that_is_deleted_ends_its_sockets_with_4004(
    shared_broker: MortalBroker, topic: str
) -> None:
    """An error says so first; who comes back makes it anew."""
    async with in_front_of(shared_broker) as gateway:
        await broker_is_older(shared_broker)
        async with gateway.subscribe(topic, "c") as client:
            await administer(gateway, "/channel/delete", topic=topic, channel="c")
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
async def test_a_pause_is_told_and_its_end(gateway: RunningGateway, topic: str, what: str) -> None:
    """Of the channel or of its topic; meanwhile nothing new comes, and answers are taken."""
    names = {"topic": topic, "channel": "c"}
    if what == "topic":
        del names["channel"]
    async with gateway.subscribe(topic, "c") as client:
        await gateway.publish(topic, b"before")
        held = await client.message()
        await administer(gateway, f"/{what}/pause", **names)
        paused = await client.receive(within_s=PAUSE_SEEN_S)
        await gateway.publish(topic, b"meanwhile")
        await client.finish(held)
        assert "nothing came" == (await client.next_delivery())["ref"]
        await administer(gateway, f"/{what}/unpause", **names)
        received = [await client.receive(within_s=PAUSE_SEEN_S) for _ in range(2)]

    assert {"state": "channel_paused", "nsqds": 1, "lost_ids": []} == paused["data"]
    states = [each["data"]["state"] for each in received if each["type"] == "response"]
    bodies = [each["body"] for each in received if each["type"] == "message"]
    assert (["connected"], ["meanwhile"]) == (states, bodies)


async def test_an_emptied_channel_is_silent(gateway: RunningGateway, topic: str) -> None:
    """Nothing is told; what comes next comes as ever."""
    async with gateway.subscribe(topic, "c", max_in_flight=1) as client:
        for body in (b"held", b"waits"):
            await gateway.publish(topic, body)
        await client.message()
        await gateway.empty_channel(topic, "c")
        assert "nothing came" == (await client.next_delivery())["ref"]
        await client.ask({"cmd": "RDY", "count": 2, "ref": 1})
        await gateway.publish(topic, b"next")

        assert "next" == (await client.message())["body"]


async def test_an_ephemeral_channel_that_is_deleted_is_made_anew(
    gateway: RunningGateway, topic: str
) -> None:
    """Its socket stays: that it is gone says nothing, for it goes with its last consumer."""
    async with gateway.subscribe(topic, "c#ephemeral") as client:
        await administer(gateway, "/channel/delete", topic=topic, channel="c#ephemeral")
        states = [(await client.receive())["data"]["state"] for _ in range(2)]
        await gateway.publish(topic, b"x")
        delivery = await client.message()

    assert (["disconnected", "connected"], "x") == (states, delivery["body"])


@pytest.mark.nsqd
async def test_an_nsqd_that_takes_a_publish_is_joined_at_once(topic: str) -> None:
    """Nobody has the topic, and nsqlookupd is asked once a minute only."""
    async with (
        real_nsqlookupd() as lookupd,
        real_nsqd(
            "--broadcast-address=127.0.0.1", f"--lookupd-tcp-address={lookupd.tcp_address}"
        ) as nsqd,
        gateway_by_lookup(
            lookupd.http_address, nsqd.http_address, "--lookupd-poll-interval-s=60"
        ) as gateway,
    ):
        assert 200 == await become(partial(status_of_publish, gateway, f"{topic}-else"), 200)
        async with gateway.subscribe(topic, "c") as client:
            assert 200 == await status_of_publish(gateway, topic)
            received = await client.receive(within_s=5)
            while received["type"] != "message":
                received = await client.receive(within_s=5)

    assert "x" == received["body"]


async def status_of_publish(gateway: RunningGateway, topic: str) -> int:
    """Return the status of a publish."""
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
        status, problem = await refusal(gateway.sub_url(topic, "c"))

    assert (503, "SUB_FAILED", True) == (status, problem["message"], problem["retryable"])
