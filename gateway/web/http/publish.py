"""
Handle POST /pub and POST /mpub, from the head of a request to its response.

`PublishHandler` makes the same checks as nsqd, in nsqd's order, and publishes; `PublishRequest` is
one request on a connection. Neither needs a task or a future: the producer calls a `PublishRequest`
back when nsqd has responded. `HttpProtocol` reads the bytes and writes the response
(docs/flows.md). Status 200 means that an nsqd has responded OK.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Generator, Iterable
from http import HTTPStatus
from itertools import product
from typing import Protocol, TypeAlias, TypeVar

import msgspec

from gateway.client.metrics import count_auth
from gateway.client.producer import Producer
from gateway.credentials import Secret
from gateway.errors import (
    AuthRequired,
    BrokerRefused,
    GatewayError,
    InvalidRequest,
    Overloaded,
)
from gateway.protocol.commands import PackedBodies
from gateway.protocol.http_api import (
    NSQ_HEADER,
    OK,
    TEXT,
    check_body,
    check_multi_body,
    is_binary,
    parse_defer_ms,
    parse_query,
    require_topic,
    split_binary_body,
    split_text_body,
)
from gateway.protocol.wire import Limits
from gateway.telemetry import fast_counter, get_logger
from gateway.web.auth import ANONYMOUS, AccessPolicy, Principal, bearer_secret
from gateway.web.errors import error_response, problem_response, with_names
from gateway.web.http.head import HEAD_END
from gateway.web.metrics import HTTP_DURATION, HTTP_REQUESTS, clock
from gateway.web.origins import OriginPolicy
from gateway.web.proxies import UNKNOWN_CALLER, Caller
from gateway.web.rate_limit import PublishBuckets, PublishRateLimiter
from gateway.web.responses import (
    Headers,
    HttpResponse,
    encode_response,
    new_request_id,
    sanitized_request_id,
)
from gateway.web.tracing import PublishSpan, PublishSpans, single_traceparent

T = TypeVar("T")

PublishCallback: TypeAlias = Callable[[GatewayError | None], None]
"""Called once with the outcome of a publish; None means OK."""

logger = get_logger()

PUB = "/pub"
MPUB = "/mpub"
_POST = "POST"

OK_HEADERS = [(b"content-type", TEXT), (b"content-length", b"%d" % len(OK)), NSQ_HEADER]
"""Headers of every 200 response to a publish."""

BYTES_PER_MESSAGE = 65_536
"""
Under the rate limit, an /mpub counts as at least one message per 64 KiB of its body.

Otherwise a body of empty lines, which has no messages, would cost nothing, although parsing 64 KiB
of it takes about as long as publishing a few messages.
"""

_MAX_TARGETS = 1_024
_MAX_TARGET_BYTES = 512
_MAX_CACHED_HEADS = 1_024
_MAX_CACHED_HEAD_BYTES = 4_096

WATCHED_RESULTS = (
    *("OK", "AUTH_REQUIRED", "AUTH_FAILED", "UNAUTHORIZED", "RATE_LIMITED"),
    *("FULL", "OVERLOADED", "NO_BROKER", "EXITING", "OUTCOME_UNKNOWN", "INTERNAL_ERROR"),
)
"""The results of a publish that are exported as 0 from the start."""
_REQUESTS = fast_counter(
    "publish_requests_total",
    "Responses to POST /pub and /mpub, by OK or the error's token.",
    ("route", "result"),
    zeros=product((PUB, MPUB), WATCHED_RESULTS),
)
# Label tuples made once, for the hot path.
_OK = {route: (route, "OK") for route in (PUB, MPUB)}
_HTTP_OK = {route: (route, _POST, "200") for route in (PUB, MPUB)}
_DURATION = {route: HTTP_DURATION.labels(route) for route in (PUB, MPUB)}


class RequestHead(msgspec.Struct, frozen=True, gc=False):
    """The parts of a request head that matter for a publish."""

    route: str
    """`PUB` or `MPUB`."""
    raw_query: bytes
    """The query without ``?``, not decoded."""
    size_bytes: int | None = None
    """Content-Length; None if the body is chunked."""
    request_id: bytes | None = None
    """The header X-Request-Id, not validated; see `response_id`."""
    host: bytes = b""
    origins: tuple[bytes, ...] = ()
    authorization: tuple[bytes, ...] = ()
    caller: Caller = UNKNOWN_CALLER
    traceparent: str | None = None

    @property
    def is_plain(self) -> bool:
        """True if the OK response has only headers that all OK responses have."""
        return self.request_id is None and not self.origins

    @property
    def response_id(self) -> str:
        """The client's request id if it is valid, otherwise a new one with each access."""
        return (
            new_request_id() if self.request_id is None else sanitized_request_id(self.request_id)
        )


