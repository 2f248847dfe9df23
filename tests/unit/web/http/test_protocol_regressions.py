"""What outside trials broke on one HTTP connection, each as the stream that broke it."""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import pytest

from gateway.client.producer import Producer, ProducerOptions
from gateway.listener import HttpListener
from gateway.protocol.wire import Limits
from gateway.web.http.head import ChunkedBody
from gateway.web.http.protocol import HttpProtocol
from gateway.web.http.publish import PublishHandler
from gateway.web.http.server_state import HttpLimits, HttpServerState
from gateway.web.websocket.protocol import WebSocketServerState
from tests.support.brokers.running_producer import running_producer
from tests.support.brokers.scripted_broker import ScriptedBroker
from tests.support.gateways.public_http import public_http
from tests.support.http.raw_http import read_response
from tests.support.http.recording_publisher import (
    FullPublisher,
    RecordingPublisher,
    WaitingPublisher,
)
from tests.support.manual_clock import ManualClock, turn, until
from tests.support.websocket.echo_handler import EchoUpgradeHandler
from tests.support.websocket.raw_socket import raw_socket

HEAD = b"POST /pub?topic=t HTTP/1.1\r\nHost: gateway\r\n"
POST = HEAD + b"Content-Length: 2\r\n\r\nab"
EVIL = b"POST /pub?topic=evil HTTP/1.1\r\nHost: gateway\r\nContent-Length: 1\r\n\r\nx"
UPGRADE = (
    b"GET /sub?topic=t&channel=c HTTP/1.1\r\nHost: gateway\r\n"
    b"Connection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
PUBLISHED = ("t", [b"ab"], 0)
REFUSED_WITH_CLOSE = (
    b"POST /mpub?topic=bad!! HTTP/1.1\r\nHost: gateway\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"1\r\nx\r\n0\r\n\r\n"
)


@pytest.fixture
def publisher() -> RecordingPublisher:
    """A publisher that answers OK at once."""
    return RecordingPublisher()


async def test_an_upgrade_behind_a_refusal_with_close_joins_nothing(
    publisher: RecordingPublisher,
) -> None:
    """Item 1: it left a consumer that nobody could end."""
    gate = EchoUpgradeHandler()
    websockets = WebSocketServerState(
        gate, max_frame_bytes=1_000, ping_interval_s=None, ping_timeout_s=None
    )
    async with (
        public_http(publisher, websockets=websockets) as served,
        raw_socket(served.address) as raw,
    ):
        await raw.send(REFUSED_WITH_CLOSE + UPGRADE)

        assert 400 == (await read_response(raw)).status
        assert b"" == await raw.read_to_end()
    assert ([], []) == (gate.upgrades, gate.handlers)


@pytest.mark.parametrize("is_in_one_read", [True, False], ids=["one read", "two reads"])
@pytest.mark.parametrize(
    "head",
    [
        b"GET /ping HTTP/1.1\r\nHost: gateway\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n",
        b"GET /ping HTTP/1.1\r\nHost: gateway\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n",
        b"CONNECT /ping HTTP/1.1\r\nHost: gateway\r\n",
    ],
    ids=["h2c", "websocket", "CONNECT"],
)
async def test_a_body_behind_an_upgrade_is_never_a_request(
    head: bytes, *, is_in_one_read: bool, publisher: RecordingPublisher
) -> None:
    """Item 2: a proxy in front that passes Upgrade on has seen one request there."""
    head += b"Content-Length: %d\r\n\r\n" % len(EVIL)
    async with public_http(publisher) as served, raw_socket(served.address) as raw:
        if is_in_one_read:
            await raw.send(head + EVIL + POST)
        else:
            await raw.send(head)
            await turn(10)
            await raw.send(EVIL)
            await raw.send(POST)
        await read_response(raw)

        assert 200 == (await read_response(raw)).status
    assert [PUBLISHED] == publisher.published


async def test_a_request_behind_an_upgrade_that_is_not_made_is_answered(
    publisher: RecordingPublisher,
) -> None:
    """Item 2: it was dropped, and its client waited for ever."""
    ping = b"GET /ping HTTP/1.1\r\nHost: gateway\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
    async with public_http(publisher) as served, raw_socket(served.address) as raw:
        await raw.send(ping + POST)

        assert [200, 200] == [(await read_response(raw)).status for _ in range(2)]
    assert [PUBLISHED] == publisher.published


@pytest.mark.parametrize(
    "first",
    [
        REFUSED_WITH_CLOSE,
        HEAD + b"Connection: close\r\nContent-Length: 2\r\n\r\nab",
        b"POST /pub?topic=t HTTP/1.0\r\nContent-Length: 2\r\n\r\nab",
        b"GET /ping HTTP/1.1\r\nHost: gateway\r\nConnection: close\r\n\r\n",
    ],
    ids=["refused", "published", "HTTP/1.0", "application"],
)
async def test_nothing_behind_a_close_is_carried_out(
    first: bytes, publisher: RecordingPublisher
) -> None:
    """Item 3: RFC 9112 §9.6."""
    async with public_http(publisher) as served, raw_socket(served.address) as raw:
        await raw.send(first + EVIL + EVIL)

        assert "close" == (await read_response(raw)).headers["connection"]
        assert b"" == await raw.read_to_end()
    assert "evil" not in [topic for topic, _, _ in publisher.published]


async def test_answers_before_a_broken_chunk_are_not_lost() -> None:
    """Item 4: three publishes were stored or not, and nobody was told."""
    publisher = WaitingPublisher()
    broken = b"GET /ping HTTP/1.1\r\nHost: gateway\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n"
    async with public_http(publisher) as served, raw_socket(served.address) as raw:
        await raw.send(POST * 3 + broken)
        statuses = []
        for _ in range(3):
            await until(lambda: bool(publisher.waiting))
            publisher.waiting.pop()(None)
            statuses.append((await read_response(raw)).status)
        last = await read_response(raw)

        assert ([200] * 3, 200, "close") == (statuses, last.status, last.headers["connection"])
    assert [PUBLISHED] * 3 == publisher.published


async def test_an_mpub_behind_a_refusal_with_close_gives_nothing_back_twice(
    publisher: RecordingPublisher,
) -> None:
    """Item 5: its answer failed, its bytes were given back twice, and the bound was gone."""
    body = b"\n" * 1_000 + b"a\nb"
    mpub = b"POST /mpub?topic=t HTTP/1.1\r\nHost: g\r\nContent-Length: %d\r\n\r\n" % len(body)
    async with public_http(publisher) as served, raw_socket(served.address) as raw:
        await raw.send(REFUSED_WITH_CLOSE + mpub + body)
        await read_response(raw)
        await raw.read_to_end()

    assert ([], 0) == (publisher.published, publisher.held_bytes)


async def test_what_waits_behind_a_request_is_counted_and_bounded() -> None:
    """Item 6: neither its bytes nor the number of requests had a bound."""
    publisher = WaitingPublisher()
    limits = Limits(max_msg_size_bytes=1_000_000)
    head = HEAD + b"Content-Length: 1000000\r\n\r\n"
    async with public_http(publisher, limits) as served, raw_socket(served.address) as raw:
        await raw.send(POST + head + b"y" * 30_000)
        await until(lambda: publisher.held_bytes >= 30_000)
        assert publisher.held_bytes <= len(head) + 30_000
        await raw.send(b"y" * 100_000)
        publisher.waiting.pop()(None)

        assert 200 == (await read_response(raw)).status
        await until(lambda: publisher.held_bytes == 130_000)
    await until(lambda: publisher.held_bytes == 0)


async def test_what_there_is_no_room_for_behind_a_request_is_503_behind_its_answer() -> None:
    """Item 6: the request before it keeps its own answer, and nothing behind is carried out."""
    publisher = FullPublisher()
    async with public_http(publisher) as served, raw_socket(served.address) as raw:
        await raw.send(POST + EVIL)
        await until(lambda: bool(publisher.waiting))
        publisher.waiting.pop()(None)
        ok, refused = await read_response(raw), await read_response(raw)

        assert (200, 503, "OVERLOADED", "close") == (
            ok.status,
            refused.status,
            refused.message,
            refused.headers["connection"],
        )
        assert b"" == await raw.read_to_end()
    assert [PUBLISHED] == publisher.published


def holds(publisher: Producer, size_bytes: int) -> bool:
    """Tell whether *publisher* counts exactly *size_bytes* as waiting."""
    return publisher.waiting_bytes == size_bytes


async def test_uploads_that_stop_keep_nobody_from_publishing() -> None:
    """They have half of the room; one too many is 503, and what arrives at once is published."""
    limits = Limits(max_msg_size_bytes=50_000, max_body_size_bytes=50_000)
    options = ProducerOptions(connections_per_nsqd=1, buffer_bytes=200_000, limits=limits)
    upload = HEAD + b"Content-Length: 50000\r\n\r\n" + b"x" * 49_999
    broker = ScriptedBroker()
    await broker.start()
    async with running_producer(broker, options=options) as publisher:
        async with public_http(publisher, limits) as served, AsyncExitStack() as life:
            uploads = [await life.enter_async_context(raw_socket(served.address)) for _ in range(3)]
            for count, raw in enumerate(uploads[:2], start=1):
                await raw.send(upload)
                await until(partial(holds, publisher, 49_999 * count))
            await uploads[2].send(upload)
            refused = await read_response(uploads[2])
            answer = await served.http.post("/pub", params={"topic": "t"}, content=b"x" * 1_000)

            assert (503, "OVERLOADED") == (refused.status, refused.message)
            assert 200 == answer.status_code
        assert 0 == publisher.waiting_bytes
    await broker.stop()


@pytest.mark.parametrize(
    "headers",
    [
        b"Host: gateway \r\nContent-Length: 2\r\n",
        b"Host: gateway\r\nContent-Length: 2 \t\r\n",
        b"Host: gateway\r\nContent-Length: 2\r\nExpect: 100-continue \r\n",
        b"Host: gateway\r\nContent-Length: 2\r\nX-Request-Id: a \r\n",
    ],
    ids=["Host", "Content-Length", "Expect", "X-Request-Id"],
)
async def test_white_space_around_a_value_is_no_part_of_it(
    headers: bytes, publisher: RecordingPublisher
) -> None:
    """Item 7: RFC 9110 §5.5."""
    async with public_http(publisher) as served, raw_socket(served.address) as raw:
        await raw.send(b"POST /pub?topic=t HTTP/1.1\r\n" + headers + b"\r\n")
        await turn(10)
        await raw.send(b"ab")
        answer = await read_response(raw)
        if answer.status == 100:
            answer = await read_response(raw)

        assert 200 == answer.status
    assert [PUBLISHED] == publisher.published


async def test_the_end_inside_a_second_body_loses_no_answer_to_the_first() -> None:
    """Item 7: the first was published, and its client saw a close."""
    publisher = WaitingPublisher()
    async with public_http(publisher) as served, raw_socket(served.address) as raw:
        await raw.send(POST + HEAD + b"Content-Length: 9\r\n\r\nhalf")
        raw.end()
        await until(lambda: bool(publisher.waiting))
        await turn(10)
        publisher.waiting.pop()(None)

        assert 200 == (await read_response(raw)).status
        assert b"" == await raw.read_to_end()
    assert [PUBLISHED] == publisher.published


async def test_one_check_of_times_that_fails_ends_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Item 7: one exception ended the timeouts of every connection."""

    class Broken:
        def check_timeouts(self, now: float) -> None:
            raise ValueError(now)

        def drain(self) -> None:
            """Do nothing."""

        def idle_s(self, now: float) -> float:
            return 0.0 * now

        def close_idle(self, now: float) -> bool:
            return now < 0

    class Watched(Broken):
        seen = 0

        def check_timeouts(self, now: float) -> None:
            del now
            self.seen += 1

    clock = ManualClock()
    port = HttpServerState(PublishHandler(RecordingPublisher(), Limits()), limits=HttpLimits())
    broken, watched = Broken(), Watched()
    port.add(broken)
    port.add(watched)
    for _ in range(3):
        await clock.advance(1)
    clock.run_on()
    port.remove(broken)
    port.remove(watched)

    assert watched.seen >= 2
    assert "http timeout check failed" in caplog.text
    assert port._sweep is not None
    port._sweep.cancel()


async def test_a_read_of_tiny_chunks_gives_other_connections_their_turn(
    publisher: RecordingPublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One read of 256 KiB held the event loop for a tenth of a second."""
    fed_in: list[float] = []
    feed = ChunkedBody.feed

    def counted(self: ChunkedBody, data: bytes, start: int) -> tuple[bytes, int]:
        fed_in.append(turns)
        return feed(self, data, start)

    monkeypatch.setattr(ChunkedBody, "feed", counted)
    turns = 0
    async with public_http(publisher) as served, raw_socket(served.address) as raw:
        await raw.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 8_000)
        await raw.send(b"0\r\n\r\n")
        while not publisher.published:
            await turn(1)
            turns += 1

        assert 200 == (await read_response(raw)).status
    assert [("t", [b"x" * 8_000], 0)] == publisher.published
    assert len(fed_in) > 8_000 * 2 / 500
    # A turn of this test is one or two of the loop's.
    assert max(fed_in.count(each) for each in fed_in) <= 3


