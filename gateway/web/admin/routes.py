"""
Routes for administration and statistics of all nsqds: /topic/*, /channel/*, /nodes, /stats, /info.

FastAPI only finds the route; `protocol.http_api` checks the parameters, in nsqd's order. FastAPI's
own validation would run before that, even before the check of the secret. `operation` declares the
parameters nevertheless, so that a test can compare the routes with openapi.yaml.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import msgspec
from fastapi import APIRouter, Request, Response
from starlette.types import Receive, Scope, Send

from gateway.client.admin import Administration
from gateway.client.node_drains import NodeDrains
from gateway.client.node_report import DRAIN_TOPIC
from gateway.client.nsqd_answers import NodeRequest
from gateway.client.nsqd_http import NsqdHttp
from gateway.client.peek import DEFAULT_MESSAGES, MAX_MESSAGES, ChannelPeek
from gateway.errors import PermissionDenied
from gateway.protocol import http_api
from gateway.protocol.http_api import HttpQuery
from gateway.web.admin.merge import GatewayIdentity, merge_infos, merge_stats, merge_texts
from gateway.web.auth import AdminAccess, Principal
from gateway.web.responses import TITLES, send_pieces

_OPERATION_IDS: Mapping[str, str] = {
    "/topic/create": "createTopic",
    "/topic/delete": "deleteTopic",
    "/topic/empty": "emptyTopic",
    "/topic/pause": "pauseTopic",
    "/topic/unpause": "unpauseTopic",
    "/topic/tombstone": "tombstoneTopic",
    "/channel/create": "createChannel",
    "/channel/delete": "deleteChannel",
    "/channel/empty": "emptyChannel",
    "/channel/pause": "pauseChannel",
    "/channel/unpause": "unpauseChannel",
    "/stats": "stats",
    "/info": "info",
    "/nodes": "nodes",
    "/nodes/drain": "drainNode",
    "/nodes/undrain": "undrainNode",
}
NODE_ROUTES: Mapping[str, tuple[str, ...]] = {
    "/nodes": ("GET",),
    "/channel/peek": ("GET", "POST"),
    **dict.fromkeys(("/nodes/drain", "/nodes/undrain", "/topic/tombstone"), ("POST",)),
}
"""The routes that nsqd does not have."""
_REPORTS = frozenset({"/stats", "/info", "/nodes"})
_PEEK = "/channel/peek"
_TAGS = {"topic": "Topics and channels", "channel": "Topics and channels", "nodes": "Nodes"}
"""Tags of operations that change something, by the first part of the path."""

_FILTERS = ("format", "topic", "channel", "include_clients", "include_mem")
_ALWAYS = (400, 401, 403, 500, 502, 503)
"""Statuses of every route in addition to 200; 408 and 431 are sent before routing."""


def operation(path: str, method: str | None = None) -> dict[str, Any]:
    """
    Return what `APIRouter.add_api_route` takes as keyword arguments for *path*.

    *method* is only needed where there are two.
    """
    if path == _PEEK:
        return _peek_operation(method or "GET")
    is_report = path in _REPORTS
    has_missing = not path.endswith("/create") and path not in {"/stats", "/info"}
    statuses = [*_ALWAYS, 404] if has_missing else [*_ALWAYS]
    if path == "/nodes/drain":
        statuses.append(409)
    return {
        "methods": ["GET" if is_report else "POST"],
        "operation_id": _OPERATION_IDS[path],
        "tags": ["State" if is_report else _TAGS[path.split("/")[1]]],
        "responses": {status: {"description": TITLES[status]} for status in sorted(statuses)},
        "openapi_extra": {"parameters": _parameters(path)},
    }


def _peek_operation(method: str) -> dict[str, Any]:
    statuses = sorted([*_ALWAYS, 404, *([409] if method == "GET" else [])])
    names = [_parameter(name, required=True) for name in ("topic", "channel")]
    return {
        "methods": [method],
        "operation_id": "peek" if method == "GET" else "peekByTaking",
        "tags": ["State" if method == "GET" else "Topics and channels"],
        "responses": {status: {"description": TITLES[status]} for status in statuses},
        "openapi_extra": {"parameters": [*names, _parameter("max", required=False)]},
    }


def _parameters(path: str) -> list[dict[str, Any]]:
    if path == "/info":
        return []
    if path == "/stats":
        return [_parameter(name, required=False) for name in _FILTERS]
    if path == "/nodes":
        return [_parameter("node", required=False)]
    if path.startswith("/nodes/"):
        return [_parameter("node", required=True)]
    if path == "/topic/tombstone":
        return [_parameter(name, required=True) for name in ("topic", "node")]
    names = ("topic", "channel") if path.startswith("/channel/") else ("topic",)
    return [_parameter(name, required=True) for name in names]


def _parameter(name: str, *, required: bool) -> dict[str, Any]:
    return {"name": name, "in": "query", "required": required, "schema": {"type": "string"}}


_Handler: TypeAlias = Callable[[bytes, Principal], Awaitable[Response]]
"""Responds to a request with this raw query, from this caller."""

_CHECKED = ("create", "empty")
"""
Actions of /topic/ that validate the topic's name.

