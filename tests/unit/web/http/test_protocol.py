"""The HTTP of the public port on the wire: pieces, pipelines, garbage, slow and vanishing peers."""

from __future__ import annotations

import asyncio
import random
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest
import pytest_asyncio

from gateway.protocol.wire import Limits
from gateway.web.http.protocol import HttpProtocol
from gateway.web.http.publish import PublishHandler
from tests.support.gateways.public_http import PublicHttp, public_http
from tests.support.http.raw_http import read_response, send_raw_request
from tests.support.http.recording_publisher import RecordingPublisher, WaitingPublisher
from tests.support.manual_clock import ManualClock, turn, until
from tests.support.websocket.raw_socket import RawSocket, raw_socket

HEAD = b"POST /pub?topic=t HTTP/1.1\r\nHost: gateway\r\n"
POST = HEAD + b"Content-Length: 2\r\n\r\nab"
PING = b"GET /ping HTTP/1.1\r\nHost: gateway\r\n\r\n"
CHUNKED = (
    HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n1;x=y\r\nb\r\n0\r\nTrailer: 1\r\n\r\n"
)
SMALL = Limits(max_msg_size_bytes=10, max_body_size_bytes=300_000)
PUBLISHED = ("t", [b"ab"], 0)


@pytest.fixture
def publisher() -> RecordingPublisher:
    """A publisher that answers OK."""
    return RecordingPublisher()


@pytest_asyncio.fixture
async def served(publisher: RecordingPublisher) -> AsyncIterator[PublicHttp]:
    """The public port in front of it."""
    times_s = {"request_timeout_s": 10.0, "keep_alive_s": 60.0}
    async with public_http(publisher, SMALL, http_limits=times_s) as served:
        yield served


async def statuses(raw: RawSocket, count: int) -> list[int]:
    return [(await read_response(raw)).status for _ in range(count)]


@pytest.mark.parametrize("request_bytes", [POST, CHUNKED], ids=["sized", "chunked"])
@pytest.mark.parametrize("cut", ["whole", "bytes", "random"])
async def test_a_request_is_the_same_in_any_pieces(
    request_bytes: bytes, cut: str, served: PublicHttp, publisher: RecordingPublisher
) -> None:
    """Each of four on one connection is answered, the ones whose head is known too."""
    rest = request_bytes * 4
    sizes = {"whole": len(request_bytes), "bytes": 1}
    async with raw_socket(served.address) as raw:
        while rest:
            size = sizes.get(cut) or random.randrange(1, 60)
            await raw.send(rest[:size])
            rest = rest[size:]
            await turn(2)
        seen = await statuses(raw, 4)

    assert [200] * 4 == seen
    assert [PUBLISHED] * 4 == publisher.published
    assert 0 == publisher.held_bytes


async def test_a_known_head_with_another_body_is_another_message(
    served: PublicHttp, publisher: RecordingPublisher
) -> None:
    """What is remembered is the head, and not what came behind it."""
    async with raw_socket(served.address) as raw:
        for body in (b"ab", b"cd", b"\r\n"):
            await raw.send(HEAD + b"Content-Length: 2\r\n\r\n" + body)
            await statuses(raw, 1)
        await raw.send(HEAD + b"Content-Length: 4\r\n\r\n\r\n\r\n")
        await statuses(raw, 1)

    assert [b"ab", b"cd", b"\r\n", b"\r\n\r\n"] == [one[1][0] for one in publisher.published]


async def test_a_line_end_before_a_request_is_no_head(
    served: PublicHttp, publisher: RecordingPublisher
) -> None:
    """Empty lines before a request are passed over, and nothing is remembered of them."""
    async with raw_socket(served.address) as raw:
        for _ in range(2):
            await raw.send(b"\r\n\r\n" + POST)
            assert [200] == await statuses(raw, 1)

    assert [PUBLISHED] * 2 == publisher.published


async def test_pipelined_requests_are_answered_in_order() -> None:
    """One is published at a time, whichever way each goes."""
    publisher = WaitingPublisher()
    async with public_http(publisher, SMALL) as served, raw_socket(served.address) as raw:
        await raw.send(POST + PING + POST.replace(b"topic=t", b"topic=%0A") + CHUNKED + PING)
        await until(lambda: len(publisher.waiting) == 1)
        publisher.waiting.pop()(None)
        first = await statuses(raw, 3)
        await until(lambda: len(publisher.waiting) == 1)
        publisher.waiting.pop()(None)

        assert [200, 200, 400, 200, 200] == first + await statuses(raw, 2)


