"""The public port: no answer takes the place of another one, and nothing grows without a bound."""

from __future__ import annotations

import pytest

from gateway.protocol.wire import Limits
from gateway.web.http.protocol import ConnectionState
from tests.support.gateways.public_http import only_connection, public_http
from tests.support.http.raw_http import read_response, send_raw_request
from tests.support.http.recording_publisher import RecordingPublisher, WaitingPublisher
from tests.support.manual_clock import turn, until
from tests.support.websocket.echo_handler import echo_websockets
from tests.support.websocket.raw_socket import raw_socket

HEAD = b"POST /pub?topic=t HTTP/1.1\r\nHost: gateway\r\n"
POST = HEAD + b"Content-Length: 2\r\n\r\nab"
UPGRADE = (
    b"Connection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
)
LARGE = Limits(max_msg_size_bytes=1_000_000, max_body_size_bytes=1_000_000)
PUBLISHED = ("t", [b"ab"], 0)


@pytest.fixture
def publisher() -> WaitingPublisher:
    """A publisher that answers when it is told to."""
    return WaitingPublisher()


async def test_a_head_without_end_behind_a_publish_is_answered_behind_it(
    publisher: WaitingPublisher,
) -> None:
    """431 means "not published", so it never takes the place of an answer."""
    async with public_http(publisher) as served, raw_socket(served.address) as raw:
        await raw.send(POST)
        await until(lambda: bool(publisher.waiting))
        await raw.send(b"POST /pub?topic=t HTTP/1.1\r\nX-Long: " + b"x" * 100_000)
        connection = only_connection(served)
        await until(lambda: connection._is_reading_paused)
        publisher.waiting.pop()(None)
        ok, refused = await read_response(raw), await read_response(raw)

        assert (200, 431, "HEAD_TOO_BIG") == (ok.status, refused.status, refused.message)
        assert b"" == await raw.read_to_end()


async def test_the_end_of_a_long_body_is_not_counted_as_the_next_head(
    publisher: WaitingPublisher,
) -> None:
    """A read may bring both; what is bounded is the head."""
    async with public_http(publisher, LARGE) as served, raw_socket(served.address) as raw:
        await raw.send(HEAD + b"Content-Length: 100000\r\n\r\n")
        await until(lambda: bool(served.listener._server.server_state.connections))  # type: ignore[union-attr]
        connection = only_connection(served)
        await until(lambda: connection.state is ConnectionState.BODY)
        connection.data_received(b"x" * 100_000 + POST[:10])
        await raw.send(POST[10:])
        await until(lambda: bool(publisher.waiting))
        await turn(20)
        publisher.waiting.pop()(None)
        await turn(20)
        if publisher.waiting:
            publisher.waiting.pop()(None)

        assert [200, 200] == [(await read_response(raw)).status for _ in range(2)]


async def test_a_websocket_behind_a_publish_is_opened_once_that_is_answered(
    publisher: WaitingPublisher,
) -> None:
    """The 101 comes behind the publish's answer, never before it."""
    async with (
        public_http(publisher, websockets=echo_websockets()) as served,
        raw_socket(served.address) as raw,
    ):
        await raw.send(POST + b"GET /sub HTTP/1.1\r\nHost: gateway\r\n" + UPGRADE + b"\r\n")
        await until(lambda: bool(publisher.waiting))
        await turn(5)
        connection = only_connection(served)
        assert ConnectionState.RESPONDING is connection.state
        publisher.waiting.pop()(None)
        ok = await read_response(raw)
        opened = await raw.read_until(b"\r\n\r\n")

        assert 200 == ok.status
        assert opened.startswith(b"HTTP/1.1 101 ")


@pytest.mark.parametrize("before", [b"", b"GET /ping HTTP/1.1\r\nHost: g\r\n\r\n"])
async def test_a_publish_that_offers_a_websocket_is_a_publish(before: bytes) -> None:
    """Nothing of what was asked before on the connection is taken for its handshake."""
    publisher = RecordingPublisher()
    async with (
        public_http(publisher, websockets=echo_websockets()) as served,
        raw_socket(served.address) as raw,
    ):
        if before:
            await raw.send(before)
            await read_response(raw)
        await raw.send(HEAD + UPGRADE + b"Content-Length: 2\r\n\r\nab")

        await raw.send(POST)

        assert [200, 200] == [(await read_response(raw)).status for _ in range(2)]
    assert [PUBLISHED] * 2 == publisher.published


