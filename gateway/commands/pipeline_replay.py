"""The commands `nsq-gateway pipeline metrics` and `nsq-gateway pipeline replay`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gateway.commands.flags import Command, settings_flags
from gateway.commands.pipeline import exit_with, job, ready
from gateway.errors import SettingRefused
from gateway.pipeline.clock import moment_of
from gateway.settings_replay import MetricsSettings, ReplaySettings
from gateway.words import counted, in_words

if TYPE_CHECKING:
    from gateway.pipeline.replay_plan import Tally
    from gateway.pipeline.replay_report import ReplayReport, Tasks
    from gateway.pipeline.replay_rows import Count

_HEADINGS = ("topic", "to", "rows", "bytes", "first ts", "last ts")

_METRICS_EPILOG = """\b
A message of the metrics, one JSON object:
  {"topic":"orders","window_start":"2026-11-22T04:05:00Z","window_end":"2026-11-22T04:06:00Z",
   "count":812,"bytes":162400,"redelivered":3,"max_attempts":2,
   "p50_ms":1.204,"p95_ms":3.8,"p99_ms":9.112}
  A window is published again whenever a batch has changed it: the last message of each topic and
  window_start counts. The percentiles are of received - ts, so they need clocks that agree; up to
  1000 messages of a window they are exact, above it the rank is off by a thousandth at most.

\b
Promised:
  --channel is this job's own, so each message is counted, and nobody else misses one. It is at
  least once: after a crash, or a lost connection, some messages are counted twice, as redelivered.
  What comes later than --watermark-s is left out: a message that is redelivered after a timeout
  keeps its first ts, so let --watermark-s be longer than the timeouts that are to be seen. All
  topics have one watermark.

\b
Examples:
  nsq-gateway pipeline metrics --topic orders,refunds --nsqd-tcp-address 127.0.0.1:4150 \\
      --checkpoint /data/metrics.checkpoint
  nsq-gateway pipeline metrics --topic orders --to-topic orders.metrics --window-s 10 \\
      --trigger-s 2 --lookupd-http-address lookup-1:4161 --checkpoint s3a://bucket/metrics
  nsq-gateway sub metrics 'dashboard#ephemeral'

Exit status: 0 done, or stopped by SIGTERM; 1 failed, after --retries; 2 wrong use;
130 interrupted."""

_REPLAY_EPILOG = """\b
First it counts, and shows the count; with --dry-run that is all. Then it publishes, to the topic
of the archive with .replay behind its name, unless --to-topic names another one. Whoever is to get
the messages makes a channel there.

\b
Asked before anything is published, unless --yes says so before:
  the target is the topic that was archived, so that all its consumers get the messages again
  the target has channels at an nsqd whose HTTP address is known (--nsqd-http-address, or
  --lookupd-http-address), or such an nsqd, or an nsqlookupd, does not answer

\b
Promised:
  Every row is published at least once. A replay that is killed goes on with the same --checkpoint,
  and publishes its last batch again (--max-files-per-batch): not more than that. The same
  --checkpoint with another --input, --topic, --where, --to-topic or --distinct is refused.
  Order is not promised. Messages get new ids, a new ts, and attempts from 1.
  A row that an archive has twice is replayed twice, unless --distinct.

\b
--where: SQL over the columns topic, date, hour, nsqd, id, ts, attempts, received, body; times are
in UTC. date and hour are folders: with them whole files are left out unread.

\b
Examples:
  nsq-gateway pipeline replay --input /data/orders --dry-run
  nsq-gateway pipeline replay --input /data/orders --nsqd-tcp-address 127.0.0.1:4150 \\
      --where "date = '2026-11-01' and ts >= '2026-11-01 10:30' and body like '%\\"id\\":7%'" \\
      --rate 500 --checkpoint /data/orders.replay-1
  nsq-gateway pipeline replay --input /data/orders --topic orders --to-topic orders --yes \\
      --nsqd-tcp-address 127.0.0.1:4150 --checkpoint /data/orders.replay-2

Exit status: 0 done, or stopped by SIGTERM; 1 failed, after --retries; 2 wrong use, or nobody
agreed; 130 interrupted."""


@click.command(cls=Command, epilog=_METRICS_EPILOG)
@settings_flags(MetricsSettings)
def metrics(config: Path | None, **flags: Any) -> None:  # noqa: ANN401 - one for each setting
    """Count messages by topic and window, and publish the counts to a topic."""
    exit_with(job("metrics_job").run_metrics(ready(MetricsSettings, flags, config)))


@click.command(cls=Command, epilog=_REPLAY_EPILOG)
@click.option("--dry-run", "is_dry_run", is_flag=True, help="Count, show the count, and end.")
@click.option("--yes", "is_agreed", is_flag=True, help="Agree before it is asked.")
@settings_flags(ReplaySettings)
def replay(config: Path | None, *, is_dry_run: bool, is_agreed: bool, **flags: Any) -> None:  # noqa: ANN401
    """Publish rows of an archive again."""
    settings = ready(ReplaySettings, flags, config)
    audience = Person(is_agreed=is_agreed)
    exit_with(job("replay").run_replay(settings, audience, is_dry_run=is_dry_run))


class Person:
    """Whoever has typed the command; the `Audience` of a replay."""

    def __init__(self, *, is_agreed: bool) -> None:
        self._is_agreed = is_agreed

    def counted(self, count: Count) -> None:
        """Show *count*."""
        click.echo("\n".join(table_of(count)))

    def agree(self, reasons: Sequence[str]) -> None:
        """Return if --yes was given, or is answered; raise SettingRefused if not."""
        if not self._is_agreed and not sys.stdin.isatty():
            text = "; ".join(reasons)
            raise SettingRefused("--yes", f"somebody has to agree, and no terminal is here: {text}")
        for reason in reasons:
            click.echo(f"Attention: {reason}.", err=True)
        if not self._is_agreed and not click.confirm("Publish in spite of that?", err=True):
            raise SettingRefused("--yes", "nobody agreed; nothing was published")

    def report(self, count: Count, tasks: Callable[[], Tasks | None]) -> ReplayReport:
        """Return who draws a bar on standard error."""
        made: ReplayReport = job("replay_report").ReplayReport(
            sys.stderr, total_rows=count.rows, done_rows=count.done_rows, tasks=tasks
        )
        return made


def table_of(count: Count) -> list[str]:
    """Return the lines that show *count*."""
    if not count.tallies:
        return ["There are no such rows: nothing to replay."]
    rows = [_HEADINGS, *map(_cells, count.tallies)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    size = in_words(sum(tally.size_bytes for tally in count.tallies))
    lines.append(f"{counted(count.rows, 'row')}, {size}")
    if count.done_rows:
        lines.append(f"{counted(count.done_rows, 'row')} of them were replayed before")
    return lines


def _cells(tally: Tally) -> tuple[str, ...]:
    moments = map(_moment, (tally.first_us, tally.last_us))
    return (tally.topic, tally.target, str(tally.rows), str(tally.size_bytes), *moments)


def _moment(moment_us: int | None) -> str:
    if moment_us is None:
        return "not known"
    return moment_of(moment_us, "milliseconds")
