"""Command-line options of the settings: created from their fields, and parsed."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings

from gateway.credentials import Secret
from gateway.errors import SettingRefused, SettingsError
from gateway.protocol.wire import is_valid_name
from gateway.settings.broker import IGNORED
from gateway.settings.commands import CommandSettings, PubSettings, SubSettings
from gateway.settings.fields import Settings, environment_name, flag_name, parse_go_bool
from gateway.settings.loader import CONFIG_VARIABLE, Loaded, is_hidden
from gateway.settings.nsqd import NsqdSettings

_ALLOWED_NAMES = "1 to 64 letters, digits, '.', '_', '-'; '#ephemeral' may follow"


def check_topic_and_channel_names(**names: str) -> None:
    """
    Check the names of topics and channels; each keyword is the name of a command's argument.

    Raises:
        SettingsError: A name is invalid; the text shows the keyword in capitals, as --help does.
    """
    for what, name in names.items():
        if not is_valid_name(name.encode("utf-8", "surrogateescape")):
            raise SettingsError(what.upper(), name, allowed=_ALLOWED_NAMES)


CommandT = TypeVar("CommandT", bound=Callable[..., Any])

_SECTIONS = (
    ("Logs and settings", {*Settings.model_fields, "config"}),
    ("Reaching nsqd", set(NsqdSettings.model_fields)),
    ("Metrics of a job that ends", {"job_name", "metrics_push_url", "metrics_textfile"}),
    ("Options of nsqd without effect", set(IGNORED)),
    ("Running on Spark", {"master", "spark_conf", "retries", "stop_wait_s"}),
)
"""Titles in --help for settings that several commands share."""


class SettingsCommand(click.Command):
    """A command that groups its flags in --help."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the flags to *formatter* in sections, the command's own flags first."""
        rows: dict[str, list[tuple[str, str]]] = {"Options": []}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            titles = [title for title, names in _SECTIONS if param.name in names]
            if record is not None and isinstance(param, click.Option):
                rows.setdefault(titles[0] if titles else "Options", []).append(record)
        for title in ("Options", *(title for title, _ in reversed(_SECTIONS))):
            if rows.get(title):
                with formatter.section(title):
                    formatter.write_dl(rows[title])


class ServerCommand(SettingsCommand):
    """A command that also accepts nsqd's spelling: ``-tcp-address=…``, ``-snappy=false``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse *args*; see `click.Command.parse_args`."""
        options = {
            flag: param
            for param in self.get_params(ctx)
            if isinstance(param, click.Option)
            for flag in param.opts
        }
        return super().parse_args(ctx, list(_as_click_spells(args, options)))


class ServerGroup(ServerCommand, click.Group):
    """A `ServerCommand` with subcommands."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the flags to *formatter*, then the subcommands."""
        super().format_options(ctx, formatter)
        self.format_commands(ctx, formatter)


class _BareOption(click.Option):
    """A flag with a value, which may also stand alone; it has *bare* as its value then."""

    def __init__(self, *args: Any, bare: str, **attributes: Any) -> None:  # noqa: ANN401 - click's
        super().__init__(*args, **attributes)
        self.bare = bare


def _as_click_spells(args: Iterable[str], options: Mapping[str, click.Option]) -> Iterator[str]:
    """
    Yield *args* as click reads them, from nsqd's spelling.

    ``-flag`` becomes ``--flag``, except ``-h`` and numbers such as ``-50``. A boolean may have a
    value after ``=``, as in Go.

    An argument after a flag with a value is that value, and is not changed: a value may begin with
    a dash, as a secret does now and then.
    """
    rest = iter(args)
    for arg in rest:
        is_long = arg.startswith("-") and arg[1:2].isalpha() and len(arg) > len("-h")
        spelled = f"-{arg}" if is_long else arg
        flag, equals, value = spelled.partition("=")
        option = options.get(flag)
        if option is None:
            yield spelled
        elif option.is_flag:
            yield _boolean_flag(option, flag, value) if equals else spelled
        elif isinstance(option, _BareOption):
            yield spelled if equals else f"{flag}={option.bare}"
        else:
            yield spelled
            if not equals:
                yield from itertools.islice(rest, 1)


