"""Build HTTP responses and request ids, and send responses as bytes or over ASGI."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Iterable
from typing import TypeAlias

from starlette.types import Receive, Send

from gateway.errors import InvalidRequest
from gateway.protocol.http_api import JSON, NSQ_HEADER, TEXT

Headers: TypeAlias = list[tuple[bytes, bytes]]
HttpResponse: TypeAlias = tuple[int, Headers, bytes]
"""Status, headers with lower-case names, body."""

TITLES = {
    200: "OK",
    204: "No Content",
    301: "Moved Permanently",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    409: "Conflict",
    413: "Content Too Large",
    417: "Expectation Failed",
    426: "Upgrade Required",
    429: "Too Many Requests",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    502: "Bad Gateway",
    503: "Service Unavailable",
    504: "Gateway Timeout",
}
"""Reason phrases by status; those of `http.HTTPStatus` differ between Python versions."""


def text_response(status: int, text: bytes, request_id: str) -> HttpResponse:
    """Return a plain-text response."""
    headers = [
        (b"content-type", TEXT),
        (b"content-length", b"%d" % len(text)),
        (b"x-request-id", request_id.encode()),
    ]
    return status, headers, text


def json_response(body: bytes, request_id: str) -> HttpResponse:
    """Return a response whose *body* is JSON, and that no cache keeps."""
    headers = [
        (b"content-type", JSON),
        (b"content-length", b"%d" % len(body)),
        NSQ_HEADER,
        (b"cache-control", b"no-store"),
        (b"x-request-id", request_id.encode()),
    ]
    return 200, headers, body


MAX_READ_BYTES = 8 * 1_048_576


async def read_body(receive: Receive) -> bytes:
    """
    Return the body of a request.

    Raises:
        InvalidRequest: It is longer than `MAX_READ_BYTES` (BODY_TOO_BIG), or the client left.
    """
    body = bytearray()
    while True:
        event = await receive()
        if event["type"] != "http.request":
            raise InvalidRequest("INVALID_REQUEST", "the body ended early; nothing was done")
        body += event["body"]
        if len(body) > MAX_READ_BYTES:
            text = f"the body has {len(body)} or more bytes; the limit is {MAX_READ_BYTES} bytes"
            raise InvalidRequest("BODY_TOO_BIG", text)
        if not event.get("more_body"):
            return bytes(body)


def encode_response(response: HttpResponse) -> bytes:
    """Encode *response* for HTTP/1.1. If it has a body, its headers must have Content-Length."""
    status, headers, body = response
    # HTTP/1.1 even to a client of HTTP/1.0: the server's own version (RFC 9110 §6.2).
    lines = [b"HTTP/1.1 %d %s" % (status, TITLES[status].encode())]
    lines += [b"%s: %s" % header for header in headers]
    return b"\r\n".join((*lines, b"", body))


_PIECE_BYTES = 131_072
"""Bytes sent in one turn of the event loop, which takes a fraction of a millisecond."""


async def send_response(send: Send, response: HttpResponse) -> None:
    """Send *response* over ASGI, a long body in pieces, between which other callbacks run."""
    status, headers, body = response
    starts = range(0, len(body), _PIECE_BYTES)
    pieces = (body[start : start + _PIECE_BYTES] for start in starts) if len(starts) > 1 else [body]
    await send_pieces(send, status, headers, pieces)


async def send_pieces(
    send: Send, status: int, headers: Iterable[tuple[bytes, bytes]], pieces: Iterable[bytes]
) -> None:
    """Send a response over ASGI whose body is *pieces*; between them, other callbacks run."""
    await send({"type": "http.response.start", "status": status, "headers": headers})
    last = b""
    for piece in pieces:
        if last:
            await send({"type": "http.response.body", "body": last, "more_body": True})
            # `send` only waits while the write buffer is full.
            await asyncio.sleep(0)
        last = piece
    await send({"type": "http.response.body", "body": last})


# The id is written to logs and response headers, so no other characters are accepted.
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")


def request_id_from(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Return the ``X-Request-Id`` of *headers* if it is valid, otherwise a new id."""
    for name, value in headers:
        if name == b"x-request-id":
            return sanitized_request_id(value)
    return new_request_id()


def sanitized_request_id(value: bytes) -> str:
    """Return *value* if it is 1 to 64 letters, digits, ``.``, ``_``, ``-``, otherwise a new id."""
    return value.decode("ascii") if _REQUEST_ID.fullmatch(value) else new_request_id()


def new_request_id() -> str:
    """Return 16 random hexadecimal digits; not cryptographically secure."""
    # Ids only relate log entries to requests; nothing is granted to those who guess one.
    return f"{random.getrandbits(64):016x}"
