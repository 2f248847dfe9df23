"""
Settings of `nsq-gateway serve`.

Each name has three forms: ``--publish-timeout-ms``, ``NSQ_GATEWAY_PUBLISH_TIMEOUT_MS``, and
``publish_timeout_ms`` in the TOML file of ``--config``. Options of nsqd keep nsqd's names; their
durations are Go durations (``1h30m``, ``250ms``) or numbers of milliseconds.
"""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, model_validator
from pydantic_settings import NoDecode

from gateway.addresses import has_loopback_host
from gateway.errors import SettingRefused
from gateway.settings.fields import (
    ADDRESS,
    ADDRESSES,
    MIB,
    Address,
    Host,
    HostNames,
    LimitSettings,
    Origins,
    RemoteAddress,
    RemoteAddresses,
    Settings,
    flag_name,
    number,
    setting,
    split_commas,
    switch,
)
from gateway.settings.nsqd import NsqdSettings
from gateway.tls import TlsVersion

_BUFFERS = ("publish_buffer_bytes", "publish_buffer_per_nsqd_bytes")


class PublishSettings(LimitSettings):
    """Settings of publishing: connections, buffers and rates."""

    nsqd_connections: int = number(4, "TCP connections to each nsqd for publishing.", (1, 64))
    node_drain_poll_s: float = number(
        0.4,
        "Time between two requests to each nsqd that find out which of them drain (POST "
        "/nodes/drain), and the time limit of each (at least 0.25 s). A drain that another gateway "
        "or process has begun takes effect within twice this time.",
        (0.1, 3_600),
        "s",
    )
    publish_timeout_ms: int = number(
        5_000, "Time limit of a publish; then 504.", (1, 600_000), "ms"
    )
    publish_buffer_bytes: int = number(
        64 * MIB,
        "Maximum bytes queued for publishing. Beyond this, publishes get 503.",
        (1_024, 65_536 * MIB),
        "bytes",
    )
    publish_buffer_per_nsqd_bytes: int = number(
        32 * MIB,
        "Maximum bytes of --publish-buffer-bytes queued for one nsqd, so that a slow nsqd "
        "leaves room for the others.",
        (1_024, 65_536 * MIB),
        "bytes",
    )
    publish_rate_limit: float | None = number(
        None,
        "Maximum publish rate of one caller, in each process. Beyond this, publishes get 429. "
        "Callers are identified by the access file, or by their secret where nsqd requires AUTH, "
        "otherwise by IP address. None: no limit.",
        (0.001, 10_000_000),
        "messages a second",
    )
    publish_rate_burst: float | None = number(
        None,
        "Messages that one caller may publish at once after a pause. None: one second's worth.",
        (1, 100_000_000),
        "messages",
    )
    publish_body_limit_bytes: int | None = number(
        None,
        "Maximum body of a publish; a larger one gets 413. No effect above nsqd's own limit.",
        (1, 1024 * MIB),
        "bytes",
    )

    @model_validator(mode="after")
    def _publish_settings_are_consistent(self) -> PublishSettings:
        if self.publish_rate_burst is not None and self.publish_rate_limit is None:
            raise SettingRefused(
                "--publish-rate-burst", "it has no effect without --publish-rate-limit"
            )
        # A body larger than the whole buffer could never be accepted, even when nothing waits.
        longest, name = self.max_body_size, "max_body_size"
        if self.publish_body_limit_bytes is not None and self.publish_body_limit_bytes < longest:
            longest, name = self.publish_body_limit_bytes, "publish_body_limit_bytes"
        for buffer in _BUFFERS:
            size_bytes = getattr(self, buffer)
            if size_bytes < longest:
                raise SettingRefused(
                    flag_name(buffer),
                    f"{size_bytes} bytes are less than a body of {longest} bytes, which "
                    f"{flag_name(name)} allows: such a publish would always get 503",
                )
        return self


