"""
The embedded broker: start it, read its addresses, stop it.

For clients it behaves as nsqd 1.3.0. With a data path, messages are on disk before their OK;
without one, they are in memory, and end with the process. docs/broker.md has the differences.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import socket
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

from gateway.addresses import TrustedHosts, is_path, split_address
from gateway.broker.auth import AuthClient, AuthOptions
from gateway.broker.config import NsqdConfig, OptionValue
from gateway.broker.durable import DurableStorage
from gateway.broker.http import HttpApi, HttpProtocol, InfoResponse, RequireTls
from gateway.broker.journal import Journal
from gateway.broker.latency import LatencyOptions
from gateway.broker.lookupd import Identity, LookupdRegistration
from gateway.broker.message import NODE_IDS, ClockReading, MemoryBudget
from gateway.broker.scheduler import BrokerLimits, BrokerState
from gateway.broker.server import Server
from gateway.broker.store import Store
from gateway.broker.tls_layer import TlsSettings
from gateway.broker.topics import TopicRegistry
from gateway.errors import SettingsError, StartError
from gateway.listener import HttpListener
from gateway.protocol.identify import MAX_DEFLATE_LEVEL, Features
from gateway.protocol.wire import Limits
from gateway.tls import Certificate

_NS_PER_MS = 1_000_000
_TLS_REQUIRED = {"false": 0, "tcp-https": 1, "true": 2}
"""Numbers of tls_required in GET /config (nsqd/nsqd.go)."""
_TLS_VERSIONS = {"tls1.0": 0x301, "tls1.1": 0x302, "tls1.2": 0x303, "tls1.3": 0x304}
"""Numbers of tls_min_version in GET /config: those of TLS itself."""

IGNORED_OPTIONS: Mapping[str, OptionValue] = MappingProxyType(
    {
        "log_prefix": "[nsqd] ",
        "max_bytes_per_file": 104_857_600,
        "sync_every": 2_500,
        "sync_timeout": 2_000 * _NS_PER_MS,
        "queue_scan_selection_count": 20,
        "queue_scan_worker_pool_max": 4,
        "statsd_address": "",
        "statsd_prefix": "nsq.%s",
        "statsd_interval": 60_000 * _NS_PER_MS,
        "statsd_mem_stats": True,
        "statsd_udp_packet_size": 508,
        "statsd_exclude_ephemeral": False,
    }
)
"""nsqd's options without effect here, by their names in GET /config, with nsqd's defaults."""


@dataclass(frozen=True, kw_only=True)
class BrokerOptions:
    """The addresses and limits of a broker."""

    tcp_address: str = "127.0.0.1:4150"
    """host:port for TCP clients, or the path of a Unix socket; port 0 lets the system choose."""
    data_path: Path | None = None
    """The folder of the store; None keeps messages in memory, where they end with the process."""
    http_address: str = "127.0.0.1:4151"
    """
    host:port for the HTTP API, or the path of a Unix socket; an empty string disables it.

    Port 0 lets the system choose.
    """
    https_address: str = "127.0.0.1:4152"
    """host:port for the HTTPS API, used with `tls_cert`; an empty string disables it."""
    broadcast_address: str | None = None
    """Host in /info and at nsqlookupd; None for the host name of this machine."""
    broadcast_tcp_port: int = 0
    """Port at nsqlookupd; 0 for that of `tcp_address`."""
    broadcast_http_port: int = 0
    """HTTP port at nsqlookupd; 0 for that of `http_address`."""
    lookupd_tcp_address: tuple[str, ...] = ()
    """TCP addresses of the nsqlookupds to register with."""
    log_level: str = "info"
    """Level that GET /config shows; PUT /config changes that of the whole process."""
    ignored_options: Mapping[str, OptionValue] = field(default_factory=lambda: IGNORED_OPTIONS)
    """What GET /config shows of the options without effect."""
    limits: Limits = field(default_factory=Limits)
    mem_queue_size: int = 10_000
    """
    Maximum messages queued in an ephemeral topic or channel; further ones are dropped.

    With a data path, also what another channel queues in memory; further ones stay on disk.
    """
    max_memory_bytes: int = 1_073_741_824
    """
    Maximum memory of all messages, counted once per channel; publishes beyond it fail.

    The errors are E_PUB_FAILED, E_MPUB_FAILED, E_DPUB_FAILED, and 503 EXITING. Receive and send
    buffers are not included; they are limited per connection.
    """
    max_connections: int = 10_000
    """
    Maximum number of concurrent connections, for TCP and HTTP separately.

    Further TCP connections are closed, further HTTP requests get 503. nsqd has no such limit.
    """
    max_channel_consumers: int = 0
    """Maximum number of consumers of one channel; 0 is unlimited."""
    node_id: int | None = None
    """0 to 1023, a part of every message id; None derives it from the host name."""
    latency: LatencyOptions = field(default_factory=LatencyOptions)
    """Percentiles of the time from publish to FIN that /stats has."""
    tls_cert: str = ""
    """PEM file with the certificate for TLS; an empty string disables TLS."""
    tls_key: str = ""
    """PEM file with the private key of `tls_cert`, without a passphrase."""
    tls_client_auth_policy: str = ""
    """
    Client certificates: "" asks for none, "require" for any, "require-verify" for a valid one.

    With a policy, `tls_required` "false" means "true", as in nsqd.
    """
    tls_root_ca_file: str = ""
    """PEM file with the authorities of client certificates and of https auth servers."""
    tls_required: str = "false"
    """Whether clients must use TLS: "false", "true", or "tcp-https" (TCP only, not HTTP)."""
    tls_min_version: str = "tls1.0"
    """One of `gateway.tls.MIN_VERSIONS`."""
    snappy: bool = True
    """Whether clients may use snappy."""
    deflate: bool = True
    """Whether clients may use deflate."""
    max_deflate_level: int = 6
    """Maximum deflate level, 1 to 9; higher requests get this level."""
    auth_http_address: tuple[str, ...] = ()
    """Auth servers, host:port or URL; with any, clients must send AUTH. Empty: no AUTH."""
    auth_http_request_method: str = "get"
    """How auth servers are asked: "get" or "post"."""
    http_client_connect_timeout: int = 2_000
    """Time to connect to an auth server, in ms."""
    http_client_request_timeout: int = 5_000
    """Time for a request to an auth server, in ms, including the time to connect."""


def to_nsqd_options(options: BrokerOptions) -> dict[str, OptionValue]:
    """Return the options of GET /config/:opt with nsqd's names; durations in ns."""
    limits = options.limits
    return {
        "id": options.node_id or 0,
        "tcp_address": options.tcp_address,
        "data_path": str(options.data_path or ""),
        "http_address": options.http_address,
        "https_address": options.https_address,
        "broadcast_address": options.broadcast_address or "",
        "broadcast_tcp_port": options.broadcast_tcp_port,
        "broadcast_http_port": options.broadcast_http_port,
        "auth_http_addresses": list(options.auth_http_address),
        "http_client_connect_timeout": options.http_client_connect_timeout * _NS_PER_MS,
        "http_client_request_timeout": options.http_client_request_timeout * _NS_PER_MS,
        "mem_queue_size": options.mem_queue_size,
        "max_channel_consumers": options.max_channel_consumers,
        "max_msg_size": limits.max_msg_size_bytes,
        "max_body_size": limits.max_body_size_bytes,
        "max_req_timeout": limits.max_req_timeout_ms * _NS_PER_MS,
        "max_rdy_count": limits.max_rdy_count,
        "msg_timeout": limits.msg_timeout_ms * _NS_PER_MS,
        "max_msg_timeout": limits.max_msg_timeout_ms * _NS_PER_MS,
        "max_heartbeat_interval": limits.max_heartbeat_interval_ms * _NS_PER_MS,
        "max_output_buffer_size": limits.max_output_buffer_size_bytes,
        "output_buffer_timeout": limits.output_buffer_timeout_ms * _NS_PER_MS,
        "min_output_buffer_timeout": limits.min_output_buffer_timeout_ms * _NS_PER_MS,
        "max_output_buffer_timeout": limits.max_output_buffer_timeout_ms * _NS_PER_MS,
        "e2e_processing_latency_percentiles": list(options.latency.percentiles),
        "e2e_processing_latency_window_time": options.latency.window_ms * _NS_PER_MS,
        "tls_cert": options.tls_cert,
        "tls_key": options.tls_key,
        "tls_client_auth_policy": options.tls_client_auth_policy,
        "tls_root_ca_file": options.tls_root_ca_file,
        "tls_required": _TLS_REQUIRED[options.tls_required],
        "tls_min_version": _TLS_VERSIONS[options.tls_min_version],
        "deflate": options.deflate,
        "max_deflate_level": options.max_deflate_level,
        "snappy": options.snappy,
        **options.ignored_options,
    }


