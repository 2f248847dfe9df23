"""Readers that list the archive's folders see committed files only, whatever was killed."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.pipeline.jobs.committer import has_room_beside, is_visible, name_in_archive
from gateway.pipeline.jobs.storage import HadoopFolder
from tests.support.spark.archive_crash import (
    commit_twice,
    stop_in_a_batch,
    undo_renames,
    write_batches,
)
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
from tests.support.spark.kills import until
from tests.support.spark.program import SparkProgram, spark_program

HOUR = Path("topic=a", "date=2026-11-22", "hour=03")
BEFORE = [row("a", str(number), "2026-11-22T03:10:00Z") for number in range(5)]
KILLED = [row("a", str(number), "2026-11-22T03:20:00Z") for number in range(5, 9)]


def expected(*batches: list[dict[str, Any]]) -> list[Row]:
    """Return the ids in *batches*, as readers find them."""
    return sorted((each["topic"], each["id"], each["text"]) for rows in batches for each in rows)


def ids(rows: list[Row]) -> list[str]:
    return sorted(message_id for _, message_id, _ in rows)


def parquet_files(folder: Path) -> set[Path]:
    return {path for each in folder.glob("archive*") for path in each.rglob("part-*.parquet")}


def read_by_all(spark: SparkProgram, folder: Path) -> list[Row]:
    """Return the rows that every reader finds in *folder*, also readers of hidden folders."""
    by_spark = [(topic, mid, body) for topic, mid, body in spark.call(rows_of_spark, str(folder))]
    assert by_spark == rows_of_duckdb(str(folder))
    assert by_spark == rows_of_pyarrow(str(folder))
    return by_spark


@pytest.mark.java
async def test_a_batch_that_is_killed_while_it_is_written_leaves_nothing_to_read(
    spark: SparkProgram, tmp_path: Path
) -> None:
    """No partial file is visible before the next start, and no duplicate rows after it."""
    archive = tmp_path / "archive"
    spark.call(archive_batch, str(tmp_path), BEFORE)

    written = parquet_files(tmp_path)

    with spark_program(tmp_path / "victim") as victim:
        victim.call(stop_in_a_batch, str(tmp_path), KILLED)
        await until(lambda: parquet_files(tmp_path) > written)
        victim.kill()

    assert expected(BEFORE) == read_by_all(spark, archive)

    spark.call(archive_batch, str(tmp_path), [])
    assert [str(number) for number in range(9)] == ids(read_by_all(spark, archive))
    assert not list((tmp_path / "archive.staging").rglob("*.parquet"))


@pytest.mark.java
def test_a_committed_batch_is_completed_after_a_crash(spark: SparkProgram, tmp_path: Path) -> None:
    """The record of a batch lists its files, which the next run renames; its rows exist once."""
    archive = tmp_path / "archive"
    for batch in (BEFORE, KILLED):
        spark.call(archive_batch, str(tmp_path), batch)
    assert 1 <= spark.call(undo_renames, str(tmp_path))
    assert expected(BEFORE) == read_by_all(spark, archive)
    # Spark has not written down that the batch is done, and asks for it again.
    shutil.rmtree(tmp_path / "checkpoint" / "commits")
    commits = tmp_path / "checkpoint" / "commits"
    commits.mkdir()
    (commits / "0").write_text('v1\n{"nextBatchWatermarkMs":0}')

    spark.call(archive_batch, str(tmp_path), [row("a", "9", "2026-11-22T03:30:00Z")])

    later = [row("a", "9", "2026-11-22T03:30:00Z")]
    assert expected(BEFORE, KILLED, later) == read_by_all(spark, archive)


@pytest.mark.java
def test_an_archive_of_an_earlier_version_continues(spark: SparkProgram, tmp_path: Path) -> None:
    """Files that are not in Spark's list are hidden; from then on all visible files count."""
    archive = tmp_path / "archive"
    spark.call(archive_old_batch, str(tmp_path), BEFORE)
    (archive / HOUR / "part-torn.zstd.parquet").touch()
    whole = next((archive / HOUR).glob("part-0*.parquet"))
    shutil.copy(whole, archive / HOUR / "part-orphan.zstd.parquet")

    spark.call(archive_batch, str(tmp_path), KILLED)

    assert expected(BEFORE, KILLED) == read_by_all(spark, archive)
    hidden = sorted(path.name for path in (archive / HOUR).glob("_part*"))
    names = ["_part-orphan.zstd.parquet.uncommitted", "_part-torn.zstd.parquet.uncommitted"]
    assert names == hidden
    assert (archive / "_spark_metadata.until-0").is_dir()
    done = spark.call(compact_at, str(tmp_path), "2026-11-22T05:15:00Z")
    assert (1, 9, 0) == (done["hours"], done["rows"], done["duplicates"])


@pytest.mark.java
def test_a_second_archive_cannot_write_the_same_batch(spark: SparkProgram, tmp_path: Path) -> None:
    """Its rows would replace committed ones."""
    said = spark.call(commit_twice, str(tmp_path))

    assert said.startswith(f"CommitConflict: another process has written batch 0 of {tmp_path}/")
    assert 1 == len(list((tmp_path / "archive").rglob("*.parquet")))


@pytest.mark.java
def test_the_last_hundred_records_are_kept(spark: SparkProgram, tmp_path: Path) -> None:
    assert ["100", "99"] == spark.call(write_batches, str(tmp_path), [0, 0, 99, 100])
    assert 3 == len(list((tmp_path / "archive").rglob("*.parquet")))


def test_a_file_has_the_same_name_however_often_its_batch_is_written() -> None:
    """Unlike Spark's names, which have a random part."""
    folder, query = "topic=a/date=2026-11-22/hour=03", "0b5ea1ea-2c56-4b4e-8f3c-1d4a1e3c9a10"
    tries = [
        f"{folder}/part-00003-{number}a2d1c3e-52f5-4d5b-9d43-6a1e3b4c5d6e.c000.zstd.parquet"
        for number in range(2)
    ]

    names = {name_in_archive(each, query, 17) for each in tries}

    assert {f"{folder}/part-0b5ea1ea-00000017-00003.c000.zstd.parquet"} == names
    assert all(map(is_visible, names))


@pytest.mark.parametrize(
    "root, local, is_beside",
    [
        ("s3a://bucket", None, False),
        ("s3a://bucket/archive", None, True),
        ("/proc", "/proc", False),
        ("/proc/self", "/proc/self", True),
    ],
)
def test_a_mounted_output_is_staged_inside(
    root: str, local: str | None, *, is_beside: bool
) -> None:
    """Files cannot be renamed beyond a bucket or a mounted volume."""
    output = cast("HadoopFolder", SimpleNamespace(root=root, local_path=local))

    assert is_beside == has_room_beside(output)
