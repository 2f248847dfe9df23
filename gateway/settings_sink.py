"""The settings of the sinks of the Spark format `nsq`, for streams and for batches."""

from __future__ import annotations

from typing import Literal, TypeAlias

from pydantic import model_validator

from gateway.errors import SettingRefused
from gateway.settings_common import MIB, LimitSettings, flag_of, number, setting
from gateway.settings_nsqd import NsqdSettings
from gateway.settings_pipeline import NAMES

BadRows: TypeAlias = Literal["fail", "dead-letter"]

_COLUMN = "the name of a column"


class SinkSettings(NsqdSettings, LimitSettings):
    """Where rows are published, how much at a time, and what happens to those that cannot be."""

    to_topic: str = setting(
        "",
        "The topic that rows are published to; empty: each to the one in its column topic.",
        NAMES,
    )
    key_column: str = setting(
        "",
        "The column that names a row where it cannot be published; empty: id or key, where there "
        "is one.",
        _COLUMN,
    )
    defer_column: str = setting(
        "",
        "The column with the ms by which a row is delivered later; empty: defer_ms, where there is "
        "one.",
        _COLUMN,
    )
    rate: float = number(
        0,
        "What a whole job publishes at most; 0: as fast as it goes.",
        (0, 1_000_000_000),
        "messages a second",
    )
    rate_tasks: int = number(
        0,
        "Tasks that run at once, each of which has an even share of the rate: the job's "
        "partitions, or the cores where there are fewer.",
        (0, 100_000),
    )
    batch_rows: int = number(1_000, "Rows that go to nsqd in one command at most.", (1, 1_000_000))
    batch_bytes: int = number(
        MIB,
        "Bytes that go to nsqd in one command at most; a longer row goes alone.",
        (64, 1024 * MIB),
        "bytes",
    )
    max_unanswered: int = number(
        4, "Batches of one task that nsqd has not answered yet, at most.", (1, 256)
    )
    bad_rows: BadRows = setting(
        "fail",
        "What a row without a body, one that is too big, or one whose topic is none leads to: the "
        "end of the query, or a message to --dead-letter-topic.",
        "fail, dead-letter",
    )
    dead_letter_topic: str = setting(
        "", "The topic that is told of rows that cannot be published.", NAMES
    )
    answer_timeout_ms: int = number(
        30_000,
        "Time from a batch to nsqd's OK, other tries included, each of which has a third of it.",
        (100, 3_600_000),
        "ms",
    )

    @model_validator(mode="after")
    def _sink_settings_fit_together(self) -> SinkSettings:
        letters, topic = flag_of("bad_rows"), flag_of("dead_letter_topic")
        if self.bad_rows == "dead-letter" and not self.dead_letter_topic:
            raise SettingRefused(letters, f"dead-letter needs {topic}, the topic that is told")
        if self.bad_rows == "fail" and self.dead_letter_topic:
            raise SettingRefused(topic, f"it does nothing without {letters} dead-letter")
        return self
