"""
Find violations in what clients of nsq.js recorded. PURE.

`history_check` checks the messages at the broker. This module checks the promises and events of
nsq.js, and the times of its reconnects.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise, zip_longest
from typing import TypeAlias

SLICE_MS = 50.0
"""Length of the time slice for which reconnects are counted."""
LARGEST_SHARE = 0.7
"""
Largest share of clients that may reconnect within one slice.

The module's first wait is uniform below 500 ms, and later waits are longer. The worst of 100 000
simulated crowds of 20 clients had 11 in one slice (0.55); without jitter, all are in one.
"""
_ROUNDED_MS = 2.0
_REFUSED_BY_THE_GATEWAY = frozenset({"EXITING", "NO_BROKER", "NO_CONNECTION"})
_CAME_TOO_LATE = frozenset({"E_FIN_FAILED", "E_REQ_FAILED", "E_TOUCH_FAILED"})
_EXPECTED_ERRORS = frozenset({"Planned"}) | _REFUSED_BY_THE_GATEWAY | _CAME_TOO_LATE


@dataclass(frozen=True, slots=True, kw_only=True)
class _Doing:
    at_s: float
    client: int
    now_ms: float = 0.0
    """`Date.now()` of the module; a test may run it faster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectAttempted(_Doing):
    """The module opens a socket."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateChanged(_Doing):
    """The module reports its state."""

    state: str
    retry_in_ms: float | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageHandled(_Doing):
    """A message was passed to the client's handler."""

    socket: int
    delivery: str
    attempts: int
    body: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AckResolved(_Doing):
    """The promise of `finish()`, `requeue()` or `touch()` resolved."""

    socket: int
    delivery: str
    verb: str
    took: bool
    """Value of the promise: true if the gateway confirmed the ack."""
    is_lost: bool = False
    """True if the message's signal was aborted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AckSent(_Doing):
    """The module sent FIN, REQ or TOUCH."""

    socket: int
    verb: str
    deliveries: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AckConfirmed(_Doing):
    """The gateway answered the `ref` of FIN, REQ or TOUCH without refusing these ids."""

    socket: int
    verb: str
    deliveries: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SocketLost(_Doing):
    """The module noticed that a socket closed."""

    socket: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorReported(_Doing):
    """The module reported an error that closes nothing."""

    code: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseResolved(_Doing):
    """The promise of `close()` resolved, and the iteration ended."""

    code: int


Doing: TypeAlias = (
    ConnectAttempted
    | StateChanged
    | MessageHandled
    | AckResolved
    | AckSent
    | AckConfirmed
    | SocketLost
    | ErrorReported
    | CloseResolved
)


class ViolationKind(StrEnum):
    """The kinds of violations."""

    NEVER_WORKED = "acknowledged, and nobody worked on it"
    WORKED_TWICE = "worked on twice, and nothing came between"
    UNCONFIRMED = "an answer is true, and the gateway has not confirmed it"
    CONFIRMED_UNTAKEN = "an answer is false, and the gateway has confirmed it"
    REFUSED = "an answer is false, and the message was neither lost, refused nor answered"
    TOO_EARLY = "came back before the time that was told"
    HERD = "came back together"
    ERROR = "an error that nobody planned"


@dataclass(frozen=True)
class Violation:
    """A violation, with the event that shows it."""

    kind: ViolationKind
    text: str

    def __str__(self) -> str:
        """Return the kind and the event in one line."""
        return f"{self.kind}: {self.text}"


def crowd_violations(doings: Sequence[Doing], *, owed: set[str]) -> Iterator[Violation]:
    """
    Yield all violations in the records of clients.

    Args:
        doings: Events, ordered by time.
        owed: Bodies that a client must have handled.
    """
    yield from _everything_is_worked_on(doings, owed)
    yield from _work_done_twice_has_a_reason(doings)
    yield from _calls_are_true(doings)
    yield from _nobody_comes_too_early(doings)
    for each in doings:
        if isinstance(each, ErrorReported) and each.code not in _EXPECTED_ERRORS:
            yield Violation(ViolationKind.ERROR, str(each))


def _everything_is_worked_on(doings: Sequence[Doing], owed: set[str]) -> Iterator[Violation]:
    worked = {each.body for each in doings if isinstance(each, MessageHandled)}
    for body in sorted(owed - worked):
        yield Violation(ViolationKind.NEVER_WORKED, body)


def _work_done_twice_has_a_reason(doings: Sequence[Doing]) -> Iterator[Violation]:
    """Each redelivery follows a lost socket, or an ack of the client that had the message."""
    lost = {each.socket for each in doings if isinstance(each, SocketLost)}
    given_back = {
        (each.socket, delivery)
        for each in doings
        if isinstance(each, AckSent) and each.verb == "REQ"
        for delivery in each.deliveries
    }
    by_body: dict[str, list[MessageHandled]] = defaultdict(list)
    for each in doings:
        if isinstance(each, MessageHandled):
            by_body[each.body].append(each)
    for times in by_body.values():
        for first, second in pairwise(times):
            has_reason = first.socket in lost or (first.socket, first.delivery) in given_back
            if first.attempts == second.attempts or not has_reason:
                yield Violation(ViolationKind.WORKED_TWICE, f"{first}, then {second}")


def _calls_are_true(doings: Sequence[Doing]) -> Iterator[Violation]:
    """Compare each resolved call with what the gateway had confirmed on its socket."""
    confirmed: set[tuple[int, str, str]] = set()
    sent: set[tuple[int, str, str]] = set()
    lost: set[int] = set()
    taken: set[tuple[int, str, str]] = set()
    for each in doings:
        if isinstance(each, AckSent):
            sent |= {(each.socket, each.verb, delivery) for delivery in each.deliveries}
        elif isinstance(each, AckConfirmed):
            confirmed |= {(each.socket, each.verb, delivery) for delivery in each.deliveries}
        elif isinstance(each, SocketLost):
            lost.add(each.socket)
        elif isinstance(each, AckResolved):
            key = (each.socket, each.verb, each.delivery)
            is_answered = any((each.socket, verb, each.delivery) in sent for verb in ("FIN", "REQ"))
            if each.took and key not in confirmed:
                yield Violation(ViolationKind.UNCONFIRMED, str(each))
            elif not each.took and key in confirmed - taken:
                yield Violation(ViolationKind.CONFIRMED_UNTAKEN, str(each))
            elif not (each.took or each.is_lost or is_answered or each.socket in lost):
                yield Violation(ViolationKind.REFUSED, str(each))
            if each.took:
                taken.add(key)


def _nobody_comes_too_early(doings: Sequence[Doing]) -> Iterator[Violation]:
    before: dict[int, Doing] = {}
    chosen: dict[int, tuple[Doing, StateChanged]] = {}
    for each in doings:
        if isinstance(each, StateChanged) and each.retry_in_ms is not None:
            # The client chose it after the previous event, but a busy machine may report it late.
            chosen[each.client] = before.get(each.client, each), each
        elif isinstance(each, ConnectAttempted) and each.client in chosen:
            last, choice = chosen.pop(each.client)
            waited_ms = each.now_ms - last.now_ms
            if waited_ms < (choice.retry_in_ms or 0.0) - _ROUNDED_MS:
                yield Violation(
                    ViolationKind.TOO_EARLY, f"{each} after {waited_ms:.1f} ms of {choice}"
                )
        before[each.client] = each


def herd(
    doings: Sequence[Doing], from_s: float, to_s: float, *, clients: int
) -> Iterator[Violation]:
    """
    Return the time slices in which too many *clients* reconnect, after a cut at *from_s*.

    The chosen waits are compared, not the times of the reconnects: all clients were cut at once,
    but a busy machine may notify some of them late.
    """
    chosen: dict[int, list[float]] = defaultdict(list)
    for each in doings:
        if (
            isinstance(each, StateChanged)
            and each.retry_in_ms is not None
            and from_s <= each.at_s <= to_s
        ):
            chosen[each.client].append(each.retry_in_ms)
    for turn, waits in enumerate(zip_longest(*chosen.values()), start=1):
        together = _most_together([wait_ms for wait_ms in waits if wait_ms is not None])
        if together > LARGEST_SHARE * clients:
            yield Violation(ViolationKind.HERD, f"{together} of {clients}, for the {turn}. time")


def _most_together(waits_ms: Iterable[float]) -> int:
    """Return the number of *waits_ms* in the fullest slice."""
    ends = sorted(waits_ms)
    return max(
        bisect_right(ends, start_ms + SLICE_MS) - first for first, start_ms in enumerate(ends)
    )
