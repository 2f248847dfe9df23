"""
Responses are true whatever happens to nsqd: 200 is stored, 4xx and 503 are not.

Clients publish through a gateway to two nsqd behind a fault proxy; afterwards everything that the
two have on their disks is read back. What a fault waits for is so many answers, never a while.
"""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import TypeAlias

import pytest

from tests.support.brokers.nsqd import loses_messages_when_killed
from tests.support.brokers.restartable_nsqd import RestartableNsqd, restartable_nsqd
from tests.support.brokers.stored_messages import stored_messages
from tests.support.brokers.toxiproxy import FaultyNetwork, toxiproxy
from tests.support.gateways.gateway import ON_FREE_PORTS
from tests.support.gateways.programs import Program, nsq_gateway
from tests.support.http.publish_check import (
    LOST,
    FaultLog,
    Verdict,
    check_publishes,
    unknown_outcomes,
)
from tests.support.http.publish_crowd import PublishCrowd, publish_crowd
from tests.support.http.publish_requests import Mix
from tests.support.http.raw_http import exchange

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.nsqd,
    pytest.mark.toxiproxy,
]

ALL_PUBLISHES = 10_000
"""What all faults together are tried with."""
PUBLISH_TIMEOUT_MS = 1_500
DISCONNECTED = "publisher disconnected"
MANY = 100
TOPICS = ("a", "b", "c", "d")

# Nothing is in memory only, so that a SIGKILL loses nothing; the rest keeps a slow disk out of it.
DURABLE = ("--mem-queue-size=0", "--sync-every=1000000", "--sync-timeout=1h")
NSQD_MAX_MSG_BYTES = 60_000
GATEWAY_MAX_BYTES = 100_000
MIX = Mix(topics=TOPICS, too_big_bytes=150_000)


@dataclass(frozen=True, kw_only=True)
class Scene:
    """Clients, a gateway, and two nsqd, each at the end of a way of its own."""

    crowd: PublishCrowd
    gateway: Program
    nsqds: tuple[RestartableNsqd, RestartableNsqd]
    ways: tuple[FaultyNetwork, FaultyNetwork]
    faults: FaultLog


@asynccontextmanager
async def scene(*flags: str, mix: Mix = MIX) -> AsyncIterator[Scene]:
    """Let a crowd publish *mix* through a gateway with *flags* of its own."""
    faults = FaultLog()
    async with AsyncExitStack() as life:
        proxy = await life.enter_async_context(toxiproxy())
        one, other = [await _settled_nsqd(life) for _ in range(2)]
        ways = [await proxy.in_front_of(nsqd.tcp_address) for nsqd in (one, other)]
        gateway = await life.enter_async_context(
            nsq_gateway(
                "serve",
                *ON_FREE_PORTS,
                *(f"--nsqd-tcp-address={way.address}" for way in ways),
                f"--publish-timeout-ms={PUBLISH_TIMEOUT_MS}",
                f"--max-msg-size={GATEWAY_MAX_BYTES}",
                f"--max-body-size={GATEWAY_MAX_BYTES}",
                *flags,
            )
        )
        address = (await gateway.said(r"listening on http://(\S+) "))[1]
        crowd = await life.enter_async_context(publish_crowd(address, faults, mix))
        yield Scene(
            crowd=crowd,
            gateway=gateway,
            nsqds=(one, other),
            ways=(ways[0], ways[1]),
            faults=faults,
        )


async def _settled_nsqd(life: AsyncExitStack) -> RestartableNsqd:
    """Return an nsqd whose topics are all on its disk."""
    flags = (*DURABLE, f"--max-msg-size={NSQD_MAX_MSG_BYTES}")
    nsqd = await life.enter_async_context(restartable_nsqd(*flags))
    for topic in TOPICS:
        await exchange(nsqd.http_address, "POST", f"/topic/create?topic={topic}")
    await nsqd.end()
    await nsqd.start()
    return nsqd