async def test_thousands_of_pipelined_requests_end(served: PublicHttp) -> None:
    """Those that are answered at once do not pile up on the stack."""
    async with raw_socket(served.address) as raw:
        await raw.send(POST.replace(b"topic=t", b"topic=-%") * 2_000)

        assert [400] * 2_000 == await statuses(raw, 2_000)


@pytest.mark.parametrize("garbage", [b"\0\1\2\3\r\n\r\n", b"POST\r\n\r\n", b"GET / HTTP/9\r\n\r\n"])
async def test_garbage_behind_a_publish_is_answered_behind_it(garbage: bytes) -> None:
    """400 means "not published", so it never takes the place of an answer."""
    publisher = WaitingPublisher()
    async with public_http(publisher, SMALL) as served, raw_socket(served.address) as raw:
        await raw.send(POST + garbage)
        await until(lambda: len(publisher.waiting) == 1)
        publisher.waiting.pop()(None)
        ok, refused = await read_response(raw), await read_response(raw)

        assert (200, 400, "INVALID_REQUEST") == (ok.status, refused.status, refused.message)
        assert b"" == await raw.read_to_end()


@pytest.mark.parametrize("chunk", [b"x\r\n", b"-1\r\n", b"1\r\nabc", b"fffffffffffffffff\r\n"])
async def test_a_body_with_bad_chunks_is_not_published(
    chunk: bytes, served: PublicHttp, publisher: RecordingPublisher
) -> None:
    """The end of the message is not known, so the connection ends."""
    answer = await send_raw_request(
        served.address, HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunk
    )

    assert (400, "close") == (answer.status, answer.headers["connection"])
    assert [] == publisher.published


