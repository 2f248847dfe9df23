"""The promise of the answers: each publish with its answer, held against what nsqd has stored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

LOST = 0
"""In place of a status: the connection ended without an answer."""


class FaultLog:
    """What was wrong in which of a row of moments; between two faults it is calm."""

    def __init__(self) -> None:
        self._explained: list[tuple[int, ...]] = [()]

    @property
    def moment(self) -> int:
        """The present one."""
        return len(self._explained) - 1

    @contextmanager
    def fault(self, *explains: int) -> Iterator[None]:
        """
        Let a fault be on in the block, which ends when its traces have gone too.

        *explains* are the statuses that a publish may have for it: by default 503 and 504.
        """
        self._explained.append(explains or (503, 504))
        yield
        self._explained.append(())

    def explain(self, posted: Posted) -> bool:
        """Tell whether a fault that was on while it ran explains the answer to *posted*."""
        moments = self._explained[posted.begun_in : posted.ended_in + 1]
        return any(posted.status in statuses for statuses in moments)


@dataclass(eq=False, slots=True)
class Posted:
    """One request to publish, and what came of it."""

    bodies: tuple[bytes, ...]
    """Its messages; no other request has an equal one."""
    expected: int
    """The status that it has when nothing is wrong; LOST: the client goes before the answer."""
    is_whole: bool
    """Whether the client sends all of it."""
    begun_in: int
    """The moment of the fault log when it was begun."""
    ended_in: int = 0
    status: int = LOST
    token: str = ""
    """nsqd's word for the error."""

    @property
    def is_stored_once(self) -> bool:
        """Whether the promise is: every message is there."""
        return self.status == 200

    @property
    def is_not_stored(self) -> bool:
        """Whether the promise is: no message is there."""
        return 400 <= self.status < 500 or self.status == 503 or not self.is_whole

    def __str__(self) -> str:
        """Return what a failed test tells of it."""
        starts = ", ".join(body.split(b" ")[0].decode() for body in self.bodies[:3])
        return f"{self.status} {self.token} for {len(self.bodies)} messages: {starts}"


@dataclass(kw_only=True)
class Verdict:
    """Every publish that breaks the promise, by how; the promise is kept when there is none."""

    lost: list[str] = field(default_factory=list)
    """Answered 200, and a message is missing."""
    refused_and_stored: list[str] = field(default_factory=list)
    """Answered 4xx or 503, or never sent in whole, and a message is there."""
    doubled: list[str] = field(default_factory=list)
    """A message is there more than once."""
    unexplained: list[str] = field(default_factory=list)
    """Not the expected answer, and no fault was on while it ran."""
    unheard_of: list[str] = field(default_factory=list)
    """Stored, and nobody has published it."""


def judge(posted: Iterable[Posted], stored: Counter[bytes], faults: FaultLog) -> Verdict:
    """Hold the answers against what is *stored*."""
    verdict = Verdict()
    known: set[bytes] = set()
    for publish in posted:
        known.update(publish.bodies)
        counts = [stored[body] for body in publish.bodies]
        if publish.is_stored_once and 0 in counts:
            verdict.lost.append(str(publish))
        if publish.is_not_stored and any(counts):
            verdict.refused_and_stored.append(str(publish))
        if any(count > 1 for count in counts):
            verdict.doubled.append(str(publish))
        if publish.status != publish.expected and not faults.explain(publish):
            verdict.unexplained.append(str(publish))
    verdict.unheard_of = [body[:24].decode() for body in stored.keys() - known]
    return verdict


def unknown_outcomes(posted: Iterable[Posted], stored: Counter[bytes]) -> tuple[int, int]:
    """Return of how many messages nobody could know: those that are there, those that are not."""
    unknown = [
        body
        for publish in posted
        if not (publish.is_stored_once or publish.is_not_stored)
        for body in publish.bodies
    ]
    present = sum(body in stored for body in unknown)
    return present, len(unknown) - present