The others do not, as in nsqd: to them, an invalid name is a topic that does not exist (404).
"""
_STATS_FILTERS = ("topic", "channel", "include_clients", "include_mem")
_ACTIONS = ("create", "delete", "empty", "pause", "unpause")


@dataclass(frozen=True, kw_only=True)
class AdminContext:
    """The dependencies of the admin routes."""

    nsqds: NsqdHttp
    administration: Administration
    drains: NodeDrains
    peek: ChannelPeek
    access: AdminAccess
    identity: GatewayIdentity
    user_agent: str
    """What the gateway's own connections to nsqd call themselves."""


def admin_router(parts: AdminContext) -> APIRouter:
    """Return the admin routes; the application responds to the GatewayErrors that they raise."""
    router = APIRouter()
    for action in _ACTIONS:
        _add(router, parts, f"/topic/{action}", _topic_route(parts, action))
        _add(router, parts, f"/channel/{action}", _channel_route(parts, action))
    _add(router, parts, "/topic/tombstone", _tombstone_route(parts))
    for method in NODE_ROUTES[_PEEK]:
        _add(router, parts, _PEEK, _peek_route(parts, may_take=method == "POST"), method)
    _add(router, parts, "/nodes", _nodes_route(parts))
    _add(router, parts, "/nodes/drain", _drain_route(parts, is_end=False))
    _add(router, parts, "/nodes/undrain", _drain_route(parts, is_end=True))
    _add(router, parts, "/stats", _stats_route(parts))
    _add(router, parts, "/info", _info_route(parts))
    return router


def _add(
    router: APIRouter,
    parts: AdminContext,
    path: str,
    answer: _Handler,
    method: str | None = None,
) -> None:
    """Add the route *path*, which identifies the caller, then responds as *answer* returns."""

    async def route(request: Request) -> Response:
        principal = await parts.access.check(request.scope["headers"])
        return await answer(request.scope["query_string"], principal)

    router.add_api_route(path, route, **operation(path, method))


def _topic_route(parts: AdminContext, action: str) -> _Handler:
    async def answer(raw_query: bytes, principal: Principal) -> Response:
        query = http_api.parse_query(raw_query)
        if action in _CHECKED:
            topic = http_api.require_topic(query).encode()
        else:
            topic = http_api.require_topic_unchecked(query)
        principal.check_admin(topic.decode(errors="replace"))
        await parts.administration.change_topic(action, topic)
        return _done()

    return answer


def _channel_route(parts: AdminContext, action: str) -> _Handler:
    async def answer(raw_query: bytes, principal: Principal) -> Response:
        topic, channel = http_api.require_topic_and_channel(http_api.parse_query(raw_query))
        principal.check_admin(topic, channel)
        await parts.administration.change_channel(action, topic, channel)
        return _done()

    return answer


def _tombstone_route(parts: AdminContext) -> _Handler:
    async def answer(raw_query: bytes, principal: Principal) -> Response:
        query = http_api.parse_query(raw_query)
        topic = http_api.require_topic(query)
        node = http_api.require_node(query)
        principal.check_admin(topic)
        await parts.administration.tombstone(topic, node)
        return _done()

    return answer


