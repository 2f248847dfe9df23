"""A client that does not read costs bounded memory and delays no other client."""

from __future__ import annotations

import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.support.brokers.killable_broker import KillableBroker
from tests.support.gateways.gateway import RunningGateway, gateway_with_nsqd
from tests.support.websocket.raw_socket import raw_websocket

pytestmark = pytest.mark.asyncio(loop_scope="session")

BODY = b"x" * 500_000
MIB = 1_048_576
SOCKET_BUFFER_BYTES = 2 * MIB
SLOW_CONSUMER_S = 1


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def tight_gateway(shared_broker: KillableBroker) -> AsyncIterator[RunningGateway]:
    """Return a gateway with a small buffer for each socket, whose memory is not the broker's."""
    async with gateway_with_nsqd(
        [shared_broker.tcp_address],
        [shared_broker.http_address],
        f"--socket-buffer-bytes={SOCKET_BUFFER_BYTES}",
        f"--slow-consumer-s={SLOW_CONSUMER_S}",
    ) as running:
        yield running


READS_PROC = pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")


def resident_bytes(gateway: RunningGateway) -> int:
    """Return how much memory the process of *gateway* has (Linux)."""
    status = Path(f"/proc/{gateway.program.pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) * 1024


async def test_a_reader_that_stops_delays_no_other_socket(
    gateway: RunningGateway, topic: str
) -> None:
    """While one socket takes nothing, another one on the same topic gets everything at once."""
    url = gateway.sub_url(topic, "slow", max_in_flight=50)
    async with (
        raw_websocket(url, has_small_buffer=True),
        gateway.subscribe(topic, "quick", max_in_flight=50) as quick,
    ):
        await gateway.channels_become(topic, ["quick", "slow"])
        for number in range(50):
            await gateway.publish(topic, b"%03d" % number + BODY)
            delivery = await quick.message(within_s=2)
            await quick.finish(delivery)

        assert (0, 0, 0) == await gateway.counts_become(topic, "quick", (0, 0, 0))


async def test_a_reader_that_stops_is_closed_with_4001(
    tight_gateway: RunningGateway, topic: str
) -> None:
    """After slow_consumer_s above its bound the socket is closed, and the code says why."""
    url = tight_gateway.sub_url(topic, "c", max_in_flight=50)
    async with raw_websocket(url, has_small_buffer=True) as slow:
        for _ in range(50):
            await tight_gateway.publish(topic, BODY)
        assert (50, 0, 0) == await tight_gateway.counts_become(topic, "c", (50, 0, 0))

        assert 4001 == await slow.close_code()


async def test_messages_of_a_slow_reader_go_to_the_next_consumer(
    tight_gateway: RunningGateway, topic: str
) -> None:
    """Everything that it had not finished is handed back when it is closed."""
    url = tight_gateway.sub_url(topic, "c", max_in_flight=50)
    async with raw_websocket(url, has_small_buffer=True):
        for number in range(50):
            await tight_gateway.publish(topic, b"%03d" % number + BODY)
        async with tight_gateway.subscribe(topic, "c", max_in_flight=50) as next_one:
            deliveries = await next_one.messages(50)

    numbers = sorted(delivery["body"][:3] for delivery in deliveries)
    assert [f"{number:03}" for number in range(50)] == numbers
    # What nsqd could not write any more was never sent to anybody before.
    assert 2 == max(delivery["attempts"] for delivery in deliveries)


@READS_PROC
async def test_a_reader_that_stops_uses_bounded_memory(
    tight_gateway: RunningGateway, topic: str
) -> None:
    """Of 60 MB that wait for a socket the gateway holds its buffer, and what is on the way."""
    url = tight_gateway.sub_url(topic, "c", max_in_flight=2_500)
    async with raw_websocket(url, has_small_buffer=True):
        await tight_gateway.publish(topic, BODY)
        before_bytes = resident_bytes(tight_gateway)
        for _ in range(120):
            await tight_gateway.publish(topic, BODY)
        grown_bytes = resident_bytes(tight_gateway) - before_bytes
        print(f"grown by {grown_bytes / MIB:.1f} MiB")  # noqa: T201 - a measurement

    assert grown_bytes < 8 * SOCKET_BUFFER_BYTES


@READS_PROC
async def test_a_flood_of_commands_that_is_not_read_back_is_bounded(
    tight_gateway: RunningGateway, topic: str
) -> None:
    """A client that asks and asks and never reads is no longer listened to."""
    frame = b"\n".join([b'{"cmd":"NOP","ref":"' + b"r" * 900 + b'"}'] * 60)
    url = tight_gateway.sub_url(topic, "c")
    async with raw_websocket(url, has_small_buffer=True) as flood:
        before_bytes = resident_bytes(tight_gateway)
        with pytest.raises((TimeoutError, ConnectionError)):
            await flood.send_frames_until_stuck(frame, limit_bytes=100 * MIB, stuck_s=0.5)
        grown_bytes = resident_bytes(tight_gateway) - before_bytes
        print(f"grown by {grown_bytes / MIB:.1f} MiB")  # noqa: T201 - a measurement

    assert grown_bytes < 8 * SOCKET_BUFFER_BYTES


async def test_a_silent_socket_is_closed_with_4000(
    shared_broker: KillableBroker, topic: str
) -> None:
    """A client in the middle of a frame that answers no ping; its messages are requeued."""
    addresses = [shared_broker.tcp_address], [shared_broker.http_address]
    flags = ("--ping-interval-s=0.3", "--ping-timeout-s=0.3")
    async with (
        gateway_with_nsqd(*addresses, *flags) as gateway,
        raw_websocket(gateway.sub_url(topic, "c")) as silent,
    ):
        await silent.send(b"\x81\xfe\x01")
        await gateway.publish(topic, b"hello")

        assert 4000 == await silent.close_code()
        assert (1, 0, 0) == await gateway.counts_become(topic, "c", (1, 0, 0))
