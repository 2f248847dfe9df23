"""
RFC 6455 §4.2: which upgrades are taken, and what is answered in place of a 101 to the others.

The checks are those of `websockets`, whose texts may repeat a header; one of them may hold a
secret. A refusal has the same body as every other error of the public port.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from starlette.types import Scope
from websockets.datastructures import Headers
from websockets.exceptions import InvalidHeader, InvalidUpgrade
from websockets.http11 import Request, Response
from websockets.server import ServerProtocol

from gateway.errors import HeadTooBig, InvalidRequest
from gateway.web.access import request_id_of
from gateway.web.answers import Answer
from gateway.web.faults import METHOD_NOT_ALLOWED, UPGRADE_REQUIRED, problem, render
from gateway.web.http_head import unusual_target
from gateway.web.origins import own_page_of, page_of
from gateway.web.proxies import Caller
from gateway.web.unrouted import answer_unrouted
from gateway.web.websocket_port import Upgrade

REQUEST_ID = b"x-request-id"

_ROUTES = {"/sub": ("GET",)}
_MAX_HEADER_BYTES = 8_192
_MAX_HEADERS = 128
_PROTOCOL, _VERSION = "Sec-WebSocket-Protocol", "Sec-WebSocket-Version"

_LOGGER = logging.getLogger("gateway.web.websocket_handshake")
# It would log every header, and secrets are in them.
_LOGGER.setLevel(logging.WARNING)


@dataclass(frozen=True)
class Asked:
    """The head of a request for an upgrade, as it came."""

    method: bytes
    target: bytes
    headers: Sequence[tuple[bytes, bytes]] = field(repr=False)
    """Names in small letters."""
    caller: Caller


def read_upgrade(asked: Asked) -> Upgrade:
    """Return what is asked for; whether it may be had says `greet`."""
    path, _, query = asked.target.partition(b"?")
    if b"%" in path or not path.startswith(b"/"):
        path, query = unusual_target(asked.target)
    others = [header for header in asked.headers if header[0] != REQUEST_ID]
    request_id = request_id_of(asked.headers)
    return Upgrade(
        path=path.decode(errors="replace"),
        query=query,
        # The same one for everybody who looks, though the client may have sent none.
        headers=[*others, (REQUEST_ID, request_id.encode())],
        subprotocols=_subprotocols(asked.headers),
        peer=asked.caller.address,
        is_secure=asked.caller.is_secure,
    )


def read_plain_request(scope: Scope) -> Upgrade:
    """Return what the page that sent an ordinary GET would ask for with an upgrade."""
    headers: list[tuple[bytes, bytes]] = [
        (name, value) for name, value in scope["headers"] if name != REQUEST_ID
    ]
    headers.append((REQUEST_ID, scope["state"]["request_id"].encode()))
    if not page_of(headers)[0] and (page := own_page_of(headers)):
        headers.append((b"origin", page))
    return Upgrade(
        path=scope["path"],
        query=scope["query_string"],
        headers=headers,
        subprotocols=_subprotocols(headers),
        peer=scope["client"][0] if scope.get("client") else "",
        is_secure=scope.get("scheme") == "https",
    )


def greet(asked: Asked, upgrade: Upgrade) -> Response | Answer:
    """Return the 101 for the handshake that was *asked* for, or what is answered in its place."""
    request_id = request_id_of(upgrade.headers)
    if asked.method != b"GET":
        detail = f"a WebSocket is asked for with GET, not {asked.method.decode(errors='replace')}"
        answer = _with(render(METHOD_NOT_ALLOWED, detail, request_id), (b"allow", b"GET"))
        return (*answer[:2], b"") if asked.method == b"HEAD" else answer
    try:
        _check_head(asked.headers)
    except (HeadTooBig, InvalidRequest) as error:
        return problem(error, request_id)
    handshake = ServerProtocol(logger=_LOGGER)
    greeting = handshake.accept(Request(upgrade.path, _library_headers(asked.headers)))
    if handshake.handshake_exc is not None:
        return _refusal(handshake.handshake_exc, request_id)
    if upgrade.path not in _ROUTES:
        scope = {"method": "GET", "path": upgrade.path, "query_string": upgrade.query}
        return answer_unrouted(scope, _ROUTES, request_id)
    return greeting


def encode_greeting(greeting: Response, subprotocol: str | None) -> bytes:
    """Return *greeting* as it goes out, with the *subprotocol* that is spoken."""
    if subprotocol is not None:
        greeting.headers[_PROTOCOL] = subprotocol
    return greeting.serialize()


def _check_head(headers: Sequence[tuple[bytes, bytes]]) -> None:
    """Refuse what `websockets` refuses while it parses, which here another parser has done."""
    if len(headers) > _MAX_HEADERS:
        size_bytes = sum(len(name) + len(value) for name, value in headers)
        raise HeadTooBig(size_bytes, limit_bytes=_MAX_HEADER_BYTES)
    for name, value in headers:
        if len(name) + len(value) > _MAX_HEADER_BYTES:
            raise HeadTooBig(len(name) + len(value), limit_bytes=_MAX_HEADER_BYTES)
        if name == b"transfer-encoding" or (name == b"content-length" and value != b"0"):
            raise InvalidRequest("INVALID_REQUEST", "the request for a WebSocket has no body")


def _refusal(error: Exception, request_id: str) -> Answer:
    """Return what is answered to a handshake that breaks RFC 6455 §4.2.1 in the way of *error*."""
    detail = f"this is no WebSocket handshake: {error}"
    if isinstance(error, InvalidHeader) and error.name == _PROTOCOL:
        detail = f"{_PROTOCOL} is malformed; it is a list of tokens, separated by commas"
    if isinstance(error, InvalidHeader) and error.name == _VERSION:
        # §4.4: the version that we do speak.
        answer = render(UPGRADE_REQUIRED, f"{detail}; version 13 is spoken here", request_id)
        return _with(answer, (b"sec-websocket-version", b"13"), (b"upgrade", b"websocket"))
    if isinstance(error, InvalidUpgrade):
        answer = render(UPGRADE_REQUIRED, detail, request_id)
        return _with(answer, (b"upgrade", b"websocket"))
    return problem(InvalidRequest("INVALID_REQUEST", detail), request_id)


def _with(answer: Answer, *headers: tuple[bytes, bytes]) -> Answer:
    status, others, body = answer
    return status, [*others, *headers], body


def _library_headers(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    return Headers([(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers])


def _subprotocols(headers: Iterable[tuple[bytes, bytes]]) -> list[str]:
    """Return what the client would speak; whether the header is well-formed is looked at later."""
    wanted = _PROTOCOL.lower().encode()
    return [
        token.strip()
        for name, value in headers
        if name == wanted
        for token in value.decode("latin-1").split(",")
        if token.strip()  # an empty element of a list counts for nothing (RFC 9110 §5.6.1)
    ]
