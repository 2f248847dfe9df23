"""One client's connection with a real socket: time, bounds, and peers that misbehave."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest
import uvloop

from gateway.addresses import split_address
from gateway.aio import spawn
from gateway.broker.broker import Broker, BrokerOptions
from gateway.broker.channel import Channel
from gateway.broker.server import STOP_READING_BYTES, ClientConnection, Server
from gateway.broker.topics import TopicRegistry
from gateway.protocol.commands import STEP_MESSAGES
from gateway.protocol.connection import V2Connection
from gateway.protocol.wire import Limits
from tests.support.brokers.broker_core import context, new_messages
from tests.support.brokers.embedded_broker import embedded_broker
from tests.support.brokers.fake_transport import FakeTransport
from tests.support.brokers.v2_peer import (
    ERROR,
    HEARTBEAT,
    MESSAGE,
    OK,
    V2Peer,
    body_and_attempts,
    identify,
    multi_publish,
    publish,
    v2_peer,
)
from tests.support.manual_clock import turn, until
from tests.support.websocket.raw_socket import RawSocket, raw_socket

QUICK_HEARTBEATS = BrokerOptions(limits=Limits(heartbeat_interval_ms=200))
PATIENCE_S = 60.0


def channel(broker: Broker, topic: str, name: str) -> Channel | None:
    """Return a channel of a running broker."""
    assert broker._server is not None
    return broker._server.registry.find_channel(topic, name)


async def test_commands_after_identify_in_the_same_write_are_executed(broker: Broker) -> None:
    """The connection pauses after IDENTIFY only until its answer."""
    async with v2_peer(broker.tcp_address) as peer:
        await peer.send(identify(b"{}") + identify(b"{}") + publish(b"t", b"x"))

        assert [OK, OK, OK] == await peer.frames(3)


async def test_commands_may_come_byte_by_byte(broker: Broker) -> None:
    """Each is carried out with its last byte."""
    async with v2_peer(broker.tcp_address, magic=b"") as peer:
        for byte in b"  V2" + identify(b"{}") + publish(b"t", b"x") + b"SUB t c\nRDY 1\n":
            await peer.raw.send(bytes([byte]))

        kinds = [kind for kind, _ in await peer.frames(4)]

    assert [0, 0, 0, MESSAGE] == kinds


async def test_a_command_that_ends_in_its_body_is_refused(broker: Broker) -> None:
    """The client has closed its half, and can still read what was wrong."""
    async with v2_peer(broker.tcp_address) as peer:
        await peer.send(b"PUB t\n\x00\x00\x00\x05hal")

        peer.raw.end()

        frames = await peer.frames_to_end()
    assert [(ERROR, b"E_BAD_MESSAGE PUB failed to read message body")] == frames


# Time


async def test_a_silent_client_is_closed_after_two_heartbeats() -> None:
    """Without a frame of its own."""
    async with (
        embedded_broker(QUICK_HEARTBEATS) as broker,
        v2_peer(broker.tcp_address) as peer,
    ):
        frames = await peer.frames_to_end()

    assert {HEARTBEAT} == set(frames)


async def test_any_command_keeps_a_client() -> None:
    """A NOP for each heartbeat is enough, for ever."""
    async with (
        embedded_broker(QUICK_HEARTBEATS) as broker,
        v2_peer(broker.tcp_address) as peer,
    ):
        assert [HEARTBEAT] * 4 == [await answered_heartbeat(peer) for _ in range(4)]


async def answered_heartbeat(peer: V2Peer) -> tuple[int, bytes]:
    """Return the next frame, answered by NOP."""
    frame = await peer.frame()
    await peer.send(b"NOP\n")
    return frame


def test_a_client_gets_a_late_heartbeat_before_it_times_out() -> None:
    """A broker that stood still lets nobody pay for it."""
    uvloop.run(_asked_late())


async def _asked_late() -> None:
    async with (
        embedded_broker(QUICK_HEARTBEATS) as broker,
        v2_peer(broker.tcp_address) as peer,
    ):
        await peer.ask(publish(b"t", b"x"))
        stand_still()

        assert [HEARTBEAT] == await peer.frames_to_end()


def test_a_client_that_answered_during_a_long_turn_is_not_aborted() -> None:
    """The answer lies in the socket when its time is over."""
    uvloop.run(_answered_unheard())


async def _answered_unheard() -> None:
    standing, answered = threading.Event(), threading.Event()
    ours, theirs = socket.socketpair()

    class LongTurn(asyncio.Protocol):
        def data_received(self, data: bytes) -> None:
            del data  # it is to take long
            standing.set()
            answered.wait(PATIENCE_S)
            stand_still()

    def answer(address: str) -> bytes:
        with theirs, socket.create_connection(split_address(address), PATIENCE_S) as peer:
            peer.sendall(b"  V2")
            peer.recv(1_024)
            theirs.send(b"stand still")
            standing.wait(PATIENCE_S)
            peer.sendall(b"NOP\n")
            answered.set()
            return peer.recv(1_024)

    async with embedded_broker(QUICK_HEARTBEATS) as broker:
        transport, _ = await asyncio.get_running_loop().create_connection(LongTurn, sock=ours)
        next_read = await asyncio.to_thread(answer, broker.tcp_address)
        transport.close()

    assert next_read.endswith(b"_heartbeat_")


def stand_still() -> None:
    """Keep the event loop from turning, for five heartbeats."""
    until = time.perf_counter() + 1.0
    while time.perf_counter() < until:
        pass


async def test_a_client_without_heartbeats_may_be_silent() -> None:
    """It outlives one that has them."""
    async with (
        embedded_broker(QUICK_HEARTBEATS) as broker,
        v2_peer(broker.tcp_address) as silent,
        v2_peer(broker.tcp_address) as other,
    ):
        await silent.ask(identify(b'{"heartbeat_interval":-1}'))
        await other.frames_to_end()

        assert OK == await silent.ask(publish(b"t", b"x"))


async def test_heartbeats_come_as_identify_agreed() -> None:
    """One that asks for a longer interval outlives one that did not ask."""
    async with (
        embedded_broker(QUICK_HEARTBEATS) as broker,
        v2_peer(broker.tcp_address) as patient,
        v2_peer(broker.tcp_address) as other,
    ):
        await patient.ask(identify(b'{"heartbeat_interval":1000}'))
        await other.frames_to_end()

        assert OK == await patient.ask(publish(b"t", b"x"))


# Misbehaving


BAD_INPUT: dict[str, bytes] = {
    "another magic": b"  V1",
    "HTTP": b"GET / HTTP/1.1\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "an empty line": b"  V2\n",
    "a name with a newline": b"  V2PUB t\nu\n\x00\x00\x00\x01x",
    "binary zeros": b"  V2" + bytes(64) + b"\n",
    "a body one byte too big": b"  V2PUB t\n" + struct.pack(">I", 1_048_577),
    "an endless line": b"  V2" + b"A" * 20_000,
    "garbage JSON": b"  V2" + identify(b"{]"),
    "a JSON array": b"  V2" + identify(b"[]"),
    "a wrong type": b"  V2" + identify(b'{"heartbeat_interval":"1"}'),
    "a foreign FIN before SUB": b"  V2FIN 0123456789abcdef\n",
}


@pytest.mark.parametrize("data", BAD_INPUT.values(), ids=BAD_INPUT)
async def test_bad_input_ends_its_own_connection_only(broker: Broker, data: bytes) -> None:
    """A consumer beside it gets its messages as before."""
    async with v2_peer(broker.tcp_address) as bystander:
        await bystander.ask(b"SUB bystander c\nRDY 1\n")

        async with v2_peer(broker.tcp_address, magic=data) as peer:
            frames = await peer.frames_to_end()

        await bystander.ask(publish(b"bystander", b"x"))
        assert (b"x", 1) == body_and_attempts(await bystander.frame())
    assert [ERROR] * len(frames) == [kind for kind, _ in frames]


@pytest.mark.parametrize(
    "data",
    [b"", b"  ", b"  V2", b"  V2PUB t\n\x00\x00", b"  V2PUB t\n\x00\x00\x00\x05he", b"  V2NO"],
    ids=["nothing", "half a magic", "a magic", "half a size", "half a body", "half a line"],
)
async def test_half_a_command_and_then_silence_is_closed(data: bytes) -> None:
    """Half a command is no sign of life."""
    async with (
        embedded_broker(QUICK_HEARTBEATS) as broker,
        v2_peer(broker.tcp_address, magic=data) as peer,
    ):
        frames = await peer.frames_to_end()

    assert {HEARTBEAT} == set(frames)


async def test_ten_thousand_commands_in_one_write(broker: Broker) -> None:
    """Each is carried out, and each refused one is told."""
    async with v2_peer(broker.tcp_address) as peer:
        await peer.ask(b"SUB t c\n")
        await peer.send(b"FIN 0123456789abcdef\n" * 10_000 + b"NOP\n" * 10_000)
        await peer.send(publish(b"t", b"x"))

        frames = await peer.frames(10_001)

    error = (ERROR, b"E_FIN_FAILED FIN 0123456789abcdef failed ID not in flight")
    assert [error] * 10_000 + [OK] == frames


async def test_one_connection_too_many_is_closed() -> None:
    """Those that are there stay; its place is free again when one has left."""
    async with embedded_broker(BrokerOptions(max_connections=1)) as broker:
        async with v2_peer(broker.tcp_address) as first:
            await first.ask(publish(b"t", b"x"))
            async with raw_socket(broker.tcp_address) as second:
                assert b"" == await second.read_to_end()
            assert OK == await first.ask(publish(b"t", b"x"))
        async with asyncio.timeout(PATIENCE_S):
            while not await can_publish(broker):
                pass


async def can_publish(broker: Broker) -> bool:
    """True if a new connection is taken."""
    async with v2_peer(broker.tcp_address) as peer:
        try:
            return await peer.ask(publish(b"t", b"x")) == OK
        except (EOFError, ConnectionError):
            return False


Run = Callable[[Coroutine[Any, Any, None]], None]
LOOPS = pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])


@LOOPS
def test_a_consumer_that_does_not_read_is_aborted(run: Run) -> None:
    """Its commands do not save it; what it was sent is bounded, and others do not wait for it."""
    run(_deaf_consumer())


async def _deaf_consumer() -> None:
    body, count = bytes(100_000), 400
    limits = Limits(heartbeat_interval_ms=500)
    async with (
        embedded_broker(BrokerOptions(limits=limits)) as broker,
        raw_socket(broker.tcp_address) as deaf,
        v2_peer(broker.tcp_address) as producer,
        v2_peer(broker.tcp_address) as other,
    ):
        await producer.ask(identify(b'{"heartbeat_interval":60000}'))
        await deaf.send(b"  V2SUB t deaf\nRDY 2500\n")
        await deaf.read_exactly(10)
        await other.ask(b"SUB t other\nRDY 2500\n")
        for _ in range(count // 40):
            assert OK == await producer.ask(multi_publish(b"t", *[body] * 40))
        arrived = 0
        while arrived < count:
            kind, _ = await other.frame()
            arrived += kind == MESSAGE
            await other.send(b"NOP\n")
        found = channel(broker, "t", "deaf")
        assert found is not None
        sent = found.in_flight_count
        with pytest.raises(ConnectionError):
            await keep_alive(deaf, beside=other)

    assert 0 < sent < count // 2


@LOOPS
def test_a_consumer_that_sent_eof_and_does_not_read_is_aborted(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unsent data keeps the connection open, without heartbeats."""
    monkeypatch.setattr("gateway.broker.server.CLOSE_TIMEOUT_S", 0.1)
    run(_half_closed())


