"""Start servers and programs for benchmarks, and measure what they use."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WITNESSES = ROOT / "tools" / "bin"
RESULTS = ROOT / "benchmarks" / "results"
"""Ignored by git: results, and what brokers keep meanwhile."""

MEM_QUEUE_MESSAGES = 2_000_000
"""Large enough to keep a backlog in memory: disks are not measured."""

KEPT_MESSAGES = 1_000
"""For topics without consumers: an ephemeral topic drops the rest, so memory stays constant."""

_START_TIMEOUT_S = 20.0
_STOP_TIMEOUT_S = 10.0
_HTTP_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Server:
    """A running server; addresses are host:port."""

    pid: int
    tcp: str
    http: str


@dataclass(frozen=True)
class Usage:
    """The usage of a run: wall-clock time, and CPU time of the server and of the load generator."""

    count: int
    """Messages or requests."""
    seconds: float
    cpu_seconds: float
    load_cpu_seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Messages or requests per second."""
        return self.count / self.seconds

    @property
    def cpu_us(self) -> float:
        """CPU microseconds per message or request."""
        return self.cpu_seconds / self.count * 1e6

    @property
    def load_share(self) -> float:
        """Share of a core that the load generator used; near 1, it is the bottleneck."""
        return self.load_cpu_seconds / self.seconds


def free_port() -> int:
    """Return a free loopback port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def run_server(arguments: Sequence[str], *, ports: Sequence[int]) -> Iterator[int]:
    """Run a program until the block ends; yield its pid when all *ports* accept connections."""
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(arguments, stdout=log, stderr=log, cwd=ROOT)
        try:
            for port in ports:
                if not _answers(port, process):
                    log.seek(0)
                    said = log.read().decode(errors="replace")
                    raise SystemExit(f"{arguments[0]} does not answer on port {port}\n{said}")
            yield process.pid
        finally:
            process.terminate()
            try:
                process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _answers(port: int, process: subprocess.Popen[bytes]) -> bool:
    """Wait until *port* accepts connections; return False if the process ends or on timeout."""
    end = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < end and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return True
        time.sleep(0.02)
    return False


@contextlib.contextmanager
def real_nsqd(
    *, mem_queue_messages: int = MEM_QUEUE_MESSAGES, tls_cert: str | None = None
) -> Iterator[Server]:
    """
    Run a real nsqd with its own data folder.

    *tls_cert* is a PEM file with a key and its certificate; with it, clients can use TLS.
    """
    tcp, http_port = free_port(), free_port()
    with tempfile.TemporaryDirectory() as data:
        arguments = [
            str(WITNESSES / "nsqd"),
            f"--tcp-address=127.0.0.1:{tcp}",
            f"--http-address=127.0.0.1:{http_port}",
            f"--data-path={data}",
            f"--mem-queue-size={mem_queue_messages}",
            "--log-level=error",
        ]
        if tls_cert is not None:
            arguments += [f"--tls-cert={tls_cert}", f"--tls-key={tls_cert}"]
        with run_server(arguments, ports=[tcp, http_port]) as pid:
            yield Server(pid, f"127.0.0.1:{tcp}", f"127.0.0.1:{http_port}")


@contextlib.contextmanager
def gateway(
    nsqd: Server, *flags: str, module: str = "gateway", management: int | None = None
) -> Iterator[Server]:
    """
    Run the gateway in front of *nsqd* with *flags*; the result's `tcp` is nsqd's.

    *module* is a module to run instead, which starts the gateway. *management* is the management
    port; None chooses a free one.
    """
    public, management = free_port(), management or free_port()
    arguments = [
        *(sys.executable, "-m", module, "serve", "--log-level=warning"),
        f"--listen=127.0.0.1:{public}",
        f"--management-listen=127.0.0.1:{management}",
        f"--nsqd-tcp-address={nsqd.tcp}",
        f"--nsqd-http-address={nsqd.http}",
        *flags,
    ]
    with run_server(arguments, ports=[public, management]) as pid:
        _wait_until_ready(f"127.0.0.1:{management}")
        yield Server(pid, nsqd.tcp, f"127.0.0.1:{public}")


def _wait_until_ready(management: str) -> None:
    """Wait until the gateway is ready, including all workers."""
    end = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < end:
        connection = http.client.HTTPConnection(management, timeout=_HTTP_TIMEOUT_S)
        with contextlib.closing(connection):
            connection.request("GET", "/readyz")
            if connection.getresponse().status == http.HTTPStatus.OK:
                return
        time.sleep(0.02)
    raise SystemExit(f"the gateway is not ready after {_START_TIMEOUT_S:g} s")


@contextlib.contextmanager
def embedded_broker(data_path: Path | None = None) -> Iterator[Server]:
    """Run the embedded broker alone; in memory without a *data_path*."""
    tcp, http_port = free_port(), free_port()
    arguments = [
        *(sys.executable, "-m", "gateway", "broker", "--log-level=warning"),
        f"--tcp-address=127.0.0.1:{tcp}",
        f"--http-address=127.0.0.1:{http_port}",
        *([f"--data-path={data_path}"] if data_path else []),
    ]
    with run_server(arguments, ports=[tcp, http_port]) as pid:
        yield Server(pid, f"127.0.0.1:{tcp}", f"127.0.0.1:{http_port}")


def fetch(server: Server, path: str, *, method: str = "GET") -> bytes:
    """Return the body of a response from *server*; exit if the status is not 200."""
    connection = http.client.HTTPConnection(server.http, timeout=_HTTP_TIMEOUT_S)
    with contextlib.closing(connection):
        connection.request(method, path)
        answer = connection.getresponse()
        body = answer.read()
    if answer.status != http.HTTPStatus.OK:
        raise SystemExit(f"{method} {path}: {answer.status} {body!r}")
    return body


def message_count(nsqd: Server) -> int:
    """Return the message count of *nsqd*, over all topics."""
    topics = json.loads(fetch(nsqd, "/stats?format=json"))["topics"] or []
    return sum(topic["message_count"] for topic in topics)


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process and its running children, user and system."""
    # The clock of clock_getcpuclockid(3); /proc has a resolution of 10 ms only.
    own = time.clock_gettime(~pid << 3 | 2)
    children = [
        child
        for thread in Path(f"/proc/{pid}/task").iterdir()
        for child in (thread / "children").read_text().split()
    ]
    return own + sum(cpu_seconds(int(child)) for child in children)


def resident_bytes(pid: int) -> int:
    """Return the memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def raise_open_files_limit() -> int:
    """Raise the limit of open files to its maximum, also for child processes; return it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def require(program: str) -> str:
    """Return the path of a program from Debian; exit if it is missing."""
    path = shutil.which(program)
    if path is None:
        raise SystemExit(f"{program} is missing; on Debian: apt install {program}")
    return path
