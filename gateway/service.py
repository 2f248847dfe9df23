"""
The composition root: builds the parts, starts them, drains them, stops them, in this order.

One process has all of them; `workers` spreads the planes over several.
"""

from __future__ import annotations

import errno

import gateway
from gateway.broker.broker import Broker
from gateway.broker.options import BrokerOptions
from gateway.errors import StartError
from gateway.lifetime import HURRY_S, stop_in_order
from gateway.listener import HttpListener
from gateway.nsqd_access import Nsqds, read_access
from gateway.planes import Planes, check_certificate
from gateway.process_account import check_tracing
from gateway.settings import BrokerSettings, ServeSettings
from gateway.settings_limits import broker_limits, settings_limits
from gateway.telemetry import REGISTRY, get_logger
from gateway.web.app import public_routes
from gateway.web.health import ManagementApp, OwnAccount
from gateway.web.static_dir import check_static_dir

logger = get_logger()


class Service:
    """`nsq-gateway serve`: the gateway, with its embedded broker where no nsqd is named."""

    def __init__(self, settings: ServeSettings) -> None:
        self._settings = settings
        self._planes = Planes(settings)
        self._management = management_listener(settings)
        self._broker: Broker | None = None

    @property
    def address(self) -> str:
        """Where the gateway listens, host:port, once started."""
        return self._planes.address

    @property
    def longest_end_s(self) -> float:
        """Within how many seconds a drain and a stop are over."""
        return self._planes.longest_end_s

    @property
    def management_address(self) -> str:
        """Where the management port listens, host:port, once started."""
        return self._management.address

    async def start(self) -> list[str]:
        """
        Start everything and return what to tell the person who started it, a line each.

        Raises:
            SettingsError: A file that the settings name cannot be used.
            StartError: An address cannot be listened on; what had been started is stopped.
        """
        try:
            # First what may not be had at all, before anything runs.
            access = read_access(self._settings)
            check_page(self._settings)
            check_certificate(self._settings)
            check_tracing(self._settings)
            self._planes.bind()
            self._management.bind()
            account = OwnAccount(lambda: self._planes.phase, REGISTRY)
            await self._management.start(ManagementApp(account))
            self._broker, nsqds, line = await start_broker(self._settings)
            lines = await self._planes.start(nsqds, access)
        except BaseException:
            await self.stop()
            raise
        return [line, *lines, *invitation(self._settings, self.address, self.management_address)]

    async def drain(self) -> None:
        """Say "not ready", and let every socket go within the drain window."""
        await self._planes.drain()

    async def stop(self) -> None:
        """Stop what has been started, the broker after those who use it; idempotent."""
        await stop_in_order(self._planes, self._broker, self._management)

    def abort(self) -> None:
        """Cut whoever is connected still."""
        self._planes.abort()


class BrokerService:
    """`nsq-gateway broker`: the embedded broker alone."""

    def __init__(self, settings: BrokerSettings) -> None:
        self._broker = Broker(
            BrokerOptions(
                tcp_address=settings.tcp_address,
                http_address=settings.http_address,
                broadcast_address=settings.broadcast_address,
                limits=broker_limits(settings),
                mem_queue_size=settings.mem_queue_size,
                max_memory_bytes=settings.max_memory_bytes,
                max_connections=settings.max_connections,
                max_channel_consumers=settings.max_channel_consumers,
            )
        )

    @property
    def longest_end_s(self) -> float:
        """Within how many seconds a stop is over."""
        return HURRY_S

    async def start(self) -> list[str]:
        """Start, and return what to tell the person who started it; raises StartError."""
        await _start_naming(self._broker, "--tcp-address", "--http-address")
        tcp, http = self._broker.tcp_address, self._broker.http_address
        return [
            f"nsq-gateway {gateway.__version__} broker (in memory): TCP {tcp}, HTTP {http}",
            f"publish:  curl -d 'hello' 'http://{http}/pub?topic=greetings'",
        ]

    async def drain(self) -> None:
        """Nobody has to be told: clients reconnect when their connection ends."""

    async def stop(self) -> None:
        """Stop."""
        await self._broker.stop()

    def abort(self) -> None:
        """Nobody waits for long: the broker bounds its stop by itself."""


