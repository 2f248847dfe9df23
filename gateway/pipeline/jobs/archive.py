"""
The archive job: write messages of NSQ to Parquet, by topic, and by date and hour of `ts`.

Each batch is committed once, either as files in folders (`committer`) or as one commit to a table
(`delta_table`, `iceberg_table`).
"""

from __future__ import annotations

import importlib
import json
from typing import TYPE_CHECKING, TypeAlias

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody does
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from gateway.errors import SettingRefused, StartError
from gateway.pipeline.datasource import check_credential_files, check_source_settings
from gateway.pipeline.jobs.archive_format import check_format, local_folder
from gateway.pipeline.jobs.committer import FileCommitter, last_committed
from gateway.pipeline.jobs.delta_table import DeltaTable
from gateway.pipeline.jobs.monitoring import management
from gateway.pipeline.jobs.runner import JobResult, run_stream, source_options, trigger_of
from gateway.pipeline.jobs.spark import session, spark_settings
from gateway.pipeline.jobs.storage import HadoopFolder, last_batch, read_query_id
from gateway.pipeline.options import FORMAT
from gateway.settings.fields import flag_name
from gateway.settings.pipeline import ArchiveSettings

if TYPE_CHECKING:
    from gateway.pipeline.jobs.iceberg_table import IcebergTable  # needs the extra `iceberg`

NAME = "archive"
_WRITER = "_written_by.json"
"""File with the id of the query that writes here; readers skip names that start with _."""


ArchiveTable: TypeAlias = "DeltaTable | IcebergTable"
"""An archive in a table, which records the batches that it has."""


def run_archive(settings: ArchiveSettings) -> JobResult:
    """
    Archive until no messages are left (--available-now) or a signal arrives.

    Raises:
        SettingsError: A setting is missing or unusable.
        StartError: Spark cannot run here.
        JobFailed: The stream failed and is not restarted.
    """
    check_folders(settings)
    check_source_settings(settings, flag_name)  # before the JVM starts
    check_credential_files(settings)
    check_format(local_folder(settings.output), settings.format)
    table = open_table(settings)
    needed = None if table is None else table.spark_settings(spark_settings(settings))
    options = source_options(settings)
    with management(settings.management_listen) as port, session(settings, NAME, needed) as spark:
        output = HadoopFolder(spark, settings.output)
        checkpoint = HadoopFolder(spark, settings.checkpoint)
        check_format(output, settings.format)  # again: now also if it is in another store
        if table is None:
            check_continuity(output, checkpoint)
        else:
            table.check(spark)
            check_batches(spark, table, checkpoint, settings.output)
        return run_stream(spark, lambda: _start(spark, options, settings, table), settings, port)


def open_table(settings: ArchiveSettings) -> ArchiveTable | None:
    """
    Return the table to archive to; None for an archive of files in folders.

    Raises:
        SettingRefused: A required package is not installed, or a setting is missing.
        StartError: The catalog does not answer.
    """
    if settings.format != "iceberg" and settings.iceberg_table:
        reason = f"it requires --format iceberg, and --format is {settings.format}"
        raise SettingRefused("--iceberg-table", reason)
    if settings.format == "delta":
        return DeltaTable(settings.output)
    if settings.format == "parquet":
        return None
    try:
        module = importlib.import_module("gateway.pipeline.jobs.iceberg_table")
    except ModuleNotFoundError as error:
        reason = f"{error.name} is not installed: pip install 'nsq-gateway[spark,iceberg]'"
        raise SettingRefused("--format iceberg", reason) from error
    table: ArchiveTable = module.IcebergTable(settings)
    return table


def check_folders(settings: ArchiveSettings) -> None:
    """
    Raise SettingsError if --output or --checkpoint is missing, or --checkpoint is in --output.

    A checkpoint in a hidden folder of --output is allowed: readers skip names with _ or . in front.
    """
    output, checkpoint = settings.output.rstrip("/"), settings.checkpoint.rstrip("/")
    if not output:
        raise SettingRefused(
            "--output", "the folder for the Parquet files, or the table, is required"
        )
    if not checkpoint:
        reason = "the folder of Spark's checkpoint is required, which must outlive this process"
        raise SettingRefused("--checkpoint", reason)
    inside = f"{checkpoint}/".removeprefix(f"{output}/")
    if checkpoint == output or (inside != f"{checkpoint}/" and not inside.startswith(("_", "."))):
        reason = (
            f"it is in --output ({output}), where readers would read it as part of the archive; "
            "use a folder beside it"
        )
        raise SettingRefused(f"--checkpoint {checkpoint}", reason)


