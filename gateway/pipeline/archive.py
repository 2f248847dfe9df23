"""
The archive: channels of NSQ into Parquet, by topic, date and hour of when nsqd took a message.

The files count that Spark's own list in the folder names (`_spark_metadata`): each batch is in it
once, whatever was tried how often.
"""

from __future__ import annotations

import json

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody does
from pyspark.sql.streaming.query import StreamingQuery

from gateway.errors import SettingRefused, StartError
from gateway.pipeline import sink_log
from gateway.pipeline.options import FORMAT
from gateway.pipeline.runner import Ending, run_stream, source_options, trigger_of
from gateway.pipeline.session import session
from gateway.pipeline.sink_log import last_batch
from gateway.pipeline.source import check_source
from gateway.pipeline.storage import Storage
from gateway.settings_common import flag_of
from gateway.settings_jobs import ArchiveSettings

NAME = "archive"
_WRITER = "_written_by.json"
"""Which query writes here; readers pass over names that begin with an underscore."""
PARTITIONS = ("topic", "date", "hour")
"""The folders, from the outermost to the innermost."""


def run_archive(settings: ArchiveSettings) -> Ending:
    """
    Archive until there is nothing left (--available-now), or a signal comes.

    Raises:
        SettingsError: A setting is missing, or cannot be used.
        StartError: Spark cannot run here.
        JobFailed: The stream failed for good.
    """
    check_folders(settings)
    check_source(settings, flag_of)  # said now, and not after the start of a JVM
    options = source_options(settings)
    with session(settings, NAME) as spark:
        output, checkpoint = Storage(spark, settings.output), Storage(spark, settings.checkpoint)
        check_continuity(output, checkpoint)
        return run_stream(spark, lambda: _start(spark, options, settings), settings)


def check_folders(settings: ArchiveSettings) -> None:
    """Raise SettingsError where the files, or Spark's notes, have no place of their own."""
    output, checkpoint = settings.output.rstrip("/"), settings.checkpoint.rstrip("/")
    if not output:
        raise SettingRefused("--output", "say where the Parquet files go")
    if not checkpoint:
        reason = "say where Spark keeps how far the archive is: a folder that outlives this process"
        raise SettingRefused("--checkpoint", reason)
    inside = f"{checkpoint}/".removeprefix(f"{output}/")
    if checkpoint == output or (inside != f"{checkpoint}/" and not inside.startswith(("_", "."))):
        reason = (
            f"it is in --output ({output}), where readers would take it for the archive; use a "
            "folder beside it"
        )
        raise SettingRefused(f"--checkpoint {checkpoint}", reason)


def check_continuity(output: Storage, checkpoint: Storage) -> None:
    """
    Raise SettingRefused where Spark would pass over batches, whose messages would be lost.

    Its list of files has a number for each batch; a batch whose number is in the list it takes for
    one that is done. So a new checkpoint, which begins at 0, does not go with files of an old one.
    """
    listed = last_batch(output.names(sink_log.FOLDER))
    if listed is None:
        if last_batch(checkpoint.names("commits")) is not None:
            reason = (
                f"it has batches whose files are in another --output, and {output.root} has none; "
                "give the --output that belongs to it, or a new folder as --checkpoint"
            )
            raise SettingRefused(f"--checkpoint {checkpoint.root}", reason)
        return
    planned = last_batch(checkpoint.names("offsets"))
    writer = json.loads(output.read(_WRITER) or "{}").get("query_id")
    reader = json.loads(checkpoint.read("metadata") or "{}").get("id")
    if planned is None or planned < listed or (writer is not None and writer != reader):
        reason = (
            f"--output {output.root} was written with another checkpoint, and Spark would pass "
            "over what this one begins with; give the checkpoint that belongs to it, or a new "
            "folder as --output"
        )
        raise SettingRefused(f"--checkpoint {checkpoint.root}", reason)


def _start(
    spark: SparkSession, options: dict[str, str], settings: ArchiveSettings
) -> StreamingQuery:
    stream = spark.readStream.format(FORMAT).options(**options).load()
    writer = (
        with_partitions(stream)
        .writeStream.format("parquet")
        .partitionBy(*PARTITIONS)
        .option("compression", "zstd")
        .option("checkpointLocation", settings.checkpoint)
        .queryName(NAME)
    )
    writer = writer.trigger(**trigger_of(settings))
    output = Storage(spark, settings.output)
    return signed(writer.start(settings.output), output)


def signed(query: StreamingQuery, output: Storage) -> StreamingQuery:
    """
    Return *query*, which runs; *output* says that it writes there, if it says nothing yet.

    Raises:
        OSError: That cannot be written; the query is stopped.
    """
    try:
        if not output.exists(_WRITER):
            output.write(_WRITER, json.dumps({"v": 1, "query_id": query.id}))
    except StartError as error:
        # Left alone it would run on, unseen, and no other one of its name could be started.
        query.stop()
        raise OSError(str(error)) from error
    return query


def with_partitions(rows: DataFrame) -> DataFrame:
    """Return *rows* with the columns of the folders; date and hour in UTC."""
    return rows.withColumn("date", F.date_format("ts", "yyyy-MM-dd")).withColumn(
        "hour", F.date_format("ts", "HH")
    )
