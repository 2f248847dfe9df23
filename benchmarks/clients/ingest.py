"""The driver's part of the streaming source alone: receive, split into batches, finish."""

from __future__ import annotations

import json
import sys

from benchmarks.clients.program import Meter
from gateway.client.from_settings import read_access
from gateway.pipeline.datasource import read_settings
from gateway.pipeline.source_consumer import CommitConsumer


def main(nsqd_tcp_address: str, topic: str, channel: str, rows: str, count: str) -> None:
    """Receive and finish *count* messages in batches of *rows*; print the usage."""
    options = {"nsqdTcpAddress": nsqd_tcp_address, "topic": topic, "channel": channel}
    settings = read_settings({**options, "maxRowsPerBatch": rows})
    consumer = CommitConsumer(settings, read_access(settings))
    consumer.start()
    left, meter = int(count), None
    finished = 0
    while left > 0:
        number = consumer.cut_batch(int(rows), settings.batch_bytes)
        if number is None:
            continue
        meter = meter or Meter()
        left -= sum(chunk.count for chunk in consumer.chunks(finished, number))
        consumer.finish(number)
        finished = number
    assert meter is not None  # noqa: S101 - count is one at least
    report = meter.stop(int(count))
    consumer.stop()
    sys.stdout.write(json.dumps(report) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
