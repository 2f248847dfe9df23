"""Settings of the Spark format `nsq` and of the pipeline jobs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal, TypeAlias
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, model_validator
from pydantic_settings import NoDecode

from gateway.addresses import split_address
from gateway.errors import SettingRefused
from gateway.settings.fields import (
    ADDRESS,
    ADDRESSES,
    MIB,
    LimitSettings,
    RemoteAddresses,
    Settings,
    flag_name,
    number,
    setting,
    split_commas,
    switch,
)
from gateway.settings.nsqd import NsqdSettings

AckMode: TypeAlias = Literal["commit", "spool"]

_SPOOL_WINDOW = 10_000
"""Messages in flight with a spool: enough to receive while the disk stores the previous ones."""

FIRST_ROWS = 20_000
"""Maximum rows of the first batch, with an automatic size."""
MAX_ROWS = 1_000_000
"""Maximum rows of any batch."""
_BATCHES_IN_BUFFER = 4
"""Buffer size in batches: the current and the next one, twice as rows may become longer."""

NAMES = "1 to 64 of a-z A-Z 0-9 . _ -, optionally followed by #ephemeral"
"""Valid names of topics and channels."""

Names: TypeAlias = Annotated[tuple[str, ...], BeforeValidator(split_commas), NoDecode]


class SourceSettings(NsqdSettings):
    """Settings of a stream that reads from NSQ."""

    topic: Names = setting((), "Topic to read; one stream may read several.", NAMES)
    channel: str = setting("spark", "Channel of every topic, used by this stream only.", NAMES)
    nsqd_http_address: RemoteAddresses = setting(
        (),
        "HTTP address of each nsqd of --nsqd-tcp-address, to read the depth of the channel from "
        "/stats. nsqds that nsqlookupd names are found without it.",
        ADDRESSES,
    )
    ack_mode: AckMode = setting(
        "commit",
        "When a message is finished: once Spark's commit log contains it, or once it is stored "
        "in a file of --spool-dir.",
        "commit, spool",
    )
    spool_dir: Path | None = setting(
        None,
        "Folder of this stream with --ack-mode spool, on a persistent disk of the driver: nsqd "
        "does not send its messages again.",
        "the path of a folder",
    )
    max_spool_bytes: int = number(
        8_192 * MIB,
        "Maximum bytes in the spool that Spark has not processed. Beyond this, no more messages "
        "are requested from nsqd; those in flight are still stored.",
        (MIB, 1_048_576 * MIB),
        "bytes",
    )
    spool_retention_s: float = number(
        0,
        "Time that a processed file of the spool is kept, to be read again with a new "
        "checkpoint. It is deleted earlier at --max-spool-bytes.",
        (0, 31_536_000),
        "s",
    )
    max_rows_per_batch: int = number(
        0,
        "Maximum rows of a batch. 0: 20 000, and more under a backlog while a batch takes less "
        "than --batch-target-s, up to a quarter of --max-buffer-bytes.",
        (0, MAX_ROWS),
    )
    batch_target_s: float = number(
        2,
        "With --max-rows-per-batch 0: time that a batch should take. Batches grow up to it "
        "under a backlog. Longer batches need more memory and bring hardly more rows a second.",
        (0.1, 3_600),
        "s",
    )
    max_in_flight: int = number(
        0,
        "Maximum messages in flight over all topics and nsqds, at least one for each topic. 0: "
        "twice the rows of a batch, so that the next batch arrives while one is processed, or "
        "10 000 with a spool. Any other value also limits automatic batches.",
        (0, 5_000_000),
    )
    max_buffer_bytes: int = number(
        256 * MIB,
        "Maximum bytes of messages in memory. Beyond this, nothing more is read from nsqd.",
        (MIB, 1_048_576 * MIB),
        "bytes",
    )
    msg_timeout_ms: int = number(
        60_000,
        "Time to finish a message, requested from nsqd. A third of it later the message is "
        "touched.",
        (1_000, 3_600_000),
        "ms",
    )
    partitions: int = number(
        0, "Tasks of one batch; 0: one for each 8 MiB, at least two.", (0, 4_096)
    )
    poll_ms: int = number(
        200, "Time that Spark waits for a first message before it asks again.", (1, 60_000), "ms"
    )
    batch_s: float = number(
        0,
        "Minimum time between batches, unless a full batch is waiting, or a message has waited "
        "for half of nsqd's --max-msg-timeout. Spark may ask more often, so that messages are "
        "finished soon after their batch.",
        (0, 86_400),
        "s",
    )
    idle_s: float = number(
        10,
        "With availableNow: end the run after this time without a message, for an nsqd that "
        "does not tell its depth.",
        (0.1, 3_600),
        "s",
    )

    @property
    def first_rows(self) -> int:
        """Maximum rows of the first batch; later batches may have an automatic size."""
        return self.max_rows_per_batch or FIRST_ROWS

    @property
    def batch_bytes(self) -> int:
        """Size in bytes at which a batch ends; the message that reaches it is the batch's last."""
        parts = 1 if self.max_rows_per_batch else _BATCHES_IN_BUFFER
        return self.max_buffer_bytes // parts

    @property
    def window(self) -> int:
        """Maximum messages in flight when the stream starts."""
        return self.window_for(self.first_rows)

    def window_for(self, rows: int) -> int:
        """Return the maximum messages in flight while a batch may have up to *rows* rows."""
        # Two batches without a spool: while Spark commits one, the next one is received.
        default_window = _SPOOL_WINDOW if self.ack_mode == "spool" else 2 * rows
        return self.max_in_flight or default_window


