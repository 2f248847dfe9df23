"""Which hours are compacted, and of what."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from gateway.pipeline.compaction_plan import Hour, hours_of, plan, read_note, write_note
from gateway.pipeline.sink_log import SinkFile

FOUR = Hour("2026-11-22", "04", "topic=t/date=2026-11-22/hour=04")
ENDS_AT = datetime(2026, 11, 22, 5, tzinfo=UTC)


def file_of(name: str, folder: str = FOUR.folder, size_bytes: int = 10) -> SinkFile:
    """Return a file of an archive."""
    return SinkFile(f"/archive/{folder}/{name}", size_bytes)


def test_files_belong_to_the_hour_of_their_folder() -> None:
    """Whatever the archive's own path; what stands elsewhere is none of it."""
    other = "topic=t%23ephemeral/date=2026-11-22/hour=23"
    files = [file_of("a"), file_of("b", other), SinkFile("/archive/c", 1)]

    hours = hours_of(files)

    assert {FOUR: [files[0]], Hour("2026-11-22", "23", other): [files[1]]} == hours
    assert ["t", "t#ephemeral"] == [hour.topic for hour in sorted(hours)]


@pytest.mark.parametrize("late_s, expected", [(-1, (0, 1)), (0, (1, 0)), (3_600, (1, 0))])
def test_an_hour_is_left_alone_until_it_is_settled(late_s: int, expected: tuple[int, int]) -> None:
    """So long after its end."""
    now = ENDS_AT + timedelta(seconds=900 + late_s)

    found = plan({FOUR: [file_of("a")]}, {}, now, settle_s=900)

    assert expected == (len(found.work), found.unsettled)


def test_only_what_is_new_is_to_be_done() -> None:
    """An hour with nothing new is done."""
    five = Hour("2026-11-22", "03", "topic=t/date=2026-11-22/hour=03")
    hours = {FOUR: [file_of("b"), file_of("a")], five: [file_of("c", five.folder)]}
    done = {FOUR: ["b"], five: ["c"]}

    found = plan(hours, done, ENDS_AT, settle_s=0)

    [work] = found.work
    assert (FOUR, (file_of("a"),), ("b",), 10) == (
        work.hour,
        work.files,
        work.before,
        work.size_bytes,
    )
    assert 1 == found.done


def test_the_oldest_hour_is_the_first() -> None:
    """What a run that is ended has done is in one piece."""
    hours = {
        Hour(date, hour, f"topic={topic}/date={date}/hour={hour}"): [file_of("a")]
        for topic in "ab"
        for date, hour in (("2026-11-22", "01"), ("2026-11-21", "23"))
    }

    found = plan(hours, {}, ENDS_AT, settle_s=0)

    expected = [
        "a 2026-11-21 23:00",
        "b 2026-11-21 23:00",
        "a 2026-11-22 01:00",
        "b 2026-11-22 01:00",
    ]
    assert expected == [str(work.hour) for work in found.work]


def test_a_note_is_read_as_it_was_written() -> None:
    """In order, so that it is the same for the same files."""
    assert ["a", "b"] == read_note(write_note(["b", "a"]))


@pytest.mark.parametrize("text", [None, "", "x", "[]", "{}", "null", '{"v": 1}'])
def test_a_note_that_cannot_be_read_says_nothing(text: str | None) -> None:
    """The hour is done again, and what is there is found there."""
    assert [] == read_note(text)
