"""SIGTERM: readiness fails, sockets are notified and closed gradually, publishes succeed."""

from __future__ import annotations

import asyncio
import signal
from contextlib import AbstractAsyncContextManager

import httpx
import pytest

from tests.support.brokers.killable_broker import KillableBroker
from tests.support.gateways.drain_result import NOTHING_ABORTED, drain_result
from tests.support.gateways.gateway import RunningGateway, gateway_with_nsqd
from tests.support.websocket.raw_socket import handshake, raw_socket
from tests.support.websocket.subscriber_client import Json, SubscriberClient, refused_upgrade

pytestmark = pytest.mark.asyncio(loop_scope="session")

BRIEF, LONG = "--drain-window-s=0.5", "--drain-window-s=60"
"""Long enough to see the closes spread; longer than any test, which then ends it itself."""
IMPATIENT = "--drain-in-flight-s=0.2"
"""For sockets that hold something for ever."""


def in_front_of(broker: KillableBroker, *flags: str) -> AbstractAsyncContextManager[RunningGateway]:
    return gateway_with_nsqd([broker.tcp_address], [broker.http_address], *flags)


async def terminate(gateway: RunningGateway, client: SubscriberClient) -> Json:
    """Send SIGTERM; return the frames that *client* receives at the start of the drain."""
    gateway.program.signal(signal.SIGTERM)
    return await client.receive()


async def test_a_drain_notifies_every_socket_and_closes_it_with_1012(
    shared_broker: KillableBroker, topic: str
) -> None:
    """CLOSE_WAIT says when to come back, then comes the close, and the exit status is 0."""
    async with in_front_of(shared_broker, BRIEF) as gateway:
        async with (
            gateway.subscribe(topic, "c") as one,
            gateway.subscribe(topic, "c") as two,
            gateway.subscribe(topic) as viewer,
        ):
            told = await terminate(gateway, one)
            codes = [(await client.closed())[0] for client in (one, two, viewer)]
        status = await gateway.program.ended()
        account = await drain_result(gateway)

    assert {"sockets": 3, "requeued_on_close": 0, **NOTHING_ABORTED} == account
    assert ("response", "CLS", None) == (told["type"], told["cmd"], told["ref"])
    assert ("CLOSE_WAIT", "drain") == (told["data"]["state"], told["data"]["reason"])
    assert told["data"]["reconnect_after_ms"] in range(60_000)
    assert ([1012, 1012, 1012], 0) == (codes, status)


async def test_a_gateway_that_drains_is_not_ready(
    shared_broker: KillableBroker, topic: str
) -> None:
    """/readyz is 200 before and 503 from the signal on; /livez stays 200."""
    async with (
        in_front_of(shared_broker, LONG) as gateway,
        gateway.subscribe(topic, "c") as client,
        httpx.AsyncClient(base_url=gateway.management_url, trust_env=False) as probe,
    ):
        before = await probe.get("/readyz")
        await terminate(gateway, client)
        after, alive = await probe.get("/readyz"), await probe.get("/livez")

    assert (200, 503, 200) == (before.status_code, after.status_code, alive.status_code)


async def test_a_gateway_that_drains_still_publishes(
    shared_broker: KillableBroker, topic: str
) -> None:
    """Publishes during the drain get OK, with Connection: close."""
    async with (
        in_front_of(shared_broker, LONG) as gateway,
        gateway.subscribe(topic, "c") as client,
    ):
        before = await gateway.http.get("/ping")
        assert "connection" not in before.headers
        await terminate(gateway, client)
        # On a connection that has been there before.
        answer = await gateway.http.post("/pub", params={"topic": topic}, content=b"late")

        assert (200, "close") == (answer.status_code, answer.headers.get("connection"))
        assert (1, 0, 0) == await gateway.counts_become(topic, "c", (1, 0, 0))
        assert "nothing came" == (await client.next_delivery())["ref"]


async def test_a_gateway_that_drains_takes_no_new_socket(
    shared_broker: KillableBroker, topic: str
) -> None:
    """An upgrade is refused with 503, to be tried elsewhere."""
    async with (
        in_front_of(shared_broker, LONG) as gateway,
        gateway.subscribe(topic, "c") as client,
    ):
        await terminate(gateway, client)
        status, problem = await refused_upgrade(gateway.sub_url(topic, "c"))

    assert (503, "EXITING", True) == (status, problem["message"], problem["retryable"])


