"""
RFC 6455 §4.2: accept or refuse an upgrade to a WebSocket.

The library `websockets` checks the handshake. Its error texts may quote a header that contains a
secret; those texts are replaced. A refused upgrade gets the same kind of body (problem details) as
every other error of the public port.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from types import MappingProxyType

from starlette.types import Scope
from uvicorn.server import ServerState
from websockets.datastructures import Headers
from websockets.exceptions import InvalidHeader, InvalidUpgrade
from websockets.http11 import Request, Response
from websockets.server import ServerProtocol

from gateway.aio import spawn
from gateway.errors import GatewayError, HeadersTooLarge, InvalidRequest, NoBroker, TooManyHeaders
from gateway.telemetry import OTHER, Attributes, Span, get_logger
from gateway.web.errors import (
    DRAINING,
    METHOD_NOT_ALLOWED,
    UPGRADE_REQUIRED,
    not_found_response,
    problem_response,
    render_problem,
)
from gateway.web.http.head import MAX_HEADERS, check_list_length, decode_target
from gateway.web.lingering_close import LingeringClose, RefusedPeers
from gateway.web.metrics import (
    BAD_REQUEST,
    clock,
    count_refused,
    count_refused_socket,
    count_response,
    known_method,
)
from gateway.web.metrics import DRAINING as DRAIN_REASON
from gateway.web.origins import origins_and_host, same_origin_referer
from gateway.web.proxies import Caller
from gateway.web.responses import HttpResponse, encode_response, request_id_from
from gateway.web.websocket.protocol import (
    ABNORMAL,
    Accepted,
    Upgrade,
    WebSocketProtocol,
    WebSocketServerState,
)

REQUEST_ID = b"x-request-id"

_ROUTES = {"/sub": ("GET",)}
_MAX_HEADER_BYTES = 8_192
_MAX_HEADERS_BYTES = 16_384
"""
Maximum size of all headers together.

