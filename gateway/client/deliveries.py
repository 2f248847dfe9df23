"""
PURE. Track a consumer's unanswered deliveries, and decide which commands answer them.

A delivery is answered on the connection that delivered it or nowhere, because nsqd accepts answers
only there. An answer takes two steps, so that the caller can batch the answers of an event-loop
turn: `claim` marks a delivery as answered, exactly once; `finished` and `requeued` release it and
return the commands to write.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Protocol, TypeAlias

import msgspec

from gateway.client.rdy import RdyDistributor
from gateway.errors import AlreadyResponded, SettingsError
from gateway.protocol.frames import Message
from gateway.protocol.identify import IdentifyResponse
from gateway.protocol.recent_acks import RecentAcks


class AckListener(Protocol):
    """
    Callbacks for answers to nsqd; the listener may delay them, to write several at once.

    A Protocol, because this module is PURE and is imported by the consumer.
    """

    def finish(self, deliveries: Sequence[Delivery]) -> None:
        """Write FIN to nsqd for *deliveries*, which `claim` has marked."""

    def requeue(
        self, deliveries: Sequence[Delivery], *, delay_ms: int | None, backoff: bool
    ) -> None:
        """Write REQ to nsqd for *deliveries*, which `claim` has marked."""

    def touch(self, deliveries: Sequence[Delivery]) -> None:
        """Write TOUCH to nsqd for *deliveries*, which are unanswered."""


class DeliverySource:
    """A subscribed connection, and its deliveries that can still be answered."""

    __slots__ = (
        "answers",
        "channel",
        "held",
        "max_msg_timeout_s",
        "msg_timeout_s",
        "nsqd",
        "source_id",
        "topic",
    )

    def __init__(
        self,
        source_id: int,
        nsqd: str,
        answer: IdentifyResponse,
        answers: AckListener,
        *,
        topic: str,
        channel: str,
    ) -> None:
        self.source_id = source_id
        self.nsqd = nsqd
        self.topic = topic
        self.channel = channel
        self.msg_timeout_s = answer.msg_timeout / 1000
        self.max_msg_timeout_s = answer.max_msg_timeout / 1000
        self.answers = answers
        self.held: dict[bytes, Delivery] = {}
        """Unanswered deliveries by message id, the oldest first."""


class Arrival:
    """
    Times and source shared by the deliveries of one read; times are monotonic seconds.

    *now* is when their timeouts started: the earliest time of sending, or that of a TOUCH.
    """

    __slots__ = ("ceiling", "deadline", "is_overdue", "sent_after", "source")

    def __init__(self, source: DeliverySource, *, sent_after: float, now: float) -> None:
        self.source = source
        self.sent_after = sent_after
        """The earliest time at which nsqd may have sent the messages, not when they were read."""
        self.ceiling = sent_after + source.max_msg_timeout_s
        """The latest deadline that TOUCH can set; nsqd never postpones it further."""
        self.deadline = min(now + source.msg_timeout_s, self.ceiling)
        """The earliest time at which nsqd may time the messages out."""
        self.is_overdue = False
        """True if `DeliveryTracker.overdue` has returned them."""


class Delivery(msgspec.Struct, eq=False, gc=False):
    """A message delivered to this consumer, to be finished or requeued once."""

    timestamp_ns: int
    """Time of publishing, ns since 1970 on nsqd's clock."""
    attempts: int
    """Number of deliveries on this channel so far, including this one."""
    id: bytes
    """16 bytes, the same on every channel of the topic and in every redelivery."""
    body: bytes
    """The published message."""
    arrival: Arrival
    """Source and times, shared with the other deliveries of the same read."""
    is_answered: bool = False
    """True once finished or requeued, in time or not; set by `claim`."""

    @property
    def topic(self) -> str:
        """The topic of the message."""
        return self.arrival.source.topic

    @property
    def channel(self) -> str:
        """The channel that delivered it."""
        return self.arrival.source.channel

    @property
    def nsqd(self) -> str:
        """host:port of the nsqd that delivered the message."""
        return self.arrival.source.nsqd

    @property
    def deadline(self) -> float:
        """When nsqd times the message out and delivers it again, monotonic seconds."""
        return self.arrival.deadline

    @property
    def is_in_flight(self) -> bool:
        """True if it is unanswered, and its connection can still write an answer."""
        return not self.is_answered and self.arrival.source.held.get(self.id) is self

    def finish(self) -> None:
        """
        Send FIN: the message was processed.

        Nothing is sent if the connection has ended (nsqd then delivers the message again), or if
        nsqd has already delivered it again.

        Raises:
            AlreadyResponded: The delivery was finished or requeued before.
        """
        if self.is_answered:
            raise AlreadyResponded(self.id)
        self.is_answered = True
        self.arrival.source.answers.finish((self,))

    def requeue(self, delay_ms: int | None = None, *, backoff: bool = True) -> None:
        """
        Send REQ: nsqd delivers the message again after *delay_ms*. Raise as `finish` does.

        Args:
            delay_ms: None means the default requeue delay times the attempts, up to the maximum.
            backoff: If True, count this as a failure, which slows the consumer down.
        """
        if self.is_answered:
            raise AlreadyResponded(self.id)
        self.is_answered = True
        self.arrival.source.answers.requeue((self,), delay_ms=delay_ms, backoff=backoff)

    def touch(self) -> None:
        """Send TOUCH: nsqd restarts the timeout of the message. Raise as `finish` does."""
        if self.is_answered:
            raise AlreadyResponded(self.id)
        self.arrival.source.answers.touch((self,))

    def __repr__(self) -> str:
        """Show the id and the attempts, not the body."""
        return f"<Delivery {self.id.decode('latin-1')} attempts={self.attempts} nsqd={self.nsqd}>"


