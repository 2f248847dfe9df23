"""
Commit batches of an archive, so that readers that list its folders see committed files only.

A batch is written to a staging folder beside the archive. It is committed by a record in `_batches`
that lists its files, and only then are the files renamed into the archive. After a crash the next
run completes the renames of a batch with a record. A batch without a record is deleted, because
Spark runs it again. A batch number with a record is never written twice.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from gateway.errors import GatewayError
from gateway.pipeline.jobs import storage as sink_log
from gateway.pipeline.jobs.storage import (
    HadoopFolder,
    SinkFile,
    StoredFile,
    last_batch,
    read_query_id,
)
from gateway.telemetry import get_logger

logger = get_logger()

RECORDS = "_batches"
"""Folder with a record of each of the last batches; a file's name is the batch number."""
PARTITIONS = ("topic", "date", "hour")
"""Partition folders, from the outermost to the innermost."""
UNCOMMITTED = ".uncommitted"
"""Suffix that hides files which an earlier version has left uncommitted."""

_STAGING = "staging"
_RECORDS_KEPT = 100
"""Number of records that are kept; Spark keeps as many batches in a checkpoint."""
_VERSION = 1
_PLACE = re.compile(r"topic=[^/]+/date=[^/]+/hour=[^/]+/[^/_.][^/]*\.parquet")
_UUID = re.compile(r"-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class CommitConflict(GatewayError):
    """Another process has committed the batch that this one was about to commit."""

    def __init__(self, output: str, batch: int) -> None:
        super().__init__(
            f"another process has written batch {batch} of {output}; run only one archive for "
            "each --output and --checkpoint"
        )


class FileCommitter:
    """Write the batches of one stream to *output*, as Parquet files (zstd) by `PARTITIONS`."""

    def __init__(self, spark: SparkSession, output: str, checkpoint: str) -> None:
        self._output = HadoopFolder(spark, output)
        self._checkpoint = HadoopFolder(spark, checkpoint)
        self._output.create()
        self._staging = staging_folder(spark, self._output)
        self._last = -1
        """Number of the last committed batch; -1 if there is none."""

    def recover(self) -> None:
        """
        Rename the remaining files of the last committed batch into the archive.

        All other staged files are deleted: they belong to batches that Spark runs again.
        """
        upgrade_archive(self._output)
        last = last_committed(self._output)
        if last is not None:
            complete(self._output, self._staging, last)
            self._last = last
        self._staging.delete("")

    def write(self, rows: DataFrame, batch: int) -> None:
        """
        Write *rows* as batch number *batch*, unless it is committed already.

        This is the function for `DataStreamWriter.foreachBatch`; call `recover` before.

        Raises:
            CommitConflict: Another process writes the same batch.
            StartError, OSError: A folder cannot be used.
        """
        if batch <= self._last:
            logger.info("batch already archived", batch=batch)
            return
        self._stage(rows, batch)
        files = self._commit(batch)
        # Committed from here on: if a rename fails, the next start completes the renames.
        self._last = batch
        for path, staged in files.items():
            self._output.move_from(self._staging, staged, path)
        self._staging.delete(str(batch))
        if batch >= _RECORDS_KEPT:
            self._output.delete(f"{RECORDS}/{batch - _RECORDS_KEPT}")

    def _stage(self, rows: DataFrame, batch: int) -> None:
        self._staging.delete(str(batch))
        (
            rows.write.partitionBy(*PARTITIONS)
            .option("compression", "zstd")
            # Hadoop's algorithm 2 would leave files of a task that failed during its commit.
            .option("mapreduce.fileoutputcommitter.algorithm.version", "1")
            .option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false")
            .parquet(self._staging.url(str(batch)))
        )

    def _commit(self, batch: int) -> Mapping[str, str]:
        """
        Write the record of *batch*, which commits it.

        Return its files: the path in the staging folder, by the path in the archive.
        """
        record = f"{RECORDS}/{batch}"
        query = read_query_id(self._checkpoint.read)
        files = {}
        # Readers skip names with _ or . in front: those are not data files.
        for file in self._staging.files(str(batch)):
            if not file.path.rpartition("/")[2].startswith(("_", ".")):
                staged = file.path.removeprefix(f"{batch}/")
                files[name_in_archive(staged, query, batch)] = file.path
        # `recover` has found the records of earlier processes: this one is of a process beside us.
        if self._output.exists(record):
            raise CommitConflict(self._output.root, batch)
        note = {"v": _VERSION, "query_id": query, "files": files}
        self._output.write(record, json.dumps(note))
        return files


def name_in_archive(staged: str, query: str, batch: int) -> str:
    """
    Return the path in the archive for *staged*, a path relative to its batch's staging folder.

    The name has *query*, *batch* and Spark's task number, but not the random part of Spark's name:
    a batch that is written again has the same names.
    """
    folder, _, name = staged.rpartition("/")
    part = _UUID.sub("", name.removeprefix("part-"))
    return f"{folder}/part-{query[:8]}-{batch:08}-{part}"


def staging_folder(spark: SparkSession, output: HadoopFolder) -> HadoopFolder:
    """
    Return the staging folder of *output*, in the same store, so that files can be renamed.

    It is beside *output*, because some readers read every folder inside. If there is no room beside
    *output*, as with a bucket or a mounted volume, it is inside, with a hidden name.
    """
    beside = HadoopFolder(spark, f"{output.root}.{_STAGING}")
    inside = HadoopFolder(spark, output.url(f"_{_STAGING}"))
    return beside if has_room_beside(output) else inside


def has_room_beside(output: HadoopFolder) -> bool:
    """Return True if a folder can be created beside *output* in the same store."""
    local = output.local_path
    if local is None:
        return "/" in output.root.partition("://")[2]
    return not os.path.ismount(local) and os.access(Path(local).parent, os.W_OK)


def last_committed(output: HadoopFolder) -> int | None:
    """Return the last batch that this or an earlier release committed to *output*; None if none."""
    logs = (RECORDS, sink_log.FOLDER)
    found = [last_batch(output.names(log)) for log in logs]
    return max((number for number in found if number is not None), default=None)


def read_record(output: HadoopFolder, batch: int) -> Mapping[str, str]:
    """
    Return the files of *batch* from its record; empty if there is no record.

    Keys are paths in the archive, values are paths in the staging folder.
    """
    files: Mapping[str, str] = json.loads(output.read(f"{RECORDS}/{batch}") or "{}").get(
        "files", {}
    )
    return files


def complete(output: HadoopFolder, staging: HadoopFolder, batch: int) -> int:
    """Rename the staged files of the committed *batch* into *output*; return their number."""
    renamed = 0
    for path, staged in read_record(output, batch).items():
        # An object store copies and then deletes: after a crash in between both files exist.
        if staging.exists(staged) and not output.exists(path):
            output.move_from(staging, staged, path)
            renamed += 1
    staging.delete(str(batch))
    if renamed:
        logger.info("committed batch completed", batch=batch, files=renamed)
    return renamed


# Reading


def visible_files(archive: HadoopFolder) -> list[StoredFile]:
    """Return the Parquet files that readers see if they list the folders of *archive*."""
    topics = [name for name in archive.names("") if name.startswith(f"{PARTITIONS[0]}=")]
    files = (file for topic in topics for file in archive.files(topic))
    return [file for file in files if is_visible(file.path)]


def is_visible(path: str) -> bool:
    """Return True if a reader treats *path* as a file of the archive."""
    return _PLACE.fullmatch(path) is not None


def committed_files(archive: HadoopFolder) -> list[SinkFile] | None:
    """
    Return the committed files of *archive*; None if it is not an archive.

    Raises:
        UnreadableLog: The archive is of an earlier version, and its file list cannot be read.
    """
    if last_batch(archive.names(sink_log.FOLDER)) is not None:
        return listed_files(archive)
    if not archive.exists(RECORDS):
        return None
    return [SinkFile(archive.url(file.path), file.size_bytes) for file in visible_files(archive)]


def listed_files(archive: HadoopFolder) -> list[SinkFile]:
    """Return the files in the list that an earlier version kept; raises UnreadableLog."""

    def read(name: str) -> str:
        return archive.read(f"{sink_log.FOLDER}/{name}") or ""

    return sink_log.files_of(archive.names(sink_log.FOLDER), read)


# Archives of earlier versions


def unlisted_files(archive: HadoopFolder) -> list[StoredFile]:
    """Return the visible files that are not in the list of an earlier version; empty without it."""
    if last_batch(archive.names(sink_log.FOLDER)) is None:
        return []
    listed = {_tail(file.path) for file in listed_files(archive)}
    return [file for file in visible_files(archive) if _tail(file.path) not in listed]


def upgrade_archive(archive: HadoopFolder) -> int:
    """
    Upgrade an *archive* of an earlier version, in which Spark's list named the committed files.

    Files that are not in the list are renamed, so that readers skip them. Then the list itself is
    renamed, so that Spark lists the folders as other readers do. Return the number of files hidden;
    0 if there is no list.

    Raises:
        UnreadableLog: The list cannot be read; nothing was changed.
    """
    last = last_batch(archive.names(sink_log.FOLDER))
    if last is None:
        return 0
    hidden = unlisted_files(archive)
    for file in hidden:
        folder, _, name = file.path.rpartition("/")
        archive.move_from(archive, file.path, f"{folder}/_{name}{UNCOMMITTED}")
    if not archive.exists(f"{RECORDS}/{last}"):
        archive.write(f"{RECORDS}/{last}", json.dumps({"v": _VERSION, "files": {}}))
    archive.move_from(archive, sink_log.FOLDER, f"{sink_log.FOLDER}.until-{last}")
    logger.info("archive of an earlier version upgraded", last_batch=last, hidden=len(hidden))
    return len(hidden)


def _tail(path: str) -> str:
    """Return the last four parts of *path*, which are the same after a move of the archive."""
    return "/".join(path.split("/")[-len(PARTITIONS) - 1 :])
