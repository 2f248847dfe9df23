"""A socket and who is behind it; what RFC 6455 asks of both is in tests/e2e/rfc6455/."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
import pytest_asyncio

from gateway.errors import Overloaded
from gateway.web.loop_budget import UNITS_PER_TURN
from gateway.web.websocket.protocol import WebSocketProtocol
from tests.support.gateways.public_http import public_http
from tests.support.http.recording_publisher import RecordingPublisher
from tests.support.manual_clock import ManualClock, turn, until
from tests.support.websocket.echo_handler import (
    EchoHandler,
    EchoUpgradeHandler,
    echo_server,
    echo_websockets,
)
from tests.support.websocket.frames import FIN, Closed, close_payload, read_closed, wire_frame
from tests.support.websocket.raw_socket import (
    BINARY,
    CLOSE,
    CONTINUATION,
    PING,
    PONG,
    TEXT,
    RawWebSocket,
    raw_websocket,
)

PROBE = wire_frame(FIN | TEXT, b"probe")
INTERVAL_S = 6.4
TURN_S = INTERVAL_S / 64


@pytest.fixture
def gate() -> EchoUpgradeHandler:
    """Who lets everybody in."""
    return EchoUpgradeHandler()


@pytest_asyncio.fixture
async def address(gate: EchoUpgradeHandler) -> AsyncIterator[str]:
    """Where every text is said back."""
    async with echo_server(gate) as address:
        yield address


@pytest_asyncio.fixture
async def raw(address: str) -> AsyncIterator[RawWebSocket]:
    async with raw_websocket(f"ws://{address}/sub?") as raw:
        yield raw


@pytest.fixture
def handler(raw: RawWebSocket, gate: EchoUpgradeHandler) -> EchoHandler:
    del raw
    return gate.handlers[-1]


def protocol(handler: EchoHandler) -> WebSocketProtocol:
    assert isinstance(handler.socket, WebSocketProtocol)
    return handler.socket


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


@pytest.mark.parametrize("piece_bytes", [1, 7, 4_096, 65_536, 100_000])
async def test_reads_of_any_size_bring_the_same(handler: EchoHandler, piece_bytes: int) -> None:
    """Whatever TCP makes of a stream."""
    for at in range(0, len(STREAM), piece_bytes):
        protocol(handler).data_received(STREAM[at : at + piece_bytes])
        if piece_bytes > 1_000 or at % 1_000 == 0:
            await turn(5)  # a long read takes several of the event loop
    await turn(5)

    assert HEARD == handler.heard


async def test_a_read_may_end_at_any_byte(handler: EchoHandler) -> None:
    """In a head, a mask, a payload, or between two frames."""
    wrong = []
    for at in [*range(1, 260), 5_400, 60_000, len(STREAM) - 1]:
        handler.heard.clear()
        protocol(handler).data_received(STREAM[:at])
        await turn(5)
        protocol(handler).data_received(STREAM[at:])
        await turn(5)
        if handler.heard != HEARD:
            wrong.append(at)

    assert [] == wrong


async def test_nothing_is_kept_between_messages(handler: EchoHandler) -> None:
    """An idle socket has no parser and no buffer."""
    protocol(handler).data_received(STREAM)
    await turn(5)

    assert (b"", None) == (protocol(handler)._unread, protocol(handler)._message)


async def test_every_byte_of_every_frame_is_counted(
    raw: RawWebSocket, handler: EchoHandler
) -> None:
    """Of texts, pongs and the close: what the log tells is what the network took."""
    socket = protocol(handler)
    await raw.send_frame(TEXT, b"one")
    await raw.send_frame(PING, b"p")
    await raw.send_frame(CLOSE, close_payload(1000))
    sizes = {}
    while CLOSE not in sizes:
        opcode, payload = await raw.read_frame()
        sizes[opcode] = 2 + len(payload)

    assert {TEXT, PONG, CLOSE} == sizes.keys()
    assert sum(sizes.values()) == socket.sent_bytes


class Choosy(EchoHandler):
    """Wants no more after each text."""

    def on_text(self, text: str) -> None:
        """Say it, and wait."""
        super().on_text(text)
        self.socket.pause_reading()


async def test_paused_reading_lets_no_text_through(address: str, gate: EchoUpgradeHandler) -> None:
    """Not even one that has been read together with the last; every one comes in its turn."""
    gate.new_handler = Choosy
    async with raw_websocket(f"ws://{address}/sub?") as raw:
        handler = gate.handlers[0]
        await raw.send(PROBE * 3)
        await raw.read_exactly(7)
        await turn(5)
        assert ["probe"] == handler.heard

        handler.socket.resume_reading()
        await raw.read_exactly(7)
        await turn(5)
        assert ["probe"] * 2 == handler.heard

        handler.socket.resume_reading()
        await raw.read_exactly(7)
        await raw.send(PROBE)
        handler.socket.resume_reading()
        await raw.read_exactly(7)
        assert ["probe"] * 4 == handler.heard


async def test_pausing_and_resuming_count_once(raw: RawWebSocket, handler: EchoHandler) -> None:
    socket = handler.socket
    for _ in range(2):
        socket.pause_reading()
    for _ in range(2):
        socket.resume_reading()
    socket.pause_reading()
    socket.resume_reading()

    await raw.send(PROBE)

    assert (TEXT, b"probe") == await raw.read_frame()


async def test_a_close_is_seen_though_reading_is_paused(
    raw: RawWebSocket, handler: EchoHandler
) -> None:
    """A close of ours reads on, for the answer; texts are thrown away."""
    handler.socket.pause_reading()
    await raw.send(PROBE + wire_frame(FIN | CLOSE, close_payload(1000)))
    await turn(5)

    handler.socket.close(4001, "slow")

    assert Closed(4001, [], b"") == await read_closed(raw)
    await handler.gone.wait()
    assert ([4001], []) == (handler.codes, handler.heard)


async def test_a_flood_of_small_frames_lets_others_in_between(handler: EchoHandler) -> None:
    """So many are taken in one turn of the event loop; the rest waits, in its order."""
    protocol(handler).data_received(wire_frame(FIN | TEXT, b"x") * 1_200)
    first = len(handler.heard)
    await until(lambda: len(handler.heard) == 1_200)

    assert first == UNITS_PER_TURN


@asynccontextmanager
async def crowd(
    address: str, gate: EchoUpgradeHandler, count: int
) -> AsyncIterator[list[EchoHandler]]:
    """So many open sockets, behind those that are there already."""
    async with AsyncExitStack() as stack:
        before = len(gate.handlers)
        for _ in range(count):
            await stack.enter_async_context(raw_websocket(f"ws://{address}/sub?"))
        yield gate.handlers[before:]


FRAGMENTS = wire_frame(TEXT, b"") + wire_frame(CONTINUATION) * 510 + wire_frame(FIN | CONTINUATION)


@pytest.mark.parametrize(
    "flood, wanted",
    [(wire_frame(FIN | TEXT, b"x") * 512, 512), (FRAGMENTS, 1), (wire_frame(FIN | PING) * 512, 0)],
    ids=["texts", "fragments", "pings"],
)
async def test_all_sockets_share_a_turn(
    flood: bytes, wanted: int, address: str, gate: EchoUpgradeHandler
) -> None:
    """A neighbour's text is heard two turns behind it, and each who floods gets on in every one."""
    async with crowd(address, gate, 21) as (*flooding, neighbour):
        turns = protocol(neighbour)._budget
        for handler in flooding:
            protocol(handler).data_received(flood)
        protocol(neighbour).data_received(PROBE)
        in_a_turn = [turns.left]
        for _ in range(2):
            await turn()
            in_a_turn.append(turns.left)
        heard_by_then = list(neighbour.heard)
        sizes = {len(protocol(each)._unread) - protocol(each)._taken_bytes for each in flooding}
        await until(lambda: [len(each.heard) for each in flooding] == [wanted] * 20)

    assert ["probe"] == heard_by_then
    assert -UNITS_PER_TURN < min(in_a_turn)
    assert max(sizes) < len(flood)


