"""
The broker's HTTP API, compatible with nsqd's, as a plain ASGI application.

`protocol.http_api` defines the grammar, the order of checks and the error tokens; this module
implements the effect of each route. Source: nsqd/http.go.
"""

from __future__ import annotations

import asyncio
import html
import time
from collections.abc import (
    Awaitable,
    Callable,
    Generator,
    Iterator,
    Mapping,
    MutableMapping,
    Sequence,
)
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeAlias, TypeVar

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gateway.addresses import TrustedHosts
from gateway.broker import stats
from gateway.broker.channel import Channel
from gateway.broker.config import NsqdConfig
from gateway.broker.server import Server
from gateway.broker.topics import Topic
from gateway.errors import InvalidRequest, StoreFailed
from gateway.protocol import http_api
from gateway.protocol.commands import STEP_MESSAGES, PackedBodies, pack_bodies
from gateway.protocol.http_api import HttpQuery, OptionsResponse, Redirect, RouteMatch, find_route
from gateway.protocol.peek import PeekResponse, peeked_message
from gateway.protocol.wire import NSQD_VERSION

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers: TypeAlias = list[tuple[bytes, bytes]]
T = TypeVar("T")


class InfoResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The response to /info, with nsqd's keys in its order; durations in ns."""

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


PEEK_PATH = "/channel/peek"
_READ_ONLY = {"/stats", PEEK_PATH}
"""Routes that wait for nothing on disk: what others change meanwhile is not theirs."""
MAX_PEEK_MESSAGES = 1_000
DEFAULT_PEEK_MESSAGES = 10
MAX_PEEK_BYTES = 1_048_576
"""Bytes of bodies that end the response to /channel/peek; the first message is always in it."""


class HttpResponse(NamedTuple):
    """An HTTP response; `HttpApi` adds the Content-Length header."""

    status: int
    body: bytes
    headers: Headers
    pieces: Sequence[bytes] = ()
    """A long body in many small pieces; *body* is then empty."""


class HttpRequest(NamedTuple):
    """A request: its method, its route, its raw query and its body."""

    method: str
    found: RouteMatch
    raw_query: bytes
    body: bytes

    @property
    def query(self) -> HttpQuery:
        """The parsed parameters; an invalid query raises InvalidRequest (INVALID_REQUEST)."""
        # Parsed here, not with the request: nsqd checks the size of a /pub body before the query.
        return http_api.parse_query(self.raw_query)


