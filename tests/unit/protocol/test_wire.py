"""Layouts, names and numbers of V2 are nsqd's."""

from __future__ import annotations

import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.protocol.wire import (
    FRAME_HEAD,
    MESSAGE_FRAME_HEAD,
    MESSAGE_HEAD,
    Limits,
    go_quote,
    is_ephemeral,
    is_valid_name,
    parse_digits,
    to_int64,
    wrap_delay_ms,
)


def test_layouts_have_the_sizes_of_the_specification() -> None:
    """A frame begins with 8 bytes, a message with 26."""
    assert (8, 26, 34) == (FRAME_HEAD.size, MESSAGE_HEAD.size, MESSAGE_FRAME_HEAD.size)


def test_defaults_are_those_of_nsqd() -> None:
    """Limits without arguments are those of an nsqd without flags."""
    expected = Limits(
        max_msg_size_bytes=1_048_576,
        max_body_size_bytes=5_242_880,
        max_req_timeout_ms=3_600_000,
        max_rdy_count=2_500,
        msg_timeout_ms=60_000,
        max_msg_timeout_ms=900_000,
        heartbeat_interval_ms=30_000,
        max_heartbeat_interval_ms=60_000,
        output_buffer_size_bytes=16_384,
        max_output_buffer_size_bytes=65_536,
        output_buffer_timeout_ms=250,
        min_output_buffer_timeout_ms=25,
        max_output_buffer_timeout_ms=30_000,
    )

    assert expected == Limits()


@pytest.mark.parametrize(
    "max_body_size_bytes,count", [(5_242_880, 1_048_575), (4, 0), (8, 0), (9, 1), (14, 2)]
)
def test_mpub_count_is_what_fits_as_one_byte_each(max_body_size_bytes: int, count: int) -> None:
    """A count takes 4 bytes of the body, a message at least 5."""
    limits = Limits(max_body_size_bytes=max_body_size_bytes)

    assert count == limits.max_mpub_count


@pytest.mark.parametrize(
    "name",
    [
        b"a",
        b".",
        b"-_.",
        b"AZaz09",
        b"n" * 64,
        b"t#ephemeral",
        b"n" * 54 + b"#ephemeral",
        b"ephemeral",
    ],
)
def test_name_of_allowed_bytes_is_valid(name: bytes) -> None:
    """1 to 64 bytes of . _ - letters digits, the suffix counted, can name a topic."""
    assert is_valid_name(name)


@pytest.mark.parametrize(
    "name",
    [
        b"",
        b"n" * 65,
        b"n" * 55 + b"#ephemeral",
        b"#ephemeral",
        b"t#ephemera",
        b"t#ephemeral#ephemeral",
        b"t#ephemeralx",
        b"t\n",
        b"t#ephemeral\n",
        b"\nt",
        b"a\nb",
        b"t\r",
        b"t\x00",
        b"\x00",
        b"a b",
        b"a/b",
        b"a*",
        "\u00e9".encode(),
        "\u0663".encode(),
        b"\xff",
    ],
)
def test_any_other_name_is_invalid(name: bytes) -> None:
    """Other bytes, a newline at the end above all, and other lengths name nothing."""
    assert not is_valid_name(name)


def test_65_of_256_bytes_are_valid_in_a_name() -> None:
    """ASCII letters, digits and three signs, and nothing else."""
    valid = bytes(byte for byte in range(256) if is_valid_name(bytes([byte])))

    expected = (string.ascii_letters + string.digits + "._-").encode()
    assert sorted(expected) == sorted(valid)


@given(st.binary(max_size=70) | st.text("aZ0._-#ephmral\n", max_size=70).map(str.encode))
def test_no_valid_name_can_end_a_line(name: bytes) -> None:
    """A valid name holds neither what separates words nor what ends a command."""
    assert not (is_valid_name(name) and re.search(rb"[\s\x00-\x20]", name))


