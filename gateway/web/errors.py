"""
Map errors to HTTP responses and WebSocket close codes.

The body of an error response is ``application/problem+json`` (RFC 9457). Its additional member
``message`` has the token that nsqd would send, so that clients of nsqd can read it. 4xx and 503
mean that nothing was published; 504 means that the outcome is unknown.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping

import msgspec
from starlette.types import Scope

from gateway.errors import (
    AuthRequired,
    BrokerRefused,
    BrokerUnreachable,
    CredentialRefused,
    DrainRefused,
    Forbidden,
    HeadersTooLarge,
    InvalidRequest,
    LimitReached,
    NoBroker,
    NodeUnknown,
    NoNsqdHttpAddress,
    OutcomeUnknown,
    Overloaded,
    PartialFailure,
    PeekTakes,
    PermissionDenied,
    RateLimited,
    RequestTimeout,
)
from gateway.protocol.http_api import (
    NSQ_HEADER,
    OptionsResponse,
    Redirect,
    RouteError,
    find_route,
    status_of,
)
from gateway.web.responses import TITLES, HttpResponse


class CloseCode(enum.IntEnum):
    """WebSocket close codes; with 4500 and above, a client should not reconnect."""

    NORMAL = 1000
    PROTOCOL_ERROR = 1002
    WRONG_KIND = 1003
    NOT_UTF8 = 1007
    TOO_BIG = 1009
    INTERNAL = 1011
    # 1012 to 1014 are not in RFC 6455, but in IANA's registry of close codes.
    RESTART = 1012
    FULL = 1013
    NO_BROKER = 1014
    # 4000 to 4999 are for private use (RFC 6455 §7.4.2).
    MISSED_PONG = 4000
    SLOW = 4001
    SECRET_REFUSED = 4003
    CHANNEL_GONE = 4004
    BAD_REQUEST = 4500
    NO_AUTH = 4501
    FORBIDDEN = 4503
    TOO_MANY_ERRORS = 4508


class ErrorResponse(msgspec.Struct, frozen=True, gc=False):
    """What a client gets for an error: a response over HTTP, or a close code over a WebSocket."""

    status: int
    """The HTTP status."""
    token: str
    """nsqd's name of the error, such as INVALID_TOPIC, or the gateway's own."""
    close: CloseCode
    """The close code if the error ends a WebSocket."""
    detail: str | None = None
    """A text to send instead of the error's, which may have internal addresses; None: its text."""
    retryable: bool = False
    """True if a retry may succeed and cannot publish a message twice."""
    retry_after_s: int | None = None
    """The Retry-After header in seconds; None for no header."""


INTERNAL_ERROR = ErrorResponse(
    500,
    "INTERNAL_ERROR",
    CloseCode.INTERNAL,
    "internal error; see the gateway's log for this request id",
)
NO_BROKER = ErrorResponse(
    503,
    "NO_BROKER",
    CloseCode.NO_BROKER,
    "no nsqd is reachable; nothing was done, retry later",
    retryable=True,
    retry_after_s=5,
)
OUTCOME_UNKNOWN = ErrorResponse(
    504,
    "OUTCOME_UNKNOWN",
    CloseCode.INTERNAL,
    "nsqd did not respond; the message may or may not be published, "
    "and a retry may publish it twice",
)
EXITING = ErrorResponse(
    503,
    "EXITING",
    CloseCode.NO_BROKER,
    "nsqd is shutting down or its disk is full; nothing was published, try again later",
    retryable=True,
    retry_after_s=1,
)
DRAINING = ErrorResponse(503, "EXITING", CloseCode.RESTART, retryable=True, retry_after_s=1)
"""The gateway itself is shutting down; `EXITING` is for an nsqd that does."""
AUTH_REQUIRED = ErrorResponse(
    401,
    "AUTH_REQUIRED",
    CloseCode.NO_AUTH,
    "a secret is required; nothing was done, send it as Authorization: Bearer SECRET",
)
NOT_FOUND = ErrorResponse(404, "NOT_FOUND", CloseCode.BAD_REQUEST)
METHOD_NOT_ALLOWED = ErrorResponse(405, "METHOD_NOT_ALLOWED", CloseCode.BAD_REQUEST)
UPGRADE_REQUIRED = ErrorResponse(426, "UPGRADE_REQUIRED", CloseCode.BAD_REQUEST)

