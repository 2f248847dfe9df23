"""What is read of one head, and what is refused of it; with what is kept until it is whole."""

from __future__ import annotations

import re

import pytest

from gateway.errors import GatewayError, HeadersTooLarge, TooManyHeaders
from gateway.web.http.head import MAX_HEADERS, MAX_LIST_ITEMS, HeadReader, split_target
from tests.support.gateways.public_http import only_connection, public_http
from tests.support.http.raw_http import read_response
from tests.support.http.recording_publisher import FullPublisher, RecordingPublisher
from tests.support.manual_clock import turn, until
from tests.support.websocket.raw_socket import raw_socket

LINE = b"GET /ping HTTP/1.1\r\n"
HOST = b"Host: gateway\r\n"
POST = b"POST /pub?topic=t HTTP/1.1\r\nHost: gateway\r\nContent-Length: 2\r\n\r\nab"
LONG = b"X-Long: " + b"x" * 20_000 + b"\r\n"


def feed_in(reader: HeadReader, stream: bytes, piece_bytes: int) -> None:
    for start in range(0, len(stream), piece_bytes):
        piece = stream[start : start + piece_bytes]
        assert reader.feed(piece, 0) == len(piece)


@pytest.mark.parametrize("piece_bytes", [1, 7, 100_000])
def test_as_many_headers_as_may_be_are_read(piece_bytes: int) -> None:
    reader = HeadReader()

    feed_in(reader, LINE + HOST + b"a: b\r\n" * (MAX_HEADERS - 1) + b"\r\n", piece_bytes)

    assert reader.is_complete
    assert [(b"host", b"gateway"), *[(b"a", b"b")] * (MAX_HEADERS - 1)] == reader.headers


@pytest.mark.parametrize("end", [b"\r\n", b""], ids=["whole", "unfinished"])
@pytest.mark.parametrize("piece_bytes", [1, 7, 100_000])
def test_one_header_too_many_ends_the_reading(end: bytes, piece_bytes: int) -> None:
    """16 000 of nothing but a name were 2 MB in memory, and held the event loop for 20 ms."""
    reader = HeadReader()

    with pytest.raises(TooManyHeaders, match=r"129 or more headers; limit 128"):
        feed_in(reader, LINE + HOST + b"a:\r\n" * 16_000 + end, piece_bytes)

    assert len(reader.headers) == MAX_HEADERS + 1


def test_one_header_too_many_in_a_whole_head_is_too_many() -> None:
    """The last one is only known to be one by the empty line."""
    reader = HeadReader()

    with pytest.raises(TooManyHeaders):
        feed_in(reader, LINE + HOST + b"a:\r\n" * MAX_HEADERS + b"\r\n", 100_000)


@pytest.mark.parametrize(
    "headers",
    [
        b"Connection: " + b"a," * MAX_LIST_ITEMS + b"a\r\n",
        b"Connection: " + b"," * 60_000 + b"\r\n",
        b"Connection: a,b\r\n" * 65,
        b"Connection: Upgrade\r\nUpgrade: " + b"a," * MAX_LIST_ITEMS + b"a\r\n",
    ],
    ids=["one line", "nothing but commas", "many lines", "Upgrade"],
)
def test_a_list_that_is_too_long_is_not_read(headers: bytes) -> None:
    """An item costs a thousand times what its two bytes say."""
    reader = HeadReader()

    with pytest.raises(TooManyHeaders, match=r"or more items of (Connection|Upgrade); limit 128"):
        reader.feed(LINE + HOST + headers + b"\r\n", 0)


def test_a_list_that_is_long_is_read() -> None:
    reader = HeadReader()

    reader.feed(LINE + HOST + b"Connection: " + b"a," * 127 + b"close\r\n\r\n", 0)

    assert not reader.keep_alive


def test_empty_lines_are_neither_kept_nor_read_again() -> None:
    """Cut inside of one, each byte behind 64 KiB of them cost half a millisecond."""
    reader = HeadReader()
    reader.feed(b"\r\n" * 300_000 + b"\r", 0)

    for _ in range(1_000):
        assert reader.feed(b"\n", 0) == 1
        assert reader.feed(b"\r", 0) == 1
        assert reader.raw == b"\r"
    feed_in(reader, b"\n" + LINE + HOST + b"\r\n", 1)

    assert (LINE + HOST + b"\r\n", b"/ping") == (reader.raw, reader.target)


@pytest.mark.parametrize("piece_bytes", [1, 2, 3, 100])
@pytest.mark.parametrize("before", [b"\r", b"\n", b"\r\r\n", b"\r\n\r"])
def test_what_is_no_empty_line_before_a_head_is_refused(before: bytes, piece_bytes: int) -> None:
    """RFC 9112 §2.2 has CRLF; a lone part of it is no part of a head either."""
    with pytest.raises(GatewayError) as caught:
        feed_in(HeadReader(), before + LINE + HOST + b"\r\n", piece_bytes)

    assert not isinstance(caught.value, HeadersTooLarge)


