"""Whole answers go out as ASGI wants them."""

from __future__ import annotations

from starlette.types import Receive, Scope, Send

from gateway.web.answers import deny_websocket, send_answer, text_answer
from tests.support.asgi import Exchange, http_scope, websocket_scope

ANSWER = text_answer(404, b"no", "r-1")
HEADERS = [
    (b"content-type", b"text/plain; charset=utf-8"),
    (b"content-length", b"2"),
    (b"x-request-id", b"r-1"),
]


async def denying(scope: Scope, receive: Receive, send: Send) -> None:
    """Refuse every upgrade."""
    await deny_websocket(scope, receive, send, ANSWER)


async def test_an_answer_is_two_events() -> None:
    """Start, then the whole body."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        del scope, receive
        await send_answer(send, ANSWER)

    exchange = await Exchange(http_scope("GET", "/"), []).run(app)

    assert [
        {"type": "http.response.start", "status": 404, "headers": HEADERS},
        {"type": "http.response.body", "body": b"no"},
    ] == exchange.sent


async def test_an_upgrade_is_refused_with_an_answer() -> None:
    """A server that knows the extension sends status and body."""
    exchange = await Exchange(websocket_scope("/"), [{"type": "websocket.connect"}]).run(denying)

    assert [
        {"type": "websocket.http.response.start", "status": 404, "headers": HEADERS},
        {"type": "websocket.http.response.body", "body": b"no"},
    ] == exchange.sent


async def test_an_upgrade_is_refused_where_no_answer_can_be_sent() -> None:
    """Without the extension the upgrade is closed."""
    scope = websocket_scope("/", can_answer=False)

    exchange = await Exchange(scope, [{"type": "websocket.connect"}]).run(denying)

    assert [{"type": "websocket.close", "code": 1008}] == exchange.sent
