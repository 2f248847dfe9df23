"""PUB, DPUB and MPUB over a WebSocket behave like POST /pub and /mpub."""

from __future__ import annotations

import base64
import time

import pytest

from tests.support.brokers.channel_admin import gateway_before
from tests.support.brokers.killable_broker import KillableBroker
from tests.support.gateways.gateway import RunningGateway
from tests.support.websocket.subscriber_client import Json

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.mark.parametrize("kind_of_socket", ["consumer", "viewer", "ack=auto"])
async def test_a_publish_over_a_socket_is_one_like_any_other(
    gateway: RunningGateway, topic: str, kind_of_socket: str
) -> None:
    """OK means that an nsqd has it: text, any bytes, and several, in the order of the answers."""
    channel = None if kind_of_socket == "viewer" else "c"
    query = {"ack": "auto"} if kind_of_socket == "ack=auto" else {}
    async with (
        gateway.subscribe(f"{topic}-elsewhere", channel, **query) as client,
        gateway.subscribe(topic, "c") as reader,
    ):
        text, data = "gr\u00fc\u00df\u2028e", bytes(range(256))
        encoded = base64.b64encode(data).decode()
        for command in (
            {"cmd": "PUB", "body": text},
            {"cmd": "PUB", "body_base64": encoded},
            {"cmd": "MPUB", "bodies": ["1", "2"]},
            {"cmd": "MPUB", "bodies_base64": [encoded]},
        ):
            answer = await client.ask({**command, "topic": topic, "ref": 1})
            assert {"type": "response", "cmd": command["cmd"], "ref": 1, "data": "OK"} == answer
        received = await reader.messages(5)

    assert sorted([text, "1", "2"]) == sorted(each["body"] for each in received if "body" in each)
    assert [encoded] * 2 == [each["body_base64"] for each in received if "body_base64" in each]


async def test_a_publish_may_be_put_off(gateway: RunningGateway, warm_topic: str) -> None:
    """DPUB is answered before, and delivered after defer_ms at the earliest."""
    async with gateway.subscribe(warm_topic, "c") as client:
        command = {"cmd": "DPUB", "topic": warm_topic, "defer_ms": 300, "body": "x", "ref": 1}
        started = time.monotonic()
        assert "OK" == (await client.ask(command))["data"]
        await client.message()

    assert 0.3 <= time.monotonic() - started


async def test_a_publish_is_answered_also_without_a_ref(
    gateway: RunningGateway, topic: str
) -> None:
    """Then with a ref of null, whether it is taken or refused."""
    async with gateway.subscribe(topic, "c", max_in_flight=1) as client:
        await client.ask({"cmd": "RDY", "count": 0, "ref": 1})
        await gateway.ready_becomes(topic, "c", 0)
        taken = await client.ask({"cmd": "PUB", "topic": topic, "body": "x"})
        refused = await client.ask({"cmd": "PUB", "topic": "a b", "body": "x"})

    assert (None, "OK") == (taken["ref"], taken["data"])
    assert (None, "E_BAD_TOPIC") == (refused["ref"], refused["code"])


@pytest.mark.parametrize(
    "command,code",
    [
        ({"cmd": "PUB", "body": "x" * 1_048_577}, "E_BAD_MESSAGE"),
        ({"cmd": "PUB", "body": ""}, "E_BAD_MESSAGE"),
        ({"cmd": "PUB"}, "E_BAD_MESSAGE"),
        ({"cmd": "MPUB", "bodies": ["fine", ""]}, "E_BAD_MESSAGE"),
        ({"cmd": "MPUB", "bodies": []}, "E_BAD_BODY"),
        ({"cmd": "DPUB", "body": "x", "defer_ms": -1}, "E_INVALID"),
        ({"cmd": "DPUB", "body": "x"}, "E_INVALID"),
        ({"cmd": "PUB", "body_base64": "/w="}, "E_INVALID"),
        ({"cmd": "PUB", "body": "x", "body_base64": "/w=="}, "E_INVALID"),
    ],
)
async def test_a_wrong_publish_is_refused_and_publishes_nothing(
    gateway: RunningGateway, topic: str, command: Json, code: str
) -> None:
    """Neither does it cost the connection that others publish on; the next publish is the first."""
    async with gateway.subscribe(topic, "c") as client:
        refused = await client.ask({**command, "topic": topic, "ref": 1})
        await gateway.publish(topic, b"next")
        delivery = await client.message()

    assert (code, command["cmd"], 1, False) == (
        refused["code"],
        refused["cmd"],
        refused["ref"],
        refused["retryable"],
    )
    assert "next" == delivery["body"]


async def test_publishing_works_after_cls(gateway: RunningGateway, topic: str) -> None:
    """Until the close; the answers to what is in flight are taken too."""
    async with gateway.subscribe(topic, "c") as client:
        await gateway.publish(topic, b"held")
        held = await client.message()
        await client.ask({"cmd": "CLS"})
        answer = await client.ask({"cmd": "PUB", "topic": f"{topic}-2", "body": "x", "ref": 1})
        await client.send({"cmd": "FIN", "id": held["id"]})

        assert ("OK", 1000) == (answer["data"], (await client.closed())[0])


async def test_a_publish_over_a_socket_that_is_not_answered_is_unknown(
    broker: KillableBroker, topic: str
) -> None:
    """With the broker suspended the outcome is unknown, and the error is not retryable."""
    async with (
        gateway_before(broker, "--publish-timeout-ms=500") as gateway,
        gateway.subscribe(topic, "c") as client,
    ):
        await gateway.publish(f"{topic}-before", b"x")
        broker.freeze()
        refused = await client.ask({"cmd": "PUB", "topic": topic, "body": "x", "ref": 1})

    assert ("OUTCOME_UNKNOWN", 1, False) == (refused["code"], refused["ref"], refused["retryable"])


async def test_a_publish_over_a_socket_without_a_broker_may_be_tried_again(
    broker: KillableBroker, topic: str
) -> None:
    async with gateway_before(broker) as gateway, gateway.subscribe(topic, "c") as client:
        await broker.kill()
        await gateway.program.said("publisher disconnected")
        await client.receive()
        refused = await client.ask({"cmd": "PUB", "topic": topic, "body": "x", "ref": 1})

    assert ("NO_BROKER", 1, True) == (refused["code"], refused["ref"], refused["retryable"])
