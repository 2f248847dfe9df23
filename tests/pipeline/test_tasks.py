"""What goes to executors, and what the processes of Spark have to import for it."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest

from gateway.pipeline.reader import CommitReader, NsqStreamReader
from gateway.pipeline.schema import Frames
from gateway.pipeline.source import NsqDataSource, read_settings
from gateway.pipeline.spool_reader import SpoolReader
from gateway.pipeline.tasks import FramesPartition, packed

OPTIONS = {"topic": "t", "nsqdTcpAddress": "a:1"}
HEAVY = ("httpx", "pydantic", "structlog", "uvloop", "pyarrow.compute", "gateway.client")
SHOW = f"import sys; print(*sorted(sys.modules.keys() & set({HEAVY})))"
_WAIT_S = 60


def imported_by(program: str, *arguments: str) -> str:
    """Return which of the heavy modules a fresh process has imported after *program*."""
    command = (sys.executable, "-c", f"{program}; {SHOW}", *arguments)
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=_WAIT_S)
    return done.stdout.strip()


def test_spark_finds_the_format_without_what_it_does() -> None:
    """Each session looks for formats, whether it uses one or not."""
    assert "" == imported_by("import pyspark_nsq; pyspark_nsq.DefaultSource.name()")


@pytest.mark.parametrize("kind", [CommitReader, SpoolReader])
def test_an_executor_imports_what_decodes(kind: type[NsqStreamReader]) -> None:
    """And nothing that speaks with nsqd: a worker of Spark lives for a minute."""
    task = NsqDataSource(OPTIONS), kind(read_settings(OPTIONS)), FramesPartition([])
    load = "import pickle, sys; pickle.loads(bytes.fromhex(sys.argv[1]))"

    assert "" == imported_by(load, pickle.dumps(task).hex())


@pytest.mark.parametrize("wanted,expected", [(0, 2), (1, 1), (3, 3)])
def test_a_batch_is_as_many_tasks_as_are_wanted(wanted: int, expected: int) -> None:
    """Of about one size, with all of it, in order."""
    frames = [Frames("t", "a:1", number, bytes(100)) for number in range(6)]
    tasks = packed(frames, wanted)
    parts = [task.parts for task in tasks if isinstance(task, FramesPartition)]

    assert [6 // expected] * expected == [len(each) for each in parts]
    assert frames == [part for each in parts for part in each]
