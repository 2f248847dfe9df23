"""The command ``nsq-gateway``: settings are read here, once, and handed down."""

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
from gateway.commands.flags import (
    Command,
    ServerCommand,
    given,
    plain,
    require_use,
    settings_flags,
    shown,
)
from gateway.commands.framing import NEWLINE, parse_delimiter
from gateway.commands.health import Question, ask_health
from gateway.commands.pipeline import pipeline
from gateway.commands.pipeline_replay import metrics, replay
from gateway.errors import GatewayError, SettingRefused, SettingsError, StartError
from gateway.garbage import look_seldom_for_garbage
from gateway.lifetime import Runnable, run_until_signal
from gateway.settings import BrokerSettings, ServeSettings
from gateway.settings_commands import HealthSettings, PubSettings, SubSettings
from gateway.settings_sources import load
from gateway.telemetry import configure_logging

FAILED, WRONG_USE, INTERRUPTED = 1, 2, 130
STDIN, STDOUT = 0, 1

_EPILOG = """\b
Every setting: --help of the commands, docs/configuration.md.
What is promised to clients: openapi.yaml (HTTP), asyncapi.yaml and docs/websocket.md (/sub).

\b
Examples:
  nsq-gateway serve
  nsq-gateway serve --nsqd-tcp-address 127.0.0.1:4150 --nsqd-http-address 127.0.0.1:4151
  nsq-gateway broker -tcp-address=127.0.0.1:4150
  echo hello | nsq-gateway pub greetings
  nsq-gateway sub greetings readers
  NSQ_GATEWAY_LISTEN=127.0.0.1:9000 nsq-gateway settings

Exit status: 0 done, 1 failed, 2 wrong use, 130 interrupted."""

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

One batch is on its way at a time, made of what had come meanwhile, and the next one waits for its
answer: messages keep their order.

\b
Answers:
  OK                         the next batch
  unreachable, 503, 429      not published: tried again for --retry-for-s, with growing pauses,
                             and not before Retry-After
  504, a lost connection     nobody knows: the end, or tried again with --at-least-once
  4xx, a refusal of nsqd     not published: the end; the message to blame is named

Whatever ends it early says how many messages are published, and the command (tail) that gives the
input from the first one that is not. SIGINT and SIGTERM end it after the answer to the batch that
is on its way, and at once while it waits for the next try. On a terminal it shows how far it is;
elsewhere nothing, unless --verbose asks for the sum.

\b
Examples:
  echo hello | nsq-gateway pub greetings
  nsq-gateway pub orders --nsqd-tcp-address 127.0.0.1:4150 < orders.ndjson
  find . -name '*.jpg' -print0 | nsq-gateway pub pictures --delimiter '\\0'
  nsq-gateway pub frames --framing length-prefixed --retry-for-s 3600 -v < frames.bin
  tail -f app.log | nsq-gateway pub logs --lookupd-http-address lookup-1:4161,lookup-2:4161
  nsq-gateway pub reminders --defer-ms 60000 --url https://gateway.example --auth-secret-file key

Exit status: 0 every message is published, 1 one is not or may not be, 2 wrong use,
130 interrupted."""

_SUB_EPILOG = """\b
A message is finished once its line is written; what is not written goes back at once, whether a
signal ends the command, its count, or a reader that has gone. Written is not read: a pipe holds
some lines. A message whose body has newlines makes several lines: --json keeps it on one.

\b
Examples:
  nsq-gateway sub greetings readers
  nsq-gateway sub orders archive --nsqd-tcp-address 127.0.0.1:4150 >> orders.log
  nsq-gateway sub orders 'tail#ephemeral' --lookupd-http-address lookup-1:4161 --json | jq .body
  nsq-gateway sub orders billing -n 1 --url wss://gateway.example --auth-secret-file key

Exit status: 0 done (count, reader gone, SIGTERM), 1 failed, 2 wrong use, 130 interrupted."""

_HEALTH_EPILOG = """\b
Examples:
  nsq-gateway health
  nsq-gateway health --live --management-listen 127.0.0.1:9081

