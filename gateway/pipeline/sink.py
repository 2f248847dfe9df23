"""
The sinks of the format `nsq`: `df.writeStream.format("nsq")`, and `df.write.format("nsq")`.

A writer is made where a query is planned, and pickled to the tasks, which publish: it holds options
and no secret. A task returns once nsqd has said OK to every row. One that fails is run again by
Spark, and publishes its rows again: at least once, never less.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import NoReturn

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import DataType, StructType

from gateway.errors import GatewayError, RowRefused, SettingRefused, SettingsError
from gateway.pipeline.options import FORMAT, check_name, option_of, options_of, read_options
from gateway.pipeline.outlet import Outlet, discard, outlet_of
from gateway.pipeline.publishing import Pace, Published, Task
from gateway.pipeline.sink_rows import BODY, Layout
from gateway.settings_sink import SinkSettings
from gateway.telemetry import get_logger

logger = get_logger()

_TOPIC = "topic"
_DEFER = "defer_ms"
_KEYS = ("id", "key")
_TEXTS = ("string", "binary")
_WHOLE_NUMBERS = ("tinyint", "smallint", "int", "bigint")
_OF_SPARK = frozenset({"checkpointlocation", "queryname"})
"""Options that Spark hands on, and that are its own."""
_PATH = "path"
_FROM_NSQ = frozenset({"nsqd", "id", "attempts", _TOPIC})
"""Columns by which rows of the source are known."""


# At the planning of a query


def read_sink_settings(options: Mapping[str, str]) -> SinkSettings:
    """
    Return the settings that *options* make; `topic` is another name of `toTopic`.

    Raises:
        SettingsError: As `read_options` does, or a topic cannot be used.
    """
    given = {name: value for name, value in options.items() if name.lower() not in _OF_SPARK}
    for name in list(given):
        if name.lower() == _PATH:
            raise SettingRefused(_PATH, "nsq has no paths; name the topic by the option topic")
        if name.lower() == _TOPIC:
            topic = given.pop(name)
            if any(other.lower() == "totopic" for other in given):
                raise SettingRefused(_TOPIC, "it is another name of toTopic; give one of them")
            given["toTopic"] = topic
    settings = read_options(SinkSettings, given)
    for name in ("to_topic", "dead_letter_topic"):
        if getattr(settings, name):
            check_name(option_of(name), getattr(settings, name))
    if settings.rate and not settings.rate_tasks:
        raise SettingRefused(
            "rate",
            "say with rateTasks how many tasks run at once, each of which has an even share: the "
            "partitions of the job, or spark.sparkContext.defaultParallelism where that is less",
        )
    return settings


def layout_of(schema: StructType, settings: SinkSettings) -> Layout:
    """
    Return which columns of *schema* mean what.

    Raises:
        SettingsError: One is missing, or of a type that cannot be published.
    """
    columns = {field.name: field.dataType for field in schema.fields}
    _require(columns, BODY, _TEXTS, "what is published")
    is_by_column = not settings.to_topic
    if is_by_column:
        if columns.keys() >= _FROM_NSQ:
            raise SettingRefused(
                "toTopic",
                "these rows come from nsq, and their column topic is where they come from: to go "
                "there again they would come back for ever. Name another topic, or select "
                "topic and body alone where another nsqd is meant",
            )
        _require(columns, _TOPIC, ("string",), "where a row goes, without the option toTopic")
    defer = settings.defer_column or (_DEFER if _DEFER in columns else None)
    if defer:
        _require(columns, defer, _WHOLE_NUMBERS, "by how many ms a row is deferred")
    key = settings.key_column or next((name for name in _KEYS if name in columns), None)
    if key:
        _require(columns, key, None, "what names a row")
    return Layout(
        topic=settings.to_topic,
        topic_column=_TOPIC if is_by_column else None,
        defer_column=defer,
        key_column=key,
    )


def _require(
    columns: Mapping[str, DataType], name: str, types: Sequence[str] | None, meaning: str
) -> None:
    if name not in columns:
        found = ", ".join(f"{name} {kind.simpleString()}" for name, kind in columns.items())
        raise SettingRefused(f"column {name}", f"it is missing, and says {meaning}; found: {found}")
    kind = columns[name].simpleString()
    if types is not None and kind not in types:
        raise SettingsError(f"column {name}", kind, allowed=" or ".join(types))


# In a task


class Sink:
    """What both writers do."""

    def __init__(self, settings: SinkSettings, layout: Layout) -> None:
        self._options = options_of(settings, SinkSettings)
        self._layout = layout

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Published:
        """
        Publish what one task has, in an executor; return when nsqd has said OK to each row.

        Raises:
            RowRefused: A row cannot be published, and badRows is fail.
            SettingsError: The secret, or a file of TLS, cannot be read here.
            PublishError: nsqd did not take it within answer_timeout_ms.
        """
        outlet = outlet_of(self._options, lambda: Outlet(read_options(SinkSettings, self._options)))
        context = TaskContext.get()
        settings = outlet.settings
        pace = Pace(settings.rate / max(1, settings.rate_tasks))
        task = Task(outlet, self._layout, context.partitionId() if context else 0, pace)
        try:
            return task.run(iterator)
        except RowRefused:
            raise
        except GatewayError:
            discard(outlet)
            raise


def total(messages: Sequence[WriterCommitMessage | None]) -> Published:
    """Return the sums over tasks; one that failed has no message."""
    found = [message for message in messages if isinstance(message, Published)]
    return Published(
        sum(message.rows for message in found),
        sum(message.size_bytes for message in found),
        sum(message.bad_rows for message in found),
        sum(message.repeated_rows for message in found),
    )


class NsqStreamWriter(Sink, DataSourceStreamArrowWriter):
    """The sink of a stream; make one with `stream_writer`."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Say what a batch came to."""
        logger.info("batch published", batch_id=batchId, **_sums(messages))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Say what was published of a batch that comes again."""
        logger.warning("batch failed", batch_id=batchId, **_sums(messages))


class NsqBatchWriter(Sink, DataSourceArrowWriter):
    """The sink of a batch; make one with `batch_writer`."""

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Say what a job came to."""
        logger.info("job published", **_sums(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Say what was published of a job that failed."""
        logger.warning("job failed", **_sums(messages))


def _sums(messages: Sequence[WriterCommitMessage | None]) -> dict[str, int]:
    return asdict(total(messages))


# What a data source answers Spark


def stream_writer(
    options: Mapping[str, str], schema: StructType, *, overwrite: bool
) -> NsqStreamWriter:
    """Return the writer of a stream; raises SettingsError for what cannot be meant."""
    if overwrite:
        reason = "a queue has nothing to put another state in place of; use append"
        raise SettingRefused("outputMode complete", reason)
    settings = read_sink_settings(options)
    return NsqStreamWriter(settings, layout_of(schema, settings))


def batch_writer(
    options: Mapping[str, str], schema: StructType, *, overwrite: bool
) -> NsqBatchWriter:
    """Return the writer of a batch; raises SettingsError for what cannot be meant."""
    if overwrite:
        reason = "a queue cannot be overwritten, only published to; use mode append"
        raise SettingRefused("mode overwrite", reason)
    settings = read_sink_settings(options)
    return NsqBatchWriter(settings, layout_of(schema, settings))


def refuse_batch_read() -> NoReturn:
    """Raise SettingsError: there is no batch read."""
    raise SettingRefused(
        f"spark.read.format({FORMAT!r})",
        "what is read from a queue is gone from it, so a batch cannot read it twice; use "
        f"spark.readStream.format({FORMAT!r}) and a trigger with availableNow=True, which reads "
        "what is there and ends",
    )
