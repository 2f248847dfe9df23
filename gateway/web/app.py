"""The application of the public port: FastAPI; publishing and WebSockets are before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.errors import Forbidden, GatewayError, InvalidRequest
from gateway.protocol.http_api import OK
from gateway.protocol.http_routes import ROUTES, Options, find_route
from gateway.web.access import request_id_of
from gateway.web.answers import Answer, Headers, send_answer, text_answer
from gateway.web.faults import UPGRADE_REQUIRED, problem, render
from gateway.web.origins import OriginPolicy, page_of
from gateway.web.unrouted import answer_unrouted

PUBLIC_ROUTES = {
    **{path: methods for path, methods in ROUTES.items() if path != "/config/:opt"},
    **dict.fromkeys(
        ("/sub", "/docs", "/openapi.yaml", "/openapi.json", "/asyncapi.yaml"), ("GET",)
    ),
}
"""Every path of the public port and its methods; those that publish are `HttpPort`'s."""

_READING = {"GET", "HEAD", "OPTIONS"}


@dataclass(frozen=True, kw_only=True)
class WebParts:
    """What the application needs of the rest of the house."""

    origins: OriginPolicy = field(default_factory=OriginPolicy)
    """Which pages may call."""
    routers: Sequence[APIRouter] = ()
    """What FastAPI answers beside /ping: administration, documentation."""


def create_app(parts: WebParts) -> ASGIApp:
    """Return the ASGI application of the public port: what `HttpProtocol` does not answer."""
    return _PublicApp(parts)


class _PublicApp:
    """Sends each scope where it belongs; gives every request its id."""

    def __init__(self, parts: WebParts) -> None:
        self._origins = parts.origins
        self._rest = _create_rest(parts.routers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._http(scope, receive, send)
        else:
            await self._rest(scope, receive, send)

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = scope["headers"]
        request_id = request_id_of(headers)
        page, host = page_of(headers)
        more: Headers = [(b"x-request-id", request_id.encode())]
        if page:
            if scope["method"] == "OPTIONS" and (answer := self._preflight(scope)):
                await send_answer(send, answer)
                return
            more += self._origins.answer_headers(page)
        names = {name for name, _ in more}

        async def send_with_more(event: Message) -> None:
            if event["type"] == "http.response.start":
                others = [header for header in event["headers"] if header[0] not in names]
                event["headers"] = [*others, *more]
            await send(event)

        if scope["method"] not in _READING:
            try:
                self._origins.check(page, host)
            except Forbidden as error:
                await send_answer(send_with_more, problem(error, request_id))
                return
        scope.setdefault("state", {})["request_id"] = request_id
        await self._rest(scope, receive, send_with_more)

    def _preflight(self, scope: Scope) -> Answer | None:
        """Return what a browser is told that asks before it posts; None: it does not."""
        found = find_route("OPTIONS", scope["path"], routes=PUBLIC_ROUTES)
        if not isinstance(found, Options):
            return None
        return self._origins.preflight(scope["headers"], found.allow)


def _create_rest(routers: Sequence[APIRouter]) -> FastAPI:
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
    for router in routers:
        rest.include_router(router)
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
