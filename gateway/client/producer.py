"""
Publish to several nsqds in batches, with bounded memory and one outcome for each publish.

Each secret has a pool of connections with one command in flight each; publishes that arrive
meanwhile form the next command (docs/decisions/0001-group-commit.md). If a connection ends, its
unwritten publishes move to another one. Written ones do not, because they could be published
twice: their outcome is unknown.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Self

from gateway.aio import spawn
from gateway.client.batch import COUNT_BYTES, SIZE_BYTES, PendingPublish, size_in_mpub
from gateway.client.discovery import Discovery, LookupOptions, TopicWatch
from gateway.client.error_cache import ErrorCache
from gateway.client.nsqd_node import NsqdNode
from gateway.client.producer_pool import (
    OnOutcome,
    OnTopicSeen,
    PoolContext,
    ProducerPool,
    ProducerPoolOptions,
)
from gateway.credentials import Secret
from gateway.errors import (
    AuthRequired,
    BrokerRefused,
    GatewayError,
    InvalidRequest,
    LimitReached,
    NoBroker,
    OutcomeUnknown,
    Overloaded,
)
from gateway.protocol.commands import Bodies
from gateway.protocol.wire import check_topic
from gateway.telemetry import OTHER, LabelLimiter, fast_counter, get_logger

logger = get_logger()

_SWEEP_INTERVAL_S = 0.1
"""Maximum delay between the deadline of a publish and its answer."""
_UNPROVEN_SHARE = 4
"""max_secrets divided by this is how many further secrets may wait for nsqd to accept them."""

TOPICS = LabelLimiter(100)
"""Topics with their own metric label; the server sets ``limit``."""

RESULTS = ("ok", "rejected", "unavailable", "unknown")

_MESSAGES = fast_counter(
    "publish_messages_total",
    "Messages to publish, by topic and outcome.",
    ("topic", "result"),
    zeros=product((OTHER,), RESULTS),
)
_BYTES = fast_counter(
    "publish_message_bytes_total",
    "Size of the bodies of messages to publish, by topic and outcome.",
    ("topic", "result"),
    zeros=product((OTHER,), RESULTS),
)


@dataclass(frozen=True, kw_only=True)
class ProducerOptions(ProducerPoolOptions):
    """`ProducerPoolOptions`, and a limit on bytes over all nsqds."""

    buffer_bytes: int = 64 * 1_048_576
    """
    Maximum bytes queued or unanswered over all nsqds. Beyond this, publishes raise Overloaded.

    Bodies that are still being received count too; see `Producer.reserve_arriving`.
    """


class Producer:
    """
    Publish to any of several nsqds. Use it as a context manager, or `start` it and `stop` it.

    The nsqds are *nsqd_tcp_addresses* and those found by the nsqlookupds of *lookup*. The caller
    may instead pass a *discovery*, which it starts and stops itself.
    """

    def __init__(
        self,
        nsqd_tcp_addresses: Sequence[str] = (),
        options: ProducerOptions | None = None,
        *,
        lookup: LookupOptions | None = None,
        discovery: Discovery | None = None,
    ) -> None:
        self.options = options = options or ProducerOptions()
        self._own_discovery = None
        if discovery is None:
            discovery = self._own_discovery = Discovery(nsqd_tcp_addresses, lookup)
        self._discovery = discovery
        self._watch: TopicWatch | None = None
        self._pools = ProducerPools(options, self._on_outcome, discovery.topic_seen)
        self._timeout_s = options.timeout_ms / 1000
        self._buffer_bytes = options.buffer_bytes
        """Maximum of `_held_bytes`: `options.buffer_bytes` minus the bytes taken by `reserve`."""
        limits = options.limits
        self._arriving_limit_bytes = max(
            options.buffer_bytes // 2, limits.max_msg_size_bytes, limits.max_body_size_bytes
        )
        self._arriving_bytes = 0
        """Bytes counted by `reserve_arriving` and not released yet."""
        self._held_bytes = 0
        """Bytes of publishes that are queued or written and unanswered."""
        self._is_started = False
        self._loop: asyncio.AbstractEventLoop
        """Event loop of `start`."""
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._became_idle = asyncio.Event()

    async def __aenter__(self) -> Self:
        """Call `start`, and return this object."""
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Call `stop`."""
        await self.stop()

    async def start(self) -> list[str]:
        """
        Find nsqds, and wait for one attempt to connect to each; retries follow in the background.

        Returns one line for each nsqd that cannot be reached now.
        """
        try:
            return await self._start()
        except BaseException:
            await self.stop()
            raise

    async def _start(self) -> list[str]:
        if self._own_discovery is not None:
            await self._own_discovery.start()
        self._watch = self._discovery.watch_nodes(self._on_addresses)
        self._loop = asyncio.get_running_loop()
        pool = self._pools.open(sorted(self._watch.addresses))
        self._is_started = True
        await self._watch.first_answer()
        # The callback of the watch may not have run yet.
        self._on_addresses(self._watch.addresses)
        return await pool.first_attempts()

    def _on_addresses(self, addresses: frozenset[str]) -> None:
        self._pools.set_addresses(sorted(addresses))

    def set_draining(self, addresses: frozenset[str]) -> None:
        """
        Publish to the nsqds at TCP *addresses* only if no other one can take a publish.

        Publishes that are queued for them move to others; those that are written stay.
        """
        self._pools.set_draining(addresses)

    @property
    def has_open_connection(self) -> bool:
        """True if a publish without a secret could be written now."""
        return self._pools.has_open_connection

    @property
    def requires_auth(self) -> bool:
        """True if any known nsqd requires AUTH."""
        return self._pools.requires_auth

    @property
    def nsqds_requiring_auth(self) -> int:
        """Number of nsqds that require AUTH while the gateway has no secret of its own."""
        return self._pools.nsqds_requiring_auth

    # Publishing

    async def publish(
        self, topic: str, body: bytes, *, defer_ms: int = 0, secret: Secret | None = None
    ) -> None:
        """
        Publish one message; return once an nsqd has answered OK.

        With a *secret*, the message uses connections that serve this secret only.

        Raises:
            InvalidRequest: The topic, the body or *defer_ms* is not allowed; nothing was written.
            AuthRequired: The nsqds require a secret and there is none; nothing was written.
            Overloaded: Too many bytes are waiting; nothing was written.
            LimitReached: Too many secrets are in use; nothing was written.
            NoBroker: No nsqd could take the message; nothing was written.
            BrokerRefused: nsqd refused the message.
            OutcomeUnknown: The message was written, and nsqd did not answer in time.
        """
        limits = self.options.limits
        check_topic(topic)
        self._check_body(body)
        # For a DPUB with a delay out of range, nsqd would close the connection.
        if not 0 <= defer_ms <= limits.max_req_timeout_ms:
            text = f"defer of {defer_ms} ms, allowed: 0 to {limits.max_req_timeout_ms} ms"
            raise InvalidRequest("INVALID_DEFER", text)
        await self._publish(topic, (body,), defer_ms=defer_ms, secret=secret)

    async def publish_many(
        self, topic: str, bodies: Sequence[bytes], *, secret: Secret | None = None
    ) -> None:
        """Publish *bodies* with one MPUB, all or none; raise as `publish` does."""
        check_topic(topic)
        limit_bytes = self.options.limits.max_msg_size_bytes
        lengths = list(map(len, bodies))
        # No Python code runs for each body, as there may be many; only an error looks for it.
        if bodies and not 0 < min(lengths) <= max(lengths) <= limit_bytes:
            for body in bodies:
                self._check_body(body)
        await self._publish(topic, bodies, secret=secret)

    def _check_body(self, body: bytes) -> None:
        """Refuse a body for which nsqd would close the connection."""
        if not body:
            raise InvalidRequest("MSG_EMPTY", "the message is empty")
        limit_bytes = self.options.limits.max_msg_size_bytes
        if len(body) > limit_bytes:
            text = f"message of {len(body)} bytes, the limit is {limit_bytes} bytes"
            raise InvalidRequest("MSG_TOO_BIG", text)

    async def _publish(
        self,
        topic: str,
        bodies: Sequence[bytes],
        *,
        defer_ms: int = 0,
        secret: Secret | None = None,
    ) -> None:
        outcome: asyncio.Future[GatewayError | None] = asyncio.get_running_loop().create_future()

        def done(error: GatewayError | None) -> None:
            if not outcome.done():  # else the caller was cancelled
                outcome.set_result(error)

        self.begin(topic, bodies, done, defer_ms=defer_ms, secret=secret)
        error = await outcome
        if error is not None:
            # One error may be raised to many callers, and each `raise` would extend its traceback.
            raise error.with_traceback(None)

    def begin(
        self,
        topic: str,
        bodies: Bodies,
        done: Callable[[GatewayError | None], None],
        *,
        defer_ms: int = 0,
        secret: Secret | None = None,
    ) -> None:
        """
        Publish *bodies*, all or none, and call *done* once: with the error, or None for success.

        For callers without a task. They must have checked the size of each body and *defer_ms*.
        *done* may be called before this returns. A publish cannot be cancelled, just as nsqd
        publishes every command that it has read.

        Raises:
            InvalidRequest: *topic* is invalid (INVALID_TOPIC), or *bodies* together exceed the
                size of an MPUB (BODY_TOO_BIG).
        """
        check_topic(topic)
        if len(bodies) == 1:
            (body,) = bodies
            size_bytes = SIZE_BYTES + len(body)
        elif bodies:
            size_bytes = self._size_of(bodies)
        else:
            done(None)
            return
        held_bytes = self._held_bytes + size_bytes
        if not self._is_started:
            text = "the publisher has not been started, or was stopped; nothing was published"
            done(count_refused(topic, bodies, NoBroker(text)))
            return
        if held_bytes > self._buffer_bytes:
            done(count_refused(topic, bodies, self._overloaded(size_bytes)))
            return
        now = self._loop.time()
        pools = self._pools
        # The first comparison spares almost every publish the lookups.
        if now < pools.refusals_until and (error := pools.find_refusal(secret, topic, now)):
            done(count_refused(topic, bodies, error))
            return
        try:
            pool = pools.pool_of(secret, now)
        except LimitReached as error:
            done(count_refused(topic, bodies, error))
            return
        self._held_bytes = held_bytes
        deadline = now + self._timeout_s
        pool.submit(PendingPublish(topic, bodies, defer_ms, size_bytes, deadline, done))
        if self._sweep_timer is None:
            self._sweep_timer = self._loop.call_later(_SWEEP_INTERVAL_S, self._sweep)

    def _size_of(self, bodies: Bodies) -> int:
        """Return the size of *bodies* in an MPUB; raises InvalidRequest above the limit."""
        size_bytes = size_in_mpub(bodies)
        limit_bytes = self.options.limits.max_body_size_bytes
        if size_bytes + COUNT_BYTES > limit_bytes:
            text = f"{len(bodies)} messages take {size_bytes + COUNT_BYTES} bytes, the limit is "
            raise InvalidRequest("BODY_TOO_BIG", f"{text}{limit_bytes} bytes")
        return size_bytes

    def _on_outcome(
        self, publishes: Sequence[PendingPublish], size_bytes: int, error: GatewayError | None
    ) -> None:
        """Stop counting *size_bytes*, and call `done` of each of *publishes* with *error*."""
        self._held_bytes -= size_bytes
        if not self._held_bytes:
            self._became_idle.set()
        if publishes:
            count_outcome(publishes, error)
        if isinstance(error, NoBroker):
            self._look_for_nsqds()
        for publish in publishes:
            try:
                publish.done(error)
            except Exception:
                # A failing callback must not keep the others of the batch from being called.
                logger.exception("publish callback failed")

    def _look_for_nsqds(self) -> None:
        """Ask nsqlookupd now if no nsqd is known: one that registers must not wait for a poll."""
        if self._watch is not None and not self._watch.addresses:
            self._watch.refresh()

    def _sweep(self) -> None:
        self._sweep_timer = None
        try:
            self._pools.sweep(self._loop.time())
        finally:
            # Even after an error: only the sweep enforces deadlines, and `stop` relies on them.
            if self._held_bytes:
                self._sweep_timer = self._loop.call_later(_SWEEP_INTERVAL_S, self._sweep)

    # Limit on bytes

    @property
    def waiting_bytes(self) -> int:
        """Bytes that are queued, unanswered or being received."""
        return self._held_bytes + self.options.buffer_bytes - self._buffer_bytes

    def reserve(self, size_bytes: int) -> None:
        """
        Count *size_bytes* against `buffer_bytes` until `unreserve`.

        Raises:
            Overloaded: They exceed the limit; they are not counted.
        """
        if self._held_bytes + size_bytes > self._buffer_bytes:
            raise self._overloaded(size_bytes)
        self._buffer_bytes -= size_bytes

    def unreserve(self, size_bytes: int) -> None:
        """Stop counting *size_bytes* of an earlier `reserve`."""
        self._buffer_bytes += size_bytes

    def reserve_arriving(self, size_bytes: int) -> None:
        """
        Count bytes of a body being received against `buffer_bytes` until `unreserve_arriving`.

        Such bodies may take half of it at most, but always one body of the maximum size. Otherwise
        clients that stall in the middle of a body could keep all others from publishing.

        Raises:
            Overloaded: They exceed the limit; they are not counted.
        """
        limit_bytes = self._arriving_limit_bytes
        if self._arriving_bytes + size_bytes > limit_bytes:
            raise Overloaded(
                waiting_bytes=self._arriving_bytes,
                size_bytes=size_bytes,
                limit_bytes=limit_bytes,
                where="in bodies that are still arriving",
            )
        self.reserve(size_bytes)
        self._arriving_bytes += size_bytes

    def unreserve_arriving(self, size_bytes: int) -> None:
        """Stop counting *size_bytes* of an earlier `reserve_arriving`."""
        self._arriving_bytes -= size_bytes
        self.unreserve(size_bytes)

    def _overloaded(self, size_bytes: int) -> Overloaded:
        limit_bytes = self.options.buffer_bytes
        return Overloaded(
            waiting_bytes=self.waiting_bytes,
            size_bytes=size_bytes,
            limit_bytes=limit_bytes,
        )

    # Closing

    async def stop(self) -> None:
        """Refuse new publishes, wait for pending ones until their deadlines, and close."""
        # Before the wait, which might never end if publishes were still accepted.
        self._is_started = False
        try:
            while self._held_bytes:
                self._became_idle.clear()
                await self._became_idle.wait()  # ends: the sweep fails publishes at their deadline
        finally:
            # Also if the caller was cancelled, which ends the wait early.
            if self._sweep_timer is not None:
                self._sweep_timer.cancel()
            if self._watch is not None:
                self._watch.close()
            if self._own_discovery is not None:
                await self._own_discovery.stop()
            await self._pools.close()

    def abort(self) -> None:
        """
        Close all connections immediately.

        Publishes that were written and have no answer yet raise OutcomeUnknown.
        """
        self._pools.abort()