class HttpApi:
    """The broker's ASGI application; after each request it schedules deliveries to consumers."""

    def __init__(
        self,
        server: Server,
        *,
        info: InfoResponse,
        config: NsqdConfig,
        health: Callable[[], str | None],
        peek_hosts: TrustedHosts | None,
    ) -> None:
        """
        Serve *server*.

        *peek_hosts* are the hosts that a request to /channel/peek may name, so that no web page
        reads messages by DNS rebinding; None: there is no such route.
        """
        self._server = server
        self._registry = server.registry
        self._limits = server.limits
        self._info = info
        self._config = config
        self._health = health
        self._routes: dict[str, Callable[[HttpRequest], HttpResponse]] = {
            "/ping": self._ping,
            "/info": lambda _request: _json(self._info),
            "/pub": self._pub,
            "/config/:opt": self._config_option,
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
        self._slow_routes: dict[str, Callable[[HttpRequest], Awaitable[HttpResponse]]] = {
            "/mpub": self._mpub,
            "/stats": self._stats,
            PEEK_PATH: self._channel_peek,
        }
        # One at a time: each holds up to MAX_PEEK_BYTES, and takes turns with the channels' reads.
        self._peek_turn = asyncio.Lock()
        self._peek_hosts = peek_hosts
        self._paths: Mapping[str, tuple[str, ...]] = http_api.ROUTES
        if peek_hosts is not None:
            self._paths = {**http_api.ROUTES, PEEK_PATH: ("GET",)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Execute one request and send the response."""
        await _send_response(send, await self._respond(scope, receive))

    async def _respond(self, scope: Scope, receive: Receive) -> HttpResponse:
        route = find_route(scope["method"], scope["path"], routes=self._paths)
        raw_query: bytes = scope["query_string"]
        match route:
            case Redirect(status, location):
                query = "?" + raw_query.decode("latin-1") if raw_query else ""
                return _redirect(status, (location + query).encode("latin-1"))
            case OptionsResponse(allow):
                return HttpResponse(200, b"", [(b"allow", allow.encode())])
            case RouteMatch():
                pass
            case error:
                headers = [(b"allow", error.allow.encode())] if error.allow else []
                return _error(error.token, headers=headers)
        if route.route == PEEK_PATH and (why := self._why_no_peek(scope)) is not None:
            return _error("FORBIDDEN", status=403, detail=why)
        before = self._registry.version
        try:
            body = await self._body(scope["method"], route.route, scope, receive)
            request = HttpRequest(scope["method"], route, raw_query, body)
            if (slow := self._slow_routes.get(route.route)) is not None:
                response = await slow(request)
            else:
                response = self._routes[route.route](request)
            # At once: what waits has the outcome of the transaction with its own changes.
            is_changed = route.route not in _READ_ONLY and self._registry.version != before
            committed = self._server.disk.committed() if is_changed else None
            # Before the response: after /topic/empty or a delete, the memory must be free.
            if (released := self._registry.context.discard_queue.take_steps()) is not None:
                await self._run_in_steps(released)
            self._server.schedule_delivery()
            if committed is not None:
                await self._check_commit(committed, route.route)
        except InvalidRequest as error:
            return _error(error.token)
        return response

    async def _check_commit(
        self, committed: asyncio.Future[StoreFailed | None], route: str
    ) -> None:
        """
        Wait until the changes of a request are on disk.

        Raises:
            InvalidRequest: They could not be written: EXITING for a publish, which is not stored.
        """
        if (error := await committed) is not None:
            token = "EXITING" if route in {"/pub", "/mpub"} else "INTERNAL_ERROR"
            raise InvalidRequest(token, str(error)) from error

    async def _body(self, method: str, route: str, scope: Scope, receive: Receive) -> bytes:
        """
        Read the body of a publish or an option, up to one byte too many; ignore other bodies.

        Raises:
            InvalidRequest: Content-Length exceeds the limit (MSG_TOO_BIG, BODY_TOO_BIG), or the
                client disconnected (INTERNAL_ERROR).
        """
        if route == "/pub":
            limit_bytes = self._limits.max_msg_size_bytes
            check: Callable[..., None] = http_api.check_body
        elif route == "/mpub":
            limit_bytes = self._limits.max_body_size_bytes
            check = http_api.check_multi_body
        elif method == "PUT":
            # nsqd reads it whatever its announced size.
            return await _read(receive, self._limits.max_msg_size_bytes + 1)
        else:
            return b""
        # Before the body is read: nsqd refuses an announced size without waiting for the bytes.
        content_length = _content_length(scope["headers"])
        if content_length:
            check(content_length, limit_bytes=limit_bytes)
        # One byte more than allowed, so that the route's own check refuses the body.
        return await _read(receive, limit_bytes + 1)

    # Publishing

    def _pub(self, request: HttpRequest) -> HttpResponse:
        http_api.check_body(len(request.body), limit_bytes=self._limits.max_msg_size_bytes)
        query = request.query
        # As in nsqd, the topic is created even if defer is invalid.
        topic = self._registry.get_topic(http_api.require_topic(query))
        defer_ms = http_api.parse_defer_ms(query, max_ms=self._limits.max_req_timeout_ms)
        return self._publish(topic, [request.body], defer_ms=defer_ms)

    async def _mpub(self, request: HttpRequest) -> HttpResponse:
        query = request.query
        name = http_api.require_topic(query)
        self._registry.get_topic(name)  # created even if the body is invalid, as in nsqd
        # In steps, because a body may have millions of lines.
        if http_api.is_binary(query):
            bodies = await self._run_in_steps(
                http_api.split_binary_body(request.body, self._limits)
            )
        else:
            bodies = await self._run_in_steps(self._pack_lines(request.body))
        # Look the topic up again: it may have been deleted between the steps.
        topic = self._registry.get_topic(name)
        if not bodies:
            return _PUBLISHED  # a text of empty lines
        if len(bodies) <= STEP_MESSAGES:
            return self._publish(topic, list(bodies))
        steps = topic.publish_steps(bodies, self._server.read_clocks())
        if steps is None:
            raise self._memory_full()
        refused_count = topic.refused_count
        await self._run_in_steps(steps)
        if topic.is_durable:
            await self._check_commit(self._server.disk.committed(), "/mpub")
            if topic.refused_count != refused_count:
                raise InvalidRequest("INTERNAL_ERROR", "the disk failed: only a part is stored")
        return _PUBLISHED

    def _pack_lines(self, body: bytes) -> Generator[None, None, PackedBodies]:
        """Generator: pack the lines of a text body, a step per `next()`; return the messages."""
        chunks: list[bytes] = []
        count = 0
        for lines in http_api.iter_line_batches(body, self._limits):
            if chunks:
                yield
            chunks.append(pack_bodies(lines))
            count += len(lines)
        return PackedBodies(chunks, count)

    async def _run_in_steps(self, steps: Generator[None, None, T]) -> T:
        """
        Run the generator *steps* to its end, and return its result.

        The first step runs now, each further one in its own turn of the event loop.
        """
        # Most requests are done after one step and need neither a future nor another turn.
        try:
            next(steps)
        except StopIteration as end:
            value: T = end.value
            return value
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._server.run_in_steps(_complete(done, steps))
        return await done

    def _publish(self, topic: Topic, bodies: list[bytes], *, defer_ms: int = 0) -> HttpResponse:
        if not topic.publish(bodies, self._server.read_clocks(), defer_ms=defer_ms):
            raise self._memory_full()
        return _PUBLISHED

    def _memory_full(self) -> InvalidRequest:
        limit_bytes = self._registry.context.memory.limit_bytes
        return InvalidRequest("EXITING", f"the memory limit of {limit_bytes} bytes is reached")

    # Topics and channels

    def _topic_create(self, request: HttpRequest) -> HttpResponse:
        self._registry.get_topic(http_api.require_topic(request.query))
        return _DONE

    def _topic_delete(self, request: HttpRequest) -> HttpResponse:
        topic = self._find_topic(_unchecked(request.query))
        self._server.disconnect(self._registry.delete_topic(topic.name) or ())
        return _DONE

    def _topic_empty(self, request: HttpRequest) -> HttpResponse:
        self._find_topic(http_api.require_topic(request.query)).empty()
        return _DONE

    def _topic_pause(self, request: HttpRequest) -> HttpResponse:
        self._find_topic(_unchecked(request.query)).pause()
        return _DONE

    def _topic_unpause(self, request: HttpRequest) -> HttpResponse:
        topic = self._find_topic(_unchecked(request.query))
        topic.unpause(now=self._server.read_clocks().now)
        return _DONE

    def _channel_create(self, request: HttpRequest) -> HttpResponse:
        topic, channel = http_api.require_topic_and_channel(request.query)
        self._find_topic(topic).get_channel(channel, now=self._server.read_clocks().now)
        return _DONE

    def _channel_delete(self, request: HttpRequest) -> HttpResponse:
        channel = self._find_channel(request)
        deleted = self._registry.delete_channel(channel.topic_name, channel.name)
        self._server.disconnect(deleted or ())
        return _DONE

    def _channel_empty(self, request: HttpRequest) -> HttpResponse:
        self._find_channel(request).empty()
        return _DONE

    def _channel_pause(self, request: HttpRequest) -> HttpResponse:
        self._find_channel(request).pause()
        return _DONE

    def _channel_unpause(self, request: HttpRequest) -> HttpResponse:
        self._find_channel(request).unpause()
        return _DONE

    def _why_no_peek(self, scope: Scope) -> str | None:
        """Return why this request may not see messages, or None."""
        assert self._peek_hosts is not None  # noqa: S101 - else there is no such route
        headers = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1")
        return self._peek_hosts.rejection_reason(host, is_browser=b"accept-language" in headers)

    async def _channel_peek(self, request: HttpRequest) -> HttpResponse:
        """Show messages of a channel without delivering them; nsqd has no such route."""
        async with self._peek_turn:
            channel = self._find_channel(request)
            max_count = http_api.parse_count(
                "max",
                request.query,
                "messages",
                default=DEFAULT_PEEK_MESSAGES,
                limit=MAX_PEEK_MESSAGES,
            )
            try:
                peek = await channel.peek(max_count=max_count, max_bytes=MAX_PEEK_BYTES)
            except StoreFailed as error:
                raise InvalidRequest("INTERNAL_ERROR", str(error)) from error
            # It may have been deleted meanwhile, and another one created.
            if self._find_channel(request) is not channel:
                raise InvalidRequest("CHANNEL_NOT_FOUND", f"{channel.name} was deleted meanwhile")
            messages = [
                peeked_message(
                    id_=message.id,
                    timestamp_ns=message.timestamp_ns,
                    attempts=message.attempts,
                    state=state,
                    body=message.body,
                )
                for state, message, *_ in peek.messages
            ]
            return _json(PeekResponse(more=peek.has_more, messages=messages))

    def _find_topic(self, name: str) -> Topic:
        topic = self._registry.topics.get(name)
        if topic is None:
            raise InvalidRequest("TOPIC_NOT_FOUND", f"there is no topic {name!r}")
        return topic

    def _find_channel(self, request: HttpRequest) -> Channel:
        topic, name = http_api.require_topic_and_channel(request.query)
        channel = self._find_topic(topic).channels.get(name)
        if channel is None:
            raise InvalidRequest("CHANNEL_NOT_FOUND", f"topic {topic!r} has no channel {name!r}")
        return channel

    # Statistics and configuration

    async def _stats(self, request: HttpRequest) -> HttpResponse:
        query = request.query
        stats_query = stats.StatsQuery(
            topic=_text(query, "topic"),
            channel=_text(query, "channel"),
            include_clients=http_api.parse_flag(query, "include_clients", absent=True),
            include_mem=http_api.parse_flag(query, "include_mem", absent=True),
        )
        started = self._info.start_time
        format_: stats.StatsEncoder = stats.TextStats(now=time.time(), started=_rfc3339(started))
        content_type = _TEXT
        if query.get("format") == b"json":
            format_, content_type = stats.JsonStats(), _JSON
        steps = stats.collect(
            self._registry,
            stats_query,
            format_,
            start_time=started,
            health=_health_text(self._health()),
        )
        # In steps, because there may be thousands of topics.
        pieces = await self._run_in_steps(steps)
        return HttpResponse(200, b"", [content_type, http_api.NSQ_HEADER], pieces)

    def _ping(self, _request: HttpRequest) -> HttpResponse:
        error = self._health()
        if error is None:
            return HttpResponse(200, http_api.OK, [_TEXT])
        return HttpResponse(500, _health_text(error).encode(), [_TEXT])

    def _config_option(self, request: HttpRequest) -> HttpResponse:
        name = request.found.argument
        if request.method == "PUT":
            if not 0 < len(request.body) <= self._limits.max_msg_size_bytes:
                return _error("INVALID_VALUE", status=http_api.OPTION_SIZE_STATUS)
            self._config.put(name, request.body)
        value = self._config.get(name)
        if not isinstance(value, str):
            return _json(value)
        # nsqd's empty body has no type.
        content_type = [_TEXT] if value else []
        return HttpResponse(200, value.encode(), [*content_type, http_api.NSQ_HEADER])


class HttpProtocol(HttpToolsProtocol):
    """uvicorn's HTTP/1.1 connection, which reads the target of a request as Go does."""

    def on_url(self, url: bytes) -> None:
        """Keep what is behind a ``#``, which Go takes for a part of the query or path."""
        super().on_url(url.replace(b"#", b"%23"))


class RequireTls:
    """The application at the plain HTTP port if TLS is required: it refuses every request."""

    def __init__(self, https_port: int) -> None:
        self._refusal = HttpResponse(
            403, http_api.tls_required_body(https_port), [_JSON, http_api.NSQ_HEADER]
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse one request."""
        del scope, receive
        await _send_response(send, self._refusal)


_PIECES_PER_TURN = 256
_TEXT = (b"content-type", http_api.TEXT)
_JSON = (b"content-type", http_api.JSON)
_DONE = HttpResponse(200, b"", [http_api.NSQ_HEADER])
_PUBLISHED = HttpResponse(200, http_api.OK, [_TEXT, http_api.NSQ_HEADER])


def _complete(done: asyncio.Future[T], steps: Generator[None, None, T]) -> Iterator[None]:
    """
    Generator: run the rest of *steps*, and set its result or error in *done*.

    The server runs this, not the task of the request, so cancelling the request does not stop it.
    """
    try:
        value = yield from steps
    except Exception as error:  # noqa: BLE001 - re-raised where done is awaited
        if not done.done():
            done.set_exception(error)
    else:
        if not done.done():
            done.set_result(value)


async def _send_response(send: Send, response: HttpResponse) -> None:
    length = (b"content-length", b"%d" % (len(response.body) + sum(map(len, response.pieces))))
    await send(
        {
            "type": "http.response.start",
            "status": response.status,
            "headers": [*response.headers, length],
        }
    )
    for start in range(0, len(response.pieces), _PIECES_PER_TURN):
        part = b"".join(response.pieces[start : start + _PIECES_PER_TURN])
        await send({"type": "http.response.body", "body": part, "more_body": True})
        # `send` need not suspend; without this, a long response would block other connections.
        await asyncio.sleep(0)
    await send({"type": "http.response.body", "body": response.body})


def _rfc3339(seconds: int) -> str:
    """Return a time since 1970 in local time, as Go writes it."""
    text = datetime.fromtimestamp(seconds, UTC).astimezone().isoformat()
    return text.replace("+00:00", "Z")


def _health_text(error: str | None) -> str:
    return "OK" if error is None else f"NOK - {error}"


def _redirect(status: int, location: bytes) -> HttpResponse:
    # To a GET, Go's http.Redirect adds a page with a link.
    if status != http_api.MOVED_PERMANENTLY:
        return HttpResponse(status, b"", [(b"location", location)])
    link = html.escape(location.decode("latin-1")).replace("&#x27;", "&#39;")
    page = f'<a href="{link.replace("&quot;", "&#34;")}">Moved Permanently</a>.\n\n'
    headers = [(b"location", location), (b"content-type", b"text/html; charset=utf-8")]
    return HttpResponse(status, page.encode("latin-1"), headers)


def _json(value: object) -> HttpResponse:
    return HttpResponse(200, msgspec.json.encode(value), [_JSON, http_api.NSQ_HEADER])


def _error(
    token: str,
    *,
    status: int | None = None,
    detail: str | None = None,
    headers: Headers | None = None,
) -> HttpResponse:
    """Return nsqd's error response; *detail* is for errors that nsqd does not have."""
    status = status or http_api.status_of(token)
    body = msgspec.json.encode({"message": token} | ({} if detail is None else {"detail": detail}))
    # The rest of a body that is too large is not read, so the connection must close.
    close = [(b"connection", b"close")] if status == http_api.HTTP_STATUS["BODY_TOO_BIG"] else []
    return HttpResponse(status, body, [_JSON, http_api.NSQ_HEADER, *close, *(headers or [])])


def _text(query: HttpQuery, name: str) -> str:
    # latin-1 never fails; a name that is not ASCII matches no topic, as it should.
    return (query.get(name) or b"").decode("latin-1")


def _unchecked(query: HttpQuery) -> str:
    """Return the topic without validation, as nsqd; an invalid name gets 404, as unknown."""
    return http_api.require_topic_unchecked(query).decode("latin-1")


def _content_length(headers: Headers) -> int | None:
    """Return Content-Length; None if the request has none, as with a chunked body."""
    value = dict(headers).get(b"content-length")
    return int(value) if value is not None and value.isdigit() else None


async def _read(receive: Receive, max_bytes: int) -> bytes:
    """
    Return the body, cut at *max_bytes*.

    Raises:
        InvalidRequest: The client disconnected before the end (INTERNAL_ERROR).
    """
    parts: list[bytes] = []
    size_bytes = 0
    more = True
    while more and size_bytes < max_bytes:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise InvalidRequest(
                "INTERNAL_ERROR", "the client disconnected before the end of the body"
            )
        part = message.get("body", b"")
        parts.append(part)
        size_bytes += len(part)
        more = message.get("more_body", False)
    return b"".join(parts)[:max_bytes]
