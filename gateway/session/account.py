"""Who counts what all sessions do together; a session by itself is not counted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gateway.protocol.frames import Message


class Holdings(NamedTuple):
    """What one session has now, and what it came to."""

    held: int
    """Deliveries that the client has not answered."""
    waiting_bytes: int
    """What waits for the client."""
    timed_out: int
    """Deliveries that NSQ has given to somebody again."""


class Account:
    """What is told of a session as it happens; here nobody listens."""

    def written(self, messages: Sequence[Message]) -> None:
        """Learn that *messages*, at least one, go into a frame now."""

    def timed_out(self, count: int) -> None:
        """Learn that NSQ gives *count* messages to somebody again, which waited for the client."""

    def said(self, verb: str, count: int = 1) -> None:
        """Learn of *count* commands; *verb* is NSQ's, or empty for what is no command."""


NOBODY = Account()
