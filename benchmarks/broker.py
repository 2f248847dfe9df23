"""The embedded broker beside the real nsqd: publishing and delivery over TCP."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial

import uvloop

from benchmarks.harness import Row, Server, embedded_broker, median_ratio, real_nsqd
from benchmarks.tcp_client import fill

_BODY = b"x" * 200


def run(*, quick: bool) -> Iterator[Row]:
    """Yield messages a second of the embedded broker ÷ nsqd's: MPUB of 500, and delivery."""
    count, rounds = (20_000, 1) if quick else (200_000, 3)
    with embedded_broker() as ours, real_nsqd() as peer:
        for name, measure in (("MPUB of 500 × 200 B", _publish), ("delivery, 200 B", _deliver)):
            ratio, our_rate, peer_rate = median_ratio(
                partial(measure, ours, count), partial(measure, peer, count), rounds=rounds
            )
            yield Row(
                f"embedded broker ÷ nsqd: {name}",
                ratio,
                f"{our_rate:,.0f} ÷ {peer_rate:,.0f} messages/s",
            )


def _publish(server: Server, count: int) -> float:
    started = time.perf_counter()
    uvloop.run(fill(server.tcp, "publish#ephemeral", count, _BODY))
    return count / (time.perf_counter() - started)


def _deliver(server: Server, count: int) -> float:
    uvloop.run(fill(server.tcp, "deliver", count, _BODY))
    said = subprocess.run(
        [
            *(sys.executable, "-m", "benchmarks.tcp_client", server.tcp, "deliver"),
            *("2500", str(count)),
        ],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    row = json.loads(said)
    return float(row["messages"] / row["seconds"])
