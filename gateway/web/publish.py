"""
POST /pub and POST /mpub: who may, what is checked, in nsqd's order, and how it is published.

Nothing here knows of bytes on a socket: `exchange` brings the head of a request and its body, and
writes what came out of it (docs/flows.md). 200 means that an nsqd answered OK.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeAlias, TypeVar

import msgspec

from gateway.errors import BrokerRefused, GatewayError
from gateway.protocol.http_api import (
    check_body,
    check_multi_body,
    is_binary,
    parse_defer_ms,
    parse_query,
    require_topic,
    split_binary,
    split_lines,
)
from gateway.protocol.wire import Limits
from gateway.secret import Secret
from gateway.telemetry import get_logger, tally
from gateway.web.access import chosen_request_id, new_request_id
from gateway.web.answers import Answer, Headers
from gateway.web.caller_quota import CallerQuota
from gateway.web.credentials import AccessPolicy, bearer_secret
from gateway.web.faults import fault_of, naming, problem
from gateway.web.http_account import POST, RouteAccount
from gateway.web.origins import OriginPolicy
from gateway.web.proxies import NOBODY, Caller
from gateway.web.publish_spans import PublishSpans, only_traceparent
from gateway.web.quota import PublishQuota

T = TypeVar("T")

Done: TypeAlias = Callable[[GatewayError | None], None]

logger = get_logger()

PUB = "/pub"
MPUB = "/mpub"

APART_BYTES = 48
"""What CPython takes for a body besides its bytes: the object, and its place in a list."""
_LEAST_BINARY_BYTES = 5
"""A message in binary: its size, and one byte."""

_MAX_TARGETS = 1_024
_MAX_TARGET_BYTES = 512

_REQUESTS = tally("publish_requests_total", "Answers to POST /pub and /mpub.", ("route", "result"))
"""*result* is OK or the token of the error."""
_OK = {route: (route, "OK") for route in (PUB, MPUB)}
_ANSWERS = {route: RouteAccount(route, POST) for route in (PUB, MPUB)}


class Publishes(Protocol):
    """What is needed of `gateway.client.publisher.Publisher`."""

    def begin(
        self,
        topic: str,
        bodies: Sequence[bytes],
        done: Done,
        *,
        defer_ms: int = 0,
        secret: Secret | None = None,
    ) -> None:
        """Publish *bodies*, all or none; *done* is called once with the outcome, None is OK."""

    @property
    def asks_for_auth(self) -> bool:
        """Whether a known nsqd asks for a secret."""

    def hold(self, size_bytes: int) -> None:
        """Count bytes of a body that is on its way; raises Overloaded."""

    def release(self, size_bytes: int) -> None:
        """Count them no more."""


class Head(msgspec.Struct, frozen=True, gc=False):
    """What is looked at of a request to publish before its body."""

    route: str
    """`PUB` or `MPUB`."""
    raw_query: bytes
    """As it came, without ``?``."""
    size_bytes: int | None = None
    """Content-Length; None when the body comes in chunks."""
    request_id: bytes | None = None
    host: bytes = b""
    origins: tuple[bytes, ...] = ()
    authorization: tuple[bytes, ...] = ()
    caller: Caller = NOBODY
    traceparent: str | None = None

    @property
    def is_plain(self) -> bool:
        """Whether an OK is answered to it as to everybody."""
        return self.request_id is None and not self.origins

    @property
    def answer_id(self) -> str:
        """The caller's request id when it is sane, else a new one."""
        return new_request_id() if self.request_id is None else chosen_request_id(self.request_id)


def read_head(
    route: str,
    raw_query: bytes,
    headers: Iterable[tuple[bytes, bytes]],
    caller: Caller = NOBODY,
) -> Head:
    """Return the head of a request with *headers*, whose names are in small letters."""
    size_bytes = None
    request_id = None
    traceparents: list[bytes] = []
    host = b""
    origins: list[bytes] = []
    authorization: list[bytes] = []
    for name, value in headers:
        if name == b"content-length":
            # The parser has refused what is no number, or above 64 bits; zeros may be before it.
            size_bytes = int(value.lstrip(b"0") or b"0")
        elif name == b"host":
            host = value
        elif name == b"authorization":
            authorization.append(value)
        elif name == b"origin":
            origins.append(value)
        elif name == b"x-request-id":
            request_id = value
        elif name == b"traceparent":
            traceparents.append(value)
    return Head(
        route,
        raw_query,
        size_bytes,
        request_id,
        host,
        tuple(origins),
        tuple(authorization),
        caller,
        only_traceparent(traceparents),
    )


