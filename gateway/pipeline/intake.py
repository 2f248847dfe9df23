"""One subscription of a stream: what it brings goes to the ledger, what is finished to nsqd."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Protocol

from gateway.client.connection import ConnectionOptions
from gateway.client.lookup import Discovery
from gateway.client.subscription import Subscription, SubscriptionOptions
from gateway.errors import BrokerUnreachable
from gateway.pipeline.clock import now_us
from gateway.pipeline.goal import Goal
from gateway.pipeline.ledger import Ledger
from gateway.protocol.frames import ErrorFrame, Message
from gateway.protocol.identify import Answer
from gateway.protocol.raw_messages import RawMessages
from gateway.telemetry import get_logger

logger = get_logger()


@dataclass(frozen=True, eq=False)
class Source:
    """One connection to an nsqd that brings messages of one topic."""

    intake: Intake
    number: int
    topic: str
    nsqd: str
    answer: Answer


class IntakeOwner(Protocol):
    """Who is told what an intake comes to."""

    goal: Goal | None
    """What is to come; None: whatever does."""

    def see_to_goal(self) -> None:
        """Ask for nothing more, if the goal is reached."""

    def came(self) -> None:
        """Learn that messages have come."""

    def sources_changed(self) -> None:
        """Learn that a source has come or gone."""


class Intake:
    """A consumer of one topic's channel over several nsqd; `start` first, `close` last."""

    def __init__(
        self,
        ledger: Ledger[Source],
        discovery: Discovery,
        names: tuple[str, str],
        connection: ConnectionOptions,
        owner: IntakeOwner,
    ) -> None:
        self.topic, channel = names
        self.is_leaving = False
        """Whether what comes still goes back."""
        self.refused = 0
        """Answers that came too late."""
        self.sources: dict[int, Source] = {}
        """By number of those that are open."""
        self._ledger = ledger
        self._owner = owner
        self.subscription = Subscription(
            discovery,
            SubscriptionOptions(
                topic=self.topic, channel=channel, connection=connection, take_raw=self._take
            ),
            self,
        )

    def _take(self, number: int, messages: RawMessages) -> None:
        if self.is_leaving:
            self.subscription.requeue(number, messages.ids, delay_ms=0)
            return
        if self._owner.goal is not None:
            belongs, rest = self._owner.goal.admit(messages)
            self._owner.see_to_goal()  # before the rest goes back, or it would come again
            if rest is not None:
                self.subscription.requeue(number, rest.ids, delay_ms=0)
            if belongs is None:
                return
            messages = belongs
        now = asyncio.get_running_loop().time()
        source = self.sources[number]
        self._ledger.arrived(source, messages, now=now, received_us=now_us())
        self._owner.came()

    # What the subscription tells

    def source_opened(self, source: int, answer: Answer) -> None:
        """Count on a new source."""
        nsqd = self.subscription.address_of(source)
        self.sources[source] = Source(self, source, self.topic, nsqd, answer)
        logger.info("subscribed", nsqd=nsqd, topic=self.topic)
        self._owner.sources_changed()

    def source_lost(self, source: int, error: BrokerUnreachable) -> None:
        """Forget what it brought and nobody has been promised: nsqd delivers it again."""
        lost = self.sources.pop(source)
        if self._owner.goal is not None:
            self._owner.goal.forgot(self._ledger.held_of(lost))
        forgotten = self._ledger.source_lost(lost)
        logger.warning(
            "subscription lost", nsqd=error.address, reason=error.reason, in_flight=forgotten
        )
        self._owner.sources_changed()

    def messages_arrived(self, source: int, messages: list[Message]) -> None:
        """Never called: messages come undecoded."""
        raise AssertionError((source, messages))

    def answer_refused(self, source: int, frame: ErrorFrame) -> None:
        """Count it: nsqd had taken the message back, and delivers it again."""
        self.refused += 1
        logger.debug("answer refused", source=source, code=frame.code, reason=frame.description)

    def channel_gone(self, address: str) -> None:
        """Pass it over: nobody asks, a channel that was deleted is made anew."""

    def auth_required(self) -> None:
        """Say that an nsqd that came later cannot be subscribed on."""
        logger.warning("a broker asks for AUTH and there is no secret")
