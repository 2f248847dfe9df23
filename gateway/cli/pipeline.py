"""`nsq-gateway pipeline …`: run the Spark jobs, each in a process of its own."""

from __future__ import annotations

import importlib
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gateway.cli.options import SettingsCommand, flags_given, settings_flags
from gateway.errors import StartError
from gateway.settings.fields import Settings
from gateway.settings.loader import load
from gateway.settings.pipeline import (
    ArchiveSettings,
    CompactSettings,
    JobSettings,
    MetricsSettings,
    ReplaySettings,
    VacuumSettings,
)
from gateway.telemetry import configure_logging

if TYPE_CHECKING:
    from gateway.pipeline.jobs.runner import JobResult
    from gateway.pipeline.jobs.vacuum import VacuumResult

_METRICS_EPILOG = """\b
Each message of the metrics is a JSON object:
  {"topic":"orders","window_start":"2026-11-22T04:05:00Z","window_end":"2026-11-22T04:06:00Z",
   "count":812,"bytes":162400,"redelivered":3,"max_attempts":2,
   "p50_ms":1.204,"p95_ms":3.8,"p99_ms":9.112}
  A window is published again whenever a batch has changed it: keep the last message of each topic
  and window_start. The percentiles are of received - ts, so the clocks must agree. They are exact
  up to 1000 messages a window; above, the rank is off by at most a thousandth.

\b
Guarantees:
  Use --channel for this job only: it then counts every message, and no other consumer misses one.
  Counting is at least once: after a crash, or a lost connection, some messages are counted twice,
  as redelivered. Messages later than --watermark-s are not counted. A message that is redelivered
  after a timeout keeps its first ts, so set --watermark-s longer than the timeouts that should be
  counted. All topics share one watermark.

\b
Examples:
  nsq-gateway pipeline metrics --topic orders,refunds --nsqd-tcp-address 127.0.0.1:4150 \\
      --checkpoint /data/metrics.checkpoint
  nsq-gateway pipeline metrics --topic orders --to-topic orders.metrics --window-s 10 \\
      --trigger-s 2 --lookupd-http-address lookup-1:4161 --checkpoint s3a://bucket/metrics
  nsq-gateway sub metrics 'dashboard#ephemeral'

Exit status: 0 success, or stopped by SIGTERM; 1 failure, after --retries; 2 usage error;
130 interrupted."""

_REPLAY_EPILOG = """\b
The command counts the rows and shows the count; with --dry-run that is all. Then it publishes them
to the archived topic's name with .replay appended, unless --to-topic names another topic. To
receive the messages, create a channel there.

\b
It asks for confirmation before it publishes, unless --yes is given, if
  the target is the archived topic itself, so that all its consumers receive the messages again
  the target has channels at an nsqd whose HTTP address is known (--nsqd-http-address, or
  --lookupd-http-address), or such an nsqd, or an nsqlookupd, does not answer

\b
Guarantees:
  Every row is published at least once. A replay that was killed continues with the same
  --checkpoint, and publishes at most its last batch again (--max-files-per-batch). The same
  --checkpoint with another --input, --topic, --where, --to-topic or --distinct is refused.
  Order is not guaranteed. Messages get new ids, a new ts, and attempts from 1.
  A row that is in the archive twice is replayed twice, unless --distinct is given.

\b
--where: SQL over the columns topic, date, hour, nsqd, id, ts, attempts, received, body; times are
in UTC. date and hour are folders: conditions on them skip whole files.

\b
Examples:
  nsq-gateway pipeline replay --input /data/orders --dry-run
  nsq-gateway pipeline replay --input /data/orders --nsqd-tcp-address 127.0.0.1:4150 \\
      --where "date = '2026-11-01' and ts >= '2026-11-01 10:30' and body like '%\\"id\\":7%'" \\
      --rate 500 --checkpoint /data/orders.replay-1
  nsq-gateway pipeline replay --input /data/orders --topic orders --to-topic orders --yes \\
      --nsqd-tcp-address 127.0.0.1:4150 --checkpoint /data/orders.replay-2

Exit status: 0 success, or stopped by SIGTERM; 1 failure, after --retries; 2 usage error, or not
confirmed; 130 interrupted."""


