"""What the requests to the public port come to, by route, method and status."""

from __future__ import annotations

import time
from collections.abc import Mapping

from starlette.types import Message, Scope, Send

from gateway.telemetry import OTHER, SECONDS_BUCKETS, Distribution, histogram, tally

_REQUESTS = tally(
    "http_requests_total",
    "Answers on the public port, by route; a WebSocket's is 101.",
    ("route", "method", "code"),
)
_DURATION = histogram(
    "http_request_duration_seconds",
    "From a request, or its part that came first, to its answer; of a WebSocket to the 101.",
    ("route",),
    buckets=SECONDS_BUCKETS,
)
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})

POST = "POST"

clock = time.perf_counter
"""What requests are measured by, seconds."""


class RouteAccount:
    """The requests of one *route* and *method*, which come often."""

    __slots__ = ("_duration", "_method", "_ok", "_route")

    def __init__(self, route: str, method: str) -> None:
        self._route = route
        self._method = method
        self._ok = route, method, "200"
        self._duration: Distribution = _DURATION.labels(route)

    def count_ok(self, began_at: float, trace_id: str | None = None) -> None:
        """Count an answer of 200 to what began at *began_at*, by `clock`."""
        _REQUESTS.counts[self._ok] += 1
        self._duration.observe(clock() - began_at, trace_id)

    def count(self, status: int, began_at: float, trace_id: str | None = None) -> None:
        """Count an answer of *status*."""
        _REQUESTS.counts[self._route, self._method, str(status)] += 1
        self._duration.observe(clock() - began_at, trace_id)


def count_answer(
    route: str, method: str, status: int, began_at: float, trace_id: str | None = None
) -> None:
    """Count an answer; *route* is a template, a method that nobody knows is `OTHER`."""
    _REQUESTS.counts[route, known_method(method), str(int(status))] += 1
    _DURATION.labels(route).observe(clock() - began_at, trace_id)


def known_method(method: str) -> str:
    """Return *method*, or `OTHER` for one that nobody knows: a caller may make up any."""
    return method if method in _METHODS else OTHER


def counted(scope: Scope, send: Send, routes: Mapping[str, object]) -> Send:
    """Return *send* for a request over ASGI, which counts its answer once that is whole."""
    began_at = clock()
    route = scope["path"] if scope["path"] in routes else OTHER
    status = 0

    async def send_counted(event: Message) -> None:
        nonlocal status
        await send(event)
        if event["type"] == "http.response.start":
            status = event["status"]
        elif event["type"] == "http.response.body" and not event.get("more_body"):
            count_answer(route, scope["method"], status, began_at)

    return send_counted
