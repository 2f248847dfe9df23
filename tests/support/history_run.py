"""One history: everything is broken in an order that a seed tells, then it heals and runs dry."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from random import Random
from typing import TypeAlias

from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from tests.support.history import (
    Acknowledged,
    Closed,
    History,
    Passed,
    Record,
    WayBroken,
    WayHealed,
)
from tests.support.history_actors import Consumer, Names, Publisher, Socket
from tests.support.history_reading import Reading
from tests.support.history_world import CHANNEL, MSG_TIMEOUT_S, TOPIC, World, world
from tests.support.subscriber_client import sub_url

CONSUMERS = 5
PUBLISHERS = 2
_FAR_BEHIND = 300
"""As many messages may wait for their FIN before publishers wait too."""
_CALM = 150
"""So many events are seen between two faults, if they come in time."""
_MOMENT_S = 0.7
_RUNS_DRY_WITHIN_S = 30.0

Fault: TypeAlias = Callable[[World, Random], Awaitable[None]]


async def _a_moment(place: World) -> None:
    await place.history.grows(_CALM, within_s=_MOMENT_S)


async def clients_are_cut(place: World, _chance: Random) -> None:
    """The port before the gateway is closed, and everything on it."""
    await place.client_way.go_down()
    await place.history.grows(20, within_s=0.2)
    await place.client_way.come_back()


async def clients_are_slow(place: World, chance: Random) -> None:
    """Everything between client and gateway is late."""
    await place.client_way.delay(chance.choice([20, 150]), stream="upstream")
    await place.client_way.delay(chance.choice([20, 150]), stream="downstream")
    await _a_moment(place)
    await place.client_way.heal()


async def clients_fall_silent(place: World, _chance: Random) -> None:
    """Nothing comes through, and nothing says so, until a ping is missed."""
    await place.client_way.fall_silent()
    await place.history.grows(10_000, within_s=1.8)
    await place.client_way.heal()


async def clients_are_reset(place: World, chance: Random) -> None:
    """Connections end in the middle of a frame, by RST."""
    await place.client_way.end_by_reset()
    await place.client_way.cut_after(chance.randint(500, 5_000))
    await _a_moment(place)
    await place.client_way.heal()


async def the_broker_is_cut_off(place: World, _chance: Random) -> None:
    """Its port is closed, and everything on it."""
    await place.broker_way.go_down()
    await place.history.grows(20, within_s=0.3)
    await place.broker_way.come_back()


async def the_broker_is_slow(place: World, chance: Random) -> None:
    """Everything between gateway and broker is late."""
    await place.broker_way.delay(chance.choice([20, 300]), stream="upstream")
    await place.broker_way.delay(chance.choice([20, 300]), stream="downstream")
    await _a_moment(place)
    await place.broker_way.heal()


async def the_broker_falls_silent(place: World, _chance: Random) -> None:
    """Nothing comes through, and nothing says so, until heartbeats are missed."""
    await place.broker_way.fall_silent()
    await place.history.grows(10_000, within_s=2.3)
    await place.broker_way.heal()


async def the_broker_is_reset(place: World, chance: Random) -> None:
    """Connections end in the middle of a command or a frame, by RST."""
    await place.broker_way.end_by_reset()
    stream = chance.choice(["upstream", "downstream"])
    if stream == "upstream":
        await place.broker_way.cut_after(chance.randint(300, 3_000), stream="upstream")
    else:
        await place.broker_way.cut_after(chance.randint(300, 3_000), stream="downstream")
    await _a_moment(place)
    await place.broker_way.heal()


async def the_broker_is_killed(place: World, _chance: Random) -> None:
    """By SIGKILL; it comes back with its disk."""
    await place.end_broker(signal.SIGKILL)
    await place.broker.start()


async def the_broker_is_restarted(place: World, _chance: Random) -> None:
    """By SIGTERM; it comes back with everything."""
    await place.end_broker(signal.SIGTERM)
    await place.broker.start()


async def the_broker_is_away(place: World, _chance: Random) -> None:
    """By SIGTERM; it comes back with everything after three seconds, where it was."""
    await place.end_broker(signal.SIGTERM)
    await place.history.grows(10_000, within_s=3.0)
    await place.broker.start()


async def the_broker_is_stopped(place: World, chance: Random) -> None:
    """By SIGSTOP, for less or more than its clients bear."""
    place.broker.freeze()
    try:
        await place.history.grows(10_000, within_s=chance.choice([0.3, 2.5]))
    finally:
        place.broker.thaw()


async def the_gateway_is_killed(place: World, _chance: Random) -> None:
    """By SIGKILL, and started again."""
    await place.end_gateway(signal.SIGKILL)
    await place.start_gateway()


async def the_gateway_is_stopped(place: World, _chance: Random) -> None:
    """By SIGSTOP, for as long as it takes to miss a heartbeat and every ping."""
    place.freeze_gateway()
    try:
        await place.history.grows(10_000, within_s=1.5)
    finally:
        place.thaw_gateway()


async def the_gateway_drains(place: World, _chance: Random) -> None:
    """By SIGTERM, and is started again."""
    await place.end_gateway(signal.SIGTERM)
    await place.start_gateway()


FAULTS: tuple[Fault, ...] = (
    clients_are_cut,
    clients_are_slow,
    clients_fall_silent,
    clients_are_reset,
    the_broker_is_cut_off,
    the_broker_is_slow,
    the_broker_falls_silent,
    the_broker_is_reset,
    the_broker_is_killed,
    the_broker_is_restarted,
    the_broker_is_stopped,
    the_gateway_is_stopped,
    the_gateway_is_killed,
    the_gateway_drains,
)
_BEFORE_THE_GATEWAY = frozenset(
    {clients_are_cut, clients_are_slow, clients_fall_silent, clients_are_reset}
)
"""While others are on, what the gateway says to the broker may be lost."""


async def recorded(
    kind: str, seed: str, *, rounds: int = 1, faults: Sequence[Fault] = FAULTS
) -> list[Record]:
    """Return a history in which each of *faults* was on *rounds* times, in the order of *seed*."""
    chance = Random(seed)
    history = History(time.monotonic)
    names = Names()
    async with world(kind, history) as place:
        is_over = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            for number in range(CONSUMERS):
                consumer = Consumer(history, names, Random(f"{seed} consumer {number}"))
                group.create_task(consumer.live(place.url, until=is_over.is_set))
            for number in range(PUBLISHERS):
                publisher = Publisher(history, names, Random(f"{seed} publisher {number}"))
                group.create_task(
                    publisher.live(
                        place.url, until=is_over.is_set, has_room=_Backlog(history).has_room
                    )
                )
            for _ in range(rounds):
                await _break_everything(place, chance, faults)
            is_over.set()
        await _run_dry(place, names)
        history.add(await place.settles())
    return history.records


async def _break_everything(place: World, chance: Random, faults: Sequence[Fault]) -> None:
    for fault in chance.sample(faults, len(faults)):
        await _a_moment(place)
        if fault not in _BEFORE_THE_GATEWAY:
            place.history.add(WayBroken())
        await fault(place, chance)
        if fault not in _BEFORE_THE_GATEWAY:
            place.history.add(WayHealed())
    await _a_moment(place)


class _Backlog:
    """How many messages were acknowledged and not finished, nearly: each record is read once."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._read = 0
        self._count = 0

    def has_room(self) -> bool:
        """Whether there is room for more."""
        for record in self._history.records[self._read :]:
            match record.event:
                case Acknowledged(bodies):
                    self._count += len(bodies)
                case Passed(verb="FIN"):
                    self._count -= 1
                case _:
                    pass
        self._read = len(self._history.records)
        return self._count < _FAR_BEHIND


async def _run_dry(place: World, names: Names) -> None:
    """Finish everything that is left, over sockets without a way before the gateway."""
    history = place.history

    def is_dry() -> bool:
        reading = Reading(history.records, MSG_TIMEOUT_S)
        return not reading.owed() - reading.finished()

    with suppress(TimeoutError):
        async with asyncio.timeout(_RUNS_DRY_WITHIN_S):
            while True:
                with suppress(OSError, InvalidHandshake, ConnectionClosed):
                    await _finish_all(place, names, is_dry)
                    return


async def _finish_all(place: World, names: Names, is_dry: Callable[[], bool]) -> None:
    url = sub_url(f"http://{place.address}", TOPIC, CHANNEL, max_in_flight=100)
    async with connect(url, compression=None, proxy=None, ping_interval=None) as connection:
        socket = Socket(connection, place.history, names, Random(0))
        try:
            while True:
                try:
                    await socket.finish(within_s=0.6)
                except TimeoutError:
                    if is_dry():
                        return
        finally:
            await connection.close()
            place.history.add(Closed(socket.number, connection.close_code or 1006))
