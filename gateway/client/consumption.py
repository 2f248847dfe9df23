"""
PURE. What a consumer holds: messages in, and what is to be written for their answers out.

A delivery is answered on the connection that brought it or not at all: NSQ knows a message only
on its connection. An answer has two steps, so that a shell can gather what one turn of its loop
answers: `claim` counts a delivery as answered, at once and once; `finished` and `requeued` let go
of what was claimed and return what is to be written for it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import TypeAlias

import msgspec

from gateway.client.delivery import Answers, Arrival, Delivery, Origin, claim
from gateway.client.ready import ReadyPlan
from gateway.errors import SettingsError
from gateway.protocol.answered import Answered
from gateway.protocol.frames import Message
from gateway.protocol.identify import Answer

__all__ = [
    "Action",
    "Answers",
    "Consumption",
    "ConsumptionOptions",
    "Delivery",
    "Finish",
    "Ready",
    "Refused",
    "Requeue",
    "Touch",
    "claim",
]

_RANGES = {
    "max_attempts": (0, 65_535),
    "default_requeue_delay_ms": (0, 3_600_000),
    "max_requeue_delay_ms": (0, 3_600_000),
}
"""go-nsq's, config.go."""

_STARVED = 0.85
"""Of its RDY in flight, and a connection is starved (go-nsq, IsStarved)."""

_attempts = attrgetter("attempts")


@dataclass(frozen=True, kw_only=True)
class ConsumptionOptions:
    """What becomes of messages that fail (go-nsq's names)."""

    max_attempts: int = 5
    """A message that comes more often than this is given up; 0: never."""
    default_requeue_delay_ms: int = 90_000
    """REQ without a delay of its own waits for this, times the attempts so far."""
    max_requeue_delay_ms: int = 900_000
    """At most so long; a delay that is named goes out as it is."""

    def __post_init__(self) -> None:
        """Raise SettingsError for what is out of go-nsq's ranges."""
        for field in fields(self):
            low, high = _RANGES[field.name]
            if not low <= (value := getattr(self, field.name)) <= high:
                raise SettingsError(field.name, value, allowed=f"{low} to {high}")


class Ready(msgspec.Struct, gc=False):
    """Write RDY *count* on *source*."""

    source: int
    count: int


class Finish(msgspec.Struct, gc=False):
    """Write FIN for *ids*, at least one, on *source*."""

    source: int
    ids: list[bytes]


class Requeue(msgspec.Struct, gc=False):
    """Write REQ for *ids*, at least one, on *source*."""

    source: int
    ids: list[bytes]
    delay_ms: int


class Touch(msgspec.Struct, gc=False):
    """Write TOUCH for *ids*, at least one, on *source*."""

    source: int
    ids: list[bytes]


Action: TypeAlias = Ready | Finish | Requeue | Touch
"""Actions are carried out in the order in which they are returned."""


class Refused(msgspec.Struct, frozen=True):
    """An answer that the broker refused, as a rule because it came too late."""

    nsqd: str
    message_id: bytes
    verb: str
    """FIN, REQ or TOUCH."""