async def test_answers_are_taken_while_a_gateway_drains(
    shared_broker: KillableBroker, topic: str
) -> None:
    """A FIN between CLOSE_WAIT and the close counts; what is left is handed back."""
    async with (
        in_front_of(shared_broker, BRIEF, IMPATIENT) as gateway,
        gateway.subscribe(topic, "c") as client,
    ):
        await gateway.post("/mpub", b"1\n2", topic=topic)
        first, _second = await client.messages(2)
        await terminate(gateway, client)
        await client.finish(first)
        await client.closed()

        assert (1, 0, 0) == await gateway.counts_become(topic, "c", (1, 0, 0))
        assert {"sockets": 1, "requeued_on_close": 1, **NOTHING_ABORTED} == await drain_result(
            gateway
        )


async def test_a_drain_waits_for_answers_and_no_longer(
    shared_broker: KillableBroker, topic: str
) -> None:
    """Sockets wait for outstanding acks; after the last one the closes begin."""
    async with (
        in_front_of(shared_broker, "--drain-in-flight-s=60", "--drain-window-s=0") as gateway,
        gateway.subscribe(topic, "c") as client,
        gateway.subscribe(topic) as viewer,
    ):
        await gateway.publish(topic, b"1")
        held = await client.message()
        await terminate(gateway, client)
        await client.ask({"cmd": "NOP", "ref": "open"})
        await viewer.receive_until(None)
        await client.finish(held)
        codes = [(await each.closed())[0] for each in (client, viewer)]

        assert ([1012, 1012], 0) == (codes, await gateway.program.ended())
        assert (0, 0, 0) == await gateway.counts_become(topic, "c", (0, 0, 0))


async def test_a_second_signal_ends_a_drain(shared_broker: KillableBroker, topic: str) -> None:
    """Sockets are closed at once, and their messages are requeued."""
    async with (
        in_front_of(shared_broker, LONG) as gateway,
        gateway.subscribe(topic, "c") as client,
    ):
        await gateway.publish(topic, b"held")
        await client.message()
        await terminate(gateway, client)
        gateway.program.signal(signal.SIGTERM)
        code, _ = await client.closed()
        await gateway.program.ended()
        cut = {**NOTHING_ABORTED, "aborted_sockets": 1}

        assert 1012 == code
        assert {"sockets": 0, "requeued_on_close": 1, **cut} == await drain_result(gateway)
        assert (1, 0, 0) == await gateway.counts_become(topic, "c", (1, 0, 0))


async def test_until_the_delay_is_over_all_but_readiness_is_as_before(
    shared_broker: KillableBroker, topic: str
) -> None:
    """A balancer that has not looked again sends connections still: none is refused."""
    async with (
        in_front_of(shared_broker, LONG, "--drain-delay-s=600") as gateway,
        gateway.subscribe(topic, "c") as old,
        httpx.AsyncClient(base_url=gateway.management_url, trust_env=False) as probe,
    ):
        gateway.program.signal(signal.SIGTERM)
        max_duration_s = float((await gateway.program.said(r'"max_duration_s": ([0-9.]+)'))[1])
        await gateway.program.said("not ready, draining after a delay")
        ready, alive = await probe.get("/readyz"), await probe.get("/livez")
        metrics = (await probe.get("/metrics")).text
        async with httpx.AsyncClient(base_url=gateway.url, trust_env=False) as newcomer:
            answer = await newcomer.post("/pub", params={"topic": topic}, content=b"late")
        message = await old.message()
        async with gateway.subscribe(topic, "d") as new:
            answered = [await each.ask({"cmd": "NOP", "ref": "here"}) for each in (old, new)]
            gateway.program.signal(signal.SIGTERM)
            codes = [(await each.closed())[0] for each in (old, new)]
        status = await gateway.program.ended()

    assert (503, "draining\n", 200) == (ready.status_code, ready.text, alive.status_code)
    assert 'nsq_gateway_state{state="draining"} 1.0' in metrics
    assert (200, None) == (answer.status_code, answer.headers.get("connection"))
    assert ("late", ["here", "here"]) == (message["body"], [each["ref"] for each in answered])
    # A second signal cuts the delay short, and the time that is told has it.
    assert ([1012, 1012], 0) == (codes, status)
    assert max_duration_s > 600


