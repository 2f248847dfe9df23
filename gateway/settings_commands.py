"""The settings of the commands that talk to a gateway or to nsqd: `pub`, `sub` and `health`."""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, Literal, TypeAlias
from urllib.parse import urlsplit

from pydantic import AfterValidator

from gateway.settings_common import (
    ADDRESS,
    Address,
    LimitSettings,
    Settings,
    number,
    setting,
    switch,
)
from gateway.settings_nsqd import NsqdSettings

DEFAULT_URL = "http://127.0.0.1:8080"

_URL = re.compile(r"(?:http|ws)(s?)://([^/\s?#@]+)(/[^\s?#]*)?")


def _checked_url(value: str) -> str:
    """Return *value* with http for ws, which means the same, and without a last slash."""
    found = _URL.fullmatch(value)
    try:
        # A port that is none, and an open bracket, are found here.
        is_whole = found is not None and bool(urlsplit(value).hostname) and _has_port(value)
    except ValueError:
        is_whole = False
    if found is None or not is_whole:
        raise ValueError("a URL is http://host:port or ws://host:port, without a query")
    return f"http{found[1]}://{found[2]}{found[3] or ''}".rstrip("/")


def _has_port(url: str) -> bool:
    """Tell whether *url* has a port that is one, or none; raises ValueError for a wrong one."""
    port = urlsplit(url).port
    return port is None or port > 0


Url: TypeAlias = Annotated[str, AfterValidator(_checked_url)]


_FOR_BOTH = {*Settings.model_fields, "auth_secret", "auth_secret_file"}
"""What counts at a gateway, too, of what says how nsqd is reached."""


class CommandSettings(NsqdSettings):
    """What both commands have."""

    for_nsqd: ClassVar[frozenset[str]] = frozenset(NsqdSettings.model_fields.keys() - _FOR_BOTH)
    """The names of those that count only where no gateway is between the command and nsqd."""

    url: Url | None = setting(
        None,
        f"A gateway, in place of the addresses of nsqd; without either it is {DEFAULT_URL}.",
        "http://host:port, https://…, ws://…, wss://…",
    )
    log_level: Literal["debug", "info", "warning", "error"] = setting(
        "warning", "The least that is logged.", "debug, info, warning, error"
    )

    @property
    def gateway_url(self) -> str | None:
        """The gateway to talk to (http…); None: it is nsqd."""
        if self.url is None and self.names_an_nsqd:
            return None
        return self.url or DEFAULT_URL


class PubSettings(CommandSettings, LimitSettings):
    """The settings of `nsq-gateway pub`."""

    for_nsqd = CommandSettings.for_nsqd | {"max_req_timeout"}

    publish_timeout_ms: int = number(
        5_000, "Time from a publish to its answer.", (1, 600_000), "ms"
    )
    retry_for_s: float = number(
        30,
        "How long what is known not to be published is tried again, from its first failure; "
        "0 is never.",
        (0, 86_400),
        "s",
    )
    at_least_once: bool = switch(
        "Try again what may be published (504, a lost connection), too: some may come twice."
    )


class SubSettings(CommandSettings):
    """The settings of `nsq-gateway sub`; the names are go-nsq's."""

    for_nsqd = CommandSettings.for_nsqd | {
        "output_buffer_size",
        "output_buffer_timeout_ms",
        "low_rdy_idle_timeout_s",
        "low_rdy_timeout_s",
        "rdy_redistribute_interval_s",
    }

    max_in_flight: int = number(
        200,
        "Messages that may be on their way here at a time; a gateway refuses more than its "
        "--max-in-flight-limit (2500).",
        (1, 65_536),
        "messages",
    )
    msg_timeout_ms: int = number(
        0,
        "Time to write a message before NSQ gives it to somebody again; 0 is nsqd's own.",
        (0, 900_000),
        "ms",
    )
    sample_rate: int = number(
        0,
        "Share of the messages to get, 0 is all; the others are gone for the whole channel, so a "
        "gateway takes it for a channel with #ephemeral only.",
        (0, 99),
        "percent",
    )
    output_buffer_size: int = number(
        0,
        "What nsqd gathers before it sends; 0 is nsqd's own, -1 sends each message at once.",
        (-1, 65_536),
        "bytes",
    )
    output_buffer_timeout_ms: int = number(
        25, "How long nsqd gathers; 0 is nsqd's own.", (0, 30_000), "ms"
    )
    low_rdy_idle_timeout_s: float = number(
        10,
        "With more nsqds than --max-in-flight: an idle one gives up its turn after so long.",
        (1, 300),
        "s",
    )
    low_rdy_timeout_s: float = number(
        30, "With more nsqds than --max-in-flight: how long a turn lasts.", (1, 300), "s"
    )
    rdy_redistribute_interval_s: float = number(
        5,
        "With more nsqds than --max-in-flight: time between two looks at whose turn it is.",
        (0.001, 5),
        "s",
    )


class HealthSettings(Settings):
    """The settings of `nsq-gateway health`."""

    management_listen: Address = setting(
        "127.0.0.1:8081",
        "The management port to ask, as `serve` was told it; 0.0.0.0 means this machine.",
        ADDRESS,
    )