async def test_a_body_goes_on_once_answers_are_read_again(publisher: WaitingPublisher) -> None:
    """A client may be behind with reading while it sends; its last request is not forgotten."""
    async with public_http(publisher) as served, raw_socket(served.address) as raw:
        await raw.send(POST + POST[:-1])
        await until(lambda: bool(publisher.waiting))
        connection = only_connection(served)
        connection.pause_writing()
        publisher.waiting.pop()(None)
        await turn(5)
        connection.resume_writing()
        await until(lambda: not connection._is_reading_paused)
        await raw.send(POST[-1:])
        await until(lambda: bool(publisher.waiting))
        publisher.waiting.pop()(None)

        assert [200, 200] == [(await read_response(raw)).status for _ in range(2)]


async def test_a_trailer_without_end_is_refused(publisher: WaitingPublisher) -> None:
    """It is kept in memory no more than a head is, and the body is not published."""
    chunks = b"Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\nX-Long: "
    async with public_http(publisher) as served:
        answer = await send_raw_request(served.address, HEAD + chunks + b"x" * 200_000)

    assert (431, "HEAD_TOO_BIG") == (answer.status, answer.message)
    assert ([], 0) == (publisher.published, publisher.held_bytes)


async def test_many_small_chunks_are_a_body(publisher: WaitingPublisher) -> None:
    """What stands between them is more than a head may have, and is none."""
    async with public_http(publisher) as served, raw_socket(served.address) as raw:
        await raw.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        for _ in range(3_000):
            await raw.send(b"1;extension=0123456789\r\n")
            await raw.send(b"a\r\n")
        await raw.send(b"0\r\n\r\n")
        await until(lambda: bool(publisher.waiting))
        publisher.waiting.pop()(None)

        assert 200 == (await read_response(raw)).status


async def test_a_trailer_is_no_header(publisher: WaitingPublisher) -> None:
    """Who guards us by headers has not seen it (RFC 9110 §6.5.1)."""
    async with public_http(publisher) as served, raw_socket(served.address) as raw:
        await raw.send(
            b"POST /sub HTTP/1.1\r\nHost: g\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"0\r\nX-Request-Id: trailed\r\n\r\n"
        )

        assert "trailed" != (await read_response(raw)).headers["x-request-id"]


@pytest.mark.parametrize("target", [b"http://h:999999/", b"http://[::1", b"http://h:0x/"])
async def test_an_address_that_cannot_be_read_is_refused(
    target: bytes, publisher: WaitingPublisher
) -> None:
    """It is the client's fault, on the first request and behind another one."""
    request = b"GET " + target + b" HTTP/1.1\r\nHost: g\r\n\r\n"
    async with public_http(publisher) as served, raw_socket(served.address) as raw:
        await raw.send(b"GET /ping HTTP/1.1\r\nHost: g\r\n\r\n")
        await read_response(raw)
        await raw.send(request)
        answers = await read_response(raw), await send_raw_request(served.address, request)

    assert [(400, "INVALID_REQUEST")] * 2 == [(each.status, each.message) for each in answers]


async def test_zeros_before_a_length_are_only_zeros(publisher: WaitingPublisher) -> None:
    """Python reads no number of more than 4 300 digits."""
    async with public_http(publisher) as served, raw_socket(served.address) as raw:
        await raw.send(HEAD + b"Content-Length: " + b"0" * 5_000 + b"2\r\n\r\nab")
        await until(lambda: bool(publisher.waiting))
        publisher.waiting.pop()(None)

        assert 200 == (await read_response(raw)).status
    assert [PUBLISHED] == publisher.published


async def test_a_large_message_that_comes_in_many_reads_is_one(
    publisher: WaitingPublisher,
) -> None:
    """Only heads are held to the bound of heads."""
    body = b"x" * LARGE.max_msg_size_bytes
    async with public_http(publisher, LARGE) as served, raw_socket(served.address) as raw:
        await raw.send(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        await until(lambda: bool(publisher.waiting))
        publisher.waiting.pop()(None)

        assert 200 == (await read_response(raw)).status
    assert ([("t", [body], 0)], 0) == (publisher.published, publisher.held_bytes)


async def test_an_mpub_that_is_refused_is_counted_no_more(publisher: WaitingPublisher) -> None:
    async with public_http(publisher, LARGE) as served:
        answer = await served.http.post("/mpub?topic=t&binary=true", content=b"\0\0\0\2\0\0\0\1a")

    assert (413, 0) == (answer.status_code, publisher.held_bytes)