def claim(deliveries: Sequence[Delivery]) -> None:
    """
    Mark all *deliveries* as answered, or none; the caller then answers them.

    Raises:
        AlreadyResponded: A delivery was answered before, or is in the list twice.
    """
    for index, delivery in enumerate(deliveries):
        if delivery.is_answered:
            # Undone, so that the caller can still answer the others.
            for earlier in deliveries[:index]:
                earlier.is_answered = False
            raise AlreadyResponded(delivery.id)
        delivery.is_answered = True


_RANGES = {
    "max_attempts": (0, 65_535),
    "default_requeue_delay_ms": (0, 3_600_000),
    "max_requeue_delay_ms": (0, 3_600_000),
}
"""Lowest and highest value of each option, as in go-nsq's config.go."""

_STARVED = 0.85
"""Fraction of its RDY in flight at which a connection is starved (go-nsq, IsStarved)."""

_attempts = attrgetter("attempts")


@dataclass(frozen=True, kw_only=True)
class DeliveryOptions:
    """Options for messages that fail, named as in go-nsq."""

    max_attempts: int = 5
    """Maximum deliveries of a message, which is then finished unhandled; 0: no maximum."""
    default_requeue_delay_ms: int = 90_000
    """Delay of a REQ without an explicit delay, multiplied by the attempts so far."""
    max_requeue_delay_ms: int = 900_000
    """Maximum of that product; explicit delays are not limited."""

    def __post_init__(self) -> None:
        """Raise SettingsError for a value outside go-nsq's ranges."""
        for field in fields(self):
            low, high = _RANGES[field.name]
            if not low <= (value := getattr(self, field.name)) <= high:
                raise SettingsError(field.name, value, allowed=f"{low} to {high}")


class SendRdy(msgspec.Struct, gc=False):
    """A command for the owner of the connections: write RDY *count* on *source*."""

    source: int
    count: int


class SendFin(msgspec.Struct, gc=False):
    """A command: write a FIN for each of *ids*, never empty, on *source*."""

    source: int
    ids: list[bytes]


class SendReq(msgspec.Struct, gc=False):
    """A command: write a REQ for each of *ids*, never empty, on *source*."""

    source: int
    ids: list[bytes]
    delay_ms: int


class SendTouch(msgspec.Struct, gc=False):
    """A command: write a TOUCH for each of *ids*, never empty, on *source*."""

    source: int
    ids: list[bytes]


Action: TypeAlias = SendRdy | SendFin | SendReq | SendTouch
"""A command to write; the order of a list of actions matters."""


class RefusedAck(msgspec.Struct, frozen=True):
    """A FIN, REQ or TOUCH that nsqd refused, usually because the message had timed out."""

    nsqd: str
    message_id: bytes
    verb: str
    """FIN, REQ or TOUCH."""


