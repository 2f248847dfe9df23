"""
The HTTP of the public port: uvicorn's, with POST /pub and /mpub answered right here.

These two decide how many requests a second a gateway takes: they need no task, no future and no
ASGI event (docs/decisions/0005-publish-protocol.md). Everything else goes the way of uvicorn. For
both there are time limits for a request and between requests, a bound on the head, no answer that
overtakes another, and an end that lets the peer read why.
"""

from __future__ import annotations

from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from gateway.errors import HeadTooBig, InvalidRequest
from gateway.telemetry import get_logger
from gateway.web.exchange import Exchange
from gateway.web.http_connection import HttpConnection
from gateway.web.http_head import check_head, unusual_target, with_path
from gateway.web.http_port import HttpPort
from gateway.web.publish import MPUB, PUB, read_head
from gateway.web.websocket_handshake import Asked
from gateway.web.websocket_port import WebSocketPort
from gateway.web.websocket_upgrade import WebSocketUpgrade

logger = get_logger()

_ROUTES = {PUB.encode(): PUB, MPUB.encode(): MPUB}

_MAX_HEAD_BYTES = 65_536


class HttpProtocol(HttpConnection):
    """One connection to the public port; ``partial(HttpProtocol, port)`` is uvicorn's ``http=``."""

    def __init__(self, port: HttpPort, **settings: Any) -> None:  # noqa: ANN401 - uvicorn's
        super().__init__(port, **settings)
        self._head_bytes = 0
        """What has arrived of a head or a trailer that is not whole, at least."""
        self._has_body = False
        """Whether the last read has brought a part of a body."""
        self._is_body_raw = False
        """Whether all that comes is of the last request, unparsed: the connection ends with it."""
        self._peer_has_finished = False

    # From and to other protocols

    def _should_upgrade_to_ws(self) -> bool:
        # An Upgrade in HTTP/1.0 is to be ignored (RFC 9110 §7.8).
        return self._port.websockets is not None and self.parser.get_http_version() == "1.1"

    def _leave_to_websocket(self, port: WebSocketPort, early: bytes) -> None:
        """Leave the connection to the WebSocket; *early* came behind the head."""
        self._port.closed(self)
        self.connections.discard(self)
        asked = Asked(self.parser.get_method(), self.url, self.headers, self._caller())
        # They hold us, and the socket may stay long.
        self.parser = None  # type: ignore[assignment]
        self._running = self.cycle = None
        WebSocketUpgrade(port, (self.transport, self.server_state), asked, early)

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """Answer what has arrived in whole all the same; then close."""
        if self._is_idle or (self._begun_at is not None and not self._is_in_head):
            return None
        self._begun_at = None
        self._peer_has_finished = True
        return True

    # What comes in

    def data_received(self, data: bytes) -> None:
        """Read; a request whose head is known is not parsed."""
        self._bytes_in += len(data)
        if self._closing_since is not None or self._garbage is not None:
            return
        if self._is_body_raw:
            self._take_raw_body(data)
            return
        starts_request = self._begun_at is None and self._is_idle
        if starts_request and self._take_known(data):
            return
        before, self._has_body = self.cycle, False
        if not self._parse(data):
            return
        if self._begun_at is not None and self.cycle is before and not self._has_body:
            self._bound_head(len(data))
        elif starts_request and self.cycle is not before:
            self._remember(data)

    def _parse(self, data: bytes) -> bool:
        """Let the parser have *data*; False when nothing more is to be parsed."""
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserCallbackError as error:
            cause = error.__context__ or error
            if not isinstance(cause, InvalidRequest):
                logger.exception("request failed", exc_info=error)
            self._break_off(cause)
        except httptools.HttpParserError as error:
            self._break_off(InvalidRequest("INVALID_REQUEST", f"this is not HTTP: {error}"))
        else:
            return True
        return False

    def _upgrade(self, rest: bytes) -> None:
        """Speak WebSocket, or go on with HTTP: who publishes and offers HTTP/2 need not get it."""
        if isinstance(self.cycle, Exchange) and self.cycle.more_body:
            self._is_body_raw = True
            self._take_raw_body(rest)
        elif (port := self._port.websockets) is None or not self._should_upgrade():
            return
        elif self._is_idle and not self.flow.write_paused:
            self._leave_to_websocket(port, rest)
        else:
            text = "a WebSocket may be asked for once every answer before it has come"
            self._break_off(InvalidRequest("INVALID_REQUEST", text))

    def _take_raw_body(self, data: bytes) -> None:
        """Take the body of a request that is the last one, and offers another protocol."""
        exchange = self.cycle
        if not isinstance(exchange, Exchange) or not exchange.more_body:
            return
        if exchange.left_bytes is not None and len(data) >= exchange.left_bytes:
            self._begun_at = None
        exchange.add_unparsed(data)

    def _take_known(self, data: bytes) -> bool:
        """Take *data* when it is one whole request with a head that is known."""
        found = self._port.find(data)
        if found is None:
            return False
        known, body = found
        exchange = self.cycle = self._running = Exchange(self, known.head)
        exchange.publish_known(known, body)
        return True

    def _remember(self, data: bytes) -> None:
        """Know the head of *data* from now on, where that is one whole request."""
        exchange = self.cycle
        if isinstance(exchange, Exchange) and (known := exchange.known()):
            self._port.remember(data, known)

    def _bound_head(self, size_bytes: int) -> None:
        self._head_bytes += size_bytes
        if self._head_bytes > _MAX_HEAD_BYTES:
            self._break_off(HeadTooBig(self._head_bytes, limit_bytes=_MAX_HEAD_BYTES))

    # What the parser tells

    def on_message_begin(self) -> None:
        """Start anew; what ASGI needs is made for those requests that go there."""
        self.url = b""
        self.headers = []
        self.expect_100_continue = False
        self._begun_at = self.loop.time()
        self._is_in_head = True
        self._head_bytes = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep it; one in a trailer is no header, and is thrown away (RFC 9110 §6.5.1)."""
        if self._is_in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Answer here, or hand over to the application."""
        version = self.parser.get_http_version()
        check_head(version, self.headers)
        if version == "1.0":
            self.expect_100_continue = False  # RFC 9110 §10.1.1
        path, _, raw_query = self.url.partition(b"?")
        route = _ROUTES.get(path)
        if route is None and (b"%" in path or not path.startswith(b"/")):
            path, raw_query = unusual_target(self.url)
            route = _ROUTES.get(path)
        if route is None or self.parser.get_method() != b"POST":
            self._is_in_head = False
            self._hand_over()
            return
        stays = version == "1.1" and self.parser.should_keep_alive()
        head = read_head(route, raw_query, self.headers, self._caller())
        self._is_in_head = False
        exchange = Exchange(self, head, keep_alive=stays and not self.parser.should_upgrade())
        exchange.expects_continue = self.expect_100_continue
        is_first, self.cycle = self._is_idle, exchange
        if is_first:
            self._run(exchange)
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((exchange, self.app))

    def _hand_over(self) -> None:
        """Let uvicorn have the request, with the scope that it makes at the first byte."""
        url, headers, expects = with_path(self.url), self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url = url
        self.headers.extend(headers)
        self.expect_100_continue = expects
        if self._is_proxied:
            caller = self._caller()
            self.scope["client"] = caller.address, 0
            self.scope["scheme"] = "https" if caller.is_secure else "http"
        super().on_headers_complete()
        # No route there reads a body; where one is announced, whether it comes is not known.
        if self.cycle is not None and (expects or self._is_last):
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        """Hand on a part of the body."""
        self._has_body = True
        self._head_bytes = 0
        if isinstance(self.cycle, Exchange):
            self.cycle.add(body)
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """Know that the request is whole."""
        if isinstance(self.cycle, Exchange) and self.parser.should_upgrade():
            return  # after its head already; see _upgrade
        self._begun_at = None
        if isinstance(self.cycle, Exchange):
            self.cycle.end()
        else:
            super().on_message_complete()

    # Whose turn it is

    def _run(self, exchange: Exchange) -> None:
        self._running = exchange
        exchange.begin()

    def _start_next(self) -> None:
        """Go on with the request that waits longest."""
        if self.pipeline and self._closing_since is None:
            cycle, app = self.pipeline.pop()
            if isinstance(cycle, Exchange):
                self._run(cycle)
                if cycle.more_body and not self.flow.write_paused:
                    self.flow.resume_reading()
            else:
                if self._is_last:
                    cycle.keep_alive = False
                self._start_asgi_task(cycle, app)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:  # noqa: ANN401 - uvicorn's
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        """Go on: with what waits, with what cannot be read, or with what comes."""
        self.server_state.total_requests += 1
        self._requests += 1
        self._running = None
        if self.transport.is_closing() or self._closing_since is not None:
            return
        if self.pipeline:
            # Not from here: hundreds may wait, and each may end at once.
            self.loop.call_soon(self._start_next)
        elif self._garbage is not None:
            self._end_with(self._garbage)
        elif self._peer_has_finished:
            self._close()
        else:
            self._idle_since = self.loop.time()
            if not self.flow.write_paused:
                self.flow.resume_reading()