async def _half_closed() -> None:
    async with (
        embedded_broker() as broker,
        raw_socket(broker.tcp_address) as deaf,
        v2_peer(broker.tcp_address) as producer,
    ):
        await deaf.send(b"  V2SUB t deaf\nRDY 2500\n")
        await deaf.read_exactly(10)
        for _ in range(10):
            assert OK == await producer.ask(multi_publish(b"t", *[bytes(100_000)] * 40))
        found = channel(broker, "t", "deaf")
        assert found is not None
        deaf.end()
        async with asyncio.timeout(PATIENCE_S):
            await until(lambda: not found.consumers)


async def keep_alive(deaf: RawSocket, *, beside: V2Peer) -> None:
    """Say NOP on both connections at each heartbeat that the second one reads."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            await beside.frame()
            await beside.send(b"NOP\n")
            await deaf.send(b"NOP\n")


@LOOPS
def test_a_client_that_reads_no_answers_is_not_read_either(run: Run) -> None:
    """Its answers are bounded; once it reads, each of its commands has been carried out."""
    run(_deaf_client())


async def _deaf_client() -> None:
    count = 100_000
    refusal_bytes = 8 + len(b"E_REQ_FAILED REQ 0123456789abcdef failed ID not in flight")
    async with (
        embedded_broker() as broker,
        v2_peer(broker.tcp_address) as deaf,
        v2_peer(broker.tcp_address) as other,
    ):
        deaf.raw._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 262_144)
        await deaf.ask(b"SUB t c\n")
        commands = b"REQ 0123456789abcdef 0\n" * count + publish(b"t", b"end")
        sending = spawn("send", deaf.raw.send(commands))
        # As many turns as it takes to read all of it, were it read.
        for _ in range(200):
            await other.ask(publish(b"t", b"x"))
        buffered = unsent(broker)
        await deaf.raw.read_exactly(refusal_bytes * count)
        await sending
        last = await deaf.frame()

    assert STOP_READING_BYTES < buffered < 2 * STOP_READING_BYTES
    assert OK == last


def unsent(broker: Broker) -> int:
    """Return how many bytes wait for the client that reads least."""
    assert broker._server is not None
    connections = broker._server._connections.values()
    return max(each._transport.get_write_buffer_size() for each in connections)


@LOOPS
def test_a_consumer_that_reads_late_gets_everything(run: Run) -> None:
    """Delivery stops while it does not read, and goes on when it does."""
    run(_late_reader())


async def _late_reader() -> None:
    body, count = bytes(100_000), 300
    async with (
        embedded_broker() as broker,
        v2_peer(broker.tcp_address) as late,
        v2_peer(broker.tcp_address) as producer,
    ):
        await late.ask(b"SUB t c\nRDY 2500\n")
        for _ in range(count // 30):
            assert OK == await producer.ask(multi_publish(b"t", *[body] * 30))
        found = channel(broker, "t", "c")
        assert found is not None
        was_held_back = found.depth > 0

        frame_bytes = 8 + 26 + len(body)
        for _ in range(count):
            await late.raw.read_exactly(frame_bytes)

    assert was_held_back


# Large MPUBs


@LOOPS
def test_others_have_their_turn_while_a_large_mpub_is_read_and_stored(run: Run) -> None:
    """Its messages come in steps, and a neighbour's commands are answered between them."""
    run(_large_mpub())


