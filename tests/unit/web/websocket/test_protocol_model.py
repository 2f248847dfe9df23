"""
Random streams of frames, cut anywhere: `websockets`' own protocol reads the same bytes.

What the handler hears, what is answered and why the socket ends follow from its reading. Frames
are legal and illegal ones: fragments with control frames between them, lengths in more bytes than
they need, missing masks, reserved bits and opcodes, broken UTF-8, and close codes of all kinds.
`NSQ_GATEWAY_FUZZ_S` is for how many seconds new streams are tried.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from uvicorn.server import ServerState
from websockets.exceptions import ProtocolError
from websockets.frames import Frame, Opcode
from websockets.protocol import Protocol, Side, State

from gateway.web.websocket.protocol import WebSocketProtocol, WebSocketServerState
from tests.support.fuzz import fuzz_rounds
from tests.support.manual_clock import until
from tests.support.websocket.echo_handler import EchoHandler, EchoUpgradeHandler
from tests.support.websocket.frames import FIN, MASK, RSV1, close_payload, wire_frame

LIMIT_BYTES = 6_000
"""The largest message: above SHORT_BYTES, so that both ways of reading have their turn."""
CONTROL_BYTES = 125
"""The most that a control frame has (§5.5)."""

TEXTS = st.one_of(
    st.text(max_size=12),
    st.text(alphabet="aé☃😀", max_size=40),
    st.integers(120, 130).map("a".__mul__),
    # The library takes a ping within a message for a part of it: there is to be room for one.
    st.integers(4_000, LIMIT_BYTES - 125).map("b".__mul__),
)
CONTROLS = st.one_of(
    st.tuples(st.just(Opcode.PING), st.binary(max_size=125)),
    st.tuples(st.just(Opcode.PONG), st.binary(max_size=125)),
)


def control(frame: tuple[Opcode, bytes]) -> bytes:
    """Return a ping or pong."""
    return wire_frame(FIN | frame[0], frame[1])


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    """Draw a text in one frame or several, with control frames between them."""
    data = draw(TEXTS).encode()
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=4)))
    parts = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    frames = []
    for number, part in enumerate(parts):
        first = Opcode.TEXT if number == 0 else Opcode.CONT
        final = FIN if number == len(parts) - 1 else 0
        frames.append(wire_frame(final | first, part))
        if not final:
            frames += map(control, draw(st.lists(CONTROLS, max_size=2)))
    return b"".join(frames)


OVERLONG = [
    wire_frame(FIN | Opcode.TEXT, b"short", width=2),
    wire_frame(FIN | Opcode.TEXT, b"m" * 200, width=8),
    wire_frame(FIN | Opcode.TEXT, b"", width=8),
]
"""Sizes in more bytes than they need: §5.2 forbids it, and the library lets it through."""
BAD = st.one_of(
    st.binary(min_size=1, max_size=12).map(lambda data: wire_frame(FIN | Opcode.TEXT, data)),
    st.sampled_from(OVERLONG),
    st.sampled_from(
        [
            wire_frame(FIN | Opcode.BINARY, b"binary"),
            wire_frame(Opcode.BINARY, b"bin"),
            wire_frame(FIN | Opcode.TEXT, b"no mask", mask=None),
            wire_frame(FIN | RSV1 | Opcode.TEXT, b"compressed"),
            wire_frame(FIN | 3, b"reserved"),
            wire_frame(FIN | 11, b"reserved"),
            wire_frame(FIN | Opcode.CONT, b"of nothing"),
            wire_frame(Opcode.TEXT, b"one") + wire_frame(FIN | Opcode.TEXT, b"in another"),
            wire_frame(Opcode.PING, b"in fragments"),
            wire_frame(FIN | Opcode.PING, b"p" * 126),
            wire_frame(FIN | Opcode.TEXT, b"x" * (LIMIT_BYTES + 1)),
            wire_frame(Opcode.TEXT, b"x" * LIMIT_BYTES) + wire_frame(FIN, b"y"),
            bytes((FIN | Opcode.TEXT, 0xFF)) + b"\xff" * 8 + MASK,
            wire_frame(FIN | Opcode.CLOSE, b"\x03"),
            wire_frame(FIN | Opcode.CLOSE, close_payload(1000, b"\xff")),
        ]
    ),
    st.integers(0, 5_001).map(lambda code: wire_frame(FIN | Opcode.CLOSE, close_payload(code))),
    st.just(wire_frame(FIN | Opcode.CLOSE)),
)
PING_NEAR_THE_LIMIT = (
    wire_frame(Opcode.TEXT, b"x" * (LIMIT_BYTES - 3))
    + wire_frame(FIN | Opcode.PING, b"ping")
    + wire_frame(FIN | Opcode.CONT, b"end")
)
"""A ping is no part of the message that it comes in."""
STREAMS = st.tuples(
    st.lists(st.one_of(messages(), CONTROLS.map(control)), max_size=6).map(b"".join),
    st.one_of(st.just(b""), BAD),
    st.binary(max_size=8),
    st.lists(st.floats(0.0, 1.0), max_size=12),
    st.booleans(),
)


@dataclass
class Reading:
    """What follows from a stream."""

    texts: list[str] = field(default_factory=list)
    pongs: list[bytes] = field(default_factory=list)
    code: int | None = None
    """What we close with; None: nothing."""
    lost: int = 1006
    """What the handler is told."""

    def fail(self, code: int) -> None:
        """Close because of the peer."""
        self.code = self.lost = code


def read_as_the_library_does(stream: bytes) -> Reading:
    """Return what RFC 6455 makes of *stream*, up to where the connection ends."""
    # The library counts a ping between two fragments against what is left of the message.
    protocol = Protocol(Side.SERVER, state=State.OPEN, max_size=LIMIT_BYTES + CONTROL_BYTES)
    reading, parts = Reading(), b""
    protocol.receive_data(stream)
    for frame in protocol.events_received():
        assert isinstance(frame, Frame)
        if frame.opcode is Opcode.PING:
            reading.pongs.append(bytes(frame.data))
        elif frame.opcode is Opcode.BINARY:
            reading.fail(1003)
            return reading
        elif frame.opcode in {Opcode.TEXT, Opcode.CONT}:
            parts += frame.data
            if len(parts) > LIMIT_BYTES:
                reading.fail(1009)
                return reading
            if frame.fin:
                try:
                    reading.texts.append(parts.decode())
                except UnicodeDecodeError:
                    reading.fail(1007)
                    return reading
                parts = b""
    if protocol.close_rcvd is not None and protocol.parser_exc is None:
        reading.lost = protocol.close_rcvd.code
        reading.code = reading.lost
    elif isinstance(protocol.parser_exc, ProtocolError) or protocol.close_sent is not None:
        assert protocol.close_sent is not None
        reading.fail(protocol.close_sent.code)
    return reading


class RecordingTransport(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.is_paused = False
        self.is_closed = False
        self.protocol: Any = None

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Keep it."""
        self.written += data

    def write_eof(self) -> None:
        """Do nothing: the peer does not look at it."""

    def can_write_eof(self) -> bool:
        """Tell that it can."""
        return True

    def get_write_buffer_size(self) -> int:
        """Return nothing: all is taken at once."""
        return 0

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Keep who is told."""
        self.protocol = protocol

    def is_closing(self) -> bool:
        """Whether it was closed."""
        return self.is_closed

    def pause_reading(self) -> None:
        """Let nothing come."""
        self.is_paused = True

    def resume_reading(self) -> None:
        """Let it come again."""
        self.is_paused = False

    def close(self) -> None:
        """Close."""
        self.is_closed = True

    def abort(self) -> None:
        """Close."""
        self.is_closed = True


async def drive(pieces: list[bytes], *, is_lost: bool) -> tuple[EchoHandler, bytes]:
    """Let an echo read *pieces* and the end behind them; return it, and what was written."""
    port = WebSocketServerState(
        EchoUpgradeHandler(), max_frame_bytes=LIMIT_BYTES, ping_interval_s=None, ping_timeout_s=None
    )
    transport, server, handler = RecordingTransport(), ServerState(), EchoHandler()
    early, *others = pieces
    WebSocketProtocol(port, transport, server).begin(handler, early)
    for piece in others:
        await until(lambda: transport.is_closed or not transport.is_paused)
        if not transport.is_closed:
            transport.protocol.data_received(piece)
    await until(lambda: transport.is_closed or not transport.is_paused)
    if not is_lost:
        transport.protocol.eof_received()
    transport.protocol.connection_lost(None)
    assert not server.connections
    assert not port._count
    return handler, transport.written


def cut(stream: bytes, places: list[float]) -> list[bytes]:
    """Return *stream* in pieces; the first one came with the request."""
    ends = sorted({int(place * len(stream)) for place in places})
    return [stream[a:b] for a, b in zip([0, *ends], [*ends, len(stream)], strict=True)]


@pytest.mark.fuzz
def test_every_stream_is_read_as_the_library_reads_it(caplog: pytest.LogCaptureFixture) -> None:
    """However it is cut; nothing is kept of a socket, and nothing is an error in the log."""
    examples = settings(
        max_examples=200,
        deadline=None,
        print_blob=True,
        database=None,
    )
    with asyncio.Runner() as runner:

        @examples
        @example((PING_NEAR_THE_LIMIT, b"", b"", [], False))
        @given(STREAMS)
        def every_stream(drawn: tuple[bytes, bytes, bytes, list[float], bool]) -> None:
            legal, bad, behind, places, is_lost = drawn
            is_overlong = bad in OVERLONG
            expected = read_as_the_library_does(legal if is_overlong else legal + bad)
            if is_overlong:
                expected.fail(1002)
            # Behind an end anything may come; else a frame that is not whole when it ends.
            half = wire_frame(FIN | Opcode.TEXT, behind)[:-1]
            stream = legal + bad + (half if expected.code is None else behind)
            handler, written = runner.run(drive(cut(stream, places), is_lost=is_lost))
            compare(expected, handler, written)

        for _ in fuzz_rounds():
            every_stream()
    assert [] == [each for each in caplog.records if each.levelno >= logging.ERROR]


def compare(expected: Reading, handler: EchoHandler, written: bytes) -> None:
    """Look at what the handler heard, and read what was written as a client does."""
    client = Protocol(Side.CLIENT, state=State.OPEN, max_size=None)
    client.receive_data(written)
    assert client.parser_exc is None
    frames = [each for each in client.events_received() if isinstance(each, Frame)]
    pongs = [bytes(each.data) for each in frames if each.opcode is Opcode.PONG]
    echoes = [bytes(each.data).decode() for each in frames if each.opcode is Opcode.TEXT]
    code = None if client.close_rcvd is None else client.close_rcvd.code

    assert (expected.texts, expected.texts) == (handler.heard, echoes)
    if expected.code == 1007:
        # Broken text is known before its last fragment, and so before pings between the two.
        assert pongs == expected.pongs[: len(pongs)]
    else:
        assert expected.pongs == pongs
    assert (expected.code, [expected.lost]) == (code, handler.codes)
