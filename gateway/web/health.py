"""
The management port: is the process alive, should it get traffic, what does it count.

Never on the public port. Nothing here asks NSQ: when NSQ is gone all gateways are in the same
place, and taking them out of service would turn typed answers into refused connections.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from prometheus_client import CollectorRegistry
from prometheus_client.registry import Collector
from starlette.types import Receive, Scope, Send

from gateway.phase import Phase
from gateway.telemetry import exposition
from gateway.web.access import request_id_of
from gateway.web.answers import Answer, send_answer, text_answer
from gateway.web.unrouted import answer_unrouted

MANAGEMENT_ROUTES = {"/livez": ("GET",), "/readyz": ("GET",), "/metrics": ("GET",)}


class Account(Protocol):
    """What the management port tells, whoever knows it."""

    async def readiness(self) -> tuple[bool, str]:
        """Return whether traffic should come here, and a few words that say where it stands."""

    async def metrics(self) -> Collector:
        """Return the metrics to show."""


class OwnAccount:
    """The account that one process gives of itself: where it stands now, and its *registry*."""

    def __init__(self, phase: Callable[[], Phase], registry: CollectorRegistry) -> None:
        self._phase = phase
        self._registry = registry

    async def readiness(self) -> tuple[bool, str]:
        """Return whether this process is ready, and its phase."""
        phase = self._phase()
        return phase is Phase.READY, phase.value

    async def metrics(self) -> Collector:
        """Return the metrics of this process."""
        return self._registry


class ManagementApp:
    """The ASGI application of the management port; *account* knows what it tells."""

    def __init__(self, account: Account) -> None:
        self._account = account

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; anything but HTTP is left to the server."""
        if scope["type"] == "lifespan":
            await _take_part_in_lifespan(receive, send)
        elif scope["type"] == "http":
            await send_answer(send, await self._answer(scope))

    async def _answer(self, scope: Scope) -> Answer:
        request_id = request_id_of(scope["headers"])
        route = scope["path"] if scope["method"] == "GET" else ""
        if route == "/livez":
            return text_answer(200, b"alive\n", request_id)
        if route == "/readyz":
            is_ready, words = await self._account.readiness()
            return text_answer(200 if is_ready else 503, f"{words}\n".encode(), request_id)
        if route == "/metrics":
            return await self._metrics(scope, request_id)
        return answer_unrouted(scope, MANAGEMENT_ROUTES, request_id)

    async def _metrics(self, scope: Scope, request_id: str) -> Answer:
        accept = dict(scope["headers"]).get(b"accept", b"").decode("latin-1")
        body, content_type = await exposition(await self._account.metrics(), accept)
        headers = [
            (b"content-type", content_type.encode()),
            (b"content-length", b"%d" % len(body)),
            (b"x-request-id", request_id.encode()),
        ]
        return 200, headers, body


async def _take_part_in_lifespan(receive: Receive, send: Send) -> None:
    """Say that start and end need nothing."""
    while True:
        event = await receive()
        await send({"type": f"{event['type']}.complete"})
        if event["type"] == "lifespan.shutdown":
            return
