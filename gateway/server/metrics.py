"""Metrics of a gateway process: version, limits, publish buffer, event loop lag; tracing."""

from __future__ import annotations

import platform

import gateway
from gateway.client.producer import TOPICS, Producer
from gateway.settings.serve import ServeSettings
from gateway.telemetry import LoopLag, Tracing, gauge, start_tracing

_BUILD = gauge("build_info", "1; labels: version of the gateway, of Python.", ["version", "python"])
_SOCKETS_LIMIT = gauge("sockets_limit", "Limit of open WebSocket connections.")
_SOCKETS_BUFFER_LIMIT = gauge(
    "sockets_buffer_limit_bytes", "Limit of the bytes buffered for all WebSocket clients together."
)
_BUFFER = gauge(
    "publish_buffer_bytes",
    "Bytes of publishes that are being received, queued, or not answered by nsqd yet.",
)
_BUFFER_LIMIT = gauge(
    "publish_buffer_limit_bytes", "Limit of publish_buffer_bytes; beyond it publishes get 503."
)
_REQUIRING_AUTH = gauge(
    "nsqds_requiring_auth",
    "nsqds that require AUTH and to which the gateway has no secret of its own, as of its last "
    "attempt to connect.",
)


def check_tracing(settings: ServeSettings) -> None:
    """Check that tracing can start, if enabled; raises SettingsError."""
    if settings.tracing:
        _start_tracing(settings).discard()


def _start_tracing(settings: ServeSettings) -> Tracing:
    return start_tracing(ratio=settings.tracing_sample_ratio, version=gateway.__version__)


class GatewayMetrics:
    """Metrics and tracing of one process."""

    def __init__(self) -> None:
        self._lag = LoopLag()
        self.tracing: Tracing | None = None
        """None if tracing is off."""

    def start(self, settings: ServeSettings, producer: Producer) -> None:
        """
        Export the limits in *settings* and the state of *producer*; start tracing if enabled.

        Raises:
            SettingRefused: Tracing cannot start; see `check_tracing`.
        """
        if settings.tracing:
            self.tracing = _start_tracing(settings)
        _BUILD.labels(gateway.__version__, platform.python_version()).set(1)
        _SOCKETS_LIMIT.set(settings.max_sockets)
        _SOCKETS_BUFFER_LIMIT.set(settings.sockets_buffer_bytes)
        _BUFFER_LIMIT.set(settings.publish_buffer_bytes)
        _BUFFER.set_function(lambda: producer.waiting_bytes)
        _REQUIRING_AUTH.set_function(lambda: producer.nsqds_requiring_auth)
        TOPICS.limit = settings.metrics_topics_limit
        self._lag.start()

    async def stop(self) -> None:
        """Stop measuring, and export the last traces; idempotent."""
        self._lag.stop()
        # The gauges are global: their functions would keep the stopped producer alive.
        for of_producer in (_BUFFER, _REQUIRING_AUTH):
            of_producer.set_function(lambda: 0.0)
        # Cleared first: a second `stop` must not shut down the exporter again.
        tracing, self.tracing = self.tracing, None
        if tracing is not None:
            await tracing.stop()
