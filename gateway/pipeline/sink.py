"""
The sinks of the format `nsq`, for `df.write` and `df.writeStream`.

The driver creates a writer and pickles it for the tasks, which publish. A writer contains options,
but no secret. A task succeeds once nsqd has answered OK to every row. If a task fails, Spark runs
it again and its rows are published again: delivery is at least once.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from typing import NoReturn

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import DataType, StructType

from gateway.errors import (
    BrokerRefused,
    GatewayError,
    NoBroker,
    OutcomeUnknown,
    RowRefused,
    SettingRefused,
    SettingsError,
)
from gateway.pipeline.options import FORMAT, check_name, option_of, options_of, read_options
from gateway.pipeline.sink_producer import (
    LimitLearned,
    SinkProducer,
    discard_producer,
    producer_for,
)
from gateway.pipeline.sink_rows import (
    BODY,
    BadRow,
    RowLayout,
    RowLimits,
    Rows,
    dead_letters,
    group_by_topic,
    row_name,
    split_bad_rows,
    split_rows,
)
from gateway.settings.pipeline import NsqSinkSettings
from gateway.telemetry import get_logger

logger = get_logger()

_SHOWN_KEYS = 5
_MIN_COMMANDS_PER_S = 4
"""Minimum number of commands a second at a limited rate: larger batches would come in bursts."""
_GRACE_S = 10.0
"""Time beyond answer_timeout_ms that a task waits for the result from the producer's thread."""


@dataclass
class Published(WriterCommitMessage):
    """Rows that a task has published, all answered OK by nsqd."""

    rows: int
    size_bytes: int
    bad_rows: int = 0
    """Rows reported to the dead-letter topic."""
    repeated_rows: int = 0
    """Rows of batches sent again because nsqd had not answered OK: possible duplicates."""


class PublishThrottle:
    """Limit a task to *rate_per_s* messages a second, by a wait after each publish."""

    def __init__(
        self,
        rate_per_s: float,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], object] | None = None,
    ) -> None:
        self._rate_per_s = rate_per_s
        self._clock = clock
        self._wait = wait or threading.Event().wait
        self._free_at = clock()

    def wait(self, count: int) -> None:
        """Wait as long as *count* messages take at the rate; a rate of 0 means no limit."""
        if not self._rate_per_s:
            return
        # From now if the task was slower than its rate: idle time is not saved up for a burst.
        self._free_at = max(self._free_at, self._clock()) + count / self._rate_per_s
        while (left_s := self._free_at - self._clock()) > 0:
            self._wait(min(left_s, 1.0))


class PublishWindow:
    """Send the batches of one task, and limit how many are unanswered."""

    def __init__(self, producer: SinkProducer) -> None:
        self._producer = producer
        self._most = producer.settings.max_unanswered
        self._wait_s = producer.settings.answer_timeout_ms / 1_000 + _GRACE_S
        self._waiting: deque[tuple[Rows, Future[None]]] = deque()
        self.sent_rows = 0
        """Rows that nsqd answered OK to."""
        self.sent_bytes = 0
        """Size of the bodies of those rows."""
        self.is_serial = False
        """True to send a batch only after all earlier ones have been answered."""
        self.oversized: deque[Rows] = deque()
        """Unpublished batches that exceed a limit learned from nsqd; the task splits them again."""

    @property
    def unanswered_rows(self) -> int:
        """Rows that have been sent and not answered."""
        return sum(len(rows.bodies) for rows, _ in self._waiting)

    def send(self, rows: Rows) -> None:
        """
        Send *rows*, one part made by `split_rows`, to nsqd; the answer is awaited later.

        First wait until fewer batches than the limit are unanswered. An error of such an earlier
        batch is raised here, as by `finish`.
        """
        while len(self._waiting) >= (1 if self.is_serial else self._most):
            self._await_oldest()
        self._waiting.append((rows, self._producer.publish(rows)))

    def finish(self) -> None:
        """
        Wait until nsqd has answered every batch; raises as `SinkProducer.publish` does.

        Afterwards `oversized` has the batches that exceed a limit which nsqd reported in the
        meantime; all others are published.
        """
        while self._waiting:
            self._await_oldest()

    def _await_oldest(self) -> None:
        """Wait for the answer to the oldest unanswered batch, and count its rows."""
        rows, outcome = self._waiting[0]
        try:
            outcome.result(self._wait_s)
        except LimitLearned:
            self._waiting.popleft()
            self.oversized.append(rows)
            return
        except TimeoutError:
            text = (
                f"no outcome of {len(rows.bodies)} rows for topic {rows.topic} within "
                f"{self._wait_s} s"
            )
            raise OutcomeUnknown(text) from None
        self._waiting.popleft()
        self.sent_rows += len(rows.bodies)
        self.sent_bytes += int(rows.sizes_bytes.sum())

    def cancel(self) -> None:
        """Stop waiting for unanswered batches, and retrying them; nsqd may still publish them."""
        for _, outcome in self._waiting:
            outcome.cancel()


