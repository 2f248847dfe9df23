"""One request for a WebSocket: its handshake, and the time until somebody has let it in."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from http import HTTPStatus

from websockets.http11 import Response

from gateway.errors import GatewayError, NoBroker
from gateway.telemetry import OTHER, Attributes, Span, get_logger, spawn
from gateway.web.access import request_id_of
from gateway.web.answers import Answer, encode_answer
from gateway.web.farewell import Farewell, ServerConnections
from gateway.web.faults import DRAINING, problem, render
from gateway.web.http_account import clock, count_answer, known_method
from gateway.web.refusal_account import BAD_REQUEST, count_refused, count_refused_socket
from gateway.web.refusal_account import DRAINING as OF_DRAIN
from gateway.web.websocket_handshake import Asked, encode_greeting, greet, read_upgrade
from gateway.web.websocket_port import Admission, Upgrade, WebSocketPort
from gateway.web.websocket_protocol import ABNORMAL, WebSocketProtocol

logger = get_logger()

_SUB = "/sub"
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
        self._began_at = clock()
        self._port = port
        self._early = early
        self._admission: asyncio.Task[None] | None = None
        """While it is asked for; None: it is decided, or the client has gone."""
        self._server.connections.add(self)
        self.transport.set_protocol(self)
        upgrade = read_upgrade(asked)
        self._request_id = request_id_of(upgrade.headers)
        self._route = _SUB if upgrade.path == _SUB else OTHER
        self._method = known_method(asked.method.decode("latin-1"))
        self._span: Span | None = None
        if port.spans is not None:
            self._span = port.spans.begin(
                self._method, self._route, upgrade.headers, self._began_at
            )
            if self._span is not None:
                upgrade = replace(upgrade, trace_id=self._span.trace_id)
        greeting = greet(asked, upgrade)
        if not isinstance(greeting, Response):
            count_refused(BAD_REQUEST)
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
            self._turn_away(error, gate.refusal(error, self._request_id))
        except TimeoutError:
            late = NoBroker(f"nobody has let it in within {_ADMISSION_S:.0f} s; try again later")
            self._turn_away(late, problem(late, self._request_id))
        except Exception as error:
            logger.exception("admission failed", request_id=self._request_id)
            self._turn_away(error, problem(error, self._request_id))
        else:
            self._open(admission, greeting)

    def _turn_away(self, failure: Exception, answer: Answer) -> None:
        """Refuse because of *failure*, unless who asked has gone."""
        if self._admission is not None:
            count_refused_socket(failure)
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
        self._count(HTTPStatus.SWITCHING_PROTOCOLS)
        self.transport.write(encode_greeting(greeting, admission.subprotocol))
        socket.begin(receiver, self._early)

    def _count(self, status: int) -> None:
        """Count the answer, and end the span."""
        is_open = status == HTTPStatus.SWITCHING_PROTOCOLS
        trace_id = None if self._span is None else self._span.trace_id
        self._end_span(
            {"http.response.status_code": int(status)}, error=None if is_open else str(status)
        )
        count_answer(self._route, self._method, status, self._began_at, trace_id)

    def _end_span(self, attributes: Attributes, *, error: str | None) -> None:
        """End the span, where there is one; idempotent."""
        span, self._span = self._span, None
        if span is not None:
            span.end(attributes, error=error)

    def _refuse(self, answer: Answer) -> None:
        """Answer in place of the 101, and close."""
        self._admission = None
        status, headers, body = answer
        self._count(status)
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
        self._end_span({}, error="lost")

    def connection_lost(self, exc: Exception | None) -> None:
        """Let nobody in who has gone."""
        del exc
        self._give_up()
        self._end_span({}, error="lost")
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
        count_refused(OF_DRAIN)
        text = "this gateway is shutting down; connect again, to another one"
        self._refuse(render(DRAINING, text, self._request_id))
