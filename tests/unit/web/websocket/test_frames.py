"""Frames are read as `websockets` reads them, whatever way through our own code they take."""

from __future__ import annotations

import contextlib
import gc
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Frame, Opcode
from websockets.protocol import Protocol, Side, State

from gateway.web.websocket.frames import (
    PING,
    PONG,
    SHORT_BYTES,
    TEXT,
    BadFrame,
    LongMessage,
    close_frame,
    frame_size,
    parse_control_frame,
    parse_short_frame,
    ping_frame,
    pong_frame,
    text_frame,
    text_frames,
)
from tests.support.websocket.frames import FIN, RSV1, RSV2, close_payload, wire_frame

LIMIT_BYTES = 70_000
CONTINUATION = 0


def library() -> Protocol:
    return Protocol(Side.SERVER, state=State.OPEN, max_size=LIMIT_BYTES)


@pytest.mark.parametrize("size_bytes", [0, 1, 125, 126, 65_535, 65_536])
def test_a_text_frame_is_the_librarys(size_bytes: int) -> None:
    """§5.2, at every boundary."""
    text = b"x" * size_bytes

    assert Frame(Opcode.TEXT, text).serialize(mask=False) == text_frame(text)


@pytest.mark.parametrize("payload", [b"", b"1234", b"x" * 125])
def test_ping_and_pong_are_the_librarys(payload: bytes) -> None:
    """§5.5.2 and §5.5.3."""
    assert Frame(Opcode.PING, payload).serialize(mask=False) == ping_frame(payload)
    assert Frame(Opcode.PONG, payload).serialize(mask=False) == pong_frame(payload)


@pytest.mark.parametrize(
    "reason, sent", [("", ""), ("slow", "slow"), ("x" * 200, "x" * 123), ("é" * 100, "é" * 61)]
)
def test_a_close_frame_has_room_for_123_bytes_of_reason(reason: str, sent: str) -> None:
    """§5.5; what is cut off is whole characters."""
    payload = close_payload(4001, sent.encode())

    assert bytes((0x88, len(payload))) + payload == close_frame(4001, reason)


def sizes(frames: bytes) -> list[int]:
    found = []
    while frames:
        size, head = frames[1], 2
        if size == 126:
            size, head = int.from_bytes(frames[2:4]), 4
        elif size == 127:
            size, head = int.from_bytes(frames[2:10]), 10
        found.append(size)
        frames = frames[head + size :]
    return found


@pytest.mark.parametrize(
    "lengths,expected",
    [
        ([5], [5]),
        ([5, 6], [12]),
        ([LIMIT_BYTES], [LIMIT_BYTES]),
        ([LIMIT_BYTES - 2, 1], [LIMIT_BYTES]),
        ([LIMIT_BYTES - 1, 1], [LIMIT_BYTES - 1, 1]),
        ([100_000], [100_000]),
        ([10, 100_000, 10, 20], [10, 100_000, 31]),
        ([40_000, 40_000, 40_000], [40_000, 40_000, 40_000]),
    ],
)
def test_frames_are_closed_before_they_are_too_large(
    lengths: list[int], expected: list[int]
) -> None:
    """At the end of a line; one that is larger goes alone."""
    lines = b"\n".join(b"x" * length for length in lengths)

    assert expected == sizes(text_frames(lines, LIMIT_BYTES))


@pytest.mark.parametrize("first", [TEXT, PING, PONG])
@pytest.mark.parametrize("size_bytes", [0, 1, 125])
def test_a_short_frame_is_read_where_it_stands(first: int, size_bytes: int) -> None:
    """What stands before and behind it is left alone."""
    payload = b"p" * size_bytes
    frame = wire_frame(first, payload)

    found = parse_short_frame(b"before" + frame + b"behind", 6, LIMIT_BYTES)

    assert (first, payload, 6 + len(frame)) == found


