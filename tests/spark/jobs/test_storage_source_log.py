"""Read from Spark's logs which input files of a checkpoint are finished."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from gateway.pipeline.jobs.storage import done_files


def files_of(*paths: str, batch: int) -> str:
    """Return an entry of the log of files, as Spark writes it."""
    lines = [json.dumps({"path": each, "timestamp": 1, "batchId": batch}) for each in paths]
    return "\n".join(["v1", *lines])


def offset(end: int) -> str:
    """Return the offsets of a batch that ends at *end* in the log of files."""
    return f'v1\n{{"batchWatermarkMs":0,"conf":{{}}}}\n{{"logOffset":{end}}}'


def done_of(checkpoint: Mapping[str, str]) -> set[str]:
    """Return the finished files of a checkpoint with these files."""

    def names(folder: str) -> list[str]:
        inside = (path.removeprefix(f"{folder}/") for path in checkpoint if path.startswith(folder))
        return list(inside)

    return done_files(names, checkpoint.get)


def test_a_file_is_done_when_its_batch_is_in_the_log_of_commits() -> None:
    """Files of a batch that was only planned are published again."""
    checkpoint = {
        "sources/0/0": files_of("s3a://b/a", batch=0),
        "sources/0/1": files_of("s3a://b/b", "s3a://b/c", batch=1),
        "sources/0/2": files_of("s3a://b/d", batch=2),
        "offsets/0": offset(0),
        "offsets/1": offset(1),
        "offsets/2": offset(2),
        "commits/0": "v1\n{}",
        "commits/1": "v1\n{}",
    }

    assert {"s3a://b/a", "s3a://b/b", "s3a://b/c"} == done_of(checkpoint)


def test_a_compact_entry_replaces_earlier_ones() -> None:
    """Only the finished batches in it count."""
    both = files_of("s3a://b/a", batch=0) + files_of("s3a://b/b", batch=9).removeprefix("v1")
    checkpoint = {
        "sources/0/8": files_of("s3a://b/old", batch=8),
        "sources/0/9.compact": both,
        "sources/0/.9.compact.crc": "x",
        "offsets/8": offset(8),
        "commits/8": "v1\n{}",
        "commits/.8.crc": "x",
    }

    assert {"s3a://b/a"} == done_of(checkpoint)


def test_a_file_is_spelled_as_a_path_and_as_a_url() -> None:
    """Spark's log and its column of paths differ in quoting and slashes."""
    checkpoint = {
        "sources/0/0": files_of("file:///x/topic=a%2523ephemeral/p.parquet", batch=0),
        "offsets/0": offset(0),
        "commits/0": "v1\n{}",
    }

    expected = {"file:/x/topic=a%2523ephemeral/p.parquet", "file:/x/topic=a%23ephemeral/p.parquet"}
    assert expected == done_of(checkpoint)


@pytest.mark.parametrize("checkpoint", [{}, {"offsets/0": offset(0)}, {"commits/0": "v1\n{}"}])
def test_a_checkpoint_without_a_batch_has_nothing_done(checkpoint: dict[str, str]) -> None:
    """Also the checkpoint of a stream that reads no files."""
    assert set() == done_of(checkpoint)
