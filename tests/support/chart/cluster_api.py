"""
A fake Kubernetes API for Spark drivers: it accepts pods and starts none.

Posted objects are kept, and GET by name finds them; lists are empty, and watches see nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeAlias

Json: TypeAlias = dict[str, Any]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    made: SimpleQueue[Json]

    def do_GET(self) -> None:
        """Answer with an empty list, or with the object of that name."""
        path, _, query = self.path.partition("?")
        if "watch=true" in query:
            self._answer(404, {"kind": "Status", "apiVersion": "v1", "code": 404})
            return
        name = path.rpartition("/")[2]
        if name in ("pods", "persistentvolumeclaims", "configmaps", "services"):
            listed = {"metadata": {"resourceVersion": "1"}, "items": []}
            kind = {"pods": "PodList"}.get(name, "List")
            self._answer(200, {"kind": kind, "apiVersion": "v1", **listed})
            return
        metadata = {"name": name, "namespace": "gw", "uid": "1", "resourceVersion": "1"}
        self._answer(200, {"kind": "Pod", "apiVersion": "v1", "metadata": metadata})

    def do_POST(self) -> None:
        """Record the created object, and respond 201."""
        found: Json = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.made.put(found)
        found["metadata"]["uid"] = "2"
        self._answer(201, found)

    def do_PUT(self) -> None:
        """Respond that the object was changed."""
        self._answer(200, json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def do_PATCH(self) -> None:
        """Respond that the object was changed."""
        self.do_PUT()

    def do_DELETE(self) -> None:
        """Respond that the object was deleted."""
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self._answer(200, {"kind": "Status", "apiVersion": "v1", "status": "Success"})

    def _answer(self, status: int, body: Json) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002, ANN401 - the library's
        """Do not log requests."""


@contextmanager
def cluster_api() -> Iterator[tuple[str, SimpleQueue[Json]]]:
    """Yield the address of the API and the objects that were created."""
    made: SimpleQueue[Json] = SimpleQueue()
    handler = type("Handler", (_Handler,), {"made": made})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", made
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
