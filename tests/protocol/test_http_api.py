"""nsqd's HTTP grammar: what is read, what is refused, and with which word."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import InvalidRequest
from gateway.protocol.http_api import (
    check_body,
    check_multi_body,
    is_binary,
    parse_defer_ms,
    parse_flag,
    parse_int64,
    parse_query,
    require_topic,
    require_topic_and_channel,
    require_topic_unchecked,
    split_binary,
    split_lines,
    status_of,
)
from gateway.protocol.wire import Limits
from tests.support.nsqd import real_nsqd
from tests.support.raw_http import exchange

SMALL = Limits(max_msg_size_bytes=10, max_body_size_bytes=40, max_req_timeout_ms=5_000)


def refused(act: Callable[[], object]) -> str:
    """Return the token that *act* is refused with; empty when it is not refused."""
    try:
        act()
    except InvalidRequest as error:
        return error.token
    return ""


# Query


@pytest.mark.parametrize(
    "raw,expected",
    [
        (b"", None),
        (b"b=1", None),
        (b"A=1", None),
        (b"a=1", b"1"),
        (b"a", b""),
        (b"a=", b""),
        (b"a=1&a=2", b"1"),
        (b"&&b=2&&a=1&", b"1"),
        (b"a=1=2", b"1=2"),
        (b"a=x+y%2Bz", b"x y+z"),
        (b"a=%00%ff", b"\x00\xff"),
        (b"%61=1", b"1"),
        (b"a=\xff", b"\xff"),
        (b"\xff=2&a=1", b"1"),
        (b"=1", None),
    ],
)
def test_a_query_is_read_as_go_reads_it(raw: bytes, expected: bytes | None) -> None:
    """The first value of a name counts, decoded; present and empty is not absent."""
    assert expected == parse_query(raw).get("a")


@pytest.mark.parametrize("raw", [b"a=1;b=2", b";", b"a=%", b"a=%4", b"a=%4g", b"%zz=1", b"a=%\n41"])
def test_a_query_that_go_refuses_is_refused(raw: bytes) -> None:
    """A semicolon or a bad percent escape anywhere makes the request invalid."""
    assert "INVALID_REQUEST" == refused(lambda: parse_query(raw))


def test_a_query_of_too_many_pairs_is_refused() -> None:
    """More than 10000 pairs, empty ones counted, are refused."""
    assert "" == refused(lambda: parse_query(b"&" * 9_999))
    assert "INVALID_REQUEST" == refused(lambda: parse_query(b"&" * 10_000))


# Parameters


@pytest.mark.parametrize(
    "raw,token",
    [
        (b"topic=t", ""),
        (b"topic=t%23ephemeral", ""),
        (b"topic=" + b"t" * 64, ""),
        (b"", "MISSING_ARG_TOPIC"),
        (b"channel=c", "MISSING_ARG_TOPIC"),
        (b"topic", "INVALID_TOPIC"),
        (b"topic=" + b"t" * 65, "INVALID_TOPIC"),
        (b"topic=a%0A", "INVALID_TOPIC"),
        (b"topic=a%00", "INVALID_TOPIC"),
        (b"topic=a+b", "INVALID_TOPIC"),
        (b"topic=%C3%A4", "INVALID_TOPIC"),
        (b"topic=t%23other", "INVALID_TOPIC"),
        (b"topic=%23ephemeral", "INVALID_TOPIC"),
        (b"topic=bad+one&topic=good", "INVALID_TOPIC"),
    ],
)
def test_a_topic_is_missing_or_invalid_or_good(raw: bytes, token: str) -> None:
    """A topic is checked by bytes, to the last one."""
    assert token == refused(lambda: require_topic(parse_query(raw)))


@pytest.mark.parametrize(
    "raw,token",
    [
        (b"topic=t&channel=c", ""),
        (b"channel=+", "MISSING_ARG_TOPIC"),
        (b"topic=+", "INVALID_ARG_TOPIC"),
        (b"topic=t", "MISSING_ARG_CHANNEL"),
        (b"topic=t&channel=", "INVALID_ARG_CHANNEL"),
        (b"topic=t&channel=c%0A", "INVALID_ARG_CHANNEL"),
    ],
)
def test_a_channel_route_has_words_of_its_own(raw: bytes, token: str) -> None:
    """Topic comes before channel, and the words have ARG in them."""
    assert token == refused(lambda: require_topic_and_channel(parse_query(raw)))


def test_a_topic_to_delete_is_not_checked() -> None:
    """A topic to delete is looked up as it stands."""
    assert b"a b" == require_topic_unchecked(parse_query(b"topic=a+b"))


def test_a_refusal_tells_value_and_limit() -> None:
    """The text names what came, its size and what is allowed; a long value is cut."""
    with pytest.raises(InvalidRequest) as caught:
        require_topic(parse_query(b"topic=" + b"%0A" * 500))

    assert re.fullmatch(
        r'topic is "(\\n){80}"…, 500 bytes; allowed: 1 to 64 bytes of .*', caught.value.detail
    )


@pytest.mark.parametrize(
    "text,expected",
    [
        (b"0", 0),
        (b"-0", 0),
        (b"+7", 7),
        (b"007", 7),
        (b"9223372036854775807", 2**63 - 1),
        (b"-9223372036854775808", -(2**63)),
        (b"0" * 5_000 + b"1", 1),
        (b"9223372036854775808", None),
        (b"99999999999999999999", None),
        (b"1" * 5_000, None),
        (b"", None),
        (b"+", None),
        (b"--1", None),
        (b" 1", None),
        (b"1_000", None),
        (b"1.0", None),
        (b"0x10", None),
        ("٣".encode(), None),
        (b"1\n", None),
    ],
)
def test_a_number_is_read_as_go_reads_it(text: bytes, expected: int | None) -> None:
    """One sign and ASCII digits within 64 bits, nothing else."""
    assert expected == parse_int64(text)


@pytest.mark.parametrize(
    "raw,expected", [(b"", 0), (b"defer=0", 0), (b"defer=%2B5", 5), (b"defer=5000", 5_000)]
)
def test_a_defer_is_in_milliseconds(raw: bytes, expected: int) -> None:
    """From 0 to the limit a delay is taken; none is 0."""
    assert expected == parse_defer_ms(parse_query(raw), max_ms=5_000)


@pytest.mark.parametrize("value", [b"", b"5001", b"-1", b"+5", b"1s", b"18446744073710"])
def test_a_defer_out_of_range_is_refused(value: bytes) -> None:
    """Empty, no number, negative and too long are one word."""
    query = parse_query(b"defer=" + value)

    assert "INVALID_DEFER" == refused(lambda: parse_defer_ms(query, max_ms=5_000))


@pytest.mark.parametrize(
    "raw,expected",
    [
        (b"", False),
        (b"binary=false", False),
        (b"binary=0", False),
        (b"binary=true", True),
        (b"binary=1", True),
        (b"binary", True),
        (b"binary=False", True),
    ],
)
def test_binary_is_everything_but_false_and_0(raw: bytes, *, expected: bool) -> None:
    """An unknown value, the empty one too, means binary."""
    assert expected is is_binary(parse_query(raw))


def test_a_flag_that_is_absent_has_its_own_value() -> None:
    """What an absent flag means is the route's business."""
    assert parse_flag(parse_query(b""), "include_mem", absent=True)


