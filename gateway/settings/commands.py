"""Settings of the client commands: `pub`, `sub`, `health`, and those that operate NSQ."""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, Literal, TypeAlias
from urllib.parse import urlsplit

from pydantic import AfterValidator, model_validator

from gateway.errors import SettingRefused
from gateway.settings.fields import (
    ADDRESS,
    ADDRESSES,
    Address,
    HiddenText,
    LimitSettings,
    LookupdAddresses,
    RemoteAddresses,
    Settings,
    number,
    setting,
    switch,
)
from gateway.settings.nsqd import NsqdSettings

DEFAULT_URL = "http://127.0.0.1:8080"

_URL = re.compile(r"(?:http|ws)(s?)://([^/\s?#@]+)(/[^\s?#]*)?")


def _checked_url(value: str) -> str:
    """Return the URL *value* with http(s) in place of ws(s), and without a trailing slash."""
    found = _URL.fullmatch(value)
    try:
        # urlsplit raises for an invalid port and an open bracket.
        is_whole = found is not None and bool(urlsplit(value).hostname) and _has_port(value)
    except ValueError:
        is_whole = False
    if found is None or not is_whole:
        raise ValueError(
            "the URL of a gateway is http://host:port or ws://host:port, without a query"
        )
    return f"http{found[1]}://{found[2]}{found[3] or ''}".rstrip("/")


def _has_port(url: str) -> bool:
    """Return True if *url* has no port or a valid one, False for port 0; may raise ValueError."""
    # `urlsplit(url).port` raises it for a port above 65535, or one that is not a number.
    port = urlsplit(url).port
    return port is None or port > 0


Url: TypeAlias = Annotated[str, AfterValidator(_checked_url)]


_FOR_BOTH = {*Settings.model_fields, "auth_secret", "auth_secret_file"}
"""Those settings of `NsqdSettings` that also have an effect with --url."""


class CommandSettings(NsqdSettings):
    """Settings of `pub` and `sub`."""

    for_nsqd: ClassVar[frozenset[str]] = frozenset(NsqdSettings.model_fields.keys() - _FOR_BOTH)
    """Names of the settings that only have an effect if the command connects to nsqd itself."""

    url: Url | None = setting(
        None,
        "URL of a gateway, in place of the addresses of nsqd. If neither is given, "
        f"{DEFAULT_URL} is used.",
        "http://host:port, https://…, ws://…, wss://…",
    )
    log_level: Literal["debug", "info", "warning", "error"] = setting(
        "warning", "Lowest level that is logged.", "debug, info, warning, error"
    )

    @property
    def gateway_url(self) -> str | None:
        """URL of the gateway (http…) to use; None if the command connects to nsqd itself."""
        # --url wins over addresses of nsqd, which may come from a shared environment or file.
        if self.url is None and self.has_nsqd_address:
            return None
        return self.url or DEFAULT_URL


class PubSettings(CommandSettings, LimitSettings):
    """Settings of `nsq-gateway pub`."""

    for_nsqd = CommandSettings.for_nsqd | {"max_req_timeout"}

    publish_timeout_ms: int = number(5_000, "Time limit of a publish.", (1, 600_000), "ms")
    retry_for_s: float = number(
        30,
        "Time during which a failed publish is retried, counted from its first failure; 0: no "
        "retry.",
        (0, 86_400),
        "s",
    )
    at_least_once: bool = switch(
        "Also retry when the outcome is unknown (504, a lost connection); messages may be "
        "duplicated."
    )


