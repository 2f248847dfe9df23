"""
What happened between clients, gateway and broker: one list of events, as they were seen.

Clients write down what they do and are told; a tap between gateway and broker what both say; the
run what it breaks. `history_check.violations` reads it afterwards.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """A publisher was told OK."""

    bodies: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Stored:
    """The broker said OK to what the gateway published."""

    bodies: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Sent:
    """The broker gave a message to the gateway, on one of its connections."""

    connection: int
    message: str
    attempts: int
    body: str


@dataclass(frozen=True, slots=True)
class Passed:
    """The gateway said FIN, REQ or TOUCH to the broker."""

    connection: int
    verb: str
    message: str


@dataclass(frozen=True, slots=True)
class Refused:
    """The broker refused a FIN, REQ or TOUCH."""

    connection: int
    verb: str
    message: str


@dataclass(frozen=True, slots=True)
class HungUp:
    """A connection between gateway and broker ended, on either side."""

    connection: int


@dataclass(frozen=True, slots=True)
class Delivered:
    """A client read a message."""

    socket: int
    delivery: str
    attempts: int
    body: str

    @property
    def message(self) -> str:
        """The id that the broker gave it, which a delivery's id begins with."""
        return self.delivery.partition("-")[0]


@dataclass(frozen=True, slots=True)
class Asked:
    """A client is about to say FIN, REQ or TOUCH."""

    socket: int
    verb: str
    deliveries: tuple[str, ...]
    ref: str | None = None


@dataclass(frozen=True, slots=True)
class Told:
    """A client read the answer to its FIN, REQ or TOUCH; *refused* are deliveries."""

    socket: int
    verb: str
    ref: str | None
    refused: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Leaving:
    """A client read CLOSE_WAIT: nothing is delivered any more."""

    socket: int


@dataclass(frozen=True, slots=True)
class Closed:
    """A client's socket ended, as far as the client knows."""

    socket: int
    code: int


@dataclass(frozen=True, slots=True)
class BrokerEnded:
    """The broker is dead; *kept* are the bodies that it has on its disk."""

    kept: frozenset[str]


@dataclass(frozen=True, slots=True)
class GatewayEnded:
    """The gateway is dead."""


@dataclass(frozen=True, slots=True)
class WayBroken:
    """What the gateway says may not reach the broker from here on."""


@dataclass(frozen=True, slots=True)
class WayHealed:
    """It does again."""


@dataclass(frozen=True, slots=True)
class Finally:
    """What the broker counts for the channel when everything is over."""

    depth: int
    in_flight: int
    deferred: int


Event: TypeAlias = (
    Acknowledged
    | Stored
    | Sent
    | Passed
    | Refused
    | HungUp
    | Delivered
    | Asked
    | Told
    | Leaving
    | Closed
    | BrokerEnded
    | GatewayEnded
    | WayBroken
    | WayHealed
    | Finally
)


@dataclass(frozen=True, slots=True)
class Record:
    """One event, and when it was seen (seconds of any clock)."""

    at_s: float
    event: Event


@dataclass
class History:
    """Records in order; who writes one wakes up who waits for more."""

    clock: Callable[[], float]
    records: list[Record] = field(default_factory=list)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, event: Event) -> None:
        """Write down that *event* was seen now."""
        self.records.append(Record(self.clock(), event))
        self._changed.set()

    async def until(self, is_reached: Callable[[], bool], *, within_s: float) -> bool:
        """Return whether *is_reached*, looked at after each event, before time is up."""
        try:
            async with asyncio.timeout(within_s):
                while not is_reached():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return is_reached()
        return True

    async def grows(self, count: int, *, within_s: float) -> None:
        """Return when *count* more events were seen, or when time is up."""
        goal = len(self.records) + count
        await self.until(lambda: len(self.records) >= goal, within_s=within_s)
