"""One run of the crowd: gateway and network are hurt in an order that a seed tells."""

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

from tests.support.history import Acknowledged, History, Passed, Record, Refused, Sent
from tests.support.history_actors import Names, Publisher
from tests.support.history_world import World, world
from tests.support.module_crowd import CLIENTS, ModuleCrowd, module_crowd
from tests.support.module_crowd_check import Doing, Stands
from tests.support.toxiproxy import FaultyNetwork, toxiproxy

ENOUGH = 3_000
"""So many messages are published at least."""
RESTARTS = 3
_PUBLISHERS = 4
_PUBLISH_DELAY_MS = 20
"""What each publish takes longer, so that there is something to do all the time."""
_FAR_BEHIND = 300
_ALLOWANCE = 600
"""So many messages are published from one fault to the next, where no fault needs more."""
_CALM = 250
"""So many messages are finished between two faults."""
_FAST = 20.0
_WAIT_S = 20.0
_EVERYBODY = range(CLIENTS)


@dataclass
class Run:
    """What is left of one."""

    records: list[Record] = field(default_factory=list)
    doings: list[Doing] = field(default_factory=list)
    restarts: list[tuple[float, float]] = field(default_factory=list)
    """From when to when clients came back from a restart of the gateway."""
    silences: list[str] = field(default_factory=list)
    """Why clients left a connection that had fallen silent."""
    exits: list[int] = field(default_factory=list)
    """How the processes of the clients ended."""
    errors: list[str] = field(default_factory=list)
    """What they said to nobody."""


class _Progress:
    """What is published and finished so far; each record is read once."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._read = 0
        self._owed: set[str] = set()
        self._sent: dict[tuple[int, str], str] = {}
        self._finished: set[str] = set()
        self._left: set[str] = set()
        self._allowed = 0.0

    def allow(self, count: float) -> None:
        """Let *count* more messages be published."""
        self._allowed = self.published() + count

    def has_room(self) -> bool:
        """Whether somebody may publish."""
        return self.left() < _FAR_BEHIND and self.published() < self._allowed

    def published(self) -> int:
        """Return how many messages were acknowledged."""
        self._look()
        return len(self._owed)

    def finished(self) -> int:
        """Return for how many messages nsqd took a FIN."""
        self._look()
        return len(self._finished)

    def left(self) -> int:
        """Return how many acknowledged messages nobody has finished."""
        self._look()
        return len(self._left)

    def _look(self) -> None:
        for record in self._history.records[self._read :]:
            match record.event:
                case Acknowledged(bodies):
                    self._owed.update(bodies)
                    self._left.update(set(bodies) - self._finished)
                case Sent(connection, message, _, body):
                    self._sent[connection, message] = body
                case Passed(connection, "FIN", message):
                    self._finished.add(self._sent[connection, message])
                    self._left.discard(self._sent[connection, message])
                case Refused(connection, "FIN", message):
                    self._finished.discard(self._sent[connection, message])
                    self._left.update(self._owed & {self._sent[connection, message]})
                case _:
                    pass
        self._read = len(self._history.records)


@dataclass
class Stage:
    """Where it happens."""

    place: World
    crowd: ModuleCrowd
    ways: Sequence[FaultyNetwork]
    """One for each client."""
    progress: _Progress
    chance: Random
    run: Run

    async def some(self) -> list[int]:
        """Return a few clients that are connected, by chance."""
        there = self.connected()
        if len(there) < CLIENTS // 2:
            await self.all_connected()
            there = self.connected()
        return self.chance.sample(there, min(len(there), self.chance.randint(1, 5)))

    def connected(self) -> list[int]:
        """Return who is: each of them will tell when that ends."""
        return [each for each, state in self.crowd.states.items() if state == "connected"]

    async def a_moment(self) -> None:
        """Return when some more messages are finished; as many are there for what comes then."""
        self.progress.allow(_ALLOWANCE)
        goal = self.progress.finished() + _CALM
        reached = await self.place.history.until(
            lambda: self.progress.finished() >= goal, within_s=_WAIT_S
        )
        assert reached, f"{self.progress.left()} messages are left and stay: {self.crowd.states}"

    def flows(self) -> None:
        """Let messages come as long as it takes, for a fault that waits for so many bytes."""
        self.progress.allow(inf)

    async def come_back(self, clients: Sequence[int], index: int) -> None:
        """Return when each of *clients* knows its connection lost, behind *index* doings."""
        await self.crowd.come_back(clients, since=index, within_s=_WAIT_S)

    async def all_connected(self) -> None:
        """Return when all clients are; their time passes fast."""
        await self.crowd.pass_time(_EVERYBODY, _FAST)
        await self.crowd.all_connected(within_s=_WAIT_S)
        await self.crowd.pass_time(_EVERYBODY, 1)


Hurt: TypeAlias = Callable[[Stage], Awaitable[None]]


async def some_are_cut(stage: Stage) -> None:
    """Their ways are closed, and come back."""
    clients, index = await stage.some(), len(stage.crowd.doings)
    for client in clients:
        await stage.ways[client].go_down()
    await stage.come_back(clients, index)
    for client in clients:
        await stage.ways[client].come_back()


async def some_are_reset(stage: Stage) -> None:
    """Their connections end by RST in the middle of a frame that they read."""
    clients, index = await stage.some(), len(stage.crowd.doings)
    for client in clients:
        await stage.ways[client].end_by_reset()
        await stage.ways[client].cut_after(stage.chance.randint(1, 2_000))
    stage.flows()
    await stage.come_back(clients, index)
    for client in clients:
        await stage.ways[client].heal()


async def some_end_in_a_command(stage: Stage) -> None:
    """Their connections end in the middle of what they say."""
    clients, index = await stage.some(), len(stage.crowd.doings)
    for client in clients:
        await stage.ways[client].cut_after(stage.chance.randint(1, 1_000), stream="upstream")
    stage.flows()
    await stage.come_back(clients, index)
    for client in clients:
        await stage.ways[client].heal()


async def some_fall_silent(stage: Stage) -> None:
    """Nothing comes through, no close either, and only the module's own question finds it."""
    clients, index = await stage.some(), len(stage.crowd.doings)
    for client in clients:
        # What holds something back can be taken away only while nothing behind it is stuck.
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
                if isinstance(each, Stands)
                and each.client == client
                and each.retry_in_ms is not None
            )
        )


