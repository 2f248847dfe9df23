"""A drain under load, with further signals, during the start, and with a stuck client."""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from random import Random

import httpx
import pytest

from tests.support.brokers.killable_broker import KillableBroker, free_port
from tests.support.gateways.drain_result import NOTHING_ABORTED, drain_result
from tests.support.gateways.gateway import (
    ON_FREE_PORTS,
    RunningGateway,
    gateway_with_nsqd,
    poll_until,
)
from tests.support.gateways.programs import nsq_gateway
from tests.support.gateways.steady_load import Consumer, Publisher
from tests.support.manual_clock import turn
from tests.support.websocket.raw_socket import raw_websocket

pytestmark = pytest.mark.asyncio(loop_scope="session")

_CROWD, _WINDOW_S = 150, 2.0


def in_front_of(broker: KillableBroker, *flags: str) -> AbstractAsyncContextManager[RunningGateway]:
    return gateway_with_nsqd([broker.tcp_address], [broker.http_address], *flags)


async def test_a_crowd_is_drained_under_load_and_nothing_is_lost(
    shared_broker: KillableBroker, topic: str
) -> None:
    """Each socket is notified, then closed with 1012 within the window; each OK is stored."""
    end, stop = asyncio.Event(), asyncio.Event()
    consumers = [
        Consumer("", topic, "c" if number % 3 else None, Random(number)) for number in range(_CROWD)
    ]
    publishers = [Publisher("", topic, f"p{number}") for number in range(3)]
    async with in_front_of(shared_broker, f"--drain-window-s={_WINDOW_S:g}") as gateway:
        clients: list[Consumer | Publisher] = [*consumers, *publishers]
        for client in clients:
            client.url = gateway.url
        async with asyncio.TaskGroup() as running:
            for consumer in consumers:
                running.create_task(consumer.run(end, comes_back=False))
            await _reaches(lambda: sum(each.is_connected for each in consumers), _CROWD)
            for publisher in publishers:
                running.create_task(publisher.run(stop))
            await _reaches(lambda: min(len(each.published) for each in publishers), 20)
            gateway.program.signal(signal.SIGTERM)
            status = await gateway.program.ended()
            stop.set()
    late = await _what_is_left(shared_broker, topic)

    goodbyes = [goodbye for consumer in consumers for goodbye in consumer.goodbyes]
    closed = [goodbye.at_s for goodbye in goodbyes]
    told = [goodbye.told_at_s for goodbye in goodbyes]
    published = set().union(*(publisher.published for publisher in publishers))
    received = set().union(*(consumer.received for consumer in consumers if consumer.channel))
    assert (0, _CROWD) == (status, len(goodbyes))
    assert {("drain", 1012)} == {(goodbye.reason, goodbye.code) for goodbye in goodbyes}
    assert 0.8 * _WINDOW_S <= max(closed) - min(closed)
    assert max(told) - min(told) < 1
    assert set() == published - received - late


async def _what_is_left(broker: KillableBroker, topic: str) -> set[str]:
    """Return what another gateway delivers of the channel, until nothing is there."""
    end = asyncio.Event()
    async with in_front_of(broker) as gateway, asyncio.TaskGroup() as running:
        consumer = Consumer(gateway.url, topic, "c", Random(0))
        running.create_task(consumer.run(end))
        assert (0, 0, 0) == await gateway.counts_become(topic, "c", (0, 0, 0))
        end.set()
    return consumer.received


async def _reaches(look: Callable[[], int], expected: int) -> None:
    """Return once *look* says *expected*, or more."""

    async def is_reached() -> bool:
        await turn()
        return look() >= expected

    assert await poll_until(is_reached, expected=True)


async def test_a_signal_during_the_start_ends_it(broker: KillableBroker) -> None:
    """The gateway waits for a silent nsqd, and exits with 0 at once on SIGTERM."""
    management = f"127.0.0.1:{free_port()}"
    broker.freeze()
    flags = (
        *ON_FREE_PORTS,
        f"--management-listen={management}",
        f"--nsqd-tcp-address={broker.tcp_address}",
        f"--nsqd-http-address={broker.http_address}",
    )
    async with (
        nsq_gateway("serve", *flags) as program,
        httpx.AsyncClient(base_url=f"http://{management}", trust_env=False) as probe,
    ):

        async def readiness() -> str:
            try:
                return (await probe.get("/readyz")).text
            except httpx.ConnectError:
                return ""

        seen = await poll_until(readiness, "starting\n")
        program.signal(signal.SIGTERM)
        async with asyncio.timeout(5):
            status = await program.ended()

    assert ("starting\n", 0) == (seen, status)


