"""
Every setting of the two servers: name, type, range, unit, default, what it is for.

One name in three forms: ``--publish-timeout-ms``, ``NSQ_GATEWAY_PUBLISH_TIMEOUT_MS``,
``publish_timeout_ms`` in the TOML file of ``--config``. Flag beats environment beats file beats
default. NSQ's own options keep NSQ's names; the durations of nsqd's options are spelled as in Go
(``1h30m``, ``250ms``) or as a number of milliseconds, and are kept in milliseconds.
"""

from __future__ import annotations

from pydantic import model_validator

from gateway.addresses import is_loopback
from gateway.errors import SettingRefused
from gateway.settings_common import (
    ADDRESS,
    ADDRESSES,
    MIB,
    Address,
    DurationMs,
    LimitSettings,
    Origins,
    RemoteAddresses,
    duration,
    number,
    setting,
    switch,
)
from gateway.settings_nsqd import NsqdSettings
from gateway.settings_public import PublicPortSettings
from gateway.settings_publish import PublishSettings
from gateway.settings_telemetry import TelemetrySettings


class ServeSettings(PublicPortSettings, TelemetrySettings, PublishSettings, NsqdSettings):
    """The settings of `nsq-gateway serve`."""

    listen: Address = setting("127.0.0.1:8080", "Where HTTP and WebSockets are answered.", ADDRESS)
    management_listen: Address = setting(
        "127.0.0.1:8081", "Where /livez, /readyz and /metrics are answered.", ADDRESS
    )
    workers: int = number(
        1, "Processes that share --listen; above 1 another one looks after them.", (1, 64)
    )
    nsqd_http_address: RemoteAddresses = setting(
        (),
        "The HTTP port of an nsqd, which tells its size limits, and is asked for /stats and to "
        "change topics and channels.",
        ADDRESSES,
    )
    embedded_broker: bool = switch("Start the embedded broker although --listen is not loopback.")
    broker_tcp_address: Address = setting(
        "127.0.0.1:4150", "The TCP port of the embedded broker.", ADDRESS
    )
    broker_http_address: Address = setting(
        "127.0.0.1:4151", "The HTTP port of the embedded broker.", ADDRESS
    )
    insecure: bool = switch(
        "Let everybody who reaches a --listen that is not loopback publish and subscribe."
    )
    allow_origin: Origins = setting(
        (),
        "A page, beside our own, that may publish and subscribe; * is every page there is.",
        "*, scheme://host or scheme://host:port; repeat it, or separate with commas",
    )
    static_dir: str | None = setting(
        None,
        "A folder whose files are served at /, so that an own page has the gateway's origin; "
        "hidden files are not.",
        "the path of a folder",
    )
    console: bool = switch(
        "Serve a page at /console to look at topics with, and to publish; --no-console does not.",
        default=True,
    )
    request_timeout_s: float = number(
        30, "Time for a whole HTTP request to arrive; then 408.", (0.1, 3_600), "s"
    )
    http_keep_alive_s: float = number(
        75, "How long an HTTP connection is kept without a request.", (0.1, 86_400), "s"
    )
    max_sockets: int = number(
        1_000,
        "WebSockets at a time; each takes a file descriptor, and one for every nsqd.",
        (1, 1_000_000),
    )
    max_sockets_per_address: int = number(
        0,
        "WebSockets at a time from one address, for IPv6 from one /64; 0 is any number. Behind a "
        "proxy all come from one address, unless --trusted-proxy names it.",
        (0, 1_000_000),
    )
    command_rate_limit: int = number(
        10_000,
        "Commands that one WebSocket may send; what comes faster waits, and 5 seconds' worth too "
        "many close it (4508). FIN and REQ that let go of a delivery are free.",
        (1, 1_000_000),
        "commands a second",
    )
    max_in_flight_limit: int = number(
        2_500,
        "The highest max_in_flight and RDY that a client may ask for.",
        (1, 2_500),
        "messages",
    )
    max_frame_bytes: int = number(
        2 * MIB, "Longest frame from a WebSocket client.", (1_024, 1024 * MIB), "bytes"
    )
    socket_buffer_bytes: int = number(
        8 * MIB,
        "What may wait for one WebSocket client before nsqd is read no more.",
        (1_024, 1024 * MIB),
        "bytes",
    )
    slow_consumer_s: float = number(
        30,
        "How long more than that may wait before the socket is closed (4001).",
        (0.1, 3_600),
        "s",
    )
    broker_outage_s: float = number(
        300, "How long a socket is kept without any nsqd (1014).", (0.1, 86_400), "s"
    )
    ping_interval_s: float = number(
        20, "Time between pings to a WebSocket client.", (0.1, 3_600), "s"
    )
    ping_timeout_s: float = number(
        20, "Time for the pong before the socket is closed (4000).", (0.1, 3_600), "s"
    )
    drain_in_flight_s: float = number(
        10,
        "How long a stop, or a socket that has reached its age, waits for answers to what is in "
        "flight.",
        (0, 3_600),
        "s",
    )
    drain_window_s: float = number(
        5, "Time over which a stop then spreads the closing of the sockets (1012).", (0, 3_600), "s"
    )
    socket_max_age_s: float = number(
        0,
        "Age at which a socket is told to come back, and closed (1012), up to a fifth sooner at "
        "random: so sockets spread over new processes. 0 is never.",
        (0, 31_536_000),
        "s",
    )

    require_auth: bool = switch(
        "Refuse callers who bring no secret, whatever nsqd says; nsqd decides which are right."
    )
    admin_secret_file: str | None = setting(
        None,
        "A file that holds the secret that opens /topic/*, /channel/*, /stats and /info, which are "
        "closed then without it; read once at the start, without its last newline.",
        "the path of a file",
    )
    auth_anonymous: bool = switch("Lend --auth-secret to callers who bring none.")
    auth_recheck_s: float = number(
        60,
        "Time between two looks at whether a socket's secret still holds; two refusals in a row "
        "close it (4003).",
        (0.1, 86_400),
        "s",
    )
    max_secrets: int = number(
        256,
        "Callers' secrets with connections for publishing at a time; the least recently used "
        "makes room.",
        (1, 65_536),
    )

    @property
    def uses_embedded_broker(self) -> bool:
        """Whether no nsqd is named, and nobody who knows one."""
        return not self.names_an_nsqd

    @model_validator(mode="after")
    def _serve_settings_fit_together(self) -> ServeSettings:
        if self.nsqd_http_address and self.uses_embedded_broker:
            raise SettingRefused(
                "--nsqd-http-address",
                "it needs --nsqd-tcp-address beside it, or --lookupd-http-address: messages go "
                "over nsqd's TCP port",
            )
        if self.nsqd_tls_v1 and self.uses_embedded_broker:
            raise SettingRefused(
                "--nsqd-tls-v1",
                "the embedded broker is on loopback and speaks no TLS; name an nsqd with "
                "--nsqd-tcp-address or --lookupd-http-address",
            )
        if 0 < self.socket_max_age_s < 1:
            raise SettingRefused(
                f"--socket-max-age-s {self.socket_max_age_s:g}",
                "below 1 s sockets do nothing but come and go; allowed: 0 for never, or 1 and more",
            )
        self._check_auth()
        self._check_broker()
        if not is_loopback(self.listen):
            self._check_public()
        return self

    def _check_auth(self) -> None:
        if not self.auth_anonymous:
            return
        if self.auth_secret is None and self.auth_secret_file is None:
            raise SettingRefused(
                "--auth-anonymous",
                "it needs --auth-secret or --auth-secret-file: there is no secret to lend",
            )
        if self.require_auth:
            raise SettingRefused(
                "--auth-anonymous",
                "not beside --require-auth: one lets in callers without a secret, the other "
                "refuses them",
            )

    def _check_broker(self) -> None:
        """See that a broker of ours that others reach is meant to be one: it asks nobody."""
        if self.insecure or not self.uses_embedded_broker:
            return
        for flag, address in (
            ("--broker-tcp-address", self.broker_tcp_address),
            ("--broker-http-address", self.broker_http_address),
        ):
            if not is_loopback(address):
                raise SettingRefused(
                    f"{flag} {address}",
                    "it is not loopback, and the embedded broker takes everything from everybody; "
                    "say --insecure if that is meant",
                )

    def _check_public(self) -> None:
        """See that a port that others reach is meant to be one."""
        listen = f"--listen {self.listen}"
        if self.uses_embedded_broker and not self.embedded_broker:
            raise SettingRefused(
                listen,
                "it is not loopback, so name an nsqd with --nsqd-tcp-address or "
                "--lookupd-http-address; or say --embedded-broker if messages that live in "
                "memory only are meant",
            )
        if self.insecure:
            return
        if self.require_auth and self.uses_embedded_broker:
            raise SettingRefused(
                listen,
                "it is not loopback, and --require-auth keeps nobody out here: the embedded "
                "broker takes any secret; name an nsqd that asks for AUTH, or say --insecure",
            )
        if not self.require_auth:
            raise SettingRefused(
                listen,
                "it is not loopback, so say --require-auth to take callers with a secret only, or "
                "--insecure to let everybody who reaches it publish and subscribe",
            )


