"""What waits to be sent to a client: answers and messages, counted in bytes."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable

import msgspec

from gateway.protocol.frames import Message
from gateway.session.messages import ErrorOut, MessageOut, Out, Ref, ResponseOut, message_out
from gateway.session.window import MARGIN_S, Batch, Window

MAX_FRAME_BYTES = 65_536
"""A frame to the client is closed before it is larger; one larger message goes alone."""

_ENVELOPE_BYTES = 192
"""What a delivery's or an answer's JSON takes beside the body, counted generously."""


class _Unsent(msgspec.Struct, gc=False):
    """Messages of one batch that have not been sent."""

    batch: Batch
    messages: list[Message]


class Outbox:
    """Answers go before messages; both keep their order."""

    def __init__(self, topic: str, channel: str) -> None:
        self._names = (topic, channel)
        self._answers: deque[ResponseOut | ErrorOut] = deque()
        self._unsent: deque[_Unsent] = deque()
        self._first_deadline = math.inf
        """No unsent message is due before; it is looked for anew when it has passed."""
        self.size_bytes = 0
        """What waits, in bytes of bodies and estimated envelopes."""
        self.expired = 0
        """Messages dropped since the client last took a frame: the broker no longer counts them."""

    def __bool__(self) -> bool:
        """Tell whether anything waits."""
        return bool(self._answers or self._unsent)

    def add_answer(self, answer: ResponseOut | ErrorOut) -> None:
        """Put *answer* behind the answers that wait."""
        self._answers.append(answer)
        self.size_bytes += _answer_bytes(answer)

    def add_messages(self, batch: Batch, messages: list[Message]) -> None:
        """Put *messages* behind the messages that wait."""
        self._unsent.append(_Unsent(batch, messages))
        self._first_deadline = min(self._first_deadline, batch.deadline)
        self.size_bytes += _message_bytes(messages)

    def expire(self, now: float) -> None:
        """Drop what the broker is about to time out while the client takes nothing."""
        if self._first_deadline - MARGIN_S > now:
            return
        kept: deque[_Unsent] = deque()
        for unsent in self._unsent:
            if unsent.batch.deadline - MARGIN_S > now:
                kept.append(unsent)
            else:
                self._release(_message_bytes(unsent.messages))
                self.expired += len(unsent.messages)
        self._unsent = kept
        self._first_deadline = min((unsent.batch.deadline for unsent in kept), default=math.inf)

    def next_expiry(self) -> float | None:
        """Return when to call `expire`, None while no message waits; it may find nothing then."""
        return self._first_deadline - MARGIN_S if self._unsent else None

    def take(self, window: Window, now: float) -> tuple[list[Out], list[list[str]]]:
        """
        Take out what fits into one frame; *window* holds what was taken from now on.

        Messages whose deadline has passed are dropped: the broker gives them to somebody else.
        Returns the lines, and the delivery ids of the messages among them.
        """
        self.expired = 0
        lines: list[Out] = []
        deliveries: list[list[str]] = []
        room = MAX_FRAME_BYTES
        while self._answers and room > 0:
            answer = self._answers.popleft()
            room -= self._release(_answer_bytes(answer))
            lines.append(answer)
        while self._unsent and room > 0:
            batch = self._unsent[0].batch
            if batch.deadline <= now:
                self._release(_message_bytes(self._unsent.popleft().messages))
                continue
            messages = self._take_messages(self._unsent[0], room)
            if not messages:
                break
            room -= self._release(_message_bytes(messages))
            ids = window.add(batch, messages)
            deliveries.append(ids)
            lines += self._deliveries(messages, ids, int((batch.deadline - now) * 1000))
        return lines, deliveries

    def _take_messages(self, unsent: _Unsent, room: int) -> list[Message]:
        """Return the messages of *unsent* that fit into *room*; the rest stays first."""
        taken_bytes = 0
        for count, message in enumerate(unsent.messages):
            taken_bytes += _ENVELOPE_BYTES + len(message.body)
            is_first = count == 0 and room == MAX_FRAME_BYTES
            if taken_bytes > room and not is_first:
                taken = unsent.messages[:count]
                unsent.messages = unsent.messages[count:]
                return taken
        self._unsent.popleft()
        return unsent.messages

    def _deliveries(
        self, messages: list[Message], ids: list[str], left_ms: int
    ) -> Iterable[MessageOut]:
        names = self._names
        return [
            message_out(message, delivery_id, names, left_ms)
            for message, delivery_id in zip(messages, ids, strict=True)
        ]

    def take_messages(self, source: int | None = None) -> dict[int, list[bytes]]:
        """Drop the messages of *source*, or all; return their message ids by source."""
        dropped: dict[int, list[bytes]] = {}
        kept: deque[_Unsent] = deque()
        for unsent in self._unsent:
            if source is not None and unsent.batch.source != source:
                kept.append(unsent)
                continue
            self._release(_message_bytes(unsent.messages))
            ids = dropped.setdefault(unsent.batch.source, [])
            ids += [message.id for message in unsent.messages]
        self._unsent = kept
        return dropped

    def _release(self, size_bytes: int) -> int:
        self.size_bytes -= size_bytes
        return size_bytes


def _message_bytes(messages: list[Message]) -> int:
    return _ENVELOPE_BYTES * len(messages) + sum([len(message.body) for message in messages])


def _answer_bytes(answer: ResponseOut | ErrorOut) -> int:
    # What is the client's own text comes back as long as it was.
    size_bytes = _ENVELOPE_BYTES + _ref_bytes(answer.ref)
    if isinstance(answer, ErrorOut):
        size_bytes += len(answer.message) + len(answer.id or "")
        if answer.ids is not None:
            size_bytes += sum(map(len, answer.ids)) + 3 * len(answer.ids)
    return size_bytes


def _ref_bytes(ref: Ref) -> int:
    if isinstance(ref, str):
        return len(ref)
    # A number may have thousands of digits; about three bits each.
    return ref.bit_length() // 3 if isinstance(ref, int) else 0
