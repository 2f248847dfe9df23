"""Messages are held until nsqd would flush them, on a clock that the test moves."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from gateway.broker.server import ClientConnection, Server
from gateway.broker.topics import TopicRegistry
from gateway.protocol.compression import DeflateCodec, SnappyCodec
from gateway.protocol.connection import Codec
from gateway.protocol.wire import FRAME_HEAD
from tests.support.brokers.broker_core import context
from tests.support.brokers.fake_transport import FakeTransport
from tests.support.brokers.v2_peer import MESSAGE, identify
from tests.support.manual_clock import ManualClock, turn

TICK_S = 0.25


class Scene:
    """A consumer with RDY 5 whose last tick was used, and what it has received."""

    def __init__(self, server: Server, clock: ManualClock) -> None:
        self.clock = clock
        self.transport = FakeTransport()
        self.connection = ClientConnection(server)
        self.connection.connection_made(self.transport)
        self._server = server

    def say(self, data: bytes) -> None:
        """Receive *data*."""
        self.connection.data_received(data)

    async def publish(self, *bodies: bytes) -> None:
        """Publish *bodies*, and deliver them."""
        topic = self._server.registry.get_topic("t")
        topic.publish(bodies, self._server.read_clocks())
        self._server.schedule_delivery()
        await turn(3)

    def take(self, codec: Codec | None = None) -> list[bytes]:
        """Return the frames since the last call: bodies of messages, data of the others."""
        data = b"".join(self.transport.written)
        self.transport.written.clear()
        if codec is not None:
            data = b"".join(codec.decode(data))
        frames = []
        while data:
            size, kind = FRAME_HEAD.unpack_from(data)
            frames.append(data[34 if kind == MESSAGE else 8 : 4 + size])
            data = data[4 + size :]
        return frames


@asynccontextmanager
async def consumer(
    options: bytes = b"{}", *, ready: int = 5, codec: Codec | None = None
) -> AsyncIterator[Scene]:
    """A consumer with these *options*, whose first tick is used up by the message ``first``."""
    server = Server(TopicRegistry(context()), max_connections=1)
    scene = Scene(server, ManualClock())
    subscribe = b"SUB t c\nRDY %d\n" % ready
    scene.say(b"  V2" + identify(options))
    scene.say(subscribe if codec is None else codec.encode(subscribe))
    await scene.clock.advance(TICK_S)
    await scene.publish(b"first")
    yield scene
    scene.connection.connection_lost(None)
    await server.stop()


async def test_a_lone_message_goes_out_at_once() -> None:
    async with consumer() as scene:
        assert b"first" == scene.take()[-1]
        await scene.clock.advance(TICK_S)
        await scene.publish(b"second")

        assert [b"second"] == scene.take()


async def test_messages_within_a_tick_go_out_together_at_its_end() -> None:
    async with consumer() as scene:
        scene.take()
        await scene.publish(b"a")
        await scene.clock.advance(TICK_S / 2)
        await scene.publish(b"b")
        before = scene.take()
        await scene.clock.advance(TICK_S / 2)

        assert ([], [b"a", b"b"]) == (before, scene.take())


async def test_a_client_may_choose_its_tick() -> None:
    async with consumer(b'{"output_buffer_timeout":25}') as scene:
        scene.take()
        await scene.publish(b"a")
        before = scene.take()
        await scene.clock.advance(0.025)

        assert ([], [b"a"]) == (before, scene.take())


async def test_messages_go_out_when_rdy_is_used_up() -> None:
    async with consumer(ready=3) as scene:
        scene.take()
        await scene.publish(b"a")
        before = scene.take()
        await scene.publish(b"b")

        assert ([], [b"a", b"b"]) == (before, scene.take())


@pytest.mark.parametrize("command", [b"RDY 0\n", b"RDY 1\n"])
async def test_a_lower_rdy_sends_what_is_held(command: bytes) -> None:
    async with consumer() as scene:
        scene.take()
        await scene.publish(b"a")
        scene.say(b"NOP\nRDY 4\n")
        before = scene.take()
        scene.say(command)

        assert ([], [b"a"]) == (before, scene.take())


async def test_messages_go_out_when_they_fill_the_buffer() -> None:
    async with consumer(b'{"output_buffer_size":100}') as scene:
        scene.take()
        await scene.publish(b"a" * 30)
        before = scene.take()
        await scene.publish(b"b" * 30)

        assert ([], [b"a" * 30, b"b" * 30]) == (before, scene.take())


async def test_any_other_frame_goes_out_behind_what_is_held() -> None:
    async with consumer() as scene:
        scene.take()
        await scene.publish(b"a")
        scene.say(b"FIN 0123456789abcdef\nCLS\n")

        error = b"E_FIN_FAILED FIN 0123456789abcdef failed ID not in flight"
        assert [b"a", error, b"CLOSE_WAIT"] == scene.take()


async def test_without_a_tick_messages_wait_for_the_heartbeat() -> None:
    async with consumer(b'{"output_buffer_timeout":-1,"heartbeat_interval":2000}') as scene:
        scene.take()
        await scene.clock.advance(1.0)
        await scene.publish(b"a")
        scene.say(b"NOP\n")
        before = scene.take()
        await scene.clock.advance(1.0)

        assert ([], [b"first", b"a", b"_heartbeat_"]) == (before, scene.take())


async def test_without_a_buffer_nothing_is_held() -> None:
    async with consumer(b'{"output_buffer_size":-1}') as scene:
        for body in (b"a", b"b", b"c"):
            scene.take()
            await scene.publish(body)

            assert [body] == scene.take()


@pytest.mark.parametrize(
    "name, new", [("snappy", SnappyCodec), ("deflate", lambda: DeflateCodec(6))]
)
async def test_what_is_held_is_compressed_in_order(name: str, new: Callable[[], Codec]) -> None:
    options = b'{"feature_negotiation":true,"%b":true}' % name.encode()
    codec = new()
    async with consumer(options, codec=codec) as scene:
        # The response to IDENTIFY is in clear text.
        size: int = FRAME_HEAD.unpack_from(scene.transport.written[0])[0]
        scene.transport.written[0] = scene.transport.written[0][4 + size :]
        assert [b"OK", b"OK", b"first"] == scene.take(codec)
        await scene.publish(b"a")
        await scene.publish(b"b")
        before = scene.take(codec)
        scene.say(codec.encode(b"CLS\n"))

        assert ([], [b"a", b"b", b"CLOSE_WAIT"]) == (before, scene.take(codec))


async def test_a_closed_connection_sends_nothing_of_what_it_held() -> None:
    async with consumer() as scene:
        scene.take()
        await scene.publish(b"a")
        scene.transport.close()
        await scene.clock.advance(TICK_S)

        assert [] == scene.take()