class AccessSettings(Settings):
    """Settings of the access file: tokens, keys and rights."""

    access_file: str | None = setting(
        None,
        "TOML file with issuers of tokens, API keys and rules: who may do what (docs/access.md). "
        "Reloaded within seconds after a change. Without it, nsqd decides.",
        "the path of a file",
    )
    nsqd_auth: Literal["caller", "own"] = setting(
        "caller",
        "With --access-file, the secret for nsqds that require AUTH: the caller's token or key, "
        "or the gateway's own, --auth-secret.",
        "caller, own",
    )
    auth_listen: Address | None = setting(
        None,
        "Address of the auth server for nsqd's --auth-http-address, which answers by the access "
        "file; none: no auth server. It has TLS if --listen has.",
        ADDRESS,
    )
    jwks_refresh_s: float = number(
        300, "Time between two requests for the keys of an issuer (jwks_url).", (1, 86_400), "s"
    )
    jwks_max_stale_s: float = number(
        3_600,
        "Time for which an issuer's keys hold while its jwks_url fails; then its tokens are "
        "refused.",
        (1, 31_536_000),
        "s",
    )

    @model_validator(mode="after")
    def _access_settings_need_the_file(self) -> AccessSettings:
        if self.access_file is None:
            for name in ("nsqd_auth", "auth_listen", "jwks_refresh_s", "jwks_max_stale_s"):
                if getattr(self, name) != type(self).model_fields[name].default:
                    raise SettingRefused(flag_name(name), "it has no effect without --access-file")
        elif self.jwks_max_stale_s < self.jwks_refresh_s:
            raise SettingRefused(
                "--jwks-max-stale-s",
                f"{self.jwks_max_stale_s:g} s are less than the {self.jwks_refresh_s:g} s of "
                "--jwks-refresh-s: keys would end before they are requested again",
            )
        return self


class PullSettings(Settings):
    """Settings of pulls (POST /pull) and of leases, by which their messages are answered."""

    pull_idle_s: float = number(
        30,
        "Time without a pull after which the consumer of its channel is closed.",
        (1, 86_400),
        "s",
    )
    pull_linger_ms: int = number(
        500,
        "Time for which a message that came too late for its pull waits for the next one; then it "
        "is requeued.",
        (0, 60_000),
        "ms",
    )
    max_pulls: int = number(
        1_000, "Maximum pulls that wait for messages. Beyond this, pulls get 503.", (1, 1_000_000)
    )
    max_leases: int = number(
        100_000,
        "Maximum messages leased to clients, in each process. Beyond this, pulls get 503.",
        (1, 10_000_000),
        "messages",
    )
    max_leases_per_caller: int = number(
        0,
        "Maximum messages leased to one secret or, with an access file, to one token subject or "
        "API key; 0: no limit.",
        (0, 10_000_000),
        "messages",
    )
    lease_key_file: str | None = setting(
        None,
        "File with the key that signs leases, the same for all replicas. Without it, each process "
        "makes a random one, and only the process that leased a message takes its ack.",
        "the path of a file with 16 to 4096 bytes",
    )
    advertise_address: RemoteAddress | None = setting(
        None,
        "Address at which other replicas reach the management port of this process, to send on "
        "acks of its leases; none: no replica does.",
        ADDRESS,
    )

    @model_validator(mode="after")
    def _pull_settings_are_consistent(self) -> PullSettings:
        if self.advertise_address is not None and self.lease_key_file is None:
            raise SettingRefused(
                "--advertise-address",
                "it needs --lease-key-file, by which replicas recognize each other's leases",
            )
        return self


class TelemetrySettings(Settings):
    """Settings of metrics and traces."""

    metrics_topics_limit: int = number(
        100,
        "Topics with metrics of their own, in order of first use. All others are counted "
        "together, as topic other.",
        (0, 10_000),
        "topics",
    )
    broker_metrics: bool = switch(
        "Export depth, in flight, deferred, requeued and other numbers of every nsqd whose HTTP "
        "address is known, by topic, channel and nsqd.",
        default=True,
    )
    broker_metrics_interval_s: float = number(
        15,
        "Time between two requests for the statistics of each nsqd. The nsqds are asked only "
        "while /metrics is: not after 300 s without a scrape, or twice this time if that is more.",
        (1, 3_600),
        "s",
    )
    broker_metrics_limit: int = number(
        10_000,
        "Topics and channels with metrics of the nsqds, each counted for every nsqd that has it. "
        "Beyond it, topics are left out with all their channels, the last by name first.",
        (0, 100_000),
        "topics and channels",
    )
    tracing: bool = switch(
        "Export traces by OTLP over HTTP, configured by the OTEL_EXPORTER_OTLP_* variables. "
        "Needs the optional dependencies tracing (pip install '.[tracing]' from the checkout)."
    )
    tracing_sample_ratio: float = number(
        0.01,
        "Share of requests without a traceparent that start a trace, at most 50 a second. A "
        "request with a traceparent is traced if its sampled flag is set.",
        (0, 1),
    )


