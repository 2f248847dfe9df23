"""
The replay: rows of an archive back into NSQ, in batches of a stream that can be killed and goes on.

Spark's checkpoint says which files are done. Beside its own files lie two notes: which replay it is
of, and how many rows are done, for whoever looks. Order is not promised: files are read as they
lie there, several at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody does
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from gateway.errors import SettingRefused
from gateway.pipeline.options import FORMAT, check_name, option_of, options_of, require_nsqd
from gateway.pipeline.progress import ProgressListener, listening
from gateway.pipeline.replay_channels import find_channels
from gateway.pipeline.replay_plan import Identity, done_rows_of, reasons_to_ask
from gateway.pipeline.replay_report import ReplayReport, Tasks
from gateway.pipeline.replay_rows import Count, chosen, count_rows, read_archive
from gateway.pipeline.runner import Ending, run_stream
from gateway.pipeline.session import session
from gateway.pipeline.sink import read_sink_settings
from gateway.pipeline.storage import Storage
from gateway.settings_common import flag_of
from gateway.settings_jobs import QueryJobSettings, StreamJobSettings
from gateway.settings_replay import REPLAY_SUFFIX, ReplaySettings
from gateway.settings_sink import SinkSettings

NAME = "replay"
NOTE, DONE = "nsq-gateway-replay.json", "nsq-gateway-replay-rows"
"""In the checkpoint: which replay it is of, and how many rows are done."""

_OF_SPARK = "metadata"
"""What Spark puts into every checkpoint."""
_AGE = "36500d"
"""A file that is older than others by this is left out: without it that would be a week."""
_ROCKS_DB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_STATE_STORE = "spark.sql.streaming.stateStore.providerClass"


class Audience(Protocol):
    """Who looks on, and decides."""

    def counted(self, count: Count) -> None:
        """Learn what there is to replay, before anything is published."""

    def agree(self, reasons: Sequence[str]) -> None:
        """Return if it may begin in spite of *reasons*; raise SettingRefused if not."""

    def report(self, count: Count, tasks: Callable[[], Tasks | None]) -> ReplayReport:
        """Return who is told how far it is."""


def run_replay(settings: ReplaySettings, audience: Audience, *, is_dry_run: bool) -> Ending:
    """
    Count, ask, and publish until all is done, or a signal comes; a dry run only counts.

    Raises:
        SettingsError: A setting is missing or cannot be used, or nobody agreed.
        StartError: Spark cannot run here.
        JobFailed: The stream failed for good, or the archive cannot be read.
    """
    check_replay(settings, is_dry_run=is_dry_run)
    with session(settings, NAME) as spark:
        return replay_in(spark, settings, audience, is_dry_run=is_dry_run)


def check_replay(settings: ReplaySettings, *, is_dry_run: bool) -> None:
    """Raise SettingsError for what is missing, or wrong, as far as Spark is not needed for it."""
    if not settings.input:
        raise SettingRefused("--input", "say where the archive is")
    for name in settings.topic:
        check_name("--topic", name)
    if settings.to_topic:
        check_name("--to-topic", settings.to_topic)
    if is_dry_run:
        return
    require_nsqd(settings, flag_of)
    if not settings.checkpoint:
        reason = "say where Spark keeps which files are done: a folder of this replay alone"
        raise SettingRefused("--checkpoint", reason)
    read_sink_settings(_sink_options(settings, 1))


def replay_in(
    spark: SparkSession, settings: ReplaySettings, audience: Audience, *, is_dry_run: bool
) -> Ending:
    """Do what `run_replay` does, in the session *spark*."""
    notes = Storage(spark, settings.checkpoint) if settings.checkpoint else None
    identity = identity_of(spark, settings)
    if notes is not None:
        require_own(notes, identity, settings.checkpoint)
    done_rows = done_rows_of(notes.read(DONE) if notes else None)
    archive = read_archive(spark, settings)
    count = count_rows(archive, settings, done_rows)
    audience.counted(count)
    if is_dry_run or not count.rows or notes is None:
        return Ending.DONE
    targets = {tally.target for tally in count.tallies}
    reasons = reasons_to_ask(count.tallies, asyncio.run(find_channels(settings, targets)))
    if reasons:
        audience.agree(reasons)
    if not notes.exists(NOTE):
        notes.write(NOTE, identity.as_text())
    report = audience.report(count, lambda: _tasks(spark))
    progress = Progress(report, notes)
    with listening(spark, progress):
        return _publish(spark, settings, archive.schema, count, report)


def identity_of(spark: SparkSession, settings: ReplaySettings) -> Identity:
    """Return which replay *settings* are about."""
    return Identity(
        input=Storage(spark, settings.input).whole_path,
        topic=tuple(sorted(settings.topic)),
        where=settings.where.strip(),
        to_topic=settings.to_topic,
        distinct=settings.distinct,
    )


def require_own(notes: Storage, identity: Identity, checkpoint: str) -> None:
    """Raise SettingRefused where the checkpoint *notes* is of another replay, or another job."""
    note = notes.read(NOTE)
    if note is not None:
        identity.require_same(note, checkpoint)
    elif notes.exists(_OF_SPARK):
        reason = "it is of another job; what is done of it says nothing of a replay"
        raise SettingRefused(f"--checkpoint {checkpoint}", reason)


# Publishing


class Progress(ProgressListener):
    """Counts what batches have published, for who looks, and for a run after this one."""

    def __init__(self, report: ReplayReport, notes: Storage) -> None:
        self._report = report
        self._notes = notes

    def progress(self, progress: dict[str, Any]) -> None:
        """Count a batch that is done."""
        seen = progress.get("observedMetrics", {}).get(NAME)
        if seen is not None and seen["rows"]:
            took_s = progress["batchDuration"] / 1_000
            self._report.replayed(seen["rows"], seen["bytes"], took_s)
            with suppress(Exception):  # it is for who looks only
                self._notes.write(DONE, str(self._report.done_rows))


def _publish(
    spark: SparkSession,
    settings: ReplaySettings,
    schema: StructType,
    count: Count,
    report: ReplayReport,
) -> Ending:
    values = {name: getattr(settings, name) for name in QueryJobSettings.model_fields}
    stream = StreamJobSettings.model_validate(values | {"available_now": True})
    topics = [tally.topic for tally in count.tallies]
    return run_stream(
        spark, lambda: start_replay(spark, settings, schema, topics), stream, report=report
    )


def start_replay(
    spark: SparkSession, settings: ReplaySettings, schema: StructType, topics: Sequence[str]
) -> StreamingQuery:
    """
    Start the query that publishes the rows that no run before has published.

    Those of another topic than *topics*, which were counted, end it: nobody has learned of them,
    and to leave them out would be to note their files as done.
    """
    if settings.distinct and not spark.sparkContext.getConf().contains(_STATE_STORE):
        # What it keeps need not fit into memory then.
        spark.conf.set(_STATE_STORE, _ROCKS_DB)
    stream = (
        spark.readStream.schema(schema)
        .option("maxFilesPerTrigger", settings.max_files_per_batch)
        .option("maxFileAge", _AGE)
        .parquet(settings.input)
    )
    rows = chosen(stream, settings)
    tasks = settings.rate_tasks or spark.sparkContext.defaultParallelism
    if settings.rate:
        # Each task has an even share of the rate, so each gets an even share of the rows.
        rows = rows.repartition(tasks)
    size = F.coalesce(F.sum(F.octet_length("body").cast("bigint")), F.lit(0))
    rows = rows.observe(NAME, F.count(F.lit(1)).alias("rows"), size.alias("bytes"))
    wanted = dict.fromkeys(("body", "id", settings.key_column, settings.defer_column))
    columns = [name for name in wanted if name in rows.columns and name != "topic"]
    return (
        rows.select(_target(settings, topics).alias("topic"), *columns)
        .writeStream.format(FORMAT)
        .options(**_sink_options(settings, tasks))
        .option("checkpointLocation", settings.checkpoint)
        .queryName(NAME)
        .trigger(availableNow=True)
        .start()
    )


def _target(settings: ReplaySettings, topics: Sequence[str]) -> Column:
    """Return where a row of *topics* goes, as `target_of` says; one of another topic is refused."""
    target = F.regexp_replace("topic", "^([^#]*)", f"$1{REPLAY_SUFFIX}")
    if settings.to_topic:
        target = F.lit(settings.to_topic)
    name = F.coalesce("topic", F.lit("null"))
    words = "came to the archive since it was counted; start the replay again, and it is counted"
    newcomer = F.concat(F.lit("topic "), name, F.lit(f" {words}"))
    return F.when(F.col("topic").isin(*topics), target).otherwise(F.raise_error(newcomer))


def _sink_options(settings: ReplaySettings, tasks: int) -> dict[str, str]:
    """Return the options of the sink; the column topic says where a row goes."""
    options = options_of(settings, SinkSettings)
    options.pop(option_of("to_topic"), None)
    if settings.rate:
        options[option_of("rate_tasks")] = str(tasks)
    return options


def _tasks(spark: SparkSession) -> Tasks | None:
    """Return how far the batch in work is; None: none is."""
    tracker = spark.sparkContext.statusTracker()
    stages = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
    found = [stage for stage in stages if stage is not None]
    if not found:
        return None
    return sum(stage.numCompletedTasks for stage in found), sum(stage.numTasks for stage in found)
