"""What /metrics says of the process as a whole: which it is, its bounds, how late its loop is."""

from __future__ import annotations

import platform

import gateway
from gateway.client.publish_account import TOPICS
from gateway.client.publisher import Publisher
from gateway.settings import ServeSettings
from gateway.telemetry import LoopLag, Tracing, gauge, start_tracing

_BUILD = gauge("build_info", "1; which gateway this is.", ["version", "python"])
_SOCKETS_LIMIT = gauge("sockets_limit", "WebSocket subscribers that there may be.")
_BUFFER = gauge(
    "publish_buffer_bytes",
    "What was taken to be published and has no answer from nsqd yet, or is still arriving.",
)
_BUFFER_LIMIT = gauge("publish_buffer_limit_bytes", "Above so much publishes are refused.")


def check_tracing(settings: ServeSettings) -> None:
    """See that traces can be sent, where they are wanted; raises SettingsError."""
    if settings.tracing:
        _start_tracing(settings).discard()


def _start_tracing(settings: ServeSettings) -> Tracing:
    return start_tracing(ratio=settings.tracing_sample_ratio, version=gateway.__version__)


class ProcessAccount:
    """Tells of one process from `begin` to `stop`."""

    def __init__(self) -> None:
        self._lag = LoopLag()
        self.tracing: Tracing | None = None
        """Who begins traces; None: nobody."""

    def begin(self, settings: ServeSettings, publisher: Publisher) -> None:
        """
        Show what *settings* bound, and what *publisher* holds at any time; begin to trace.

        Raises:
            SettingRefused: Traces are wanted and cannot be sent; see `check_tracing`.
        """
        if settings.tracing:
            self.tracing = _start_tracing(settings)
        _BUILD.labels(gateway.__version__, platform.python_version()).set(1)
        _SOCKETS_LIMIT.set(settings.max_sockets)
        _BUFFER_LIMIT.set(settings.publish_buffer_bytes)
        _BUFFER.set_function(lambda: publisher.waiting_bytes)
        TOPICS.limit = settings.metrics_topics_limit
        self._lag.start()

    async def stop(self) -> None:
        """Look no more, and send the last traces; idempotent."""
        self._lag.stop()
        _BUFFER.set_function(lambda: 0.0)
        tracing, self.tracing = self.tracing, None
        if tracing is not None:
            await tracing.stop()
