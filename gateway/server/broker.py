"""
`nsq-gateway broker`: the embedded broker in a process of its own.

This module does not import the gateway: with FastAPI, httpx and the client the broker would start
in 1 s instead of 0.4 s.
"""

from __future__ import annotations

from pathlib import Path

import gateway
from gateway.addresses import is_path
from gateway.broker.broker import IGNORED_OPTIONS, Broker, BrokerOptions
from gateway.broker.latency import LatencyOptions
from gateway.errors import StartError
from gateway.server.limits import broker_limits
from gateway.server.runner import FORCED_STOP_S
from gateway.settings.broker import IGNORED, BrokerSettings
from gateway.settings.fields import flag_name
from gateway.telemetry import get_logger

logger = get_logger()


class BrokerService:
    """The embedded broker alone."""

    def __init__(self, settings: BrokerSettings) -> None:
        self._settings = settings
        self._is_started = False
        self._broker = Broker(broker_options(settings))

    @property
    def max_shutdown_s(self) -> float:
        """Longest time that a stop takes."""
        return FORCED_STOP_S

    async def start(self) -> list[str]:
        """Start; return the lines of the startup banner. Raises StartError."""
        for name, field in BrokerSettings.model_fields.items():
            # nsqd's example of a file has the defaults.
            if name in IGNORED and getattr(self._settings, name) != field.default:
                logger.warning(
                    "option without effect", option=flag_name(name), reason=IGNORED[name]
                )
        await start_broker_with_hint(
            self._broker, "--tcp-address", "--http-address", "--https-address"
        )
        tcp, http, https = (
            self._broker.tcp_address,
            self._broker.http_address,
            self._broker.https_address,
        )
        logger.info(
            "started",
            version=gateway.__version__,
            tcp_address=tcp,
            http_address=http,
            https_address=https,
        )
        self._is_started = True
        listening = {"TCP": tcp, "HTTP": http, "HTTPS": https}
        where = describe_data_path(self._settings.data_path)
        name = f"nsq-gateway {gateway.__version__} broker ({where})"
        lines = [
            f"{name}: TCP {tcp}, HTTP {http or 'none'}",
            *(f"{port}: {LISTENING} {each}" for port, each in listening.items() if each),
        ]
        if http and not is_path(http) and self._settings.tls_required != "true":
            lines.append(f"publish:  curl -d 'hello' 'http://{http}/pub?topic=greetings'")
        return lines

    async def drain(self) -> None:
        """Do nothing: NSQ clients reconnect by themselves after `stop` closes their connections."""

    async def stop(self) -> None:
        """Stop the broker, and close its connections."""
        await self._broker.stop()
        if self._is_started:
            logger.info("stopped")

    def abort(self) -> None:
        """Do nothing: the broker itself limits how long its stop takes."""


def describe_data_path(path: Path | None) -> str:
    """Return where a broker keeps its messages, for the startup banner."""
    return "in memory" if path is None else f"messages in {path}"


LISTENING = "listening on"
"""The words between protocol and address in nsqd's log, which tools look for."""
_NS_PER_MS = 1_000_000
_IGNORED_DURATIONS = ("sync_timeout", "statsd_interval")


def broker_options(settings: BrokerSettings) -> BrokerOptions:
    """Return the options that the settings of `nsq-gateway broker` give the broker."""
    ignored = {name: getattr(settings, name) for name in IGNORED if name in IGNORED_OPTIONS}
    ignored |= {name: ignored[name] * _NS_PER_MS for name in _IGNORED_DURATIONS}
    return BrokerOptions(
        tcp_address=settings.tcp_address,
        data_path=settings.data_path,
        http_address=settings.http_address,
        https_address=settings.https_address,
        broadcast_address=settings.broadcast_address,
        broadcast_tcp_port=settings.broadcast_tcp_port,
        broadcast_http_port=settings.broadcast_http_port,
        lookupd_tcp_address=settings.lookupd_tcp_address,
        log_level=settings.log_level,
        ignored_options={**IGNORED_OPTIONS, **ignored},
        limits=broker_limits(settings),
        mem_queue_size=settings.mem_queue_size,
        max_memory_bytes=settings.max_memory_bytes,
        max_connections=settings.max_connections,
        max_channel_consumers=settings.max_channel_consumers,
        node_id=settings.node_id,
        latency=LatencyOptions(
            percentiles=settings.e2e_processing_latency_percentile,
            window_ms=settings.e2e_processing_latency_window_time,
        ),
        tls_cert=settings.tls_cert,
        tls_key=settings.tls_key,
        tls_client_auth_policy=settings.tls_client_auth_policy,
        tls_root_ca_file=settings.tls_root_ca_file,
        tls_required=settings.tls_required,
        tls_min_version=settings.tls_min_version,
        snappy=settings.snappy,
        deflate=settings.deflate,
        max_deflate_level=settings.max_deflate_level,
        auth_http_address=settings.auth_http_address,
        auth_http_request_method=settings.auth_http_request_method,
        http_client_connect_timeout=settings.http_client_connect_timeout,
        http_client_request_timeout=settings.http_client_request_timeout,
    )


async def start_broker_with_hint(broker: Broker, *flags: str) -> None:
    """Start *broker*; add the *flags* of its addresses to the text of a StartError."""
    try:
        await broker.start()
    except StartError as error:
        # The broker has stopped itself: `Broker.start` does so before it raises StartError.
        raise StartError(f"{error} with {' or '.join(flags)}") from error
    except BaseException:
        await broker.stop()
        raise
