"""Whole answers go out as ASGI wants them."""

from __future__ import annotations

from starlette.types import Receive, Scope, Send

from gateway.web.responses import send_response, text_response
from tests.support.http.asgi import Exchange, http_scope

ANSWER = text_response(404, b"no", "r-1")
HEADERS = [
    (b"content-type", b"text/plain; charset=utf-8"),
    (b"content-length", b"2"),
    (b"x-request-id", b"r-1"),
]


async def test_an_answer_is_two_events() -> None:
    """Start, then the whole body."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        del scope, receive
        await send_response(send, ANSWER)

    exchange = await Exchange(http_scope("GET", "/"), []).run(app)

    assert [
        {"type": "http.response.start", "status": 404, "headers": HEADERS},
        {"type": "http.response.body", "body": b"no"},
    ] == exchange.sent
