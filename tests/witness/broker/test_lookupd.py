"""A real nsqlookupd sees the embedded broker as it sees nsqd."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gateway.broker.broker import Broker, BrokerOptions
from tests.support.brokers.embedded_broker import embedded_broker
from tests.support.brokers.killable_broker import free_port
from tests.support.brokers.nsqd import RealNsqlookupd, is_older_nsqd, real_nsqd, real_nsqlookupd
from tests.support.brokers.v2_peer import publish, v2_peer
from tests.support.gateways.gateway import gateway_by_lookup
from tests.support.http.raw_http import exchange

pytestmark = pytest.mark.nsqd


@asynccontextmanager
async def broker_at(*lookupds: RealNsqlookupd) -> AsyncIterator[Broker]:
    """Run an embedded broker that registers with *lookupds*."""
    options = BrokerOptions(
        broadcast_address="127.0.0.1",
        lookupd_tcp_address=tuple(each.tcp_address for each in lookupds),
    )
    async with embedded_broker(options, has_http=True) as broker:
        yield broker


async def asked(address: str, target: str) -> Any:  # noqa: ANN401 - JSON
    """Return the JSON that *address* answers."""
    return json.loads((await exchange(address, "GET", target)).body)


async def becomes(lookupd: RealNsqlookupd, target: str, condition: Callable[[Any], bool]) -> Any:  # noqa: ANN401 - JSON
    """Return the answer of *lookupd* to *target* once it meets *condition*."""
    answer = None
    try:
        async with asyncio.timeout(30):
            while not condition(answer := await asked(lookupd.http_address, target)):
                pass
    except TimeoutError:
        pytest.fail(f"{target} stays {answer}")
    return answer


def ports(answer: Any) -> set[int]:  # noqa: ANN401 - JSON
    """Return the TCP ports of the producers in *answer*."""
    return {each["tcp_port"] for each in answer.get("producers", ())}


def port_of(broker: Broker) -> int:
    """Return the TCP port of *broker*."""
    return int(broker.tcp_address.rpartition(":")[2])


async def post(broker: Broker, target: str, body: bytes = b"") -> None:
    """Send a POST that has to succeed."""
    assert 200 == (await exchange(broker.http_address, "POST", target, body)).status


@pytest.mark.skipif(is_older_nsqd, reason="the embedded broker follows the current version")
async def test_a_node_of_nsqlookupd_has_the_same_form_as_nsqd() -> None:
    async with (
        real_nsqlookupd() as lookupd,
        real_nsqd(f"--lookupd-tcp-address={lookupd.tcp_address}") as nsqd,
        broker_at(lookupd) as broker,
    ):
        await exchange(nsqd.http_address, "POST", "/topic/create?topic=t")
        await post(broker, "/topic/create?topic=t")

        nodes = await becomes(
            lookupd,
            "/nodes",
            lambda answer: ["t"] * 2 == [t for n in answer["producers"] for t in n["topics"]],
        )

        changing = ("tcp_port", "http_port", "remote_address")
        first, second = (
            {name: value for name, value in node.items() if name not in changing}
            for node in nodes["producers"]
        )
        assert first == second
        assert port_of(broker) in ports(nodes)


async def test_topics_and_channels_come_and_go_at_every_nsqlookupd() -> None:
    async with (
        real_nsqlookupd() as one,
        real_nsqlookupd() as other,
        broker_at(one, other) as broker,
    ):
        await post(broker, "/topic/create?topic=t")
        await post(broker, "/channel/create?topic=t&channel=c")
        for lookupd in one, other:
            await becomes(
                lookupd,
                "/lookup?topic=t",
                lambda answer: answer.get("channels") == ["c"] and port_of(broker) in ports(answer),
            )

        await post(broker, "/topic/delete?topic=t")

        for lookupd in one, other:
            await becomes(lookupd, "/lookup?topic=t", lambda answer: not ports(answer))


async def test_an_ephemeral_channel_is_there_as_long_as_its_consumer() -> None:
    async with real_nsqlookupd() as lookupd, broker_at(lookupd) as broker:
        async with v2_peer(broker.tcp_address) as consumer:
            await consumer.ask(b"SUB t c#ephemeral\n")
            await becomes(
                lookupd, "/channels?topic=t", lambda answer: answer["channels"] == ["c#ephemeral"]
            )

        await becomes(lookupd, "/channels?topic=t", lambda answer: answer["channels"] == [])


async def test_a_broker_that_stops_is_gone_at_once() -> None:
    async with real_nsqlookupd() as lookupd:
        async with broker_at(lookupd) as broker:
            await becomes(lookupd, "/nodes", lambda answer: port_of(broker) in ports(answer))

        await becomes(lookupd, "/nodes", lambda answer: not ports(answer))


async def test_nsqlookupd_knows_everything_again_after_its_restart() -> None:
    flags = f"--tcp-address=127.0.0.1:{free_port()}"
    async with real_nsqlookupd(flags) as lookupd, broker_at(lookupd) as broker:
        await post(broker, "/topic/create?topic=t")
        await post(broker, "/channel/create?topic=t&channel=c")
        await becomes(lookupd, "/nodes", lambda answer: port_of(broker) in ports(answer))
        lookupd.process.kill()
        await lookupd.process.wait()
        await post(broker, "/topic/create?topic=meanwhile")

        async with real_nsqlookupd(flags) as again:
            await becomes(
                again, "/topics", lambda answer: set(answer["topics"]) == {"t", "meanwhile"}
            )
            await becomes(again, "/channels?topic=t", lambda answer: answer["channels"] == ["c"])


async def test_the_nsqlookupds_can_be_changed_at_run_time() -> None:
    async with real_nsqlookupd() as one, real_nsqlookupd() as other, broker_at(one) as broker:
        await becomes(one, "/nodes", lambda answer: port_of(broker) in ports(answer))
        wanted = json.dumps([other.tcp_address]).encode()

        answer = await exchange(
            broker.http_address, "PUT", "/config/nsqlookupd_tcp_addresses", wanted
        )

        assert [other.tcp_address] == json.loads(answer.body)
        await becomes(one, "/nodes", lambda answer: not ports(answer))
        await becomes(other, "/nodes", lambda answer: port_of(broker) in ports(answer))


async def test_a_new_topic_gets_the_lasting_channels_that_another_nsqd_has() -> None:
    async with (
        real_nsqlookupd() as lookupd,
        real_nsqd(f"--lookupd-tcp-address={lookupd.tcp_address}") as nsqd,
        broker_at(lookupd) as broker,
        v2_peer(nsqd.tcp_address) as consumer,
    ):
        await consumer.ask(b"SUB t passing#ephemeral\n")
        await exchange(nsqd.http_address, "POST", "/channel/create?topic=t&channel=lasting")
        await becomes(lookupd, "/channels?topic=t", lambda answer: len(answer["channels"]) == 2)
        await becomes(lookupd, "/nodes", lambda answer: port_of(broker) in ports(answer))

        async with v2_peer(broker.tcp_address) as producer, asyncio.timeout(30):
            await producer.ask(publish(b"t", b"first"))
            while True:
                stats = await asked(broker.http_address, "/stats?format=json&topic=t")
                (topic,) = stats["topics"]
                if topic["channels"]:
                    break

        assert [("lasting", 1)] == [(c["channel_name"], c["depth"]) for c in topic["channels"]]


async def test_a_gateway_finds_the_broker_by_nsqlookupd() -> None:
    async with real_nsqlookupd() as lookupd, broker_at(lookupd) as broker:
        await becomes(lookupd, "/nodes", lambda answer: port_of(broker) in ports(answer))
        async with (
            gateway_by_lookup(
                lookupd.http_address, broker.http_address, "--lookupd-poll-interval-s=0.2"
            ) as gateway,
            gateway.subscribe("t", "c") as client,
        ):
            await post(broker, "/pub?topic=t", b"hello")

            async with asyncio.timeout(30):
                while (received := await client.receive())["type"] != "message":
                    pass

            assert "hello" == received["body"]


async def test_a_broker_without_a_reachable_nsqlookupd_serves() -> None:
    options = BrokerOptions(lookupd_tcp_address=(f"127.0.0.1:{free_port()}",))
    async with embedded_broker(options, has_http=True) as broker:
        await post(broker, "/pub?topic=t", b"hello")

        (topic,) = (await asked(broker.http_address, "/stats?format=json"))["topics"]
        assert 1 == topic["depth"]
