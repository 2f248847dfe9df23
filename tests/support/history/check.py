"""Find violations in a history. PURE, so that tests can plant each violation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from tests.support.history.events import (
    AckResponse,
    CloseWaitReceived,
    FinalCounts,
    MessageDelivered,
    OwnerMissed,
    PublishAcknowledged,
    PublishStored,
    Record,
    SocketClosed,
)
from tests.support.history.index import SLACK_S, HistoryIndex, Sending

OUTLIVE_S = 5.0
"""Maximum time in which nsqd may still send to the connections of a closed socket."""


class Kind(StrEnum):
    """The kinds of violations."""

    NOT_STORED = "acknowledged before the broker had it"
    NEVER_DELIVERED = "acknowledged, on no disk that died, and delivered to nobody"
    NEVER_FINISHED = "acknowledged, on no disk that died, and finished by nobody"
    UNASKED = "said to the broker, and no client had asked for it"
    UNEXPLAINED = "sent again without a reason"
    RISEN = "sent again although it had been finished"
    FEWER_ATTEMPTS = "sent again, and not with more attempts"
    INVENTED = "delivered, and the broker had not sent it"
    DELIVERED_TWICE = "delivered twice, and sent once"
    AFTER_THE_END = "delivered to a socket that was closed or had read CLOSE_WAIT"
    OUTLIVED = "sent for a socket that had long been closed"
    OUT_OF_ORDER = "delivered on one socket with fewer attempts than before"
    BROKEN_WORD = "a client was told OK, and the broker was told nothing"
    REFUSED_AND_PASSED = "refused to the client, and passed on all the same"
    UNANSWERED = "a ref without an answer, and one behind it has one"
    ANSWERED_TWICE = "a ref with two answers"
    UNHEARD_OF = "an answer to a ref that nobody asked"
    MISSED = "too many acks did not reach their owner, which was there"
    STUCK = "left at the broker when everything was over"


@dataclass(frozen=True)
class Violation:
    """A violation, with the event that shows it."""

    kind: Kind
    text: str

    def __str__(self) -> str:
        """Return the kind and the event in one line."""
        return f"{self.kind}: {self.text}"


Rule = Callable[[HistoryIndex], Iterator[Violation]]

MAX_MISSED = 0.001
"""Largest share of the acks of leases that may miss an owner which is there."""


def violations(records: Sequence[Record], *, msg_timeout_s: float) -> list[Violation]:
    """Return all violations in a history; *msg_timeout_s* is the sockets' timeout."""
    reading = HistoryIndex(records, msg_timeout_s)
    return [each for rule in _RULES for each in rule(reading)]


def lease_violations(records: Sequence[Record], *, msg_timeout_s: float) -> list[Violation]:
    """Return all violations in a history of pulls; *msg_timeout_s* is the broker's timeout."""
    reading = HistoryIndex(records, msg_timeout_s)
    return [each for rule in _LEASE_RULES for each in rule(reading)]


def missed_acks(reading: HistoryIndex) -> list[OwnerMissed]:
    """Return the acks that missed their owner, though its connection to the broker was open."""
    missed = []
    for record in reading.records:
        match record.event:
            case OwnerMissed(socket, delivery, _, took_s):
                sending = reading.of_delivery[socket, delivery]
                ended_s = reading.hung_up_s.get(sending.sent.connection, float("inf"))
                if ended_s > record.at_s and not reading.is_late(sending, record.at_s - took_s):
                    missed.append(record.event)
            case _:
                pass
    return missed


def _publishes_are_kept(reading: HistoryIndex) -> Iterator[Violation]:
    stored: set[str] = set()
    for record in reading.records:
        match record.event:
            case PublishStored(bodies):
                stored.update(bodies)
            case PublishAcknowledged(bodies):
                for body in set(bodies) - stored:
                    yield Violation(Kind.NOT_STORED, f"{body} at {record.at_s:.3f}")
            case _:
                pass
    delivered = {each.sent.body for each in reading.sendings if each.delivered}
    finished = reading.finished()
    for body in sorted(reading.owed()):
        if body not in delivered:
            yield Violation(Kind.NEVER_DELIVERED, body)
        elif body not in finished:
            yield Violation(Kind.NEVER_FINISHED, body)


_MayBeOurs = Callable[[HistoryIndex, Sending, str, float], bool]
"""Whether a verb, sent to the broker for a sending at a time, may be the gateway's own."""