async def test_who_asks_first_is_asked_for_the_body(
    served: PublicHttp, publisher: RecordingPublisher
) -> None:
    """Expect: 100-continue, as curl sends it with a body above a megabyte."""
    async with raw_socket(served.address) as raw:
        await raw.send(HEAD + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n")
        asked = await statuses(raw, 1)
        await raw.send(b"ab")

        assert [100, 200] == asked + await statuses(raw, 1)
    assert [PUBLISHED] == publisher.published


async def test_who_asks_first_is_refused_before_the_body(served: PublicHttp) -> None:
    """Nobody knows then whether the body comes, so the connection ends."""
    answer = await send_raw_request(
        served.address, HEAD + b"Expect: 100-continue\r\nContent-Length: 11\r\n\r\n"
    )

    assert (413, "MSG_TOO_BIG") == (answer.status, answer.message)
    assert "close" == answer.headers["connection"]


async def test_a_refused_body_that_is_short_is_skipped(
    served: PublicHttp, publisher: RecordingPublisher
) -> None:
    """The connection goes on; a client that sends all of it is not cut off."""
    async with raw_socket(served.address) as raw:
        await raw.send(HEAD + b"Content-Length: 100000\r\n\r\n" + b"x" * 100_000 + POST)

        assert [413, 200] == await statuses(raw, 2)
    assert [PUBLISHED] == publisher.published


@pytest.mark.parametrize(
    "head",
    [b"Content-Length: 10000000\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n989680\r\n"],
    ids=["sized", "chunked"],
)
async def test_a_refused_body_that_is_long_is_not_waited_for(
    head: bytes, served: PublicHttp, publisher: RecordingPublisher
) -> None:
    """The answer arrives, though the client is in the middle of its body."""
    async with raw_socket(served.address) as raw:
        await raw.send(HEAD + head + b"x" * 1_000)
        answer = await read_response(raw)

        assert (413, "close") == (answer.status, answer.headers["connection"])
        assert b"" == await raw.read_to_end()
    assert [] == publisher.published
    assert 0 == publisher.held_bytes


async def test_half_a_request_has_its_time(
    served: PublicHttp, publisher: RecordingPublisher
) -> None:
    """408 for half a head and for half a body; it is not published."""
    clock = ManualClock()
    async with raw_socket(served.address) as head, raw_socket(served.address) as body:
        await head.send(b"POST /pub?to")
        await body.send(HEAD + b"Content-Length: 4\r\n\r\nab")
        await until(lambda: publisher.held_bytes == 2)
        for _ in range(12):
            await clock.advance(1)
        clock.run_on()
        answers = [await read_response(raw) for raw in (head, body)]

    assert [(408, "REQUEST_TIMEOUT")] * 2 == [(each.status, each.message) for each in answers]
    assert ([], 0) == (publisher.published, publisher.held_bytes)


async def test_the_next_request_has_its_time(served: PublicHttp) -> None:
    """A connection on which nothing comes is closed without a word, before and after a request."""
    clock = ManualClock()
    async with raw_socket(served.address) as silent, raw_socket(served.address) as served_once:
        await served_once.send(POST)
        await statuses(served_once, 1)
        for _ in range(62):
            await clock.advance(1)
        clock.run_on()

        assert [b"", b""] == [await raw.read_to_end() for raw in (silent, served_once)]


async def test_a_publish_may_take_longer_than_a_request() -> None:
    """The time limits are for what the peer owes us."""
    publisher = WaitingPublisher()
    clock = ManualClock()
    times_s = {"request_timeout_s": 2.0, "keep_alive_s": 3.0}
    async with (
        public_http(publisher, SMALL, http_limits=times_s) as served,
        raw_socket(served.address) as raw,
    ):
        await raw.send(POST)
        await until(lambda: bool(publisher.waiting))
        for _ in range(10):
            await clock.advance(1)
        publisher.waiting.pop()(None)

        assert [200] == await statuses(raw, 1)
        clock.run_on()


async def test_a_head_without_end_is_refused(served: PublicHttp) -> None:
    """It is not kept in memory for ever; more than a few reads of it are never taken."""
    async with raw_socket(served.address) as raw:
        await raw.send(b"POST /pub?topic=t HTTP/1.1\r\n")
        with suppress(ConnectionError):
            for _ in range(1_000):
                await raw.send(b"X-Long: " + b"x" * 1_000 + b"\r\n")
        answer = await read_response(raw)

    assert (431, "HEAD_TOO_BIG", "close") == (
        answer.status,
        answer.message,
        answer.headers["connection"],
    )


async def test_a_body_in_tiny_pieces_takes_no_more_memory_than_it_is_counted(
    publisher: RecordingPublisher,
) -> None:
    """A chunk may have one byte; what is bounded is bytes, so no chunk may cost more."""
    limits = Limits(max_msg_size_bytes=1_000_000)
    pieces = b"1\r\nx\r\n" * 50_000
    async with public_http(publisher, limits) as served, raw_socket(served.address) as raw:
        tracemalloc.start()
        try:
            await raw.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + pieces)
            await until(lambda: publisher.held_bytes == 50_000)
            held_bytes, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()

    assert held_bytes < 500_000


async def test_a_client_that_leaves_in_the_middle_publishes_nothing(
    served: PublicHttp, publisher: RecordingPublisher
) -> None:
    """Half a body is no message, and it is forgotten."""
    async with raw_socket(served.address) as raw:
        await raw.send(HEAD + b"Content-Length: 4\r\n\r\nab")
        await until(lambda: publisher.held_bytes == 2)
    await until(lambda: publisher.held_bytes == 0)

    assert [] == publisher.published


async def test_a_client_that_leaves_before_the_answer_costs_nothing() -> None:
    """It is published, and nobody is told."""
    publisher = WaitingPublisher()
    async with public_http(publisher, SMALL) as served:
        async with raw_socket(served.address) as raw:
            await raw.send(POST + POST)
            await until(lambda: bool(publisher.waiting))
            raw.reset()
        await turn(20)
        publisher.waiting.pop()(None)

        assert [PUBLISHED] == publisher.published
        assert 200 == (await served.http.get("/ping")).status_code


async def test_a_client_that_has_nothing_more_to_say_is_answered() -> None:
    """Its half of the connection is closed, ours is not before the last answer."""
    publisher = WaitingPublisher()
    async with public_http(publisher, SMALL) as served, raw_socket(served.address) as raw:
        await raw.send(POST + PING)
        raw.end()
        await until(lambda: bool(publisher.waiting))
        publisher.waiting.pop()(None)

        assert [200, 200] == await statuses(raw, 2)
        assert b"" == await raw.read_to_end()


