"""
`nsq-gateway serve` in one process: the gateway, the embedded broker and the other ports.

The package `workers` runs the same with several gateway processes.
"""

from __future__ import annotations

import errno
from dataclasses import replace

import gateway
from gateway.addresses import TrustedHosts
from gateway.broker.broker import Broker, BrokerOptions
from gateway.client.from_settings import NsqdAddresses, read_access
from gateway.errors import StartError
from gateway.listener import HttpListener
from gateway.server.access import (
    auth_server_banner,
    new_access_control,
    new_auth_server,
    start_access,
)
from gateway.server.broker import describe_data_path, start_broker_with_hint
from gateway.server.gateway import GatewayServer, check_certificate
from gateway.server.limits import settings_limits
from gateway.server.metrics import check_tracing
from gateway.server.runner import stop_in_order
from gateway.settings.serve import ServeSettings
from gateway.telemetry import REGISTRY, get_logger
from gateway.web.app import public_routes
from gateway.web.broker_metrics import BrokerMetrics, BrokerMetricsOptions
from gateway.web.management import ManagementApp, ProcessStatus
from gateway.web.site.static_dir import check_static_dir

logger = get_logger()


class Service:
    """The gateway, with the embedded broker if neither an nsqd nor an nsqlookupd is configured."""

    def __init__(self, settings: ServeSettings) -> None:
        self._settings = settings
        self._access = new_access_control(settings)
        self._gateway = GatewayServer(settings, access_control=self._access)
        self._management = management_listener(settings)
        self._auth_server = new_auth_server(settings, self._access)
        self._broker: Broker | None = None
        self._broker_metrics = new_broker_metrics(settings)

    @property
    def address(self) -> str:
        """host:port of the gateway, once started."""
        return self._gateway.address

    @property
    def max_shutdown_s(self) -> float:
        """Longest time that a drain and a stop take."""
        return self._gateway.max_shutdown_s

    @property
    def management_address(self) -> str:
        """host:port of the management port, once started."""
        return self._management.address

    @property
    def auth_address(self) -> str | None:
        """host:port of the auth server, once started; None if there is none."""
        return None if self._auth_server is None else self._auth_server.address

    async def start(self) -> list[str]:
        """
        Start everything; return the lines of the startup banner.

        Raises:
            SettingsError: A file named by the settings is invalid.
            StartError: Listening on an address failed; everything is stopped again.
        """
        try:
            # Check files before anything runs.
            access = read_access(self._settings)
            check_pages(self._settings)
            check_certificate(self._settings)
            check_tracing(self._settings)
            if self._access is not None:
                self._access.load()
            # Listen before starting anything, so that an address in use fails early.
            self._gateway.bind()
            self._management.bind()
            if self._auth_server is not None:
                self._auth_server.bind()
            log_started(self._settings, self.address, self.management_address)
            status = ProcessStatus(lambda: self._gateway.state, REGISTRY, self._gateway.receive_ack)
            # The management port first: /livez gets 200 and /readyz 503 during the start.
            await self._management.start(
                ManagementApp(
                    status,
                    management_hosts(self._settings),
                    broker_metrics=self._broker_metrics,
                )
            )
            # Before the gateway, whose connections to nsqds may need the auth server.
            warnings = await start_access(self._access, self._auth_server)
            self._broker, nsqds, line = await start_broker(self._settings)
            lines = [*warnings, *await self._gateway.start(nsqds, access)]
            if self._broker_metrics is not None:
                self._broker_metrics.start(self._gateway.nsqd_http)
        except BaseException:
            await self.stop()
            raise
        return [
            line,
            *lines,
            *startup_banner(self._settings, self.address, self.management_address),
            *auth_server_banner(self._auth_server),
        ]

    async def drain(self) -> None:
        """Fail readiness, and close sockets over --drain-window-s."""
        await self._gateway.drain()

    async def stop(self) -> None:
        """Stop every part, the broker after its clients; idempotent."""
        # Closing sockets requeue messages at the broker; /livez has to answer until the end.
        # nsqds ask the auth server as long as they have clients.
        await stop_in_order(
            self._broker_metrics,
            self._gateway,
            self._broker,
            self._auth_server,
            self._access,
            self._management,
        )

    def abort(self) -> None:
        """Abort every open connection."""
        self._gateway.abort()


def management_listener(settings: ServeSettings) -> HttpListener:
    """Return the listener of the management port, not bound yet."""
    return HttpListener("the management port (--management-listen)", settings.management_listen)


def log_started(settings: ServeSettings, address: str, management_address: str) -> None:
    """Log the version, and the two addresses as URLs."""
    s = "" if settings.tls_cert is None else "s"
    logger.info(
        "started",
        version=gateway.__version__,
        address=f"http{s}://{address}",
        management_address=f"http://{management_address}",
        workers=settings.workers,
    )


