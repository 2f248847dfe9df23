"""
A program that reads a stream into a spool on a full disk: file sizes are limited.

It prints the bodies of each batch as a line of JSON, and its log. A line on standard input lifts
the limit. It is a separate program because RLIMIT_FSIZE applies to a whole process.
"""

from __future__ import annotations

import json
import resource
import sys
import threading

from pyspark.sql.streaming.datasource import ReadMaxRows
from pyspark.sql.types import StructType

from gateway.pipeline.datasource import NsqDataSource
from gateway.pipeline.spool.consumer import SpoolUnwritable
from gateway.telemetry import configure_logging
from tests.support.spark.stream_reader import CHANNEL

FULL_BYTES = 60_000


def _make_room() -> None:
    sys.stdin.readline()
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def main(tcp_address: str, folder: str, count: str) -> None:
    """Read *count* messages; 0: read the available ones, and report the error."""
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


def _say(stats: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(stats) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