async def test_what_is_long_takes_more_of_a_turn(address: str, gate: EchoUpgradeHandler) -> None:
    """A frame of 64 KiB takes all of it: the next socket's is heard in the next turn."""
    async with crowd(address, gate, 2) as (one, other):
        for handler in (one, other):
            protocol(handler).data_received(wire_frame(FIN | TEXT, b"x" * 65_000))
        first = (len(one.heard), len(other.heard))
        await until(lambda: bool(other.heard))

    assert (1, 0) == first


async def test_who_says_little_is_heard_before_those_who_say_much_at_once(
    address: str, gate: EchoUpgradeHandler
) -> None:
    """Long frames wait until their socket has had as many turns as they cost."""
    async with crowd(address, gate, 21) as (*long, short):
        for handler in long:
            protocol(handler).data_received(wire_frame(FIN | TEXT, b"x" * 11_000) * 2)
        protocol(short).data_received(PROBE)
        await until(lambda: bool(short.heard))
        heard_before = sum(len(each.heard) for each in long)
        await until(lambda: sum(len(each.heard) for each in long) == 40)

    assert heard_before <= 4


async def test_the_order_of_a_socket_is_kept_while_it_waits(
    address: str, gate: EchoUpgradeHandler
) -> None:
    """What comes behind that which waits for its turn waits behind it."""
    async with crowd(address, gate, 2) as (flooding, other):
        protocol(flooding).data_received(wire_frame(FIN | TEXT, b"x") * 512)
        for number in range(3):
            protocol(other).data_received(wire_frame(FIN | TEXT, b"%d" % number))
        at_once = list(other.heard)
        await until(lambda: len(other.heard) == 3)

    assert ([], ["0", "1", "2"]) == (at_once, other.heard)


