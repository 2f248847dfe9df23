"""Processes, processor time and rows of the table: what all benchmarks share."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WITNESSES = ROOT / "tools" / "bin"

_START_TIMEOUT_S = 20.0
_STOP_TIMEOUT_S = 10.0
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Row:
    """One line of the table: what was compared, and the ratio of ours to the peer's."""

    name: str
    ratio: float
    note: str = ""


@dataclass(frozen=True)
class Server:
    """A server that was started for a benchmark; addresses are host:port."""

    pid: int
    tcp: str
    http: str


def free_port() -> int:
    """Return a port of loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def running(arguments: Sequence[str], *, ports: Sequence[int]) -> Iterator[int]:
    """Run a program until the block ends; the pid is given once all *ports* answer."""
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(arguments, stdout=log, stderr=log, cwd=ROOT)
        try:
            for port in ports:
                _wait_for(port, process)
            yield process.pid
        finally:
            process.terminate()
            try:
                process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < end:
        if process.poll() is not None:
            break
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.02)
    raise SystemExit(f"{process.args!r} does not answer on port {port}")


@contextlib.contextmanager
def real_nsqd() -> Iterator[Server]:
    """Run a real nsqd with its own data folder."""
    tcp, http = free_port(), free_port()
    with tempfile.TemporaryDirectory() as data:
        arguments = [
            str(WITNESSES / "nsqd"),
            f"--tcp-address=127.0.0.1:{tcp}",
            f"--http-address=127.0.0.1:{http}",
            f"--data-path={data}",
            # Nothing goes to disk: what is measured is the way of a message, not the disk.
            "--mem-queue-size=2000000",
            "--log-level=error",
        ]
        with running(arguments, ports=[tcp, http]) as pid:
            yield Server(pid, f"127.0.0.1:{tcp}", f"127.0.0.1:{http}")


@contextlib.contextmanager
def gateway(nsqd: Server, *flags: str) -> Iterator[Server]:
    """Run the gateway in front of *nsqd*; its `tcp` is nsqd's."""
    public, management = free_port(), free_port()
    arguments = [
        *(sys.executable, "-m", "gateway", "serve", "--log-level=warning"),
        f"--listen=127.0.0.1:{public}",
        f"--management-listen=127.0.0.1:{management}",
        f"--nsqd-tcp-address={nsqd.tcp}",
        f"--nsqd-http-address={nsqd.http}",
        *flags,
    ]
    with running(arguments, ports=[public]) as pid:
        yield Server(pid, nsqd.tcp, f"127.0.0.1:{public}")


@contextlib.contextmanager
def embedded_broker() -> Iterator[Server]:
    """Run the embedded broker alone."""
    tcp, http = free_port(), free_port()
    arguments = [
        *(sys.executable, "-m", "gateway", "broker", "--log-level=warning"),
        f"--tcp-address=127.0.0.1:{tcp}",
        f"--http-address=127.0.0.1:{http}",
    ]
    with running(arguments, ports=[tcp, http]) as pid:
        yield Server(pid, f"127.0.0.1:{tcp}", f"127.0.0.1:{http}")


def cpu_seconds(pid: int) -> float:
    """Return the processor time that a process has used, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def resident_bytes(pid: int) -> int:
    """Return the memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def median_ratio(
    ours: Callable[[], float], peers: Callable[[], float], *, rounds: int
) -> tuple[float, float, float]:
    """
    Measure in turn, ours and the peer's, *rounds* times.

    Returns the ratio of the medians, and both medians.
    """
    pairs = [(ours(), peers()) for _ in range(rounds)]
    our_median, peer_median = (statistics.median(column) for column in zip(*pairs, strict=True))
    return our_median / peer_median, our_median, peer_median


def require(program: str) -> str:
    """Return the path of a program from Debian; leave with a sentence when it is missing."""
    path = shutil.which(program)
    if path is None:
        raise SystemExit(f"{program} is missing; on Debian: apt install {program}")
    return path
