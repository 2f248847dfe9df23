"""
Asks NSQ again whether the secrets of open sockets still hold.

nsqd asks its auth server when a subscription begins, and never again. So at intervals a fresh
connection says AUTH and SUB as the socket did, at RDY 0, and goes. nsqd does not tell a refusal
from an auth server that is down: only two refusals in a row, an interval apart, end a socket.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from gateway.client.connection import BrokerConnection, ConnectionOptions
from gateway.client.opening import open_connection
from gateway.errors import BrokerRefused, BrokerUnreachable
from gateway.protocol.frames import ErrorFrame, Message
from gateway.secret import Secret
from gateway.telemetry import counter, get_logger, spawn

logger = get_logger()

_CHECKS = counter("secret_checks_total", "Looks at whether a secret still holds.", ["result"])

_AT_ONCE = 32
_REFUSALS_TO_END = 2
_TRIES = 3
"""Brokers that are asked in one check while none of them answers."""
_MARGIN_S = 0.2
"""By so much two checks are further apart than an interval: what is down for one ends nobody."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """That a secret may subscribe; sockets with the same claim are looked at together."""

    secret: Secret
    topic: str
    channel: str


class Holder(Protocol):
    """An open socket that has subscribed with a secret."""

    def auth_addresses(self) -> Sequence[str]:
        """Return the brokers that it is subscribed on, of those that want AUTH."""

    def secret_refused(self, error: BrokerRefused) -> None:
        """Learn that the secret does not hold any more; end."""


@dataclass(eq=False)
class _Watched:
    """A claim, who holds it, and what was said of it so far."""

    claim: Claim
    connection: ConnectionOptions
    holders: dict[Holder, None] = field(default_factory=dict)
    addresses: Sequence[str] = ()
    """Where it is subscribed with AUTH, or was last: a broker that came back is asked too."""
    is_subscribed: bool = False
    """Whether it is; where it was, a SUB could make a channel that somebody has deleted."""
    turn: int = 0
    refusals: int = 0
    """In a row."""
    timer: asyncio.TimerHandle | None = None
    check: asyncio.Task[None] | None = None

    def next_addresses(self) -> Sequence[str]:
        """Return whom to ask, another one first each time: one that is ill is not believed."""
        now = next(iter(self.holders)).auth_addresses()
        self.is_subscribed = bool(now)
        self.addresses = now or self.addresses
        if not self.addresses:
            return ()
        self.turn = (self.turn + 1) % len(self.addresses)
        return [*self.addresses[self.turn :], *self.addresses[: self.turn]][:_TRIES]


class Rechecks:
    """
    Looks at every claim each *interval_s*, the first time at a random moment within one.

    Args:
        interval_s: Two of them and a second is what a secret that is revoked lasts at most.
        random: Gives numbers from 0 to below 1.
    """

    def __init__(self, interval_s: float, *, random: Callable[[], float]) -> None:
        self._period_s = interval_s + min(_MARGIN_S, interval_s / 5)
        self._random = random
        self._watched: dict[Claim, _Watched] = {}
        self._at_once = asyncio.Semaphore(_AT_ONCE)

    def __len__(self) -> int:
        """Return how many claims are looked at."""
        return len(self._watched)

    def watch(self, claim: Claim, connection: ConnectionOptions, holder: Holder) -> None:
        """Look after *holder*, which has just subscribed with *connection*, until `forget`."""
        watched = self._watched.get(claim)
        if watched is None:
            watched = self._watched[claim] = _Watched(claim, connection)
            self._schedule(watched, asyncio.get_running_loop().time(), self._random())
        watched.holders[holder] = None
        if holder.auth_addresses():
            watched.refusals = 0  # NSQ has just taken the secret

    def forget(self, claim: Claim, holder: Holder) -> None:
        """Look after *holder* no more; idempotent."""
        watched = self._watched.get(claim)
        if watched is None:
            return
        watched.holders.pop(holder, None)
        if not watched.holders:
            del self._watched[claim]
            if watched.timer is not None:
                watched.timer.cancel()
            if watched.check is not None:
                watched.check.cancel()

    def _schedule(self, watched: _Watched, since: float, periods: float = 1.0) -> None:
        due = since + periods * self._period_s
        watched.timer = asyncio.get_running_loop().call_at(due, self._begin, watched)

    def _begin(self, watched: _Watched) -> None:
        watched.timer = None
        watched.check = spawn("check a secret", self._check(watched))

    async def _check(self, watched: _Watched) -> None:
        async with self._at_once:
            begun_at = asyncio.get_running_loop().time()
            try:
                error = await self._ask(watched)
            finally:
                watched.check = None
                # From the beginning, so that a slow answer puts nothing off.
                if self._watched.get(watched.claim) is watched:
                    self._schedule(watched, begun_at)
        if error is not None and watched.refusals >= _REFUSALS_TO_END:
            self._end(watched, error)

    async def _ask(self, watched: _Watched) -> BrokerRefused | None:
        """Ask the brokers, and count; return what the first that answered said against it."""
        claim = watched.claim
        for address in watched.next_addresses():
            try:
                error = await ask_again(
                    address, watched.connection, claim, subscribes=watched.is_subscribed
                )
            except BrokerUnreachable:
                continue
            watched.refusals = 0 if error is None else watched.refusals + 1
            _CHECKS.labels("holds" if error is None else "refused").inc()
            if error is not None:
                logger.info(
                    "secret refused at a check",
                    secret=claim.secret.fingerprint,
                    topic=claim.topic,
                    channel=claim.channel,
                    nsqd=address,
                    reason=str(error),
                    in_a_row=watched.refusals,
                )
            return error
        _CHECKS.labels("unknown").inc()
        return None

    def _end(self, watched: _Watched, error: BrokerRefused) -> None:
        del self._watched[watched.claim]
        if watched.timer is not None:
            watched.timer.cancel()
        for holder in watched.holders:
            holder.secret_refused(error)


class _Deaf:
    """The listener of a connection that brings nothing: its RDY is 0."""

    def messages_arrived(self, connection: BrokerConnection, messages: list[Message]) -> None:
        """Nothing comes."""

    def command_refused(self, connection: BrokerConnection, frame: ErrorFrame) -> None:
        """Nothing is finished."""

    def connection_ended(self, connection: BrokerConnection, error: BrokerUnreachable) -> None:
        """It has said what was asked."""


async def ask_again(
    address: str, connection: ConnectionOptions, claim: Claim, *, subscribes: bool
) -> BrokerRefused | None:
    """
    Return what the broker at *address* says against *claim*; None when it holds.

    *connection* has the secret; without *subscribes* only that is asked about. A broker that wants
    none any more, and a channel that takes no further consumer (E_SUB_FAILED), say nothing against
    it.

    Raises:
        BrokerUnreachable: It does not say.
    """
    try:
        opened = await open_connection(address, connection, _Deaf())
    except BrokerRefused as error:
        return error if error.is_about_access else None
    try:
        if subscribes:
            await opened.subscribe(claim.topic, claim.channel)
        await opened.close()
    except BrokerRefused as error:
        return error if error.is_about_access else None
    finally:
        opened.abort()
    return None