def management_listener(settings: ServeSettings) -> HttpListener:
    """Return the management port, not bound yet."""
    return HttpListener("the management port (--management-listen)", settings.management_listen)


async def start_broker(settings: ServeSettings) -> tuple[Broker | None, Nsqds, str]:
    """
    Start the embedded broker, where no nsqd is named.

    Returns it, the nsqds to use, and a line that says which they are; raises
    StartError.
    """
    if not settings.uses_embedded_broker:
        _warn_without_http(settings)
        line = f"nsq-gateway {gateway.__version__} {_where(settings)}"
        return None, Nsqds(settings.nsqd_tcp_address, settings.nsqd_http_address), line
    broker = Broker(
        BrokerOptions(
            tcp_address=settings.broker_tcp_address,
            http_address=settings.broker_http_address,
            limits=settings_limits(settings),
        )
    )
    try:
        await _start_naming(broker, "--broker-tcp-address", "--broker-http-address")
    except StartError as error:
        if not _is_taken(error):
            raise
        there = (
            f"--nsqd-tcp-address {settings.broker_tcp_address} "
            f"--nsqd-http-address {settings.broker_http_address}"
        )
        raise StartError(f"{error}; or, if that is your nsqd, use it: {there}") from error
    if settings.require_auth:
        logger.warning(
            "the embedded broker takes any secret",
            advice="name an nsqd that asks for AUTH: --nsqd-tcp-address",
        )
    tcp, http = broker.tcp_address, broker.http_address
    line = (
        f"nsq-gateway {gateway.__version__} with its embedded broker "
        f"(in memory; TCP {tcp}, HTTP {http})"
    )
    return broker, Nsqds((tcp,), (http,)), line


async def _start_naming(broker: Broker, *flags: str) -> None:
    """Start *broker*; a StartError names the *flags* that say where it listens."""
    try:
        await broker.start()
    except StartError as error:
        raise StartError(f"{error} with {' or '.join(flags)}") from error
    except BaseException:
        await broker.stop()
        raise


def _is_taken(error: StartError) -> bool:
    """Tell whether somebody else listens where we are to."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__cause__
    return cause is not None and cause.errno == errno.EADDRINUSE


def _warn_without_http(settings: ServeSettings) -> None:
    """Log what is not known where no HTTP address of nsqd is, nor anybody who tells it."""
    if settings.nsqd_http_address or settings.lookupd_http_address:
        return
    logger.warning(
        "no HTTP address of nsqd is known",
        missing="its size limits, deleted and paused channels, /stats, /topic/*, /channel/*",
        advice="name it with --nsqd-http-address",
    )


def check_page(settings: ServeSettings) -> None:
    """See that the folder of the operator's page can be served; raises SettingsError."""
    check_static_dir(settings.static_dir, public_routes(console=settings.console))


def invitation(settings: ServeSettings, address: str, management_address: str) -> list[str]:
    """Return where to go from here, a line each."""
    by = f", {settings.workers} workers" if settings.workers > 1 else ""
    header = "-H 'Authorization: Bearer SECRET' " if settings.require_auth else ""
    s = "" if settings.tls_cert is None else "s"
    lines = [
        f"listening on http{s}://{address} (management: http://{management_address}/readyz){by}",
        f"publish:    curl {header}-d 'hello' 'http{s}://{address}/pub?topic=greetings'",
        f"subscribe:  ws{s}://{address}/sub?topic=greetings&channel=readers",
    ]
    if settings.console:
        lines.append(f"console:    http{s}://{address}/console")
    if settings.static_dir is not None:
        lines.append(f"page:       http{s}://{address}/")
    return lines


def _where(settings: ServeSettings) -> str:
    """Return in words where nsqd is looked for."""
    places = []
    if settings.nsqd_tcp_address:
        places.append(f"with nsqd at {', '.join(settings.nsqd_tcp_address)}")
    if settings.lookupd_http_address:
        places.append(f"with what nsqlookupd knows at {', '.join(settings.lookupd_http_address)}")
    return " and ".join(places)