async def kept_promise(scene: Scene) -> str:
    """Hold every answer against what is stored; return how hard it was."""
    for nsqd in scene.nsqds:
        if nsqd.nsqd.process.returncode is not None:
            await nsqd.start()
    stored = await stored_messages(*(each.nsqd for each in scene.nsqds))
    posted = scene.crowd.posted

    assert Verdict() == check_publishes(posted, stored, scene.faults)
    counts = {
        status: sum(publish.status == status for publish in posted)
        for status in sorted({publish.status for publish in posted})
    }
    present, absent = unknown_outcomes(posted, stored)
    return f"{counts}; of those unknown {present} messages are there and {absent} are not"


# What happens to nsqd

Fault: TypeAlias = Callable[[Scene], Awaitable[None]]


async def one_is_killed(scene: Scene) -> None:
    """By SIGKILL, and started again."""
    await _killed(scene, scene.nsqds[:1], sees=200)


async def both_are_killed(scene: Scene) -> None:
    """So that nothing can be published for a while."""
    await _killed(scene, scene.nsqds, sees=503)


async def _killed(scene: Scene, nsqds: Sequence[RestartableNsqd], *, sees: int) -> None:
    for nsqd in nsqds:
        await nsqd.kill()
    await scene.crowd.sees(MANY, sees)
    for nsqd in nsqds:
        await nsqd.settle()
        await nsqd.start()


async def one_goes_for_good(scene: Scene) -> None:
    await scene.nsqds[0].kill()
    await scene.nsqds[0].settle()


async def one_is_restarted(scene: Scene) -> None:
    """In its own way: what comes meanwhile is answered with "exiting"."""
    await scene.nsqds[0].end()
    await scene.crowd.sees(MANY, 200)
    await scene.nsqds[0].start()


async def one_is_stopped(scene: Scene) -> None:
    """By SIGSTOP, and goes on when somebody has been told that nobody knows."""
    await _stopped(scene, scene.nsqds[:1])


async def both_are_stopped(scene: Scene) -> None:
    """So that everybody waits in vain."""
    await _stopped(scene, scene.nsqds)


async def _stopped(scene: Scene, nsqds: Sequence[RestartableNsqd]) -> None:
    for nsqd in nsqds:
        nsqd.nsqd.process.send_signal(signal.SIGSTOP)
    try:
        await scene.crowd.sees(1, 504)
    finally:
        for nsqd in nsqds:
            nsqd.nsqd.process.send_signal(signal.SIGCONT)


async def one_is_refused(scene: Scene) -> None:
    """Its port is closed, and everything on it."""
    await _refused(scene, scene.ways[:1], sees=200)


async def both_are_refused(scene: Scene) -> None:
    """There is no way to any nsqd."""
    await _refused(scene, scene.ways, sees=503)


async def _refused(scene: Scene, ways: Sequence[FaultyNetwork], *, sees: int) -> None:
    for way in ways:
        await way.go_down()
    await scene.crowd.sees(MANY, sees)
    for way in ways:
        await way.come_back()


async def commands_are_cut(scene: Scene) -> None:
    """In the middle of what is published."""
    await scene.ways[0].cut_after(8_001, stream="upstream")
    await scene.gateway.said(DISCONNECTED)
    await scene.crowd.sees(3 * MANY)
    await scene.ways[0].heal()


async def commands_are_cut_by_reset(scene: Scene) -> None:
    await scene.ways[0].end_by_reset()
    await commands_are_cut(scene)


async def answers_are_cut(scene: Scene) -> None:
    """In the middle of an OK; the message is stored."""
    await scene.ways[0].cut_after(405)  # an OK has 10 bytes, what is said before it less than 300
    await scene.gateway.said(DISCONNECTED)
    await scene.crowd.sees(3 * MANY)
    await scene.ways[0].heal()