async def test_an_application_reads_a_body_that_is_larger_than_what_waits_for_it() -> None:
    """It gets all of it, in parts, while the connection is paused in between."""
    sizes: list[int] = []

    async def app(_scope: object, receive: Any, send: Any) -> None:  # noqa: ANN401
        is_whole = False
        while not is_whole:
            event = await receive()
            sizes.append(len(event["body"]))
            is_whole = not event["more_body"]
            await turn(2)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    port = HttpServerState(PublishHandler(RecordingPublisher(), Limits()))
    listener = HttpListener("test", "127.0.0.1:0", grace_s=0.2)
    await listener.start(app, http=partial(HttpProtocol, port))
    async with raw_socket(listener.address) as raw:
        await raw.send(b"POST /x HTTP/1.1\r\nHost: g\r\nContent-Length: 400000\r\n\r\n")
        await raw.send(b"x" * 400_000)

        assert 200 == (await read_response(raw)).status
    await listener.stop()
    assert 400_000 == sum(sizes)
    assert len(sizes) > 1


@pytest.mark.parametrize("cut", range(1, 8))
async def test_empty_lines_before_a_head_are_passed_over_wherever_they_are_cut(
    cut: int, publisher: RecordingPublisher
) -> None:
    """A lone carriage return at the end of a read was taken for the begin of a head."""
    stream = b"\r\n\r\n\r\n" + POST
    async with public_http(publisher) as served, raw_socket(served.address) as raw:
        await raw.send(stream[:cut])
        await turn(10)
        await raw.send(stream[cut:])

        assert 200 == (await read_response(raw)).status
    assert [PUBLISHED] == publisher.published


async def test_a_drain_ends_a_pipeline_behind_its_last_whole_request() -> None:
    """A client that pipelines without pause was never told to go elsewhere."""
    publisher = WaitingPublisher()
    port = HttpServerState(PublishHandler(publisher, Limits()))
    listener = HttpListener("test", "127.0.0.1:0", grace_s=0.2)
    await listener.start(_no_app, http=partial(HttpProtocol, port))
    async with raw_socket(listener.address) as raw:
        await raw.send(POST + POST + POST[:20])
        await until(lambda: bool(publisher.waiting))
        port.drain()
        seen = []
        for _ in range(2):
            await until(lambda: bool(publisher.waiting))
            publisher.waiting.pop()(None)
            seen.append((await read_response(raw)).headers.get("connection"))

        assert [None, "close"] == seen
        assert b"" == await raw.read_to_end()
    await listener.stop()


async def _no_app(_scope: object, _receive: object, _send: object) -> None:
    """Answer nothing: no request comes here."""
