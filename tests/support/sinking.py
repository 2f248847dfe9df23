"""A sink as Spark uses it: planned, pickled, given Arrow in a thread; and what a broker got."""

from __future__ import annotations

import asyncio
import pickle
import struct
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import StructType

from gateway.pipeline import outlet
from gateway.pipeline.publishing import Published
from gateway.pipeline.sink import NsqBatchWriter, batch_writer
from tests.support.v2_peer import ERROR, MESSAGE, identify, v2_peer

_WAIT_S = 20.0
_WINDOW = 2_500


def record_batch(**columns: pa.Array | Sequence[object]) -> pa.RecordBatch:
    """Return rows of these columns, each of what Arrow takes its values for."""
    return pa.RecordBatch.from_pydict(columns)


def numbered(count: int, *, size: int = 1_000) -> list[pa.RecordBatch]:
    """Return so many rows with an id and a body that says it, *size* to a batch."""
    return [
        record_batch(
            id=range(start, min(start + size, count)),
            body=[b"%d" % number for number in range(start, min(start + size, count))],
        )
        for start in range(0, count, size)
    ]


def schema_of(batch: pa.RecordBatch) -> StructType:
    """Return Spark's types of *batch*."""
    schema = StructType()
    for field in batch.schema:
        schema.add(field.name, from_arrow_type(field.type))
    return schema


def writer_for(options: Mapping[str, str], batch: pa.RecordBatch) -> NsqBatchWriter:
    """Return the writer for rows like *batch*, as it comes to an executor."""
    planned = batch_writer(options, schema_of(batch), overwrite=False)
    pickled = pickle.dumps(planned)
    arrived: NsqBatchWriter = pickle.loads(pickled)  # noqa: S301 - our own
    return arrived


async def write(options: Mapping[str, str], batches: Sequence[pa.RecordBatch]) -> Published:
    """Publish *batches* in one task."""
    return await write_from(options, batches[0], batches)


async def write_from(
    options: Mapping[str, str], first: pa.RecordBatch, batches: Iterable[pa.RecordBatch]
) -> Published:
    """Publish *batches*, which are like *first* and may come from a generator."""
    iterator: Iterator[pa.RecordBatch] = iter(batches)
    return await asyncio.to_thread(writer_for(options, first).write, iterator)


@asynccontextmanager
async def a_worker() -> AsyncIterator[None]:
    """Let nothing that a worker keeps outlive the block."""
    try:
        yield
    finally:
        await asyncio.to_thread(_close_outlets)


def _close_outlets() -> None:
    """Close what a worker's end would close."""
    for each in set(outlet._outlets.values()):
        outlet.discard(each)


async def messages_of(tcp_address: str, topic: str, count: int) -> list[bytes]:
    """Return the first *count* bodies of *topic*, which has no other consumer."""
    bodies: list[bytes] = []
    async with asyncio.timeout(_WAIT_S), v2_peer(tcp_address) as peer:
        await peer.send(identify(b'{"output_buffer_timeout": 25}'))
        await peer.send(b"SUB %b reader\nRDY %d\n" % (topic.encode(), _WINDOW))
        while len(bodies) < count:
            # Not peer.frame(), which looks at all ids so far for each message.
            size, kind = struct.unpack(">II", await peer.raw.read_exactly(8))
            data = await peer.raw.read_exactly(size - 4)
            assert kind != ERROR, data
            if kind == MESSAGE:
                await peer.raw.send(b"FIN %b\n" % data[10:26])
                bodies.append(data[26:])
    return bodies
