"""The gateway is killed, is suspended, or is the last one of an ephemeral channel."""

from __future__ import annotations

import asyncio
import signal
import time

import httpx
import pytest

from tests.support.brokers.channel_admin import gateway_before
from tests.support.brokers.killable_broker import KillableBroker
from tests.support.gateways.gateway import RunningGateway
from tests.support.gateways.metric_sum import metric_sum

pytestmark = pytest.mark.asyncio(loop_scope="session")

MSG_TIMEOUT_S = 1.0
STILL_S = 3.0


# F17


async def test_messages_of_a_killed_gateway_are_redelivered_after_the_message_timeout(
    shared_broker: KillableBroker, topic: str
) -> None:
    """Nobody hands it back: nsqd waits as long as the socket had asked it to."""
    query = {"msg_timeout_ms": int(MSG_TIMEOUT_S * 1000)}
    async with gateway_before(shared_broker) as other:
        async with other.subscribe(topic, "c") as before:
            await other.publish(topic, b"acknowledged")
            await before.finish(await before.message())
        async with (
            gateway_before(shared_broker) as gateway,
            gateway.subscribe(topic, "c", **query) as client,
        ):
            await gateway.publish(topic, b"held")
            assert "held" == (await client.message())["body"]
            held_at = time.monotonic()
            gateway.program.signal(signal.SIGKILL)
            await gateway.program.ended()
        async with other.subscribe(topic, "c") as after:
            delivery = await after.message()
            waited_s = time.monotonic() - held_at
            await after.finish(delivery)

    print(f"redelivered after {waited_s:.2f} s of {MSG_TIMEOUT_S:g} s")  # noqa: T201 - measured
    assert ("held", 2) == (delivery["body"], delivery["attempts"])
    assert 0.9 * MSG_TIMEOUT_S <= waited_s


# F18


async def live(gateway: RunningGateway) -> int:
    """Return what liveness says, once it says something."""
    async with httpx.AsyncClient(trust_env=False, timeout=10) as http:
        return (await http.get(f"{gateway.management_url}/livez")).status_code


async def test_a_gateway_that_is_suspended_for_three_seconds_loses_nothing(
    shared_broker: KillableBroker, topic: str
) -> None:
    """A probe that asked meanwhile is answered 200, and nsqd and the sockets are still there."""
    flags = ("--heartbeat-interval-ms=2000", "--ping-interval-s=1", "--ping-timeout-s=1")
    async with (
        gateway_before(shared_broker) as other,
        gateway_before(shared_broker, *flags) as gateway,
        gateway.subscribe(topic, "c") as client,
    ):
        await other.publish(topic, b"held")
        held = await client.message()
        gateway.program.signal(signal.SIGSTOP)
        try:
            probe = asyncio.create_task(live(gateway))
            await other.publish(topic, b"meanwhile")
            await client.stays_silent(for_s=STILL_S)
        finally:
            gateway.program.signal(signal.SIGCONT)
        # The next object is the message: nothing is told of a broker that was lost.
        delivery = await client.message()
        await client.finish(held, delivery)
        assert (0, 0, 0) == await other.counts_become(topic, "c", (0, 0, 0))

        lag_s = await metric_sum(gateway.management_url, "event_loop_lag_seconds_sum")

        assert 200 == await probe
        assert STILL_S - 1 < lag_s
        assert ("meanwhile", 1) == (delivery["body"], delivery["attempts"])


# F26


async def test_an_ephemeral_channel_ends_with_its_last_gateway(
    shared_broker: KillableBroker, topic: str
) -> None:
    """Its messages, and those published meanwhile, are lost; a plain channel keeps all."""
    channel = "c#ephemeral"
    async with (
        gateway_before(shared_broker) as other,
        other.subscribe(topic, "archive", max_in_flight=1) as archive,
    ):
        async with (
            gateway_before(shared_broker) as gateway,
            gateway.subscribe(topic, channel, max_in_flight=1) as client,
        ):
            for body in (b"held", b"waiting"):
                await other.publish(topic, body)
            await client.message()
            gateway.program.signal(signal.SIGKILL)
            await gateway.program.ended()
        assert ["archive"] == await other.channels_become(topic, ["archive"])
        await other.publish(topic, b"meanwhile")
        async with other.subscribe(topic, channel) as back:
            await other.publish(topic, b"afterwards")
            first = await back.message()
        kept = []
        for _ in range(4):
            delivery = await archive.message()
            kept.append(delivery["body"])
            await archive.finish(delivery)

    assert "afterwards" == first["body"]
    assert ["afterwards", "held", "meanwhile", "waiting"] == sorted(kept)