class KnownPublish(msgspec.Struct, frozen=True, gc=False):
    """A POST /pub that has been found right but for its body, whose size is that of the head."""

    head: Head
    secret: Secret | None
    topic: str
    defer_ms: int


class PublishPlane:
    """What both routes do, whoever brings the request."""

    def __init__(
        self,
        publisher: Publishes,
        limits: Limits,
        *,
        origins: OriginPolicy | None = None,
        access: AccessPolicy | None = None,
        quota: PublishQuota | None = None,
        spans: PublishSpans | None = None,
    ) -> None:
        self.spans = spans
        """Who begins traces; None: nobody."""
        self.publisher = publisher
        self.limits = limits
        """Of what callers may publish, over a socket too."""
        self._origins = origins or OriginPolicy()
        self._access = access or AccessPolicy()
        self.callers = CallerQuota(
            quota, access=self._access, asks_for_auth=lambda: publisher.asks_for_auth
        )
        """Who may publish how much; sockets are counted with it too."""
        self._pub_targets: dict[bytes, tuple[str, int]] = {}
        self._mpub_targets: dict[bytes, tuple[str, bool]] = {}

    def admit(self, head: Head) -> Secret | None:
        """
        Let a request pass whose body may be read; return the secret to publish with.

        Raises:
            Forbidden, AuthRequired, InvalidRequest: The page, the secret, or what the head says.
            RateLimited: The caller has published too much lately.
        """
        if head.origins:
            self._origins.check(head.origins, head.host, is_secure=head.caller.is_secure)
        brought = bearer_secret(head.authorization) if head.authorization else None
        secret = self._access.secret_of(brought)
        self.callers.admit(secret, head.caller.address)
        if head.route == PUB:
            if head.size_bytes is not None:
                check_body(head.size_bytes, limit_bytes=self.limits.max_msg_size_bytes)
        else:
            if head.size_bytes is not None:
                check_multi_body(head.size_bytes, limit_bytes=self.limits.max_body_size_bytes)
            # Before the body, as in nsqd; /pub looks at its body first.
            self._mpub_target(head.raw_query)
        return secret

    def known(self, head: Head, secret: Secret | None) -> KnownPublish | None:
        """
        Return what `publish_known` needs for more requests with *head*, which has been admitted.

        None when each of them is to be judged anew.
        """
        if head.route != PUB or not head.is_plain or self.callers.is_bounded:
            return None
        if head.traceparent is not None:
            return None  # no two are the same
        topic, defer_ms = self._pub_target(head.raw_query)
        return KnownPublish(head, secret, topic, defer_ms)

    def publish_known(self, known: KnownPublish, body: bytes, done: Done) -> None:
        """Publish *body*, which has the size of the head; *done* as in `submit`."""
        self.publisher.begin(
            known.topic, (body,), done, defer_ms=known.defer_ms, secret=known.secret
        )

    def is_too_big(self, head: Head, size_bytes: int) -> bool:
        """Tell whether a body of so many bytes, or more, will be refused by `submit`."""
        limits = self.limits
        return size_bytes > (
            limits.max_msg_size_bytes if head.route == PUB else limits.max_body_size_bytes
        )

    def submit(self, head: Head, body: bytes, secret: Secret | None, done: Done) -> None:
        """
        Check what has arrived and publish it; *done* is called once with the outcome.

        Raises:
            InvalidRequest: The body, the query, the topic or ``defer``; *done* is not called.
            RateLimited, Overloaded: It is too much, for the caller or for all of them.
        """
        if head.route == PUB:
            check_body(len(body), limit_bytes=self.limits.max_msg_size_bytes)
            topic, defer_ms = self._pub_target(head.raw_query)
            self.callers.charge(secret, head.caller.address, messages=1)
            self.publisher.begin(topic, (body,), done, defer_ms=defer_ms, secret=secret)
            return
        topic, is_binary_body = self._mpub_target(head.raw_query)
        # A message of two bytes takes fifty: what the bodies are apart has to be bounded too.
        messages = _announced(body) if is_binary_body else body.count(b"\n") + 1
        apart_bytes = APART_BYTES * min(messages, self.limits.max_mpub_count)
        self.publisher.hold(apart_bytes)

        def told(error: GatewayError | None) -> None:
            self.publisher.release(apart_bytes)
            done(error)

        try:
            bodies = self._split(body, is_binary_body=is_binary_body)
            self.callers.charge(secret, head.caller.address, messages=len(bodies))
            self.publisher.begin(topic, bodies, told, secret=secret)
        except Exception:
            self.publisher.release(apart_bytes)
            raise

    def _split(self, body: bytes, *, is_binary_body: bool) -> list[bytes]:
        if not is_binary_body:
            return split_lines(body, self.limits)
        check_multi_body(len(body), limit_bytes=self.limits.max_body_size_bytes)
        return split_binary(body, self.limits)

    def _pub_target(self, raw_query: bytes) -> tuple[str, int]:
        """Return topic and defer of /pub."""
        target = self._pub_targets.get(raw_query)
        if target is None:
            query = parse_query(raw_query)
            max_ms = self.limits.max_req_timeout_ms
            target = require_topic(query), parse_defer_ms(query, max_ms=max_ms)
            _remember(self._pub_targets, raw_query, target)
        return target

    def _mpub_target(self, raw_query: bytes) -> tuple[str, bool]:
        """Return topic of /mpub, and whether its body is binary."""
        target = self._mpub_targets.get(raw_query)
        if target is None:
            query = parse_query(raw_query)
            target = require_topic(query), is_binary(query)
            _remember(self._mpub_targets, raw_query, target)
        return target

    def count_ok(self, head: Head, began_at: float, trace_id: str | None = None) -> None:
        """Count an answer of 200 to what began at *began_at*; see `http_account`."""
        route = head.route
        _REQUESTS.counts[_OK[route]] += 1
        _ANSWERS[route].count_ok(began_at, trace_id)

    def refusal(
        self, head: Head, error: BaseException, began_at: float, trace_id: str | None = None
    ) -> Answer:
        """Return what a caller is told of *error*, and count it."""
        request_id = head.answer_id
        if not isinstance(error, GatewayError):
            trace = {} if trace_id is None else {"trace_id": trace_id}
            logger.error("publish failed", request_id=request_id, exc_info=error, **trace)
        elif isinstance(error, BrokerRefused):
            error = naming(error, self.topic_of(head))
        _REQUESTS.counts[head.route, fault_of(error).token] += 1
        status, headers, body = problem(error, request_id)
        _ANSWERS[head.route].count(status, began_at, trace_id)
        return status, [*headers, *self._page_headers(head)], body

    def ok_headers(self, head: Head) -> Headers:
        """Return what an OK has for this caller besides what every OK has."""
        headers = self._page_headers(head)
        if head.request_id is not None:
            headers.append((b"x-request-id", head.answer_id.encode()))
        return headers

    def _page_headers(self, head: Head) -> Headers:
        """Return what lets the page that asks read the answer; nothing for who is no page."""
        return list(self._origins.answer_headers(head.origins)) if head.origins else []

    def topic_of(self, head: Head) -> str:
        """Return the topic of a request that has been found right."""
        target = self._pub_target if head.route == PUB else self._mpub_target
        return target(head.raw_query)[0]


def _announced(body: bytes) -> int:
    """Return how many messages a binary *body* says that it has, as far as it has room for them."""
    return min(int.from_bytes(body[:4], "big"), len(body) // _LEAST_BINARY_BYTES)


def _remember(targets: dict[bytes, T], raw_query: bytes, target: T) -> None:
    """Keep what a query says, for callers say the same again and again; the oldest makes room."""
    if len(raw_query) > _MAX_TARGET_BYTES:
        return
    if len(targets) >= _MAX_TARGETS:
        del targets[next(iter(targets))]
    targets[raw_query] = target
