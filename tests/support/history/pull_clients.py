"""Clients of a history that pull, over a new connection for each request, driven by a seed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import NamedTuple

import httpx

from tests.support.history.clients import UniqueIds
from tests.support.history.events import (
    AckAttempted,
    AckResponse,
    History,
    MessageDelivered,
    OwnerMissed,
)
from tests.support.history.system import CHANNEL, TOPIC
from tests.support.websocket.subscriber_client import Json

LEASES_S = (1.0, 3.0, 6.0)
"""Lengths of leases: below nsqd's message timeout, and above it, so that the gateway touches."""
_MISSED = ("LEASE_LOST", "OUTCOME_UNKNOWN")
_TIMEOUT_S = 10.0


class _Lease(NamedTuple):
    text: str
    lease_s: float


class PullClient:
    """One client after another at the same place; each pulls, and acks what it got."""

    def __init__(
        self, history: History, names: UniqueIds, chance: Random, *, url: str, is_calm: bool = False
    ) -> None:
        """*is_calm*: FIN every message at once."""
        self._history = history
        self._names = names
        self._chance = chance
        self._url = url
        self._is_calm = is_calm
        self._life: asyncio.Task[None] | None = None

    def kill(self) -> None:
        """End the present client, whatever it is waiting for; another one follows it."""
        if self._life is not None:
            self._life.cancel()

    async def live(self, until: Callable[[], bool]) -> None:
        """Let clients pull one after another until *until* returns true."""
        try:
            while not until():
                self._life = asyncio.create_task(self._pull_on(until))
                with suppress(asyncio.CancelledError):
                    await asyncio.shield(self._life)
                await asyncio.wait([self._life])
        finally:
            self.kill()

    async def _pull_on(self, until: Callable[[], bool]) -> None:
        client = self._names.number()
        async with _client(self._url) as http, asyncio.TaskGroup() as group:
            while not until():
                try:
                    leases = await self._pull(http, client)
                except httpx.HTTPError:
                    # Not there now. What may change that is the next thing that happens.
                    await self._history.grows(1, within_s=0.1)
                    continue
                for request in self._answers(leases):
                    # Beside the next pull, as several at a time.
                    group.create_task(self._ack(http, client, leases, request))

    async def _pull(self, http: httpx.AsyncClient, client: int) -> dict[str, _Lease]:
        """Pull, and return the leases by delivery."""
        lease_s = self._chance.choice(LEASES_S)
        query: dict[str, str | int] = {
            "topic": TOPIC,
            "channel": CHANNEL,
            "max": self._chance.choice([1, 100, 200, 400]),
            "wait_ms": self._chance.choice([200, 1_000, 5_000]),
            "lease_ms": int(lease_s * 1_000),
        }
        answer = (await http.post("/pull", params=query)).raise_for_status()
        leases: dict[str, _Lease] = {}
        for each in answer.json()["messages"]:
            delivery = f"{each['id']}-{self._names.number()}"
            leases[delivery] = _Lease(each["lease"], lease_s)
            self._history.add(
                MessageDelivered(client, delivery, each["attempts"], each["body"], lease_s)
            )
        return leases

    def _answers(self, leases: dict[str, _Lease]) -> list[dict[str, list[str]]]:
        """Return acks of a batch, each as deliveries by verb; some are left, some acked twice."""
        deliveries = list(leases)
        if self._is_calm:
            return [{"FIN": deliveries}] if deliveries else []
        self._chance.shuffle(deliveries)
        acks: list[dict[str, list[str]]] = []
        while deliveries:
            some = deliveries[: self._chance.choice([1, 100, 200, 400])]
            del deliveries[: len(some)]
            by_verb: dict[str, list[str]] = {"FIN": [], "REQ": [], "TOUCH": []}
            for each in some:
                verbs: tuple[str, ...] = self._chance.choices(
                    [("FIN",), ("REQ",), ("TOUCH",), (), ("REQ", "FIN")], [88, 4, 3, 3, 2]
                )[0]
                for verb in verbs:
                    by_verb[verb].append(each)
            acks.append(by_verb)
            if self._chance.random() < 0.05:
                acks.append({"FIN": by_verb["FIN"]})
        return acks

    async def _ack(
        self,
        http: httpx.AsyncClient,
        client: int,
        leases: dict[str, _Lease],
        asked: dict[str, list[str]],
    ) -> None:
        refs = {
            (verb, each): f"a{self._names.number()}"
            for verb, deliveries in asked.items()
            for each in deliveries
        }
        if not refs:
            return
        for (verb, each), ref in refs.items():
            self._history.add(AckAttempted(client, verb, (each,), ref))
        began_s = time.monotonic()
        try:
            answer = (await http.post("/ack", json=_body(asked, leases))).raise_for_status()
        except httpx.HTTPError:
            return  # nobody knows
        took_s = time.monotonic() - began_s
        # Nothing says which verb was refused: the client knows what it asked for.
        refused: dict[str, list[str]] = {}
        for each in answer.json()["refused"]:
            refused.setdefault(each["lease"], []).append(each["code"])
        for (verb, each), ref in refs.items():
            codes = refused.get(leases[each].text, [])
            missed = [code for code in codes if code in _MISSED]
            own = f"E_{verb}_FAILED" in codes
            for code in missed[:1]:
                self._history.add(OwnerMissed(client, each, code, took_s))
            if own or "LEASE_LOST" in codes:
                self._history.add(AckResponse(client, verb, ref, (each,)))
            elif not missed:
                self._history.add(AckResponse(client, verb, ref))


def _body(asked: dict[str, list[str]], leases: dict[str, _Lease]) -> Json:
    touched = [leases[each] for each in asked.get("TOUCH", ())]
    return {
        "fin": [leases[each].text for each in asked.get("FIN", ())],
        "req": [{"lease": leases[each].text, "timeout_ms": 0} for each in asked.get("REQ", ())],
        "touch": [{"lease": each.text, "lease_ms": int(each.lease_s * 1_000)} for each in touched],
    }


def _client(url: str) -> httpx.AsyncClient:
    """Return a client that opens a connection for each request, as curl does."""
    return httpx.AsyncClient(
        base_url=url,
        timeout=_TIMEOUT_S,
        trust_env=False,
        limits=httpx.Limits(max_keepalive_connections=0),
        headers={"Connection": "close"},
    )
