"""The memory of an overloaded gateway whose nsqd is slow or hangs."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from benchmarks.clients.flood import KINDS
from benchmarks.harness import (
    KEPT_MESSAGES,
    WITNESSES,
    Server,
    free_port,
    gateway,
    real_nsqd,
    resident_bytes,
    run_server,
)
from benchmarks.table import Benchmark, Row, compare

_MIB = 1_048_576
_BUFFER_MIB = 64
_NSQD_CONNECTIONS = 4
_SLOW_KB_S = 2_000
_PUBLISHED = {200, 503, 504}
"""Expected status codes of a publish."""
_HALF_SENT = _PUBLISHED | {408}
"""Also expected where the body is never completed."""

# The formula; README.md says what each is for, and how it was measured.
BASE_MIB = 72.0
BUFFER_FACTOR = 1.1
BATCHES_MIB = 2.0
CONNECTION_KIB = 12.0


@dataclass(frozen=True)
class _Run:
    """Samples of one run, one per second."""

    resident_mib: list[float]
    answers: dict[str, dict[str, int]]


def bound_mib(connections: int) -> float:
    """Return the limit by the formula in README.md."""
    batches_mib = BATCHES_MIB * _NSQD_CONNECTIONS
    connections_mib = connections * CONNECTION_KIB / 1_024
    return BASE_MIB + BUFFER_FACTOR * _BUFFER_MIB + batches_mib + connections_mib


def plan(*, quick: bool) -> Benchmark:
    """Return the benchmark."""
    seconds, cycle_s, request_timeout_s = (20, 4, 4) if quick else (600, 30, 30)
    if not (WITNESSES / "toxiproxy-server").exists():
        raise SystemExit("tools/bin/toxiproxy-server is missing; make bench builds it (needs Go)")
    loads = ", ".join(f"{kind.connections} × {kind.name}" for kind in KINDS)
    about = (
        f"resident memory of the gateway, each second of {seconds} s, while connections publish "
        f"again as soon as they are answered ({loads}) and nsqd takes {_SLOW_KB_S / 1000:g} MB/s "
        f"and hangs (SIGSTOP), in turn, {cycle_s // 2} s each"
    )
    flags = (
        f"--publish-buffer-bytes={_BUFFER_MIB * _MIB}",
        f"--publish-buffer-per-nsqd-bytes={_BUFFER_MIB * _MIB}",
        f"--nsqd-connections={_NSQD_CONNECTIONS}",
        f"--request-timeout-s={request_timeout_s}",
    )
    return Benchmark(about, _rows(seconds, cycle_s, flags))


def _rows(seconds: int, cycle_s: int, flags: Sequence[str]) -> Iterator[Row]:
    with (
        real_nsqd(mem_queue_messages=KEPT_MESSAGES) as nsqd,
        _narrow(nsqd) as behind,
        gateway(behind, *flags) as ours,
    ):
        run = _overload(ours, nsqd, seconds, cycle_s)
    _check(run)
    connections = sum(kind.connections for kind in KINDS)
    answers = "; ".join(
        f"{name}: " + ", ".join(f"{count} × {status}" for status, count in sorted(each.items()))
        for name, each in run.answers.items()
    )
    name = "most memory ÷ the formula"
    yield compare(name, "MiB", [max(run.resident_mib)], [bound_mib(connections)], answers)
    quarter = len(run.resident_mib) // 4
    third, last = run.resident_mib[2 * quarter : 3 * quarter], run.resident_mib[3 * quarter :]
    slope = statistics.linear_regression(range(2 * quarter), run.resident_mib[-2 * quarter :]).slope
    note = f"slope of the second half {slope * 60:+.2f} MiB a minute; begun with "
    note += f"{run.resident_mib[0]:.0f} MiB"
    means = [statistics.mean(last)], [statistics.mean(third)]
    yield compare("memory in the last quarter ÷ in the third", "MiB", *means, note)


def _check(run: _Run) -> None:
    """Exit on an unexpected status code."""
    for kind in KINDS:
        seen = {int(status) for status in run.answers[kind.name]}
        if wrong := seen - (_PUBLISHED if kind.is_whole else _HALF_SENT):
            raise SystemExit(f"{kind.name}: answers {wrong} of {run.answers}")


def _overload(ours: Server, nsqd: Server, seconds: int, cycle_s: int) -> _Run:
    """Flood the gateway and sample its memory each second."""
    arguments = ["-m", "benchmarks.clients.flood", f"--address={ours.http}"]
    resident = [resident_bytes(ours.pid) / _MIB]
    with subprocess.Popen(
        [sys.executable, *arguments, f"--seconds={seconds}"], stdout=subprocess.PIPE, text=True
    ) as load:
        try:
            for second in range(1, seconds + 1):
                is_slow = second % cycle_s <= cycle_s // 2
                os.kill(nsqd.pid, signal.SIGCONT if is_slow else signal.SIGSTOP)
                time.sleep(1)
                resident.append(resident_bytes(ours.pid) / _MIB)
            said, _ = load.communicate(timeout=seconds)
        finally:
            os.kill(nsqd.pid, signal.SIGCONT)
            load.kill()
    return _Run(resident, json.loads(said))


@contextlib.contextmanager
def _narrow(nsqd: Server) -> Iterator[Server]:
    """Return *nsqd* behind a proxy that passes few bytes per second to its TCP port."""
    port, listen = free_port(), f"127.0.0.1:{free_port()}"
    arguments = [str(WITNESSES / "toxiproxy-server"), "-host=127.0.0.1", f"-port={port}"]
    with run_server(arguments, ports=[port]):
        proxy = {"name": "nsqd", "listen": listen, "upstream": nsqd.tcp}
        _post(port, "/proxies", proxy)
        toxic = {"type": "bandwidth", "stream": "upstream", "attributes": {"rate": _SLOW_KB_S}}
        _post(port, "/proxies/nsqd/toxics", toxic)
        yield replace(nsqd, tcp=listen)


def _post(port: int, path: str, document: object) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    with contextlib.closing(connection):
        connection.request("POST", path, json.dumps(document))
        answer = connection.getresponse()
        if answer.status >= http.HTTPStatus.BAD_REQUEST:
            raise SystemExit(f"toxiproxy: {answer.status} {answer.read()!r}")
