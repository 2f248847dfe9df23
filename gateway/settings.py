"""
Every setting of the two servers: name, type, range, unit, default, what it is for.

One name in three forms: ``--publish-timeout-ms``, ``NSQ_GATEWAY_PUBLISH_TIMEOUT_MS``,
``publish_timeout_ms`` in the TOML file of ``--config``. Flag beats environment beats file beats
default. The text on a field is the text of ``--help`` and of docs/configuration.md. NSQ's own
options keep NSQ's names; their durations are spelled as in Go (``1h30m``, ``250ms``) or as a
number of milliseconds, and are kept in milliseconds.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from pydantic.config import JsonDict
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from gateway.addresses import is_loopback, split_address
from gateway.errors import SettingsError

ENVIRONMENT_PREFIX = "NSQ_GATEWAY_"

_MIB = 1_048_576
_GO_UNITS_MS = {
    "ns": Decimal("0.000001"),
    "us": Decimal("0.001"),
    "µs": Decimal("0.001"),
    "ms": Decimal(1),
    "s": Decimal(1_000),
    "m": Decimal(60_000),
    "h": Decimal(3_600_000),
}
_GO_DURATION = re.compile(r"(?:[0-9]+(?:\.[0-9]+)?(?:ns|us|µs|ms|s|m|h))+")
_GO_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ns|us|µs|ms|s|m|h)")


def parse_duration_ms(value: object) -> object:
    """Return the milliseconds of a duration as Go spells it; anything else as it is."""
    if isinstance(value, str) and _GO_DURATION.fullmatch(value):
        parts = _GO_PART.findall(value)
        return int(sum(Decimal(number) * _GO_UNITS_MS[unit] for number, unit in parts))
    return value


def _split_commas(value: object) -> object:
    """Return the parts of a text or of several, each split at its commas."""
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list | tuple):
        return value
    return tuple(part.strip() for text in texts for part in str(text).split(",") if part.strip())


def _checked_address(value: str) -> str:
    split_address(value)
    return value


def _checked_origin(value: str) -> str:
    if not re.fullmatch(r"https?://[^/\s]+", value):
        raise ValueError("an origin is scheme://host or scheme://host:port, without a path")
    return value


Address: TypeAlias = Annotated[str, AfterValidator(_checked_address)]
Addresses: TypeAlias = Annotated[tuple[Address, ...], NoDecode, BeforeValidator(_split_commas)]
Origins: TypeAlias = Annotated[
    tuple[Annotated[str, AfterValidator(_checked_origin)], ...],
    NoDecode,
    BeforeValidator(_split_commas),
]
DurationMs: TypeAlias = Annotated[int, BeforeValidator(parse_duration_ms)]


def _field(default: Any, doc: str, allowed: str) -> Any:  # noqa: ANN401 - as pydantic's Field
    return Field(default, description=doc, json_schema_extra={"allowed": allowed})


def _number(default: float, doc: str, bounds: tuple[float, float], unit: str = "") -> Any:  # noqa: ANN401
    low, high = bounds
    allowed = f"{low:,} to {high:,} {unit}".replace(",", " ").rstrip()
    extra: JsonDict = {"allowed": allowed}
    return Field(default, ge=low, le=high, description=doc, json_schema_extra=extra)


def _switch(doc: str) -> Any:  # noqa: ANN401
    return Field(default=False, description=doc, json_schema_extra={"allowed": "true, false"})


_ADDRESS = "host:port, an IPv6 host in brackets; port 0 is any free one"
_ADDRESSES = "host:port; repeat it, or separate with commas"


class _Settings(BaseSettings):
    model_config = SettingsConfigDict(
        env_prefix=ENVIRONMENT_PREFIX,
        # An empty variable is what a template leaves behind: it is not set. It cannot turn a
        # production gateway into memory, for a --listen that is not loopback asks for an nsqd.
        env_ignore_empty=True,
        extra="forbid",
        frozen=True,
    )

    max_msg_size: int = _number(_MIB, "Longest body of one message.", (1, 1024 * _MIB), "bytes")
    max_body_size: int = _number(
        5 * _MIB, "Longest body of one command, such as an MPUB.", (16, 1024 * _MIB), "bytes"
    )
    max_req_timeout: DurationMs = _number(
        3_600_000, "Longest delay of a deferred publish and of a requeue.", (0, 86_400_000), "ms"
    )
    log_format: Literal["auto", "json", "console"] = _field(
        "auto",
        "How log lines look; auto is console on a terminal, else json.",
        "auto, json, console",
    )
    log_level: Literal["debug", "info", "warning", "error"] = _field(
        "info", "The least that is logged.", "debug, info, warning, error"
    )


class ServeSettings(_Settings):
    """The settings of `nsq-gateway serve`."""

    listen: Address = _field("127.0.0.1:8080", "Where HTTP and WebSockets are answered.", _ADDRESS)
    management_listen: Address = _field(
        "127.0.0.1:8081", "Where /livez, /readyz and /metrics are answered.", _ADDRESS
    )
    nsqd_tcp_address: Addresses = _field(
        (), "An nsqd to publish to and to subscribe on, by its TCP port.", _ADDRESSES
    )
    nsqd_http_address: Addresses = _field(
        (), "The HTTP port of an nsqd, which tells its size limits.", _ADDRESSES
    )
    embedded_broker: bool = _switch("Start the embedded broker although --listen is not loopback.")
    broker_tcp_address: Address = _field(
        "127.0.0.1:4150", "The TCP port of the embedded broker.", _ADDRESS
    )
    broker_http_address: Address = _field(
        "127.0.0.1:4151", "The HTTP port of the embedded broker.", _ADDRESS
    )
    insecure: bool = _switch(
        "Let everybody who reaches a --listen that is not loopback publish and subscribe."
    )
    allow_origin: Origins = _field(
        (),
        "A page, beside our own, that may publish and subscribe.",
        "scheme://host:port; repeat it, or separate with commas",
    )
    nsqd_connections: int = _number(4, "TCP connections to each nsqd for publishing.", (1, 64))
    heartbeat_interval_ms: int = _number(
        30_000, "Heartbeats asked of nsqd; silence of two means it is dead.", (1_000, 60_000), "ms"
    )
    publish_timeout_ms: int = _number(
        5_000, "Time from a publish to its answer; then 504.", (1, 600_000), "ms"
    )
    publish_buffer_bytes: int = _number(
        64 * _MIB,
        "What may wait to be published; more is answered 503.",
        (1_024, 65_536 * _MIB),
        "bytes",
    )
    max_sockets: int = _number(
        1_000,
        "WebSockets at a time; each takes a file descriptor, and one for every nsqd.",
        (1, 1_000_000),
    )
    max_in_flight_limit: int = _number(
        2_500,
        "The highest max_in_flight and RDY that a client may ask for.",
        (1, 2_500),
        "messages",
    )
    max_frame_bytes: int = _number(
        2 * _MIB, "Longest frame from a WebSocket client.", (1_024, 1024 * _MIB), "bytes"
    )
    socket_buffer_bytes: int = _number(
        8 * _MIB,
        "What may wait for one WebSocket client before nsqd is read no more.",
        (1_024, 1024 * _MIB),
        "bytes",
    )
    slow_consumer_s: float = _number(
        30,
        "How long more than that may wait before the socket is closed (4001).",
        (0.1, 3_600),
        "s",
    )
    broker_outage_s: float = _number(
        300, "How long a socket is kept without any nsqd (1014).", (0.1, 86_400), "s"
    )
    ping_interval_s: float = _number(
        20, "Time between pings to a WebSocket client.", (0.1, 3_600), "s"
    )
    ping_timeout_s: float = _number(
        20, "Time for the pong before the socket is closed (4000).", (0.1, 3_600), "s"
    )
    drain_window_s: float = _number(
        5, "Time over which a stop spreads the closing of the sockets (1012).", (0, 3_600), "s"
    )

    @property
    def uses_embedded_broker(self) -> bool:
        """Whether no nsqd is named."""
        return not self.nsqd_tcp_address

    @model_validator(mode="after")
    def _fits_together(self) -> ServeSettings:
        if self.nsqd_http_address and not self.nsqd_tcp_address:
            raise SettingsError(
                "--nsqd-tcp-address",
                "none",
                allowed="needed beside --nsqd-http-address: messages go over nsqd's TCP port",
            )
        if is_loopback(self.listen):
            return self
        if self.uses_embedded_broker and not self.embedded_broker:
            raise SettingsError(
                "--nsqd-tcp-address",
                "none",
                allowed=(
                    f"--listen {self.listen} is not loopback, so name an nsqd; or say "
                    "--embedded-broker if messages that live in memory only are meant"
                ),
            )
        if not self.insecure:
            raise SettingsError(
                "--listen",
                self.listen,
                allowed=(
                    "a loopback address, or --insecure to let everybody who reaches it "
                    "publish and subscribe"
                ),
            )
        return self


class BrokerSettings(_Settings):
    """The settings of `nsq-gateway broker`; the names are nsqd's."""

    tcp_address: Address = _field("127.0.0.1:4150", "Where TCP clients are answered.", _ADDRESS)
    http_address: Address = _field("127.0.0.1:4151", "Where HTTP is answered.", _ADDRESS)
    broadcast_address: str | None = _field(
        None, "The host that /info and /stats tell; none is this host's name.", "a host name"
    )
    max_rdy_count: int = _number(2_500, "The highest RDY of a client.", (1, 1_000_000), "messages")
    msg_timeout: DurationMs = _number(
        60_000, "Time to finish a message, when a client asks for none.", (1_000, 900_000), "ms"
    )
    max_msg_timeout: DurationMs = _number(
        900_000,
        "Longest msg_timeout a client may ask for, and the reach of TOUCH.",
        (1_000, 86_400_000),
        "ms",
    )
    max_heartbeat_interval: DurationMs = _number(
        60_000, "Longest heartbeat interval a client may ask for.", (1_000, 3_600_000), "ms"
    )
    max_output_buffer_size: int = _number(
        65_536, "Largest output buffer a client may ask for.", (64, 64 * _MIB), "bytes"
    )
    max_output_buffer_timeout: DurationMs = _number(
        30_000, "Longest output buffer timeout a client may ask for.", (25, 3_600_000), "ms"
    )
    mem_queue_size: int = _number(
        10_000, "Messages that an ephemeral topic or channel keeps.", (1, 100_000_000), "messages"
    )
    max_channel_consumers: int = _number(
        0, "Consumers of one channel; 0 is any number.", (0, 1_000_000)
    )
    max_memory_bytes: int = _number(
        1024 * _MIB,
        "Bodies kept in memory; above it publishes are refused.",
        (_MIB, 1_048_576 * _MIB),
        "bytes",
    )
    max_connections: int = _number(10_000, "TCP clients at a time.", (1, 1_000_000))
