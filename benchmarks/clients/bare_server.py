"""
A server of WebSockets that does nothing but send: what the viewers of the gateway compare with.

The same event loop, a handshake by the same library, and then one `transport.write` for each
frame and socket. A connection that begins with SEND in place of GET tells it what to send.
"""

from __future__ import annotations

import argparse
import asyncio

import uvloop
from websockets.http11 import Request
from websockets.server import ServerProtocol

from benchmarks.websocket_client import find_frame

_WELCOME = b'{"type":"response"}'


class Bare(asyncio.Protocol):
    """One connection; *sockets* are those that are upgraded."""

    def __init__(self, sockets: set[asyncio.Transport]) -> None:
        self._sockets = sockets
        self._transport: asyncio.Transport
        self._handshake: ServerProtocol | None = ServerProtocol()
        self._told = b""
        self._sending: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for what it wants."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Upgrade, or take what is to be sent; what a socket says after that is not read."""
        if self._told or data.startswith(b"SEND "):
            self._tell(data)
        elif (handshake := self._handshake) is not None:
            handshake.receive_data(data)
            for request in handshake.events_received():
                assert isinstance(request, Request)  # noqa: S101 - for the types
                handshake.send_response(handshake.accept(request))
                handshake.send_text(_WELCOME)
                self._transport.write(b"".join(handshake.data_to_send()))
                self._sockets.add(self._transport)
                self._handshake = None

    def _tell(self, data: bytes) -> None:
        """Take ``SEND <bytes>``, a newline, and frames of so many bytes."""
        self._told += data
        head, _, frames = self._told.partition(b"\n")
        if len(frames) == int(head[5:]):
            self._sending = asyncio.get_running_loop().create_task(self._send(frames))

    async def _send(self, told: bytes) -> None:
        frames, at = [], 0
        while (found := find_frame(told, at)) is not None:
            frames.append(told[at : found[2]])
            at = found[2]
        sockets = list(self._sockets)
        for frame in frames:
            for socket in sockets:
                socket.write(frame)
            # uvloop joins what is written to a transport in one turn of the loop.
            await asyncio.sleep(0)

    def connection_lost(self, exc: Exception | None) -> None:
        """Send nothing more."""
        del exc
        self._sockets.discard(self._transport)


async def serve(port: int) -> None:
    """Serve until the process is ended."""
    sockets: set[asyncio.Transport] = set()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Bare(sockets), "127.0.0.1", port, backlog=2_048)
    await server.serve_forever()


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    uvloop.run(serve(parser.parse_args().port))


if __name__ == "__main__":
    main()