async def test_two_signals_during_a_start_are_enough(broker: KillableBroker) -> None:
    """It exits by itself in any phase, and is not killed by the signal."""
    broker.freeze()
    flags = (*ON_FREE_PORTS, f"--nsqd-tcp-address={broker.tcp_address}")
    async with nsq_gateway("serve", *flags) as program:
        await program.said("nsqd HTTP address not configured")
        program.signal(signal.SIGTERM)
        program.signal(signal.SIGTERM)
        async with asyncio.timeout(5):
            status = await program.ended()

    assert 0 == status


async def test_a_client_that_reads_nothing_holds_up_no_drain(
    shared_broker: KillableBroker, topic: str
) -> None:
    """Its messages are requeued, its connection is aborted, and the status is 0."""
    flags = ("--drain-in-flight-s=0.5", "--drain-window-s=0.5")
    async with in_front_of(shared_broker, *flags) as gateway:
        url = gateway.sub_url(topic, "c", max_in_flight=60)
        body = b"x" * 100_000
        async with raw_websocket(url, has_small_buffer=True):
            await asyncio.gather(*(gateway.publish(topic, body) for _ in range(60)))
            assert (0, 60, 0) == await gateway.counts_become(topic, "c", (0, 60, 0))
            gateway.program.signal(signal.SIGTERM)
            async with asyncio.timeout(8):
                status = await gateway.program.ended()

            assert 0 == status
            assert (60, 0, 0) == await gateway.counts_become(topic, "c", (60, 0, 0))


async def test_another_gateway_takes_over_at_once(
    shared_broker: KillableBroker, topic: str
) -> None:
    """Messages requeued by the drain reach the other gateway within a second, not 60."""
    loop = asyncio.get_running_loop()
    flags = ("--drain-in-flight-s=0.2", "--drain-window-s=0")
    async with (
        in_front_of(shared_broker, *flags) as leaving,
        in_front_of(shared_broker) as staying,
        leaving.subscribe(topic, "c") as holder,
    ):
        await leaving.post("/mpub", b"1\n2\n3", topic=topic)
        held = await holder.messages(3)
        async with staying.subscribe(topic, "c") as other:
            leaving.program.signal(signal.SIGTERM)
            code, _ = await holder.closed()
            begin = loop.time()
            again = await other.messages(3)
            took_s = loop.time() - begin
            await other.finish(*again)

            assert (0, 0, 0) == await staying.counts_become(topic, "c", (0, 0, 0))
        status = await leaving.program.ended()

    assert (1012, 0) == (code, status)
    assert took_s < 1
    assert {each["body"] for each in held} == {each["body"] for each in again}
    assert {2} == {each["attempts"] for each in again}


async def test_an_aborted_request_is_counted(broker: KillableBroker, topic: str) -> None:
    """Its nsqd says nothing; after the second signal it has two seconds more, and no answer."""
    async with in_front_of(broker) as gateway:
        await gateway.publish(topic, b"1")
        broker.freeze()
        url = f"{gateway.url}/pub?topic={topic}"
        async with httpx.AsyncClient(trust_env=False, timeout=15) as client:
            asking = asyncio.ensure_future(client.post(url, content=b"2"))
            assert await poll_until(lambda: _waits(gateway), expected=True)
            gateway.program.signal(signal.SIGTERM)
            await gateway.program.said("stopping")
            gateway.program.signal(signal.SIGTERM)
            outcome = (await asyncio.gather(asking, return_exceptions=True))[0]
        status = await gateway.program.ended()
        account = await drain_result(gateway)

    assert isinstance(outcome, httpx.TransportError)
    assert 0 == status
    assert {
        "sockets": 0,
        "requeued_on_close": 0,
        **NOTHING_ABORTED,
        "aborted_requests": 1,
    } == account


async def _waits(gateway: RunningGateway) -> bool:
    """Return whether the gateway holds a message whose publish is not answered."""
    async with httpx.AsyncClient(base_url=gateway.management_url, trust_env=False) as probe:
        metrics = (await probe.get("/metrics")).text
    return re.search(r"^nsq_gateway_publish_buffer_bytes [1-9]", metrics, re.MULTILINE) is not None