async def _large_mpub() -> None:
    count = 50 * STEP_MESSAGES
    async with (
        embedded_broker() as broker,
        v2_peer(broker.tcp_address) as large,
        v2_peer(broker.tcp_address) as other,
    ):
        sending = spawn("send", large.ask(multi_publish(b"t", *[b"x"] * count)))
        answers = 0
        while not sending.done():
            assert OK == await other.ask(publish(b"u", b"x"))
            answers += 1
        assert OK == await sending
        assert broker._server is not None
        assert count == broker._server.registry.topics["t"].depth

    # Read and stored in 50 steps each; a neighbour's question and answer take a few turns.
    assert answers >= 15


async def test_a_large_backlog_does_not_hold_up_others(broker: Broker) -> None:
    """Its first channel gets it in steps, and a neighbour's commands are answered between them."""
    count = 50 * STEP_MESSAGES
    async with v2_peer(broker.tcp_address) as peer, v2_peer(broker.tcp_address) as other:
        await peer.ask(multi_publish(b"t", *[b"x"] * count))
        await peer.ask(b"SUB t c\n")
        found = channel(broker, "t", "c")
        assert found is not None
        depths = []
        while found.depth < count:
            depths.append(found.depth)
            await other.ask(publish(b"u", b"x"))

    assert len(depths) >= 5


