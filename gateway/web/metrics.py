"""
Metrics of the public port: requests, sockets and refusals.

No metric iterates over all sockets, so a scrape takes no longer with ten thousand of them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence

from starlette.types import Message as AsgiMessage
from starlette.types import Scope, Send

from gateway.errors import (
    AuthRequired,
    BrokerRefused,
    BrokerUnreachable,
    Forbidden,
    HeadersTooLarge,
    InvalidRequest,
    LimitReached,
    NoBroker,
    NoNsqdHttpAddress,
)
from gateway.protocol.frames import Message
from gateway.session.json_frames import VERBS
from gateway.session.types import RequeueCause, SessionObserver
from gateway.telemetry import (
    OTHER,
    SECONDS_BUCKETS,
    fast_counter,
    fast_gauge,
    gauge,
    histogram,
)

HTTP_REQUESTS = fast_counter(
    "http_requests_total",
    "Responses of the public port, by route, method and status; a WebSocket upgrade is 101.",
    ("route", "method", "code"),
)
HTTP_DURATION = histogram(
    "http_request_duration_seconds",
    "Time from the end of the request head to the response, by route; for WebSockets, "
    "to status 101.",
    ("route",),
    buckets=SECONDS_BUCKETS,
)
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})

_PUBLISH_STATUSES = (200, 400, 401, 403, 408, 413, 429, 500, 503, 504)
_STATUSES = {
    "/pub": _PUBLISH_STATUSES,
    "/mpub": _PUBLISH_STATUSES,
    "/sub": (101, 200, 400, 401, 403, 426, 500, 503),
    "/pull": (200, 400, 401, 403, 500, 503),
    "/ack": (200, 400, 401, 403, 413, 500),
}
_OTHER_STATUSES = (200, 500, 503)
"""
Statuses of all other routes.

