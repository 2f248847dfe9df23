"""
Serve an ASGI application on one address, with or without TLS.

On a signal, uvicorn by itself would close every connection at once; here `server.runner` handles
signals, and drains first. The socket listens before its address is announced.

asyncio's TLS server reports a connection only after its handshake: a client that connects and
stays silent would use a file and about 50 KiB, and no limit would count it. `TlsServer` counts
handshakes, and aborts the oldest one at the limit.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import uvicorn

from gateway.addresses import is_path, join_address, split_address
from gateway.aio import spawn
from gateway.errors import StartError
from gateway.open_files import handshakes_limit
from gateway.telemetry import counter, gauge
from gateway.tls import Certificate

_BACKLOG = 2_048
_GRACE_S = 5.0
"""Time for responses in progress when a listener stops."""
_POLL_INTERVAL_S = 0.02


class _Server(uvicorn.Server):
    """A uvicorn server without signal handlers, which reports when it accepts connections."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.is_listening = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Context manager that installs no signal handlers, unlike uvicorn's."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to accept connections on *sockets*, and set `is_listening`."""
        if self.config.is_ssl:
            await self._startup_with_tls(sockets or [])
        elif sockets and sockets[0].family == socket.AF_UNIX:
            await self._startup_on_paths(sockets)
        else:
            await super().startup(sockets)
        self.is_listening.set()

    async def _startup_with_tls(self, sockets: list[socket.socket]) -> None:
        """Start as uvicorn does, but with `TlsServer` in place of asyncio's TLS server."""
        config = self.config
        await self.lifespan.startup()
        assert config.ssl is not None  # noqa: S101 - is_ssl was checked
        limit = handshakes_limit()
        self.servers = [
            TlsServer(each, config.ssl, self._new_protocol, limit=limit)  # type: ignore[misc] # has what uvicorn calls
            for each in sockets
        ]
        self.started = True

    async def _startup_on_paths(self, sockets: list[socket.socket]) -> None:
        """Start as uvicorn does, on Unix sockets: it takes every socket for one of TCP."""
        await self.lifespan.startup()
        self.servers = [await start_server(each, self._new_protocol) for each in sockets]
        self.started = True

    def _new_protocol(self) -> asyncio.Protocol:
        return self.config.http_protocol_class(  # type: ignore[call-arg] # a class or a partial
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )


class HttpListener:
    """
    An HTTP server on one address.

    Call `bind` or `adopt_socket`, then `start`, and `stop` at the end.

    Args:
        name: Name for error texts, with the flag of the address, as in "the gateway (--listen)".
        address: host:port, or the path of a Unix socket.
        grace_s: Time that `stop` waits for responses in progress.
        certificate: Certificate for TLS; None: no TLS.
        options: Options of uvicorn, which override the defaults here.
    """

    def __init__(
        self,
        name: str,
        address: str,
        *,
        grace_s: float = _GRACE_S,
        certificate: Certificate | None = None,
        **options: Any,  # noqa: ANN401 - uvicorn's
    ) -> None:
        self._name = name
        self._requested_address = address
        self._grace_s = grace_s
        self._certificate = certificate
        self._options = options
        self._socket: socket.socket | None = None
        self._server: _Server | None = None
        self._task: asyncio.Task[None] | None = None
        self.aborted_requests = 0
        """Requests aborted before their response was complete."""
        self.address = address
        """host:port or path; after `bind` with the port that the system chose for port 0."""

    def bind(self) -> None:
        """
        Listen on the address; clients that connect wait for a response until `start`.

        Raises:
            StartError: The address is in use, or not one of this machine.
        """
        self.adopt_socket(listen(self._name, self._requested_address))

    def adopt_socket(self, listener: socket.socket) -> None:
        """Serve on *listener*, a listening socket, instead of calling `bind`; `stop` closes it."""
        self._socket = listener
        self.address = bound_address(listener)

    async def start(self, app: Any, **options: Any) -> None:  # noqa: ANN401 - uvicorn's own types
        """
        Serve the ASGI application *app*; *options* override those of the constructor.

        Raises:
            SettingsError: The certificate is invalid.
        """
        if self._socket is None:
            self.bind()
        assert self._socket is not None  # noqa: S101 - bound just now
        settings: dict[str, Any] = {
            "http": "httptools",
            "ws": "none",
            "lifespan": "off",
            "log_config": None,
            "access_log": False,
            "server_header": False,
            # `web.proxies` reads forwarding headers, and only from trusted proxies.
            "proxy_headers": False,
            "backlog": _BACKLOG,
            # Longer than the grace of `stop`: uvicorn cancels requests and responds with 500.
            "timeout_graceful_shutdown": math.ceil(self._grace_s) + 1,
            **self._options,
            **options,
        }
        if self._certificate is not None:
            self._certificate.load()
            self._certificate.watch()
            # One context for all: its sni_callback gives each handshake the newest certificate.
            context = self._certificate.context
            settings["ssl_context_factory"] = lambda _config, _default: context
        server = self._server = _Server(uvicorn.Config(app, **settings))
        self._task = spawn(f"serve {self._name}", server.serve(sockets=[self._socket]))
        await server.is_listening.wait()

    async def stop(self) -> None:
        """
        Stop accepting connections, finish responses in progress, then close; idempotent.

        Connections that remain after the grace time are aborted.
        """
        if self._certificate is not None:
            self._certificate.close()
        if self._server is not None and self._task is not None:
            self._server.should_exit = True
            # Not `wait_for`, which would cancel the server task: it ends by itself after `abort`.
            _, running = await asyncio.wait({self._task}, timeout=self._grace_s)
            if running:
                self.abort()
            await self._task
        elif self._socket is not None:
            self._socket.close()
        if self._socket is not None:
            remove_socket_file(self.address)

    def abort(self) -> None:
        """
        Abort every connection, so that clients get a reset and not a response that seems complete.

        Call it while `stop` is running, which then returns.
        """
        if self._server is None:
            return
        self._server.force_exit = True
        for connection in list(self._server.server_state.connections):
            self.aborted_requests += _open_requests(connection)
            # Every listed connection has a transport: connection_made sets it before uvicorn adds
            # the connection to the list.
            connection.transport.abort()

    @property
    def open_connections(self) -> int:
        """Number of open connections, including WebSockets and refused connections."""
        return 0 if self._server is None else len(self._server.server_state.connections)

    async def wait_disconnected(self, timeout_s: float) -> None:
        """Wait until no connection is open, at most *timeout_s*."""
        if self._server is None:
            return
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout_s
        # uvicorn does not report the end of the last connection.
        while self._server.server_state.connections and loop.time() < until:  # noqa: ASYNC110
            await asyncio.sleep(_POLL_INTERVAL_S)


