"""The trace of a request for a WebSocket: until the 101, or the answer in its place."""

from __future__ import annotations

from collections.abc import Iterable

from gateway.telemetry import Span, Tracing, read_traceparent
from gateway.web.http_account import clock
from gateway.web.publish_spans import only_traceparent

_TRACEPARENT = b"traceparent"


class UpgradeSpans:
    """Begins the traces of requests for a WebSocket."""

    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing

    def begin(
        self, method: str, route: str, headers: Iterable[tuple[bytes, bytes]], began_at: float
    ) -> Span | None:
        """Return the span of a request that began at *began_at*, by `clock`; None: it has none."""
        said = only_traceparent([value for name, value in headers if name == _TRACEPARENT])
        parent = None if said is None else read_traceparent(said)
        if not self._tracing.wants(parent):
            return None
        attributes = {"http.request.method": method, "http.route": route}
        return self._tracing.begin(
            f"{method} {route}", "server", parent, attributes, ago_s=clock() - began_at
        )


def trace_fields(trace_id: str | None) -> dict[str, str]:
    """Return what a line of the log says of the trace that it belongs to."""
    return {} if trace_id is None else {"trace_id": trace_id}
