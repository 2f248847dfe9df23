"""The command ``nsq-gateway``: parse the command line, load settings, run the command."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TextIO

import click
import uvloop

import gateway
from gateway.cli.access import access
from gateway.cli.health import Probe, check_health
from gateway.cli.options import (
    ServerCommand,
    ServerGroup,
    SettingsCommand,
    as_json_values,
    flags_given,
    format_value,
    refuse_unused_flags,
    settings_flags,
)
from gateway.cli.pub_input import NEWLINE, parse_delimiter
from gateway.cli.stdio import FAILED, INTERRUPTED, WRONG_USE
from gateway.errors import GatewayError, SettingRefused, SettingsError, StartError, StoreFailed
from gateway.protocol.wire import NSQD_VERSION
from gateway.server.runner import Runnable, run_until_signal, tune_gc
from gateway.settings.broker import BrokerSettings
from gateway.settings.commands import HealthSettings, PubSettings, SubSettings
from gateway.settings.fields import Settings
from gateway.settings.loader import load
from gateway.settings.serve import ServeSettings
from gateway.telemetry import configure_logging, get_logger, log_uncaught
from gateway.terminal import printable

logger = get_logger()

STDIN, STDOUT = 0, 1

_EPILOG = """\b
Every setting: --help of the commands, docs/configuration.md.
APIs: openapi.yaml (HTTP), asyncapi.yaml and docs/websocket.md (/sub).

\b
Examples:
  nsq-gateway serve
  nsq-gateway serve --nsqd-tcp-address 127.0.0.1:4150 --nsqd-http-address 127.0.0.1:4151
  nsq-gateway broker -tcp-address=127.0.0.1:4150
  echo hello | nsq-gateway pub greetings
  nsq-gateway sub greetings readers
  nsq-gateway stats --watch
  NSQ_GATEWAY_LISTEN=127.0.0.1:9000 nsq-gateway settings

Exit status: 0 success, 1 failure, 2 usage error, 130 interrupted."""

_SERVE_EPILOG = """\b
Examples:
  nsq-gateway serve
  nsq-gateway serve --nsqd-tcp-address 127.0.0.1:4150 --nsqd-http-address 127.0.0.1:4151
  nsq-gateway serve --lookupd-http-address lookup-1:4161,lookup-2:4161
  nsq-gateway serve --workers 4 --nsqd-tcp-address nsqd-1:4150
  nsq-gateway serve --listen 0.0.0.0:8080 --require-auth --nsqd-tcp-address nsqd-1:4150 \\
      --nsqd-tls-v1 --nsqd-tls-root-ca-file ca.pem"""

_PUB_EPILOG = """\b
Input:
  lines            each line is one message; empty lines are skipped
  length-prefixed  4 bytes of length, big-endian, before each message, as in nsqd's binary /mpub

Messages are published in batches, one after the other, so that they keep their order.

\b
Responses:
  OK                          continue with the next batch
  unreachable, 503, 429       not published: retry for --retry-for-s with exponential backoff,
                              and not before Retry-After
  504, a lost connection      unknown outcome: end, or retry with --at-least-once
  4xx, an error of nsqd       not published: end, and name the invalid message

When it ends early, it prints the number of published messages, and the tail command that continues
the input after them. SIGINT and SIGTERM end it after the response to the current batch, or at once
while it waits for a retry. Progress is shown on a terminal only; elsewhere --verbose prints a
summary.

\b
Examples:
  echo hello | nsq-gateway pub greetings
  nsq-gateway pub orders --nsqd-tcp-address 127.0.0.1:4150 < orders.ndjson
  find . -name '*.jpg' -print0 | nsq-gateway pub pictures --delimiter '\\0'
  nsq-gateway pub frames --framing length-prefixed --retry-for-s 3600 -v < frames.bin
  tail -f app.log | nsq-gateway pub logs --lookupd-http-address lookup-1:4161,lookup-2:4161
  nsq-gateway pub reminders --defer-ms 60000 --url https://gateway.example --auth-secret-file key

Exit status: 0 every message was published, 1 some were not or may not have been, 2 usage error,
130 interrupted."""

_SUB_EPILOG = """\b
A message is finished once its line is written. When the command ends, by a signal, --count or a
closed pipe, it requeues the other messages. A pipe may hold written lines that its reader never
reads. A body with newlines is several lines; use --json for one line.

