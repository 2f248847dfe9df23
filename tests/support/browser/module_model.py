"""
A model of the state that nsq.js may report to a page, and random histories to check against it.

A history has one page behind a network that stalls, delays and disconnects, and one rival consumer
of the same channel without network faults. A message delivered to the rival is lost to the page.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from random import Random
from typing import Literal, TypeAlias

from tests.support.browser.module_client import ModuleClient, module_client
from tests.support.gateways.gateway import RunningGateway
from tests.support.project import ROOT
from tests.support.websocket.subscriber_client import Json, SubscriberClient

MODULE = ROOT / "gateway" / "web" / "site" / "static" / "nsq.js"
MSG_TIMEOUT_MS = 1_000
_MESSAGES = 12
_KEPT = 6
"""Messages not finished before the end; more than the page's window, so the rival gets some."""
_LONGEST_S = 60.0
_PAGE = Path(__file__).with_suffix(".mjs")

_SCALED = {
    "SILENCE_MS = 20_000": "SILENCE_MS = 3_000",
    "ANSWER_MS = 5_000": "ANSWER_MS = 250",
    "BACKOFF_MS = 500": "BACKOFF_MS = 50",
    "BACKOFF_LIMIT_MS = 30_000": "BACKOFF_LIMIT_MS = 500",
}
"""Replacements that shorten the module's network timeouts; message deadlines are unchanged."""
_NOTICED_MS = 2 * 3_000 + 2 * 250
"""Maximum time until the module notices a dead network: two silences and two probes."""
_ANSWERED_MS = 3 * 250
"""Maximum time until the module gives up on an answer: a pending probe and two more."""
_LAG_MS = 400
"""Margin for scheduling delays that a process cannot measure."""
_BEAT_MS = 20

Direction: TypeAlias = Literal["up", "down"]
Fault: TypeAlias = Literal["stall", "stall up", "stall down", "late", "cut", "half-open", "offline"]
FAULTS: tuple[Fault, ...] = (
    "stall",
    "stall up",
    "stall down",
    "late",
    "cut",
    "half-open",
    "offline",
)


class ViolationKind(StrEnum):
    """The kinds of violations of the model."""

    UNCONFIRMED = "an answer is true that the gateway has not confirmed"
    CONFIRMED_UNTAKEN = "an answer is false that the gateway has confirmed"
    UNSETTLED = "an answer is neither true nor false at the end"
    DEADLINE = "the deadline is later than an answered TOUCH makes it"
    HELD_BY_TWO = "the page holds a message, in time, that the rival was given"
    BLIND = "the page is connected although its network has been gone for too long"
    DEAF = "the browser said offline, and the page stays connected"
    FINISHED_TWICE = "a message came again after its FIN was confirmed"
    NEVER_FINISHED = "a message is gone from the channel, and nobody has finished it"


@dataclass
class History:
    """The events, with times in milliseconds since 1970, like Node's clock."""

    seed: str
    page: list[Json] = field(default_factory=list)
    rival: list[Json] = field(default_factory=list)
    stalls: list[tuple[float, float]] = field(default_factory=list)
    """Start and end of each period in which no data passed in either direction."""
    cuts: list[float] = field(default_factory=list)
    """Times at which the gateway lost the page's connection."""
    chunks: list[tuple[float, bytes]] = field(default_factory=list)
    """Data from the gateway to the page, with the time at which the proxy received it."""
    bodies: frozenset[str] = frozenset()
    lags: list[tuple[float, float]] = field(default_factory=list)
    """Time and length of each scheduling delay of this process."""

    def lag_ms(self, since: float, to: float) -> float:
        """Return the scheduling delay of both processes between two times, plus a margin."""
        own = sum(late for at, late in self.lags if since <= at <= to + late)
        of_page = sum(
            float(each["lateMs"])
            for each in self.page
            if each["what"] == "lag" and since <= each["at"] <= to + each["lateMs"]
        )
        return _LAG_MS + own + of_page


def now_ms() -> float:
    """Return the time like Node's `Date.now()`."""
    return time.time() * 1_000


# The network