# The end, while nobody reads


@pytest.mark.parametrize("ending", ["close", "reset"])
async def test_the_end_of_a_client_is_seen_though_reading_is_paused(
    ending: str, raw: RawWebSocket, handler: EchoHandler
) -> None:
    """Whatever it has said before that cannot be read yet, and however long that would take."""
    socket = protocol(handler)
    handler.socket.pause_reading()
    await raw.send(PROBE * 10_000)
    clock = ManualClock()
    getattr(raw, ending)()
    await until(lambda: socket._timer is not None)
    before = list(handler.codes)
    await clock.advance(0.3)
    await turn(5)
    clock.run_on()

    assert ([], [1006], []) == (before, handler.codes, handler.heard)


async def test_what_was_said_before_the_end_is_heard_where_it_is_read_in_time(
    raw: RawWebSocket, handler: EchoHandler
) -> None:
    """Who waits for one turn of its own loses nothing."""
    socket = protocol(handler)
    handler.socket.pause_reading()
    await raw.send(PROBE * 3)
    raw.end()
    await until(lambda: socket._timer is not None)
    handler.socket.resume_reading()
    await handler.gone.wait()

    assert (["probe"] * 3, [1006]) == (handler.heard, handler.codes)


# Writing


async def test_frames_of_others_go_out_as_they_are(raw: RawWebSocket, handler: EchoHandler) -> None:
    """Several at once, shared by many sockets."""
    handler.socket.send_encoded(b"\x81\x01a\x81\x01b")

    assert [(TEXT, b"a"), (TEXT, b"b")] == [await raw.read_frame() for _ in range(2)]


