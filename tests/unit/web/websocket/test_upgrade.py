"""Between the head of a request and its 101, anything may happen; nobody is let in who has gone."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from functools import partial

import pytest
import pytest_asyncio

from gateway.errors import LimitReached
from gateway.listener import HttpListener
from gateway.protocol.wire import Limits
from gateway.web.app import AppContext, create_app
from gateway.web.http.protocol import HttpProtocol
from gateway.web.http.publish import PublishHandler
from gateway.web.http.server_state import HttpServerState
from gateway.web.websocket.protocol import Accepted, Upgrade
from tests.support.gateways.public_http import public_http
from tests.support.http.raw_http import read_response
from tests.support.http.recording_publisher import RecordingPublisher
from tests.support.manual_clock import ManualClock, run_on, turn, until
from tests.support.websocket.echo_handler import (
    EchoHandler,
    EchoUpgradeHandler,
    echo_server,
    echo_websockets,
)
from tests.support.websocket.frames import FIN, wire_frame
from tests.support.websocket.raw_socket import RawSocket, handshake, raw_socket

TEXT = FIN | 1


@pytest.fixture
def gate() -> EchoUpgradeHandler:
    return EchoUpgradeHandler()


@pytest_asyncio.fixture
async def address(gate: EchoUpgradeHandler) -> AsyncIterator[str]:
    async with echo_server(gate) as address:
        yield address


@pytest_asyncio.fixture
async def raw(address: str) -> AsyncIterator[RawSocket]:
    """A connection that has asked for nothing."""
    async with raw_socket(address) as raw:
        yield raw


async def ask(raw: RawSocket, gate: EchoUpgradeHandler, behind: bytes = b"") -> None:
    before = len(gate.upgrades)
    await raw.send(handshake("gateway", "/sub") + behind)
    await until(lambda: len(gate.upgrades) > before)


@pytest.mark.parametrize("way", ["end", "reset", "close"])
async def test_a_client_that_goes_is_not_waited_for(
    raw: RawSocket, gate: EchoUpgradeHandler, way: str
) -> None:
    """Whoever decides is cancelled, for nothing is to be left behind."""
    gate.open.clear()
    await ask(raw, gate)

    getattr(raw, way)()

    await until(lambda: gate.cancelled == 1)
    assert [] == gate.handlers


async def test_a_client_that_is_let_in_too_late_is_told_to_be_lost(
    raw: RawSocket, gate: EchoUpgradeHandler
) -> None:
    """A gate that cannot be stopped any more has made a handler: it is opened, and lost."""
    handler = EchoHandler()
    let_in = asyncio.Event()

    async def accept(upgrade: Upgrade) -> Accepted:
        gate.upgrades.append(upgrade)
        try:
            await let_in.wait()
        except asyncio.CancelledError:
            gate.cancelled += 1
        return Accepted(handler, None)

    gate.accept = accept  # type: ignore[method-assign]
    await ask(raw, gate)

    raw.reset()
    await handler.gone.wait()

    assert (1, [1006]) == (gate.cancelled, handler.codes)
    handler.socket.send(b"nobody hears it")
    handler.socket.close(1000, "")


async def test_bytes_behind_the_head_wait_for_the_101(
    raw: RawSocket, gate: EchoUpgradeHandler
) -> None:
    """In pieces, too; nothing is lost, and nothing is answered before."""
    gate.open.clear()
    frame = wire_frame(TEXT, b"early")
    await ask(raw, gate, behind=frame + frame[:3])
    await raw.send(frame[3:5])
    await turn(5)
    await raw.send(frame[5:] + frame)

    gate.open.set()

    assert b"HTTP/1.1 101 " == (await raw.read_until(b"\r\n\r\n"))[:13]
    assert b"\x81\x05early" * 3 == await raw.read_exactly(21)


async def test_bytes_that_come_before_the_101_are_bounded(
    raw: RawSocket, gate: EchoUpgradeHandler
) -> None:
    """No more is read until somebody is there for it."""
    gate.open.clear()
    await ask(raw, gate)

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await raw.send(bytes(64 * 1_048_576))


async def test_a_refusal_is_an_answer_with_the_id_of_the_request(
    raw: RawSocket, gate: EchoUpgradeHandler
) -> None:
    gate.error = LimitReached("no room")
    await ask(raw, gate)
    answer = await read_response(raw)

    assert (503, "FULL", "close") == (answer.status, answer.message, answer.headers["connection"])
    assert (b"x-request-id", answer.headers["x-request-id"].encode()) in gate.upgrades[0].headers
    assert b"" == await raw.read_to_end()


async def test_many_refusals_at_a_time_are_counted_and_closed_at_once(
    gate: EchoUpgradeHandler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To wait for them takes a descriptor for a while; the clock stands, and ends no wait."""
    monkeypatch.setattr("gateway.web.http.server_state.MAX_LINGERING", 2)
    gate.error = LimitReached("no room")
    port = HttpServerState(
        PublishHandler(RecordingPublisher(), Limits()), websockets=echo_websockets(gate)
    )
    listener = HttpListener("the public port", "127.0.0.1:0", grace_s=0.2)
    await listener.start(create_app(AppContext()), http=partial(HttpProtocol, port))
    ManualClock()
    try:
        async with AsyncExitStack() as stack:
            raws = [await stack.enter_async_context(raw_socket(listener.address)) for _ in range(4)]
            told = []
            for raw in raws:
                await ask(raw, gate)
                told.append((await read_response(raw)).status)

            assert ([503] * 4, True) == (told, len(port.refused) >= 2)
            await until(lambda: len(port.refused) == listener.open_connections == 2)
        await until(lambda: len(port.refused) == 0)
    finally:
        run_on()
        await listener.stop()