class Network:
    """A TCP proxy that can pause, delay and cut connections."""

    def __init__(self, upstream: str, history: History) -> None:
        self.address = ""
        self._upstream = upstream
        self._history = history
        self._flows = {"up": asyncio.Event(), "down": asyncio.Event()}
        self._stalled_since: float | None = None
        self.is_late = False
        """If true, data is held until the next `pulse`."""
        self._pulse = asyncio.Event()
        self._gateway_sides: set[asyncio.StreamWriter] = set()
        self._page_sides: set[asyncio.StreamWriter] = set()
        self.heal()

    def stall(self, *directions: Direction) -> None:
        """Hold back all data, and closes."""
        for direction in directions:
            self._flows[direction].clear()
        if len(directions) == len(self._flows):
            self._stalled_since = now_ms()

    def heal(self) -> None:
        """Let everything through at once."""
        self.is_late = False
        self.pulse()
        for flow in self._flows.values():
            flow.set()
        if self._stalled_since is not None:
            self._history.stalls.append((self._stalled_since, now_ms()))
            self._stalled_since = None

    def pulse(self) -> None:
        """Let delayed data through."""
        self._pulse.set()
        self._pulse.clear()

    def cut(self, *, half: bool = False) -> None:
        """Close every connection; with *half*, the page's side stays open and silent."""
        self._history.cuts.append(now_ms())
        for writer in self._gateway_sides:
            writer.transport.abort()
        if not half:
            for writer in self._page_sides:
                writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward one connection until it ends."""
        host, _, port = self._upstream.rpartition(":")
        try:
            there = await asyncio.open_connection(host, int(port))
        except ConnectionError:
            writer.transport.abort()
            return
        self._gateway_sides.add(there[1])
        self._page_sides.add(writer)
        await asyncio.gather(
            self._carry(reader, there[1], "up"), self._carry(there[0], writer, "down")
        )
        self._gateway_sides.discard(there[1])
        self._page_sides.discard(writer)

    async def _carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: Direction
    ) -> None:
        try:
            while data := await reader.read(65_536):
                if direction == "down":
                    self._history.chunks.append((now_ms(), data))
                await self._flows[direction].wait()
                if self.is_late:
                    await self._pulse.wait()
                writer.write(data)
                await writer.drain()
            await self._flows[direction].wait()
            writer.close()
        except ConnectionError:
            # A half-open connection: the page's side learns nothing.
            if direction == "up":
                writer.transport.abort()


@asynccontextmanager
async def network(upstream: str, history: History) -> AsyncIterator[Network]:
    """Run a proxy in front of *upstream* (host:port)."""
    carried = Network(upstream, history)
    async with await asyncio.start_server(carried.serve, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()[:2]
        carried.address = f"{host}:{port}"
        try:
            yield carried
        finally:
            carried.heal()
            carried.cut()


# The rival


class Rival:
    """Another consumer of the channel; it finishes little and requeues the rest briefly."""

    def __init__(self, client: SubscriberClient, chance: Random, history: History) -> None:
        self._client = client
        self._chance = chance
        self._history = history
        self._changed = asyncio.Event()
        self.is_calm = False

    async def work(self) -> None:
        """Process messages until cancelled."""
        while True:
            said = await self._client.receive(within_s=60)
            if said["type"] == "error":
                self._history.rival.append({"what": "refused", "at": now_ms(), "id": said["id"]})
            if said["type"] != "message":
                continue
            told = {"id": said["id"], "body": said["body"], "attempts": said["attempts"]}
            self._history.rival.append({"what": "given", "at": now_ms(), **told})
            is_kept = said["body"].endswith("-kept")
            if self.is_calm or (self._chance.random() < 0.1 and not is_kept):
                self._history.rival.append({"what": "finished", "at": now_ms(), **told})
                await self._client.send({"cmd": "FIN", "id": said["id"]})
            else:
                delay_ms = self._chance.randint(50, 400)
                await self._client.send({"cmd": "REQ", "id": said["id"], "timeout_ms": delay_ms})
            self._changed.set()

    async def sees(self, count: int) -> None:
        """Return once it has received *count* more messages."""
        for _ in range(count):
            self._changed.clear()
            await self._changed.wait()


# A history


@asynccontextmanager
async def measured_lag(history: History) -> AsyncIterator[None]:
    """Record the scheduling delays of this process, which the model has to tolerate."""
    loop = asyncio.get_running_loop()
    last = now_ms()
    timer: asyncio.TimerHandle | None = None

    def beat() -> None:
        nonlocal last, timer
        late_ms = now_ms() - last - _BEAT_MS
        last = now_ms()
        if late_ms > _BEAT_MS:
            history.lags.append((last, late_ms))
        timer = loop.call_later(_BEAT_MS / 1_000, beat)

    beat()
    try:
        yield
    finally:
        if timer is not None:
            timer.cancel()


def scaled_module(folder: Path, *changes: tuple[str, str]) -> Path:
    """Return a copy of nsq.js with shorter timeouts, and with *changes* of its text."""
    text = MODULE.read_text()
    for old, new in (*_SCALED.items(), *changes):
        assert old in text, old
        text = text.replace(old, new)
    path = folder / "nsq.mjs"
    path.write_text(text)
    return path


async def run_page(gateway: RunningGateway, seed: str, module: Path, *, faults: int) -> History:
    chance = Random(seed)
    topic = f"model-{chance.getrandbits(64):x}"
    bodies = [f"{topic}-{number}" for number in range(_MESSAGES)]
    bodies += [f"{topic}-{number}-kept" for number in range(_KEPT)]
    history = History(seed, bodies=frozenset(bodies))
    async with (
        asyncio.timeout(_LONGEST_S),
        measured_lag(history),
        network(gateway.address, history) as way,
        module_client(f"http://{way.address}") as client,
        gateway.subscribe(topic, "c", max_in_flight=1, msg_timeout_ms=MSG_TIMEOUT_MS) as other,
    ):
        wish = {"url": f"http://{way.address}", "topic": topic, "msgTimeoutMs": MSG_TIMEOUT_MS}
        await client.run(
            """
            const { Page } = await import(given[0]);
            globalThis.page = new Page(await import(given[1]), WebSocket, given[2]);
            await page.ready;
            """,
            str(_PAGE),
            str(module),
            {**wish, "seed": chance.getrandbits(32)},
        )
        rival = Rival(other, chance, history)
        working = asyncio.create_task(rival.work())
        await gateway.post("/mpub", "\n".join(bodies).encode(), topic=topic)
        for _ in range(faults):
            await rival.sees(chance.randint(1, 6))
            await _hurt(chance, way, client, rival)
        # At the end, the network stalls until the page has noticed.
        await rival.sees(8)
        way.stall("up", "down")
        await client.run("await page.isNoticed()")
        way.heal()
        rival.is_calm = True
        await client.run("page.calm()")
        assert (0, 0, 0) == await gateway.counts_become(topic, "c", (0, 0, 0))
        await client.run("await page.close()")
        history.page = await client.run("return page.log")
        left = await client.run(
            "return process.getActiveResourcesInfo().filter((name) => /Timeout|TCP|TLS/.test(name))"
        )
        assert [] == left
        assert 0 == await client.leave()
        working.cancel()
        await asyncio.wait([working])
    return history


async def _hurt(chance: Random, way: Network, client: ModuleClient, rival: Rival) -> None:
    """Inject one fault, and end it after the rival has received more messages."""
    match chance.choice(FAULTS):
        case "stall":
            way.stall("up", "down")
        case "stall up":
            way.stall("up")
        case "stall down":
            way.stall("down")
        case "late":
            way.is_late = True
        case "cut":
            way.cut()
        case "half-open":
            way.cut(half=True)
        case "offline":
            way.stall("up", "down")
            await client.run("page.fire('offline')")
    for _ in range(chance.randint(2, 12)):
        await rival.sees(1)
        way.pulse()
    way.heal()
    await client.run("page.fire('online')")


# The model


@dataclass(frozen=True)
class Violation:
    """A state or action of the page that the model forbids."""

    kind: ViolationKind
    text: str

    def __str__(self) -> str:
        """Return the kind and the text in one line."""
        return f"{self.kind}: {self.text}"


def violations(history: History) -> Iterator[Violation]:
    """Yield everything in *history* that the model forbids."""
    yield from _answers_are_the_gateways(history)
    yield from _deadlines_are_nsqs(history)
    yield from _nobody_holds_what_the_rival_has(history)
    yield from _a_network_that_is_gone_is_noticed(history)
    yield from _what_is_finished_is_gone(history)


def _answers_are_the_gateways(history: History) -> Iterator[Violation]:
    verbs = {"finish": "FIN", "requeue": "REQ", "touch": "TOUCH"}
    confirmed: dict[tuple[str, str], int] = defaultdict(int)
    open_calls: dict[int, Json] = {}
    for each in history.page:
        match each["what"]:
            case "confirmed":
                for key in each["keys"]:
                    confirmed[each["cmd"], key] += 1
            case "called":
                open_calls[each["call"]] = each
            case "settled":
                del open_calls[each["call"]]
                key = verbs[each["name"]], each["key"]
                if each["taken"] and not confirmed[key]:
                    yield Violation(ViolationKind.UNCONFIRMED, str(each))
                elif each["name"] != "touch" and not each["taken"] and confirmed[key]:
                    yield Violation(ViolationKind.CONFIRMED_UNTAKEN, str(each))
                confirmed[key] -= bool(each["taken"])
            case _:
                pass
    for each in open_calls.values():
        yield Violation(ViolationKind.UNSETTLED, str(each))


def _deadlines_are_nsqs(history: History) -> Iterator[Violation]:
    """Only an answered TOUCH moves a deadline, to at most the message timeout after the call."""
    first: dict[str, float] = {}
    touched: dict[str, list[float]] = defaultdict(list)
    answered: dict[str, int] = defaultdict(int)
    for each in history.page:
        if each["what"] == "held":
            first[each["key"]] = each["deadline"]
        elif each["what"] == "called" and each["name"] == "touch":
            touched[each["key"]].append(each["at"] + MSG_TIMEOUT_MS + 1)
        elif each["what"] == "confirmed" and each["cmd"] == "TOUCH":
            for key in each["keys"]:
                answered[key] += 1  # answers come in the order of the calls
        elif each["what"] == "settled":
            key = each["key"]
            if each["deadline"] > max(first[key], *touched[key][: answered[key]], 0):
                yield Violation(ViolationKind.DEADLINE, str(each))


def _nobody_holds_what_the_rival_has(history: History) -> Iterator[Violation]:
    """Page and rival may both hold a message only while it was in transit to the page."""
    holds: dict[str, Json] = {}
    ends: dict[str, float] = {}
    moves: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for each in history.page:
        if each["what"] == "held":
            holds[each["key"]] = each
            moves[each["key"]].append((each["at"], each["deadline"]))
        elif each["what"] == "settled":
            moves[each["key"]].append((each["at"], each["deadline"]))
        elif each["what"] == "lost" or (each["what"] == "called" and each["name"] != "touch"):
            ends.setdefault(each["key"], each["at"])
    given = [each for each in history.rival if each["what"] == "given"]
    for key, held in holds.items():
        sent_at = _sent_at(history, key.partition(":")[2], held["at"])
        for other in given:
            at = other["at"]
            if other["body"] != held["body"] or other["attempts"] <= held["attempts"]:
                continue
            lag_ms = history.lag_ms(sent_at, at)
            if ends.get(key, float("inf")) <= at or any(
                sent_at - lag_ms <= cut <= at for cut in history.cuts
            ):
                continue
            deadline = max((to for since, to in moves[key] if since <= at), default=0.0)
            if deadline > at + (held["at"] - sent_at) + lag_ms:
                text = f"{held} has {deadline - at:.0f} ms left when the rival has {other}"
                yield Violation(ViolationKind.HELD_BY_TWO, text)


def _sent_at(history: History, delivery: str, at: float) -> float:
    """Return the time at which the proxy received a delivery that the page got at *at*."""
    name = json.dumps(delivery).encode()
    return max(
        (since for since, data in history.chunks if since <= at and name in data), default=at
    )


def _a_network_that_is_gone_is_noticed(history: History) -> Iterator[Violation]:
    states = [(each["at"], each["state"]) for each in history.page if each["what"] == "state"]
    calls = [each["at"] for each in history.page if each["what"] == "sent"]
    for since, to in history.stalls:
        at_begin = [state for at, state in states if at <= since][-1:]
        left = [at for at, state in states if since < at <= to and state != "connected"]
        if at_begin != ["connected"]:
            continue
        first_call = min((at for at in calls if since < at < to), default=float("inf"))
        latest = min(since + _NOTICED_MS, first_call + _ANSWERED_MS)
        latest += history.lag_ms(since, latest)
        if latest < to and (not left or left[0] > latest):
            yield Violation(
                ViolationKind.BLIND, f"since {since:.0f}, sent at {first_call}, left {left}"
            )
    for each in history.page:
        if each["what"] == "fired" and each["name"] == "offline" and each["state"] == "connected":
            yield Violation(ViolationKind.DEAF, str(each))


def _what_is_finished_is_gone(history: History) -> Iterator[Violation]:
    """Each message is finished once; a FIN without an answer may have been executed."""
    finished = _finished_at(history)
    body_of = {each["key"]: each["body"] for each in history.page if each["what"] == "held"}
    maybe = {
        body_of[key]
        for each in history.page
        if each["what"] == "sent" and each["cmd"] == "FIN"
        for key in each["keys"]
        if key in body_of
    }
    for body in sorted(history.bodies - finished.keys() - maybe):
        yield Violation(ViolationKind.NEVER_FINISHED, body)
    for each in (*history.page, *history.rival):
        if each["what"] not in ("held", "given"):
            continue
        at = each["at"]
        if "key" in each:  # a message in transit when it was finished is no redelivery
            at = _sent_at(history, each["key"].partition(":")[2], at) - _LAG_MS
        if at > finished.get(each["body"], float("inf")):
            yield Violation(ViolationKind.FINISHED_TWICE, str(each))


def _finished_at(history: History) -> dict[str, float]:
    """Return when the FIN of each message was confirmed, or sent by the rival."""
    body_of = {each["key"]: each["body"] for each in history.page if each["what"] == "held"}
    refused = {key for each in history.page if each["what"] == "refused" for key in each["keys"]}
    refused |= {each["id"] for each in history.rival if each["what"] == "refused"}
    finished: dict[str, float] = {}
    for each in (*history.page, *history.rival):
        is_finish = each["what"] == "settled" and each["name"] == "finish" and each["taken"]
        if is_finish and each["key"] not in refused:
            finished.setdefault(body_of[each["key"]], each["at"])
        elif each["what"] == "finished" and each["id"] not in refused:
            finished.setdefault(each["body"], each["at"])
    return finished
