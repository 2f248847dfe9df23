"""
The pulls of one consumer as a state machine: events in, actions out.

A *pull* is a request for messages that waits until some arrive. A message that answers a pull is
*leased*: it stays in flight at nsqd, and the gateway sends TOUCH for it, until its client answers
it or its lease ends. The caller reports each event with its time (`now`, monotonic seconds) and
executes the returned actions in order; a *source* is the number of one nsqd connection.

A message is in one of these states:

| event | ARRIVED | LEASED | LOST |
| --- | --- | --- | --- |
| a pull waits and has room, and no more is about to arrive | LEASED | - | - |
| FIN or REQ of its client | - | gone: FIN, REQ | refused: LEASE_LOST |
| TOUCH of its client | - | LEASED until later | refused: LEASE_LOST |
| no pull within `linger_s` | gone: REQ 0 | - | - |
| its lease ends | - | gone: REQ 0 | gone |
| half of nsqd's timeout has passed | - | LEASED: TOUCH | - |
| its connection is lost, or nsqd timed it out | gone | LOST | - |
| `close` | gone: REQ 0 | gone: REQ 0 | gone |

RDY is above 0 only while a pull waits: then it is what is in flight already, and what the waiting
pulls have room for.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import count
from typing import TypeAlias

import msgspec

from gateway.protocol.frames import ErrorFrame, Message
from gateway.protocol.identify import IdentifyResponse
from gateway.session.types import (
    NO_OBSERVER,
    Action,
    FinishDeliveries,
    PauseReading,
    RequeueCause,
    RequeueDeliveries,
    ResumeReading,
    SessionObserver,
    SetReady,
    TouchDeliveries,
    requeue_actions,
)
from gateway.session.window import MARGIN_S, DeliveryBatch, Window, message_id

LEASE_LOST = "LEASE_LOST"
_MAX_STALE = 256
"""The heap of moments may have twice as many entries as there are leases, and these."""
_MAX_GATHERS = 10
"""A pull is answered at the latest this many times `gather_s` after the first arrival."""
_ENVELOPE_BYTES = 256
"""Estimated size of the JSON of a message, without its body."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PullOptions:
    """The limits of one consumer's pulls."""

    max_leases: int = 2_500
    """Maximum messages in flight, leased or not: the largest RDY that nsqd allows."""
    answer_bytes: int = 8 * 1_048_576
    """Bytes of bodies after which no further message is added to an answer."""
    buffer_bytes: int = 8 * 1_048_576
    """Bytes of messages that wait for a pull, above which nsqd is not read."""
    gather_s: float = 0.0005
    """
    Time without an arrival after which a pull is answered, though it has room for more.

    nsqd sends what RDY allows in several writes. What arrives after the answer waits for the next
    pull, or goes back.
    """
    linger_s: float = 0.5
    """Time for which a message that came too late for its pull waits for the next one."""
    observer: SessionObserver = field(default=NO_OBSERVER, compare=False, repr=False)


class Pull(msgspec.Struct, eq=False):
    """One request for messages."""

    max_messages: int
    lease_s: float
    """Length of its leases; 0: the message timeout of nsqd."""
    deadline: float
    """When it is answered with what has arrived, or without messages."""
    is_waiting: bool = False


class LeasedBatch(msgspec.Struct, frozen=True, gc=False):
    """Messages in the answer to a pull, each with its delivery id; their leases end together."""

    delivery_ids: list[str]
    messages: list[Message]
    lease_s: float


class AnswerPull(msgspec.Struct, gc=False):
    """Answer *pull* with *batches*; none if its time has passed and nothing has arrived."""

    pull: Pull
    batches: list[LeasedBatch]


PullAction: TypeAlias = Action | AnswerPull


Refusals: TypeAlias = dict[str, str]
"""
Why a FIN, REQ or TOUCH is refused, by delivery id.

LEASE_LOST: nsqd delivers the message again, because its connection was lost or because nsqd timed
it out. E_FIN_FAILED, E_REQ_FAILED, E_TOUCH_FAILED: the lease has ended, or was answered before.
"""


class _Arrival(msgspec.Struct, gc=False, eq=False):
    """Messages that arrived together, and that no pull has got yet."""

    batch: DeliveryBatch
    messages: list[Message]
    arrived_at: float


class _LeaseGroup(msgspec.Struct, gc=False, eq=False):
    """Leases with the same times; a lost one only stays until its lease would have ended."""

    delivery_ids: list[str]
    """Also of leases that have left the group, but never more of them than are in it."""
    held: int
    """Number of leases in the group: those whose entry in `PullSession._leases` it is."""
    ends_at: float
    is_lost: bool


