"""Splitting an input into messages: independent of the read sizes, with exact errors."""

from __future__ import annotations

import itertools
from typing import TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.cli.pub_input import Framing, LengthPrefixed, Lines, parse_delimiter
from gateway.client.batch import size_in_mpub
from gateway.errors import SettingsError

Place: TypeAlias = tuple[int, int, int, bytes]


def prefixed(*bodies: bytes) -> bytes:
    return b"".join(len(body).to_bytes(4, "big") + body for body in bodies)


def read(framing: Framing, data: bytes, step: int = 1_000_000) -> list[Place]:
    """Return number, start, end and body of each message of *data*, fed *step* bytes at a time."""
    pieces = [data[start : start + step] for start in range(0, len(data), step)]
    places = []
    for piece in [*pieces, b""]:
        run = framing.feed(piece)
        for each in range(len(run.pieces)):
            one = run.between(each, each + 1)
            places += [(one.number, one.start, one.end, body) for body in one.pieces]
    return places


def told(framing: Framing) -> str:
    """Return the position of the refused message, and the error."""
    assert framing.refusal is not None
    number, start, error = framing.refusal
    return f"{framing.describe_range(number, number, start)}: {error}"


@pytest.mark.parametrize("step", [1, 2, 3, 5, 64])
def test_lines_do_not_depend_on_how_the_input_is_cut(step: int) -> None:
    """Numbers include empty lines; the last line needs no newline."""
    text = b"one\n\nthree \r\n\xff\n\nlast"

    assert [
        (1, 0, 4, b"one"),
        (3, 5, 13, b"three \r"),
        (4, 13, 15, b"\xff"),
        (6, 16, 21, b"last"),
    ] == read(Lines(max_bytes=100), text, step)


@pytest.mark.parametrize("step", [1, 2, 3, 5, 64])
def test_lengths_do_not_depend_on_how_the_input_is_cut(step: int) -> None:
    """A body may contain any bytes."""
    data = prefixed(b"one", b"\n\0\n", b"\0\0\0\x01")

    assert [
        (1, 0, 7, b"one"),
        (2, 7, 14, b"\n\0\n"),
        (3, 14, 22, b"\0\0\0\x01"),
    ] == read(LengthPrefixed(max_bytes=100), data, step)


@given(bodies=st.lists(st.binary(min_size=1, max_size=9)), cuts=st.lists(st.integers(0, 100)))
def test_what_is_framed_comes_out_whole(bodies: list[bytes], cuts: list[int]) -> None:
    """The result does not depend on the bytes or on the read sizes."""
    data = prefixed(*bodies)
    edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    framing = LengthPrefixed(max_bytes=9)

    found: list[bytes] = []
    for start, end in itertools.pairwise(edges):
        found += framing.feed(data[start:end]).bodies
    found += framing.feed(b"").bodies

    assert (bodies, None) == (found, framing.refusal)


@given(lines=st.lists(st.binary(max_size=5)), max_bytes=st.integers(5, 30))
def test_batches_hold_all_messages_in_order(lines: list[bytes], max_bytes: int) -> None:
    """A batch is within its limit, unless it is one message, and knows its position."""
    data = b"\0".join(line.replace(b"\0", b"") for line in lines)
    framing = Lines(max_bytes=100, delimiter=b"\0")
    batches = [batch for piece in (data, b"") for batch in framing.feed(piece).batches(max_bytes)]

    bodies = [body for batch in batches for body in batch.bodies]
    assert [line for line in data.split(b"\0") if line] == bodies
    sizes = [(len(batch.bodies), size_in_mpub(batch.bodies)) for batch in batches]
    assert [] == [size for count, size in sizes if count > 1 and size > max_bytes]
    assert all(data[batch.start :].startswith(batch.pieces[0]) for batch in batches)
    assert all(batch.pieces[0] and batch.pieces[-1] for batch in batches)


def test_an_input_that_ends_with_a_newline_has_no_line_behind_it() -> None:
    """A final newline adds no empty line."""
    lines = Lines(max_bytes=100)

    assert ([b"one"], []) == (lines.feed(b"one\n").bodies, lines.feed(b"").bodies)


def test_an_input_that_is_empty_holds_nothing() -> None:
    for framing in (Lines(max_bytes=9), LengthPrefixed(max_bytes=9)):
        assert ([], None) == (read(framing, b""), framing.refusal)


