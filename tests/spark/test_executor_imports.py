"""What is pickled for executors, and what Spark's processes import."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest

from gateway.pipeline.datasource import NsqDataSource, read_settings
from gateway.pipeline.reader import CommitReader, NsqStreamReader
from gateway.pipeline.schema import Frames, FramesPartition, pack_partitions
from gateway.pipeline.spool.reader import SpoolReader

OPTIONS = {"topic": "t", "nsqdTcpAddress": "a:1"}
HEAVY = ("httpx", "pydantic", "structlog", "uvloop", "pyarrow.compute", "gateway.client")
SHOW = f"import sys; print(*sorted(sys.modules.keys() & set({HEAVY})))"
_WAIT_S = 60


def imported_by(program: str, *arguments: str) -> str:
    """Return which of the heavy modules a new process imports when it runs *program*."""
    command = (sys.executable, "-c", f"{program}; {SHOW}", *arguments)
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=_WAIT_S)
    return done.stdout.strip()


def test_finding_the_format_imports_no_client() -> None:
    """Every session searches for formats, even if it uses none."""
    assert "" == imported_by("import pyspark_nsq; pyspark_nsq.DefaultSource.name()")


@pytest.mark.parametrize("kind", [CommitReader, SpoolReader])
def test_an_executor_imports_only_the_decoder(kind: type[NsqStreamReader]) -> None:
    """It imports no NSQ client, because a Spark worker may live for a minute only."""
    task = NsqDataSource(OPTIONS), kind(read_settings(OPTIONS)), FramesPartition([])
    load = "import pickle, sys; pickle.loads(bytes.fromhex(sys.argv[1]))"

    assert "" == imported_by(load, pickle.dumps(task).hex())


@pytest.mark.parametrize("wanted,expected", [(0, 2), (1, 1), (3, 3)])
def test_a_batch_is_as_many_tasks_as_are_wanted(wanted: int, expected: int) -> None:
    """The tasks have similar sizes and all frames, in order."""
    frames = [Frames("t", "a:1", number, bytes(100)) for number in range(6)]
    tasks = pack_partitions(frames, wanted)
    parts = [task.parts for task in tasks if isinstance(task, FramesPartition)]

    assert [6 // expected] * expected == [len(each) for each in parts]
    assert frames == [part for each in parts for part in each]
