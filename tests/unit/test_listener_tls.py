"""A listener that speaks TLS: who says nothing takes no place from who does."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from gateway.listener import TlsServer, listen_tcp
from tests.support.certificates import Certificates, certificates
from tests.support.manual_clock import until

LIMIT = 3


class Echo(asyncio.Protocol):
    """Says back what it hears."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep it."""
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """Say it back."""
        self.transport.write(data)  # type: ignore[attr-defined] # of a stream


@pytest.fixture(scope="module")
def pem() -> Iterator[Certificates]:
    with certificates() as made:
        yield made


@pytest_asyncio.fixture
async def server(pem: Certificates) -> AsyncIterator[TlsServer]:
    """An echo behind TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem.server.cert_file, pem.server.key_file)
    server = TlsServer(listen_tcp("test", "127.0.0.1:0"), context, Echo, limit=LIMIT)
    yield server
    server.close()


async def silent(server: TlsServer) -> socket.socket:
    """Return a connection that says nothing, once the server knows of it."""
    before = list(server._handshakes)
    connection = socket.create_connection(server._listener.getsockname())
    await until(lambda: list(server._handshakes)[-1:] != before[-1:])
    connection.settimeout(0)
    return connection


async def echoed(server: TlsServer, pem: Certificates) -> bytes:
    """Return what the echo says to a client that speaks TLS."""
    trusting = ssl.create_default_context(cafile=pem.root_ca_file)
    host, port = server._listener.getsockname()
    reader, writer = await asyncio.open_connection(host, port, ssl=trusting)
    writer.write(b"hello")
    said = await reader.readexactly(5)
    writer.close()
    return said


async def test_who_says_nothing_keeps_nobody_out(server: TlsServer, pem: Certificates) -> None:
    """
    The oldest handshake goes where there are too many; nobody has more than its place.

    Before, connections without a handshake took every file of the process: for ten seconds nobody
    was answered, not even a probe.
    """
    connections = [await silent(server) for _ in range(LIMIT)]

    said = await echoed(server, pem)

    await until(lambda: len(server._handshakes) == LIMIT - 1)
    assert b"hello" == said
    assert b"" == await asyncio.get_running_loop().sock_recv(connections[0], 1)
    for connection in connections:
        connection.close()
    await until(lambda: not server._handshakes)


async def test_what_is_no_handshake_is_cut(server: TlsServer) -> None:
    """Whatever it is; nothing is kept of it."""
    connection = await silent(server)

    connection.send(b"GET / HTTP/1.1\r\n\r\n")

    await until(lambda: not server._handshakes)
    connection.close()


async def test_a_server_that_closes_cuts_handshakes(server: TlsServer) -> None:
    """Nobody is let in any more; who connects then is refused."""
    address = server._listener.getsockname()
    connection = await silent(server)

    server.close()
    await server.wait_closed()

    assert b"" == await asyncio.get_running_loop().sock_recv(connection, 1)
    assert not server._handshakes
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)
    connection.close()


async def test_without_a_file_nobody_is_accepted_for_a_moment(
    server: TlsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The listener stays ready, and would be asked again in every turn of the event loop."""

    class ListenerWithoutFiles:
        def accept(self) -> None:
            raise OSError(24, "Too many open files")

        def fileno(self) -> int:
            return listener.fileno()

        def close(self) -> None:
            listener.close()

    listener = server._listener
    monkeypatch.setattr(server, "_listener", ListenerWithoutFiles())

    server._accept()

    assert server._pause is not None
    assert not asyncio.get_running_loop().remove_reader(listener.fileno())
