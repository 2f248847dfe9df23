"""
The messages and responses that wait for a client, and the deliveries that the client holds.

A *delivery* is one message sent to the client once. The client *holds* it until it acknowledges it.
Times are monotonic seconds. A *source* is the number of one nsqd connection.
"""

from __future__ import annotations

import math
import sys
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import accumulate, repeat

import msgspec

from gateway.protocol.frames import Message
from gateway.protocol.identify import IdentifyResponse
from gateway.protocol.wire import MESSAGE_ID_BYTES
from gateway.session.json_frames import (
    DeliveryOut,
    ErrorOut,
    Out,
    ResponseOut,
    encode_messages,
)
from gateway.session.types import NO_OBSERVER, SessionObserver

MARGIN_S = 0.25
"""
Time before a delivery's deadline at which the gateway lowers RDY by one.

The lower RDY must reach nsqd before nsqd times the message out, or nsqd would send another one.
"""
REFUSAL_S = 1.0
"""
Time within which a refusal of a TOUCH arrives from nsqd; much longer than a round trip.

nsqd sends no response to a successful TOUCH. A delivery that was touched within `MARGIN_S` of its
deadline counts as in flight at nsqd again only after this time without a refusal.
"""
_MAX_STALE_TOUCHES = 64
"""`Window._touched` may have twice as many entries as the client holds deliveries, and these."""


class DeliveryBatch(msgspec.Struct, gc=False, eq=False):
    """The source and deadlines of messages that arrived together; they share this object."""

    source: int
    timeout_s: float
    """The message timeout of the connection; a TOUCH sets the deadline to this time from now."""
    deadline: float
    """When nsqd times the messages out."""
    ceiling: float
    """The latest deadline to which TOUCH can extend (nsqd's --max-msg-timeout)."""

    @classmethod
    def of_source(cls, source: int, answer: IdentifyResponse, sent_after: float) -> DeliveryBatch:
        """
        Return the batch of messages that *source* sent at *sent_after* or later.

        *answer* is its nsqd's response to IDENTIFY. The deadlines count from the earliest possible
        moment: one that is too late would let the client send a FIN that nsqd refuses.
        """
        timeout_s = answer.msg_timeout / 1000
        ceiling = sent_after + answer.max_msg_timeout / 1000
        return cls(source, timeout_s, min(sent_after + timeout_s, ceiling), ceiling)


