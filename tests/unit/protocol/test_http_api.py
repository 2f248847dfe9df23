"""nsqd's HTTP grammar: what is read, what is refused, and with which word."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import InvalidRequest
from gateway.protocol import http_api
from gateway.protocol.commands import PackedBodies
from gateway.protocol.http_api import (
    check_body,
    check_multi_body,
    int_or_none,
    is_binary,
    iter_line_batches,
    parse_defer_ms,
    parse_flag,
    parse_query,
    require_topic,
    require_topic_and_channel,
    require_topic_unchecked,
    split_binary_body,
    split_text_body,
    status_of,
)
from gateway.protocol.wire import Limits
from tests.support.brokers.nsqd import real_nsqd
from tests.support.http.raw_http import exchange

SMALL = Limits(max_msg_size_bytes=10, max_body_size_bytes=40, max_req_timeout_ms=5_000)


def refused(act: Callable[[], object]) -> str:
    """Return the token that *act* is refused with; empty when it is not refused."""
    try:
        act()
    except InvalidRequest as error:
        return error.token
    return ""


def finish(steps: Generator[None, None, PackedBodies]) -> list[bytes]:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return list(end.value)


def split_lines(body: bytes, limits: Limits) -> list[bytes]:
    """Return the messages of a text body, of all its steps."""
    return list(chain.from_iterable(iter_line_batches(body, limits)))


def split_binary(body: bytes, limits: Limits) -> list[bytes]:
    return finish(split_binary_body(body, limits))


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


def test_a_query_with_too_many_parameters_is_refused() -> None:
    """More than 128 pairs, empty ones counted, are refused before any is made of them."""
    assert "" == refused(lambda: parse_query(b"&" * 127))
    assert "INVALID_REQUEST" == refused(lambda: parse_query(b"&" * 128))


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
def test_a_channel_route_has_tokens_of_its_own(raw: bytes, token: str) -> None:
    """Topic comes before channel, and the words have ARG in them."""
    assert token == refused(lambda: require_topic_and_channel(parse_query(raw)))


def test_a_topic_to_delete_is_not_checked() -> None:
    assert b"a b" == require_topic_unchecked(parse_query(b"topic=a+b"))


def test_an_error_names_value_and_limit() -> None:
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
        (b"9223372036854775808", 2**63),
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
    assert expected == int_or_none(text)


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


def test_an_absent_flag_has_the_default_of_its_route() -> None:
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


def test_one_line_as_long_as_a_body_may_be_is_one_message() -> None:
    """A size before it would make an MPUB too long, so it goes as a PUB."""
    limits = Limits(max_msg_size_bytes=100, max_body_size_bytes=100)

    assert [b"x" * 100] == finish(split_text_body(b"x" * 100, limits))


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
def test_the_first_limit_exceeded_determines_the_token(body: bytes, token: str) -> None:
    """Lines that end within the limit of the body come before that limit."""
    assert token == refused(lambda: split_lines(body, SMALL))


def test_lines_are_packed_up_to_the_size_of_an_mpub() -> None:
    """The count takes 4 bytes and each message 4 more: of 40 bytes, 24 remain for 3 messages."""
    body = b"12345678\n" * 3

    assert [b"12345678"] * 3 == finish(split_text_body(body, SMALL))
    assert "BODY_TOO_BIG" == refused(lambda: finish(split_text_body(body[:-1] + b"9\n", SMALL)))


@pytest.mark.parametrize(
    "lines", [[b"a"], [b"a"] * 3, [b""] * 9, [b"x" * 30_000] * 3, [b"ab"] * 70_000]
)
def test_a_line_too_long_is_named_by_its_number(lines: list[bytes]) -> None:
    """Empty lines count, and lines in earlier pieces of 64 KiB."""
    limits = Limits(max_msg_size_bytes=40_000)
    body = b"\n".join([*lines, b"y" * 40_001, b"z"])

    with pytest.raises(InvalidRequest, match=f"^.*line {len(lines) + 1} has 40001 bytes"):
        split_lines(body, limits)


@pytest.mark.parametrize(
    "body,expected",
    [
        (b"\0\0\0\1\0\0\0\1a", [b"a"]),
        (b"\0\0\0\2\0\0\0\1a\0\0\0\2b\n", [b"a", b"b\n"]),
        (b"\0\0\0\1\0\0\0\1a and more", [b"a"]),
    ],
)
def test_a_binary_body_is_counted(body: bytes, expected: list[bytes]) -> None:
    """It has as many messages as announced; further bytes are ignored."""
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
    """A wrong count is BAD_BODY, everything after it BAD_MESSAGE."""
    assert token == refused(lambda: split_binary(body, SMALL))


@given(st.lists(st.binary(min_size=1, max_size=10).map(lambda body: body.replace(b"\n", b" "))))
def test_joined_lines_are_split_again(bodies: list[bytes]) -> None:
    """Any messages without a newline survive the way through a text body."""
    assert bodies == split_lines(b"\n".join(bodies), Limits())


MANY = Limits(max_msg_size_bytes=12, max_body_size_bytes=60)
PIECES = st.lists(st.sampled_from([b"\n", b"\n", b"a", b"bc", b"x" * 11, b"y" * 13]), max_size=30)


def lines_of(body: bytes) -> list[bytes]:
    """Return the messages as nsqd reads them: line by line."""
    if len(body) > 60:
        complete = body[:60].split(b"\n")[:-1]
        assert all(len(line) <= 12 for line in complete), "MSG_TOO_BIG"
    assert len(body) <= 60, "BODY_TOO_BIG"
    lines = body.split(b"\n")
    assert all(len(line) <= 12 for line in lines), "MSG_TOO_BIG"
    return [line for line in lines if line]


def outcome(parse: Callable[[], list[bytes]]) -> list[bytes] | str:
    """Return the messages, or the token of the error."""
    try:
        return parse()
    except InvalidRequest as error:
        return error.token
    except AssertionError as error:
        return str(error).partition("\n")[0]


@given(PIECES.map(b"".join), st.integers(1, 8), st.integers(1, 32))
def test_lines_in_steps_of_any_size_are_the_lines_of_the_whole(
    body: bytes, least_bytes: int, most_bytes: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(http_api, "STEP_LINES", 2)
        patch.setattr(http_api, "_MIN_STEP_BYTES", least_bytes)
        patch.setattr(http_api, "_MAX_STEP_BYTES", max(least_bytes, most_bytes))
        actual = outcome(lambda: split_lines(body, MANY))
        packed = outcome(lambda: finish(split_text_body(body, MANY)))

    expected = outcome(lambda: lines_of(body))
    assert expected == actual
    if isinstance(expected, list) and 4 + sum(4 + len(line) for line in expected) > 60:
        expected = "BODY_TOO_BIG"
    if packed != "BODY_TOO_BIG":  # which is found first where another line is too long, too
        assert expected == packed


@pytest.mark.parametrize(
    "body",
    [
        b"a\n" * 200_000,
        b"\n" * 400_000,
        b"x" * 300_000 + b"\n" + b"a\n" * 50_000,
        b"ab\n\n" * 50_000,
        b"\n" + b"x" * 65_536 + b"\n" + b"a\n" * 50_000,
    ],
    ids=["short", "empty", "long and short", "both", "empty, long and short"],
)
def test_a_step_has_a_bounded_number_of_lines(body: bytes) -> None:
    sizes = [piece.count(b"\n") for piece in http_api._pieces(body, len(body))]

    assert max(sizes) <= 2 * http_api.STEP_LINES
    assert body.count(b"\n") - len(sizes) <= sum(sizes) <= body.count(b"\n")


def test_binary_messages_are_checked_in_steps() -> None:
    body = b"\0\0\x27\x10" + b"\0\0\0\1a" * 10_000
    steps = list(split_binary_body(body, Limits()))

    assert 10_000 // http_api.STEP_LINES == len(steps)


@given(st.binary(max_size=60))
def test_no_body_makes_the_readers_fail(body: bytes) -> None:
    refused(lambda: split_lines(body, SMALL))
    refused(lambda: split_binary(body, SMALL))


def test_an_unknown_token_has_status_400() -> None:
    """A known token has its status, every other one 400."""
    assert 413 == status_of("MSG_TOO_BIG")
    assert 413 == status_of("BAD_MESSAGE")
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
