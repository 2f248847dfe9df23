"""
The commands that show and change topics and channels: by a gateway, or at the nsqds themselves.

`gateway.cli.main` adds them to ``nsq-gateway``.
"""

from __future__ import annotations

import asyncio
import fnmatch
import json
import shutil
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import click
import msgspec
import uvloop

from gateway.aio import spawn
from gateway.cli.cluster import Cluster, open_cluster
from gateway.cli.cluster_stats import (
    ClusterStats,
    NodeReport,
    NodesReport,
    NodeSum,
    Row,
    channel_row,
    describe_loss,
    describe_subject,
    matching,
    most_trouble_first,
    node_row,
    ordered,
    parse_cluster_stats,
    parse_nodes,
    parse_peek,
    table,
    topic_row,
    with_rates,
)
from gateway.cli.options import (
    SettingsCommand,
    check_topic_and_channel_names,
    flags_given,
    settings_flags,
)
from gateway.cli.stdio import FAILED, INTERRUPTED, watch_signals
from gateway.client.peek import DEFAULT_MESSAGES, MAX_MESSAGES
from gateway.errors import GatewayError, InvalidRequest, NoBroker, SettingRefused
from gateway.settings.commands import OperateSettings
from gateway.settings.loader import load
from gateway.telemetry import configure_logging
from gateway.terminal import TerminalLine, printable

T = TypeVar("T")

_HOME_AND_CLEAR = "\x1b[H\x1b[J"
_CHANNEL_COLUMNS = (
    *("topic", "channel", "depth", "in_flight", "deferred", "requeued", "timed_out", "messages"),
    *("consumers", "paused"),
)
_TOPIC_COLUMNS = (
    *("topic", "depth", "in_flight", "deferred", "messages", "channels", "nodes", "paused"),
)
_NODE_COLUMNS = (
    *("node", "state", "version", "topics", "channels", "depth", "in_flight", "deferred"),
    *("consumers", "health"),
)
_WATCH_COLUMNS = (
    *("topic", "channel", "depth", "in_flight", "deferred", "messages_per_s", "requeued_per_s"),
    *("timed_out_per_s", "consumers", "paused"),
)
_DRAINED = "drained"
_DRAIN_INTERVAL_S = 2.0
"""Seconds between two looks at an nsqd that drains."""
_DONE = {
    "create": "created",
    "pause": "paused",
    "unpause": "unpaused",
    "empty": "emptied",
    "delete": "deleted",
}

_TARGET_EPILOG = """
A gateway is asked with --url (default: http://127.0.0.1:8080). With --nsqd-http-address or
--lookupd-http-address, the nsqds are asked without a gateway. Numbers are sums over all nsqds. If
one does not answer, a line on standard error names it, and the exit status is 1.

Exit status: 0 success, 1 failure, 2 usage error, 130 interrupted."""


def _epilog(*examples: str) -> str:
    lines = "\n".join(f"  nsq-gateway {example}" for example in examples)
    return f"\b\nExamples:\n{lines}\n{_TARGET_EPILOG}"


def _load(flags: dict[str, Any], config: Path | None) -> OperateSettings:
    settings = load(OperateSettings, flags_given(flags), config).settings
    configure_logging(settings.log_format, settings.log_level)
    return settings


