"""Read Spark's list of the files that a sink has committed."""

from __future__ import annotations

import json

import pytest

from gateway.errors import GatewayError
from gateway.pipeline.jobs.storage import SinkFile, UnreadableLog, files_of, last_batch


def entry(path: str, action: str = "add") -> str:
    """Return a line of the list, as Spark writes it."""
    return json.dumps({"path": path, "size": 10, "isDir": False, "action": action})


def log(*lines: str) -> str:
    """Return a file of the list."""
    return "\n".join(["v1", *lines])


def paths(log_files: dict[str, str]) -> list[str]:
    return [file.path for file in files_of(log_files, log_files.__getitem__)]


def test_each_batch_adds_its_files() -> None:
    files = {"10": log(entry("s3a://b/c")), "9": log(entry("s3a://b/a"), entry("s3a://b/b"))}

    assert ["s3a://b/a", "s3a://b/b", "s3a://b/c"] == paths(files)


def test_a_compact_entry_replaces_earlier_ones() -> None:
    files = {
        "8": log(entry("s3a://b/old")),
        "9.compact": log(entry("s3a://b/a")),
        "10": log(entry("s3a://b/c")),
        ".10.crc": "x",
    }

    assert ["s3a://b/a", "s3a://b/c"] == paths(files)


def test_a_file_that_was_taken_away_does_not_count() -> None:
    """Spark's own retention removes files."""
    files = {
        "0": log(entry("s3a://b/a"), entry("s3a://b/b")),
        "1": log(entry("s3a://b/a", "delete")),
    }

    assert ["s3a://b/b"] == paths(files)


def test_a_path_is_as_it_is_spelled_on_the_disk() -> None:
    """The list has URLs, in which a # is escaped once more than in the folder."""
    files = {"0": log(entry("file:///x/topic=t%2523ephemeral/a"))}

    assert [SinkFile("/x/topic=t%23ephemeral/a", 10)] == files_of(files, files.__getitem__)


@pytest.mark.parametrize(
    "text, what",
    [
        ("v2\n{}", "_spark_metadata/0 has version 'v2', not v1"),
        ("", "_spark_metadata/0 has version '', not v1"),
        ("v1\n{", "_spark_metadata/0 has a line that cannot be read"),
        ('v1\n{"path": "/a"}', "_spark_metadata/0 has a line that cannot be read"),
        ("v1\n[]", "_spark_metadata/0 has a line that cannot be read"),
    ],
)
def test_a_list_of_another_form_is_refused(text: str, what: str) -> None:
    """Skipped files would be lost messages; the error is one sentence."""
    with pytest.raises(UnreadableLog, match=what) as caught:
        files_of(["0"], lambda _: text)

    assert isinstance(caught.value, GatewayError)


@pytest.mark.parametrize(
    "names, expected",
    [([], None), (["_x", ".0.crc"], None), (["0", "9.compact", "10"], 10), (["19.compact"], 19)],
)
def test_the_last_batch_has_the_highest_number(names: list[str], expected: int | None) -> None:
    """Among plain and compact entries."""
    assert expected == last_batch(names)
