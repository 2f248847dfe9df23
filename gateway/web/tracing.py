"""
OpenTelemetry spans of publishes, upgrades, pulls and deliveries.

NSQ messages have no headers. A message belongs to a trace if its body is a JSON object with a
member ``traceparent``, as in CloudEvents' distributed tracing extension.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

import msgspec

from gateway.errors import GatewayError
from gateway.protocol.frames import Message
from gateway.telemetry import Attributes, Span, TraceParent, Tracing, read_traceparent
from gateway.web.metrics import clock

SYSTEM = {"messaging.system": "nsq"}
"""Attributes of every span of a publish or delivery (OpenTelemetry semantic conventions)."""


def single_traceparent(values: Sequence[bytes]) -> str | None:
    """Return the only value of ``traceparent``; None for none or several (Trace Context §3.2.2)."""
    return values[0].decode("latin-1") if len(values) == 1 else None


class PublishSpans:
    """Starts a span for each sampled request to /pub or /mpub."""

    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing
        self.sample = tracing.sample
        """Returns whether to trace a request without a traceparent; call it once per request."""

    def begin(self, route: str, traceparent: str | None, began_at: float) -> PublishSpan | None:
        """
        Start the span of a request that began at *began_at*, by `clock`.

        A *traceparent* says whether the client samples this trace; if not, return None. Without
        a *traceparent*, call this only if `sample` has returned True.
        """
        parent = None
        if traceparent is not None:
            parent = read_traceparent(traceparent)
            if not self._tracing.should_trace(parent):
                return None
        attributes = {"http.request.method": "POST", "http.route": route}
        span = self._tracing.begin(
            f"POST {route}", "server", parent, attributes, ago_s=clock() - began_at
        )
        return None if span is None else PublishSpan(span, route.removeprefix("/"))


class PublishSpan:
    """The span of a request, with a child span for its publish."""

    __slots__ = ("_operation", "_request", "_send", "trace_id")

    def __init__(self, request: Span, operation: str) -> None:
        self.trace_id = request.trace_id
        self._request: Span | None = request
        self._operation = operation
        self._send: Span | None = None

    def send(
        self, topic: str, size_bytes: int, caller: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """
        Start the child span; called when the producer has accepted the message.

        *caller* are attributes that say who publishes.
        """
        if self._request is None:
            return  # the response is already written: the producer called back at once
        attributes: dict[str, str | int] = {
            **SYSTEM,
            "messaging.operation.type": "send",
            "messaging.operation.name": self._operation,
            "messaging.destination.name": topic,
            "messaging.message.body.size": size_bytes,
            **caller,
        }
        self._send = self._request.child(f"send {topic}", "producer", attributes)

    def end(self, status: int | None, error: BaseException | None = None) -> None:
        """End both spans with the response's *status*, None if none could be sent; idempotent."""
        what = None if error is None else error_type(error)
        self._end({} if status is None else {"http.response.status_code": status}, what)

    def abort(self) -> None:
        """End both spans as ``lost``: the client disconnected during its request; idempotent."""
        self._end({}, "lost")

    def _end(self, attributes: Attributes, error: str | None) -> None:
        request, self._request = self._request, None
        if request is None:
            return
        if self._send is not None:
            self._send.end({}, error=error)
        request.end(attributes, error=error)


def error_type(error: BaseException) -> str:
    """Return the class of *error*, since its text may quote the client's input."""
    return type(error).__name__ if isinstance(error, GatewayError) else "internal"


_TRACEPARENT = b"traceparent"


class RequestSpans:
    """Starts a span for each sampled upgrade, event stream, pull and ack."""

    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing

    def begin(
        self, method: str, route: str, headers: Iterable[tuple[bytes, bytes]], began_at: float
    ) -> Span | None:
        """Start the span of a request begun at *began_at*, by `clock`; None if not sampled."""
        traceparent = single_traceparent([value for name, value in headers if name == _TRACEPARENT])
        parent = None if traceparent is None else read_traceparent(traceparent)
        if not self._tracing.should_trace(parent):
            return None
        attributes = {"http.request.method": method, "http.route": route}
        return self._tracing.begin(
            f"{method} {route}", "server", parent, attributes, ago_s=clock() - began_at
        )


def trace_fields(trace_id: str | None) -> dict[str, str]:
    """Return the log fields that name the trace *trace_id*; empty for None."""
    return {} if trace_id is None else {"trace_id": trace_id}


_KEY = b'"traceparent"'
_MAX_BODY_BYTES = 262_144
"""Longer bodies are not searched for a traceparent."""
_MAX_OPEN = 2_000
"""Maximum number of open delivery spans, of all consumers together; each takes about 4 KiB."""
_MAX_AGE_S = 900.0
"""Maximum seconds of a delivery span: nsqd's default of --max-msg-timeout."""