async def test_a_reader_that_stops_is_felt_and_one_that_goes_on_is_told(
    address: str, gate: EchoUpgradeHandler
) -> None:
    """Unsent bytes are counted, and room is told once it is there."""
    async with raw_websocket(f"ws://{address}/sub?", has_small_buffer=True) as raw:
        handler = gate.handlers[0]
        while handler.socket.is_writable:
            handler.socket.send(b"x" * 60_000)
            await turn()
        assert handler.socket.unsent_bytes > 60_000

        while not handler.rooms:
            await raw.read_frame()

        assert (True, 1) == (handler.socket.is_writable, handler.rooms)
        await until(lambda: handler.socket.unsent_bytes < 60_000)


async def test_who_pings_and_does_not_read_has_one_pong_waiting(
    address: str, gate: EchoUpgradeHandler
) -> None:
    """§5.5.3: the last ping is the one to answer; pongs do not pile up."""
    async with raw_websocket(f"ws://{address}/sub?", has_small_buffer=True) as raw:
        handler = gate.handlers[0]
        while handler.socket.is_writable:
            handler.socket.send(b"x" * 60_000)
            await turn()
        before = handler.socket.unsent_bytes
        for number in range(1_000):
            protocol(handler).data_received(wire_frame(FIN | PING, b"%d" % number))
        await until(lambda: not protocol(handler)._unread)
        assert before == handler.socket.unsent_bytes

        while (frame := await raw.read_frame())[0] == TEXT:
            pass
        assert (PONG, b"999") == frame


async def test_the_end_of_the_server_is_told_at_once(
    raw: RawWebSocket, handler: EchoHandler
) -> None:
    """Whoever is behind it must not take for sent what is not; the client hears 1012."""
    protocol(handler).shutdown()
    told = list(handler.codes)
    opcode, payload = await raw.read_frame()

    assert [1012] == told
    assert (CLOSE, b"\x03\xf4") == (opcode, payload[:2])


async def test_nothing_goes_out_behind_the_end(raw: RawWebSocket, handler: EchoHandler) -> None:
    """Whoever holds a socket may use it; nothing happens."""
    raw.reset()
    await handler.gone.wait()
    socket = handler.socket

    socket.send(b"x")
    socket.send_encoded(b"\x81\x00")
    socket.pause_reading()
    socket.resume_reading()
    socket.close(1000, "")
    protocol(handler).ping(b"p", b"\x89\x01p")
    protocol(handler).shutdown()
    await turn(5)

    assert [1006] == handler.codes


# Pings


@pytest_asyncio.fixture
async def pinged(
    gate: EchoUpgradeHandler,
) -> AsyncIterator[tuple[RawWebSocket, EchoHandler, ManualClock]]:
    async with echo_server(
        gate, ping_interval_s=INTERVAL_S, ping_timeout_s=INTERVAL_S / 2
    ) as address:
        clock = ManualClock()
        async with raw_websocket(f"ws://{address}/sub?") as raw:
            yield raw, gate.handlers[0], clock
            clock.run_on()


async def pass_time(clock: ManualClock, turns: int) -> None:
    """Let so many turns of the sweep go by."""
    for _ in range(turns):
        await clock.advance(TURN_S)


async def test_a_pong_keeps_a_socket(
    pinged: tuple[RawWebSocket, EchoHandler, ManualClock],
) -> None:
    raw, handler, clock = pinged
    for _ in range(5):
        await pass_time(clock, 64)
        opcode, payload = await raw.read_frame()
        assert (PING, 4) == (opcode, len(payload))
        await raw.send(wire_frame(FIN | PONG, payload))
        await until(lambda: protocol(handler)._ping is None)

    assert [] == handler.codes


async def test_a_socket_is_not_pinged_as_soon_as_it_is_there(gate: EchoUpgradeHandler) -> None:
    """Its turn in the sweep may come at once: it is passed over for half an interval."""
    async with echo_server(gate, ping_interval_s=INTERVAL_S) as address:
        url = f"ws://{address}/sub?"
        clock = ManualClock()
        async with raw_websocket(url):
            await pass_time(clock, 60)
            async with raw_websocket(url) as second:
                await pass_time(clock, 30)
                assert None is protocol(gate.handlers[1])._ping

                await pass_time(clock, 64)

                assert PING == (await second.read_frame())[0]
        clock.run_on()