ERROR_RESPONSES: dict[type[Exception], ErrorResponse] = {
    Forbidden: ErrorResponse(403, "FORBIDDEN", CloseCode.FORBIDDEN),
    AuthRequired: AUTH_REQUIRED,
    CredentialRefused: ErrorResponse(401, "AUTH_FAILED", CloseCode.SECRET_REFUSED),
    PermissionDenied: ErrorResponse(403, "UNAUTHORIZED", CloseCode.FORBIDDEN),
    LimitReached: ErrorResponse(503, "FULL", CloseCode.FULL, retryable=True, retry_after_s=5),
    Overloaded: ErrorResponse(503, "OVERLOADED", CloseCode.FULL, retryable=True, retry_after_s=1),
    NoBroker: NO_BROKER,
    NoNsqdHttpAddress: msgspec.structs.replace(NO_BROKER, detail=None),
    BrokerUnreachable: NO_BROKER,
    OutcomeUnknown: OUTCOME_UNKNOWN,
    NodeUnknown: ErrorResponse(404, "NODE_NOT_FOUND", CloseCode.BAD_REQUEST),
    PeekTakes: ErrorResponse(409, "PEEK_TAKES", CloseCode.BAD_REQUEST),
    DrainRefused: ErrorResponse(409, "DRAIN_REFUSED", CloseCode.BAD_REQUEST),
    # Retryable: administrative operations are idempotent.
    PartialFailure: ErrorResponse(502, "PARTLY_DONE", CloseCode.INTERNAL, retryable=True),
    RequestTimeout: ErrorResponse(408, "REQUEST_TIMEOUT", CloseCode.BAD_REQUEST, retryable=True),
    HeadersTooLarge: ErrorResponse(431, "HEAD_TOO_BIG", CloseCode.BAD_REQUEST),
    RateLimited: ErrorResponse(429, "RATE_LIMITED", CloseCode.FULL, retryable=True),
}
"""Responses by error class; `error_response` makes those of InvalidRequest and BrokerRefused."""


def _invalid(token: str) -> ErrorResponse:
    return ErrorResponse(status_of(token), token, CloseCode.BAD_REQUEST)


NSQD_ERROR_RESPONSES: dict[tuple[str, str], ErrorResponse] = {
    ("E_BAD_TOPIC", ""): _invalid("INVALID_TOPIC"),
    ("E_BAD_CHANNEL", ""): _invalid("INVALID_ARG_CHANNEL"),
    ("E_BAD_MESSAGE", "too big"): _invalid("MSG_TOO_BIG"),
    ("E_BAD_MESSAGE", "invalid message body size"): _invalid("MSG_EMPTY"),
    ("E_BAD_MESSAGE", ""): _invalid("BAD_MESSAGE"),
    ("E_BAD_BODY", "too big"): _invalid("BODY_TOO_BIG"),
    ("E_BAD_BODY", ""): _invalid("BAD_BODY"),
    ("E_INVALID", "DPUB"): _invalid("INVALID_DEFER"),
    ("E_SUB_FAILED", ""): ErrorResponse(
        503, "SUB_FAILED", CloseCode.FULL, retryable=True, retry_after_s=5
    ),
    ("E_PUB_FAILED", ""): EXITING,
    ("E_DPUB_FAILED", ""): EXITING,
    # nsqd stores the messages of an MPUB one by one: a disk error leaves a part published.
    ("E_MPUB_FAILED", "exiting"): EXITING,
    ("E_MPUB_FAILED", ""): OUTCOME_UNKNOWN,
    ("E_AUTH_FIRST", ""): AUTH_REQUIRED,
    ("E_AUTH_FAILED", ""): ErrorResponse(403, "AUTH_FAILED", CloseCode.FORBIDDEN),
    ("E_UNAUTHORIZED", ""): ErrorResponse(403, "UNAUTHORIZED", CloseCode.FORBIDDEN),
}
"""
The response for each error of nsqd's TCP protocol, by error code and a part of the description.

The first match applies, so an empty part, which always matches, is the last of its code. To the
same publish, nsqd's HTTP API would send the same response; SUB and AUTH do not exist in that API.
Source: nsqd/http.go and nsqd/protocol_v2.go.
"""


def error_response(error: BaseException) -> ErrorResponse:
    """Return the response for *error*; INTERNAL_ERROR for errors of unknown classes."""
    if isinstance(error, InvalidRequest):
        return _invalid(error.token)
    if isinstance(error, BrokerRefused):
        for (code, part), fault in NSQD_ERROR_RESPONSES.items():
            if code == error.code and part in error.description:
                return fault
    for kind in type(error).__mro__:
        if kind in ERROR_RESPONSES:
            return ERROR_RESPONSES[kind]
    return INTERNAL_ERROR


