"""
uvicorn's WebSocket protocol, with what a server of slow and silent peers needs besides.

A peer that does not read never takes the close frame either, and a transport with unsent bytes
never closes by itself: such a socket has to be aborted. uvicorn takes the class as ``ws=``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.server import ServerProtocol

from gateway.web.faults import CloseCode

if TYPE_CHECKING:
    from uvicorn._types import ASGISendEvent
    from websockets.http11 import Request, Response
    from websockets.typing import StatusLike

ABORT_EXTENSION = "nsq_gateway.abort"
"""In the scope's extensions: a callable that ends the TCP connection at once."""

_CLOSE_GRACE_S = 1.0
_BAD_REQUEST = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


class _Handshake(ServerProtocol):
    """Says what is wrong with a handshake, and does not repeat what may hold a secret."""

    def reject(self, status: StatusLike, text: str) -> Response:
        """Return the answer, without the subprotocols where they are no list of tokens."""
        if "Sec-WebSocket-Protocol" in text:
            text = "Failed to open a WebSocket connection: Sec-WebSocket-Protocol is malformed.\n"
        return super().reject(status, text)


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """Gives the application an abort, and a missed pong a close code of its own."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - uvicorn's
        super().__init__(*args, **kwargs)
        self.conn = _Handshake(
            extensions=self.conn.available_extensions,
            max_size=self.config.ws_max_size,
            logger=self.logger,
        )
        # It would log every header and frame, and secrets are in both.
        self.conn.debug = False

    def data_received(self, data: bytes) -> None:
        """
        Read; answer a handshake that websockets has refused, of which uvicorn takes no notice.

        Unanswered it would hold its connection for ever, and fail the stop of the server.
        """
        super().data_received(data)
        if self.conn.handshake_exc is not None and not self.close_sent:
            self.transport.write(b"".join(self.conn.data_to_send()) or _BAD_REQUEST)
            self.handshake_complete = True
            self.close_sent = True
            self.transport.close()

    def handle_connect(self, event: Request) -> None:
        """Put the abort beside uvicorn's own extensions; the application runs later."""
        super().handle_connect(event)
        if hasattr(self, "scope"):
            extensions = self.scope["extensions"]
            assert extensions is not None  # noqa: S101 - uvicorn sets it
            extensions[ABORT_EXTENSION] = {"abort": self.transport.abort}

    async def send(self, message: ASGISendEvent) -> None:
        """Send; a refusal before the upgrade completes the handshake too, so nobody logs it."""
        await super().send(message)
        if self.initial_response is not None and self.close_sent:
            self.handshake_complete = True

    def send_receive_event_to_app(self) -> None:
        """Hand on a message; close on text that is not UTF-8, which uvicorn logs as a failure."""
        is_text = self.curr_msg_data_type == "text" and not self.close_sent
        if is_text and not _is_utf8(b"".join(self.frames)):
            self.frames = []
            self.conn.send_close(CloseCode.NOT_UTF8, "text is UTF-8")
            self.handle_parser_exception()
            return
        super().send_receive_event_to_app()

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


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
