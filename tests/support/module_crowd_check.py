"""
What clients of nsq.js must not do, found by reading what they wrote down: PURE.

What became of the messages at the broker is for `history_check`; here is what the module told those
who use it, and when it came back.
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
"""The short time in which not too many may come back."""
LARGEST_SHARE = 0.7
"""
Of all clients, as many may come back within one slice.

By the rule of the module the first wait is anything below 500 ms, and the next ones are longer. The
worst of 100 000 crowds of 20 had 11 of them in one slice, 0.55; without jitter it is all.
"""
_ROUNDED_MS = 2.0
_AT_ONCE_S = 1.0
"""An answer is sent at the end of its turn; only a connection that ends meanwhile keeps it back."""
_REFUSED_BY_THE_GATEWAY = frozenset({"EXITING", "NO_BROKER", "NO_CONNECTION"})
_CAME_TOO_LATE = frozenset({"E_FIN_FAILED", "E_REQ_FAILED", "E_TOUCH_FAILED"})
_EXPECTED_ERRORS = frozenset({"Planned"}) | _REFUSED_BY_THE_GATEWAY | _CAME_TOO_LATE


@dataclass(frozen=True, slots=True, kw_only=True)
class _Doing:
    at_s: float
    client: int
    now_ms: float = 0.0
    """The time as the module sees it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried(_Doing):
    """The module opens a socket."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stands(_Doing):
    """The module tells its state."""

    state: str
    retry_in_ms: float | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Worked(_Doing):
    """A message was handed to who works on it."""

    socket: int
    delivery: str
    attempts: int
    body: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered(_Doing):
    """Who worked has called `finish()`, `requeue()` or `touch()`."""

    socket: int
    delivery: str
    verb: str
    took: bool
    """What the call returned."""
    is_lost: bool = False
    """Whether the message's signal was aborted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Said(_Doing):
    """The module has sent FIN, REQ or TOUCH."""

    socket: int
    verb: str
    deliveries: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost(_Doing):
    """The module knows that a socket has ended."""

    socket: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Erred(_Doing):
    """The module tells of an error that ends nothing."""

    code: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended(_Doing):
    """The promise of `close()` is fulfilled, and the iteration is over."""

    code: int


Doing: TypeAlias = Tried | Stands | Worked | Answered | Said | Lost | Erred | Ended


