"""
Twenty clients of nsq.js share a channel while gateway and network fail; nothing is lost.

What breaks, whom it hits and in which order is told by a seed. Other seeds, or longer runs:
``NSQ_GATEWAY_CROWD_SEEDS=one,two``, ``NSQ_GATEWAY_CROWD_ROUNDS=10``.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from tests.support.brokers.toxiproxy import toxiproxy
from tests.support.browser.module_crowd import CLIENTS, MSG_TIMEOUT_S, module_crowd
from tests.support.browser.module_crowd_check import (
    LARGEST_SHARE,
    SLICE_MS,
    AckConfirmed,
    AckResolved,
    AckSent,
    CloseResolved,
    ConnectAttempted,
    Doing,
    ErrorReported,
    MessageHandled,
    SocketLost,
    StateChanged,
    ViolationKind,
    crowd_violations,
    herd,
)
from tests.support.browser.module_crowd_run import ENOUGH, RESTARTS, CrowdResult, run_crowd
from tests.support.gateways.gateway import gateway_alone
from tests.support.history.check import violations
from tests.support.history.index import HistoryIndex

SEEDS = os.environ.get("NSQ_GATEWAY_CROWD_SEEDS", "cedar").split(",")
ROUNDS = int(os.environ.get("NSQ_GATEWAY_CROWD_ROUNDS", "1"))
FOUND_BY_ASKING = "the gateway does not answer"
"""Why the module leaves a connection that is half open."""


def summary(run: CrowdResult) -> str:
    """Return how hard it was."""
    counts = Counter(type(each.event).__name__ for each in run.records)
    counts.update(type(each).__name__ for each in run.doings)
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))


@pytest.mark.toxiproxy
@pytest.mark.node
@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize("seed", SEEDS)
async def test_a_crowd_finishes_everything_once(kind: str, seed: str, tmp_path: Path) -> None:
    """Each message is finished once by somebody, and clients come back spread out."""
    run = await run_crowd(kind, seed, rounds=ROUNDS)
    written = tmp_path / "crowd.txt"
    written.write_text("".join(f"{each}\n" for each in [*run.records, *run.doings]))
    print(f"seed {seed}: {summary(run)}; all of it: {written}")  # noqa: T201 - how hard it was

    owed = HistoryIndex(run.records, MSG_TIMEOUT_S).owed()
    assert len(owed) >= ENOUGH
    assert RESTARTS * ROUNDS == len(run.restarts)
    assert FOUND_BY_ASKING in run.silences
    assert [] == [str(each) for each in violations(run.records, msg_timeout_s=MSG_TIMEOUT_S)]
    assert [] == [str(each) for each in crowd_violations(run.doings, owed=owed)]
    for from_s, to_s in run.restarts:
        assert [] == [str(each) for each in herd(run.doings, from_s, to_s, clients=CLIENTS)]
    assert [1000] * CLIENTS == [each.code for each in run.doings if isinstance(each, CloseResolved)]
    assert ({0}, []) == (set(run.exits), run.errors)


# The checker: what is planted is found, and nothing else is


@pytest.mark.toxiproxy
@pytest.mark.node
@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize("has_jitter,expected", [(True, set()), (False, {ViolationKind.HERD})])
async def test_a_module_without_jitter_is_found(
    has_jitter: bool,  # noqa: FBT001
    expected: set[ViolationKind],
) -> None:
    """A crowd whose way is cut comes back spread out; one without jitter does not, and is found."""
    async with gateway_alone() as gateway, toxiproxy() as proxy:
        way = await proxy.in_front_of(gateway.address)
        urls = [f"http://{way.address}"] * CLIENTS
        async with module_crowd(urls, Random(0), has_jitter=has_jitter) as crowd:
            await crowd.all_connected(within_s=20)
            await way.go_down()
            await crowd.come_back(range(CLIENTS), since=0, within_s=20)
            found = list(herd(crowd.doings, 0.0, float("inf"), clients=CLIENTS))

    assert expected == {each.kind for each in found}


BODY = "m"
FIRST = MessageHandled(at_s=1.0, client=1, socket=1, delivery="a", attempts=1, body=BODY)
SECOND = MessageHandled(at_s=3.0, client=2, socket=2, delivery="b", attempts=2, body=BODY)
FIN = AckResolved(at_s=1.5, client=1, socket=1, delivery="a", verb="FIN", took=True)
LATE_FIN = replace(FIN, at_s=2.5)
SAID = AckSent(at_s=1.3, client=1, socket=1, verb="FIN", deliveries=("a",))
OK = AckConfirmed(at_s=1.4, client=1, socket=1, verb="FIN", deliveries=("a",))
LOST = SocketLost(at_s=2.0, client=1, socket=1, now_ms=99.0)
TOUCH, REQ = replace(FIN, verb="TOUCH"), replace(FIN, verb="REQ")
WAITS = StateChanged(at_s=2.0, client=1, state="waiting", now_ms=100.0, retry_in_ms=500.0)
IN_TIME = ConnectAttempted(at_s=2.5, client=1, now_ms=600.0)

SOUND: dict[str, list[Doing]] = {
    "finished": [FIRST, SAID, OK, FIN],
    "finished, and then lost": [FIRST, SAID, OK, FIN, LOST],
    "lost before it was sent": [FIRST, LOST, replace(LATE_FIN, took=False)],
    "lost before it was confirmed": [FIRST, SAID, LOST, replace(LATE_FIN, took=False), SECOND],
    "lost before it was finished": [
        FIRST,
        LOST,
        replace(LATE_FIN, took=False, is_lost=True),
        SECOND,
    ],
    "refused": [FIRST, SAID, replace(OK, deliveries=()), replace(FIN, took=False)],
    "given back": [FIRST, replace(SAID, verb="REQ"), replace(OK, verb="REQ"), REQ, SECOND],
    "touched": [
        FIRST,
        replace(SAID, verb="TOUCH"),
        replace(OK, verb="TOUCH"),
        TOUCH,
        replace(SAID, at_s=2.2),
        replace(OK, at_s=2.3),
        LATE_FIN,
    ],
    "finished twice": [FIRST, SAID, OK, FIN, replace(LATE_FIN, took=False)],
    "finished by somebody else": [FIRST, LOST, SECOND],
    "back in time": [FIRST, LOST, WAITS, IN_TIME],
    "back in time, and told late": [FIRST, LOST, WAITS, replace(IN_TIME, now_ms=599.0)],
    "an error that is planned": [
        FIRST,
        ErrorReported(at_s=1.5, client=1, code="Planned", message="this work fails"),
    ],
}

PLANTED: dict[str, tuple[ViolationKind, list[Doing]]] = {
    "nobody": (ViolationKind.NEVER_WORKED, []),
    "somebody, on something else": (ViolationKind.NEVER_WORKED, [replace(FIRST, body="n")]),
    "twice": (ViolationKind.WORKED_TWICE, [FIRST, SAID, OK, FIN, SECOND]),
    "twice, and somebody else was cut": (
        ViolationKind.WORKED_TWICE,
        [FIRST, replace(LOST, socket=3), SECOND],
    ),
    "twice, of one delivery": (
        ViolationKind.WORKED_TWICE,
        [FIRST, LOST, replace(SECOND, attempts=1)],
    ),
    "true, and silence": (ViolationKind.UNCONFIRMED, [FIRST, FIN]),
    "true, and sent only": (ViolationKind.UNCONFIRMED, [FIRST, SAID, FIN]),
    "true, and confirmed later": (ViolationKind.UNCONFIRMED, [FIRST, SAID, FIN, OK]),
    "true, and something else confirmed": (
        ViolationKind.UNCONFIRMED,
        [FIRST, SAID, replace(OK, verb="TOUCH"), FIN],
    ),
    "true, and lost": (ViolationKind.UNCONFIRMED, [FIRST, SAID, LOST, LATE_FIN]),
    "false, and confirmed": (
        ViolationKind.CONFIRMED_UNTAKEN,
        [FIRST, SAID, OK, replace(FIN, took=False)],
    ),
    "false": (ViolationKind.REFUSED, [FIRST, replace(FIN, took=False)]),
    "false behind a touch": (
        ViolationKind.REFUSED,
        [
            FIRST,
            replace(SAID, verb="TOUCH"),
            replace(OK, verb="TOUCH"),
            TOUCH,
            replace(LATE_FIN, took=False),
        ],
    ),
    "too early": (ViolationKind.TOO_EARLY, [FIRST, LOST, WAITS, replace(IN_TIME, now_ms=590.0)]),
    "a fault of the module": (
        ViolationKind.ERROR,
        [FIRST, ErrorReported(at_s=1.0, client=1, code="TypeError", message="x is not a function")],
    ),
}


@pytest.mark.parametrize("doings", SOUND.values(), ids=SOUND.keys())
def test_a_sound_crowd_is_found_to_be_sound(doings: list[Doing]) -> None:
    """What may happen is no fault."""
    assert [] == [str(each) for each in crowd_violations(doings, owed={BODY})]


@pytest.mark.parametrize("planted,doings", PLANTED.values(), ids=PLANTED.keys())
def test_a_planted_fault_is_found(planted: ViolationKind, doings: list[Doing]) -> None:
    """As what it is, whatever else it may be."""
    assert planted in {each.kind for each in crowd_violations(doings, owed={BODY})}


def test_everything_that_can_be_wrong_with_a_crowd_is_planted() -> None:
    """A kind that nothing is planted for would be found by nobody; of a herd there are tests."""
    assert {*ViolationKind} - {ViolationKind.HERD} == {planted for planted, _ in PLANTED.values()}


# The bound of a herd, beside the rule


def choices(chance: Random, away_s: float, *, jitter: bool) -> list[Doing]:
    """Return when a crowd that was cut at 0 means to come back, *away_s* long in vain."""
    doings: list[Doing] = []
    for client in range(CLIENTS):
        at_s, bound_ms = 0.0, 500.0
        while at_s <= away_s:
            retry_in_ms = bound_ms * (chance.random() if jitter else 1.0)
            told = StateChanged(at_s=at_s, client=client, state="waiting", retry_in_ms=retry_in_ms)
            doings.append(told)
            at_s += retry_in_ms / 1_000
            bound_ms = min(30_000.0, 2 * bound_ms)
    return doings


@pytest.mark.parametrize("away_s", [0.0, 1.0, 8.0])
def test_full_jitter_makes_no_herd(away_s: float) -> None:
    """Of 500 crowds that keep to the rule none is found, however long the gateway was away."""
    for seed in range(500):
        doings = choices(Random(seed), away_s, jitter=True)
        assert [] == list(herd(doings, 0.0, away_s, clients=CLIENTS))


@pytest.mark.parametrize("away_s", [0.0, 1.0, 8.0])
def test_backoff_without_jitter_makes_a_herd(away_s: float) -> None:
    """Who waits longer after each failure, and all equally long, comes back together."""
    doings = choices(Random(0), away_s, jitter=False)
    assert {ViolationKind.HERD} == {
        each.kind for each in herd(doings, 0.0, away_s, clients=CLIENTS)
    }


@pytest.mark.parametrize("extra,expected", [(0, set()), (1, {ViolationKind.HERD})])
def test_a_herd_is_more_than_its_share_within_a_slice(
    extra: int, expected: set[ViolationKind]
) -> None:
    """Clients are counted, not tries, and only those of one slice."""
    together = int(LARGEST_SHARE * CLIENTS) + extra
    step_ms = SLICE_MS / CLIENTS
    doings: list[Doing] = [
        StateChanged(at_s=0.0, client=client, state="waiting", retry_in_ms=delay_ms)
        for client in range(CLIENTS)
        for delay_ms in (
            [client * step_ms] * 3 if client < together else [1_000 + client * SLICE_MS]
        )
    ]
    assert expected == {each.kind for each in herd(doings, 0.0, 1.0, clients=CLIENTS)}
