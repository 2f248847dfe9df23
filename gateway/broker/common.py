"""What all topics and channels of one broker have in common: rules, memory, agenda, chance."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from gateway.broker.agenda import Agenda
from gateway.broker.message import Memory
from gateway.protocol.wire import Limits


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What holds for every topic and channel."""

    limits: Limits = field(default_factory=Limits)
    mem_queue_size: int = 10_000
    """
    Messages that the queue of an ephemeral topic or channel holds; more are dropped.

    nsqd writes what is over it to disk for all other queues; here they stay in memory.
    """
    max_channel_consumers: int = 0
    """Consumers that one channel takes; 0 is any number."""
    node_id: int = 0
    """0 to 1023; part of every message id."""


@dataclass(frozen=True, kw_only=True)
class Common:
    """One broker's rules, and the mutable parts that its channels share."""

    memory: Memory
    random: Callable[[int], int]
    """A number from 0 to one below the given one, all as likely."""
    rules: Rules = field(default_factory=Rules)
    agenda: Agenda = field(default_factory=Agenda)