def _said_unasked(reading: HistoryIndex, may_be_ours: _MayBeOurs) -> Iterator[Violation]:
    for stray in reading.strays:
        yield Violation(Kind.UNASKED, str(stray))
    for sending in reading.sendings:
        for at_s, verb in sending.passed:
            asked = any(asked_s <= at_s for asked_s in reading.asks(sending, verb))
            if not asked and not may_be_ours(reading, sending, verb, at_s):
                yield Violation(Kind.UNASKED, f"{verb} at {at_s:.3f}: {sending}")


def _nothing_is_said_unasked(reading: HistoryIndex) -> Iterator[Violation]:
    return _said_unasked(reading, _is_of_a_socket_that_ends)


def _is_of_a_socket_that_ends(
    reading: HistoryIndex, sending: Sending, verb: str, at_s: float
) -> bool:
    return verb == "REQ" and _is_handed_back(reading, sending, at_s)


def _nothing_of_a_lease_is_said_unasked(reading: HistoryIndex) -> Iterator[Violation]:
    return _said_unasked(reading, _is_of_a_lease)


def _is_of_a_lease(reading: HistoryIndex, sending: Sending, verb: str, at_s: float) -> bool:
    """Return whether it may be a TOUCH, or a REQ when the lease or its connection ends."""
    return verb == "TOUCH" or (verb == "REQ" and not _is_leased(reading, sending, at_s))


def _is_leased(reading: HistoryIndex, sending: Sending, at_s: float) -> bool:
    """Return whether a client has a lease of *sending* that goes on after *at_s*."""
    closed_s = reading.hung_up_s.get(sending.sent.connection, float("inf"))
    if at_s >= closed_s - 2 * SLACK_S:
        return False
    for each in sending.family:
        for _, delivered in each.delivered:
            lease_s = delivered.lease_s or 0.0
            touched_s = [
                said_s
                for said_s, asked in reading.asked[delivered.socket, delivered.delivery]
                if asked.verb == "TOUCH" and said_s <= at_s
            ]
            if at_s < max([sending.at_s, *touched_s]) + lease_s - SLACK_S:
                return True
    return False


def _acks_reach_their_owner(reading: HistoryIndex) -> Iterator[Violation]:
    acks = sum(len(each) for each in reading.asked.values())
    missed = missed_acks(reading)
    if len(missed) > MAX_MISSED * acks:
        yield Violation(Kind.MISSED, f"{len(missed)} of {acks}: {missed[:5]}")


def _is_handed_back(reading: HistoryIndex, sending: Sending, at_s: float) -> bool:
    """Return whether a REQ belongs to the end of a socket, with no delivery after it."""
    connection = sending.sent.connection
    return not any(
        each.delivered
        for each in reading.sendings
        if each.sent.connection == connection and each.at_s > at_s
    )


def _what_is_sent_again_has_a_reason(reading: HistoryIndex) -> Iterator[Violation]:
    for body, sendings in reading.by_body.items():
        for first, second in pairwise(sendings if not reading.is_doubled(body) else []):
            if reading.died_between(first.at_s, second.at_s):
                continue
            if second.sent.attempts <= first.sent.attempts:
                yield Violation(Kind.FEWER_ATTEMPTS, f"{first}, then {second}")
            if _is_finished(first, second, reading):
                yield Violation(Kind.RISEN, f"{first}, then {second}")
            elif not (_is_back(first, second) or reading.is_late(first, second.at_s)):
                yield Violation(Kind.UNEXPLAINED, f"{first}, then {second}")


def _is_finished(first: Sending, second: Sending, reading: HistoryIndex) -> bool:
    # What was said before a connection ended may not have been heard.
    ended_s = reading.hung_up_s.get(first.sent.connection, float("inf"))
    may_be_unheard = first.at_s <= ended_s <= second.at_s + SLACK_S
    return bool(first.said("FIN")) and "FIN" not in first.refused and not may_be_unheard


def _is_back(first: Sending, second: Sending) -> bool:
    return any(at_s <= second.at_s for at_s in first.said("REQ")) and "REQ" not in first.refused


def _deliveries_are_right(reading: HistoryIndex) -> Iterator[Violation]:
    for invented in reading.invented:
        yield Violation(Kind.INVENTED, str(invented))
    for sending in reading.sendings:
        if sum(len(each.delivered) for each in sending.family) > len(sending.family):
            yield Violation(Kind.DELIVERED_TWICE, f"{sending.delivered}: {sending}")
    for body, sendings in reading.by_body.items():
        if reading.is_doubled(body):
            continue
        best: dict[int, int] = {}
        deliveries = sorted(
            ((at_s, each) for sending in sendings for at_s, each in sending.delivered),
            key=lambda pair: pair[0],
        )
        start_s = 0.0
        for at_s, each in deliveries:
            if reading.died_between(start_s, at_s):
                best.clear()
            start_s = at_s
            if each.attempts <= best.get(each.socket, 0):
                yield Violation(Kind.OUT_OF_ORDER, f"{each} at {at_s:.3f}")
            best[each.socket] = each.attempts


