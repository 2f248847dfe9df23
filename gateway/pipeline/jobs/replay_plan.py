"""Plan a replay: rows to publish, their target topics, and the channels that would receive them."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
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
from gateway.pipeline.jobs.failures import explain
from gateway.pipeline.jobs.runner import JobFailed
from gateway.protocol.wire import is_valid_name
from gateway.settings.pipeline import REPLAY_SUFFIX, ReplaySettings

_FILE = "_nsq_file"
"""Name of a temporary column, which no archive has."""
_ID = ("topic", "nsqd", "id")
_NEEDED = {"topic": "string", "body": "binary"}
_CONDITION_ERRORS = (
    AnalysisException,
    ArithmeticException,
    DateTimeException,
    IllegalArgumentException,
    NumberFormatException,
    SparkRuntimeException,
)
"""Exceptions that Spark raises for an invalid --where, when it parses or evaluates it."""


class ReplayCount(NamedTuple):
    """Number of rows that a replay publishes, by topic."""

    topics: Sequence[TopicPlan]
    """Plans by topic, sorted by name."""
    done_rows: int
    """Number of these rows that earlier runs with the same checkpoint have published."""

    @property
    def rows(self) -> int:
        """Total number of rows."""
        return sum(plan.rows for plan in self.topics)


def read_archive(spark: SparkSession, settings: ReplaySettings) -> DataFrame:
    """Return the archive's current rows; raises SettingRefused if --input is not an archive."""
    try:
        rows = spark.read.parquet(settings.input)
    except AnalysisException as error:
        raise SettingRefused(f"--input {settings.input}", first_line(str(error))) from error
    require_columns(rows.schema, settings)
    return rows


def require_columns(schema: StructType, settings: ReplaySettings) -> None:
    """Raise SettingRefused if *schema* lacks a column that the replay needs."""
    found = {field.name: field.dataType.simpleString() for field in schema.fields}
    needed = _NEEDED | dict.fromkeys(_ID if settings.distinct else (), "string")
    for name, kind in needed.items():
        if found.get(name) != kind:
            there = ", ".join(f"{name} {kind}" for name, kind in found.items())
            reason = f"an archive has a column {name} {kind}; this one has {there}"
            raise SettingRefused(f"--input {settings.input}", reason)


def select_rows(rows: DataFrame, settings: ReplaySettings) -> DataFrame:
    """
    Return the *rows* to replay: those of --topic and --where, without duplicates if --distinct.

    Raises:
        SettingRefused: --where is not a valid condition.
    """
    if settings.topic:
        rows = rows.where(F.col("topic").isin(*settings.topic))
    if settings.where.strip():
        try:
            rows = rows.where(settings.where)
        except PySparkException as error:
            raise _refused(settings, error) from error
    return rows.dropDuplicates(list(_ID)) if settings.distinct else rows


def count_rows(archive: DataFrame, settings: ReplaySettings, done: Collection[str]) -> ReplayCount:
    """
    Count the rows of *archive* to replay, and how many of them earlier runs have published.

    *done* are the files of earlier runs, as returned by `done_files`.

    Raises:
        SettingRefused: --where is invalid, or the name of a target topic is.
        JobFailed: The archive cannot be read.
    """
    rows = select_rows(archive, settings)
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
        # Selected as well: a published file may contain rows that this replay does not publish.
        done_rows = select_rows(rows_in(archive, done), settings).count() if done else 0
    except _CONDITION_ERRORS as error:
        if settings.where.strip():
            raise _refused(settings, error) from error
        raise JobFailed(f"the archive cannot be read: {explain(str(error).strip())}") from error
    except PySparkException as error:
        raise JobFailed(f"the archive cannot be read: {explain(str(error).strip())}") from error
    topics = [
        TopicPlan(row[0], target_of(row[0], settings.to_topic, REPLAY_SUFFIX), *row[1:])
        for row in found
    ]
    return ReplayCount(topics, done_rows)


def rows_in(archive: DataFrame, files: Collection[str]) -> DataFrame:
    """Return those rows of *archive* that are in one of *files*, as returned by `done_files`."""
    session = archive.sparkSession
    wanted = session.createDataFrame([(path,) for path in files], f"{_FILE} string")
    # Spark writes file:/ and file:///; `done_files` has one slash.
    path = F.regexp_replace(F.col("_metadata.file_path"), "^(file:)/*", "$1/")
    rows = archive.select("*", path.alias(_FILE))
    return rows.join(F.broadcast(wanted), _FILE, "left_semi").drop(_FILE)


def _refused(settings: ReplaySettings, error: Exception) -> SettingRefused:
    return SettingRefused(f"--where {settings.where!r}", first_line(str(error)))


EPHEMERAL = "#ephemeral"
_VERSION = 1
_LONGEST_NAME = 64
_MOST_SHOWN = 5
_SPARK_CLASS = re.compile(r"^\[[A-Z][A-Z0-9_.]*\]\s*")
_SQL_STATE = re.compile(r"\s*SQLSTATE: \w+;?")


