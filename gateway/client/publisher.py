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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

from gateway.client.batch import COUNT_BYTES, SIZE_BYTES, PendingPublish, size_in_mpub
from gateway.client.lookup import Discovery, LookupOptions, Watch
from gateway.client.pools import Pools, PoolsOptions
from gateway.client.publish_account import count_outcome, count_refused
from gateway.errors import Full, GatewayError, InvalidRequest, NoBroker, Overloaded
from gateway.protocol.wire import is_valid_name
from gateway.secret import Secret
from gateway.telemetry import get_logger

logger = get_logger()

_SWEEP_INTERVAL_S = 0.1
"""A publish hears at most so much later than its time that it is over."""


@dataclass(frozen=True, kw_only=True)
class PublisherOptions(PoolsOptions):
    """How much may wait in all; for the rest see `PoolsOptions` and `LaneOptions`."""

    buffer_bytes: int = 64 * 1_048_576
    """
    What may wait or be unanswered, over all nsqds; above it publishes are refused.

    Bodies that are still arriving count too, as far as `Publisher.hold` is told of them.
    """


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
        self._pools = Pools(self.options, self._settle, discovery.topic_seen)
        self._timeout_s = self.options.timeout_ms / 1000
        self._buffer_bytes = self.options.buffer_bytes
        """What may be held of publishes: what `hold` has taken of the bound is not here."""
        self._held_bytes = 0
        """Of the publishes that wait or are unanswered."""
        self._takes_publishes = False
        self._loop: asyncio.AbstractEventLoop
        """Where it was started."""
        self._sweep: asyncio.TimerHandle | None = None
        self._became_idle = asyncio.Event()

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
        self._loop = asyncio.get_running_loop()
        pool = self._pools.open(sorted(self._watch.addresses))
        self._takes_publishes = True
        await self._watch.first_answer()
        self._found(self._watch.addresses)
        return await pool.first_tries()

    def _found(self, addresses: frozenset[str]) -> None:
        self._pools.set_addresses(sorted(addresses))

    @property
    def has_open_lane(self) -> bool:
        """Whether a publish without a secret could be written now."""
        return self._pools.has_open_lane

    @property
    def asks_for_auth(self) -> bool:
        """Whether any of the nsqds known has said that it wants a secret."""
        return self._pools.asks_for_auth

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
        await self._answer_to(topic, (body,), defer_ms=defer_ms, secret=secret)

    async def publish_many(
        self, topic: str, bodies: Sequence[bytes], *, secret: Secret | None = None
    ) -> None:
        """Publish *bodies* with one command, all or none; raises as `publish` does."""
        _check_topic(topic)
        limit_bytes = self.options.limits.max_msg_size_bytes
        lengths = list(map(len, bodies))
        if bodies and not 0 < min(lengths) <= max(lengths) <= limit_bytes:
            for body in bodies:
                self._check_body(body)
        await self._answer_to(topic, bodies, secret=secret)

    def _check_body(self, body: bytes) -> None:
        """Refuse what a broker would refuse by closing the connection behind it."""
        if not body:
            raise InvalidRequest("MSG_EMPTY", "the message is empty")
        limit_bytes = self.options.limits.max_msg_size_bytes
        if len(body) > limit_bytes:
            text = f"message of {len(body)} bytes, the limit is {limit_bytes} bytes"
            raise InvalidRequest("MSG_TOO_BIG", text)

    async def _answer_to(
        self,
        topic: str,
        bodies: Sequence[bytes],
        *,
        defer_ms: int = 0,
        secret: Secret | None = None,
    ) -> None:
        answer: asyncio.Future[GatewayError | None] = asyncio.get_running_loop().create_future()

        def done(error: GatewayError | None) -> None:
            if not answer.done():  # else the caller has gone
                answer.set_result(error)

        self.begin(topic, bodies, done, defer_ms=defer_ms, secret=secret)
        error = await answer
        if error is not None:
            # One error may answer many callers: without their frames it does not grow.
            raise error.with_traceback(None)

    def begin(
        self,
        topic: str,
        bodies: Sequence[bytes],
        done: Callable[[GatewayError | None], None],
        *,
        defer_ms: int = 0,
        secret: Secret | None = None,
    ) -> None:
        """
        Publish *bodies*, all or none, and call *done* once with the outcome; None is OK.

        For callers who have checked the name, each size and *defer_ms*, and who have no task to
        wait in; *done* may be called before this returns. A caller who goes away says nothing
        here: what has been begun is published, as nsqd publishes what it has read.

        Raises:
            InvalidRequest: Together they are more than one MPUB takes (BODY_TOO_BIG).
        """
        if len(bodies) == 1:
            size_bytes = SIZE_BYTES + len(bodies[0])
        elif bodies:
            size_bytes = self._size_of(bodies)
        else:
            done(None)
            return
        held_bytes = self._held_bytes + size_bytes
        if not self._takes_publishes:
            text = "the publisher has not been started, or was stopped; nothing was published"
            done(count_refused(topic, bodies, NoBroker(text)))
            return
        if held_bytes > self._buffer_bytes:
            done(count_refused(topic, bodies, self._overloaded(size_bytes)))
            return
        now = self._loop.time()
        pools = self._pools
        if now < pools.refusals_until and (error := pools.refusal(secret, topic, now)):
            done(count_refused(topic, bodies, error))
            return
        try:
            pool = pools.pool_of(secret, now)
        except Full as full:
            done(count_refused(topic, bodies, full))
            return
        self._held_bytes = held_bytes
        deadline = now + self._timeout_s
        pool.submit(PendingPublish(topic, bodies, defer_ms, size_bytes, deadline, done))
        if self._sweep is None:
            self._sweep = self._loop.call_later(_SWEEP_INTERVAL_S, self._on_sweep)

    def _size_of(self, bodies: Sequence[bytes]) -> int:
        """Return what *bodies* take in an MPUB; raises InvalidRequest where that is too much."""
        size_bytes = size_in_mpub(list(map(len, bodies)))
        limit_bytes = self.options.limits.max_body_size_bytes
        if size_bytes + COUNT_BYTES > limit_bytes:
            text = f"{len(bodies)} messages take {size_bytes + COUNT_BYTES} bytes, the limit is "
            raise InvalidRequest("BODY_TOO_BIG", f"{text}{limit_bytes} bytes")
        return size_bytes

    def _settle(
        self, publishes: Sequence[PendingPublish], size_bytes: int, error: GatewayError | None
    ) -> None:
        """Tell the callers of *publishes*, each once, and give their *size_bytes* free."""
        self._held_bytes -= size_bytes
        if not self._held_bytes:
            self._became_idle.set()
        if publishes:
            count_outcome(publishes, error)
        for publish in publishes:
            try:
                publish.done(error)
            except Exception:
                # The others of its batch are to hear theirs.
                logger.exception("a caller failed at the outcome of its publish")

    def _on_sweep(self) -> None:
        self._sweep = None
        try:
            self._pools.sweep(self._loop.time())
        finally:
            # Whatever failed: deadlines are to hold, and a stop waits for them.
            if self._held_bytes:
                self._sweep = self._loop.call_later(_SWEEP_INTERVAL_S, self._on_sweep)

    # What may wait

    @property
    def waiting_bytes(self) -> int:
        """What waits, is unanswered, or is arriving."""
        return self._held_bytes + self.options.buffer_bytes - self._buffer_bytes

    def hold(self, size_bytes: int) -> None:
        """
        Count bytes of a body that is still arriving among what may wait, until `release`.

        Raises:
            Overloaded: They are too many; they are not counted.
        """
        if self._held_bytes + size_bytes > self._buffer_bytes:
            raise self._overloaded(size_bytes)
        self._buffer_bytes -= size_bytes

    def release(self, size_bytes: int) -> None:
        """Count bytes of `hold` no more."""
        self._buffer_bytes += size_bytes

    def _overloaded(self, size_bytes: int) -> Overloaded:
        limit_bytes = self.options.buffer_bytes
        return Overloaded(
            waiting_bytes=self.waiting_bytes,
            size_bytes=size_bytes,
            limit_bytes=limit_bytes,
        )

    # The end

    async def stop(self) -> None:
        """Take no more, wait for what has been taken within the publish timeout, then close."""
        self._takes_publishes = False
        try:
            while self._held_bytes:
                self._became_idle.clear()
                await self._became_idle.wait()  # the sweep bounds it
        finally:
            if self._sweep is not None:
                self._sweep.cancel()
            if self._watch is not None:
                self._watch.close()
            if self._own_discovery is not None:
                await self._own_discovery.stop()
            await self._pools.close()

    def abort(self) -> None:
        """Close every connection at once: what is unanswered has an unknown outcome."""
        self._pools.abort()


def _check_topic(topic: str) -> None:
    if not is_valid_name(topic.encode("utf-8", "surrogatepass")):
        raise InvalidRequest("INVALID_TOPIC", f"{topic!r} is not a valid topic name")
