"""nsqlookupd is down, sends garbage, or lists nsqds that have moved."""

from __future__ import annotations

from functools import partial

import pytest

from tests.support.brokers.killable_broker import KillableBroker, killable_broker
from tests.support.brokers.scripted_broker import ScriptedBroker
from tests.support.brokers.scripted_lookupd import (
    Rule,
    ScriptedLookupd,
    endless,
    respond,
    scripted_lookupd,
    send_raw,
    silent,
)
from tests.support.gateways.gateway import RunningGateway, gateway_by_lookup, poll_until
from tests.support.gateways.metric_sum import metric_sum

pytestmark = pytest.mark.asyncio(loop_scope="session")

OFTEN = "--lookupd-poll-interval-s=0.2"
ROUNDS = 8


async def status_of_publish(gateway: RunningGateway, topic: str) -> int:
    answer = await gateway.http.post("/pub", content=b"x", params={"topic": topic})
    return answer.status_code


async def rounds(lookupd: ScriptedLookupd, count: int) -> None:
    """Return once *lookupd* has received that number of further requests."""
    while not lookupd._new.empty():
        lookupd._new.get_nowait()
    for _ in range(count):
        await lookupd.question()


# F3


async def test_an_nsqd_that_moved_is_found_and_its_old_address_is_not_used(topic: str) -> None:
    """Within one poll the new address is used, and the old one is no longer called."""
    old, new = ScriptedBroker(), ScriptedBroker()
    await old.start()
    await new.start()
    try:
        async with (
            scripted_lookupd(old.address) as lookupd,
            gateway_by_lookup(
                lookupd.address, "127.0.0.1:1", OFTEN, "--nsqd-connections=1"
            ) as gateway,
        ):
            assert 200 == await poll_until(partial(status_of_publish, gateway, topic), 200)
            async with gateway.subscribe(topic, "c") as client:
                await old.stop()
                lost = await client.receive()
                lookupd.knows(new.address)
                found = await client.receive()
                await rounds(lookupd, ROUNDS)
                old.peers.clear()
                await old.start()  # whoever calls there now is seen
                await rounds(lookupd, ROUNDS)
                statuses = {await status_of_publish(gateway, topic) for _ in range(10)}

        assert ("disconnected", "connected") == (lost["data"]["state"], found["data"]["state"])
        assert ([], {200}) == (old.peers, statuses)
    finally:
        await old.stop()
        await new.stop()


# F4


async def test_connections_stay_without_any_nsqlookupd(kind: str, topic: str) -> None:
    """Publishes and deliveries go on, an nsqd that was lost is tried again, a new one is found."""
    async with (
        killable_broker(kind) as one,
        killable_broker(kind) as other,
        scripted_lookupd(one.tcp_address) as lookupd,
        scripted_lookupd(one.tcp_address) as second,
        gateway_by_lookup(
            lookupd.address, one.http_address, OFTEN, f"--lookupd-http-address={second.address}"
        ) as gateway,
    ):
        assert 200 == await poll_until(partial(status_of_publish, gateway, topic), 200)
        async with gateway.subscribe(topic, "c") as client:
            assert "x" == (await client.message())["body"]
            for each in (lookupd, second):
                await each.stop()
                await gateway.program.said(failing(each))
            for _ in range(20):
                await gateway.publish(topic, b"x")
                await client.finish(await client.message())
            failed = await failures(gateway, lookupd.address)
            await one.kill()
            assert "disconnected" == (await client.receive())["data"]["state"]
            await one.start()
            assert "connected" == (await client.receive())["data"]["state"]
            assert 200 == await poll_until(partial(status_of_publish, gateway, topic), 200)
            await client.finish(await client.message())
            await lookupd.start(lookupd.port)
            lookupd.knows(one.tcp_address, other.tcp_address)
            found = await client.receive()

    assert failed > 0
    assert ("connected", 2) == (found["data"]["state"], found["data"]["nsqds"])


def failing(lookupd: ScriptedLookupd) -> str:
    """Return the pattern of the line in the log that names *lookupd*."""
    return rf"(?=.*nsqlookupd unavailable).*{lookupd.address}"


async def failures(gateway: RunningGateway, address: str) -> float:
    """Return how many questions to the nsqlookupd at *address* had no usable answer."""
    return await metric_sum(gateway.management_url, "lookup_failures_total", address)


# F5


GARBAGE = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n\x00{]\xff,[]}"
TEN_MIB = b'{"producers":[' + b" " * 10 * 1_048_576 + b"]}"


@pytest.mark.parametrize(
    "rule,is_counted",
    [
        pytest.param(respond(500, b"oops"), True, id="an error"),
        pytest.param(send_raw(GARBAGE), True, id="garbage"),
        pytest.param(send_raw(b"\x16\x03\x01nonsense"), True, id="no HTTP"),
        pytest.param(respond(200, TEN_MIB), True, id="10 MiB"),
        pytest.param(endless, True, id="without end"),
        pytest.param(silent, False, id="nothing"),  # it is counted after 5 s
    ],
)
async def test_an_nsqlookupd_with_invalid_responses_is_ignored(
    shared_broker: KillableBroker, topic: str, rule: Rule, *, is_counted: bool
) -> None:
    """The other one is believed; what the first one says is counted, and bounded."""
    async with (
        scripted_lookupd() as liar,
        scripted_lookupd(shared_broker.tcp_address) as honest,
    ):
        liar.rule = rule
        async with gateway_by_lookup(
            honest.address,
            shared_broker.http_address,
            OFTEN,
            f"--lookupd-http-address={liar.address}",
        ) as gateway:
            assert 200 == await poll_until(partial(status_of_publish, gateway, topic), 200)
            async with gateway.subscribe(topic, "c") as client:
                assert "x" == (await client.message())["body"]
            if is_counted:
                await gateway.program.said(failing(liar))
                assert 0 < await failures(gateway, liar.address)