def read_head(
    route: str,
    raw_query: bytes,
    headers: Iterable[tuple[bytes, bytes]],
    caller: Caller = UNKNOWN_CALLER,
    *,
    size_bytes: int | None = None,
) -> RequestHead:
    """
    Return the head of a request with *headers*, whose names are lower case.

    *size_bytes* is its Content-Length; None if the body is chunked.
    """
    request_id = None
    traceparents: list[bytes] = []
    host = b""
    origins: list[bytes] = []
    authorization: list[bytes] = []
    for name, value in headers:
        if name == b"host":
            host = value
        elif name == b"authorization":
            authorization.append(value)
        elif name == b"origin":
            origins.append(value)
        elif name == b"x-request-id":
            request_id = value
        elif name == b"traceparent":
            traceparents.append(value)
    return RequestHead(
        route,
        raw_query,
        size_bytes,
        request_id,
        host,
        tuple(origins),
        tuple(authorization),
        caller,
        single_traceparent(traceparents) if traceparents else None,
    )


class CachedRequestHead(msgspec.Struct, frozen=True, gc=False):
    """The head of a valid POST /pub, with all that its bytes determine; see `cache_head`."""

    raw: bytes
    """The bytes of the head."""
    head: RequestHead
    principal: Principal
    secret: Secret | None
    """The secret for nsqds that require AUTH; with an identity, others get none."""
    topic: str
    defer_ms: int
    expires_at: float
    """When the caller's identity ends, in seconds since 1970; `math.inf` for never."""
    access_changes: int
    """`PublishHandler.access_changes` when it was cached."""


class _Parsing(msgspec.Struct, eq=False, gc=False):
    """An /mpub whose body is being parsed in steps."""

    steps: Generator[None, None, PackedBodies]
    publish: Callable[[PackedBodies], None]
    """Publishes the messages, or raises; called once, after the last step."""
    held_bytes: int
    """Bytes reserved in the publish buffer until parsing ends."""
    callback: PublishCallback
    """Gets the outcome: an error of parsing, or that of the publish."""