`websockets` parses about 1 KiB of a header's list per millisecond, in the event loop.
"""
_PROTOCOL, _VERSION = "Sec-WebSocket-Protocol", "Sec-WebSocket-Version"
_PROTOCOL_HEADER = _PROTOCOL.lower().encode()

_LOGGER = logging.getLogger("gateway.web.websocket.handshake")
# The library would log every header, and headers contain secrets.
_LOGGER.setLevel(logging.WARNING)


@dataclass(frozen=True)
class RawUpgradeRequest:
    """An upgrade request as the HTTP parser read it; its handshake is not checked yet."""

    method: bytes
    target: bytes
    headers: Sequence[tuple[bytes, bytes]] = field(repr=False)
    """Lower-case names."""
    caller: Caller


def read_upgrade(request: RawUpgradeRequest) -> Upgrade:
    """Return the upgrade that *request* asks for; `handshake_response` checks the handshake."""
    # The usual target is a path without escapes, which needs no decoding.
    path, _, query = request.target.partition(b"?")
    if b"%" in path or not path.startswith(b"/"):
        path, query = decode_target(request.target)
    others = [header for header in request.headers if header[0] != REQUEST_ID]
    request_id = request_id_from(request.headers)
    return Upgrade(
        path=path.decode(errors="replace"),
        query=query,
        # Fixed here: if the client sent none, each call of `request_id_from` generates another one.
        headers=[*others, (REQUEST_ID, request_id.encode())],
        subprotocols=_subprotocols(request.headers),
        peer=request.caller.address,
        is_secure=request.caller.is_secure,
    )


def read_plain_request(scope: Scope) -> Upgrade:
    """
    Return the upgrade that a page's ordinary GET of /sub asks about.

    Browsers hide from a page why its upgrade was refused, so the page sends the same request as an
    ordinary GET, and gets the reason in the response.
    """
    headers: list[tuple[bytes, bytes]] = [
        (name, value) for name, value in scope["headers"] if name != REQUEST_ID
    ]
    headers.append((REQUEST_ID, scope["state"]["request_id"].encode()))
    # Browsers send no Origin with a GET to the page's own origin; the Referer then names it.
    if not origins_and_host(headers)[0] and (page := same_origin_referer(headers)):
        headers.append((b"origin", page))
    return Upgrade(
        path=scope["path"],
        query=scope["query_string"],
        headers=headers,
        subprotocols=_subprotocols(headers),
        peer=scope["client"][0] if scope.get("client") else "",
        is_secure=scope.get("scheme") == "https",
    )


def handshake_response(request: RawUpgradeRequest, upgrade: Upgrade) -> Response | HttpResponse:
    """Return the 101 for *request* (a `Response`), or the response that refuses it."""
    request_id = request_id_from(upgrade.headers)
    if request.method != b"GET":
        method = request.method.decode(errors="replace")
        detail = f"a WebSocket is requested with GET, not {method}"
        answer = _with(render_problem(METHOD_NOT_ALLOWED, detail, request_id), (b"allow", b"GET"))
        return (*answer[:2], b"") if request.method == b"HEAD" else answer
    if upgrade.path not in _ROUTES:
        scope = {"method": "GET", "path": upgrade.path, "query_string": upgrade.query}
        return not_found_response(scope, _ROUTES, request_id)
    try:
        _check_head(request.headers)
    except (HeadersTooLarge, InvalidRequest) as error:
        return problem_response(error, request_id)
    protocol = ServerProtocol(logger=_LOGGER)
    response_101 = protocol.accept(Request(upgrade.path, _library_headers(request.headers)))
    if protocol.handshake_exc is not None:
        return _refusal(protocol.handshake_exc, request_id)
    return response_101


def encode_101(response_101: Response, subprotocol: str | None) -> bytes:
    """Return the bytes of the 101; a *subprotocol* of None is left out."""
    if subprotocol is not None:
        response_101.headers[_PROTOCOL] = subprotocol
    return response_101.serialize()


def _check_head(headers: Sequence[tuple[bytes, bytes]]) -> None:
    """
    Raise an error if the headers are too many or too large, or announce a body.

    `websockets` checks this when it parses a request, but this request was parsed by `HeadReader`.
    The list of subprotocols is limited here, too: the library parses it in one step, so that a long
    one would block the event loop. `HeadReader` limits the lists that any request may have.
    """
    if len(headers) > MAX_HEADERS:
        raise TooManyHeaders(len(headers), limit=MAX_HEADERS, what="headers")
    size_bytes = sum(len(name) + len(value) for name, value in headers)
    if size_bytes > _MAX_HEADERS_BYTES:
        raise HeadersTooLarge(size_bytes, limit_bytes=_MAX_HEADERS_BYTES)
    check_list_length(_values(headers, _PROTOCOL_HEADER), _PROTOCOL)
    for name, value in headers:
        if len(name) + len(value) > _MAX_HEADER_BYTES:
            raise HeadersTooLarge(len(name) + len(value), limit_bytes=_MAX_HEADER_BYTES)
        if name == b"transfer-encoding" or (name == b"content-length" and value != b"0"):
            raise InvalidRequest("INVALID_REQUEST", "the request for a WebSocket has no body")


def _refusal(error: Exception, request_id: str) -> HttpResponse:
    """Return the response to an invalid handshake (RFC 6455 §4.2.1); *error* is the library's."""
    detail = f"the WebSocket handshake is invalid: {error}"
    if isinstance(error, InvalidHeader) and error.name == _PROTOCOL:
        detail = f"{_PROTOCOL} is malformed; it is a list of tokens, separated by commas"
    if isinstance(error, InvalidHeader) and error.name == _VERSION:
        # §4.4: name the supported version.
        answer = render_problem(
            UPGRADE_REQUIRED, f"{detail}; the only supported version is 13", request_id
        )
        return _with(answer, (b"sec-websocket-version", b"13"), (b"upgrade", b"websocket"))
    if isinstance(error, InvalidUpgrade):
        answer = render_problem(UPGRADE_REQUIRED, detail, request_id)
        return _with(answer, (b"upgrade", b"websocket"))
    return problem_response(InvalidRequest("INVALID_REQUEST", detail), request_id)


