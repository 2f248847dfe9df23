"""
A source that records Spark's calls and their times, without any NSQ.

Row n has the value n. An offset is the number of rows before it.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

CALLS = "calls"
FAIL = "fail"
"""While a file of this name is in the folder, no task succeeds."""
CHECKPOINT = "checkpoint"


class Call(NamedTuple):
    """One call from Spark; the offset is that of its first argument, 0 without one."""

    name: str
    offset: int
    committed: list[str]
    """Batches in Spark's commit log at the time of the call."""


def calls(folder: Path) -> list[Call]:
    """Return Spark's calls so far."""
    return [Call(*json.loads(line)) for line in (folder / CALLS).read_text().splitlines()]


class ProbeDataSource(DataSource):
    """
    The format `probe`.

    Options: folder, for its output; rows, per batch; batches, their number; module, to import in
    the processes that compute offsets and read.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(…)`."""
        return "probe"

    def schema(self) -> str:
        """Return the columns."""
        return "value bigint"

    def streamReader(self, schema: StructType) -> ProbeReader:  # noqa: N802 - Spark's
        """Return a new reader."""
        del schema
        return ProbeReader(dict(self.options))


class ProbePartition(InputPartition):
    """A range of rows."""

    def __init__(self, first: int, end: int) -> None:
        self.first = first
        self.end = end


class ProbeReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Write one line per call, with the process id: several processes may write."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._folder = Path(options["folder"])
        self._rows = int(options.get("rows", "1"))
        self._batches = int(options.get("batches", "1"))
        self._module = options.get("module")
        self._is_begun = False

    def _note(self, name: str, offset: int = 0) -> None:
        commits = self._folder / CHECKPOINT / "commits"
        committed = sorted(path.name for path in commits.glob("[0-9]*"))
        with (self._folder / CALLS).open("a") as file:
            file.write(json.dumps(Call(name, offset, committed)) + "\n")

    def _import(self, where: str) -> None:
        if self._module is not None:
            try:
                importlib.import_module(self._module)
            except ModuleNotFoundError:
                self._note(f"not found in {where}")
            else:
                self._note(f"found in {where}")

    def _begin(self) -> None:
        self._is_begun = True
        signal.signal(signal.SIGTERM, self._terminated)
        self._import("source")

    def _terminated(self, number: int, frame: FrameType | None) -> None:
        del frame
        signal.signal(number, signal.SIG_IGN)
        self._note("SIGTERM")
        os._exit(0)

    # Spark's names from here on

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return 0."""
        return {"rows": 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the rows of one batch."""
        return ReadMaxRows(self._rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Do nothing: the end is known."""

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the end of the next batch."""
        del limit
        if not self._is_begun:
            self._begin()
        self._note("latestOffset", start["rows"])
        return {"rows": min(start["rows"] + self._rows, self._rows * self._batches)}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return one task."""
        self._note("partitions", end["rows"])
        if start == end:
            return []
        return [ProbePartition(start["rows"], end["rows"])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the rows of *partition*."""
        assert isinstance(partition, ProbePartition)
        if (self._folder / FAIL).exists():
            message = "told to fail"
            raise RuntimeError(message)
        self._import("task")
        values = pa.array(range(partition.first, partition.end), pa.int64())
        yield pa.record_batch({"value": values})

    def commit(self, end: dict[str, Any]) -> None:
        """Record the call."""
        self._note("commit", end["rows"])

    def stop(self) -> None:
        """Record the call."""
        self._note("stop")
