"""
The management port: is the process alive, should it get traffic, what does it count.

Never on the public port. Nothing here asks NSQ: when NSQ is gone all gateways are in the same
place, and taking them out of service would turn typed answers into refused connections.
"""

from __future__ import annotations

import enum
from collections.abc import Callable

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from starlette.types import Receive, Scope, Send

from gateway.web.access import request_id_of
from gateway.web.answers import Answer, send_answer, text_answer
from gateway.web.unrouted import answer_unrouted

MANAGEMENT_ROUTES = {"/livez": ("GET",), "/readyz": ("GET",), "/metrics": ("GET",)}


class Phase(enum.Enum):
    """Where a process stands in its life."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"


class ManagementApp:
    """
    The ASGI application of the management port.

    Args:
        phase: Tells where the process stands now.
        registry: The metrics to show.
    """

    def __init__(self, phase: Callable[[], Phase], registry: CollectorRegistry) -> None:
        self._phase = phase
        self._registry = registry

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; anything but HTTP is left to the server."""
        if scope["type"] == "lifespan":
            await _take_part_in_lifespan(receive, send)
        elif scope["type"] == "http":
            await send_answer(send, self._answer(scope))

    def _answer(self, scope: Scope) -> Answer:
        request_id = request_id_of(scope["headers"])
        route = scope["path"] if scope["method"] == "GET" else ""
        if route == "/livez":
            return text_answer(200, b"alive\n", request_id)
        if route == "/readyz":
            phase = self._phase()
            status = 200 if phase is Phase.READY else 503
            return text_answer(status, f"{phase.value}\n".encode(), request_id)
        if route == "/metrics":
            return self._metrics(request_id)
        return answer_unrouted(scope, MANAGEMENT_ROUTES, request_id)

    def _metrics(self, request_id: str) -> Answer:
        body = generate_latest(self._registry)
        headers = [
            (b"content-type", CONTENT_TYPE_PLAIN_0_0_4.encode()),
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