def _with(answer: HttpResponse, *headers: tuple[bytes, bytes]) -> HttpResponse:
    status, others, body = answer
    return status, [*others, *headers], body


def _library_headers(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    return Headers([(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers])


def _values(headers: Iterable[tuple[bytes, bytes]], wanted: bytes) -> list[bytes]:
    return [value for name, value in headers if name == wanted]


def _subprotocols(headers: Iterable[tuple[bytes, bytes]]) -> list[str]:
    """
    Return the subprotocols that the client offers, without a check of their syntax.

    Returns an empty list if there are too many: `handshake_response` then refuses the request.
    """
    values = _values(headers, _PROTOCOL_HEADER)
    try:
        check_list_length(values, _PROTOCOL)
    except TooManyHeaders:
        return []
    return [
        token.strip()
        for value in values
        for token in value.decode("latin-1").split(",")
        if token.strip()  # empty list elements are ignored (RFC 9110 §5.6.1)
    ]


logger = get_logger()

_SUB = "/sub"
_ACCEPT_TIMEOUT_S = 60.0
"""Time for the upgrade handler to decide; its own timeouts are shorter."""


class UpgradeProtocol(asyncio.Protocol):
    """
    Handle a connection from its upgrade request to the 101, or to the response that refuses it.

    The HTTP protocol creates it with the parsed *request* and *early*, the bytes that followed it.
    A client must not send before the 101 (§4.1); bytes that arrive anyway are kept for the
    WebSocket, and the connection is not read until then.
    """

    def __init__(
        self,
        websockets: WebSocketServerState,
        connection: tuple[asyncio.Transport, ServerState, RefusedPeers],
        request: RawUpgradeRequest,
        early: bytes,
    ) -> None:
        self.transport, self._server_state, self._refused = connection
        self._began_at = clock()
        self._websockets = websockets
        self._early = early
        self._accepting: asyncio.Task[None] | None = None
        """The running `_accept`; None once it has decided, or the client has disconnected."""
        self._server_state.connections.add(self)  # type: ignore[arg-type]
        self.transport.set_protocol(self)
        upgrade = read_upgrade(request)
        self._request_id = request_id_from(upgrade.headers)
        self._route = _SUB if upgrade.path == _SUB else OTHER
        self._method = known_method(request.method.decode("latin-1"))
        self._span: Span | None = None
        if websockets.spans is not None:
            self._span = websockets.spans.begin(
                self._method, self._route, upgrade.headers, self._began_at
            )
            if self._span is not None:
                upgrade = replace(upgrade, trace_id=self._span.trace_id)
        response_101 = handshake_response(request, upgrade)
        if not isinstance(response_101, Response):
            count_refused(BAD_REQUEST)
            self._refuse(response_101)
            return
        if early:
            self.transport.pause_reading()
        self._accepting = spawn("accept a WebSocket", self._accept(upgrade, response_101))

    async def _accept(self, upgrade: Upgrade, response_101: Response) -> None:
        """Ask the upgrade handler for a decision, and send the 101 or the refusal."""
        upgrade_handler = self._websockets.upgrade_handler
        try:
            async with asyncio.timeout(_ACCEPT_TIMEOUT_S):
                accepted = await upgrade_handler.accept(upgrade)
        except GatewayError as error:
            self._reject(error, upgrade_handler.refusal(error, self._request_id))
        except TimeoutError:
            late = NoBroker(
                f"the upgrade was not accepted within {_ACCEPT_TIMEOUT_S:.0f} s; try again later"
            )
            self._reject(late, problem_response(late, self._request_id))
        except Exception as error:
            logger.exception("upgrade failed", request_id=self._request_id)
            self._reject(error, problem_response(error, self._request_id))
        # A cancellation needs no response: the client is gone, or `shutdown` has sent one.
        else:
            # Nothing is awaited since `accept` returned, or a cancellation could lose the socket.
            self._open(accepted, response_101)

    def _reject(self, failure: Exception, answer: HttpResponse) -> None:
        """Send *answer*, which refuses because of *failure*, if the client is still connected."""
        if self._accepting is not None:
            count_refused_socket(failure)
            self._refuse(answer)

    def _open(self, accepted: Accepted, response_101: Response) -> None:
        """
        Send the 101, and hand the connection over to a `WebSocketProtocol`.

        If the client has disconnected, or the write fails, call the handler's `on_open` and
        `on_close` all the same, so that it releases what it has acquired.
        """
        socket = WebSocketProtocol(self._websockets, self.transport, self._server_state)
        handler = accepted.handler
        is_cancelled, self._accepting = self._accepting is None, None
        self._server_state.connections.discard(self)
        if is_cancelled or self.transport.is_closing():
            # The client disconnected when the task could no longer be cancelled.
            handler.on_open(socket)
            handler.on_close(ABNORMAL)
            return
        try:
            self.transport.write(encode_101(response_101, accepted.subprotocol))
        except Exception:
            logger.exception("101 response not written", request_id=self._request_id)
            self.transport.abort()
            handler.on_open(socket)
            handler.on_close(ABNORMAL)
            return
        self._count(HTTPStatus.SWITCHING_PROTOCOLS, accepted.attributes)
        socket.begin(handler, self._early)

    def _count(self, status: int, caller: Attributes = MappingProxyType({})) -> None:
        """Count the response in the metrics; end the upgrade's span with attributes of *caller*."""
        is_open = status == HTTPStatus.SWITCHING_PROTOCOLS
        trace_id = None if self._span is None else self._span.trace_id
        self._end_span(
            {"http.response.status_code": int(status), **caller},
            error=None if is_open else str(status),
        )
        count_response(self._route, self._method, status, self._began_at, trace_id)

    def _end_span(self, attributes: Attributes, *, error: str | None) -> None:
        """End the span, if there is one; idempotent."""
        span, self._span = self._span, None
        if span is not None:
            span.end(attributes, error=error)

    def _refuse(self, answer: HttpResponse) -> None:
        """Send *answer* in place of the 101, and close the connection."""
        self._accepting = None
        status, headers, body = answer
        self._count(status)
        headers = [*self._server_state.default_headers, *headers, (b"connection", b"close")]
        self.transport.write(encode_response((status, headers, body)))
        self._server_state.connections.discard(self)
        LingeringClose(self.transport, self._server_state, self._refused)

    def data_received(self, data: bytes) -> None:
        """Keep *data*, which the client sent too early, and stop reading until the 101."""
        # Paused after the first bytes: a client must not fill memory before it is accepted.
        self._early += data
        self.transport.pause_reading()

    def eof_received(self) -> None:
        """Cancel the upgrade: a client that sends EOF before the 101 wants no WebSocket."""
        self._cancel()
        self._end_span({}, error="lost")

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the upgrade, because the connection is closed."""
        del exc
        self._cancel()
        self._end_span({}, error="lost")
        self._server_state.connections.discard(self)

    def _cancel(self) -> None:
        # Cleared first: `_reject` and `_open` take None as the sign of a cancellation.
        accepted, self._accepting = self._accepting, None
        if accepted is not None:
            accepted.cancel()

    def shutdown(self) -> None:
        """Refuse the upgrade if it is not decided yet; uvicorn calls this when it stops."""
        if self._accepting is None:
            return
        self._cancel()
        count_refused(DRAIN_REASON)
        text = "this gateway is shutting down; connect again, to another one"
        self._refuse(render_problem(DRAINING, text, self._request_id))
