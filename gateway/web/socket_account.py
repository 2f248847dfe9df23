"""
What all WebSocket subscribers come to: plain numbers, counted where something changes.

Nothing here looks at every socket in turn: /metrics takes no longer with ten thousand of them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from gateway.protocol.frames import Message
from gateway.session.account import Account
from gateway.session.actions import Cause
from gateway.session.commands import VERBS
from gateway.telemetry import gauge, histogram, level, tally

DELIVERED = tally(
    "messages_delivered_total", "Messages written to WebSocket clients.", ("consumer",)
)
"""*consumer* is own or shared."""
REQUEUED = tally(
    "messages_requeued_total", "Messages that were given back to NSQ, by why.", ("cause",)
)
"""*cause* is the value of a `Cause`."""
SLOW = tally(
    "slow_consumers_total",
    "Times that a client fell behind so far that nsqd was read no more, or it was closed for it.",
    ("action",),
)
"""*action* is paused or closed."""
OPENED = tally("sockets_opened_total", "WebSocket subscribers that were connected.")

_IN_FLIGHT = level("messages_in_flight", "Messages that clients have and have not answered.")
_UNSENT = level(
    "socket_unsent_bytes",
    "What waits for clients that do not take it at once, as of the last time that each was sent "
    "something or took something.",
)
_UNSENT_MAX = gauge("socket_unsent_max_bytes", "What waits so for the client with the most.")
_COMMANDS = tally("socket_commands_total", "Commands from WebSocket clients.", ("command",))
_TIMED_OUT = tally(
    "messages_timed_out_total", "Messages that a client did not answer in time, or did not take."
)
_AGE = histogram(
    "message_age_seconds",
    "From when nsqd took a message to when it was written to a WebSocket client.",
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 60, 600, 3600),
).labels()

_NS_PER_S = 1_000_000_000

_lagging: dict[object, int] = {}
"""Unsent bytes by socket, of those that have any."""
_UNSENT_MAX.set_function(lambda: max(_lagging.values(), default=0))

_VERB_KEYS = {verb: (verb,) for verb in VERBS} | {"": ("unreadable",)}

for _cause in Cause:
    REQUEUED.counts[_cause.value,] = 0
for _action in ("paused", "closed"):
    SLOW.counts[_action,] = 0


class SocketsAccount(Account):
    """Counts what all sessions do together."""

    def written(self, messages: Sequence[Message]) -> None:
        """Count how old *messages* are."""
        observe_age(messages)

    def timed_out(self, count: int) -> None:
        """Count them."""
        _TIMED_OUT.counts[()] += count

    def said(self, verb: str, count: int = 1) -> None:
        """Count them by *verb*."""
        _COMMANDS.counts[_VERB_KEYS[verb]] += count


ACCOUNT = SocketsAccount()


def observe_age(messages: Sequence[Message], *, times: int = 1) -> None:
    """Count how old each of *messages*, at least one, is now; a clock that is behind gives 0."""
    now_ns = time.time_ns()
    if len(messages) == 1:
        taken_at = [messages[0].timestamp_ns]
        first_ns = last_ns = total_ns = taken_at[0]
    else:
        taken_at = [message.timestamp_ns for message in messages]
        first_ns, last_ns, total_ns = min(taken_at), max(taken_at), sum(taken_at)
    count = len(taken_at)
    # Mostly all that came together are of one bucket: that is a third of the time.
    if last_ns > now_ns or not _AGE.observe_alike(
        (now_ns - last_ns) / _NS_PER_S,
        (now_ns - first_ns) / _NS_PER_S,
        count=count * times,
        total=(now_ns * count - total_ns) * times / _NS_PER_S,
    ):
        for each_ns in taken_at:
            age_s = max(0, now_ns - each_ns) / _NS_PER_S
            _AGE.observe_alike(age_s, age_s, count=times, total=age_s * times)


class Stock:
    """What one socket has of the sums over all; `settle` it with zeros at the end."""

    __slots__ = ("_held", "_unsent_bytes")

    def __init__(self) -> None:
        self._held = 0
        self._unsent_bytes = 0

    def settle(self, held: int, unsent_bytes: int) -> None:
        """Count *held* messages and *unsent_bytes* in place of what was counted before."""
        if held != self._held:
            _IN_FLIGHT.counts[()] += held - self._held
            self._held = held
        if unsent_bytes != self._unsent_bytes:
            _UNSENT.counts[()] += unsent_bytes - self._unsent_bytes
            self._unsent_bytes = unsent_bytes
            if unsent_bytes:
                _lagging[self] = unsent_bytes
            else:
                _lagging.pop(self, None)
