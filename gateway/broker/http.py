"""
The broker's HTTP API: nsqd's, as a plain ASGI application.

Grammar, order of checks and tokens are in protocol/http_api.py; here is what each path does.
Source: nsqd/http.go.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, NamedTuple, TypeAlias

import msgspec

from gateway.broker import stats
from gateway.broker.channel import Channel
from gateway.broker.server import Server
from gateway.broker.topic import Topic
from gateway.errors import InvalidRequest
from gateway.protocol import http_api
from gateway.protocol.http_api import Query
from gateway.protocol.http_routes import Found, Options, Redirect, find_route
from gateway.protocol.wire import NSQD_VERSION

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers: TypeAlias = list[tuple[bytes, bytes]]


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """What /info says; keys and their order as in nsqd, durations in ns."""

    version: str = NSQD_VERSION
    broadcast_address: str
    hostname: str
    http_port: int
    tcp_port: int
    start_time: int
    """Seconds since 1970."""
    max_heartbeat_interval: int
    max_output_buffer_size: int
    max_output_buffer_timeout: int
    max_deflate_level: int = 6


class Answer(NamedTuple):
    """Status, body, and headers beside Content-Length."""

    status: int
    body: bytes
    headers: Headers


class Request(NamedTuple):
    """What a route needs: its path and the part behind it, the query, the body."""

    found: Found
    raw_query: bytes
    body: bytes

    @property
    def query(self) -> Query:
        """The parameters; raises InvalidRequest (INVALID_REQUEST)."""
        return http_api.parse_query(self.raw_query)


class HttpApi:
    """Changes the catalog of *server*, and has it deliver what has become deliverable."""

    def __init__(self, server: Server, *, node: Node, config: Mapping[str, str | int]) -> None:
        self._server = server
        self._catalog = server.catalog
        self._limits = server.limits
        self._node = node
        self._config = config
        self._routes: dict[str, Callable[[Request], Answer]] = {
            "/ping": lambda _request: Answer(200, http_api.OK, [_TEXT]),
            "/info": lambda _request: _json(self._node),
            "/pub": self._pub,
            "/mpub": self._mpub,
            "/stats": self._stats,
            "/config/:opt": self._get_config,
            "/topic/create": self._topic_create,
            "/topic/delete": self._topic_delete,
            "/topic/empty": self._topic_empty,
            "/topic/pause": self._topic_pause,
            "/topic/unpause": self._topic_unpause,
            "/channel/create": self._channel_create,
            "/channel/delete": self._channel_delete,
            "/channel/empty": self._channel_empty,
            "/channel/pause": self._channel_pause,
            "/channel/unpause": self._channel_unpause,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        answer = await self._answer(scope, receive)
        length = (b"content-length", b"%d" % len(answer.body))
        await send(
            {
                "type": "http.response.start",
                "status": answer.status,
                "headers": [*answer.headers, length],
            }
        )
        await send({"type": "http.response.body", "body": answer.body})

    async def _answer(self, scope: Scope, receive: Receive) -> Answer:
        route = find_route(scope["method"], scope["path"])
        raw_query: bytes = scope["query_string"]
        match route:
            case Redirect(status, location):
                query = "?" + raw_query.decode("latin-1") if raw_query else ""
                return Answer(status, b"", [(b"location", (location + query).encode("latin-1"))])
            case Options(allow):
                return Answer(200, b"", [(b"allow", allow.encode())])
            case Found():
                pass
            case refused:
                headers = [(b"allow", refused.allow.encode())] if refused.allow else []
                return _error(refused.token, headers=headers)
        try:
            body = await self._body(route.route, scope, receive)
            if scope["method"] == "PUT":
                raise _no_such_option(route.argument)
            answer = self._routes[route.route](Request(route, raw_query, body))
        except InvalidRequest as refusal:
            return _error(refusal.token)
        self._server.changed()
        return answer

    async def _body(self, route: str, scope: Scope, receive: Receive) -> bytes:
        """
        Return the body of a publish, up to one byte more than its limit; nothing else is read.

        Raises:
            InvalidRequest: Content-Length is over the limit (MSG_TOO_BIG, BODY_TOO_BIG), or the
                client left (INTERNAL_ERROR).
        """
        if route == "/pub":
            limit_bytes = self._limits.max_msg_size_bytes
            check: Callable[..., None] = http_api.check_body
        elif route == "/mpub":
            limit_bytes = self._limits.max_body_size_bytes
            check = http_api.check_multi_body
        else:
            return b""
        announced = _content_length(scope["headers"])
        if announced:
            check(announced, limit_bytes=limit_bytes)
        return await _read(receive, limit_bytes + 1)

    # Publishing

    def _pub(self, request: Request) -> Answer:
        http_api.check_body(len(request.body), limit_bytes=self._limits.max_msg_size_bytes)
        query = request.query
        # nsqd makes the topic before it looks at defer.
        topic = self._catalog.topic(http_api.require_topic(query))
        defer_ms = http_api.parse_defer_ms(query, max_ms=self._limits.max_req_timeout_ms)
        return self._publish(topic, [request.body], defer_ms=defer_ms)

    def _mpub(self, request: Request) -> Answer:
        query = request.query
        topic = self._catalog.topic(http_api.require_topic(query))
        split = http_api.split_binary if http_api.is_binary(query) else http_api.split_lines
        return self._publish(topic, split(request.body, self._limits))

    def _publish(self, topic: Topic, bodies: list[bytes], *, defer_ms: int = 0) -> Answer:
        if not topic.publish(bodies, self._server.moment(), defer_ms=defer_ms):
            raise InvalidRequest("EXITING", "the messages take all of max_memory_bytes")
        return Answer(200, http_api.OK, [_TEXT, http_api.NSQ_HEADER])

    # Topics and channels

    def _topic_create(self, request: Request) -> Answer:
        self._catalog.topic(http_api.require_topic(request.query))
        return _DONE

    def _topic_delete(self, request: Request) -> Answer:
        topic = self._existing_topic(_unchecked(request.query))
        self._server.disconnect(self._catalog.delete_topic(topic.name) or ())
        return _DONE

    def _topic_empty(self, request: Request) -> Answer:
        self._existing_topic(http_api.require_topic(request.query)).empty()
        return _DONE

    def _topic_pause(self, request: Request) -> Answer:
        self._existing_topic(_unchecked(request.query)).pause()
        return _DONE

    def _topic_unpause(self, request: Request) -> Answer:
        topic = self._existing_topic(_unchecked(request.query))
        topic.unpause(now=self._server.moment().now)
        return _DONE

    def _channel_create(self, request: Request) -> Answer:
        topic, channel = http_api.require_topic_and_channel(request.query)
        self._existing_topic(topic).channel(channel, now=self._server.moment().now)
        return _DONE

    def _channel_delete(self, request: Request) -> Answer:
        channel = self._existing_channel(request)
        deleted = self._catalog.delete_channel(channel.topic_name, channel.name)
        self._server.disconnect(deleted or ())
        return _DONE

    def _channel_empty(self, request: Request) -> Answer:
        self._existing_channel(request).empty()
        return _DONE

    def _channel_pause(self, request: Request) -> Answer:
        self._existing_channel(request).pause()
        return _DONE

    def _channel_unpause(self, request: Request) -> Answer:
        self._existing_channel(request).unpause()
        return _DONE

    def _existing_topic(self, name: str) -> Topic:
        topic = self._catalog.topics.get(name)
        if topic is None:
            raise InvalidRequest("TOPIC_NOT_FOUND", f"there is no topic {name!r}")
        return topic

    def _existing_channel(self, request: Request) -> Channel:
        topic, name = http_api.require_topic_and_channel(request.query)
        channel = self._existing_topic(topic).channels.get(name)
        if channel is None:
            raise InvalidRequest("CHANNEL_NOT_FOUND", f"topic {topic!r} has no channel {name!r}")
        return channel

    # What is

    def _stats(self, request: Request) -> Answer:
        query = request.query
        selection = stats.Selection(
            topic=_text(query, "topic"),
            channel=_text(query, "channel"),
            include_clients=http_api.parse_flag(query, "include_clients", absent=True),
            include_mem=http_api.parse_flag(query, "include_mem", absent=True),
        )
        started = self._node.start_time
        snapshot = stats.snapshot(self._catalog, selection, start_time=started)
        if query.get("format") == b"json":
            return _json(snapshot)
        text = stats.to_text(snapshot, uptime_s=int(time.time()) - started)
        return Answer(200, text.encode(), [_TEXT, http_api.NSQ_HEADER])

    def _get_config(self, request: Request) -> Answer:
        value = self._config.get(request.found.argument)
        if value is None:
            raise _no_such_option(request.found.argument)
        if isinstance(value, int):
            return _json(value)
        return Answer(200, value.encode(), [_TEXT, http_api.NSQ_HEADER])


_TEXT = (b"content-type", http_api.TEXT)
_JSON = (b"content-type", http_api.JSON)
_DONE = Answer(200, b"", [http_api.NSQ_HEADER])


def _json(value: object) -> Answer:
    return Answer(200, msgspec.json.encode(value), [_JSON, http_api.NSQ_HEADER])


def _error(token: str, *, headers: Headers | None = None) -> Answer:
    status = http_api.status_of(token)
    body = msgspec.json.encode({"message": token})
    # The rest of a body that is too big is not read: the connection cannot go on.
    close = [(b"connection", b"close")] if status == http_api.HTTP_STATUS["BODY_TOO_BIG"] else []
    return Answer(status, body, [_JSON, http_api.NSQ_HEADER, *close, *(headers or [])])


def _no_such_option(name: str) -> InvalidRequest:
    return InvalidRequest("INVALID_OPTION", f"{name!r} cannot be read or set here")


def _text(query: Query, name: str) -> str:
    return (query.get(name) or b"").decode("latin-1")


def _unchecked(query: Query) -> str:
    """Return the topic of a route that does not check names; one with other bytes is not there."""
    return http_api.require_topic_unchecked(query).decode("latin-1")


def _content_length(headers: Headers) -> int | None:
    """Return what the client announced; None for a chunked body."""
    value = dict(headers).get(b"content-length")
    return int(value) if value is not None and value.isdigit() else None


async def _read(receive: Receive, most_bytes: int) -> bytes:
    """
    Return the body, cut at *most_bytes*.

    Raises:
        InvalidRequest: The client left before the end (INTERNAL_ERROR); nobody reads the answer.
    """
    parts: list[bytes] = []
    size_bytes = 0
    more = True
    while more and size_bytes < most_bytes:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise InvalidRequest("INTERNAL_ERROR", "the client left before the end of its body")
        part = message.get("body", b"")
        parts.append(part)
        size_bytes += len(part)
        more = message.get("more_body", False)
    return b"".join(parts)[:most_bytes]
