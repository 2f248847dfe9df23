"""
What all settings share: the names, the kinds of values, and what holds for each of them.

The text on a field is the text of ``--help`` and of docs/configuration.md.
"""

from __future__ import annotations

import os
import re
from decimal import Decimal
from typing import Annotated, Any, Literal, TypeAlias

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
from gateway.secret import Secret

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


def flag_of(name: str) -> str:
    """Return the flag of the setting *name*."""
    return "--" + name.replace("_", "-")


def variable_of(name: str) -> str:
    """Return the environment variable of the setting *name*."""
    return ENVIRONMENT_PREFIX + name.upper()


# Kinds of values


def parse_duration_ms(value: object) -> object:
    """Return the milliseconds of a duration as Go spells it; anything else as it is."""
    if isinstance(value, str) and _GO_DURATION.fullmatch(value):
        parts = _GO_PART.findall(value)
        return int(sum(Decimal(number) * _GO_UNITS_MS[unit] for number, unit in parts))
    return value


def split_commas(value: object) -> object:
    """Return the parts of a text or of several, each split at its commas."""
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list | tuple):
        return value
    return tuple(part.strip() for text in texts for part in str(text).split(",") if part.strip())


def _checked_address(value: str) -> str:
    split_address(value)
    return value


def _checked_remote_address(value: str) -> str:
    if split_address(value)[1] == 0:
        raise ValueError("port 0 is for listening; nobody answers there")
    return value


def _checked_lookupd(value: str) -> str:
    # Whatever else is wrong with a URL is said by who asks there.
    return value if "://" in value else _checked_remote_address(value)


def _checked_origin(value: str) -> str:
    found = _ORIGIN.fullmatch(value)
    if value != "*" and (found is None or int(found["port"] or 0) > _MAX_PORT):
        raise ValueError(
            "an origin is written as browsers do, in ASCII and without a path; "
            "a * inside of one stands for nothing"
        )
    return value


def _as_secret(value: object) -> object:
    if not isinstance(value, str):
        return value
    if not value:
        raise ValueError("it is empty")
    # The bytes of the environment and of the command line, whatever their encoding.
    return Secret(os.fsencode(value))


Address: TypeAlias = Annotated[str, AfterValidator(_checked_address)]
RemoteAddress: TypeAlias = Annotated[str, AfterValidator(_checked_remote_address)]
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
DurationMs: TypeAlias = Annotated[int, BeforeValidator(parse_duration_ms)]
HiddenText: TypeAlias = Annotated[InstanceOf[Secret], NoDecode, BeforeValidator(_as_secret)]
"""A text that is a secret from its first moment here: no error and no repr shows it."""


# Fields


def setting(default: Any, doc: str, allowed: str) -> Any:  # noqa: ANN401 - as pydantic's Field
    """Return a field whose type alone says what is allowed; *allowed* tells a person."""
    return Field(default, description=doc, json_schema_extra={"allowed": allowed})


def number(
    default: float | None,
    doc: str,
    bounds: tuple[float, float],
    unit: str = "",
) -> Any:  # noqa: ANN401
    """Return a field for a number within *bounds*, both of which are allowed."""
    low, high = bounds
    allowed = f"{low:,} to {high:,}".replace(",", " ")
    extra: JsonDict = {"allowed": f"{allowed} {unit}".rstrip()}
    return Field(default, ge=low, le=high, description=doc, json_schema_extra=extra)


def duration(default_ms: int, doc: str, bounds_ms: tuple[int, int]) -> Any:  # noqa: ANN401
    """Return a field for a duration of NSQ's, which may be spelled as in Go."""
    return number(default_ms, doc, bounds_ms, "ms, or as in 1h30m, 5s, 250ms")


def switch(doc: str, *, default: bool = False) -> Any:  # noqa: ANN401
    """Return a field that is on or off; its flag has a twin that begins with ``--no-``."""
    return Field(default=default, description=doc, json_schema_extra={"allowed": "true, false"})


ADDRESS = "host:port, an IPv6 host in brackets; port 0 is any free one"
ADDRESSES = "host:port; repeat it, or separate with commas"


class Settings(BaseSettings):
    """The root of all settings: how they are read, and what every program has."""

    model_config = SettingsConfigDict(
        env_prefix=ENVIRONMENT_PREFIX,
        # An empty variable is what a template leaves behind: it is not set. It cannot turn a
        # production gateway into memory, for a --listen that is not loopback asks for an nsqd.
        env_ignore_empty=True,
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
    )

    log_format: Literal["auto", "json", "console"] = setting(
        "auto",
        "How log lines look; auto is console on a terminal, else json.",
        "auto, json, console",
    )
    log_level: Literal["debug", "info", "warning", "error"] = setting(
        "info", "The least that is logged.", "debug, info, warning, error"
    )

    @field_validator("*", mode="before")
    @classmethod
    def _is_no_number(cls, value: object, info: ValidationInfo) -> object:
        """Refuse true and false where a number is meant: pydantic would read 1 and 0."""
        field = cls.model_fields[info.field_name or ""]
        if isinstance(value, bool) and field.annotation is not bool:
            raise ValueError("true and false are for switches")
        return value


class LimitSettings(Settings):
    """What a broker accepts; the names are nsqd's."""

    max_msg_size: int = number(MIB, "Longest body of one message.", (1, 1024 * MIB), "bytes")
    max_body_size: int = number(
        5 * MIB, "Longest body of one command, such as an MPUB.", (16, 1024 * MIB), "bytes"
    )
    max_req_timeout: DurationMs = duration(
        3_600_000, "Longest delay of a deferred publish and of a requeue.", (0, 86_400_000)
    )