@pytest.mark.parametrize(
    "answer",
    [b"", wire_frame(FIN | PONG), wire_frame(FIN | PONG, b"else"), PROBE],
    ids=["nothing", "empty", "another", "a text"],
)
async def test_a_missed_pong_is_4000(
    pinged: tuple[RawWebSocket, EchoHandler, ManualClock], answer: bytes
) -> None:
    """At the end of its time, unless the answer is the right one."""
    raw, handler, clock = pinged
    await pass_time(clock, 64)
    await raw.read_frame()
    await raw.send(answer)
    await turn(5)
    await pass_time(clock, 31)
    assert [] == handler.codes

    await pass_time(clock, 33)

    assert [4000] == handler.codes
    closed = await read_closed(raw)
    assert (4000, b"") == (closed.code, closed.after)


async def test_the_pong_of_an_older_ping_is_none(
    pinged: tuple[RawWebSocket, EchoHandler, ManualClock],
) -> None:
    raw, handler, clock = pinged
    await pass_time(clock, 64)
    _, older = await raw.read_frame()
    await raw.send(wire_frame(FIN | PONG, older))
    await until(lambda: protocol(handler)._ping is None)
    await pass_time(clock, 64)
    await raw.send(wire_frame(FIN | PONG, older))
    await turn(5)

    await pass_time(clock, 64)

    assert [4000] == handler.codes


async def test_paused_reading_misses_no_pong(
    pinged: tuple[RawWebSocket, EchoHandler, ManualClock],
) -> None:
    """The pong lies there unread: its time counts anew once it can be read."""
    raw, handler, clock = pinged
    handler.socket.pause_reading()
    await pass_time(clock, 64)
    _, payload = await raw.read_frame()
    await raw.send(wire_frame(FIN | PONG, payload))
    await pass_time(clock, 200)
    assert [] == handler.codes

    handler.socket.resume_reading()
    await until(lambda: protocol(handler)._ping is None)
    await pass_time(clock, 20)

    assert [] == handler.codes


async def test_one_ping_at_a_time_is_on_its_way(
    pinged: tuple[RawWebSocket, EchoHandler, ManualClock],
) -> None:
    """However long its pong cannot be read."""
    raw, handler, clock = pinged
    handler.socket.pause_reading()
    await pass_time(clock, 640)
    handler.socket.send(b"the end")

    assert [PING, TEXT] == [(await raw.read_frame())[0] for _ in range(2)]


# The end


async def test_who_closed_a_socket_is_known_whatever_the_code(
    address: str, gate: EchoUpgradeHandler
) -> None:
    """A client may send 4001, which is the gateway's own word for one that is too slow."""
    async with raw_websocket(f"ws://{address}/sub?") as raw:
        await raw.send(wire_frame(FIN | CLOSE, close_payload(4001)))
        await read_closed(raw)
    async with raw_websocket(f"ws://{address}/sub?") as raw:
        gate.handlers[1].socket.close(4001, "slow")
        await raw.send(wire_frame(FIN | CLOSE, close_payload(4001)))
        await read_closed(raw)

    assert [[4001], [4001]] == [handler.codes for handler in gate.handlers]
    by_client = [handler.socket.is_closed_by_client for handler in gate.handlers]
    assert [True, False] == by_client
    assert ["", "slow"] == [handler.socket.close_reason for handler in gate.handlers]


