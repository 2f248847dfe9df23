"""Whole answers to a request, and how they go out over ASGI."""

from __future__ import annotations

from typing import TypeAlias

from starlette.types import Send

from gateway.protocol.http_api import TEXT

Headers: TypeAlias = list[tuple[bytes, bytes]]
Answer: TypeAlias = tuple[int, Headers, bytes]
"""Status, headers with names in small letters, body."""

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
    413: "Content Too Large",
    426: "Upgrade Required",
    429: "Too Many Requests",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    502: "Bad Gateway",
    503: "Service Unavailable",
    504: "Gateway Timeout",
}
"""The words of each status that is answered; Python renames some of its own now and then."""


def text_answer(status: int, text: bytes, request_id: str) -> Answer:
    """Return an answer of plain text."""
    headers = [
        (b"content-type", TEXT),
        (b"content-length", b"%d" % len(text)),
        (b"x-request-id", request_id.encode()),
    ]
    return status, headers, text


def encode_answer(answer: Answer) -> bytes:
    """Return *answer* as it goes over HTTP/1.1; its headers tell the length of its body."""
    status, headers, body = answer
    lines = [b"HTTP/1.1 %d %s" % (status, TITLES[status].encode())]
    lines += [b"%s: %s" % header for header in headers]
    return b"\r\n".join((*lines, b"", body))


async def send_answer(send: Send, answer: Answer) -> None:
    """Send *answer* to an HTTP request."""
    status, headers, body = answer
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