async def all_are_late(stage: Stage) -> None:
    """Each has a latency of its own, that varies."""
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
    """Return what ends the gateway, and starts it again where it was."""

    async def the_gateway_ends(stage: Stage) -> None:
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
    """Return everything that hurts, in an order by chance; the gateway ends in turns."""
    numbers = [signal.SIGTERM, signal.SIGKILL, signal.SIGTERM, signal.SIGKILL]
    first = chance.randrange(2)
    ends = [the_gateway_ends_by(number) for number in numbers[first : first + RESTARTS]]
    plan: list[Hurt | None] = [*HURTS, *[None] * RESTARTS]
    chance.shuffle(plan)
    return [each or ends.pop() for each in plan]


async def ran(kind: str, seed: str, *, rounds: int = 1) -> Run:
    """Return what was seen of a run in which everything was hurt *rounds* times."""
    chance = Random(seed)
    history = History(time.monotonic)
    run, names = Run(), Names()
    async with AsyncExitStack() as life:
        place = await life.enter_async_context(world(kind, history))
        proxy = await life.enter_async_context(toxiproxy())
        ways = [await proxy.in_front_of(place.address) for _ in _EVERYBODY]
        urls = [f"http://{way.address}" for way in ways]
        crowd = await life.enter_async_context(module_crowd(urls, chance))
        progress = _Progress(history)
        stage = Stage(place, crowd, ways, progress, chance, run)
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


async def _end(stage: Stage) -> None:
    """Return when all clients are connected, and nothing is left for them."""
    for way in stage.ways:
        await way.heal()
    await stage.all_connected()
    await stage.place.history.until(lambda: stage.progress.left() == 0, within_s=_WAIT_S)