@pytest.mark.parametrize(
    "name,expected", [("t#ephemeral", True), ("t", False), ("ephemeral", False)]
)
def test_suffix_makes_a_name_ephemeral(name: str, expected: bool) -> None:  # noqa: FBT001
    """A name with #ephemeral at its end goes when its last user goes."""
    assert expected is is_ephemeral(name)


@pytest.mark.parametrize(
    "text,number",
    [
        (b"", 0),
        (b"0", 0),
        (b"007", 7),
        (b"2500", 2_500),
        (b"18446744073709551615", 2**64 - 1),
        (b"18446744073709551616", 0),
        (b"18446744073709551621", 5),
        (b"0" * 40 + b"1", 1),
    ],
)
def test_digits_are_a_number_below_2_64(text: bytes, number: int) -> None:
    """No digit is 0, and what is too big wraps around at 2^64."""
    assert number == parse_digits(text)


@given(st.integers(min_value=0, max_value=10**4_000))
def test_any_digits_wrap_as_their_number_does(number: int) -> None:
    """Thousands of digits are the number that they write, modulo 2^64."""
    assert number % 2**64 == parse_digits(b"%d" % number)


@pytest.mark.parametrize(
    "text",
    [
        b"-1",
        b"-0",
        b"+1",
        b"1_0",
        b" 1",
        b"1 ",
        b"1\n",
        b"1.0",
        b"1e3",
        b"0x1",
        b"x",
        b"\x00",
        b"1\x00",
        b"\xb2",
        "\u0663".encode(),
        b"1" * 40 + b"x",
    ],
)
def test_anything_but_digits_is_no_number(text: bytes) -> None:
    """Signs, underscores, spaces and digits of other scripts are refused."""
    assert parse_digits(text) is None


@pytest.mark.parametrize(
    "value,expected",
    [(0, 0), (2**63 - 1, 2**63 - 1), (2**63, -(2**63)), (2**64 - 1, -1), (2**64, 0), (-1, -1)],
)
def test_int64_is_the_low_64_bits(value: int, expected: int) -> None:
    """The highest bit is the sign, and higher ones do not matter."""
    assert expected == to_int64(value)


@pytest.mark.parametrize(
    "value_ms,expected_ms",
    [
        (0, 0),
        (3_600_001, 3_600_001),
        (9_223_372_036_854, 9_223_372_036_854),
        (9_223_372_036_855, -9_223_372_036_855),
        (18_446_744_073_709, -1),
        (18_446_744_073_710, 0),
        (2**64 - 1, -1),
    ],
)
def test_delay_wraps_in_nanoseconds(value_ms: int, expected_ms: int) -> None:
    """A delay above 292 years is what its nanoseconds are in an int64."""
    assert expected_ms == wrap_delay_ms(value_ms)


@pytest.mark.parametrize(
    "text,quoted",
    [
        (b"", '""'),
        (b"topic", '"topic"'),
        (b'"\\', r'"\"\\"'),
        (b"\a\b\f\n\r\t\v", r'"\a\b\f\n\r\t\v"'),
        (b"\x00\x1b\x7f", r'"\x00\x1b\x7f"'),
        (b"\xff\x80a", r'"\xff\x80a"'),
        (b"\xed\xa0\x80", r'"\xed\xa0\x80"'),
        ("\u00e9\u20ac\U0001f600 \ufffd".encode(), '"\u00e9\u20ac\U0001f600 \ufffd"'),
        ("\u0085\u00a0\u00ad\u200b\ufeff".encode(), r'"\u0085\u00a0\u00ad\u200b\ufeff"'),
        ("\U0010ffff".encode(), r'"\U0010ffff"'),
    ],
)
def test_text_is_quoted_as_go_does(text: bytes, quoted: str) -> None:
    """Unprintable characters are escaped, and bytes that are not UTF-8 as bytes."""
    assert quoted == go_quote(text)
