"""A public port whose sockets say what they hear: what RFC 6455 asks for, without NSQ behind it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from gateway.errors import GatewayError
from gateway.web.answers import Answer
from gateway.web.faults import problem
from gateway.web.websocket_port import Admission, Upgrade, WebSocket, WebSocketPort
from tests.support.public_http import public_http
from tests.support.recording_publisher import RecordingPublisher

MAX_FRAME_BYTES = 100_000


class EchoReceiver:
    """Says what it hears, and keeps it."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.codes: list[int] = []
        """What `lost` was called with."""
        self.rooms = 0
        """How often there was room again."""
        self.gone = asyncio.Event()
        self._socket: WebSocket | None = None

    @property
    def socket(self) -> WebSocket:
        """The socket, once opened."""
        assert self._socket is not None
        return self._socket

    def opened(self, socket: WebSocket) -> None:
        """Keep the socket."""
        self._socket = socket

    def text_received(self, text: str) -> None:
        """Say it."""
        self.heard.append(text)
        self.socket.send(text.encode())

    def has_room(self) -> None:
        """Count."""
        self.rooms += 1

    def lost(self, code: int) -> None:
        """Keep why."""
        self.codes.append(code)
        self.gone.set()


class EchoGate:
    """Lets everybody in, or nobody while there is an *error*."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.receivers: list[EchoReceiver] = []
        self.upgrades: list[Upgrade] = []
        self.cancelled = 0
        self.open = asyncio.Event()
        """Whether those who ask are let in at once."""
        self.open.set()
        self.subprotocol: str | None = None
        self.new_receiver: type[EchoReceiver] = EchoReceiver

    async def admit(self, upgrade: Upgrade) -> Admission:
        """Wait until it is open."""
        self.upgrades.append(upgrade)
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.error is not None:
            raise self.error
        receiver = self.new_receiver()
        self.receivers.append(receiver)
        return Admission(receiver, self.subprotocol)

    def refusal(self, error: GatewayError, request_id: str) -> Answer:
        """Return the row of the table of faults."""
        return problem(error, request_id)


def echo_websockets(gate: EchoGate | None = None, **options: Any) -> WebSocketPort:  # noqa: ANN401
    """Return a port without pings, but for the *options*."""
    settings: dict[str, Any] = {
        "max_frame_bytes": MAX_FRAME_BYTES,
        "ping_interval_s": None,
        "ping_timeout_s": None,
        **options,
    }
    return WebSocketPort(gate or EchoGate(), **settings)


@asynccontextmanager
async def echo_port(gate: EchoGate | None = None, **options: Any) -> AsyncIterator[str]:  # noqa: ANN401
    """Answer on a free port, and return its address; *options* are `WebSocketPort`'s."""
    websockets = echo_websockets(gate, **options)
    async with public_http(RecordingPublisher(), websockets=websockets) as served:
        yield served.address
