"""
Where the value of a setting comes from: flag beats environment beats file beats default.

A name that no setting has is an error wherever it stands, so that a slip of the pen does not turn
into a default.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import ValidationError
from pydantic_settings import BaseSettings, EnvSettingsSource, TomlConfigSettingsSource

from gateway.errors import SettingsError
from gateway.settings import ENVIRONMENT_PREFIX, BrokerSettings, ServeSettings

CONFIG_VARIABLE = ENVIRONMENT_PREFIX + "CONFIG"
_TEST_PREFIX = ENVIRONMENT_PREFIX + "TEST_"

SettingsT = TypeVar("SettingsT", bound=BaseSettings)

LATER = {
    "lookupd_http_address": "discovery by nsqlookupd",
    "require_auth": "AUTH",
    "auth_secret": "AUTH",
    "auth_anonymous": "AUTH",
    "data_path": "a broker that keeps messages on disk",
    "lookupd_tcp_address": "registering with nsqlookupd",
    "auth_http_address": "AUTH",
    "tls_cert": "TLS",
    "tls_key": "TLS",
    "tls_required": "TLS",
    "https_address": "TLS",
}
"""Settings of later versions: to ignore one in silence would be worse than to refuse it."""


@dataclass(frozen=True)
class Loaded(Generic[SettingsT]):
    """Settings, and where each value comes from."""

    settings: SettingsT
    origins: Mapping[str, str]
    """For each name: ``flag``, ``environment``, ``file`` or ``default``."""


def load(
    kind: type[SettingsT], flags: Mapping[str, Any], config: Path | None = None
) -> Loaded[SettingsT]:
    """
    Read the settings of *kind*; *flags* are those that were given.

    Raises:
        SettingsError: A name is unknown, or a value wrong or out of range.
    """
    names = set(kind.model_fields)
    layers = {
        "file": _pick(_from_file(kind, config), names),
        "environment": _pick(_from_environment(kind), names),
        "flag": dict(flags),
    }
    values: dict[str, Any] = {}
    origins = dict.fromkeys(kind.model_fields, "default")
    for origin, layer in layers.items():
        values |= layer
        origins |= dict.fromkeys(layer, origin)
    try:
        settings = kind.model_validate(values)
    except ValidationError as error:
        raise _explained(kind, error, origins) from error
    return Loaded(settings, origins)


def _pick(layer: Mapping[str, Any], names: set[str]) -> dict[str, Any]:
    return {name: value for name, value in layer.items() if name in names}


def _from_file(kind: type[BaseSettings], config: Path | None) -> dict[str, Any]:
    if config is None:
        return {}
    if not config.is_file():
        raise SettingsError("config", str(config), allowed="the path of a TOML file")
    try:
        given = dict(TomlConfigSettingsSource(kind, config).toml_data)
    except ValueError as error:
        raise SettingsError("config", str(config), allowed=f"TOML; {error}") from error
    for name in given:
        _require_known(name, name, where=f"in {config}")
    return given


def _from_environment(kind: type[BaseSettings]) -> dict[str, Any]:
    for variable in os.environ:
        name = variable.removeprefix(ENVIRONMENT_PREFIX)
        if variable.startswith(ENVIRONMENT_PREFIX) and not variable.startswith(_TEST_PREFIX):
            _require_known(name.lower(), variable, where="in the environment")
    return dict(EnvSettingsSource(kind)())


def _require_known(name: str, shown: str, *, where: str) -> None:
    known = {*ServeSettings.model_fields, *BrokerSettings.model_fields, "config"}
    if name in known:
        return
    if name in LATER:
        raise SettingsError(shown, where, allowed=f"not yet: {LATER[name]} is for a later version")
    raise SettingsError(shown, where, allowed=f"no such setting{nearest(name, known)}")


def nearest(name: str, known: Iterable[str]) -> str:
    """Return ``; did you mean …?`` with the known name most like *name*, or nothing."""
    matches = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {matches[0]}?" if matches else ""


def _explained(
    kind: type[BaseSettings], error: ValidationError, origins: Mapping[str, str]
) -> SettingsError:
    """Return the first problem: name, source, value, what is allowed."""
    first = error.errors()[0]
    name = str(first["loc"][0])
    extra = kind.model_fields[name].json_schema_extra
    allowed = str(extra["allowed"]) if isinstance(extra, dict) else ""
    reason = first["msg"].removeprefix("Value error, ")
    if first["type"] == "value_error":
        allowed = f"{allowed} ({reason})"
    return SettingsError(f"{flag_of(name)} ({origins[name]})", first["input"], allowed=allowed)


def flag_of(name: str) -> str:
    """Return the flag of the setting *name*."""
    return "--" + name.replace("_", "-")


def variable_of(name: str) -> str:
    """Return the environment variable of the setting *name*."""
    return ENVIRONMENT_PREFIX + name.upper()