class PublishTask:
    """Publish the rows of one partition."""

    def __init__(
        self, producer: SinkProducer, layout: RowLayout, partition: int, throttle: PublishThrottle
    ) -> None:
        self._producer = producer
        self._settings = producer.settings
        self._layout = layout
        self._partition = partition
        self._throttle = throttle
        self._window = PublishWindow(producer)
        self._bad: list[str] = []
        """Keys of the first bad rows, for the log."""
        self._bad_count = 0
        self._dead_letter_rows = 0
        self._dead_letter_bytes = 0
        self._rows_seen = 0

    def run(self, record_batches: Iterator[pa.RecordBatch]) -> Published:
        """Publish *record_batches*; raises RowRefused, or as `SinkProducer.publish` does."""
        # The producer outlives a task and counts for all of them, but serves one at a time.
        repeated = self._producer.repeated_rows
        try:
            for batch in record_batches:
                by_topic, bad = group_by_topic(batch, self._layout, self._rows_seen)
                self._rows_seen += batch.num_rows
                self._send(by_topic, bad)
                self._resend()
            self._finish()
        except BaseException as error:
            self._window.cancel()
            if isinstance(error, RowRefused) or not isinstance(error, GatewayError):
                raise
            raise self._with_progress(error) from error
        if self._bad_count:
            logger.warning(
                "rows sent to the dead-letter topic",
                topic=self._settings.dead_letter_topic,
                rows=self._bad_count,
                partition=self._partition,
                keys=self._bad,
            )
        return Published(
            self._window.sent_rows - self._dead_letter_rows,
            self._window.sent_bytes - self._dead_letter_bytes,
            self._bad_count,
            self._producer.repeated_rows - repeated,
        )

    def _finish(self) -> None:
        """Wait until every batch is answered OK, also those that have to be split again."""
        self._window.finish()
        while self._window.oversized:
            self._resend()
            self._window.finish()

    def _resend(self) -> None:
        # Another limit of nsqd may still be unknown. nsqd closes the connection after a refusal, so
        # batches behind the refused one would lose their answers and be published twice.
        self._window.is_serial = True
        while self._window.oversized:
            self._send([self._window.oversized.popleft()], [])
        self._window.is_serial = False

    def _send(self, by_topic: Sequence[Rows], bad: list[BadRow]) -> None:
        """Publish the rows within nsqd's limits; handle *bad* and the rows beyond the limits."""
        limits = self._limits()
        good: list[Rows] = []
        for rows in by_topic:
            kept, refused = split_bad_rows(rows, limits)
            good.append(kept)
            bad += refused
        if bad:
            self._handle_bad_rows(bad, limits)
        for rows in good:
            for part in split_rows(rows, limits):
                self._window.send(part)
                self._throttle.wait(len(part.bodies))

    def _limits(self) -> RowLimits:
        """Return nsqd's limits, with smaller batches if the rate is limited."""
        limits = self._producer.limits
        share = self._settings.rate / max(1, self._settings.rate_tasks)
        if not share:
            return limits
        return limits._replace(
            batch_rows=min(limits.batch_rows, max(1, int(share / _MIN_COMMANDS_PER_S)))
        )

    def _handle_bad_rows(self, bad: list[BadRow], limits: RowLimits) -> None:
        """
        Publish a dead letter for each row in *bad*, if badRows is dead-letter.

        Raises:
            RowRefused: badRows is fail, or nsqd would refuse a dead letter too.
        """
        # They come by topic and by check, and an error must name the first one of the partition.
        bad.sort(key=lambda row: row.number)
        if self._settings.bad_rows == "fail":
            # Await the rows before it, so that the error states how many are published.
            self._finish()
            first = bad[0]
            raise RowRefused(
                row_name(first, self._partition),
                f"{first.reason}: {first.detail} (topic {first.topic!r}, partition "
                f"{self._partition}, row {first.number}; {len(bad)} bad rows so far, "
                f"{self._window.sent_rows} rows of this task are published). Correct the row, or "
                "set badRows=dead-letter",
            )
        topic = self._settings.dead_letter_topic
        letters, refused = split_bad_rows(dead_letters(bad, topic, self._partition), limits)
        if refused:
            first = bad[0]
            raise RowRefused(
                row_name(first, self._partition),
                f"{first.reason}: {first.detail}; its dead letter for {topic} is refused too: "
                f"{refused[0].detail}",
            )
        self._bad_count += len(bad)
        room = _SHOWN_KEYS - len(self._bad)
        self._bad += [row_name(row, self._partition) for row in bad[:room]]
        for part in split_rows(letters, limits):
            self._window.send(part)
            self._throttle.wait(len(part.bodies))
            self._dead_letter_rows += len(part.bodies)
            self._dead_letter_bytes += int(part.sizes_bytes.sum())

    def _with_progress(self, error: GatewayError) -> GatewayError:
        """Return a copy of *error* whose text also says how many rows the task has published."""
        how_far = (
            f"partition {self._partition}: {self._window.sent_rows} rows were answered OK, "
            f"{self._window.unanswered_rows} were sent and not answered, the others were not sent"
        )
        if isinstance(error, BrokerRefused):
            return BrokerRefused(error.code, f"{error.description}; {how_far}")
        if isinstance(error, NoBroker):
            return NoBroker(f"{error}; {how_far}")
        if isinstance(error, OutcomeUnknown):
            return OutcomeUnknown(f"{error}; {how_far}")
        return error


