"""
One socket's place in NSQ: its subscription, the secret of that, and the looks at the secret.

A socket may bring its secret late, so that its subscription is made again: whoever uses the
membership has one window all the while.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from gateway.client.lookup import Discovery
from gateway.client.refusals import Refusals
from gateway.client.subscription import Subscription, SubscriptionListener, SubscriptionOptions
from gateway.errors import AuthRequired, BrokerRefused
from gateway.protocol.authorization import Authorization
from gateway.protocol.identify import Answer
from gateway.secret import Secret
from gateway.session.actions import PauseReading, Ready, ResumeReading
from gateway.web.faults import naming
from gateway.web.recheck import Claim, Holder, Rechecks


@dataclass(frozen=True, kw_only=True)
class Common:
    """What the memberships of all sockets share."""

    discovery: Discovery
    refusals: Refusals
    rechecks: Rechecks


class MembershipListener(SubscriptionListener, Holder, Protocol):
    """Who is told what a membership brings, and that its secret does not hold any more."""


class Membership:
    """`join` first, `leave` last; `subscription` is the one that counts now."""

    def __init__(
        self,
        common: Common,
        options: SubscriptionOptions,
        listener: MembershipListener,
        *,
        is_viewer: bool,
    ) -> None:
        self._common = common
        self._options = options
        self._listener = listener
        # The channels of viewers have random names, which NSQ's answer does not depend on.
        self._refusal_channel = "" if is_viewer else options.channel
        self._claim: Claim | None = None
        self._window = 0
        self._is_reading = True
        self.subscription = Subscription(common.discovery, options, listener)
        self.sources: dict[int, Answer] = {}
        """What is open, and what its broker said to IDENTIFY."""

    @property
    def secret(self) -> Secret | None:
        """What it has joined with, or tries to."""
        return self.subscription.options.connection.secret

    @property
    def msg_timeout_ms(self) -> int:
        """The time to answer a delivery where no broker has said it."""
        return self._options.connection.offer.msg_timeout or Answer().msg_timeout

    async def join(self, secret: Secret | None) -> None:
        """
        Subscribe with *secret*; what was subscribed before is left, and its sources are gone.

        Raises:
            AuthRequired: NSQ wants a secret, and there is none.
            BrokerRefused: NSQ says no, or said so a moment ago.
            NoBroker: No broker can be reached.
        """
        try:
            await self._join(secret)
        except BrokerRefused as error:
            raise naming(error, self._options.topic, self._options.channel) from None

    async def _join(self, secret: Secret | None) -> None:
        loop = asyncio.get_running_loop()
        refusals = self._common.refusals
        key = (secret, self._options.topic, self._refusal_channel)
        if (refused := refusals.find(key, loop.time())) is not None:
            raise refused
        await self.leave()
        connection = replace(self._options.connection, secret=secret)
        options = replace(self._options, connection=connection)
        self.subscription = Subscription(self._common.discovery, options, self._listener)
        self.subscription.set_window(self._window)
        if not self._is_reading:
            self.subscription.pause_reading()
        try:
            await self.subscription.start()
        except (AuthRequired, BrokerRefused) as error:
            if isinstance(error, AuthRequired) or error.is_about_access:
                refusals.remember(key, error, loop.time())
            raise
        if secret is not None:
            self._claim = Claim(secret=secret, topic=options.topic, channel=options.channel)
            self._common.rechecks.watch(self._claim, connection, self._listener)

    def regulate(self, action: Ready | PauseReading | ResumeReading) -> None:
        """Carry out *action*, for this subscription and for one in its place."""
        match action:
            case Ready(count):
                self._window = count
                self.subscription.set_window(count)
            case PauseReading():
                self._is_reading = False
                self.subscription.pause_reading()
            case ResumeReading():
                self._is_reading = True
                self.subscription.resume_reading()

    def source_opened(self, source: int, answer: Answer) -> Authorization | None:
        """Count on a new source; return what its broker said to AUTH, None if it wanted none."""
        self.sources[source] = answer
        return self.subscription.authorization_of(source)

    def source_lost(self, source: int) -> None:
        """Count on a source no more."""
        self.sources.pop(source, None)

    def auth_addresses(self) -> Sequence[str]:
        """Return the brokers that it is subscribed on, of those that want AUTH."""
        address_of = self.subscription.address_of
        return [address_of(source) for source, said in self.sources.items() if said.auth_required]

    async def leave(self) -> None:
        """Leave NSQ; nothing is left open. Idempotent."""
        if self._claim is not None:
            self._common.rechecks.forget(self._claim, self._listener)
            self._claim = None
        self.sources.clear()
        await self.subscription.close()
