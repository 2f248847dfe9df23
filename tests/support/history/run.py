"""One history: faults in an order drawn from a seed, then recovery until all is finished."""

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

from tests.support.history.clients import Consumer, Publisher, Socket, UniqueIds
from tests.support.history.events import (
    AckForwarded,
    BrokerEnded,
    History,
    LinkBroken,
    LinkRestored,
    PublishAcknowledged,
    Record,
    SocketClosed,
)
from tests.support.history.index import HistoryIndex
from tests.support.history.system import (
    CHANNEL,
    MSG_TIMEOUT_S,
    TOPIC,
    HistorySystem,
    history_system,
)
from tests.support.websocket.subscriber_client import sub_url

CONSUMERS = 5
PUBLISHERS = 2
_FAR_BEHIND = 300
"""Maximum number of unfinished messages; publishers pause above it."""
_CALM = 150
"""Number of events between two faults, unless a timeout ends the wait."""
_MOMENT_S = 0.7
_RUNS_DRY_WITHIN_S = 30.0

Fault: TypeAlias = Callable[[HistorySystem, Random], Awaitable[None]]


async def _a_moment(place: HistorySystem) -> None:
    await place.history.grows(_CALM, within_s=_MOMENT_S)


async def clients_are_cut(place: HistorySystem, _chance: Random) -> None:
    """Close the port in front of the gateway, with all of its connections."""
    await place.client_way.go_down()
    await place.history.grows(20, within_s=0.2)
    await place.client_way.come_back()


async def clients_are_slow(place: HistorySystem, chance: Random) -> None:
    """Add latency between clients and gateway."""
    await place.client_way.delay(chance.choice([20, 150]), stream="upstream")
    await place.client_way.delay(chance.choice([20, 150]), stream="downstream")
    await _a_moment(place)
    await place.client_way.heal()


async def clients_fall_silent(place: HistorySystem, _chance: Random) -> None:
    """Drop all data silently until a ping times out."""
    await place.client_way.fall_silent()
    await place.history.grows(10_000, within_s=1.8)
    await place.client_way.heal()


async def clients_are_reset(place: HistorySystem, chance: Random) -> None:
    """Reset connections (RST) in the middle of a frame."""
    await place.client_way.end_by_reset()
    await place.client_way.cut_after(chance.randint(500, 5_000))
    await _a_moment(place)
    await place.client_way.heal()


async def the_broker_is_cut_off(place: HistorySystem, _chance: Random) -> None:
    """Close the broker's port, with all of its connections."""
    await place.broker_way.go_down()
    await place.history.grows(20, within_s=0.3)
    await place.broker_way.come_back()


async def the_broker_is_slow(place: HistorySystem, chance: Random) -> None:
    """Add latency between gateway and broker."""
    await place.broker_way.delay(chance.choice([20, 300]), stream="upstream")
    await place.broker_way.delay(chance.choice([20, 300]), stream="downstream")
    await _a_moment(place)
    await place.broker_way.heal()


async def the_broker_falls_silent(place: HistorySystem, _chance: Random) -> None:
    """Drop all data silently until heartbeats time out."""
    await place.broker_way.fall_silent()
    await place.history.grows(10_000, within_s=2.3)
    await place.broker_way.heal()


async def the_broker_is_reset(place: HistorySystem, chance: Random) -> None:
    """Reset connections (RST) in the middle of a command or a frame."""
    await place.broker_way.end_by_reset()
    stream = chance.choice(["upstream", "downstream"])
    if stream == "upstream":
        await place.broker_way.cut_after(chance.randint(300, 3_000), stream="upstream")
    else:
        await place.broker_way.cut_after(chance.randint(300, 3_000), stream="downstream")
    await _a_moment(place)
    await place.broker_way.heal()


async def the_broker_is_killed(place: HistorySystem, _chance: Random) -> None:
    """Kill the broker (SIGKILL), and restart it with its disk."""
    await place.end_broker(signal.SIGKILL)
    await place.broker.start()


async def the_broker_is_restarted(place: HistorySystem, _chance: Random) -> None:
    """Stop it (SIGTERM); it restarts with all messages."""
    await place.end_broker(signal.SIGTERM)
    await place.broker.start()


async def the_broker_is_away(place: HistorySystem, _chance: Random) -> None:
    """Stop it (SIGTERM); it restarts at the same address after three seconds."""
    await place.end_broker(signal.SIGTERM)
    await place.history.grows(10_000, within_s=3.0)
    await place.broker.start()