class Broker:
    """A TCP server and an HTTP server with shared topics, on the running event loop."""

    def __init__(self, options: BrokerOptions) -> None:
        self._options = options
        self.tcp_address = options.tcp_address
        """host:port of the TCP listener; after `start`, with the actual port in place of 0."""
        self.http_address = options.http_address
        """host:port of the HTTP API; after `start`, with the actual port. Empty disables HTTP."""
        self.https_address = options.https_address if options.tls_cert else ""
        """host:port of the HTTPS API; after `start`, with the actual port. Empty without TLS."""
        self._server: Server | None = None
        self._certificate: Certificate | None = None
        self._auth: AuthClient | None = None
        self._journal: Journal | None = None
        self._listeners: list[HttpListener] = []
        self._lookupd: LookupdRegistration | None = None

    def health(self) -> str | None:
        """Return the last error of the store, which /ping and /stats show; None if all is well."""
        return None if self._journal is None else self._journal.error

    async def start(self) -> None:
        """
        Load the messages of the data path, listen on all addresses, and register with nsqlookupd.

        Raises:
            StartError: An address is in use, or not one of this machine; or the data path cannot be
                used. No listener stays open.
            SettingsError: An option of TLS or AUTH is invalid; no listener stays open either.
        """
        options = self._options
        if not 1 <= options.max_deflate_level <= MAX_DEFLATE_LEVEL:
            allowed = f"1 to {MAX_DEFLATE_LEVEL}"
            raise SettingsError("--max-deflate-level", options.max_deflate_level, allowed=allowed)
        tls = _tls_settings(options)
        self._certificate = tls.certificate()
        if self._certificate is not None:
            self._certificate.load()
        registry = await self._open_registry(_context(options, tls))
        if options.auth_http_address:
            self._auth = AuthClient(_auth_options(options))
        server = self._server = Server(
            registry,
            max_connections=options.max_connections,
            certificate=self._certificate,
            auth=self._auth,
            journal=self._journal,
        )
        try:
            self.tcp_address = await server.start(options.tcp_address)
        except StartError:
            await self.stop()
            raise
        try:
            if self._certificate is not None:
                self._certificate.watch()
            http = self._bind("broker HTTP", self.http_address)
            https = self._bind("broker HTTPS", self.https_address, tls.certificate())
            await self._serve(server, http, https)
        except BaseException:
            # The TCP listener is open by now.
            await self.stop()
            raise

    def _bind(
        self, name: str, address: str, certificate: Certificate | None = None
    ) -> HttpListener | None:
        """Return a listener that is bound to *address*; None if that is empty."""
        if not address:
            return None
        listener = HttpListener(
            name,
            address,
            certificate=certificate,
            limit_concurrency=self._options.max_connections,
            http=HttpProtocol,
        )
        self._listeners.append(listener)
        listener.bind()
        return listener

    async def _serve(
        self, server: Server, http: HttpListener | None, https: HttpListener | None
    ) -> None:
        """Answer requests on the bound listeners, and register with nsqlookupd."""
        self.http_address = http.address if http else ""
        self.https_address = https.address if https else ""
        # After all addresses are bound, because these report the actual ports.
        options = self._options = _resolve(self._options, self.tcp_address, self.http_address)
        info = _info(options, self.tcp_address, self.http_address)
        lookupd = self._lookupd = LookupdRegistration(
            server,
            Identity(
                broadcast_address=info.broadcast_address,
                hostname=info.hostname,
                http_port=options.broadcast_http_port,
                tcp_port=options.broadcast_tcp_port,
            ),
            connect_timeout_s=options.http_client_connect_timeout / 1000,
            request_timeout_s=options.http_client_request_timeout / 1000,
        )
        config = NsqdConfig(to_nsqd_options(options), lookupd, log_level=options.log_level)
        # HTTP asks nobody for a secret: where consumers have to prove who they are, it must not
        # show bodies.
        is_open = not options.auth_http_address and not options.tls_client_auth_policy
        listening = http or https
        peek_hosts = TrustedHosts(listening.address) if is_open and listening else None
        api = HttpApi(server, info=info, config=config, health=self.health, peek_hosts=peek_hosts)
        if http is not None:
            https_port = _port(https.address if https else "")
            is_refused = options.tls_required == "true"
            await http.start(RequireTls(https_port) if is_refused else api)
        if https is not None:
            await https.start(api)
        lookupd.set_addresses(options.lookupd_tcp_address)

    async def stop(self) -> None:
        """Leave nsqlookupd, stop HTTP, then close the TCP listener and all clients; idempotent."""
        # First, so that consumers and publishers are no longer sent here.
        if self._lookupd is not None:
            await self._lookupd.stop()
            self._lookupd = None
        listeners, self._listeners = self._listeners, []
        await asyncio.gather(*(each.stop() for each in listeners))
        if self._server is not None:
            await self._server.stop()
            self._server = None
        if self._certificate is not None:
            self._certificate.close()
        if self._auth is not None:
            await self._auth.close()
            self._auth = None
        if self._journal is not None:
            # Last: the attempts of the messages that are in flight are written, too.
            await self._journal.close()
            self._journal = None

    async def _open_registry(self, context: BrokerState) -> TopicRegistry:
        """Return the topics of the data path, or none. Raises StartError."""
        if self._options.data_path is None:
            return TopicRegistry(context)
        loop = asyncio.get_running_loop()
        store = await loop.run_in_executor(None, Store, self._options.data_path)
        self._journal = Journal(
            store, read_clocks=lambda: ClockReading(loop.time(), time.time_ns())
        )
        storage = DurableStorage(context, self._journal)
        registry = TopicRegistry(context, storage)
        try:
            registry.topics.update(storage.load())
        except StartError:
            await self.stop()
            raise
        return registry


