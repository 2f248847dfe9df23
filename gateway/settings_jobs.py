"""The settings of the jobs on Spark: `nsq-gateway pipeline …`."""

from __future__ import annotations

import re
from typing import Annotated, TypeAlias

from pydantic import AfterValidator, BeforeValidator
from pydantic_settings import NoDecode

from gateway.addresses import split_address
from gateway.settings_common import MIB, Settings, number, setting, switch
from gateway.settings_pipeline import NAMES, SourceSettings

_BETWEEN_SETTINGS = re.compile(r"\s*[,\n]\s*(?=spark\.[\w.-]+=)")
"""A value of Spark's may have commas of its own."""
_SPARK_SETTING = re.compile(r"spark\.[\w.-]+=.*", re.DOTALL)
_FOLDER = "a path, or a URL that Spark can write to"


def _split_spark_settings(value: object) -> object:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list | tuple):
        return value
    parts = (part.strip() for text in texts for part in _BETWEEN_SETTINGS.split(str(text)))
    return tuple(part for part in parts if part)


def _checked_spark_setting(value: str) -> str:
    if not _SPARK_SETTING.fullmatch(value):
        raise ValueError("a setting of Spark is written spark.name=value")
    return value


def _checked_listen(value: str) -> str:
    if value:
        split_address(value)
    return value


SparkSettings: TypeAlias = Annotated[
    tuple[Annotated[str, AfterValidator(_checked_spark_setting)], ...],
    BeforeValidator(_split_spark_settings),
    NoDecode,
]
OptionalAddress: TypeAlias = Annotated[str, AfterValidator(_checked_listen)]


class JobSettings(Settings):
    """What every job has."""

    master: str = setting(
        "",
        "Where Spark runs; empty: in this process's own JVM on all cores (local[*,4]), or where "
        "spark-submit says.",
        "local[N,4], spark://…, k8s://…, yarn",
    )
    spark_conf: SparkSettings = setting(
        (),
        "A setting of Spark, which beats what the job would set.",
        "spark.name=value; repeat it, or separate with commas",
    )


class QueryJobSettings(JobSettings):
    """What every job has that Spark keeps account of: it goes on where it was."""

    checkpoint: str = setting(
        "",
        "Required: where Spark keeps how far this job is, a folder of its own that outlives it.",
        _FOLDER,
    )
    retries: int = number(
        5,
        "How often in a row a stream that failed is started again, after 1 s, 2 s and so on up to "
        "60 s; a batch that succeeds begins anew.",
        (0, 1_000_000),
    )
    stop_wait_s: float = number(
        10,
        "How long a stop waits for the batch that is in work; what is not done then is read again.",
        (0, 3_600),
        "s",
    )
    management_listen: OptionalAddress = setting(
        "",
        "Where /livez, /readyz and /metrics are answered; empty: nowhere.",
        "host:port, an IPv6 host in brackets; port 0 is any free one",
    )


class StreamJobSettings(QueryJobSettings):
    """What every job has that reads a stream."""

    trigger_s: float = number(
        60,
        "Time from one batch to the next; 0: the next one begins when one is done.",
        (0, 86_400),
        "s",
    )
    available_now: bool = switch(
        "Take what is there now, then end; --trigger-s counts for nothing."
    )


class SourceJobSettings(SourceSettings, StreamJobSettings):
    """What every job has that reads a stream of NSQ."""


class ArchiveSettings(SourceJobSettings):
    """The settings of `nsq-gateway pipeline archive`."""

    channel: str = setting("archive", "The channel of every topic, this archive's own.", NAMES)
    output: str = setting("", "Required: where the Parquet files go.", _FOLDER)


class CompactSettings(JobSettings):
    """The settings of `nsq-gateway pipeline compact`."""

    input: str = setting("", "Required: what is read, the output of an archive.", _FOLDER)
    output: str = setting("", "Required: where the large files go, a folder of its own.", _FOLDER)
    settle_s: float = number(
        900,
        "How long after its end an hour is left alone, for messages that come late.",
        (0, 31_536_000),
        "s",
    )
    target_file_bytes: int = number(
        256 * MIB,
        "Size of a file that is aimed at; an hour with less is one file.",
        (MIB, 16_384 * MIB),
        "bytes",
    )