async def test_the_reason_for_closing_on_an_invalid_frame_is_kept(
    raw: RawWebSocket, handler: EchoHandler
) -> None:
    """The handler reads in `on_close` what the close frame says."""
    await raw.send(wire_frame(FIN | BINARY, b"  V2"))
    opcode, payload = await raw.read_frame()

    assert (FIN | CLOSE, [1003]) == (FIN | opcode, handler.codes)
    assert payload[2:].decode() == handler.socket.close_reason != ""


async def test_who_does_not_read_is_cut_two_seconds_after_the_close(
    address: str, gate: EchoUpgradeHandler
) -> None:
    """It would take neither the close frame nor the end of the connection."""
    async with raw_websocket(f"ws://{address}/sub?", has_small_buffer=True):
        handler = gate.handlers[0]
        while handler.socket.is_writable:
            handler.socket.send(b"x" * 60_000)
            await turn()
        clock = ManualClock()
        handler.socket.close(4001, "slow")
        await clock.advance(1.9)
        assert [] == handler.codes

        await clock.advance(0.2)
        await turn(5)

        assert [4001] == handler.codes
        clock.run_on()


async def test_a_server_that_stops_closes_its_sockets(gate: EchoUpgradeHandler) -> None:
    """1012: come back, to the next one."""
    async with (
        public_http(RecordingPublisher(), websockets=echo_websockets(gate)) as served,
        raw_websocket(f"ws://{served.address}/sub?") as raw,
    ):
        _, code = await asyncio.gather(served.listener.stop(), raw.close_code())
        assert 1012 == code

    assert [1012] == gate.handlers[0].codes


async def test_a_server_that_has_stopped_knows_no_socket(gate: EchoUpgradeHandler) -> None:
    """Open, refused or ended: none is left among its connections."""
    async with public_http(RecordingPublisher(), websockets=echo_websockets(gate)) as served:
        for _ in range(3):
            async with raw_websocket(f"ws://{served.address}/sub?") as raw:
                await raw.send(wire_frame(FIN | CLOSE))
                await read_closed(raw)
        server = served.listener._server
        assert server is not None

        await until(lambda: not server.server_state.connections)


class Failing(EchoHandler):
    """Fails wherever it is told to."""

    at = ""

    def _fail_at(self, place: str) -> None:
        if self.at == place:
            raise ValueError(place)

    def on_text(self, text: str) -> None:
        """Fail, or not."""
        del text
        self._fail_at("message")

    def on_writable(self) -> None:
        """Fail, or not."""
        self._fail_at("room")

    def on_close(self, code: int) -> None:
        """Keep why, and fail, or not."""
        super().on_close(code)
        self._fail_at("end")


async def fail(handler: EchoHandler, place: str) -> None:
    if place == "message":
        protocol(handler).data_received(PROBE)
    elif place == "room":
        protocol(handler).resume_writing()
    else:
        protocol(handler).data_received(wire_frame(FIN | CLOSE, close_payload(1000)))


@pytest.mark.parametrize("place, code", [("message", 1011), ("room", 1011), ("end", 1000)])
async def test_a_handler_that_fails_is_closed_with_1011(
    place: str, code: int, address: str, gate: EchoUpgradeHandler, caplog: pytest.LogCaptureFixture
) -> None:
    """Its words are in the log, and are not told to the client."""
    gate.new_handler = Failing
    with caplog.at_level(logging.ERROR):
        async with raw_websocket(f"ws://{address}/sub?") as raw:
            handler = gate.handlers[0]
            assert isinstance(handler, Failing)
            handler.at = place
            await fail(handler, place)
            closed = await read_closed(raw)

    assert (code, [code]) == (closed.code, handler.codes)
    assert "WebSocket" in caplog.text
    assert "handler failed" in caplog.text


async def test_a_handler_that_fails_at_its_start_is_closed_with_1011(
    address: str, gate: EchoUpgradeHandler, caplog: pytest.LogCaptureFixture
) -> None:
    """Behind the 101, which had gone out."""

    class Stillborn(EchoHandler):
        def on_open(self, socket: object) -> None:
            del socket
            raise ValueError

    gate.new_handler = Stillborn
    with caplog.at_level(logging.ERROR):
        async with raw_websocket(f"ws://{address}/sub?") as raw:
            assert 1011 == (await read_closed(raw)).code

    assert [1011] == gate.handlers[0].codes