class DeliveryTracker:
    """
    Track the unanswered deliveries of one consumer.

    It reports successes and failures to *rdy*, and returns the resulting RDY changes ahead of the
    FIN or REQ. Sources, windows and time are reported to *rdy* by the owner of the connections.
    """

    def __init__(
        self,
        options: DeliveryOptions,
        rdy: RdyDistributor,
        answers: AckListener,
        *,
        topic: str,
        channel: str,
    ) -> None:
        self.options = options
        self.lost_count = 0
        """Number of answers not written: connection ended, or message delivered again."""
        self._rdy = rdy
        self._answers = answers
        self._topic = topic
        self._channel = channel
        self._sources: dict[int, DeliverySource] = {}
        """By source id."""
        self._answered: RecentAcks[bytes] = RecentAcks()
        """Ids finished or requeued lately: nsqd may refuse such an answer later, by its id."""
        self._first_deadline = math.inf
        """A lower bound of all deadlines, recomputed when it has passed."""

    @property
    def in_flight(self) -> int:
        """Number of unanswered deliveries, including overdue ones."""
        return sum(len(source.held) for source in self._sources.values())

    def in_flight_by_source(self) -> dict[int, int]:
        """Return by source the number of unanswered deliveries, without overdue ones."""
        return {
            source_id: sum(not delivery.arrival.is_overdue for delivery in source.held.values())
            for source_id, source in self._sources.items()
        }

    @property
    def is_starved(self) -> bool:
        """True if most of a connection's RDY is in flight: batches should be answered now."""
        return any(
            len(source.held) >= int(self._rdy.ready(source_id) * _STARVED)
            for source_id, source in self._sources.items()
            if source.held
        )

    # Arrivals

    def add_source(self, source_id: int, nsqd: str, answer: IdentifyResponse) -> None:
        """Accept deliveries of *source_id*; *answer* is the answer of *nsqd* to IDENTIFY."""
        self._sources[source_id] = DeliverySource(
            source_id, nsqd, answer, self._answers, topic=self._topic, channel=self._channel
        )

    def arrived(
        self,
        source_id: int,
        messages: Sequence[Message],
        now: float,
        *,
        sent_after: float | None = None,
    ) -> tuple[list[Delivery], list[Delivery]]:
        """
        Track *messages* of one read, sent by nsqd at *sent_after* (default: *now*) or later.

        Messages that may have timed out before they were read are dropped, because nsqd delivers
        them again.

        Returns:
            The deliveries to handle, and those above max_attempts. The caller reports the latter
            and finishes them, as in go-nsq.
        """
        source = self._sources[source_id]
        sent_after = now if sent_after is None else sent_after
        # From the earliest time of sending: nsqd's timeout runs while a message is in buffers.
        arrival = Arrival(source, sent_after=sent_after, now=sent_after)
        if arrival.deadline <= now:
            return [], []
        deliveries = [
            # Attribute by attribute: msgspec.structs.astuple takes twice as long.
            Delivery(message.timestamp_ns, message.attempts, message.id, message.body, arrival)
            for message in messages
        ]
        # A redelivery replaces the earlier delivery, which has timed out. V2 identifies messages
        # and not deliveries, so an answer to the earlier one would answer this one.
        source.held.update(zip([message.id for message in messages], deliveries, strict=True))
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
        """Stop tracking claimed *deliveries*; return the RDY changes and FINs to write."""
        released = self._release(deliveries)
        if not released:
            return []
        actions = self._rdy_actions(self._rdy.succeeded(now))
        for source, ids in released.items():
            self._answered.add(ids)
            # After the RDY changes: a FIN makes nsqd send more under the RDY it knows.
            actions.append(SendFin(source.source_id, ids))
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
        Stop tracking claimed *deliveries*; return the RDY changes and REQs to write.

        Without *delay_ms* the delay is default_requeue_delay_ms times the attempts. Deliveries
        requeued together count as one failure: a backoff period ignores all but the first.
        """
        by_delay: dict[int, list[Delivery]] = {}
        for delivery in deliveries:
            delay = self._default_delay_ms(delivery) if delay_ms is None else delay_ms
            by_delay.setdefault(delay, []).append(delivery)
        requeues: list[Action] = []
        for delay, together in by_delay.items():
            for source, ids in self._release(together).items():
                self._answered.add(ids)
                requeues.append(SendReq(source.source_id, ids, delay))
        if not requeues:
            return []
        report = self._rdy.failed if backoff else self._rdy.continued
        # RDY 0 of a backoff first, or nsqd would send another message in place of these.
        return self._rdy_actions(report(now)) + requeues

    def _default_delay_ms(self, delivery: Delivery) -> int:
        options = self.options
        delay_ms = options.default_requeue_delay_ms * delivery.attempts
        return min(delay_ms, options.max_requeue_delay_ms)

    @staticmethod
    def _rdy_actions(changes: Iterable[tuple[int, int]]) -> list[Action]:
        """Return *changes* of RDY as actions."""
        return [SendRdy(source_id, count) for source_id, count in changes]

    def touched(self, deliveries: Iterable[Delivery], now: float) -> list[Action]:
        """Postpone the deadlines of *deliveries*, up to their ceilings; return TOUCHes to write."""
        touched: dict[int, list[bytes]] = {}
        for delivery in deliveries:
            if not delivery.is_in_flight:
                continue
            source = delivery.arrival.source
            sent_after = delivery.arrival.sent_after
            delivery.arrival = Arrival(source, sent_after=sent_after, now=now)
            # At its ceiling, a touched delivery may be due before others.
            self._first_deadline = min(self._first_deadline, delivery.arrival.deadline)
            touched.setdefault(source.source_id, []).append(delivery.id)
        return [SendTouch(source_id, ids) for source_id, ids in touched.items()]

    def refused(self, source_id: int, message_id: bytes, verb: str) -> RefusedAck | None:
        """
        Return details of an answer that nsqd refused (E_FIN_FAILED, …).

        None means that *message_id* is neither in flight nor recently answered. A delivery whose
        TOUCH was refused is dropped, because nsqd has timed it out.
        """
        source = self._sources.get(source_id)
        if source is None:
            return None
        is_known = message_id in source.held or self._answered.find(message_id) is not None
        # A FIN or REQ has already ended the tracking of its delivery.
        if verb == "TOUCH":
            source.held.pop(message_id, None)
        return RefusedAck(source.nsqd, message_id, verb) if is_known else None

    # Deliveries without an answer

    def remove_source(self, source_id: int) -> list[Delivery]:
        """Remove *source_id*, a lost connection; return its deliveries, now unanswerable."""
        source = self._sources.pop(source_id, None)
        if source is None:
            return []
        lost = list(source.held.values())
        source.held.clear()
        return lost

    def next_deadline(self) -> float | None:
        """Return when to call `overdue`, perhaps too early; None: no delivery will be overdue."""
        return self._first_deadline if self._first_deadline < math.inf else None

    def overdue(self, now: float) -> list[Delivery]:
        """
        Return the deliveries whose deadline has passed since the last call.

        They can still be answered, because nsqd may not have timed them out yet. Pass those that
        have not been handled to `dropped`.
        """
        if self._first_deadline > now:
            return []
        overdue = []
        first = math.inf
        for source in self._sources.values():
            for delivery in source.held.values():
                arrival = delivery.arrival
                if arrival.deadline > now:
                    first = min(first, arrival.deadline)
                elif not arrival.is_overdue:
                    overdue.append(delivery)
        # Not in the loop above: deliveries of one read share their `arrival`.
        for delivery in overdue:
            delivery.arrival.is_overdue = True
        self._first_deadline = first
        return overdue

    def dropped(self, deliveries: Iterable[Delivery]) -> None:
        """Forget *deliveries* without answering them; nsqd delivers them again."""
        for delivery in deliveries:
            if delivery.is_in_flight:
                del delivery.arrival.source.held[delivery.id]

    def hand_back(self, now: float) -> list[Action]:
        """
        Stop tracking all unanswered deliveries; return REQ 0 for those that have not timed out.

        They have not failed, so this starts no backoff.
        """
        actions: list[Action] = []
        for source in self._sources.values():
            # Without claimed ones: whoever claimed them still writes their FIN or REQ.
            unanswered = [each for each in source.held.values() if not each.is_answered]
            for delivery in unanswered:
                del source.held[delivery.id]
            if ids := [each.id for each in unanswered if each.arrival.deadline > now]:
                self._answered.add(ids)
                actions.append(SendReq(source.source_id, ids, 0))
        return actions

    def _release(self, deliveries: Iterable[Delivery]) -> dict[DeliverySource, list[bytes]]:
        """Stop tracking *deliveries*; return the ids that nsqd may still accept, by source."""
        # A batch usually has one source: its dict and list are looked up once per run.
        released: dict[DeliverySource, list[bytes]] = {}
        source: DeliverySource | None = None
        held: dict[bytes, Delivery] = {}
        ids: list[bytes] = []
        lost_count = 0
        for delivery in deliveries:
            if delivery.arrival.source is not source:
                source = delivery.arrival.source
                held = source.held
                ids = released.setdefault(source, [])
            message_id = delivery.id
            # Another object under this id is a redelivery, which this answer must not end.
            if held.get(message_id) is delivery:
                del held[message_id]
                ids.append(message_id)
            else:
                lost_count += 1
        if lost_count:
            self.lost_count += lost_count
            released = {source: ids for source, ids in released.items() if ids}
        return released
