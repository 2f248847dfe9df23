"""
Schedule the broker's deliveries and deadlines.

Channels, and topics with a backlog, register themselves when their state changes. So no code scans
all channels.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from gateway.broker.consumer import ChannelConsumer
from gateway.broker.discard_queue import DiscardQueue
from gateway.broker.latency import LatencyOptions
from gateway.broker.message import MemoryBudget, StoredMessage
from gateway.protocol.identify import Features
from gateway.protocol.wire import Limits


class ConsumerBatch(NamedTuple):
    """One or more messages for one consumer, in order."""

    consumer: ChannelConsumer
    messages: Sequence[StoredMessage]


class Deliverable(Protocol):
    """A channel with messages and consumers, or a topic with a backlog and channels."""

    def deliver(self, now: float) -> list[ConsumerBatch]:
        """
        Put messages in flight, and return them in batches, one per consumer.

        A topic returns none: it hands a part of its backlog to its channels.
        """


class Expirable(Protocol):
    """A channel with deadlines; a Protocol, because `channel` imports this module."""

    next_due: float
    """When `expire` is due, monotonic seconds; infinite for never. Set by the scheduler."""

    def expire(self, now: float) -> None:
        """Append to the queue: messages that have timed out, and deferred ones that are due."""


class Scheduler:
    """The channels and topics that have something to deliver, and the deadlines of channels."""

    __slots__ = ("_deliverable", "_sequence", "_timers")

    def __init__(self) -> None:
        self._deliverable: dict[Deliverable, None] = {}
        self._timers: list[tuple[float, int, Expirable]] = []  # a heap
        self._sequence = itertools.count()  # so that the heap never compares two channels

    @property
    def has_deliverable(self) -> bool:
        """True if a channel or topic has something to deliver."""
        return bool(self._deliverable)

    def add_deliverable(self, entry: Deliverable) -> None:
        """Register *entry*, whose `deliver` is called in the next turn of the event loop."""
        self._deliverable[entry] = None

    def pop_deliverable(self) -> list[Deliverable]:
        """Remove and return the registered entries; the caller calls `deliver` of each."""
        entries = list(self._deliverable)  # `deliver` may add entries for the next turn
        self._deliverable.clear()
        return entries

    def schedule(self, channel: Expirable, when: float) -> None:
        """Make *channel* due at *when*, monotonic seconds; if it is due earlier, change nothing."""
        if when < channel.next_due:
            channel.next_due = when
            heapq.heappush(self._timers, (when, next(self._sequence), channel))

    @property
    def next_due(self) -> float | None:
        """The earliest deadline, monotonic seconds; None for never."""
        self._drop_stale()
        return self._timers[0][0] if self._timers else None

    def pop_due(self, now: float) -> list[Expirable]:
        """Return the channels that are due at *now*; the caller calls `expire` of each."""
        due = []
        self._drop_stale()
        while self._timers and self._timers[0][0] <= now:
            channel = heapq.heappop(self._timers)[2]
            channel.next_due = float("inf")  # until `expire` schedules the next deadline
            due.append(channel)
            self._drop_stale()
        return due

    def _drop_stale(self) -> None:
        # `schedule` with an earlier deadline leaves the later entry in the heap, because removing
        # it would take linear time. An entry is valid only if it equals `next_due`.
        while self._timers and self._timers[0][2].next_due != self._timers[0][0]:
            heapq.heappop(self._timers)


@dataclass(frozen=True, kw_only=True)
class BrokerLimits:
    """The limits of every topic and channel."""

    protocol: Limits = field(default_factory=Limits)
    mem_queue_size: int = 10_000
    """
    Maximum messages queued in an ephemeral topic or channel; further ones are dropped.

    With a data path, other channels queue as many in memory, and the rest stays on disk; without
    one, everything is in memory.
    """
    max_channel_consumers: int = 0
    """Maximum number of consumers of one channel; 0 is unlimited."""
    node_id: int = 0
    """0 to 1023, a part of every message id."""
    latency: LatencyOptions = field(default_factory=LatencyOptions)
    features: Features = field(default_factory=Features)
    is_tls_required: bool = False
    """Whether TCP clients must start TLS before any other command."""


class NameChange(NamedTuple):
    """A topic or channel was created or deleted."""

    topic: str
    channel: str = ""
    """Empty if the change is of the topic itself."""
    is_deleted: bool = False


@dataclass(frozen=True, kw_only=True)
class BrokerState:
    """The limits of one broker, and the state that its topics and channels share."""

    memory: MemoryBudget
    random: Callable[[int], int]
    """Returns a random number below its argument, as `random.randrange`."""
    limits: BrokerLimits = field(default_factory=BrokerLimits)
    scheduler: Scheduler = field(default_factory=Scheduler)
    name_listeners: list[Callable[[NameChange], None]] = field(default_factory=list)
    """Called after each creation and deletion; a topic's channels are deleted before it."""
    discard_queue: DiscardQueue = field(init=False)

    def announce(self, topic: str, channel: str = "", *, is_deleted: bool = False) -> None:
        """Call the listeners after a topic or channel was created or deleted."""
        for listener in self.name_listeners:
            listener(NameChange(topic, channel, is_deleted))

    def __post_init__(self) -> None:
        """Create the release queue for `memory`."""
        # The dataclass is frozen, so a plain assignment would raise.
        object.__setattr__(self, "discard_queue", DiscardQueue(self.memory))
