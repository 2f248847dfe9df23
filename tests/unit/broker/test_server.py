"""The TCP door with real sockets: delivery, time, bounds, and peers that misbehave."""

from __future__ import annotations

import asyncio

from structlog.testing import capture_logs

from gateway.broker.broker import Broker, BrokerOptions
from gateway.broker.channel import Channel
from gateway.broker.server import ClientConnection, Server
from gateway.broker.topics import TopicRegistry
from gateway.protocol.wire import Limits
from tests.support.brokers.broker_core import consumer, context
from tests.support.brokers.embedded_broker import embedded_broker
from tests.support.brokers.v2_peer import (
    ERROR,
    OK,
    body_and_attempts,
    multi_publish,
    publish,
    v2_peer,
)
from tests.support.websocket.raw_socket import raw_socket

QUICK_TIMEOUTS = BrokerOptions(limits=Limits(msg_timeout_ms=50))
PATIENCE_S = 60.0


# Delivery


async def test_a_published_message_reaches_every_channel(broker: Broker) -> None:
    """One copy for each channel, one consumer of each gets it."""
    address = broker.tcp_address
    async with v2_peer(address) as first, v2_peer(address) as second, v2_peer(address) as producer:
        await first.ask(b"SUB t a\nRDY 1\n")
        await second.ask(b"SUB t b\nRDY 1\n")

        await producer.ask(publish(b"t", b"hello"))

        assert [(b"hello", 1)] * 2 == [
            body_and_attempts(await peer.frame()) for peer in (first, second)
        ]


async def test_many_publishes_in_one_write_are_answered_in_order(broker: Broker) -> None:
    """The refusal of the last one comes after the answers of those before it."""
    async with v2_peer(broker.tcp_address) as producer:
        await producer.send(publish(b"t", b"x") * 1_000 + publish(b"no!", b"x"))

        frames = await producer.frames_to_end()

    assert [OK] * 1_000 == frames[:-1]
    assert (ERROR, b'E_BAD_TOPIC PUB topic name "no!" is not valid') == frames[-1]


async def test_ten_thousand_messages_arrive_in_order(broker: Broker) -> None:
    """Through a window of 2500, each finished."""
    address = broker.tcp_address
    bodies = [b"%05d" % number for number in range(10_000)]
    frame_bytes = 4 + 4 + 26 + 5
    async with v2_peer(address) as producer, v2_peer(address) as consumer:
        await producer.ask(multi_publish(b"t", *bodies))
        await consumer.ask(b"SUB t c\nRDY 2500\n")
        got = []
        for _ in range(4):
            data = await consumer.raw.read_exactly(2_500 * frame_bytes)
            frames = [
                data[start : start + frame_bytes] for start in range(0, len(data), frame_bytes)
            ]
            got += [frame[-5:] for frame in frames]
            await consumer.send(b"".join(b"FIN %b\n" % frame[18:34] for frame in frames))

    assert bodies == got


async def test_a_deferred_message_is_delivered_later(broker: Broker) -> None:
    """One that was published after it comes first."""
    address = broker.tcp_address
    async with v2_peer(address) as producer, v2_peer(address) as consumer:
        await consumer.ask(b"SUB t c\nRDY 2\n")

        await producer.ask(b"DPUB t 50\n\x00\x00\x00\x05later")
        await producer.ask(publish(b"t", b"now"))

        frames = await consumer.frames(2)
    assert [b"now", b"later"] == [body_and_attempts(frame)[0] for frame in frames]


async def test_a_requeued_message_is_delivered_again(broker: Broker) -> None:
    """At once, and after a delay; attempts rises each time."""
    async with v2_peer(broker.tcp_address) as peer:
        await peer.ask(publish(b"t", b"x"))
        await peer.ask(b"SUB t c\nRDY 1\n")
        frames = [await peer.frame()]
        frames.append(await peer.ask(b"REQ <id-0> 0\n"))
        frames.append(await peer.ask(b"REQ <id-0> 20\n"))

    assert [(b"x", 1), (b"x", 2), (b"x", 3)] == [body_and_attempts(each) for each in frames]