class BrokerSettings(LimitSettings):
    """The settings of `nsq-gateway broker`; the names are nsqd's."""

    tcp_address: Address = setting("127.0.0.1:4150", "Where TCP clients are answered.", ADDRESS)
    http_address: Address = setting("127.0.0.1:4151", "Where HTTP is answered.", ADDRESS)
    broadcast_address: str | None = setting(
        None, "The host that /info and /stats tell; none is this host's name.", "a host name"
    )
    max_rdy_count: int = number(2_500, "The highest RDY of a client.", (1, 1_000_000), "messages")
    msg_timeout: DurationMs = duration(
        60_000, "Time to finish a message, when a client asks for none.", (1_000, 900_000)
    )
    max_msg_timeout: DurationMs = duration(
        900_000,
        "Longest msg_timeout a client may ask for, and the reach of TOUCH.",
        (1_000, 86_400_000),
    )
    max_heartbeat_interval: DurationMs = duration(
        60_000, "Longest heartbeat interval a client may ask for.", (1_000, 3_600_000)
    )
    max_output_buffer_size: int = number(
        65_536, "Largest output buffer a client may ask for.", (64, 64 * MIB), "bytes"
    )
    max_output_buffer_timeout: DurationMs = duration(
        30_000, "Longest output buffer timeout a client may ask for.", (25, 3_600_000)
    )
    mem_queue_size: int = number(
        10_000, "Messages that an ephemeral topic or channel keeps.", (1, 100_000_000), "messages"
    )
    max_channel_consumers: int = number(
        0, "Consumers of one channel; 0 is any number.", (0, 1_000_000)
    )
    max_memory_bytes: int = number(
        1024 * MIB,
        "Bodies kept in memory; above it publishes are refused.",
        (MIB, 1_048_576 * MIB),
        "bytes",
    )
    max_connections: int = number(10_000, "TCP clients at a time.", (1, 1_000_000))
