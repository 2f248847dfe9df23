"""
The management port: liveness, readiness and metrics.

The port is separate from the public one. Readiness does not depend on NSQ: an outage of NSQ affects
all gateways alike. If all of them became unready, a load balancer would send requests to none, and
clients would get refused connections instead of the gateway's error responses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from prometheus_client import CollectorRegistry
from prometheus_client.registry import Collector
from starlette.types import Receive, Scope, Send

from gateway.addresses import TrustedHosts
from gateway.errors import Forbidden, InvalidRequest
from gateway.lifecycle import LifecycleState
from gateway.telemetry import exposition
from gateway.web.broker_metrics import BrokerMetrics
from gateway.web.errors import not_found_response, problem_response
from gateway.web.responses import (
    HttpResponse,
    json_response,
    read_body,
    request_id_from,
    send_response,
    text_response,
)
from gateway.web.subscribe.acks import FORWARD_PATH, SIGNATURE, WORKER

_WORKER_DIGITS = 2

MANAGEMENT_ROUTES = {
    "/livez": ("GET",),
    "/readyz": ("GET",),
    "/metrics": ("GET",),
    FORWARD_PATH: ("POST",),
}


class StatusSource(Protocol):
    """Provides the status to report: that of one process, or of all workers (`Supervisor`)."""

    async def describe_readiness(self) -> tuple[bool, str]:
        """Return whether this gateway is ready for traffic, and its state as text."""

    async def metrics_collector(self) -> Collector:
        """Return the metrics to export at /metrics."""

    async def receive_ack(self, body: bytes, signature: str, worker: int) -> bytes | None:
        """
        Carry out an ack that another replica has sent on to *worker*, and return the response.

        Returns None if it is not signed by a replica, or if the worker does not answer.
        """


class ProcessStatus:
    """
    The status of this process, if it is the only one.

    *receive_ack* carries out acks that other replicas have sent on; see `LeaseAcks.receive`.
    """

    def __init__(
        self,
        phase: Callable[[], LifecycleState],
        registry: CollectorRegistry,
        receive_ack: Callable[[bytes, str], bytes | None] = lambda _body, _signature: None,
    ) -> None:
        self._phase = phase
        self._registry = registry
        self._receive_ack = receive_ack

    async def receive_ack(self, body: bytes, signature: str, worker: int) -> bytes | None:
        """Carry out an ack that another replica has sent on; None if it is not signed."""
        del worker
        return self._receive_ack(body, signature)

    async def describe_readiness(self) -> tuple[bool, str]:
        """Return whether this process is ready, and its state."""
        phase = self._phase()
        return phase is LifecycleState.READY, phase.value

    async def metrics_collector(self) -> Collector:
        """Return the metrics of this process."""
        return self._registry


class ManagementApp:
    """The ASGI application of the management port."""

    def __init__(
        self,
        status: StatusSource,
        hosts: TrustedHosts,
        *,
        broker_metrics: BrokerMetrics | None = None,
    ) -> None:
        """Report *status*; /metrics has *broker_metrics* too, None: no metrics of the nsqds."""
        self._status = status
        self._hosts = hosts
        self._broker_metrics = broker_metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond to one HTTP request, or to uvicorn's lifespan events."""
        if scope["type"] == "lifespan":
            await _complete_lifespan(receive, send)
        elif scope["type"] == "http":
            await send_response(send, await self._answer(scope, receive))

    async def _answer(self, scope: Scope, receive: Receive) -> HttpResponse:
        request_id = request_id_from(scope["headers"])
        headers = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1")
        # Against DNS rebinding. Browsers send Accept-Language, probes and Prometheus do not.
        why = self._hosts.rejection_reason(host, is_browser=b"accept-language" in headers)
        if why is not None:
            return problem_response(Forbidden(why), request_id)
        if scope["path"] == FORWARD_PATH and scope["method"] == "POST":
            return await self._receive_ack(headers, receive, request_id)
        route = scope["path"] if scope["method"] == "GET" else ""
        if route == "/livez":
            return text_response(200, b"alive\n", request_id)
        if route == "/readyz":
            is_ready, state = await self._status.describe_readiness()
            return text_response(200 if is_ready else 503, f"{state}\n".encode(), request_id)
        if route == "/metrics":
            return await self._metrics(scope, request_id)
        return not_found_response(scope, MANAGEMENT_ROUTES, request_id)

    async def _receive_ack(
        self, headers: Mapping[bytes, bytes], receive: Receive, request_id: str
    ) -> HttpResponse:
        """Respond to an ack that another replica has sent on."""
        signature = headers.get(SIGNATURE.encode(), b"").decode("latin-1")
        worker = headers.get(WORKER.encode(), b"")
        try:
            body = await read_body(receive)
        except InvalidRequest as error:
            return problem_response(error, request_id)
        number = int(worker) if worker.isdigit() and len(worker) <= _WORKER_DIGITS else 0
        response = await self._status.receive_ack(body, signature, number)
        if response is None:
            return problem_response(Forbidden("this ack is not signed by a replica"), request_id)
        return json_response(response, request_id)

    async def _metrics(self, scope: Scope, request_id: str) -> HttpResponse:
        accept = dict(scope["headers"]).get(b"accept", b"").decode("latin-1")
        brokers = self._broker_metrics
        families = () if brokers is None else await brokers.families()
        collector = await self._status.metrics_collector()
        body, content_type = await exposition(collector, accept, families)
        headers = [
            (b"content-type", content_type.encode()),
            (b"content-length", b"%d" % len(body)),
            (b"x-request-id", request_id.encode()),
        ]
        return 200, headers, body


async def _complete_lifespan(receive: Receive, send: Send) -> None:
    """Answer uvicorn's lifespan events startup and shutdown, which need no work here."""
    while True:
        event = await receive()
        await send({"type": f"{event['type']}.complete"})
        if event["type"] == "lifespan.shutdown":
            return
