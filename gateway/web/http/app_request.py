"""Requests to the ASGI application: uvicorn's request cycle, and the ASGI scope."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from gateway.web.http.head import HeadReader, split_target
from gateway.web.proxies import Caller

CONNECTION = "connection"
"""The key of the `AppRequest` in the state of the ASGI scope."""


class AppRequest(RequestResponseCycle):
    """
    One request to the ASGI application, on uvicorn's request cycle.

    In addition to uvicorn's class, the body may end early, and the connection may be lost.
    """

    is_body_broken = False
    """True if the client did not send the whole body; see `break_body`."""
    is_input_ended = False
    """True once the client has sent EOF; it may still read the response."""
    on_abandon: Callable[[], object] | None = None
    """Called when the client leaves before the response is complete; see `has_left`."""
    on_writable: Callable[[], None] | None = None
    """Called when the write buffer has room again."""
    is_detached = False
    """True once the response goes on without the application; see `detach`."""

    async def run_asgi(self, app: Any) -> None:  # noqa: ANN401 - uvicorn's type
        """Call the application; it finds this object in the state of the scope."""
        on_response = self.on_response
        self.scope["state"][CONNECTION] = self
        await super().run_asgi(app)
        if self.is_detached:
            self.response_complete = False
            self.on_response = on_response

    def detach(self) -> None:
        """
        Keep the response open when the application returns; until then it must await nothing.

        `write_chunk` then adds to the response, and `end_response` ends it. The task and the scope
        of the request are released, because an event stream may be idle for days.
        """
        self.is_detached = True
        # For uvicorn, which otherwise closes the connection of an application that returns.
        self.response_complete = True
        self.scope = {"type": "http", "method": self.scope["method"]}  # type: ignore[typeddict-item]

    def break_body(self) -> None:
        """
        End the body early: from now on, `receive` tells the application that the client is gone.

        The application may still send its response, after which the connection closes.
        """
        self.is_body_broken = True
        if not self.response_started:
            # Where the body would have ended is unknown, so no request can follow.
            self.keep_alive = False
        # Wakes up a `receive` that is waiting for more of the body.
        self.message_event.set()

    def has_left(self) -> bool:
        """
        Return whether the connection is lost, or the client has sent EOF.

        A client that closes its connection sends the same EOF as one that only sends no more. Where
        a response is for the former, and may take long, it is better not to wait.
        """
        return self.disconnected or self.is_input_ended

    def end_input(self) -> None:
        """Called when the client has sent EOF."""
        self.is_input_ended = True
        if self.on_abandon is not None:
            self.on_abandon()

    def abandon(self) -> None:
        """Called when the connection is lost: wake the application, and discard what it sends."""
        self.disconnected = True
        self.message_event.set()
        # The application may be waiting in `send` for a write buffer that nobody will drain.
        self.flow.resume_writing()
        if self.on_abandon is not None:
            self.on_abandon()

    def resume_writing(self) -> None:
        """Called when the write buffer has room again."""
        self.flow.resume_writing()
        if self.on_writable is not None:
            self.on_writable()

    @property
    def is_writable(self) -> bool:
        """False while the write buffer is full."""
        return not self.flow.write_paused

    @property
    def unsent_bytes(self) -> int:
        """Bytes that the kernel has not taken."""
        connection: Any = self.transport  # the `HttpProtocol`
        size_bytes: int = connection.transport.get_write_buffer_size()
        return size_bytes

    def write_chunk(self, data: bytes) -> None:
        """
        Send a part of the body at once, in a response that has begun without Content-Length.

        The application calls it in place of `send`, which needs a task of its own for each client.
        """
        if not self.disconnected and self.response_started and not self.response_complete:
            if self.chunked_encoding:
                data = b"%x\r\n%b\r\n" % (len(data), data)
            self.transport.write(data)

    def end_response(self) -> None:
        """End a detached response; does nothing if it has ended or the connection is lost."""
        if self.disconnected or self.response_complete:
            return
        if self.chunked_encoding:
            self.transport.write(b"0\r\n\r\n")
        self.response_complete = True
        if not self.keep_alive:
            self.transport.close()
        self.on_response()

    async def receive(self) -> Any:  # noqa: ANN401 - an ASGI event
        """Return the next part of the body, or a disconnect after `break_body`."""
        if self.is_body_broken:
            return {"type": "http.disconnect"}
        return await super().receive()


def http_scope(
    head: HeadReader, caller: Caller, config: Config, server: object, state: dict[str, Any]
) -> Any:  # noqa: ANN401 - uvicorn's HTTPScope
    """Return the ASGI scope of a request; *server* is the local address of its connection."""
    raw_path, raw_query = split_target(head.target)
    # ASGI: `path` includes `root_path`, the prefix under which a proxy serves the gateway.
    root_path = config.root_path
    return {
        "type": "http",
        "asgi": {"version": config.asgi_version, "spec_version": "2.3"},
        "http_version": head.version,
        "server": server[:2] if isinstance(server, tuple) else None,
        "client": (caller.address, 0) if caller.address else None,
        "scheme": "https" if caller.is_secure else "http",
        "method": head.method.decode("ascii"),
        "root_path": root_path,
        "path": root_path + unquote(raw_path.decode("ascii")),
        "raw_path": root_path.encode("ascii") + raw_path,
        "query_string": raw_query,
        "headers": head.headers,
        "state": state.copy(),
    }
