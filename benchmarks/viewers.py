"""One topic for a thousand viewers, compared with a server that only sends."""

from __future__ import annotations

import contextlib
import socket
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import uvloop

from benchmarks import backlog
from benchmarks.backlog import TOPIC
from benchmarks.crowd import MARKER, Crowd
from benchmarks.harness import (
    Server,
    Usage,
    cpu_seconds,
    fetch,
    free_port,
    gateway,
    raise_open_files_limit,
    real_nsqd,
    run_server,
)
from benchmarks.table import Benchmark, Row, compare
from benchmarks.tcp_client import fill
from benchmarks.websocket_client import TIMEOUT_S, find_frame

_GOAL = 0.7
ONE_EACH = "one message a frame"
AS_THEY_COME = "messages as nsqd gives them"
WAYS = {ONE_EACH: "--max-in-flight-limit=1", AS_THEY_COME: "--max-in-flight-limit=2500"}
"""Frame sizes and the RDY that causes them: nsqd sends the next message after a FIN."""


@dataclass(frozen=True)
class _Round:
    ours: Usage
    bare: Usage
    messages_of_a_frame: float


def plan(*, quick: bool) -> Benchmark:
    """Return the benchmark."""
    viewers, count, rounds = (50, 500, 1) if quick else (1_000, 1_000, 5)
    raise_open_files_limit()
    about = (
        f"one topic to {viewers:,} viewers, {count:,} messages of 200 B, beside a bare uvloop "
        "server of as many WebSockets that writes the very same frames; one reader for both, "
        f"which counts what each socket gets; {rounds} rounds; goal: {_GOAL} with {ONE_EACH}"
    )
    return Benchmark(about, _rows(viewers, count, rounds))


def _rows(viewers: int, count: int, rounds: int) -> Iterator[Row]:
    flags = (f"--max-sockets={viewers}", "--ping-interval-s=3600")
    rows: dict[str, list[_Round]] = {way: [] for way in WAYS}
    with real_nsqd() as nsqd, _bare_server() as bare, contextlib.ExitStack() as stack:
        gateways = {
            way: stack.enter_context(gateway(nsqd, *flags, flag)) for way, flag in WAYS.items()
        }
        for _ in range(rounds):
            for way, ours in gateways.items():
                rows[way].append(_measure(nsqd, ours, bare, (viewers, count)))
    for way, measured in rows.items():
        yield from _compare(f"{viewers:,} viewers, {way} ÷ bare server", measured)


def _compare(name: str, rounds: Sequence[_Round]) -> Iterator[Row]:
    sides = [[each.ours for each in rounds], [each.bare for each in rounds]]
    load, share = (
        " ÷ ".join(f"{statistics.median(map(part, side)):.0%}" for side in sides)
        for part in (lambda each: each.load_share, lambda each: each.cpu_seconds / each.seconds)
    )
    frames = statistics.median(each.messages_of_a_frame for each in rounds)
    note = f"{frames:.3g} messages a frame; our load {load} of a core, the server {share}"
    ours, bare = ([each.rate for each in side] for side in sides)
    yield compare(name, "deliveries/s", ours, bare, note)
    cpu, bare_cpu = ([each.cpu_us for each in side] for side in sides)
    yield compare(name, "µs CPU a delivery", cpu, bare_cpu)


def _measure(nsqd: Server, ours: Server, bare: Server, work: tuple[int, int]) -> _Round:
    """Measure the gateway, then the bare server with the frames that one viewer received."""
    _, count = work
    fetch(nsqd, f"/topic/create?topic={TOPIC}", method="POST")
    spent, received = _count(ours, work, lambda: uvloop.run(fill(nsqd.tcp, TOPIC, count)))
    backlog.wait_until_alone(nsqd)
    fetch(nsqd, f"/topic/delete?topic={TOPIC}", method="POST")
    messages, frames, number = _messages(received)
    if messages != count:
        raise SystemExit(f"a viewer received {messages} messages in whole frames, not {count}")
    beside, echoed = _count(bare, work, lambda: _tell(bare, frames))
    if echoed != frames:
        raise SystemExit("the bare server sent other bytes")
    return _Round(spent, beside, count / number)


def _count(server: Server, work: tuple[int, int], start: Callable[[], None]) -> tuple[Usage, bytes]:
    """Connect all viewers, call *start*, and read until each has every message."""
    viewers, count = work
    crowd = Crowd(server)
    crowd.join([f"topic={TOPIC}"] * viewers)
    started, load, cpu = time.perf_counter(), time.process_time(), cpu_seconds(server.pid)
    start()
    received = crowd.count(count)
    seconds, load = time.perf_counter() - started, time.process_time() - load
    cpu = cpu_seconds(server.pid) - cpu
    crowd.leave()
    return Usage(viewers * count, seconds, cpu, load), received


def _tell(bare: Server, frames: bytes) -> None:
    """Make the bare server send *frames* to all its sockets."""
    host, port = bare.http.split(":")
    with socket.create_connection((host, int(port)), TIMEOUT_S) as told:
        told.sendall(b"SEND %d\n%b" % (len(frames), frames))


@contextlib.contextmanager
def _bare_server() -> Iterator[Server]:
    port = free_port()
    program = (sys.executable, "-m", "benchmarks.clients.bare_server", f"--port={port}")
    with run_server(program, ports=[port]) as pid:
        yield Server(pid, "", f"127.0.0.1:{port}")


def _messages(received: bytes) -> tuple[int, bytes, int]:
    """Return the number of messages, their frames, and the number of frames."""
    messages, frames, number, at = 0, bytearray(), 0, 0
    while (found := find_frame(received, at)) is not None:
        held = received.count(MARKER, found[1], found[2])
        if held:
            frames += received[at : found[2]]
            messages, number = messages + held, number + 1
        at = found[2]
    return messages, bytes(frames), number
