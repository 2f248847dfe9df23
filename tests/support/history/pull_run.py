"""A history of pulls: replicas, the broker and clients are killed in an order drawn from a seed."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from random import Random
from typing import TypeAlias

from tests.support.history.clients import Publisher, UniqueIds
from tests.support.history.events import History, Record
from tests.support.history.pull_clients import PullClient
from tests.support.history.replicas import ReplicaSystem, replica_system
from tests.support.history.run import Backlog
from tests.support.history.system import final_counts

CLIENTS = 4
PUBLISHERS = 2
_BATCHES = (1, 200, 500)
_FAR_BEHIND = 5_000
"""Maximum number of unfinished messages; publishers pause above it."""
_PAUSE_S = 0.7
"""Longer than what comes too late waits for the next pull (500 ms)."""
_PERIOD_S = 120.0
"""Maximum time for the messages between two pauses."""
_RUNS_DRY_WITHIN_S = 120.0

Fault: TypeAlias = Callable[["_Run"], Awaitable[None]]


class _Run:
    """What faults work on."""

    def __init__(self, place: ReplicaSystem, clients: Sequence[PullClient], chance: Random) -> None:
        self.place = place
        self.clients = clients
        self.chance = chance


async def a_replica_is_killed(run: _Run) -> None:
    await run.place.end_replica(run.chance.choice(run.place.replicas), signal.SIGKILL)


async def a_replica_drains(run: _Run) -> None:
    await run.place.end_replica(run.chance.choice(run.place.replicas), signal.SIGTERM)


async def the_broker_is_killed(run: _Run) -> None:
    await run.place.end_broker(signal.SIGKILL)


async def the_broker_is_restarted(run: _Run) -> None:
    await run.place.end_broker(signal.SIGTERM)


async def clients_are_killed(run: _Run) -> None:
    """In the middle of a pull, or of an ack."""
    for client in run.chance.sample(run.clients, len(run.clients) // 2):
        client.kill()


FAULTS: tuple[Fault, ...] = (
    a_replica_is_killed,
    a_replica_drains,
    the_broker_is_killed,
    the_broker_is_restarted,
    clients_are_killed,
    clients_are_killed,
)


async def record_pulls(
    kind: str, seed: str, *, messages: int, faults: Sequence[Fault] = FAULTS, each: int = 2_500
) -> list[Record]:
    """
    Return the history of *messages* that are published, pulled and acked through the balancer.

    One of *faults* happens for every *each* messages, all of them once before one comes again.
    """
    chance = Random(seed)
    history = History(time.monotonic)
    names = UniqueIds()
    backlog = Backlog(history, _FAR_BEHIND)
    async with replica_system(kind, history) as place:
        clients = [
            PullClient(history, names, Random(f"{seed} client {number}"), url=place.url)
            for number in range(CLIENTS)
        ]
        run = _Run(place, clients, chance)
        is_over = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            pulls = [group.create_task(client.live(is_over.is_set)) for client in clients]
            publishing = []
            for number in range(PUBLISHERS):
                publisher = Publisher(
                    history, names, Random(f"{seed} publisher {number}"), _BATCHES
                )
                publishing.append(
                    group.create_task(
                        publisher.live(
                            place.url,
                            until=partial(backlog.has_acknowledged, messages),
                            has_room=backlog.has_room,
                        )
                    )
                )
            left: list[Fault] = []
            for number in range(each, messages, each):
                while not backlog.has_acknowledged(number):
                    await history.grows(each, within_s=1.0)
                left = left or chance.sample(faults, len(faults))
                await left.pop()(run)
            await asyncio.wait(publishing)
            is_over.set()
            await asyncio.wait(pulls)
        await _run_dry(place, names)
        history.add(await final_counts(place.broker.http_address))
    return history.records


async def record_starts_and_stops(
    kind: str, seed: str, *, messages: int, each: int
) -> list[Record]:
    """
    Return the history of *messages* that are pulled by clients who come and go, without a fault.

    After *each* messages, all clients leave for a while, after the pull that they wait for.
    """
    chance = Random(seed)
    history = History(time.monotonic)
    names = UniqueIds()
    backlog = Backlog(history, _FAR_BEHIND)
    async with replica_system(kind, history) as place:
        publisher = Publisher(history, names, Random(f"{seed} publisher"), (1, 20))
        publishing = asyncio.create_task(
            publisher.live(
                place.url,
                until=lambda: backlog.has_acknowledged(messages),
                has_room=backlog.has_room,
            )
        )
        while not publishing.done():
            clients = [
                PullClient(history, names, Random(chance.random()), url=place.url, is_calm=True)
                for _ in range(CLIENTS)
            ]
            is_over = asyncio.Event()
            async with asyncio.TaskGroup() as group:
                for client in clients:
                    group.create_task(client.live(is_over.is_set))
                # Each message is sent, delivered, finished and passed on, and the ack answered.
                await history.grows(5 * each, within_s=_PERIOD_S)
                is_over.set()
            await history.grows(messages, within_s=_PAUSE_S)
        await publishing
        await _run_dry(place, names)
        history.add(await final_counts(place.broker.http_address))
    return history.records


async def _run_dry(place: ReplicaSystem, names: UniqueIds) -> None:
    """Finish all remaining messages; leases that nobody answers end first."""
    counts = asyncio.create_task(final_counts(place.broker.http_address))
    client = PullClient(place.history, names, Random(0), url=place.url, is_calm=True)
    with suppress(TimeoutError):
        async with asyncio.timeout(_RUNS_DRY_WITHIN_S):
            async with asyncio.TaskGroup() as group:
                group.create_task(client.live(counts.done))
                await counts
