"""
The vacuum job: delete files of an archive that are no longer needed.

These are files of failed batches, which readers do not see; then files past the retention; then
files whose rows are compacted. The job may run beside the archive job: files of a batch in progress
are younger than --min-age-s.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from pyspark.sql import SparkSession

from gateway.errors import SettingRefused
from gateway.pipeline.jobs import storage as sink_log
from gateway.pipeline.jobs.archive_format import local_folder, refuse_table
from gateway.pipeline.jobs.committer import (
    RECORDS,
    UNCOMMITTED,
    complete,
    is_visible,
    last_committed,
    read_record,
    staging_folder,
    unlisted_files,
    upgrade_archive,
)
from gateway.pipeline.jobs.compact import ASIDE, NOTES, note_path, read_note
from gateway.pipeline.jobs.console import ProgressBar
from gateway.pipeline.jobs.spark import session
from gateway.pipeline.jobs.storage import HadoopFolder, StoredFile
from gateway.settings.pipeline import VacuumSettings
from gateway.telemetry import get_logger
from gateway.terminal import format_bytes, pluralize

logger = get_logger()

NAME = "vacuum"
_OURS = (RECORDS, sink_log.FOLDER, NOTES)
"""Folders that identify the output of an archive or a compaction: it has one of them."""
_DAY = re.compile(r"topic=[^/]+/date=(\d{4}-\d\d-\d\d)/.*")
_DRAFT = re.compile(r"(?:.*/)?\.[^/]+\.[0-9a-f]{32}")
"""Path of a draft that a killed `HadoopFolder.write` has left."""


class DeletableFile(NamedTuple):
    """A file to delete, and the storage that its path is relative to."""

    folder: HadoopFolder
    file: StoredFile


@dataclass
class VacuumResult:
    """The files that a run has deleted, or that a dry run would delete, by reason."""

    failed: list[DeletableFile] = field(default_factory=list)
    """Files of batches that were not committed, and empty files."""
    expired: list[DeletableFile] = field(default_factory=list)
    """Files of days past the retention."""
    compacted: list[DeletableFile] = field(default_factory=list)
    """Files whose rows are in the compaction as well."""

    @property
    def all(self) -> list[DeletableFile]:
        """All files, in the order of deletion."""
        return [*self.failed, *self.expired, *self.compacted]

    def report(self, *, is_dry_run: bool) -> str:
        """Return the totals as text, one line for each reason."""
        reasons = (
            ("from failed batches, or empty", self.failed),
            ("past the retention", self.expired),
            ("whose rows are compacted", self.compacted),
        )
        verb = "would be deleted (--dry-run)" if is_dry_run else "deleted"
        lines = [f"{_amount(found)} {what}" for what, found in reasons]
        return "\n".join([*lines, f"{_amount(self.all)} {verb}"])


def _amount(found: Iterable[DeletableFile]) -> str:
    sizes = [each.file.size_bytes for each in found]
    return f"{pluralize(len(sizes), 'file')} ({format_bytes(sum(sizes))})"


def run_vacuum(settings: VacuumSettings, *, is_dry_run: bool) -> VacuumResult:
    """
    Delete unneeded files; a dry run only finds them.

    Raises:
        SettingsError: A folder is not set, or was not written by an archive or compaction.
        StartError: Spark cannot run here, or a folder cannot be used.
    """
    check_folders(settings)
    with session(settings, NAME) as spark:
        return vacuum(spark, settings, datetime.now(UTC), is_dry_run=is_dry_run)


def check_folders(settings: VacuumSettings) -> None:
    """Raise SettingsError if --input is not set, is --compacted too, or is a table."""
    if not settings.input:
        reason = (
            "the folder to clean is required: the --output of pipeline archive or pipeline compact"
        )
        raise SettingRefused("--input", reason)
    if settings.compacted.rstrip("/") == settings.input.rstrip("/"):
        reason = "it is --input itself; give the --output of pipeline compact for that --input"
        raise SettingRefused(f"--compacted {settings.compacted}", reason)
    refuse_table(local_folder(settings.input), "--input", NAME)


def vacuum(
    spark: SparkSession, settings: VacuumSettings, now: datetime, *, is_dry_run: bool
) -> VacuumResult:
    """Like `run_vacuum`, but in an existing session and at the time *now*."""
    work = _Vacuum(spark, settings, now)
    if not is_dry_run:
        work.recover()
    findings = work.find()
    if not is_dry_run:
        work.delete(findings)
    logger.info(
        "vacuum ended",
        failed_files=len(findings.failed),
        expired_files=len(findings.expired),
        compacted_files=len(findings.compacted),
        size_bytes=sum(each.file.size_bytes for each in findings.all),
        dry_run=is_dry_run,
    )
    return findings


class _Vacuum:
    def __init__(self, spark: SparkSession, settings: VacuumSettings, now: datetime) -> None:
        self._now = now
        self._retain_days = settings.retain_days
        self._written_before = now.timestamp() - settings.min_age_s
        folder = HadoopFolder(spark, settings.input)
        refuse_table(folder, "--input", NAME)
        self._folder = _require_own(folder, "--input", _OURS)
        self._compacted = None
        if settings.compacted:
            storage = HadoopFolder(spark, settings.compacted)
            self._compacted = _require_own(storage, "--compacted", (NOTES,))
        self._staging = staging_folder(spark, self._folder)
        self._aside = HadoopFolder(spark, self._folder.root + ASIDE)

    def recover(self) -> None:
        """
        Bring the archive into the state that the archive job leaves.

        Upgrade an archive of an earlier version. If an archive job was killed, rename the remaining
        staged files of its last committed batch.
        """
        upgrade_archive(self._folder)
        last = last_committed(self._folder)
        # Younger files may belong to a running archive job, which renames them itself.
        if last is not None and all(map(self._is_old, self._staging.files(str(last)))):
            complete(self._folder, self._staging, last)

    def find(self) -> VacuumResult:
        """Return the files to delete; nothing is changed."""
        findings = VacuumResult(failed=[*self._staged()])
        # Empty, unless an earlier version wrote the archive: then only listed files are committed.
        unlisted = {file.path for file in unlisted_files(self._folder)}
        visible = []
        for file in self._files():
            if is_visible(file.path) and file.size_bytes and file.path not in unlisted:
                visible.append(file)
            elif self._is_old(file) and _is_left_over(file.path):
                findings.failed.append(DeletableFile(self._folder, file))
        compacted = self._compacted_of(visible)
        for file in visible:
            if self._is_expired(file):
                findings.expired.append(DeletableFile(self._folder, file))
            elif file.path in compacted:
                findings.compacted.append(DeletableFile(self._folder, file))
        return findings

    def delete(self, findings: VacuumResult) -> None:
        """Delete the files of *findings*, and the folders of days past the retention."""
        size_bytes = 0
        with ProgressBar(sys.stderr, len(findings.all), "files", amount=format_bytes) as bar:
            for folder, file in findings.all:
                bar.begin_step(file.path)
                folder.delete(file.path)
                size_bytes += file.size_bytes
                bar.end_step(size_bytes)
        for day in sorted({found.file.path.rpartition("/hour=")[0] for found in findings.expired}):
            self._folder.delete(day)

    def _files(self) -> Iterator[StoredFile]:
        """Yield all files of the archive, except those in its staging folder."""
        for name in self._folder.names(""):
            if self._folder.url(name) != self._staging.root:
                yield from self._folder.files(name)

    def _staged(self) -> Iterator[DeletableFile]:
        """Yield old uncommitted files in the staging folder and the compaction's work folder."""
        last = last_committed(self._folder)
        committed = set() if last is None else set(read_record(self._folder, last).values())
        for folder in (self._staging, self._aside):
            for file in folder.files(""):
                if self._is_old(file) and file.path not in committed:
                    yield DeletableFile(folder, file)

    def _compacted_of(self, files: Iterable[StoredFile]) -> set[str]:
        """Return the paths of the *files* whose rows are compacted."""
        if self._compacted is None:
            return set()
        hours: dict[str, list[str]] = defaultdict(list)
        for file in files:
            folder, _, name = file.path.rpartition("/")
            hours[folder].append(name)
        found = set()
        for folder, names in hours.items():
            note = self._compacted.read(note_path(folder))
            # The note alone does not prove that the compacted files still exist.
            if note is not None and self._compacted.exists(folder):
                found |= {f"{folder}/{name}" for name in set(names).intersection(read_note(note))}
        return found

    def _is_old(self, file: StoredFile) -> bool:
        return file.modified_at < self._written_before

    def _is_expired(self, file: StoredFile) -> bool:
        day = _DAY.fullmatch(file.path)
        if not self._retain_days or day is None:
            return False
        # The folder's date is that of the messages, so the retention counts from the day's end.
        ended_at = datetime.fromisoformat(day[1]).replace(tzinfo=UTC) + timedelta(days=1)
        return ended_at + timedelta(days=self._retain_days) <= self._now


def _is_left_over(path: str) -> bool:
    """
    Return True if *path*, a file that is not committed, has the name of a data file or a draft.

    Files with other names stay, such as records and notes, and files of other programs.
    """
    return is_visible(path) or path.endswith(UNCOMMITTED) or _DRAFT.fullmatch(path) is not None


def _require_own(folder: HadoopFolder, flag: str, marks: Iterable[str]) -> HadoopFolder:
    """
    Return *folder* if one of *marks* in it shows that a job has written it.

    Raises:
        SettingRefused: It may be somebody else's, so vacuum must not delete there.
    """
    if not any(map(folder.exists, marks)):
        reason = (
            f"nothing is deleted in it: it has none of {', '.join(marks)}, so neither pipeline "
            "archive nor pipeline compact has written it"
        )
        raise SettingRefused(f"{flag} {folder.root}", reason)
    return folder
