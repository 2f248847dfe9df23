"""One request for a WebSocket: its handshake, and the time until somebody has let it in."""

from __future__ import annotations

import asyncio

from websockets.http11 import Response

from gateway.errors import GatewayError, NoBroker
from gateway.telemetry import get_logger, spawn
from gateway.web.access import request_id_of
from gateway.web.answers import Answer, encode_answer
from gateway.web.farewell import Farewell, ServerConnections
from gateway.web.faults import DRAINING, problem, render
from gateway.web.websocket_handshake import Asked, encode_greeting, greet, read_upgrade
from gateway.web.websocket_port import Admission, Upgrade, WebSocketPort
from gateway.web.websocket_protocol import ABNORMAL, WebSocketProtocol

logger = get_logger()

_ADMISSION_S = 60.0
"""What a gate gets; its own limits are shorter."""


class WebSocketUpgrade(asyncio.Protocol):
    """
    Holds a connection from the head of the request to the 101, or to the answer in its place.

    Made by the protocol of HTTP, which has read the head and *early*, the bytes behind it. Nobody
    may speak before the 101: what comes all the same is kept, and no more is read until then.
    """

    def __init__(
        self,
        port: WebSocketPort,
        connection: tuple[asyncio.Transport, ServerConnections],
        asked: Asked,
        early: bytes,
    ) -> None:
        self.transport, self._server = connection
        self._port = port
        self._early = early
        self._admission: asyncio.Task[None] | None = None
        """While it is asked for; None: it is decided, or the client has gone."""
        self._server.connections.add(self)
        self.transport.set_protocol(self)
        upgrade = read_upgrade(asked)
        self._request_id = request_id_of(upgrade.headers)
        greeting = greet(asked, upgrade)
        if not isinstance(greeting, Response):
            self._refuse(greeting)
            return
        if early:
            self.transport.pause_reading()
        self._admission = spawn("admit a WebSocket", self._admit(upgrade, greeting))

    async def _admit(self, upgrade: Upgrade, greeting: Response) -> None:
        gate = self._port.gate
        try:
            async with asyncio.timeout(_ADMISSION_S):
                admission = await gate.admit(upgrade)
        except GatewayError as error:
            answer = gate.refusal(error, self._request_id)
        except TimeoutError:
            late = NoBroker(f"nobody has let it in within {_ADMISSION_S:.0f} s; try again later")
            answer = problem(late, self._request_id)
        except Exception as error:
            logger.exception("admission failed", request_id=self._request_id)
            answer = problem(error, self._request_id)
        else:
            self._open(admission, greeting)
            return
        if self._admission is not None:
            self._refuse(answer)

    def _open(self, admission: Admission, greeting: Response) -> None:
        """Leave the connection to the socket."""
        socket = WebSocketProtocol(self._port, self.transport, self._server)
        receiver = admission.receiver
        if self._admission is None:
            # Too late to be stopped: who was let in has gone.
            receiver.opened(socket)
            receiver.lost(ABNORMAL)
            return
        self._admission = None
        self._server.connections.discard(self)
        self.transport.write(encode_greeting(greeting, admission.subprotocol))
        socket.begin(receiver, self._early)

    def _refuse(self, answer: Answer) -> None:
        """Answer in place of the 101, and close."""
        self._admission = None
        status, headers, body = answer
        headers = [*self._server.default_headers, *headers, (b"connection", b"close")]
        self.transport.write(encode_answer((status, headers, body)))
        self._server.connections.discard(self)
        Farewell(self.transport, self._server)

    def data_received(self, data: bytes) -> None:
        """Keep it for the socket."""
        self._early += data
        self.transport.pause_reading()

    def eof_received(self) -> None:
        """Let nobody in who says no more."""
        self._give_up()

    def connection_lost(self, exc: Exception | None) -> None:
        """Let nobody in who has gone."""
        del exc
        self._give_up()
        self._server.connections.discard(self)

    def _give_up(self) -> None:
        admission, self._admission = self._admission, None
        if admission is not None:
            admission.cancel()

    def shutdown(self) -> None:
        """Refuse, for the server stops (uvicorn's name)."""
        if self._admission is None:
            return
        self._give_up()
        text = "this gateway is shutting down; connect again, to another one"
        self._refuse(render(DRAINING, text, self._request_id))
