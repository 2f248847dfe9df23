"""
The replay job: publish rows of an archive to NSQ again, in batches that can be resumed.

Spark's checkpoint lists the files that have been published. A note in the checkpoint identifies the
replay that it belongs to. Order is not guaranteed: Spark reads several files at a time.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Collection, Sequence
from typing import Any

import click
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody does
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from gateway.client.discovery import Discovery
from gateway.client.from_settings import read_access
from gateway.client.nsqd_answers import parse_stats, stats_request
from gateway.client.nsqd_http import NsqdHttp
from gateway.errors import SettingRefused
from gateway.pipeline.jobs.archive_format import local_folder, refuse_table
from gateway.pipeline.jobs.console import ReplayReport, TaskCount
from gateway.pipeline.jobs.metrics_export import set_row_count
from gateway.pipeline.jobs.monitoring import ManagementPort, ProgressListener, listening, management
from gateway.pipeline.jobs.replay_plan import (
    NO_HTTP_ADDRESS,
    Channels,
    ReplayCount,
    ReplayIdentity,
    TopicPlan,
    count_rows,
    read_archive,
    reasons_to_confirm,
    select_rows,
)
from gateway.pipeline.jobs.runner import JobResult, run_stream
from gateway.pipeline.jobs.spark import session
from gateway.pipeline.jobs.storage import HadoopFolder, done_files
from gateway.pipeline.options import FORMAT, check_name, option_of, options_of, require_nsqd
from gateway.pipeline.schema import format_time
from gateway.pipeline.sink import read_sink_settings
from gateway.settings.fields import flag_name
from gateway.settings.pipeline import (
    REPLAY_SUFFIX,
    NsqSinkSettings,
    QueryJobSettings,
    ReplaySettings,
    StreamJobSettings,
)
from gateway.terminal import format_bytes, pluralize


async def find_channels(settings: ReplaySettings, topics: Collection[str]) -> Channels:
    """
    Return the channels of *topics* at every nsqd whose HTTP address is known.

    Every nsqlookupd is queried, and reported if it does not answer: it may be the only one that
    knows some nsqd.
    """
    discovery = Discovery(settings.nsqd_tcp_address, read_access(settings).lookup)
    nsqds = NsqdHttp(settings.nsqd_http_address, discovery)
    await discovery.start()
    try:
        lookupds = discovery.lookupds
        answers = await asyncio.gather(*(lookupd.fetch(None) for lookupd in lookupds))
        named = zip(lookupds, answers, strict=True)
        unreachable_lookupds = sorted(
            lookupd.address for lookupd, answer in named if answer is None
        )
        found = {tcp: http for answer in answers for tcp, http in (answer or {}).items()}
        nodes = {*settings.nsqd_http_address, *(http for http in found.values() if http)}
        unreachable = {tcp for tcp, http in found.items() if http is None}
        if not nodes and not unreachable and not unreachable_lookupds:
            return NO_HTTP_ADDRESS
        await nsqds.start()
        channels, failed = await _channels_of(nsqds, nodes, topics)
        return Channels(channels, sorted(unreachable | failed), unreachable_lookupds)
    finally:
        await nsqds.stop()
        await discovery.stop()


async def _channels_of(
    nsqds: NsqdHttp, nodes: Collection[str], topics: Collection[str]
) -> tuple[dict[str, set[str]], set[str]]:
    """Return the channels of each topic at the nsqds *nodes*, and the nsqds that did not answer."""
    found: dict[str, set[str]] = {topic: set() for topic in topics}
    left = set(nodes)
    for topic in sorted(topics):
        if not left:
            break
        for answer in await nsqds.request_all(stats_request(topic), nodes=sorted(left)):
            stats = parse_stats(answer)
            if stats is None:
                # A silent node takes the whole timeout, so do not query it again for each topic.
                left.discard(answer.node)
                continue
            for name, channel in stats.channels():
                if name == topic:
                    found[topic].add(channel)
    return found, set(nodes) - left


_HEADINGS = ("topic", "to", "rows", "bytes", "first ts", "last ts")

NAME = "replay"
NOTE = "nsq-gateway-replay.json"
"""File in the checkpoint that identifies its replay."""

_OF_SPARK = "metadata"
"""File that Spark writes into every checkpoint."""
_AGE = "36500d"
"""Maximum age of a file relative to the newest: Spark skips older ones, by default after a week."""
_ROCKS_DB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_STATE_STORE = "spark.sql.streaming.stateStore.providerClass"


class ReplayPrompt:
    """Show the count to the user at the terminal, and ask for confirmation."""

    def __init__(self, *, is_confirmed: bool) -> None:
        self._is_confirmed = is_confirmed

    def show_count(self, count: ReplayCount) -> None:
        """Print *count* as a table."""
        click.echo("\n".join(count_table(count)))

    def confirm(self, reasons: Sequence[str]) -> None:
        """
        Show *reasons* as warnings, and ask the user to confirm; with --yes do not ask.

        Raises:
            SettingRefused: The user has not confirmed, or there is no terminal to ask at.
        """
        if not self._is_confirmed and not sys.stdin.isatty():
            text = "; ".join(reasons)
            raise SettingRefused(
                "--yes", f"confirmation is required, and there is no terminal: {text}"
            )
        for reason in reasons:
            click.echo(f"Warning: {reason}.", err=True)
        if not self._is_confirmed and not click.confirm("Publish anyway?", err=True):
            raise SettingRefused("--yes", "not confirmed at the prompt; nothing was published")

    def report(self, count: ReplayCount, tasks: Callable[[], TaskCount | None]) -> ReplayReport:
        """
        Return a progress bar on standard error.

        *tasks* returns two numbers for the running batch: its finished tasks, and all of its tasks.
        """
        return ReplayReport(
            sys.stderr, total_rows=count.rows, done_rows=count.done_rows, tasks=tasks
        )


def count_table(count: ReplayCount) -> list[str]:
    """Return *count* as a table, in lines of text."""
    if not count.topics:
        return ["No matching rows: nothing to replay."]
    rows = [_HEADINGS, *map(_cells, count.topics)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    size = format_bytes(sum(plan.size_bytes for plan in count.topics))
    lines.append(f"{pluralize(count.rows, 'row')}, {size}")
    if count.done_rows:
        lines.append(f"{pluralize(count.done_rows, 'row')} of them were replayed earlier")
    return lines


def _cells(plan: TopicPlan) -> tuple[str, ...]:
    moments = map(_format_ts, (plan.first_us, plan.last_us))
    return (plan.topic, plan.target, str(plan.rows), str(plan.size_bytes), *moments)


def _format_ts(moment_us: int | None) -> str:
    if moment_us is None:
        return "unknown"
    return format_time(moment_us, "milliseconds")


def run_replay(settings: ReplaySettings, prompt: ReplayPrompt, *, is_dry_run: bool) -> JobResult:
    """
    Count the rows, ask for confirmation, and publish until done or a signal arrives.

    A dry run only counts.

    Raises:
        SettingsError: A setting is missing or unusable, or the user did not confirm.
        StartError: Spark cannot run here.
        JobFailed: The stream failed and is not retried, or the archive cannot be read.
    """
    check_replay(settings, is_dry_run=is_dry_run)
    with management(settings.management_listen) as port, session(settings, NAME) as spark:
        return replay_in(spark, settings, prompt, port, is_dry_run=is_dry_run)


def check_replay(settings: ReplaySettings, *, is_dry_run: bool) -> None:
    """Raise SettingsError for missing or invalid settings; the checks here do not need Spark."""
    if not settings.input:
        raise SettingRefused("--input", "the folder of the archive is required")
    refuse_table(local_folder(settings.input), "--input", NAME)
    for name in settings.topic:
        check_name("--topic", name)
    if settings.to_topic:
        check_name("--to-topic", settings.to_topic)
    if is_dry_run:
        return
    require_nsqd(settings, flag_name)
    if not settings.checkpoint:
        reason = "the folder of Spark's checkpoint is required, used by this replay only"
        raise SettingRefused("--checkpoint", reason)
    read_sink_settings(_sink_options(settings, 1))


def replay_in(
    spark: SparkSession,
    settings: ReplaySettings,
    prompt: ReplayPrompt,
    port: ManagementPort,
    *,
    is_dry_run: bool,
) -> JobResult:
    """Like `run_replay`, but in the existing session *spark*, with readiness on *port*."""
    refuse_table(HadoopFolder(spark, settings.input), "--input", NAME)
    checkpoint_files = HadoopFolder(spark, settings.checkpoint) if settings.checkpoint else None
    identity = identity_of(spark, settings)
    if checkpoint_files is not None:
        require_same_replay(checkpoint_files, identity, settings.checkpoint)
    done = done_files(checkpoint_files.names, checkpoint_files.read) if checkpoint_files else ()
    archive = read_archive(spark, settings)
    count = count_rows(archive, settings, done)
    prompt.show_count(count)
    if is_dry_run or not count.rows or checkpoint_files is None:
        return JobResult.DONE
    targets = {plan.target for plan in count.topics}
    reasons = reasons_to_confirm(count.topics, asyncio.run(find_channels(settings, targets)))
    if reasons:
        prompt.confirm(reasons)
    # Written before the query starts: a checkpoint that Spark has used must have a note.
    if not checkpoint_files.exists(NOTE):
        checkpoint_files.write(NOTE, identity.as_text())
    report = prompt.report(count, lambda: _tasks(spark))
    try:
        with listening(spark, ReplayListener(report)):
            return _publish(spark, settings, archive.schema, count, report, port)
    finally:
        # Spark counts what it reads, including rows that --where and --distinct omit.
        set_row_count(NAME, report.rows)


def identity_of(spark: SparkSession, settings: ReplaySettings) -> ReplayIdentity:
    """Return the identity of the replay that *settings* describe."""
    return ReplayIdentity(
        input=HadoopFolder(spark, settings.input).qualified_path,
        topic=tuple(sorted(settings.topic)),
        where=settings.where.strip(),
        to_topic=settings.to_topic,
        distinct=settings.distinct,
    )


def require_same_replay(
    checkpoint_files: HadoopFolder, identity: ReplayIdentity, checkpoint: str
) -> None:
    """Raise SettingRefused if the checkpoint belongs to another replay or another job."""
    note = checkpoint_files.read(NOTE)
    if note is not None:
        identity.require_same(note, checkpoint)
    elif checkpoint_files.exists(_OF_SPARK):
        reason = "it belongs to another job; use a folder of this replay only"
        raise SettingRefused(f"--checkpoint {checkpoint}", reason)


# Publishing


class ReplayListener(ProgressListener):
    """Add the rows of each finished batch to *report*."""

    def __init__(self, report: ReplayReport) -> None:
        self._report = report

    def on_progress(self, progress: dict[str, Any]) -> None:
        """Add the rows of a finished batch, as observed in its query."""
        seen = progress.get("observedMetrics", {}).get(NAME)
        if seen is not None and seen["rows"]:
            took_s = progress["batchDuration"] / 1_000
            self._report.add_rows(seen["rows"], seen["bytes"], took_s)


def _publish(
    spark: SparkSession,
    settings: ReplaySettings,
    schema: StructType,
    count: ReplayCount,
    report: ReplayReport,
    port: ManagementPort,
) -> JobResult:
    values = {name: getattr(settings, name) for name in QueryJobSettings.model_fields}
    stream = StreamJobSettings.model_validate(values | {"available_now": True})
    topics = [plan.topic for plan in count.topics]
    return run_stream(
        spark, lambda: start_replay(spark, settings, schema, topics), stream, port, report=report
    )


def start_replay(
    spark: SparkSession, settings: ReplaySettings, schema: StructType, topics: Sequence[str]
) -> StreamingQuery:
    """
    Start the query that publishes the rows that no earlier run has published.

    A row whose topic is not among *topics*, those counted before, fails the query: the user has not
    confirmed it, and skipping it would mark its file as done.
    """
    if settings.distinct and not spark.sparkContext.getConf().contains(_STATE_STORE):
        # Duplicates are found by a state that may not fit into memory: keep it in RocksDB.
        spark.conf.set(_STATE_STORE, _ROCKS_DB)
    stream = (
        spark.readStream.schema(schema)
        .option("maxFilesPerTrigger", settings.max_files_per_batch)
        .option("maxFileAge", _AGE)
        .parquet(settings.input)
    )
    rows = select_rows(stream, settings)
    tasks = settings.rate_tasks or spark.sparkContext.defaultParallelism
    if settings.rate:
        # Each task gets an even share of the rate, and so needs an even share of the rows.
        rows = rows.repartition(tasks)
    # Observed behind all filters: Spark's own count is of the rows that it reads.
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
    """
    Return a column with the target topic of each row, the same as `target_of` returns.

    A row whose topic is not in *topics* makes the query fail.
    """
    target = F.regexp_replace("topic", "^([^#]*)", f"$1{REPLAY_SUFFIX}")
    if settings.to_topic:
        target = F.lit(settings.to_topic)
    name = F.coalesce("topic", F.lit("null"))
    words = "was added to the archive after the count; start the replay again"
    newcomer = F.concat(F.lit("topic "), name, F.lit(f" {words}"))
    return F.when(F.col("topic").isin(*topics), target).otherwise(F.raise_error(newcomer))


def _sink_options(settings: ReplaySettings, tasks: int) -> dict[str, str]:
    """Return the sink's options, without toTopic: the column topic has the target of each row."""
    options = options_of(settings, NsqSinkSettings)
    options.pop(option_of("to_topic"), None)
    if settings.rate:
        options[option_of("rate_tasks")] = str(tasks)
    return options


def _tasks(spark: SparkSession) -> TaskCount | None:
    """Return finished and total tasks of the batch in progress; None if there is none."""
    tracker = spark.sparkContext.statusTracker()
    stages = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
    found = [stage for stage in stages if stage is not None]
    if not found:
        return None
    return sum(stage.numCompletedTasks for stage in found), sum(stage.numTasks for stage in found)
