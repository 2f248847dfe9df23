"""Settings as flags of a command: made from the fields, read back as what was given."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings

from gateway.errors import SettingRefused
from gateway.secret import Secret
from gateway.settings_commands import CommandSettings, PubSettings, SubSettings
from gateway.settings_common import Settings, flag_of, variable_of
from gateway.settings_nsqd import NsqdSettings
from gateway.settings_sources import CONFIG_VARIABLE, Loaded, is_hidden, refusal

CommandT = TypeVar("CommandT", bound=Callable[..., Any])

_SECTIONS = (
    ("Logs and settings", {*Settings.model_fields, "config"}),
    ("Reaching nsqd", set(NsqdSettings.model_fields)),
    ("Running on Spark", {"master", "spark_conf", "retries", "stop_wait_s"}),
)
"""What several commands have in common, below what is a command's own."""


class Command(click.Command):
    """Says of an unknown flag whether it is for later, and lists flags by what they are about."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read *args*; see `click.Command.parse_args`."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            reason = refusal(error.option_name.lstrip("-").replace("-", "_"))
            if reason is None:
                raise
            raise SettingRefused(error.option_name, reason) from error

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the flags, the command's own first."""
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


class ServerCommand(Command):
    """Takes flags as nsqd spells them, too: ``-tcp-address=…``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read *args*; see `click.Command.parse_args`."""
        options = [param for param in self.get_params(ctx) if isinstance(param, click.Option)]
        with_value = {flag for each in options if not each.is_flag for flag in each.opts}
        return super().parse_args(ctx, _double_dashes(args, with_value))


def _double_dashes(args: list[str], with_value: set[str]) -> list[str]:
    """
    Return *args* with ``-flag`` spelled ``--flag``; ``-h`` is help, ``-50`` a value.

    What follows one of the flags *with_value* is its value, however it begins: nobody's secret
    is to become another one.
    """
    spelled: list[str] = []
    is_value = False
    for arg in args:
        is_long = arg.startswith("-") and arg[1:2].isalpha() and len(arg) > len("-h")
        spelled.append(f"-{arg}" if is_long and not is_value else arg)
        is_value = not is_value and spelled[-1] in with_value
    return spelled


def settings_flags(kind: type[BaseSettings]) -> Callable[[CommandT], CommandT]:
    """Return a decorator that gives a command a flag for each setting of *kind*."""

    def decorate(command: CommandT) -> CommandT:
        for name in reversed(_own_first(kind)):
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


def _own_first(kind: type[BaseSettings]) -> list[str]:
    """Return the names of the settings, those that *kind* alone has before those of its bases."""
    names = [name for each in kind.__mro__ for name in inspect.get_annotations(each)]
    return [name for name in dict.fromkeys(names) if name in kind.model_fields]


def _option(name: str, field: FieldInfo, note: str) -> Callable[[CommandT], CommandT]:
    text = f"{field.description} {note}{describe(name, field)}"
    if field.annotation is bool:
        flags = f"{flag_of(name)}/--no-{name.replace('_', '-')}"
        return click.option(flags, name, default=None, help=text)
    is_list = isinstance(field.default, tuple)
    return click.option(
        flag_of(name), name, multiple=is_list, default=None, metavar="VALUE", help=text
    )


def describe(name: str, field: FieldInfo) -> str:
    """Return default, range and environment variable of a setting, in brackets."""
    extra = field.json_schema_extra
    allowed = f"allowed: {extra['allowed']}; " if isinstance(extra, dict) else ""
    default = shown(field.default)
    return f"[default: {default}; {allowed}{variable_of(name)}]"


def shown(value: object) -> str:
    """Return a setting's value as it is written on the command line; a secret is hidden."""
    if isinstance(value, Secret):
        return f"hidden ({value.fingerprint})"
    if isinstance(value, tuple):
        return ",".join(map(str, value)) or "none"
    if isinstance(value, bool):
        return str(value).lower()
    if value is None or value == "":
        return "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def plain(settings: BaseSettings) -> dict[str, Any]:
    """Return the values by name as JSON takes them, with secrets hidden."""
    fields = type(settings).model_fields
    return {
        name: shown(value) if is_hidden(fields[name]) and value is not None else value
        for name, value in settings
    }


def require_use(loaded: Loaded[PubSettings] | Loaded[SubSettings]) -> None:
    """
    Raise SettingRefused for a flag that would do nothing, for a gateway does the rest.

    In an environment or a file it is nothing wrong: other programs may share them.
    """
    url = loaded.settings.gateway_url
    if url is None:
        return
    for name in sorted(loaded.settings.for_nsqd):
        if loaded.origins[name] == "flag":
            reason = (
                f"it does nothing at a gateway, and this goes to {url} "
                f"(--url, {loaded.origins['url']}); name an nsqd or an nsqlookupd in its place"
            )
            raise SettingRefused(flag_of(name), reason)


def given(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return those *flags* that stood on the command line."""
    return {name: value for name, value in flags.items() if value not in (None, ())}
