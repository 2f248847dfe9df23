"""Run a crowd of clients through gateway and network faults in a random order from a seed."""

from __future__ import annotations

import signal
import time
from asyncio import TaskGroup
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from math import inf
from random import Random
from typing import TypeAlias

from tests.support.brokers.toxiproxy import FaultyNetwork, toxiproxy
from tests.support.browser.module_crowd import CLIENTS, ModuleCrowd, module_crowd
from tests.support.browser.module_crowd_check import Doing, StateChanged
from tests.support.history.clients import Publisher, UniqueIds
from tests.support.history.events import (
    AckForwarded,
    AckRefused,
    History,
    MessageSent,
    PublishAcknowledged,
    Record,
)
from tests.support.history.system import HistorySystem, history_system

ENOUGH = 3_000
"""Minimum number of messages published in a run."""
RESTARTS = 3
_PUBLISHERS = 4
_PUBLISH_DELAY_MS = 20
"""Delay of each publish, so that messages arrive during the whole run."""
_FAR_BEHIND = 300
_ALLOWANCE = 600
"""Messages published between two faults, unless a fault needs more."""
_CALM = 250
"""Messages finished between two faults."""
_FAST = 20.0
_WAIT_S = 90.0
_EVERYBODY = range(CLIENTS)


@dataclass
class CrowdResult:
    """The result of one run."""

    records: list[Record] = field(default_factory=list)
    doings: list[Doing] = field(default_factory=list)
    restarts: list[tuple[float, float]] = field(default_factory=list)
    """Start and end of the reconnects after each restart of the gateway."""
    silences: list[str] = field(default_factory=list)
    """Reasons with which clients closed silent connections."""
    exits: list[int] = field(default_factory=list)
    """Exit statuses of the clients' processes."""
    errors: list[str] = field(default_factory=list)
    """Unexpected output of the clients' processes."""


class _Progress:
    """Counters of published and finished messages, updated from new records."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._read = 0
        self._owed: set[str] = set()
        self._sent: dict[tuple[int, str], str] = {}
        self._finished: set[str] = set()
        self._left: set[str] = set()
        self._allowed = 0.0

    def allow(self, count: float) -> None:
        """Allow *count* more messages to be published."""
        self._allowed = self.published() + count

    def has_room(self) -> bool:
        """Return whether another message may be published."""
        return self.left() < _FAR_BEHIND and self.published() < self._allowed

    def published(self) -> int:
        """Return how many messages were acknowledged."""
        self._look()
        return len(self._owed)

    def finished(self) -> int:
        """Return the number of messages for which nsqd accepted a FIN."""
        self._look()
        return len(self._finished)

    def left(self) -> int:
        """Return the number of acknowledged messages that are not finished."""
        self._look()
        return len(self._left)

    def _look(self) -> None:
        for record in self._history.records[self._read :]:
            match record.event:
                case PublishAcknowledged(bodies):
                    self._owed.update(bodies)
                    self._left.update(set(bodies) - self._finished)
                case MessageSent(connection, message, _, body):
                    self._sent[connection, message] = body
                case AckForwarded(connection, "FIN", message):
                    self._finished.add(self._sent[connection, message])
                    self._left.discard(self._sent[connection, message])
                case AckRefused(connection, "FIN", message):
                    self._finished.discard(self._sent[connection, message])
                    self._left.update(self._owed & {self._sent[connection, message]})
                case _:
                    pass
        self._read = len(self._history.records)


@dataclass
class CrowdSystem:
    """The gateway, the proxies and the clients of a run."""

    place: HistorySystem
    crowd: ModuleCrowd
    ways: Sequence[FaultyNetwork]
    """A proxy for each client."""
    progress: _Progress
    chance: Random
    run: CrowdResult

    async def some(self) -> list[int]:
        """Return a few random connected clients."""
        there = self.connected()
        if len(there) < CLIENTS // 2:
            await self.all_connected()
            there = self.connected()
        return self.chance.sample(there, min(len(there), self.chance.randint(1, 5)))

    def connected(self) -> list[int]:
        """Return the connected clients; each will record the end of its connection."""
        return [each for each, state in self.crowd.states.items() if state == "connected"]

    async def a_moment(self) -> None:
        """Wait until some more messages are finished, with as many left for the next fault."""
        self.progress.allow(_ALLOWANCE)
        goal = self.progress.finished() + _CALM
        reached = await self.place.history.until(
            lambda: self.progress.finished() >= goal, within_s=_WAIT_S
        )
        assert reached, f"{self.progress.left()} messages are left and stay: {self.crowd.states}"

    def flows(self) -> None:
        """Publish during the block, for faults that trigger after a number of bytes."""
        self.progress.allow(inf)

    async def come_back(self, clients: Sequence[int], index: int) -> None:
        """Wait until each of *clients* has noticed its lost connection, after *index* doings."""
        await self.crowd.come_back(clients, since=index, within_s=_WAIT_S)

    async def all_connected(self) -> None:
        """Wait until all clients are connected, with their clocks running fast."""
        await self.crowd.pass_time(_EVERYBODY, _FAST)
        await self.crowd.all_connected(within_s=_WAIT_S)
        await self.crowd.pass_time(_EVERYBODY, 1)


Hurt: TypeAlias = Callable[[CrowdSystem], Awaitable[None]]


async def some_are_cut(stage: CrowdSystem) -> None:
    """Close the proxies of some clients, and open them again."""
    clients, index = await stage.some(), len(stage.crowd.doings)
    for client in clients:
        await stage.ways[client].go_down()
    await stage.come_back(clients, index)
    for client in clients:
        await stage.ways[client].come_back()


async def some_are_reset(stage: CrowdSystem) -> None:
    """Reset some connections (RST) in the middle of a frame that the client reads."""
    clients, index = await stage.some(), len(stage.crowd.doings)
    for client in clients:
        await stage.ways[client].end_by_reset()
        await stage.ways[client].cut_after(stage.chance.randint(1, 2_000))
    stage.flows()
    await stage.come_back(clients, index)
    for client in clients:
        await stage.ways[client].heal()


async def some_end_in_a_command(stage: CrowdSystem) -> None:
    """Close some connections in the middle of a command."""
    clients, index = await stage.some(), len(stage.crowd.doings)
    for client in clients:
        await stage.ways[client].cut_after(stage.chance.randint(1, 1_000), stream="upstream")
    stage.flows()
    await stage.come_back(clients, index)
    for client in clients:
        await stage.ways[client].heal()


async def some_fall_silent(stage: CrowdSystem) -> None:
    """Drop all data and closes silently; only the module's own probe can notice."""
    clients, index = await stage.some(), len(stage.crowd.doings)
    for client in clients:
        # A toxic that holds data back can be removed only while its receiver still reads.
        await stage.ways[client].heal()
        await stage.ways[client].narrow(0, stream="upstream")
        await stage.ways[client].narrow(0, stream="downstream")
    await stage.crowd.pass_time(clients, _FAST)
    await stage.come_back(clients, index)
    await stage.crowd.pass_time(clients, 1)
    for client in clients:
        await stage.ways[client].heal()
        stage.run.silences.append(
            next(
                each.reason
                for each in stage.crowd.since(index)
                if isinstance(each, StateChanged)
                and each.client == client
                and each.retry_in_ms is not None
            )
        )