class ProducerPools:
    """
    The pools of all secrets, and one for callers without a secret. `open` first, `close` last.

    The number of secrets is limited; a new one replaces the least recently used. A secret that no
    nsqd has accepted yet never replaces an accepted one. Refusals of nsqd are cached for a second.
    """

    def __init__(
        self, options: ProducerPoolOptions, on_outcome: OnOutcome, on_topic_seen: OnTopicSeen
    ) -> None:
        self._options = options
        self._context = PoolContext(
            options=options,
            node=self._node,
            on_outcome=on_outcome,
            on_topic_seen=on_topic_seen,
            on_secret_refused=self._on_secret_refused,
        )
        self._addresses: Sequence[str] = ()
        self._nodes: dict[str, NsqdNode] = {}
        self._draining: frozenset[str] = frozenset()
        self._pools: OrderedDict[Secret | None, ProducerPool] = OrderedDict()
        """By secret, the least recently used first; None is the pool of callers without one."""
        self._refusals = ErrorCache()
        """By secret and topic; the topic is None if nsqd refused the secret itself."""
        self._idle_timer: asyncio.TimerHandle | None = None
        self._closing: set[asyncio.Task[None]] = set()

    def open(self, addresses: Sequence[str]) -> ProducerPool:
        """Connect to *addresses* for callers without a secret; return their pool."""
        self._addresses = addresses
        return self._add(None)

    # Addresses

    def set_addresses(self, addresses: Sequence[str]) -> None:
        """Connect to new *addresses*, and stop connecting to those that are missing."""
        self._addresses = addresses
        for pool in self._pools.values():
            pool.set_addresses(addresses)
        used = {address for pool in self._pools.values() for address in pool.addresses_in_use}
        # Also nsqds that discovery no longer returns: a kept connection still counts bytes there.
        used.update(addresses)
        self._nodes = {address: node for address, node in self._nodes.items() if address in used}

    def set_draining(self, addresses: frozenset[str]) -> None:
        """Avoid the nsqds at *addresses* from now on; queued publishes move at the next sweep."""
        self._draining = addresses
        for node in self._nodes.values():
            node.is_draining = node.address in addresses

    def _node(self, address: str) -> NsqdNode:
        node = self._nodes.get(address)
        if node is None:
            limit_bytes = self._options.buffer_per_nsqd_bytes
            node = self._nodes[address] = NsqdNode(address, limit_bytes=limit_bytes)
            node.is_draining = address in self._draining
        return node

    @property
    def requires_auth(self) -> bool:
        """True if any nsqd requires AUTH."""
        # A loop, because publishes with a token ask this each time, and `any` takes thrice as long.
        for node in self._nodes.values():  # noqa: SIM110 - see above
            if node.requires_auth:
                return True
        return False

    @property
    def nsqds_requiring_auth(self) -> int:
        """Number of nsqds without a connection of the gateway, because they require AUTH."""
        return self._pools[None].nsqds_requiring_auth if None in self._pools else 0

    @property
    def has_open_connection(self) -> bool:
        """True if a publish without a secret could be written now."""
        return None in self._pools and self._pools[None].has_open_connection

    # Publishing

    def pool_of(self, secret: Secret | None, now: float) -> ProducerPool:
        """Return the pool of *secret*; raise LimitReached if there are too many secrets."""
        pool = self._pools.get(secret)
        if pool is None:
            self._make_room()
            pool = self._add(secret)
            if self._idle_timer is None:
                self._schedule_close_idle()
        elif secret is not None:
            self._pools.move_to_end(secret)
        pool.used_at = now
        return pool

    @property
    def refusals_until(self) -> float:
        """When the last of the cached refusals expires, monotonic seconds."""
        return self._refusals.until

    def find_refusal(self, secret: Secret | None, topic: str, now: float) -> GatewayError | None:
        """Return nsqd's cached refusal of *secret*, for *topic* or altogether; None: no refusal."""
        find = self._refusals.find
        return find((secret, topic), now) or find((secret, None), now)

    def sweep(self, now: float) -> None:
        """In every pool, fail overdue publishes, and move queues from suspect nsqds to others."""
        for pool in list(self._pools.values()):
            pool.sweep(now)

    # Pools

    def _add(self, secret: Secret | None) -> ProducerPool:
        pool = self._pools[secret] = ProducerPool(self._context, secret=secret)
        pool.set_addresses(self._addresses)
        return pool

    def _make_room(self) -> None:
        """
        Make room for the pool of a new secret: at the limit, close the least recently used one.

        Only a pool without pending publishes is closed. Secrets that no nsqd has accepted yet have
        a limit of their own: otherwise a client could displace secrets in use by inventing others.

        Raises:
            LimitReached: Every pool has pending publishes, or too many secrets are not accepted.
        """
        secrets = [pool for pool in self._pools.values() if pool.secret is not None]
        proven = [pool for pool in secrets if pool.is_proven]
        limit = self._options.max_secrets
        unproven_limit = max(1, limit // _UNPROVEN_SHARE)
        if len(secrets) - len(proven) >= unproven_limit:
            text = f"{unproven_limit} new secrets wait for nsqd to accept them, which is the limit"
            raise LimitReached(f"{text}; nothing was published, try again later")
        if len(proven) < limit:
            return
        idle = next((pool for pool in proven if pool.is_idle), None)
        if idle is None:
            text = f"{limit} secrets have publishes pending, which is the limit"
            raise LimitReached(f"{text}; nothing was published, try again later")
        self._close_soon(idle)

    def _schedule_close_idle(self) -> None:
        loop = asyncio.get_running_loop()
        self._idle_timer = loop.call_later(self._options.secret_idle_s, self._close_idle)

    def _close_idle(self) -> None:
        self._idle_timer = None
        used_before = asyncio.get_running_loop().time() - self._options.secret_idle_s
        for secret, pool in list(self._pools.items()):
            if secret is not None and pool.is_idle and pool.used_at <= used_before:
                self._close_soon(pool)
        if len(self._pools) > 1:
            self._schedule_close_idle()

    def _close_soon(self, pool: ProducerPool) -> None:
        # Removed at once: a publish with this secret during the close opens a new pool.
        del self._pools[pool.secret]
        pool.is_closing = True
        closing = spawn("close the connections of a secret", pool.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    def _on_secret_refused(
        self, pool: ProducerPool, topic: str | None, error: GatewayError
    ) -> None:
        """Cache the refusal, and close the pool of a secret that no nsqd accepts."""
        if isinstance(error, BrokerRefused):
            now = asyncio.get_running_loop().time()
            self._refusals.remember((pool.secret, topic), error, now)
        if topic is None and pool.secret is not None and not pool.is_closing:
            self._close_soon(pool)

    # Closing

    async def close(self) -> None:
        """Close the connections of all pools; queued publishes fail with NoBroker."""
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        pools = [pool.close() for pool in self._pools.values()]
        await asyncio.gather(*pools, *self._closing)

    def abort(self) -> None:
        """
        Close all connections immediately.

        Publishes that were written and have no answer yet raise OutcomeUnknown.
        """
        for pool in self._pools.values():
            pool.abort()


# Metrics


def count_outcome(publishes: Sequence[PendingPublish], error: GatewayError | None) -> None:
    """
    Count *publishes*, at least one, with their common outcome *error*; None: published.

    A topic gets its own label once nsqd has accepted a message for it, so that refused names use
    up no labels.
    """
    if error is None and len(publishes) > 1:
        # Publishes of a batch have one topic; others are reported one by one.
        _count(publishes[0].topic, publishes, "ok")
        return
    result = result_of(error)
    for publish in publishes:
        _count(publish.topic, (publish,), result)


def count_refused(topic: str, bodies: Bodies, error: GatewayError) -> GatewayError:
    """Count *bodies* that were refused with *error*, and return *error*."""
    body_bytes = size_in_mpub(bodies) - SIZE_BYTES * len(bodies)
    _add_to_counters(topic, result_of(error), len(bodies), body_bytes)
    return error


def _count(topic: str, publishes: Sequence[PendingPublish], result: str) -> None:
    messages = sum([len(publish.bodies) for publish in publishes])
    size_bytes = sum([publish.size_bytes for publish in publishes])
    _add_to_counters(topic, result, messages, size_bytes - SIZE_BYTES * messages)


def _add_to_counters(topic: str, result: str, messages: int, size_bytes: int) -> None:
    label = TOPICS.label_of(topic, is_proven=result == "ok")
    key = label, result
    if key not in _MESSAGES.counts:
        # All results start at 0, so that `increase()` sees the first failure of a topic.
        _MESSAGES.init_series(product((label,), RESULTS))
        _BYTES.init_series(product((label,), RESULTS))
    _MESSAGES.counts[key] += messages
    _BYTES.counts[key] += size_bytes


def result_of(error: GatewayError | None) -> str:
    """Return the value of the label ``result`` for an outcome; None: published."""
    if error is None:
        return "ok"
    if isinstance(error, OutcomeUnknown):
        return "unknown"
    if isinstance(error, BrokerRefused) and error.is_storage_error:
        return "unavailable"
    if isinstance(error, BrokerRefused | AuthRequired | InvalidRequest):
        return "rejected"
    return "unavailable"
