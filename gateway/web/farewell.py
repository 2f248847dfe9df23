"""The end of a connection whose last bytes the peer is to read, whatever it is sending still."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from gateway.web.answers import Headers

LINGER_S = 2.0
"""How long a peer may take to read the last bytes, and to close its half."""


def close_our_half(transport: asyncio.Transport) -> None:
    """Send the end behind the last bytes; close where there are no halves, or no peer any more."""
    if not transport.can_write_eof():
        transport.close()
        return
    try:
        transport.write_eof()
    except OSError:
        # The peer has gone, and nobody was reading when it did.
        transport.abort()


class ServerConnections(Protocol):
    """uvicorn's `ServerState`: what a stop of the server waits for, and what is on each answer."""

    connections: set[Any]
    default_headers: Headers


class Farewell(asyncio.Protocol):
    """
    Takes a connection over, closes our half of it, and throws away what comes until it ends.

    Bytes that nobody reads make the system cut the connection, and the peer may lose our last ones
    with it (RFC 9112 §9.6). Who does not close its half is cut after `LINGER_S`.
    """

    __slots__ = ("_server", "_timer", "transport")

    def __init__(self, transport: asyncio.Transport, server: ServerConnections) -> None:
        self.transport = transport
        self._server = server
        server.connections.add(self)
        transport.set_protocol(self)
        self._timer = asyncio.get_running_loop().call_later(LINGER_S, transport.abort)
        if transport.is_closing():
            return
        transport.resume_reading()
        close_our_half(transport)

    def data_received(self, data: bytes) -> None:
        """Throw it away."""

    def shutdown(self) -> None:
        """Wait no longer (uvicorn's name)."""
        self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Be gone."""
        del exc
        self._timer.cancel()
        self._server.connections.discard(self)
