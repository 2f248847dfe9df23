"""
A WebSocket server that only sends: the peer of the gateway's viewers.

It uses the same event loop, and after the handshake one `transport.write` per frame and socket. A
connection that begins with SEND in place of GET passes it the frames to send.
"""

from __future__ import annotations

import argparse
import asyncio

import uvloop
from websockets.http11 import Request
from websockets.server import ServerProtocol

from benchmarks.websocket_client import find_frame

_WELCOME = b'{"type":"response"}'


class BareConnection(asyncio.Protocol):
    """One connection; *sockets* are those that are upgraded."""

    def __init__(self, sockets: set[asyncio.Transport]) -> None:
        self._sockets = sockets
        self._transport: asyncio.Transport
        self._handshake: ServerProtocol | None = ServerProtocol()
        self._told = b""
        self._sending: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for a request."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Upgrade, or read the frames to send; later data of a socket is ignored."""
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
        """Read ``SEND <bytes>``, a newline, and frames of that size."""
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
            # uvloop joins all writes to a transport in one turn of the loop.
            await asyncio.sleep(0)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the socket."""
        del exc
        self._sockets.discard(self._transport)


async def serve(port: int) -> None:
    """Serve until the process is terminated."""
    sockets: set[asyncio.Transport] = set()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: BareConnection(sockets), "127.0.0.1", port, backlog=2_048
    )
    await server.serve_forever()


def main() -> None:
    """Run the server."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    uvloop.run(serve(parser.parse_args().port))


if __name__ == "__main__":
    main()
