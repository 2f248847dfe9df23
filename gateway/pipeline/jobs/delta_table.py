"""
Write the archive as a Delta table: each batch is one commit in the table's log.

Delta stores query and batch number in each commit and skips a batch that the table already has.
Readers see every batch once, and never a part of one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from importlib import metadata
from typing import Any, cast

import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T  # noqa: N812 - as everybody does
from pyspark.sql.streaming.readwriter import DataStreamWriter

from gateway.errors import SettingRefused, StartError
from gateway.pipeline.jobs.committer import PARTITIONS
from gateway.pipeline.jobs.spark import is_submitted
from gateway.pipeline.jobs.storage import has_class
from gateway.pipeline.schema import ROW_SCHEMA

_FLAG = "--format delta"
_ADVICE = "pip install 'pyspark==4.2.0' 'delta-spark==4.4.0' (docs/pipeline-delta.md)"
_DELTA_LOG = "org.apache.spark.sql.delta.DeltaLog"
_EXTENSIONS = "spark.sql.extensions"
_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
_PACKAGES = "spark.jars.packages"
_JARS = (_PACKAGES, "spark.jars")
_DEFAULTS = {
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.parquet.compression.codec": "zstd",
    # Delta's default of 50 means as many tasks for each batch: a second on two cores.
    "spark.databricks.delta.snapshotPartitions": "4",
}
_COLUMNS = f"{ROW_SCHEMA}, date string, hour string"
_OF_PYSPARK = re.compile(r"pyspark\b.*?<(=?)\s*(\d+)\.(\d+)")


def maven_coordinates(spark_version: str, delta_version: str | None, requires: list[str]) -> str:
    """
    Return the Maven coordinates of the Delta release for a version of Spark; PURE.

    Args:
        spark_version: Version of the package pyspark.
        delta_version: Version of the package delta-spark; None if it is not installed.
        requires: Requirements of the package delta-spark, from its metadata.

    Raises:
        SettingRefused: delta-spark is not installed, or requires an older version of Spark.
    """
    spark = tuple(map(int, spark_version.split(".")[:2]))
    name = ".".join(map(str, spark))
    if delta_version is None:
        reason = f"the package delta-spark is not installed, and this is Spark {spark_version}"
        raise SettingRefused(_FLAG, f"{reason}; Delta 4.4 is for Spark 4.2: {_ADVICE}")
    found = next(filter(None, map(_OF_PYSPARK.match, requires)), None)
    if found is not None:
        newest = int(found[2]), int(found[3])
        if spark > newest or (spark == newest and not found[1]):
            reason = (
                f"delta-spark {delta_version} requires {found[0]}.x, and this is Spark "
                f"{spark_version}; create an environment with a supported Spark: {_ADVICE}"
            )
            raise SettingRefused(_FLAG, reason)
    return f"io.delta:delta-spark_{name}_2.13:{delta_version}"


def merged(given: Mapping[str, str], package: str | None) -> dict[str, str]:
    """
    Return the Spark settings that Delta needs, merged with *given*, those of the user; PURE.

    *package* is the Maven coordinates of a package to load as well; None for no package.
    """
    conf = {key: value for key, value in _DEFAULTS.items() if key not in given}
    conf[_EXTENSIONS] = _joined(given.get(_EXTENSIONS, ""), _EXTENSION)
    if package is not None:
        conf[_PACKAGES] = _joined(given.get(_PACKAGES, ""), package)
    return conf


def _joined(given: str, ours: str) -> str:
    return ",".join(dict.fromkeys(part for part in [*given.split(","), ours] if part))


class DeltaTable:
    """The archive's Delta table at *output*, a path or a URL; the table need not exist yet."""

    def __init__(self, output: str) -> None:
        self._output = output

    def spark_settings(self, given: Mapping[str, str]) -> dict[str, str]:
        """
        Return the Spark settings that Delta needs, merged with *given*, those of --spark-conf.

        Raises:
            SettingRefused: delta-spark is not installed, or does not support this Spark.
        """
        # spark-submit has started the JVM already, so a package could not be added here.
        if is_submitted() or any("delta-spark" in given.get(name, "") for name in _JARS):
            return merged(given, None)
        try:
            version = metadata.version("delta-spark")
            requires = metadata.requires("delta-spark") or []
        except metadata.PackageNotFoundError:
            version, requires = None, []
        return merged(given, maven_coordinates(pyspark.__version__, version, requires))

    def check(self, spark: SparkSession) -> None:
        """
        Check that the session has Delta, and that an existing table is an archive's.

        Raises:
            SettingRefused: Delta is missing, or the table has other columns or partitions.
            StartError: The table cannot be read.
        """
        if not has_class(spark, _DELTA_LOG):
            reason = (
                "Spark's JVM does not have Delta; give spark-submit "
                "--packages io.delta:delta-spark_4.2_2.13:4.4.0, with Spark 4.2"
            )
            raise SettingRefused(_FLAG, reason)
        snapshot = self._snapshot(spark)
        if snapshot.version() < 0:
            return  # there is no table yet
        partitions = tuple(
            filter(None, snapshot.metadata().partitionColumns().mkString(",").split(","))
        )
        there = {field.name: field.dataType.simpleString() for field in _schema(snapshot).fields}
        wanted = cast("T.StructType", T.StructType.fromDDL(_COLUMNS))
        missing = [
            f"{field.name} {field.dataType.simpleString()}"
            for field in wanted.fields
            if there.get(field.name) != field.dataType.simpleString()
        ]
        if missing or partitions != PARTITIONS:
            what = (
                f"no {missing[0]}" if missing else f"partitions {', '.join(partitions) or 'none'}"
            )
            reason = (
                f"it is a Delta table with {what}; an archive is partitioned by "
                f"{', '.join(PARTITIONS)} and has the columns of the format nsq; use a new folder"
            )
            raise SettingRefused(f"--output {self._output}", reason)

    def last_batch(self, spark: SparkSession, query: str) -> int | None:
        """Return the last batch number of *query* in the table; None if there is none."""
        found = self._snapshot(spark).transactions().get(query)
        return None if found.isEmpty() else int(found.get())

    def writer(self, rows: DataFrame, checkpoint: str) -> DataStreamWriter:
        """Return a writer of the stream *rows* to the table."""
        return (
            rows.writeStream.format("delta")
            .partitionBy(*PARTITIONS)
            .option("path", self._output)
            .option("checkpointLocation", checkpoint)
        )

    def _snapshot(self, spark: SparkSession) -> Any:  # noqa: ANN401 - Scala's
        # Only Delta's internal snapshot has batch numbers; DESCRIBE HISTORY does not.
        log = spark._jvm.org.apache.spark.sql.delta.DeltaLog  # type: ignore[union-attr] # noqa: SLF001
        try:
            return log.forTable(spark._jsparkSession, self._output).unsafeVolatileSnapshot()  # noqa: SLF001
        except Exception as error:
            detail = str(getattr(error, "java_exception", error)).splitlines()[0]
            raise StartError(f"the Delta table {self._output} cannot be read: {detail}") from error


def _schema(snapshot: Any) -> T.StructType:  # noqa: ANN401 - Scala's
    return T.StructType.fromJson(json.loads(snapshot.schema().json()))
