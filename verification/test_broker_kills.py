"""
A broker with a data path is killed again and again: it loses nothing that it has acknowledged.

Other seeds, or more kills: ``NSQ_GATEWAY_KILL_SEEDS=one,two``, ``NSQ_GATEWAY_KILLS=100``.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from gateway.broker.store_check import Report, check_store
from tests.support.brokers.killable_broker import KillableBroker, killable_broker
from tests.support.brokers.v2_peer import (
    ERROR,
    HEARTBEAT,
    MESSAGE,
    OK,
    Frame,
    V2Peer,
    identify,
    length_prefixed,
    multi_publish,
    publish,
    v2_peer,
)

SEEDS = os.environ.get("NSQ_GATEWAY_KILL_SEEDS", "ash,beech,cedar,elm").split(",")
KILLS = int(os.environ.get("NSQ_GATEWAY_KILLS", "25"))
TOPIC, CHANNELS, PUBLISHERS = b"orders", (b"a", b"b"), 3
_LOST = (ConnectionError, EOFError, OSError)


class History:
    """What clients know: what is acknowledged, and what is finished for good."""

    def __init__(self, seed: str) -> None:
        self.random = random.Random(seed)
        self.acknowledged: set[bytes] = set()
        self.finished: dict[bytes, set[bytes]] = {channel: set() for channel in CHANNELS}
        """FINs that were on disk before a later OK on the same connection."""
        self.sent: dict[bytes, set[bytes]] = {channel: set() for channel in CHANNELS}
        """Messages with a FIN whose outcome nobody knows: the broker was killed, or it is open."""
        self.given_back: list[str] = []
        """Violations: messages that came back although their FIN was on disk."""
        self.is_ending = False
        self.progress = asyncio.Condition()

    async def changed(self) -> None:
        """Wake who waits for progress."""
        async with self.progress:
            self.progress.notify_all()

    async def wait_for(self, is_reached: Callable[[], bool]) -> None:
        """Wait until *is_reached*."""
        async with self.progress:
            await self.progress.wait_for(is_reached)

    def has_acknowledged(self, goal: int) -> bool:
        """Return whether *goal* messages are acknowledged."""
        return len(self.acknowledged) >= goal

    def is_all_finished(self) -> bool:
        """Return whether a client of each channel has had all that was acknowledged."""
        return all(
            self.acknowledged <= self.finished[channel] | self.sent[channel] for channel in CHANNELS
        )


async def reconnecting(broker: KillableBroker, work: Callable[[V2Peer], Awaitable[None]]) -> None:
    """Do *work* on a connection, and on a new one after each that is lost."""
    while True:
        with suppress(*_LOST):
            async with v2_peer(broker.tcp_address) as peer:
                await work(peer)
                return


async def answer(peer: V2Peer) -> Frame:
    """Return the next frame that is not a heartbeat."""
    while (frame := await peer.frame()) == HEARTBEAT:
        pass
    return frame


async def publish_until_the_end(peer: V2Peer, history: History, numbers: Iterator[int]) -> None:
    """Publish single messages, lists and deferred ones; note those that are acknowledged."""
    while not history.is_ending:
        bodies = [b"%d" % next(numbers) for _ in range(history.random.choice([1, 1, 2, 30]))]
        if len(bodies) > 1:
            command = multi_publish(TOPIC, *bodies)
        elif history.random.random() < 0.2:
            command = b"DPUB %b %d\n" % (TOPIC, history.random.randrange(300))
            command += length_prefixed(bodies[0])
        else:
            command = publish(TOPIC, bodies[0])
        await peer.send(command)
        assert await answer(peer) == OK
        history.acknowledged.update(bodies)
        await history.changed()


async def consume(peer: V2Peer, history: History, channel: bytes) -> None:
    """Finish most messages, requeue or leave some; note which FINs are on disk."""
    await peer.send(identify(b'{"msg_timeout": 1000, "output_buffer_size": -1}'))
    assert await answer(peer) == OK
    await peer.send(b"SUB %b %b\nRDY 40\n" % (TOPIC, channel))
    assert await answer(peer) == OK
    # FINs by message, up to each publish that says whether they are on disk. A message that timed
    # out on its way here is finished twice: one of the FINs fails.
    fins: deque[Counter[tuple[bytes, bytes]]] = deque([Counter()])
    done = frozenset(history.finished[channel])
    while True:
        kind, data = await answer(peer)
        if kind == ERROR:
            history.sent[channel] -= subtract(fins, data.split(b" ")[2])
        elif kind == MESSAGE:
            if data[26:] in done:
                history.given_back.append(f"{data[26:]!r} on {channel!r}")
            await handle(peer, history, data, fins[-1])
            history.sent[channel].update(body for _, body in fins[-1])
            if len(fins[-1]) >= 15 or history.is_ending:
                await peer.send(publish(b"marks", b"x"))
                fins.append(Counter())
        else:
            # The OK of the publish that follows the FINs: they are in its commit, or before it.
            history.finished[channel].update(body for _, body in fins.popleft())
            await history.changed()


def subtract(fins: Sequence[Counter[tuple[bytes, bytes]]], message_id: bytes) -> set[bytes]:
    """Remove the oldest FIN of the message, which failed; return its body if there is no other."""
    for each in fins:
        for key in [key for key in each if key[0] == message_id]:
            each[key] -= 1
            if not each[key]:
                del each[key]
            is_last = not any(key in other for other in fins)
            return {key[1]} if is_last else set()
    return set()


async def handle(
    peer: V2Peer, history: History, data: bytes, fins: Counter[tuple[bytes, bytes]]
) -> None:
    """Finish, requeue or leave one message."""
    message_id, body = data[10:26], data[26:]
    choice = history.random.random()
    if choice < 0.9 or history.is_ending:
        fins[message_id, body] += 1
        await peer.send(b"FIN %b\n" % message_id)
    elif choice < 0.98:
        await peer.send(b"REQ %b %d\n" % (message_id, history.random.choice([0, 200])))


async def kill_again_and_again(broker: KillableBroker, history: History) -> None:
    """Kill the broker after a random number of acknowledged publishes, and start it again."""
    for _ in range(KILLS):
        goal = len(history.acknowledged) + history.random.choice([1, 5, 50, 400])
        await history.wait_for(partial(history.has_acknowledged, goal))
        await broker.kill()
        await broker.start()


@pytest.mark.parametrize("seed", SEEDS)
async def test_kills_lose_nothing_and_bring_nothing_back(seed: str, tmp_path: Path) -> None:
    history, numbers = History(seed), count()
    async with (
        killable_broker("embedded", f"--data-path={tmp_path}") as broker,
        asyncio.TaskGroup() as group,
    ):
        for channel in CHANNELS:
            # Each channel exists before the first message, so that it gets all of them.
            async with v2_peer(broker.tcp_address) as peer:
                await peer.send(b"SUB %b %b\n" % (TOPIC, channel))
                assert await answer(peer) == OK
        for _ in range(PUBLISHERS):
            group.create_task(
                reconnecting(
                    broker, partial(publish_until_the_end, history=history, numbers=numbers)
                )
            )
        consumers = [
            group.create_task(
                reconnecting(broker, partial(consume, history=history, channel=channel))
            )
            for channel in CHANNELS
        ]
        await kill_again_and_again(broker, history)
        history.is_ending = True
        await history.wait_for(history.is_all_finished)
        for task in consumers:
            task.cancel()
    *_, report = check_store(tmp_path)
    print(f"{len(history.acknowledged)} acknowledged, {KILLS} kills, {report}")  # noqa: T201
    assert isinstance(report, Report)
    assert [] == report.problems
    assert [] == history.given_back