def test_another_byte_may_end_a_line() -> None:
    """Newlines are then part of a message, and errors contain offsets."""
    lines = Lines(max_bytes=100, delimiter=b"\0")

    assert [(1, 0, 4, b"a\nb"), (3, 5, 7, b"c")] == read(lines, b"a\nb\0\0c")
    assert "message 3 at offset 5" == lines.describe_range(3, 3, 5)
    assert "messages 1 to 3 (from offset 0)" == lines.describe_range(1, 3, 0)
    assert "tail -c +6" == lines.resume_command(3, 5)


def test_a_place_in_lines_is_told_by_its_number() -> None:
    """Editors and `tail` count lines, so errors contain line numbers."""
    lines = Lines(max_bytes=100)

    assert "line 3" == lines.describe_range(3, 3, 5)
    assert "lines 1 to 3" == lines.describe_range(1, 3, 0)
    assert "tail -n +3" == lines.resume_command(3, 5)


@pytest.mark.parametrize("data", [b"ab\nabcde", b"ab\nabcde\nc\n", b"ab\nabcdefgh"])
def test_a_line_over_the_limit_ends_the_input(data: bytes) -> None:
    """It is refused before it is complete; the messages before it are returned."""
    lines = Lines(max_bytes=4)

    assert [b"ab"] == lines.feed(data).bodies
    assert "line 2: it is longer than --max-msg-size, 4 bytes" == told(lines)
    assert [] == lines.feed(b"\nmore\n").bodies
    assert [] == lines.feed(b"").bodies


def test_a_line_at_the_limit_is_one() -> None:
    lines = Lines(max_bytes=4)

    assert ([(1, 0, 5, b"abcd")], None) == (read(lines, b"abcd\n", step=1), lines.refusal)


@pytest.mark.parametrize(
    "data,complaint",
    [
        (b"\0\0\0\0", "its length is 0 bytes; allowed: 1 to 9 (--max-msg-size)"),
        (b"\0\0\0\x0a", "its length is 10 bytes; allowed: 1 to 9 (--max-msg-size)"),
        (b"\xff\xff\xff\xff", "its length is 4294967295 bytes; allowed: 1 to 9 (--max-msg-size)"),
        (b"hello", 'its 4 bytes are the text "hell": is --framing lines meant?'),
        (b"\0\0\0", "the input ends after 3 of the 4 bytes of its length"),
        (b"\0\0\0\x05", "its length is 5 bytes, and the input ends after 0 of them"),
        (b"\0\0\0\x05abcd", "its length is 5 bytes, and the input ends after 4 of them"),
    ],
)
@pytest.mark.parametrize("step", [1, 64])
def test_what_is_wrong_with_a_length_is_told_with_its_place(
    data: bytes, complaint: str, step: int
) -> None:
    """The error has number, offset, value and limit; earlier messages are returned."""
    framing = LengthPrefixed(max_bytes=9)

    assert [(1, 0, 7, b"one")] == read(framing, prefixed(b"one") + data, step)
    assert told(framing).startswith("message 2 at offset 7: ")
    assert complaint in told(framing)


def test_nothing_is_read_behind_a_length_that_is_wrong() -> None:
    """After an invalid length the start of the next message is unknown."""
    framing = LengthPrefixed(max_bytes=9)
    framing.feed(b"\0\0\0\0")
    refusal = framing.refusal

    assert [] == read(framing, prefixed(b"one"))
    assert refusal is framing.refusal is not None


def test_the_rest_of_an_input_of_lengths_is_told_by_its_offset() -> None:
    """`tail -c +N` counts bytes from 1."""
    framing = LengthPrefixed(max_bytes=9)

    assert "tail -c +8" == framing.resume_command(2, 7)


@pytest.mark.parametrize(
    "text,byte",
    [
        (r"\0", b"\0"),
        (r"\t", b"\t"),
        (r"\n", b"\n"),
        (r"\r", b"\r"),
        (r"\\", b"\\"),
        (r"\x1E", b"\x1e"),
        (",", b","),
        ("\n", b"\n"),
        ("\\", b"\\"),
        ("\udcff", b"\xff"),
    ],
)
def test_a_delimiter_is_one_byte(text: str, byte: bytes) -> None:
    """It is the byte itself or an escape: arguments cannot contain a NUL."""
    assert byte == parse_delimiter(text)


@pytest.mark.parametrize("text", ["", "ab", "é", r"\q", r"\x1", r"\x123"])
def test_what_is_not_one_byte_is_no_delimiter(text: str) -> None:
    """The error contains the allowed values."""
    with pytest.raises(SettingsError, match="one byte, or"):
        parse_delimiter(text)
