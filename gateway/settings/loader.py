"""
Load settings: flags override environment variables, which override the file and the defaults.

An unknown name is an error in each of these sources: otherwise, after a typo, the default would
apply without notice.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, EnvSettingsSource, TomlConfigSettingsSource

from gateway.errors import SettingRefused, SettingsError
from gateway.settings.fields import ENVIRONMENT_PREFIX, HiddenText, flag_name

CONFIG_VARIABLE = ENVIRONMENT_PREFIX + "CONFIG"
_TEST_PREFIX = ENVIRONMENT_PREFIX + "TEST_"
_SERVICE_LINK = re.compile("(^|_)(service_host|service_port|port)(_|$)")
"""Part of the names of the variables that Kubernetes creates for a Service named nsq-gateway."""

_FILE_KEYS = {
    "id": "node_id",
    "nsqlookupd_tcp_addresses": "lookupd_tcp_address",
    "auth_http_addresses": "auth_http_address",
    "e2e_processing_latency_percentiles": "e2e_processing_latency_percentile",
}
"""Keys in nsqd's own TOML file that are not the name of the flag, and the setting of each."""

SettingsT = TypeVar("SettingsT", bound=BaseSettings)


class SettingNaming(NamedTuple):
    """How error texts name settings: as flags, or as options of Spark."""

    origin: str
    """What error texts call a setting, such as "flag"."""
    spell: Callable[[str], str]
    """Returns a setting's name as the user writes it, such as ``--max-sockets``."""


FLAGS = SettingNaming("flag", flag_name)


@dataclass(frozen=True)
class Loaded(Generic[SettingsT]):
    """Settings, and the origin of each value."""

    settings: SettingsT
    origins: Mapping[str, str]
    """By setting: ``environment``, ``file``, ``default``, or `SettingNaming.origin` if given."""


def load(
    kind: type[SettingsT],
    given: Mapping[str, Any],
    config: Path | None = None,
    *,
    naming: SettingNaming = FLAGS,
) -> Loaded[SettingsT]:
    """
    Load the settings of *kind*; the values *given* by the caller override all others.

    *config* is the TOML file to read, if any. Errors call settings as *naming* does.

    Raises:
        SettingsError: A name is unknown, or a value is invalid.
    """
    # A file and the environment may have settings of other commands, which *kind* would refuse.
    names = set(kind.model_fields)
    layers = {
        "file": _pick(_from_file(kind, config), names),
        "environment": _pick(_from_environment(kind), names),
        naming.origin: dict(given),
    }
    values: dict[str, Any] = {}
    origins = dict.fromkeys(kind.model_fields, "default")
    # In ascending precedence: a later layer overrides an earlier one.
    for origin, layer in layers.items():
        values |= layer
        origins |= dict.fromkeys(layer, origin)
    try:
        settings = kind.model_validate(values)
    except ValidationError as error:
        raise _settings_error(kind, error, origins, naming) from error
    return Loaded(settings, origins)


def _pick(layer: Mapping[str, Any], names: set[str]) -> dict[str, Any]:
    return {name: value for name, value in layer.items() if name in names}


def _from_file(kind: type[BaseSettings], config: Path | None) -> dict[str, Any]:
    if config is None:
        return {}
    try:
        # pydantic-settings skips a missing file without an error.
        if not config.is_file():
            raise SettingsError("config", str(config), allowed="the path of a TOML file")
        given = dict(TomlConfigSettingsSource(kind, config).toml_data)
    except OSError as error:
        allowed = f"the path of a TOML file; {error.strerror}"
        raise SettingsError("config", str(config), allowed=allowed) from error
    except ValueError as error:
        raise SettingsError("config", str(config), allowed=f"TOML; {error}") from error
    for key, value in given.items():
        if isinstance(value, dict):
            reason = "tables are not supported; write each setting on a line of its own, on top"
            raise SettingRefused(f"[{key}] in {config}", reason)
        name = _FILE_KEYS.get(key, key)
        if name != key and name in given:
            raise SettingRefused(f"{key} in {config}", f"the file has the same setting as {name}")
        _check_name(kind, name, key, where=f"in {config}")
    return {_FILE_KEYS.get(key, key): value for key, value in given.items()}


def _from_environment(kind: type[BaseSettings]) -> dict[str, Any]:
    # pydantic ignores unknown variables, so a typo would leave the default in effect.
    for variable in os.environ:
        name = variable.removeprefix(ENVIRONMENT_PREFIX)
        if variable.startswith(ENVIRONMENT_PREFIX) and not variable.startswith(_TEST_PREFIX):
            _check_name(kind, name.lower(), variable, where="in the environment")
    return dict(EnvSettingsSource(kind)())


def _check_name(kind: type[BaseSettings], name: str, shown: str, *, where: str) -> None:
    """
    Raise SettingRefused if no command has a setting *name*; the error calls it *shown*.

    Settings of other commands than *kind* are accepted: commands may share a file.
    """
    if name in kind.model_fields:
        return
    known = {"config"}.union(*(each.model_fields for each in all_settings()))
    if name not in known:
        reason = f"there is no such setting{did_you_mean(name, known)}"
        if _SERVICE_LINK.search(name):
            reason += (
                "; if Kubernetes created it for a Service, set enableServiceLinks: false in the pod"
            )
        raise SettingRefused(f"{shown} {where}", reason)


def all_settings() -> tuple[type[BaseSettings], ...]:
    """Return the settings of every command."""
    # Imported on demand: a command rarely needs the settings of another one.
    from gateway.settings import broker, commands, pipeline, serve  # noqa: PLC0415

    return (
        serve.ServeSettings,
        broker.BrokerSettings,
        commands.PubSettings,
        commands.SubSettings,
        commands.HealthSettings,
        pipeline.SourceSettings,
        pipeline.NsqSinkSettings,
        pipeline.ArchiveSettings,
        pipeline.CompactSettings,
        pipeline.VacuumSettings,
        pipeline.MetricsSettings,
        pipeline.ReplaySettings,
    )


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ``; did you mean …?`` with the name in *known* closest to *name*, or ``""``."""
    matches = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {matches[0]}?" if matches else ""


def _settings_error(
    kind: type[BaseSettings],
    error: ValidationError,
    origins: Mapping[str, str],
    naming: SettingNaming,
) -> SettingsError:
    """Return an error for the first problem in *error*; its text has the allowed values."""
    first: ErrorDetails = error.errors()[0]
    name = str(first["loc"][0])
    field = kind.model_fields[name]
    extra = field.json_schema_extra
    allowed = str(extra["allowed"]) if isinstance(extra, dict) else ""
    reason = first["msg"].removeprefix("Value error, ")
    # A validator in this package raised ValueError: its text explains more than *allowed* does.
    if first["type"] == "value_error":
        allowed = f"{allowed} ({reason})"
    where = f"{naming.spell(name)} ({origins[name]})"
    # The error of a secret must not show the value.
    if is_hidden(field):
        return SettingRefused(where, f"the value is invalid; allowed: {allowed}")
    return SettingsError(where, first["input"], allowed=allowed)


def is_hidden(field: FieldInfo) -> bool:
    """Return whether the values of the setting *field* are secrets."""
    return field.annotation == HiddenText | None
