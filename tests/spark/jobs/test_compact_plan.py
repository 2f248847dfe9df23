"""Which hours and files a compaction processes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from gateway.pipeline.jobs.compact import (
    ArchiveHour,
    group_by_hour,
    plan_compaction,
    read_note,
    write_note,
)
from gateway.pipeline.jobs.storage import SinkFile

FOUR = ArchiveHour("2026-11-22", "04", "topic=t/date=2026-11-22/hour=04")
ENDS_AT = datetime(2026, 11, 22, 5, tzinfo=UTC)


def file_of(name: str, folder: str = FOUR.folder, size_bytes: int = 10) -> SinkFile:
    return SinkFile(f"/archive/{folder}/{name}", size_bytes)


def test_files_belong_to_the_hour_of_their_folder() -> None:
    """Whatever the path of the archive; files outside partition folders are ignored."""
    other = "topic=t%23ephemeral/date=2026-11-22/hour=23"
    files = [file_of("a"), file_of("b", other), SinkFile("/archive/c", 1)]

    hours = group_by_hour(files)

    assert {FOUR: [files[0]], ArchiveHour("2026-11-22", "23", other): [files[1]]} == hours
    assert ["t", "t#ephemeral"] == [hour.topic for hour in sorted(hours)]


@pytest.mark.parametrize("late_s, expected", [(-1, (0, 1)), (0, (1, 0)), (3_600, (1, 0))])
def test_an_hour_is_left_alone_until_it_is_settled(late_s: int, expected: tuple[int, int]) -> None:
    now = ENDS_AT + timedelta(seconds=900 + late_s)

    found = plan_compaction({FOUR: [file_of("a")]}, {}, now, settle_s=900)

    assert expected == (len(found.work), found.unsettled)


def test_the_time_is_known_when_the_first_hour_is_settled() -> None:
    """So a user with unsettled hours learns when to run it again."""
    six = ArchiveHour("2026-11-22", "06", "topic=t/date=2026-11-22/hour=06")
    hours = {six: [file_of("b", six.folder)], FOUR: [file_of("a")]}

    found = plan_compaction(hours, {}, ENDS_AT, settle_s=900)

    assert (2, ENDS_AT + timedelta(seconds=900)) == (found.unsettled, found.settles_at)
    assert plan_compaction({}, {}, ENDS_AT, settle_s=900).settles_at is None


def test_the_current_hour_can_be_included() -> None:
    five = ArchiveHour("2026-11-22", "05", "topic=t/date=2026-11-22/hour=05")
    hours = {FOUR: [file_of("a")], five: [file_of("b", five.folder)]}

    found = plan_compaction(hours, {}, ENDS_AT + timedelta(minutes=5), settle_s=None)

    assert [FOUR, five] == [work.hour for work in found.work]
    assert (0, None) == (found.unsettled, found.settles_at)


def test_only_new_files_are_planned() -> None:
    five = ArchiveHour("2026-11-22", "03", "topic=t/date=2026-11-22/hour=03")
    hours = {FOUR: [file_of("b"), file_of("a")], five: [file_of("c", five.folder)]}
    done = {FOUR: ["b"], five: ["c"]}

    found = plan_compaction(hours, done, ENDS_AT, settle_s=0)

    [work] = found.work
    assert (FOUR, (file_of("a"),), ("b",), 10) == (
        work.hour,
        work.files,
        work.before,
        work.size_bytes,
    )
    assert 1 == found.done


def test_the_oldest_hour_is_the_first() -> None:
    """If a run is stopped, the compacted hours are consecutive."""
    hours = {
        ArchiveHour(date, hour, f"topic={topic}/date={date}/hour={hour}"): [file_of("a")]
        for topic in "ab"
        for date, hour in (("2026-11-22", "01"), ("2026-11-21", "23"))
    }

    found = plan_compaction(hours, {}, ENDS_AT, settle_s=0)

    expected = [
        "a 2026-11-21 23:00",
        "b 2026-11-21 23:00",
        "a 2026-11-22 01:00",
        "b 2026-11-22 01:00",
    ]
    assert expected == [str(work.hour) for work in found.work]


def test_a_note_is_read_as_it_was_written() -> None:
    """Sorted, so that the same files give the same note."""
    assert ["a", "b"] == read_note(write_note(["b", "a"]))


@pytest.mark.parametrize("text", [None, "", "x", "[]", "{}", "null", '{"v": 1}'])
def test_a_note_that_cannot_be_read_says_nothing(text: str | None) -> None:
    """The hour is compacted again, and existing messages are dropped as duplicates."""
    assert [] == read_note(text)
