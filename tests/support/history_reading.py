"""
A history with its threads drawn: PURE.

The thread of it all is the `Sending`: one message that the broker sent once. What the gateway said
about it to the broker, and who it was delivered to, hang on it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tests.support.history import (
    Acknowledged,
    Asked,
    BrokerEnded,
    Closed,
    Delivered,
    GatewayEnded,
    HungUp,
    Passed,
    Record,
    Refused,
    Sent,
    Stored,
    Told,
    WayBroken,
    WayHealed,
)

SLACK_S = 0.5
"""How much later than it happened a thing may have been seen, on a busy machine."""


@dataclass(eq=False, slots=True)
class Sending:
    """One message, sent once by the broker."""

    at_s: float
    sent: Sent
    delivered: list[tuple[float, Delivered]] = field(default_factory=list)
    passed: list[tuple[float, str]] = field(default_factory=list)
    """When which verb was said to the broker."""
    refused: list[str] = field(default_factory=list)
    """Verbs that the broker refused, as often as it did."""
    family: list[Sending] = field(default_factory=list)
    """
    This one and its equals, with as many attempts: more than one only behind a death of the broker.

    A delivery cannot tell which of them it belongs to.
    """

    def said(self, verb: str) -> list[float]:
        """Return when *verb* was said to the broker."""
        return [at_s for at_s, said in self.passed if said == verb]

    def __str__(self) -> str:
        """Return what a failed test tells of it."""
        sent = self.sent
        return (
            f"{sent.body} ({sent.message}, attempt {sent.attempts}) sent at {self.at_s:.3f} on "
            f"connection {sent.connection}; said: {self.passed}, refused: {sorted(self.refused)}"
        )


class Reading:
    """A history with its threads drawn."""

    def __init__(self, records: Sequence[Record], msg_timeout_s: float) -> None:
        self.records = records
        self.msg_timeout_s = msg_timeout_s
        self.sendings: list[Sending] = []
        self.by_body: dict[str, list[Sending]] = defaultdict(list)
        self.hung_up_s: dict[int, float] = {}
        self.closed_s: dict[int, float] = {}
        self.deaths: list[tuple[float, frozenset[str]]] = []
        self.asked: dict[tuple[int, str], list[tuple[float, Asked]]] = defaultdict(list)
        """By socket and delivery."""
        self.asked_by_ref: dict[tuple[int, str], tuple[float, Asked]] = {}
        self.told: list[Told] = []
        self.faults: list[tuple[float, float]] = []
        """From when to when something said to the broker may have been lost."""
        self.of_delivery: dict[tuple[int, str], Sending] = {}
        self.strays: list[Passed | Refused] = []
        """About messages that were never sent on that connection."""
        self.invented: list[Delivered] = []
        self._socket_of: dict[int, int] = {}
        """By connection."""
        self._latest: dict[tuple[int, str], Sending] = {}
        for record in records:
            self._read(record.at_s, record.event)

    def _read(self, at_s: float, event: object) -> None:
        match event:
            case Sent():
                self._send(at_s, event)
            case Passed() | Refused():
                self._about(at_s, event)
            case HungUp(connection):
                self.hung_up_s[connection] = at_s
            case Delivered() | Asked() | Told() | Closed():
                self._read_client(at_s, event)
            case _:
                self._read_fault(at_s, event)

    def _read_client(self, at_s: float, event: Delivered | Asked | Told | Closed) -> None:
        match event:
            case Delivered():
                self._deliver(at_s, event)
            case Asked():
                for delivery in event.deliveries:
                    self.asked[event.socket, delivery].append((at_s, event))
                if event.ref is not None:
                    self.asked_by_ref[event.socket, event.ref] = (at_s, event)
            case Told():
                self.told.append(event)
            case Closed(socket):
                self.closed_s.setdefault(socket, at_s)

    def _read_fault(self, at_s: float, event: object) -> None:
        match event:
            case BrokerEnded(kept):
                self.deaths.append((at_s, kept))
                self.faults.append((at_s, at_s))
            case GatewayEnded():
                self.faults.append((at_s, at_s))
            case WayBroken():
                self.faults.append((at_s, float("inf")))
            case WayHealed():
                self._heal(at_s)
            case _:
                pass

    def _send(self, at_s: float, event: Sent) -> None:
        same = self._same(event.body, event.message, event.attempts)
        sending = Sending(at_s, event, family=same[0].family if same else [])
        sending.family.append(sending)
        self.sendings.append(sending)
        self.by_body[event.body].append(sending)
        self._latest[event.connection, event.message] = sending

    def _about(self, at_s: float, event: Passed | Refused) -> None:
        sending = self._latest.get((event.connection, event.message))
        if sending is None:
            self.strays.append(event)
        elif isinstance(event, Passed):
            sending.passed.append((at_s, event.verb))
        else:
            sending.refused.append(event.verb)

    def _deliver(self, at_s: float, event: Delivered) -> None:
        same = self._same(event.body, event.message, event.attempts)
        if not same:
            self.invented.append(event)
            return
        # Equals differ by their connections: each serves one socket.
        sending = max(same, key=lambda each: self._likelihood(each, event.socket))
        self._socket_of.setdefault(sending.sent.connection, event.socket)
        sending.delivered.append((at_s, event))
        self.of_delivery[event.socket, event.delivery] = sending

    def _likelihood(self, sending: Sending, socket: int) -> tuple[bool, bool, bool, float]:
        owner = self._socket_of.get(sending.sent.connection)
        return not sending.delivered, owner == socket, owner is None, sending.at_s

    def _same(self, body: str, message: str, attempts: int) -> list[Sending]:
        return [
            sending
            for sending in self.by_body[body]
            if (sending.sent.message, sending.sent.attempts) == (message, attempts)
        ]

    def _heal(self, at_s: float) -> None:
        self.faults = [
            (start_s, at_s if end_s == float("inf") else end_s) for start_s, end_s in self.faults
        ]

    def died_between(self, start_s: float, end_s: float) -> bool:
        """Whether the broker did."""
        return any(start_s <= at_s <= end_s for at_s, _ in self.deaths)

    def is_doubled(self, body: str) -> bool:
        """
        Whether the broker has two copies of *body* since it died.

        nsqd moves a message from the topic to its channels, and may die before it has written down
        that the topic has it no more. Each copy counts its attempts for itself, from the number
        that it had on the disk, so that two are equal: for one copy they never are.
        """
        died_s = min((at_s for at_s, kept in self.deaths if body in kept), default=float("inf"))
        attempts = [each.sent.attempts for each in self.by_body[body] if each.at_s > died_s]
        return len(set(attempts)) < len(attempts)

    def may_have_been_lost(self, at_s: float) -> bool:
        """Whether what was said to the broker about that time may not have arrived."""
        return any(
            start_s - 2 * SLACK_S <= at_s <= end_s + 2 * SLACK_S for start_s, end_s in self.faults
        )

    def stored_s(self) -> dict[str, float]:
        """Return when the broker had each body."""
        return {
            body: record.at_s
            for record in self.records
            if isinstance(record.event, Stored)
            for body in record.event.bodies
        }

    def owed(self) -> set[str]:
        """Return the bodies that were acknowledged and that no death of a broker took."""
        stored_s = self.stored_s()
        return {
            body
            for record in self.records
            if isinstance(record.event, Acknowledged)
            for body in record.event.bodies
            if not any(
                stored_s.get(body, record.at_s) <= died_s and body not in kept
                for died_s, kept in self.deaths
            )
        }

    def finished(self) -> set[str]:
        """Return the bodies with a FIN that reached the broker and was not refused."""
        return {
            sending.sent.body
            for sending in self.sendings
            if len(sending.said("FIN")) > sending.refused.count("FIN")
        }

    def asks(self, sending: Sending, verb: str) -> Iterator[float]:
        """Give when a client that *sending* may have been delivered to asked for *verb*."""
        for each in sending.family:
            for _, delivered in each.delivered:
                for at_s, asked in self.asked[delivered.socket, delivered.delivery]:
                    if asked.verb == verb:
                        yield at_s