_TOPIC = "topic"
_DEFER = "defer_ms"
_KEYS = ("id", "key")
_TEXTS = ("string", "binary")
_WHOLE_NUMBERS = ("tinyint", "smallint", "int", "bigint")
_SPARK_OPTIONS = frozenset({"checkpointlocation", "queryname"})
"""Options of Spark itself, which it also passes to the format."""
_SOURCE_COLUMNS = frozenset({"nsqd", "id", "attempts", _TOPIC})
"""Columns that together show that rows were read by this source."""


# When a query is planned


def read_sink_settings(options: Mapping[str, str]) -> NsqSinkSettings:
    """
    Return the sink's settings for *options*; `topic` is an alias of `toTopic`.

    Raises:
        SettingsError: As raised by `read_options`; a topic name is invalid; rate is set without
            rateTasks.
    """
    given = {name: value for name, value in options.items() if name.lower() not in _SPARK_OPTIONS}
    spelled = {name: option_of(name) for name in ("to_topic", "dead_letter_topic")}
    for name in list(given):
        if name.lower() == _TOPIC:
            topic = given.pop(name)
            if any(other.lower() == "totopic" for other in given):
                raise SettingRefused(_TOPIC, "it is an alias of toTopic; give only one of them")
            given["toTopic"] = topic
            spelled["to_topic"] = _TOPIC
    settings = read_options(NsqSinkSettings, given, "sink", also=(_TOPIC,))
    # `spelled` has the names as the user gave them, for the error.
    for name, option in spelled.items():
        if getattr(settings, name):
            check_name(option, getattr(settings, name))
    if settings.rate and not settings.rate_tasks:
        raise SettingRefused(
            "rate",
            "set rateTasks to the number of tasks that run at once, which share the rate evenly: "
            "the job's partitions, or spark.sparkContext.defaultParallelism if that is less",
        )
    return settings


