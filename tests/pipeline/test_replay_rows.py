"""What an archive has to look like; which rows are chosen is tried on Spark, in test_replay.py."""

from __future__ import annotations

import re

import pytest
from pyspark.sql.types import BinaryType, StringType, StructType

from gateway.errors import SettingRefused
from gateway.pipeline.replay_rows import require_columns
from gateway.settings_replay import ReplaySettings
from gateway.settings_sources import load

TOPIC_AND_BODY = StructType().add("topic", StringType()).add("body", BinaryType())


def _settings(*, distinct: str = "false") -> ReplaySettings:
    return load(ReplaySettings, {"input": "/archive", "distinct": distinct}).settings


def test_a_topic_and_a_body_are_enough() -> None:
    """An archive of somebody else's can be replayed, too."""
    require_columns(TOPIC_AND_BODY, _settings())


@pytest.mark.parametrize(
    "schema, distinct, words",
    [
        (StructType().add("body", BinaryType()), "false", "a column topic string; this has body"),
        (StructType().add("topic", "string").add("body", "string"), "false", "column body binary"),
        (TOPIC_AND_BODY, "true", "a column nsqd string; this has topic string, body binary"),
    ],
)
def test_what_is_no_archive_is_refused_with_what_it_has(
    schema: StructType, distinct: str, words: str
) -> None:
    """Before anything is counted."""
    with pytest.raises(SettingRefused, match=re.escape(words)):
        require_columns(schema, _settings(distinct=distinct))
