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
from gateway.client.lane import Lane, LaneOptions, Settle, TopicSeen
from gateway.client.node import Node
from gateway.errors import AuthRequired, BrokerRefused, GatewayError, NoBroker, Overloaded
from gateway.secret import Secret


class PoolOwner(Protocol):
    """What is common to all pools, as each of them sees it."""

    settle: Settle

    topic_seen: TopicSeen

    def node(self, address: str) -> Node:
        """Return what is known of the nsqd at *address*, to all pools the same."""

    def refused(self, pool: Pool, topic: str | None, error: GatewayError) -> None:
        """Learn that a broker refuses the pool's secret: for *topic*, or None: for everything."""


class Pool:
    """The lanes of one secret; `close` last."""

    def __init__(
        self,
        owner: PoolOwner,
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
        self.settle = owner.settle
        self.topic_seen = owner.topic_seen
        self._owner = owner
        self._max_lanes_per_nsqd = max_lanes_per_nsqd
        # Nobody in particular is everybody: all lanes at once. A secret may be used once only.
        self._first_lanes = max_lanes_per_nsqd if secret is None else 1
        self._addresses: Sequence[str] = ()
        self._lanes: list[Lane] = []
        self._lane_of: dict[str, Lane] = {}
        """By topic, the lane where it has work: its next batch fills there."""
        self._turn = 0

    # The brokers

    def set_addresses(self, addresses: Sequence[str]) -> None:
        """
        Connect to those of *addresses* that are new.

        A lane to a broker that is no longer named goes on as long as its connection does.
        """
        self._addresses = addresses
        known = {lane.node.address for lane in self._lanes}
        for _ in range(self._first_lanes):
            # Broker by broker within each round, so that lanes of equal load alternate.
            for address in addresses:
                if address not in known:
                    self._add_lane(address)
        for lane in self._lanes[:]:
            if not (lane.is_open or lane.node.address in addresses):
                self._lanes.remove(lane)
                self._forget(lane)
                lane.cancel()

    @property
    def addresses_in_use(self) -> set[str]:
        """The addresses that there are lanes to, those that are no longer named included."""
        return {lane.node.address for lane in self._lanes}

    def _add_lane(self, address: str) -> None:
        lane = Lane(self, self._owner.node(address))
        self._lanes.append(lane)
        lane.open()

    async def first_tries(self) -> list[str]:
        """
        Wait until each lane has tried to open; return a line for each broker out of reach.

        One that asks for a secret is not: who has one will bring it.
        """
        for lane in self._lanes[:]:
            await lane.tried.wait()
        errors = {lane.node.address: lane.error for lane in self._lanes if not lane.is_open}
        return [str(error) for error in errors.values() if not isinstance(error, AuthRequired)]

    # Work

    @property
    def has_open_lane(self) -> bool:
        """Whether any connection can take a command now."""
        return any(lane.is_open for lane in self._lanes)

    def submit(self, publish: PendingPublish) -> None:
        """
        Queue *publish* on a lane that is open or about to be; without one, answer it.

        A topic stays where it has work, as long as its nsqd takes more.
        """
        lane = self._lane_of.get(publish.topic)
        if lane is None or not lane.node.has_room(publish.size_bytes):
            lane = self._place(publish)
            if lane is None:
                return
        lane.add(publish)

    def _place(self, publish: PendingPublish) -> Lane | None:
        """Return the lane for *publish*, and let its topic stay there; None: it is answered."""
        if self.is_closing:
            text = "its connections are being closed; nothing was published, try again"
            self.settle([publish], publish.size_bytes, NoBroker(text))
            return None
        self._turn += 1
        lane = choose(self._lanes, publish.size_bytes, turn=self._turn)
        if lane is not None:
            if lane.load_bytes:
                self._grow(lane.node.address)
            self._lane_of[publish.topic] = lane
            return lane
        lanes = [lane for lane in self._lanes if lane.is_open]
        if not lanes:
            # Where none is open the first that opens serves its topics; they stay nowhere yet.
            lanes = [lane for lane in self._lanes if not lane.tried.is_set()]
            with_room = [lane for lane in lanes if lane.node.has_room(publish.size_bytes)]
            if with_room:
                return min(with_room, key=lambda lane: lane.load_bytes)
        error = self._overloaded(publish, lanes) if lanes else self._why_none()
        self.settle([publish], publish.size_bytes, error)
        return None

    def _grow(self, address: str) -> None:
        """Open one more lane to *address*, for even the least loaded one is busy."""
        lanes = [lane for lane in self._lanes if lane.node.address == address]
        if len(lanes) < self._max_lanes_per_nsqd and all(lane.tried.is_set() for lane in lanes):
            self._add_lane(address)

    def _overloaded(self, publish: PendingPublish, lanes: Sequence[Lane]) -> Overloaded:
        """Return why none of *lanes* takes *publish*: each of their nsqds has enough."""
        node = min((lane.node for lane in lanes), key=lambda node: node.held_bytes)
        return Overloaded(
            waiting_bytes=node.held_bytes,
            size_bytes=publish.size_bytes,
            limit_bytes=node.limit_bytes,
            where="for each nsqd that is there",
        )

    def _why_none(self) -> GatewayError:
        """Return why no lane is open; a refusal says more than a broker that is away."""
        for lane in self._lanes:
            if isinstance(lane.error, AuthRequired | BrokerRefused):
                return lane.error
        reasons = {
            lane.node.address: str(lane.error) for lane in self._lanes if lane.error is not None
        }
        text = "; ".join(reasons.values()) or "no address of an nsqd is known"
        return NoBroker(f"no nsqd can take it, nothing was published ({text})")

    def sweep(self, now: float) -> None:
        """Answer what has passed its deadline, and move what waits for an nsqd that hangs."""
        for lane in self._lanes[:]:
            lane.sweep(now)
        doubted = [lane for lane in self._lanes if lane.node.is_doubted and not lane.is_idle]
        if doubted:
            self._empty(doubted)

    def _empty(self, doubted: Sequence[Lane]) -> None:
        """Move what waits at *doubted* lanes, as far as others have room."""
        nodes = {lane.node for lane in self._lanes if lane.is_open and not lane.node.is_doubted}
        for lane in doubted:
            # What found no room would come back here, and be moved at each sweep.
            room_bytes = sum(node.limit_bytes - node.held_bytes for node in nodes)
            if room_bytes > 0:
                self._forget(lane)
                lane.move_waiting(room_bytes)

    def _forget(self, lane: Lane) -> None:
        """Let its topics go elsewhere from now on."""
        self._lane_of = {
            topic: other for topic, other in self._lane_of.items() if other is not lane
        }

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits and nothing is in flight."""
        return all(lane.is_idle for lane in self._lanes)

    # What the lanes tell

    def topic_ended(self, topic: str, lane: Lane) -> None:
        """Let *topic* go anywhere again, for *lane* has no more work for it."""
        if self._lane_of.get(topic) is lane:
            del self._lane_of[topic]

    def lane_opened(self) -> None:
        """Know that a broker takes the secret."""
        self.is_proven = True

    def topic_refused(self, topic: str, error: BrokerRefused) -> None:
        """Tell the publisher, which remembers it for a while."""
        self._owner.refused(self, topic, error)

    def lane_ended(self, lane: Lane) -> bool:
        """Tell whether *lane* is to get another connection; one whose broker is not named goes."""
        self._forget(lane)
        is_kept = lane.node.address in self._addresses and not self.is_closing
        if not is_kept and lane in self._lanes:
            self._lanes.remove(lane)
        return is_kept

    def lane_failed(self, lane: Lane) -> None:
        """Tell the publisher when no broker is left that takes the secret."""
        error = lane.error
        if isinstance(error, AuthRequired | BrokerRefused) and not any(
            other.is_open or not other.tried.is_set() for other in self._lanes
        ):
            self._owner.refused(self, None, error)

    # The end

    async def close(self) -> None:
        """Close every connection; what still waits is answered with NoBroker."""
        self.is_closing = True
        self._lane_of.clear()
        lanes = self._lanes[:]
        for lane in lanes:
            lane.cancel()
        await asyncio.gather(*(lane.close() for lane in lanes))

    def abort(self) -> None:
        """Close every connection at once."""
        for lane in self._lanes[:]:
            lane.abort()
