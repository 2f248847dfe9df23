"""
A history of the events between clients, gateway and broker, in order.

Clients record their actions and responses, a tap between gateway and broker records both
directions, and the run records its faults. `history_check.violations` checks the list.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class PublishAcknowledged:
    """A publisher received OK."""

    bodies: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PublishStored:
    """The broker answered OK to the gateway's publish."""

    bodies: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MessageSent:
    """The broker sent a message to the gateway, on one of its connections."""

    connection: int
    message: str
    attempts: int
    body: str


@dataclass(frozen=True, slots=True)
class AckForwarded:
    """The gateway sent FIN, REQ or TOUCH to the broker."""

    connection: int
    verb: str
    message: str


@dataclass(frozen=True, slots=True)
class AckRefused:
    """The broker refused a FIN, REQ or TOUCH."""

    connection: int
    verb: str
    message: str


@dataclass(frozen=True, slots=True)
class ConnectionClosed:
    """A connection between gateway and broker closed, on either side."""

    connection: int


@dataclass(frozen=True, slots=True)
class MessageDelivered:
    """A client read a message."""

    socket: int
    delivery: str
    attempts: int
    body: str
    lease_s: float | None = None
    """Length of its lease, in seconds; None if a socket delivered it."""

    @property
    def message(self) -> str:
        """The id that the broker gave it, which a delivery's id begins with."""
        return self.delivery.partition("-")[0]


@dataclass(frozen=True, slots=True)
class AckAttempted:
    """A client is about to send FIN, REQ or TOUCH."""

    socket: int
    verb: str
    deliveries: tuple[str, ...]
    ref: str | None = None


@dataclass(frozen=True, slots=True)
class AckResponse:
    """A client read the response to its FIN, REQ or TOUCH; *refused* are deliveries."""

    socket: int
    verb: str
    ref: str | None
    refused: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OwnerMissed:
    """The ack of a leased message was refused because its owner was gone or did not answer."""

    socket: int
    delivery: str
    code: str
    took_s: float
    """Time between the ack and the refusal."""


@dataclass(frozen=True, slots=True)
class CloseWaitReceived:
    """A client read CLOSE_WAIT: no deliveries may follow."""

    socket: int


@dataclass(frozen=True, slots=True)
class SocketClosed:
    """A client's socket closed, as seen by the client."""

    socket: int
    code: int


@dataclass(frozen=True, slots=True)
class BrokerEnded:
    """The broker is dead; *kept* are the bodies on its disk."""

    kept: frozenset[str]


@dataclass(frozen=True, slots=True)
class GatewayEnded:
    """The gateway is dead."""


@dataclass(frozen=True, slots=True)
class LinkBroken:
    """From this event on, the gateway's commands may not reach the broker."""


@dataclass(frozen=True, slots=True)
class LinkRestored:
    """From this event on, the gateway's commands reach the broker again."""


@dataclass(frozen=True, slots=True)
class FinalCounts:
    """The broker's counts of the channel at the end."""

    depth: int
    in_flight: int
    deferred: int


Event: TypeAlias = (
    PublishAcknowledged
    | PublishStored
    | MessageSent
    | AckForwarded
    | AckRefused
    | ConnectionClosed
    | MessageDelivered
    | AckAttempted
    | AckResponse
    | OwnerMissed
    | CloseWaitReceived
    | SocketClosed
    | BrokerEnded
    | GatewayEnded
    | LinkBroken
    | LinkRestored
    | FinalCounts
)


@dataclass(frozen=True, slots=True)
class Record:
    """One event with its time (seconds of any clock)."""

    at_s: float
    event: Event


@dataclass
class History:
    """Records in order; adding one wakes waiting tasks."""

    clock: Callable[[], float]
    records: list[Record] = field(default_factory=list)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, event: Event) -> None:
        """Record *event* with the current time."""
        self.records.append(Record(self.clock(), event))
        self._changed.set()

    async def until(self, is_reached: Callable[[], bool], *, within_s: float) -> bool:
        """Wait until *is_reached* is true, checked after each event; return False on timeout."""
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
