"""Detect the format of an archive, and refuse commands that do not support it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.errors import SettingRefused
from gateway.pipeline.jobs import archive, replay, vacuum
from gateway.pipeline.jobs import compact as compaction
from gateway.pipeline.jobs.archive_format import LocalFolder, check_format, format_of, local_folder
from gateway.settings.loader import load
from gateway.settings.pipeline import (
    ArchiveSettings,
    CompactSettings,
    ReplaySettings,
    VacuumSettings,
)

MARKS = {
    "parquet": "_batches/0",
    "delta": "_delta_log/00000000000000000000.json",
    "iceberg": "metadata/00000-a.metadata.json",
}


def make(folder: Path, kind: str) -> str:
    """Create in *folder* what identifies an archive of the format *kind*."""
    mark = folder / MARKS[kind]
    mark.parent.mkdir(parents=True)
    mark.write_text("{}")
    return str(folder)


@pytest.mark.parametrize("kind", MARKS)
def test_the_format_is_detected_from_the_folder(tmp_path: Path, kind: str) -> None:
    assert kind == format_of(LocalFolder(make(tmp_path, kind)))


def test_an_archive_of_an_earlier_version_is_one_of_files(tmp_path: Path) -> None:
    """It has Spark's list of files, and no `_batches`."""
    (tmp_path / "_spark_metadata").mkdir()

    assert "parquet" == format_of(LocalFolder(str(tmp_path)))


def test_an_empty_folder_and_none_have_no_format(tmp_path: Path) -> None:
    (tmp_path / "metadata").write_text("a file")

    assert format_of(LocalFolder(str(tmp_path))) is None
    assert format_of(LocalFolder(str(tmp_path / "none"))) is None


@pytest.mark.parametrize("spelled", ["{}", "file:{}", "file://{}"])
def test_a_folder_of_this_machine_is_looked_into_before_spark_starts(
    tmp_path: Path, spelled: str
) -> None:
    """As a path or a file: URL."""
    folder = local_folder(spelled.format(make(tmp_path, "delta")))

    assert folder is not None
    assert "delta" == format_of(folder)


def test_a_folder_of_a_store_cannot_be_looked_into_yet() -> None:
    assert local_folder("s3a://bucket/archive") is None
    check_format(local_folder("s3a://bucket/archive"), "delta")


@pytest.mark.parametrize("wanted", MARKS)
@pytest.mark.parametrize("found", MARKS)
def test_an_archive_of_another_format_is_refused(tmp_path: Path, found: str, wanted: str) -> None:
    """Readers would miss added files, or read removed ones."""
    folder = LocalFolder(make(tmp_path, found))
    if found == wanted:
        check_format(folder, wanted)
        return
    with pytest.raises(SettingRefused, match=rf"--output {tmp_path}: .*; give --format {found}"):
        check_format(folder, wanted)


@pytest.mark.parametrize("kind, other", [("delta", "OPTIMIZE"), ("iceberg", "rewrite_data_files")])
@pytest.mark.parametrize("flag", ["input", "output"])
def test_tables_are_not_compacted(tmp_path: Path, kind: str, other: str, flag: str) -> None:
    flags = {"input": "/in", "output": "/out", flag: make(tmp_path, kind)}

    with pytest.raises(SettingRefused, match=rf"--{flag} .* table.*{other} .*docs/pipeline-{kind}"):
        compaction.check_folders(load(CompactSettings, flags).settings)


@pytest.mark.parametrize("kind, other", [("delta", "VACUUM"), ("iceberg", "expire_snapshots")])
def test_tables_are_not_vacuumed(tmp_path: Path, kind: str, other: str) -> None:
    """Files that the table's log lists would be missing."""
    settings = load(VacuumSettings, {"input": make(tmp_path, kind)}).settings

    with pytest.raises(SettingRefused, match=rf"--input .* table.*{other} .*docs/pipeline-{kind}"):
        vacuum.check_folders(settings)


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_tables_are_not_replayed(tmp_path: Path, kind: str) -> None:
    """The folders also have old versions of rewritten files."""
    settings = load(ReplaySettings, {"input": make(tmp_path, kind)}).settings

    with pytest.raises(SettingRefused, match=rf"--input .* table.*docs/pipeline-{kind}"):
        replay.check_replay(settings, is_dry_run=True)


def test_a_table_of_iceberg_is_named_only_with_its_format() -> None:
    """Otherwise the table would silently not be written."""
    settings = load(ArchiveSettings, {"output": "/out", "iceberg_table": "a.b"}).settings

    with pytest.raises(SettingRefused, match=r"--iceberg-table: .*--format is parquet"):
        archive.open_table(settings)
