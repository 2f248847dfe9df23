"""A gateway that knows only nsqlookupd: it finds nsqds, loses them, and finds them again."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.gateways.discovered import found, registered
from tests.support.gateways.gateway import RunningGateway
from tests.support.websocket.subscriber_client import SubscriberClient

pytestmark = pytest.mark.nsqd


async def publish_until_taken(gateway: RunningGateway, topic: str, body: bytes) -> None:
    async with asyncio.timeout(15):
        while True:
            answer = await gateway.http.post("/pub", params={"topic": topic}, content=body)
            if answer.status_code == 200:
                return
            assert (503, "NO_BROKER") == (answer.status_code, answer.json()["message"])


async def take(client: SubscriberClient) -> str:
    """Finish the next delivery, behind frames on nsqds that come and go; return its body."""
    async with asyncio.timeout(15):
        while (received := await client.receive())["type"] != "message":
            assert "response" == received["type"], received
    await client.send({"cmd": "FIN", "id": received["id"]})
    return str(received["body"])


async def test_lookupd_alone_is_enough_to_publish_and_to_subscribe(topic: str) -> None:
    """A subscription to a topic that does not exist waits for its first message."""
    async with (
        found() as (gateway, _, _),
        gateway.subscribe(topic, "c") as client,
    ):
        await publish_until_taken(gateway, topic, b"hello")

        assert "hello" == await take(client)


async def test_an_nsqd_that_is_killed_and_comes_back_elsewhere_costs_no_message(
    topic: str,
) -> None:
    """The socket stays, and what nsqd had on its disk comes from the new address."""
    async with found() as (gateway, (nsqd,), lookupd):
        await publish_until_taken(gateway, topic, b"first")
        async with gateway.subscribe(topic, "c", max_in_flight=1) as client:
            # nsqd loses what is in flight when it is killed, so one message fills the window.
            assert "first" == (await client.message())["body"]
            await publish_until_taken(gateway, topic, b"before")
            assert (1, 1, 0) == await gateway.counts_become(topic, "c", (1, 1, 0))
            await nsqd.kill()
            await nsqd.start(elsewhere=True)
            await registered(lookupd, nsqd)
            await publish_until_taken(gateway, topic, b"after")

            assert {"before", "after"} == {await take(client) for _ in range(2)}


async def test_of_two_nsqds_one_may_die(topic: str) -> None:
    """Publishes go to the other at once, and its messages go on coming."""
    async with found(nsqds=2) as (gateway, (_, second), _):
        await publish_until_taken(gateway, topic, b"0")
        async with gateway.subscribe(topic, "c") as client:
            await second.kill()
            for number in range(1, 20):
                await publish_until_taken(gateway, topic, b"%d" % number)

            bodies: set[str] = set()
            while "19" not in bodies:
                bodies.add(await take(client))
