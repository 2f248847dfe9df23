"""
The compact job: rewrite an archive's many small files as a few large ones.

An hour is written to a separate folder and then renamed, so readers never see a part of it. Late
messages are added in new files; nothing is removed. The next run completes a run that was killed.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from urllib.parse import unquote
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody does

from gateway.errors import SettingRefused
from gateway.pipeline.jobs.archive_format import local_folder, refuse_table
from gateway.pipeline.jobs.committer import RECORDS, committed_files
from gateway.pipeline.jobs.console import ProgressBar
from gateway.pipeline.jobs.failures import explain
from gateway.pipeline.jobs.runner import JobFailed, describe_jvm_loss, is_jvm_lost
from gateway.pipeline.jobs.spark import session
from gateway.pipeline.jobs.storage import HadoopFolder, SinkFile
from gateway.settings.pipeline import CompactSettings
from gateway.telemetry import get_logger
from gateway.terminal import pluralize

_HOUR = re.compile(r"(topic=([^/]+)/date=(\d{4}-\d\d-\d\d)/hour=(\d\d))/[^/]+$")


@dataclass(frozen=True, order=True)
class ArchiveHour:
    """One topic's folder for one hour, in the archive and in its compaction."""

    date: str
    hour: str
    folder: str
    """Relative to the root of the archive: topic=…/date=…/hour=…"""

    @property
    def topic(self) -> str:
        """Name of the topic, unquoted."""
        return unquote(self.folder.partition("/")[0].removeprefix("topic="))

    @property
    def ends_at(self) -> datetime:
        """End of the hour, in UTC."""
        begins_at = datetime.fromisoformat(f"{self.date}T{self.hour}:00:00").replace(tzinfo=UTC)
        return begins_at + timedelta(hours=1)

    def __str__(self) -> str:
        """Return topic, date and hour, for messages."""
        return f"{self.topic} {self.date} {self.hour}:00"


@dataclass(frozen=True)
class HourPlan:
    """The new files of one hour."""

    hour: ArchiveHour
    files: tuple[SinkFile, ...]
    """Files that are not compacted yet."""
    before: tuple[str, ...]
    """Names of the files that are compacted already."""

    @property
    def size_bytes(self) -> int:
        """Size of the new files."""
        return sum(file.size_bytes for file in self.files)


@dataclass(frozen=True)
class CompactionPlan:
    """The hours to compact, and the number of others."""

    work: tuple[HourPlan, ...]
    unsettled: int
    """Number of hours that may still get new files."""
    settles_at: datetime | None
    """When the first unsettled hour is settled; None if there is none."""
    done: int
    """Number of hours without new files."""


def group_by_hour(files: Iterable[SinkFile]) -> dict[ArchiveHour, list[SinkFile]]:
    """Group *files* by hour; files outside an archive's folders are omitted."""
    found: dict[ArchiveHour, list[SinkFile]] = defaultdict(list)
    for file in files:
        place = _HOUR.search(file.path)
        if place is not None:
            found[ArchiveHour(place[3], place[4], place[1])].append(file)
    return dict(found)


def plan_compaction(
    hours: Mapping[ArchiveHour, Iterable[SinkFile]],
    done: Mapping[ArchiveHour, Iterable[str]],
    now: datetime,
    settle_s: float | None,
) -> CompactionPlan:
    """
    Return what to compact at the time *now*, the oldest hour first.

    Args:
        hours: Files of the archive by hour.
        done: Names of the compacted files by hour.
        now: An aware datetime.
        settle_s: Seconds after its end in which an hour may still get files; None: compact every
            hour now.
    """
    work = []
    unsettled: list[datetime] = []
    idle = 0
    for hour, files in sorted(hours.items()):
        if settle_s is not None and now < (at := hour.ends_at + timedelta(seconds=settle_s)):
            unsettled.append(at)
            continue
        before = set(done.get(hour, ()))
        new = tuple(sorted((f for f in files if name_of(f) not in before), key=name_of))
        if new:
            work.append(HourPlan(hour, new, tuple(sorted(before))))
        else:
            idle += 1
    return CompactionPlan(tuple(work), len(unsettled), min(unsettled, default=None), idle)


