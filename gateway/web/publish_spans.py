"""The trace of a request to publish: from its head to its answer, and within it until nsqd's OK."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.errors import GatewayError
from gateway.telemetry import Attributes, Span, Tracing, read_traceparent
from gateway.web.http_account import clock

SYSTEM = {"messaging.system": "nsq"}
"""On every span about messages (OpenTelemetry's conventions for messaging)."""


def only_traceparent(values: Sequence[bytes]) -> str | None:
    """Return the ``traceparent`` of a request; two say nothing (W3C Trace Context §3.2.2)."""
    return values[0].decode("latin-1") if len(values) == 1 else None


class PublishSpans:
    """Begins the traces of requests to publish."""

    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing
        self.draws = tracing.draws
        """Asked for each request without a traceparent: whether it has a trace."""

    def begin(self, route: str, traceparent: str | None, began_at: float) -> PublishSpan | None:
        """
        Return the span of a request that began at *began_at*, by `clock`; None: it has none.

        One that brings no traceparent has been drawn.
        """
        parent = None
        if traceparent is not None:
            parent = read_traceparent(traceparent)
            if not self._tracing.wants(parent):
                return None
        attributes = {"http.request.method": "POST", "http.route": route}
        span = self._tracing.begin(
            f"POST {route}", "server", parent, attributes, ago_s=clock() - began_at
        )
        return None if span is None else PublishSpan(span, route.removeprefix("/"))


class PublishSpan:
    """The span of one request, and the one of its publish within."""

    __slots__ = ("_operation", "_request", "_send", "trace_id")

    def __init__(self, request: Span, operation: str) -> None:
        self.trace_id = request.trace_id
        self._request: Span | None = request
        self._operation = operation
        self._send: Span | None = None

    def send(self, topic: str, size_bytes: int) -> None:
        """Know that it has been given to the publisher."""
        if self._request is None:
            return  # it has its answer already
        attributes: dict[str, str | int] = {
            **SYSTEM,
            "messaging.operation.type": "send",
            "messaging.operation.name": self._operation,
            "messaging.destination.name": topic,
            "messaging.message.body.size": size_bytes,
        }
        self._send = self._request.child(f"send {topic}", "producer", attributes)

    def end(self, status: int | None, error: BaseException | None = None) -> None:
        """End with an answer of *status*, None where nobody waits for it; idempotent."""
        what = None if error is None else _word(error)
        self._end({} if status is None else {"http.response.status_code": status}, what)

    def lose(self) -> None:
        """End with no answer: the client has gone before the request was whole; idempotent."""
        self._end({}, "lost")

    def _end(self, attributes: Attributes, error: str | None) -> None:
        request, self._request = self._request, None
        if request is None:
            return
        if self._send is not None:
            self._send.end({}, error=error)
        request.end(attributes, error=error)


def _word(error: BaseException) -> str:
    """Return what a span is told: the kind of error, and nothing that a caller has said."""
    return type(error).__name__ if isinstance(error, GatewayError) else "internal"
