"""A channel that is filled before it is consumed, and consumers that are programs."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import uvloop

from benchmarks.harness import ROOT, WITNESSES, Server, Spent, ask
from benchmarks.tcp_client import fill

TOPIC, CHANNEL = "bench", "bench"
_SETTLE_TIMEOUT_S = 10.0
_CLIENT_TIMEOUT_S = 180.0


@contextlib.contextmanager
def channel(broker: Server, *, count: int) -> Iterator[None]:
    """
    Give a channel that holds *count* messages, and delete its topic when the block ends.

    The channel is there before the messages, or the broker would still be moving them from the
    topic while they are consumed. Leaves with a sentence when the block has not finished each
    message once.
    """
    names = f"topic={TOPIC}&channel={CHANNEL}"
    ask(broker, f"/topic/create?topic={TOPIC}", method="POST")
    ask(broker, f"/channel/create?{names}", method="POST")
    if count:
        uvloop.run(fill(broker.tcp, TOPIC, count))
    yield
    _check_settled(broker)
    ask(broker, f"/topic/delete?topic={TOPIC}", method="POST")


def _check_settled(broker: Server) -> None:
    """Wait until nothing is left and nobody is subscribed; nothing may have come back."""
    end = time.monotonic() + _SETTLE_TIMEOUT_S
    while True:
        stats = _channel_stats(broker)
        if not any(stats[name] for name in ("depth", "in_flight_count", "client_count")):
            break
        if time.monotonic() > end:
            raise SystemExit(f"the channel is not empty and alone: {stats}")
        time.sleep(0.02)
    if stats["requeue_count"] or stats["timeout_count"]:
        raise SystemExit(f"messages came back, so some were delivered twice: {stats}")


def _channel_stats(broker: Server) -> dict[str, Any]:
    topics = json.loads(ask(broker, f"/stats?format=json&topic={TOPIC}"))["topics"]
    stats: dict[str, Any] = topics[0]["channels"][0]
    return stats


def go_nsq_consumer(broker: Server, *, window: int, count: int) -> Sequence[str]:
    """Return the command line of NSQ's own Go client."""
    return (
        *(str(WITNESSES / "go-nsq-consumer"), "--nsqd-tcp-address", broker.tcp),
        *("--topic", TOPIC, "--channel", CHANNEL),
        *("--max-in-flight", str(window), "--count", str(count)),
    )


def python_consumer(broker: Server, *, window: int, count: int) -> Sequence[str]:
    """Return the command line of a plain client on `gateway.client`."""
    program = (sys.executable, "-m", "benchmarks.tcp_client", "consume", broker.tcp)
    return (*program, TOPIC, CHANNEL, str(window), str(count))


def run_client(arguments: Sequence[str]) -> Spent:
    """Run a client's program and return what it says of itself; leaves when it fails."""
    ended = subprocess.run(
        arguments,
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=_CLIENT_TIMEOUT_S,
    )
    if ended.returncode:
        raise SystemExit(f"{' '.join(arguments)} failed\n{ended.stderr}")
    row = json.loads(ended.stdout.splitlines()[-1])
    return Spent(row["messages"], row["seconds"], row["cpu_seconds"])
