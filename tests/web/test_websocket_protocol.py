"""A socket and who is behind it; what RFC 6455 asks of both is in tests/end_to_end/."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from gateway.web.websocket_protocol import WebSocketProtocol
from tests.support.echo_gate import EchoGate, EchoReceiver, echo_port, echo_websockets
from tests.support.manual_clock import ManualClock, turn, until
from tests.support.public_http import public_http
from tests.support.raw_socket import (
    CLOSE,
    CONTINUATION,
    PING,
    PONG,
    TEXT,
    RawWebSocket,
    raw_websocket,
)
from tests.support.recording_publisher import RecordingPublisher
from tests.support.wire_frames import FIN, Closed, close_payload, read_closed, wire_frame

PROBE = wire_frame(FIN | TEXT, b"probe")
INTERVAL_S = 6.4
TURN_S = INTERVAL_S / 64


@pytest.fixture
def gate() -> EchoGate:
    """Who lets everybody in."""
    return EchoGate()


@pytest_asyncio.fixture
async def address(gate: EchoGate) -> AsyncIterator[str]:
    """Where every text is said back."""
    async with echo_port(gate) as address:
        yield address


@pytest_asyncio.fixture
async def raw(address: str) -> AsyncIterator[RawWebSocket]:
    """An open socket."""
    async with raw_websocket(f"ws://{address}/sub?") as raw:
        yield raw


@pytest.fixture
def receiver(raw: RawWebSocket, gate: EchoGate) -> EchoReceiver:
    """Who is behind the socket."""
    del raw
    return gate.receivers[-1]


def protocol(receiver: EchoReceiver) -> WebSocketProtocol:
    """Return the socket with all that it has."""
    assert isinstance(receiver.socket, WebSocketProtocol)
    return receiver.socket


# Reading

STREAM = (
    wire_frame(FIN | TEXT, b"one")
    + wire_frame(TEXT, b"tw")
    + wire_frame(FIN | PING, b"p")
    + wire_frame(FIN | CONTINUATION, b"o")
    + wire_frame(FIN | TEXT, b"x" * 200)
    + wire_frame(FIN | TEXT, b"y" * 5_000)
    + wire_frame(FIN | TEXT, b"z" * 66_000)
    + wire_frame(FIN | TEXT, b"")
)
HEARD = ["one", "two", "x" * 200, "y" * 5_000, "z" * 66_000, ""]


@pytest.mark.parametrize("piece_bytes", [1, 2, 3, 5, 7, 13, 4_096, 65_536, 100_000])
async def test_reads_of_any_size_bring_the_same(receiver: EchoReceiver, piece_bytes: int) -> None:
    """Whatever TCP makes of a stream."""
    for at in range(0, len(STREAM), piece_bytes):
        protocol(receiver).data_received(STREAM[at : at + piece_bytes])

    assert HEARD == receiver.heard


async def test_a_read_may_end_at_any_byte(receiver: EchoReceiver) -> None:
    """In a head, a mask, a payload, or between two frames."""
    wrong = []
    for at in [*range(1, 260), 5_400, 60_000, len(STREAM) - 1]:
        receiver.heard.clear()
        protocol(receiver).data_received(STREAM[:at])
        protocol(receiver).data_received(STREAM[at:])
        if receiver.heard != HEARD:
            wrong.append(at)

    assert [] == wrong


async def test_nothing_is_kept_between_messages(receiver: EchoReceiver) -> None:
    """An idle socket has no parser and no buffer."""
    protocol(receiver).data_received(STREAM)

    assert (b"", None) == (protocol(receiver)._unread, protocol(receiver)._message)


class Choosy(EchoReceiver):
    """Wants no more after each text."""

    def text_received(self, text: str) -> None:
        """Say it, and wait."""
        super().text_received(text)
        self.socket.pause_reading()


async def test_paused_reading_lets_no_text_through(address: str, gate: EchoGate) -> None:
    """Not even one that has been read together with the last; every one comes in its turn."""
    gate.new_receiver = Choosy
    async with raw_websocket(f"ws://{address}/sub?") as raw:
        receiver = gate.receivers[0]
        await raw.send(PROBE * 3)
        await raw.read_exactly(7)
        await turn(5)
        assert ["probe"] == receiver.heard

        receiver.socket.resume_reading()
        await raw.read_exactly(7)
        await turn(5)
        assert ["probe"] * 2 == receiver.heard

        receiver.socket.resume_reading()
        await raw.read_exactly(7)
        await raw.send(PROBE)
        receiver.socket.resume_reading()
        await raw.read_exactly(7)
        assert ["probe"] * 4 == receiver.heard


async def test_pausing_and_resuming_count_once(raw: RawWebSocket, receiver: EchoReceiver) -> None:
    """Both are idempotent, and may follow each other at once."""
    socket = receiver.socket
    for _ in range(2):
        socket.pause_reading()
    for _ in range(2):
        socket.resume_reading()
    socket.pause_reading()
    socket.resume_reading()

    await raw.send(PROBE)

    assert (TEXT, b"probe") == await raw.read_frame()


async def test_a_close_is_seen_though_reading_is_paused(
    raw: RawWebSocket, receiver: EchoReceiver
) -> None:
    """A close of ours reads on, for the answer; texts are thrown away."""
    receiver.socket.pause_reading()
    await raw.send(PROBE + wire_frame(FIN | CLOSE, close_payload(1000)))
    await turn(5)

    receiver.socket.close(4001, "slow")

    assert Closed(4001, [], b"") == await read_closed(raw)
    await receiver.gone.wait()
    assert ([4001], []) == (receiver.codes, receiver.heard)


async def test_a_flood_of_small_frames_lets_others_in_between(receiver: EchoReceiver) -> None:
    """So many are taken in one turn of the event loop; the rest waits, in its order."""
    protocol(receiver).data_received(wire_frame(FIN | TEXT, b"x") * 1_200)
    first = len(receiver.heard)
    await until(lambda: len(receiver.heard) == 1_200)

    assert 512 == first


# Writing


async def test_frames_of_others_go_out_as_they_are(
    raw: RawWebSocket, receiver: EchoReceiver
) -> None:
    """Several at once, shared by many sockets."""
    receiver.socket.send_frame(b"\x81\x01a\x81\x01b")

    assert [(TEXT, b"a"), (TEXT, b"b")] == [await raw.read_frame() for _ in range(2)]


async def test_a_reader_that_stops_is_felt_and_one_that_goes_on_is_told(
    address: str, gate: EchoGate
) -> None:
    """Unsent bytes are counted, and room is told once it is there."""
    async with raw_websocket(f"ws://{address}/sub?", has_small_buffer=True) as raw:
        receiver = gate.receivers[0]
        while receiver.socket.is_writable:
            receiver.socket.send(b"x" * 60_000)
            await turn()
        assert receiver.socket.unsent_bytes > 60_000

        while not receiver.rooms:
            await raw.read_frame()

        assert (True, 1) == (receiver.socket.is_writable, receiver.rooms)
        await until(lambda: receiver.socket.unsent_bytes < 60_000)


async def test_who_pings_and_does_not_read_has_one_pong_waiting(
    address: str, gate: EchoGate
) -> None:
    """§5.5.3: the last ping is the one to answer; pongs do not pile up."""
    async with raw_websocket(f"ws://{address}/sub?", has_small_buffer=True) as raw:
        receiver = gate.receivers[0]
        while receiver.socket.is_writable:
            receiver.socket.send(b"x" * 60_000)
            await turn()
        before = receiver.socket.unsent_bytes
        for number in range(1_000):
            protocol(receiver).data_received(wire_frame(FIN | PING, b"%d" % number))
        assert before == receiver.socket.unsent_bytes

        while (frame := await raw.read_frame())[0] == TEXT:
            pass
        assert (PONG, b"999") == frame


async def test_the_end_of_the_server_is_told_at_once(
    raw: RawWebSocket, receiver: EchoReceiver
) -> None:
    """Whoever is behind it must not take for sent what is not; the client hears 1012."""
    protocol(receiver).shutdown()
    told = list(receiver.codes)
    opcode, payload = await raw.read_frame()

    assert [1012] == told
    assert (CLOSE, b"\x03\xf4") == (opcode, payload[:2])


async def test_nothing_goes_out_behind_the_end(raw: RawWebSocket, receiver: EchoReceiver) -> None:
    """Whoever holds a socket may use it; nothing happens."""
    raw.reset()
    await receiver.gone.wait()
    socket = receiver.socket

    socket.send(b"x")
    socket.send_frame(b"\x81\x00")
    socket.pause_reading()
    socket.resume_reading()
    socket.close(1000, "")
    protocol(receiver).ping(b"p", b"\x89\x01p")
    protocol(receiver).shutdown()
    await turn(5)

    assert [1006] == receiver.codes


# Pings


@pytest_asyncio.fixture
async def pinged(gate: EchoGate) -> AsyncIterator[tuple[RawWebSocket, EchoReceiver, ManualClock]]:
    """A socket that is pinged, and the clock."""
    async with echo_port(
        gate, ping_interval_s=INTERVAL_S, ping_timeout_s=INTERVAL_S / 2
    ) as address:
        clock = ManualClock()
        async with raw_websocket(f"ws://{address}/sub?") as raw:
            yield raw, gate.receivers[0], clock
            clock.run_on()


async def pass_time(clock: ManualClock, turns: int) -> None:
    """Let so many turns of the sweep go by."""
    for _ in range(turns):
        await clock.advance(TURN_S)


async def test_a_pong_keeps_a_socket(
    pinged: tuple[RawWebSocket, EchoReceiver, ManualClock],
) -> None:
    """Interval after interval."""
    raw, receiver, clock = pinged
    for _ in range(5):
        await pass_time(clock, 64)
        opcode, payload = await raw.read_frame()
        assert (PING, 4) == (opcode, len(payload))
        await raw.send(wire_frame(FIN | PONG, payload))
        await until(lambda: protocol(receiver)._ping is None)

    assert [] == receiver.codes


async def test_a_socket_is_not_pinged_as_soon_as_it_is_there(gate: EchoGate) -> None:
    """Its turn in the sweep may come at once: it is passed over for half an interval."""
    async with echo_port(gate, ping_interval_s=INTERVAL_S) as address:
        url = f"ws://{address}/sub?"
        clock = ManualClock()
        async with raw_websocket(url):
            await pass_time(clock, 60)
            async with raw_websocket(url) as second:
                await pass_time(clock, 30)
                assert None is protocol(gate.receivers[1])._ping

                await pass_time(clock, 64)

                assert PING == (await second.read_frame())[0]
        clock.run_on()


@pytest.mark.parametrize(
    "answer",
    [b"", wire_frame(FIN | PONG), wire_frame(FIN | PONG, b"else"), PROBE],
    ids=["nothing", "empty", "another", "a text"],
)
async def test_a_missed_pong_is_4000(
    pinged: tuple[RawWebSocket, EchoReceiver, ManualClock], answer: bytes
) -> None:
    """At the end of its time, unless the answer is the right one."""
    raw, receiver, clock = pinged
    await pass_time(clock, 64)
    await raw.read_frame()
    await raw.send(answer)
    await turn(5)
    await pass_time(clock, 31)
    assert [] == receiver.codes

    await pass_time(clock, 33)

    assert [4000] == receiver.codes
    closed = await read_closed(raw)
    assert (4000, b"") == (closed.code, closed.after)


async def test_the_pong_of_an_older_ping_is_none(
    pinged: tuple[RawWebSocket, EchoReceiver, ManualClock],
) -> None:
    """Each has a payload of its own."""
    raw, receiver, clock = pinged
    await pass_time(clock, 64)
    _, older = await raw.read_frame()
    await raw.send(wire_frame(FIN | PONG, older))
    await until(lambda: protocol(receiver)._ping is None)
    await pass_time(clock, 64)
    await raw.send(wire_frame(FIN | PONG, older))
    await turn(5)

    await pass_time(clock, 64)

    assert [4000] == receiver.codes


async def test_paused_reading_misses_no_pong(
    pinged: tuple[RawWebSocket, EchoReceiver, ManualClock],
) -> None:
    """The pong lies there unread: its time counts anew once it can be read."""
    raw, receiver, clock = pinged
    receiver.socket.pause_reading()
    await pass_time(clock, 64)
    _, payload = await raw.read_frame()
    await raw.send(wire_frame(FIN | PONG, payload))
    await pass_time(clock, 200)
    assert [] == receiver.codes

    receiver.socket.resume_reading()
    await until(lambda: protocol(receiver)._ping is None)
    await pass_time(clock, 20)

    assert [] == receiver.codes


async def test_one_ping_at_a_time_is_on_its_way(
    pinged: tuple[RawWebSocket, EchoReceiver, ManualClock],
) -> None:
    """However long its pong cannot be read."""
    raw, receiver, clock = pinged
    receiver.socket.pause_reading()
    await pass_time(clock, 640)
    receiver.socket.send(b"the end")

    assert [PING, TEXT] == [(await raw.read_frame())[0] for _ in range(2)]


# The end


async def test_who_does_not_read_is_cut_two_seconds_after_the_close(
    address: str, gate: EchoGate
) -> None:
    """It would take neither the close frame nor the end of the connection."""
    async with raw_websocket(f"ws://{address}/sub?", has_small_buffer=True):
        receiver = gate.receivers[0]
        while receiver.socket.is_writable:
            receiver.socket.send(b"x" * 60_000)
            await turn()
        clock = ManualClock()
        receiver.socket.close(4001, "slow")
        await clock.advance(1.9)
        assert [] == receiver.codes

        await clock.advance(0.2)
        await turn(5)

        assert [4001] == receiver.codes
        clock.run_on()


async def test_a_server_that_stops_closes_its_sockets(gate: EchoGate) -> None:
    """1012: come back, to the next one."""
    async with (
        public_http(RecordingPublisher(), websockets=echo_websockets(gate)) as served,
        raw_websocket(f"ws://{served.address}/sub?") as raw,
    ):
        _, code = await asyncio.gather(served.listener.stop(), raw.close_code())
        assert 1012 == code

    assert [1012] == gate.receivers[0].codes


async def test_a_server_that_has_stopped_knows_no_socket(gate: EchoGate) -> None:
    """Open, refused or ended: none is left among its connections."""
    async with public_http(RecordingPublisher(), websockets=echo_websockets(gate)) as served:
        for _ in range(3):
            async with raw_websocket(f"ws://{served.address}/sub?") as raw:
                await raw.send(wire_frame(FIN | CLOSE))
                await read_closed(raw)
        server = served.listener._server
        assert server is not None

        await until(lambda: not server.server_state.connections)


class Failing(EchoReceiver):
    """Fails wherever it is told to."""

    at = ""

    def _fail_at(self, place: str) -> None:
        if self.at == place:
            raise ValueError(place)

    def text_received(self, text: str) -> None:
        """Fail, or not."""
        del text
        self._fail_at("message")

    def has_room(self) -> None:
        """Fail, or not."""
        self._fail_at("room")

    def lost(self, code: int) -> None:
        """Keep why, and fail, or not."""
        super().lost(code)
        self._fail_at("end")


async def fail(receiver: EchoReceiver, place: str) -> None:
    """Bring a receiver to where it fails."""
    if place == "message":
        protocol(receiver).data_received(PROBE)
    elif place == "room":
        protocol(receiver).resume_writing()
    else:
        protocol(receiver).data_received(wire_frame(FIN | CLOSE, close_payload(1000)))


@pytest.mark.parametrize("place, code", [("message", 1011), ("room", 1011), ("end", 1000)])
async def test_a_receiver_that_fails_is_closed_with_1011(
    place: str, code: int, address: str, gate: EchoGate, caplog: pytest.LogCaptureFixture
) -> None:
    """Its words are in the log, and are not told to the client."""
    gate.new_receiver = Failing
    with caplog.at_level(logging.ERROR):
        async with raw_websocket(f"ws://{address}/sub?") as raw:
            receiver = gate.receivers[0]
            assert isinstance(receiver, Failing)
            receiver.at = place
            await fail(receiver, place)
            closed = await read_closed(raw)

    assert (code, [code]) == (closed.code, receiver.codes)
    assert "a WebSocket failed" in caplog.text


async def test_a_receiver_that_fails_at_its_start_is_closed_with_1011(
    address: str, gate: EchoGate, caplog: pytest.LogCaptureFixture
) -> None:
    """Behind the 101, which had gone out."""

    class Stillborn(EchoReceiver):
        def opened(self, socket: object) -> None:
            del socket
            raise ValueError

    gate.new_receiver = Stillborn
    with caplog.at_level(logging.ERROR):
        async with raw_websocket(f"ws://{address}/sub?") as raw:
            assert 1011 == (await read_closed(raw)).code

    assert [1011] == gate.receivers[0].codes


@pytest.mark.parametrize(
    "part", [wire_frame(FIN | TEXT, b"x" * 50)[:20], wire_frame(TEXT & 15, b"fragment")]
)
async def test_a_message_that_never_ends_ends_its_socket(gate: EchoGate, part: bytes) -> None:
    """Also of a client that is there: nobody has a minute for one message, and an interval."""
    async with echo_port(gate, ping_interval_s=INTERVAL_S) as address:
        clock = ManualClock()
        async with raw_websocket(f"ws://{address}/sub?") as raw:
            await raw.send(part)
            socket = protocol(gate.receivers[0])
            await until(lambda: bool(socket._unread or socket._message))
            await pass_time(clock, 590)
            before = list(gate.receivers[0].codes)
            await pass_time(clock, 80)
            assert ([], [4500]) == (before, gate.receivers[0].codes)
        clock.run_on()
