"""`gateway.client` compared with other NSQ clients: publishing, and consuming with FIN."""

from __future__ import annotations

import importlib.util
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from benchmarks import backlog
from benchmarks.backlog import CHANNEL, TOPIC
from benchmarks.certificate import certificate
from benchmarks.clients.program import OUTPUT_BUFFER_TIMEOUT_MS
from benchmarks.harness import KEPT_MESSAGES, WITNESSES, Server, Usage, message_count, real_nsqd
from benchmarks.table import Benchmark, Gap, Row, compare, in_turn

_WINDOW = 2_500
_COUNT = 300_000
"""Messages to consume in one round."""
_PUBLISH_TOPIC = "publish#ephemeral"


@dataclass(frozen=True)
class Client:
    """A client: its programs, and the transports that it lacks."""

    publisher: Sequence[str]
    consumer: Sequence[str]
    part: float = 1.0
    """Share of the messages, so that a slow client takes about the same time as the others."""
    cannot: Mapping[str, str] = field(default_factory=dict)
    """Why a transport cannot be compared, by transport."""


def _in_python(module: str, *, part: float = 1.0, cannot: Mapping[str, str] = {}) -> Client:
    program = (sys.executable, "-m", f"benchmarks.clients.{module}")
    return Client((*program, "publish"), (*program, "consume"), part, cannot)


OURS = "ours"
_HAS_NEITHER = "ansq 0.3 raises NotImplementedError"
_BREAKS = "pynsq 0.9.1 closes the connection when a read ends within a chunk"
CLIENTS = {
    OURS: _in_python("ours"),
    "go-nsq": Client((str(WITNESSES / "go-nsq-publisher"),), (str(WITNESSES / "go-nsq-consumer"),)),
    "pynsq": _in_python("on_pynsq", part=0.1, cannot={"snappy": _BREAKS}),
    "ansq": _in_python("on_ansq", part=0.1, cannot={"TLS": _HAS_NEITHER, "snappy": _HAS_NEITHER}),
}


@dataclass(frozen=True)
class Mode:
    """One mode of publishing or consuming."""

    name: str
    flags: Sequence[str] = ()
    part: float = 1.0
    """Share of `_COUNT`, so that all modes take about the same time."""
    batch: int = 1
    goal: float | None = None
    """Highest acceptable ratio to go-nsq's CPU time, without TLS and snappy."""


PUBLISHES = (
    Mode("PUB, one at a time", part=0.05),
    Mode("PUB, 64 in flight", ("--in-flight=64",), part=0.5),
    Mode("MPUB of 100", ("--batch=100",), part=2, batch=100, goal=0.5),
    Mode("MPUB of 500", ("--batch=500",), part=4, batch=500, goal=0.5),
    Mode("MPUB of 100, 64 in flight", ("--batch=100", "--in-flight=64"), 4, 100, goal=0.5),
)
CONSUMES = (
    Mode("consume by lists", ("--by-lists",), goal=0.2),
    Mode("consume, async handler one at a time", goal=1.0),
)


