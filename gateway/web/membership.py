"""
One socket's place in NSQ: its subscription, the secret of that, and the looks at the secret.

A socket may bring its secret late, so that its subscription is made again: whoever uses the
membership has one window all the while. `fanout` has the other kind, which many sockets share.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

from gateway.client.channel_survey import ChannelSurvey, PauseWatch
from gateway.client.lookup import Discovery
from gateway.client.refusals import Refusals
from gateway.client.subscription import Subscription, SubscriptionListener, SubscriptionOptions
from gateway.errors import AuthRequired, BrokerRefused, alike
from gateway.protocol.authorization import Authorization
from gateway.protocol.frames import Message
from gateway.protocol.identify import Answer
from gateway.protocol.wire import is_ephemeral
from gateway.secret import Secret
from gateway.session.actions import (
    Cause,
    Finish,
    PauseReading,
    PutOff,
    Ready,
    Requeue,
    ResumeReading,
    Touch,
)
from gateway.telemetry import Tracing, tally
from gateway.web.delivery_spans import DeliverySpans
from gateway.web.faults import naming
from gateway.web.recheck import Claim, Holder, Rechecks
from gateway.web.socket_account import REQUEUED

NsqAction: TypeAlias = Finish | Ready | Requeue | PutOff | Touch | PauseReading | ResumeReading
"""What a session wants of NSQ."""

_ANSWERED = tally("messages_answered_total", "Answers passed on to NSQ, by verb.", ("verb",))
_PUT_OFF = tally(
    "messages_put_off_total", "Messages requeued for having had more than max_attempts.", ()
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Common:
    """What the memberships of all sockets share."""

    discovery: Discovery
    refusals: Refusals
    rechecks: Rechecks
    survey: ChannelSurvey | None = None
    """Who looks whether a channel is paused, or gone; None: nobody."""
    tracing: Tracing | None = None
    """Who begins the spans of deliveries; None: nobody."""


class MembershipListener(SubscriptionListener, Holder, Protocol):
    """Who is told what a membership brings, and that its secret does not hold any more."""

    def channel_paused(self, is_paused: bool) -> None:  # noqa: FBT001 - a state, as it is told
        """Learn that the channel, or its topic, was paused, or is so no more."""


class Membership(Protocol):
    """What a socket is in NSQ, alone or together with others; `join` first, `leave` last."""

    @property
    def channel(self) -> str:
        """What it is subscribed to; known once it has joined."""

    @property
    def secret(self) -> Secret | None:
        """What it has joined with, or tries to."""

    @property
    def msg_timeout_ms(self) -> int:
        """The time to answer a delivery where no broker has said it."""

    @property
    def sources(self) -> Sequence[int]:
        """What is open."""

    async def join(self, secret: Secret | None) -> None:
        """
        Subscribe with *secret*; what was subscribed before is left, and its sources are gone.

        Raises:
            AuthRequired: NSQ wants a secret, and there is none.
            BrokerRefused: NSQ says no, or said so a moment ago.
            NoBroker: No broker can be reached.
        """

    def source_opened(self, source: int, answer: Answer) -> Authorization | None:
        """Count on a new source; return what its broker said to AUTH, None if it wanted none."""

    def source_lost(self, source: int) -> None:
        """Count on a source no more."""

    def arrived(self, source: int, messages: Sequence[Message]) -> None:
        """Learn what a source has brought, before anybody else does."""

    def auth_addresses(self) -> Sequence[str]:
        """Return the brokers that it is subscribed on itself, of those that want AUTH."""

    def carry_out(self, action: NsqAction) -> None:
        """Do what the session wants of NSQ, on this subscription and on one in its place."""

    async def leave(self) -> None:
        """Leave NSQ; nothing is left open. Idempotent."""

    def let_go(self) -> None:
        """
        Forget who is told, for good, after `leave`; once.

        They know each other, and would stay until somebody looks for garbage.
        """


class OwnMembership:
    """A consumer of its own; *refusal_channel* stands for the channel where its name is random."""

    __slots__ = (
        "_claim",
        "_common",
        "_is_reading",
        "_listener",
        "_options",
        "_refusal_channel",
        "_secret",
        "_sources",
        "_spans",
        "_subscription",
        "_watch",
        "_window",
    )

    def __init__(
        self,
        common: Common,
        options: SubscriptionOptions,
        listener: MembershipListener,
        *,
        refusal_channel: str | None = None,
    ) -> None:
        self._common = common
        self._options = options
        self._listener = listener
        self._refusal_channel = refusal_channel
        tracing = common.tracing
        self._spans = None if tracing is None else DeliverySpans(tracing, options.topic)
        self._secret: Secret | None = None
        self._subscription: Subscription | None = None
        self._sources: dict[int, Answer] = {}
        self._claim: Claim | None = None
        self._watch: PauseWatch | None = None
        self._window = 0
        self._is_reading = True

    @property
    def channel(self) -> str:
        """What it is subscribed to."""
        return self._options.channel

    @property
    def secret(self) -> Secret | None:
        """What it has joined with, or tries to."""
        return self._secret

    @property
    def msg_timeout_ms(self) -> int:
        """The time to answer a delivery where no broker has said it."""
        return self._options.connection.offer.msg_timeout or Answer().msg_timeout

    @property
    def sources(self) -> Sequence[int]:
        """What is open."""
        return list(self._sources)

    @property
    def answers(self) -> Mapping[int, Answer]:
        """What the brokers of the open sources said to IDENTIFY, in the order they came."""
        return self._sources

    async def join(self, secret: Secret | None) -> None:
        """Subscribe with *secret*, in place of what was subscribed before; see `Membership`."""
        try:
            await self._join(secret)
        except BrokerRefused as error:
            raise naming(error, self._options.topic, self._options.channel) from None

    async def _join(self, secret: Secret | None) -> None:
        loop = asyncio.get_running_loop()
        refusals = self._common.refusals
        channel = self.channel if self._refusal_channel is None else self._refusal_channel
        key = (secret, self._options.topic, channel)
        if (refused := refusals.find(key, loop.time())) is not None:
            raise alike(refused)  # not what this frame knows: its traceback leads here
        await self.leave()
        options = self._options_with(secret)
        subscription = Subscription(self._common.discovery, options, self._listener)
        self._subscription, self._secret = subscription, options.connection.secret
        subscription.set_window(self._window)
        if not self._is_reading:
            subscription.pause_reading()
        try:
            await subscription.start()
        except (AuthRequired, BrokerRefused) as error:
            if isinstance(error, AuthRequired) or error.is_about_access:
                refusals.remember(key, error, loop.time())
            raise
        self._look_after(options)

    def _options_with(self, secret: Secret | None) -> SubscriptionOptions:
        """Return the options for *secret*; without one, those that many sockets share."""
        options = self._options
        if secret is None:
            return options
        return replace(options, connection=replace(options.connection, secret=secret))

    def _look_after(self, options: SubscriptionOptions) -> None:
        """Have somebody look at whether the secret holds, and whether the channel is paused."""
        secret, survey = options.connection.secret, self._common.survey
        if secret is not None:
            self._claim = Claim(secret=secret, topic=options.topic, channel=options.channel)
            self._common.rechecks.watch(self._claim, options.connection, self._listener)
        if survey is not None and not is_ephemeral(options.channel):
            self._watch = survey.watch(
                options.topic, options.channel, self._listener.channel_paused
            )

    def source_opened(self, source: int, answer: Answer) -> Authorization | None:
        """Count on a new source; return what its broker said to AUTH, None if it wanted none."""
        self._sources[source] = answer
        return self.authorization_of(source)

    def authorization_of(self, source: int) -> Authorization | None:
        """Return what the broker of *source* said to AUTH; None where it asked for none."""
        subscription = self._subscription
        return None if subscription is None else subscription.authorization_of(source)

    def source_lost(self, source: int) -> None:
        """Count on a source no more."""
        self._sources.pop(source, None)
        if self._spans is not None:
            self._spans.lost(source)

    def auth_addresses(self) -> Sequence[str]:
        """Return the brokers that it is subscribed on, of those that want AUTH."""
        subscription = self._subscription
        if subscription is None:
            return ()
        return [
            subscription.address_of(source)
            for source, said in self._sources.items()
            if said.auth_required
        ]

    def arrived(self, source: int, messages: Sequence[Message]) -> None:
        """Learn what a source has brought, before anybody else does."""
        if self._spans is not None:
            self._spans.arrived(source, messages, self._options.channel)

    def carry_out(self, action: NsqAction) -> None:
        """Do what the session wants of NSQ, on this subscription and on one in its place."""
        subscription = self._subscription
        if self._spans is not None and isinstance(action, Finish | Requeue | PutOff):
            verb = "FIN" if isinstance(action, Finish) else "REQ"
            self._spans.answered(action.source, action.ids, verb)
        if isinstance(action, Finish):  # most of them
            if subscription is not None:
                _ANSWERED.counts["FIN",] += len(action.ids)
                subscription.finish(action.source, action.ids)
            return
        if isinstance(action, Ready | PauseReading | ResumeReading):
            self._regulate(action)
        elif subscription is None:
            return
        elif isinstance(action, PutOff):
            _PUT_OFF.counts[()] += len(action.ids)
            REQUEUED.counts[Cause.MAX_ATTEMPTS.value,] += len(action.ids)
            subscription.requeue(action.source, action.ids, delay_ms=action.delay_ms)
        elif isinstance(action, Requeue):
            _ANSWERED.counts["REQ",] += len(action.ids)
            REQUEUED.counts[action.cause.value,] += len(action.ids)
            subscription.requeue(action.source, action.ids, delay_ms=action.delay_ms)
        else:
            _ANSWERED.counts["TOUCH",] += len(action.ids)
            subscription.touch(action.source, action.ids)

    def _regulate(self, action: Ready | PauseReading | ResumeReading) -> None:
        """Let so much come, and remember it for a subscription in place of this one."""
        subscription = self._subscription
        match action:
            case Ready(count):
                self._window = count
                if subscription is not None:
                    subscription.set_window(count)
            case PauseReading():
                self._is_reading = False
                if subscription is not None:
                    subscription.pause_reading()
            case ResumeReading():
                self._is_reading = True
                if subscription is not None:
                    subscription.resume_reading()

    async def leave(self) -> None:
        """Leave NSQ; nothing is left open. Idempotent."""
        if self._claim is not None:
            self._common.rechecks.forget(self._claim, self._listener)
            self._claim = None
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        self._sources.clear()
        if self._spans is not None:
            self._spans.lost()
        subscription = self._subscription
        if subscription is not None:
            await subscription.close()
            if self._subscription is subscription:
                self._subscription = None

    def let_go(self) -> None:
        """Forget who is told, for good, after `leave`; once."""
        del self._listener
