"""
The compaction: an archive's many small files into few large ones, each message once.

Who reads the large files never sees half of an hour: it is written aside, and comes by one rename.
Where messages came late, only what is new is added, and nothing is taken away. What a run that was
killed has left is found, or written again, by the next one.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody does

from gateway.errors import SettingRefused
from gateway.pipeline import sink_log
from gateway.pipeline.compaction_plan import (
    Hour,
    Plan,
    Work,
    hours_of,
    name_of,
    plan,
    read_note,
    write_note,
)
from gateway.pipeline.failures import explain
from gateway.pipeline.reporting import Steps
from gateway.pipeline.runner import JobFailed
from gateway.pipeline.session import session
from gateway.pipeline.storage import Storage
from gateway.settings_jobs import CompactSettings
from gateway.telemetry import get_logger

logger = get_logger()

NAME = "compact"
_NOTES = "_compacted"
_ASIDE = ".aside"
"""Behind the name of the output: some readers look into every folder that is in it."""
_KEY = ("nsqd", "id")
"""Of a message, in its topic."""


@dataclass
class Sum:
    """What a compaction has done."""

    hours: int = 0
    unsettled: int = 0
    unchanged: int = 0
    files_in: int = 0
    files_out: int = 0
    rows: int = 0
    duplicates: int = 0

    def __str__(self) -> str:
        """Return what a person reads."""
        return (
            f"{self.hours:,} hours: {self.files_in:,} files into {self.files_out:,}, "
            f"{self.rows:,} rows, {self.duplicates:,} duplicates dropped; "
            f"{self.unchanged:,} hours had nothing new, {self.unsettled:,} are not settled yet "
            "(--settle-s after their end)"
        )


def run_compact(settings: CompactSettings) -> Sum:
    """
    Compact what is settled and has changed; return what that was.

    Raises:
        SettingsError: A folder is missing, or is not one for this.
        StartError: Spark cannot run here.
        JobFailed: An hour could not be compacted; those before it are.
    """
    check_folders(settings)
    with session(settings, NAME) as spark:
        return compact(spark, settings, datetime.now(UTC))


def compact(spark: SparkSession, settings: CompactSettings, now: datetime) -> Sum:
    """Do what `run_compact` does, in a session that is there, as at *now*."""
    return _Compaction(spark, settings, now).run()


def check_folders(settings: CompactSettings) -> None:
    """Raise SettingsError where a folder is missing, or one is inside the other."""
    source, target = settings.input.rstrip("/"), settings.output.rstrip("/")
    if not source:
        raise SettingRefused(
            "--input", "say where the archive is: the --output of pipeline archive"
        )
    if not target:
        raise SettingRefused("--output", "say where the large files go")
    if f"{target}/".startswith(f"{source}/") or f"{source}/".startswith(f"{target}/"):
        reason = f"it has to be a folder beside --input ({source}), not in it or around it"
        raise SettingRefused(f"--output {target}", reason)


class _Compaction:
    def __init__(self, spark: SparkSession, settings: CompactSettings, now: datetime) -> None:
        self._spark = spark
        self._now = now
        self._settings = settings
        self._from = Storage(spark, settings.input)
        self._to = Storage(spark, settings.output)
        self._aside = Storage(spark, self._to.root + _ASIDE)
        self._sum = Sum()

    def run(self) -> Sum:
        """Return what was done."""
        self._aside.delete("")
        todo = self._plan()
        self._sum.unsettled, self._sum.unchanged = todo.unsettled, todo.done
        with Steps(sys.stderr, len(todo.work), "hours") as steps:
            for work in todo.work:
                steps.begin(str(work.hour))
                try:
                    self._compact(work)
                except Exception as error:
                    logger.debug("compaction failed", trace=str(error))
                    raise JobFailed(
                        f"{work.hour} was not compacted: {explain(str(error))}"
                    ) from error
                steps.done(self._sum.rows)
        self._aside.delete("")
        return self._sum

    def _plan(self) -> Plan:
        names = self._from.names(sink_log.FOLDER)
        if sink_log.last_batch(names) is None:
            reason = f"there is no {sink_log.FOLDER} in it: it is not the --output of an archive"
            raise SettingRefused(f"--input {self._settings.input}", reason)

        def read(name: str) -> str:
            return self._from.read(f"{sink_log.FOLDER}/{name}") or ""

        hours = hours_of(sink_log.files_of(names, read))
        done = {hour: read_note(self._to.read(_note_of(hour))) for hour in hours}
        return plan(hours, done, self._now, self._settings.settle_s)

    def _compact(self, work: Work) -> None:
        began_at = time.monotonic()
        folder = work.hour.folder
        rows = self._spark.read.parquet(*(file.path for file in work.files))
        is_there = self._to.exists(folder)
        aside = uuid4().hex
        self._write(self._without_duplicates(rows, folder if is_there else None), work, aside)
        written = [name for name in self._aside.names(aside) if not name.startswith(("_", "."))]
        came = rows.count()
        new = self._spark.read.schema(rows.schema).parquet(self._aside.url(aside)).count()
        if is_there or not new:
            for name in written if new else ():
                self._to.take(self._aside, f"{aside}/{name}", f"{folder}/{name}")
        else:
            self._to.take(self._aside, aside, folder)
        self._to.write(_note_of(work.hour), write_note([*work.before, *map(name_of, work.files)]))
        self._aside.delete(aside)
        self._count(work, came, new, len(written) if new else 0)
        logger.info(
            "hour compacted",
            topic=work.hour.topic,
            date=work.hour.date,
            hour=work.hour.hour,
            files_in=len(work.files),
            files_out=len(written) if new else 0,
            rows=new,
            duplicates=came - new,
            seconds=round(time.monotonic() - began_at, 1),
        )

    def _count(self, work: Work, came: int, new: int, files: int) -> None:
        self._sum.hours += 1
        self._sum.files_in += len(work.files)
        self._sum.files_out += files
        self._sum.rows += new
        self._sum.duplicates += came - new

    def _without_duplicates(self, rows: DataFrame, folder: str | None) -> DataFrame:
        """Return each message of *rows* once, as it came first, but for those in *folder*."""
        order = Window.partitionBy(*_KEY).orderBy("received", "attempts")
        once = rows.withColumn("_place", F.row_number().over(order)).where("_place = 1")
        once = once.drop("_place")
        if folder is None:
            return once
        there = self._spark.read.schema(rows.schema).parquet(self._to.url(folder)).select(*_KEY)
        return once.join(there, [*_KEY], "left_anti").select(*rows.columns)

    def _write(self, rows: DataFrame, work: Work, aside: str) -> None:
        count = max(1, -(-work.size_bytes // self._settings.target_file_bytes))
        spread = rows.repartition(1) if count == 1 else rows.repartitionByRange(count, "ts")
        (
            spread.sortWithinPartitions("ts", "id")
            .write.option("compression", "zstd")
            .option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false")
            .parquet(self._aside.url(aside))
        )


def _note_of(hour: Hour) -> str:
    return f"{_NOTES}/{hour.folder}.json"