class PublishHandler:
    """
    Check requests to /pub and /mpub, and publish their messages.

    Args:
        limits: Limits of publishes over HTTP and over WebSockets.
        origins: Web pages that may publish; None for pages of the same origin only.
        access: Identifies callers, and says what they may do; None for the defaults.
        rate_limit: The token buckets of all callers; None for no limit.
        spans: Starts the spans of requests; None disables tracing.
    """

    def __init__(
        self,
        producer: Producer,
        limits: Limits,
        *,
        origins: OriginPolicy | None = None,
        access: AccessPolicy | None = None,
        rate_limit: PublishBuckets | None = None,
        spans: PublishSpans | None = None,
    ) -> None:
        self.spans = spans
        self.producer = producer
        self.limits = limits
        self._origins = origins or OriginPolicy()
        self._access = access or AccessPolicy()
        # A function, since only the connections to nsqd find out whether AUTH is required.
        self.rate_limiter = PublishRateLimiter(
            rate_limit, access=self._access, requires_auth=lambda: producer.requires_auth
        )
        """Shared with publishes over WebSockets."""
        self._is_rate_limited = rate_limit is not None
        self._parsing: deque[_Parsing] = deque()
        """Bodies of /mpub being parsed: each iteration of the event loop runs one step of one."""
        self._is_parse_scheduled = False
        self._pub_targets: dict[bytes, tuple[str, int]] = {}
        self._mpub_targets: dict[bytes, tuple[str, bool]] = {}
        self._cached_heads: dict[bytes, CachedRequestHead] = {}
        self._control = self._access.control
        self.access_changes = 0
        """Number of changes of the access file, or of an issuer's keys: older heads do not hold."""
        if self._control is not None:
            self._control.on_change(self._on_access_change)
        self._ok_response = b""
        self._ok_default_headers: Headers | None = None
        """The headers that `_ok_response` was encoded with."""

    def _on_access_change(self) -> None:
        # A cached head stands for a caller that was identified by the file as it was.
        self._cached_heads.clear()
        self.access_changes += 1

    def admit(self, head: RequestHead) -> Principal:
        """
        Check a request before its body is read; return its caller.

        Raises:
            Forbidden: A web page of another origin sent the request.
            AuthRequired: A secret is required and the request has none.
            CredentialRefused: Its token or key is not valid.
            PermissionDenied: The caller may not publish to this topic.
            InvalidRequest: The secret, Content-Length or, for /mpub, the query is invalid.
            RateLimited: The caller is over its publish rate.
        """
        if head.origins:
            self._origins.check(head.origins, head.host, is_secure=head.caller.is_secure)
        presented = bearer_secret(head.authorization) if head.authorization else None
        principal = self._access.identify(presented)
        if self._is_rate_limited:
            self.rate_limiter.check(principal, head.caller.address)
        if principal.identity is not None:
            self._check_permission(head, principal)
        if head.route == PUB:
            if head.size_bytes is not None:
                check_body(head.size_bytes, limit_bytes=self.limits.max_msg_size_bytes)
        else:
            if head.size_bytes is not None:
                check_multi_body(head.size_bytes, limit_bytes=self.limits.max_body_size_bytes)
            # nsqd checks the query of /mpub before the body, and that of /pub after it.
            self._mpub_target(head.raw_query)
        return principal

    def _check_permission(self, head: RequestHead, principal: Principal) -> None:
        """Check that *principal* may publish to the topic, if the query has a valid one."""
        try:
            topic = self.topic_of(head)
        except InvalidRequest:
            return  # the same error follows in its turn
        principal.check_publish(topic)

    def _secret_for_nsqd(self, principal: Principal) -> Secret | None:
        if principal.identity is None:
            return principal.secret
        return self._access.secret_for_nsqd(principal, requires_auth=self.producer.requires_auth)

    def find_cached(
        self, data: bytes, last: CachedRequestHead | None
    ) -> tuple[CachedRequestHead, bytes] | None:
        """
        Return head and body if *data* is one request whose head is cached; otherwise None.

        *last* is the head of the connection's last such request, which is tried first: comparing a
        head takes less time than hashing it, above all with a token in it.
        """
        if (
            last is not None
            and data.startswith(last.raw)
            and last.access_changes == self.access_changes
        ):
            cached, end = last, len(last.raw)
        else:
            # Without a complete head, *end* is 3, and no cached head is that short.
            end = data.find(HEAD_END) + len(HEAD_END)
            found = self._cached_heads.get(data[:end])
            if found is None:
                return None
            cached = found
        if len(data) - end != cached.head.size_bytes:
            return None
        if self._control is not None and cached.expires_at <= self._control.clock():
            return None  # `admit` refuses it
        return cached, data[end:]

    def cache_head(self, raw: bytes, head: RequestHead, principal: Principal) -> None:
        """
        Cache *head*, whose bytes are *raw*, if every request with the same bytes is treated alike.

        Clients send identical heads again and again, so most requests need no parser. *head* must
        have passed all checks, and *principal* is the caller.
        """
        if len(raw) > _MAX_CACHED_HEAD_BYTES or not raw.startswith(b"POST "):
            return
        # Not cached: requests under a rate limit, and those whose OK response depends on the head.
        # Nothing else depends on the caller's address, which *raw* does not contain.
        if head.route != PUB or not head.is_plain or self._is_rate_limited:
            return
        if head.traceparent is not None:
            return  # unique for each request
        heads = self._cached_heads
        if len(heads) >= _MAX_CACHED_HEADS:
            del heads[next(iter(heads))]  # the oldest: dicts keep the order of insertion
        topic, defer_ms = self._pub_target(head.raw_query)
        identity = principal.identity
        expires_at = math.inf if identity is None else identity.expires_at
        secret = self._access.secret_for_nsqd(principal, requires_auth=True)
        heads[raw] = CachedRequestHead(
            raw, head, principal, secret, topic, defer_ms, expires_at, self.access_changes
        )

    def publish_cached(
        self, cached: CachedRequestHead, body: bytes, callback: PublishCallback
    ) -> None:
        """Publish *body*, whose size equals the Content-Length; *callback* gets the outcome."""
        secret = cached.secret
        if cached.principal.identity is not None and not self.producer.requires_auth:
            secret = None
        self.producer.begin(
            cached.topic, (body,), callback, defer_ms=cached.defer_ms, secret=secret
        )

    def is_too_big(self, head: RequestHead, size_bytes: int) -> bool:
        """Return whether `submit` will refuse a body of at least *size_bytes*."""
        limits = self.limits
        return size_bytes > (
            limits.max_msg_size_bytes if head.route == PUB else limits.max_body_size_bytes
        )

    def submit(
        self, head: RequestHead, body: bytes, principal: Principal, callback: PublishCallback
    ) -> None:
        """
        Check *body* and publish it; call *callback* once with the outcome, None for OK.

        *callback* may run before this method returns, and is not called if it raises. A large /mpub
        is parsed in steps, between which the event loop does other work: this method runs only the
        first one, and errors of the later ones are passed to *callback*.

        Raises:
            InvalidRequest: The body, the query, the topic or ``defer`` is invalid.
            RateLimited: The caller is over its publish rate.
            Overloaded: The publish buffer is full.
        """
        secret = self._secret_for_nsqd(principal)
        if head.route == PUB:
            check_body(len(body), limit_bytes=self.limits.max_msg_size_bytes)
            topic, defer_ms = self._pub_target(head.raw_query)
            if self._is_rate_limited:
                self.rate_limiter.charge(principal, head.caller.address, messages=1)
            self.producer.begin(topic, (body,), callback, defer_ms=defer_ms, secret=secret)
            return
        topic, is_binary_body = self._mpub_target(head.raw_query)
        address = head.caller.address
        least_messages = -(-len(body) // BYTES_PER_MESSAGE)
        parse = split_text_body
        if is_binary_body:
            check_multi_body(len(body), limit_bytes=self.limits.max_body_size_bytes)
            parse = split_binary_body
        steps = parse(body, self.limits)
        # Most bodies take one step, and are published at once.
        try:
            next(steps)
        except StopIteration as end:
            bodies: PackedBodies = end.value
            self.rate_limiter.charge(principal, address, messages=max(least_messages, len(bodies)))
            self.producer.begin(topic, bodies, callback, secret=secret)
            return
        # While parsing, memory has the body itself, and at most one MPUB of packed messages.
        held_bytes = len(body) + self.limits.max_body_size_bytes
        self.producer.reserve(held_bytes)

        def publish(bodies: PackedBodies) -> None:
            messages = max(least_messages, len(bodies))
            self.rate_limiter.charge(principal, address, messages=messages, paid=least_messages)
            self.producer.begin(topic, bodies, callback, secret=secret)

        try:
            # Charge by size before the other steps: parsing a body costs time even if it turns out
            # to be invalid. `publish` charges the rest, when the number of messages is known.
            self.rate_limiter.charge(principal, address, messages=least_messages)
        except GatewayError:
            self.producer.unreserve(held_bytes)
            raise
        self._parsing.append(_Parsing(steps, publish, held_bytes, callback))
        self._schedule_parse()

    def _schedule_parse(self) -> None:
        if not self._is_parse_scheduled:
            self._is_parse_scheduled = True
            asyncio.get_running_loop().call_soon(self._parse_step)

    def _parse_step(self) -> None:
        """Run one parsing step of one body, round robin; after its last step, publish it."""
        self._is_parse_scheduled = False
        parsing = self._parsing.popleft()
        error: Exception | None = None
        try:
            next(parsing.steps)
        except StopIteration as end:
            # Before `publish`, which reserves the packed messages itself.
            self.producer.unreserve(parsing.held_bytes)
            try:
                parsing.publish(end.value)
            except Exception as refusal:  # noqa: BLE001 - every error goes to the caller
                error = refusal
        except Exception as refusal:  # noqa: BLE001 - every error goes to the caller
            self.producer.unreserve(parsing.held_bytes)
            error = refusal
        else:
            self._parsing.append(parsing)
        if self._parsing:
            self._schedule_parse()
        if error is not None:
            # Last, so that an exception of the callback does not stop the parsing of other bodies.
            # An error other than a GatewayError is a bug; the response is 500.
            parsing.callback(error)  # type: ignore[arg-type]

    def _pub_target(self, raw_query: bytes) -> tuple[str, int]:
        """Return the topic of a /pub, and its ``defer`` in ms; raises InvalidRequest."""
        target = self._pub_targets.get(raw_query)
        if target is None:
            query = parse_query(raw_query)
            max_ms = self.limits.max_req_timeout_ms
            target = require_topic(query), parse_defer_ms(query, max_ms=max_ms)
            _cache(self._pub_targets, raw_query, target)
        return target

    def _mpub_target(self, raw_query: bytes) -> tuple[str, bool]:
        """Return the topic of an /mpub, and whether its body is binary; raises InvalidRequest."""
        target = self._mpub_targets.get(raw_query)
        if target is None:
            query = parse_query(raw_query)
            target = require_topic(query), is_binary(query)
            _cache(self._mpub_targets, raw_query, target)
        return target

    def count_ok(self, head: RequestHead, began_at: float, trace_id: str | None = None) -> None:
        """Count a 200 response to the request that began at *began_at*, by `clock`."""
        route = head.route
        _REQUESTS.counts[_OK[route]] += 1
        HTTP_REQUESTS.counts[_HTTP_OK[route]] += 1
        _DURATION[route].observe(clock() - began_at, trace_id)

    def render_error(
        self, head: RequestHead, error: BaseException, began_at: float, trace_id: str | None = None
    ) -> HttpResponse:
        """Return the response for *error*, and count it."""
        request_id = head.response_id
        if not isinstance(error, GatewayError):
            # A bug: the log has the traceback, the response has no details.
            trace = {} if trace_id is None else {"trace_id": trace_id}
            logger.error("publish failed", request_id=request_id, exc_info=error, **trace)
        elif isinstance(error, BrokerRefused):
            error = with_names(error, self.topic_of(head))
        elif isinstance(error, AuthRequired):
            count_auth("missing")
        _REQUESTS.counts[head.route, error_response(error).token] += 1
        status, headers, body = problem_response(error, request_id)
        HTTP_REQUESTS.counts[head.route, _POST, str(status)] += 1
        _DURATION[head.route].observe(clock() - began_at, trace_id)
        return status, [*headers, *self._page_headers(head)], body

    def ok_response(self, default_headers: Headers) -> bytes:
        """Return the encoded OK response with uvicorn's *default_headers*; cached."""
        # uvicorn makes a new list every second, with the Date; so comparing identity is enough.
        if default_headers is not self._ok_default_headers:
            self._ok_response = encode_response((200, [*default_headers, *OK_HEADERS], OK))
            self._ok_default_headers = default_headers
        return self._ok_response

    def ok_headers(self, head: RequestHead) -> Headers:
        """Return the headers of an OK response that only this request's response has."""
        headers = self._page_headers(head)
        if head.request_id is not None:
            headers.append((b"x-request-id", head.response_id.encode()))
        return headers

    def _page_headers(self, head: RequestHead) -> Headers:
        """Return the CORS headers; empty for a request without Origin."""
        return list(self._origins.cors_headers(head.origins)) if head.origins else []

    def topic_of(self, head: RequestHead) -> str:
        """Return the topic of a request; raises InvalidRequest if its query has no valid one."""
        target = self._pub_target if head.route == PUB else self._mpub_target
        return target(head.raw_query)[0]


def _cache(targets: dict[bytes, T], raw_query: bytes, target: T) -> None:
    """Cache a parsed query, since clients repeat theirs; evict the oldest entry."""
    if len(raw_query) > _MAX_TARGET_BYTES:
        return
    if len(targets) >= _MAX_TARGETS:
        del targets[next(iter(targets))]
    targets[raw_query] = target


class PublishConnection(Protocol):
    """
    What a `PublishRequest` calls of its connection; `HttpProtocol` implements it.

    A Protocol, since `HttpProtocol` imports this module.
    """

    handler: PublishHandler

    def write_continue(self) -> None:
        """Send ``100 Continue`` to the client."""

    def write_ok(self, request: PublishRequest) -> None:
        """End *request* with the response 200 OK."""

    def write_response(self, request: PublishRequest, response: HttpResponse) -> None:
        """End *request* with *response*."""


class PublishRequest:
    """
    One request to publish, from the complete head to the response.

    The connection calls `begin`, `add` for each part of the body, and `end`; or `publish_cached`
    instead of all three. Any of these methods may write the response; then the connection calls
    none of them again. If the connection is lost before the response, it calls `abandon`. At most
    one response is written.
    """

    __slots__ = (
        "_access_changes",
        "_body",
        "_connection",
        "_held_bytes",
        "_principal",
        "_size_bytes",
        "_span",
        "began_at",
        "expects_continue",
        "head",
        "is_abandoned",
        "is_submitted",
        "keep_alive",
    )

    def __init__(
        self, connection: PublishConnection, head: RequestHead, *, keep_alive: bool = True
    ) -> None:
        self.head = head
        self.began_at = clock()
        """When the head was complete, by `clock`."""
        self.keep_alive = keep_alive
        """False if the connection must close after the response."""
        self.expects_continue = False
        """True while the client waits for ``100 Continue`` before it sends the body."""
        self.is_submitted = False
        """True if the complete body was handed on to be checked and published."""
        self.is_abandoned = False
        """True if the connection was lost before the response."""
        self._connection = connection
        self._span: PublishSpan | None = None
        """None if the request is not traced."""
        self._principal = ANONYMOUS
        self._access_changes = 0
        """`PublishHandler.access_changes` when the caller was identified."""
        self._body: bytes | bytearray = b""
        self._size_bytes = 0
        self._held_bytes = 0
        """Bytes reserved in the publish buffer for the body; every exit path calls `_release`."""

    def cache_head(self, raw: bytes) -> None:
        """Cache the head, whose bytes are *raw*, if the request and still its caller are valid."""
        handler = self._connection.handler
        if self.is_submitted and self.keep_alive and self._access_changes == handler.access_changes:
            handler.cache_head(raw, self.head, self._principal)

    def begin(self) -> None:
        """Check the head, and send ``100 Continue`` if the client waits for it."""
        handler = self._connection.handler
        spans = handler.spans
        if spans is not None and (self.head.traceparent is not None or spans.sample()):
            self._trace(spans)
        try:
            self._access_changes = handler.access_changes
            self._principal = handler.admit(self.head)
        except Exception as error:  # noqa: BLE001 - every error becomes a response
            self._refuse(error)
            return
        # Only after the checks: a refused client need not send its body (RFC 9110 §10.1.1).
        if self.expects_continue:
            self.expects_continue = False
            self._connection.write_continue()

    def publish_cached(self, cached: CachedRequestHead, body: bytes) -> None:
        """Publish the complete *body* of a request with a cached head, without further checks."""
        handler = self._connection.handler
        # Set first: the callback may run before `publish_cached` returns.
        self.is_submitted = True
        spans = handler.spans
        if spans is not None and spans.sample():
            self._trace(spans)
        try:
            handler.publish_cached(cached, body, self._on_published)
        except Exception as error:  # noqa: BLE001 - every error becomes a response
            self.is_submitted = False
            self._refuse(error)
            return
        if self._span is not None:
            self._span.send(cached.topic, len(body), cached.principal.span_attributes)

    def add(self, part: bytes, *, is_last: bool) -> None:
        """
        Add *part* to the body, and reserve its bytes in the publish buffer.

        If the buffer is full or the body too big, respond with the error before the body is
        complete.
        """
        if self.is_submitted:
            return
        self._size_bytes += len(part)
        if not self._body:
            self._body = part
        else:
            # Not a list: a client may send one byte at a time, and each would be an object.
            if isinstance(self._body, bytes):
                self._body = bytearray(self._body)
            self._body += part
        if is_last:
            return  # no reservation: `end` follows, and `submit` counts the whole body
        handler = self._connection.handler
        try:
            handler.producer.reserve_arriving(len(part))
        except Overloaded as error:
            self._refuse(error)
            return
        self._held_bytes += len(part)
        if handler.is_too_big(self.head, self._size_bytes):
            # Submit the incomplete body: `submit` refuses it now, instead of after the client has
            # sent the rest.
            self._submit()

    def end(self) -> None:
        """Called when the body is complete: check it and publish it."""
        self._submit()

    def fail(self, error: BaseException) -> None:
        """Respond with *error*, and close: the rest of the body is invalid or late."""
        self.keep_alive = False
        if not self.is_submitted:
            self._refuse(error)

    def abandon(self) -> None:
        """Called when the connection is lost: release the body; what is submitted goes to nsqd."""
        self.is_abandoned = True
        self._release()
        if self._span is not None and not self.is_submitted:
            self._span.abort()

    def _submit(self) -> None:
        """Check and publish the body; idempotent."""
        if self.is_submitted:
            return
        # Set first: the callback may run before `submit` returns.
        self.is_submitted = True
        body = bytes(self._body)
        self._release()  # from here on, the producer counts the body
        connection = self._connection
        try:
            connection.handler.submit(self.head, body, self._principal, self._on_published)
        except Exception as error:  # noqa: BLE001 - every error becomes a response
            self.is_submitted = False
            self._refuse(error)
            return
        if self._span is not None:
            topic = connection.handler.topic_of(self.head)
            self._span.send(topic, len(body), self._principal.span_attributes)

    def _trace(self, spans: PublishSpans) -> None:
        """Start a span; `PublishSpans.begin` returns None if the client's trace is not sampled."""
        self._span = spans.begin(self.head.route, self.head.traceparent, self.began_at)

    def _on_published(self, error: GatewayError | None) -> None:
        if self.is_abandoned:
            # The connection is lost, so only the trace gets the outcome.
            if self._span is not None:
                self._span.end(None, error)
            return
        if error is not None:
            self._refuse(error)
            return
        # Respond before counting: latency is what the client sees.
        self._connection.write_ok(self)
        trace_id = None if self._span is None else self._span.trace_id
        self._connection.handler.count_ok(self.head, self.began_at, trace_id)
        if self._span is not None:
            self._span.end(HTTPStatus.OK)

    def _refuse(self, error: BaseException) -> None:
        self._release()
        status = None
        if not self.is_abandoned:
            trace_id = None if self._span is None else self._span.trace_id
            response = self._connection.handler.render_error(
                self.head, error, self.began_at, trace_id
            )
            self._connection.write_response(self, response)
            status = response[0]
        if self._span is not None:
            self._span.end(status, error)

    def _release(self) -> None:
        """Drop the body and its reservation; idempotent."""
        self._body = b""
        held_bytes, self._held_bytes = self._held_bytes, 0
        if held_bytes:
            self._connection.handler.producer.unreserve_arriving(held_bytes)