class Window:
    """
    The deliveries that a client holds, by id, in the order in which they were sent.

    A delivery stays in the window until the client acknowledges it, even after nsqd has timed it
    out: otherwise a frozen browser tab would receive another window of messages at every timeout.
    Such a delivery is *overdue*. nsqd no longer counts it as in flight, so the gateway sends an RDY
    that is lower by one for each.

    A delivery id is the message id (16 digits), a dash and the number of its batch on this socket,
    because a redelivery has the same message id, and all channels of a topic have the same ids.
    """

    __slots__ = (
        "_held",
        "_last_number",
        "_observer",
        "_recounted_at",
        "_touched",
        "due",
        "overdue",
        "size",
        "timed_out",
    )

    def __init__(self, size: int, observer: SessionObserver = NO_OBSERVER) -> None:
        self.size = size
        self.timed_out = 0
        """Number of deliveries since the start that nsqd has timed out, or is about to."""
        self._observer = observer
        self.overdue: dict[str, DeliveryBatch] = {}
        """Deliveries that the client holds and nsqd has timed out, or is about to."""
        self._held: dict[str, DeliveryBatch] = {}
        """Deliveries that the client holds and nsqd counts as in flight, too."""
        self._touched: dict[tuple[int, bytes], str] = {}
        """
        The last touched delivery of each message, by source and message id.

        nsqd's refusal of a TOUCH names only the message. An entry may stay after its delivery has
        left the window.
        """
        self._recounted_at: dict[str, float] = {}
        """When an overdue delivery that was touched counts as in flight at nsqd again, by id."""
        self.due = math.inf
        """When to call `expire`, at the latest; `expire` may then find nothing to do."""
        self._last_number = 0

    def __len__(self) -> int:
        """Return the number of deliveries that are not acknowledged."""
        return len(self._held) + len(self.overdue)

    @property
    def room(self) -> int:
        """The RDY to send for this window: its size less the number of overdue deliveries."""
        return max(0, self.size - len(self.overdue))

    def in_flight(self) -> Counter[int]:
        """Return by source the number of deliveries that nsqd has not timed out."""
        by_source: Counter[int] = Counter()
        # By batch first: Counter counts in C, and there are few batches.
        for batch, count in Counter(self._held.values()).items():
            by_source[batch.source] += count
        return by_source

    def add(self, batch: DeliveryBatch, messages: Sequence[Message]) -> list[str]:
        """Add a delivery for each of *messages*, and return the new delivery ids."""
        self._last_number = number = self._last_number + 1
        if batch.deadline - MARGIN_S < self.due:  # noqa: PLR1730 - min() is slower
            self.due = batch.deadline - MARGIN_S
        held = self._held
        if len(messages) == 1:
            delivery_id = f"{messages[0].id.decode('latin-1')}-{number}"
            held[delivery_id] = batch
            return [delivery_id]
        before = len(held)
        ids = make_delivery_ids(messages, number)
        for delivery_id in ids:
            held[delivery_id] = batch
        if len(held) - before < len(ids):
            # A message timed out and was delivered again before the gateway read it the first
            # time: each delivery gets a number of its own.
            ids = self._add_duplicates(messages, batch)
        return ids

    def _add_duplicates(self, messages: Sequence[Message], batch: DeliveryBatch) -> list[str]:
        """Add the deliveries of *messages*, some of which occur twice, and return their ids."""
        # `add` has stored the ids with the first number already; here they are stored once more.
        seen: set[str] = set()
        ids = []
        number = self._last_number
        for message in messages:
            digits = message.id.decode("latin-1")
            if (delivery_id := f"{digits}-{number}") in seen:
                self._last_number += 1
                delivery_id = f"{digits}-{self._last_number}"
            seen.add(delivery_id)
            self._held[delivery_id] = batch
            ids.append(delivery_id)
        return ids

    def take(self, delivery_id: str, now: float) -> int | None:
        """
        Remove a delivery that the client has acknowledged, which frees its place in the window.

        Returns the source to acknowledge it to; None if nsqd has timed the delivery out, or if the
        client does not hold it.
        """
        batch = self._held.pop(delivery_id, None) or self.overdue.pop(delivery_id, None)
        return batch.source if batch is not None and batch.deadline > now else None

    def take_many(self, ids: list[str], now: float) -> tuple[dict[int, list[bytes]], list[str]]:
        """
        Remove the deliveries *ids*, which the client has acknowledged; *ids* must not be empty.

        Returns the message ids to acknowledge to nsqd, by source, and the delivery ids to refuse:
        nsqd has timed them out, or the client does not hold them.
        """
        # Two fast paths, for a single delivery and for a single batch: most FINs take one of them.
        # Timed out deliveries are removed, too: the client has dropped them, so they free a place.
        pop = self._held.pop
        first = pop(ids[0], None)
        is_one = len(ids) == 1
        batches = [first] if is_one else [first, *map(pop, ids[1:], repeat(None))]
        if first is not None and first.deadline > now:
            if is_one:
                return {first.source: [message_id(ids[0])]}, []
            if batches.count(first) == len(ids):
                return {first.source: _message_ids(ids)}, []
        taken: dict[int, list[bytes]] = {}
        refused = []
        for delivery_id, held in zip(ids, batches, strict=True):
            batch = held or self.overdue.pop(delivery_id, None)
            if batch is None or batch.deadline <= now:
                refused.append(delivery_id)
            else:
                taken.setdefault(batch.source, []).append(message_id(delivery_id))
        return taken, refused

    def touch(self, delivery_id: str, now: float) -> int | None:
        """
        Extend the deadline of a delivery that the client has touched; return its source.

        Returns None if nsqd has timed the delivery out, or if the client does not hold it. The
        delivery then leaves the window, because a client drops a message whose TOUCH is refused.
        """
        batch = self._held.get(delivery_id) or self.overdue.get(delivery_id)
        if batch is None or batch.deadline <= now:
            self._release(delivery_id)
            return None
        # As nsqd does: a TOUCH never extends beyond --max-msg-timeout after the delivery.
        deadline = min(now + batch.timeout_s, batch.ceiling)
        touched = DeliveryBatch(batch.source, batch.timeout_s, deadline, batch.ceiling)
        if delivery_id in self.overdue:
            # nsqd may have timed the delivery out already, and would then refuse the TOUCH. RDY
            # must not rise before the time for such a refusal has passed.
            self.overdue[delivery_id] = touched
            # The first TOUCH decides, or a client that touches often would never be counted.
            self.due = min(self.due, self._recounted_at.setdefault(delivery_id, now + REFUSAL_S))
        else:
            del self._held[delivery_id]
            self._held[delivery_id] = touched
            # At its ceiling it may be due before deliveries that were sent earlier.
            self.due = min(self.due, deadline - MARGIN_S)
        if len(self._touched) > 2 * len(self) + _MAX_STALE_TOUCHES:
            self._touched = {key: each for key, each in self._touched.items() if self.holds(each)}
        self._touched[batch.source, message_id(delivery_id)] = delivery_id
        return batch.source

    def batch_of(self, delivery_id: str) -> DeliveryBatch | None:
        """Return the batch of a delivery that the client holds, with its deadline; else None."""
        return self._held.get(delivery_id) or self.overdue.get(delivery_id)

    def holds(self, delivery_id: str) -> bool:
        """Return True while the client holds the delivery: it has not acknowledged it."""
        return delivery_id in self._held or delivery_id in self.overdue

    def touch_refused(self, source: int, refused_id: bytes) -> str | None:
        """
        Remove the delivery whose TOUCH nsqd has refused, if the client still holds it.

        *refused_id* is the message id that *source* named in its refusal. Returns the delivery id,
        even if the client has acknowledged it meanwhile; None if it touched no delivery of the
        message.
        """
        delivery_id = self._touched.get((source, refused_id))
        if delivery_id is not None:
            self._release(delivery_id)
        return delivery_id

    def _release(self, delivery_id: str) -> None:
        """Remove a delivery from the window, if it is there; nothing is sent to nsqd."""
        self._recounted_at.pop(delivery_id, None)
        if self._held.pop(delivery_id, None) is None:
            self.overdue.pop(delivery_id, None)

    def expire(self, now: float) -> None:
        """Make those deliveries overdue that nsqd is about to time out; see `overdue`."""
        if self.due > now:
            return
        held = self._held
        # A scan: TOUCH and different timeouts of sources leave the deadlines unsorted.
        due = [key for key, batch in held.items() if batch.deadline - MARGIN_S <= now]
        for delivery_id in due:
            self.overdue[delivery_id] = held.pop(delivery_id)
        self.timed_out += len(due)
        self._observer.on_timed_out(len(due))
        if self._recounted_at:
            self._recount_touched(now)
        self._update_due()

    def _recount_touched(self, now: float) -> None:
        """Move a touched delivery out of `overdue` if nsqd has not refused its TOUCH in time."""
        recounted = [key for key, at in self._recounted_at.items() if at <= now]
        for delivery_id in recounted:
            del self._recounted_at[delivery_id]
            batch = self.overdue.get(delivery_id)
            # The client may have acknowledged it meanwhile, or the new deadline is near as well.
            if batch is not None and batch.deadline - MARGIN_S > now:
                self._held[delivery_id] = self.overdue.pop(delivery_id)

    def _update_due(self) -> None:
        first = min((batch.deadline for batch in self._held.values()), default=math.inf)
        self.due = min([first - MARGIN_S, *self._recounted_at.values()])

    @property
    def may_supersede(self) -> bool:
        """
        True if the client may hold an earlier delivery of a message that arrives again.

        nsqd sends a message again only if it timed out: its earlier delivery is overdue, or was
        touched too late. If False, `refuse_earlier_deliveries` need not be called.
        """
        return bool(self.overdue or self._touched)

    def refuse_earlier_deliveries(self, source: int, messages: Sequence[Message]) -> None:
        """
        Refuse acknowledgments of earlier deliveries of *messages*, which *source* has sent again.

        nsqd timed those deliveries out a little before this window did. The protocol does not
        distinguish deliveries of a message on one connection, so if the gateway sent a FIN for the
        earlier delivery, nsqd would finish the later one.
        """
        # A deadline in the past makes every later acknowledgment of the delivery too late.
        superseded = DeliveryBatch(source, 0.0, -math.inf, -math.inf)
        for message in messages if self._touched else ():
            delivery_id = self._touched.get((source, message.id))
            if delivery_id is not None and self._held.pop(delivery_id, None) is not None:
                self.overdue[delivery_id] = superseded
        if not self.overdue:
            return
        again = {message.id for message in messages}
        for delivery_id, batch in self.overdue.items():
            if batch.source == source and message_id(delivery_id) in again:
                self.overdue[delivery_id] = superseded

    def answerable(self, source: int, now: float) -> list[bytes]:
        """Return the ids of messages of *source* that nsqd has not timed out, oldest first."""
        return [
            message_id(delivery_id)
            for held in (self.overdue, self._held)
            for delivery_id, batch in held.items()
            if batch.source == source and batch.deadline > now
        ]

    def lose(self, source: int) -> list[str]:
        """Remove the deliveries of *source*, which is lost, and return their delivery ids."""
        lost = []
        for held in (self._held, self.overdue):
            ids = [delivery_id for delivery_id, batch in held.items() if batch.source == source]
            for delivery_id in ids:
                del held[delivery_id]
            lost += ids
        self._update_due()
        return lost

    def take_all(self, now: float) -> dict[int, list[bytes]]:
        """Remove all deliveries; return those ids that nsqd still has in flight, by source."""
        left: dict[int, list[bytes]] = {}
        # Overdue deliveries come first, because they are the older ones.
        for held in (self.overdue, self._held):
            for delivery_id, batch in held.items():
                if batch.deadline > now:
                    left.setdefault(batch.source, []).append(message_id(delivery_id))
            held.clear()
        self.due = math.inf
        return left