async def test_a_message_that_times_out_is_delivered_again() -> None:
    """After the message timeout; a FIN for the first delivery is then of no use."""
    async with embedded_broker(QUICK_TIMEOUTS) as broker, v2_peer(broker.tcp_address) as peer:
        await peer.ask(publish(b"t", b"x"))
        await peer.ask(b"SUB t c\nRDY 1\n")

        frames = await peer.frames(2)

    assert [(b"x", 1), (b"x", 2)] == [body_and_attempts(each) for each in frames]


async def test_a_lost_clients_message_goes_to_another_after_its_timeout() -> None:
    """As in nsqd it is not handed back at once."""
    async with (
        embedded_broker(QUICK_TIMEOUTS) as broker,
        v2_peer(broker.tcp_address) as lost,
        v2_peer(broker.tcp_address) as other,
    ):
        await lost.ask(publish(b"t", b"x"))
        await lost.ask(b"SUB t c\nRDY 1\n")
        await lost.frame()
        lost.raw.reset()

        await other.ask(b"SUB t c\nRDY 1\n")

        body, attempts = body_and_attempts(await other.frame())

    # More than 2 when the loss was noticed after the timeout.
    assert (b"x", True) == (body, attempts >= 2)


async def test_an_ephemeral_channel_is_deleted_with_its_last_client(broker: Broker) -> None:
    """As soon as the end of its connection is noticed."""
    async with v2_peer(broker.tcp_address) as consumer:
        await consumer.ask(b"SUB t c#ephemeral\n")

    async with v2_peer(broker.tcp_address) as other, asyncio.timeout(PATIENCE_S):
        while channel(broker, "t", "c#ephemeral") is not None:
            await other.ask(publish(b"u", b"x"))


def channel(broker: Broker, topic: str, name: str) -> Channel | None:
    """Return a channel of a running broker."""
    assert broker._server is not None
    return broker._server.registry.find_channel(topic, name)


# Start and stop


async def test_a_stopped_broker_has_closed_its_clients() -> None:
    """Stopping twice is as good as once."""
    async with embedded_broker() as broker, v2_peer(broker.tcp_address) as peer:
        await peer.ask(b"SUB t c\n")

        await broker.stop()
        await broker.stop()

        assert [] == await peer.frames_to_end()


async def test_only_a_full_server_logs_its_connection_limit() -> None:
    """A connection that arrives while the server stops is refused without a warning."""
    server = Server(TopicRegistry(context()), max_connections=0)

    with capture_logs() as while_full:
        assert server.register(ClientConnection(server), "127.0.0.1:1") is None
    await server.stop()
    with capture_logs() as while_stopped:
        assert server.register(ClientConnection(server), "127.0.0.1:1") is None

    event = {
        "event": "client refused: connection limit reached",
        "log_level": "warning",
        "address": "127.0.0.1:1",
        "limit": 0,
    }
    assert ([event], []) == (while_full, while_stopped)


async def test_a_client_that_reads_nothing_does_not_hold_up_the_stop() -> None:
    """Unread messages are lost with the connection."""
    async with embedded_broker() as broker, raw_socket(broker.tcp_address) as deaf:
        await deaf.send(b"  V2SUB t c\nRDY 2500\n")
        await deaf.read_exactly(10)
        async with v2_peer(broker.tcp_address) as producer:
            for _ in range(10):
                await producer.ask(multi_publish(b"t", *[bytes(1_000_000)] * 5))

        async with asyncio.timeout(PATIENCE_S):
            await broker.stop()


async def test_disconnecting_a_lost_client_does_nothing() -> None:
    """A channel may be deleted while its consumer's connection ends."""
    server = Server(TopicRegistry(context()), max_connections=1)

    server.disconnect([consumer(7)])

    await server.stop()