def row_layout(schema: StructType, settings: NsqSinkSettings) -> RowLayout:
    """
    Return which columns of *schema* have the topic, delay and key of a row.

    Raises:
        SettingsError: A column is missing, or has a type that cannot be published.
    """
    columns = {field.name: field.dataType for field in schema.fields}
    _require(columns, BODY, _TEXTS, "the message")
    is_by_column = not settings.to_topic
    if is_by_column:
        if columns.keys() >= _SOURCE_COLUMNS:
            raise SettingRefused(
                "toTopic",
                "these rows were read from NSQ, and the column topic is their source topic: "
                "publishing them there would loop. Set toTopic, or select only topic and body",
            )
        _require(columns, _TOPIC, ("string",), "the topic of a row without the option toTopic")
    defer = settings.defer_column or (_DEFER if _DEFER in columns else None)
    if defer:
        _require(columns, defer, _WHOLE_NUMBERS, "the delay of a row in ms")
    key = settings.key_column or next((name for name in _KEYS if name in columns), None)
    if key:
        _require(columns, key, None, "the key of a row")
    return RowLayout(
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
        raise SettingRefused(
            f"column {name}", f"missing; it must contain {meaning}. Found: {found}"
        )
    kind = columns[name].simpleString()
    if types is not None and kind not in types:
        raise SettingsError(f"column {name}", kind, allowed=" or ".join(types))


# In a task


class Sink:
    """Base class of the writers: publish the rows of a task."""

    def __init__(self, settings: NsqSinkSettings, layout: RowLayout) -> None:
        self._options = options_of(settings, NsqSinkSettings)
        self._layout = layout

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Published:
        """
        Publish the rows of one task, on an executor; return when nsqd has answered OK to each.

        Raises:
            RowRefused: A row cannot be published, and badRows is fail.
            SettingsError: The secret, or a TLS file, cannot be read on this executor.
            PublishError: nsqd did not accept a batch within answer_timeout_ms.
        """
        producer = producer_for(
            self._options,
            lambda: SinkProducer(read_options(NsqSinkSettings, self._options, "sink")),
        )
        context = TaskContext.get()
        settings = producer.settings
        # Tasks do not know of each other, so each gets an even share of the rate.
        throttle = PublishThrottle(settings.rate / max(1, settings.rate_tasks))
        task = PublishTask(
            producer, self._layout, context.partitionId() if context else 0, throttle
        )
        try:
            return task.run(iterator)
        except RowRefused:
            raise
        except GatewayError:
            # The retry of this task then starts with new connections and a new discovery.
            discard_producer(producer)
            raise


def sum_published(messages: Sequence[WriterCommitMessage | None]) -> Published:
    """Return the sum of *messages*, one from each task; None, for a failed task, counts as 0."""
    found = [message for message in messages if isinstance(message, Published)]
    return Published(
        sum(message.rows for message in found),
        sum(message.size_bytes for message in found),
        sum(message.bad_rows for message in found),
        sum(message.repeated_rows for message in found),
    )


class NsqStreamWriter(Sink, DataSourceStreamArrowWriter):
    """The sink of a stream; created by `stream_writer`."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Log the totals of a batch."""
        logger.info("batch published", batch_id=batchId, **_log_fields(messages))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Log how much of a failed batch was published; Spark will repeat the batch."""
        logger.warning("batch failed", batch_id=batchId, **_log_fields(messages))


class NsqBatchWriter(Sink, DataSourceArrowWriter):
    """The sink of a batch write; created by `batch_writer`."""

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Log the totals of a write."""
        logger.info("job published", **_log_fields(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Log how much a failed write has published."""
        logger.warning("job failed", **_log_fields(messages))


def _log_fields(messages: Sequence[WriterCommitMessage | None]) -> dict[str, int]:
    return asdict(sum_published(messages))


# Called by the data source


def stream_writer(
    options: Mapping[str, str], schema: StructType, *, overwrite: bool
) -> NsqStreamWriter:
    """Return the writer of a stream; raises SettingsError for invalid options or columns."""
    if overwrite:
        reason = "a queue cannot replace what was published; use append"
        raise SettingRefused("outputMode complete", reason)
    settings = read_sink_settings(options)
    return NsqStreamWriter(settings, row_layout(schema, settings))


def batch_writer(
    options: Mapping[str, str], schema: StructType, *, overwrite: bool
) -> NsqBatchWriter:
    """Return the writer of a batch; raises SettingsError for invalid options or columns."""
    if overwrite:
        reason = "a queue cannot be overwritten; use mode append"
        raise SettingRefused("mode overwrite", reason)
    settings = read_sink_settings(options)
    return NsqBatchWriter(settings, row_layout(schema, settings))


def refuse_batch_read() -> NoReturn:
    """Raise SettingsError: the format supports streaming reads only."""
    raise SettingRefused(
        f"spark.read.format({FORMAT!r})",
        "reading removes messages from a queue, and a batch may read its input twice; use "
        f"spark.readStream.format({FORMAT!r}) with trigger(availableNow=True), which reads what "
        "is there and ends",
    )