\b
Examples:
  nsq-gateway sub greetings readers
  nsq-gateway sub orders archive --nsqd-tcp-address 127.0.0.1:4150 >> orders.log
  nsq-gateway sub orders 'tail#ephemeral' --lookupd-http-address lookup-1:4161 --json | jq .body
  nsq-gateway sub orders billing -n 1 --url wss://gateway.example --auth-secret-file key

Exit status: 0 success (--count, closed pipe, SIGTERM), 1 failure, 2 usage error,
130 interrupted."""

_TAIL_EPILOG = """\b
If the topic has no channel yet, the first message written is the oldest one that waits there; the
topic keeps none of them for a later channel.

\b
Examples:
  nsq-gateway tail orders
  nsq-gateway tail orders -n 1 --json --lookupd-http-address lookup-1:4161 | jq .body

Exit status: 0 success (--count, closed pipe, SIGTERM), 1 failure, 2 usage error,
130 interrupted."""

_HEALTH_EPILOG = """\b
Examples:
  nsq-gateway health
  nsq-gateway health --live --management-listen 127.0.0.1:9081

Exit status: 0 healthy, 1 unhealthy or no response, 2 usage error."""

_BROKER_EPILOG = """\b
Examples:
  nsq-gateway broker
  nsq-gateway broker -tcp-address=127.0.0.1:4150 -msg-timeout=30s
  nsq-gateway broker --lookupd-tcp-address=lookup-1:4160 --config=nsqd.toml"""


_BROKER_CHECK_EPILOG = """\b
Examples:
  nsq-gateway broker check /var/lib/nsq-gateway

