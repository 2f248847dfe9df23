"""Which output folder and checkpoint an archive accepts."""

from __future__ import annotations

import json
from typing import cast

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from gateway.errors import SettingRefused, StartError
from gateway.pipeline.jobs.archive import (
    check_batches,
    check_continuity,
    check_folders,
    record_writer,
)
from gateway.pipeline.jobs.delta_table import DeltaTable
from gateway.pipeline.jobs.storage import HadoopFolder
from gateway.settings.loader import load
from gateway.settings.pipeline import ArchiveSettings


class Started:
    """A running query."""

    id = "a"
    is_stopped = False

    def stop(self) -> None:
        """End."""
        self.is_stopped = True


class Files:
    """A `HadoopFolder` in memory."""

    def __init__(self, root: str, files: dict[str, str]) -> None:
        self.root = root
        self._files = files

    def names(self, path: str) -> list[str]:
        """Return the names in a folder."""
        return [each.removeprefix(f"{path}/") for each in self._files if each.startswith(path)]

    def read(self, path: str) -> str | None:
        """Return the text of a file."""
        return self._files.get(path)

    def exists(self, path: str) -> bool:
        """Return True if the file exists."""
        return path in self._files

    def write(self, path: str, text: str) -> None:
        """Write a file, unless the disk is full."""
        if self.root == "/full":
            raise StartError("the folder /full cannot be used: no space left")
        self._files[path] = text


def continuity(output: dict[str, str], checkpoint: dict[str, str]) -> None:
    """Call `check_continuity` with these folders."""
    check_continuity(
        cast("HadoopFolder", Files("/out", output)), cast("HadoopFolder", Files("/ck", checkpoint))
    )


def settings_of(output: str, checkpoint: str) -> ArchiveSettings:
    return load(ArchiveSettings, {"output": output, "checkpoint": checkpoint}).settings


@pytest.mark.parametrize("output, checkpoint", [("", "/ck"), ("/out", "")])
def test_both_folders_are_named(output: str, checkpoint: str) -> None:
    with pytest.raises(SettingRefused, match="is required"):
        check_folders(settings_of(output, checkpoint))


@pytest.mark.parametrize("checkpoint", ["/out", "/out/", "/out/checkpoint", "/out/a/b"])
def test_notes_do_not_go_where_files_are_read(checkpoint: str) -> None:
    """A reader would read the checkpoint as part of the archive."""
    with pytest.raises(SettingRefused, match="beside it"):
        check_folders(settings_of("/out", checkpoint))


@pytest.mark.parametrize("checkpoint", ["/ck", "/out.ck", "/out/_ck", "/out/.ck"])
def test_a_folder_beside_it_is_taken_and_a_hidden_one(checkpoint: str) -> None:
    """Readers skip hidden folders."""
    check_folders(settings_of("/out/", checkpoint))


def test_a_new_archive_goes_with_any_checkpoint() -> None:
    """There are no batches that could be skipped."""
    continuity({}, {})
    continuity({}, {"offsets/7": "", "metadata": '{"id": "a"}'})


def test_a_new_checkpoint_does_not_go_with_an_old_archive() -> None:
    """Its first batches would be skipped as committed, and their messages lost."""
    with pytest.raises(SettingRefused, match=r"--output /out was written with another checkpoint"):
        continuity({"_spark_metadata/3": ""}, {})


def test_a_checkpoint_that_is_behind_does_not_go_either() -> None:
    """For example one restored from a backup."""
    with pytest.raises(SettingRefused, match="another checkpoint"):
        continuity({"_spark_metadata/9.compact": ""}, {"offsets/8": "", "metadata": '{"id": "a"}'})


def test_a_checkpoint_of_another_query_does_not_go_however_far_it_is() -> None:
    output = {"_spark_metadata/3": "", "_written_by.json": json.dumps({"query_id": "a"})}

    with pytest.raises(SettingRefused, match="another checkpoint"):
        continuity(output, {"offsets/8": "", "metadata": '{"id": "b"}'})

    continuity(output, {"offsets/8": "", "metadata": '{"id": "a"}'})


def test_the_archive_records_its_query_from_the_first_on() -> None:
    files: dict[str, str] = {}
    query = cast("StreamingQuery", Started())

    assert query is record_writer(query, cast("HadoopFolder", Files("/out", files)))
    assert {"v": 1, "query_id": "a"} == json.loads(files["_written_by.json"])

    files["_written_by.json"] = "before"
    record_writer(query, cast("HadoopFolder", Files("/out", files)))
    assert "before" == files["_written_by.json"]


def test_a_query_that_cannot_sign_does_not_run_on() -> None:
    """A running query would block its name for the retry, which may succeed once there is space."""
    query = Started()

    with pytest.raises(OSError, match="no space left"):
        record_writer(cast("StreamingQuery", query), cast("HadoopFolder", Files("/full", {})))

    assert query.is_stopped


class Batches(DeltaTable):
    """A table with batches of some queries."""

    def __init__(self, last: dict[str, int]) -> None:
        super().__init__("/out")
        self._last = last

    def last_batch(self, spark: SparkSession, query: str) -> int | None:
        """Return the last batch of *query*."""
        del spark
        return self._last.get(query)


def batches(last: dict[str, int], checkpoint: dict[str, str]) -> None:
    """Call `check_batches` with a table that has the *last* batches, and a checkpoint."""
    spark, notes = cast("SparkSession", None), cast("HadoopFolder", Files("/ck", checkpoint))
    check_batches(spark, Batches(last), notes, "/out")


@pytest.mark.parametrize(
    "checkpoint",
    [
        {},
        {"metadata": '{"id": "b"}', "offsets/0": ""},
        {"metadata": '{"id": "a"}', "offsets/7": "", "commits/6": ""},
        {"metadata": '{"id": "a"}', "offsets/7": "", "commits/7": ""},
        {"metadata": '{"id": "a"}', "offsets/8": "", "commits/7": ""},
    ],
)
def test_a_table_goes_with_a_new_checkpoint_and_with_its_own(checkpoint: dict[str, str]) -> None:
    """Batches are recorded by query; the last one may not be in Spark's log yet."""
    batches({"a": 7}, checkpoint)


def test_a_checkpoint_that_is_behind_the_table_is_refused() -> None:
    """Its next batches would be skipped as committed, and their messages lost."""
    with pytest.raises(SettingRefused, match="later batches of the same query"):
        batches({"a": 7}, {"metadata": '{"id": "a"}', "offsets/5": "", "commits/5": ""})


@pytest.mark.parametrize("last", [{}, {"a": 4}, {"b": 9}])
def test_a_checkpoint_whose_batches_are_elsewhere_is_refused(last: dict[str, int]) -> None:
    """A table restored from a backup, or another table."""
    with pytest.raises(SettingRefused, match=r"batches that are not in the table /out"):
        batches(last, {"metadata": '{"id": "a"}', "offsets/5": "", "commits/5": ""})