The series of these statuses are exported as 0 from the start, so that alerts see the first
increase.
"""

clock = time.perf_counter
"""The clock that measures the duration of requests, in seconds."""


def init_routes(routes: Mapping[str, Iterable[str]]) -> None:
    """Export the series of *routes* as 0; keys are path templates, values are methods."""
    for route, methods in routes.items():
        if ":" in route:
            continue  # a template with a parameter: its paths are counted as `OTHER`
        statuses = _STATUSES.get(route, _OTHER_STATUSES)
        HTTP_REQUESTS.init_series(
            (route, method, str(status)) for method in methods for status in statuses
        )


def count_response(
    route: str, method: str, status: int, began_at: float, trace_id: str | None = None
) -> None:
    """
    Count a response, and observe the time since *began_at*, which is by `clock`.

    *route* is a path template; an unknown *method* counts as `OTHER`.
    """
    HTTP_REQUESTS.counts[route, known_method(method), str(int(status))] += 1
    HTTP_DURATION.labels(route).observe(clock() - began_at, trace_id)


def known_method(method: str) -> str:
    """Return *method*, or `OTHER` if unknown, so that clients cannot create new series."""
    return method if method in _METHODS else OTHER


def count_responses(scope: Scope, send: Send, routes: Mapping[str, object]) -> Send:
    """Return an ASGI send that calls *send*, and counts the response once it is complete."""
    began_at = clock()
    route = scope["path"] if scope["path"] in routes else OTHER
    status = 0

    async def send_counted(event: AsgiMessage) -> None:
        nonlocal status
        # First: `send` waits for a client that reads slowly, and the duration includes that.
        await send(event)
        if event["type"] == "http.response.start":
            status = event["status"]
        elif event["type"] == "http.response.body" and not event.get("more_body"):
            count_response(route, scope["method"], status, began_at)

    return send_counted


DELIVERED = fast_counter(
    "messages_delivered_total",
    "Messages written to clients, by kind of nsqd consumer: own (one socket or event stream), "
    "shared (several of them), or pull (POST /pull).",
    ("consumer",),
    zeros=[("own",), ("shared",), ("pull",)],
)
REQUEUED = fast_counter(
    "messages_requeued_total",
    "Messages requeued at nsqd, by cause.",
    ("cause",),
    zeros=[(cause.value,) for cause in RequeueCause],
)
SLOW = fast_counter(
    "slow_consumers_total",
    "Sockets whose client reads too slowly, by action: paused or closed.",
    ("action",),
    zeros=[("paused",), ("closed",)],
)
OPENED = fast_counter("sockets_opened_total", "WebSocket connections opened.")

_IN_FLIGHT = fast_gauge(
    "messages_in_flight", "Messages delivered to clients and not yet finished or requeued."
)
_UNSENT = fast_gauge(
    "socket_unsent_bytes",
    "Bytes buffered for clients, as of the last event of each socket.",
)
_UNSENT_MAX = gauge("socket_unsent_max_bytes", "Largest number of bytes buffered for one client.")
# Label tuples made once, because commands are counted on the hot path.
_VERB_KEYS = {verb: (verb,) for verb in VERBS} | {"": ("unreadable",)}
_COMMANDS = fast_counter(
    "socket_commands_total",
    "Commands from WebSocket clients, by verb.",
    ("command",),
    zeros=_VERB_KEYS.values(),
)
_TIMED_OUT = fast_counter(
    "messages_timed_out_total",
    "Messages not finished, requeued or touched before the message timeout.",
)
_AGE = histogram(
    "message_age_seconds",
    "Time from nsqd's timestamp of a message to writing it to a WebSocket client.",
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 60, 600, 3600),
).labels()

_NS_PER_S = 1_000_000_000

_lagging: dict[object, int] = {}
"""Unsent bytes by socket, only for sockets that have any: the maximum is quick to find."""
_UNSENT_MAX.set_function(lambda: max(_lagging.values(), default=0))


class SocketMetrics(SessionObserver):
    """Observe the sessions of all WebSockets, and count their events."""

    def on_written(self, messages: Sequence[Message]) -> None:
        """Observe the age of *messages*, which were just written to the client."""
        observe_age(messages)

    def on_timed_out(self, count: int) -> None:
        """Count *count* messages whose timeout at nsqd has passed."""
        _TIMED_OUT.counts[()] += count

    def on_commands(self, verb: str, count: int = 1) -> None:
        """Count *count* commands of a client; *verb* is empty if they are unreadable."""
        _COMMANDS.counts[_VERB_KEYS[verb]] += count


SESSION_METRICS = SocketMetrics()


def observe_age(messages: Sequence[Message], *, times: int = 1) -> None:
    """
    Observe the age of each of *messages*, of which there is at least one.

    Each message counts *times* times, for the number of sockets that it was written to. A negative
    age, which differing clocks of nsqd's host and this one cause, counts as 0.
    """
    now_ns = time.time_ns()
    if len(messages) == 1:
        taken_at = [messages[0].timestamp_ns]
        first_ns = last_ns = total_ns = taken_at[0]
    else:
        taken_at = [message.timestamp_ns for message in messages]
        first_ns, last_ns, total_ns = min(taken_at), max(taken_at), sum(taken_at)
    count = len(taken_at)
    # Messages that arrive together usually fall into one bucket; observing them at once takes
    # a third of the time. With a timestamp in the future, each age must be cut off at 0 by itself.
    if last_ns > now_ns or not _AGE.observe_many(
        (now_ns - last_ns) / _NS_PER_S,
        (now_ns - first_ns) / _NS_PER_S,
        count=count * times,
        total=(now_ns * count - total_ns) * times / _NS_PER_S,
    ):
        for each_ns in taken_at:
            age_s = max(0, now_ns - each_ns) / _NS_PER_S
            _AGE.observe_many(age_s, age_s, count=times, total=age_s * times)


class SocketGauges:
    """
    What one socket adds to the gauges of messages in flight and unsent bytes.

    Call `update` with zeros when the socket closes.
    """

    __slots__ = ("_held", "_unsent_bytes")

    def __init__(self) -> None:
        self._held = 0
        self._unsent_bytes = 0

    def update(self, held: int, unsent_bytes: int) -> bool:
        """
        Set what the socket adds: *held* messages in flight, and *unsent_bytes*.

        Return True if *unsent_bytes* differs from the last call.
        """
        # The gauges are sums over all sockets, so only the differences are added.
        if held != self._held:
            _IN_FLIGHT.counts[()] += held - self._held
            self._held = held
        if unsent_bytes == self._unsent_bytes:
            return False
        _UNSENT.counts[()] += unsent_bytes - self._unsent_bytes
        self._unsent_bytes = unsent_bytes
        if unsent_bytes:
            _lagging[self] = unsent_bytes
        else:
            _lagging.pop(self, None)
        return True


PUBLISH, COMMAND, SOCKET = "publish", "command", "socket"
FULL, OPEN_FILES = "full", "open_files"
CONNECTIONS_REFUSED = fast_counter(
    "http_connections_refused_total",
    "Connections to the public port refused with 503, by reason.",
    ["reason"],
    zeros=[(FULL,), (OPEN_FILES,)],
)
RATE_LIMITED = fast_counter(
    "rate_limited_total",
    "Publishes and sockets refused or closed by a limit per caller, by scope.",
    ["scope"],
    zeros=[(PUBLISH,), (COMMAND,), (SOCKET,)],
)

BAD_REQUEST, DRAINING = "bad_request", "draining"
_REASONS: dict[type[Exception], str] = {
    Forbidden: "origin",
    AuthRequired: "auth",
    HeadersTooLarge: BAD_REQUEST,
    InvalidRequest: BAD_REQUEST,
    NoBroker: "no_broker",
    NoNsqdHttpAddress: "no_broker",
    BrokerUnreachable: "no_broker",
}
_FAILED = "failed"
_OF_ONE_CALLER = {"address_full", "secret_full"}
SOCKETS_REFUSED = fast_counter(
    "sockets_refused_total",
    "WebSocket upgrades refused, by reason.",
    ["reason"],
    zeros=[
        (reason,)
        for reason in (
            FULL,
            OPEN_FILES,
            *sorted(_OF_ONE_CALLER),
            DRAINING,
            "nsqd",
            *_REASONS.values(),
            _FAILED,
        )
    ],
)


def count_refused_socket(error: BaseException) -> None:
    """Count a WebSocket that was refused because of *error*, by reason and by limit per caller."""
    count_refused(_reason_of(error))
    count_socket_limit(error)


def count_socket_limit(error: BaseException) -> None:
    """If *error* is an exceeded limit per caller, count the socket in ``rate_limited_total``."""
    if isinstance(error, LimitReached) and error.reason in _OF_ONE_CALLER:
        RATE_LIMITED.counts[SOCKET,] += 1


def count_refused(reason: str) -> None:
    """Count a WebSocket that was refused for *reason*, a label of ``sockets_refused_total``."""
    SOCKETS_REFUSED.counts[reason,] += 1


def _reason_of(error: BaseException) -> str:
    if isinstance(error, LimitReached):
        return error.reason
    if isinstance(error, BrokerRefused):
        return "auth" if error.is_auth_error else "nsqd"
    # Over the base classes, since an error may be of a subclass of those in the table.
    return next((_REASONS[kind] for kind in type(error).__mro__ if kind in _REASONS), _FAILED)