async def test_commands_after_a_large_mpub_wait_for_it(broker: Broker) -> None:
    """Answers are in the order of the commands; the messages too."""
    bodies = [b"%05d" % number for number in range(2 * STEP_MESSAGES)]
    async with v2_peer(broker.tcp_address) as peer:
        await peer.ask(b"SUB t c\n")
        await peer.send(
            multi_publish(b"t", *bodies) + publish(b"t", b"later") + b"RDY 2500\nNOPE\n"
        )

        frames = await peer.frames_to_end()

    answers = [frame for frame in frames if frame[0] != MESSAGE]
    assert [OK, OK, (ERROR, b"E_INVALID invalid command NOPE")] == answers
    assert broker._server is not None
    assert 2 * STEP_MESSAGES + 1 == broker._server.registry.topics["t"].message_count


async def test_a_large_mpub_is_stored_after_its_client_has_disconnected(broker: Broker) -> None:
    """It was whole when the client went."""
    count = 20 * STEP_MESSAGES
    assert broker._server is not None
    topics = broker._server.registry.topics
    async with v2_peer(broker.tcp_address) as peer:
        await peer.send(multi_publish(b"t", *[b"x"] * count))
        await until(lambda: "t" in topics)
        peer.raw.reset()

        await until(lambda: topics["t"].depth == count)