# Bodies


@pytest.mark.parametrize("size,token", [(0, "MSG_EMPTY"), (1, ""), (10, ""), (11, "MSG_TOO_BIG")])
def test_a_message_has_1_to_limit_bytes(size: int, token: str) -> None:
    """Exactly the limit is accepted, one byte more is not."""
    assert token == refused(lambda: check_body(size, limit_bytes=10))


@pytest.mark.parametrize("size,token", [(0, ""), (40, ""), (41, "BODY_TOO_BIG")])
def test_a_body_of_many_may_be_empty(size: int, token: str) -> None:
    """From nothing to exactly the limit is accepted."""
    assert token == refused(lambda: check_multi_body(size, limit_bytes=40))


@pytest.mark.parametrize(
    "body,expected",
    [
        (b"", []),
        (b"\n\n", []),
        (b"a", [b"a"]),
        (b"a\n", [b"a"]),
        (b"a\n\nb\r\n", [b"a", b"b\r"]),
        (b"1234567890\n" * 3, [b"1234567890"] * 3),
        (b"\x00\xff\n", [b"\x00\xff"]),
    ],
)
def test_lines_are_messages(body: bytes, expected: list[bytes]) -> None:
    """Only a newline ends a line; empty lines are dropped; the last one needs no end."""
    assert expected == split_lines(body, SMALL)


@pytest.mark.parametrize(
    "body,token",
    [
        (b"12345678901", "MSG_TOO_BIG"),
        (b"a\n12345678901\nb", "MSG_TOO_BIG"),
        (b"123456789\n" * 4 + b"\n", "BODY_TOO_BIG"),
        (b"12345678901\n" + b"a\n" * 30, "MSG_TOO_BIG"),
        (b"a" * 41, "BODY_TOO_BIG"),
        (b"123456789\n" * 2 + b"a" * 20 + b"\n", "BODY_TOO_BIG"),
        (b"123456789\n" * 2 + b"a" * 19 + b"\n\n", "MSG_TOO_BIG"),
    ],
)
def test_what_is_too_big_first_gives_the_word(body: bytes, token: str) -> None:
    """Lines that end within the limit of the body come before that limit."""
    assert token == refused(lambda: split_lines(body, SMALL))


