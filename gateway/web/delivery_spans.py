"""
The traces of deliveries: a step for each message that says which trace it belongs to.

NSQ's messages have no headers. One whose body is a JSON object with a string ``traceparent`` at its
top, as CloudEvents' extension for distributed tracing has it, belongs to that trace.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from gateway.protocol.frames import Message
from gateway.telemetry import Span, TraceParent, Tracing, read_traceparent
from gateway.web.publish_spans import SYSTEM

_KEY = b'"traceparent"'
_MAX_BODY_BYTES = 262_144
"""A longer body is not looked into."""
_MAX_OPEN = 2_000
"""Deliveries that are followed at a time, over all consumers: some 4 KiB each."""
_MAX_AGE_S = 900.0
"""How long a delivery is followed: nsqd lets nobody hold a message longer, --max-msg-timeout."""


class _Envelope(msgspec.Struct):
    """What is read of a body."""

    traceparent: str | None = None


_decode = msgspec.json.Decoder(_Envelope).decode


def parent_in(body: bytes) -> TraceParent | None:
    """Return which span *body* says that it came from; None: it says nothing of that."""
    if _KEY not in body or len(body) > _MAX_BODY_BYTES:
        return None
    try:
        said = _decode(body).traceparent
    except (ValueError, RecursionError):  # text that is no UTF-8 is no DecodeError
        return None
    return None if said is None else read_traceparent(said)


class DeliverySpans:
    """
    The spans of one consumer's deliveries, from their arrival to their answer.

    Not every delivery has an answer: nsqd takes one back whose time is over, and tells nobody. So
    the oldest end by themselves.
    """

    __slots__ = ("_open", "_topic", "_tracing")

    def __init__(self, tracing: Tracing, topic: str) -> None:
        self._tracing = tracing
        self._topic = topic
        self._open: dict[tuple[int, bytes], tuple[Span, float]] = {}
        """By source and message id, the oldest first: the span, and the loop's time of arrival."""

    def arrived(self, source: int, messages: Sequence[Message], channel: str) -> None:
        """Begin a span for each of *messages* that belongs to a trace which is recorded."""
        # One look at all of them is a sixth of one look at each.
        has_key = _KEY in b"".join([message.body for message in messages])
        if has_key or self._open:
            with self._tracing.harmless:
                now = asyncio.get_running_loop().time()
                self._end_older_than(now - _MAX_AGE_S)
                if has_key:
                    self._look_into(source, messages, channel, now)

    def _look_into(
        self, source: int, messages: Sequence[Message], channel: str, now: float
    ) -> None:
        for message in messages:
            parent = parent_in(message.body)
            if parent is not None and self._has_room() and self._tracing.wants(parent):
                self._end(source, message.id, "timed out")
                self._follow((source, message.id), self._begin(parent, message, channel), now)

    def _has_room(self) -> bool:
        """Tell whether one more may be followed; our own oldest makes room."""
        if self._tracing.followed >= _MAX_OPEN and self._open:
            self._end(*next(iter(self._open)), "timed out")
        return self._tracing.followed < _MAX_OPEN

    def _follow(self, key: tuple[int, bytes], span: Span | None, now: float) -> None:
        if span is not None:
            self._open[key] = span, now
            self._tracing.followed += 1

    def _end_older_than(self, time: float) -> None:
        while self._open:
            key, (_, arrived_at) = next(iter(self._open.items()))
            if arrived_at > time:
                return
            self._end(*key, "timed out")

    def _begin(self, parent: TraceParent, message: Message, channel: str) -> Span | None:
        attributes: dict[str, str | int] = {
            **SYSTEM,
            "messaging.operation.type": "process",
            "messaging.operation.name": "process",
            "messaging.destination.name": self._topic,
            "messaging.destination.subscription.name": channel,
            "messaging.message.id": message.id.decode("latin-1"),
            "messaging.message.body.size": len(message.body),
            "nsq.message.attempts": message.attempts,
        }
        return self._tracing.begin(f"process {self._topic}", "consumer", parent, attributes)

    def answered(self, source: int, ids: Sequence[bytes], verb: str) -> None:
        """End the spans of *ids*, which are answered with *verb*: FIN or REQ."""
        if self._open:
            for message_id in ids:
                self._end(source, message_id, verb)

    def lost(self, source: int | None = None) -> None:
        """End the spans of *source*, or all: nobody can answer any more."""
        for key in [key for key in self._open if source in {None, key[0]}]:
            self._end(*key, "lost")

    def _end(self, source: int, message_id: bytes, outcome: str) -> None:
        found = self._open.pop((source, message_id), None)
        if found is not None:
            self._tracing.followed -= 1
            is_done = outcome == "FIN"
            found[0].end({"nsq.outcome": outcome}, error=None if is_done else outcome)
