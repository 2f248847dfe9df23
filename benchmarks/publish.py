"""POST /pub and /mpub through the gateway, beside nsqd's own HTTP."""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.harness import Row, Server, gateway, median_ratio, real_nsqd, require

_RATE = re.compile(r"Requests/sec:\s+([0-9.]+)")
_REQUESTS = re.compile(r"([0-9]+) requests in")


@dataclass(frozen=True)
class Load:
    """One way of asking."""

    path: str
    connections: int
    body_bytes: int
    lines: int = 1

    @property
    def name(self) -> str:
        """What the table calls it."""
        bodies = f"{self.lines} × {self.body_bytes} B" if self.lines > 1 else f"{self.body_bytes} B"
        return f"POST {self.path}, {self.connections} connections, {bodies}"


LOADS = (
    Load("/pub", 1, 200),
    Load("/pub", 8, 200),
    Load("/pub", 64, 200),
    Load("/pub", 256, 200),
    Load("/pub", 64, 1_024),
    Load("/pub", 64, 65_536),
    Load("/mpub", 64, 200, lines=100),
)


def run(*, quick: bool) -> Iterator[Row]:
    """Yield a row for each load: requests a second, ours ÷ nsqd's own."""
    seconds, rounds = (1, 1) if quick else (4, 3)
    for load in LOADS:
        # Fresh servers for each: what one load leaves behind must not weigh on the next.
        with real_nsqd() as behind, gateway(behind) as ours, real_nsqd() as peer:
            ratio, our_rate, peer_rate = median_ratio(
                partial(_requests_per_s, load, ours, behind, seconds),
                partial(_requests_per_s, load, peer, peer, seconds),
                rounds=rounds,
            )
        yield Row(load.name, ratio, f"{our_rate:,.0f} ÷ {peer_rate:,.0f} requests/s")


def _requests_per_s(load: Load, asked: Server, nsqd: Server, seconds: int) -> float:
    """Ask for some seconds, and hold the answers against what nsqd has counted."""
    before = _count(nsqd)
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "post.lua"
        line = "x" * load.body_bytes
        body = f'string.rep("{line}\\n", {load.lines})' if load.lines > 1 else f'"{line}"'
        script.write_text(f'wrk.method = "POST"\nwrk.body = {body}\n')
        said = subprocess.run(
            [
                *(require("wrk"), "-t1", f"-c{load.connections}", f"-d{seconds}s"),
                *("-s", str(script), f"http://{asked.http}{load.path}?topic=bench%23ephemeral"),
            ],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
    if "Non-2xx" in said or "Socket errors" in said:
        raise SystemExit(f"{load.name}: not every answer was 200\n{said}")
    rate, requests = _RATE.search(said), _REQUESTS.search(said)
    if rate is None or requests is None:
        raise SystemExit(f"wrk said something else:\n{said}")
    published = _count(nsqd) - before
    # What wrk had asked for and not read when its time was up is published all the same.
    most = (int(requests[1]) + load.connections) * load.lines
    if not int(requests[1]) * load.lines <= published <= most:
        raise SystemExit(f"{load.name}: {requests[1]} answers, and nsqd counts {published}")
    return float(rate[1])


def _count(nsqd: Server) -> int:
    """Return how many messages nsqd has taken, and throw them away."""
    url = f"http://{nsqd.http}/stats?format=json"
    with urllib.request.urlopen(url) as answer:
        topics = json.load(answer)["topics"] or []
    for topic in topics:
        name = topic["topic_name"].replace("#", "%23")
        empty = urllib.request.Request(
            f"http://{nsqd.http}/topic/empty?topic={name}", method="POST"
        )
        urllib.request.urlopen(empty).close()  # noqa: S310 - our own nsqd
    return sum(topic["message_count"] for topic in topics)
