"""
Random requests to POST /pull and POST /ack: each has a documented answer, and none touches a lease.

More of them: ``NSQ_GATEWAY_PULL_FUZZ=100000``; another order: ``NSQ_GATEWAY_PULL_FUZZ_SEED=birch``.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest

from tests.support.gateways.gateway import RunningGateway
from tests.support.gateways.pulls import pull_client

pytestmark = pytest.mark.asyncio(loop_scope="session")

REQUESTS = int(os.environ.get("NSQ_GATEWAY_PULL_FUZZ", "1500"))
SEED = os.environ.get("NSQ_GATEWAY_PULL_FUZZ_SEED", "alder")
HELD = 5
"""Leases that no request may touch."""
_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
_NUMBERS = (-1, 0, 1, 999, 1_000, 1_001, 30_000, 30_001, 2**31, 2**63, 2**64, 1.5, True)
_ODD: tuple[Any, ...] = (None, "", "x", [], {}, [[]], "\0", "größe", "😀" * 40, *_NUMBERS)
_ACK_CODES = {"E_INVALID", "E_FIN_FAILED", "E_REQ_FAILED", "E_TOUCH_FAILED", "LEASE_LOST"}


class Fuzzer:
    """Random leases, acks and queries, none of which is one that a client of ours would send."""

    def __init__(self, chance: Random, leases: list[str]) -> None:
        self._chance = chance
        self._leases = leases

    def lease(self) -> str:
        """Return a text that is no lease: one with a change, or anything."""
        chance = self._chance
        lease = chance.choice(self._leases)
        at = chance.randrange(len(lease))
        other = chance.choice(self._leases)
        changes: list[Callable[[], str]] = [
            lambda: lease[:at],
            lambda: lease[at:],
            lambda: lease[:at] + chance.choice(_ALPHABET) + lease[at:],
            lambda: lease[:at] + chance.choice(_ALPHABET) + lease[at + 1 :],
            lambda: lease[:at] + other[at:],
            lambda: lease + other,
            lambda: lease + "=" * chance.randint(1, 3),
            lease.swapcase,
            lambda: "".join(chance.choices(_ALPHABET, k=chance.randint(0, 600))),
            lambda: "".join(map(chr, chance.choices(range(0xD7FF), k=chance.randint(0, 40)))),
        ]
        while (changed := chance.choice(changes)()) in self._leases:
            pass
        return changed

    def ack(self) -> bytes:
        """Return the body of an ack: of leases that are none, of another shape, or no JSON."""
        chance = self._chance
        ack: dict[str, Any] = {
            "fin": [self.lease() for _ in range(chance.choice([0, 1, 1, 20]))],
            "req": [{"lease": self.lease(), "timeout_ms": chance.choice(_NUMBERS)}],
            "touch": [{"lease": self.lease(), "lease_ms": chance.choice(_NUMBERS)}],
        }
        for name in chance.sample(list(ack), chance.randint(0, 2)):
            del ack[name]
        if ack and chance.random() < 0.3:
            ack[chance.choice(list(ack))] = chance.choice(_ODD)
        body = json.dumps(chance.choice([ack, ack, ack, [ack], chance.choice(_ODD)])).encode()
        if chance.random() < 0.2:
            at = chance.randrange(len(body) + 1)
            body = body[:at] + chance.randbytes(chance.randint(0, 3)) + body[at + 1 :]
        return body

    def pull(self, topic: str) -> str:
        """Return the query of a pull of another topic, in which some parameter is odd."""
        chance = self._chance
        query: dict[str, Any] = {
            "topic": f"{topic}-other",
            "channel": "c",
            "max": chance.choice(_NUMBERS),
            "wait_ms": chance.choice([0, 1, 30_001, -1, "1.0", "0x1", "\uff11"]),
            "lease_ms": chance.choice(_NUMBERS),
        }
        for name in chance.sample(list(query), chance.randint(0, 3)):
            query[name] = chance.choice(_ODD)
        for name in chance.sample(list(query), chance.randint(0, 2)):
            del query[name]
        text = urlencode(query)
        at = chance.randrange(len(text) + 1)
        return text if chance.random() < 0.8 else text[:at] + chance.choice("%&=+;#?") + text[at:]


async def test_random_pulls_and_acks_have_documented_answers(
    gateway: RunningGateway, topic: str
) -> None:
    """And the leases that they imitate can be answered afterwards, all of them."""
    names = {"topic": topic, "channel": "c"}
    (await gateway.http.post("/channel/create", params=names)).raise_for_status()
    for number in range(HELD):
        await gateway.publish(topic, b"%d" % number)
    statuses: Counter[int] = Counter()
    async with pull_client(gateway.url) as client:
        held: list[str] = []
        while len(held) < HELD:
            query = {"max": HELD, "wait_ms": 5_000, "lease_ms": 600_000}
            held += [each["lease"] for each in await client.pull(topic, "c", **query)]
        fuzzer = Fuzzer(Random(SEED), held)
        for number in range(REQUESTS):
            if number % 3:
                body = fuzzer.ack()
                answer = await client.http.post("/ack", content=body)
            else:
                body = fuzzer.pull(topic).encode()
                answer = await client.http.post(f"/pull?{body.decode()}")
            statuses[answer.status_code] += 1
            check(answer, body)
        result = await client.ack(fin=held)

    print(f"seed {SEED}: {statuses}")  # noqa: T201 - what was answered
    assert {200, 400} == set(statuses)
    assert {"done": HELD, "refused": []} == result
    assert (0, 0, 0) == await gateway.counts_become(topic, "c", (0, 0, 0))


def check(answer: httpx.Response, request: bytes) -> None:
    """Check one answer: nothing is done, or refused with a code; or a problem that says why."""
    content = answer.json()
    if answer.status_code == httpx.codes.OK:
        assert not content.get("messages"), request
        assert not content.get("done"), request
        assert {each["code"] for each in content.get("refused", ())} <= _ACK_CODES, request
    else:
        assert content["detail"], request
        assert content["status"] == answer.status_code, request
