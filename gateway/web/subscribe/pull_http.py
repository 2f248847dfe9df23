"""
The HTTP routes POST /pull, POST /ack, and GET /sub as ``text/event-stream``.

They are called in front of FastAPI: a pull may wait for half a minute, and costs less memory so.
"""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import replace
from itertools import repeat
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

import msgspec
from starlette.types import Receive, Scope, Send

from gateway.errors import GatewayError, LimitReached
from gateway.protocol.frames import Message
from gateway.protocol.wire import Limits
from gateway.telemetry import Attributes, Span, get_logger
from gateway.web.auth import AccessPolicy, Principal, authorization_values, bearer_secret
from gateway.web.errors import DRAINING, problem_response, render_problem
from gateway.web.http.app_request import CONNECTION, AppRequest
from gateway.web.metrics import clock, count_refused_socket
from gateway.web.origins import check_get_without_origin
from gateway.web.responses import HttpResponse, json_response, read_body, send_response
from gateway.web.subscribe.acks import LeaseAcks, read_ack
from gateway.web.subscribe.endpoint import SubscribeEndpoint
from gateway.web.subscribe.event_stream import EventStream, Keepalive
from gateway.web.subscribe.pull import PullAnswer, Pulls
from gateway.web.subscribe.request import parse_pull_request
from gateway.web.subscribe.socket import SubscriberSocket
from gateway.web.tracing import RequestSpans, error_type
from gateway.web.websocket.handshake import read_plain_request

logger = get_logger()

_ROUND_TRIP_MS = 100
"""A pull without ``wait_ms`` waits this long: nsqd needs a round trip to send what it has."""


class _PulledOut(msgspec.Struct):
    """A message in the response to POST /pull."""

    lease: str
    id: str
    timestamp_ns: str
    attempts: int
    lease_ms: int
    body: str | msgspec.UnsetType = msgspec.UNSET
    body_base64: bytes | msgspec.UnsetType = msgspec.UNSET


class _PullResponse(msgspec.Struct):
    messages: list[_PulledOut]


_encode = msgspec.json.Encoder().encode


def _pulled(message: Message, lease: str, lease_ms: int) -> _PulledOut:
    message_id, timestamp_ns = message.id.decode("latin-1"), f"{message.timestamp_ns}"
    out = _PulledOut(lease, message_id, timestamp_ns, message.attempts, lease_ms)
    try:
        out.body = message.body.decode()
    except UnicodeDecodeError:
        out.body_base64 = message.body
    return out


