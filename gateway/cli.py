"""The command ``nsq-gateway``: settings are read here, once, and handed down."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
import uvloop
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings

import gateway
from gateway.errors import GatewayError, SettingsError
from gateway.service import BrokerService, Runnable, Service, run_until_signal
from gateway.settings import BrokerSettings, ServeSettings
from gateway.settings_sources import (
    CONFIG_VARIABLE,
    flag_of,
    load,
    refusal,
    variable_of,
)
from gateway.telemetry import configure_logging

FAILED, WRONG_USE, INTERRUPTED = 1, 2, 130

CommandT = TypeVar("CommandT", bound=Callable[..., Any])

_EPILOG = """\b
Every setting: nsq-gateway serve --help, nsq-gateway broker --help, docs/configuration.md.
What is promised to clients: openapi.yaml (HTTP), docs/websocket.md (/sub).

\b
Examples:
  nsq-gateway serve
  nsq-gateway serve --nsqd-tcp-address 127.0.0.1:4150 --nsqd-http-address 127.0.0.1:4151
  nsq-gateway broker -tcp-address=127.0.0.1:4150
  NSQ_GATEWAY_LISTEN=127.0.0.1:9000 nsq-gateway settings

Exit status: 0 done, 1 failed, 2 wrong use, 130 interrupted."""

_SERVE_EPILOG = """\b
Examples:
  nsq-gateway serve
  nsq-gateway serve --nsqd-tcp-address 127.0.0.1:4150 --nsqd-http-address 127.0.0.1:4151
  nsq-gateway serve --listen 0.0.0.0:8080 --insecure --nsqd-tcp-address nsqd-1:4150,nsqd-2:4150"""

_BROKER_EPILOG = """\b
Examples:
  nsq-gateway broker
  nsq-gateway broker -tcp-address=127.0.0.1:4150 -msg-timeout=30s"""


def _double_dashes(args: list[str]) -> list[str]:
    """Return *args* with nsqd's ``-flag`` spelled ``--flag``; ``-h`` is help, ``-50`` a value."""
    spelled = []
    for arg in args:
        is_long = arg.startswith("-") and arg[1:2].isalpha() and len(arg) > len("-h")
        spelled.append(f"-{arg}" if is_long else arg)
    return spelled


class _Command(click.Command):
    """Says of an unknown flag whether it is for later, and which known one is most like it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read *args*; see `click.Command.parse_args`."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            reason = refusal(error.option_name.lstrip("-").replace("-", "_"))
            if reason is None:
                raise
            raise SettingsError(error.option_name, "given", allowed=reason) from error


def _settings_options(kind: type[BaseSettings]) -> Callable[[CommandT], CommandT]:
    """Return a decorator that gives a command a flag for each setting of *kind*."""

    def decorate(command: CommandT) -> CommandT:
        for name, field in reversed(kind.model_fields.items()):
            command = _option(name, field)(command)
        return click.option(
            "--config",
            type=click.Path(path_type=Path),
            envvar=CONFIG_VARIABLE,
            help=f"A TOML file with settings. [{CONFIG_VARIABLE}]",
        )(command)

    return decorate


def _option(name: str, field: FieldInfo) -> Callable[[CommandT], CommandT]:
    text = f"{field.description} {describe(name, field)}"
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
    """Return a setting's value as it is written on the command line."""
    if isinstance(value, tuple):
        return ",".join(map(str, value)) or "none"
    if isinstance(value, bool):
        return str(value).lower()
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _given(flags: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in flags.items() if value not in (None, ())}


@click.group(epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(gateway.__version__, prog_name="nsq-gateway")
def commands() -> None:
    """HTTP and WebSockets in front of NSQ, with an embedded broker."""


@commands.command(cls=_Command, epilog=_SERVE_EPILOG)
@_settings_options(ServeSettings)
def serve(config: Path | None, **flags: Any) -> None:  # noqa: ANN401 - one for each setting
    """
    Start the gateway.

    With no --nsqd-tcp-address it brings its own broker, whose messages live in memory. SIGTERM
    drains: sockets are told and closed over --drain-window-s; a second one stops at once.
    """
    settings = load(ServeSettings, _given(flags), config).settings
    configure_logging(settings.log_format, settings.log_level)
    _run(lambda: Service(settings))


@commands.command(cls=_Command, epilog=_BROKER_EPILOG)
@click.version_option(gateway.__version__, prog_name="nsq-gateway")
@_settings_options(BrokerSettings)
def broker(config: Path | None, **flags: Any) -> None:  # noqa: ANN401 - one for each setting
    """
    Start the embedded broker alone, in nsqd's place.

    Flags have nsqd's names, and may be spelled as nsqd takes them (-tcp-address=…).
    """
    settings = load(BrokerSettings, _given(flags), config).settings
    configure_logging(settings.log_format, settings.log_level)
    _run(lambda: BrokerService(settings))


def _run(build: Callable[[], Runnable]) -> None:
    async def body() -> signal.Signals:
        return await run_until_signal(build(), click.echo)

    if uvloop.run(body()) is signal.SIGINT:
        sys.exit(INTERRUPTED)


@commands.command(cls=_Command)
@click.option("--json", "as_json", is_flag=True, help="One JSON object in place of a table.")
@_settings_options(ServeSettings)
def settings(config: Path | None, *, as_json: bool, **flags: Any) -> None:  # noqa: ANN401
    """Show every setting of serve, its value, and where the value comes from."""
    loaded = load(ServeSettings, _given(flags), config)
    values = loaded.settings.model_dump()
    if as_json:
        rows = {
            name: {"value": value, "origin": loaded.origins[name]} for name, value in values.items()
        }
        click.echo(json.dumps(rows, indent=2))
        return
    width = max(map(len, values))
    for name, value in values.items():
        click.echo(f"{name:{width}}  {shown(value):24} {loaded.origins[name]}")


def main(args: Sequence[str] | None = None) -> None:
    """Run the command line and exit; an error is one sentence and a status, never a traceback."""
    given = list(sys.argv[1:] if args is None else args)
    try:
        commands(_double_dashes(given), prog_name="nsq-gateway")
    except GatewayError as error:
        click.echo(f"nsq-gateway: {error}", err=True)
        sys.exit(WRONG_USE if isinstance(error, SettingsError) else FAILED)
