"""
Write the archive as an Iceberg table: Spark writes a batch's files, pyiceberg commits them.

Iceberg's own Spark runtime has no release for the Spark versions that the format `nsq` needs. Each
attempt at a batch writes to a folder of its own, which no snapshot refers to. One catalog commit
then adds the files and stores the batch number in the table's properties. The properties are
checked before each commit, so a batch that Spark runs again is committed once.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from uuid import uuid4

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NoSuchTableError,
)
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    BinaryType,
    IntegerType,
    NestedField,
    PrimitiveType,
    StringType,
    TimestamptzType,
)
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody does
from pyspark.sql.streaming.readwriter import DataStreamWriter

from gateway.errors import SettingRefused, StartError
from gateway.pipeline.jobs.committer import PARTITIONS
from gateway.pipeline.jobs.storage import HadoopFolder, read_query_id
from gateway.settings.pipeline import ArchiveSettings
from gateway.telemetry import get_logger

logger = get_logger()

COLUMNS: Mapping[str, PrimitiveType] = {
    "topic": StringType(),
    "nsqd": StringType(),
    "id": StringType(),
    "ts": TimestamptzType(),
    "attempts": IntegerType(),
    "received": TimestamptzType(),
    "body": BinaryType(),
    "date": StringType(),
    "hour": StringType(),
}
BATCH = "nsq-gateway.batch."
"""Prefix of the table property with a query's last batch number; the query id follows."""

_DATA = "data"
_FOLDER_OF = "by_"
"""Prefix of copies of the partition columns: Spark omits columns that name folders from files."""
_PROPERTIES = {
    # Minimum and maximum bodies are useless, and would put message contents into metadata.
    "write.metadata.metrics.column.body": "counts",
    # One commit a minute would leave half a million metadata files a year.
    "write.metadata.delete-after-commit.enabled": "true",
    "commit.manifest-merge.enabled": "true",
}
_PAUSES_S = (0.2, 1.0, 3.0)
"""Pauses before a commit is retried after a conflict with another writer."""


def spec_of(schema: Schema) -> PartitionSpec:
    """Return the partition spec of an archive with *schema*: topic, date and hour."""
    fields = (
        PartitionField(schema.find_field(name).field_id, 1_000 + place, IdentityTransform(), name)
        for place, name in enumerate(PARTITIONS)
    )
    return PartitionSpec(*fields)


def new_schema() -> Schema:
    """Return the schema of a new table; all columns are nullable, as in Spark's files."""
    fields = (
        NestedField(place, name, kind, required=False)
        for place, (name, kind) in enumerate(COLUMNS.items(), start=1)
    )
    return Schema(*fields)


def location_of(output: str) -> str:
    """Return *output* as an Iceberg location: with a scheme, and s3 instead of Spark's s3a."""
    root = output.rstrip("/")
    if root.startswith("file:"):
        return "file:///" + root.removeprefix("file:").lstrip("/")
    if "://" not in root:
        return f"file://{Path(root).absolute()}"
    return f"s3://{root.removeprefix('s3a://')}" if root.startswith("s3a://") else root


def last_batch(table: Table, query: str) -> int | None:
    """Return the last batch number of *query* in *table*, which is not reloaded; None if none."""
    found = table.properties.get(BATCH + query)
    return None if found is None else int(found)


def has_batch(table: Table, query: str, batch: int) -> bool:
    """Return True if *table*, which is not reloaded, has *batch* of *query*."""
    last = last_batch(table, query)
    return last is not None and batch <= last