def _drain_route(parts: AdminContext, *, is_end: bool) -> _Handler:
    async def answer(raw_query: bytes, principal: Principal) -> Response:
        node = http_api.require_node(http_api.parse_query(raw_query))
        # The mark is such a topic: who may administer it may drain.
        principal.check_admin(DRAIN_TOPIC)
        drains = parts.drains
        await (drains.undrain(node) if is_end else drains.drain(node))
        return _done()

    return answer


def _peek_route(parts: AdminContext, *, may_take: bool) -> _Handler:
    async def answer(raw_query: bytes, principal: Principal) -> Response:
        query = http_api.parse_query(raw_query)
        topic, channel = http_api.require_topic_and_channel(query)
        count = http_api.parse_count(
            "max", query, "messages", default=DEFAULT_MESSAGES, limit=MAX_MESSAGES
        )
        # A body is what a consumer of the channel would get.
        principal.check_subscribe(topic, channel)
        peeked = await parts.peek.peek(topic, channel, count, may_take=may_take)
        return _response(msgspec.json.encode(peeked), http_api.JSON)

    return answer


def _nodes_route(parts: AdminContext) -> _Handler:
    async def answer(raw_query: bytes, principal: Principal) -> Response:
        query = http_api.parse_query(raw_query)
        principal.check_stats(None)
        body = await parts.administration.nodes(
            None if query.get("node") is None else http_api.require_node(query),
            user_agent=parts.user_agent,
            is_shown=principal.sees_stats_of(),
        )
        return _response(body, http_api.JSON)

    return answer


def _stats_route(parts: AdminContext) -> _Handler:
    async def answer(raw_query: bytes, principal: Principal) -> Response:
        query = http_api.parse_query(raw_query)
        is_json = query.get("format") == b"json"
        topic = query.get("topic")
        principal.check_stats(topic.decode(errors="replace") if topic else None)
        is_shown = principal.sees_stats_of()
        if is_shown is not None and not is_json:
            raise PermissionDenied(
                "the text has the statistics of every topic, which the access file does not "
                "grant to this caller; add format=json, which has those that it does"
            )
        filters = [("format", b"json" if is_json else b"text"), *_given_filters(query)]
        request = NodeRequest(method="GET", path="/stats", query=filters)
        if is_json:
            pieces = await parts.nsqds.request_and_parse(
                request, partial(merge_stats, is_shown=is_shown)
            )
            return _headed(_PiecewiseResponse(pieces), sum(map(len, pieces)), http_api.JSON)
        return _response(merge_texts(await parts.nsqds.request_all(request)), http_api.TEXT)

    return answer


def _given_filters(query: HttpQuery) -> list[tuple[str, bytes]]:
    """Return the /stats filters in *query*, unchecked: nsqd interprets them."""
    given = [(name, query.get(name)) for name in _STATS_FILTERS]
    return [(name, value) for name, value in given if value is not None]


def _info_route(parts: AdminContext) -> _Handler:
    async def answer(raw_query: bytes, principal: Principal) -> Response:
        del raw_query  # nsqd ignores it
        principal.check_stats(None)
        answers = await parts.nsqds.request_all(NodeRequest(method="GET", path="/info"))
        return _response(merge_infos(answers, parts.identity), http_api.JSON)

    return answer


def _done() -> Response:
    return _response(b"", None)


class _PiecewiseResponse(Response):
    """A long response, sent in pieces; between them, the event loop does other work."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        super().__init__()
        self._pieces = pieces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response over ASGI."""
        del scope, receive
        await send_pieces(send, self.status_code, self.raw_headers, self._pieces)


def _response(body: bytes, content_type: bytes | None) -> Response:
    """Return a response with nsqd's headers."""
    return _headed(Response(body), len(body), content_type)


def _headed(response: Response, size_bytes: int, content_type: bytes | None) -> Response:
    # Replaces Starlette's headers, whose Content-Length is 0 for a `_PiecewiseResponse`.
    headers: list[Any] = [(b"content-length", b"%d" % size_bytes), http_api.NSQ_HEADER]
    if content_type is not None:
        headers.append((b"content-type", content_type))
    response.raw_headers = headers
    return response