def _open_requests(connection: object) -> int:
    """Return the number of requests without a complete response; 0 for a WebSocket."""
    # The gateway's own protocol counts its requests; uvicorn's has one `cycle` at a time.
    if (count := getattr(connection, "open_requests", None)) is not None:
        return int(count)
    cycle = getattr(connection, "cycle", None)
    return int(cycle is not None and not cycle.response_complete)


def bound_address(listener: socket.socket) -> str:
    """Return the address of *listener*: host:port, or the path of a Unix socket."""
    name = listener.getsockname()
    return name if isinstance(name, str) else join_address(*name[:2])


def listen(name: str, address: str) -> socket.socket:
    """
    Return a socket that listens on *address*, host:port or a path; error texts call it *name*.

    Raises:
        StartError: Listening failed; the text says why, and what to do.
    """
    return _listen_on_path(name, address) if is_path(address) else listen_tcp(name, address)


async def start_server(
    listener: socket.socket, protocol: Callable[[], asyncio.Protocol]
) -> asyncio.Server:
    """Accept connections on *listener*; *protocol* creates the protocol of each."""
    loop = asyncio.get_running_loop()
    if listener.family == socket.AF_UNIX:
        return await loop.create_unix_server(protocol, sock=listener, backlog=_BACKLOG)
    return await loop.create_server(protocol, sock=listener, backlog=_BACKLOG)


def _listen_on_path(name: str, path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.settimeout(0)
        if _is_stale(path):
            remove_socket_file(path)
        listener.bind(path)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise StartError(
            f"{name} cannot listen on {path}: {error.strerror or error}; "
            "stop the process that listens there, or use another path"
        ) from error
    return listener


def _is_stale(path: str) -> bool:
    """Return whether *path* is the socket of a process that was killed: nobody listens there."""
    if not Path(path).is_socket():
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return True
    return False


def remove_socket_file(address: str) -> None:
    """Remove the file of a Unix socket that is closed; do nothing if *address* is host:port."""
    if is_path(address):
        Path(address).unlink(missing_ok=True)


def listen_tcp(name: str, address: str, *, shares_port: bool = False) -> socket.socket:
    """
    Return a socket that listens on *address*; error texts call it *name*.

    Call listen() here, not later: two sockets can be bound to one address as long as neither
    listens, and uvloop does not report that a listen() fails. *shares_port* sets SO_REUSEPORT.

    Raises:
        StartError: Listening failed; the text says why, and what to do.
    """
    try:
        host, port = split_address(address)
        if host == "localhost":
            # Not resolved: `has_loopback_host` takes localhost for loopback, without access checks.
            host = "127.0.0.1"
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        # The protocol, which accepted sockets inherit: without it, asyncio's own loop does not set
        # TCP_NODELAY, and a response of two writes waits for the client's delayed ACK.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    except (ValueError, OSError) as error:
        raise StartError(f"{name} cannot listen on {address}: {error}") from error
    try:
        # uvloop keeps the blocking mode, and a blocking accept would stop the event loop.
        listener.settimeout(0)
        # Without SO_REUSEADDR, connections of the previous process in TIME_WAIT delay a restart.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shares_port:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise StartError(
            f"{name} cannot listen on {address}: {error.strerror or error}; "
            "stop the process that listens there, or use another address"
        ) from error
    return listener