BadRows: TypeAlias = Literal["fail", "dead-letter"]

_COLUMN = "the name of a column"


class NsqSinkSettings(NsqdSettings, LimitSettings):
    """Settings of a sink that publishes rows to NSQ."""

    to_topic: str = setting(
        "",
        "Topic to publish to; empty: the column topic of each row.",
        NAMES,
    )
    key_column: str = setting(
        "",
        "Column that identifies a row in errors; empty: id or key, if there is one.",
        _COLUMN,
    )
    defer_column: str = setting(
        "",
        "Column with the delay of a row in ms; empty: defer_ms, if there is one.",
        _COLUMN,
    )
    rate: float = number(
        0,
        "Maximum publish rate of the whole job; 0: no limit.",
        (0, 1_000_000_000),
        "messages a second",
    )
    rate_tasks: int = number(
        0,
        "Number of concurrent tasks that share the rate evenly: the partitions of the job, or "
        "the cores if there are fewer.",
        (0, 100_000),
    )
    batch_rows: int = number(1_000, "Maximum rows in one command to nsqd.", (1, 1_000_000))
    batch_bytes: int = number(
        MIB,
        "Maximum bytes in one command to nsqd; a longer row is sent alone.",
        (64, 1024 * MIB),
        "bytes",
    )
    max_unanswered: int = number(
        4, "Maximum batches of one task that wait for nsqd's response.", (1, 256)
    )
    bad_rows: BadRows = setting(
        "fail",
        "What happens to a row without a body, with too large a body, or with an invalid topic: "
        "fail the query, or send a message to --dead-letter-topic.",
        "fail, dead-letter",
    )
    dead_letter_topic: str = setting(
        "", "Topic for reports of rows that cannot be published.", NAMES
    )
    answer_timeout_ms: int = number(
        30_000,
        "Time limit for nsqd's OK, retries included. Each try has a third of it.",
        (100, 3_600_000),
        "ms",
    )

    @model_validator(mode="after")
    def _sink_settings_are_consistent(self) -> NsqSinkSettings:
        letters, topic = flag_name("bad_rows"), flag_name("dead_letter_topic")
        if self.bad_rows == "dead-letter" and not self.dead_letter_topic:
            raise SettingRefused(letters, f"the value 'dead-letter' needs the setting {topic}")
        if self.bad_rows == "fail" and self.dead_letter_topic:
            raise SettingRefused(topic, f"it has no effect without {letters} dead-letter")
        return self


_BETWEEN_SETTINGS = re.compile(r"\s*[,\n]\s*(?=spark\.[\w.-]+=)")
"""A comma or newline is a separator only before another setting: values may contain commas."""
_SPARK_SETTING = re.compile(r"spark\.[\w.-]+=.*", re.DOTALL)
_PUSH_URL = re.compile(r"https?://[^/\s?#@]+(/[^\s?#]*)?")
_FOLDER = "a path, or a URL that Spark can write to"


