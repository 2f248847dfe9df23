"""
A program that reads a stream into a spool on a disk that is full: no file may be longer than that.

It prints the bodies of each batch as a line of JSON, and what it logs; a line on its standard input
makes room. A process of its own, for the limit holds for all that a process writes.
"""

from __future__ import annotations

import json
import resource
import sys
import threading

from pyspark.sql.streaming.datasource import ReadMaxRows
from pyspark.sql.types import StructType

from gateway.pipeline.source import NsqDataSource
from gateway.pipeline.spool_ingest import SpoolUnwritable
from gateway.telemetry import configure_logging
from tests.support.streams import CHANNEL

FULL_BYTES = 60_000


def _make_room() -> None:
    sys.stdin.readline()
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def main(tcp_address: str, folder: str, count: str) -> None:
    """Read *count* messages; 0 for those that are there, in a run that says why it fails."""
    configure_logging("json", "info")
    resource.setrlimit(resource.RLIMIT_FSIZE, (FULL_BYTES, resource.RLIM_INFINITY))
    threading.Thread(target=_make_room, daemon=True).start()
    options = {"topic": "t", "channel": CHANNEL, "nsqdTcpAddress": tcp_address, "idleS": "1"}
    source = NsqDataSource(options | {"ackMode": "spool", "spoolDir": folder})
    reader = source.streamReader(StructType())
    if count == "0":
        reader.prepareForTriggerAvailableNow()
    offset, left = reader.initialOffset(), int(count) or 1_000
    try:
        while left > 0:
            end = reader.latestOffset(offset, ReadMaxRows(1_000))
            bodies = [
                body.decode()[:3]
                for partition in reader.partitions(offset, end)
                for batch in reader.read(partition)
                for body in batch.column("body").to_pylist()
            ]
            if bodies:
                _say({"bodies": bodies})
            offset, left = end, left - len(bodies)
    except SpoolUnwritable as error:
        _say({"error": str(error)})
    reader.stop()


def _say(told: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