class IcebergTable:
    """The archive's Iceberg table, created if it does not exist."""

    def __init__(self, settings: ArchiveSettings) -> None:
        """
        Load or create the table.

        Raises:
            SettingRefused: The catalog is not configured, or the table is not an archive's.
            StartError: The catalog does not answer.
        """
        self._settings = settings
        self._name = f"--iceberg-table {settings.iceberg_table}"
        if not all(settings.iceberg_table.partition(".")):
            reason = "the table is required, as namespace.table"
            raise SettingRefused("--iceberg-table", reason)
        self._location = location_of(settings.output)
        catalog = self._catalog()
        try:
            self._table = self._loaded(catalog)
        except Exception as error:
            detail = (str(error).strip() or type(error).__name__).splitlines()[0]
            where = f"the catalog {settings.iceberg_catalog} (--iceberg-catalog)"
            raise StartError(f"{where} cannot be used: {detail}") from error
        self._require_archive()

    def _catalog(self) -> Catalog:
        try:
            return load_catalog(self._settings.iceberg_catalog)
        except Exception as error:
            detail = (str(error).strip() or type(error).__name__).splitlines()[0]
            reason = f"{detail}; configure it for pyiceberg (docs/pipeline-iceberg.md)"
            name = f"--iceberg-catalog {self._settings.iceberg_catalog}"
            raise SettingRefused(name, reason) from error

    def _loaded(self, catalog: Catalog) -> Table:
        name = self._settings.iceberg_table
        try:
            return catalog.load_table(name)
        except NoSuchTableError:
            pass
        catalog.create_namespace_if_not_exists(name.rpartition(".")[0])
        schema = new_schema()
        return catalog.create_table_if_not_exists(
            name, schema, self._location, spec_of(schema), properties=_PROPERTIES
        )

    def _require_archive(self) -> None:
        """Raise SettingRefused if the table has another location, columns or partitions."""
        # Spark writes files to --output, and the commit refers to them by the table's location.
        there = location_of(self._table.location())
        if there != self._location:
            reason = f"its location is {there}, and --output is {self._location}; make them equal"
            raise SettingRefused(self._name, reason)
        schema, spec = self._table.schema(), self._table.spec()
        kinds = {field.name: field.field_type for field in schema.fields}
        wrong = [name for name, kind in COLUMNS.items() if kinds.get(name) != kind]
        partitions = [
            schema.find_column_name(field.source_id)
            for field in spec.fields
            if isinstance(field.transform, IdentityTransform)
        ]
        if wrong or tuple(partitions) != PARTITIONS or len(spec.fields) != len(PARTITIONS):
            what = f"no {wrong[0]} {COLUMNS[wrong[0]]}" if wrong else f"partitions {spec}"
            reason = (
                f"it has {what}; an archive has the columns of the format nsq and is partitioned "
                f"by {', '.join(PARTITIONS)}; name a new table"
            )
            raise SettingRefused(self._name, " ".join(reason.split()))

    def spark_settings(self, given: Mapping[str, str]) -> dict[str, str]:
        """Return *given*, the settings of --spark-conf: Iceberg needs no Spark settings."""
        return dict(given)

    def check(self, spark: SparkSession) -> None:
        """Do nothing: the constructor has checked the table, before Spark started."""

    def last_batch(self, spark: SparkSession, query: str) -> int | None:
        """Return the last batch number of *query* in the table; None if there is none."""
        del spark
        return last_batch(self._table.refresh(), query)

    def writer(self, rows: DataFrame, checkpoint: str) -> DataStreamWriter:
        """Return a writer of the stream *rows* to the table."""
        committer = IcebergCommitter(
            rows.sparkSession, self._table, self._settings.output, checkpoint
        )
        writer = rows.writeStream.foreachBatch(committer.write)
        return writer.option("checkpointLocation", checkpoint)


class IcebergCommitter:
    """Write the batches of one stream as files in *output*, and commit them to *table*."""

    def __init__(self, spark: SparkSession, table: Table, output: str, checkpoint: str) -> None:
        self._table = table
        self._output = HadoopFolder(spark, output)
        self._checkpoint = HadoopFolder(spark, checkpoint)

    def write(self, rows: DataFrame, batch: int) -> None:
        """
        Write *rows* as batch number *batch*, unless the table has it already.

        This is the function for `DataStreamWriter.foreachBatch`.
        """
        query = read_query_id(self._checkpoint.read)
        if has_batch(self._table.refresh(), query, batch):
            logger.info("batch already archived", batch=batch)
            return
        folder = f"{_DATA}/{query}/{batch:08}"
        attempt = f"{folder}/{uuid4().hex[:8]}"
        self._stage(rows, attempt)
        location = self._table.location().rstrip("/")
        files = [
            f"{location}/{file.path}"
            for file in self._output.files(attempt)
            if not file.path.rpartition("/")[2].startswith(("_", "."))
        ]
        commit(self._table, files, query, batch)
        for name in self._output.names(folder):
            if f"{folder}/{name}" != attempt:  # left by a process killed before its commit
                self._output.delete(f"{folder}/{name}")

    def _stage(self, rows: DataFrame, attempt: str) -> None:
        folders = {_FOLDER_OF + name: F.col(name) for name in PARTITIONS}
        (
            rows.withColumns(folders)
            .write.partitionBy(*folders)
            .option("compression", "zstd")
            # Hadoop's algorithm 2 would leave files of a task that failed during its commit.
            .option("mapreduce.fileoutputcommitter.algorithm.version", "1")
            .option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false")
            .parquet(self._output.url(attempt))
        )


def commit(table: Table, files: Sequence[str], query: str, batch: int) -> None:
    """
    Add *files* and the number of *batch* to *table* in one commit, unless it has the batch.

    After a conflict with another writer the commit is retried, with four attempts in all.

    Raises:
        CommitFailedException: Every attempt had a conflict.
        CommitStateUnknownException: The outcome of the commit is unknown.
    """
    note = {"nsq-gateway.query": query, "nsq-gateway.batch": str(batch)}
    for pause_s in (*_PAUSES_S, None):
        # An attempt with an unknown outcome may have succeeded.
        if has_batch(table.refresh(), query, batch):
            return
        try:
            with table.transaction() as transaction:
                # Also for an empty batch: `check_batches` expects every finished batch here.
                transaction.set_properties({BATCH + query: str(batch)})
                if files:
                    # The names are unique; a check for duplicates takes longer with every batch.
                    transaction.add_files([*files], note, check_duplicate_files=False)
        except (CommitFailedException, CommitStateUnknownException) as error:
            if pause_s is None:
                raise
            logger.info("table commit failed, retrying", batch=batch, reason=str(error))
            time.sleep(pause_s)
        else:
            return