@pytest.mark.parametrize("size_bytes", [126, 4_000, 65_535])
def test_a_text_with_a_size_of_16_bits_is_read_where_it_stands(size_bytes: int) -> None:
    """§5.2; as long as its limit allows."""
    frame = wire_frame(TEXT, b"x" * size_bytes)

    assert (TEXT, b"x" * size_bytes, len(frame)) == parse_short_frame(frame, 0, size_bytes)
    assert None is parse_short_frame(frame, 0, size_bytes - 1)


@pytest.mark.parametrize(
    "frame",
    [
        wire_frame(FIN | 2, b"binary"),
        wire_frame(FIN | 8),
        wire_frame(FIN | 0, b"end"),
        wire_frame(1, b"begin"),
        wire_frame(TEXT | RSV1, b"bit"),
        wire_frame(TEXT, b"plain", mask=None),
        wire_frame(TEXT, b"x" * 125, width=2),
        wire_frame(TEXT, b"x" * 125, width=8),
        wire_frame(TEXT, b"x" * 65_536),
        wire_frame(PING, b"x" * 126),
        wire_frame(TEXT, b"x" * 126)[:-1],
        wire_frame(TEXT, b"cut")[:-1],
        wire_frame(TEXT, b"")[:-1],
        b"\x81",
        b"",
    ],
)
def test_what_is_not_ordinary_is_left_to_the_library(frame: bytes) -> None:
    """None of these is read in haste."""
    assert None is parse_short_frame(frame, 0, LIMIT_BYTES)


@pytest.mark.parametrize("size_bytes", [0, 125, 126, 65_535, 65_536])
def test_the_size_of_a_frame_is_known_from_its_head(size_bytes: int) -> None:
    """The mask need not have come for it."""
    frame = wire_frame(TEXT, b"x" * size_bytes)
    head_bytes = len(frame) - size_bytes - 4

    assert len(frame) == frame_size(b"-" + frame[:head_bytes], 1)
    assert [None] * head_bytes == [frame_size(frame[:cut], 0) for cut in range(head_bytes)]


@pytest.mark.parametrize(
    "frame",
    [
        wire_frame(TEXT, b"", mask=None),
        wire_frame(TEXT, b"x" * 125, width=2),
        wire_frame(TEXT, b"x" * 65_535, width=8),
        wire_frame(PING, b"x" * 126),
        wire_frame(PONG, b"", width=2),
    ],
)
def test_a_head_that_is_wrong_is_1002_before_anything_else_has_come(frame: bytes) -> None:
    """§5.1, §5.2, §5.5."""
    with pytest.raises(BadFrame) as caught:
        frame_size(frame[:10], 0)

    assert 1002 == caught.value.code


@pytest.mark.parametrize(
    "frame, read",
    [
        (wire_frame(PING, b"p"), (Opcode.PING, b"p", 0, pong_frame(b"p"))),
        (wire_frame(PONG, b"p"), (Opcode.PONG, b"p", 0, b"")),
        (wire_frame(FIN | 8), (Opcode.CLOSE, b"", 1005, b"\x88\x00")),
        (
            wire_frame(FIN | 8, b"\x03\xe9bye"),
            (Opcode.CLOSE, b"\x03\xe9bye", 1001, b"\x88\x05\x03\xe9bye"),
        ),
    ],
)
def test_a_control_frame_is_read_with_its_answer(
    frame: bytes, read: tuple[Opcode, bytes, int, bytes]
) -> None:
    """§5.5: a pong with the same payload, a close with the same code."""
    assert read == parse_control_frame(frame)


@pytest.mark.parametrize(
    "frame, code",
    [
        (wire_frame(FIN | 8, b"\x03"), 1002),
        (wire_frame(FIN | 8, close_payload(1005)), 1002),
        (wire_frame(FIN | 8, close_payload(1000, b"\xff")), 1007),
        (wire_frame(FIN | 0xB), 1002),
        (wire_frame(PING | RSV2), 1002),
        (wire_frame(9), 1002),
    ],
)
def test_a_control_frame_that_is_wrong_has_a_code(frame: bytes, code: int) -> None:
    """§7.4.1."""
    with pytest.raises(BadFrame) as caught:
        parse_control_frame(frame)

    assert code == caught.value.code


