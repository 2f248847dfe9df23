"""
Publishing over several brokers: bounded, grouped, and with an answer that means something.

Each secret has a pool, each pool a few lanes to each broker, and each lane one connection with one
command in flight; what comes meanwhile fills the lane's next batch
(docs/decisions/0001-group-commit.md). A publish whose bytes were not written moves to another lane
when its own goes; one that was written never does, since that could publish it twice: its outcome
is unknown and says so.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from gateway.client.batch import PendingPublish, size_in_mpub
from gateway.client.lane import LaneOptions
from gateway.client.lookup import Discovery, LookupOptions, Watch
from gateway.client.pool import Pool
from gateway.client.refusals import Refusals
from gateway.errors import (
    BrokerRefused,
    Full,
    GatewayError,
    InvalidRequest,
    NoBroker,
    Overloaded,
)
from gateway.protocol.wire import is_valid_name
from gateway.secret import Secret
from gateway.telemetry import spawn

_SWEEP_INTERVAL_S = 0.1
_UNPROVEN_SHARE = 4
"""Beside max_secrets, this part of it may wait to be taken by a broker."""


@dataclass(frozen=True, kw_only=True)
class PublisherOptions(LaneOptions):
    """How much may wait, over how many connections; for the rest see `LaneOptions`."""

    connections_per_nsqd: int = 4
    """For each secret; the first is opened at once, the others when there is work for them."""
    buffer_bytes: int = 64 * 1_048_576
    """What may wait or be unanswered, over all brokers; above it publishes are refused."""
    max_secrets: int = 256
    """
    Secrets that have connections at a time; the one least recently used makes room.

    A quarter as many more may wait until a broker has taken or refused them.
    """
    secret_idle_s: float = 60.0
    """So long at least, and less than twice as long, connections of a secret are kept unused."""


class Publisher:
    """
    Publishes to any of several brokers; `start` first, `stop` last, or as a context manager.

    The brokers are those of *nsqd_tcp_addresses* and those that the lookupds of *lookup* know; a
    *discovery* that is given in place of both is started and stopped by its owner.
    """

    def __init__(
        self,
        nsqd_tcp_addresses: Sequence[str] = (),
        options: PublisherOptions | None = None,
        *,
        lookup: LookupOptions | None = None,
        discovery: Discovery | None = None,
    ) -> None:
        self.options = options or PublisherOptions()
        self._own_discovery = None
        if discovery is None:
            discovery = self._own_discovery = Discovery(nsqd_tcp_addresses, lookup)
        self._discovery = discovery
        self._watch: Watch | None = None
        self._addresses: Sequence[str] = nsqd_tcp_addresses
        self._pools: OrderedDict[Secret | None, Pool] = OrderedDict()
        """By secret, the one least recently used first; None is there always."""
        self._refusals = Refusals()
        """By secret and topic; topic None is everything."""
        self._held_bytes = 0
        self._sweep: asyncio.TimerHandle | None = None
        self._reaper: asyncio.TimerHandle | None = None
        self._takes_no_more = False
        self._became_idle = asyncio.Event()
        self._closing: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        """Start."""
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop."""
        await self.stop()

    async def start(self) -> list[str]:
        """
        Find the brokers, try each once, and go on trying in the background.

        Returns one line for each broker that cannot be reached now.
        """
        try:
            return await self._start()
        except BaseException:
            await self.stop()
            raise

    async def _start(self) -> list[str]:
        if self._own_discovery is not None:
            await self._own_discovery.start()
        self._watch = self._discovery.watch_nodes(self._found)
        self._addresses = sorted(self._watch.addresses)
        pool = self._open_pool(None)
        await self._watch.first_answer()
        self._found(self._watch.addresses)
        return await pool.first_tries()

    def _found(self, addresses: frozenset[str]) -> None:
        self._addresses = sorted(addresses)
        for pool in self._pools.values():
            pool.set_addresses(self._addresses)

    # Work

    async def publish(
        self, topic: str, body: bytes, *, defer_ms: int = 0, secret: Secret | None = None
    ) -> None:
        """
        Publish one message; a broker has answered OK when this returns.

        With a *secret* it goes over connections that serve this secret only.

        Raises:
            InvalidRequest: The name, the body or *defer_ms* is not allowed; nothing was written.
            AuthRequired: The brokers ask for a secret and there is none; nothing was written.
            Overloaded, Full: Too much waits, too many secrets are at work; nothing was written.
            NoBroker: No broker could take it; nothing was written.
            BrokerRefused: The broker said no.
            OutcomeUnknown: It was written and not answered in time.
        """
        limits = self.options.limits
        _check_topic(topic)
        self._check_body(body)
        if not 0 <= defer_ms <= limits.max_req_timeout_ms:
            text = f"defer of {defer_ms} ms, allowed: 0 to {limits.max_req_timeout_ms} ms"
            raise InvalidRequest("INVALID_DEFER", text)
        size_bytes = size_in_mpub((len(body),))
        await self._put(topic, (body,), size_bytes, defer_ms=defer_ms, secret=secret)

    async def publish_many(
        self, topic: str, bodies: Sequence[bytes], *, secret: Secret | None = None
    ) -> None:
        """Publish *bodies* with one command, all or none; raises as `publish` does."""
        _check_topic(topic)
        lengths = list(map(len, bodies))
        if (
            bodies
            and not 0 < min(lengths) <= max(lengths) <= self.options.limits.max_msg_size_bytes
        ):
            for body in bodies:
                self._check_body(body)
        size_bytes = 4 + size_in_mpub(lengths)
        limit_bytes = self.options.limits.max_body_size_bytes
        if size_bytes > limit_bytes:
            text = f"{len(bodies)} messages take {size_bytes} bytes, the limit is {limit_bytes}"
            raise InvalidRequest("BODY_TOO_BIG", f"{text} bytes")
        if bodies:
            await self._put(topic, bodies, size_bytes - 4, secret=secret)

    def _check_body(self, body: bytes) -> None:
        """Refuse what a broker would refuse by closing the connection behind it."""
        if not body:
            raise InvalidRequest("MSG_EMPTY", "the message is empty")
        limit_bytes = self.options.limits.max_msg_size_bytes
        if len(body) > limit_bytes:
            text = f"message of {len(body)} bytes, the limit is {limit_bytes} bytes"
            raise InvalidRequest("MSG_TOO_BIG", text)

    async def _put(
        self,
        topic: str,
        bodies: Sequence[bytes],
        size_bytes: int,
        *,
        defer_ms: int = 0,
        secret: Secret | None = None,
    ) -> None:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[GatewayError | None] = loop.create_future()

        def done(error: GatewayError | None) -> None:
            if not answer.done():  # else the caller has gone
                answer.set_result(error)

        self.submit(
            PendingPublish(
                topic,
                bodies,
                defer_ms,
                size_bytes,
                loop.time() + self.options.timeout_ms / 1000,
                done,
                secret=secret,
            )
        )
        error = await answer
        if error is not None:
            # One error may answer many callers: without their frames it does not grow.
            raise error.with_traceback(None)

    def submit(self, publish: PendingPublish) -> None:
        """
        Queue *publish*, which has been checked; `PendingPublish.done` is called with the outcome.

        It may be called before this returns, when nothing can take the publish.
        """
        error = self._hold(publish)
        if error is not None:
            publish.done(error)
            return
        loop = asyncio.get_running_loop()
        try:
            pool = self._pool_of(publish.secret)
        except Full as full:
            self.settle([publish], full)
            return
        pool.used_at = loop.time()
        pool.submit(publish)
        if self._sweep is None:
            self._sweep = loop.call_later(_SWEEP_INTERVAL_S, self._on_sweep)

    def _hold(self, publish: PendingPublish) -> GatewayError | None:
        """Count *publish*; return why it cannot be taken, None when it is."""
        if self._takes_no_more or not self._pools:
            return NoBroker(
                "the publisher has not been started, or was stopped; nothing was published"
            )
        held_bytes = self._held_bytes + publish.size_bytes
        if held_bytes > self.options.buffer_bytes:
            limit_bytes = self.options.buffer_bytes
            return Overloaded(waiting_bytes=held_bytes, limit_bytes=limit_bytes)
        if self._refusals:
            now = asyncio.get_running_loop().time()
            for topic in (publish.topic, None):
                if error := self._refusals.find((publish.secret, topic), now):
                    return error
        publish.is_held = True
        self._held_bytes = held_bytes
        return None

    def settle(self, publishes: Sequence[PendingPublish], error: GatewayError | None) -> None:
        """Tell the callers of *publishes*, each once, and give their bytes free."""
        held = [publish for publish in publishes if publish.is_held]
        for publish in held:
            publish.is_held = False
            self._held_bytes -= publish.size_bytes
        if not self._held_bytes:
            self._became_idle.set()
        for publish in held:
            publish.done(error)

    def _on_sweep(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        for pool in list(self._pools.values()):
            pool.give_up_overdue(now)
        has_work = self._held_bytes > 0
        self._sweep = loop.call_later(_SWEEP_INTERVAL_S, self._on_sweep) if has_work else None

    # The pools

    @property
    def has_open_lane(self) -> bool:
        """Whether a publish without a secret could be written now."""
        return None in self._pools and self._pools[None].has_open_lane

    def _pool_of(self, secret: Secret | None) -> Pool:
        """Return the pool of *secret*; raises Full when there is none and no room for one."""
        pool = self._pools.get(secret)
        if pool is None:
            self._make_room()
            pool = self._open_pool(secret)
            if self._reaper is None:
                self._schedule_reaper()
        elif secret is not None:
            self._pools.move_to_end(secret)
        return pool

    def _open_pool(self, secret: Secret | None) -> Pool:
        max_lanes = self.options.connections_per_nsqd
        pool = Pool(self, self.options, secret=secret, max_lanes_per_nsqd=max_lanes)
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
        limit = self.options.max_secrets
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
        self._close_pool(idle)

    def _schedule_reaper(self) -> None:
        loop = asyncio.get_running_loop()
        self._reaper = loop.call_later(self.options.secret_idle_s, self._reap)

    def _reap(self) -> None:
        """Close the pools that nobody has used for a while."""
        self._reaper = None
        long_ago = asyncio.get_running_loop().time() - self.options.secret_idle_s
        for secret, pool in list(self._pools.items()):
            if secret is not None and pool.is_idle and pool.used_at <= long_ago:
                self._close_pool(pool)
        if len(self._pools) > 1:
            self._schedule_reaper()

    def _close_pool(self, pool: Pool) -> None:
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
            self._close_pool(pool)

    # The end

    async def stop(self) -> None:
        """Take no more, wait for what has been taken within the publish timeout, then close."""
        self._takes_no_more = True
        try:
            while self._held_bytes:
                self._became_idle.clear()
                await self._became_idle.wait()  # the sweep bounds it
        finally:
            for timer in (self._sweep, self._reaper):
                if timer is not None:
                    timer.cancel()
            if self._watch is not None:
                self._watch.close()
            if self._own_discovery is not None:
                await self._own_discovery.stop()
            pools = [pool.close() for pool in self._pools.values()]
            await asyncio.gather(*pools, *self._closing)

    def abort(self) -> None:
        """Close every connection at once: what is unanswered has an unknown outcome."""
        for pool in self._pools.values():
            pool.abort()


def _check_topic(topic: str) -> None:
    if not is_valid_name(topic.encode("utf-8", "surrogatepass")):
        raise InvalidRequest("INVALID_TOPIC", f"{topic!r} is not a valid topic name")
