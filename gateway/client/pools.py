"""
The pools by secret: each is made when its secret comes, and goes when nobody uses it.

Their number is bounded. The secret least recently used makes room, and one that no nsqd has
taken yet makes room for nobody; what an nsqd has refused is answered from memory for a moment.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from gateway.client.lane import LaneOptions, Settle, TopicSeen
from gateway.client.node import Node
from gateway.client.pool import Pool
from gateway.client.refusals import Refusals
from gateway.errors import BrokerRefused, Full, GatewayError
from gateway.secret import Secret
from gateway.telemetry import spawn

_UNPROVEN_SHARE = 4
"""Beside max_secrets, this part of it may wait to be taken by a broker."""


@dataclass(frozen=True, kw_only=True)
class PoolsOptions(LaneOptions):
    """How many connections there are, for how many secrets, and what each nsqd may hold."""

    connections_per_nsqd: int = 4
    """For each secret; the first is opened at once, the others when there is work for them."""
    buffer_per_nsqd_bytes: int = 32 * 1_048_576
    """What may wait or be unanswered for one nsqd; above it publishes go to others."""
    max_secrets: int = 256
    """
    Secrets that have connections at a time; the one least recently used makes room.

    A quarter as many more may wait until a broker has taken or refused them.
    """
    secret_idle_s: float = 60.0
    """So long at least, and less than twice as long, connections of a secret are kept unused."""


class Pools:
    """A pool for each secret, and one for nobody's in particular; `open` first, `close` last."""

    def __init__(self, options: PoolsOptions, settle: Settle, topic_seen: TopicSeen) -> None:
        self.settle = settle
        self.topic_seen = topic_seen
        self._options = options
        self._addresses: Sequence[str] = ()
        self._nodes: dict[str, Node] = {}
        self._pools: OrderedDict[Secret | None, Pool] = OrderedDict()
        """By secret, the one least recently used first; None is there always."""
        self._refusals = Refusals()
        """By secret and topic; topic None is everything."""
        self._reaper: asyncio.TimerHandle | None = None
        self._closing: set[asyncio.Task[None]] = set()

    def open(self, addresses: Sequence[str]) -> Pool:
        """Connect to *addresses* for nobody in particular; return that pool."""
        self._addresses = addresses
        return self._add(None)

    # The brokers

    def set_addresses(self, addresses: Sequence[str]) -> None:
        """Connect to those that are new, and to the others no more."""
        self._addresses = addresses
        for pool in self._pools.values():
            pool.set_addresses(addresses)
        used = {address for pool in self._pools.values() for address in pool.addresses_in_use}
        used.update(addresses)
        self._nodes = {address: node for address, node in self._nodes.items() if address in used}

    def node(self, address: str) -> Node:
        """Return what is known of the nsqd at *address*, to all pools the same."""
        node = self._nodes.get(address)
        if node is None:
            limit_bytes = self._options.buffer_per_nsqd_bytes
            node = self._nodes[address] = Node(address, limit_bytes=limit_bytes)
        return node

    @property
    def asks_for_auth(self) -> bool:
        """Whether any of the nsqds has said that it wants a secret."""
        return any(node.asks_for_auth for node in self._nodes.values())

    @property
    def has_open_lane(self) -> bool:
        """Whether a publish without a secret could be written now."""
        return None in self._pools and self._pools[None].has_open_lane

    # Work

    def pool_of(self, secret: Secret | None, now: float) -> Pool:
        """Return the pool of *secret*; raises Full when there is none and no room for one."""
        pool = self._pools.get(secret)
        if pool is None:
            self._make_room()
            pool = self._add(secret)
            if self._reaper is None:
                self._schedule_reaper()
        elif secret is not None:
            self._pools.move_to_end(secret)
        pool.used_at = now
        return pool

    @property
    def refusals_until(self) -> float:
        """Up to when anything is answered from memory, monotonic seconds."""
        return self._refusals.until

    def refusal(self, secret: Secret | None, topic: str, now: float) -> GatewayError | None:
        """Return what a broker has said a moment ago to a publish like this, None when nothing."""
        find = self._refusals.find
        return find((secret, topic), now) or find((secret, None), now)

    def sweep(self, now: float) -> None:
        """Answer what has passed its deadline, and move what waits for an nsqd that hangs."""
        for pool in list(self._pools.values()):
            pool.sweep(now)

    # Which pools there are

    def _add(self, secret: Secret | None) -> Pool:
        max_lanes = self._options.connections_per_nsqd
        pool = Pool(self, self._options, secret=secret, max_lanes_per_nsqd=max_lanes)
        self._pools[secret] = pool
        pool.set_addresses(self._addresses)
        return pool

    def _make_room(self) -> None:
        """
        Let go of the secret least recently used where there are too many; raises Full.

        Secrets that no broker has taken yet have a share of their own: whoever makes some up
        takes no place from those who have one.
        """
        secrets = [pool for pool in self._pools.values() if pool.secret is not None]
        proven = [pool for pool in secrets if pool.is_proven]
        limit = self._options.max_secrets
        new_limit = max(1, limit // _UNPROVEN_SHARE)
        if len(secrets) - len(proven) >= new_limit:
            text = f"{new_limit} new secrets wait for a broker's answer, which is the limit"
            raise Full(f"{text}; nothing was published, try again later")
        if len(proven) < limit:
            return
        idle = next((pool for pool in proven if pool.is_idle), None)
        if idle is None:
            text = f"{limit} secrets publish at this moment, which is the limit"
            raise Full(f"{text}; nothing was published, try again later")
        self._let_go(idle)

    def _schedule_reaper(self) -> None:
        loop = asyncio.get_running_loop()
        self._reaper = loop.call_later(self._options.secret_idle_s, self._reap)

    def _reap(self) -> None:
        """Close the pools that nobody has used for a while."""
        self._reaper = None
        long_ago = asyncio.get_running_loop().time() - self._options.secret_idle_s
        for secret, pool in list(self._pools.items()):
            if secret is not None and pool.is_idle and pool.used_at <= long_ago:
                self._let_go(pool)
        if len(self._pools) > 1:
            self._schedule_reaper()

    def _let_go(self, pool: Pool) -> None:
        del self._pools[pool.secret]
        pool.is_closing = True
        closing = spawn("close the connections of a secret", pool.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    def refused(self, pool: Pool, topic: str | None, error: GatewayError) -> None:
        """Answer the same from memory for a moment; let go of a secret that nobody takes."""
        if isinstance(error, BrokerRefused):
            now = asyncio.get_running_loop().time()
            self._refusals.remember((pool.secret, topic), error, now)
        if topic is None and pool.secret is not None and not pool.is_closing:
            self._let_go(pool)

    # The end

    async def close(self) -> None:
        """Close every connection; what still waits is answered with NoBroker."""
        if self._reaper is not None:
            self._reaper.cancel()
        pools = [pool.close() for pool in self._pools.values()]
        await asyncio.gather(*pools, *self._closing)

    def abort(self) -> None:
        """Close every connection at once: what is unanswered has an unknown outcome."""
        for pool in self._pools.values():
            pool.abort()