def check_continuity(output: HadoopFolder, checkpoint: HadoopFolder) -> None:
    """
    Raise SettingRefused if batches would be skipped, and their messages lost.

    The archive skips batch numbers that it has. A new checkpoint starts at batch 0, so it must not
    be used with the output of another checkpoint.
    """
    listed = last_committed(output)
    if listed is None:
        if last_batch(checkpoint.names("commits")) is not None:
            reason = (
                f"its batches were written to another --output; {output.root} has no batches; "
                "give the --output that belongs to it, or a new folder as --checkpoint"
            )
            raise SettingRefused(f"--checkpoint {checkpoint.root}", reason)
        return
    planned = last_batch(checkpoint.names("offsets"))
    # Spark plans a batch before it is written, so the archive's own checkpoint is never behind.
    writer = json.loads(output.read(_WRITER) or "{}").get("query_id")
    reader = read_query_id(checkpoint.read) or None
    if planned is None or planned < listed or (writer is not None and writer != reader):
        reason = (
            f"--output {output.root} was written with another checkpoint, and the first batches "
            "of this one would be skipped; give the checkpoint that belongs to it, or a new "
            "folder as --output"
        )
        raise SettingRefused(f"--checkpoint {checkpoint.root}", reason)


def check_batches(
    spark: SparkSession, table: ArchiveTable, checkpoint: HadoopFolder, output: str
) -> None:
    """
    Raise SettingRefused if *table* would skip batches, and their messages would be lost.

    A table records batches by query id and number. A new checkpoint has a new query id and may be
    used with an old table. A checkpoint restored from a backup may not, nor one whose batches are
    in another table.
    """
    query = read_query_id(checkpoint.read)
    if not query:
        return
    planned, done = (last_batch(checkpoint.names(log)) for log in ("offsets", "commits"))
    written = table.last_batch(spark, query)
    if done is not None and (written is None or written < done):
        reason = (
            f"it has batches that are not in the table {output}; give the --output that belongs to "
            "it, or a new folder as --checkpoint"
        )
        raise SettingRefused(f"--checkpoint {checkpoint.root}", reason)
    if written is not None and (planned is None or planned < written):
        reason = (
            f"the table {output} has later batches of the same query, so the next ones would be "
            "skipped; give a new folder as --checkpoint"
        )
        raise SettingRefused(f"--checkpoint {checkpoint.root}", reason)


def _start(
    spark: SparkSession,
    options: dict[str, str],
    settings: ArchiveSettings,
    table: ArchiveTable | None,
) -> StreamingQuery:
    stream = spark.readStream.format(FORMAT).options(**options).load()
    if table is None:
        writer = archive_writer(stream, settings.output, settings.checkpoint)
    else:
        writer = table.writer(with_partitions(stream), settings.checkpoint)
    query = writer.queryName(NAME).trigger(**trigger_of(settings)).start()
    if table is not None:
        return query
    return record_writer(query, HadoopFolder(spark, settings.output))


def archive_writer(rows: DataFrame, output: str, checkpoint: str) -> DataStreamWriter:
    """
    Return a writer of the stream *rows* to *output*.

    First complete the last batch, if a crash has interrupted its renames.

    Raises:
        OSError: A folder cannot be used; a retry may succeed.
    """
    try:
        committer = FileCommitter(rows.sparkSession, output, checkpoint)
        committer.recover()
    except StartError as error:
        # `run_stream` retries after any error but a GatewayError, such as this one.
        raise OSError(str(error)) from error
    writer = with_partitions(rows).writeStream.foreachBatch(committer.write)
    return writer.option("checkpointLocation", checkpoint)


def record_writer(query: StreamingQuery, output: HadoopFolder) -> StreamingQuery:
    """
    Store the id of *query* in *output*, unless it has one already; return *query*.

    Raises:
        OSError: The record cannot be written; the query is stopped.
    """
    try:
        if not output.exists(_WRITER):
            output.write(_WRITER, json.dumps({"v": 1, "query_id": query.id}))
    except StartError as error:
        # Otherwise the query would run on unobserved, and a restart could not use its name.
        query.stop()
        raise OSError(str(error)) from error
    return query


def with_partitions(rows: DataFrame) -> DataFrame:
    """Return *rows* with the partition columns date and hour, of `ts` in UTC."""
    return rows.withColumn("date", F.date_format("ts", "yyyy-MM-dd")).withColumn(
        "hour", F.date_format("ts", "HH")
    )