@pytest.mark.parametrize(
    "body,expected",
    [
        (b"\0\0\0\1\0\0\0\1a", [b"a"]),
        (b"\0\0\0\2\0\0\0\1a\0\0\0\2b\n", [b"a", b"b\n"]),
        (b"\0\0\0\1\0\0\0\1a and more", [b"a"]),
    ],
)
def test_a_binary_body_is_counted(body: bytes, expected: list[bytes]) -> None:
    """As many messages as announced come out; what follows is ignored."""
    assert expected == split_binary(body, SMALL)


@pytest.mark.parametrize(
    "body,token",
    [
        (b"", "BAD_BODY"),
        (b"\0\0\0", "BAD_BODY"),
        (b"\0\0\0\0", "BAD_BODY"),
        (b"\xff\xff\xff\xff", "BAD_BODY"),
        (b"\0\0\0\x08", "BAD_BODY"),  # (40 - 4) // 5 is 7
        (b"\0\0\0\1", "BAD_MESSAGE"),
        (b"\0\0\0\1\0\0\0", "BAD_MESSAGE"),
        (b"\0\0\0\1\0\0\0\0", "BAD_MESSAGE"),
        (b"\0\0\0\1\xff\xff\xff\xff", "BAD_MESSAGE"),
        (b"\0\0\0\1\0\0\0\x0b12345678901", "BAD_MESSAGE"),
        (b"\0\0\0\1\0\0\0\2a", "BAD_MESSAGE"),
        (b"\0\0\0\2\0\0\0\1a", "BAD_MESSAGE"),
    ],
)
def test_a_binary_body_that_lies_is_refused(body: bytes, token: str) -> None:
    """A wrong count is BAD_BODY, everything behind it BAD_MESSAGE."""
    assert token == refused(lambda: split_binary(body, SMALL))


@given(st.lists(st.binary(min_size=1, max_size=10).map(lambda body: body.replace(b"\n", b" "))))
def test_joined_lines_come_apart_again(bodies: list[bytes]) -> None:
    """Any messages without a newline survive the way through a text body."""
    assert bodies == split_lines(b"\n".join(bodies), Limits())


@given(st.binary(max_size=60))
def test_no_body_makes_the_readers_fail(body: bytes) -> None:
    """Whatever comes is split or refused."""
    refused(lambda: split_lines(body, SMALL))
    refused(lambda: split_binary(body, SMALL))


def test_a_word_that_nsqd_does_not_have_is_the_fault_of_the_caller() -> None:
    """A known token has its status, every other one 400."""
    assert 413 == status_of("MSG_TOO_BIG")
    assert 400 == status_of("E_INVALID")


# The outside witness


QUERIES = [
    "",
    "topic=t",
    "topic",
    "topic=",
    "topic=a%0A",
    "topic=a%00",
    "topic=a;b",
    "topic=a&x;y",
    "topic=%zz",
    "topic=%4",
    "%74opic=t",
    "topic=t&x=%",
    "topic=t&topic=a+b",
    "topic=a+b&topic=t",
    "&&topic=t&&",
    "Topic=t",
    "topic=%C3%A4",
    "topic=t%23ephemeral",
    "topic=" + "t" * 64,
    "topic=" + "t" * 65,
    "topic=t&defer",
    "topic=t&defer=0",
    "topic=t&defer=%2B5",
    "topic=t&defer=+5",
    "topic=t&defer=-0",
    "topic=t&defer=-1",
    "topic=t&defer=5000",
    "topic=t&defer=5001",
    "topic=t&defer=5_0",
    "topic=t&defer=0005",
    "topic=t&defer=5.0",
    "topic=t&defer=9223372036854775808",
    "topic=t&defer=1&defer=x",
]


def judge(query: str) -> str:
    """Return our word about the *query* of a POST /pub."""

    def read() -> None:
        values = parse_query(query.encode())
        require_topic(values)
        parse_defer_ms(values, max_ms=SMALL.max_req_timeout_ms)

    return refused(read)


@pytest.mark.nsqd
async def test_a_real_nsqd_judges_queries_so() -> None:
    """The queries above are accepted or refused by nsqd with the same words."""
    async with real_nsqd("--max-req-timeout=5s") as nsqd:
        expected = {
            query: (await exchange(nsqd.http_address, "POST", f"/pub?{query}", b"x")).message
            for query in QUERIES
        }

    assert expected == {query: judge(query) for query in QUERIES}
