"""The broker stops or hangs, and comes back: sockets stay open, publishers get errors."""

from __future__ import annotations

import time
from contextlib import AbstractAsyncContextManager
from functools import partial

import pytest

from tests.support.brokers.killable_broker import KillableBroker, killable_broker
from tests.support.gateways.gateway import RunningGateway, gateway_with_nsqd, poll_until
from tests.support.websocket.subscriber_client import Json, refused_upgrade

pytestmark = pytest.mark.asyncio(loop_scope="session")

PUBLISH_TIMEOUT_MS = 500


def in_front_of(
    *brokers: KillableBroker, flags: tuple[str, ...] = ()
) -> AbstractAsyncContextManager[RunningGateway]:
    """Return a gateway with one publishing connection to each of *brokers*, and little patience."""
    return gateway_with_nsqd(
        [broker.tcp_address for broker in brokers],
        [broker.http_address for broker in brokers],
        "--nsqd-connections=1",
        f"--publish-timeout-ms={PUBLISH_TIMEOUT_MS}",
        *flags,
    )


async def status_of_publish(gateway: RunningGateway, topic: str, body: bytes = b"x") -> int:
    answer = await gateway.http.post("/pub", content=body, params={"topic": topic})
    return answer.status_code


async def test_a_socket_survives_losing_its_broker(broker: KillableBroker, topic: str) -> None:
    """It receives the lost ids, then that the broker is back, and messages flow again."""
    async with in_front_of(broker) as gateway, gateway.subscribe(topic, "c") as client:
        await gateway.publish(topic, b"lost")
        held = await client.message()
        await broker.kill()
        lost = await client.receive()
        refused = await client.ask({"cmd": "FIN", "id": held["id"], "ref": 1})
        await broker.start()
        found = await client.receive()
        assert 200 == await poll_until(partial(status_of_publish, gateway, topic), 200)
        delivery = await client.message()

    assert {"state": "disconnected", "nsqds": 0, "lost_ids": [held["id"]]} == lost["data"]
    assert ("response", "NOP", None) == (lost["type"], lost["cmd"], lost["ref"])
    assert ("E_FIN_FAILED", 1) == (refused["code"], refused["ref"])
    assert {"state": "connected", "nsqds": 1, "lost_ids": []} == found["data"]
    assert ("x", 1) == (delivery["body"], delivery["attempts"])


async def test_a_publish_without_a_broker_is_503(broker: KillableBroker, topic: str) -> None:
    """NO_BROKER says that nothing was published and that trying again is right."""
    async with in_front_of(broker) as gateway:
        await broker.kill()
        await gateway.program.said("publisher disconnected")
        answer = await gateway.http.post("/pub", content=b"x", params={"topic": topic})
    problem: Json = answer.json()

    assert (503, "NO_BROKER", True) == (
        answer.status_code,
        problem["message"],
        problem["retryable"],
    )
    assert answer.headers["retry-after"].isdigit()


async def test_a_publish_that_got_503_is_not_published(broker: KillableBroker, topic: str) -> None:
    """A publish that was refused is not kept and sent later: the next one is the first there."""
    async with in_front_of(broker) as gateway:
        await broker.kill()
        await gateway.program.said("publisher disconnected")
        refused = await status_of_publish(gateway, topic, b"refused")
        await broker.start()
        assert 200 == await poll_until(partial(status_of_publish, gateway, topic, b"taken"), 200)
        async with gateway.subscribe(topic, "c") as client:
            first = await client.message()

    assert (503, "taken") == (refused, first["body"])


async def test_publishing_resumes_once_the_broker_is_back(
    broker: KillableBroker, topic: str
) -> None:
    async with in_front_of(broker) as gateway:
        await broker.kill()
        await gateway.program.said("publisher disconnected")
        await broker.start()

        assert 200 == await poll_until(partial(status_of_publish, gateway, topic), 200)


