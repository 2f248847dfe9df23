"""The compaction on a real Spark: few large files, with each message once."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.spark.compaction import (
    Row,
    archive_batch,
    archive_old_batch,
    compact_at,
    row,
    rows_of_duckdb,
    rows_of_pyarrow,
    rows_of_spark,
)
from tests.support.spark.program import SparkProgram

pytestmark = pytest.mark.java

NOW = "2026-11-22T05:15:00Z"
"""The hour from 4 is settled, and the hour from 5 is not."""


def read_by_all(spark: SparkProgram, folder: Path) -> list[Row]:
    by_spark = [(topic, mid, body) for topic, mid, body in spark.call(rows_of_spark, str(folder))]
    assert by_spark == rows_of_duckdb(str(folder))
    assert by_spark == rows_of_pyarrow(str(folder))
    return by_spark


@pytest.mark.parametrize("archive", [archive_batch, archive_old_batch])
def test_an_archive_is_compacted_with_each_message_once(
    spark: SparkProgram, tmp_path: Path, archive: Callable[..., int]
) -> None:
    """Late messages are added, and a killed run is completed."""
    folder, clean = str(tmp_path), tmp_path / "clean"
    first = [row("a", str(number), "2026-11-22T03:10:00Z") for number in range(50)]
    second = [
        row("a", "7", "2026-11-22T03:10:00Z", attempts=2),  # it came again
        row("b", "7", "2026-11-22T04:59:59Z"),  # another topic, another message
        row("b", "8", "2026-11-22T05:00:00Z"),
    ]
    for batch in (first, second):
        spark.call(archive, folder, batch)
    if archive is archive_old_batch:
        # A task that failed leaves a file that is in no list.
        hour = tmp_path / "archive" / "topic=a" / "date=2026-11-22" / "hour=03"
        shutil.copy(next(hour.glob("part-*.parquet")), hour / "part-of-nobody.parquet")

    done = spark.call(compact_at, folder, NOW)

    expected = [("a", str(number), f"{number} 1") for number in range(50)] + [("b", "7", "7 1")]
    assert sorted(expected) == read_by_all(spark, clean)
    assert (2, 51, 1, 1) == (done["hours"], done["rows"], done["duplicates"], done["unsettled"])
    assert 2 == len(list(clean.rglob("*.parquet")))

    until = "the first until 2026-11-22 06:15:00 UTC: run it again then, or now with --include-"
    assert "; 1 hour not settled yet (--settle-s), " + until in done["text"]

    again = spark.call(compact_at, folder, NOW)
    assert (0, 2, 1) == (again["hours"], again["unchanged"], again["unsettled"])

    late = [row("a", "99", "2026-11-22T03:59:00Z"), row("a", "7", "2026-11-22T03:10:00Z", 3)]
    spark.call(archive, folder, late)
    kept = set(clean.rglob("*.parquet"))
    done = spark.call(compact_at, folder, NOW)
    expected.append(("a", "99", "99 1"))
    assert sorted(expected) == read_by_all(spark, clean)
    assert (1, 1, 1) == (done["hours"], done["rows"], done["duplicates"])
    assert kept < set(clean.rglob("*.parquet"))

    # Killed when the files were there, and the note was not; and in the middle of another hour.
    shutil.rmtree(clean / "_compacted")
    aside = tmp_path / "clean.aside"
    aside.mkdir()
    shutil.copy(next(iter(kept)), aside / "half.parquet")
    done = spark.call(compact_at, folder, NOW)
    assert sorted(expected) == read_by_all(spark, clean)
    assert (2, 0) == (done["hours"], done["rows"])
    assert not aside.exists()

    # Somebody tries the current hour, which has more later.
    tried = spark.call(compact_at, folder, NOW, with_current_hour=True)
    assert (1, 1, 0) == (tried["hours"], tried["rows"], tried["unsettled"])
    assert tried["text"].endswith("hours had nothing new")
    spark.call(archive_batch, folder, [row("b", "9", "2026-11-22T05:59:00Z")])
    later = spark.call(compact_at, folder, "2026-11-22T06:15:00Z")
    assert (1, 1, 0) == (later["hours"], later["rows"], later["unsettled"])
    expected += [("b", "8", "8 1"), ("b", "9", "9 1")]
    assert sorted(expected) == read_by_all(spark, clean)