_PEM = "the path of a PEM file"


def _checked_network(value: str) -> str:
    try:
        ipaddress.ip_network(value)
    except ValueError as error:
        raise ValueError(
            f"{error}; a network has no bits set after its prefix, as in 10.0.0.0/8"
        ) from None
    return value


Networks: TypeAlias = Annotated[
    tuple[Annotated[str, AfterValidator(_checked_network)], ...],
    NoDecode,
    BeforeValidator(split_commas),
]


class PublicPortSettings(Settings):
    """Settings of connections to ``--listen``."""

    tls_cert: str | None = setting(
        None,
        "Certificate of --listen, followed by its chain; none: no TLS. The file is reloaded "
        "within seconds after a change.",
        _PEM,
    )
    tls_key: str | None = setting(None, "Private key of --tls-cert, without a passphrase.", _PEM)
    tls_min_version: TlsVersion = setting(
        "tls1.2",
        "Lowest TLS version at --listen. The first two work only if OpenSSL still supports them.",
        "tls1.0, tls1.1, tls1.2, tls1.3",
    )
    trusted_proxy: Networks = setting(
        (),
        "Proxy in front of --listen whose X-Forwarded-For and X-Forwarded-Proto are trusted. "
        "Those of other peers are ignored.",
        "an address, or a network such as 10.0.0.0/8; repeat the flag, or separate with commas",
    )
    max_http_connections: int = number(
        10_000,
        "Maximum open HTTP connections, WebSockets excluded. Beyond this, connections get 503.",
        (1, 1_000_000),
    )
    max_sockets_per_secret: int = number(
        0,
        "Maximum WebSockets with the same secret or, with an access file, of the same token "
        "subject or API key; 0: no limit.",
        (0, 1_000_000),
    )
    response_timeout_s: float = number(
        30,
        "Abort a connection when its client reads nothing of a pending response for this time.",
        (0.1, 3_600),
        "s",
    )

    @model_validator(mode="after")
    def _public_settings_are_consistent(self) -> PublicPortSettings:
        if self.tls_cert is not None and self.tls_key is None:
            raise SettingRefused("--tls-cert", "it needs --tls-key, the file of its private key")
        if self.tls_key is not None and self.tls_cert is None:
            raise SettingRefused("--tls-key", "it has no effect without --tls-cert")
        if self.tls_min_version != "tls1.2" and self.tls_cert is None:
            raise SettingRefused("--tls-min-version", "it has no effect without --tls-cert")
        return self


