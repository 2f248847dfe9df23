"""
The metrics: a count of messages by topic and window, published to a topic of its own.

A window is published whenever a batch has changed it, with all that is known of it by then: whoever
reads keeps the last message of each `topic` and `window_start`. A stream of Spark cannot update a
sink, so each batch is published as one of its own; what Spark tries again is published again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody does
from pyspark.sql.streaming.query import StreamingQuery

from gateway.errors import SettingRefused
from gateway.pipeline.clock import moment_of
from gateway.pipeline.options import FORMAT, check_name, option_of, options_of
from gateway.pipeline.progress import ProgressListener, listening
from gateway.pipeline.runner import Ending, run_stream, source_options, trigger_of
from gateway.pipeline.session import session
from gateway.pipeline.source import check_source
from gateway.settings_common import flag_of
from gateway.settings_nsqd import NsqdSettings
from gateway.settings_replay import MetricsSettings
from gateway.telemetry import get_logger

logger = get_logger()

NAME = "metrics"

_PERCENTILES = {"p50_ms": 0.5, "p95_ms": 0.95, "p99_ms": 0.99}
_ACCURACY = 1_000
"""Of the percentiles: a rank is off by a thousandth of the count at most; up to it, by nothing."""
_COUNTS = ("count", "bytes", "redelivered", "max_attempts")


def run_metrics(settings: MetricsSettings) -> Ending:
    """
    Publish metrics until there is nothing left (--available-now), or a signal comes.

    Raises:
        SettingsError: A setting is missing, or cannot be used.
        StartError: Spark cannot run here.
        JobFailed: The stream failed for good.
    """
    check_metrics(settings)
    with session(settings, NAME) as spark, listening(spark, Late(settings.watermark_s)):
        return run_stream(spark, lambda: start_metrics(spark, settings), settings)


def check_metrics(settings: MetricsSettings) -> None:
    """Raise SettingsError for what is missing, and for metrics that would count themselves."""
    check_source(settings, flag_of)
    check_name("--to-topic", settings.to_topic)
    if settings.to_topic in settings.topic:
        reason = (
            f"{settings.to_topic} is read by --topic, too: each message of the metrics would make "
            "another one, for ever; name another topic"
        )
        raise SettingRefused("--to-topic", reason)
    if not settings.checkpoint:
        reason = "say where Spark keeps the windows, and how far they are: a folder of this job"
        raise SettingRefused("--checkpoint", reason)


class Late(ProgressListener):
    """Says so where messages came too late to be counted."""

    def __init__(self, watermark_s: float) -> None:
        self._watermark_s = watermark_s

    def progress(self, progress: dict[str, Any]) -> None:
        """Say what a batch has left out, in groups: tasks have added up by then what they have."""
        operators = progress.get("stateOperators") or ()
        groups = sum(each.get("numRowsDroppedByWatermark", 0) for each in operators)
        if groups:
            logger.warning(
                "messages came too late to be counted",
                groups=groups,
                watermark_s=self._watermark_s,
                advice="--watermark-s is how late a message may be",
            )


def start_metrics(spark: SparkSession, settings: MetricsSettings) -> StreamingQuery:
    """Start the query, in the session *spark*."""
    rows = spark.readStream.format(FORMAT).options(**source_options(settings)).load()
    sink = options_of(settings, NsqdSettings) | {option_of("to_topic"): settings.to_topic}

    def publish(windows: DataFrame, batch_id: int) -> None:
        del batch_id
        # Collected: there are few, and what comes of them is computed once.
        bodies = [(body_of(row.asDict()),) for row in windows.collect()]
        if bodies:
            batch = windows.sparkSession.createDataFrame(bodies, "body binary").coalesce(1)
            batch.write.format(FORMAT).options(**sink).mode("append").save()

    windows = in_windows(rows, settings)
    writer = windows.writeStream.outputMode("update").foreachBatch(publish).queryName(NAME)
    writer = writer.option("checkpointLocation", settings.checkpoint)
    return writer.trigger(**trigger_of(settings)).start()


def in_windows(rows: DataFrame, settings: MetricsSettings) -> DataFrame:
    """Return what is counted of *rows*, by topic and window; as `body_of` takes a row of it."""
    latency_ms = (F.unix_micros("received") - F.unix_micros("ts")) / F.lit(1_000.0)
    size_bytes = F.octet_length("body").cast("bigint")
    return (
        rows.withColumn("latency_ms", latency_ms)
        .withColumn("size_bytes", size_bytes)
        .withWatermark("ts", _interval(settings.watermark_s))
        .groupBy(F.window("ts", _interval(settings.window_s)).alias("window"), "topic")
        .agg(
            F.count(F.lit(1)).alias("count"),
            F.sum("size_bytes").alias("bytes"),
            F.count_if(F.col("attempts") > 1).alias("redelivered"),
            F.max("attempts").alias("max_attempts"),
            F.percentile_approx("latency_ms", list(_PERCENTILES.values()), _ACCURACY).alias(
                "percentiles_ms"
            ),
        )
        .select(
            "topic",
            _moment("window.start").alias("start_us"),
            _moment("window.end").alias("end_us"),
            *_COUNTS,
            "percentiles_ms",
        )
    )


def body_of(row: Mapping[str, Any]) -> bytes:
    """
    Return the message of one window.

    ``{"topic","window_start","window_end" (RFC 3339, UTC),"count","bytes","redelivered",
    "max_attempts","p50_ms","p95_ms","p99_ms"}``; one of the same topic and window_start takes the
    place of those before it.
    """
    percentiles = zip(_PERCENTILES, row["percentiles_ms"], strict=True)
    fields = {
        "topic": row["topic"],
        "window_start": moment_of(row["start_us"]),
        "window_end": moment_of(row["end_us"]),
        **{name: row[name] for name in _COUNTS},
        **{name: round(value, 3) for name, value in percentiles},
    }
    return json.dumps(fields, separators=(",", ":")).encode()


def _moment(name: str) -> Column:
    """Return a column of time as us since 1970, which no time zone changes."""
    return F.unix_micros(F.col(name))


def _interval(time_s: float) -> str:
    return f"{round(time_s * 1_000)} milliseconds"
