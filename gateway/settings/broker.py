"""
Settings of `nsq-gateway broker`: those of nsqd 1.3.0, with nsqd's names, and a few more.

A command line and a TOML file of nsqd work unchanged. Where nsqd has an option for something that
does not exist here, the setting is accepted and has no effect (`IGNORED`). The limits are wider
than those of other commands, because nsqd has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, model_validator
from pydantic_settings import NoDecode

from gateway.addresses import split_address
from gateway.errors import SettingRefused
from gateway.settings.fields import (
    ADDRESS,
    ADDRESSES,
    MIB,
    DurationMs,
    Host,
    LimitSettings,
    RemoteAddresses,
    duration,
    flag_name,
    number,
    parse_go_bool,
    setting,
    split_commas,
    switch,
)
from gateway.tls import TlsVersion

_ON_DISK = "with --data-path, each OK is synced, and one file has all messages"
_STATSD = "statistics are in /stats, and not sent to statsd"
_SCAN = "each deadline has a timer, there is no queue scan"
IGNORED: Mapping[str, str] = MappingProxyType(
    {
        "log_prefix": "log lines have fields and no prefix",
        "max_bytes_per_file": _ON_DISK,
        "sync_every": _ON_DISK,
        "sync_timeout": _ON_DISK,
        "queue_scan_selection_count": _SCAN,
        "queue_scan_worker_pool_max": _SCAN,
        "statsd_address": _STATSD,
        "statsd_prefix": _STATSD,
        "statsd_interval": _STATSD,
        "statsd_mem_stats": _STATSD,
        "statsd_udp_packet_size": _STATSD,
        "statsd_exclude_ephemeral": _STATSD,
        "verbose": "use --log-level debug",
        "worker_id": "use --node-id",
    }
)
"""Settings that are accepted and have no effect, and the reason of each."""

_DAY_MS = 86_400_000
_YEAR_MS = 366 * _DAY_MS
_INT64_MAX = 2**63 - 1
_PEM = "the path of a PEM file"


def _host_port(value: str) -> str:
    # Go listens on all addresses then. IPv4 only: IPv6 may be switched off.
    address = f"0.0.0.0{value}" if value.startswith(":") else value  # noqa: S104 - asked for
    split_address(address)
    return address


def _optional_host_port(value: str) -> str:
    return _host_port(value) if value else value


def _listen_address(value: str) -> str:
    return value if "/" in value else _host_port(value)


def _optional_listen_address(value: str) -> str:
    return _listen_address(value) if value else value


def _auth_address(value: str) -> str:
    if "://" not in value and split_address(value)[1] == 0:
        raise ValueError("port 0 is only valid for listening")
    return value


def _as_tls_required(value: object) -> object:
    word = str(value)
    found = parse_go_bool(word)
    return word.lower() if found is None else str(found).lower()


def _as_tls_version(value: object) -> object:
    # nsqd's example of a file has an empty string, which is the default.
    return (value.lower() or "tls1.0") if isinstance(value, str) else value


def _as_log_level(value: object) -> object:
    level = value.lower() if isinstance(value, str) else value
    return "warning" if level == "warn" else level


def _data_path(value: Path) -> Path:
    if value == Path():
        raise ValueError("name the folder: messages are in memory without it")
    return value


ListenAddress: TypeAlias = Annotated[str, AfterValidator(_listen_address)]
OptionalHostPort: TypeAlias = Annotated[str, AfterValidator(_optional_host_port)]
OptionalListenAddress: TypeAlias = Annotated[str, AfterValidator(_optional_listen_address)]
AuthAddresses: TypeAlias = Annotated[
    tuple[Annotated[str, AfterValidator(_auth_address)], ...],
    NoDecode,
    BeforeValidator(split_commas),
]
DataPath: TypeAlias = Annotated[Path, AfterValidator(_data_path)]
Percentiles: TypeAlias = Annotated[tuple[float, ...], NoDecode, BeforeValidator(split_commas)]
TlsRequired: TypeAlias = Annotated[
    Literal["false", "true", "tcp-https"], BeforeValidator(_as_tls_required)
]
NsqdTlsVersion: TypeAlias = Annotated[TlsVersion, BeforeValidator(_as_tls_version)]
LogLevel: TypeAlias = Annotated[
    Literal["debug", "info", "warning", "error", "fatal"], BeforeValidator(_as_log_level)
]

_ADDRESS = f"{ADDRESS}; without a host: all IPv4 addresses"
_ADDRESS_OR_PATH = f"{_ADDRESS}; or the path of a Unix socket, with a /"


class IgnoredSettings(LimitSettings):
    """Settings of nsqd that are accepted and have no effect; see `IGNORED`."""

    log_prefix: str = setting("[nsqd] ", f"No effect: {IGNORED['log_prefix']}.", "text")
    max_bytes_per_file: int = number(
        104_857_600, f"No effect: {_ON_DISK}.", (0, _INT64_MAX), "bytes"
    )
    sync_every: int = number(2_500, f"No effect: {_ON_DISK}.", (0, _INT64_MAX), "messages")
    sync_timeout: DurationMs = duration(2_000, f"No effect: {_ON_DISK}.", (0, _YEAR_MS))
    queue_scan_selection_count: int = number(20, f"No effect: {_SCAN}.", (0, _INT64_MAX))
    queue_scan_worker_pool_max: int = number(4, f"No effect: {_SCAN}.", (0, _INT64_MAX))
    statsd_address: str = setting("", f"No effect: {_STATSD}.", "text")
    statsd_prefix: str = setting("nsq.%s", f"No effect: {_STATSD}.", "text")
    statsd_interval: DurationMs = duration(60_000, f"No effect: {_STATSD}.", (0, _YEAR_MS))
    statsd_mem_stats: bool = switch(f"No effect: {_STATSD}.", default=True)
    statsd_udp_packet_size: int = number(508, f"No effect: {_STATSD}.", (0, _INT64_MAX), "bytes")
    statsd_exclude_ephemeral: bool = switch(f"No effect: {_STATSD}.")
    verbose: bool = switch(f"No effect: {IGNORED['verbose']}.")
    worker_id: bool = switch(f"No effect: {IGNORED['worker_id']}.")


class BrokerSettings(IgnoredSettings):
    """Settings of `nsq-gateway broker`, with nsqd's names."""

    log_level: LogLevel = setting(  # type: ignore[assignment] # nsqd's words, too
        "info", "Lowest level that is logged.", "debug, info, warning or warn, error, fatal"
    )
    tcp_address: ListenAddress = setting(
        "127.0.0.1:4150", "Address for TCP clients.", _ADDRESS_OR_PATH
    )
    http_address: OptionalListenAddress = setting(
        "127.0.0.1:4151", "Address for HTTP.", f"{_ADDRESS_OR_PATH}; empty: no HTTP"
    )
    https_address: OptionalHostPort = setting(
        "127.0.0.1:4152",
        "Address for HTTPS; used with --tls-cert.",
        f"{_ADDRESS}; empty: no HTTPS",
    )
    data_path: DataPath | None = setting(
        None,
        "Folder where messages are kept: OK then means on disk. None: in memory, until the end.",
        "a folder that can be written; it is created",
    )
    broadcast_address: Host | None = setting(
        None,
        "Host in /info, and the one that nsqlookupd tells consumers; none: this host's name.",
        "a host name or an IP address",
    )
    broadcast_tcp_port: int = number(
        0, "TCP port that nsqlookupd tells consumers; 0: that of --tcp-address.", (0, 65_535)
    )
    broadcast_http_port: int = number(
        0, "HTTP port that nsqlookupd tells consumers; 0: that of --http-address.", (0, 65_535)
    )
    lookupd_tcp_address: RemoteAddresses = setting(
        (), "TCP address of an nsqlookupd to register with.", ADDRESSES
    )
    http_client_connect_timeout: DurationMs = duration(
        2_000, "Time to connect to nsqlookupd or an auth server.", (1, _DAY_MS)
    )
    http_client_request_timeout: DurationMs = duration(
        5_000, "Time for an answer of nsqlookupd or an auth server.", (1, _DAY_MS)
    )
    max_req_timeout: DurationMs = duration(
        3_600_000, "Maximum delay of a deferred publish and of a requeue.", (0, _YEAR_MS)
    )
    max_rdy_count: int = number(2_500, "Maximum RDY of a client.", (1, _INT64_MAX), "messages")
    msg_timeout: DurationMs = duration(
        60_000,
        "Time to finish a message, then nsqd redelivers it; a consumer may set its own.",
        (1, _YEAR_MS),
    )
    max_msg_timeout: DurationMs = duration(
        900_000,
        "Maximum msg_timeout of a client, and the latest time to which TOUCH extends.",
        (1, _YEAR_MS),
    )
    max_heartbeat_interval: DurationMs = duration(
        60_000, "Maximum heartbeat interval of a client.", (1, _DAY_MS)
    )
    max_output_buffer_size: int = number(
        65_536, "Maximum output buffer of a client.", (64, 64 * MIB), "bytes"
    )
    max_output_buffer_timeout: DurationMs = duration(
        30_000, "Maximum output buffer timeout of a client.", (1, _DAY_MS)
    )
    min_output_buffer_timeout: DurationMs = duration(
        25, "Minimum output buffer timeout of a client.", (1, _DAY_MS)
    )
    output_buffer_timeout: DurationMs = duration(
        250, "Output buffer timeout of a client that sets none.", (1, _DAY_MS)
    )
    mem_queue_size: int = number(
        10_000,
        "Maximum messages in an ephemeral topic or channel. With --data-path, messages of any "
        "channel beyond it are on disk only.",
        (0, _INT64_MAX),
        "messages",
    )
    max_channel_consumers: int = number(
        0, "Maximum consumers of one channel; 0: no limit.", (0, 1_000_000)
    )
    node_id: int | None = number(
        None, "Part of every message id; none: derived from the host's name.", (0, 1_023)
    )
    e2e_processing_latency_percentile: Percentiles = setting(
        (),
        "Percentile of the time from publish to FIN that /stats has.",
        "above 0, at most 1, such as 0.99; repeat the flag, or separate with commas",
    )
    e2e_processing_latency_window_time: DurationMs = duration(
        600_000, "Time over which percentiles are taken.", (2, _YEAR_MS)
    )
    tls_cert: str = setting(
        "",
        "Certificate for TLS and HTTPS, followed by its chain; empty: no TLS. The file is reloaded "
        "within seconds after a change.",
        _PEM,
    )
    tls_key: str = setting("", "Private key of --tls-cert, without a passphrase.", _PEM)
    tls_client_auth_policy: Literal["", "require", "require-verify"] = setting(
        "",
        "Whether clients must have a certificate. It implies --tls-required.",
        "require, require-verify; empty: none is asked for",
    )
    tls_root_ca_file: str = setting(
        "", "Authorities of client certificates, and of auth servers with https.", _PEM
    )
    tls_required: TlsRequired = setting(
        "false",
        "Whether clients must use TLS; tcp-https leaves HTTP without TLS open.",
        "true, false, tcp-https; the flag alone means true",
        bare="true",
    )
    tls_min_version: NsqdTlsVersion = setting(
        "tls1.0",
        "Lowest TLS version. The first two work only if OpenSSL still supports them.",
        "tls1.0, tls1.1, tls1.2, tls1.3",
    )
    snappy: bool = switch("Allow clients to use snappy.", default=True)
    deflate: bool = switch("Allow clients to use deflate.", default=True)
    max_deflate_level: int = number(6, "Maximum deflate level of a client.", (1, 9))
    auth_http_address: AuthAddresses = setting(
        (),
        "Auth server; with any, clients must send AUTH.",
        "host:port or a URL; repeat the flag, or separate with commas",
    )
    auth_http_request_method: Literal["get", "post"] = setting(
        "get", "How auth servers are asked.", "get, post"
    )
    max_memory_bytes: int = number(
        1024 * MIB,
        "Maximum bytes of messages in memory, with their overhead; a copy in each channel counts. "
        "Beyond this, publishes are refused.",
        (MIB, 1_048_576 * MIB),
        "bytes",
    )
    max_connections: int = number(10_000, "Maximum TCP clients.", (1, 1_000_000))

    @model_validator(mode="after")
    def _broker_settings_are_consistent(self) -> BrokerSettings:
        for percentile in self.e2e_processing_latency_percentile:
            if not 0 < percentile <= 1:
                raise SettingRefused(
                    flag_name("e2e_processing_latency_percentile"),
                    f"{percentile:g} is not above 0 and at most 1, such as 0.99",
                )
        if bool(self.tls_cert) != bool(self.tls_key):
            raise SettingRefused(
                "--tls-cert", "it needs --tls-key, the file of its private key, and the reverse"
            )
        if not self.tls_cert and (self.tls_required != "false" or self.tls_client_auth_policy):
            name = "tls_client_auth_policy" if self.tls_client_auth_policy else "tls_required"
            raise SettingRefused(
                flag_name(name), "clients can use TLS only with --tls-cert and --tls-key"
            )
        return self
