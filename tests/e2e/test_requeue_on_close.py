"""Unfinished messages of a closed socket go to the next subscriber at once."""

from __future__ import annotations

import asyncio
import json
import struct
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import Awaitable, Callable

import pytest

from tests.support.gateways.gateway import RunningGateway
from tests.support.websocket.raw_socket import (
    BINARY,
    CLOSE,
    CONTINUATION,
    TEXT,
    RawWebSocket,
    raw_websocket,
)
from tests.support.websocket.subscriber_client import Json, SubscriberClient

pytestmark = pytest.mark.asyncio(loop_scope="session")

AT_ONCE_S = 1.0
"""Far above what it takes (milliseconds), far below the message timeout (a minute)."""

ABOVE_EVERY_FRAME_BYTES = 64 * 1_048_576

End = Callable[[RawWebSocket], Awaitable[None]]


async def say_goodbye(raw: RawWebSocket) -> None:
    """Close as RFC 6455 asks."""
    await raw.send_frame(CLOSE, struct.pack(">H", 1000))


async def say_goodbye_without_a_word(raw: RawWebSocket) -> None:
    """Close without a code."""
    await raw.send_frame(CLOSE, b"")


async def say_goodbye_wrongly(raw: RawWebSocket) -> None:
    """Close with half a code."""
    await raw.send_frame(CLOSE, b"\x03")


async def reset(raw: RawWebSocket) -> None:
    """End with RST."""
    raw.reset()


async def hang_up(raw: RawWebSocket) -> None:
    """End with FIN and no close frame."""
    raw.close()


async def cls_and_hang_up(raw: RawWebSocket) -> None:
    """Say CLS, and go before everything is answered."""
    await raw.send_frame(TEXT, b'{"cmd":"CLS"}')
    raw.close()


async def break_the_protocol(raw: RawWebSocket) -> None:
    """Send a frame whose mask is missing (RFC 6455 §5.1)."""
    await raw.send(b"\x81\x02{}")


async def continue_nothing(raw: RawWebSocket) -> None:
    """Send a continuation of a message that has not begun."""
    await raw.send_frame(CONTINUATION, b"{}")


async def send_too_much(raw: RawWebSocket) -> None:
    """Announce a frame that is longer than any that is taken."""
    await raw.send(b"\x81\xff" + struct.pack(">Q", ABOVE_EVERY_FRAME_BYTES) + bytes(4))


async def send_binary(raw: RawWebSocket) -> None:
    await raw.send_frame(BINARY, b"  V2")


async def send_latin_1(raw: RawWebSocket) -> None:
    """Send a text frame that is not UTF-8."""
    await raw.send_frame(TEXT, b"\xe4")


async def misuse(raw: RawWebSocket) -> None:
    """Send more nonsense than is forgiven."""
    await raw.send_frame(TEXT, b"\n".join([b"nonsense"] * 1_000))


async def stop_in_a_frame(raw: RawWebSocket) -> None:
    """End in the middle of a frame."""
    await raw.send(b"\x81\xfe\x01")
    raw.close()


ENDS = [
    say_goodbye,
    say_goodbye_without_a_word,
    say_goodbye_wrongly,
    reset,
    hang_up,
    cls_and_hang_up,
    break_the_protocol,
    continue_nothing,
    send_too_much,
    send_binary,
    send_latin_1,
    misuse,
    stop_in_a_frame,
]


async def holding(raw: RawWebSocket) -> Json:
    """Return the first delivery that comes."""
    while True:
        _, payload = await raw.read_frame()
        for line in payload.split(b"\n"):
            received: Json = json.loads(line)
            if received["type"] == "message":
                return received


