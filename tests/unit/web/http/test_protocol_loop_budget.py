"""One turn of the event loop reads for so long, however many connections have something to say."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from functools import partial

import pytest

from gateway.web.http import protocol as http_protocol
from gateway.web.http.publish import PublishHandler
from gateway.web.loop_budget import SLICE_S, TURN_S, ReadTimeBudget
from tests.support.gateways.public_http import only_connection, public_http
from tests.support.http.raw_http import read_response
from tests.support.http.recording_publisher import FullPublisher, RecordingPublisher
from tests.support.manual_clock import turn, until
from tests.support.websocket.raw_socket import raw_socket

REFUSED = b"POST /pub?topic=a%20b HTTP/1.1\r\nHost: gateway\r\nContent-Length: 1\r\n\r\nx"
POST = b"POST /pub?topic=t HTTP/1.1\r\nHost: gateway\r\nContent-Length: 2\r\n\r\nab"
PING = b"GET /ping HTTP/1.1\r\nHost: gateway\r\n\r\n"
REFUSAL_S = 0.0001
IDLE = http_protocol.ConnectionState.IDLE
DISCARDING = http_protocol.ConnectionState.DISCARDING
LOOPS_A_TURN = 2
"""A turn of `tests.support.manual_clock` is two of the event loop's."""


class Reader:
    """Reads for *slice_s* whenever it may, and always has more."""

    def __init__(self, turns: ReadTimeBudget, slice_s: float, reads: list[Reader]) -> None:
        self.turns, self.slice_s, self.reads = turns, slice_s, reads

    def read(self) -> None:
        """Take a slice, and wait for the next."""
        self.reads.append(self)
        self.turns.spend(self.slice_s)
        self.turns.wait(self.read)


@pytest.fixture
def turns() -> ReadTimeBudget:
    return ReadTimeBudget()


async def test_who_reads_first_may_read_for_a_slice(turns: ReadTimeBudget) -> None:
    """And the next one, until the turn is over; then there is nothing, until the next turn."""
    seen = []
    while turns.slice_s > 0:
        seen.append(turns.slice_s)
        turns.spend(SLICE_S)
    await turn()

    assert [SLICE_S] * 4 == pytest.approx(seen)
    assert SLICE_S == turns.slice_s


async def test_little_that_is_read_is_counted_over_several_turns(turns: ReadTimeBudget) -> None:
    """A turn that reads one request costs nothing more for it."""
    for _ in range(100):
        turns.spend(SLICE_S / 50)
        assert turns.slice_s > 0
        await turn()

    assert turns.slice_s == SLICE_S


async def test_those_that_wait_read_in_their_order_and_leave_time_for_who_comes(
    turns: ReadTimeBudget,
) -> None:
    """Each of ten is called once before one is called twice."""
    reads: list[Reader] = []
    readers = [Reader(turns, SLICE_S, reads) for _ in range(10)]
    for reader in readers:
        turns.wait(reader.read)
    for number in range(1, 6):
        await turn()
        assert 2 * LOOPS_A_TURN * number == len(reads)
        assert turns.slice_s == pytest.approx(SLICE_S)

    assert [*readers, *readers] == reads


async def test_one_that_is_slow_is_called_all_the_same(turns: ReadTimeBudget) -> None:
    """Once in a turn, however long it takes."""
    reads: list[Reader] = []
    turns.wait(Reader(turns, 10 * TURN_S, reads).read)
    await turn(5)

    assert 5 * LOOPS_A_TURN == len(reads)


async def test_one_that_fails_keeps_nobody_from_reading(turns: ReadTimeBudget) -> None:
    """The loop tells of it; the others have their turn."""
    failures: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _loop, context: failures.append(context["exception"]))
    reads: list[Reader] = []
    turns.wait(partial(divmod, 1, 0))
    turns.wait(Reader(turns, SLICE_S, reads).read)
    await turn(3)

    assert [ZeroDivisionError] == list(map(type, failures))
    assert reads


async def test_nobody_who_waits_costs_nothing(turns: ReadTimeBudget) -> None:
    """Without somebody who reads the loop is left alone."""
    turns.spend(2 * SLICE_S)
    await turn(2)

    assert not turns._is_scheduled


