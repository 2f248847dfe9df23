"""Compare the responses to publishes with what nsqd stored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

LOST = 0
"""Replaces the status of a publish whose connection ended without a response."""


class FaultLog:
    """Record of the active fault over time; None between faults."""

    def __init__(self) -> None:
        self._explained: list[tuple[int, ...]] = [()]

    @property
    def moment(self) -> int:
        """Index of the current period."""
        return len(self._explained) - 1

    @contextmanager
    def fault(self, *explains: int) -> Iterator[None]:
        """
        Record a fault for the duration of the block, including its aftermath.

        *explains* are the statuses that publishes may get because of it, by default 503 and 504.
        """
        self._explained.append(explains or (503, 504))
        yield
        self._explained.append(())

    def explain(self, posted: PublishAttempt) -> bool:
        """Return whether a fault during *posted* explains its response."""
        moments = self._explained[posted.begun_in : posted.ended_in + 1]
        return any(posted.status in statuses for statuses in moments)


@dataclass(eq=False, slots=True)
class PublishAttempt:
    """One publish request and its result."""

    bodies: tuple[bytes, ...]
    """Messages of the request; they are unique among all requests."""
    expected: int
    """Status without a fault; LOST: the client disconnects before the response."""
    is_whole: bool
    """False if the client aborts in the middle of the request."""
    begun_in: int
    """Period of the fault log in which the request began."""
    ended_in: int = 0
    status: int = LOST
    token: str = ""
    """Error token of the response."""

    @property
    def is_stored_once(self) -> bool:
        """Return whether the status promises that every message is stored."""
        return self.status == 200

    @property
    def is_not_stored(self) -> bool:
        """Return whether the status promises that no message is stored."""
        return 400 <= self.status < 500 or self.status == 503 or not self.is_whole

    def __str__(self) -> str:
        """Return a description for a failed test."""
        starts = ", ".join(body.split(b" ")[0].decode() for body in self.bodies[:3])
        return f"{self.status} {self.token} for {len(self.bodies)} messages: {starts}"


@dataclass(kw_only=True)
class Verdict:
    """Every publish whose response was wrong, by kind; empty if all were right."""

    lost: list[str] = field(default_factory=list)
    """Answered 200, but a message is missing."""
    refused_and_stored: list[str] = field(default_factory=list)
    """Answered 4xx or 503, or not sent completely, but a message is stored."""
    doubled: list[str] = field(default_factory=list)
    """A message is stored more than once."""
    unexplained: list[str] = field(default_factory=list)
    """An unexpected response without a fault during the request."""
    unheard_of: list[str] = field(default_factory=list)
    """Stored, but never published."""


def check_publishes(
    posted: Iterable[PublishAttempt], stored: Counter[bytes], faults: FaultLog
) -> Verdict:
    """Compare the responses with what is *stored*."""
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


def unknown_outcomes(posted: Iterable[PublishAttempt], stored: Counter[bytes]) -> tuple[int, int]:
    unknown = [
        body
        for publish in posted
        if not (publish.is_stored_once or publish.is_not_stored)
        for body in publish.bodies
    ]
    present = sum(body in stored for body in unknown)
    return present, len(unknown) - present
