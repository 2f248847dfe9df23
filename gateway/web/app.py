"""The public port put together: the publish plane in front, then WebSockets, then FastAPI."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.errors import Forbidden, GatewayError, InvalidRequest
from gateway.protocol.http_api import OK
from gateway.protocol.http_routes import ROUTES
from gateway.protocol.wire import Limits
from gateway.web.access import check_origin, request_id_of
from gateway.web.answers import Answer, deny_websocket, send_answer, text_answer
from gateway.web.credentials import AccessPolicy
from gateway.web.faults import UPGRADE_REQUIRED, problem, render
from gateway.web.publish import Publishes, PublishPlane
from gateway.web.unrouted import answer_unrouted

PUBLIC_ROUTES = {
    **{path: ROUTES[path] for path in ("/ping", "/pub", "/mpub")},
    "/sub": ("GET",),
}
"""Every path of the public port and its methods."""

_READING = {"GET", "HEAD", "OPTIONS"}


@dataclass(frozen=True, kw_only=True)
class WebParts:
    """What the public port needs of the rest of the house."""

    publisher: Publishes
    limits: Limits
    subscribe: ASGIApp
    """Takes the WebSocket scopes of /sub."""
    allow_origin: Collection[str] = ()
    """Pages, beside our own, that may post and subscribe: ``https://example.org``."""
    access: AccessPolicy = field(default_factory=AccessPolicy)


def create_app(parts: WebParts) -> ASGIApp:
    """Return the ASGI application of the public port."""
    return _PublicApp(parts)


class _PublicApp:
    """Sends each scope where it belongs; gives every request its id."""

    def __init__(self, parts: WebParts) -> None:
        plane = PublishPlane(
            parts.publisher, parts.limits, allow_origin=parts.allow_origin, access=parts.access
        )
        self._posts: dict[str, ASGIApp] = {"/pub": plane.pub, "/mpub": plane.mpub}
        self._subscribe = parts.subscribe
        self._allow_origin = parts.allow_origin
        self._rest = _create_rest()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = scope["type"]
        if kind == "http":
            if scope["method"] == "POST" and (post := self._posts.get(scope["path"])):
                await post(scope, receive, send)
            else:
                await self._http(scope, receive, send)
        elif kind == "websocket":
            await self._websocket(scope, receive, send)
        else:
            await self._rest(scope, receive, send)

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_id = request_id_of(scope["headers"])
        if scope["method"] not in _READING:
            try:
                check_origin(scope["headers"], self._allow_origin)
            except Forbidden as error:
                await send_answer(send, problem(error, request_id))
                return
        scope.setdefault("state", {})["request_id"] = request_id
        id_header = (b"x-request-id", request_id.encode())

        async def send_with_id(event: Message) -> None:
            if event["type"] == "http.response.start":
                others = [header for header in event["headers"] if header[0] != id_header[0]]
                event["headers"] = [*others, id_header]
            await send(event)

        await self._rest(scope, receive, send_with_id)

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/sub":
            await self._subscribe(scope, receive, send)
            return
        answer = answer_unrouted(
            {**scope, "method": "GET"}, {"/sub": ("GET",)}, request_id_of(scope["headers"])
        )
        await deny_websocket(scope, receive, send, answer)


def _create_rest() -> FastAPI:
    """Return the FastAPI application of everything that is not measured in requests a second."""
    rest = FastAPI(
        openapi_url=None,  # the contract is openapi.yaml, written by hand
        redirect_slashes=False,
        exception_handlers={
            404: _unrouted,
            405: _unrouted,
            RequestValidationError: _invalid,
            GatewayError: _failed,
            Exception: _failed,
        },
    )
    rest.add_api_route("/ping", _ping, methods=["GET"])
    rest.add_api_route("/sub", _sub_without_upgrade, methods=["GET"])
    return rest


async def _ping(request: Request) -> Response:
    """Say that this process answers."""
    return _response(text_answer(200, OK, request.state.request_id))


async def _sub_without_upgrade(request: Request) -> Response:
    """Say how to connect."""
    status, headers, body = render(
        UPGRADE_REQUIRED,
        "/sub is a WebSocket: connect to ws://HOST/sub?topic=TOPIC&channel=CHANNEL",
        request.state.request_id,
    )
    upgrade = [(b"connection", b"upgrade"), (b"upgrade", b"websocket")]
    return _response((status, [*headers, *upgrade], body))


async def _unrouted(request: Request, error: Exception) -> Response:
    """Answer as nsqd does to a path or a method that is not there."""
    del error
    return _response(answer_unrouted(request.scope, PUBLIC_ROUTES, request.state.request_id))


async def _invalid(request: Request, error: Exception) -> Response:
    """Answer for FastAPI's own checks with nsqd's token."""
    return await _failed(request, InvalidRequest("INVALID_REQUEST", str(error)))


async def _failed(request: Request, error: Exception) -> Response:
    """Answer with the row of the table of faults."""
    return _response(problem(error, request.state.request_id))


def _response(answer: Answer) -> Response:
    status, headers, body = answer
    response = Response(body, status)
    response.raw_headers = headers
    return response
