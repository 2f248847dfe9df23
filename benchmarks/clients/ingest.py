"""What the streaming source does at the driver, by itself: receive, split into batches, FIN."""

from __future__ import annotations

import json
import sys

from benchmarks.clients.program import Meter
from gateway.nsqd_access import read_access
from gateway.pipeline.ingest import Ingest
from gateway.pipeline.source import read_settings


def main(nsqd_tcp_address: str, topic: str, channel: str, rows: str, count: str) -> None:
    """Take and finish *count* messages in batches of *rows*; print what it took."""
    options = {"nsqdTcpAddress": nsqd_tcp_address, "topic": topic, "channel": channel}
    settings = read_settings({**options, "maxRowsPerBatch": rows})
    ingest = Ingest(settings, read_access(settings))
    ingest.start()
    left, meter = int(count), None
    finished = 0
    while left > 0:
        number = ingest.seal(int(rows))
        if number is None:
            continue
        meter = meter or Meter()
        left -= sum(chunk.count for chunk in ingest.chunks(finished, number))
        ingest.finish(number)
        finished = number
    assert meter is not None  # noqa: S101 - count is one at least
    report = meter.stop(int(count))
    ingest.stop()
    sys.stdout.write(json.dumps(report) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
