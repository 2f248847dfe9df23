"""
A history indexed by message, connection and socket. PURE.

The central record is the `Sending`: one delivery attempt of a message by the broker. It links to
the deliveries of the message to clients, and to the gateway's commands to the broker.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tests.support.history.events import (
    AckAttempted,
    AckForwarded,
    AckRefused,
    AckResponse,
    BrokerEnded,
    ConnectionClosed,
    GatewayEnded,
    LinkBroken,
    LinkRestored,
    MessageDelivered,
    MessageSent,
    PublishAcknowledged,
    PublishStored,
    Record,
    SocketClosed,
)

SLACK_S = 0.5
"""Maximum delay between an event and its record, on a busy machine."""


@dataclass(eq=False, slots=True)
class Sending:
    """One delivery attempt of a message by the broker."""

    at_s: float
    sent: MessageSent
    delivered: list[tuple[float, MessageDelivered]] = field(default_factory=list)
    passed: list[tuple[float, str]] = field(default_factory=list)
    """Time and verb of each command sent to the broker."""
    refused: list[str] = field(default_factory=list)
    """Verbs that the broker refused, one item for each refusal."""
    family: list[Sending] = field(default_factory=list)
    """
    All sendings of the same message with the same attempts, this one included.

    More than one exists only after the broker died. A delivery may belong to any of them.
    """

    def said(self, verb: str) -> list[float]:
        """Return the times at which *verb* was sent to the broker."""
        return [at_s for at_s, said in self.passed if said == verb]

    def __str__(self) -> str:
        """Return a description for a failed test."""
        sent = self.sent
        return (
            f"{sent.body} ({sent.message}, attempt {sent.attempts}) sent at {self.at_s:.3f} on "
            f"connection {sent.connection}; said: {self.passed}, refused: {sorted(self.refused)}"
        )


class HistoryIndex:
    """A history with its events linked to each other."""

    def __init__(self, records: Sequence[Record], msg_timeout_s: float) -> None:
        self.records = records
        self.msg_timeout_s = msg_timeout_s
        self.sendings: list[Sending] = []
        self.by_body: dict[str, list[Sending]] = defaultdict(list)
        self.hung_up_s: dict[int, float] = {}
        self.closed_s: dict[int, float] = {}
        self.deaths: list[tuple[float, frozenset[str]]] = []
        self.asked: dict[tuple[int, str], list[tuple[float, AckAttempted]]] = defaultdict(list)
        """Acks that clients sent, by socket and delivery."""
        self.asked_by_ref: dict[tuple[int, str], tuple[float, AckAttempted]] = {}
        self.told: list[AckResponse] = []
        self.faults: list[tuple[float, float]] = []
        """Periods, as start and end, in which commands to the broker may have been lost."""
        self.of_delivery: dict[tuple[int, str], Sending] = {}
        self.strays: list[AckForwarded | AckRefused] = []
        """Commands for messages that were never sent on their connection."""
        self.invented: list[MessageDelivered] = []
        self._socket_of: dict[int, int] = {}
        """Socket by nsqd connection."""
        self._latest: dict[tuple[int, str], Sending] = {}
        for record in records:
            self._read(record.at_s, record.event)

    def _read(self, at_s: float, event: object) -> None:
        match event:
            case MessageSent():
                self._send(at_s, event)
            case AckForwarded() | AckRefused():
                self._about(at_s, event)
            case ConnectionClosed(connection):
                self.hung_up_s[connection] = at_s
            case MessageDelivered() | AckAttempted() | AckResponse() | SocketClosed():
                self._read_client(at_s, event)
            case _:
                self._read_fault(at_s, event)

    def _read_client(
        self, at_s: float, event: MessageDelivered | AckAttempted | AckResponse | SocketClosed
    ) -> None:
        match event:
            case MessageDelivered():
                self._deliver(at_s, event)
            case AckAttempted():
                for delivery in event.deliveries:
                    self.asked[event.socket, delivery].append((at_s, event))
                if event.ref is not None:
                    self.asked_by_ref[event.socket, event.ref] = (at_s, event)
            case AckResponse():
                self.told.append(event)
            case SocketClosed(socket):
                self.closed_s.setdefault(socket, at_s)

    def _read_fault(self, at_s: float, event: object) -> None:
        match event:
            case BrokerEnded(kept):
                self.deaths.append((at_s, kept))
                self.faults.append((at_s, at_s))
            case GatewayEnded():
                self.faults.append((at_s, at_s))
            case LinkBroken():
                self.faults.append((at_s, float("inf")))
            case LinkRestored():
                self._heal(at_s)
            case _:
                pass

    def _send(self, at_s: float, event: MessageSent) -> None:
        same = self._same(event.body, event.message, event.attempts)
        sending = Sending(at_s, event, family=same[0].family if same else [])
        sending.family.append(sending)
        self.sendings.append(sending)
        self.by_body[event.body].append(sending)
        self._latest[event.connection, event.message] = sending

    def _about(self, at_s: float, event: AckForwarded | AckRefused) -> None:
        sending = self._latest.get((event.connection, event.message))
        if sending is None:
            self.strays.append(event)
        elif isinstance(event, AckForwarded):
            sending.passed.append((at_s, event.verb))
        else:
            sending.refused.append(event.verb)

    def _deliver(self, at_s: float, event: MessageDelivered) -> None:
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
        """Return whether the broker died between the two times."""
        return any(start_s <= at_s <= end_s for at_s, _ in self.deaths)

    def is_late(self, sending: Sending, at_s: float) -> bool:
        """Return whether the broker may have timed *sending* out by *at_s*."""
        touched_s = sending.said("TOUCH") if "TOUCH" not in sending.refused else []
        last_s = max([sending.at_s, *(said_s for said_s in touched_s if said_s <= at_s)])
        return at_s - last_s >= self.msg_timeout_s - SLACK_S

    def is_doubled(self, body: str) -> bool:
        """
        Return whether the broker has had two copies of *body* since it died.

        nsqd moves a message from the topic to its channels, and may die before it has stored that
        the topic no longer has the message. Each copy then counts its own attempts, starting with
        the number on disk, so two sendings can have equal attempts. With one copy they never do.
        """
        died_s = min((at_s for at_s, kept in self.deaths if body in kept), default=float("inf"))
        attempts = [each.sent.attempts for each in self.by_body[body] if each.at_s > died_s]
        return len(set(attempts)) < len(attempts)

    def may_have_been_lost(self, at_s: float) -> bool:
        """Return whether commands sent to the broker at about that time may have been lost."""
        return any(
            start_s - 2 * SLACK_S <= at_s <= end_s + 2 * SLACK_S for start_s, end_s in self.faults
        )

    def stored_s(self) -> dict[str, float]:
        """Return the time at which the broker stored each body."""
        return {
            body: record.at_s
            for record in self.records
            if isinstance(record.event, PublishStored)
            for body in record.event.bodies
        }

    def owed(self) -> set[str]:
        """Return the acknowledged bodies that were not lost when a broker died."""
        stored_s = self.stored_s()
        return {
            body
            for record in self.records
            if isinstance(record.event, PublishAcknowledged)
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
        """Yield the times at which a possible receiver of *sending* sent *verb*."""
        for each in sending.family:
            for _, delivered in each.delivered:
                for at_s, asked in self.asked[delivered.socket, delivered.delivery]:
                    if asked.verb == verb:
                        yield at_s
