"""
Types of settings (durations, addresses, booleans) and fields with their help texts.

The description of a field appears in ``--help`` and in docs/configuration.md.
"""

from __future__ import annotations

import ipaddress
import os
import re
from decimal import Decimal
from typing import Annotated, Any, Literal, TypeAlias, get_args

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    InstanceOf,
    ValidationInfo,
    field_validator,
)
from pydantic.config import JsonDict
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from gateway.addresses import split_address
from gateway.credentials import Secret

ENVIRONMENT_PREFIX = "NSQ_GATEWAY_"

MIB = 1_048_576
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
_ORIGIN = re.compile(
    r"[a-z][a-z0-9+.-]*://(?:[a-z0-9._-]+|\[[0-9a-f:.]+\])(?::(?P<port>[0-9]{1,5}))?", re.IGNORECASE
)
_MAX_PORT = 65_535


def flag_name(name: str) -> str:
    """Return the flag of the setting *name*."""
    return "--" + name.replace("_", "-")


def environment_name(name: str) -> str:
    """Return the environment variable of the setting *name*."""
    return ENVIRONMENT_PREFIX + name.upper()


# Kinds of values


def parse_duration_ms(value: object) -> object:
    """Return the milliseconds of a Go duration such as ``1m30s``; return other values unchanged."""
    # Decimal is exact: a sum of floats may be a little less than a whole number of milliseconds.
    if isinstance(value, str) and _GO_DURATION.fullmatch(value):
        parts = _GO_PART.findall(value)
        return int(sum(Decimal(number) * _GO_UNITS_MS[unit] for number, unit in parts))
    return value


_GO_BOOLEANS = {
    **dict.fromkeys(("1", "t", "T", "true", "True", "TRUE"), True),
    **dict.fromkeys(("0", "f", "F", "false", "False", "FALSE"), False),
}


def parse_go_bool(text: str) -> bool | None:
    """Return the boolean that Go reads in *text*; None if it is none."""
    return _GO_BOOLEANS.get(text)


def split_commas(value: object) -> object:
    """Split a string, or each string of a list, at commas; return other values unchanged."""
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list | tuple):
        return value
    return tuple(part.strip() for text in texts for part in str(text).split(",") if part.strip())


def _checked_address(value: str) -> str:
    split_address(value)
    return value


def _checked_remote_address(value: str) -> str:
    if split_address(value)[1] == 0:
        raise ValueError("port 0 is only valid for listening")
    return value


def _checked_lookupd(value: str) -> str:
    # `client.lookupd` checks URLs.
    return value if "://" in value else _checked_remote_address(value)


def _checked_origin(value: str) -> str:
    found = _ORIGIN.fullmatch(value)
    if value != "*" and (found is None or int(found["port"] or 0) > _MAX_PORT):
        raise ValueError(
            "an origin is scheme://host or scheme://host:port in ASCII, without a path; "
            "wildcards are not supported, except * alone"
        )
    return value


def _as_secret(value: object) -> object:
    if not isinstance(value, str):
        return value
    if not value:
        raise ValueError("the secret is empty")
    # Keep the original bytes of the environment and the command line, whatever their encoding.
    return Secret(os.fsencode(value))


def _checked_host_name(name: str) -> str:
    if re.fullmatch(r"[A-Za-z0-9._-]+", name) is None:
        raise ValueError("a host name consists of letters, digits, dots, - and _, without a port")
    return name


def _checked_host(value: str) -> str:
    """Check that *value* is a host without a port, or empty; IPv6 has no brackets, as in /info."""
    if not value:
        return value
    try:
        ipaddress.ip_address(value)
    except ValueError:
        return _checked_host_name(value)
    return value