def _port(address: str) -> int:
    """Return the port of *address*; 0 if it is empty, -1 for a Unix socket, as nsqd in /info."""
    if not address:
        return 0
    return -1 if is_path(address) else split_address(address)[1]


def _resolve(options: BrokerOptions, tcp_address: str, http_address: str) -> BrokerOptions:
    """Return *options* with actual values in place of those that stand for them."""
    tls_required = options.tls_required
    if options.tls_client_auth_policy and tls_required == "false":
        tls_required = "true"
    return replace(
        options,
        broadcast_address=options.broadcast_address or socket.gethostname(),
        broadcast_tcp_port=options.broadcast_tcp_port or max(0, _port(tcp_address)),
        broadcast_http_port=options.broadcast_http_port or max(0, _port(http_address)),
        node_id=_node_id(options),
        tls_required=tls_required,
    )


def _info(options: BrokerOptions, tcp_address: str, http_address: str) -> InfoResponse:
    limits, hostname = options.limits, socket.gethostname()
    return InfoResponse(
        broadcast_address=options.broadcast_address or hostname,
        hostname=hostname,
        http_port=_port(http_address),
        tcp_port=_port(tcp_address),
        start_time=int(time.time()),
        max_heartbeat_interval=limits.max_heartbeat_interval_ms * _NS_PER_MS,
        max_output_buffer_size=limits.max_output_buffer_size_bytes,
        max_output_buffer_timeout=limits.max_output_buffer_timeout_ms * _NS_PER_MS,
        max_deflate_level=options.max_deflate_level,
    )