async def the_broker_is_stopped(place: HistorySystem, chance: Random) -> None:
    """Suspend it (SIGSTOP), for less or more than its clients tolerate."""
    place.broker.freeze()
    try:
        await place.history.grows(10_000, within_s=chance.choice([0.3, 2.5]))
    finally:
        place.broker.thaw()


async def the_gateway_is_killed(place: HistorySystem, _chance: Random) -> None:
    await place.end_gateway(signal.SIGKILL)
    await place.start_gateway()


async def the_gateway_is_stopped(place: HistorySystem, _chance: Random) -> None:
    """Suspend it (SIGSTOP) until heartbeats and pings time out."""
    place.freeze_gateway()
    try:
        await place.history.grows(10_000, within_s=1.5)
    finally:
        place.thaw_gateway()


async def the_gateway_drains(place: HistorySystem, _chance: Random) -> None:
    """Stop the gateway (SIGTERM), and restart it."""
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
"""Faults without loss of the gateway's commands to the broker."""


async def record_history(
    kind: str, seed: str, *, rounds: int = 1, faults: Sequence[Fault] = FAULTS
) -> list[Record]:
    """Return a history in which each of *faults* happened *rounds* times, in *seed*'s order."""
    chance = Random(seed)
    history = History(time.monotonic)
    names = UniqueIds()
    async with history_system(kind, history) as place:
        is_over = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            for number in range(CONSUMERS):
                consumer = Consumer(history, names, Random(f"{seed} consumer {number}"))
                group.create_task(consumer.live(place.url, until=is_over.is_set))
            for number in range(PUBLISHERS):
                publisher = Publisher(history, names, Random(f"{seed} publisher {number}"))
                group.create_task(
                    publisher.live(
                        place.url, until=is_over.is_set, has_room=Backlog(history).has_room
                    )
                )
            for _ in range(rounds):
                await _break_everything(place, chance, faults)
            is_over.set()
        await _run_dry(place, names)
        history.add(await place.settles())
    return history.records


async def _break_everything(place: HistorySystem, chance: Random, faults: Sequence[Fault]) -> None:
    for fault in chance.sample(faults, len(faults)):
        await _a_moment(place)
        if fault not in _BEFORE_THE_GATEWAY:
            place.history.add(LinkBroken())
        await fault(place, chance)
        if fault not in _BEFORE_THE_GATEWAY:
            place.history.add(LinkRestored())
    await _a_moment(place)


class Backlog:
    """Count messages acknowledged, and those not finished; each record is read once."""

    def __init__(self, history: History, limit: int = _FAR_BEHIND) -> None:
        self._history = history
        self._limit = limit
        self._read = 0
        self._acknowledged = 0
        self._finished = 0

    def has_room(self) -> bool:
        """Return whether more messages may be published."""
        self._read_on()
        return self._acknowledged - self._finished < self._limit

    def has_acknowledged(self, count: int) -> bool:
        """Return whether *count* messages are acknowledged."""
        self._read_on()
        return self._acknowledged >= count

    def _read_on(self) -> None:
        for record in self._history.records[self._read :]:
            match record.event:
                case PublishAcknowledged(bodies):
                    self._acknowledged += len(bodies)
                case AckForwarded(verb="FIN"):
                    self._finished += 1
                case BrokerEnded(kept):
                    # The others died with it: nobody will finish them.
                    self._finished = self._acknowledged - len(kept)
                case _:
                    pass
        self._read = len(self._history.records)


async def _run_dry(place: HistorySystem, names: UniqueIds) -> None:
    """Finish all remaining messages, over sockets without a proxy."""
    history = place.history

    def is_dry() -> bool:
        reading = HistoryIndex(history.records, MSG_TIMEOUT_S)
        return not reading.owed() - reading.finished()

    with suppress(TimeoutError):
        async with asyncio.timeout(_RUNS_DRY_WITHIN_S):
            while True:
                with suppress(OSError, InvalidHandshake, ConnectionClosed):
                    await _finish_all(place, names, is_dry)
                    return


async def _finish_all(place: HistorySystem, names: UniqueIds, is_dry: Callable[[], bool]) -> None:
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
            place.history.add(SocketClosed(socket.number, connection.close_code or 1006))
