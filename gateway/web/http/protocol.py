"""
An HTTP/1.1 connection to the public port, until it closes or becomes a WebSocket.

`HttpProtocol` is uvicorn's ``http=`` class, on top of llhttp (docs/decisions/0015). It handles one
request at a time and does not parse further bytes until the response is written. So responses keep
their order, and no request after a ``Connection: close`` is executed. POST /pub and /mpub are
handled here without a task, a future or an ASGI event (docs/decisions/0005). All other requests go
to the ASGI application.

Dependencies on uvicorn, apart from ``http=`` itself: `RequestResponseCycle`, `FlowControl`, and
``connections``, ``tasks``, ``default_headers``, ``total_requests`` of `ServerState`;
`tests/unit/web/test_uvicorn_names.py` checks them.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.server import ServerState

from gateway.aio import spawn
from gateway.errors import GatewayError, LimitReached, Overloaded, RequestTimeout
from gateway.protocol.http_api import OK
from gateway.telemetry import OTHER, get_logger
from gateway.web.errors import problem_response
from gateway.web.http.app_request import AppRequest, http_scope
from gateway.web.http.head import EMPTY_LINES, HEAD_END, ChunkedBody, HeadReader, decode_target
from gateway.web.http.publish import (
    MPUB,
    OK_HEADERS,
    PUB,
    CachedRequestHead,
    PublishRequest,
    read_head,
)
from gateway.web.http.server_state import IDLE_S, HttpServerState
from gateway.web.lingering_close import LINGER_S, half_close
from gateway.web.metrics import clock, count_response
from gateway.web.proxies import Caller
from gateway.web.responses import HttpResponse, encode_response, new_request_id
from gateway.web.websocket.handshake import RawUpgradeRequest, UpgradeProtocol
from gateway.web.websocket.protocol import WebSocketServerState

logger = get_logger()

_ROUTES = {PUB.encode(): PUB, MPUB.encode(): MPUB}

_MAX_DISCARDED_BYTES = 262_144
"""After an early response, discard at most this many bytes of the body; with more, close."""
_APP_BODY_BYTES = 65_536
"""Body bytes buffered for the application before reading pauses."""
_UNRESERVED_BYTES = 4_096
"""Outside of RESPONDING, up to this many unread bytes need no reservation."""
_STEPS_PER_TURN = 64
"""Maximum number of heads and body parts processed before other connections run."""
_APP_REQUEST_S = 0.0003
"""Estimated cost of a request to the application, charged to the read budget when it starts."""
_UVICORN_LOGGER = logging.getLogger("uvicorn.error")


class ConnectionState(enum.Enum):
    """
    The state of a connection, and the next state after input, a response or an error.

    ============  ======================  ========================  ====================
    state         input                   response written          invalid input
    ============  ======================  ========================  ====================
    IDLE          starts a head: HEAD;    -                         respond, LINGERING
                  cached: RESPONDING
    HEAD          completes it: BODY,     -                         respond, LINGERING
                  UPGRADED
    BODY          completes it:           DISCARDING or LINGERING   respond, LINGERING
                  RESPONDING
    RESPONDING    stays unread            IDLE or LINGERING         -
    DISCARDING    is discarded: IDLE      -                         LINGERING
    LINGERING     is discarded            -                         -
    UPGRADED      (another protocol)      -                         -
    CLOSED        -                       -                         -
    ============  ======================  ========================  ====================

    LINGERING follows every response with ``Connection: close``. Losing the connection leads to
    CLOSED, except from UPGRADED, where asyncio notifies the WebSocket instead. The client's EOF
    closes the connection at once in IDLE, HEAD, DISCARDING, and BODY of a publish; in RESPONDING,
    complete requests are answered first.
    """

    IDLE = "between two requests"
    HEAD = "a part of the head has arrived"
    BODY = "the head is complete, the body is not"
    RESPONDING = "the request is complete, the response is not written"
    DISCARDING = "the response was early, the rest of the body is discarded"
    LINGERING = "nothing more is read or written, waiting for the peer to close"
    UPGRADED = "a WebSocket owns the connection"
    CLOSED = "the connection is closed"


_IDLE, _HEAD, _BODY, _RESPONDING, _DISCARDING, _LINGERING, _UPGRADED, _CLOSED = ConnectionState

TRANSITIONS: dict[ConnectionState, frozenset[ConnectionState]] = {
    # A request with a cached head is complete at once.
    _IDLE: frozenset({_HEAD, _RESPONDING, _LINGERING, _CLOSED}),
    _HEAD: frozenset({_BODY, _UPGRADED, _LINGERING, _CLOSED}),
    _BODY: frozenset({_RESPONDING, _DISCARDING, _LINGERING, _CLOSED}),
    _RESPONDING: frozenset({_IDLE, _LINGERING, _CLOSED}),
    _DISCARDING: frozenset({_IDLE, _LINGERING, _CLOSED}),
    _LINGERING: frozenset({_CLOSED}),
    _UPGRADED: frozenset(),
    _CLOSED: frozenset(),
}
"""The possible next states of each state; in the last three, no request is read."""


class HttpProtocol(asyncio.Protocol):
    """
    One HTTP connection; ``partial(HttpProtocol, server)`` is uvicorn's ``http=``.

    The object is also the transport of its `AppRequest`: when the request closes it, the connection
    lingers, so that the client can still read the response.
    """

    __slots__ = (
        "_app_state",
        "_buffered_bytes",
        "_bytes_in",
        "_chunks",
        "_closing_since",
        "_config",
        "_connected_at",
        "_head",
        "_idle_since",
        "_is_app_body_full",
        "_is_body_broken",
        "_is_processing",
        "_is_proxied",
        "_is_reading_paused",
        "_is_stopping",
        "_last_cached",
        "_loop",
        "_offset",
        "_overload_error",
        "_peer",
        "_peer_has_finished",
        "_progress_at",
        "_remaining_bytes",
        "_request",
        "_request_count",
        "_reserved_bytes",
        "_server",
        "_server_state",
        "_started_at",
        "_state",
        "_unread",
        "_write_paused",
        "handler",
        "transport",
    )

    def __init__(
        self,
        server: HttpServerState,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        if not config.loaded:
            config.load()
        self.handler = server.handler
        self.transport: asyncio.Transport = None  # type: ignore[assignment] # set by connection_made
        self._config = config
        self._server_state = server_state
        self._app_state = app_state
        self._loop = _loop or asyncio.get_running_loop()
        self._server = server
        self._state = _IDLE
        self._peer = Caller("", is_secure=False)
        self._is_proxied = False
        """True if the peer is a trusted proxy, whose headers name the caller."""
        self._last_cached: CachedRequestHead | None = None
        """The head of the last request that was found in the cache; see `find_cached`."""
        self._unread = b""
        """Received bytes; those before `_offset` have been processed."""
        self._offset = 0
        self._reserved_bytes = 0
        """Bytes reserved in the publish buffer for unread bytes and a long head."""
        self._overload_error: Overloaded | None = None
        """The error to send after the current response, because further input was dropped."""
        self._head: HeadReader | None = None
        """The head being read, or the head of the current request."""
        self._request: PublishRequest | AppRequest | None = None
        """The current request, in BODY and RESPONDING."""
        self._remaining_bytes = 0
        """Unread bytes of a body with a Content-Length, in BODY and DISCARDING."""
        self._chunks: ChunkedBody | None = None
        """The reader of a chunked body, otherwise None."""
        self._is_processing = False
        self._is_body_broken = False
        """True if the application's request body ended early, so that no request can follow."""
        self._is_app_body_full = False
        self._is_reading_paused = False
        self._write_paused = False
        self._is_stopping = False
        self._peer_has_finished = False
        self._connected_at = clock()
        self._started_at = 0.0
        """When the current request started, by the event loop's clock."""
        self._idle_since = self._loop.time()
        self._closing_since = 0.0
        self._buffered_bytes = 0
        """The size of the write buffer at the last call of `check_timeouts`."""
        self._progress_at = 0.0
        """When `check_timeouts` last found the write buffer empty or smaller than before."""
        self._bytes_in = 0
        self._request_count = 0
        """Number of responses written."""

    @property
    def state(self) -> ConnectionState:
        """The current state."""
        return self._state

    @property
    def open_requests(self) -> int:
        """Number of requests without a response; unread bytes count as one request."""
        return (self._request is not None) + (self._offset < len(self._unread))

    # Opening and closing

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Register the connection; refuse it if a limit is reached."""
        self.transport = transport
        self._server_state.connections.add(self)  # type: ignore[arg-type] # uvicorn lists its own
        peername = transport.get_extra_info("peername")
        host = str(peername[0]) if isinstance(peername, tuple) and peername else ""
        is_secure = transport.get_extra_info("sslcontext") is not None
        server = self._server
        self._peer = Caller(host, is_secure=is_secure)
        self._is_proxied = server.proxies is not None and server.proxies.trusts(host)
        connected = transport.get_extra_info("socket")
        fd = -1 if connected is None else connected.fileno()
        if (error := server.add(self, fd)) is not None:
            self._refuse_connection(error)

    def _refuse_connection(self, error: LimitReached) -> None:
        """
        Respond with *error* and close.

        If too many refused connections linger already, close at once: the client then loses the
        response only if it sends at the same time. With TLS, abort, because a close would wait for
        the client's close_notify.
        """
        self._write_error(error)
        if self._server.refused.may_linger:
            self._linger()
        elif self._peer.is_secure:
            self._abort()
        else:
            self._close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Release all resources; messages already handed to the producer are still published."""
        del exc
        self._state = _CLOSED
        self._server.remove(self)
        self._server_state.connections.discard(self)
        self._drop_request()
        self._drop_input()
        logger.debug(
            "http connection closed",
            client=self._peer.address,
            requests=self._request_count,
            bytes_in=self._bytes_in,
            seconds=round(clock() - self._connected_at, 3),
        )

    def eof_received(self) -> bool:
        """
        Called when the client has sent EOF: respond to its complete requests, then close.

        With TLS, asyncio closes the connection whatever this returns, so unread requests are
        dropped.
        """
        self._peer_has_finished = True
        if isinstance(self._request, AppRequest):
            self._request.end_input()
            if self._state is _BODY:  # it stays incomplete, but the application may still respond
                self._break_app_body(self._request)
        if (self._state is _RESPONDING or self._unread) and not self._peer.is_secure:
            return True  # keeps the transport open for writing
        self._drop_input()
        return False

    def shutdown(self) -> None:
        """Close after the responses to all complete requests; uvicorn calls this on shutdown."""
        self._is_stopping = True
        if self._state in (_IDLE, _HEAD, _DISCARDING) and not self._unread:
            self._close()
        else:
            self.drain()

    def drain(self) -> None:
        """Make the application's response the last one, unless the response has already begun."""
        request = self._request
        # Publishes need nothing here: `write_ok` and `write_response` check when they respond.
        if (
            isinstance(request, AppRequest)
            and not request.response_started
            and self._is_last_response
        ):
            request.keep_alive = False

    @property
    def _is_last_response(self) -> bool:
        """True if no request follows: the gateway is stopping, and no other head has arrived."""
        is_ending = self._server.is_draining or self._is_stopping
        return is_ending and self._unread.find(HEAD_END, self._offset) < 0

    def _drop_request(self) -> None:
        """Abandon the current request, if any."""
        request, self._request = self._request, None
        self._head = self._chunks = None
        if request is not None:
            request.abandon()

    def _drop_input(self) -> None:
        """Drop the unread bytes, and release their reservation in the publish buffer."""
        self._unread, self._offset = b"", 0
        self._release_unread()

    def _close(self) -> None:
        """Close the socket without lingering, as soon as the write buffer is sent."""
        self._state = _LINGERING
        self._closing_since = self._loop.time()
        self.transport.close()

    def _abort(self) -> None:
        self._state = _LINGERING
        self._closing_since = self._loop.time()
        self.transport.abort()

    def _linger(self) -> None:
        """
        Send EOF after the last response, and discard input until the client closes.

        Closing with unread input makes the kernel send a reset, and the client may lose the
        response (RFC 9112 §9.6). `check_timeouts` aborts after `LINGER_S`.
        """
        if self._state in (_LINGERING, _CLOSED):
            return
        self._state = _LINGERING
        self._closing_since = self._loop.time()
        self._drop_request()
        self._drop_input()
        if self._peer_has_finished:
            self.transport.close()
            return
        half_close(self.transport)
        self._update_reading()

    # Reading

    def data_received(self, data: bytes) -> None:
        """Process *data* from the client; a request whose head is cached is not parsed."""
        self._bytes_in += len(data)
        state = self._state
        if state is _LINGERING or state is _CLOSED:
            return
        if self._unread:
            self._unread = self._unread[self._offset :] + data
            self._offset = 0
        elif state is _IDLE and (found := self.handler.find_cached(data, self._last_cached)):
            # The usual case of a producer: one read is one complete request with a known head.
            self._last_cached, body = found
            self._state = _RESPONDING
            request = self._request = PublishRequest(self, self._last_cached.head)
            request.publish_cached(self._last_cached, body)
            return
        else:
            self._unread = data
        self._process()

    def _process(self) -> None:
        """Process unread bytes until none are left, or until a response must be written first."""
        if self._is_processing:
            return  # called by a response that was written below; the outer loop continues
        self._is_processing = True
        # A request reserves the bytes that it takes; the rest is reserved again below.
        self._release_unread()
        began_at = clock()
        try:
            self._process_steps(began_at + self._server.read_budget.slice_s)
        except GatewayError as error:
            self._fail(error)
        except Exception as error:
            logger.exception("http connection failed")
            self._fail(error)
        finally:
            self._is_processing = False
            self._server.read_budget.spend(clock() - began_at)
        if self._offset == len(self._unread):
            self._unread = b""
            self._offset = 0
            if self._is_finished():
                self._drop_request()
                self._close()
        if size_bytes := self._reservable_bytes:
            self._reserve(size_bytes)
        self._update_reading()

    def _process_steps(self, ends_at: float) -> None:
        """Process input until none can be processed, or until other connections must run."""
        for _ in range(_STEPS_PER_TURN):
            if clock() >= ends_at:
                break
            if not self._process_step():
                return
        self._process_later()

    def _is_finished(self) -> bool:
        """Return whether the last response is written; called when no unread bytes are left."""
        if self._state in (_IDLE, _HEAD, _DISCARDING):
            return self._peer_has_finished or self._is_stopping
        return self._state is _BODY and self._peer_has_finished

    def _process_later(self) -> None:
        self._server.read_budget.wait(self._process_if_open)

    def _process_if_open(self) -> None:
        if self._state not in (_LINGERING, _UPGRADED, _CLOSED):
            self._process()

    def _process_step(self) -> bool:
        """Read one head or one part of a body; return False if nothing can be read now."""
        if self._offset == len(self._unread) or self._write_paused:
            # Backpressure: a peer that does not read its responses must not cause more of them.
            return False
        state = self._state
        if state is _IDLE or state is _HEAD:
            return self._read_head()
        if state is _BODY:
            return self._read_body()
        if state is _DISCARDING:
            return self._discard_body()
        return False

    def _update_reading(self) -> None:
        """Pause reading from the socket while received bytes cannot be processed; else resume."""
        # In LINGERING, input is discarded, so it needs no memory and reading never pauses.
        is_paused = self._state is not _LINGERING and (
            bool(self._unread) or self._write_paused or self._is_app_body_full
        )
        if is_paused is self._is_reading_paused or self._state in (_UPGRADED, _CLOSED):
            return
        self._is_reading_paused = is_paused
        if self.transport.is_closing():
            return
        if is_paused:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()

    @property
    def _reservable_bytes(self) -> int:
        """
        The bytes to reserve in the publish buffer for unread input and an incomplete head.

        In RESPONDING, these are all unread bytes; in other states only more than
        `_UNRESERVED_BYTES`, so that other publishers who fill the buffer do not cause a small
        request to be refused. Bytes that will be discarded need no reservation.
        """
        state = self._state
        size_bytes = len(self._unread) - self._offset
        if state is _DISCARDING:
            size_bytes -= self._remaining_bytes
        if state is _RESPONDING:
            return size_bytes
        if state in (_LINGERING, _UPGRADED, _CLOSED):
            return 0
        if self._head is not None:
            size_bytes += self._head.memory_bytes
        return size_bytes if size_bytes > _UNRESERVED_BYTES else 0

    def _reserve(self, size_bytes: int) -> None:
        """
        Reserve *size_bytes* of the publish buffer for unread bytes.

        If the buffer is full, drop the unread bytes, respond with 503 after the current response,
        and close.
        """
        try:
            self.handler.producer.reserve_arriving(size_bytes)
        except Overloaded as error:
            self._drop_input()
            if self._state is _RESPONDING:
                # A traceback references this frame, which would be a reference cycle.
                self._overload_error = error.with_traceback(None)
            elif self._state is _DISCARDING:
                # The current request already has its response; this one is for the next request.
                self._write_error(error)
                self._linger()
            else:
                self._fail(error)
        else:
            self._reserved_bytes = size_bytes

    def _release_unread(self) -> None:
        """Release what `_reserve` has reserved; idempotent."""
        reserved_bytes, self._reserved_bytes = self._reserved_bytes, 0
        if reserved_bytes:
            self.handler.producer.unreserve_arriving(reserved_bytes)

    # The head

    def _read_head(self) -> bool:
        unread = self._unread
        reader = self._head
        if self._state is _IDLE or reader is None:
            # A server should ignore empty lines before a request (RFC 9112 §2.2).
            lines = EMPTY_LINES.match(unread, self._offset)
            self._offset = lines.end() if lines else self._offset
            if self._offset == len(unread):
                return False
            self._state = _HEAD
            self._started_at = self._loop.time()
            reader = self._head = HeadReader()
        self._offset = reader.feed(unread, self._offset)
        if reader.is_complete:
            self._begin_request(reader)
        return reader.is_complete

    def _begin_request(self, head: HeadReader) -> None:
        """Start a publish, a WebSocket upgrade, or a request to the application."""
        path, _, raw_query = head.target.partition(b"?")
        route = _ROUTES.get(path)
        # Most paths match as they are; only escapes, fragments and absolute URLs need decoding.
        if route is None and (b"%" in path or b"#" in path or not path.startswith(b"/")):
            path, raw_query = decode_target(head.target)
            route = _ROUTES.get(path)
        if route is not None and head.method == b"POST":
            self._expect_body(head)
            self._begin_publish(head, route, raw_query)
            return
        if head.wants_websocket and (websockets := self._server.websockets) is not None:
            self._upgrade(head, websockets)
            return
        self._expect_body(head)
        self._begin_app_request(head)

    def _expect_body(self, head: HeadReader) -> None:
        self._chunks = ChunkedBody() if head.is_chunked else None
        self._remaining_bytes = head.content_length or 0

    def _begin_publish(self, head: HeadReader, route: str, raw_query: bytes) -> None:
        size_bytes = None if head.is_chunked else head.content_length
        publish_head = read_head(
            route, raw_query, head.headers, self._caller(head), size_bytes=size_bytes
        )
        request = PublishRequest(self, publish_head, keep_alive=head.keep_alive)
        request.expects_continue = head.expects_continue and head.has_body
        self._request = request
        self._state = _BODY
        request.begin()  # may respond at once; `_complete_body` then only ends the body
        if not head.has_body:
            self._complete_body()

    def _begin_app_request(self, head: HeadReader) -> None:
        """Start the application before the body has arrived: most routes ignore the body."""
        scope = http_scope(
            head,
            self._caller(head),
            self._config,
            self.transport.get_extra_info("sockname"),
            self._app_state,
        )
        flow = FlowControl(self)  # type: ignore[arg-type] # this object is its transport
        if self._write_paused:
            flow.pause_writing()  # the previous response still fills the write buffer
        request = AppRequest(
            scope=scope,
            transport=self,  # type: ignore[arg-type]
            flow=flow,
            logger=_UVICORN_LOGGER,
            access_logger=_UVICORN_LOGGER,
            access_log=False,
            default_headers=self._server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=head.expects_continue,
            # Provisional: `_complete_body` sets it again, but the response may start earlier.
            keep_alive=not self._is_body_long and self._keeps_alive(head),
            on_response=self._on_app_response,
        )
        self._request = request
        self._state = _BODY
        if not head.has_body:
            self._complete_body()
        task = spawn("answer a request", request.run_asgi(self._config.loaded_app))
        self._server.read_budget.spend(_APP_REQUEST_S)
        self._server_state.tasks.add(task)
        task.add_done_callback(self._server_state.tasks.discard)

    def _keeps_alive(self, head: HeadReader) -> bool:
        """Return whether the connection can be kept alive after the application's response."""
        # The application sends no 100 Continue, so the client may send the body or omit it: the
        # next bytes are either a body or a request (RFC 9110 §10.1.1).
        return head.keep_alive and not (head.expects_continue or self._is_last_response)

    @property
    def _is_body_long(self) -> bool:
        """True if the rest of the body may be too long to discard."""
        return self._chunks is not None or self._remaining_bytes > _MAX_DISCARDED_BYTES

    def _caller(self, head: HeadReader) -> Caller:
        """Return the client: the peer, or the one that a trusted proxy names."""
        proxies = self._server.proxies
        if proxies is None or not self._is_proxied:
            return self._peer
        return proxies.caller(self._peer, head.headers)

    def _upgrade(self, head: HeadReader, websockets: WebSocketServerState) -> None:
        """Hand the connection over to a WebSocket, with the bytes after the head."""
        upgrade = RawUpgradeRequest(head.method, head.target, head.headers, self._caller(head))
        # Frames may follow the request in the same read; the WebSocket gets them first.
        early = self._unread[self._offset :]
        self._drop_input()
        self._update_reading()
        self._state = _UPGRADED
        self._head = None
        self._server.remove(self)
        self._server_state.connections.discard(self)
        connection = self.transport, self._server_state, self._server.refused
        UpgradeProtocol(websockets, connection, upgrade, early)

    # The body

    def _next_body_part(self) -> tuple[bytes, bool]:
        """Return the next part of the body, and whether it is the last."""
        unread, at = self._unread, self._offset
        chunks = self._chunks
        if chunks is not None:
            part, self._offset = chunks.feed(unread, at)
            return part, chunks.is_complete
        self._offset = min(len(unread), at + self._remaining_bytes)
        self._remaining_bytes -= self._offset - at
        return unread[at : self._offset], not self._remaining_bytes

    def _read_body(self) -> bool:
        request = self._request
        part, is_last = self._next_body_part()
        if isinstance(request, PublishRequest):
            if part:
                request.add(part, is_last=is_last)
        elif request is not None:
            request.body += part
            request.message_event.set()
            if len(request.body) > _APP_BODY_BYTES and not is_last:
                self._is_app_body_full = True
                request.flow.pause_reading()  # so that the application's `receive` resumes it
                return False
        if is_last and self._state in (_BODY, _DISCARDING):
            self._complete_body()
        return self._may_continue(is_last=is_last)

    def _may_continue(self, *, is_last: bool) -> bool:
        """Return False if other connections must run first, after many tiny chunks."""
        if is_last or self._chunks is None or self._offset == len(self._unread):
            return True
        self._process_later()
        return False

    def _complete_body(self) -> None:
        """Called when the body is complete: publish it, pass it on, or start the next request."""
        request = self._request
        if self._state is _DISCARDING:
            self._state = _IDLE
            self._idle_since = self._loop.time()
        elif self._state is _BODY:
            self._state = _RESPONDING
            if isinstance(request, PublishRequest):
                head, self._head = self._head, None
                request.end()
                # `find_cached` recognizes a complete request by the Content-Length.
                if head is not None and head.content_length and not head.expects_continue:
                    request.cache_head(head.raw)
            elif request is not None:
                request.more_body = False
                request.message_event.set()
                if self._head is not None and not request.response_started:
                    request.keep_alive = self._keeps_alive(self._head)

    def _discard_body(self) -> bool:
        _, is_last = self._next_body_part()
        if is_last:
            self._complete_body()
        return self._may_continue(is_last=is_last)

    def _break_app_body(self, request: AppRequest) -> None:
        """End the body of *request* early; the application may still respond."""
        self._is_body_broken = True
        self._drop_input()
        self._state = _RESPONDING
        request.break_body()

    def _fail(self, error: BaseException) -> None:
        """Respond with *error* if possible, and close: input is invalid, late or too much."""
        state = self._state
        if state in (_IDLE, _HEAD):
            self._write_error(error)
            self._linger()
        elif state is _BODY and isinstance(self._request, PublishRequest):
            self._drop_input()
            self._state = _RESPONDING
            self._request.fail(error)
        elif state is _BODY and isinstance(self._request, AppRequest):
            self._break_app_body(self._request)
        elif state is _UPGRADED:
            # The upgrade failed, and the transport may already have another protocol: close here.
            self.transport.abort()
        else:
            self._linger()

    # Timeouts

    def check_timeouts(self, now: float) -> None:
        """Enforce the timeouts; `HttpServerState` calls this every second."""
        limits = self._server.limits
        state = self._state
        if self._is_write_stalled(now):
            self._abort()
        elif state is _LINGERING:
            if self._buffered_bytes:  # `LINGER_S` starts only after the response is sent
                self._closing_since = now
            elif now - self._closing_since > LINGER_S:
                self.transport.abort()
        elif state in (_HEAD, _BODY, _DISCARDING):
            if self._is_reading_paused:
                # The client cannot send more while reading is paused: do not blame it.
                self._started_at = now
            elif now - self._started_at > limits.request_timeout_s:
                self._fail(RequestTimeout(limits.request_timeout_s))
        elif self.idle_s(now) > limits.keep_alive_s:
            self._close()

    def idle_s(self, now: float) -> float:
        """Return the seconds since the last response; 0 during a request."""
        return now - self._idle_since if self._state is _IDLE and not self._unread else 0.0

    def close_idle(self, now: float) -> bool:
        """Close the connection if idle for at least `IDLE_S`; return whether it was."""
        if self.idle_s(now) < IDLE_S:
            return False
        self._close()
        return True

    def _is_write_stalled(self, now: float) -> bool:
        """Return whether the write buffer has made no progress for ``response_timeout_s``."""
        buffered_bytes = self.transport.get_write_buffer_size()
        if (
            buffered_bytes == 0
            or self._buffered_bytes == 0
            or buffered_bytes < self._buffered_bytes
        ):
            self._progress_at = now
        self._buffered_bytes = buffered_bytes
        return now - self._progress_at > self._server.limits.response_timeout_s

    # Writing

    def pause_writing(self) -> None:
        """Called when the write buffer is full: stop reading until the client reads responses."""
        self._write_paused = True
        if isinstance(self._request, AppRequest):
            self._request.flow.pause_writing()
        self._update_reading()

    def resume_writing(self) -> None:
        """Called when the write buffer has drained: resume reading requests."""
        self._write_paused = False
        # 0 counts as progress, because the buffer may fill again before the next check.
        self._buffered_bytes = 0
        if isinstance(self._request, AppRequest):
            self._request.resume_writing()
        if self._unread:
            self._process_later()
        self._update_reading()

    def write_continue(self) -> None:
        """Send ``100 Continue``."""
        self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def write_ok(self, request: PublishRequest) -> None:
        """End *request* with the response 200 OK."""
        if not (request.keep_alive and request.head.is_plain) or self._is_last_response:
            headers = self.handler.ok_headers(request.head)
            self.write_response(request, (200, [*OK_HEADERS, *headers], OK))
            return
        # Fast path: all requests without special headers get the same bytes.
        self.transport.write(self.handler.ok_response(self._server_state.default_headers))
        self._on_response(keep_alive=True)

    def write_response(self, request: PublishRequest, response: HttpResponse) -> None:
        """End *request* with *response*; close if the rest of its body is too long to discard."""
        keep_alive = request.keep_alive and not self._is_last_response
        # Without 100 Continue, the client may or may not send the body (RFC 9110 §10.1.1).
        if self._state is _BODY and (request.expects_continue or self._is_body_long):
            keep_alive = False
        self._write(response, keep_alive=keep_alive)
        self._on_response(keep_alive=keep_alive)

    def _on_app_response(self) -> None:
        """Called after the last byte of the application's response."""
        request = self._request
        if isinstance(request, AppRequest):
            keep_alive = request.keep_alive and not (self._is_body_broken or self._is_last_response)
            is_body_long = self._state is _BODY and self._is_body_long
            self._on_response(keep_alive=keep_alive and not is_body_long)

    def _on_response(self, *, keep_alive: bool) -> None:
        """Called after each response: discard the rest of the body, read a request, or close."""
        self._server_state.total_requests += 1
        self._request_count += 1
        self._request = None
        self._is_app_body_full = False
        if self._head is not None:
            self._head = None
            if not self._unread:  # the reservation was for the head
                self._release_unread()
        if not keep_alive:
            self._linger()
            return
        if self._overload_error is not None:
            # The input after this request was dropped, so the next request is incomplete.
            self._write_error(self._overload_error)
            self._linger()
            return
        if self._state is _BODY:
            self._state = _DISCARDING
        else:
            self._state = _IDLE
            self._idle_since = self._loop.time()
        if self._unread or self._peer_has_finished:
            # Not recursively: hundreds of pipelined requests may finish synchronously, one stack
            # frame inside the other.
            if not self._is_processing:
                self._process_later()
        elif self._is_reading_paused:
            self._update_reading()

    def _write_error(self, error: BaseException) -> None:
        """Send *error* where there is no request to respond to; the caller must close."""
        response = problem_response(error, new_request_id())
        # Elsewhere, `_started_at` is of an older request, which had its response.
        waited_s = self._loop.time() - self._started_at if self._state is _HEAD else 0.0
        count_response(OTHER, OTHER, response[0], clock() - waited_s)
        self._write(response, keep_alive=False)

    def _write(self, response: HttpResponse, *, keep_alive: bool) -> None:
        status, headers, body = response
        close = [] if keep_alive else [(b"connection", b"close")]
        headers = [*self._server_state.default_headers, *headers, *close]
        self.transport.write(encode_response((status, headers, body)))

    # The transport of an `AppRequest`

    def write(self, data: bytes) -> None:
        """Send a part of the application's response, unless the request was abandoned."""
        if self._request is not None:
            self.transport.write(data)

    def close(self) -> None:
        """Called by the request cycle of uvicorn: close after the response, complete or not."""
        request = self._request
        if isinstance(request, AppRequest) and request.response_complete:
            return  # uvicorn calls `_on_app_response` next, and that closes
        self._linger()

    def is_closing(self) -> bool:
        """Return whether the connection is closing, so that no response can be sent."""
        return self._state in (_LINGERING, _CLOSED) or self.transport.is_closing()

    def pause_reading(self) -> None:
        """Do nothing: `FlowControl` calls this only after `_read_body` has paused reading."""

    def resume_reading(self) -> None:
        """Resume reading: the application has consumed the buffered body."""
        if self._is_app_body_full:
            self._is_app_body_full = False
            if self._unread:
                self._process_later()
            self._update_reading()