def _node_id(options: BrokerOptions) -> int:
    if options.node_id is not None:
        return options.node_id
    # As in nsqd (nsqd/options.go). MD5 has no security purpose here.
    name = hashlib.md5(socket.gethostname().encode(), usedforsecurity=False).digest()
    return int(zlib.crc32(name) % NODE_IDS)


def _tls_settings(options: BrokerOptions) -> TlsSettings:
    return TlsSettings(
        cert=options.tls_cert,
        key=options.tls_key,
        client_auth_policy=options.tls_client_auth_policy,
        root_ca_file=options.tls_root_ca_file,
        required=options.tls_required,
        min_version=options.tls_min_version,
    )


def _auth_options(options: BrokerOptions) -> AuthOptions:
    return AuthOptions(
        addresses=options.auth_http_address,
        method=options.auth_http_request_method,
        connect_timeout_ms=options.http_client_connect_timeout,
        request_timeout_ms=options.http_client_request_timeout,
        root_ca_file=options.tls_root_ca_file,
    )


def _context(options: BrokerOptions, tls: TlsSettings) -> BrokerState:
    return BrokerState(
        memory=MemoryBudget(limit_bytes=options.max_memory_bytes),
        random=random.randrange,
        limits=BrokerLimits(
            protocol=options.limits,
            # With 0, nsqd hands a message to an ephemeral channel's consumer that waits for one.
            mem_queue_size=max(1, options.mem_queue_size),
            max_channel_consumers=options.max_channel_consumers,
            node_id=_node_id(options),
            latency=options.latency,
            features=Features(
                tls_v1=bool(options.tls_cert),
                snappy=options.snappy,
                deflate=options.deflate,
                max_deflate_level=options.max_deflate_level,
                auth=bool(options.auth_http_address),
            ),
            is_tls_required=tls.is_required,
        ),
    )
