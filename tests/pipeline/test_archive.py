"""Where an archive may go, and with which checkpoint."""

from __future__ import annotations

import json
from typing import cast

import pytest
from pyspark.sql.streaming.query import StreamingQuery

from gateway.errors import SettingRefused, StartError
from gateway.pipeline.archive import check_continuity, check_folders, signed
from gateway.pipeline.storage import Storage
from gateway.settings_jobs import ArchiveSettings
from gateway.settings_sources import load


class Started:
    """A query that runs."""

    id = "a"
    is_stopped = False

    def stop(self) -> None:
        """End."""
        self.is_stopped = True


class Files:
    """The files of a folder, in memory."""

    def __init__(self, root: str, files: dict[str, str]) -> None:
        self.root = root
        self._files = files

    def names(self, path: str) -> list[str]:
        """Return what is in a folder."""
        return [each.removeprefix(f"{path}/") for each in self._files if each.startswith(path)]

    def read(self, path: str) -> str | None:
        """Return a file."""
        return self._files.get(path)

    def exists(self, path: str) -> bool:
        """Tell whether it is there."""
        return path in self._files

    def write(self, path: str, text: str) -> None:
        """Write a file, where there is room for one more."""
        if self.root == "/full":
            raise StartError("the folder /full cannot be used: no space left")
        self._files[path] = text


def continuity(output: dict[str, str], checkpoint: dict[str, str]) -> None:
    """Check that they go together."""
    check_continuity(
        cast("Storage", Files("/out", output)), cast("Storage", Files("/ck", checkpoint))
    )


def settings_of(output: str, checkpoint: str) -> ArchiveSettings:
    """Return the settings of an archive."""
    return load(ArchiveSettings, {"output": output, "checkpoint": checkpoint}).settings


@pytest.mark.parametrize("output, checkpoint", [("", "/ck"), ("/out", "")])
def test_both_folders_are_named(output: str, checkpoint: str) -> None:
    """There is no good guess."""
    with pytest.raises(SettingRefused, match="say where"):
        check_folders(settings_of(output, checkpoint))


@pytest.mark.parametrize("checkpoint", ["/out", "/out/", "/out/checkpoint", "/out/a/b"])
def test_notes_do_not_go_where_files_are_read(checkpoint: str) -> None:
    """A reader would take them for the archive."""
    with pytest.raises(SettingRefused, match="beside it"):
        check_folders(settings_of("/out", checkpoint))


@pytest.mark.parametrize("checkpoint", ["/ck", "/out.ck", "/out/_ck", "/out/.ck"])
def test_a_folder_beside_it_is_taken_and_a_hidden_one(checkpoint: str) -> None:
    """Readers pass over those."""
    check_folders(settings_of("/out/", checkpoint))


def test_a_new_archive_goes_with_any_checkpoint() -> None:
    """There is nothing that Spark could pass over."""
    continuity({}, {})
    continuity({}, {"offsets/7": "", "metadata": '{"id": "a"}'})


def test_a_new_checkpoint_does_not_go_with_an_old_archive() -> None:
    """Spark would take its first batches for done, and their messages would be lost."""
    with pytest.raises(SettingRefused, match=r"--output /out was written with another checkpoint"):
        continuity({"_spark_metadata/3": ""}, {})


def test_a_checkpoint_that_is_behind_does_not_go_either() -> None:
    """One that was brought back from a copy, say."""
    with pytest.raises(SettingRefused, match="another checkpoint"):
        continuity({"_spark_metadata/9.compact": ""}, {"offsets/8": "", "metadata": '{"id": "a"}'})


def test_a_checkpoint_of_another_query_does_not_go_however_far_it_is() -> None:
    """The archive says whose it is."""
    output = {"_spark_metadata/3": "", "_written_by.json": json.dumps({"query_id": "a"})}

    with pytest.raises(SettingRefused, match="another checkpoint"):
        continuity(output, {"offsets/8": "", "metadata": '{"id": "b"}'})

    continuity(output, {"offsets/8": "", "metadata": '{"id": "a"}'})


def test_the_archive_says_who_writes_it_from_its_first_query_on() -> None:
    """Who wrote first has the say."""
    files: dict[str, str] = {}
    query = cast("StreamingQuery", Started())

    assert query is signed(query, cast("Storage", Files("/out", files)))
    assert {"v": 1, "query_id": "a"} == json.loads(files["_written_by.json"])

    files["_written_by.json"] = "before"
    signed(query, cast("Storage", Files("/out", files)))
    assert "before" == files["_written_by.json"]


def test_a_query_that_cannot_sign_does_not_run_on() -> None:
    """It would stand in the way of the next one of its name; which is tried, for a disk empties."""
    query = Started()

    with pytest.raises(OSError, match="no space left"):
        signed(cast("StreamingQuery", query), cast("Storage", Files("/full", {})))

    assert query.is_stopped
