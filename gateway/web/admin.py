"""
nsqd's administration and reports, for all nodes at once: /topic/*, /channel/*, /stats, /info.

Parameters, their checks and the order of these are nsqd's (protocol/http_api.py); FastAPI only
routes, for its own checks would come first. What is asked of the nodes: client/administration.py.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request, Response

from gateway.client.administration import Administration
from gateway.client.node_answers import Question
from gateway.client.nsqd_http import NsqdHttp
from gateway.protocol import http_api
from gateway.protocol.http_api import Query
from gateway.web.admin_access import AdminAccess
from gateway.web.admin_contract import operation
from gateway.web.node_reports import Identity, merge_infos, merge_stats, merge_texts

_CHECKED = ("create", "empty")
"""Topic routes that check the name; the others look it up as it is, and it is not there."""
_FILTERS = ("topic", "channel", "include_clients", "include_mem")
_ACTIONS = ("create", "delete", "empty", "pause", "unpause")


@dataclass(frozen=True, kw_only=True)
class AdminParts:
    """What administration needs of the rest of the house."""

    nsqds: NsqdHttp
    administration: Administration
    access: AdminAccess
    identity: Identity


def admin_router(parts: AdminParts) -> APIRouter:
    """Return the routes; a GatewayError of theirs is for the application's own handler."""
    router = APIRouter()
    for action in _ACTIONS:
        _add(router, parts, f"/topic/{action}", _topic_route(parts, action))
        _add(router, parts, f"/channel/{action}", _channel_route(parts, action))
    _add(router, parts, "/stats", _stats_route(parts))
    _add(router, parts, "/info", _info_route(parts))
    return router


def _add(
    router: APIRouter, parts: AdminParts, path: str, answer: Callable[[bytes], Awaitable[Response]]
) -> None:
    """Add a route: first who asks is looked at, then what."""

    async def route(request: Request) -> Response:
        await parts.access.check(request.scope["headers"])
        return await answer(request.scope["query_string"])

    router.add_api_route(path, route, **operation(path))


def _topic_route(parts: AdminParts, action: str) -> Callable[[bytes], Awaitable[Response]]:
    async def answer(raw_query: bytes) -> Response:
        query = http_api.parse_query(raw_query)
        if action in _CHECKED:
            topic = http_api.require_topic(query).encode()
        else:
            topic = http_api.require_topic_unchecked(query)
        await parts.administration.topic(action, topic)
        return _done()

    return answer


def _channel_route(parts: AdminParts, action: str) -> Callable[[bytes], Awaitable[Response]]:
    async def answer(raw_query: bytes) -> Response:
        topic, channel = http_api.require_topic_and_channel(http_api.parse_query(raw_query))
        await parts.administration.channel(action, topic, channel)
        return _done()

    return answer


def _stats_route(parts: AdminParts) -> Callable[[bytes], Awaitable[Response]]:
    async def answer(raw_query: bytes) -> Response:
        query = http_api.parse_query(raw_query)
        is_json = query.get("format") == b"json"
        filters = [("format", b"json" if is_json else b"text"), *_given_filters(query)]
        answers = await parts.nsqds.ask(Question(method="GET", path="/stats", query=filters))
        if is_json:
            return _response(merge_stats(answers), http_api.JSON)
        return _response(merge_texts(answers), http_api.TEXT)

    return answer


def _given_filters(query: Query) -> list[tuple[str, bytes]]:
    """Return the filters as they came, for nsqd to understand them."""
    given = [(name, query.get(name)) for name in _FILTERS]
    return [(name, value) for name, value in given if value is not None]


def _info_route(parts: AdminParts) -> Callable[[bytes], Awaitable[Response]]:
    async def answer(raw_query: bytes) -> Response:
        del raw_query  # nsqd does not look at it
        answers = await parts.nsqds.ask(Question(method="GET", path="/info"))
        return _response(merge_infos(answers, parts.identity), http_api.JSON)

    return answer


def _done() -> Response:
    return _response(b"", None)


def _response(body: bytes, content_type: bytes | None) -> Response:
    """Return an answer as nsqd heads it."""
    response = Response(body)
    headers: list[Any] = [(b"content-length", b"%d" % len(body)), http_api.NSQ_HEADER]
    if content_type is not None:
        headers.append((b"content-type", content_type))
    response.raw_headers = headers
    return response