@click.command(cls=SettingsCommand, epilog=_METRICS_EPILOG)
@settings_flags(MetricsSettings)
def metrics(config: Path | None, **flags: Any) -> None:  # noqa: ANN401 - one per setting
    """Count messages by topic and window, and publish the counts to a topic."""
    settings = load_settings(MetricsSettings, flags, config)
    exit_with(
        run_and_export(settings, "metrics", lambda: job_module("metrics").run_metrics(settings))
    )


@click.command(cls=SettingsCommand, epilog=_REPLAY_EPILOG)
@click.option("--dry-run", "is_dry_run", is_flag=True, help="Show the count, and exit.")
@click.option(
    "--yes", "is_confirmed", is_flag=True, help="Publish without asking for confirmation."
)
@settings_flags(ReplaySettings)
def replay(config: Path | None, *, is_dry_run: bool, is_confirmed: bool, **flags: Any) -> None:  # noqa: ANN401
    """Publish messages of an archive again."""
    settings = load_settings(ReplaySettings, flags, config)
    module = job_module("replay")
    prompt = module.ReplayPrompt(is_confirmed=is_confirmed)

    def run() -> JobResult:
        result: JobResult = module.run_replay(settings, prompt, is_dry_run=is_dry_run)
        return result

    # Metrics of a dry run would report a success although nothing was replayed.
    exit_with(run() if is_dry_run else run_and_export(settings, "replay", run))


ResultT = TypeVar("ResultT")
SettingsT = TypeVar("SettingsT", bound=Settings)

INTERRUPTED = 130
_SPARK_PACKAGES = ("pyspark", "py4j", "pyarrow", "pandas")

_EPILOG = """\b
Each command runs in a process of its own, with a JVM: Spark needs Java 17 or later (JAVA_HOME), and
pip install 'nsq-gateway[spark]'. On a cluster run the same commands with spark-submit; the program
is in the folder of the module pyspark_nsq:
  spark-submit --master spark://host:7077 .../pyspark_nsq/__main__.py archive --topic orders ...

Exit status: 0 success, or stopped by SIGTERM; 1 failure; 2 usage error; 130 interrupted."""

_ARCHIVE_EPILOG = """\b
Files:
  OUTPUT/topic=orders/date=2026-11-22/hour=04/part-….zstd.parquet
  date and hour are those of ts, in UTC. Columns: nsqd, id, ts, attempts, received, body (raw);
  the topic is in the path. A batch is written to OUTPUT.staging and renamed once it is complete,
  so readers see committed files only. _batches has a record of each batch.
  With --format delta or iceberg the output is a table with these partitions, and a batch is one
  commit.

\b
Guarantees:
  A message is finished at nsqd once its row is in the archive. Nothing is lost; after a crash, or
  a lost connection, some rows are there twice, with the same (topic, nsqd, id): compact drops them.
  Create the channel before the producers start: a channel receives only later messages.

\b
Examples:
  nsq-gateway pipeline archive --topic orders --nsqd-tcp-address 127.0.0.1:4150 \\
      --output /data/orders --checkpoint /data/orders.checkpoint
  nsq-gateway pipeline archive --topic orders,refunds --available-now --idle-s 5 \\
      --lookupd-http-address lookup-1:4161,lookup-2:4161 \\
      --output s3a://bucket/nsq --checkpoint s3a://bucket/nsq.checkpoint
  nsq-gateway pipeline archive --config archive.toml --management-listen 0.0.0.0:8081

The first SIGTERM or SIGINT lets the batch in progress finish within --stop-wait-s and requeues
unfinished messages; a second one ends the process at once.

Exit status: 0 success, or stopped by SIGTERM; 1 failure, after --retries; 2 usage error;
130 interrupted."""


_COMPACT_EPILOG = """\b
The command reads the archive hour by hour. An hour is compacted --settle-s after its end, and again
only for new files: their messages are added, each (topic, nsqd, id) once. Readers see a whole hour
or none of it (on an object store, file by file). The next run completes a run that was killed.
Files in progress are in OUTPUT.aside, which must be on the same disk as OUTPUT. Run one compaction
at a time for an --output.

\b
Examples:
  nsq-gateway pipeline compact --input /data/orders --output /data/clean
  nsq-gateway pipeline compact --input /data/orders --output /data/clean --include-current-hour
  nsq-gateway pipeline compact --input s3a://bucket/nsq --output s3a://bucket/nsq.clean \\
      --settle-s 3600 --target-file-bytes 536870912

Exit status: 0 success, or stopped by SIGTERM; 1 failure; 2 usage error; 130 interrupted."""


