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

SettingsT = TypeVar("SettingsT", bound=BaseSettings)

_UNSUPPORTED = {
    "messages are kept in memory only": "data_path sync_every sync_timeout max_bytes_per_file",
    "the embedded broker does not register with nsqlookupd": (
        "lookupd_tcp_address broadcast_tcp_port broadcast_http_port http_client_connect_timeout "
        "http_client_request_timeout"
    ),
    "the embedded broker does not check AUTH": "auth_http_address",
    "the embedded broker does not speak TLS, serve does": (
        "tls_cert tls_key tls_min_version tls_required tls_client_auth_policy tls_root_ca_file "
        "https_address"
    ),
    "the embedded broker does not compress": "snappy deflate max_deflate_level",
    "metrics are for Prometheus": (
        "statsd_address statsd_prefix statsd_interval statsd_mem_stats statsd_udp_packet_size "
        "statsd_exclude_ephemeral e2e_processing_latency_percentile "
        "e2e_processing_latency_window_time"
    ),
    "each deadline has a timer, there is no queue scan": (
        "queue_scan_selection_count queue_scan_worker_pool_max"
    ),
    "message ids contain a number derived from the host name": "node_id worker_id",
    "the output buffer timeout is 250 ms unless the client sets it": "output_buffer_timeout",
    "clients may set an output buffer timeout of 25 ms or more": "min_output_buffer_timeout",
    "log lines have fields and no prefix": "log_prefix",
    "use --log-level debug": "verbose",
}
UNSUPPORTED_NSQD_OPTIONS = {
    name: reason for reason, names in _UNSUPPORTED.items() for name in names.split()
}
"""Each option of nsqd that the embedded broker does not have, and the reason."""


def unsupported_reason(name: str) -> str | None:
    """Return why nsqd's option *name* is not supported here; None for any other name."""
    reason = UNSUPPORTED_NSQD_OPTIONS.get(name)
    return None if reason is None else f"this option of nsqd is not supported: {reason}"


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
    for name, value in given.items():
        if isinstance(value, dict):
            reason = "tables are not supported; write each setting on a line of its own, on top"
            raise SettingRefused(f"[{name}] in {config}", reason)
        _check_name(kind, name, name, where=f"in {config}")
    return given


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
        reason = unsupported_reason(name) or f"there is no such setting{did_you_mean(name, known)}"
        if _SERVICE_LINK.search(name):
            reason += (
                "; if Kubernetes created it for a Service, set enableServiceLinks: false in the pod"
            )
        raise SettingRefused(f"{shown} {where}", reason)


def all_settings() -> tuple[type[BaseSettings], ...]:
    """Return the settings of every command."""
    # Imported on demand: a command rarely needs the settings of another one.
    from gateway.settings import commands, pipeline, serve  # noqa: PLC0415

    return (
        serve.ServeSettings,
        serve.BrokerSettings,
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