def _run(work: Coroutine[Any, Any, T]) -> T:
    """Run *work*, and return its result or raise its GatewayError; exit with 130 after SIGINT."""

    async def outcome() -> tuple[T | None, GatewayError | None]:
        # Returned: `spawn` would log an error that is raised, as a bug.
        try:
            return await work, None
        except GatewayError as error:
            return None, error

    async def until_signal() -> tuple[T | None, GatewayError | None] | None:
        interruption = watch_signals(signal.SIGINT)
        task = spawn("run the command", outcome())
        endings: set[asyncio.Future[Any]] = {task, interruption}
        await asyncio.wait(endings, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        task.cancel()
        await asyncio.wait({task})
        return None

    ended = uvloop.run(until_signal())
    if ended is None:
        sys.exit(INTERRUPTED)
    result, error = ended
    if error is not None:
        raise error
    return cast("T", result)


def _exit_if_lost(nodes: Sequence[NodeSum | NodeReport]) -> None:
    """Name the nsqds that did not answer; exit with 1 if there is one."""
    lost = [node for node in nodes if node.error is not None]
    for node in lost:
        text = f"nsqd {node.node} did not answer: {node.error}; its numbers are missing"
        click.echo(printable(text), err=True)
    if lost:
        sys.exit(FAILED)


async def _stats(settings: OperateSettings, topic: str | None = None) -> ClusterStats:
    async with open_cluster(settings) as cluster:
        return parse_cluster_stats(await cluster.stats(topic))


async def _nodes(settings: OperateSettings) -> NodesReport:
    async with open_cluster(settings) as cluster:
        return parse_nodes(await cluster.nodes())


_match_option = click.option(
    "--match",
    "pattern",
    default="*",
    metavar="PATTERN",
    help="Only rows with a name like this: * is any text, ? one character. [default: *]",
)


def _sort_option(columns: Sequence[str]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return the option --sort for rows with *columns*."""
    return click.option(
        "--sort",
        "sort_by",
        type=click.Choice([column for column in columns if column != "paused"]),
        help="Order by this column: numbers from the largest, names from a. [default: what nobody "
        "consumes, then what waits most]",
    )


_json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print a JSON object for each row, on a line."
)


def _show(
    rows: Sequence[Row], columns: Sequence[str], pattern: str, nothing: str, *, as_json: bool
) -> None:
    """Print the *rows* that match *pattern*; to standard error *nothing*, if there is none."""
    shown = matching(rows, lambda name: fnmatch.fnmatchcase(name, pattern))
    if as_json:
        for row in shown:
            click.echo(json.dumps(row))
    elif shown:
        click.echo("\n".join(table(shown, columns, width=_terminal_width())))
    else:
        click.echo(nothing if pattern == "*" else f"{nothing} like {pattern}", err=True)


def _terminal_width() -> int | None:
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


@click.command(
    cls=SettingsCommand, epilog=_epilog("topics", "topics --match 'orders*' --json | jq .depth")
)
@_sort_option(_TOPIC_COLUMNS)
@_match_option
@_json_option
@settings_flags(OperateSettings)
def topics(
    config: Path | None,
    *,
    pattern: str,
    sort_by: str | None,
    as_json: bool,
    **flags: Any,  # noqa: ANN401 - one for each setting
) -> None:
    """
    List topics, the one with the most waiting messages first.

    Depth, in flight and deferred include the channels of the topic.
    """
    stats = _run(_stats(_load(flags, config)))
    rows = ordered(map(topic_row, stats.topics.values()), sort_by)
    _show(rows, _TOPIC_COLUMNS, pattern, "no topics", as_json=as_json)
    _exit_if_lost(stats.nodes)


@click.command(cls=SettingsCommand, epilog=_epilog("channels", "channels orders"))
@click.argument("topic", required=False)
@_sort_option(_CHANNEL_COLUMNS)
@_match_option
@_json_option
@settings_flags(OperateSettings)
def channels(
    config: Path | None,
    topic: str | None,
    *,
    pattern: str,
    sort_by: str | None,
    as_json: bool,
    **flags: Any,  # noqa: ANN401 - one for each setting
) -> None:
    """List the channels of all topics, or of TOPIC: first those that fall behind."""
    if topic is not None:
        check_topic_and_channel_names(topic=topic)
    stats = _run(_stats(_load(flags, config), topic))
    rows = ordered(map(channel_row, stats.channels), sort_by)
    _show(rows, _CHANNEL_COLUMNS, pattern, "no channels", as_json=as_json)
    _exit_if_lost(stats.nodes)


@click.command(cls=SettingsCommand, epilog=_epilog("nodes"))
@_match_option
@_json_option
@settings_flags(OperateSettings)
def nodes(config: Path | None, *, pattern: str, as_json: bool, **flags: Any) -> None:  # noqa: ANN401
    """
    List the nsqds: state, version, health, and what waits there.

    The state is active, draining, drained (nothing waits any more) or unreachable; then the health
    is the reason. A line on standard error names what an nsqlookupd does not know, but another one
    does.
    """
    report = _run(_nodes(_load(flags, config)))
    rows = [node_row(node) for node in report.nodes]
    _show(rows, _NODE_COLUMNS, pattern, "no nsqds", as_json=as_json)
    for problem in (problem for each in report.lookupds for problem in each.problems):
        click.echo(printable(problem), err=True)
    _exit_if_lost(report.nodes)
    if any(each.error for each in report.lookupds):
        sys.exit(FAILED)


@click.command(cls=SettingsCommand, epilog=_epilog("stats", "stats --watch", "stats --json"))
@click.option("--watch", "is_watching", is_flag=True, help="Continue, and show rates.")
@click.option(
    "--interval-s",
    type=click.FloatRange(0.5, 3600),
    default=2.0,
    metavar="S",
    help="Time between two readings with --watch. [default: 2; allowed: 0.5 to 3600 s]",
)
@click.option(
    "-n",
    "--lines",
    type=click.IntRange(min=1),
    default=20,
    metavar="N",
    help="Maximum number of channels. [default: 20]",
)
@_match_option
@click.option(
    "--json", "as_json", is_flag=True, help="Print a JSON object for each reading, on a line."
)
@settings_flags(OperateSettings)
def stats(config: Path | None, **flags: Any) -> None:  # noqa: ANN401 - one for each setting
    """
    Show the totals of the cluster, and the channels that fall behind.

    First come channels that nobody consumes, then those with the most waiting messages.
    """
    names = ("is_watching", "interval_s", "lines", "pattern", "as_json")
    options = {name: flags.pop(name) for name in names}
    settings = _load(flags, config)
    is_watching, interval_s = options.pop("is_watching"), options.pop("interval_s")
    report = _Report(is_watching=is_watching, **options)

    async def watch() -> None:
        loop = asyncio.get_running_loop()
        async with open_cluster(settings) as cluster:
            while True:
                began_at = loop.time()
                try:
                    report.show(parse_cluster_stats(await cluster.stats()), began_at)
                except GatewayError as error:
                    # A restart of the gateway must not end a watch; the first reading must succeed.
                    if not report.has_shown:
                        raise
                    click.echo(
                        f"{printable(str(error))}; trying again in {interval_s:g} s", err=True
                    )
                await asyncio.sleep(began_at + interval_s - loop.time())

    if is_watching:
        _run(watch())
    else:
        found = _run(_stats(settings))
        report.show(found, 0.0)
        _exit_if_lost(found.nodes)


class _Report:
    """The output of `stats`: totals and channels, with rates from the second reading on."""

    def __init__(self, *, is_watching: bool, lines: int, pattern: str, as_json: bool) -> None:
        self._is_watching = is_watching
        self._lines = lines
        self._pattern = pattern
        self._as_json = as_json
        self._before: dict[tuple[str, str], Row] = {}
        self._read_at = 0.0
        self.has_shown = False
        """True after the first reading."""

    def show(self, stats: ClusterStats, read_at: float) -> None:
        """Print *stats*, which were read at *read_at* (monotonic seconds)."""
        rows = matching(
            sorted(map(channel_row, stats.channels), key=most_trouble_first),
            lambda name: fnmatch.fnmatchcase(name, self._pattern),
        )
        elapsed_s = read_at - self._read_at
        rated = [
            with_rates(row, self._before.get((row["topic"], row["channel"])), elapsed_s)
            for row in rows
        ]
        self._before = {(row["topic"], row["channel"]): row for row in rows}
        self._read_at = read_at
        self.has_shown = True
        totals = {
            "nodes": len(stats.nodes),
            "nodes_lost": len(stats.lost),
            "topics": len(stats.topics),
            "channels": len(stats.channels),
            "depth": sum(node.depth for node in stats.nodes),
            "in_flight": sum(node.in_flight for node in stats.nodes),
            "deferred": sum(node.deferred for node in stats.nodes),
        }
        shown = rated[: self._lines]
        if self._as_json:
            click.echo(json.dumps({**totals, "first_channels": shown}))
            return
        columns = _WATCH_COLUMNS if self._is_watching else _CHANNEL_COLUMNS
        text = [*table([totals], tuple(totals)), ""]
        text += table(shown, columns, width=_terminal_width()) if shown else ["no channels"]
        if len(rated) > len(shown):
            text.append(f"and {len(rated) - len(shown)} more (-n)")
        if self._is_watching and sys.stdout.isatty():
            click.echo(_HOME_AND_CLEAR, nl=False)
        click.echo("\n".join(text))


def _change_command(
    action: str, text: str, *examples: str, is_destructive: bool = False
) -> click.Command:
    """Return the command that does *action*; *text* is its help."""

    def command(
        config: Path | None,
        topic: str,
        channel: str | None,
        **flags: Any,  # noqa: ANN401 - one for each setting
    ) -> None:
        is_confirmed = flags.pop("is_confirmed", True)
        names = {"topic": topic} if channel is None else {"topic": topic, "channel": channel}
        check_topic_and_channel_names(**names)
        settings = _load(flags, config)
        if not is_confirmed:
            loss = describe_loss(action, _run(_stats(settings, topic)), topic, channel)
            _confirm(action, loss, channel or topic)

        async def change() -> None:
            async with open_cluster(settings) as cluster:
                await cluster.change(action, topic, channel)

        _run(change())
        click.echo(f"{_DONE[action]} {describe_subject(topic, channel)}")

    command.__doc__ = text
    decorated: Callable[..., None] = settings_flags(OperateSettings)(command)
    if is_destructive:
        decorated = click.option(
            "--yes", "is_confirmed", is_flag=True, help="Do not ask for a confirmation."
        )(decorated)
    decorated = click.argument("channel", required=False)(decorated)
    decorated = click.argument("topic")(decorated)
    return click.command(action, cls=SettingsCommand, epilog=_epilog(*examples))(decorated)


def _confirm(action: str, loss: str, name: str) -> None:
    """
    Say what *action* destroys, and let *name* be typed; exit with 1 if it is not.

    Raises:
        SettingRefused: Nobody can be asked, because standard input is not a terminal.
    """
    if not sys.stdin.isatty():
        raise SettingRefused(
            f"{action} without --yes",
            f"standard input is not a terminal, so that nobody can confirm: {loss}",
        )
    click.echo(loss, err=True)
    if click.prompt(f"Type {name} to confirm", default="", show_default=False, err=True) != name:
        click.echo("not confirmed; nothing was changed", err=True)
        sys.exit(FAILED)


create = _change_command(
    "create",
    "Create TOPIC, or CHANNEL of TOPIC, on every nsqd. What exists stays as it is.",
    "create orders",
    "create orders billing",
)
pause = _change_command(
    "pause",
    "Pause TOPIC or CHANNEL: consumers get nothing, and messages wait, until it is unpaused.",
    "pause orders billing",
)
unpause = _change_command(
    "unpause", "Deliver the messages of TOPIC or CHANNEL again.", "unpause orders billing"
)
empty = _change_command(
    "empty",
    "Delete all messages of CHANNEL, or those that wait in TOPIC itself.\n\n"
    "Messages in flight and deferred ones are deleted too. The channels of a topic keep theirs.",
    "empty orders billing",
    "empty orders billing --yes --lookupd-http-address lookup-1:4161",
    is_destructive=True,
)
delete = _change_command(
    "delete",
    "Delete TOPIC with all its channels, or CHANNEL, on every nsqd and nsqlookupd.\n\n"
    "Consumers of a deleted channel are disconnected; one that reconnects creates it again.",
    "delete orders",
    "delete orders billing --yes",
    is_destructive=True,
)


@click.command(
    cls=SettingsCommand, epilog=_epilog("peek orders billing", "peek orders billing --take -n 50")
)
@click.argument("topic")
@click.argument("channel")
@click.option(
    "-n",
    "--count",
    type=click.IntRange(1, MAX_MESSAGES),
    default=DEFAULT_MESSAGES,
    metavar="N",
    help=f"Maximum number of messages. [default: {DEFAULT_MESSAGES}; allowed: 1 to {MAX_MESSAGES}]",
)
@click.option(
    "--take",
    "may_take",
    is_flag=True,
    help="Take the messages and give them back at once, where nsqd cannot show them.",
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object for each message.")
@settings_flags(OperateSettings)
def peek(config: Path | None, topic: str, channel: str, **flags: Any) -> None:  # noqa: ANN401
    """
    Look at messages of CHANNEL, without finishing any; by a gateway.

    The embedded broker shows them, and nothing changes. nsqd cannot: with --take, they are
    delivered and given back at once, which adds 1 to their attempts and puts them behind the
    others. Bodies are printed one on each line.
    """
    names = ("count", "may_take", "as_json")
    options = {name: flags.pop(name) for name in names}
    check_topic_and_channel_names(topic=topic, channel=channel)
    settings = _load(flags, config)
    may_take = options["may_take"]

    async def look() -> bytes:
        async with open_cluster(settings) as cluster:
            return await cluster.peek(topic, channel, options["count"], may_take=may_take)

    try:
        found = parse_peek(_run(look()))
    except InvalidRequest as error:
        if error.token != "PEEK_TAKES":
            raise
        raise InvalidRequest(error.token, f"{error.detail} (here: --take)") from error
    for message in found.messages:
        line = msgspec.json.encode(message) if options["as_json"] else message.body_bytes
        sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()
    if found.more:
        click.echo("the channel has more messages (-n)", err=True)


# Nodes


@click.command(
    cls=SettingsCommand,
    epilog=_epilog("tombstone orders 10.0.0.1:4151", "tombstone orders 10.0.0.1:4151 --yes"),
)
@click.argument("topic")
@click.argument("node")
@click.option("--yes", "is_confirmed", is_flag=True, help="Do not ask for a confirmation.")
@settings_flags(OperateSettings)
def tombstone(
    config: Path | None,
    topic: str,
    node: str,
    *,
    is_confirmed: bool,
    **flags: Any,  # noqa: ANN401 - one for each setting
) -> None:
    """
    Delete TOPIC, with its channels and messages, at the nsqd with the HTTP address NODE only.

    Every nsqlookupd hides it there meanwhile, so that no consumer connects and creates it again. A
    publish to this nsqd does: let publishers go elsewhere first, for example with drain.
    """
    check_topic_and_channel_names(topic=topic)
    settings = _load(flags, config)

    async def loss() -> str:
        async with open_cluster(settings) as cluster:
            stats = parse_cluster_stats(await cluster.stats(topic), node=node)
            return describe_loss("tombstone", stats, topic, None)

    async def change() -> None:
        async with open_cluster(settings) as cluster:
            await cluster.tombstone(topic, node)

    if not is_confirmed:
        _confirm("tombstone", _run(loss()), topic)
    _run(change())
    click.echo(f"tombstoned topic {topic} on {node}")


@click.command(
    cls=SettingsCommand, epilog=_epilog("drain 10.0.0.1:4151", "drain 10.0.0.1:4151 --wait")
)
@click.argument("node")
@click.option(
    "--wait",
    "is_waiting",
    is_flag=True,
    help="Wait until the nsqd has no message left, and show how many there are.",
)
@settings_flags(OperateSettings)
def drain(config: Path | None, node: str, *, is_waiting: bool, **flags: Any) -> None:  # noqa: ANN401
    """
    Let gateways publish to other nsqds than the one with the HTTP address NODE.

    Consumers stay, and take what is there. Clients that publish to the nsqd directly are listed,
    since they have to be moved as well. A restart of gateways or of the nsqd does not end the
    drain; undrain does.
    """
    settings = _load(flags, config)

    async def begin() -> NodeReport:
        async with open_cluster(settings) as cluster:
            await cluster.drain(node)
            return await _node(cluster, node)

    async def wait() -> None:
        async with open_cluster(settings) as cluster:
            line = TerminalLine(sys.stderr)
            try:
                while (found := await _node(cluster, node)).state != _DRAINED:
                    line.draw(f"{node}: {_waiting(found)}")
                    await asyncio.sleep(_DRAIN_INTERVAL_S)
            finally:
                line.finish("")

    found = _run(begin())
    click.echo(f"draining {node}: {_waiting(found)}")
    for producer in found.producers:
        click.echo(f"publishes there directly: {printable(producer.text)}", err=True)
    if is_waiting:
        _run(wait())
        click.echo(f"drained {node}: it has no message left")


async def _node(cluster: Cluster, node: str) -> NodeReport:
    """Return the report of *node*; raises NoBroker if it does not answer."""
    (found,) = parse_nodes(await cluster.nodes(node)).nodes
    if found.error is not None:
        raise NoBroker(f"nsqd {node} did not answer: {found.error}")
    return found


def _waiting(node: NodeReport) -> str:
    if not node.waiting:
        return "no message waits"
    return f"depth {node.depth}, in flight {node.in_flight}, deferred {node.deferred}"


@click.command(cls=SettingsCommand, epilog=_epilog("undrain 10.0.0.1:4151"))
@click.argument("node")
@settings_flags(OperateSettings)
def undrain(config: Path | None, node: str, **flags: Any) -> None:  # noqa: ANN401
    """Let gateways publish again to the nsqd with the HTTP address NODE."""
    settings = _load(flags, config)

    async def change() -> None:
        async with open_cluster(settings) as cluster:
            await cluster.undrain(node)

    _run(change())
    click.echo(f"undrained {node}")


OPERATE_COMMANDS: tuple[click.Command, ...] = (
    *(topics, channels, nodes, stats),
    *(create, pause, unpause, empty, delete),
    *(peek, tombstone, drain, undrain),
)
"""The commands of this module."""
