"""
The metrics job: count messages by topic and window, and publish the counts to a topic.

After each batch, the windows that it has changed are published with their new totals. Readers keep
the last message of each `topic` and `window_start`. The sink supports append only, while a query in
update mode emits changed rows, so `foreachBatch` publishes each batch by a batch write. A batch
that Spark retries is published again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody does
from pyspark.sql.streaming.query import StreamingQuery

from gateway.errors import SettingRefused
from gateway.pipeline.datasource import check_credential_files, check_source_settings
from gateway.pipeline.jobs.monitoring import ProgressListener, listening, management
from gateway.pipeline.jobs.runner import JobResult, run_stream, source_options, trigger_of
from gateway.pipeline.jobs.spark import session
from gateway.pipeline.options import FORMAT, check_name, option_of, options_of
from gateway.pipeline.schema import format_time
from gateway.settings.fields import flag_name
from gateway.settings.nsqd import NsqdSettings
from gateway.settings.pipeline import MetricsSettings
from gateway.telemetry import get_logger

logger = get_logger()

NAME = "metrics"

_PERCENTILES = {"p50_ms": 0.5, "p95_ms": 0.95, "p99_ms": 0.99}
_ACCURACY = 1_000
"""
Argument of percentile_approx: percentiles are exact up to this many messages in a window; above
that, the rank is off by at most a thousandth of the count.
"""
_COUNTS = ("count", "bytes", "redelivered", "max_attempts")


def run_metrics(settings: MetricsSettings) -> JobResult:
    """
    Publish metrics until no messages are left (--available-now) or a signal arrives.

    Raises:
        SettingsError: A setting is missing or unusable.
        StartError: Spark cannot run here.
        JobFailed: The stream failed and is not retried.
    """
    check_metrics(settings)
    with (
        management(settings.management_listen) as port,
        session(settings, NAME) as spark,
        listening(spark, LateRowsListener(settings.watermark_s)),
    ):
        return run_stream(spark, lambda: start_metrics_query(spark, settings), settings, port)


def check_metrics(settings: MetricsSettings) -> None:
    """Raise SettingsError if a setting is missing, or --to-topic is one of the topics counted."""
    check_source_settings(settings, flag_name)
    check_credential_files(settings)
    check_name("--to-topic", settings.to_topic)
    if settings.to_topic in settings.topic:
        reason = (
            f"{settings.to_topic} is read by --topic too: each message of the metrics would "
            "produce another one, for ever; name another topic"
        )
        raise SettingRefused("--to-topic", reason)
    if not settings.checkpoint:
        reason = "the folder of Spark's checkpoint is required, used by this job only"
        raise SettingRefused("--checkpoint", reason)


class LateRowsListener(ProgressListener):
    """Log that messages arrived too late to be counted."""

    def __init__(self, watermark_s: float) -> None:
        self._watermark_s = watermark_s

    def on_progress(self, progress: dict[str, Any]) -> None:
        """
        Log how many late groups the batch has dropped.

        Spark does not count the late messages themselves, but groups: those of one topic and window
        that one task has aggregated.
        """
        operators = progress.get("stateOperators") or ()
        groups = sum(each.get("numRowsDroppedByWatermark", 0) for each in operators)
        if groups:
            logger.warning(
                "late messages not counted",
                groups=groups,
                watermark_s=self._watermark_s,
                advice="--watermark-s is how late a message may arrive",
            )


def start_metrics_query(spark: SparkSession, settings: MetricsSettings) -> StreamingQuery:
    """Start the query that counts messages by topic and window, and publishes the counts."""
    rows = spark.readStream.format(FORMAT).options(**source_options(settings)).load()
    sink = options_of(settings, NsqdSettings) | {option_of("to_topic"): settings.to_topic}

    def publish(windows: DataFrame, batch_id: int) -> None:
        del batch_id
        # Windows are few. Collected, they are computed only once.
        bodies = [(encode_window(row.asDict()),) for row in windows.collect()]
        if bodies:
            batch = windows.sparkSession.createDataFrame(bodies, "body binary").coalesce(1)
            batch.write.format(FORMAT).options(**sink).mode("append").save()

    windows = aggregate_by_window(rows, settings)
    writer = windows.writeStream.outputMode("update").foreachBatch(publish).queryName(NAME)
    writer = writer.option("checkpointLocation", settings.checkpoint)
    return writer.trigger(**trigger_of(settings)).start()


def aggregate_by_window(rows: DataFrame, settings: MetricsSettings) -> DataFrame:
    """Aggregate *rows* by topic and window, into rows for `encode_window`."""
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


def encode_window(row: Mapping[str, Any]) -> bytes:
    """
    Return the message for one window, a JSON object.

    The fields are ``topic``, ``window_start`` and ``window_end`` (RFC 3339, UTC), ``count``,
    ``bytes``, ``redelivered``, ``max_attempts``, ``p50_ms``, ``p95_ms`` and ``p99_ms``. A message
    replaces earlier ones of the same topic and window_start.
    """
    percentiles = zip(_PERCENTILES, row["percentiles_ms"], strict=True)
    fields = {
        "topic": row["topic"],
        "window_start": format_time(row["start_us"]),
        "window_end": format_time(row["end_us"]),
        **{name: row[name] for name in _COUNTS},
        **{name: round(value, 3) for name, value in percentiles},
    }
    return json.dumps(fields, separators=(",", ":")).encode()


def _moment(name: str) -> Column:
    """Return a time column as µs since 1970, independent of time zones."""
    return F.unix_micros(F.col(name))


def _interval(time_s: float) -> str:
    return f"{round(time_s * 1_000)} milliseconds"
