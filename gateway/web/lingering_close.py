"""Close connections so that the peer still gets the last bytes, and detect peers that hang up."""

from __future__ import annotations

import asyncio
import contextlib
import select
from collections.abc import Callable

from uvicorn.server import ServerState

from gateway.aio import per_loop

LINGER_S = 2.0
"""Maximum seconds for a peer to read the last bytes and close its side; then abort."""


def half_close(transport: asyncio.Transport) -> None:
    """Send EOF after the last bytes, but keep reading; close TLS, which cannot be half-closed."""
    if not transport.can_write_eof():
        transport.close()
        return
    try:
        transport.write_eof()
    except OSError:
        # The peer reset the connection while reading was paused.
        transport.abort()


class RefusedPeers:
    """
    The refused connections and upgrades that are still open, and the limit of how many linger.

    Args:
        linger_limit: Returns how many of them may wait for their peer to close.
    """

    def __init__(self, linger_limit: Callable[[], float]) -> None:
        self._linger_limit = linger_limit
        self._open: set[object] = set()

    def __len__(self) -> int:
        """Return the number of open connections and upgrades."""
        return len(self._open)

    @property
    def may_linger(self) -> bool:
        """False if the connection that was added last must close without waiting for its peer."""
        return len(self._open) <= self._linger_limit()

    def add(self, refused: object) -> None:
        """Count *refused* as open until `discard`."""
        self._open.add(refused)

    def discard(self, refused: object) -> None:
        """Stop counting *refused*; idempotent."""
        self._open.discard(refused)


class LingeringClose(asyncio.Protocol):
    """
    Take over the connection of *transport*, send EOF, and discard input until the peer closes.

    Closing with unread input makes the kernel send a reset, and the peer may lose the last bytes
    of the response (RFC 9112 §9.6). Abort if the peer has not closed after `LINGER_S`.

    Args:
        transport: The connection; its last bytes are already written to it.
        server_state: uvicorn's, which lists the connections to close when the server stops.
        refused: The set of refused connections that still linger, which this one joins; if the set
            is full, this connection closes without lingering. None if it was not refused.
    """

    __slots__ = ("_refused", "_server_state", "_timer", "transport")

    def __init__(
        self,
        transport: asyncio.Transport,
        server_state: ServerState,
        refused: RefusedPeers | None = None,
    ) -> None:
        self.transport = transport
        self._server_state = server_state
        self._refused = refused
        server_state.connections.add(self)  # type: ignore[arg-type] # uvicorn lists its own
        transport.set_protocol(self)
        # Before any return below: a close with a filled write buffer waits for the peer, too.
        self._timer = asyncio.get_running_loop().call_later(LINGER_S, transport.abort)
        if refused is not None:
            refused.add(self)
        if transport.is_closing():
            return
        if refused is not None and not refused.may_linger:
            # A TLS close would wait for the peer's close_notify.
            is_tls = transport.get_extra_info("sslcontext") is not None
            (transport.abort if is_tls else transport.close)()
            return
        transport.resume_reading()
        half_close(transport)

    def data_received(self, data: bytes) -> None:
        """Discard *data*."""

    def shutdown(self) -> None:
        """Close without waiting for the peer; uvicorn calls this when the server stops."""
        self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timer and deregister."""
        del exc
        self._timer.cancel()
        if self._refused is not None:
            self._refused.discard(self)
        self._server_state.connections.discard(self)


class HangupWatcher:
    """
    Detect that a peer has closed or reset a connection while reading from it is paused.

    The event loop detects EOF only by reading. epoll reports EPOLLRDHUP at once, even if unread
    data precedes the EOF. On systems without epoll, the hangup is found when reading resumes.
    """

    __slots__ = ("__weakref__", "_epoll", "_watched")

    def __init__(self) -> None:
        self._epoll: select.epoll | None = None
        self._watched: dict[int, Callable[[], None]] = {}

    def watch(self, fd: int, on_hangup: Callable[[], None]) -> None:
        """
        Call *on_hangup* once when the peer of the socket *fd* closes or resets the connection.

        The caller must call `unwatch` with the same arguments in the end, also after the call.
        """
        if not hasattr(select, "epoll"):
            return
        # No free file descriptor, or the socket is already closed: reading detects that later.
        with contextlib.suppress(OSError):
            if self._epoll is None:
                self._epoll = select.epoll()
            # ONESHOT: the hangup lasts, and without it would wake up the loop again and again.
            self._epoll.register(fd, select.EPOLLRDHUP | select.EPOLLONESHOT)
            if not self._watched:
                # An epoll object is a file too: it becomes readable when one of its sockets has an
                # event.
                asyncio.get_running_loop().add_reader(self._epoll.fileno(), self._poll)
            self._watched[fd] = on_hangup

    def unwatch(self, fd: int, on_hangup: Callable[[], None]) -> None:
        """Stop watching the socket *fd* for *on_hangup*; idempotent."""
        # After a close, the kernel may have given the number *fd* to another connection.
        if self._epoll is None or self._watched.get(fd) != on_hangup:
            return
        del self._watched[fd]
        with contextlib.suppress(OSError):
            self._epoll.unregister(fd)
        if not self._watched:
            asyncio.get_running_loop().remove_reader(self._epoll.fileno())

    def _poll(self) -> None:
        assert self._epoll is not None  # noqa: S101 - its readiness is what called this
        for fd, _ in self._epoll.poll(0):
            if (on_hangup := self._watched.get(fd)) is not None:
                on_hangup()


hangup_watcher_of = per_loop(HangupWatcher)
"""Return the watcher of an event loop, which all its connections share."""