class Consumption:
    """
    The deliveries of one consumer, from their arrival to their answer.

    Whoever owns the connections tells the *plan* of sources, windows and the time; from here it
    learns how messages ended. The RDY that changes for it comes before the FIN or REQ.
    """

    def __init__(
        self,
        options: ConsumptionOptions,
        plan: ReadyPlan,
        answers: Answers,
        *,
        topic: str,
        channel: str,
    ) -> None:
        self.options = options
        self.lost_count = 0
        """Answers that nothing was written for: the connection had ended, or it was given back."""
        self._plan = plan
        self._answers = answers
        self._topic = topic
        self._channel = channel
        self._origins: dict[int, Origin] = {}
        """By source."""
        self._answered: Answered[bytes] = Answered()
        self._first_deadline = math.inf
        """Nothing that is held is due before; it is looked for anew when it has passed."""

    @property
    def in_flight(self) -> int:
        """How many deliveries have no answer yet, those that are overdue included."""
        return sum(len(origin.held) for origin in self._origins.values())

    @property
    def is_starved(self) -> bool:
        """Whether a connection has most of its RDY in flight: who answers in batches does it."""
        return any(
            len(origin.held) >= int(self._plan.ready(source) * _STARVED)
            for source, origin in self._origins.items()
            if origin.held
        )

    # In

    def source_opened(self, source: int, nsqd: str, answer: Answer) -> None:
        """Expect messages of *source*, a connection to *nsqd* that was answered so to IDENTIFY."""
        self._origins[source] = Origin(
            source, nsqd, answer, self._answers, topic=self._topic, channel=self._channel
        )

    def arrived(
        self, source: int, messages: Sequence[Message], now: float
    ) -> tuple[list[Delivery], list[Delivery]]:
        """
        Hold *messages*, all that one read of *source* brought.

        Returns:
            Those to hand out, and those that came more than max_attempts times. The latter are
            finished after what is to be done about them is done, as go-nsq does it.
        """
        origin = self._origins[source]
        arrival = Arrival(origin, arrived_at=now, now=now)
        deliveries = [
            # One by one: msgspec.structs.astuple takes twice as long.
            Delivery(message.timestamp_ns, message.attempts, message.id, message.body, arrival)
            for message in messages
        ]
        # A message that comes again takes the place of its earlier delivery, which was timed out:
        # an answer to that one would count for this one, since V2 names but the message.
        origin.held.update(zip([message.id for message in messages], deliveries, strict=True))
        self._first_deadline = min(self._first_deadline, arrival.deadline)
        limit = self.options.max_attempts
        if not limit or max(map(_attempts, messages), default=0) <= limit:
            return deliveries, []
        return (
            [delivery for delivery in deliveries if delivery.attempts <= limit],
            [delivery for delivery in deliveries if delivery.attempts > limit],
        )

    # Answers

    def finished(self, deliveries: Iterable[Delivery], now: float) -> list[Action]:
        """Let go of *deliveries*, which are claimed; return what is to be written."""
        released = self._release(deliveries)
        if not released:
            return []
        actions = self._signalled(self._plan.succeeded(now))
        for origin, ids in released.items():
            self._answered.add(ids)
            actions.append(Finish(origin.source, ids))
        return actions

    def requeued(
        self,
        deliveries: Iterable[Delivery],
        now: float,
        *,
        delay_ms: int | None = None,
        backoff: bool = True,
    ) -> list[Action]:
        """
        Let go of *deliveries*, which are claimed; return what is to be written.

        Without a *delay_ms* each waits for default_requeue_delay_ms times its attempts. Failures
        that are requeued together are one to the backoff, as a period ignores all but its first.
        """
        by_delay: dict[int, list[Delivery]] = {}
        for delivery in deliveries:
            delay = self._default_delay_ms(delivery) if delay_ms is None else delay_ms
            by_delay.setdefault(delay, []).append(delivery)
        requeues: list[Action] = []
        for delay, together in by_delay.items():
            for origin, ids in self._release(together).items():
                self._answered.add(ids)
                requeues.append(Requeue(origin.source, ids, delay))
        if not requeues:
            return []
        signal = self._plan.failed if backoff else self._plan.continued
        return self._signalled(signal(now)) + requeues

    def _default_delay_ms(self, delivery: Delivery) -> int:
        options = self.options
        delay_ms = options.default_requeue_delay_ms * delivery.attempts
        return min(delay_ms, options.max_requeue_delay_ms)

    @staticmethod
    def _signalled(changes: Iterable[tuple[int, int]]) -> list[Action]:
        """Return the RDY that a signal to the plan has led to."""
        return [Ready(source, count) for source, count in changes]

    def touched(self, deliveries: Iterable[Delivery], now: float) -> list[Action]:
        """Put the deadlines of *deliveries* off, each up to its ceiling; what is to be written."""
        touched: dict[int, list[bytes]] = {}
        for delivery in deliveries:
            if not delivery.is_in_flight:
                continue
            origin = delivery.arrival.origin
            arrived_at = delivery.arrival.arrived_at
            delivery.arrival = Arrival(origin, arrived_at=arrived_at, now=now)
            # At its ceiling it is due before others that came before it.
            self._first_deadline = min(self._first_deadline, delivery.arrival.deadline)
            touched.setdefault(origin.source, []).append(delivery.id)
        return [Touch(source, ids) for source, ids in touched.items()]

    def refused(self, source: int, message_id: bytes, verb: str) -> Refused | None:
        """
        Say what the broker refused with E_FIN_FAILED and the like; None: nothing of late.

        A delivery whose TOUCH was refused is held no more: the broker has timed it out.
        """
        origin = self._origins.get(source)
        if origin is None:
            return None
        is_known = message_id in origin.held or self._answered.find(message_id) is not None
        if verb == "TOUCH":
            origin.held.pop(message_id, None)
        return Refused(origin.nsqd, message_id, verb) if is_known else None

    # What nobody answers

    def source_lost(self, source: int) -> list[Delivery]:
        """Expect nothing of *source*; return what it brought and can be answered no more."""
        origin = self._origins.pop(source, None)
        if origin is None:
            return []
        lost = list(origin.held.values())
        origin.held.clear()
        return lost

    def next_overdue(self) -> float | None:
        """Return when to call `overdue`, None while nothing is held; it may find nothing then."""
        return self._first_deadline if self._first_deadline < math.inf else None

    def overdue(self, now: float) -> list[Delivery]:
        """
        Return what has passed its deadline since the last call, each delivery once.

        It stays held, and an answer to it still goes out: the broker's clock decides. What nobody
        has seen yet goes to `dropped`.
        """
        if self._first_deadline > now:
            return []
        overdue = []
        first = math.inf
        for origin in self._origins.values():
            for delivery in origin.held.values():
                arrival = delivery.arrival
                if arrival.deadline > now:
                    first = min(first, arrival.deadline)
                elif not arrival.is_overdue:
                    overdue.append(delivery)
        for delivery in overdue:
            delivery.arrival.is_overdue = True
        self._first_deadline = first
        return overdue

    def dropped(self, deliveries: Iterable[Delivery]) -> None:
        """Hold *deliveries* no more, without an answer: the broker delivers them again."""
        for delivery in deliveries:
            if delivery.is_in_flight:
                del delivery.arrival.origin.held[delivery.id]

    def hand_back(self, now: float) -> list[Action]:
        """
        Let go of all that is not claimed; return REQ 0 for what the broker has not timed out.

        The plan is not told: this is no failure.
        """
        actions: list[Action] = []
        for origin in self._origins.values():
            unanswered = [each for each in origin.held.values() if not each.is_answered]
            for delivery in unanswered:
                del origin.held[delivery.id]
            if ids := [each.id for each in unanswered if each.arrival.deadline > now]:
                self._answered.add(ids)
                actions.append(Requeue(origin.source, ids, 0))
        return actions

    def _release(self, deliveries: Iterable[Delivery]) -> dict[Origin, list[bytes]]:
        """Hold *deliveries* no more; return the ids of those that were held, by origin."""
        released: dict[Origin, list[bytes]] = {}
        origin: Origin | None = None
        held: dict[bytes, Delivery] = {}
        ids: list[bytes] = []
        lost_count = 0
        for delivery in deliveries:
            if delivery.arrival.origin is not origin:
                origin = delivery.arrival.origin
                held = origin.held
                ids = released.setdefault(origin, [])
            message_id = delivery.id
            if held.get(message_id) is delivery:
                del held[message_id]
                ids.append(message_id)
            else:
                lost_count += 1
        if lost_count:
            self.lost_count += lost_count
            released = {origin: ids for origin, ids in released.items() if ids}
        return released
