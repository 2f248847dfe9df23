"""A public port whose WebSockets echo each text, for tests of RFC 6455 without NSQ."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from gateway.errors import GatewayError
from gateway.web.errors import problem_response
from gateway.web.responses import HttpResponse
from gateway.web.websocket.protocol import Accepted, Upgrade, WebSocket, WebSocketServerState
from tests.support.gateways.public_http import public_http
from tests.support.http.recording_publisher import RecordingPublisher

MAX_FRAME_BYTES = 100_000


class EchoHandler:
    """Echo each text and record it."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.codes: list[int] = []
        """The arguments of `on_close`."""
        self.rooms = 0
        """Number of calls of `on_writable`."""
        self.gone = asyncio.Event()
        self._socket: WebSocket | None = None

    @property
    def socket(self) -> WebSocket:
        """The socket, once opened."""
        assert self._socket is not None
        return self._socket

    def on_open(self, socket: WebSocket) -> None:
        """Record the socket."""
        self._socket = socket

    def on_text(self, text: str) -> None:
        """Send the text back."""
        self.heard.append(text)
        self.socket.send(text.encode())

    def on_writable(self) -> None:
        """Count the call."""
        self.rooms += 1

    def on_close(self, code: int) -> None:
        """Record the close code."""
        self.codes.append(code)
        self.gone.set()


class EchoUpgradeHandler:
    """Accept every upgrade, or refuse it with *error* if set."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.handlers: list[EchoHandler] = []
        self.upgrades: list[Upgrade] = []
        self.cancelled = 0
        self.open = asyncio.Event()
        """Clear it to delay upgrades."""
        self.open.set()
        self.subprotocol: str | None = None
        self.new_handler: type[EchoHandler] = EchoHandler

    async def accept(self, upgrade: Upgrade) -> Accepted:
        """Wait until it is open."""
        self.upgrades.append(upgrade)
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.error is not None:
            raise self.error
        handler = self.new_handler()
        self.handlers.append(handler)
        return Accepted(handler, self.subprotocol)

    def refusal(self, error: GatewayError, request_id: str) -> HttpResponse:
        """Return the error response of a refused upgrade."""
        return problem_response(error, request_id)


def echo_websockets(gate: EchoUpgradeHandler | None = None, **options: Any) -> WebSocketServerState:  # noqa: ANN401
    settings: dict[str, Any] = {
        "max_frame_bytes": MAX_FRAME_BYTES,
        "ping_interval_s": None,
        "ping_timeout_s": None,
        **options,
    }
    return WebSocketServerState(gate or EchoUpgradeHandler(), **settings)


@asynccontextmanager
async def echo_server(gate: EchoUpgradeHandler | None = None, **options: Any) -> AsyncIterator[str]:  # noqa: ANN401
    """Listen on a free port; yield its address. *options* go to `WebSocketServerState`."""
    websockets = echo_websockets(gate, **options)
    async with public_http(RecordingPublisher(), websockets=websockets) as served:
        yield served.address
