"""
One connection to the public port: its times, what goes out on it, and how it ends.

What comes in is read by `http_protocol`, which is made of this.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from gateway.errors import Full, RequestTimeout
from gateway.protocol.http_api import OK
from gateway.telemetry import OTHER, get_logger
from gateway.web.access import new_request_id
from gateway.web.answers import Answer, encode_answer
from gateway.web.exchange import Exchange
from gateway.web.farewell import LINGER_S, close_our_half
from gateway.web.faults import problem
from gateway.web.http_account import clock, count_answer
from gateway.web.http_port import OK_HEADERS, HttpPort
from gateway.web.proxies import Caller

logger = get_logger()

_SKIPPED_BYTES = 262_144
"""What is read and thrown away of a refused body, for the next request; above it we close."""


class HttpConnection(HttpToolsProtocol):
    """What `HttpProtocol` is, but for reading."""

    cycle: Exchange | RequestResponseCycle | None  # type: ignore[assignment]
    """The request that came last."""
    pipeline: deque[tuple[Exchange | RequestResponseCycle, Any]]  # type: ignore[assignment]
    """The requests that wait for those before them; the last one is the next."""

    def __init__(self, port: HttpPort, **settings: Any) -> None:  # noqa: ANN401 - uvicorn's
        super().__init__(**settings)
        self.plane = port.plane
        self._opened_at = clock()
        self._port = port
        self._peer = Caller("", is_secure=False)
        self._is_proxied = False
        """Whether the peer is a proxy that tells who calls."""
        self._begun_at: float | None = None
        """When the request began that has not arrived in whole."""
        self._idle_since = self.loop.time()
        self._closing_since: float | None = None
        self._unsent_bytes = 0
        """What the client had not taken at the last look."""
        self._taken_at = 0.0
        """When it had taken something, as far as looks tell."""
        self._bytes_in = 0
        self._requests = 0
        """Those that have been answered."""
        self._running: Exchange | RequestResponseCycle | None = None
        """The request that is being answered; None where that is over."""
        self._is_in_head = False
        self._garbage: BaseException | None = None
        """Why what follows the last request cannot be read."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Serve; one connection too many is told so."""
        super().connection_made(transport)
        port = self._port
        host = self.client[0] if self.client else ""
        self._peer = Caller(host, is_secure=self.scheme == "https")
        self._is_proxied = port.proxies is not None and port.proxies.trusts(host)
        if not port.opened(self):
            if not port.tells_why:
                transport.abort()
                return
            limit = port.bounds.max_connections
            self._begun_at = self.loop.time()  # a request is on its way, and is not read
            self._end_with(Full(f"all {limit} HTTP connections are in use; try again later"))

    def connection_lost(self, exc: Exception | None) -> None:
        """Let go of what has been begun; what has been written to nsqd goes on."""
        self._port.closed(self)
        logger.debug(
            "http connection closed",
            client=self._peer.address,
            requests=self._requests,
            bytes_in=self._bytes_in,
            seconds=round(clock() - self._opened_at, 3),
        )
        for cycle in (self._running, self.cycle):
            if isinstance(cycle, Exchange):
                cycle.lose()
            elif cycle is not None and not cycle.response_complete:
                # uvicorn tells the last one only; one before it may be running still.
                cycle.disconnected = True
                cycle.message_event.set()
        self.pipeline.clear()
        super().connection_lost(exc)
        # They know this connection.
        self._running = self.cycle = None

    def drain(self) -> None:
        """Let the answer that is being made say that it is the last one, where it can."""
        cycle = self.cycle
        if isinstance(cycle, RequestResponseCycle) and not cycle.response_started:
            cycle.keep_alive = cycle.keep_alive and not self._is_last

    @property
    def _is_last(self) -> bool:
        """Whether the answer to come is the last one here; what has arrived is answered before."""
        return self._port.is_draining and not self.pipeline

    @property
    def open_requests(self) -> int:
        """How many requests have come and are not answered: one, and those that wait behind it."""
        return 0 if self._is_idle else 1 + len(self.pipeline)

    @property
    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _caller(self) -> Caller:
        """Return who asks, in the request whose headers have just come."""
        proxies = self._port.proxies
        if proxies is None or not self._is_proxied:
            return self._peer
        return proxies.caller(self._peer, self.headers)

    # Its times

    def check_time(self, now: float) -> None:
        """End what has been waited for too long; called every second."""
        bounds = self._port.bounds
        if self._takes_nothing(now):
            self.transport.abort()
        elif self._closing_since is not None or self.transport.is_closing():
            if self._closing_since is None or self._unsent_bytes:
                self._closing_since = now
            elif now - self._closing_since > LINGER_S:
                self.transport.abort()
        elif self._begun_at is not None:
            if now - self._begun_at > bounds.request_timeout_s:
                self._break_off(RequestTimeout(bounds.request_timeout_s))
        elif self._is_idle and now - self._idle_since > bounds.keep_alive_s:
            self.transport.close()

    def _takes_nothing(self, now: float) -> bool:
        """Tell whether the client has taken nothing for too long of what waits for it."""
        unsent_bytes = self.transport.get_write_buffer_size()
        if unsent_bytes == 0 or self._unsent_bytes == 0 or unsent_bytes < self._unsent_bytes:
            self._taken_at = now
        self._unsent_bytes = unsent_bytes
        return now - self._taken_at > self._port.bounds.response_timeout_s

    def _break_off(self, error: BaseException) -> None:
        """Answer with *error* after what came before it, and close: what comes is not readable."""
        latest = self.cycle
        if latest is None or latest.response_complete:
            if self._begun_at is not None and not self._is_in_head:
                # The rest of a request that has had its answer.
                self.transport.close()
            else:
                self._end_with(error)
        elif not latest.more_body:
            self._garbage = error
            self._begun_at = None
            self.flow.pause_reading()
        elif isinstance(latest, Exchange):
            latest.break_off(error)
        else:
            self.transport.close()

    def resume_writing(self) -> None:
        """Go on reading as well, where a request or the rest of one may come."""
        super().resume_writing()
        self._unsent_bytes = 0  # it has taken much; more may have been written before the next look
        is_due = self._is_idle or (self.cycle is not None and self.cycle.more_body)
        if is_due and not self.pipeline and self._garbage is None:
            self.flow.resume_reading()

    def pause_writing(self) -> None:
        """Read no more requests of who does not read our answers."""
        super().pause_writing()
        self.flow.pause_reading()

    # What goes out

    def write_continue(self) -> None:
        """Ask for the body."""
        self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def write_ok(self, exchange: Exchange) -> None:
        """Answer OK."""
        if self._is_last:
            exchange.keep_alive = False
        if not (exchange.keep_alive and exchange.head.is_plain):
            headers = self.plane.ok_headers(exchange.head)
            self.write_answer(exchange, (200, [*OK_HEADERS, *headers], OK))
            return
        self.transport.write(self._port.ok(self.server_state.default_headers))
        exchange.response_complete = True
        self.on_response_complete()

    def write_answer(self, exchange: Exchange, answer: Answer) -> None:
        """Answer, and close where what is left of the request is too much to be skipped."""
        left_bytes = exchange.left_bytes
        if left_bytes is None or left_bytes > _SKIPPED_BYTES:
            exchange.keep_alive = False
        if self._is_last:
            exchange.keep_alive = False
        self._write(answer, keep_alive=exchange.keep_alive)
        exchange.response_complete = True
        if not exchange.keep_alive:
            self._close()
        self.on_response_complete()

    def _end_with(self, error: BaseException) -> None:
        """Answer outside of any request, and close."""
        answer = problem(error, new_request_id())
        waited_s = 0.0 if self._begun_at is None else self.loop.time() - self._begun_at
        count_answer(OTHER, OTHER, answer[0], clock() - waited_s)
        self._write(answer, keep_alive=False)
        self._close()

    def _write(self, answer: Answer, *, keep_alive: bool) -> None:
        status, headers, body = answer
        close = [] if keep_alive else [(b"connection", b"close")]
        headers = [*self.server_state.default_headers, *headers, *close]
        self.transport.write(encode_answer((status, headers, body)))

    def _close(self) -> None:
        """
        Close; while something is still to come, only our half for now.

        Data that nobody reads makes the system cut the connection, and the peer may lose the
        answer with it (RFC 9112 §9.6).
        """
        self._closing_since = self.loop.time()
        if self._begun_at is None:
            self.transport.close()
            return
        close_our_half(self.transport)
        if not self.transport.is_closing():
            self.flow.resume_reading()