class SubSettings(CommandSettings):
    """Settings of `nsq-gateway sub`, with go-nsq's names."""

    for_nsqd = CommandSettings.for_nsqd | {
        "output_buffer_size",
        "output_buffer_timeout_ms",
        "low_rdy_idle_timeout_s",
        "low_rdy_timeout_s",
        "rdy_redistribute_interval_s",
    }

    max_in_flight: int = number(
        200,
        "Maximum messages in flight. A gateway refuses more than its --max-in-flight-limit (2500).",
        (1, 65_536),
        "messages",
    )
    msg_timeout_ms: int = number(
        0,
        "Time to write a message before NSQ delivers it again; 0: nsqd's default.",
        (0, 900_000),
        "ms",
    )
    sample_rate: int = number(
        0,
        "Share of the messages to receive; 0: all. The others are lost for the whole channel, "
        "so a gateway accepts it only for a channel with #ephemeral.",
        (0, 99),
        "percent",
    )
    pull: bool = switch(
        "Pull messages from the gateway by plain HTTP requests (POST /pull), where WebSockets do "
        "not pass. It needs a gateway (--url)."
    )
    output_buffer_size: int = number(
        0,
        "Size of nsqd's output buffer; 0: nsqd's default, -1: send each message at once.",
        (-1, 65_536),
        "bytes",
    )
    output_buffer_timeout_ms: int = number(
        25, "Maximum time that nsqd buffers messages; 0: nsqd's default.", (0, 30_000), "ms"
    )
    low_rdy_idle_timeout_s: float = number(
        10,
        "With more nsqds than --max-in-flight: time without a message after which an nsqd "
        "passes on its RDY.",
        (1, 300),
        "s",
    )
    low_rdy_timeout_s: float = number(
        30,
        "With more nsqds than --max-in-flight: maximum time that an nsqd keeps its RDY.",
        (1, 300),
        "s",
    )
    rdy_redistribute_interval_s: float = number(
        5,
        "With more nsqds than --max-in-flight: time between redistributions of RDY.",
        (0.001, 5),
        "s",
    )


class OperateSettings(Settings):
    """Settings of the commands that show and change topics and channels."""

    url: Url | None = setting(
        None,
        "URL of a gateway, which asks the nsqds. If neither it nor an address of nsqd or "
        f"nsqlookupd is given, {DEFAULT_URL} is used.",
        "http://host:port, https://…",
    )
    nsqd_http_address: RemoteAddresses = setting(
        (), "HTTP address of an nsqd to ask, without a gateway.", ADDRESSES
    )
    lookupd_http_address: LookupdAddresses = setting(
        (),
        "HTTP address of an nsqlookupd, whose nsqds are asked without a gateway.",
        "host:port, http://…, https://…; repeat the flag, or separate with commas",
    )
    auth_secret: HiddenText | None = setting(
        None,
        "Token, API key or administrator's secret for the gateway; Bearer token for nsqlookupd. "
        "Other users of this machine can read a flag: prefer the file, or the environment "
        "variable.",
        "any text",
    )
    auth_secret_file: str | None = setting(
        None,
        "File with the secret. Read once at start, without its last newline.",
        "the path of a file",
    )
    timeout_s: float = number(10, "Time limit of each request.", (0.1, 600), "s")
    log_level: Literal["debug", "info", "warning", "error"] = setting(
        "warning", "Lowest level that is logged.", "debug, info, warning, error"
    )

    @property
    def gateway_url(self) -> str | None:
        """URL of the gateway (http…) to use; None if the command asks nsqds itself."""
        # As for `pub`: --url wins over addresses, which may come from a shared environment.
        if self.url is None and (self.nsqd_http_address or self.lookupd_http_address):
            return None
        return self.url or DEFAULT_URL

    @model_validator(mode="after")
    def _secret_has_one_source(self) -> OperateSettings:
        if self.auth_secret is not None and self.auth_secret_file is not None:
            raise SettingRefused(
                "--auth-secret",
                "it cannot be combined with --auth-secret-file: the secret must have one source",
            )
        return self


class HealthSettings(Settings):
    """Settings of `nsq-gateway health`."""

    management_listen: Address = setting(
        "127.0.0.1:8081",
        "Management address of the `serve` process to check; 0.0.0.0 means this machine.",
        ADDRESS,
    )