async def all_are_late(stage: CrowdSystem) -> None:
    """Give each client a different, varying latency."""
    for way in stage.ways:
        for stream in ("upstream", "downstream"):
            latency_ms = stage.chance.choice([0, 5, 50, 150])
            await way._add("latency", stream, latency=latency_ms, jitter=latency_ms // 2)


HURTS: tuple[Hurt, ...] = (
    some_are_cut,
    some_are_reset,
    some_end_in_a_command,
    some_fall_silent,
    all_are_late,
)


def the_gateway_ends_by(number: signal.Signals) -> Hurt:
    """Return a fault that stops the gateway and restarts it at the same address."""

    async def the_gateway_ends(stage: CrowdSystem) -> None:
        clients, index = stage.connected(), len(stage.crowd.doings)
        begun_s = time.monotonic()
        await stage.place.end_gateway(number)
        await stage.place.start_gateway()
        await stage.come_back(clients, index)
        stage.run.restarts.append((begun_s, time.monotonic()))
        await stage.all_connected()
        for way in stage.ways:
            await way.heal()

    return the_gateway_ends


def _plan(chance: Random) -> list[Hurt]:
    """Return all faults in random order; those that stop the gateway alternate."""
    numbers = [signal.SIGTERM, signal.SIGKILL, signal.SIGTERM, signal.SIGKILL]
    first = chance.randrange(2)
    ends = [the_gateway_ends_by(number) for number in numbers[first : first + RESTARTS]]
    plan: list[Hurt | None] = [*HURTS, *[None] * RESTARTS]
    chance.shuffle(plan)
    return [each or ends.pop() for each in plan]


async def run_crowd(kind: str, seed: str, *, rounds: int = 1) -> CrowdResult:
    """Return the result of a run in which each fault happened *rounds* times."""
    chance = Random(seed)
    history = History(time.monotonic)
    run, names = CrowdResult(), UniqueIds()
    async with AsyncExitStack() as life:
        place = await life.enter_async_context(history_system(kind, history))
        proxy = await life.enter_async_context(toxiproxy())
        ways = [await proxy.in_front_of(place.address) for _ in _EVERYBODY]
        urls = [f"http://{way.address}" for way in ways]
        crowd = await life.enter_async_context(module_crowd(urls, chance))
        progress = _Progress(history)
        stage = CrowdSystem(place, crowd, ways, progress, chance, run)
        await crowd.all_connected(within_s=_WAIT_S)
        await place.client_way.delay(_PUBLISH_DELAY_MS)
        is_over = False
        async with TaskGroup() as group:
            for number in range(_PUBLISHERS):
                publisher = Publisher(history, names, Random(f"{seed} publisher {number}"))
                group.create_task(
                    publisher.live(
                        place.url,
                        until=lambda: is_over and progress.published() >= ENOUGH,
                        has_room=progress.has_room,
                    )
                )
            for _ in range(rounds):
                for hurt in _plan(chance):
                    await stage.a_moment()
                    await hurt(stage)
            await stage.a_moment()
            progress.allow(ENOUGH)
            is_over = True
        await _end(stage)
        history.add(await place.settles())
        run.exits = await crowd.close()
    run.errors = crowd.errors
    run.records = sorted([*history.records, *crowd.records], key=lambda record: record.at_s)
    run.doings = sorted(crowd.doings, key=lambda doing: doing.at_s)
    return run


async def _end(stage: CrowdSystem) -> None:
    """Return once all clients are connected and no message is left."""
    for way in stage.ways:
        await way.heal()
    await stage.all_connected()
    await stage.place.history.until(lambda: stage.progress.left() == 0, within_s=_WAIT_S)
