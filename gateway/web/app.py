"""The application of the public port: FastAPI; publishing and WebSockets are before it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.errors import Forbidden, GatewayError, InvalidRequest
from gateway.protocol.http_api import OK
from gateway.protocol.http_routes import ROUTES, Options, find_route
from gateway.web.access import request_id_of
from gateway.web.answers import Answer, Headers, send_answer, text_answer
from gateway.web.faults import UPGRADE_REQUIRED, problem, render
from gateway.web.http_account import counted
from gateway.web.origins import OriginPolicy, page_of
from gateway.web.page_folder import PageFolder
from gateway.web.static_files import CONSOLE_ROUTES, MODULE_ROUTES, READING
from gateway.web.unrouted import answer_unrouted, is_unrouted
from gateway.web.websocket_handshake import read_plain_request
from gateway.web.websocket_port import Upgrade

PUBLIC_ROUTES: Mapping[str, tuple[str, ...]] = {
    **{path: methods for path, methods in ROUTES.items() if path != "/config/:opt"},
    **dict.fromkeys(
        ("/sub", "/docs", "/openapi.yaml", "/openapi.json", "/asyncapi.yaml"), ("GET",)
    ),
    **MODULE_ROUTES,
    **CONSOLE_ROUTES,
}
"""Every path of the public port and its methods; those that publish are `HttpPort`'s."""

_ALLOW_ORIGIN = b"access-control-allow-origin"
_READING = {"GET", "HEAD", "OPTIONS"}


@dataclass(frozen=True, kw_only=True)
class WebParts:
    """What the application needs of the rest of the house."""

    origins: OriginPolicy = field(default_factory=OriginPolicy)
    """Which pages may call."""
    routers: Sequence[APIRouter] = ()
    """What FastAPI answers beside /ping: administration, documentation, files for browsers."""
    has_console: bool = True
    """Whether /console is among them."""
    page_folder: PageFolder | None = None
    """What is under everything else; None: nothing."""
    refuse_upgrade: Callable[[Upgrade], Answer | None] = lambda _upgrade: None
    """What an upgrade of /sub would be refused with, as far as that can be told without one."""


def public_routes(*, console: bool) -> Mapping[str, tuple[str, ...]]:
    """Return `PUBLIC_ROUTES`, without those of the console where that is not there."""
    absent = {} if console else CONSOLE_ROUTES
    return {path: methods for path, methods in PUBLIC_ROUTES.items() if path not in absent}


def create_app(parts: WebParts) -> ASGIApp:
    """Return the ASGI application of the public port: what `HttpProtocol` does not answer."""
    return _PublicApp(parts)


class _PublicApp:
    """Sends each scope where it belongs; gives every request its id."""

    def __init__(self, parts: WebParts) -> None:
        self._origins = parts.origins
        self._routes = public_routes(console=parts.has_console)
        self._page_folder = parts.page_folder
        self._rest = _create_rest(parts, self._routes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._http(scope, receive, counted(scope, send, self._routes))
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

        async def send_with_more(event: Message) -> None:
            if event["type"] == "http.response.start":
                event["headers"] = _joined(event["headers"], more)
            await send(event)

        if scope["method"] not in _READING:
            try:
                self._origins.check(page, host, is_secure=scope.get("scheme") == "https")
            except Forbidden as error:
                await send_answer(send_with_more, problem(error, request_id))
                return
        scope.setdefault("state", {})["request_id"] = request_id
        if await self._serve_page(scope, receive, send_with_more):
            return
        await self._rest(scope, receive, send_with_more)

    async def _serve_page(self, scope: Scope, receive: Receive, send: Send) -> bool:
        """Answer with a file of the operator's folder; False: nothing was sent."""
        method, path = scope["method"], scope["path"]
        return (
            self._page_folder is not None
            and method in READING
            and is_unrouted(method, path, self._routes)
            and await self._page_folder.serve(scope, receive, send)
        )

    def _preflight(self, scope: Scope) -> Answer | None:
        """Return what a browser is told that asks before it posts; None: it does not."""
        found = find_route("OPTIONS", scope["path"], routes=self._routes)
        if not isinstance(found, Options):
            return None
        return self._origins.preflight(scope["headers"], found.allow)


def _joined(headers: Headers, more: Headers) -> Headers:
    """Return the *headers* of an answer with *more*; who lets every page read has said so there."""
    names = {name for name, _ in more}
    if any(name == _ALLOW_ORIGIN for name, _ in headers):
        more = [header for header in more if header[0] == b"x-request-id"]
        names = {b"x-request-id"}
    return [*(header for header in headers if header[0] not in names), *more]


def _create_rest(parts: WebParts, routes: Mapping[str, tuple[str, ...]]) -> FastAPI:
    """Return the FastAPI application of everything that is not measured in requests a second."""
    unrouted = partial(_unrouted, routes)
    rest = FastAPI(
        openapi_url=None,  # the contract is openapi.yaml, written by hand
        redirect_slashes=False,
        exception_handlers={
            404: unrouted,
            405: unrouted,
            RequestValidationError: _invalid,
            GatewayError: _failed,
            Exception: _failed,
        },
    )
    rest.add_api_route("/ping", _ping, methods=["GET"])
    rest.add_api_route("/sub", partial(_sub_without_upgrade, parts.refuse_upgrade), methods=["GET"])
    for router in parts.routers:
        rest.include_router(router)
    return rest


async def _ping(request: Request) -> Response:
    """Say that this process answers."""
    return _response(text_answer(200, OK, request.state.request_id))


async def _sub_without_upgrade(
    refuse: Callable[[Upgrade], Answer | None], request: Request
) -> Response:
    """Say why an upgrade would be refused, which a browser keeps from its page, or how to ask."""
    answer = refuse(read_plain_request(request.scope))
    if answer is not None:
        status, headers, body = answer
        if status == HTTPStatus.FORBIDDEN:
            # A page that may not call is told at least that.
            headers = [*headers, (_ALLOW_ORIGIN, b"*")]
        return _response((status, headers, body))
    status, headers, body = render(
        UPGRADE_REQUIRED,
        "/sub is a WebSocket: connect to ws://HOST/sub?topic=TOPIC&channel=CHANNEL",
        request.state.request_id,
    )
    upgrade = [(b"connection", b"upgrade"), (b"upgrade", b"websocket")]
    return _response((status, [*headers, *upgrade], body))


async def _unrouted(
    routes: Mapping[str, tuple[str, ...]], request: Request, error: Exception
) -> Response:
    """Answer as nsqd does to a path or a method that is not there."""
    del error
    return _response(answer_unrouted(request.scope, routes, request.state.request_id))


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