def make_delivery_ids(messages: Sequence[Message], number: int) -> list[str]:
    """Return a delivery id for each message: the message id, a dash and *number*."""
    # Decoding one joined text, and splitting it, takes half the time of decoding each.
    end = b"-%d\n" % number
    text = end.join([message.id for message in messages]) + end[:-1]
    ids = text.decode("latin-1").split("\n")
    if len(ids) == len(messages):
        return ids
    # An id is opaque, and may contain a newline byte.
    return [f"{message.id.decode('latin-1')}-{number}" for message in messages]


def message_id(delivery_id: str) -> bytes:
    """Return the message id that *delivery_id* begins with."""
    return delivery_id[:MESSAGE_ID_BYTES].encode("latin-1")


def _message_ids(ids: list[str]) -> list[bytes]:
    """Return the message id of each delivery id in *ids*, as bytes for nsqd."""
    # The fast path, for ids of one batch, reverses `make_delivery_ids`. Its first test excludes
    # a newline within an id, its second one ids with different numbers.
    text = ("\n".join(ids) + "\n").encode("latin-1")
    end = ids[0][MESSAGE_ID_BYTES:].encode("latin-1") + b"\n"
    if text.count(b"\n") == len(ids) == text.count(end):
        return text.split(end)[:-1]
    return [message_id(delivery_id) for delivery_id in ids]