class Wrong(StrEnum):
    """What can be wrong."""

    NEVER_WORKED = "acknowledged, and nobody worked on it"
    WORKED_TWICE = "worked on twice, and nothing came between"
    UNSAID = "a call returned true, and nothing was sent"
    SAID_UNTAKEN = "a call returned false, and it was sent"
    REFUSED = "a call returned false, and the message was neither lost nor answered"
    TAKEN_LOST = "a call returned true for a message that was lost"
    TOO_EARLY = "came back before the time that was told"
    HERD = "came back together"
    ERROR = "an error that nobody planned"


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong, and where."""

    kind: Wrong
    text: str

    def __str__(self) -> str:
        """Return one line."""
        return f"{self.kind}: {self.text}"


def faults(doings: Sequence[Doing], *, owed: set[str]) -> Iterator[Fault]:
    """
    Give everything that is wrong with what clients did.

    Args:
        doings: In the order of their times.
        owed: The bodies that somebody has to work on.
    """
    yield from _everything_is_worked_on(doings, owed)
    yield from _work_done_twice_has_a_reason(doings)
    yield from _calls_are_true(doings)
    yield from _nobody_comes_too_early(doings)
    for each in doings:
        if isinstance(each, Erred) and each.code not in _EXPECTED_ERRORS:
            yield Fault(Wrong.ERROR, str(each))


def _everything_is_worked_on(doings: Sequence[Doing], owed: set[str]) -> Iterator[Fault]:
    worked = {each.body for each in doings if isinstance(each, Worked)}
    for body in sorted(owed - worked):
        yield Fault(Wrong.NEVER_WORKED, body)


def _work_done_twice_has_a_reason(doings: Sequence[Doing]) -> Iterator[Fault]:
    """NSQ counts each delivery; why it made another is told by a lost socket, or by who worked."""
    lost = {each.socket for each in doings if isinstance(each, Lost)}
    given_back = {
        (each.socket, delivery)
        for each in doings
        if isinstance(each, Said) and each.verb == "REQ"
        for delivery in each.deliveries
    }
    by_body: dict[str, list[Worked]] = defaultdict(list)
    for each in doings:
        if isinstance(each, Worked):
            by_body[each.body].append(each)
    for times in by_body.values():
        for first, second in pairwise(times):
            has_reason = first.socket in lost or (first.socket, first.delivery) in given_back
            if first.attempts == second.attempts or not has_reason:
                yield Fault(Wrong.WORKED_TWICE, f"{first}, then {second}")


def _calls_are_true(doings: Sequence[Doing]) -> Iterator[Fault]:
    said_s = {
        (each.socket, each.verb, delivery): each.at_s
        for each in doings
        if isinstance(each, Said)
        for delivery in each.deliveries
    }
    lost_s = {each.socket: each.at_s for each in doings if isinstance(each, Lost)}
    taken: set[tuple[int, str]] = set()
    for each in doings:
        if isinstance(each, Answered):
            was_said_s = said_s.get((each.socket, each.verb, each.delivery))
            left_s = lost_s.get(each.socket, float("inf")) - each.at_s
            if each.took:
                yield from _what_is_taken_is_said(each, was_said_s, left_s)
            elif was_said_s is not None and was_said_s >= each.at_s:
                yield Fault(Wrong.SAID_UNTAKEN, str(each))
            elif not each.is_lost and (each.socket, each.delivery) not in taken:
                yield Fault(Wrong.REFUSED, str(each))
            if each.took and each.verb != "TOUCH":
                taken.add((each.socket, each.delivery))


def _what_is_taken_is_said(
    answered: Answered, said_s: float | None, left_s: float
) -> Iterator[Fault]:
    """Hold an answer that was taken against what was said, with *left_s* until its socket ended."""
    if left_s < 0:
        yield Fault(Wrong.TAKEN_LOST, str(answered))
    elif said_s is None and left_s > _AT_ONCE_S:
        yield Fault(Wrong.UNSAID, str(answered))


def _nobody_comes_too_early(doings: Sequence[Doing]) -> Iterator[Fault]:
    before: dict[int, Doing] = {}
    chosen: dict[int, tuple[Doing, Stands]] = {}
    for each in doings:
        if isinstance(each, Stands) and each.retry_in_ms is not None:
            # It was chosen behind what came before, and a busy machine may tell it late.
            chosen[each.client] = before.get(each.client, each), each
        elif isinstance(each, Tried) and each.client in chosen:
            last, choice = chosen.pop(each.client)
            waited_ms = each.now_ms - last.now_ms
            if waited_ms < (choice.retry_in_ms or 0.0) - _ROUNDED_MS:
                yield Fault(Wrong.TOO_EARLY, f"{each} after {waited_ms:.1f} ms of {choice}")
        before[each.client] = each


def herd(doings: Sequence[Doing], from_s: float, to_s: float, *, clients: int) -> Iterator[Fault]:
    """
    Give the slices in which too many of *clients* mean to come back, after one cut at *from_s*.

    What counts is how long each has chosen to wait, the first time and the next ones: all were cut
    at once, and a busy machine tells some of them late.
    """
    chosen: dict[int, list[float]] = defaultdict(list)
    for each in doings:
        if (
            isinstance(each, Stands)
            and each.retry_in_ms is not None
            and from_s <= each.at_s <= to_s
        ):
            chosen[each.client].append(each.retry_in_ms)
    for turn, waits in enumerate(zip_longest(*chosen.values()), start=1):
        together = _most_together([wait_ms for wait_ms in waits if wait_ms is not None])
        if together > LARGEST_SHARE * clients:
            yield Fault(Wrong.HERD, f"{together} of {clients}, for the {turn}. time")


def _most_together(waits_ms: Iterable[float]) -> int:
    """Return how many of *waits_ms* are in the fullest slice."""
    ends = sorted(waits_ms)
    return max(
        bisect_right(ends, start_ms + SLICE_MS) - first for first, start_ms in enumerate(ends)
    )
