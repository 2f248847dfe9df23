"""
A model of RDY and messages in flight at one nsqd, with both directions of TCP.

Commands and messages take `one_way_s` on the wire. Messages time out; TOUCH extends the timeout.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from math import inf, nextafter
from typing import Protocol

from gateway.client.rdy import SETTLE_S
from gateway.client.send_time import SendTime

ONE_WAY_S = SETTLE_S / 3
"""Maximum one-way delay: a round trip is shorter than the settle time of RDY."""
TIMEOUT_S, MAX_TIMEOUT_S = 20.0, 45.0


class World(Protocol):
    """The consumer and the clock."""

    refused: int
    """Number of commands that nsqd refused."""

    @property
    def now(self) -> float:
        """The current time, in seconds."""

    def at(self, moment: float, do: Callable[[], None]) -> None:
        """Schedule a call for the given time."""

    def read(self, nsqd: Nsqd) -> None:
        """Read all data in the socket at once."""

    def refuse(self, nsqd: Nsqd, number: int) -> None:
        """Pass the refusal of a TOUCH to the consumer."""


class Nsqd:
    """One nsqd as a consumer sees it: RDY, messages in flight, both directions of TCP."""

    def __init__(self, model: World, source: int, max_rdy: int, one_way_s: float) -> None:
        self.model = model
        self.source = source
        self.max_rdy = max_rdy
        self.one_way_s = one_way_s
        self.is_open = True
        self.is_paused = False
        self.ready = 0
        self.depth: deque[int] = deque()
        self.in_flight: dict[int, tuple[float, float]] = {}
        """Timeout and send time of each message in flight, by number."""
        self.answered: set[tuple[int, float]] = set()
        """Deliveries, by number and moment, that were finished or requeued."""
        self.unread: deque[tuple[int, float]] = deque()
        """In the client's socket: number, and when it was sent."""
        self.send_time = SendTime(model.now)
        self._sent_at = 0.0
        """Send time of the last message; send times are unique and identify deliveries."""

    def publish(self, number: int) -> None:
        """Queue one message."""
        self.depth.append(number)
        self.pump()

    def pump(self) -> None:
        """Send messages up to RDY."""
        model = self.model
        while (
            self.is_open and not self.is_paused and self.depth and len(self.in_flight) < self.ready
        ):
            number = self.depth.popleft()
            self._sent_at = sent_at = max(model.now, nextafter(self._sent_at, inf))
            due = sent_at + TIMEOUT_S
            self.in_flight[number] = due, sent_at
            model.at(due, lambda number=number, due=due: self.time_out(number, due))  # type: ignore[misc]
            model.at(
                sent_at + self.one_way_s,
                lambda number=number, sent_at=sent_at: self.arrive(number, sent_at),  # type: ignore[misc]
            )

    def arrive(self, number: int, sent_at: float) -> None:
        """Receive a message in the client's socket."""
        if self.is_open:
            self.unread.append((number, sent_at))
            self.model.read(self)

    def time_out(self, number: int, due: float) -> None:
        """Deliver it again, unless it was answered or touched."""
        held = self.in_flight.get(number)
        if held is not None and held[0] == due:
            del self.in_flight[number]
            self.depth.append(number)
            self.pump()

    def command(self, do: Callable[[], None]) -> None:
        """Do it once the command is here; nsqd reads them in order."""
        self.model.at(self.model.now + self.one_way_s, lambda: do() if self.is_open else None)

    def set_ready(self, ready: int) -> None:
        """Set the RDY count."""
        assert 0 <= ready <= self.max_rdy, "nsqd would close the connection"
        self.ready = ready
        self.pump()

    def answer(self, number: int, *, is_requeued: bool) -> None:
        """Execute FIN or REQ."""
        held = self.in_flight.pop(number, None)
        if held is None:
            self.model.refused += 1
            return
        assert (number, held[1]) not in self.answered, "answered twice"
        self.answered.add((number, held[1]))
        if is_requeued:
            self.depth.append(number)
        self.pump()

    def touch(self, number: int) -> None:
        """TOUCH: from now on, up to the ceiling of the delivery."""
        held = self.in_flight.get(number)
        if held is not None:
            due = min(self.model.now + TIMEOUT_S, held[1] + MAX_TIMEOUT_S)
            self.in_flight[number] = due, held[1]
            self.model.at(due, lambda: self.time_out(number, due))
        else:
            self.model.at(self.model.now + self.one_way_s, lambda: self.model.refuse(self, number))