@pytest.mark.parametrize(
    "part", [wire_frame(FIN | TEXT, b"x" * 50)[:20], wire_frame(TEXT & 15, b"fragment")]
)
async def test_a_message_that_never_ends_ends_its_socket(
    gate: EchoUpgradeHandler, part: bytes
) -> None:
    """Also of a client that is there: nobody has a minute for one message, and an interval."""
    async with echo_server(gate, ping_interval_s=INTERVAL_S) as address:
        clock = ManualClock()
        async with raw_websocket(f"ws://{address}/sub?") as raw:
            await raw.send(part)
            socket = protocol(gate.handlers[0])
            await until(lambda: bool(socket._unread or socket._message))
            await pass_time(clock, 590)
            before = list(gate.handlers[0].codes)
            await pass_time(clock, 80)
            assert ([], [4500]) == (before, gate.handlers[0].codes)
        clock.run_on()


class SmallRoom(RecordingPublisher):
    """Has room for so many bytes of what is not whole yet."""

    LIMIT_BYTES = 200_000

    def reserve_arriving(self, size_bytes: int) -> None:
        """Count, or refuse."""
        if self.held_bytes + size_bytes > self.LIMIT_BYTES:
            raise Overloaded(
                waiting_bytes=self.held_bytes, size_bytes=size_bytes, limit_bytes=self.LIMIT_BYTES
            )
        super().reserve_arriving(size_bytes)


@pytest.mark.parametrize("is_in_fragments", [False, True], ids=["frame", "fragments"])
async def test_what_is_not_whole_yet_is_counted_with_that_of_all_connections(
    gate: EchoUpgradeHandler, *, is_in_fragments: bool
) -> None:
    """But for a bit; a message that is whole, and a socket that is lost, give it back."""
    room = SmallRoom()
    text = b"x" * 200_000
    message = wire_frame(FIN | TEXT, text)
    if is_in_fragments:
        parts = wire_frame(TEXT, text[:100_000]), wire_frame(FIN | CONTINUATION, text[100_000:])
        message = b"".join(parts)
    async with echo_server(gate, incomplete=room, max_frame_bytes=1 << 20) as address:
        async with raw_websocket(f"ws://{address}/sub?") as raw:
            await raw.send(message[:-1])
            await until(lambda: room.held_bytes == len(message) - 1 - 65_536)
            await raw.send(message[-1:])
            await until(lambda: gate.handlers[0].heard == [text.decode()])
            whole = room.held_bytes
            await raw.send(message[:-1])
            await until(lambda: room.held_bytes == len(message) - 1 - 65_536)
        await until(lambda: gate.handlers[0].codes == [1006])

    assert (0, 0) == (whole, room.held_bytes)


async def test_a_long_message_that_has_no_room_ends_its_socket(gate: EchoUpgradeHandler) -> None:
    """Three hundred sockets that stopped a byte before their end took 600 MiB; others go on."""
    room = SmallRoom()
    part = wire_frame(FIN | TEXT, b"x" * 260_000)[:-1]
    async with (
        echo_server(gate, incomplete=room, max_frame_bytes=1 << 20) as address,
        raw_websocket(f"ws://{address}/sub?") as first,
        raw_websocket(f"ws://{address}/sub?") as second,
    ):
        await first.send(part)
        await until(lambda: room.held_bytes == len(part) - 65_536)
        await second.send(part)
        refused = await read_closed(second)
        await first.send(b"x")
        await until(lambda: len(gate.handlers[0].heard) == 1)

    assert (1013, [1013], 0) == (refused.code, gate.handlers[1].codes, room.held_bytes)