Exit status: 0 yes, 1 no, or no answer in time, 2 wrong use."""

_BROKER_EPILOG = """\b
Examples:
  nsq-gateway broker
  nsq-gateway broker -tcp-address=127.0.0.1:4150 -msg-timeout=30s"""


@click.group(epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(gateway.__version__, prog_name="nsq-gateway")
def commands() -> None:
    """HTTP and WebSockets in front of NSQ, with an embedded broker, and a client for the shell."""


@commands.command(cls=ServerCommand, epilog=_SERVE_EPILOG)
@settings_flags(ServeSettings)
def serve(config: Path | None, **flags: Any) -> None:  # noqa: ANN401 - one for each setting
    """
    Start the gateway.

    With neither --nsqd-tcp-address nor --lookupd-http-address it brings its own broker, whose
    messages live in memory. SIGTERM drains: sockets are told and closed over --drain-window-s; a
    second one stops at once.
    """
    from gateway.service import Service  # noqa: PLC0415 - only who needs it waits for it
    from gateway.workers.supervisor import Supervisor  # noqa: PLC0415 - only who needs it waits for it

    settings = load(ServeSettings, given(flags), config).settings
    configure_logging(settings.log_format, settings.log_level)
    _run(lambda: Supervisor(settings) if settings.workers > 1 else Service(settings))


@commands.command(cls=ServerCommand, epilog=_BROKER_EPILOG)
@click.version_option(gateway.__version__, prog_name="nsq-gateway")
@settings_flags(BrokerSettings)
def broker(config: Path | None, **flags: Any) -> None:  # noqa: ANN401 - one for each setting
    """
    Start the embedded broker alone, in nsqd's place.

    Flags have nsqd's names, and may be spelled as nsqd takes them (-tcp-address=…).
    """
    from gateway.service import BrokerService  # noqa: PLC0415 - only who needs it waits for it

    settings = load(BrokerSettings, given(flags), config).settings
    configure_logging(settings.log_format, settings.log_level)
    _run(lambda: BrokerService(settings))


@commands.command(cls=Command, epilog=_PUB_EPILOG)
@click.argument("topic")
@click.option(
    "--framing",
    type=click.Choice(["lines", "length-prefixed"]),
    default="lines",
    show_default=True,
    help="How messages stand in the input.",
)
@click.option(
    "--delimiter",
    default=None,
    metavar="BYTE",
    help=r"What ends a line: one byte, or \0, \t, \n, \r, \\, \xHH. [default: \n]",
)
@click.option(
    "--defer-ms",
    type=click.IntRange(min=0),
    default=0,
    metavar="MS",
    help="How long NSQ keeps each message back; they go one by one then. [default: 0]",
)
@click.option("-v", "--verbose", "is_verbose", is_flag=True, help="Tell the sum at the end.")
@settings_flags(PubSettings)
def pub(config: Path | None, **flags: Any) -> None:  # noqa: ANN401 - one for each setting
    """Publish what comes on standard input to TOPIC, at a gateway or on nsqd."""
    from gateway.commands.pub import PubTask, run_pub  # noqa: PLC0415 - only who needs it waits for it

    names = ("topic", "framing", "defer_ms", "is_verbose")
    what = {name: flags.pop(name) for name in names}
    delimiter = flags.pop("delimiter")
    if delimiter is not None and what["framing"] != "lines":
        raise SettingRefused("--delimiter", "it is for --framing lines; a length needs none")
    loaded = load(PubSettings, given(flags), config)
    require_use(loaded)
    settings = loaded.settings
    configure_logging(settings.log_format, settings.log_level)
    task = PubTask(
        **what,
        delimiter=NEWLINE if delimiter is None else parse_delimiter(delimiter),
        input=_opened(sys.stdin, STDIN),
        report=sys.stderr,
    )
    if uvloop.run(run_pub(settings, task)) is not None:
        sys.exit(INTERRUPTED)


@commands.command(cls=Command, epilog=_SUB_EPILOG)
@click.argument("topic")
@click.argument("channel")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, with id and more.")
@click.option(
    "-n",
    "--count",
    type=click.IntRange(min=1),
    default=None,
    metavar="N",
    help="End after N messages. [default: never]",
)
@settings_flags(SubSettings)
def sub(config: Path | None, *, as_json: bool, **flags: Any) -> None:  # noqa: ANN401
    """Write messages of TOPIC to standard output, a line each, as a consumer of CHANNEL."""
    from gateway.commands.sub import SubTask, run_sub  # noqa: PLC0415 - only who needs it waits for it

    topic, channel, count = (flags.pop(name) for name in ("topic", "channel", "count"))
    loaded = load(SubSettings, given(flags), config)
    require_use(loaded)
    settings = loaded.settings
    configure_logging(settings.log_format, settings.log_level)
    task = SubTask(
        topic=topic,
        channel=channel,
        as_json=as_json,
        count=count,
        output=_opened(sys.stdout, STDOUT),
    )
    if uvloop.run(run_sub(settings, task)) is signal.SIGINT:
        sys.exit(INTERRUPTED)


@commands.command(cls=Command, epilog=_HEALTH_EPILOG)
@click.option("--live", "question", flag_value="live", help="Ask whether it lives (/livez).")
@click.option(
    "--ready",
    "question",
    flag_value="ready",
    default="ready",
    help="Ask whether traffic should go there (/readyz). [default]",
)
@click.option(
    "--timeout-s",
    type=click.FloatRange(0.1, 60),
    default=2.0,
    metavar="S",
    help="Time for the whole answer. [default: 2; allowed: 0.1 to 60 s]",
)
@settings_flags(HealthSettings)
def health(config: Path | None, question: Question, timeout_s: float, **flags: Any) -> None:  # noqa: ANN401
    """
    Ask a gateway on this machine whether it is ready, or lives, and print its words.

    It is what a container engine's health check runs: the address is read from the environment
    and the file that `serve` reads.
    """
    settings = load(HealthSettings, given(flags), config).settings
    is_well, words = ask_health(settings.management_listen, question, timeout_s)
    click.echo(words)
    sys.exit(0 if is_well else FAILED)


def _opened(stream: TextIO | None, descriptor: int) -> int:
    """Return *descriptor*, which is free for any file where Python found its *stream* closed."""
    if stream is None:
        raise StartError(f"standard {'input' if descriptor == STDIN else 'output'} is closed")
    return descriptor


def _run(build: Callable[[], Runnable]) -> None:
    async def body() -> signal.Signals:
        part = build()
        look_seldom_for_garbage()
        return await run_until_signal(part, click.echo)

    if uvloop.run(body()) is signal.SIGINT:
        sys.exit(INTERRUPTED)


@commands.command(cls=ServerCommand)
@click.option("--json", "as_json", is_flag=True, help="One JSON object in place of a table.")
@settings_flags(ServeSettings)
def settings(config: Path | None, *, as_json: bool, **flags: Any) -> None:  # noqa: ANN401
    """Show every setting of serve, its value, and where the value comes from."""
    loaded = load(ServeSettings, given(flags), config)
    values = plain(loaded.settings)
    if as_json:
        rows = {
            name: {"value": value, "origin": loaded.origins[name]} for name, value in values.items()
        }
        click.echo(json.dumps(rows, indent=2))
        return
    width = max(map(len, values))
    for name, value in values.items():
        click.echo(f"{name:{width}}  {shown(value):24} {loaded.origins[name]}")


commands.add_command(pipeline)
pipeline.add_command(metrics)
pipeline.add_command(replay)


def main(args: Sequence[str] | None = None) -> None:
    """Run the command line and exit; an error is one sentence and a status, never a traceback."""
    arguments = list(sys.argv[1:] if args is None else args)
    try:
        commands(arguments, prog_name="nsq-gateway")
    except GatewayError as error:
        click.echo(f"nsq-gateway: {error}", err=True)
        sys.exit(WRONG_USE if isinstance(error, SettingsError) else FAILED)