class _Envelope(msgspec.Struct):
    """The only part of a JSON message body that is decoded."""

    traceparent: str | None = None


_decode = msgspec.json.Decoder(_Envelope).decode


def traceparent_in(body: bytes) -> TraceParent | None:
    """Return the traceparent in a message *body*; None if there is none, or *body* is too long."""
    # The search is cheap, and spares decoding nearly all bodies.
    if _KEY not in body or len(body) > _MAX_BODY_BYTES:
        return None
    try:
        traceparent = _decode(body).traceparent
    except (ValueError, RecursionError):  # invalid UTF-8 raises no DecodeError
        return None
    return None if traceparent is None else read_traceparent(traceparent)


class DeliverySpans:
    """
    The spans of one consumer's deliveries, each from the delivery of a message to its FIN or REQ.

    nsqd does not notify clients of message timeouts, so a span without FIN or REQ ends after
    `_MAX_AGE_S`.
    """

    __slots__ = ("_open", "_topic", "_tracing")

    def __init__(self, tracing: Tracing, topic: str) -> None:
        self._tracing = tracing
        self._topic = topic
        self._open: dict[tuple[int, bytes], tuple[Span, float]] = {}
        """
        Span and time of delivery, by source (the nsqd connection) and message id, oldest first.

        The time is by the event loop's clock.
        """

    def on_delivered(self, source: int, messages: Sequence[Message], channel: str) -> None:
        """Start a span for each of *messages* that belongs to a sampled trace."""
        # Searching the joined bodies once takes a sixth of the time of searching each.
        has_key = _KEY in b"".join([message.body for message in messages])
        # Also without a traceparent while spans are open, so that the old ones end.
        if has_key or self._open:
            with self._tracing.suppress_errors:
                now = asyncio.get_running_loop().time()
                self._end_older_than(now - _MAX_AGE_S)
                if has_key:
                    self._trace_messages(source, messages, channel, now)

    def _trace_messages(
        self, source: int, messages: Sequence[Message], channel: str, now: float
    ) -> None:
        for message in messages:
            parent = traceparent_in(message.body)
            # `should_trace` last: it counts the trace against the limit of traces.
            if parent is not None and self._has_room() and self._tracing.should_trace(parent):
                # After a timeout, nsqd may deliver the message again on the same connection.
                self._end(source, message.id, "timed out")
                self._follow((source, message.id), self._begin(parent, message, channel), now)

    def _has_room(self) -> bool:
        """Return whether a span may be opened; to make room, end this consumer's oldest span."""
        if self._tracing.open_spans >= _MAX_OPEN and self._open:
            self._end(*next(iter(self._open)), "timed out")
        return self._tracing.open_spans < _MAX_OPEN

    def _follow(self, key: tuple[int, bytes], span: Span | None, now: float) -> None:
        if span is not None:
            self._open[key] = span, now
            self._tracing.open_spans += 1

    def _end_older_than(self, time: float) -> None:
        while self._open:
            key, (_, arrived_at) = next(iter(self._open.items()))
            if arrived_at > time:
                return
            self._end(*key, "timed out")

    def _begin(self, parent: TraceParent, message: Message, channel: str) -> Span | None:
        attributes: dict[str, str | int] = {
            **SYSTEM,
            "messaging.operation.type": "process",
            "messaging.operation.name": "process",
            "messaging.destination.name": self._topic,
            "messaging.destination.subscription.name": channel,
            "messaging.message.id": message.id.decode("latin-1"),
            "messaging.message.body.size": len(message.body),
            "nsq.message.attempts": message.attempts,
        }
        return self._tracing.begin(f"process {self._topic}", "consumer", parent, attributes)

    def on_acknowledged(self, source: int, ids: Sequence[bytes], verb: str) -> None:
        """End the spans of the messages *ids*, for which *verb* (FIN or REQ) was sent."""
        if self._open:
            for message_id in ids:
                self._end(source, message_id, verb)

    def on_lost(self, source: int | None = None) -> None:
        """Called when the nsqd connection *source*, or all for None, is lost: end its spans."""
        for key in [key for key in self._open if source in {None, key[0]}]:
            self._end(*key, "lost")

    def _end(self, source: int, message_id: bytes, outcome: str) -> None:
        found = self._open.pop((source, message_id), None)
        if found is not None:
            self._tracing.open_spans -= 1
            is_done = outcome == "FIN"
            found[0].end({"nsq.outcome": outcome}, error=None if is_done else outcome)