def name_of(file: SinkFile) -> str:
    """Return the name of *file*; it is unique in the folder of an hour."""
    return file.path.rpartition("/")[2]


def write_note(names: Iterable[str]) -> str:
    """Return the text of a note, which lists an hour's compacted files; the caller stores it."""
    return json.dumps({"v": 1, "files": sorted(names)}, indent=0)


def read_note(text: str | None) -> list[str]:
    """Return the file names in *text*, made by `write_note`; empty if it cannot be parsed."""
    try:
        return [str(name) for name in json.loads(text or "{}").get("files", ())]
    except (ValueError, AttributeError):
        return []


logger = get_logger()

NAME = "compact"
NOTES = "_compacted"
ASIDE = ".aside"
"""Suffix of the work folder. It is beside the output: some readers read every folder inside."""
_KEY = ("nsqd", "id")
"""Columns that identify a message within its topic."""


@dataclass
class CompactionResult:
    """Totals of a compaction."""

    hours: int = 0
    unsettled: int = 0
    settles_at: str = ""
    """When the first unsettled hour settles, as text; empty if there is none."""
    unchanged: int = 0
    files_in: int = 0
    files_out: int = 0
    rows: int = 0
    duplicates: int = 0

    def __str__(self) -> str:
        """Return the totals as a sentence, for the terminal."""
        text = (
            f"{pluralize(self.hours, 'hour')}: {pluralize(self.files_in, 'file')} into "
            f"{self.files_out}, {pluralize(self.rows, 'row')}, "
            f"{pluralize(self.duplicates, 'duplicate')} dropped; "
            f"{pluralize(self.unchanged, 'hour')} had nothing new"
        )
        if not self.unsettled:
            return text
        return (
            f"{text}; {pluralize(self.unsettled, 'hour')} not settled yet (--settle-s), the first "
            f"until {self.settles_at}: run it again then, or now with --include-current-hour"
        )


def run_compact(settings: CompactSettings) -> CompactionResult:
    """
    Compact the settled hours with new files; return the totals.

    Raises:
        SettingsError: A folder is not set, or --input is not an archive.
        StartError: Spark cannot run here.
        JobFailed: An hour could not be compacted; earlier hours are.
    """
    check_folders(settings)
    with session(settings, NAME) as spark:
        return compact(spark, settings, datetime.now(UTC))


def compact(spark: SparkSession, settings: CompactSettings, now: datetime) -> CompactionResult:
    """Like `run_compact`, but in an existing session and at the time *now*."""
    return _Compaction(spark, settings, now).run()


def check_folders(settings: CompactSettings) -> None:
    """Raise SettingsError if a folder is not set, is inside the other one, or is a table."""
    source, target = settings.input.rstrip("/"), settings.output.rstrip("/")
    if not source:
        raise SettingRefused("--input", "the archive is required: the --output of pipeline archive")
    if not target:
        raise SettingRefused("--output", "the folder for the large files is required")
    if f"{target}/".startswith(f"{source}/") or f"{source}/".startswith(f"{target}/"):
        reason = f"it must be a folder beside --input ({source}), not inside it or around it"
        raise SettingRefused(f"--output {target}", reason)
    refuse_table(local_folder(source), "--input", NAME)
    refuse_table(local_folder(target), "--output", NAME)