def feed(message: LongMessage, frame: bytes, *, piece_bytes: int) -> bytes | None:
    """Feed *frame* in pieces; return what the last one brings."""
    message.left_bytes = len(frame)
    texts = [message.feed(frame[at : at + piece_bytes]) for at in range(0, len(frame), piece_bytes)]
    assert [None] * (len(texts) - 1) == texts[:-1]
    return texts[-1]


@pytest.mark.parametrize("piece_bytes", [1, 1_000, 100_000])
def test_a_long_message_is_put_together(piece_bytes: int) -> None:
    """Of frames, and of the pieces that a frame comes in."""
    message = LongMessage(LIMIT_BYTES)
    first = wire_frame(1, b"x" * SHORT_BYTES)
    last = wire_frame(FIN | CONTINUATION, b"y" * 200)

    assert None is feed(message, first, piece_bytes=piece_bytes)
    assert b"x" * SHORT_BYTES + b"y" * 200 == feed(message, last, piece_bytes=piece_bytes)


@pytest.mark.parametrize(
    "frames, code",
    [
        ([wire_frame(TEXT, b"x" * (LIMIT_BYTES + 1))], 1009),
        ([wire_frame(1, b"x" * LIMIT_BYTES), wire_frame(CONTINUATION, b"x")], 1009),
        ([wire_frame(FIN | 2, b"binary")], 1003),
        ([wire_frame(2, b"binary")], 1003),
        ([wire_frame(FIN | CONTINUATION)], 1002),
        ([wire_frame(1), wire_frame(TEXT)], 1002),
        ([wire_frame(FIN | 3)], 1002),
        ([wire_frame(TEXT | RSV1)], 1002),
    ],
)
def test_a_long_message_that_is_wrong_has_a_code(frames: list[bytes], code: int) -> None:
    """§5.4 and §7.4.1."""
    message = LongMessage(LIMIT_BYTES)
    for frame in frames[:-1]:
        message.feed(frame)

    with pytest.raises(BadFrame) as caught:
        message.feed(frames[-1])

    assert code == caught.value.code


@pytest.mark.parametrize("end", ["whole", "wrong", "closed"])
def test_a_long_message_leaves_nothing_to_the_collector(end: str) -> None:
    """Its parser is gone with it, and so are its bytes."""
    gc.disable()
    try:
        message = LongMessage(LIMIT_BYTES)
        parser = weakref.ref(message._parser)
        message.feed(wire_frame(1, b"x" * SHORT_BYTES))
        if end == "wrong":
            with contextlib.suppress(BadFrame):
                message.feed(wire_frame(TEXT))
        elif end == "whole":
            message.feed(wire_frame(FIN | CONTINUATION))
        else:
            message.close()
        del message

        assert None is parser()
    finally:
        gc.enable()


@given(
    first=st.integers(0, 255),
    payload=st.binary(max_size=300),
    mask=st.none() | st.binary(min_size=4, max_size=4),
    width=st.sampled_from([None, 2, 8]),
    cut=st.integers(0, 20),
)
def test_what_is_read_in_haste_is_what_the_library_reads(
    first: int, payload: bytes, mask: bytes | None, width: int | None, cut: int
) -> None:
    """Any frame, whole or not: either both read the same, or it is left to the library."""
    frame = wire_frame(first, payload, mask=mask, width=width)
    data = frame[: len(frame) - cut]
    witness = library()
    witness.receive_data(data)

    found = parse_short_frame(data, 0, LIMIT_BYTES)

    if found is not None:
        (event,) = witness.events_received()
        assert isinstance(event, Frame)
        assert (0x80 | event.opcode, bytes(event.data), len(data)) == found
