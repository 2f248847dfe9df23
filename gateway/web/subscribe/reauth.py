"""
Check periodically that nsqd still accepts the secrets of open sockets.

nsqd asks its auth server when a subscription begins, and never again. So the gateway opens a new
connection to nsqd at intervals, sends AUTH with the socket's secret and the same SUB, and closes
it; RDY stays 0, so that no message arrives. nsqd does not distinguish a refusal by its auth server
from an unreachable one, so a socket is closed only after two consecutive refusals.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from gateway.aio import spawn
from gateway.client.connection import BrokerConnection, ConnectionOptions
from gateway.client.handshake import open_connection
from gateway.credentials import Secret
from gateway.errors import BrokerRefused, BrokerUnreachable
from gateway.protocol.frames import ErrorFrame, Message
from gateway.telemetry import fast_counter, get_logger

logger = get_logger()

_CHECKS = fast_counter(
    "secret_checks_total",
    "Periodic checks at nsqd of the secrets of open sockets, by result.",
    ["result"],
    zeros=[("holds",), ("refused",), ("unknown",)],
)

_MAX_PARALLEL = 32
"""Maximum number of checks at a time."""
_REFUSALS_TO_END = 2
"""Consecutive refusals after which the sockets of a secret are closed."""
_MAX_BROKERS = 3
"""Brokers tried in one check while none responds."""
_MARGIN_S = 0.2
"""Added to the interval, so that an auth server's outage of one interval meets one check only."""


@dataclass(frozen=True, kw_only=True)
class Grant:
    """
    What is checked: that nsqd lets *secret* subscribe to *topic* and *channel*.

    Sockets with an equal grant share one check.
    """

    secret: Secret
    topic: str
    channel: str


class GrantUser(Protocol):
    """A user of a grant: a `SubscriberSocket` or a `Fanout`, subscribed with its secret."""

    def auth_addresses(self) -> Sequence[str]:
        """Return the addresses of the subscribed brokers that require AUTH."""

    def on_secret_refused(self, error: BrokerRefused) -> None:
        """Called when nsqd no longer accepts the secret; this socket or fan-out must close."""


@dataclass(eq=False)
class _WatchedGrant:
    """A grant that is checked again and again, who uses it, and the state of its checks."""

    grant: Grant
    connection: ConnectionOptions
    users: dict[GrantUser, None] = field(default_factory=dict)
    addresses: Sequence[str] = ()
    """The nsqds that require AUTH; kept while none is connected, so that the checks continue."""
    is_subscribed: bool = False
    """
    True while a user is connected to such an nsqd; only then does the check send SUB.

    Otherwise SUB could create the channel again after its deletion.
    """
    first_broker: int = 0
    """Index in `addresses` of the nsqd that the last check tried first."""
    refusals: int = 0
    """Consecutive refusals."""
    timer: asyncio.TimerHandle | None = None
    check: asyncio.Task[None] | None = None

    def next_addresses(self) -> Sequence[str]:
        """
        Return the addresses of the nsqds to try in the next check, in this order.

        Each check begins with another one, so that a single faulty nsqd does not decide alone.
        """
        # Those of any user: users of one grant subscribe to the nsqds of the same topic.
        now = next(iter(self.users)).auth_addresses()
        self.is_subscribed = bool(now)
        self.addresses = now or self.addresses
        if not self.addresses:
            return ()
        self.first_broker = (self.first_broker + 1) % len(self.addresses)
        return [*self.addresses[self.first_broker :], *self.addresses[: self.first_broker]][
            :_MAX_BROKERS
        ]