async def test_the_drain_begins_when_its_delay_is_over(
    shared_broker: KillableBroker, topic: str
) -> None:
    """Sockets are notified then, and not earlier."""
    loop = asyncio.get_running_loop()
    async with (
        in_front_of(shared_broker, "--drain-window-s=0", "--drain-delay-s=0.5") as gateway,
        gateway.subscribe(topic, "c") as client,
    ):
        began = loop.time()
        told = await terminate(gateway, client)
        waited_s = loop.time() - began
        code, _ = await client.closed()

        assert ("CLOSE_WAIT", 1012) == (told["data"]["state"], code)
        assert waited_s >= 0.5
        assert {"sockets": 1, "requeued_on_close": 0, **NOTHING_ABORTED} == await drain_result(
            gateway
        )
        assert 0 == await gateway.program.ended()


async def test_a_drain_without_sockets_ends_at_once(shared_broker: KillableBroker) -> None:
    async with in_front_of(shared_broker, LONG) as gateway:
        gateway.program.signal(signal.SIGTERM)

        assert 0 == await gateway.program.ended()


async def test_a_drain_ends_although_the_broker_is_frozen(
    broker: KillableBroker, topic: str
) -> None:
    """A broker that does not answer holds up no shutdown."""
    async with in_front_of(broker, BRIEF) as gateway:
        async with gateway.subscribe(topic, "c") as client:
            broker.freeze()
            await terminate(gateway, client)
            code, _ = await client.closed()

        assert (1012, 0) == (code, await gateway.program.ended())


async def test_a_socket_that_is_being_opened_when_a_drain_begins_is_refused(
    broker: KillableBroker, topic: str
) -> None:
    """Its subscription comes too late: 503, and the gateway does not wait for it."""
    async with (
        in_front_of(broker, BRIEF) as gateway,
        gateway.subscribe(topic, "c") as client,
        raw_socket(gateway.address) as opening,
    ):
        broker.freeze()
        await opening.send(handshake(gateway.address, f"/sub?topic={topic}&channel=c"))
        # Answered behind the request above, which now waits for the broker.
        await gateway.http.get("/ping")
        await terminate(gateway, client)
        broker.thaw()
        answer = await opening.read_until(b"\r\n")

        assert (b"HTTP/1.1 503 ", 0) == (answer[:13], await gateway.program.ended())


# One socket, for its age


async def test_a_socket_at_its_maximum_age_is_notified_and_closed_with_1012(
    shared_broker: KillableBroker, topic: str
) -> None:
    """Of both kinds, at once where nothing is held; the gateway goes on."""
    async with in_front_of(shared_broker, "--socket-max-age-s=1") as gateway:
        for channel in ("c", None):
            async with gateway.subscribe(topic, channel) as client:
                told = await client.receive()
                code, reason = await client.closed()

            assert ("CLS", "CLOSE_WAIT", "age") == (
                told["cmd"],
                told["data"]["state"],
                told["data"]["reason"],
            )
            assert told["data"]["reconnect_after_ms"] in range(5_000)
            assert (1012, "the socket has reached its maximum age") == (code, reason)
        async with gateway.subscribe(topic, "c"):
            await gateway.publish(topic, b"1")


async def test_an_old_socket_may_answer_first(shared_broker: KillableBroker, topic: str) -> None:
    """No message comes any more; it is closed behind the last answer."""
    async with (
        in_front_of(shared_broker, "--socket-max-age-s=1", "--drain-in-flight-s=60") as gateway,
        gateway.subscribe(topic, "c") as client,
    ):
        await gateway.publish(topic, b"1")
        held = await client.message()
        await client.receive()  # CLOSE_WAIT
        await gateway.publish(topic, b"2")
        nothing = await client.next_delivery()
        await client.finish(held)
        code, _ = await client.closed()

        assert ("nothing came", 1012) == (nothing["ref"], code)
        assert (1, 0, 0) == await gateway.counts_become(topic, "c", (1, 0, 0))


async def test_a_socket_at_its_maximum_age_is_closed_without_acks_too(
    shared_broker: KillableBroker, topic: str
) -> None:
    flags = ("--socket-max-age-s=1", IMPATIENT)
    async with (
        in_front_of(shared_broker, *flags) as gateway,
        gateway.subscribe(topic, "c") as client,
    ):
        await gateway.publish(topic, b"1")
        await client.message()
        code, _ = await client.closed()

        assert 1012 == code
        assert (1, 0, 0) == await gateway.counts_become(topic, "c", (1, 0, 0))
