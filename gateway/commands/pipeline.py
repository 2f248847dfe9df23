"""The commands `nsq-gateway pipeline …`: jobs on Spark, each a process of its own."""

from __future__ import annotations

import importlib
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gateway.commands.flags import Command, given, settings_flags
from gateway.errors import StartError
from gateway.settings_common import Settings
from gateway.settings_jobs import ArchiveSettings, CompactSettings
from gateway.settings_sources import load
from gateway.telemetry import configure_logging

if TYPE_CHECKING:
    from gateway.pipeline.runner import Ending

SettingsT = TypeVar("SettingsT", bound=Settings)

INTERRUPTED = 130
_OF_THE_EXTRA = ("pyspark", "py4j", "pyarrow", "pandas")

_EPILOG = """\b
Each is a process of its own with a JVM in it: Spark needs Java 17 or later (JAVA_HOME), and
pip install 'nsq-gateway[spark]'. On a cluster the same commands run under spark-submit, with the
folder of the module pyspark_nsq for a program:
  spark-submit --master spark://host:7077 .../pyspark_nsq/__main__.py archive --topic orders ...

Exit status: 0 done, or stopped by SIGTERM; 1 failed; 2 wrong use; 130 interrupted."""

_ARCHIVE_EPILOG = """\b
Files:
  OUTPUT/topic=orders/date=2026-11-22/hour=04/part-….zstd.parquet
  date and hour are those of ts, in UTC. Columns: nsqd, id, ts, attempts, received, body (raw);
  the topic is in the path. _spark_metadata lists the files that count: Spark reads by it; other
  readers may see files of batches that were tried and failed, so give them what compact writes.

\b
Promised:
  A message is finished at nsqd once its row is in the archive. Nothing is lost; after a crash, or
  a lost connection, some rows are there twice, with the same (topic, nsqd, id): compact drops them.
  Make the channel before the producers start: a channel gets what is published after it was made.

\b
Examples:
  nsq-gateway pipeline archive --topic orders --nsqd-tcp-address 127.0.0.1:4150 \\
      --output /data/orders --checkpoint /data/orders.checkpoint
  nsq-gateway pipeline archive --topic orders,refunds --available-now --idle-s 5 \\
      --lookupd-http-address lookup-1:4161,lookup-2:4161 \\
      --output s3a://bucket/nsq --checkpoint s3a://bucket/nsq.checkpoint
  nsq-gateway pipeline archive --config archive.toml --management-listen 0.0.0.0:8081

The first SIGTERM or SIGINT lets the batch in work finish within --stop-wait-s, a second one ends at
once; what was not finished goes back to nsqd.

Exit status: 0 done, or stopped by SIGTERM; 1 failed, after --retries; 2 wrong use;
130 interrupted."""


_COMPACT_EPILOG = """\b
It reads what the archive's _spark_metadata lists, hour by hour. An hour is settled --settle-s after
its end, and done again only for files that are new: their messages are added, by (topic, nsqd, id)
each once. Readers see a whole hour or none of it (on an object store, a file after the other). A
run that was killed is made up for by the next one. What is being written stands beside the output,
in OUTPUT.aside, on the same disk. Run one at a time for an --output.

\b
Examples:
  nsq-gateway pipeline compact --input /data/orders --output /data/clean
  nsq-gateway pipeline compact --input s3a://bucket/nsq --output s3a://bucket/nsq.clean \\
      --settle-s 3600 --target-file-bytes 536870912

Exit status: 0 done, or stopped by SIGTERM; 1 failed; 2 wrong use; 130 interrupted."""


@click.group(epilog=_EPILOG)
def pipeline() -> None:
    """Archive, measure and replay messages with Spark."""


@pipeline.command(cls=Command, epilog=_ARCHIVE_EPILOG)
@settings_flags(ArchiveSettings)
def archive(config: Path | None, **flags: Any) -> None:  # noqa: ANN401 - one for each setting
    """Write messages into Parquet files, by topic, date and hour."""
    exit_with(job("archive").run_archive(ready(ArchiveSettings, flags, config)))


@pipeline.command(cls=Command, epilog=_COMPACT_EPILOG)
@settings_flags(CompactSettings)
def compact(config: Path | None, **flags: Any) -> None:  # noqa: ANN401 - one for each setting
    """Make few large files of an archive, in which each message is once."""
    click.echo(job("compaction").run_compact(ready(CompactSettings, flags, config)))


def ready(kind: type[SettingsT], flags: Mapping[str, Any], config: Path | None) -> SettingsT:
    """Return the settings of a command, with logs and signals as they say; raises SettingsError."""
    settings = load(kind, given(flags), config).settings
    configure_logging(settings.log_format, settings.log_level)
    _end_at_once_on_signals()
    return settings


def job(name: str) -> ModuleType:
    """
    Return the module *name* of the pipeline, which Spark comes with.

    Raises:
        StartError: Spark is not installed.
    """
    try:
        return importlib.import_module(f"gateway.pipeline.{name}")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _OF_THE_EXTRA:
            raise
        advice = "pip install 'nsq-gateway[spark]'"
        raise StartError(f"{error.name} is not installed: {advice}") from error


def _end_at_once_on_signals() -> None:
    """Let SIGTERM and SIGINT end the process with their status, as long as nothing is read."""

    def end(number: int, frame: FrameType | None) -> None:
        del frame
        sys.exit(INTERRUPTED if number == signal.SIGINT else 0)

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)


def exit_with(ending: Ending) -> None:
    """Exit with the status of a job's *ending*, where that is not 0."""
    if ending.name == "INTERRUPTED":
        sys.exit(INTERRUPTED)