class Refusals:
    """Refusals that take `REFUSAL_S` each, on a clock that stands still but for them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.run_in_steps: list[int] = [0]
        """How many each turn of the event loop has made."""
        refusal = PublishHandler.render_error

        def slow(*args: object) -> object:
            self.now += REFUSAL_S
            self.run_in_steps[-1] += 1
            return refusal(*args)  # type: ignore[arg-type]

        monkeypatch.setattr(PublishHandler, "render_error", slow)
        monkeypatch.setattr(http_protocol, "clock", lambda: self.now)
        self._counter = asyncio.get_running_loop().call_soon(self._begin_turn)

    def _begin_turn(self) -> None:
        self.run_in_steps.append(0)
        self._counter = asyncio.get_running_loop().call_soon(self._begin_turn)

    @property
    def count(self) -> int:
        """How many there were."""
        return sum(self.run_in_steps)

    def stop(self) -> None:
        """Count turns no more."""
        self._counter.cancel()


async def test_many_pipelines_of_refused_publishes_share_a_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """20 of them with 64 each in a turn made everybody else wait for 185 ms."""
    async with public_http(RecordingPublisher()) as served, AsyncExitStack() as stack:
        raws = [await stack.enter_async_context(raw_socket(served.address)) for _ in range(20)]
        refusals = Refusals(monkeypatch)
        for raw in raws:
            await raw.send(REFUSED * 200)
        await until(lambda: refusals.count == 20 * 200)
        refusals.stop()

        # A step of each kind of turn, of those that wait and of those that come, may be one more.
        assert max(refusals.run_in_steps) <= TURN_S / REFUSAL_S + 2
        for raw in raws:
            assert [400] * 200 == [(await read_response(raw)).status for _ in range(200)]


async def test_requests_to_the_application_count_in_the_turn_in_which_they_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each is a task that runs in the next turn, when nobody can make it wait any more."""
    async with public_http(RecordingPublisher()) as served, AsyncExitStack() as stack:
        raws = [await stack.enter_async_context(raw_socket(served.address)) for _ in range(40)]
        server = served.listener._server
        assert server is not None
        connections = server.server_state.connections
        await until(lambda: len(connections) == 40)
        monkeypatch.setattr(http_protocol, "clock", lambda: 0.0)
        for connection in set[object](connections):
            assert isinstance(connection, http_protocol.HttpProtocol)
            connection.data_received(PING)
        begun = len(server.server_state.tasks)

        assert 1 <= begun <= TURN_S / http_protocol._APP_REQUEST_S + 1
        assert [200] * 40 == [(await read_response(raw)).status for raw in raws]


async def test_a_request_that_waits_for_its_turn_is_not_refused_for_the_publishes_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There is no room for a byte; only what waits behind a request, or is much, needs any."""
    async with public_http(FullPublisher()) as served, raw_socket(served.address) as raw:
        await raw.send(PING)
        assert 200 == (await read_response(raw)).status
        connection = only_connection(served)
        turns = connection._server.read_budget
        slice_s = ReadTimeBudget.slice_s
        monkeypatch.setattr(ReadTimeBudget, "slice_s", 0.0)
        connection.data_received(PING)
        assert (IDLE, 1) == (connection.state, len(turns._waiting))
        monkeypatch.setattr(ReadTimeBudget, "slice_s", slice_s)

        assert 200 == (await read_response(raw)).status


async def test_a_skipped_body_that_waits_for_its_turn_needs_no_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its request was refused; the connection ended without an answer to the next one."""
    publisher = FullPublisher()
    body = b"x" * 60_000
    refused = b"POST /mpub?topic=a%20b HTTP/1.1\r\nHost: gateway\r\nContent-Length: 60000\r\n\r\n"
    async with public_http(publisher) as served, raw_socket(served.address) as raw:
        await raw.send(refused)
        assert 400 == (await read_response(raw)).status
        connection = only_connection(served)
        with monkeypatch.context() as turn_is_over:
            turn_is_over.setattr(ReadTimeBudget, "slice_s", 0.0)
            connection.data_received(body[:-1])
            assert (DISCARDING, 1) == (
                connection.state,
                len(connection._server.read_budget._waiting),
            )
        await until(lambda: not connection._unread)
        await raw.send(body[-1:] + POST)
        await until(lambda: bool(publisher.waiting))
        publisher.waiting.pop()(None)

        assert 200 == (await read_response(raw)).status


async def test_what_there_is_no_room_for_behind_a_skipped_body_is_503(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The request behind it has its own answer, which says that the connection ends."""
    refused = b"POST /mpub?topic=a%20b HTTP/1.1\r\nHost: gateway\r\nContent-Length: 1\r\n\r\n"
    async with public_http(FullPublisher()) as served, raw_socket(served.address) as raw:
        await raw.send(refused)
        assert 400 == (await read_response(raw)).status
        with monkeypatch.context() as turn_is_over:
            turn_is_over.setattr(ReadTimeBudget, "slice_s", 0.0)
            only_connection(served).data_received(b"x" + POST * 100)
        answer = await read_response(raw)

        assert (503, "OVERLOADED", "close") == (
            answer.status,
            answer.message,
            answer.headers["connection"],
        )
        assert b"" == await raw.read_to_end()


async def test_a_request_that_waits_for_its_turn_is_not_idle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The time of a kept connection is over; the request came before that."""
    async with public_http(RecordingPublisher()) as served, raw_socket(served.address) as raw:
        await raw.send(PING)
        assert 200 == (await read_response(raw)).status
        connection = only_connection(served)
        with monkeypatch.context() as turn_is_over:
            turn_is_over.setattr(ReadTimeBudget, "slice_s", 0.0)
            connection.data_received(PING)
            connection.check_timeouts(connection._idle_since + 1_000)

        assert 200 == (await read_response(raw)).status


async def test_a_publish_is_not_behind_the_pipelines_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is answered while each of them has the most still to be read."""
    publisher = RecordingPublisher()
    async with public_http(publisher) as served, AsyncExitStack() as stack:
        raws = [await stack.enter_async_context(raw_socket(served.address)) for _ in range(20)]
        mine = await stack.enter_async_context(raw_socket(served.address))
        refusals = Refusals(monkeypatch)
        for raw in raws:
            await raw.send(REFUSED * 500)
        await until(lambda: refusals.count >= 20)
        before = refusals.count
        await mine.send(POST)
        assert 200 == (await read_response(mine)).status
        refusals.stop()

        assert refusals.count - before < 10 * TURN_S / REFUSAL_S
    assert [("t", [b"ab"], 0)] == publisher.published
