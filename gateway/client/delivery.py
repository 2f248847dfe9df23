"""PURE. A message as a consumer holds it, and where it came from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from gateway.errors import AlreadyAnswered
from gateway.protocol.identify import Answer


class Answers(Protocol):
    """Who is told of every answer at once, and decides when bytes go out."""

    def finish(self, deliveries: Sequence[Delivery]) -> None:
        """Write FIN for *deliveries*, which are claimed, soon."""

    def requeue(
        self, deliveries: Sequence[Delivery], *, delay_ms: int | None, backoff: bool
    ) -> None:
        """Write REQ for *deliveries*, which are claimed, soon."""

    def touch(self, deliveries: Sequence[Delivery]) -> None:
        """Write TOUCH for *deliveries*, which are not answered, soon."""


class Origin:
    """One source: the connection that brings deliveries, and those it may be answered for."""

    __slots__ = (
        "answers",
        "channel",
        "held",
        "max_msg_timeout_s",
        "msg_timeout_s",
        "nsqd",
        "source",
        "topic",
    )

    def __init__(
        self, source: int, nsqd: str, answer: Answer, answers: Answers, *, topic: str, channel: str
    ) -> None:
        self.source = source
        self.nsqd = nsqd
        self.topic = topic
        self.channel = channel
        self.msg_timeout_s = answer.msg_timeout / 1000
        self.max_msg_timeout_s = answer.max_msg_timeout / 1000
        self.answers = answers
        self.held: dict[bytes, Delivery] = {}
        """By message id, the oldest first."""


class Arrival:
    """What deliveries that came in one read of a socket have in common; times are monotonic s."""

    __slots__ = ("arrived_at", "ceiling", "deadline", "is_overdue", "origin")

    def __init__(self, origin: Origin, *, arrived_at: float, now: float) -> None:
        self.origin = origin
        self.arrived_at = arrived_at
        self.ceiling = arrived_at + origin.max_msg_timeout_s
        """The latest deadline that TOUCH can reach."""
        self.deadline = min(now + origin.msg_timeout_s, self.ceiling)
        """When nsqd gives them to somebody again; its own clock started a little earlier."""
        self.is_overdue = False
        """Whether `Consumption.overdue` has told of them."""


class Delivery(msgspec.Struct, eq=False, gc=False):
    """A message that was delivered to this consumer, to be answered once."""

    timestamp_ns: int
    """Time of publishing, ns since 1970 on the broker's clock."""
    attempts: int
    """Deliveries so far on this channel, this one included."""
    id: bytes
    """16 bytes; the same on every channel of the topic and at every redelivery."""
    body: bytes
    """What was published."""
    arrival: Arrival
    """What it has in common with those that came in the same read."""
    is_answered: bool = False
    """Whether it was finished or requeued here, in time or not; set by `claim`."""

    @property
    def topic(self) -> str:
        """The topic that it was published to."""
        return self.arrival.origin.topic

    @property
    def channel(self) -> str:
        """The channel that it came on."""
        return self.arrival.origin.channel

    @property
    def nsqd(self) -> str:
        """host:port of the broker that delivered it."""
        return self.arrival.origin.nsqd

    @property
    def deadline(self) -> float:
        """When the broker delivers it again if it is not answered (monotonic seconds)."""
        return self.arrival.deadline

    @property
    def is_in_flight(self) -> bool:
        """Whether it is not answered, and an answer can still be written."""
        return not self.is_answered and self.arrival.origin.held.get(self.id) is self

    def finish(self) -> None:
        """
        Have it counted as done: FIN.

        Nothing is written where its connection has ended, or it was handed back meanwhile: the
        broker delivers it again.

        Raises:
            AlreadyAnswered: It was finished or requeued before.
        """
        if self.is_answered:
            raise AlreadyAnswered(self.id)
        self.is_answered = True
        self.arrival.origin.answers.finish((self,))

    def requeue(self, delay_ms: int | None = None, *, backoff: bool = True) -> None:
        """
        Have it delivered again after *delay_ms*: REQ; raises as `finish` does.

        Args:
            delay_ms: None is the default requeue delay times its attempts, up to the maximum.
            backoff: Whether it counts as a failure, which slows the consumer down.
        """
        if self.is_answered:
            raise AlreadyAnswered(self.id)
        self.is_answered = True
        self.arrival.origin.answers.requeue((self,), delay_ms=delay_ms, backoff=backoff)

    def touch(self) -> None:
        """Have its timeout start anew: TOUCH; raises as `finish` does."""
        if self.is_answered:
            raise AlreadyAnswered(self.id)
        self.arrival.origin.answers.touch((self,))

    def __repr__(self) -> str:
        """Say which message it is, without its body."""
        return f"<Delivery {self.id.decode('latin-1')} attempts={self.attempts} nsqd={self.nsqd}>"


def claim(deliveries: Sequence[Delivery]) -> None:
    """
    Count all of *deliveries* as answered, or none of them; who calls this then answers them.

    Raises:
        AlreadyAnswered: One was answered before, or stands there twice.
    """
    for index, delivery in enumerate(deliveries):
        if delivery.is_answered:
            for earlier in deliveries[:index]:
                earlier.is_answered = False
            raise AlreadyAnswered(delivery.id)
        delivery.is_answered = True