async def test_a_large_mpub_with_a_bad_message_stores_nothing(broker: Broker) -> None:
    """Refused in nsqd's words, although most of it was right."""
    count = 3 * STEP_MESSAGES
    async with v2_peer(broker.tcp_address) as peer:
        await peer.send(multi_publish(b"t", *[b"x"] * count, b""))

        frames = await peer.frames_to_end()

    description = b"E_BAD_MESSAGE MPUB invalid message(%d) body size 0" % count
    assert [(ERROR, description)] == frames
    assert broker._server is not None
    assert 0 == broker._server.registry.topics["t"].message_count


async def test_deleting_a_topic_drops_the_rest_of_its_large_mpub(
    broker: Broker,
) -> None:
    """It is answered OK: what was published was deleted."""
    assert broker._server is not None
    registry = broker._server.registry
    async with v2_peer(broker.tcp_address) as peer:
        await peer.send(multi_publish(b"t", *[b"x"] * (20 * STEP_MESSAGES)))
        await until(lambda: "t" in registry.topics and registry.topics["t"].message_count > 0)

        registry.delete_topic("t")

        assert OK == await peer.frame()
    await until(lambda: registry.context.memory.used_bytes == 0)
    assert {} == registry.topics


async def test_a_broker_that_stops_leaves_a_large_mpub_unanswered() -> None:
    """The client does not know the outcome, and the room is free."""
    async with embedded_broker() as broker, v2_peer(broker.tcp_address) as peer:
        assert broker._server is not None
        registry = broker._server.registry
        await peer.send(multi_publish(b"t", *[b"x"] * (200 * STEP_MESSAGES)))
        await until(lambda: "t" in registry.topics)

        await broker.stop()

        assert [] == await peer.frames_to_end()
        registry.delete_topic("t")
        list(registry.context.discard_queue.take_steps() or ())
    assert 0 == registry.context.memory.used_bytes


# Without a socket: what a transport does once in a thousand times.


@pytest.fixture
async def scene() -> AsyncIterator[tuple[ClientConnection, FakeTransport]]:
    """A connection of a server that does not listen, and its transport."""
    server = Server(TopicRegistry(context()), max_connections=1)
    connection, transport = ClientConnection(server), FakeTransport()
    connection.connection_made(transport)
    yield connection, transport
    connection.connection_lost(None)
    await server.stop()


Scene = tuple[ClientConnection, FakeTransport]