def plan(*, quick: bool) -> Benchmark:
    """Return the benchmark."""
    for module, name in (("nsq", "pynsq"), ("ansq", "ansq")):
        if importlib.util.find_spec(module) is None:
            raise SystemExit(f"{name} is missing; install it with make bench")
    count, rounds = (_COUNT // 15, 1) if quick else (_COUNT, 5)
    about = (
        f"each client a process of its own on one nsqd, bodies of 200 B, about {count:,} messages, "
        f"a tenth with pynsq and ansq, {rounds} rounds; consuming: window {_WINDOW}, published "
        f"before, output buffer {OUTPUT_BUFFER_TIMEOUT_MS} ms (ansq: 250 ms, the default), each "
        "with FIN; Python clients on uvloop; CPU of the client's process"
    )
    return Benchmark(about, _rows(count, rounds))


@dataclass(frozen=True)
class _Section:
    """The rows of one transport."""

    transport: str
    flags: Sequence[str]
    count: int
    rounds: int
    clients: Mapping[str, Client]
    """The clients that support it, ours first."""


def _rows(count: int, rounds: int) -> Iterator[Row | Gap]:
    with certificate() as made:
        transports = {
            "plain": (),
            "TLS": (f"--tls-root-ca-file={made.root_ca_file}",),
            "snappy": ("--snappy",),
        }
        for transport, flags in transports.items():
            able = {
                name: client for name, client in CLIENTS.items() if transport not in client.cannot
            }
            for name in CLIENTS.keys() - able.keys():
                yield Gap(f"{transport} ÷ {name}", CLIENTS[name].cannot[transport])
            part = _Section(transport, flags, count, rounds, able)
            tls_cert = made.key_and_cert_file
            with real_nsqd(mem_queue_messages=KEPT_MESSAGES, tls_cert=tls_cert) as nsqd:
                for way in PUBLISHES:
                    yield from _publishing(nsqd, part, way)
            with real_nsqd(tls_cert=tls_cert) as nsqd:
                yield from _consuming(nsqd, part)


def _publishing(nsqd: Server, part: _Section, way: Mode) -> Iterator[Row]:
    sides = {}
    for name, client in part.clients.items():
        count = max(1, int(part.count * way.part * client.part) // way.batch) * way.batch
        flags = (f"--topic={_PUBLISH_TOPIC}", f"--count={count}", *way.flags, *part.flags)
        sides[name] = partial(_publish, nsqd, (*client.publisher, *flags), count)
    spent = in_turn(sides, rounds=part.rounds)
    yield from _compare(part, way, spent[OURS], spent)


def _publish(nsqd: Server, program: Sequence[str], count: int) -> Usage:
    """Publish, and compare the count of the program with that of nsqd."""
    before = message_count(nsqd)
    spent = backlog.run_client((*program, f"--nsqd-tcp-address={nsqd.tcp}"))
    counted = message_count(nsqd) - before
    if counted != count:
        raise SystemExit(f"{program[0]} reports {count} messages; nsqd counts {counted}")
    return spent


def _consuming(nsqd: Server, part: _Section) -> Iterator[Row]:
    names = (f"--topic={TOPIC}", f"--channel={CHANNEL}", f"--max-in-flight={_WINDOW}")
    sides = {}
    for name, client in part.clients.items():
        count = int(part.count * client.part)
        program = (*client.consumer, *names, f"--count={count}", *part.flags)
        for way in CONSUMES if name == OURS else (Mode(name),):
            sides[way.name] = partial(_consume, nsqd, (*program, *way.flags), count)
    spent = in_turn(sides, rounds=part.rounds)
    for way in CONSUMES:
        yield from _compare(part, way, spent[way.name], spent)


def _consume(nsqd: Server, program: Sequence[str], count: int) -> Usage:
    with backlog.channel(nsqd, count=count):
        return backlog.run_client((*program, f"--nsqd-tcp-address={nsqd.tcp}"))


def _compare(
    part: _Section, way: Mode, ours: list[Usage], spent: Mapping[str, list[Usage]]
) -> Iterator[Row]:
    rate = statistics.median(each.rate for each in ours)
    for name in part.clients:
        if name == OURS:
            continue
        peer_rate = statistics.median(each.rate for each in spent[name])
        note = f"{rate:,.0f} ÷ {peer_rate:,.0f} messages/s, {rate / peer_rate:.2f}"
        if way.goal is not None and (name, part.transport) == ("go-nsq", "plain"):
            note += f"; goal: {way.goal} at most"
        cpu, peer_cpu = ([each.cpu_us for each in side] for side in (ours, spent[name]))
        title = f"{way.name}, {part.transport} ÷ {name}"
        yield compare(title, "µs CPU a message", cpu, peer_cpu, note)