async def answers_are_late(scene: Scene) -> None:
    for way in scene.ways:
        await way.delay(PUBLISH_TIMEOUT_MS // 10)
    await scene.crowd.sees(MANY, 200)
    for way in scene.ways:
        await way.heal()


async def one_is_slow(scene: Scene) -> None:
    """It takes a command byte by byte, and longer than anybody waits."""
    await scene.ways[0].narrow(1, stream="upstream")
    await scene.crowd.sees(1, 504)
    await scene.ways[0].heal()


async def one_falls_silent(scene: Scene) -> None:
    """Nothing comes through, and nothing says so."""
    await scene.ways[0].fall_silent()
    await scene.crowd.sees(1, 504)
    await scene.ways[0].heal()


KILLS: tuple[Fault, ...] = (one_is_killed, both_are_killed, one_goes_for_good)
FAULTS: tuple[Fault, ...] = (
    *KILLS,
    one_is_restarted,
    one_is_stopped,
    both_are_stopped,
    one_is_refused,
    both_are_refused,
    commands_are_cut,
    commands_are_cut_by_reset,
    answers_are_cut,
    answers_are_late,
    one_is_slow,
    one_falls_silent,
)
PUBLISHES = -(-ALL_PUBLISHES // len(FAULTS))


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(
            fault, id=fault.__name__, marks=loses_messages_when_killed if fault in KILLS else ()
        )
        for fault in FAULTS
    ],
)
async def test_the_responses_are_true_when(fault: Fault) -> None:
    """Every 200 is stored once, no 4xx or 503 is; without a fault all is 200."""
    async with scene() as scene_:
        crowd = scene_.crowd
        await crowd.has_seen(PUBLISHES // 3)
        with scene_.faults.fault():
            await fault(scene_)
            await crowd.recovers()
        await crowd.has_seen(PUBLISHES)
        await crowd.ends()

        print(await kept_promise(scene_))  # noqa: T201 - how hard it was


async def test_the_responses_are_true_under_overload() -> None:
    """What has no room is 503 OVERLOADED, and not stored; there is no calm here."""
    async with scene(f"--publish-buffer-bytes={GATEWAY_MAX_BYTES}") as scene_:
        crowd = scene_.crowd
        with scene_.faults.fault():
            for way in scene_.ways:
                await way.narrow(200, stream="upstream")
            await crowd.sees(MANY, 503)
            await crowd.sees(MANY, 200)
            await crowd.ends()

        print(await kept_promise(scene_))  # noqa: T201 - how hard it was
    assert any(publish.token == "OVERLOADED" for publish in crowd.posted)


async def test_the_answers_are_true_when_nsqd_refuses_some() -> None:
    """
    A refused message is not stored, and what came with it in a batch is, once, or nobody knows.

    nsqd closes behind a refusal without reading on, so that what it says may be lost on the way:
    then its outcome and that of its batch is unknown. The gateway asks nsqd for its limits so that
    this does not happen; here it has not been told where.
    """
    async with scene(mix=replace(MIX, refused_by_nsqd_bytes=NSQD_MAX_MSG_BYTES + 1)) as scene_:
        crowd = scene_.crowd
        with scene_.faults.fault():
            await crowd.sees(MANY // 10, 413)
            await crowd.has_seen(PUBLISHES)
            await crowd.ends()

        print(await kept_promise(scene_))  # noqa: T201 - how hard it was


async def test_the_responses_are_true_while_the_gateway_drains() -> None:
    """What it has taken is answered; who comes later finds nobody, which explains itself."""
    async with scene() as scene_:
        await scene_.crowd.has_seen(PUBLISHES // 3)
        with scene_.faults.fault(503, 504, LOST):
            scene_.gateway.signal(signal.SIGTERM)
            assert 0 == await scene_.gateway.ended()
            await scene_.crowd.ends()

        print(await kept_promise(scene_))  # noqa: T201 - how hard it was
