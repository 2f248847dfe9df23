"""Pulls with acks, compared with a WebSocket; memory of waiting pulls and of event streams."""

from __future__ import annotations

import os
import re
import selectors
import signal
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import uvloop

from benchmarks import backlog, delivery, latency
from benchmarks.backlog import CHANNEL, TOPIC
from benchmarks.harness import (
    Server,
    Usage,
    cpu_seconds,
    gateway,
    raise_open_files_limit,
    real_nsqd,
    resident_bytes,
)
from benchmarks.table import Benchmark, Row, compare, in_turn
from benchmarks.tcp_client import age_ms, fill

BATCH = 100
CLIENTS = 8
LEASES = re.compile(rb'"lease":"([^"]+)"')
POLLED = latency.Load(rate=500, count=5_000, window=10)
TIMEOUT_S = 30.0
_FIRST = 100
"""Connections opened first, so that shared memory is not counted."""
_BUDGETS_KIB = {"idle waiting pull": 12.0, "event stream of a viewer": 8.0}
_DRAIN_S, _HAND_BACK_MS = 1.0, 100.0
_LOOKS = 12
_STEADY_KIB = 64


def plan(*, quick: bool) -> Benchmark:
    """Return the benchmark."""
    count, idle, rounds = (20_000, 200, 1) if quick else (200_000, 1_000, 5)
    about = (
        f"nsqd → gateway → POST /pull of {BATCH} and POST /ack, {count:,} messages of 200 B, "
        f"published before, by 1 client and by {CLIENTS}; beside one WebSocket of the same window; "
        f"publish → delivery by long polls of {POLLED.window}, {POLLED.rate} messages/s; "
        "a drain whose clients answer nothing; "
        f"memory of each of {idle:,} idle connections after {_FIRST} more; {rounds} rounds"
    )
    return Benchmark(about, _rows(count, idle, rounds))


def _rows(count: int, idle: int, rounds: int) -> Iterator[Row]:
    yield from _speed(count, rounds)
    yield from _latency(count, rounds)
    yield _hand_back(rounds)
    yield from _idle_memory(idle, rounds)


def _speed(count: int, rounds: int) -> Iterator[Row]:
    # Rounds wait until the consumer of the last one has left.
    with real_nsqd() as nsqd, gateway(nsqd, "--pull-idle-s=1") as ours:
        for clients in (1, CLIENTS):
            window = BATCH * clients
            load = delivery.Load(window, count, {})
            spent = in_turn(
                {
                    "pull": partial(_pull, nsqd, ours, clients, count),
                    "socket": partial(delivery.receive, nsqd, ours, load, by_ids=True),
                },
                rounds=rounds,
            )
            name = f"pulls of {BATCH} by {clients} ÷ a WebSocket with window {window}"
            for unit, value in (("messages/s", "rate"), ("µs CPU a message", "cpu_us")):
                pulls, sockets = (
                    [getattr(each, value) for each in spent[side]] for side in ("pull", "socket")
                )
                yield compare(name, unit, pulls, sockets)


