"""One connection to the public port: who is too many, who reads nothing, the last answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

import pytest
import uvloop

from gateway.listener import HttpListener
from gateway.open_files import OpenFilesBudget
from gateway.protocol.wire import Limits
from gateway.telemetry import OTHER, REGISTRY
from gateway.web.http.protocol import HttpProtocol
from gateway.web.http.publish import PublishHandler
from gateway.web.http.server_state import IDLE_S, HttpLimits, HttpServerState
from gateway.web.proxies import TrustedProxies
from gateway.web.rate_limit import PublishBuckets
from tests.support.gateways.public_http import public_http
from tests.support.http.raw_http import RawAnswer, read_response
from tests.support.http.recording_publisher import (
    FullPublisher,
    RecordingPublisher,
    WaitingPublisher,
)
from tests.support.manual_clock import ManualClock, turn, until
from tests.support.websocket.raw_socket import RawSocket, raw_socket

HEAD = b"POST /pub?topic=t HTTP/1.1\r\nHost: gateway\r\n"
POST = HEAD + b"Content-Length: 2\r\n\r\nab"
PING = b"GET /ping HTTP/1.1\r\nHost: gateway\r\n\r\n"
FLOOD_BYTES = 20_000_000

App = Callable[[dict[str, Any], Any, Callable[[object], Awaitable[None]]], Awaitable[None]]


async def flood(
    _scope: object, _receive: object, send: Callable[[object], Awaitable[None]]
) -> None:
    """Answer with more than a system keeps for a client."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for _ in range(FLOOD_BYTES // 100_000):
        await send({"type": "http.response.body", "body": b"x" * 100_000, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def lump(_scope: object, _receive: object, send: Callable[[object], Awaitable[None]]) -> None:
    """Answer with as much at once."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"x" * FLOOD_BYTES})


@asynccontextmanager
async def port_of(
    app: App | None = None,
    publisher: RecordingPublisher | None = None,
    **bounds: Any,  # noqa: ANN401
) -> AsyncIterator[tuple[str, HttpServerState]]:
    """Serve *app*; return the address, and the port to look into."""
    port = HttpServerState(
        PublishHandler(publisher or RecordingPublisher(), Limits()), limits=HttpLimits(**bounds)
    )
    listener = HttpListener("the public port", "127.0.0.1:0", grace_s=0.2)
    await listener.start(app or flood, http=partial(HttpProtocol, port))
    try:
        yield listener.address, port
    finally:
        await listener.stop()


async def ask(address: str, request: bytes) -> RawAnswer:
    async with raw_socket(address) as raw:
        await raw.send(request)
        return await read_response(raw)


# One too many


async def test_one_connection_too_many_is_told_so() -> None:
    """It is answered before it asks, and closed; the others are served, and who goes makes room."""
    async with public_http(RecordingPublisher(), http_limits={"max_connections": 2}) as served:
        async with AsyncExitStack() as stack:
            two = [await stack.enter_async_context(raw_socket(served.address)) for _ in range(2)]
            for raw in two:
                await raw.send(POST)
                assert 200 == (await read_response(raw)).status
            async with raw_socket(served.address) as third:
                answer = await read_response(third)
                assert b"" == await third.read_to_end()
            await two[0].send(POST)
            assert 200 == (await read_response(two[0])).status

        assert (503, "FULL", "close") == (
            answer.status,
            answer.message,
            answer.headers["connection"],
        )
        assert "5" == answer.headers["retry-after"]
        assert 200 == (await ask(served.address, POST)).status


async def test_who_tries_again_finds_the_room_of_an_idle_connection() -> None:
    """Of the one that has been idle longest, whoever holds it; no other is closed."""
    async with port_of(hello, max_connections=3) as (address, port), AsyncExitStack() as stack:
        raws = []
        for idle_s in (2 * IDLE_S, 3 * IDLE_S, 0.0):
            known = set(port._connections)
            raws.append(await stack.enter_async_context(raw_socket(address)))
            await raws[-1].send(POST)
            assert 200 == (await read_response(raws[-1])).status
            (connection,) = port._connections - known
            assert isinstance(connection, HttpProtocol)
            connection._idle_since -= idle_s

        assert 503 == (await ask(address, PING)).status
        port._on_sweep()
        assert 503 == (await ask(address, PING)).status
        assert b"" == await raws[1].read_to_end()
        await until(lambda: len(port._connections) == 2)
        assert 200 == (await ask(address, PING)).status
        for raw in (raws[0], raws[2]):
            await raw.send(POST)
            assert 200 == (await read_response(raw)).status


async def test_an_idle_connection_that_has_gone_makes_no_room_for_others() -> None:
    """The next one that is idle is closed in its place."""
    async with port_of(hello, max_connections=2) as (address, port), AsyncExitStack() as stack:
        raws = []
        for idle_s in (2 * IDLE_S, 3 * IDLE_S):
            known = set(port._connections)
            raws.append(await stack.enter_async_context(raw_socket(address)))
            await raws[-1].send(POST)
            assert 200 == (await read_response(raws[-1])).status
            (connection,) = port._connections - known
            assert isinstance(connection, HttpProtocol)
            connection._idle_since -= idle_s
        assert 503 == (await ask(address, PING)).status
        port._on_sweep()
        raws[1].reset()
        await until(lambda: len(port._connections) == 1)
        busy = await stack.enter_async_context(raw_socket(address))
        await busy.send(POST)
        assert 200 == (await read_response(busy)).status

        assert 503 == (await ask(address, PING)).status
        assert b"" == await raws[0].read_to_end()


async def test_one_too_many_that_has_asked_reads_why() -> None:
    """What it sent is thrown away, and does not cut the answer off."""
    async with (
        public_http(RecordingPublisher(), http_limits={"max_connections": 1}) as served,
        raw_socket(served.address) as first,
    ):
        await first.send(POST)
        await read_response(first)
        async with raw_socket(served.address) as second:
            await second.send(POST + b"x" * 100_000)

            assert 503 == (await read_response(second)).status


async def test_what_one_too_many_sends_is_not_kept() -> None:
    async with port_of(hello, max_connections=1) as (address, port), AsyncExitStack() as stack:
        first = await stack.enter_async_context(raw_socket(address))
        await first.send(POST)
        assert 200 == (await read_response(first)).status
        second = await stack.enter_async_context(raw_socket(address))
        assert 503 == (await read_response(second)).status
        (refused,) = port._refused_connections
        assert isinstance(refused, HttpProtocol)
        await second.send(b"x" * 100_000)
        await until(lambda: refused._bytes_in == 100_000)

        assert b"" == refused._unread


async def test_an_application_that_waits_for_a_body_hears_that_it_is_broken() -> None:
    heard: list[object] = []

    async def reads(scope: object, receive: Callable[[], Awaitable[Any]], send: Any) -> None:  # noqa: ANN401
        while "http.disconnect" not in heard:
            event = await receive()
            heard.append(event.get("body", event["type"]))
        await hello(scope, receive, send)

    async with port_of(reads) as (address, _), raw_socket(address) as raw:
        await raw.send(
            b"POST /x HTTP/1.1\r\nHost: g\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n"
        )
        await until(lambda: b"x" in heard)
        await turn(5)  # it waits for more
        await raw.send(b"no size\r\n")
        await until(lambda: "http.disconnect" in heard)

    assert [b"x", "http.disconnect"] == [each for each in heard if each]


async def test_many_too_many_are_told_and_closed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """To wait for them takes a descriptor for a while, and there are not so many."""
    monkeypatch.setattr("gateway.web.http.server_state.MAX_LINGERING", 1)
    async with port_of(hello, max_connections=1) as (address, port), AsyncExitStack() as stack:
        raws = [await stack.enter_async_context(raw_socket(address)) for _ in range(4)]
        await raws[0].send(POST)
        assert 200 == (await read_response(raws[0])).status
        told = [(await read_response(raw)).status for raw in raws[1:]]

        assert [503, 503, 503] == told
        await until(lambda: len(port._refused_connections) == 1)


async def test_a_connection_is_refused_where_its_file_is_among_the_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever has the others: those that are left are for nsqd and the management port."""
    files = OpenFilesBudget()
    async with port_of(hello, files=files) as (address, port), AsyncExitStack() as stack:
        first = await stack.enter_async_context(raw_socket(address))
        await first.send(POST)
        assert 200 == (await read_response(first)).status
        # Which descriptors are free depends on the tests before: only now is none.
        monkeypatch.setattr(files, "_max_descriptor", 0)
        second = await stack.enter_async_context(raw_socket(address))
        refused = await read_response(second)

        assert (503, 1) == (refused.status, len(port._connections))
        assert b"too many files" in refused.body


# Who reads nothing


@pytest.mark.parametrize("app", [flood, lump])
async def test_who_reads_nothing_of_an_answer_is_cut(app: App) -> None:
    """The connection and what it holds are let go of."""
    async with port_of(app, response_timeout_s=10.0) as (address, port):
        clock = ManualClock()
        async with raw_socket(address) as raw:
            await raw.send(PING)
            await until(lambda: unsent(port) > 0)
            for _ in range(10):
                await clock.advance(1)
            assert 1 == len(port._connections)
            await clock.advance(2)
            await until(lambda: not port._connections)
            clock.run_on()


@pytest.mark.parametrize("app", [flood, lump])
async def test_who_reads_slowly_is_not_cut(app: App) -> None:
    """Whoever takes something within the time gets everything, however long that takes."""
    async with port_of(app, response_timeout_s=10.0) as (address, port):
        clock = ManualClock()
        async with raw_socket(address) as raw:
            await raw.send(PING)
            await until(lambda: unsent(port) > 0)
            read_bytes = 0
            while read_bytes < FLOOD_BYTES // 2:
                read_bytes += len(await raw.read_exactly(2_000_000))
                await turn(20)
                await clock.advance(6)

            assert 1 == len(port._connections)
            clock.run_on()


async def test_a_last_answer_is_read_to_its_end() -> None:
    """A connection that is to be closed behind a long answer waits for a slow reader."""
    async with port_of(lump, response_timeout_s=10.0) as (address, port):
        clock = ManualClock()
        async with raw_socket(address) as raw:
            await raw.send(PING.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
            await until(lambda: unsent(port) > 0)
            read_bytes = 0
            while read_bytes < FLOOD_BYTES:
                read_bytes += len(await raw.read_exactly(2_000_000))
                await turn(20)
                await clock.advance(5)

            clock.run_on()


async def test_a_pipelined_publisher_that_reads_nothing_is_cut() -> None:
    """Its answers fill every buffer, and then it has its time."""
    async with port_of(response_timeout_s=10.0) as (address, port):
        clock = ManualClock()
        async with raw_socket(address) as raw:
            sending = asyncio.ensure_future(send_for_ever(raw))
            await until(lambda: unsent(port) > 60_000)
            for _ in range(13):
                await clock.advance(1)
            await until(lambda: not port._connections)
            clock.run_on()
            sending.cancel()


async def send_for_ever(raw: RawSocket) -> None:
    """Publish, and never read."""
    while True:
        await raw.send(POST.replace(b"Host", b"X-Request-Id: a\r\nHost") * 100)


def unsent(port: HttpServerState) -> int:
    """Return what waits for the only client."""
    return sum(each.transport.get_write_buffer_size() for each in port._connections)  # type: ignore[attr-defined]


async def test_a_request_that_was_waited_for_is_counted_with_its_time() -> None:
    """408 for half a head, after ten seconds: nobody was answered at once."""
    name, labels = "nsq_gateway_http_request_duration_seconds", {"route": OTHER}

    def value(of: str) -> float:
        return REGISTRY.get_sample_value(f"{name}_{of}", labels) or 0.0

    before_s, count = value("sum"), value("count")
    async with port_of(hello, request_timeout_s=10.0) as (address, port):
        clock = ManualClock()
        async with raw_socket(address) as raw:
            await raw.send(b"POST /pub?to")
            await until(lambda: any(each._bytes_in for each in port._connections))  # type: ignore[attr-defined]
            for _ in range(12):
                await clock.advance(1)
            clock.run_on()
            answer = await read_response(raw)

    assert (408, count + 1) == (answer.status, value("count"))
    assert 10 <= value("sum") - before_s < 13


async def test_an_error_after_a_response_is_not_timed_from_its_request() -> None:
    """The 503 for what was dropped behind a publish; the publish took 20 s."""
    name, labels = "nsq_gateway_http_request_duration_seconds", {"route": OTHER}
    before_s = REGISTRY.get_sample_value(f"{name}_sum", labels) or 0.0
    publisher = FullPublisher()
    async with public_http(publisher) as served, raw_socket(served.address) as raw:
        clock = ManualClock()
        await raw.send(POST + PING)
        await until(lambda: bool(publisher.waiting))
        await clock.advance(20)
        publisher.waiting.pop()(None)
        answers = [(await read_response(raw)).status for _ in range(2)]
        clock.run_on()

    assert [200, 503] == answers
    assert (REGISTRY.get_sample_value(f"{name}_sum", labels) or 0.0) - before_s < 10


# The last answer


@pytest.mark.parametrize(
    "request_bytes",
    [
        POST,
        HEAD + b"X-Request-Id: a\r\nContent-Length: 2\r\n\r\nab",
        HEAD + b"Content-Length: 0\r\n\r\n",
        PING,
    ],
    ids=["plain", "with an id", "refused", "of the application"],
)
async def test_each_answer_of_a_drain_is_the_last_one(request_bytes: bytes) -> None:
    """It says so, and the connection is closed behind it: a head that is known too."""
    async with port_of(hello) as (address, port), raw_socket(address) as raw:
        await raw.send(request_bytes)
        before = await read_response(raw)
        port.drain()
        await raw.send(request_bytes)
        last = await read_response(raw)

        assert b"" == await raw.read_to_end()
        assert before.status == last.status
        assert (None, "close") == (
            before.headers.get("connection"),
            last.headers.get("connection"),
        )


async def hello(
    _scope: object, _receive: object, send: Callable[[object], Awaitable[None]]
) -> None:
    headers = [(b"content-length", b"5")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"hello"})


async def test_an_answer_that_was_awaited_when_the_drain_began_is_the_last_one() -> None:
    is_free = asyncio.Event()

    async def late(scope: object, receive: object, send: Any) -> None:  # noqa: ANN401
        await is_free.wait()
        await hello(scope, receive, send)

    publisher = WaitingPublisher()
    async with (
        port_of(late, publisher) as (address, port),
        raw_socket(address) as one,
        raw_socket(address) as two,
    ):
        await one.send(POST)
        await until(lambda: len(publisher.waiting) == 1)
        await two.send(PING)
        await until(lambda: len(port._connections) == 2)
        await turn(5)
        port.drain()
        publisher.waiting.pop()(None)
        is_free.set()
        answers = [await read_response(one), await read_response(two)]

        assert [(200, "close")] * 2 == [
            (each.status, each.headers["connection"]) for each in answers
        ]
        assert [b"", b""] == [await one.read_to_end(), await two.read_to_end()]


async def test_who_asked_for_100_continue_has_it_in_a_drain() -> None:
    """The body is asked for, and its answer is the last one."""
    head = HEAD + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n"
    async with port_of(hello) as (address, port), raw_socket(address) as raw:
        port.drain()
        await raw.send(head)
        await raw.read_until(b"100 Continue\r\n\r\n")
        await raw.send(b"ab")
        answer = await read_response(raw)

        assert (200, "close") == (answer.status, answer.headers["connection"])


async def test_what_has_arrived_in_a_drain_is_answered_before_the_last_answer() -> None:
    """Requests in a pipeline are not thrown away: their clients would not know what became."""
    publisher = WaitingPublisher()
    async with port_of(hello, publisher) as (address, port), raw_socket(address) as raw:
        await raw.send(POST + PING + POST)
        await until(lambda: len(publisher.waiting) == 1)
        port.drain()
        publisher.waiting.pop()(None)
        first, second = await read_response(raw), await read_response(raw)
        await until(lambda: len(publisher.waiting) == 1)
        publisher.waiting.pop()(None)
        third = await read_response(raw)

        assert [None, None, "close"] == [
            answer.headers.get("connection") for answer in (first, second, third)
        ]
        assert b"" == await raw.read_to_end()


# Behind a proxy


@pytest.mark.parametrize(
    "networks,statuses", [(["127.0.0.0/8"], [200, 429, 200]), ([], [200, 429, 429])]
)
async def test_callers_behind_a_trusted_proxy_are_told_apart(
    networks: list[str], statuses: list[int]
) -> None:
    """Each has a rate of its own; of a stranger the header is not believed."""
    quota = PublishBuckets(0.001, burst=1)
    proxies = TrustedProxies(networks) if networks else None
    async with public_http(RecordingPublisher(), proxies=proxies, rate_limit=quota) as served:
        seen = [
            (
                await ask(
                    served.address, POST.replace(b"Host", b"X-Forwarded-For: " + who + b"\r\nHost")
                )
            ).status
            for who in (b"203.0.113.1", b"203.0.113.1", b"203.0.113.2")
        ]

    assert statuses == seen


@pytest.mark.parametrize("path", [b"/pub?topic=t", b"/topic/create?topic=t"])
@pytest.mark.parametrize("scheme,status", [(b"http", 403), (b"https", 200)])
async def test_a_page_without_tls_is_foreign_behind_a_proxy_with_tls(
    path: bytes, scheme: bytes, status: int
) -> None:
    """Who stands between it and its reader may have written it."""
    request = (
        b"POST "
        + path
        + b" HTTP/1.1\r\nHost: example.org\r\nOrigin: "
        + scheme
        + b"://example.org\r\nX-Forwarded-Proto: https\r\nContent-Length: 1\r\n\r\nx"
    )
    proxies = TrustedProxies(["127.0.0.1"])
    async with public_http(RecordingPublisher(), proxies=proxies) as served:
        answer = await ask(served.address, request)

    is_app = path.startswith(b"/topic")
    assert (404 if is_app and status == 200 else status) == answer.status


async def the_end_of_a_flood() -> str:
    """Return how an answer ends whose client goes, with others behind it in the pipeline."""
    ends: list[str] = []

    async def app(
        scope: object, receive: object, send: Callable[[object], Awaitable[None]]
    ) -> None:
        try:
            await flood(scope, receive, send)
        except Exception as error:  # noqa: BLE001 - what is looked for
            ends.append(repr(error))
        else:
            ends.append("told")

    async with port_of(app) as (address, port), raw_socket(address) as raw:
        await raw.send(PING * 3)
        await until(lambda: bool(port._connections))
        (connection,) = port._connections
        assert isinstance(connection, HttpProtocol)
        await until(lambda: connection._write_paused)
        raw.reset()
        await until(lambda: bool(ends))
    return ends[0]


def test_a_request_that_runs_is_told_when_its_client_has_gone() -> None:
    """Else it would write to nobody, and fail: on uvloop, where the gateway runs."""
    assert "told" == uvloop.run(the_end_of_a_flood())