def _ends_are_ends(reading: HistoryIndex) -> Iterator[Violation]:
    left: set[int] = set()
    for record in reading.records:
        match record.event:
            case SocketClosed(socket) | CloseWaitReceived(socket):
                left.add(socket)
            case MessageDelivered(socket) if socket in left:
                yield Violation(Kind.AFTER_THE_END, f"{record.event} at {record.at_s:.3f}")
            case _:
                pass
    socket_of = {
        sending.sent.connection: delivered.socket
        for sending in reading.sendings
        for _, delivered in sending.delivered
    }
    for sending in reading.sendings:
        owner = socket_of.get(sending.sent.connection)
        if owner is not None and sending.at_s > reading.closed_s.get(owner, 1e18) + OUTLIVE_S:
            yield Violation(Kind.OUTLIVED, str(sending))


def _words_are_kept(reading: HistoryIndex) -> Iterator[Violation]:
    answered: set[tuple[int, str]] = set()
    for told in reading.told:
        if told.ref is None:
            continue
        key = (told.socket, told.ref)
        if key in answered:
            yield Violation(Kind.ANSWERED_TWICE, str(told))
        answered.add(key)
        if key not in reading.asked_by_ref:
            yield Violation(Kind.UNHEARD_OF, str(told))
            continue
        at_s, asked = reading.asked_by_ref[key]
        for delivery in asked.deliveries:
            yield from _is_kept(reading, told, at_s, delivery)


def _refs_are_answered_in_turn(reading: HistoryIndex) -> Iterator[Violation]:
    answered = {(told.socket, told.ref) for told in reading.told}
    behind: set[int] = set()
    # From the last asked to the first: once one of a socket has its answer, all before it do.
    for (socket, ref), (at_s, asked) in reversed(reading.asked_by_ref.items()):
        if (socket, ref) in answered:
            behind.add(socket)
        elif socket in behind:
            yield Violation(Kind.UNANSWERED, f"{asked} at {at_s:.3f}")


def _is_kept(
    reading: HistoryIndex, told: AckResponse, at_s: float, delivery: str
) -> Iterator[Violation]:
    sending = reading.of_delivery.get((told.socket, delivery))
    family = [] if sending is None else sending.family
    was_passed = any(said_s >= at_s for each in family for said_s in each.said(told.verb))
    if delivery not in told.refused:
        if not was_passed and not reading.may_have_been_lost(at_s):
            yield Violation(Kind.BROKEN_WORD, f"{told.verb} of {delivery} at {at_s:.3f}: {told}")
    elif was_passed and sending is not None and told.verb not in sending.refused:
        # Asked for once more before, it may be that which was passed on.
        if len(list(reading.asks(sending, told.verb))) > 1:
            return
        if told.verb != "FIN" and _is_the_gateways(reading, sending, told.verb, at_s):
            return
        yield Violation(Kind.REFUSED_AND_PASSED, f"{told}: {sending}")


def _is_the_gateways(reading: HistoryIndex, sending: Sending, verb: str, at_s: float) -> bool:
    """
    Return whether *verb* may be the gateway's own, not that of the ack sent at *at_s*.

    The socket, or the lease, ended while the ack was on its way: what it held was handed back. The
    gateway also touches what is leased.
    """
    if any(delivered.lease_s for each in sending.family for _, delivered in each.delivered):
        return True
    passed_s = [said_s for each in sending.family for said_s in each.said(verb) if said_s >= at_s]
    return verb == "REQ" and all(_is_handed_back(reading, sending, said_s) for said_s in passed_s)


def _nothing_is_stuck(reading: HistoryIndex) -> Iterator[Violation]:
    for record in reading.records:
        if isinstance(record.event, FinalCounts) and record.event != FinalCounts(0, 0, 0):
            yield Violation(Kind.STUCK, str(record.event))


_LEASE_RULES: tuple[Rule, ...] = (
    _publishes_are_kept,
    _nothing_of_a_lease_is_said_unasked,
    _what_is_sent_again_has_a_reason,
    _deliveries_are_right,
    _words_are_kept,
    _acks_reach_their_owner,
    _nothing_is_stuck,
)
_RULES: tuple[Rule, ...] = (
    _publishes_are_kept,
    _nothing_is_said_unasked,
    _what_is_sent_again_has_a_reason,
    _deliveries_are_right,
    _ends_are_ends,
    _words_are_kept,
    _refs_are_answered_in_turn,
    _nothing_is_stuck,
)
