"""
Publishing over several brokers: bounded, grouped, and with an answer that means something.

Each broker has a few lanes, and each lane one connection with one command in flight; what comes
meanwhile fills the lane's next batch (docs/decisions/0001-group-commit.md). A publish whose bytes
were not written moves to another lane when its own goes; one that was written never does, since
that could publish it twice: its outcome is unknown and says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from gateway.client.batch import PendingPublish, size_in_mpub
from gateway.client.choice import choose
from gateway.client.lane import Lane, LaneOptions
from gateway.errors import (
    InvalidRequest,
    NoBroker,
    Overloaded,
    PublishError,
)
from gateway.protocol.wire import is_valid_name

_SWEEP_INTERVAL_S = 0.1


@dataclass(frozen=True, kw_only=True)
class PublisherOptions(LaneOptions):
    """How much may wait, over how many connections; for the rest see `LaneOptions`."""

    connections_per_nsqd: int = 4
    buffer_bytes: int = 64 * 1_048_576
    """What may wait or be unanswered, over all brokers; above it publishes are refused."""


class Publisher:
    """Publishes to any of several brokers; `start` first, `stop` last."""

    def __init__(self, addresses: Sequence[str], options: PublisherOptions | None = None) -> None:
        self.options = options or PublisherOptions()
        self.is_stopping = False
        """Whether the connections are being closed."""
        self._lanes = [
            # Broker by broker within each round, so that lanes of equal load alternate.
            Lane(self, address)
            for _ in range(self.options.connections_per_nsqd)
            for address in addresses
        ]
        self._turn = 0
        self._held_bytes = 0
        self._sweep: asyncio.TimerHandle | None = None
        self._takes_no_more = False
        self._became_idle = asyncio.Event()

    async def start(self) -> list[str]:
        """
        Try each broker once and go on trying in the background.

        Returns one line for each broker that cannot be reached now.
        """
        opened = await asyncio.gather(*(lane.connect_once() for lane in self._lanes))
        unreachable = {}
        for lane, is_open in zip(self._lanes, opened, strict=True):
            if not is_open:
                unreachable[lane.address] = f"nsqd at {lane.address}: {lane.last_error}"
                lane.reconnect()
        return list(unreachable.values())

    async def publish(self, topic: str, body: bytes, *, defer_ms: int = 0) -> None:
        """
        Publish one message; a broker has answered OK when this returns.

        Raises:
            InvalidRequest: The name, the body or *defer_ms* is not allowed; nothing was written.
            Overloaded: Too much waits; nothing was written.
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
        await self._put(topic, (body,), defer_ms)

    async def publish_many(self, topic: str, bodies: Sequence[bytes]) -> None:
        """Publish *bodies* with one command, all or none; raises as `publish` does."""
        _check_topic(topic)
        for body in bodies:
            self._check_body(body)
        size_bytes = 4 + size_in_mpub(bodies)
        limit_bytes = self.options.limits.max_body_size_bytes
        if size_bytes > limit_bytes:
            text = f"{len(bodies)} messages take {size_bytes} bytes, the limit is {limit_bytes}"
            raise InvalidRequest("BODY_TOO_BIG", f"{text} bytes")
        if bodies:
            await self._put(topic, bodies, 0)

    def _check_body(self, body: bytes) -> None:
        """Refuse what a broker would refuse by closing the connection behind it."""
        if not body:
            raise InvalidRequest("MSG_EMPTY", "the message is empty")
        limit_bytes = self.options.limits.max_msg_size_bytes
        if len(body) > limit_bytes:
            text = f"message of {len(body)} bytes, the limit is {limit_bytes} bytes"
            raise InvalidRequest("MSG_TOO_BIG", text)

    async def _put(self, topic: str, bodies: Sequence[bytes], defer_ms: int) -> None:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[None] = loop.create_future()

        def done(error: PublishError | None) -> None:
            if answer.done():
                return  # the caller has gone
            if error is None:
                answer.set_result(None)
            else:
                answer.set_exception(error)

        self.submit(
            PendingPublish(
                topic,
                bodies,
                defer_ms,
                size_in_mpub(bodies),
                loop.time() + self.options.timeout_ms / 1000,
                done,
            )
        )
        await answer

    def submit(self, publish: PendingPublish) -> None:
        """
        Queue *publish*, which has been checked; `PendingPublish.done` is called with the outcome.

        It may be called before this returns, when nothing can take the publish.
        """
        if not publish.is_held:
            if self._takes_no_more:
                publish.done(NoBroker("publishing has been stopped; nothing was published"))
                return
            held_bytes = self._held_bytes + publish.size_bytes
            if held_bytes > self.options.buffer_bytes:
                limit_bytes = self.options.buffer_bytes
                publish.done(Overloaded(waiting_bytes=held_bytes, limit_bytes=limit_bytes))
                return
            publish.is_held = True
            self._held_bytes = held_bytes
        self._turn += 1
        lane = choose(self._lanes, publish.topic, turn=self._turn)
        if lane is None:
            self.settle([publish], NoBroker(self._why_none()))
            return
        lane.add(publish)
        if self._sweep is None:
            loop = asyncio.get_running_loop()
            self._sweep = loop.call_later(_SWEEP_INTERVAL_S, self._on_sweep)

    @property
    def has_open_lane(self) -> bool:
        """Whether any connection can take a command now."""
        return any(lane.is_open for lane in self._lanes)

    def settle(self, publishes: Sequence[PendingPublish], error: PublishError | None) -> None:
        """Tell the callers of *publishes*, each once, and give their bytes free."""
        for publish in publishes:
            if publish.is_held:
                publish.is_held = False
                self._held_bytes -= publish.size_bytes
                publish.done(error)
        if not self._held_bytes:
            self._became_idle.set()

    def _on_sweep(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        for lane in self._lanes:
            lane.give_up_overdue(now)
        is_idle = all(lane.is_idle for lane in self._lanes)
        self._sweep = None if is_idle else loop.call_later(_SWEEP_INTERVAL_S, self._on_sweep)

    def _why_none(self) -> str:
        reasons = {lane.address: f"{lane.address}: {lane.last_error}" for lane in self._lanes}
        text = "; ".join(reasons.values()) or "no address of an nsqd is known"
        return f"no nsqd can take it, nothing was published ({text})"

    async def stop(self) -> None:
        """Take no more, wait for what has been taken within the publish timeout, then close."""
        self._takes_no_more = True
        while self._held_bytes:
            self._became_idle.clear()
            await self._became_idle.wait()  # the sweep bounds it
        self.is_stopping = True
        if self._sweep is not None:
            self._sweep.cancel()
        await asyncio.gather(*(lane.close() for lane in self._lanes))


def _check_topic(topic: str) -> None:
    if not is_valid_name(topic.encode("utf-8", "surrogatepass")):
        raise InvalidRequest("INVALID_TOPIC", f"{topic!r} is not a valid topic name")