class Reauthenticator:
    """
    Check every grant once per *interval_s*, first at a random moment within the interval.

    Args:
        interval_s: Seconds between two checks of a grant. The sockets of a revoked secret are
            closed after at most two intervals and a second.
        random: Returns a number in [0, 1).
    """

    def __init__(self, interval_s: float, *, random: Callable[[], float]) -> None:
        self._period_s = interval_s + min(_MARGIN_S, interval_s / 5)
        self._random = random
        self._watched: dict[Grant, _WatchedGrant] = {}
        self._parallel = asyncio.Semaphore(_MAX_PARALLEL)

    def __len__(self) -> int:
        """Return the number of watched grants."""
        return len(self._watched)

    def watch(self, grant: Grant, connection: ConnectionOptions, user: GrantUser) -> None:
        """Check *grant*, with which *user* has just subscribed, until `forget`."""
        watched = self._watched.get(grant)
        if watched is None:
            watched = self._watched[grant] = _WatchedGrant(grant, connection)
            self._schedule(watched, asyncio.get_running_loop().time(), self._random())
        watched.users[user] = None
        if user.auth_addresses():
            watched.refusals = 0  # nsqd has just accepted the secret

    def forget(self, grant: Grant, user: GrantUser) -> None:
        """Remove *user*; without any other user, *grant* is no longer checked. Idempotent."""
        watched = self._watched.get(grant)
        if watched is None:
            return
        watched.users.pop(user, None)
        if not watched.users:
            del self._watched[grant]
            if watched.timer is not None:
                watched.timer.cancel()
            if watched.check is not None:
                watched.check.cancel()

    def _schedule(self, watched: _WatchedGrant, since: float, periods: float = 1.0) -> None:
        due = since + periods * self._period_s
        watched.timer = asyncio.get_running_loop().call_at(due, self._begin, watched)

    def _begin(self, watched: _WatchedGrant) -> None:
        watched.timer = None
        watched.check = spawn("check a secret", self._check(watched))

    async def _check(self, watched: _WatchedGrant) -> None:
        """Check a grant once, schedule the next check, and revoke after too many refusals."""
        # Hundreds of grants may be due together; each check takes a connection at nsqd.
        async with self._parallel:
            begun_at = asyncio.get_running_loop().time()
            try:
                error = await self._check_at_brokers(watched)
            finally:
                watched.check = None
                # Counted from the start of the check, or slow responses would extend the interval.
                # During the check the last user may have left, and another one may have come.
                if self._watched.get(watched.grant) is watched:
                    self._schedule(watched, begun_at)
        if error is not None and watched.refusals >= _REFUSALS_TO_END:
            self._revoke(watched, error)

    async def _check_at_brokers(self, watched: _WatchedGrant) -> BrokerRefused | None:
        """
        Check the grant at one nsqd after the other, until one responds; count the result.

        Returns the error with which that nsqd refused the grant; None if it accepted it, or if none
        has responded.
        """
        grant = watched.grant
        for address in watched.next_addresses():
            try:
                error = await check_grant(
                    address, watched.connection, grant, subscribes=watched.is_subscribed
                )
            except BrokerUnreachable:
                continue  # says nothing about the secret
            watched.refusals = 0 if error is None else watched.refusals + 1
            _CHECKS.counts["holds" if error is None else "refused",] += 1
            if error is not None:
                logger.info(
                    "secret refused at re-check",
                    secret=grant.secret.fingerprint,
                    topic=grant.topic,
                    channel=grant.channel,
                    nsqd=address,
                    reason=str(error),
                    in_a_row=watched.refusals,
                )
            return error
        _CHECKS.counts["unknown",] += 1
        return None

    def _revoke(self, watched: _WatchedGrant, error: BrokerRefused) -> None:
        """Stop checking the grant, and call `on_secret_refused` of its users."""
        # First, because the callbacks below may call `forget`.
        del self._watched[watched.grant]
        if watched.timer is not None:
            watched.timer.cancel()
        for user in watched.users:
            user.on_secret_refused(error)


class _SilentListener:
    """The listener of a check's connection, on which nothing is received: its RDY is 0."""

    def on_messages(self, connection: BrokerConnection, messages: list[Message]) -> None:
        """Do nothing: RDY is 0, so no message arrives."""

    def on_ack_refused(self, connection: BrokerConnection, frame: ErrorFrame) -> None:
        """Do nothing: no FIN is sent."""

    def on_connection_lost(self, connection: BrokerConnection, error: BrokerUnreachable) -> None:
        """Do nothing: `check_grant` gets the error from its own calls."""


async def check_grant(
    address: str, connection: ConnectionOptions, grant: Grant, *, subscribes: bool
) -> BrokerRefused | None:
    """
    Return the error with which the nsqd at *address* refuses *grant*; None if it accepts it.

    *connection* has the secret. If *subscribes* is False, AUTH is sent, but not SUB. Only refusals
    of the secret count: None is also returned if the nsqd no longer requires AUTH, or if the
    channel accepts no more consumers (E_SUB_FAILED).

    Raises:
        BrokerUnreachable: The nsqd does not respond.
    """
    try:
        opened = await open_connection(address, connection, _SilentListener())
    except BrokerRefused as error:
        return error if error.is_auth_error else None
    try:
        if subscribes:
            # RDY stays 0, so that nsqd sends this consumer no message of the channel.
            await opened.subscribe(grant.topic, grant.channel)
        await opened.close()
    except BrokerRefused as error:
        return error if error.is_auth_error else None
    finally:
        opened.abort()  # after an error or a cancellation; a closed connection ignores it
    return None
