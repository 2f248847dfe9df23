"""
Where the value of a setting comes from: flag beats environment beats file beats default.

A name that no setting has is an error wherever it stands, so that a slip of the pen does not turn
into a default.
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
from gateway.settings_common import ENVIRONMENT_PREFIX, HiddenText, flag_of

CONFIG_VARIABLE = ENVIRONMENT_PREFIX + "CONFIG"
_TEST_PREFIX = ENVIRONMENT_PREFIX + "TEST_"
_OF_A_SERVICE = re.compile("(^|_)(service_host|service_port|port)(_|$)")
"""How the variables end that Kubernetes makes for a Service with our name."""

SettingsT = TypeVar("SettingsT", bound=BaseSettings)

LATER = {
    "data_path": "a broker that keeps messages on disk",
    "lookupd_tcp_address": "registering with nsqlookupd",
    "broadcast_tcp_port": "registering with nsqlookupd",
    "broadcast_http_port": "registering with nsqlookupd",
    "http_client_connect_timeout": "registering with nsqlookupd",
    "http_client_request_timeout": "registering with nsqlookupd",
    "auth_http_address": "AUTH",
    "tls_required": "TLS",
    "tls_client_auth_policy": "TLS",
    "tls_root_ca_file": "TLS",
    "https_address": "TLS",
    "snappy": "compression",
    "deflate": "compression",
    "max_deflate_level": "compression",
}
"""Settings of later versions: to ignore one in silence would be worse than to refuse it."""

_OF_SERVE = ("tls_cert", "tls_key", "tls_min_version")
"""nsqd's options that are settings of `serve`, and not of the embedded broker yet."""

_PROMETHEUS = "metrics are for Prometheus"
_NO_FILES = "no queue is kept in files of nsqd's form"
_NO_SCAN = "nothing is scanned, each deadline has its timer"
_NODE = "the number in message ids is made of the host's name"
NSQD_ONLY = {
    "statsd_address": _PROMETHEUS,
    "statsd_prefix": _PROMETHEUS,
    "statsd_interval": _PROMETHEUS,
    "statsd_mem_stats": _PROMETHEUS,
    "statsd_udp_packet_size": _PROMETHEUS,
    "statsd_exclude_ephemeral": _PROMETHEUS,
    "e2e_processing_latency_percentile": _PROMETHEUS,
    "e2e_processing_latency_window_time": _PROMETHEUS,
    "sync_every": _NO_FILES,
    "sync_timeout": _NO_FILES,
    "max_bytes_per_file": _NO_FILES,
    "queue_scan_selection_count": _NO_SCAN,
    "queue_scan_worker_pool_max": _NO_SCAN,
    "node_id": _NODE,
    "worker_id": _NODE,
    "output_buffer_timeout": "it is 250 ms for a client that asks for none",
    "min_output_buffer_timeout": "a client may ask for 25 ms and more",
    "log_prefix": "a log line is made of fields",
    "verbose": "say --log-level debug",
}
"""nsqd's options that the embedded broker has no use for, and why."""


def refusal(name: str) -> str | None:
    """Return why the setting *name* cannot be given; None when nothing is known of it."""
    if name in LATER:
        return f"not yet: {LATER[name]} is for a later version"
    if name in _OF_SERVE:
        return "not yet: TLS of the embedded broker is for a later version; serve has it"
    if name in NSQD_ONLY:
        return f"not an option here: {NSQD_ONLY[name]}"
    return None


class Speech(NamedTuple):
    """What those who give the uppermost values call them."""

    origin: str
    """What one of them is."""
    spell: Callable[[str], str]
    """How the setting of a name is spelled there."""


FLAGS = Speech("flag", flag_of)


@dataclass(frozen=True)
class Loaded(Generic[SettingsT]):
    """Settings, and where each value comes from."""

    settings: SettingsT
    origins: Mapping[str, str]
    """For each name: ``environment``, ``file``, ``default``, or what its `Speech` says."""


def load(
    kind: type[SettingsT],
    given: Mapping[str, Any],
    config: Path | None = None,
    *,
    speech: Speech = FLAGS,
) -> Loaded[SettingsT]:
    """
    Read the settings of *kind*; those that were *given* beat all others.

    Raises:
        SettingsError: A name is unknown, or a value wrong or out of range.
    """
    names = set(kind.model_fields)
    layers = {
        "file": _pick(_from_file(kind, config), names),
        "environment": _pick(_from_environment(kind), names),
        speech.origin: dict(given),
    }
    values: dict[str, Any] = {}
    origins = dict.fromkeys(kind.model_fields, "default")
    for origin, layer in layers.items():
        values |= layer
        origins |= dict.fromkeys(layer, origin)
    try:
        settings = kind.model_validate(values)
    except ValidationError as error:
        raise _explained(kind, error, origins, speech) from error
    return Loaded(settings, origins)


def _pick(layer: Mapping[str, Any], names: set[str]) -> dict[str, Any]:
    return {name: value for name, value in layer.items() if name in names}


def _from_file(kind: type[BaseSettings], config: Path | None) -> dict[str, Any]:
    if config is None:
        return {}
    try:
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
            reason = "there are no tables here; write each setting as a line of its own, on top"
            raise SettingRefused(f"[{name}] in {config}", reason)
        _require_known(kind, name, name, where=f"in {config}")
    return given


def _from_environment(kind: type[BaseSettings]) -> dict[str, Any]:
    for variable in os.environ:
        name = variable.removeprefix(ENVIRONMENT_PREFIX)
        if variable.startswith(ENVIRONMENT_PREFIX) and not variable.startswith(_TEST_PREFIX):
            _require_known(kind, name.lower(), variable, where="in the environment")
    return dict(EnvSettingsSource(kind)())


def _require_known(kind: type[BaseSettings], name: str, shown: str, *, where: str) -> None:
    if name in kind.model_fields:
        return  # most are, and so most programs need no other's settings
    from gateway.settings_kinds import KINDS  # noqa: PLC0415 - only who needs it waits for it

    known = {"config"}.union(*(each.model_fields for each in KINDS))
    if name not in known:
        reason = refusal(name) or f"there is no such setting{nearest(name, known)}"
        if _OF_A_SERVICE.search(name):
            reason += "; where Kubernetes made it for a Service, say enableServiceLinks: false"
        raise SettingRefused(f"{shown} {where}", reason)


def nearest(name: str, known: Iterable[str]) -> str:
    """Return ``; did you mean …?`` with the known name most like *name*, or nothing."""
    matches = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {matches[0]}?" if matches else ""


def _explained(
    kind: type[BaseSettings], error: ValidationError, origins: Mapping[str, str], speech: Speech
) -> SettingsError:
    """Return the first problem: name, source, value, what is allowed."""
    first: ErrorDetails = error.errors()[0]
    name = str(first["loc"][0])
    field = kind.model_fields[name]
    extra = field.json_schema_extra
    allowed = str(extra["allowed"]) if isinstance(extra, dict) else ""
    reason = first["msg"].removeprefix("Value error, ")
    if first["type"] == "value_error":
        allowed = f"{allowed} ({reason})"
    where = f"{speech.spell(name)} ({origins[name]})"
    if is_hidden(field):
        return SettingRefused(where, f"it cannot be used; allowed: {allowed}")
    return SettingsError(where, first["input"], allowed=allowed)


def is_hidden(field: FieldInfo) -> bool:
    """Tell whether the value of a setting is a secret."""
    return field.annotation == HiddenText | None
