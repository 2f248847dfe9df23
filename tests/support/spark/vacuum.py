"""Run the vacuum job in a Spark program."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path

from pyspark.sql import SparkSession

from gateway.errors import SettingsError
from gateway.pipeline.jobs.vacuum import vacuum
from gateway.settings.loader import load
from gateway.settings.pipeline import VacuumSettings


def vacuum_at(
    spark: SparkSession, now: str, flags: dict[str, str], *, is_dry_run: bool = False
) -> dict[str, list[str]]:
    """Vacuum at the time *now*; return the files by reason, or the error for *flags*."""
    settings = load(VacuumSettings, flags).settings
    try:
        found = vacuum(spark, settings, datetime.fromisoformat(now), is_dry_run=is_dry_run)
    except SettingsError as error:
        return {"refused": [str(error)]}
    reasons = {"failed": found.failed, "expired": found.expired, "compacted": found.compacted}
    names = {
        reason: sorted(each.file.path.rpartition("/")[2] for each in files)
        for reason, files in reasons.items()
    }
    return names | {"report": found.report(is_dry_run=is_dry_run).splitlines()}


def date_back(folder: Path, now: str, age_s: float) -> None:
    """Set the modification time of all files in *folder* to *age_s* before *now*."""
    moment_s = datetime.fromisoformat(now).timestamp() - age_s
    for path in folder.rglob("*"):
        if path.is_file():
            os.utime(path, (moment_s, moment_s))