Address: TypeAlias = Annotated[str, AfterValidator(_checked_address)]
RemoteAddress: TypeAlias = Annotated[str, AfterValidator(_checked_remote_address)]
# Without NoDecode, pydantic-settings would expect JSON for a list in the environment.
RemoteAddresses: TypeAlias = Annotated[
    tuple[RemoteAddress, ...], NoDecode, BeforeValidator(split_commas)
]
LookupdAddresses: TypeAlias = Annotated[
    tuple[Annotated[str, AfterValidator(_checked_lookupd)], ...],
    NoDecode,
    BeforeValidator(split_commas),
]
Origins: TypeAlias = Annotated[
    tuple[Annotated[str, AfterValidator(_checked_origin)], ...],
    NoDecode,
    BeforeValidator(split_commas),
]
HostNames: TypeAlias = Annotated[
    tuple[Annotated[str, AfterValidator(_checked_host_name)], ...],
    NoDecode,
    BeforeValidator(split_commas),
]
Host: TypeAlias = Annotated[str, AfterValidator(_checked_host)]
DurationMs: TypeAlias = Annotated[int, BeforeValidator(parse_duration_ms)]
HiddenText: TypeAlias = Annotated[InstanceOf[Secret], NoDecode, BeforeValidator(_as_secret)]
"""A secret; no error and no repr shows its value."""


# Fields


def setting(
    default: Any,  # noqa: ANN401 - as pydantic's Field
    doc: str,
    allowed: str,
    *,
    bare: str | None = None,
) -> Any:  # noqa: ANN401
    """
    Return a field with help *doc*, validated by its type; *allowed* describes valid values.

    With *bare*, the flag may stand without a value, which is *bare* then. Such a flag takes its
    value only after ``=``.
    """
    extra: JsonDict = {"allowed": allowed} if bare is None else {"allowed": allowed, "bare": bare}
    return Field(default, description=doc, json_schema_extra=extra)


def number(
    default: float | None,
    doc: str,
    bounds: tuple[float, float],
    unit: str = "",
) -> Any:  # noqa: ANN401
    """Return a field with help *doc* for a number in *unit* within *bounds*, both included."""
    low, high = bounds
    allowed = f"{low:,} to {high:,}".replace(",", " ")
    extra: JsonDict = {"allowed": f"{allowed} {unit}".rstrip()}
    return Field(default, ge=low, le=high, description=doc, json_schema_extra=extra)


def duration(default_ms: int, doc: str, bounds_ms: tuple[int, int]) -> Any:  # noqa: ANN401
    """Return a field for a duration as in nsqd: a Go duration, or a number of milliseconds."""
    return number(default_ms, doc, bounds_ms, "ms, or a Go duration such as 1h30m, 5s, 250ms")


def switch(doc: str, *, default: bool = False) -> Any:  # noqa: ANN401
    """Return a field for a boolean; the command line has ``--name`` and ``--no-name`` for it."""
    return Field(default=default, description=doc, json_schema_extra={"allowed": "true, false"})


ADDRESS = "host:port, IPv6 hosts in brackets; port 0 is any free port"
ADDRESSES = "host:port; repeat the flag, or separate with commas"


class Settings(BaseSettings):
    """Settings of every command, and the base class of all settings."""

    model_config = SettingsConfigDict(
        env_prefix=ENVIRONMENT_PREFIX,
        # Templates leave empty variables behind. They cannot turn a production gateway into one
        # with an embedded broker: a --listen that is not loopback requires an nsqd.
        env_ignore_empty=True,
        extra="forbid",
        frozen=True,
        # The input may be a secret.
        hide_input_in_errors=True,
    )

    log_format: Literal["auto", "json", "console"] = setting(
        "auto",
        "Format of log lines; auto is console on a terminal, otherwise json.",
        "auto, json, console",
    )
    log_level: Literal["debug", "info", "warning", "error"] = setting(
        "info", "Lowest level that is logged.", "debug, info, warning, error"
    )

    @field_validator("*", mode="before")
    @classmethod
    def _is_no_number(cls, value: object, info: ValidationInfo) -> object:
        """Reject a boolean for a setting of another type: pydantic would convert it to 1 or 0."""
        field = cls.model_fields[info.field_name or ""]
        if not isinstance(value, bool) or field.annotation is bool:
            return value
        # In a TOML file, a setting with the words true and false may have a boolean.
        if (word := str(value).lower()) in get_args(field.annotation):
            return word
        raise ValueError("a boolean is not a number")


class LimitSettings(Settings):
    """Limits of a broker, with nsqd's names."""

    max_msg_size: int = number(MIB, "Maximum body of one message.", (1, 1024 * MIB), "bytes")
    max_body_size: int = number(
        5 * MIB, "Maximum body of one command, such as MPUB.", (16, 1024 * MIB), "bytes"
    )
    max_req_timeout: DurationMs = duration(
        3_600_000, "Maximum delay of a deferred publish and of a requeue.", (0, 86_400_000)
    )