_VACUUM_EPILOG = """\b
The command deletes
  files of batches that were killed or failed, and empty ones, which readers do not see;
  with --retain-days, days that ended longer ago, with all their files;
  with --compacted, files of --input whose rows are compacted: readers must use the compaction.
It may run while the archive runs. Do not run it while a replay or a query reads what it deletes.
--dry-run shows what would be deleted.

\b
Examples:
  nsq-gateway pipeline vacuum --input /data/orders --dry-run
  nsq-gateway pipeline vacuum --input /data/orders --compacted /data/clean
  nsq-gateway pipeline vacuum --input /data/clean --retain-days 90

Exit status: 0 success, or stopped by SIGTERM; 1 failure; 2 usage error; 130 interrupted."""


@click.group(epilog=_EPILOG)
def pipeline() -> None:
    """Archive, measure and replay messages with Spark."""


@pipeline.command(cls=SettingsCommand, epilog=_ARCHIVE_EPILOG)
@settings_flags(ArchiveSettings)
def archive(config: Path | None, **flags: Any) -> None:  # noqa: ANN401 - one per setting
    """Write messages to Parquet files or a table, by topic, date and hour."""
    settings = load_settings(ArchiveSettings, flags, config)
    exit_with(
        run_and_export(settings, "archive", lambda: job_module("archive").run_archive(settings))
    )


@pipeline.command(cls=SettingsCommand, epilog=_COMPACT_EPILOG)
@settings_flags(CompactSettings)
def compact(config: Path | None, **flags: Any) -> None:  # noqa: ANN401 - one per setting
    """Rewrite an archive as few large files, each message once."""
    settings = load_settings(CompactSettings, flags, config)
    click.echo(
        run_and_export(settings, "compact", lambda: job_module("compact").run_compact(settings))
    )


@pipeline.command(cls=SettingsCommand, epilog=_VACUUM_EPILOG)
@click.option("--dry-run", "is_dry_run", is_flag=True, help="Show what would be deleted, and exit.")
@settings_flags(VacuumSettings)
def vacuum(config: Path | None, *, is_dry_run: bool, **flags: Any) -> None:  # noqa: ANN401
    """Delete files of failed batches, of expired days and of compacted hours."""
    settings = load_settings(VacuumSettings, flags, config)

    def run() -> VacuumResult:
        result: VacuumResult = job_module("vacuum").run_vacuum(settings, is_dry_run=is_dry_run)
        return result

    result = run() if is_dry_run else run_and_export(settings, "vacuum", run)
    click.echo(result.report(is_dry_run=is_dry_run))


def load_settings(
    kind: type[SettingsT], flags: Mapping[str, Any], config: Path | None
) -> SettingsT:
    """
    Return the settings of the command with the settings *kind*; configure logging and signals.

    Raises:
        SettingsError: A name is unknown, or a value is invalid.
    """
    settings = load(kind, flags_given(flags), config).settings
    configure_logging(settings.log_format, settings.log_level)
    _exit_on_signals()
    return settings


def job_module(name: str) -> ModuleType:
    """
    Import and return the module of the job *name*, which needs Spark.

    Modules are imported this late so that `--help` works without Spark.

    Raises:
        StartError: Spark is not installed.
    """
    try:
        return importlib.import_module(f"gateway.pipeline.jobs.{name}")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _SPARK_PACKAGES:
            raise
        advice = "pip install 'nsq-gateway[spark]'"
        raise StartError(f"{error.name} is not installed: {advice}") from error


def run_and_export(settings: JobSettings, command: str, run: Callable[[], ResultT]) -> ResultT:
    """Call *run* and return its result; export the job's metrics if *settings* ask for that."""
    result: ResultT = job_module("metrics_export").run_exported(settings, command, run)
    return result


def _exit_on_signals() -> None:
    """Let SIGTERM exit with status 0 and SIGINT with 130, until a stream sets its own handlers."""

    def end(number: int, frame: FrameType | None) -> None:
        del frame
        sys.exit(INTERRUPTED if number == signal.SIGINT else 0)

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)


def exit_with(result: JobResult) -> None:
    """Exit with status 130 if SIGINT has ended the job; otherwise return."""
    if result.name == "INTERRUPTED":
        sys.exit(INTERRUPTED)