@pytest.mark.parametrize(
    "head,is_kept",
    [
        (b"POST /pub?topic=t HTTP/1.0\r\nContent-Length: 2\r\n\r\n", False),
        (HEAD + b"Connection: close\r\nContent-Length: 2\r\n\r\n", False),
        (HEAD + b"Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 2\r\n\r\n", True),
        (b"POST http://gateway/pub?topic=t HTTP/1.1\r\nHost: g\r\nContent-Length: 2\r\n\r\n", True),
        (b"POST /%70ub?topic=t HTTP/1.1\r\nHost: g\r\nContent-Length: 2\r\n\r\n", True),
    ],
    ids=["1.0", "close", "another protocol", "whole address", "escapes"],
)
async def test_unusual_requests_are_answered(
    head: bytes, *, is_kept: bool, served: PublicHttp, publisher: RecordingPublisher
) -> None:
    """And say whether another one may follow."""
    async with raw_socket(served.address) as raw:
        await raw.send(head + b"ab")
        answer = await read_response(raw)

        assert (200, b"OK", not is_kept) == (
            answer.status,
            answer.body,
            answer.headers.get("connection") == "close",
        )
        if not is_kept:
            assert b"" == await raw.read_to_end()
    assert [PUBLISHED] == publisher.published


async def test_chunks_beside_an_offer_of_another_protocol_are_published(
    served: PublicHttp, publisher: RecordingPublisher
) -> None:
    """An upgrade that is not made is ignored (RFC 9110 §7.8): the body is a body."""
    head = HEAD + b"Connection: Upgrade\r\nUpgrade: h2c\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with raw_socket(served.address) as raw:
        await raw.send(head + b"2\r\nab\r\n0\r\n\r\n" + POST)

        assert [200, 200] == await statuses(raw, 2)
    assert [PUBLISHED] * 2 == publisher.published


async def test_a_stop_lets_answers_end_and_says_so() -> None:
    """What has been taken is answered; no further request is taken on the connection."""
    publisher = WaitingPublisher()
    async with public_http(publisher, SMALL) as served, raw_socket(served.address) as raw:
        await raw.send(POST)
        await until(lambda: bool(publisher.waiting))
        stopping = asyncio.create_task(served.listener.stop())
        server = served.listener._server
        assert server is not None
        (connection,) = set[object](server.server_state.connections)
        assert isinstance(connection, HttpProtocol)
        await until(lambda: connection._is_stopping)
        publisher.waiting.pop()(None)
        answer = await read_response(raw)
        await stopping

        assert (200, "close") == (answer.status, answer.headers["connection"])
        assert b"" == await raw.read_to_end()


async def test_who_does_not_read_answers_is_not_read(publisher: RecordingPublisher) -> None:
    """A flood of requests without a reader does not fill our memory."""
    async with public_http(publisher, SMALL) as served, raw_socket(served.address) as raw:
        with pytest.raises(TimeoutError):
            await flood(raw, POST * 1_000, limit_bytes=200_000_000, stuck_s=1.0)


async def flood(raw: RawSocket, data: bytes, *, limit_bytes: int, stuck_s: float) -> None:
    """Send *data* again and again; raises TimeoutError when none is taken for *stuck_s*."""
    for _ in range(limit_bytes // len(data)):
        async with asyncio.timeout(stuck_s):
            await raw.send(data)


async def test_an_error_inside_is_500_and_the_next_request_is_served(
    publisher: RecordingPublisher,
) -> None:
    """Whatever fails, its caller alone is told; nothing inner is shown."""
    publisher.error = ValueError("inner")
    async with public_http(publisher, SMALL) as served, raw_socket(served.address) as raw:
        await raw.send(POST)
        failed = await read_response(raw)
        publisher.error = None
        await raw.send(POST)

        assert (500, "INTERNAL_ERROR") == (failed.status, failed.message)
        assert b"inner" not in failed.body
        assert [200] == await statuses(raw, 1)


def test_what_is_remembered_is_bounded(publisher: RecordingPublisher) -> None:
    """Queries that never come again take no room for ever."""
    handler = PublishHandler(publisher, SMALL)
    for number in range(3_000):
        handler._pub_target(b"topic=t%d" % number)

    assert 1_024 == len(handler._pub_targets)
