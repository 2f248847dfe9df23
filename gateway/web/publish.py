"""
POST /pub and POST /mpub: read, check in nsqd's order, publish, answer.

Plain ASGI in front of FastAPI's routing, for these two decide how many requests a second a
gateway takes (docs/flows.md). 200 means that an nsqd answered OK.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import Protocol, TypeAlias

from starlette.types import Receive, Scope, Send

from gateway.errors import BrokerRefused, GatewayError
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
    split_binary,
    split_lines,
)
from gateway.protocol.wire import Limits
from gateway.secret import Secret
from gateway.telemetry import counter, get_logger
from gateway.web.access import check_origin, chosen_request_id, new_request_id
from gateway.web.answers import send_answer
from gateway.web.credentials import AccessPolicy, bearer_secret
from gateway.web.faults import fault_of, naming, problem

logger = get_logger()

_REQUESTS = counter(
    "publish_requests_total", "Answers to POST /pub and /mpub.", ("route", "result")
)
"""*result* is OK or the token of the error."""

_OK_HEADERS = ((b"content-type", TEXT), (b"content-length", b"%d" % len(OK)), NSQ_HEADER)
_OK_BODY = {"type": "http.response.body", "body": OK}

_Work: TypeAlias = Callable[[Scope, Receive, int | None, Secret | None], Awaitable[bool]]


class Publishes(Protocol):
    """What is needed of `gateway.client.publisher.Publisher`, whose errors it raises."""

    async def publish(
        self, topic: str, body: bytes, *, defer_ms: int = 0, secret: Secret | None = None
    ) -> None:
        """Publish one message; an nsqd has answered OK when this returns."""

    async def publish_many(
        self, topic: str, bodies: Sequence[bytes], *, secret: Secret | None = None
    ) -> None:
        """Publish *bodies*, all or none."""


class PublishPlane:
    """The two ASGI applications that publish."""

    def __init__(
        self,
        publisher: Publishes,
        limits: Limits,
        *,
        allow_origin: Collection[str] = (),
        access: AccessPolicy | None = None,
    ) -> None:
        self._publisher = publisher
        self._limits = limits
        self._allow_origin = allow_origin
        self._access = access or AccessPolicy()
        self._done = {path: _REQUESTS.labels(path, "OK") for path in ("/pub", "/mpub")}

    async def pub(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer POST /pub: the body is one message."""
        await self._answer(self._pub, scope, receive, send)

    async def mpub(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer POST /mpub: the body is a message a line, or binary; none is right too."""
        await self._answer(self._mpub, scope, receive, send)

    async def _answer(self, work: _Work, scope: Scope, receive: Receive, send: Send) -> None:
        """Do *work*, which is False when the client has gone, and send what came out of it."""
        headers = scope["headers"]
        request_id, size_bytes, has_origin, authorization = read_head(headers)
        try:
            if has_origin:
                check_origin(headers, self._allow_origin)
            secret = self._access.secret_of(bearer_secret(authorization))
            if not await work(scope, receive, size_bytes, secret):
                return
        except Exception as error:
            if not isinstance(error, GatewayError):
                logger.exception("publish failed", request_id=request_id)
            _REQUESTS.labels(scope["path"], fault_of(error).token).inc()
            await send_answer(send, problem(error, request_id))
        else:
            self._done[scope["path"]].inc()
            await send(
                {
                    "type": "http.response.start",
                    "status": 200,
                    "headers": [*_OK_HEADERS, (b"x-request-id", request_id.encode())],
                }
            )
            await send(_OK_BODY)

    async def _pub(
        self, scope: Scope, receive: Receive, size_bytes: int | None, secret: Secret | None
    ) -> bool:
        limits = self._limits
        limit_bytes = limits.max_msg_size_bytes
        if size_bytes is not None:
            check_body(size_bytes, limit_bytes=limit_bytes)
        body = await read_body(receive, limit_bytes=limit_bytes)
        if body is None:
            return False
        # The body comes before the topic, as in nsqd.
        check_body(len(body), limit_bytes=limit_bytes)
        query = parse_query(scope["query_string"])
        topic = require_topic(query)
        defer_ms = parse_defer_ms(query, max_ms=limits.max_req_timeout_ms)
        try:
            await self._publisher.publish(topic, body, defer_ms=defer_ms, secret=secret)
        except BrokerRefused as error:
            raise naming(error, topic) from None
        return True

    async def _mpub(
        self, scope: Scope, receive: Receive, size_bytes: int | None, secret: Secret | None
    ) -> bool:
        limits = self._limits
        limit_bytes = limits.max_body_size_bytes
        if size_bytes is not None:
            check_multi_body(size_bytes, limit_bytes=limit_bytes)
        query = parse_query(scope["query_string"])
        topic = require_topic(query)
        body = await read_body(receive, limit_bytes=limit_bytes)
        if body is None:
            return False
        if is_binary(query):
            check_multi_body(len(body), limit_bytes=limit_bytes)
            bodies = split_binary(body, limits)
        else:
            bodies = split_lines(body, limits)
        try:
            await self._publisher.publish_many(topic, bodies, secret=secret)
        except BrokerRefused as error:
            raise naming(error, topic) from None
        return True


def read_head(
    headers: Iterable[tuple[bytes, bytes]],
) -> tuple[str, int | None, bool, Sequence[bytes]]:
    """
    Return request id, Content-Length, whether there is an Origin, and Authorization, in one go.

    Content-Length is None when it is not told: the body comes in chunks.
    """
    request_id = None
    size_bytes = None
    has_origin = False
    authorization: tuple[bytes, ...] = ()
    for name, value in headers:
        if name == b"content-length":
            # A server has refused what is no number; without one the body itself is counted.
            size_bytes = int(value) if value.isdigit() else None
        elif name == b"x-request-id":
            request_id = chosen_request_id(value)
        elif name == b"origin":
            has_origin = True
        elif name == b"authorization":
            authorization = (*authorization, value)
    return request_id or new_request_id(), size_bytes, has_origin, authorization


async def read_body(receive: Receive, *, limit_bytes: int) -> bytes | None:
    """Return the body, read no further than past *limit_bytes*; None when the client has gone."""
    event = await receive()
    if event["type"] == "http.request" and not event.get("more_body", False):
        whole: bytes = event.get("body", b"")
        return whole
    body = bytearray()
    while event["type"] == "http.request":
        body += event.get("body", b"")
        if len(body) > limit_bytes or not event.get("more_body", False):
            return bytes(body)
        event = await receive()
    return None
