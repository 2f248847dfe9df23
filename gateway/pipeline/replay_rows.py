"""Which rows of an archive are replayed, and how many."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pyspark.errors import (
    AnalysisException,
    ArithmeticException,
    DateTimeException,
    IllegalArgumentException,
    NumberFormatException,
    PySparkException,
    SparkRuntimeException,
)
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody does
from pyspark.sql.types import StructType

from gateway.errors import SettingRefused
from gateway.pipeline.failures import explain
from gateway.pipeline.replay_plan import Tally, one_sentence, target_of
from gateway.pipeline.runner import JobFailed
from gateway.settings_replay import REPLAY_SUFFIX, ReplaySettings

_ID = ("topic", "nsqd", "id")
_NEEDED = {"topic": "string", "body": "binary"}
_WHOSE_FAULT = (
    AnalysisException,
    ArithmeticException,
    DateTimeException,
    IllegalArgumentException,
    NumberFormatException,
    SparkRuntimeException,
)
"""What Spark raises about a condition, when it reads it and when it uses it."""


class Count(NamedTuple):
    """What a replay has to do."""

    tallies: Sequence[Tally]
    """By topic, in order."""
    done_rows: int
    """What earlier runs with the same checkpoint have published of it."""

    @property
    def rows(self) -> int:
        """All of them."""
        return sum(tally.rows for tally in self.tallies)


def read_archive(spark: SparkSession, settings: ReplaySettings) -> DataFrame:
    """Return the rows that are there now; raises SettingRefused where there is no archive."""
    try:
        rows = spark.read.parquet(settings.input)
    except AnalysisException as error:
        raise SettingRefused(f"--input {settings.input}", one_sentence(str(error))) from error
    require_columns(rows.schema, settings)
    return rows


def require_columns(schema: StructType, settings: ReplaySettings) -> None:
    """Raise SettingRefused where *schema* is not that of an archive."""
    found = {field.name: field.dataType.simpleString() for field in schema.fields}
    needed = _NEEDED | dict.fromkeys(_ID if settings.distinct else (), "string")
    for name, kind in needed.items():
        if found.get(name) != kind:
            there = ", ".join(f"{name} {kind}" for name, kind in found.items())
            reason = f"an archive has a column {name} {kind}; this has {there}"
            raise SettingRefused(f"--input {settings.input}", reason)


def chosen(rows: DataFrame, settings: ReplaySettings) -> DataFrame:
    """
    Return those of *rows* that are replayed.

    Raises:
        SettingRefused: --where is no condition.
    """
    if settings.topic:
        rows = rows.where(F.col("topic").isin(*settings.topic))
    if settings.where.strip():
        try:
            rows = rows.where(settings.where)
        except PySparkException as error:
            raise _refused(settings, error) from error
    return rows.dropDuplicates(list(_ID)) if settings.distinct else rows


def count_rows(archive: DataFrame, settings: ReplaySettings, done_rows: int) -> Count:
    """
    Return what of *archive* is replayed.

    Raises:
        SettingRefused: --where is no condition, or a topic with what stands behind it no name.
        JobFailed: The archive cannot be read.
    """
    rows = chosen(archive, settings)
    moment = F.unix_micros(F.col("ts").cast("timestamp")) if "ts" in rows.columns else F.lit(None)
    try:
        found = (
            rows.groupBy("topic")
            .agg(
                F.count(F.lit(1)),
                F.coalesce(F.sum(F.octet_length("body").cast("bigint")), F.lit(0)),
                F.min(moment),
                F.max(moment),
            )
            .sort("topic")
            .collect()
        )
    except _WHOSE_FAULT as error:
        if settings.where.strip():
            raise _refused(settings, error) from error
        raise JobFailed(f"the archive cannot be read: {explain(str(error).strip())}") from error
    except PySparkException as error:
        raise JobFailed(f"the archive cannot be read: {explain(str(error).strip())}") from error
    tallies = [
        Tally(row[0], target_of(row[0], settings.to_topic, REPLAY_SUFFIX), *row[1:])
        for row in found
    ]
    return Count(tallies, done_rows)


def _refused(settings: ReplaySettings, error: Exception) -> SettingRefused:
    return SettingRefused(f"--where {settings.where!r}", one_sentence(str(error)))