async def test_a_subscription_without_a_broker_is_503(broker: KillableBroker, topic: str) -> None:
    async with in_front_of(broker) as gateway:
        await broker.kill()
        status, problem = await refused_upgrade(gateway.sub_url(topic, "c"))

    assert (503, "NO_BROKER", True) == (status, problem["message"], problem["retryable"])


async def test_an_outage_that_lasts_closes_the_socket(broker: KillableBroker, topic: str) -> None:
    """After broker_outage_s without any nsqd it is 1014."""
    async with (
        in_front_of(broker, flags=("--broker-outage-s=1",)) as gateway,
        gateway.subscribe(topic, "c") as client,
    ):
        await broker.kill()

        assert 1014 == (await client.closed())[0]


async def test_a_gateway_may_start_before_its_broker(broker: KillableBroker, topic: str) -> None:
    """It says that nothing is there, and works as soon as something is."""
    await broker.kill()
    async with in_front_of(broker) as gateway:
        first = await status_of_publish(gateway, topic)
        await broker.start()

        assert 503 == first
        assert 200 == await poll_until(partial(status_of_publish, gateway, topic), 200)


async def test_a_publish_that_is_not_answered_is_504(broker: KillableBroker, topic: str) -> None:
    """With the broker suspended, the outcome is unknown within the publish timeout."""
    async with in_front_of(broker) as gateway:
        await gateway.publish(topic, b"before")
        broker.freeze()
        posted_at = time.monotonic()
        answer = await gateway.http.post("/pub", content=b"x", params={"topic": topic})
        elapsed_s = time.monotonic() - posted_at
        problem: Json = answer.json()

    assert (504, "OUTCOME_UNKNOWN", False) == (
        answer.status_code,
        problem["message"],
        problem["retryable"],
    )
    assert PUBLISH_TIMEOUT_MS / 1000 <= elapsed_s < 4 * PUBLISH_TIMEOUT_MS / 1000


async def test_publishing_resumes_once_the_broker_responds_again(
    broker: KillableBroker, topic: str
) -> None:
    """A broker that was frozen is used again when it answers."""
    async with in_front_of(broker) as gateway:
        broker.freeze()
        assert 504 == await status_of_publish(gateway, topic)
        broker.thaw()

        assert 200 == await poll_until(partial(status_of_publish, gateway, topic), 200)


async def test_a_broker_that_is_silent_for_two_heartbeats_is_lost(
    broker: KillableBroker, topic: str
) -> None:
    """A subscriber receives the same frames for a suspended broker as for a dead one."""
    flags = ("--heartbeat-interval-ms=1000",)
    async with (
        in_front_of(broker, flags=flags) as gateway,
        gateway.subscribe(topic, "c") as client,
    ):
        broker.freeze()
        lost = await client.receive()
        broker.thaw()
        found = await client.receive()

    assert ("disconnected", 0) == (lost["data"]["state"], lost["data"]["nsqds"])
    assert ("connected", 1) == (found["data"]["state"], found["data"]["nsqds"])


async def test_publishing_continues_over_the_other_nsqd(kind: str, topic: str) -> None:
    """With one of two nsqd dead, every publish is answered OK, and subscribers get it."""
    async with (
        killable_broker(kind) as one,
        killable_broker(kind) as other,
        in_front_of(one, other) as gateway,
        gateway.subscribe(topic, "c") as client,
    ):
        # The subscription was answered by the first nsqd that said OK; the other one follows.
        assert 2 == (await client.receive())["data"]["nsqds"]
        await other.kill()
        await gateway.program.said("publisher disconnected")
        status = await client.receive()
        for number in range(10):
            await gateway.publish(topic, str(number).encode())
        deliveries = await client.messages(10)
        await client.finish(*deliveries)

    assert ("connected", 1) == (status["data"]["state"], status["data"]["nsqds"])
    assert list("0123456789") == sorted(delivery["body"] for delivery in deliveries)