def with_names(error: BrokerRefused, topic: str, channel: str | None = None) -> BrokerRefused:
    """
    Return *error*; if it is an AUTH error that does not name the topic, a copy that does.

    nsqd names topic and channel if it knows the secret but does not authorize it, and not if the
    secret is unknown.
    """
    if not error.is_auth_error or f'"{topic}"' in error.description:
        return error
    names = f'topic "{topic}"' if channel is None else f'topic "{topic}", channel "{channel}"'
    return BrokerRefused(error.code, f"{error.description}; {names}")


def problem_response(error: BaseException, request_id: str) -> HttpResponse:
    """Return the response to a request that failed with *error*, without internal details."""
    fault = error_response(error)
    if isinstance(error, RateLimited):
        fault = msgspec.structs.replace(fault, retry_after_s=math.ceil(error.retry_after_s))
    return render_problem(fault, str(error) if fault.detail is None else fault.detail, request_id)


def render_problem(fault: ErrorResponse, detail: str, request_id: str) -> HttpResponse:
    """Return the response for *fault*; *detail* is its text for humans, and may quote input."""
    body = msgspec.json.encode(
        {
            "type": "about:blank",
            "title": TITLES[fault.status],
            "status": fault.status,
            # The text may quote input with lone surrogates.
            "detail": detail.encode("utf-8", "replace").decode(),
            "message": fault.token,
            "retryable": fault.retryable,
            "request_id": request_id,
        }
    )
    headers = [
        (b"content-type", b"application/problem+json"),
        (b"content-length", b"%d" % len(body)),
        # The text may quote input: a browser must not interpret it as HTML.
        (b"x-content-type-options", b"nosniff"),
        NSQ_HEADER,
        (b"x-request-id", request_id.encode()),
    ]
    if fault.retry_after_s is not None:
        headers.append((b"retry-after", b"%d" % fault.retry_after_s))
    if fault.status == 401:  # noqa: PLR2004 - RFC 9110 §11.6.1 requires it
        # RFC 6750 §3: an error only if the request had a credential.
        challenge = b"Bearer" if fault is AUTH_REQUIRED else b'Bearer error="invalid_token"'
        headers.append((b"www-authenticate", challenge))
    return fault.status, headers, body


_CONSOLE = "/console"


def is_not_found(method: str, path: str, routes: Mapping[str, tuple[str, ...]]) -> bool:
    """Return whether *path* gets 404: it is no route of *routes*, and redirects to none."""
    found = find_route(method, path, routes=routes)
    return isinstance(found, RouteError) and not found.allow


def not_found_response(
    scope: Scope, routes: Mapping[str, tuple[str, ...]], request_id: str
) -> HttpResponse:
    """
    Return the response to a request that matches no route and method of *routes*.

    As in nsqd: 405 for another method, 200 for OPTIONS, a redirect where only a slash differs, and
    404 otherwise. Not in nsqd: / redirects to the console.
    """
    method, path = scope["method"], scope["path"]
    found = find_route(method, path, routes=routes)
    if isinstance(found, RouteError) and found.allow:
        detail = f"{path} allows {found.allow}; the method was {method}"
        status, headers, body = render_problem(METHOD_NOT_ALLOWED, detail, request_id)
        return status, [*headers, (b"allow", found.allow.encode())], body
    if isinstance(found, OptionsResponse):
        return _empty(200, (b"allow", found.allow.encode()), request_id)
    if isinstance(found, Redirect):
        query = scope["query_string"]
        location = found.location.encode() + (b"?" + query if query else b"")
        return _empty(found.status, (b"location", location), request_id)
    if path == "/" and method in ("GET", "HEAD") and _CONSOLE in routes:
        # Users open the address that `serve` prints.
        return _empty(307, (b"location", _CONSOLE.encode()), request_id)
    # List /console only, not each of its files.
    known = ", ".join(sorted(each for each in routes if not each.startswith(f"{_CONSOLE}/")))
    detail = f"no such path: {path[:200]}; known paths: {known}"
    return render_problem(NOT_FOUND, detail, request_id)


def _empty(status: int, header: tuple[bytes, bytes], request_id: str) -> HttpResponse:
    headers = [header, (b"content-length", b"0"), (b"x-request-id", request_id.encode())]
    return status, headers, b""