class ServeSettings(
    AccessSettings,
    PullSettings,
    PublicPortSettings,
    TelemetrySettings,
    PublishSettings,
    NsqdSettings,
):
    """Settings of `nsq-gateway serve`."""

    listen: Address = setting("127.0.0.1:8080", "Address of HTTP and WebSockets.", ADDRESS)
    management_listen: Address = setting(
        "127.0.0.1:8081", "Address of /livez, /readyz and /metrics.", ADDRESS
    )
    management_allow_host: HostNames = setting(
        (),
        "Additional Host name that the management port accepts. Always accepted: IP addresses, "
        "localhost, names without a dot, this machine's name.",
        "host names; repeat the flag, or separate with commas",
    )
    broadcast_address: Host = setting(
        "",
        "Host in /info, which nsqadmin and nsq_stat connect to. If empty, the host of --listen; if "
        "that is a wildcard such as 0.0.0.0, this machine's name.",
        "a host name or an IP address",
    )
    broadcast_http_port: int = number(0, "Port in /info; 0: the port of --listen.", (0, 65_535))
    workers: int = number(
        1, "Processes that share --listen. Above 1, another process supervises them.", (1, 64)
    )
    nsqd_http_address: RemoteAddresses = setting(
        (),
        "HTTP address of an nsqd, for its size limits, /stats, and changes of topics and channels.",
        ADDRESSES,
    )
    embedded_broker: bool = switch("Start the embedded broker although --listen is not loopback.")
    broker_tcp_address: Address = setting(
        "127.0.0.1:4150", "TCP address of the embedded broker.", ADDRESS
    )
    broker_http_address: Address = setting(
        "127.0.0.1:4151", "HTTP address of the embedded broker.", ADDRESS
    )
    broker_data_path: Path | None = setting(
        None,
        "Folder where the embedded broker keeps its messages; none: in memory, until it ends.",
        "a folder that can be written; it is created",
    )
    insecure: bool = switch(
        "Allow publish and subscribe without a secret at a --listen that is not loopback."
    )
    allow_origin: Origins = setting(
        (),
        "Additional origin whose pages may publish and subscribe; * allows all. The gateway's "
        "own origin is always allowed.",
        "*, scheme://host or scheme://host:port; repeat the flag, or separate with commas",
    )
    static_dir: str | None = setting(
        None,
        "Folder whose files are served at /, except hidden files. Its pages have the gateway's "
        "origin.",
        "the path of a folder",
    )
    console: bool = switch(
        "Serve the console at /console, which shows topics and publishes messages.",
        default=True,
    )
    request_timeout_s: float = number(
        30, "Time limit for receiving a whole HTTP request; then 408.", (0.1, 3_600), "s"
    )
    http_keep_alive_s: float = number(
        75, "Close an HTTP connection after this time without a request.", (0.1, 86_400), "s"
    )
    max_sockets: int = number(
        1_000,
        "Maximum open WebSockets. Each uses a file descriptor, and one more for every nsqd.",
        (1, 1_000_000),
    )
    max_sockets_per_address: int = number(
        0,
        "Maximum WebSockets from one IPv4 address or one IPv6 /64; 0: no limit. Behind a proxy "
        "all clients have its address, unless --trusted-proxy names it.",
        (0, 1_000_000),
    )
    command_rate_limit: int = number(
        10_000,
        "Maximum command rate of one WebSocket. Faster commands wait; with more than 5 seconds' "
        "worth waiting the socket is closed (4508). FIN and REQ of a delivered message are not "
        "counted.",
        (1, 1_000_000),
        "commands a second",
    )
    max_in_flight_limit: int = number(
        2_500,
        "Maximum max_in_flight and RDY of a client.",
        (1, 2_500),
        "messages",
    )
    max_frame_bytes: int = number(
        2 * MIB, "Maximum frame from a WebSocket client.", (1_024, 1024 * MIB), "bytes"
    )
    socket_buffer_bytes: int = number(
        8 * MIB,
        "Maximum bytes buffered for one WebSocket client or event stream. Beyond this, the gateway "
        "stops reading from nsqd for it. The response to a pull has no more bytes of bodies, but "
        "for its last message.",
        (1_024, 1024 * MIB),
        "bytes",
    )
    sockets_buffer_bytes: int = number(
        512 * MIB,
        "Maximum bytes buffered for all WebSocket clients, in each process. Near the limit, the "
        "gateway stops reading from nsqd for the clients with the largest buffers.",
        (MIB, 1_048_576 * MIB),
        "bytes",
    )
    slow_consumer_s: float = number(
        30,
        "Close the socket (4001) of a client that stays over one of the buffer limits for this "
        "time.",
        (0.1, 3_600),
        "s",
    )
    broker_outage_s: float = number(
        300, "Close sockets (1014) when no nsqd is reachable for this time.", (0.1, 86_400), "s"
    )
    ping_interval_s: float = number(
        20, "Time between pings to a WebSocket client.", (0.1, 3_600), "s"
    )
    ping_timeout_s: float = number(
        20, "Close the socket (4000) when a pong takes longer.", (0.1, 3_600), "s"
    )
    drain_delay_s: float = number(
        0,
        "Time between SIGTERM and the drain. /readyz gets 503 meanwhile, so that a load "
        "balancer sends new connections elsewhere.",
        (0, 3_600),
        "s",
    )
    drain_in_flight_s: float = number(
        10,
        "Time for clients to answer messages in flight, on a drain and at --socket-max-age-s.",
        (0, 3_600),
        "s",
    )
    drain_window_s: float = number(
        5, "Time over which a drain then spreads the closing of sockets (1012).", (0, 3_600), "s"
    )
    socket_max_age_s: float = number(
        0,
        "Maximum age of a socket, reduced by up to a fifth at random; its client is asked to "
        "reconnect (1012). This spreads sockets over new processes. 0: no limit.",
        (0, 31_536_000),
        "s",
    )

    require_auth: bool = switch(
        "Refuse callers without a secret, even if nsqd does not require AUTH. nsqd decides "
        "which secrets are valid."
    )
    admin_secret_file: str | None = setting(
        None,
        "File with the secret for /topic/*, /channel/*, /stats and /info, which are refused "
        "without it, unless an access file grants them. Read once at start, without its last "
        "newline.",
        "the path of a file",
    )
    auth_anonymous: bool = switch("Use --auth-secret for callers without a secret.")
    auth_recheck_s: float = number(
        60,
        "Time between checks that a socket's secret is still valid. Two refusals in a row close "
        "the socket (4003).",
        (0.1, 86_400),
        "s",
    )
    max_secrets: int = number(
        256,
        "Maximum secrets with open connections for publishing. The least recently used one is "
        "closed first.",
        (1, 65_536),
    )

    @property
    def uses_embedded_broker(self) -> bool:
        """True if neither an nsqd nor an nsqlookupd is configured."""
        return not self.has_nsqd_address

    @model_validator(mode="after")
    def _serve_settings_are_consistent(self) -> ServeSettings:
        if self.nsqd_http_address and self.uses_embedded_broker:
            raise SettingRefused(
                "--nsqd-http-address",
                "it needs --nsqd-tcp-address or --lookupd-http-address: messages use the TCP port",
            )
        if self.nsqd_tls_v1 and self.uses_embedded_broker:
            raise SettingRefused(
                "--nsqd-tls-v1",
                "the embedded broker does not support TLS; configure an nsqd with "
                "--nsqd-tcp-address or --lookupd-http-address",
            )
        if 0 < self.socket_max_age_s < 1:
            raise SettingRefused(
                f"--socket-max-age-s {self.socket_max_age_s:g}",
                "below 1 s clients would only reconnect; allowed: 0 for no limit, or 1 and more",
            )
        self._check_auth()
        self._check_broker()
        if not has_loopback_host(self.listen):
            self._check_public()
        return self

    def _check_auth(self) -> None:
        has_secret = self.auth_secret is not None or self.auth_secret_file is not None
        if self.access_file is not None:
            for name in ("require_auth", "auth_anonymous"):
                if getattr(self, name):
                    raise SettingRefused(
                        flag_name(name), "it has no effect with --access-file, which decides"
                    )
            if self.nsqd_auth == "own" and not has_secret:
                raise SettingRefused(
                    "--nsqd-auth own", "it needs --auth-secret or --auth-secret-file"
                )
        if not self.auth_anonymous:
            return
        if not has_secret:
            raise SettingRefused(
                "--auth-anonymous",
                "it needs --auth-secret or --auth-secret-file, the secret to use",
            )
        if self.require_auth:
            raise SettingRefused(
                "--auth-anonymous",
                "it cannot be combined with --require-auth: one accepts callers without a secret, "
                "the other refuses them",
            )

    def _check_broker(self) -> None:
        """Require --insecure if other machines reach the embedded broker: it checks no secrets."""
        if self.insecure or not self.uses_embedded_broker:
            return
        for flag, address in (
            ("--broker-tcp-address", self.broker_tcp_address),
            ("--broker-http-address", self.broker_http_address),
        ):
            if not has_loopback_host(address):
                raise SettingRefused(
                    f"{flag} {address}",
                    "it is not loopback, and the embedded broker accepts every client; "
                    "add --insecure if you want that",
                )

    def _check_public(self) -> None:
        """Require settings that say who may use --listen, which other machines reach."""
        listen = f"--listen {self.listen}"
        if self.uses_embedded_broker and not self.embedded_broker:
            raise SettingRefused(
                listen,
                "it is not loopback, so configure an nsqd with --nsqd-tcp-address or "
                "--lookupd-http-address, or add --embedded-broker to keep messages in memory only",
            )
        if self.insecure or self.access_file is not None:
            return
        if self.require_auth and self.uses_embedded_broker:
            raise SettingRefused(
                listen,
                "it is not loopback, and --require-auth has no effect: the embedded broker accepts "
                "any secret; configure an nsqd that requires AUTH, or add --insecure",
            )
        if not self.require_auth:
            raise SettingRefused(
                listen,
                "it is not loopback, so add --access-file to say who may do what, --require-auth "
                "to accept only callers with a secret, or --insecure to let everyone publish and "
                "subscribe",
            )
