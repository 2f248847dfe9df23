"""The state shared by the HTTP connections of one public port: limits, timeouts and draining."""

from __future__ import annotations

import asyncio
import heapq
from dataclasses import dataclass, field
from typing import Protocol

from gateway.errors import LimitReached
from gateway.open_files import OpenFilesBudget
from gateway.telemetry import get_logger
from gateway.web.http.publish import PublishHandler
from gateway.web.lingering_close import RefusedPeers
from gateway.web.loop_budget import ReadTimeBudget
from gateway.web.metrics import CONNECTIONS_REFUSED, OPEN_FILES
from gateway.web.proxies import TrustedProxies
from gateway.web.websocket.protocol import WebSocketServerState

logger = get_logger()

_SWEEP_INTERVAL_S = 1.0
IDLE_S = 5.0
"""A connection idle for this long may be closed to make room for another."""
_MAX_CLOSABLE = 256
"""One sweep selects this many idle connections; each refused connection closes one of them."""
MAX_LINGERING = 256
"""Maximum number of refused connections and upgrades that linger; further ones close at once."""


class HttpConnection(Protocol):
    """
    What `HttpServerState` calls of a connection; `HttpProtocol` implements it.

    A Protocol, since `HttpProtocol` imports this module.
    """

    def check_timeouts(self, now: float) -> None:
        """Enforce the timeouts; *now* is the event loop's time."""

    def drain(self) -> None:
        """Send ``Connection: close`` with the current response if it has not begun."""

    def idle_s(self, now: float) -> float:
        """Return the seconds since the last response; 0 during a request."""

    def close_idle(self, now: float) -> bool:
        """Close the connection if it has been idle for at least `IDLE_S`; return whether it has."""


@dataclass(frozen=True, kw_only=True)
class HttpLimits:
    """Limits and timeouts of HTTP connections."""

    request_timeout_s: float = 30.0
    """Maximum time from the first byte of a request to its last; then the client gets 408."""
    keep_alive_s: float = 75.0
    """Maximum time from a response to the next request; then the connection closes."""
    response_timeout_s: float = 30.0
    """Maximum time for which the client may read nothing of its response; then abort."""
    max_connections: int = 10_000
    files: OpenFilesBudget = field(default_factory=OpenFilesBudget)
    """File descriptors, shared with WebSockets and connections to nsqd."""


class HttpServerState:
    """
    The connections of one public port, their limits and timeouts.

    Args:
        handler: Handles requests to publish.
        websockets: Handles upgrades; None treats them as plain HTTP requests.
        proxies: Proxies whose forwarding headers are trusted; None for no proxy.
        limits: Limits and timeouts; None for the defaults.
    """

    def __init__(
        self,
        handler: PublishHandler,
        *,
        websockets: WebSocketServerState | None = None,
        proxies: TrustedProxies | None = None,
        limits: HttpLimits | None = None,
    ) -> None:
        self.handler = handler
        self.websockets = websockets
        self.proxies = proxies
        self.limits = limits or HttpLimits()
        self.read_budget = ReadTimeBudget()
        self.is_draining = False
        """True after `drain`."""
        self._connections: set[HttpConnection] = set()
        self._refused_connections: set[HttpConnection] = set()
        """Refused connections that are still open."""
        self._has_refused = False
        """True if a connection was refused after the last sweep."""
        self._closable: list[HttpConnection] = []
        """Idle connections that the last sweep found, the longest idle last."""
        self.refused = RefusedPeers(lambda: min(MAX_LINGERING, self.limits.files.lingering_limit))
        """Refused connections and upgrades that are still open; limits how many linger."""
        self._sweep: asyncio.TimerHandle | None = None

    def drain(self) -> None:
        """Send ``Connection: close`` with every response; idle connections stay open."""
        self.is_draining = True
        for connection in self._connections:
            connection.drain()

    def add(self, connection: HttpConnection, fd: int = -1) -> LimitReached | None:
        """
        Register *connection* until `remove`; return an error if it exceeds a limit.

        In this case, also close an idle connection, so that a retry of the client succeeds. *fd* is
        the socket's file descriptor, or -1 if unknown.
        """
        error = self._limit_error(fd)
        if error is not None:
            CONNECTIONS_REFUSED.counts[error.reason,] += 1
            # *connection* is refused all the same: the other one needs time to close.
            self._make_room()
        if error is None:
            self._connections.add(connection)
        else:
            # Apart from the others, so that refused connections do not count towards the limit;
            # their timeouts are checked nevertheless.
            self._refused_connections.add(connection)
            self.refused.add(connection)
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(_SWEEP_INTERVAL_S, self._on_sweep)
        return error

    def _make_room(self) -> None:
        """Close one idle connection: of those that the last sweep found, the longest idle."""
        self._has_refused = True
        now = asyncio.get_running_loop().time()
        # Since the sweep, candidates may have closed or become busy.
        while self._closable:
            connection = self._closable.pop()
            if connection in self._connections and connection.close_idle(now):
                return

    def _limit_error(self, fd: int) -> LimitReached | None:
        limit = self.limits.max_connections
        if len(self._connections) >= limit:
            return LimitReached(f"all {limit} HTTP connections are in use; try again later")
        files = self.limits.files
        if not files.has_file_for_connection(fd):
            text = "too many files are open in this gateway for one more connection"
            return LimitReached(f"{text}; try again later", OPEN_FILES)
        return None

    def remove(self, connection: HttpConnection) -> None:
        """Deregister *connection*; idempotent."""
        self._connections.discard(connection)
        self._refused_connections.discard(connection)
        self.refused.discard(connection)

    def _on_sweep(self) -> None:
        """
        Called every second: check the timeouts of all connections, and find idle ones to close.

        One timer per request would cost more.
        """
        loop = asyncio.get_running_loop()
        now = loop.time()
        # A copy, because a timeout may remove its connection.
        for connection in [*self._connections, *self._refused_connections]:
            try:
                connection.check_timeouts(now)
            except Exception:
                # One broken connection must not disable the timeouts of the others.
                logger.exception("http timeout check failed")
        # Searching all connections only pays while some are refused.
        self._closable = self._idle(now) if self._has_refused else []
        self._has_refused = False
        # Without connections no timer, so that an idle process does not wake up.
        # Refused connections need the timer, too: it ends their lingering.
        has_any = bool(self._connections or self._refused_connections)
        self._sweep = loop.call_later(_SWEEP_INTERVAL_S, self._on_sweep) if has_any else None

    def _idle(self, now: float) -> list[HttpConnection]:
        idle = (each for each in self._connections if each.idle_s(now) >= IDLE_S)
        longest = heapq.nlargest(_MAX_CLOSABLE, idle, key=lambda each: each.idle_s(now))
        return longest[::-1]  # `_make_room` pops from the end
