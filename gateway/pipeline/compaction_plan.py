"""Which hours of an archive are to be made into large files, and of what."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from urllib.parse import unquote

from gateway.pipeline.sink_log import SinkFile

_HOUR = re.compile(r"(topic=([^/]+)/date=(\d{4}-\d\d-\d\d)/hour=(\d\d))/[^/]+$")


@dataclass(frozen=True, order=True)
class Hour:
    """A folder of the archive, and of what is made of it."""

    date: str
    hour: str
    folder: str
    """From the root of the archive: topic=…/date=…/hour=…"""

    @property
    def topic(self) -> str:
        """The name of the topic."""
        return unquote(self.folder.partition("/")[0].removeprefix("topic="))

    @property
    def ends_at(self) -> datetime:
        """When no further message gets a time in it."""
        begins_at = datetime.fromisoformat(f"{self.date}T{self.hour}:00:00").replace(tzinfo=UTC)
        return begins_at + timedelta(hours=1)

    def __str__(self) -> str:
        """Return what a person reads."""
        return f"{self.topic} {self.date} {self.hour}:00"


@dataclass(frozen=True)
class Work:
    """What is to be done for one hour."""

    hour: Hour
    files: tuple[SinkFile, ...]
    """Those that are not in yet."""
    before: tuple[str, ...]
    """The names of those that are."""

    @property
    def size_bytes(self) -> int:
        """The bytes of what is not in yet."""
        return sum(file.size_bytes for file in self.files)


@dataclass(frozen=True)
class Plan:
    """What a compaction will do."""

    work: tuple[Work, ...]
    unsettled: int
    """Hours that are left alone for now."""
    done: int
    """Hours with nothing new."""


def hours_of(files: Iterable[SinkFile]) -> dict[Hour, list[SinkFile]]:
    """Return *files* by hour; one that stands elsewhere is none of an archive, and left out."""
    found: dict[Hour, list[SinkFile]] = defaultdict(list)
    for file in files:
        place = _HOUR.search(file.path)
        if place is not None:
            found[Hour(place[3], place[4], place[1])].append(file)
    return dict(found)


def plan(
    hours: Mapping[Hour, Iterable[SinkFile]],
    done: Mapping[Hour, Iterable[str]],
    now: datetime,
    settle_s: float,
) -> Plan:
    """
    Return what there is to do at *now*, the oldest hour first.

    Args:
        hours: The files of the archive.
        done: The names of the files that are in already.
        now: The time, with its zone.
        settle_s: How long after its end an hour is left alone.
    """
    work = []
    unsettled = idle = 0
    for hour, files in sorted(hours.items()):
        if now < hour.ends_at + timedelta(seconds=settle_s):
            unsettled += 1
            continue
        before = set(done.get(hour, ()))
        new = tuple(sorted((f for f in files if name_of(f) not in before), key=name_of))
        if new:
            work.append(Work(hour, new, tuple(sorted(before))))
        else:
            idle += 1
    return Plan(tuple(work), unsettled, idle)


def name_of(file: SinkFile) -> str:
    """Return the name of *file* in its folder, which no other file ever has."""
    return file.path.rpartition("/")[2]


def write_note(names: Iterable[str]) -> str:
    """Return the text that notes which files are in."""
    return json.dumps({"v": 1, "files": sorted(names)}, indent=0)


def read_note(text: str | None) -> list[str]:
    """Return what `write_note` noted; nothing of a text that cannot be read."""
    try:
        return [str(name) for name in json.loads(text or "{}").get("files", ())]
    except (ValueError, AttributeError):
        return []
