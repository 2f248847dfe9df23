"""
The ASGI application of the public port, for all requests except publishes and upgrades.

`HttpProtocol` handles those two itself, and calls the application for all others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.errors import Forbidden, GatewayError, InvalidRequest
from gateway.protocol.http_api import OK, ROUTES, OptionsResponse, find_route
from gateway.web.admin.routes import NODE_ROUTES
from gateway.web.errors import (
    UPGRADE_REQUIRED,
    is_not_found,
    not_found_response,
    problem_response,
    render_problem,
)
from gateway.web.metrics import count_responses, init_routes
from gateway.web.origins import OriginPolicy, origins_and_host
from gateway.web.responses import (
    Headers,
    HttpResponse,
    request_id_from,
    send_response,
    text_response,
)
from gateway.web.site.assets import CONSOLE_ROUTES, MODULE_ROUTES, READING
from gateway.web.site.static_dir import StaticDir
from gateway.web.subscribe.pull_http import StreamRoute
from gateway.web.websocket.handshake import read_plain_request
from gateway.web.websocket.protocol import Upgrade
from gateway.web.whoami import WHOAMI

PUBLIC_ROUTES: Mapping[str, tuple[str, ...]] = {
    **{path: methods for path, methods in ROUTES.items() if path != "/config/:opt"},
    **dict.fromkeys(
        ("/sub", WHOAMI, "/docs", "/openapi.yaml", "/openapi.json", "/asyncapi.yaml"), ("GET",)
    ),
    **dict.fromkeys(("/pull", "/ack"), ("POST",)),
    **NODE_ROUTES,
    **MODULE_ROUTES,
    **CONSOLE_ROUTES,
}
"""Every path of the public port with its methods, including publishes and upgrades."""

_ALLOW_ORIGIN = b"access-control-allow-origin"
_READING = {"GET", "HEAD", "OPTIONS"}


@dataclass(frozen=True, kw_only=True)
class AppContext:
    """The dependencies of the application."""

    origins: OriginPolicy = field(default_factory=OriginPolicy)
    """Web pages that may send requests."""
    routers: Sequence[APIRouter] = ()
    """Routes besides /ping: administration, documentation, files for browsers."""
    has_console: bool = True
    """True if *routers* include /console."""
    static_dir: StaticDir | None = None
    """Serves the files of --static-dir at paths that have no route; None without --static-dir."""
    direct: Mapping[tuple[str, str], ASGIApp] = field(default_factory=dict)
    """Routes in front of FastAPI, by method and path: those of pulls, which may wait long."""
    stream: StreamRoute | None = None
    """Serves GET /sub as an event stream; None if there are no subscriptions."""
    refuse_upgrade: Callable[[Upgrade], HttpResponse | None] = lambda _upgrade: None
    """Returns the response that would refuse an upgrade of /sub; None if no reason is known."""


def public_routes(*, console: bool) -> Mapping[str, tuple[str, ...]]:
    """Return `PUBLIC_ROUTES`, without the console if it is disabled."""
    absent = {} if console else CONSOLE_ROUTES
    return {path: methods for path, methods in PUBLIC_ROUTES.items() if path not in absent}


def create_app(parts: AppContext) -> ASGIApp:
    """Return the ASGI application of the public port."""
    return _PublicApp(parts)


class _PublicApp:
    """Check origins, add common headers, serve static files, and delegate the rest to FastAPI."""

    def __init__(self, parts: AppContext) -> None:
        self._parts = parts
        self._origins = parts.origins
        self._routes = public_routes(console=parts.has_console)
        init_routes(self._routes)
        self._static_dir = parts.static_dir
        self._rest = _create_rest(parts, self._routes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            # Outermost, so that preflights, refused requests and static files are counted, too.
            await self._http(scope, receive, count_responses(scope, send, self._routes))
        else:
            await self._rest(scope, receive, send)

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = scope["headers"]
        request_id = request_id_from(headers)
        page, host = origins_and_host(headers)
        more: Headers = [(b"x-request-id", request_id.encode())]
        if page:
            # Before the check: to a page that is not allowed, `preflight` responds with the reason.
            if scope["method"] == "OPTIONS" and (answer := self._preflight(scope)):
                await send_response(send, answer)
                return
            more += self._origins.cors_headers(page)

        async def send_with_headers(event: Message) -> None:
            if event["type"] == "http.response.start":
                event["headers"] = _merge_headers(event["headers"], more)
            await send(event)

        # Reading needs no check: without CORS headers, a page cannot read the response.
        if scope["method"] not in _READING:
            try:
                self._origins.check(page, host, is_secure=scope.get("scheme") == "https")
            except Forbidden as error:
                await send_response(send_with_headers, problem_response(error, request_id))
                return
        # For the handlers, whose error responses have the same id in their body.
        scope.setdefault("state", {})["request_id"] = request_id
        if await self._serve_static(scope, receive, send_with_headers):
            return
        await self._route(scope)(scope, receive, send_with_headers)

    def _route(self, scope: Scope) -> ASGIApp:
        """Return what handles a request that no static file answers."""
        method, path = scope["method"], scope["path"]
        stream = self._parts.stream
        if path == "/sub" and method == "GET" and stream is not None and stream.is_asked(scope):
            return stream.serve
        return self._parts.direct.get((method, path), self._rest)

    async def _serve_static(self, scope: Scope, receive: Receive, send: Send) -> bool:
        """Send a file of --static-dir; return False, with nothing sent, if there is none."""
        method, path = scope["method"], scope["path"]
        return (
            self._static_dir is not None
            and method in READING
            and is_not_found(method, path, self._routes)
            and await self._static_dir.serve(scope, receive, send)
        )

    def _preflight(self, scope: Scope) -> HttpResponse | None:
        """Return the response to a CORS preflight; None if the request is not one."""
        found = find_route("OPTIONS", scope["path"], routes=self._routes)
        if not isinstance(found, OptionsResponse):
            return None
        return self._origins.preflight(scope["headers"], found.allow)


def _merge_headers(headers: Headers, more: Headers) -> Headers:
    """
    Return the *headers* of a route's response together with *more*.

    *more* replaces headers of the same name. Only if *headers* already allow an origin, as those of
    /nsq.js do, the CORS headers of *more* are left out.
    """
    names = {name for name, _ in more}
    if any(name == _ALLOW_ORIGIN for name, _ in headers):
        more = [header for header in more if header[0] == b"x-request-id"]
        names = {b"x-request-id"}
    return [*(header for header in headers if header[0] not in names), *more]


def _create_rest(parts: AppContext, routes: Mapping[str, tuple[str, ...]]) -> FastAPI:
    """Return the FastAPI application with all routes except publishes and upgrades."""
    unrouted = partial(_not_found, routes)
    rest = FastAPI(
        openapi_url=None,  # the contract is openapi.yaml, written by hand
        redirect_slashes=False,
        exception_handlers={
            404: unrouted,
            405: unrouted,
            RequestValidationError: _invalid,
            GatewayError: _failed,
            # Starlette sends this response, then raises the error again, so that uvicorn logs it.
            Exception: _failed,
        },
    )
    rest.add_api_route("/ping", _ping, methods=["GET"])
    rest.add_api_route("/sub", partial(_sub_without_upgrade, parts.refuse_upgrade), methods=["GET"])
    for router in parts.routers:
        rest.include_router(router)
    return rest


async def _ping(request: Request) -> Response:
    """Respond OK."""
    return _response(text_response(200, OK, request.state.request_id))


async def _sub_without_upgrade(
    refuse: Callable[[Upgrade], HttpResponse | None], request: Request
) -> Response:
    """
    Respond to a plain GET of /sub: why an upgrade would be refused, or how to connect.

    A page can read this response, whereas browsers hide the response to a refused upgrade from it.
    """
    answer = refuse(read_plain_request(request.scope))
    if answer is not None:
        status, headers, body = answer
        if status == HTTPStatus.FORBIDDEN:
            # CORS: let a page that may not connect read the reason.
            headers = [*headers, (_ALLOW_ORIGIN, b"*")]
        return _response((status, headers, body))
    status, headers, body = render_problem(
        UPGRADE_REQUIRED,
        "/sub is a WebSocket endpoint; connect to ws://HOST/sub?topic=TOPIC&channel=CHANNEL, or "
        "send Accept: text/event-stream",
        request.state.request_id,
    )
    upgrade = [(b"connection", b"upgrade"), (b"upgrade", b"websocket")]
    return _response((status, [*headers, *upgrade], body))


async def _not_found(
    routes: Mapping[str, tuple[str, ...]], request: Request, error: Exception
) -> Response:
    """Respond to an unknown path or method as nsqd does."""
    del error
    return _response(not_found_response(request.scope, routes, request.state.request_id))


async def _invalid(request: Request, error: Exception) -> Response:
    """Respond with nsqd's token INVALID_REQUEST if FastAPI's validation failed."""
    return await _failed(request, InvalidRequest("INVALID_REQUEST", str(error)))


async def _failed(request: Request, error: Exception) -> Response:
    """Respond with the problem for *error*."""
    return _response(problem_response(error, request.state.request_id))


def _response(answer: HttpResponse) -> Response:
    status, headers, body = answer
    response = Response(body, status)
    response.raw_headers = headers
    return response
