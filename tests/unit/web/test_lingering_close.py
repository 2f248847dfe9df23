"""Last bytes arrive, whatever the peer is doing, and nobody stays."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest_asyncio
from uvicorn.server import ServerState

from gateway.web.lingering_close import LINGER_S, LingeringClose
from tests.support.manual_clock import ManualClock, until
from tests.support.websocket.raw_socket import RawSocket, raw_socket

LAST_WORDS = b"x" * 50_000


class Server(ServerState):
    """uvicorn's state, and the talker that waits."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: Talker | None = None


class Talker(asyncio.Protocol):
    """Says its last words once it has heard anything, and takes its leave."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep it."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Go; or wait to be told to."""
        self._transport.pause_reading()
        if data == b"wait":
            self._server.waiting = self
        else:
            self.go()

    def go(self) -> None:
        """Go."""
        self._transport.write(LAST_WORDS)
        LingeringClose(self._transport, self._server)


@pytest_asyncio.fixture
async def server() -> Server:
    """Nobody is connected yet."""
    return Server()


@pytest_asyncio.fixture
async def raw(server: Server) -> AsyncIterator[RawSocket]:
    """A connection to a talker."""
    loop = asyncio.get_running_loop()
    listening = await loop.create_server(lambda: Talker(server), "127.0.0.1", 0)
    host, port = listening.sockets[0].getsockname()
    async with listening, raw_socket(f"{host}:{port}") as raw:
        yield raw


async def test_last_words_arrive_though_the_peer_is_sending(raw: RawSocket) -> None:
    """What it sends is read and thrown away; unread it would cut the connection."""
    await raw.send(b"y" * 1_000_000)

    assert LAST_WORDS == await raw.read_to_end()


async def test_a_peer_that_closes_its_half_is_gone(raw: RawSocket, server: Server) -> None:
    await raw.send(b"go")
    await raw.read_to_end()
    assert 1 == len(server.connections)

    raw.end()

    await until(lambda: not server.connections)


async def test_a_peer_that_does_nothing_is_cut(raw: RawSocket, server: Server) -> None:
    clock = ManualClock()
    await raw.send(b"go")
    await until(lambda: bool(server.connections))
    await clock.advance(LINGER_S - 0.1)
    assert 1 == len(server.connections)

    await clock.advance(0.2)

    await until(lambda: not server.connections)


async def test_the_end_of_the_server_ends_it(raw: RawSocket, server: Server) -> None:
    """uvicorn's shutdown waits for no peer."""
    await raw.send(b"go")
    await until(lambda: bool(server.connections))
    (farewell,) = server.connections
    assert isinstance(farewell, LingeringClose)

    farewell.shutdown()

    await until(lambda: not server.connections)


async def test_a_peer_that_has_gone_unnoticed_is_let_go(raw: RawSocket, server: Server) -> None:
    """Where nobody reads, nobody hears of a reset; our half cannot be closed any more."""
    await raw.send(b"wait")
    await until(lambda: server.waiting is not None)
    assert server.waiting is not None
    raw.reset()

    server.waiting.go()

    await until(lambda: not server.connections)
