"""
An address that an ASGI application answers on: uvicorn, started and stopped from outside.

uvicorn takes the process's signals and closes every socket at once; here the signals stay with
`service`, which drains first. The socket listens before anything is announced.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn

from gateway.addresses import join_address, split_address
from gateway.certificate import Certificate
from gateway.errors import StartError
from gateway.telemetry import spawn

_BACKLOG = 2_048
_HANDSHAKE_S = 10.0
"""Time for the handshake of TLS: until then nobody counts the connection."""
_SHUTDOWN_S = 5.0
"""Time for the end of TLS; a client that reads nothing is cut then."""
_GRACE_S = 5.0
"""What answers that have begun get when a listener stops."""
_LOOK_INTERVAL_S = 0.02


class _Server(uvicorn.Server):
    """A uvicorn that leaves the signals alone and tells when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listens = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Take no signal."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and tell."""
        if self.config.is_ssl:
            await self._startup_with_tls(sockets or [])
        else:
            await super().startup(sockets)
        self.listens.set()

    async def _startup_with_tls(self, sockets: list[socket.socket]) -> None:
        """Do what uvicorn does, with a limit for a handshake: asyncio's own is 60 s."""
        config = self.config
        loop = asyncio.get_running_loop()
        await self.lifespan.startup()

        def protocol() -> asyncio.Protocol:
            return config.http_protocol_class(  # type: ignore[call-arg] # a class, or a partial one
                config=config, server_state=self.server_state, app_state=self.lifespan.state
            )

        self.servers = [
            await loop.create_server(
                protocol,
                sock=each,
                ssl=config.ssl,
                backlog=config.backlog,
                ssl_handshake_timeout=_HANDSHAKE_S,
                ssl_shutdown_timeout=_SHUTDOWN_S,
            )
            for each in sockets
        ]
        self.started = True


class HttpListener:
    """
    One address; `bind`, then `start`, last `stop`.

    *name* is what people read, with the flag of the address where it has one, as in "the gateway
    (--listen)". *grace_s* is what answers that have begun get at the stop; *certificate* is that of
    TLS, None: there is none; *options* are uvicorn's, in place of what is set here.
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
        self._wanted = address
        self._grace_s = grace_s
        self._certificate = certificate
        self._options = options
        self._socket: socket.socket | None = None
        self._server: _Server | None = None
        self._task: asyncio.Task[None] | None = None
        self.cut_requests = 0
        """Requests that were cut before their answer."""
        self.address = address
        """Where it listens: after `bind` with the port that the system chose for port 0."""

    def bind(self) -> None:
        """
        Take the address; who connects from now on waits for `start`.

        Raises:
            StartError: It is taken, or none of this machine; one sentence with what to do.
        """
        self.adopt(bind_tcp(self._name, self._wanted))

    def adopt(self, listener: socket.socket) -> None:
        """Answer on *listener*, which listens already, in place of `bind`; it is ours now."""
        self._socket = listener
        host, port = listener.getsockname()[:2]
        self.address = join_address(host, port)

    async def start(self, app: Any, **options: Any) -> None:  # noqa: ANN401 - uvicorn's own types
        """
        Answer with the ASGI application *app*; *options* go before the constructor's.

        Raises:
            SettingsError: The certificate cannot be used.
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
            "proxy_headers": False,
            "backlog": _BACKLOG,
            # `stop` is sooner: uvicorn would cancel the answers, and tell the clients 500.
            "timeout_graceful_shutdown": math.ceil(self._grace_s) + 1,
            **self._options,
            **options,
        }
        if self._certificate is not None:
            self._certificate.read()
            self._certificate.watch()
            context = self._certificate.context
            settings["ssl_context_factory"] = lambda _config, _default: context
        server = self._server = _Server(uvicorn.Config(app, **settings))
        self._task = spawn(f"serve {self._name}", server.serve(sockets=[self._socket]))
        await server.listens.wait()

    async def stop(self) -> None:
        """
        Take no more connections, let answers that have begun end, close; idempotent.

        Connections that are left after the grace are cut.
        """
        if self._certificate is not None:
            self._certificate.close()
        if self._server is not None and self._task is not None:
            self._server.should_exit = True
            _, running = await asyncio.wait({self._task}, timeout=self._grace_s)
            if running:
                self.abort()
            await self._task
        elif self._socket is not None:
            self._socket.close()

    def abort(self) -> None:
        """
        Cut every connection: who waits for an answer sees a reset, which promises nothing.

        To be called during a `stop`, which then ends.
        """
        if self._server is None:
            return
        self._server.force_exit = True
        for connection in list(self._server.server_state.connections):
            self.cut_requests += _open_requests(connection)
            # Set by connection_made, before uvicorn counts the connection.
            connection.transport.abort()

    async def left(self, within_s: float) -> None:
        """Return once nobody is connected, or *within_s*."""
        if self._server is None:
            return
        loop = asyncio.get_running_loop()
        until = loop.time() + within_s
        # uvicorn tells nobody when the last one goes.
        while self._server.server_state.connections and loop.time() < until:  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_INTERVAL_S)


def _open_requests(connection: object) -> int:
    """Return how many requests on *connection* have no answer; a WebSocket has none."""
    if (count := getattr(connection, "open_requests", None)) is not None:
        return int(count)
    cycle = getattr(connection, "cycle", None)
    return int(cycle is not None and not cycle.response_complete)


def bind_tcp(name: str, address: str, *, shares_port: bool = False) -> socket.socket:
    """
    Return a socket that listens on *address*, for the listener *name*.

    It listens at once: two sockets may be bound to one address as long as neither listens, and
    uvloop does not tell when a later listen fails. With *shares_port* other sockets of this user
    that share it may listen there too (SO_REUSEPORT).

    Raises:
        StartError: It cannot listen; one sentence with what to do.
    """
    try:
        host, port = split_address(address)
        if host == "localhost":
            # Whatever a resolver says: it is taken for loopback by who asks for no secret there.
            host = "127.0.0.1"
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
    except (ValueError, OSError) as error:
        raise StartError(f"{name} cannot listen on {address}: {error}") from error
    try:
        # Not blocking: uvloop leaves it as it is, and a blocking accept stops the whole loop.
        listener.settimeout(0)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shares_port:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise StartError(
            f"{name} cannot listen on {address}: {error.strerror or error}; "
            "end what listens there, or name another address"
        ) from error
    return listener