async def test_a_gate_that_fails_is_500_without_its_words(
    raw: RawSocket, gate: EchoUpgradeHandler, caplog: pytest.LogCaptureFixture
) -> None:
    """They are in the log, under the id of the request."""
    gate.error = ValueError("inner words")
    with caplog.at_level(logging.ERROR):
        await ask(raw, gate)
        answer = await read_response(raw)

    assert (500, "INTERNAL_ERROR") == (answer.status, answer.message)
    assert "inner words" not in answer.body.decode()
    assert answer.headers["x-request-id"] in caplog.text


async def test_a_gate_that_does_not_decide_is_503(raw: RawSocket, gate: EchoUpgradeHandler) -> None:
    """After a minute; its own limits are shorter."""
    gate.open.clear()
    clock = ManualClock()
    await ask(raw, gate)

    await clock.advance(61)
    answer = await read_response(raw)

    assert (503, "NO_BROKER", 1) == (answer.status, answer.message, gate.cancelled)
    clock.run_on()


async def test_a_server_that_stops_refuses_who_waits(gate: EchoUpgradeHandler) -> None:
    """503 EXITING; a gate that lets it in all the same comes too late."""
    gate.open.clear()
    async with (
        public_http(RecordingPublisher(), websockets=echo_websockets(gate)) as served,
        raw_socket(served.address) as raw,
    ):
        await ask(raw, gate)
        listener: HttpListener = served.listener
        stopping = asyncio.gather(listener.stop(), read_response(raw))
        _, answer = await stopping

    assert (503, "EXITING", 1) == (answer.status, answer.message, gate.cancelled)


async def test_nothing_of_the_handshake_stays(raw: RawSocket, gate: EchoUpgradeHandler) -> None:
    """Neither the protocol of HTTP nor its headers are reachable from an open socket."""
    await ask(raw, gate)
    await raw.read_until(b"\r\n\r\n")
    socket = gate.handlers[0].socket

    kept = [name for name in dir(socket) if "head" in name or "request" in name]

    assert [] == kept
    assert not hasattr(socket, "__dict__")