def _boolean_flag(option: click.Option, flag: str, value: str) -> str:
    """Return click's spelling of ``--flag=value``."""
    wanted = parse_go_bool(value)
    if wanted is None or not (wanted or option.secondary_opts):
        raise SettingsError(flag, value, allowed="true, false")
    return flag if wanted else option.secondary_opts[0]


def settings_flags(kind: type[BaseSettings]) -> Callable[[CommandT], CommandT]:
    """Return a decorator that gives a command a flag for each setting of *kind*."""

    def decorate(command: CommandT) -> CommandT:
        # As with stacked decorators, the option that is added last is the first one in --help.
        for name in reversed(_own_settings_first(kind)):
            field = kind.model_fields[name]
            is_for_nsqd = issubclass(kind, CommandSettings) and name in kind.for_nsqd
            note = "Not with --url. " if is_for_nsqd else ""
            command = _option(name, field, note)(command)
        return click.option(
            "--config",
            type=click.Path(path_type=Path),
            envvar=CONFIG_VARIABLE,
            help=f"A TOML file with settings. [{CONFIG_VARIABLE}]",
        )(command)

    return decorate


def _own_settings_first(kind: type[BaseSettings]) -> list[str]:
    """Return the names of the settings of *kind*, its own before those of its base classes."""
    names = [name for each in kind.__mro__ for name in inspect.get_annotations(each)]
    return [name for name in dict.fromkeys(names) if name in kind.model_fields]


def _option(name: str, field: FieldInfo, note: str) -> Callable[[CommandT], CommandT]:
    text = f"{field.description} {note}{describe_setting(name, field)}"
    if field.annotation is bool:
        flags = f"{flag_name(name)}/--no-{name.replace('_', '-')}"
        return click.option(flags, name, default=None, help=text)
    # No default for click: None, or (), tells that the flag was not given.
    is_list = isinstance(field.default, tuple)
    extra = field.json_schema_extra
    if isinstance(extra, dict) and "bare" in extra:
        return click.option(
            flag_name(name),
            name,
            cls=_BareOption,
            bare=extra["bare"],
            default=None,
            metavar="VALUE",
            help=text,
        )
    return click.option(
        flag_name(name), name, multiple=is_list, default=None, metavar="VALUE", help=text
    )


def describe_setting(name: str, field: FieldInfo) -> str:
    """Return the default, range and environment variable of a setting, in brackets."""
    extra = field.json_schema_extra
    allowed = f"allowed: {extra['allowed']}; " if isinstance(extra, dict) else ""
    default = format_value(field.default)
    return f"[default: {default}; {allowed}{environment_name(name)}]"


def format_value(value: object) -> str:
    """Return a value in the form to type on the command line; for a secret, its fingerprint."""
    if isinstance(value, Secret):
        return f"hidden ({value.fingerprint})"
    if isinstance(value, tuple):
        return ",".join(map(str, value)) or "none"
    if isinstance(value, bool):
        return str(value).lower()
    if value is None or value == "":
        return "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def as_json_values(settings: BaseSettings) -> dict[str, Any]:
    """Return the values of *settings* by name, for JSON; for secrets, their fingerprints."""
    fields = type(settings).model_fields

    def as_json(name: str, value: object) -> object:
        is_text = isinstance(value, Path) or (is_hidden(fields[name]) and value is not None)
        return format_value(value) if is_text else value

    return {name: as_json(name, value) for name, value in settings}


def refuse_unused_flags(loaded: Loaded[PubSettings] | Loaded[SubSettings]) -> None:
    """
    Raise SettingRefused if a given flag only applies to nsqd, and the command uses a gateway.

    Environment variables and files are not checked: other commands may share them.
    """
    url = loaded.settings.gateway_url
    if url is None:
        return
    for name in sorted(loaded.settings.for_nsqd):
        if loaded.origins[name] == "flag":
            reason = (
                f"it only applies to nsqd, and the target is the gateway at {url} "
                f"(--url, {loaded.origins['url']}); configure an nsqd or an nsqlookupd instead"
            )
            raise SettingRefused(flag_name(name), reason)


def flags_given(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return the *flags* that were set on the command line."""
    return {name: value for name, value in flags.items() if value not in (None, ())}