async def test_a_closing_connection_gets_no_messages(scene: Scene) -> None:
    """A delivery that comes too late, and a peer that reads again, change nothing."""
    connection, transport = scene
    connection.data_received(b"  V2SUB t c\n")
    transport.close()
    written = list(transport.written)

    connection.deliver(new_messages(1))
    connection.pause_writing()
    connection.resume_writing()

    assert written == transport.written


async def test_a_timer_between_heartbeats_does_nothing(scene: Scene) -> None:
    """It was set for a deadline that a command has moved meanwhile."""
    connection, transport = scene
    connection.data_received(b"  V2NOP\n")

    connection._on_heartbeat_timer(30.0)

    assert (False, []) == (transport.is_aborted, transport.written)
    assert connection._heartbeat_timer is not None


async def test_a_refusal_without_heartbeats_closes_too(scene: Scene) -> None:
    """There is no pulse to take back."""
    connection, transport = scene
    connection.data_received(b"  V2" + identify(b'{"heartbeat_interval":-1}') + b"X\n")

    assert transport.has_closed
    assert transport.written[-1].endswith(b"E_INVALID invalid command X")


async def test_a_peer_that_has_disconnected_has_no_address(scene: Scene) -> None:
    """It is shown empty."""
    connection, _ = scene

    assert "" == connection._client.remote_address


LARGE = multi_publish(b"t", *[b"x"] * (3 * STEP_MESSAGES))


async def test_nothing_is_read_while_a_large_mpub_is_stored(scene: Scene) -> None:
    """Commands after it in the same read are executed after it."""
    connection, transport = scene

    connection.data_received(b"  V2" + LARGE + publish(b"t", b"x"))

    assert ([], True) == (transport.written, transport.is_paused)
    await until(lambda: not transport.is_paused)
    ok = b"\x00\x00\x00\x06\x00\x00\x00\x00OK"
    assert [ok, ok] == transport.written


async def test_commands_behind_a_response_that_cannot_be_sent_are_dropped(scene: Scene) -> None:
    """As by nsqd, also if they were whole when the client disconnected."""
    connection, transport = scene
    topics = connection._server.registry.topics
    connection.data_received(b"  V2" + LARGE + publish(b"t", b"x") + LARGE)
    await until(lambda: "t" in topics and topics["t"].message_count > 0)

    transport.close()
    await until(lambda: not connection._server._pending_steps)

    assert 3 * STEP_MESSAGES == topics["t"].message_count


async def test_a_client_does_not_time_out_while_its_large_mpub_is_stored(scene: Scene) -> None:
    """Its answers to heartbeats cannot be read, and its time starts anew when they can."""
    connection, transport = scene
    connection.data_received(b"  V2" + LARGE)
    connection._last_command = -1e6

    connection._on_heartbeat_timer(30.0)
    await turn(5)

    assert not transport.is_aborted
    await until(lambda: not transport.is_paused)
    connection._on_heartbeat_timer(30.0)
    await turn(5)
    assert not transport.is_aborted


async def test_reading_stays_paused_after_a_large_mpub_of_a_client_that_does_not_read(
    scene: Scene,
) -> None:
    """Both have to be over: the work, and the wait for its reader."""
    connection, transport = scene
    connection.data_received(b"  V2" + LARGE)
    connection.pause_writing()
    connection._is_backlogged = True
    await until(lambda: not connection._is_in_steps)
    assert transport.is_paused

    connection.resume_writing()

    assert not transport.is_paused


async def test_a_client_that_reads_again_is_not_read_before_its_mpub_is_stored(
    scene: Scene,
) -> None:
    """The other way round."""
    connection, transport = scene
    connection.data_received(b"  V2" + LARGE)
    connection.pause_writing()
    connection._is_backlogged = True

    connection.resume_writing()

    assert transport.is_paused
    await until(lambda: not transport.is_paused)


async def test_an_error_of_ours_in_a_step_ends_the_connection(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would never be read again, and nobody would know."""
    connection, transport = scene
    contexts: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _loop, context: contexts.append(context))
    connection.data_received(b"  V2" + LARGE)
    monkeypatch.setattr(V2Connection, "resume", None)

    await until(lambda: transport.is_aborted)

    assert ["TypeError"] == [type(context["exception"]).__name__ for context in contexts]