def _latency(count: int, rounds: int) -> Iterator[Row]:
    load = replace(POLLED, count=min(POLLED.count, count // 10))
    with real_nsqd() as nsqd, gateway(nsqd, "--pull-idle-s=1") as ours:
        ages = in_turn(
            {
                "poll": partial(_long_poll, nsqd, ours, load),
                "socket": partial(latency.through_gateway, nsqd, ours, load),
            },
            rounds=rounds,
        )
    name = f"long poll of {load.window} ÷ a WebSocket with window {load.window}"
    yield from latency.compare_ages(name, ages["poll"], ages["socket"])


def _hand_back(rounds: int) -> Row:
    late_ms = [_drain_late_ms() for _ in range(rounds)]
    name = f"{BATCH * CLIENTS} leases handed back after a drain's time for them ÷ limit"
    return compare(name, "ms", late_ms, [_HAND_BACK_MS] * rounds)


def _idle_memory(idle: int, rounds: int) -> Iterator[Row]:
    raise_open_files_limit()
    requests = {
        "idle waiting pull": (
            f"POST /pull?topic={TOPIC}&channel={CHANNEL}&wait_ms=30000 HTTP/1.1\r\n"
            "Content-Length: 0\r\n"
        ),
        "event stream of a viewer": (
            f"GET /sub?topic={TOPIC} HTTP/1.1\r\nAccept: text/event-stream\r\n"
        ),
    }
    for name, request in requests.items():
        each = [_memory(request, idle) for _ in range(min(rounds, 3))]
        yield compare(f"{name} ÷ budget", "KiB", each, [_BUDGETS_KIB[name]] * len(each))


class _HttpClient:
    """A keep-alive connection that does no more than it must."""

    def __init__(self, server: Server) -> None:
        host, port = server.http.split(":")
        self.socket = socket.create_connection((host, int(port)), TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._host = server.http
        self._held = b""

    def send(self, target: str, body: bytes = b"") -> None:
        head = (
            f"POST {target} HTTP/1.1\r\nHost: {self._host}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self.socket.sendall(head.encode() + body)

    def read(self) -> bytes | None:
        """Read once; return the body of a response that is complete, else None."""
        self._held += self.socket.recv(262_144)
        head, separator, rest = self._held.partition(b"\r\n\r\n")
        if not separator:
            return None
        if not head.startswith(b"HTTP/1.1 200"):
            raise SystemExit(self._held[:2_000].decode())
        size = int(re.search(rb"content-length: (\d+)", head)[1])  # type: ignore[index]
        if len(rest) < size:
            return None
        self._held = rest[size:]
        return rest[:size]

    def wait(self) -> bytes:
        """Return the body of the next response."""
        while (body := self.read()) is None:
            pass
        return body


def _pull(nsqd: Server, ours: Server, clients: int, count: int) -> Usage:
    """Pull and finish *count* messages with this many clients; the CPU is the gateway's."""
    target = f"/pull?topic={TOPIC}&channel={CHANNEL}&max={BATCH}&wait_ms=1000"
    with backlog.channel(nsqd, count=count), selectors.DefaultSelector() as selector:
        started, cpu, load_cpu = time.perf_counter(), cpu_seconds(ours.pid), time.process_time()
        for _ in range(clients):
            client = _HttpClient(ours)
            client.send(target)
            selector.register(client.socket, selectors.EVENT_READ, client)
        done = 0
        while done < count:
            for key, _ in selector.select(TIMEOUT_S):
                client = key.data
                body = client.read()
                if body is None:
                    continue
                if leases := LEASES.findall(body):
                    client.send("/ack", b'{"fin":["' + b'","'.join(leases) + b'"]}')
                    done += len(leases)
                else:
                    client.send(target)
        seconds, load_cpu = time.perf_counter() - started, time.process_time() - load_cpu
        cpu = cpu_seconds(ours.pid) - cpu
        for key in list(selector.get_map().values()):
            key.data.socket.close()
        backlog.wait_until_consumed(nsqd)
    return Usage(count, seconds, cpu, load_cpu)


def _long_poll(nsqd: Server, ours: Server, load: latency.Load) -> list[float]:
    """Pull again at once, and finish on another connection; return the age of each message."""
    ages: list[float] = []
    target = f"/pull?topic={TOPIC}&channel={CHANNEL}&max={load.window}&wait_ms=30000"
    with backlog.channel(nsqd, count=0):
        pulls, acks = _HttpClient(ours), _HttpClient(ours)
        pulls.send(target)
        backlog.wait_until_consumed(nsqd)
        with latency.publishing(nsqd, load.rate, load.count):
            while len(ages) < load.count:
                body = pulls.wait()
                ages += map(age_ms, latency.STAMPS.findall(body))
                if len(ages) < load.count:
                    pulls.send(target)
                acks.send("/ack", b'{"fin":["' + b'","'.join(LEASES.findall(body)) + b'"]}')
                acks.wait()
        pulls.socket.close()
        acks.socket.close()
    return ages


def _drain_late_ms() -> float:
    """Drain a gateway whose clients answer nothing; return when nsqd has every message again."""
    flag = f"--drain-in-flight-s={_DRAIN_S:g}"
    with real_nsqd() as nsqd, gateway(nsqd, flag) as ours:
        uvloop.run(fill(nsqd.tcp, TOPIC, BATCH * CLIENTS))
        clients = [_HttpClient(ours) for _ in range(CLIENTS)]
        left = BATCH * CLIENTS
        while left:
            for client in clients:
                client.send(f"/pull?topic={TOPIC}&channel={CHANNEL}&max={BATCH}&wait_ms=1000")
            left -= sum(len(LEASES.findall(client.wait())) for client in clients)
        started = time.monotonic()
        os.kill(ours.pid, signal.SIGTERM)
        while backlog.in_flight(nsqd):
            time.sleep(0.005)
        late_ms = (time.monotonic() - started - _DRAIN_S) * 1_000
        for client in clients:
            client.socket.close()
    return late_ms


def _memory(request: str, count: int) -> float:
    """Return the KiB of each of *count* idle requests on a new gateway."""
    flags = (f"--max-sockets={4 * count}", f"--max-pulls={4 * count}")
    with real_nsqd() as nsqd, gateway(nsqd, *flags, module="benchmarks.clients.collecting") as ours:
        host, port = ours.http.split(":")
        connections = []

        def open_more(number: int) -> float:
            for _ in range(number):
                connection = socket.create_connection((host, int(port)), TIMEOUT_S)
                connection.sendall(f"{request}Host: {ours.http}\r\n\r\n".encode())
                connections.append(connection)
            return _settled_kib(ours)

        before = open_more(_FIRST)
        after = open_more(count)
        for connection in connections:
            connection.close()
    return (after - before) / count


def _settled_kib(ours: Server) -> float:
    """Return the gateway's memory once garbage is collected and it is stable."""
    last = 0.0
    for _ in range(_LOOKS):
        os.kill(ours.pid, signal.SIGUSR2)
        time.sleep(0.25)
        now = resident_bytes(ours.pid) / 1_024
        if abs(now - last) < _STEADY_KIB:
            return now
        last = now
    return last
