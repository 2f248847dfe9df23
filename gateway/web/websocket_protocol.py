"""
uvicorn's WebSocket protocol, with what a server of slow and silent peers needs besides.

A peer that does not read never takes the close frame either, and a transport with unsent bytes
never closes by itself: such a socket has to be aborted. uvicorn takes the class as ``ws=``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from gateway.web.faults import CloseCode

if TYPE_CHECKING:
    from websockets.http11 import Request

ABORT_EXTENSION = "nsq_gateway.abort"
"""In the scope's extensions: a callable that ends the TCP connection at once."""

_CLOSE_GRACE_S = 1.0


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """Gives the application an abort, and a missed pong a close code of its own."""

    def handle_connect(self, event: Request) -> None:
        """Put the abort beside uvicorn's own extensions; the application runs later."""
        super().handle_connect(event)
        if hasattr(self, "scope"):
            extensions = self.scope["extensions"]
            assert extensions is not None  # noqa: S101 - uvicorn sets it
            extensions[ABORT_EXTENSION] = {"abort": self.transport.abort}

    def keepalive_timeout(self) -> None:
        """Close with `CloseCode.MISSED_PONG`; the peer is gone, so its answer is not waited for."""
        self.pong_timer = None
        self.pending_ping_payload = None
        if self.close_sent or self.transport.is_closing():
            return
        self.conn.fail(CloseCode.MISSED_PONG, "no pong in time")
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = True
        self.transport.close()
        self.loop.call_later(_CLOSE_GRACE_S, self.transport.abort)