def _split_spark_settings(value: object) -> object:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list | tuple):
        return value
    parts = (part.strip() for text in texts for part in _BETWEEN_SETTINGS.split(str(text)))
    return tuple(part for part in parts if part)


def _checked_spark_setting(value: str) -> str:
    if not _SPARK_SETTING.fullmatch(value):
        raise ValueError("a Spark setting has the form spark.name=value")
    return value


def _checked_listen(value: str) -> str:
    if value:
        split_address(value)
    return value


def _checked_push_url(value: str) -> str:
    try:
        is_whole = _PUSH_URL.fullmatch(value) and urlsplit(value).port != 0
    except ValueError:  # an invalid port
        is_whole = False
    if value and not is_whole:
        raise ValueError(
            "the URL of a Pushgateway is http://host:port, without user, query or fragment"
        )
    return value


def _checked_textfile(value: Path) -> Path:
    if value.suffix != ".prom":
        raise ValueError("node_exporter only reads files that end in .prom")
    return value


SparkSettings: TypeAlias = Annotated[
    tuple[Annotated[str, AfterValidator(_checked_spark_setting)], ...],
    BeforeValidator(_split_spark_settings),
    NoDecode,
]
OptionalAddress: TypeAlias = Annotated[str, AfterValidator(_checked_listen)]
PushUrl: TypeAlias = Annotated[str, AfterValidator(_checked_push_url)]
TextFile: TypeAlias = Annotated[Path, AfterValidator(_checked_textfile)]
ArchiveFormat: TypeAlias = Literal["parquet", "delta", "iceberg"]


class JobSettings(Settings):
    """Settings of every job."""

    master: str = setting(
        "",
        "Spark master; empty: a local JVM with all cores (local[*,4]), or the master of "
        "spark-submit.",
        "local[N,4], spark://…, k8s://…, yarn",
    )
    spark_conf: SparkSettings = setting(
        (),
        "Spark setting, which overrides the job's own.",
        "spark.name=value; repeat the flag, or separate with commas",
    )
    job_name: str = setting(
        "",
        "Label job_name of the metrics that the job pushes or writes; empty: its command. Jobs "
        "with the same command need different names.",
        "any text",
    )
    metrics_push_url: PushUrl = setting(
        "",
        "Pushgateway for the metrics of a job that ends (compact, replay, --available-now); "
        "empty: none.",
        "http://host:port or https://host:port",
    )
    metrics_textfile: TextFile | None = setting(
        None,
        "File for the metrics of such a job, in the folder of node_exporter's textfile collector.",
        "a path that ends in .prom",
    )


class QueryJobSettings(JobSettings):
    """Settings of every job with a checkpoint, from which it resumes."""

    checkpoint: str = setting(
        "",
        "Required: folder in which Spark records the progress of this job only. It must outlive "
        "the job.",
        _FOLDER,
    )
    retries: int = number(
        5,
        "Maximum restarts in a row of a failed stream, after 1 s, 2 s and so on up to 60 s. A "
        "successful batch resets the count.",
        (0, 1_000_000),
    )
    stop_wait_s: float = number(
        10,
        "Time that a stop waits for the current batch. An unfinished batch is read again.",
        (0, 3_600),
        "s",
    )
    management_listen: OptionalAddress = setting(
        "",
        "Address of /livez, /readyz and /metrics; empty: none.",
        ADDRESS,
    )


class StreamJobSettings(QueryJobSettings):
    """Settings of every job that reads a stream."""

    trigger_s: float = number(
        60,
        "Time between batches; 0: no pause.",
        (0, 86_400),
        "s",
    )
    available_now: bool = switch(
        "Process the messages that are available now, then end; --trigger-s is ignored."
    )


class SourceJobSettings(SourceSettings, StreamJobSettings):
    """Settings of every job that reads a stream from NSQ."""


