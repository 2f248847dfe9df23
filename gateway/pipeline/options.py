"""The options of the format `nsq`: settings in camel case; Spark takes them in any case."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TypeVar

from pydantic_settings import BaseSettings

from gateway.errors import SettingRefused, SettingsError
from gateway.pipeline import FORMAT
from gateway.protocol.wire import is_valid_name
from gateway.settings_nsqd import NsqdSettings
from gateway.settings_pipeline import NAMES
from gateway.settings_sources import Speech, is_hidden, load, nearest

__all__ = [
    "FORMAT",
    "OPTIONS",
    "check_name",
    "option_of",
    "options_of",
    "read_options",
    "require_nsqd",
]

SettingsT = TypeVar("SettingsT", bound=NsqdSettings)


def option_of(name: str) -> str:
    """Return the option for the setting *name*: maxInFlight for max_in_flight."""
    return re.sub("_(.)", lambda found: found[1].upper(), name)


OPTIONS = Speech("option", option_of)


def read_options(kind: type[SettingsT], options: Mapping[str, str]) -> SettingsT:
    """
    Return the settings that *options* make, with those of the environment below them.

    Raises:
        SettingsError: An option is unknown, or a value wrong; a secret is no option; it is not said
            where NSQ is.
    """
    names = {option_of(name).lower(): name for name in kind.model_fields}
    given: dict[str, str] = {}
    for option, value in options.items():
        name = names.get(option.lower())
        if name is None:
            known = sorted(map(option_of, kind.model_fields))
            reason = f"the format {FORMAT} has no such option{nearest(option, known)}"
            raise SettingRefused(option, f"{reason}; there are {', '.join(known)}")
        if is_hidden(kind.model_fields[name]):
            reason = "options stand in plans and logs; use authSecretFile, or the environment"
            raise SettingRefused(option, reason)
        given[name] = value
    settings = load(kind, given, speech=OPTIONS).settings
    require_nsqd(settings, option_of)
    return settings


def require_nsqd(settings: NsqdSettings, spell: Callable[[str], str]) -> None:
    """Raise SettingRefused where it is not said where NSQ is; *spell* writes names of settings."""
    if not settings.names_an_nsqd:
        reason = f"say where NSQ is: this, or {spell('lookupd_http_address')}"
        raise SettingRefused(spell("nsqd_tcp_address"), reason)


def options_of(settings: BaseSettings, kind: type[NsqdSettings]) -> dict[str, str]:
    """Return the options that make the settings of *kind* among *settings* again; no secret."""
    given: dict[str, str] = {}
    for name, field in kind.model_fields.items():
        value = getattr(settings, name)
        if value == field.default or is_hidden(field):
            continue
        is_list = isinstance(value, tuple)
        given[option_of(name)] = ",".join(map(str, value)) if is_list else _text_of(value)
    return given


def _text_of(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def check_name(option: str, name: str) -> None:
    """Raise SettingsError where *name* is none that NSQ takes for a topic or a channel."""
    if not is_valid_name(name.encode()):
        raise SettingsError(option, name, allowed=NAMES)