class PullSession:
    """The pulls, waiting messages and leases of one consumer; see the module's docstring."""

    def __init__(self, options: PullOptions) -> None:
        self.options = options
        self._sources: dict[int, IdentifyResponse] = {}
        self._waiting: deque[Pull] = deque()
        self._wanted = 0
        """Messages that the waiting pulls have room for."""
        self._arrived: deque[_Arrival] = deque()
        self._arrived_count = 0
        self._arrived_bytes = 0
        self._window = Window(options.max_leases, options.observer)
        self._leases: dict[str, _LeaseGroup] = {}
        """By delivery id."""
        self._moments: list[tuple[float, int, _LeaseGroup | Pull]] = []
        """
        A heap of when a pull is due, or a group of leases: its end, or the next TOUCH.

        The entry of a pull that is answered, or of a group that no lease is left in, is stale.
        """
        self._numbers = count()
        self._last_rdy = 0
        self._is_reading = True
        self._is_closing = False

    # State

    @property
    def lease_count(self) -> int:
        """Number of leases that have neither ended nor been answered."""
        return len(self._leases)

    @property
    def waiting_count(self) -> int:
        """Number of pulls that wait."""
        return len(self._waiting)

    @property
    def is_full(self) -> bool:
        """True while no further message can be leased."""
        return self._in_flight >= self.options.max_leases

    @property
    def is_idle(self) -> bool:
        """True while nothing waits, and nothing is leased."""
        return not (self._waiting or self._arrived or self._leases)

    @property
    def _in_flight(self) -> int:
        """Number of messages that nsqd counts as in flight."""
        return len(self._window) - len(self._window.overdue) + self._arrived_count

    def in_flight_by_source(self) -> Mapping[int, int]:
        """Return by source the number of messages that nsqd counts as in flight."""
        by_source: Counter[int] = self._window.in_flight()
        for arrival in self._arrived:
            by_source[arrival.batch.source] += len(arrival.messages)
        return by_source

    # From NSQ

    def on_source_opened(self, source: int, answer: IdentifyResponse) -> None:
        """Accept messages of *source*; *answer* is its nsqd's response to IDENTIFY."""
        self._sources[source] = answer

    def on_source_lost(self, source: int) -> list[PullAction]:
        """Remove a source; its leases are lost, since nsqd delivers their messages again."""
        self._sources.pop(source, None)
        for arrival in self._arrived:
            if arrival.batch.source == source:
                self._count_arrived(arrival.messages, -1)
        self._arrived = deque(each for each in self._arrived if each.batch.source != source)
        self._lose(self._window.lose(source))
        return self._follow_up([])

    def on_messages(
        self, source: int, messages: list[Message], now: float, sent_after: float
    ) -> list[PullAction]:
        """
        Take *messages* of *source*, whose timeout at nsqd started at *sent_after* or later.

        Call `serve` soon: several reads may follow each other.
        """
        answer = self._sources.get(source)
        if self._is_closing or answer is None:
            cause = RequeueCause.DRAIN if self._is_closing else RequeueCause.DISCONNECT
            ids = [message.id for message in messages]
            return [*requeue_actions({source: ids}, 0, cause)]
        window = self._window
        window.expire(now)
        if window.may_supersede:
            window.refuse_earlier_deliveries(source, messages)
        batch = DeliveryBatch.of_source(source, answer, sent_after)
        self._arrived.append(_Arrival(batch, messages, now))
        self._count_arrived(messages, 1)
        return self._check_buffer()

    def _count_arrived(self, messages: Sequence[Message], sign: int) -> None:
        self._arrived_count += sign * len(messages)
        body_bytes = sum([len(message.body) for message in messages])
        self._arrived_bytes += sign * (_ENVELOPE_BYTES * len(messages) + body_bytes)

    def _check_buffer(self) -> list[PullAction]:
        """Stop reading from nsqd while too many bytes wait for a pull; else read again."""
        is_over = self._arrived_bytes > self.options.buffer_bytes
        if is_over is not self._is_reading:
            return []
        self._is_reading = not is_over
        return [PauseReading() if is_over else ResumeReading()]

    def on_ack_refused(self, source: int, frame: ErrorFrame) -> list[PullAction]:
        """Note that nsqd refused a TOUCH: it has timed the message out, so its lease is lost."""
        if frame.code == "E_TOUCH_FAILED":
            _, refused = frame.refused_command
            lost = self._window.touch_refused(source, refused.encode("latin-1", "replace"))
            self._lose([] if lost is None else [lost])
        return self._follow_up([])

    def _lose(self, delivery_ids: Sequence[str]) -> None:
        lost: dict[float, list[str]] = {}
        for delivery_id in delivery_ids:
            group = self._leases.get(delivery_id)
            if group is not None and not group.is_lost:
                lost.setdefault(group.ends_at, []).append(delivery_id)
        for ends_at, ids in lost.items():
            self._group(ids, ends_at, ends_at, is_lost=True)

    # Pulls

    def begin(self, pull: Pull, now: float) -> list[PullAction]:
        """Let *pull* wait, and answer it at once if messages wait for it."""
        pull.is_waiting = True
        self._waiting.append(pull)
        self._wanted += pull.max_messages
        self._push(pull.deadline, pull)
        return self.serve(now)

    def cancel(self, pull: Pull) -> list[PullAction]:
        """Forget *pull*, whose client has left; does nothing if it is answered."""
        if pull.is_waiting:
            self._waiting.remove(pull)
            self._end_pull(pull)
        return self._follow_up([])

    def serve(self, now: float) -> list[PullAction]:
        """Answer waiting pulls with the messages that have arrived, both in order."""
        return self._follow_up(self._serve(now))

    def _serve(self, now: float) -> list[PullAction]:
        answers: list[PullAction] = []
        while self._waiting and self._arrived and self._has_gathered(self._waiting[0], now):
            pull = self._waiting[0]
            batches = self._claim(pull, now)
            if not batches:
                break
            self._waiting.popleft()
            self._end_pull(pull)
            answers.append(AnswerPull(pull, batches))
        return [*answers, *self._check_buffer()]

    def _has_gathered(self, pull: Pull, now: float) -> bool:
        """Return whether *pull* is not to wait for more than what has arrived."""
        return (
            self._arrived_count >= pull.max_messages
            or self._arrived_bytes >= self.options.answer_bytes
            or self._in_flight >= self._last_rdy  # nsqd sends no more
            or now >= self._gathered_at
        )

    @property
    def _gathered_at(self) -> float:
        """When waiting for more ends, while some have arrived."""
        gather_s = self.options.gather_s
        latest = self._arrived[0].arrived_at + _MAX_GATHERS * gather_s
        return min(self._arrived[-1].arrived_at + gather_s, latest)

    def _end_pull(self, pull: Pull) -> None:
        pull.is_waiting = False
        self._wanted -= pull.max_messages

    def _claim(self, pull: Pull, now: float) -> list[LeasedBatch]:
        """Lease as many messages to *pull* as it has room for."""
        leased: list[LeasedBatch] = []
        left_bytes = self.options.answer_bytes
        left = pull.max_messages
        while self._arrived and left > 0 and left_bytes > 0:
            arrival = self._arrived[0]
            batch = arrival.batch
            # nsqd has timed them out, or is about to: it delivers them again.
            is_late = batch.deadline - MARGIN_S <= now
            room = len(arrival.messages) if is_late else left
            taken = []
            for message in arrival.messages[:room]:
                if not is_late and left_bytes <= 0:
                    break
                left_bytes -= 0 if is_late else len(message.body)
                taken.append(message)
            arrival.messages = arrival.messages[len(taken) :]
            if not arrival.messages:
                self._arrived.popleft()
            self._count_arrived(taken, -1)
            if is_late:
                self.options.observer.on_timed_out(len(taken))
            elif taken:
                leased.append(self._lease(batch, taken, pull.lease_s or batch.timeout_s, now))
                left -= len(taken)
        return leased

    def _lease(
        self, batch: DeliveryBatch, messages: list[Message], lease_s: float, now: float
    ) -> LeasedBatch:
        ids = self._window.add(batch, messages)
        self.options.observer.on_written(messages)
        # nsqd takes no TOUCH beyond the ceiling.
        ends_at = min(now + lease_s, batch.ceiling - MARGIN_S)
        self._group(ids, ends_at, self._next_due(ends_at, batch, now))
        return LeasedBatch(ids, messages, ends_at - now)

    @staticmethod
    def _next_due(ends_at: float, batch: DeliveryBatch, now: float) -> float:
        """Return when a lease is looked at next: at its end, or for a TOUCH before it."""
        if ends_at <= batch.deadline - MARGIN_S:
            return ends_at
        return min(ends_at, max(now, batch.deadline - batch.timeout_s / 2))

    # Answers of clients

    def finish(self, delivery_ids: Sequence[str], now: float) -> tuple[list[PullAction], Refusals]:
        """Return the actions that finish leased messages, and the refusals."""
        taken, refused = self._take(delivery_ids, "FIN", now)
        actions = [FinishDeliveries(source, ids) for source, ids in taken.items()]
        return self._follow_up(actions), refused

    def requeue(
        self, delivery_ids: Sequence[str], delay_ms: int, now: float
    ) -> tuple[list[PullAction], Refusals]:
        """Return the actions that requeue leased messages, and the refusals."""
        taken, refused = self._take(delivery_ids, "REQ", now)
        actions = [
            RequeueDeliveries(source, ids, delay_ms, RequeueCause.CLIENT)
            for source, ids in taken.items()
        ]
        return self._follow_up(actions), refused

    def touch(
        self, delivery_ids: Sequence[str], lease_s: float, now: float
    ) -> tuple[list[PullAction], Refusals]:
        """
        Let the leases end after *lease_s* from now, or at nsqd's limit; 0: its message timeout.

        Returns the actions, and the refusals.
        """
        refused: Refusals = {}
        held = []
        for delivery_id in dict.fromkeys(delivery_ids):
            if code := self._refusal_code(delivery_id, "TOUCH", now):
                refused[delivery_id] = code
            else:
                held.append(delivery_id)
        actions, lost = self._touch_now(held, now, now + lease_s if lease_s else None)
        refused.update(dict.fromkeys(lost, LEASE_LOST))
        return self._follow_up(actions), refused

    def _take(
        self, delivery_ids: Sequence[str], verb: str, now: float
    ) -> tuple[dict[int, list[bytes]], Refusals]:
        """Take leased messages out of the window; return their ids by source, and refusals."""
        refused: Refusals = {}
        held: list[str] = []
        groups: list[_LeaseGroup] = []
        for delivery_id in delivery_ids:
            if code := self._refusal_code(delivery_id, verb, now):
                refused[delivery_id] = code
            else:
                groups.append(self._leases.pop(delivery_id))
                held.append(delivery_id)
        self._leave(groups)
        if not held:
            return {}, refused
        taken, late = self._window.take_many(held, now)
        refused.update(dict.fromkeys(late, LEASE_LOST))
        return taken, refused

    def _refusal_code(self, delivery_id: str, verb: str, now: float) -> str:
        """Return why *verb* is refused for a delivery, as in `Refusals`; empty if it is not."""
        group = self._leases.get(delivery_id)
        if group is not None and group.is_lost:
            return LEASE_LOST
        return f"E_{verb}_FAILED" if group is None or group.ends_at <= now else ""

    # Groups of leases

    def _group(
        self, delivery_ids: list[str], ends_at: float, due: float, *, is_lost: bool = False
    ) -> None:
        """Let leases, new ones or others, end at *ends_at*, and be looked at when *due*."""
        group = _LeaseGroup(delivery_ids, len(delivery_ids), ends_at, is_lost)
        before = [self._leases[each] for each in delivery_ids if each in self._leases]
        self._leases.update(dict.fromkeys(delivery_ids, group))
        self._leave(before)
        self._push(due, group)

    def _leave(self, groups: list[_LeaseGroup]) -> None:
        """Count a lease less for each time that a group occurs; `_leases` has it no more."""
        for group, number in Counter(groups).items():
            group.held -= number
            if 2 * group.held < len(group.delivery_ids):
                # So that all groups together keep at most twice as many ids as there are leases.
                left = [each for each in group.delivery_ids if self._leases.get(each) is group]
                group.delivery_ids = left

    def _touch_now(
        self, delivery_ids: Sequence[str], now: float, ends_at: float | None
    ) -> tuple[list[PullAction], list[str]]:
        """
        Extend the deadlines of leased messages; None: the leases end with nsqd's message timeout.

        Returns the TOUCHes, and the ids of those that nsqd has timed out: their leases are lost.
        """
        touched: dict[int, list[bytes]] = {}
        moved: dict[tuple[float, float], list[str]] = {}
        lost = []
        for delivery_id in delivery_ids:
            source = self._window.touch(delivery_id, now)
            batch = self._window.batch_of(delivery_id)
            if source is None or batch is None:
                lost.append(delivery_id)
                continue
            touched.setdefault(source, []).append(message_id(delivery_id))
            # nsqd takes no TOUCH beyond the ceiling.
            asked = now + batch.timeout_s if ends_at is None else ends_at
            end = min(asked, batch.ceiling - MARGIN_S)
            moved.setdefault((end, self._next_due(end, batch, now)), []).append(delivery_id)
        for (end, due), ids in moved.items():
            self._group(ids, end, due)
        self._lose(lost)
        return [TouchDeliveries(source, ids) for source, ids in touched.items()], lost

    # Time

    def _push(self, due: float, what: _LeaseGroup | Pull) -> None:
        heappush(self._moments, (due, next(self._numbers), what))
        if len(self._moments) > 2 * (len(self._leases) + len(self._waiting)) + _MAX_STALE:
            self._moments = [each for each in self._moments if _is_current(each)]
            heapify(self._moments)

    def next_wake(self) -> float | None:
        """Return when to call `wake`, in monotonic seconds; None for never."""
        while self._moments and not _is_current(self._moments[0]):
            heappop(self._moments)
        due = self._moments[0][0] if self._moments else math.inf
        if self._arrived:
            lingered_at = self._arrived[0].arrived_at + self.options.linger_s
            due = min(due, self._gathered_at if self._waiting else lingered_at)
        return None if due == math.inf else due

    def wake(self, now: float) -> list[PullAction]:
        """Answer the pulls, end the leases and send the TOUCHes that are due."""
        self._window.expire(now)
        actions: list[PullAction] = []
        ended: list[str] = []
        while self._moments and self._moments[0][0] <= now:
            moment = heappop(self._moments)
            if not _is_current(moment):
                continue
            what = moment[2]
            if isinstance(what, Pull):
                self._waiting.remove(what)
                self._end_pull(what)
                actions.append(AnswerPull(what, self._claim(what, now)))
                continue
            ids = [each for each in what.delivery_ids if self._leases.get(each) is what]
            if what.ends_at > now:
                touches, _ = self._touch_now(ids, now, what.ends_at)
                actions += touches
                continue
            for delivery_id in ids:
                del self._leases[delivery_id]
            if not what.is_lost:
                ended += ids
        if ended:
            taken, _ = self._window.take_many(ended, now)
            actions += requeue_actions(taken, 0, RequeueCause.LEASE_ENDED)
        actions += self._serve(now)
        if not self._waiting:
            actions += self._requeue_arrived(self.options.linger_s, RequeueCause.NOT_PULLED, now)
        return self._follow_up(actions)

    def _requeue_arrived(
        self, linger_s: float, cause: RequeueCause, now: float
    ) -> list[PullAction]:
        """Requeue what arrived *linger_s* ago or earlier, and no pull has got."""
        left: dict[int, list[bytes]] = {}
        while self._arrived and self._arrived[0].arrived_at + linger_s <= now:
            arrival = self._arrived.popleft()
            self._count_arrived(arrival.messages, -1)
            # Else nsqd has timed them out.
            if arrival.batch.deadline > now:
                ids = [message.id for message in arrival.messages]
                left.setdefault(arrival.batch.source, []).extend(ids)
        return [*requeue_actions(left, 0, cause), *self._check_buffer()]

    # RDY, and the end

    def _follow_up(self, actions: Sequence[PullAction]) -> list[PullAction]:
        """Return *actions* after the RDY that the new state requires."""
        # First: nsqd would deliver requeued messages, and others in place of finished ones, at
        # once under a higher RDY.
        ready = self._ready
        if ready == self._last_rdy:
            return list(actions)
        self._last_rdy = ready
        return [SetReady(ready), *actions]

    @property
    def _ready(self) -> int:
        wanted = self._wanted - self._arrived_count
        if self._is_closing or wanted <= 0:
            return 0
        return min(self.options.max_leases, self._in_flight + wanted)

    def drain(self, now: float) -> list[PullAction]:
        """Answer every waiting pull without messages, and take no more from nsqd."""
        self._is_closing = True
        answers: list[PullAction] = [AnswerPull(pull, []) for pull in self._waiting]
        for pull in self._waiting:
            self._end_pull(pull)
        self._waiting.clear()
        left = self._requeue_arrived(0.0, RequeueCause.DRAIN, now)
        return self._follow_up([*answers, *left])

    def close(self, now: float) -> list[PullAction]:
        """End all leases, and requeue every message; idempotent."""
        actions = self.drain(now)
        self._leases.clear()
        self._moments.clear()
        left = self._window.take_all(now)
        return [*actions, *requeue_actions(left, 0, RequeueCause.DRAIN)]


def _is_current(moment: tuple[float, int, _LeaseGroup | Pull]) -> bool:
    what = moment[2]
    return what.is_waiting if isinstance(what, Pull) else what.held > 0
