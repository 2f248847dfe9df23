"""`HadoopFolder`: files and folders, and Spark's checkpoints."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.spark import replays as spark_replays
from tests.support.spark.program import SparkProgram

pytestmark = pytest.mark.java


def test_texts_are_read_as_they_were_written_last(spark: SparkProgram, tmp_path: Path) -> None:
    expected = [None, "née\n", "13", True, "note,rows", f"file:{tmp_path}/notes"]

    assert expected == spark.call(spark_replays.use_storage, f"{tmp_path}/notes/")


@pytest.mark.parametrize("url", ["nowhere://bucket/notes", "s3a://bucket/notes"])
def test_a_folder_that_spark_has_nothing_for_is_named(spark: SparkProgram, url: str) -> None:
    """For example S3 without its jars: one sentence without a stack trace."""
    said = spark.call(spark_replays.misuse_storage, url)

    assert said.startswith(f"the folder {url} cannot be used: ")
    assert said.partition("used: ")[2]


def test_the_draft_of_a_first_batch_is_cleared(spark: SparkProgram, tmp_path: Path) -> None:
    """Spark would fail on the draft; offsets of a planned batch stay."""
    offsets = tmp_path / "offsets"
    offsets.mkdir()
    (offsets / ".0.c66da012.tmp").touch()
    spark.call(spark_replays.clear_draft_of, str(tmp_path))
    was_cleared = not offsets.exists()
    offsets.mkdir()
    (offsets / "0").touch()
    spark.call(spark_replays.clear_draft_of, str(tmp_path))

    assert (True, True) == (was_cleared, (offsets / "0").exists())


BY_FILE_SYSTEM = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)


@pytest.mark.parametrize(
    "chosen, written_by", [(None, BY_FILE_SYSTEM), ("somebody.Elses", "somebody.Elses")]
)
def test_a_checkpoint_on_a_disk_is_written_without_processes(
    spark: SparkProgram, tmp_path: Path, chosen: str | None, written_by: str
) -> None:
    """Unless the user has chosen; this fails if a later Spark has moved the class."""
    assert written_by == spark.call(spark_replays.file_manager_of, str(tmp_path), chosen)


def test_a_file_where_a_folder_should_be_is_named(spark: SparkProgram, tmp_path: Path) -> None:
    """The error has the reason of the file system."""
    (tmp_path / "file").touch()

    said = spark.call(spark_replays.misuse_storage, f"{tmp_path}/file")

    assert said.startswith(f"the folder {tmp_path}/file cannot be used: ")