class _Compaction:
    def __init__(self, spark: SparkSession, settings: CompactSettings, now: datetime) -> None:
        self._spark = spark
        self._now = now
        self._settings = settings
        self._from = HadoopFolder(spark, settings.input)
        self._to = HadoopFolder(spark, settings.output)
        self._aside = HadoopFolder(spark, self._to.root + ASIDE)
        self._sum = CompactionResult()

    def run(self) -> CompactionResult:
        """Compact, and return the totals."""
        refuse_table(self._from, "--input", NAME)
        refuse_table(self._to, "--output", NAME)
        # Files of a run that was killed; its hour has no note yet and is compacted again.
        self._aside.delete("")
        todo = self._plan()
        self._sum.unsettled, self._sum.unchanged = todo.unsettled, todo.done
        if todo.settles_at is not None:
            self._sum.settles_at = f"{todo.settles_at:%Y-%m-%d %H:%M:%S} UTC"
        with ProgressBar(sys.stderr, len(todo.work), "hours") as bar:
            for work in todo.work:
                bar.begin_step(str(work.hour))
                try:
                    self._compact(work)
                except Exception as error:
                    logger.debug("compaction failed", trace=str(error))
                    reason = describe_jvm_loss() if is_jvm_lost(error) else str(explain(str(error)))
                    raise JobFailed(f"{work.hour} was not compacted: {reason}") from error
                bar.end_step(self._sum.rows)
        self._aside.delete("")
        return self._sum

    def _plan(self) -> CompactionPlan:
        files = committed_files(self._from)
        if files is None:
            reason = f"it has no {RECORDS}: it is not the --output of an archive"
            raise SettingRefused(f"--input {self._settings.input}", reason)
        hours = group_by_hour(files)
        done = {hour: read_note(self._to.read(note_path(hour.folder))) for hour in hours}
        settle_s = None if self._settings.include_current_hour else self._settings.settle_s
        return plan_compaction(hours, done, self._now, settle_s)

    def _compact(self, work: HourPlan) -> None:
        began_at = time.monotonic()
        folder = work.hour.folder
        rows = self._spark.read.parquet(*(file.path for file in work.files))
        is_there = self._to.exists(folder)
        aside = uuid4().hex
        self._write(self._without_duplicates(rows, folder if is_there else None), work, aside)
        written = [name for name in self._aside.names(aside) if not name.startswith(("_", "."))]
        rows_in = rows.count()
        new = self._spark.read.schema(rows.schema).parquet(self._aside.url(aside)).count()
        # A new hour appears by one rename of its folder; a known one gets further files.
        if is_there or not new:
            for name in written if new else ():
                self._to.move_from(self._aside, f"{aside}/{name}", f"{folder}/{name}")
        else:
            self._to.move_from(self._aside, aside, folder)
        # Last: if a run is killed before this, the next one finds these rows to be duplicates.
        self._to.write(
            note_path(work.hour.folder), write_note([*work.before, *map(name_of, work.files)])
        )
        self._aside.delete(aside)
        self._count(work, rows_in, new, len(written) if new else 0)
        logger.info(
            "hour compacted",
            topic=work.hour.topic,
            date=work.hour.date,
            hour=work.hour.hour,
            files_in=len(work.files),
            files_out=len(written) if new else 0,
            rows=new,
            duplicates=rows_in - new,
            seconds=round(time.monotonic() - began_at, 1),
        )

    def _count(self, work: HourPlan, rows_in: int, new: int, files: int) -> None:
        self._sum.hours += 1
        self._sum.files_in += len(work.files)
        self._sum.files_out += files
        self._sum.rows += new
        self._sum.duplicates += rows_in - new

    def _without_duplicates(self, rows: DataFrame, folder: str | None) -> DataFrame:
        """Return the first delivery of each message in *rows* that is not in *folder* yet."""
        order = Window.partitionBy(*_KEY).orderBy("received", "attempts")
        # nsqd may have delivered a message several times: the row that arrived first is kept.
        once = rows.withColumn("_number", F.row_number().over(order)).where("_number = 1")
        once = once.drop("_number")
        if folder is None:
            return once
        # Rows of earlier runs, also of one that was killed before it wrote its note.
        there = self._spark.read.schema(rows.schema).parquet(self._to.url(folder)).select(*_KEY)
        return once.join(there, [*_KEY], "left_anti").select(*rows.columns)

    def _write(self, rows: DataFrame, work: HourPlan, aside: str) -> None:
        """Write *rows*, sorted by time, as few large files to *aside* in the work folder."""
        count = max(1, -(-work.size_bytes // self._settings.target_file_bytes))
        spread = rows.repartition(1) if count == 1 else rows.repartitionByRange(count, "ts")
        (
            spread.sortWithinPartitions("ts", "id")
            .write.option("compression", "zstd")
            .option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false")
            .parquet(self._aside.url(aside))
        )


def note_path(folder: str) -> str:
    """Return the path of the note that lists the compacted files of the hour *folder*."""
    return f"{NOTES}/{folder}.json"
