"""
The lanes that serve one secret: a few to each nsqd, opened when there is work for them.

A connection has one identity for its life (AUTH comes once, and what it denies closes it), so no
two secrets ever share one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from gateway.client.batch import PendingPublish
from gateway.client.choice import choose
from gateway.client.lane import Lane, LaneOptions
from gateway.errors import AuthRequired, BrokerRefused, GatewayError, NoBroker
from gateway.secret import Secret


class PoolOwner(Protocol):
    """The publisher, as its pools see it."""

    def settle(self, publishes: Sequence[PendingPublish], error: GatewayError | None) -> None:
        """Tell the callers of *publishes*, each once."""

    def refused(self, pool: Pool, topic: str | None, error: GatewayError) -> None:
        """Learn that a broker refuses the pool's secret: for *topic*, or None: for everything."""


class Pool:
    """The lanes of one secret; `close` last."""

    def __init__(
        self,
        publisher: PoolOwner,
        options: LaneOptions,
        *,
        secret: Secret | None,
        max_lanes_per_nsqd: int,
    ) -> None:
        self.secret = secret
        self.options = options
        if secret is not None:
            connection = replace(options.connection, secret=secret)
            self.options = replace(options, connection=connection)
        self.is_closing = False
        self.is_proven = False
        """Whether a broker has taken the secret."""
        self.used_at = 0.0
        """When the last publish came, monotonic seconds."""
        self._publisher = publisher
        self._max_lanes_per_nsqd = max_lanes_per_nsqd
        # Nobody in particular is everybody: all lanes at once. A secret may be used once only.
        self._first_lanes = max_lanes_per_nsqd if secret is None else 1
        self._addresses: Sequence[str] = ()
        self._lanes: list[Lane] = []
        self._turn = 0

    # The brokers

    def set_addresses(self, addresses: Sequence[str]) -> None:
        """
        Connect to those of *addresses* that are new.

        A lane to a broker that is no longer named goes on as long as its connection does.
        """
        self._addresses = addresses
        known = {lane.address for lane in self._lanes}
        for _ in range(self._first_lanes):
            # Broker by broker within each round, so that lanes of equal load alternate.
            for address in addresses:
                if address not in known:
                    self._add_lane(address)
        for lane in self._lanes[:]:
            if not (lane.is_open or lane.address in addresses):
                self._lanes.remove(lane)
                lane.cancel()

    def _add_lane(self, address: str) -> None:
        lane = Lane(self, address)
        self._lanes.append(lane)
        lane.open()

    async def first_tries(self) -> list[str]:
        """
        Wait until each lane has tried to open; return a line for each broker out of reach.

        One that asks for a secret is not: who has one will bring it.
        """
        for lane in self._lanes[:]:
            await lane.tried.wait()
        errors = {lane.address: lane.error for lane in self._lanes if not lane.is_open}
        return [str(error) for error in errors.values() if not isinstance(error, AuthRequired)]

    # Work

    @property
    def has_open_lane(self) -> bool:
        """Whether any connection can take a command now."""
        return any(lane.is_open for lane in self._lanes)

    def submit(self, publish: PendingPublish) -> None:
        """Queue *publish* on a lane that is open or about to be; without one, answer it."""
        if self.is_closing:
            text = "its connections are being closed; nothing was published, try again"
            self.settle([publish], NoBroker(text))
            return
        self._turn += 1
        lane = choose(self._lanes, publish.topic, turn=self._turn)
        if lane is None:
            coming = [lane for lane in self._lanes if not lane.tried.is_set()]
            if not coming:
                self.settle([publish], self._why_none())
                return
            lane = min(coming, key=lambda lane: lane.load_bytes)
        elif lane.load_bytes and not lane.works_on(publish.topic):
            self._grow(lane.address)
        lane.add(publish)

    def _grow(self, address: str) -> None:
        """Open one more lane to *address*, for even the least loaded one is busy."""
        lanes = [lane for lane in self._lanes if lane.address == address]
        if len(lanes) < self._max_lanes_per_nsqd and all(lane.tried.is_set() for lane in lanes):
            self._add_lane(address)

    def _why_none(self) -> GatewayError:
        """Return why no lane is open; a refusal says more than a broker that is away."""
        for lane in self._lanes:
            if isinstance(lane.error, AuthRequired | BrokerRefused):
                return lane.error
        reasons = {lane.address: str(lane.error) for lane in self._lanes if lane.error is not None}
        text = "; ".join(reasons.values()) or "no address of an nsqd is known"
        return NoBroker(f"no nsqd can take it, nothing was published ({text})")

    def give_up_overdue(self, now: float) -> None:
        """Answer what has passed its deadline."""
        for lane in self._lanes[:]:
            lane.give_up_overdue(now)

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits and nothing is in flight."""
        return all(lane.is_idle for lane in self._lanes)

    # What the lanes tell

    def settle(self, publishes: Sequence[PendingPublish], error: GatewayError | None) -> None:
        """Tell the callers of *publishes*, each once."""
        self._publisher.settle(publishes, error)

    def lane_opened(self) -> None:
        """Know that a broker takes the secret."""
        self.is_proven = True

    def topic_refused(self, topic: str, error: BrokerRefused) -> None:
        """Tell the publisher, which remembers it for a while."""
        self._publisher.refused(self, topic, error)

    def lane_ended(self, lane: Lane) -> bool:
        """Tell whether *lane* is to get another connection; one whose broker is not named goes."""
        is_kept = lane.address in self._addresses and not self.is_closing
        if not is_kept and lane in self._lanes:
            self._lanes.remove(lane)
        return is_kept

    def lane_failed(self, lane: Lane) -> None:
        """Tell the publisher when no broker is left that takes the secret."""
        error = lane.error
        if isinstance(error, AuthRequired | BrokerRefused) and not any(
            other.is_open or not other.tried.is_set() for other in self._lanes
        ):
            self._publisher.refused(self, None, error)

    # The end

    async def close(self) -> None:
        """Close every connection; what still waits is answered with NoBroker."""
        self.is_closing = True
        lanes = self._lanes[:]
        for lane in lanes:
            lane.cancel()
        await asyncio.gather(*(lane.close() for lane in lanes))

    def abort(self) -> None:
        """Close every connection at once."""
        for lane in self._lanes[:]:
            lane.abort()