class ArchiveSettings(SourceJobSettings):
    """Settings of `nsq-gateway pipeline archive`."""

    channel: str = setting("archive", "Channel of every topic, used by this archive only.", NAMES)
    output: str = setting("", "Required: folder of the Parquet files, or of the table.", _FOLDER)
    format: ArchiveFormat = setting(
        "parquet",
        "Format of the archive: Parquet files in folders, a Delta table (needs delta-spark and "
        "a matching Spark), or an Iceberg table (needs pyiceberg).",
        "parquet, delta, iceberg",
    )
    iceberg_catalog: str = setting(
        "default",
        "With --format iceberg: catalog of the table, a name in the configuration of pyiceberg "
        "(.pyiceberg.yaml, or variables such as PYICEBERG_CATALOG__NAME__URI).",
        "a name",
    )
    iceberg_table: str = setting(
        "",
        "With --format iceberg, required: the table, which is created if missing.",
        "namespace.table",
    )


class CompactSettings(JobSettings):
    """Settings of `nsq-gateway pipeline compact`."""

    input: str = setting("", "Required: output of an archive.", _FOLDER)
    output: str = setting(
        "", "Required: folder of the large files, used by this job only.", _FOLDER
    )
    settle_s: float = number(
        900,
        "Time after its end before an hour is compacted, so that late messages are included.",
        (0, 31_536_000),
        "s",
    )
    include_current_hour: bool = switch(
        "Also compact hours that --settle-s would skip, including the current one, as a trial. "
        "Messages that arrive later are added as further files."
    )
    target_file_bytes: int = number(
        256 * MIB,
        "Target size of a file; an hour with less is one file.",
        (MIB, 16_384 * MIB),
        "bytes",
    )


class VacuumSettings(JobSettings):
    """Settings of `nsq-gateway pipeline vacuum`."""

    input: str = setting(
        "", "Required: folder to clean, the output of an archive or of its compaction.", _FOLDER
    )
    compacted: str = setting(
        "",
        "Output of the compaction of --input: files whose rows it contains are deleted from "
        "--input. Empty: they are kept.",
        _FOLDER,
    )
    retain_days: int = number(
        0,
        "Days to keep the files of a day after its end in UTC, by the date of their folder; 0: "
        "forever.",
        (0, 36_500),
        "days",
    )
    min_age_s: float = number(
        86_400,
        "Minimum age of an uncommitted file that is deleted, so that running batches are safe.",
        (60, 31_536_000),
        "s",
    )


REPLAY_SUFFIX = ".replay"
"""Added to the name of the archived topic: the topic that a replay publishes to by default."""

_INPUT_FOLDER = "a path, or a URL that Spark can read"


class MetricsSettings(SourceJobSettings):
    """Settings of `nsq-gateway pipeline metrics`."""

    channel: str = setting("metrics", "Channel of every topic, used by this job only.", NAMES)
    to_topic: str = setting("metrics", "Topic to publish the metrics to.", NAMES)
    window_s: float = number(
        60,
        "Length of a window. One message is published for each topic and window.",
        (1, 86_400),
        "s",
    )
    watermark_s: float = number(
        60,
        "Maximum delay of a message behind the newest one. Later messages are dropped; a "
        "redelivered message keeps its first timestamp.",
        (0, 604_800),
        "s",
    )
    trigger_s: float = number(
        10,
        "Time between batches, and between updates of a window; 0: no pause.",
        (0, 86_400),
        "s",
    )


class ReplaySettings(NsqSinkSettings, QueryJobSettings):
    """Settings of `nsq-gateway pipeline replay`."""

    input: str = setting(
        "",
        "Required: output of an archive or of its compaction.",
        _INPUT_FOLDER,
    )
    topic: Names = setting((), "Topic to replay, may be repeated; none: all.", NAMES)
    where: str = setting(
        "",
        "Condition in Spark SQL on the columns of the archive; only matching rows are replayed.",
        "for example: ts >= '2026-11-01' and attempts = 1",
    )
    to_topic: str = setting(
        "",
        f"Topic to publish to; empty: the archived topic's name followed by {REPLAY_SUFFIX}.",
        NAMES,
    )
    distinct: bool = switch(
        "Replay duplicate rows once, by (topic, nsqd, id). Spark keeps the keys in the checkpoint."
    )
    max_files_per_batch: int = number(
        8,
        "Maximum files of a batch. A killed replay publishes its last batch again.",
        (1, 100_000),
    )
    nsqd_http_address: RemoteAddresses = setting(
        (),
        "HTTP address of an nsqd, to check whether the target topic has consumers. nsqds that "
        "nsqlookupd names are found without it.",
        ADDRESSES,
    )