def new_broker_metrics(settings: ServeSettings) -> BrokerMetrics | None:
    """Return the metrics of the nsqds, not started; None with --no-broker-metrics."""
    if not settings.broker_metrics:
        return None
    interval_s = settings.broker_metrics_interval_s
    options = BrokerMetricsOptions()
    return BrokerMetrics(
        replace(
            options,
            interval_s=interval_s,
            max_rows=settings.broker_metrics_limit,
            idle_s=max(options.idle_s, 2 * interval_s),
        )
    )


def management_hosts(settings: ServeSettings) -> TrustedHosts:
    """Return the check of the Host header for the management port."""
    return TrustedHosts(
        settings.management_listen,
        settings.management_allow_host,
        flag="--management-allow-host",
    )


async def start_broker(settings: ServeSettings) -> tuple[Broker | None, NsqdAddresses, str]:
    """
    Start the embedded broker if neither an nsqd nor an nsqlookupd is configured.

    Return the broker or None, the addresses of the nsqds to use, and the first line of the banner.

    Raises:
        StartError: An address of the broker cannot be used.
    """
    if not settings.uses_embedded_broker:
        _warn_without_http(settings)
        line = f"nsq-gateway {gateway.__version__} {_describe_nsqds(settings)}"
        return None, NsqdAddresses(settings.nsqd_tcp_address, settings.nsqd_http_address), line
    broker = Broker(
        BrokerOptions(
            tcp_address=settings.broker_tcp_address,
            http_address=settings.broker_http_address,
            data_path=settings.broker_data_path,
            limits=settings_limits(settings),
        )
    )
    try:
        await start_broker_with_hint(broker, "--broker-tcp-address", "--broker-http-address")
    except StartError as error:
        if not _is_address_in_use(error):
            raise
        flags = (
            f"--nsqd-tcp-address {settings.broker_tcp_address} "
            f"--nsqd-http-address {settings.broker_http_address}"
        )
        raise StartError(f"{error}; if your nsqd listens there, add {flags}") from error
    if settings.require_auth:
        logger.warning(
            "AUTH not enforced: the embedded broker accepts any secret",
            advice="configure an nsqd that requires AUTH with --nsqd-tcp-address",
        )
    tcp, http = broker.tcp_address, broker.http_address
    line = (
        f"nsq-gateway {gateway.__version__} with embedded broker "
        f"({describe_data_path(settings.broker_data_path)}; TCP {tcp}, HTTP {http})"
    )
    return broker, NsqdAddresses((tcp,), (http,)), line


def _is_address_in_use(error: StartError) -> bool:
    """Return whether the cause of *error* is that another process uses the address."""
    # Each layer adds its advice to the text with `raise … from`: the OSError is a few causes down.
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__cause__
    return cause is not None and cause.errno == errno.EADDRINUSE


def _warn_without_http(settings: ServeSettings) -> None:
    """Warn if no HTTP address of an nsqd is known, and list what is missing without it."""
    if settings.nsqd_http_address or settings.lookupd_http_address:
        return
    logger.warning(
        "nsqd HTTP address not configured",
        missing="its size limits, deleted and paused channels, /stats, /topic/*, /channel/*",
        advice="set --nsqd-http-address",
    )


def check_pages(settings: ServeSettings) -> None:
    """Check the folder of --static-dir, if there is one; raises SettingsError."""
    check_static_dir(settings.static_dir, public_routes(console=settings.console))


def startup_banner(settings: ServeSettings, address: str, management_address: str) -> list[str]:
    """Return lines with the addresses and first commands to try."""
    workers = f", {settings.workers} workers" if settings.workers > 1 else ""
    header = ""
    if settings.access_file is not None or settings.require_auth:
        word = "SECRET" if settings.access_file is None else "TOKEN"
        header = f"-H 'Authorization: Bearer {word}' "
    s = "" if settings.tls_cert is None else "s"
    lines = [
        f"listening on http{s}://{address} (management: http://{management_address}/readyz){workers}",
        f"publish:    curl {header}-d 'hello' 'http{s}://{address}/pub?topic=greetings'",
        f"subscribe:  ws{s}://{address}/sub?topic=greetings&channel=readers",
    ]
    if settings.console:
        lines.append(f"console:    http{s}://{address}/console")
    if settings.static_dir is not None:
        lines.append(f"static dir: http{s}://{address}/")
    if settings.access_file is not None:
        lines.append(f"access:     {settings.access_file} says who may do what")
    return lines


def _describe_nsqds(settings: ServeSettings) -> str:
    """Return the nsqds and nsqlookupds, as in ``with nsqd at 127.0.0.1:4150``."""
    places = []
    if settings.nsqd_tcp_address:
        places.append(f"with nsqd at {', '.join(settings.nsqd_tcp_address)}")
    if settings.lookupd_http_address:
        places.append(f"with nsqlookupd at {', '.join(settings.lookupd_http_address)}")
    return " and ".join(places)
