"""POST /pub and /mpub through the gateway, compared with nsqd's own HTTP."""

from __future__ import annotations

import re
import resource
import statistics
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.harness import (
    KEPT_MESSAGES,
    Server,
    Usage,
    cpu_seconds,
    gateway,
    message_count,
    real_nsqd,
    require,
)
from benchmarks.table import Benchmark, Row, compare, in_turn

_REQUESTS = re.compile(r"([0-9]+) requests in")
_RATE = re.compile(r"Requests/sec:\s+([0-9.]+)")


@dataclass(frozen=True)
class Load:
    """One kind of request."""

    path: str
    connections: int
    body_bytes: int
    lines: int = 1
    goal: float | None = None
    """Lowest acceptable ratio to nsqd's rate."""
    token: str | None = None
    """The Bearer token of each request; None for none."""

    @property
    def name(self) -> str:
        """Its name in the table."""
        bodies = f"{self.lines} × {self.body_bytes} B" if self.lines > 1 else f"{self.body_bytes} B"
        return f"POST {self.path}, {self.connections} connections, {bodies}"

    def script(self) -> str:
        """Return the script for wrk, which builds the request once and repeats it."""
        line = "x" * self.body_bytes
        body = f'string.rep("{line}\\n", {self.lines})' if self.lines > 1 else f'"{line}"'
        header = "" if self.token is None else f"Bearer {self.token}"
        headers = f'wrk.headers["Authorization"] = "{header}"\n' if header else ""
        return f'wrk.method = "POST"\nwrk.body = {body}\n{headers}'


LOADS = (
    Load("/pub", 1, 200, goal=0.5),
    Load("/pub", 8, 200, goal=0.5),
    Load("/pub", 64, 200, goal=1.2),
    Load("/pub", 256, 200, goal=1.3),
    Load("/pub", 64, 1_024, goal=1.0),
    Load("/pub", 64, 65_536, goal=0.4),
    Load("/mpub", 64, 200, lines=100, goal=0.6),
)


def plan(*, quick: bool) -> Benchmark:
    """Return the benchmark."""
    seconds, rounds = (1, 1) if quick else (3, 5)
    about = (
        f"gateway → nsqd beside another nsqd's own HTTP, keep-alive, wrk with one thread, "
        f"{rounds} × {seconds} s each; every answer is 200 and counted by nsqd"
    )
    return Benchmark(about, _rows(seconds, rounds))


def _rows(seconds: int, rounds: int) -> Iterator[Row]:
    for load in LOADS:
        # Fresh servers for each: what one load leaves behind must not weigh on the next.
        with (
            real_nsqd(mem_queue_messages=KEPT_MESSAGES) as behind,
            gateway(behind) as ours,
            real_nsqd(mem_queue_messages=KEPT_MESSAGES) as peer,
        ):
            sides = {
                "ours": partial(ask_for, load, ours, behind, seconds),
                "nsqd": partial(ask_for, load, peer, peer, seconds),
            }
            spent = in_turn(sides, rounds=rounds)
        yield row(load.name, spent["ours"], spent["nsqd"], goal=load.goal)


def row(name: str, ours: list[Usage], peers: list[Usage], *, goal: float | None) -> Row:
    """Return the row of two rates with their CPU times."""
    cpu, peer_cpu, share, peer_share = (
        statistics.median(column)
        for column in (
            [each.cpu_us for each in ours],
            [each.cpu_us for each in peers],
            [each.load_share for each in ours],
            [each.load_share for each in peers],
        )
    )
    note = f"CPU {cpu:.0f} ÷ {peer_cpu:.0f} µs; wrk {share:.0%} and {peer_share:.0%} of a core"
    if goal is not None:
        note += f"; goal: {goal} at least"
    rates, peer_rates = ([each.rate for each in side] for side in (ours, peers))
    return compare(name, "requests/s", rates, peer_rates, note)


def ask_for(load: Load, asked: Server, nsqd: Server, seconds: int) -> Usage:
    """Send requests for some seconds; compare the responses with nsqd's count."""
    before, cpu, load_cpu = message_count(nsqd), cpu_seconds(asked.pid), _children_cpu_seconds()
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "post.lua"
        script.write_text(load.script())
        said = subprocess.run(
            [
                *(require("wrk"), "-t1", f"-c{load.connections}", f"-d{seconds}s"),
                *("-s", str(script), f"http://{asked.http}{load.path}?topic=bench%23ephemeral"),
            ],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
    cpu, load_cpu = cpu_seconds(asked.pid) - cpu, _children_cpu_seconds() - load_cpu
    requests, rate = _answered(said)
    counted = message_count(nsqd) - before
    # What wrk had asked for and not read when its time was up is published all the same.
    most = (requests + load.connections) * load.lines
    if not requests * load.lines <= counted <= most:
        raise SystemExit(f"{load.name}: {requests} answers, and nsqd counts {counted}")
    return Usage(requests, requests / rate, cpu, load_cpu)


def _answered(said: str) -> tuple[int, float]:
    """Return the number of requests and their rate; exit if one was not answered with 200."""
    requests, rate = _REQUESTS.search(said), _RATE.search(said)
    if requests is None or rate is None or "Non-2xx" in said or "Socket errors" in said:
        raise SystemExit(f"not every answer was 200\n{said}")
    return int(requests[1]), float(rate[1])


def _children_cpu_seconds() -> float:
    """Return the CPU time of all ended child processes; the servers still run."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
