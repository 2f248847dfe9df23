"""RFC 6455 §8.1, over TCP: text is valid UTF-8, wherever it is cut."""

from __future__ import annotations

import pytest

from tests.support.websocket.frames import FIN, Closed, read_closed, send_separately, wire_frame
from tests.support.websocket.raw_socket import CONTINUATION, PING, PONG, TEXT, RawWebSocket

pytestmark = pytest.mark.asyncio(loop_scope="session")


RIGHT = {
    "ASCII": b"plain",
    "zero": b"\x00",
    "the last of one byte": b"\x7f",
    "the first of two bytes": b"\xc2\x80",
    "the last of two bytes": b"\xdf\xbf",
    "the first of three bytes": b"\xe0\xa0\x80",
    "the last before the surrogates": b"\xed\x9f\xbf",
    "the first behind the surrogates": b"\xee\x80\x80",
    "a byte order mark": b"\xef\xbb\xbf",
    "the noncharacter U+FFFE": b"\xef\xbf\xbe",
    "the noncharacter U+FFFF": b"\xef\xbf\xbf",
    "the noncharacter U+FDD0": b"\xef\xb7\x90",
    "the first of four bytes": b"\xf0\x90\x80\x80",
    "the noncharacter U+1FFFF": b"\xf0\x9f\xbf\xbf",
    "an emoji": b"\xf0\x9f\xa6\x8a",
    "the noncharacter U+10FFFF, the last of all": b"\xf4\x8f\xbf\xbf",
    "a line separator": b"\xe2\x80\xa8",
    "words": "κόσμε, Grüße, 日本".encode(),
}
WRONG = {
    "a continuation byte alone": b"\x80",
    "a continuation byte behind a letter": b"a\xbf",
    "two bytes, cut": b"\xc3",
    "three bytes, cut": b"\xe2\x82",
    "four bytes, cut after one": b"\xf0",
    "four bytes, cut after three": b"\xf0\x9f\xa6",
    "a letter in the middle of a character": b"\xe2a\x82",
    "an overlong slash in two bytes": b"\xc0\xaf",
    "an overlong slash in three bytes": b"\xe0\x80\xaf",
    "an overlong slash in four bytes": b"\xf0\x80\x80\xaf",
    "an overlong zero": b"\xc0\x80",
    "the highest overlong one of two bytes": b"\xc1\xbf",
    "the highest overlong one of three bytes": b"\xe0\x9f\xbf",
    "the highest overlong one of four bytes": b"\xf0\x8f\xbf\xbf",
    "the lowest surrogate": b"\xed\xa0\x80",
    "the highest surrogate": b"\xed\xbf\xbf",
    "a pair of surrogates": b"\xed\xa0\xbd\xed\xb8\x80",
    "beyond U+10FFFF": b"\xf4\x90\x80\x80",
    "a first byte of five": b"\xf8\x88\x80\x80\x80",
    "a first byte of six": b"\xfc\x84\x80\x80\x80\x80",
    "0xFE": b"\xfe",
    "0xFF": b"\xff",
    "Latin-1": b"Gr\xfc\xdfe",
}


@pytest.mark.parametrize("text", RIGHT.values(), ids=RIGHT.keys())
async def test_valid_utf_8_is_received_byte_for_byte(raw: RawWebSocket, text: bytes) -> None:
    """§5.6: noncharacters and control characters are characters too."""
    await raw.send(wire_frame(FIN | TEXT, text))

    assert (TEXT, text) == await raw.read_frame()


@pytest.mark.parametrize("text", WRONG.values(), ids=WRONG.keys())
async def test_invalid_utf_8_is_1007(raw: RawWebSocket, text: bytes) -> None:
    """§8.1: the connection fails, and nothing of it is taken."""
    await raw.send(wire_frame(FIN | TEXT, b"before" + text + b"behind"))

    assert Closed(1007, [], b"") == await read_closed(raw)


@pytest.mark.parametrize("text", WRONG.values(), ids=WRONG.keys())
async def test_invalid_utf_8_in_fragments_is_1007(raw: RawWebSocket, text: bytes) -> None:
    """§8.1: what counts is the message."""
    await raw.send(wire_frame(TEXT, text[:1]) + wire_frame(FIN | CONTINUATION, text[1:]))

    assert Closed(1007, [], b"") == await read_closed(raw)


@pytest.mark.parametrize("text", RIGHT.values(), ids=RIGHT.keys())
async def test_a_character_may_be_cut_by_fragments(raw: RawWebSocket, text: bytes) -> None:
    """§5.6: a fragment need not be UTF-8 by itself; each byte is one here."""
    last = len(text) - 1
    frames = [
        wire_frame((FIN if at == last else 0) | (CONTINUATION if at else TEXT), text[at : at + 1])
        for at in range(len(text))
    ]

    await send_separately(raw, frames)

    assert (TEXT, text) == await raw.read_frame()


async def test_a_ping_may_come_in_the_middle_of_a_character(raw: RawWebSocket) -> None:
    """§5.4: it is no part of the message."""
    await raw.send(
        wire_frame(TEXT, b"\xe2")
        + wire_frame(FIN | PING, b"\xff")
        + wire_frame(FIN | CONTINUATION, b"\x82\xac")
    )

    assert [(PONG, b"\xff"), (TEXT, "€".encode())] == [await raw.read_frame() for _ in range(2)]


async def test_a_long_text_that_ends_in_half_a_character_is_1007(raw: RawWebSocket) -> None:
    """§8.1: however late it shows."""
    await raw.send(wire_frame(FIN | TEXT, b"x" * 80_000 + b"\xe2\x82"))

    assert Closed(1007, [], b"") == await read_closed(raw)