HANDSHAKE_TIMEOUT_S = 10.0
SHUTDOWN_TIMEOUT_S = 5.0
"""Time limit for TLS close_notify; then the connection is aborted."""

_ACCEPTS_PER_EVENT = 64
_PAUSE_S = 1.0
"""Time without accepting when no file descriptor is free."""

_OPEN = gauge("tls_handshakes", "TLS handshakes in progress.")
_CUT = counter(
    "tls_handshakes_cut_total",
    "TLS handshakes aborted because too many were in progress.",
)


class TlsServer:
    """
    Accept TLS connections on *listener*, a listening and non-blocking socket.

    *protocol* creates the protocol of each connection after its handshake. At most *limit*
    handshakes are in progress; one more aborts the oldest. `close` closes *listener*.
    """

    def __init__(
        self,
        listener: socket.socket,
        context: ssl.SSLContext,
        protocol: Callable[[], asyncio.Protocol],
        *,
        limit: int,
    ) -> None:
        self._listener = listener
        self._context = context
        self._protocol = protocol
        self._limit = limit
        self._loop = asyncio.get_running_loop()
        self._handshakes: dict[socket.socket, asyncio.Task[None]] = {}
        """By connection, in order of arrival."""
        self._pause: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._listen()

    def _listen(self) -> None:
        self._pause = None
        self._loop.add_reader(self._listener.fileno(), self._accept)

    def _accept(self) -> None:
        """Accept waiting connections, at most `_ACCEPTS_PER_EVENT`."""
        # Bounded, so that a burst does not block other callbacks; the listener stays readable.
        for _ in range(_ACCEPTS_PER_EVENT):
            try:
                connected, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:
                # No free file descriptor. The connection stays in the backlog and the listener
                # readable: without a pause, the event loop would call this again at once.
                self._loop.remove_reader(self._listener.fileno())
                self._pause = self._loop.call_later(_PAUSE_S, self._listen)
                return
            self._start_handshake(connected)

    def _start_handshake(self, connected: socket.socket) -> None:
        connected.settimeout(0)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if len(self._handshakes) >= self._limit:
            _CUT.inc()
            # A dict keeps the order of insertion: the first entry is the oldest handshake.
            self._abort_handshake(next(iter(self._handshakes)))
        self._handshakes[connected] = spawn("TLS handshake", self._handshake(connected))
        _OPEN.inc()

    def _abort_handshake(self, connected: socket.socket) -> None:
        self._handshakes.pop(connected).cancel()
        # A task cancelled before its first step does not run its `finally`.
        connected.close()
        _OPEN.dec()

    async def _handshake(self, connected: socket.socket) -> None:
        is_done = False
        try:
            await self._loop.connect_accepted_socket(
                self._protocol,
                connected,
                ssl=self._context,
                ssl_handshake_timeout=HANDSHAKE_TIMEOUT_S,
                ssl_shutdown_timeout=SHUTDOWN_TIMEOUT_S,
            )
            is_done = True
        except (OSError, TimeoutError):
            pass  # the handshake failed; ssl.SSLError is an OSError
        finally:
            # `_abort_handshake` removes the entry before it cancels this task.
            if self._handshakes.pop(connected, None) is not None:
                _OPEN.dec()
            # After a handshake, the transport owns the socket.
            if not is_done:
                connected.close()

    def close(self) -> None:
        """Stop accepting, and abort handshakes in progress; idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._pause is not None:
            self._pause.cancel()
        else:
            self._loop.remove_reader(self._listener.fileno())
        for connected in list(self._handshakes):
            self._abort_handshake(connected)
        self._listener.close()

    async def wait_closed(self) -> None:
        """Return at once, because `close` leaves nothing to wait for; uvicorn calls this method."""