Exit status: 0 the store is whole, 1 it is damaged or cannot be read, 2 usage error."""


_OPERATE = (
    *("topics", "channels", "nodes", "stats"),
    *("create", "pause", "unpause", "empty", "delete"),
    *("peek", "tombstone", "drain", "undrain"),
)


class _Commands(click.Group):
    """The group of commands; imports most of them on demand, for they are slow to import."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return every command's name, sorted."""
        return sorted([*super().list_commands(ctx), "pipeline", *_OPERATE])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command *cmd_name*, or None if there is no such command."""
        if cmd_name in _OPERATE:
            from gateway.cli.operate import OPERATE_COMMANDS  # noqa: PLC0415

            return next(each for each in OPERATE_COMMANDS if each.name == cmd_name)
        if cmd_name != "pipeline":
            return super().get_command(ctx, cmd_name)
        from gateway.cli.pipeline import (  # noqa: PLC0415
            metrics,
            pipeline,
            replay,
        )

        pipeline.add_command(metrics)
        pipeline.add_command(replay)
        return pipeline


@click.group(
    cls=_Commands, epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(gateway.__version__, prog_name="nsq-gateway")
def commands() -> None:
    """HTTP and WebSockets in front of NSQ, with an embedded broker, and a client for the shell."""


commands.add_command(access)


@commands.command(cls=ServerCommand, epilog=_SERVE_EPILOG)
@settings_flags(ServeSettings)
def serve(config: Path | None, **flags: Any) -> None:  # noqa: ANN401 - one for each setting
    """
    Start the gateway.

    Without --nsqd-tcp-address and --lookupd-http-address it starts an embedded broker, which keeps
    messages in memory. On SIGTERM it drains: readiness fails, clients are notified, and their
    sockets are closed over --drain-window-s. A second signal stops it at once.
    """
    from gateway.server.service import Service  # noqa: PLC0415 - slow to import
    from gateway.server.workers.supervisor import Supervisor  # noqa: PLC0415 - slow to import

    settings = load(ServeSettings, flags_given(flags), config).settings
    _run(settings, lambda: Supervisor(settings) if settings.workers > 1 else Service(settings))


@commands.group(cls=ServerGroup, epilog=_BROKER_EPILOG, invoke_without_command=True)
# nsqd's form, for tools that look for the version of nsqd in it.
@click.version_option(
    NSQD_VERSION, message=f"nsqd v%(version)s (embedded in nsq-gateway {gateway.__version__})"
)
@settings_flags(BrokerSettings)
@click.pass_context
def broker(
    ctx: click.Context,
    /,
    config: Path | None,
    **flags: Any,  # noqa: ANN401 - one for each setting
) -> None:
    """
    Start the embedded broker alone, as a replacement for nsqd.

    A command line of nsqd works unchanged: flags have nsqd's names and accept nsqd's spelling
    (-tcp-address=…, -snappy=false), and --config reads nsqd's file. With --data-path, OK means on
    disk. `broker check PATH` reads a data path and reports what is damaged.
    """
    if ctx.invoked_subcommand is not None:
        return
    from gateway.server.broker import LISTENING, BrokerService  # noqa: PLC0415 - slow to import

    def announce(line: str) -> None:
        # nsqd logs to standard error, and that is where tools look for its addresses.
        click.echo(line, err=LISTENING in line)

    settings = load(BrokerSettings, flags_given(flags), config).settings
    _run(settings, lambda: BrokerService(settings), announce)


@broker.command("check", epilog=_BROKER_CHECK_EPILOG)
@click.argument("path", type=click.Path(path_type=Path))
def broker_check(path: Path) -> None:
    """
    Read everything in the data path PATH and report what is damaged; change nothing.

    A broker may be running on it.
    """
    from gateway.broker.store_check import Report, check_store  # noqa: PLC0415 - slow to import

    report = Report()
    try:
        for report in check_store(path):
            if sys.stderr.isatty():
                click.echo(f"\r{report.chunks} of {report.all_chunks} chunks", err=True, nl=False)
    except StoreFailed as error:
        raise click.ClickException(str(error)) from error
    finally:
        if sys.stderr.isatty():
            click.echo(err=True)
    for problem in report.problems:
        click.echo(problem)
    click.echo(
        f"{report.topics} topics, {report.channels} channels, {report.messages} messages in "
        f"{report.chunks} chunks, {len(report.problems)} problems"
    )
    if report.problems:
        sys.exit(FAILED)


@commands.command(cls=SettingsCommand, epilog=_PUB_EPILOG)
@click.argument("topic")
@click.option(
    "--framing",
    type=click.Choice(["lines", "length-prefixed"]),
    default="lines",
    show_default=True,
    help="How the input is split into messages.",
)
@click.option(
    "--delimiter",
    default=None,
    metavar="BYTE",
    help=r"Line delimiter: one byte, or \0, \t, \n, \r, \\, \xHH. [default: \n]",
)
@click.option(
    "--defer-ms",
    type=click.IntRange(min=0),
    default=0,
    metavar="MS",
    help="Delay before delivery. Messages are then published one by one. [default: 0]",
)
@click.option("-v", "--verbose", "is_verbose", is_flag=True, help="Print a summary at the end.")
@settings_flags(PubSettings)
def pub(config: Path | None, **flags: Any) -> None:  # noqa: ANN401 - one for each setting
    """Publish standard input to TOPIC, on a gateway or nsqd."""
    from gateway.cli.pub import PubArguments, run_pub  # noqa: PLC0415 - slow to import

    names = ("topic", "framing", "defer_ms", "is_verbose")
    arguments = {name: flags.pop(name) for name in names}
    delimiter = flags.pop("delimiter")
    if delimiter is not None and arguments["framing"] != "lines":
        raise SettingRefused("--delimiter", "it only applies to --framing lines")
    loaded = load(PubSettings, flags_given(flags), config)
    refuse_unused_flags(loaded)
    settings = loaded.settings
    configure_logging(settings.log_format, settings.log_level)
    task = PubArguments(
        **arguments,
        delimiter=NEWLINE if delimiter is None else parse_delimiter(delimiter),
        input=_require_open(sys.stdin, STDIN),
        report=sys.stderr,
    )
    if uvloop.run(run_pub(settings, task)) is not None:
        sys.exit(INTERRUPTED)


_json_lines = click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Write each message as a JSON object on a line: id, attempts, timestamp_ns, nsqd (not "
    "from a gateway), and body or body_base64.",
)
_count = click.option(
    "-n",
    "--count",
    type=click.IntRange(min=1),
    default=None,
    metavar="N",
    help="End after N messages. [default: no limit]",
)


@commands.command(cls=SettingsCommand, epilog=_SUB_EPILOG)
@click.argument("topic")
@click.argument("channel")
@_json_lines
@_count
@settings_flags(SubSettings)
def sub(config: Path | None, topic: str, channel: str, **flags: Any) -> None:  # noqa: ANN401
    """Consume CHANNEL of TOPIC and write each message as a line to standard output."""
    _consume(config, topic, channel, flags)


def _consume(config: Path | None, topic: str, channel: str, flags: dict[str, Any]) -> None:
    from gateway.cli.sub import SubTask, run_sub  # noqa: PLC0415 - slow to import

    as_json, count = flags.pop("as_json"), flags.pop("count")
    loaded = load(SubSettings, flags_given(flags), config)
    refuse_unused_flags(loaded)
    settings = loaded.settings
    configure_logging(settings.log_format, settings.log_level)
    task = SubTask(
        topic=topic,
        channel=channel,
        as_json=as_json,
        count=count,
        output=_require_open(sys.stdout, STDOUT),
    )
    if uvloop.run(run_sub(settings, task)) is signal.SIGINT:
        sys.exit(INTERRUPTED)


@commands.command(cls=SettingsCommand, epilog=_TAIL_EPILOG)
@click.argument("topic")
@_json_lines
@_count
@settings_flags(SubSettings)
def tail(config: Path | None, topic: str, **flags: Any) -> None:  # noqa: ANN401
    """
    Write the messages of TOPIC from now on to standard output, and take nothing from others.

    It consumes a channel of its own, gw.…#ephemeral, which nsqd deletes at the end.
    """
    from gateway.web.subscribe.request import new_channel_name  # noqa: PLC0415 - slow to import

    _consume(config, topic, new_channel_name(), flags)


@commands.command(cls=SettingsCommand, epilog=_HEALTH_EPILOG)
@click.option("--live", "probe", flag_value="live", help="Check whether it is alive (/livez).")
@click.option(
    "--ready",
    "probe",
    flag_value="ready",
    default="ready",
    help="Check whether it is ready for traffic (/readyz). [default]",
)
@click.option(
    "--timeout-s",
    type=click.FloatRange(0.1, 60),
    default=2.0,
    metavar="S",
    help="Time limit for the whole response. [default: 2; allowed: 0.1 to 60 s]",
)
@settings_flags(HealthSettings)
def health(config: Path | None, probe: Probe, timeout_s: float, **flags: Any) -> None:  # noqa: ANN401
    """
    Check whether a gateway on this machine is ready or alive, and print its answer.

    For the health checks of container engines: the address comes from the same environment
    variables and file as for `serve`.
    """
    settings = load(HealthSettings, flags_given(flags), config).settings
    is_healthy, text = check_health(settings.management_listen, probe, timeout_s)
    click.echo(text)
    sys.exit(0 if is_healthy else FAILED)


def _require_open(stream: TextIO | None, descriptor: int) -> int:
    """
    Return *descriptor*; raise StartError if *stream*, Python's standard stream for it, is closed.

    The system may have given the number of a closed stream to another file.
    """
    if stream is None:
        raise StartError(f"standard {'input' if descriptor == STDIN else 'output'} is closed")
    return descriptor


def _run(
    settings: Settings,
    build: Callable[[], Runnable],
    announce: Callable[[str], None] = click.echo,
) -> None:
    """
    Run the server that *build* creates until a signal arrives; exit with 130 after SIGINT.

    Call *announce* with each line of its banner. With ``--log-format json`` the banner and a
    GatewayError are log lines too, not plain text.
    """
    is_json = settings.log_format == "json"
    configure_logging(settings.log_format, settings.log_level)
    log_uncaught()

    async def body() -> signal.Signals:
        service = build()
        # After `build`: `tune_gc` excludes the objects that exist by now from later collections.
        tune_gc()
        return await run_until_signal(service, _log_startup if is_json else announce)

    error: GatewayError | None = None
    try:
        if uvloop.run(body()) is signal.SIGINT:
            sys.exit(INTERRUPTED)
    except GatewayError as failed:
        if not is_json:
            raise
        error = failed
    if error is not None:
        logger.error("start failed", reason=str(error))
        sys.exit(_status_of(error))


def _log_startup(line: str) -> None:
    logger.info("startup", text=line)


def _status_of(error: GatewayError) -> int:
    return WRONG_USE if isinstance(error, SettingsError) else FAILED


@commands.command(cls=ServerCommand)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object instead of a table.")
@settings_flags(ServeSettings)
def settings(config: Path | None, *, as_json: bool, **flags: Any) -> None:  # noqa: ANN401
    """Show every setting of serve with its value and the origin of the value."""
    loaded = load(ServeSettings, flags_given(flags), config)
    values = as_json_values(loaded.settings)
    if as_json:
        rows = {
            name: {"value": value, "origin": loaded.origins[name]} for name, value in values.items()
        }
        click.echo(json.dumps(rows, indent=2))
        return
    width = max(map(len, values))
    for name, value in values.items():
        click.echo(f"{name:{width}}  {format_value(value):24} {loaded.origins[name]}")


def main(args: Sequence[str] | None = None) -> None:
    """Run the command line and exit; print an error as one line, without a traceback."""
    arguments = list(sys.argv[1:] if args is None else args)
    try:
        commands(arguments, prog_name="nsq-gateway")
    except GatewayError as error:
        click.echo(f"nsq-gateway: {printable(str(error))}", err=True)
        sys.exit(_status_of(error))