class TopicPlan(NamedTuple):
    """The rows of one topic that a replay publishes."""

    topic: str
    target: str
    """Topic to which they are published."""
    rows: int
    size_bytes: int
    """Total size of the bodies."""
    first_us: int | None
    """Earliest `ts` of the rows, µs since 1970; None if unknown."""
    last_us: int | None


class Channels(NamedTuple):
    """Channels of some topics, from nsqd's HTTP API."""

    by_topic: Mapping[str, Collection[str]]
    """Channels by topic, over all nsqds."""
    unreachable: Sequence[str] = ()
    """Addresses of nsqds that did not answer, host:port."""
    unreachable_lookupds: Sequence[str] = ()
    """Addresses of nsqlookupds that did not answer, host:port."""
    was_queried: bool = True
    """False if no HTTP address is configured, so that nothing was queried."""


NO_HTTP_ADDRESS = Channels({}, was_queried=False)


def target_of(topic: str | None, to_topic: str, suffix: str) -> str:
    """
    Return the target topic for rows of *topic*: *to_topic*, or else *topic* with *suffix*.

    Raises:
        SettingRefused: The name with *suffix* is invalid; or *topic* is None, as in a damaged
            archive, or one that another program has written.
    """
    if topic is None:
        reason = "some rows have no topic; exclude them with"
        raise SettingRefused("--where", f"{reason} --where 'topic IS NOT NULL'")
    if to_topic:
        return to_topic
    stem = topic.removesuffix(EPHEMERAL)
    target = f"{stem}{suffix}{topic[len(stem) :]}"
    if not is_valid_name(target.encode()):
        fault = f"{target!r} is not a valid topic name"
        if len(target) > _LONGEST_NAME:
            fault = f"{target} has {len(target)} characters, a topic name at most {_LONGEST_NAME}"
        raise SettingRefused("--to-topic", f"{fault}; set the topic for the rows of {topic!r}")
    return target


def reasons_to_confirm(topics: Sequence[TopicPlan], channels: Channels) -> list[str]:
    """
    Return why the user should confirm: consumers of *topics*' targets would receive the messages.

    An nsqd or nsqlookupd that did not answer is a reason too. Empty if there is no reason.
    """
    archived = {plan.topic for plan in topics}
    reasons = []
    for target in dict.fromkeys(plan.target for plan in topics):
        if target in archived:
            reasons.append(
                f"{target} is the archived topic: all its consumers receive the messages a second "
                "time, and so does an archive of it"
            )
        found = sorted(channels.by_topic.get(target, ()))
        if found:
            names = ", ".join(found[:_MOST_SHOWN]) + (", …" if len(found) > _MOST_SHOWN else "")
            what = "a channel" if len(found) == 1 else f"{len(found)} channels"
            reasons.append(f"{target} has {what} ({names}), whose consumers receive every message")
    if channels.unreachable:
        nodes = ", ".join(channels.unreachable)
        reasons.append(f"nsqd at {nodes} did not report its channels")
    if channels.unreachable_lookupds:
        nodes = ", ".join(channels.unreachable_lookupds)
        reasons.append(f"nsqlookupd at {nodes} did not report its nsqds")
    return reasons


@dataclass(frozen=True, kw_only=True)
class ReplayIdentity:
    """Settings that identify a replay: a checkpoint lists the files of one replay only."""

    input: str
    """The qualified path."""
    topic: tuple[str, ...]
    where: str
    to_topic: str
    distinct: bool

    def as_text(self) -> str:
        """Return the identity as JSON, for a file in the checkpoint."""
        return json.dumps({"version": _VERSION, **asdict(self)}, indent=2) + "\n"

    def require_same(self, text: str, checkpoint: str) -> None:
        """
        Check that the checkpoint folder *checkpoint* belongs to this replay.

        *text* is the identity stored there, which `as_text` once returned.

        Raises:
            SettingRefused: *text* cannot be read, or identifies another replay; the error names the
                first setting that differs.
        """
        before = _parsed(text)
        if before is None:
            reason = "its note of the replay cannot be read; use another folder"
            raise SettingRefused(f"--checkpoint {checkpoint}", reason)
        for name, value in json.loads(self.as_text()).items():
            if before.get(name) != value:
                shown = f"{_shown(before.get(name))} there, {_shown(value)} now"
                reason = f"it belongs to a replay with another {name} ({shown}); use another folder"
                raise SettingRefused(f"--checkpoint {checkpoint}", reason)


def _parsed(text: str) -> dict[str, object] | None:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _shown(value: object) -> str:
    return ",".join(map(str, value)) or "none" if isinstance(value, list) else str(value) or "none"


def first_line(message: str) -> str:
    """Return the first line of a Spark error, without its error class and SQLSTATE."""
    lines = message.strip().splitlines() or [""]
    return _SQL_STATE.sub("", _SPARK_CLASS.sub("", lines[0])).strip().removesuffix(".")
