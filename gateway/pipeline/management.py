"""The management port of a job: does it live, does its query run, what does it count."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from socketserver import TCPServer, ThreadingMixIn
from threading import Thread
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from prometheus_client import make_wsgi_app

from gateway.addresses import join_address, split_address
from gateway.errors import StartError
from gateway.telemetry import REGISTRY

Readiness = Callable[[], tuple[bool, str]]
"""Tells whether all is well, in so many words."""

_REQUEST_S = 10
_TEXT = ("Content-Type", "text/plain; charset=utf-8")


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = 64

    def server_bind(self) -> None:
        """Take the address; its name is not asked of a resolver, which may take its time."""
        TCPServer.server_bind(self)
        host, port = self.server_address[:2]
        self.server_name, self.server_port = str(host), port
        self.setup_environ()


class _Server6(_Server):
    address_family = socket.AF_INET6


class _Handler(WSGIRequestHandler):
    timeout = _REQUEST_S
    """Who connects and says nothing is let go."""

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002, ANN401 - the library's
        """Say nothing of each request."""


@contextmanager
def management(listen: str, readiness: Readiness) -> Iterator[str]:
    """
    Answer /livez, /readyz and /metrics on *listen* meanwhile; gives the address, with its port.

    Raises:
        StartError: It is taken, or none of this machine.
    """
    host, port = split_address(listen)
    kind = _Server6 if ":" in host else _Server
    try:
        server = make_server(host, port, application(readiness), kind, _Handler)
    except OSError as error:
        raise StartError(
            f"the job cannot listen on {listen} (--management-listen): "
            f"{error.strerror or error}; end what listens there, or name another address"
        ) from error
    thread = Thread(target=server.serve_forever, name="management", daemon=True)
    thread.start()
    try:
        yield join_address(host, server.server_port)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def application(readiness: Readiness) -> WSGIApplication:
    """Return what answers; *readiness* is asked for each /readyz."""
    metrics: WSGIApplication = make_wsgi_app(REGISTRY)

    def answer(environment: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        path = environment.get("PATH_INFO", "")
        if environment.get("REQUEST_METHOD") not in ("GET", "HEAD"):
            start("405 Method Not Allowed", [_TEXT, ("Allow", "GET, HEAD")])
            return [b"only GET is answered here\n"]
        if path == "/metrics":
            return metrics(environment, start)
        if path == "/livez":
            start("200 OK", [_TEXT])
            return [b"alive\n"]
        if path == "/readyz":
            is_ready, words = readiness()
            start("200 OK" if is_ready else "503 Service Unavailable", [_TEXT])
            return [f"{words}\n".encode()]
        start("404 Not Found", [_TEXT])
        return [b"there are /livez, /readyz and /metrics\n"]

    return answer
