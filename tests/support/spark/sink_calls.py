"""Call a sink like Spark: plan, pickle, and write Arrow batches in a thread."""

from __future__ import annotations

import asyncio
import pickle
import struct
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import StructType

from gateway.pipeline import sink_producer as producer
from gateway.pipeline.sink import NsqBatchWriter, Published, batch_writer
from tests.support.brokers.v2_peer import ERROR, MESSAGE, identify, v2_peer

_WAIT_S = 90.0
_WINDOW = 2_500


def record_batch(**columns: pa.Array | Sequence[object]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def numbered(count: int, *, size: int = 1_000) -> list[pa.RecordBatch]:
    """Return that many rows with an id and a matching body, *size* per batch."""
    return [
        record_batch(
            id=range(start, min(start + size, count)),
            body=[b"%d" % number for number in range(start, min(start + size, count))],
        )
        for start in range(0, count, size)
    ]


def schema_of(batch: pa.RecordBatch) -> StructType:
    schema = StructType()
    for field in batch.schema:
        schema.add(field.name, from_arrow_type(field.type))
    return schema


def writer_for(options: Mapping[str, str], batch: pa.RecordBatch) -> NsqBatchWriter:
    """Return the writer for rows like *batch*, pickled as for an executor."""
    planned = batch_writer(options, schema_of(batch), overwrite=False)
    pickled = pickle.dumps(planned)
    arrived: NsqBatchWriter = pickle.loads(pickled)  # noqa: S301 - our own
    return arrived


async def write(options: Mapping[str, str], split_rows: Sequence[pa.RecordBatch]) -> Published:
    return await write_from(options, split_rows[0], split_rows)


async def write_from(
    options: Mapping[str, str], first: pa.RecordBatch, split_rows: Iterable[pa.RecordBatch]
) -> Published:
    iterator: Iterator[pa.RecordBatch] = iter(split_rows)
    return await asyncio.to_thread(writer_for(options, first).write, iterator)


@asynccontextmanager
async def spark_worker() -> AsyncIterator[None]:
    """Drop everything that a Spark worker caches when the block ends."""
    try:
        yield
    finally:
        await asyncio.to_thread(_close_outlets)


def _close_outlets() -> None:
    """Close the connections that the end of a worker would close."""
    for each in set(producer._producers.values()):
        producer.discard_producer(each)


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
