"""Detect whether an archive is Parquet files in folders, a Delta table or an Iceberg table."""

from __future__ import annotations

from pathlib import Path

from gateway.errors import SettingRefused
from gateway.pipeline.jobs import storage as sink_log
from gateway.pipeline.jobs.committer import RECORDS
from gateway.pipeline.jobs.storage import HadoopFolder

DELTA_LOG = "_delta_log"
_ICEBERG_METADATA = "metadata"
_TITLES = {
    "parquet": "an archive of Parquet files",
    "delta": "a Delta table",
    "iceberg": "an Iceberg table",
}
_INSTEAD = {
    ("delta", "compact"): "use Delta's OPTIMIZE to merge small files",
    ("delta", "vacuum"): "use Delta's VACUUM and DELETE",
    ("delta", "replay"): "publish its rows by a stream from Delta to the format nsq",
    ("iceberg", "compact"): "use Iceberg's rewrite_data_files to merge small files",
    ("iceberg", "vacuum"): "use Iceberg's expire_snapshots and remove_orphan_files",
    ("iceberg", "replay"): "publish its rows by a program that reads the table",
}
_PAGES = {"delta": "docs/pipeline-delta.md", "iceberg": "docs/pipeline-iceberg.md"}


class LocalFolder:
    """A local folder, which can be inspected before Spark starts, unlike a `HadoopFolder`."""

    def __init__(self, root: str) -> None:
        self.root = root
        bare = root.removeprefix("file:")
        self._path = Path(root if bare == root else "/" + bare.lstrip("/"))

    def exists(self, path: str) -> bool:
        """Return True if *path* exists in the folder; False if that cannot be checked."""
        try:
            return (self._path / path).exists()
        except OSError:
            return False

    def names(self, path: str) -> list[str]:
        """Return the sorted names in the folder *path*; empty if it cannot be read."""
        try:
            return sorted(each.name for each in (self._path / path).iterdir())
        except OSError:
            return []


def local_folder(root: str) -> LocalFolder | None:
    """Return *root* as a folder of this machine; None if it is the URL of another store."""
    return None if "://" in root.replace("file://", "file:", 1) else LocalFolder(root)


def format_of(folder: LocalFolder | HadoopFolder) -> str | None:
    """Return the format of the archive in *folder*; None if *folder* has no archive."""
    if folder.exists(DELTA_LOG):
        return "delta"
    if any(name.endswith(".metadata.json") for name in folder.names(_ICEBERG_METADATA)):
        return "iceberg"
    if folder.exists(RECORDS) or folder.exists(sink_log.FOLDER):
        return "parquet"
    return None


def check_format(folder: LocalFolder | HadoopFolder | None, wanted: str) -> None:
    """
    Raise SettingRefused if *folder* has an archive of another format than *wanted*.

    *folder* is None if it is in another store, which cannot be inspected before Spark starts.
    """
    if folder is None:
        return
    found = format_of(folder)
    if found is not None and found != wanted:
        reason = f"it is {_TITLES[found]}; give --format {found}, or a new folder"
        raise SettingRefused(f"--output {folder.root}", reason)


def refuse_table(folder: LocalFolder | HadoopFolder | None, flag: str, command: str) -> None:
    """
    Raise SettingRefused if *folder* is a table, which *command* does not support.

    The files of a table are those in its log, but *command* lists folders. *folder* is None if it
    is in another store, which cannot be inspected before Spark starts.
    """
    if folder is None:
        return
    found = format_of(folder)
    if found in _PAGES:
        reason = (
            f"it is {_TITLES[found]}, and pipeline {command} works on archives of Parquet files; "
            f"{_INSTEAD[found, command]} ({_PAGES[found]})"
        )
        raise SettingRefused(f"{flag} {folder.root}", reason)