# On the wire


@pytest.mark.parametrize("end", [b"\r\n", b""], ids=["whole", "unfinished"])
async def test_too_many_headers_are_431(end: bytes) -> None:
    """The answer tells how many there may be; the connection is closed behind it."""
    async with public_http(RecordingPublisher()) as served, raw_socket(served.address) as raw:
        await raw.send(LINE + HOST + b"a:\r\n" * 16_000 + end)
        answer = await read_response(raw)

        assert (431, "HEAD_TOO_BIG", "close") == (
            answer.status,
            answer.message,
            answer.headers["connection"],
        )
        assert re.search(rb"129 or more headers; limit 128", answer.body)
        assert b"" == await raw.read_to_end()


@pytest.mark.parametrize(
    "begin",
    [LINE + LONG, b"POST /pub?topic=t HTTP/1.1\r\n" + HOST + LONG + b"Content-Length: 2\r\n\r\na"],
    ids=["half a head", "half a body"],
)
async def test_a_long_head_is_counted_until_its_request_is_whole(begin: bytes) -> None:
    """What 10 000 connections hold of them together is bounded with what is to be published."""
    publisher = RecordingPublisher()
    async with public_http(publisher) as served, raw_socket(served.address) as raw:
        await raw.send(begin)
        await until(lambda: publisher.held_bytes >= 2 * len(LONG))
        await raw.send(b"b" if begin.startswith(b"POST") else HOST + b"\r\n")

        assert 200 == (await read_response(raw)).status
        await until(lambda: publisher.held_bytes == 0)


async def test_a_long_head_is_given_back_with_its_connection() -> None:
    """Whoever leaves in the middle of it."""
    publisher = RecordingPublisher()
    async with public_http(publisher) as served:
        async with raw_socket(served.address) as raw:
            await raw.send(LINE + LONG)
            await until(lambda: publisher.held_bytes > 0)
        await until(lambda: publisher.held_bytes == 0)


async def test_a_long_head_that_there_is_no_room_for_is_503() -> None:
    """Nobody waits for the rest of it."""
    async with public_http(FullPublisher()) as served, raw_socket(served.address) as raw:
        await raw.send(LINE + LONG)
        answer = await read_response(raw)

        assert (503, "OVERLOADED", "close") == (
            answer.status,
            answer.message,
            answer.headers["connection"],
        )
        assert b"" == await raw.read_to_end()


@pytest.mark.parametrize("request_bytes", [POST, LINE + HOST + b"\r\n", POST.replace(b"=t", b"=")])
async def test_a_connection_keeps_no_head_of_what_is_answered(request_bytes: bytes) -> None:
    """64 KiB of each that had one, until the next request."""
    async with public_http(RecordingPublisher()) as served, raw_socket(served.address) as raw:
        await raw.send(request_bytes.replace(HOST, HOST + LONG))
        await read_response(raw)
        await turn(5)

        assert only_connection(served)._head is None


@pytest.mark.parametrize(
    "target,expected",
    [
        (b"/ping", (b"/ping", b"")),
        (b"/ping?a=b", (b"/ping", b"a=b")),
        (b"/ping#x", (b"/ping", b"")),
        (b"/ping#x?a=b", (b"/ping", b"")),
        (b"/ping?a=b#x", (b"/ping", b"a=b")),
        (b"http://gateway/ping?a=b#x", (b"/ping", b"a=b")),
        (b"http://gateway#x", (b"/", b"")),
        (b"*", (b"*", b"")),
    ],
)
def test_a_fragment_is_no_part_of_path_or_query(
    target: bytes, expected: tuple[bytes, bytes]
) -> None:
    """RFC 9112 sends none, but clients do."""
    assert expected == split_target(target)


@pytest.mark.parametrize(
    "line,status",
    [(b"GET /ping#x", 200), (b"GET /ping#x?y", 200), (b"POST /pub#x?topic=t", 400)],
)
async def test_a_target_with_a_fragment_reaches_its_route(line: bytes, status: int) -> None:
    """Not 404; for /pub the topic of a fragment is none."""
    request = line + b" HTTP/1.1\r\n" + HOST + b"Content-Length: 1\r\n\r\nx"
    async with public_http(RecordingPublisher()) as served, raw_socket(served.address) as raw:
        await raw.send(request)

        assert status == (await read_response(raw)).status


def test_an_encoding_beside_chunked_is_refused() -> None:
    with pytest.raises(GatewayError, match="Transfer-Encoding is not chunked"):
        HeadReader().feed(LINE + HOST + b"Transfer-Encoding: gzip, chunked\r\n\r\n", 0)