class StreamRoute:
    """GET /sub with ``Accept: text/event-stream``; the call ends when the stream has begun."""

    def __init__(self, endpoint: SubscribeEndpoint, spans: RequestSpans | None = None) -> None:
        self._endpoint = endpoint
        self._spans = spans
        self._keepalive = Keepalive()

    @staticmethod
    def is_asked(scope: Scope) -> bool:
        """Return whether a GET of /sub asks for an event stream."""
        accepted = [value for name, value in scope["headers"] if name == b"accept"]
        return any(b"text/event-stream" in value.lower() for value in accepted)

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Begin an event stream, which ends with its subscription."""
        del receive
        request_id: str = scope["state"]["request_id"]
        connection: AppRequest = scope["state"][CONNECTION]
        upgrade = replace(read_plain_request(scope), subprotocols=(), has_commands=False)
        endpoint = self._endpoint
        span = _begin_span(self._spans, scope)
        if span is not None:
            upgrade = replace(upgrade, trace_id=span.trace_id)
        try:
            check_get_without_origin(upgrade.headers)
            accepted = await endpoint.accept(upgrade)
        except Exception as error:  # noqa: BLE001 - every error becomes a response
            count_refused_socket(error)
            response = endpoint.refusal(error, request_id)
            _end_span(span, (response[0], error))
            await send_response(send, response)
            return
        except BaseException:
            _end_span(span, _LOST)
            raise
        _end_span(span, (200, None), accepted.attributes)
        socket = accepted.handler
        assert isinstance(socket, SubscriberSocket)  # noqa: S101 - `accept` makes no other
        stream = EventStream(connection, socket, self._keepalive)
        endpoint.use_leases(socket, stream)
        await send({"type": "http.response.start", "status": 200, "headers": _STREAM_HEADERS})
        connection.on_abandon, connection.on_writable = stream.on_abandon, stream.on_writable
        stream.begin()
        if connection.has_left():
            stream.on_abandon()
        connection.detach()


_Outcome: TypeAlias = tuple[int | None, BaseException | None]
"""The status of the response, None if the client left before it; and why the request failed."""
_LOST: _Outcome = None, None


def _begin_span(spans: RequestSpans | None, scope: Scope) -> Span | None:
    if spans is None:
        return None
    return spans.begin(scope["method"], scope["path"], scope["headers"], clock())


def _end_span(
    span: Span | None, outcome: _Outcome, attributes: Attributes = MappingProxyType({})
) -> None:
    if span is None:
        return
    status, error = outcome
    if status is None:
        span.end(attributes, error="lost")
        return
    failure = None if error is None else error_type(error)
    span.end({**attributes, "http.response.status_code": status}, error=failure)


_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    # nginx would collect events in its buffer.
    (b"x-accel-buffering", b"no"),
]


class PullRoutes(NamedTuple):
    """POST /pull and POST /ack; each call handles one request."""

    pulls: Pulls
    acks: LeaseAcks
    access: AccessPolicy
    limits: Limits
    spans: RequestSpans | None = None

    async def pull(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond to POST /pull."""
        del receive
        await self._trace(scope, self._respond_to_pull(scope, send))

    async def ack(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond to POST /ack."""
        await self._trace(scope, self._respond_to_ack(scope, receive, send))

    async def _trace(self, scope: Scope, responding: Coroutine[object, object, _Outcome]) -> None:
        span = _begin_span(self.spans, scope)
        outcome = _LOST
        try:
            outcome = await responding
        finally:
            _end_span(span, outcome)

    async def _respond_to_pull(self, scope: Scope, send: Send) -> _Outcome:
        request_id: str = scope["state"]["request_id"]
        client: AppRequest = scope["state"][CONNECTION]
        try:
            answer = await self._pull(scope, client)
        except Exception as error:  # noqa: BLE001 - every error becomes a response
            return await self._send_problem(error, request_id, send)
        if answer.batches or not client.disconnected:
            await send_response(send, json_response(_encode(_response(answer)), request_id))
        if not client.response_complete:
            answer.hand_back()
            return _LOST
        return 200, None

    async def _pull(self, scope: Scope, client: AppRequest) -> PullAnswer:
        if self.pulls.is_draining:
            text = "this gateway is shutting down; pull again, from another one"
            raise LimitReached(text, "draining")
        principal = self._principal(scope)
        params = parse_pull_request(scope["query_string"], limits=self.limits)
        principal.check_subscribe(params.topic, params.channel)
        params = replace(params, wait_ms=max(params.wait_ms, _ROUND_TRIP_MS))
        return await self.pulls.pull(principal, params, client)

    def _principal(self, scope: Scope) -> Principal:
        return self.access.identify(bearer_secret(authorization_values(scope["headers"])))

    async def _respond_to_ack(self, scope: Scope, receive: Receive, send: Send) -> _Outcome:
        request_id: str = scope["state"]["request_id"]
        try:
            principal = self._principal(scope)
            body = await read_body(receive)
            ack = read_ack(
                body,
                max_req_timeout_ms=self.limits.max_req_timeout_ms,
                max_lease_ms=self.limits.max_msg_timeout_ms,
            )
            response = json_response(_encode(await self.acks.answer(ack, principal)), request_id)
        except Exception as error:  # noqa: BLE001 - every error becomes a response
            return await self._send_problem(error, request_id, send)
        await send_response(send, response)
        return 200, None

    async def _send_problem(self, error: Exception, request_id: str, send: Send) -> _Outcome:
        response = self._problem(error, request_id)
        await send_response(send, response)
        return response[0], error

    def _problem(self, error: Exception, request_id: str) -> HttpResponse:
        if not isinstance(error, GatewayError):
            logger.error("pull failed", request_id=request_id, exc_info=error)
        if isinstance(error, LimitReached) and error.reason == "draining":
            return render_problem(DRAINING, str(error), request_id)
        return problem_response(error, request_id)


def _response(answer: PullAnswer) -> _PullResponse:
    pulled: list[_PulledOut] = []
    for batch, leases in zip(answer.batches, answer.leases, strict=True):
        lease_ms = int(batch.lease_s * 1000)
        pulled += map(_pulled, batch.messages, leases, repeat(lease_ms))
    return _PullResponse(pulled)
