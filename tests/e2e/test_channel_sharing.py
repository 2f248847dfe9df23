"""Subscribers of a channel share its messages; each channel gets all of them."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.gateways.gateway import RunningGateway

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_two_subscribers_of_a_channel_share_its_messages(
    gateway: RunningGateway, topic: str
) -> None:
    """With windows of 3 and 2, five messages go to both, each to one of them."""
    async with (
        gateway.subscribe(topic, "c", max_in_flight=3) as one,
        gateway.subscribe(topic, "c", max_in_flight=2) as two,
    ):
        await gateway.post("/mpub", b"a\nb\nc\nd\ne", topic=topic)
        ones, twos = await one.messages(3), await two.messages(2)

    assert ["a", "b", "c", "d", "e"] == sorted(delivery["body"] for delivery in ones + twos)


async def test_every_channel_gets_every_message(gateway: RunningGateway, topic: str) -> None:
    """Two channels of a topic each get the whole of it, and are finished apart."""
    async with gateway.subscribe(topic, "c") as one, gateway.subscribe(topic, "d") as two:
        await gateway.post("/mpub", b"a\nb\nc", topic=topic)
        ones, twos = await one.messages(3), await two.messages(3)
        await one.finish(*ones)

        assert (0, 0, 0) == await gateway.counts_become(topic, "c", (0, 0, 0))
        assert (0, 3, 0) == await gateway.counts_become(topic, "d", (0, 3, 0))

    assert ["a", "b", "c"] == sorted(delivery["body"] for delivery in ones)
    assert ["a", "b", "c"] == sorted(delivery["body"] for delivery in twos)


async def test_every_viewer_gets_every_message(gateway: RunningGateway, topic: str) -> None:
    """Two sockets without a channel both see what is published from now on."""
    async with gateway.subscribe(topic) as one, gateway.subscribe(topic) as two:
        await gateway.post("/mpub", b"a\nb\nc", topic=topic)
        ones, twos = await one.messages(3), await two.messages(3)

    assert ["a", "b", "c"] == sorted(delivery["body"] for delivery in ones)
    assert ["a", "b", "c"] == sorted(delivery["body"] for delivery in twos)


async def test_a_first_channel_gets_what_was_there_before(
    gateway: RunningGateway, topic: str
) -> None:
    """A topic keeps its messages until its first channel comes."""
    await gateway.publish(topic, b"early")
    async with gateway.subscribe(topic, "c") as client:
        delivery = await client.message()
        await client.finish(delivery)

    assert "early" == delivery["body"]


async def test_an_id_counts_only_where_it_was_delivered(
    gateway: RunningGateway, topic: str
) -> None:
    """
    A FIN for a delivery of another socket is refused, and the first one goes on holding it.

    The other one takes from a topic of its own: on another channel of this one, nsqd may deliver a
    message of the same id at the moment when RDY 0 comes.
    """
    async with (
        gateway.subscribe(topic, "c") as owner,
        gateway.subscribe(f"{topic}-other", "c") as other,
    ):
        await gateway.publish(topic, b"hello")
        delivery = await owner.message()
        refusal = await other.ask({"cmd": "FIN", "id": delivery["id"], "ref": 2})

        assert ("E_FIN_FAILED", delivery["id"], 2) == (
            refusal["code"],
            refusal["id"],
            refusal["ref"],
        )
        assert (0, 1, 0) == await gateway.counts_become(topic, "c", (0, 1, 0))
        await owner.finish(delivery)


async def test_a_thousand_messages_come_once_each(gateway: RunningGateway, topic: str) -> None:
    """What is published in many requests arrives complete, however frames and batches are cut."""
    bodies = [f"{number:04}" for number in range(1_000)]
    async with gateway.subscribe(topic, "c", max_in_flight=100) as client:
        for start in range(0, 1_000, 250):
            lines = "\n".join(bodies[start : start + 250]).encode()
            await gateway.post("/mpub", lines, topic=topic)
        arrived = []
        for _ in range(1_000):
            delivery = await client.message()
            arrived.append(delivery["body"])
            await client.send({"cmd": "FIN", "id": delivery["id"]})

        assert bodies == sorted(arrived)
        assert (0, 0, 0) == await gateway.counts_become(topic, "c", (0, 0, 0))


async def test_publishes_at_the_same_time_all_arrive(gateway: RunningGateway, topic: str) -> None:
    """Of two hundred publishers at once each is answered OK, and each message comes once."""
    bodies = [f"{number:03}" for number in range(200)]
    async with gateway.subscribe(topic, "c", max_in_flight=200) as client:
        await asyncio.gather(*(gateway.publish(topic, body.encode()) for body in bodies))
        deliveries = await client.messages(200)
        await client.finish(*deliveries)

        assert bodies == sorted(delivery["body"] for delivery in deliveries)
        assert (0, 0, 0) == await gateway.counts_become(topic, "c", (0, 0, 0))
