"""Required columns of an archive; test_replay.py tests the selection of rows, on Spark."""

from __future__ import annotations

import re

import pytest
from pyspark.sql.types import BinaryType, StringType, StructType

from gateway.errors import SettingRefused
from gateway.pipeline.jobs.replay_plan import require_columns
from gateway.settings.loader import load
from gateway.settings.pipeline import ReplaySettings

TOPIC_AND_BODY = StructType().add("topic", StringType()).add("body", BinaryType())


def _settings(*, distinct: str = "false") -> ReplaySettings:
    return load(ReplaySettings, {"input": "/archive", "distinct": distinct}).settings


def test_a_topic_and_a_body_are_enough() -> None:
    """So Parquet files of another program can be replayed."""
    require_columns(TOPIC_AND_BODY, _settings())


@pytest.mark.parametrize(
    "schema, distinct, words",
    [
        (StructType().add("body", BinaryType()), "false", "a column topic string; this one has bo"),
        (StructType().add("topic", "string").add("body", "string"), "false", "column body binary"),
        (TOPIC_AND_BODY, "true", "a column nsqd string; this one has topic string, body binary"),
    ],
)
def test_a_folder_that_is_no_archive_is_refused_with_its_columns(
    schema: StructType, distinct: str, words: str
) -> None:
    with pytest.raises(SettingRefused, match=re.escape(words)):
        require_columns(schema, _settings(distinct=distinct))
