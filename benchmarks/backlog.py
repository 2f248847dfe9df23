"""A channel that is filled before it is consumed, and consumers as programs."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import uvloop

from benchmarks.harness import ROOT, WITNESSES, Server, Usage, fetch
from benchmarks.tcp_client import fill

TOPIC, CHANNEL = "bench", "bench"
_SETTLE_TIMEOUT_S = 10.0
_CLIENT_TIMEOUT_S = 180.0


@contextlib.contextmanager
def channel(broker: Server, *, count: int, bodies: Sequence[bytes] = ()) -> Iterator[None]:
    """Create a channel with *count* messages; see `channels`."""
    with channels(broker, [CHANNEL], count=count, bodies=bodies):
        yield


@contextlib.contextmanager
def channels(
    broker: Server, names: Sequence[str], *, count: int, bodies: Sequence[bytes] = ()
) -> Iterator[None]:
    """
    Create channels with *count* messages each; delete their topic when the block ends.

    The messages repeat *bodies*, by default texts of 200 B. They are all in the channels before the
    block starts, so that the broker does not move them from the topic while they are consumed.
    Exits with an error if the block has not finished each message exactly once.
    """
    fetch(broker, f"/topic/create?topic={TOPIC}", method="POST")
    for name in names:
        fetch(broker, f"/channel/create?topic={TOPIC}&channel={name}", method="POST")
    if count:
        publish(broker, count, bodies)
    yield
    for stats in _wait(broker, _is_settled, "is empty and alone"):
        if stats["requeue_count"] or stats["timeout_count"]:
            raise SystemExit(f"messages were requeued, so some were delivered twice: {stats}")
    fetch(broker, f"/topic/delete?topic={TOPIC}", method="POST")


def publish(broker: Server, count: int, bodies: Sequence[bytes] = ()) -> None:
    """Publish *count* messages; return when every channel holds them. Nothing may consume them."""
    uvloop.run(fill(broker.tcp, TOPIC, count, bodies))
    _wait(broker, lambda stats: stats["depth"] == count, f"has {count} messages")


def publish_only(broker: Server, count: int) -> None:
    """Publish *count* messages to the current consumers."""
    uvloop.run(fill(broker.tcp, TOPIC, count))


def wait_until_empty(broker: Server, timeout_s: float = _SETTLE_TIMEOUT_S) -> None:
    """Wait until every message is finished."""
    _wait(broker, _is_empty, "is empty", timeout_s)


def wait_until_consumed(broker: Server) -> None:
    """Wait until a consumer is subscribed."""
    _wait(broker, lambda stats: stats["client_count"] > 0, "is consumed")


def wait_until_alone(broker: Server) -> None:
    """Wait until no consumer is subscribed."""
    _wait(broker, lambda stats: not stats["client_count"], "is alone")


def _is_empty(stats: dict[str, Any]) -> bool:
    return not (stats["depth"] or stats["in_flight_count"])


def _is_settled(stats: dict[str, Any]) -> bool:
    """Return whether no message and no consumer is left."""
    return _is_empty(stats) and not stats["client_count"]


def _wait(
    broker: Server,
    is_so: Callable[[dict[str, Any]], bool],
    what: str,
    timeout_s: float = _SETTLE_TIMEOUT_S,
) -> list[dict[str, Any]]:
    """Return the channels once *is_so* holds for each; exit naming *what* if it does not."""
    end = time.monotonic() + timeout_s
    while True:
        stats = _channels_of(broker, TOPIC)
        late = [each for each in stats if not is_so(each)]
        if not late:
            return stats
        if time.monotonic() > end:
            raise SystemExit(f"not every channel {what} after {timeout_s:g} s: {late[0]}")
        time.sleep(0.02)


def in_flight(broker: Server) -> int:
    """Return the number of messages in flight on the channels of the topic."""
    return sum(int(stats["in_flight_count"]) for stats in _channels_of(broker, TOPIC))


def consumers(broker: Server, topic: str) -> int:
    """Return the number of consumers of the channels of *topic*."""
    return sum(int(stats["client_count"]) for stats in _channels_of(broker, topic))


def _channels_of(broker: Server, topic: str) -> list[dict[str, Any]]:
    topics = json.loads(fetch(broker, f"/stats?format=json&topic={topic}"))["topics"]
    channels: list[dict[str, Any]] = topics[0]["channels"]
    return channels


def go_nsq_consumer(broker: Server, *, window: int, count: int) -> Sequence[str]:
    """Return the command line of NSQ's own Go client."""
    return (
        *(str(WITNESSES / "go-nsq-consumer"), "--nsqd-tcp-address", broker.tcp),
        *("--topic", TOPIC, "--channel", CHANNEL),
        *("--max-in-flight", str(window), "--count", str(count)),
    )


def python_consumer(broker: Server, *, window: int, count: int) -> Sequence[str]:
    """Return the command line of a minimal consumer on `gateway.client`."""
    program = (sys.executable, "-m", "benchmarks.tcp_client", "consume", broker.tcp)
    return (*program, TOPIC, CHANNEL, str(window), str(count))


def run_client(arguments: Sequence[str]) -> Usage:
    """Run a client program and return the usage that it reports; exit if it fails."""
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
    return Usage(row["messages"], row["seconds"], row["cpu_seconds"])
