"""Run ASGI applications without a server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import httpx
from starlette.types import ASGIApp, Message, Scope


def http_client(app: ASGIApp) -> httpx.AsyncClient:
    """Return a client of *app* that gets a response also when the application raises."""
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://gateway:8080")


class Exchange:
    """One ASGI scope: the events that the application receives, and those that it sends."""

    def __init__(self, scope: dict[str, Any], received: Sequence[dict[str, Any]]) -> None:
        self.scope: Scope = scope
        self.left = list(received)
        self.sent: list[Message] = []

    async def run(self, app: ASGIApp) -> Exchange:
        """Run *app* for the scope; reading more than the peer's events is an error."""
        await app(self.scope, self._receive, self._send)
        return self

    async def _receive(self) -> Message:
        return self.left.pop(0)

    async def _send(self, message: Message) -> None:
        self.sent.append(message)


def http_scope(
    method: str, path: str, *, query: bytes = b"", headers: Sequence[tuple[bytes, bytes]] = ()
) -> dict[str, Any]:
    return {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": query,
        "headers": list(headers),
    }
