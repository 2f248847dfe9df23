"""
What goes to executors: the tasks of a batch, and what decodes them.

Each process of an executor imports this, and nothing here needs more than decoding does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from gateway.pipeline.schema import Frames, decode

_PARTITION_BYTES = 8 * 1_048_576
_LEAST_PARTITIONS = 2


class FramesPartition(InputPartition):
    """What one task decodes."""

    def __init__(self, parts: Sequence[Frames]) -> None:
        self.parts = list(parts)


class FramesReader(DataSourceStreamReader):
    """Reads tasks; whatever else a reader of ours is, this is what arrives in an executor."""

    def __reduce__(self) -> tuple[type[FramesReader], tuple[()]]:
        """Leave behind what only the process of the source needs; a secret stays there too."""
        return FramesReader, ()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Decode, in an executor."""
        assert isinstance(partition, FramesPartition)  # noqa: S101 - `partitions` made it
        return decode(partition.parts)


def packed(frames: Iterable[Frames], wanted: int) -> list[InputPartition]:
    """Put *frames* into tasks of about one size, *wanted* of them, more where they would be big."""
    all_frames = list(frames)
    total_bytes = sum(len(part.data) for part in all_frames)
    count = max(wanted or _LEAST_PARTITIONS, -(-total_bytes // _PARTITION_BYTES))
    share_bytes = -(-total_bytes // count)
    tasks: list[InputPartition] = []
    parts: list[Frames] = []
    size_bytes = 0
    for part in all_frames:
        parts.append(part)
        size_bytes += len(part.data)
        if size_bytes >= share_bytes:
            tasks.append(FramesPartition(parts))
            parts, size_bytes = [], 0
    if parts:
        tasks.append(FramesPartition(parts))
    return tasks
