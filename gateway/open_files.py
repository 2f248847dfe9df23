"""
Limit open files, of which every connection is one.

Without a free file descriptor no connection gets a response: uvloop accepts and closes each one at
once (libuv's uv__emfile_trick), asyncio stops accepting for a second. Therefore clients may use
only a share of the descriptors. Beyond it they are refused, while a response can still be sent.
"""

from __future__ import annotations

import asyncio
import errno
import math
import os
import resource
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from gateway.errors import StartError
from gateway.telemetry import counter, fast_gauge, gauge, get_logger

logger = get_logger()

OWN_FILES = 100
"""Files other than connections to clients and nsqds: listeners, the event loop, the log."""
MIN_FILES = 50
"""Minimum to start: listeners, the event loop, a few clients."""

_CHECK_INTERVAL_S = 1.0
_LOG_INTERVAL_S = 60.0
_MAX_HANDSHAKES = 512
"""Each takes about 50 KiB."""
MAX_AUTH_CONNECTIONS = 256
"""Maximum connections of nsqds to the auth server, each for one request of milliseconds."""
_NO_FILE = (errno.EMFILE, errno.ENFILE)
"""The limit of the process, and of the whole system."""

_NEEDED = fast_gauge("open_files_needed", "File descriptors that the settings allow to be in use.")
_CLIENTS_LIMIT = gauge(
    "open_files_clients_limit",
    "Limit of file descriptors for client connections; beyond it they get 503.",
)
_EXHAUSTED = counter(
    "open_files_exhausted_total",
    "Failed attempts to open a file: the limit of the process or of the system is reached.",
)


def raise_open_files_limit(needs: Mapping[str, int]) -> float:
    """
    Raise the soft limit of open files to the hard limit; warn if it is too low for *needs*.

    *needs* maps each setting to the number of files that it allows. Most systems start programs
    with a low soft limit because of select(), which is not used here.

    Return the limit; infinity if there is none.

    Raises:
        StartError: The limit is below `MIN_FILES`.
    """
    needed = sum(needs.values()) + OWN_FILES
    _NEEDED.counts[()] = needed
    limit = _raised_limit()
    if limit == resource.RLIM_INFINITY:
        return math.inf
    if limit < MIN_FILES:
        raise StartError(
            f"the limit of open files is {limit}, and at least {MIN_FILES} are needed; "
            f"raise `ulimit -n` to {needed} (`ulimit -Hn` shows its maximum)"
        )
    if limit < needed:
        parts = [f"{count} for {what}" for what, count in needs.items()]
        logger.warning(
            "open files limit too low for the settings",
            limit=limit,
            needed=needed,
            parts=", ".join([*parts, f"{OWN_FILES} for the rest"]),
            advice=f"raise `ulimit -n` to {needed}, the hard limit too, or lower these settings",
        )
    return limit


def _raised_limit() -> int:
    """Raise the soft limit to the hard limit, if the system permits; return the soft limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (OSError, ValueError):
            # Some systems refuse an unlimited soft limit.
            logger.debug("open files limit not raised", limit=soft)
    return soft


def handshakes_limit() -> int:
    """Return how many TLS handshakes may run at once, a sixteenth of the limit of open files."""
    return _small_share(_MAX_HANDSHAKES)


def auth_connections_limit() -> int:
    """Return how many connections to the auth server may be open, a sixteenth at most."""
    return _small_share(MAX_AUTH_CONNECTIONS)


def _small_share(most: int) -> int:
    """Return a sixteenth of the limit of open files, at least 1 and at most *most*."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return most if limit == resource.RLIM_INFINITY else max(1, min(most, limit // 16))


class ClientFiles(NamedTuple):
    """File descriptors that clients use."""

    connections: int
    """HTTP connections, without refused ones."""
    sockets: int
    """WebSockets, and the nsqd connections of their subscriptions."""


class OpenFilesBudget:
    """
    Limit how many file descriptors clients use; nsqd connections and the management port need some.

    A client uses one file for its connection, and a subscription one more for every nsqd.
    WebSockets get three quarters of the clients' share, so that publishers can always connect. The
    limit for HTTP connections is lower than what is free, so that some of them can still be
    upgraded to WebSockets.

    Args:
        limit: Limit of open files of this process; infinity for none.
        reserved: Files for publishing connections to nsqd, and for the auth server.
    """

    def __init__(self, limit: float = math.inf, *, reserved: int = 0) -> None:
        # With a very low limit the process keeps two fifths, so that clients get a share.
        own = min(OWN_FILES, limit * 2 / 5)
        self.clients_limit = max(1.0, limit - own - reserved)
        """Limit for all clients."""
        self.sockets_limit = self.clients_limit * 3 / 4
        """Limit for WebSockets, their nsqd connections included."""
        self._headroom = self.clients_limit / 3
        self.lingering_limit = own / 4
        """Limit of refused connections that linger so that the client can read the response."""
        self._max_descriptor = limit - own / 4
        self.get_client_files: Callable[[], ClientFiles] = lambda: ClientFiles(0, 0)
        """Returns the files that clients use now; replaced when the public port starts."""

    def has_file_for_connection(self, descriptor: int) -> bool:
        """
        Return whether a new connection may stay open; `get_client_files` already counts it.

        *descriptor* is the connection's file descriptor. The kernel assigns the lowest free number,
        so a high one means that too many files are open, whether clients use them or not.
        """
        connections, sockets = self.get_client_files()
        # Keep room for upgrades: otherwise, in a rush, new connections take every file before the
        # existing ones have sent their upgrade requests.
        headroom = max(0.0, min(self._headroom, self.sockets_limit - sockets))
        taken = connections + sockets
        return descriptor < self._max_descriptor and taken + headroom <= self.clients_limit

    def has_files_for_socket(self, files: int) -> bool:
        """Return whether a connection may become a WebSocket with *files* more files for nsqd."""
        connections, sockets = self.get_client_files()
        # The connection itself moves from one count to the other: it adds 1 to the WebSockets, and
        # nothing to the total.
        return (
            sockets + 1 + files <= self.sockets_limit
            and connections + sockets + files <= self.clients_limit
        )

    def update_metric(self) -> None:
        """Export `clients_limit` as a gauge."""
        _CLIENTS_LIMIT.set(self.clients_limit)


class OpenFilesMonitor:
    """Checks once a second that a file can be opened, and warns if not."""

    def __init__(self) -> None:
        self._timer: asyncio.TimerHandle | None = None
        self._logged_at = -math.inf

    def start(self) -> None:
        """Start checking."""
        self._timer = asyncio.get_running_loop().call_later(_CHECK_INTERVAL_S, self._check)

    async def stop(self) -> None:
        """Stop checking; idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self) -> None:
        # Opening a file is the only test that also sees the limit of the whole system (ENFILE).
        try:
            os.close(os.open(os.devnull, os.O_RDONLY))
        except OSError as error:
            if error.errno in _NO_FILE:
                self._warn(error)
        self.start()

    def _warn(self, error: OSError) -> None:
        """Count every failure, log one a minute."""
        _EXHAUSTED.inc()
        now = time.monotonic()
        if now - self._logged_at < _LOG_INTERVAL_S:
            return
        self._logged_at = now
        logger.warning(
            "open files exhausted",
            reason=os.strerror(error.errno or 0),
            limit=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
            advice="new connections are closed without a response; raise `ulimit -n` (EMFILE) "
            "or fs.file-max (ENFILE), or lower --max-sockets and --max-http-connections",
        )
