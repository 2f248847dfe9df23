"""The vacuum deletes unneeded files only."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from gateway.errors import SettingRefused
from gateway.pipeline.jobs.vacuum import check_folders
from gateway.settings.loader import load
from gateway.settings.pipeline import VacuumSettings
from tests.support.spark.compaction import (
    archive_batch,
    archive_old_batch,
    compact_at,
    row,
    rows_of_duckdb,
)
from tests.support.spark.program import SparkProgram
from tests.support.spark.vacuum import date_back, vacuum_at

NOW = "2026-11-24T00:00:00Z"
HOUR = Path("topic=a", "date=2026-11-22", "hour=03")
AGE_S = 100_000
"""An age above --min-age-s."""


def ids(folder: Path) -> list[str]:
    return [message_id for _, message_id, _ in rows_of_duckdb(str(folder))]


@pytest.mark.java
def test_compacted_and_expired_files_are_deleted_only(spark: SparkProgram, tmp_path: Path) -> None:
    """Archive and compaction can continue; a dry run deletes nothing."""
    archive, clean = tmp_path / "archive", tmp_path / "clean"
    first = [row("a", "1", "2026-11-21T03:00:00Z"), row("a", "2", "2026-11-22T03:00:00Z")]
    spark.call(archive_batch, str(tmp_path), first)
    spark.call(compact_at, str(tmp_path), NOW)
    spark.call(archive_batch, str(tmp_path), [row("a", "3", "2026-11-22T03:59:00Z")])
    everything = {"input": str(archive), "compacted": str(clean), "retain_days": "2"}

    seen = spark.call(vacuum_at, NOW, everything, is_dry_run=True)
    assert ["1", "2", "3"] == ids(archive)
    done = spark.call(vacuum_at, NOW, everything)

    assert ["3"] == ids(archive)
    assert not (archive / "topic=a" / "date=2026-11-21").exists()
    reasons = ("failed", "expired", "compacted")
    assert [0, 1, 1] == [len(done[reason]) for reason in reasons]
    assert [seen[reason] for reason in reasons] == [done[reason] for reason in reasons]
    assert seen["report"][-1].startswith("2 files (")
    assert seen["report"][-1].endswith(" would be deleted (--dry-run)")
    assert done["report"][-1].endswith(") deleted")

    spark.call(archive_batch, str(tmp_path), [row("a", "2", "2026-11-22T03:00:00Z", attempts=2)])
    spark.call(compact_at, str(tmp_path), NOW)
    assert ["1", "2", "3"] == ids(clean)
    of_clean = {"input": str(clean), "retain_days": "1"}
    assert 3 == len(spark.call(vacuum_at, "2026-11-25T00:00:00Z", of_clean)["expired"])
    assert not list(clean.rglob("*.parquet"))


@pytest.mark.java
def test_old_leftovers_of_a_kill_are_deleted(spark: SparkProgram, tmp_path: Path) -> None:
    """Staged files, drafts, and uncommitted files of an earlier version."""
    archive, staging = tmp_path / "archive", tmp_path / "archive.staging"
    spark.call(archive_old_batch, str(tmp_path), [row("a", "1", "2026-11-22T03:00:00Z")])
    whole = next((archive / HOUR).glob("part-*.parquet"))
    shutil.copy(whole, archive / HOUR / "part-orphan.parquet")
    (archive / HOUR / "part-torn.parquet").touch()
    flags = {"input": str(archive)}
    orphans = ["part-orphan.parquet", "part-torn.parquet"]
    hidden = [f"_{name}.uncommitted" for name in orphans]
    date_back(archive, NOW, AGE_S)

    assert orphans == spark.call(vacuum_at, NOW, flags, is_dry_run=True)["failed"]
    assert hidden == spark.call(vacuum_at, NOW, flags)["failed"]
    assert ["1"] == ids(archive)

    (staging / "7").mkdir(parents=True)
    shutil.copy(whole, staging / "7" / "part-staged.parquet")
    (archive / "_batches" / f".7.{'0a' * 16}").touch()
    for folder in (staging, archive):
        date_back(folder, NOW, 60)
    assert [] == spark.call(vacuum_at, NOW, flags)["failed"]
    for folder in (staging, archive):
        date_back(folder, NOW, AGE_S)
    names = [f".7.{'0a' * 16}", "part-staged.parquet"]
    assert names == spark.call(vacuum_at, NOW, flags)["failed"]

    spark.call(archive_batch, str(tmp_path), [row("a", "2", "2026-11-22T03:00:00Z")])
    assert ["1", "2"] == ids(archive)


@pytest.mark.java
def test_a_foreign_folder_is_left_alone(spark: SparkProgram, tmp_path: Path) -> None:
    """A mistyped path must not cost data."""
    stranger = tmp_path / "topic=a" / "date=2020-01-01"
    stranger.mkdir(parents=True)

    refused = spark.call(vacuum_at, NOW, {"input": str(tmp_path), "retain_days": "1"})["refused"]

    assert refused[0].startswith(f"--input {tmp_path}: nothing is deleted in it: it has none of ")
    assert stranger.exists()


@pytest.mark.parametrize(
    "flags, message",
    [
        ({}, "--input: the folder to clean is required"),
        ({"input": "/a/", "compacted": "/a"}, "--compacted /a"),
    ],
)
def test_wrong_folders_are_refused(flags: dict[str, str], message: str) -> None:
    with pytest.raises(SettingRefused, match=message):
        check_folders(load(VacuumSettings, flags).settings)