MAX_FRAME_BYTES = 65_536
"""
Maximum size of a frame to the client; a larger message gets a frame of its own.

Sizes are estimated before encoding, without JSON escapes in bodies, so a frame may become larger.
"""

_ENVELOPE_BYTES = 192
"""Estimated maximum size of the JSON of a delivery or response, without its body."""

_EMPTY_TEXT_BYTES = sys.getsizeof("")
_POINTER_BYTES = 8
"""Size of a reference in a list."""


class _Unsent(msgspec.Struct, gc=False):
    """The messages of one batch that are not in a frame for the client yet."""

    batch: DeliveryBatch
    messages: list[Message]
    size_bytes: int
    ends: list[int] = []
    """
    For each message: the size of it and all before it, including those taken.

    Computed only if the batch does not fit into one frame.
    """
    start: int = 0
    """The size of the messages taken so far."""

    def take(self, room: int, *, at_least: int) -> tuple[list[Message], int]:
        """
        Remove the first messages that fit into *room* bytes; return them and their size.

        Takes *at_least* messages (0 or 1), even if they do not fit.
        """
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
    """The responses and messages that wait for the client; responses are sent first."""

    __slots__ = (
        "_answers",
        "_is_closed",
        "_observer",
        "_unsent",
        "answer_bytes",
        "channel",
        "due",
        "expired",
        "lease_of",
        "size_bytes",
        "topic",
    )

    def __init__(self, topic: str, channel: str, observer: SessionObserver = NO_OBSERVER) -> None:
        self._observer = observer
        self.topic = topic
        self.channel = channel
        self._answers: list[tuple[ResponseOut | ErrorOut, int]] = []
        """
        The responses that wait, each with its size in bytes.

        The size must not be computed again: encoding a `str` caches its UTF-8, and so enlarges it.
        """
        self._is_closed = False
        self._unsent: list[_Unsent] = []
        self.due = math.inf
        """When to call `expire`, at the latest; `expire` may then find nothing to do."""
        self.size_bytes = 0
        """
        Estimated bytes of all that waits.

        Counted are message bodies, the client's own text in responses, and `_ENVELOPE_BYTES` each.
        """
        self.answer_bytes = 0
        """The part of `size_bytes` for responses."""
        self.expired = 0
        """Number of messages that nsqd timed out here since the client last took a frame."""
        self.lease_of: Callable[[str, float], str] | None = None
        """Returns the lease of a delivery that ends in so many s; None: messages have none."""

    def __bool__(self) -> bool:
        """Return True if anything waits."""
        return bool(self._answers or self._unsent)

    def add_answer(self, answer: ResponseOut | ErrorOut) -> None:
        """Queue a response for the client; does nothing after `close`."""
        if self._is_closed:
            return
        # Counted as memory, so that a client that reads nothing cannot pile up cheap responses.
        size_bytes = _answer_bytes(answer)
        self._answers.append((answer, size_bytes))
        self.answer_bytes += size_bytes
        self.size_bytes += size_bytes

    def close(self) -> None:
        """Accept no more responses."""
        self._is_closed = True

    def add_messages(self, batch: DeliveryBatch, messages: list[Message]) -> None:
        """Queue *messages*, which arrived together and share *batch*, for the client."""
        size_bytes = _ENVELOPE_BYTES * len(messages)
        for message in messages:
            size_bytes += len(message.body)
        self._unsent.append(_Unsent(batch, messages, size_bytes))
        self.size_bytes += size_bytes
        if batch.deadline - MARGIN_S < self.due:  # noqa: PLR1730 - min() is slower
            self.due = batch.deadline - MARGIN_S

    def count_by_source(self, by_source: Counter[int]) -> None:
        """Add the number of waiting messages of each source to *by_source*."""
        for unsent in self._unsent:
            by_source[unsent.batch.source] += len(unsent.messages)

    def expire(self, now: float) -> None:
        """Drop messages that nsqd is about to time out: it will deliver them again."""
        if self.due > now:
            return
        kept = []
        for unsent in self._unsent:
            if unsent.batch.deadline - MARGIN_S > now:
                kept.append(unsent)
            else:
                self.size_bytes -= unsent.size_bytes
                self.expired += len(unsent.messages)
                self._observer.on_timed_out(len(unsent.messages))
        self._keep(kept)

    def _keep(self, kept: list[_Unsent]) -> None:
        self._unsent = kept
        first = min((unsent.batch.deadline for unsent in kept), default=math.inf)
        self.due = first - MARGIN_S

    def take(self, window: Window, now: float) -> tuple[list[Out], list[list[str]]]:
        """
        Remove what fits into one frame for the client, and add its messages to *window*.

        Messages past their deadline are dropped, because nsqd delivers them again. Returns the
        frame's lines, and for each batch in the frame a list of its delivery ids.
        """
        self.expired = 0
        lines: list[Out] = []
        deliveries: list[list[str]] = []
        if not (self._answers or self._unsent):
            return lines, deliveries
        room = MAX_FRAME_BYTES - self._take_answers(lines) if self._answers else MAX_FRAME_BYTES
        done = 0
        for unsent in self._unsent:
            batch, messages, size_bytes = unsent.batch, unsent.messages, unsent.size_bytes
            if batch.deadline <= now:
                self._observer.on_timed_out(len(messages))
                self.size_bytes -= size_bytes
                done += 1
                continue
            if fits := size_bytes <= room:
                done += 1
            else:
                # A message larger than a frame goes alone.
                at_least = 1 if room == MAX_FRAME_BYTES else 0
                messages, size_bytes = unsent.take(room, at_least=at_least)
                if not messages:
                    break
                done += not unsent.messages
            room -= size_bytes
            self.size_bytes -= size_bytes
            ids = window.add(batch, messages)
            self._observer.on_written(messages)
            deliveries.append(ids)
            lines += self._encode(batch, messages, ids, now)
            if not fits:
                break
        # Deleted in one step: `del self._unsent[0]` in the loop would move the list each time.
        if done:
            del self._unsent[:done]
            if not self._unsent:
                self.due = math.inf
        return lines, deliveries

    def _encode(
        self, batch: DeliveryBatch, messages: Sequence[Message], ids: Sequence[str], now: float
    ) -> Sequence[DeliveryOut]:
        left_s = batch.deadline - now
        names = (self.topic, self.channel)
        deliveries = encode_messages(messages, ids, names, int(left_s * 1000))
        if self.lease_of is not None:
            for delivery in deliveries:
                delivery.lease = self.lease_of(delivery.id, left_s)
        return deliveries

    def _take_answers(self, lines: list[Out]) -> int:
        """Move responses to *lines* until the frame is full; return their size in bytes."""
        taken_bytes = 0
        count = 0
        for answer, size_bytes in self._answers:
            if taken_bytes >= MAX_FRAME_BYTES:
                break
            taken_bytes += size_bytes
            lines.append(answer)
            count += 1
        del self._answers[:count]
        self.answer_bytes -= taken_bytes
        self.size_bytes -= taken_bytes
        return taken_bytes

    def take_messages(self, source: int | None = None) -> dict[int, list[bytes]]:
        """Remove the messages of *source* (None: of all); return the message ids by source."""
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
    """
    Return the memory of *answer* in bytes, which is about the maximum size of its JSON.

    The client's own text (ref, ids) is counted in full, because the response repeats it.
    """
    size_bytes = _ENVELOPE_BYTES
    ref = answer.ref
    if isinstance(ref, str):
        size_bytes += _text_bytes(ref)
    elif isinstance(ref, int):
        # An int may have thousands of digits, of about three bits each.
        size_bytes += ref.bit_length() // 3
    if isinstance(answer, ErrorOut):
        size_bytes += _text_bytes(answer.message) + _text_bytes(answer.id or "")
        if answer.ids is not None:
            size_bytes += sum(map(sys.getsizeof, answer.ids)) + _POINTER_BYTES * len(answer.ids)
    return size_bytes


def _text_bytes(text: str) -> int:
    """
    Return the memory of the characters of *text* in bytes.

    It is not the number of characters: a text with one emoji takes four bytes for each (PEP 393).
    """
    return sys.getsizeof(text) - _EMPTY_TEXT_BYTES
