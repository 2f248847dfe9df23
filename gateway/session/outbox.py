"""What waits to be sent to a client: answers and messages, counted in bytes."""

from __future__ import annotations

import math
from bisect import bisect_right
from itertools import accumulate

import msgspec

from gateway.protocol.frames import Message
from gateway.session.account import NOBODY, Account
from gateway.session.commands import Ref
from gateway.session.messages import ErrorOut, Out, ResponseOut, messages_out
from gateway.session.window import MARGIN_S, Batch, Window

MAX_FRAME_BYTES = 65_536
"""
A frame to the client is closed before it is larger; one larger message goes alone.

As far as is reckoned here: what JSON escapes in a body is known only once it is encoded.
"""

_ENVELOPE_BYTES = 192
"""What a delivery's or an answer's JSON takes beside the body, counted generously."""


class _Unsent(msgspec.Struct, gc=False):
    """Messages of one batch that have not been sent."""

    batch: Batch
    messages: list[Message]
    size_bytes: int
    ends: list[int] = []
    """For each message the bytes up to its end; counted when not all of them fit into a frame."""
    start: int = 0
    """Where the first of those that are left begins."""

    def take(self, room: int, *, at_least: int) -> tuple[list[Message], int]:
        """Take out the first messages that fit into *room*, and their size."""
        if not self.ends:
            sizes = [_ENVELOPE_BYTES + len(message.body) for message in self.messages]
            self.ends = list(accumulate(sizes))
        count = max(at_least, bisect_right(self.ends, self.start + room))
        if count == 0:
            return [], 0
        taken, self.messages = self.messages[:count], self.messages[count:]
        size_bytes = self.ends[count - 1] - self.start
        self.start += size_bytes
        self.size_bytes -= size_bytes
        del self.ends[:count]
        return taken, size_bytes


class Outbox:
    """Answers go before messages; both keep their order."""

    __slots__ = (
        "_account",
        "_answers",
        "_unsent",
        "answer_bytes",
        "channel",
        "due",
        "expired",
        "size_bytes",
        "topic",
    )

    def __init__(self, topic: str, channel: str, account: Account = NOBODY) -> None:
        self._account = account
        self.topic = topic
        self.channel = channel
        self._answers: list[ResponseOut | ErrorOut] = []
        self._unsent: list[_Unsent] = []
        self.due = math.inf
        """When to call `expire`; it may find nothing then."""
        self.size_bytes = 0
        """What waits, in bytes of bodies and estimated envelopes."""
        self.answer_bytes = 0
        """The share of the answers in it."""
        self.expired = 0
        """Messages dropped since the client last took a frame: the broker no longer counts them."""

    def __bool__(self) -> bool:
        """Tell whether anything waits."""
        return bool(self._answers or self._unsent)

    def add_answer(self, answer: ResponseOut | ErrorOut) -> None:
        """Put *answer* behind the answers that wait."""
        self._answers.append(answer)
        size_bytes = _answer_bytes(answer)
        self.answer_bytes += size_bytes
        self.size_bytes += size_bytes

    def add_messages(self, batch: Batch, messages: list[Message]) -> None:
        """Put *messages* behind the messages that wait."""
        size_bytes = _ENVELOPE_BYTES * len(messages)
        for message in messages:
            size_bytes += len(message.body)
        self._unsent.append(_Unsent(batch, messages, size_bytes))
        self.size_bytes += size_bytes
        if batch.deadline - MARGIN_S < self.due:  # noqa: PLR1730 - min() takes its time
            self.due = batch.deadline - MARGIN_S

    def expire(self, now: float) -> None:
        """Drop what the broker is about to time out while the client takes nothing."""
        if self.due > now:
            return
        kept = []
        for unsent in self._unsent:
            if unsent.batch.deadline - MARGIN_S > now:
                kept.append(unsent)
            else:
                self.size_bytes -= unsent.size_bytes
                self.expired += len(unsent.messages)
                self._account.timed_out(len(unsent.messages))
        self._keep(kept)

    def _keep(self, kept: list[_Unsent]) -> None:
        self._unsent = kept
        first = min((unsent.batch.deadline for unsent in kept), default=math.inf)
        self.due = first - MARGIN_S

    def take(self, window: Window, now: float) -> tuple[list[Out], list[list[str]]]:
        """
        Take out what fits into one frame; *window* holds what was taken from now on.

        Messages whose deadline has passed are dropped: the broker gives them to somebody else.
        Returns the lines, and the delivery ids of the messages among them.
        """
        self.expired = 0
        lines: list[Out] = []
        deliveries: list[list[str]] = []
        if not (self._answers or self._unsent):
            return lines, deliveries
        room = MAX_FRAME_BYTES - self._take_answers(lines) if self._answers else MAX_FRAME_BYTES
        names = (self.topic, self.channel)
        done = 0
        for unsent in self._unsent:
            batch, messages, size_bytes = unsent.batch, unsent.messages, unsent.size_bytes
            if batch.deadline <= now:
                self._account.timed_out(len(messages))
                self.size_bytes -= size_bytes
                done += 1
                continue
            if fits := size_bytes <= room:
                done += 1
            else:
                # What is too large for any frame goes alone.
                at_least = 1 if room == MAX_FRAME_BYTES else 0
                messages, size_bytes = unsent.take(room, at_least=at_least)
                if not messages:
                    break
                done += not unsent.messages
            room -= size_bytes
            self.size_bytes -= size_bytes
            ids = window.add(batch, messages)
            self._account.written(messages)
            deliveries.append(ids)
            lines += messages_out(messages, ids, names, int((batch.deadline - now) * 1000))
            if not fits:
                break
        if done:
            del self._unsent[:done]
            if not self._unsent:
                self.due = math.inf
        return lines, deliveries

    def _take_answers(self, lines: list[Out]) -> int:
        """Put the answers that fit into a frame into *lines*; return their size."""
        taken_bytes = 0
        count = 0
        for answer in self._answers:
            if taken_bytes >= MAX_FRAME_BYTES:
                break
            taken_bytes += _answer_bytes(answer)
            lines.append(answer)
            count += 1
        del self._answers[:count]
        self.answer_bytes -= taken_bytes
        self.size_bytes -= taken_bytes
        return taken_bytes

    def take_messages(self, source: int | None = None) -> dict[int, list[bytes]]:
        """Drop the messages of *source*, or all; return their message ids by source."""
        dropped: dict[int, list[bytes]] = {}
        kept = []
        for unsent in self._unsent:
            if source is not None and unsent.batch.source != source:
                kept.append(unsent)
                continue
            self.size_bytes -= unsent.size_bytes
            ids = dropped.setdefault(unsent.batch.source, [])
            ids += [message.id for message in unsent.messages]
        self._keep(kept)
        return dropped


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