async def arrival(client: SubscriberClient, *, since: float, how: str) -> Json:
    """Return the next delivery; it must have come at once, and how fast it came is printed."""
    delivery = await client.message()
    elapsed_s = time.monotonic() - since
    print(f"handed back {elapsed_s * 1000:.1f} ms after {how}")  # noqa: T201 - a measurement
    assert elapsed_s < AT_ONCE_S
    return delivery


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__)
async def test_messages_of_a_closed_socket_are_requeued_at_once(
    gateway: RunningGateway, topic: str, end: End
) -> None:
    """The next subscriber has the message in milliseconds, with attempts 2."""
    async with raw_websocket(gateway.sub_url(topic, "c")) as raw:
        await gateway.counts_become(topic, "c", (0, 0, 0))
        await gateway.publish(topic, b"hello")
        held = await holding(raw)
        async with gateway.subscribe(topic, "c") as client:
            ended_at = time.monotonic()
            await end(raw)
            delivery = await arrival(client, since=ended_at, how=end.__name__)
            await client.finish(delivery)

    assert (1, "hello") == (held["attempts"], held["body"])
    assert (2, "hello") == (delivery["attempts"], delivery["body"])


async def test_messages_of_a_killed_client_are_requeued_at_once(
    gateway: RunningGateway, topic: str
) -> None:
    """After SIGKILL of the client's process the next subscriber has its message at once."""
    await gateway.publish(topic, b"hello")
    client_process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.support.brokers.holding_client",
        gateway.sub_url(topic, "c"),
        stdout=PIPE,
    )
    try:
        assert client_process.stdout is not None
        async with asyncio.timeout(15):
            assert b"holding\n" == await client_process.stdout.readline()
        async with gateway.subscribe(topic, "c") as client:
            killed_at = time.monotonic()
            client_process.kill()
            delivery = await arrival(client, since=killed_at, how="SIGKILL")
            await client.finish(delivery)
    finally:
        if client_process.returncode is None:
            client_process.kill()
        await client_process.wait()

    assert (2, "hello") == (delivery["attempts"], delivery["body"])


async def test_a_whole_window_is_requeued_in_order(gateway: RunningGateway, topic: str) -> None:
    """Unfinished messages are requeued, finished ones are not."""
    bodies = [f"{number:03}" for number in range(100)]
    async with gateway.subscribe(topic, "c", max_in_flight=100) as first:
        await gateway.post("/mpub", "\n".join(bodies).encode(), topic=topic)
        deliveries = await first.messages(100)
        await first.finish(*deliveries[::2])
        async with gateway.subscribe(topic, "c", max_in_flight=100) as second:
            await first.connection.close()
            returned = await second.messages(50)
            await second.finish(*returned)

            assert (0, 0, 0) == await gateway.counts_become(topic, "c", (0, 0, 0))

    finished = {delivery["body"] for delivery in deliveries[::2]}
    assert sorted(set(bodies) - finished) == sorted(delivery["body"] for delivery in returned)
    assert {2} == {delivery["attempts"] for delivery in returned}


async def test_requeue_on_close_ms_delays_the_requeue(
    gateway: RunningGateway, warm_topic: str
) -> None:
    async with gateway.subscribe(warm_topic, "c", requeue_on_close_ms=300) as first:
        await gateway.publish(warm_topic, b"hello")
        await first.message()
        async with gateway.subscribe(warm_topic, "c") as second:
            closed_at = time.monotonic()
            await first.connection.close()
            delivery = await second.message()
            elapsed_s = time.monotonic() - closed_at
            await second.finish(delivery)

    assert 2 == delivery["attempts"]
    assert elapsed_s >= 0.3


async def test_a_socket_that_leaves_does_not_delay_the_next(
    gateway: RunningGateway, topic: str
) -> None:
    """A subscriber that comes after the end gets the message too: nothing waits for a timeout."""
    async with gateway.subscribe(topic, "c") as first:
        await gateway.publish(topic, b"hello")
        await first.message()
    left_at = time.monotonic()
    async with gateway.subscribe(topic, "c") as second:
        delivery = await arrival(second, since=left_at, how="leaving, subscription included")
        await second.finish(delivery)

    assert 2 == delivery["attempts"]
