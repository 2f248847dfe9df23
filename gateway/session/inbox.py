"""What a client has said and is not carried out yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import chain, islice

from gateway.session.commands import Command, Spoken

COMMANDS_A_TURN = 512
"""So many commands are carried out at once; other sockets have their turn before the next ones."""


class Inbox:
    """Commands in their order, over frames; one that cannot be read counts as well."""

    __slots__ = ("_count", "_frames")

    def __init__(self) -> None:
        self._frames: deque[tuple[Iterator[Spoken], int]] = deque()
        self._count = 0

    def __len__(self) -> int:
        """Return how many wait, at most: blank lines between bad ones count as well."""
        return self._count

    def add(self, commands: list[Command] | Iterator[Spoken], count: int) -> None:
        """Put the commands of a frame, at most *count*, behind those that wait."""
        self._frames.append((iter(commands), count))
        self._count += count

    def put_back(self, commands: Sequence[Spoken]) -> None:
        """Put *commands*, which were taken, before those that wait."""
        self._frames.appendleft((iter(commands), len(commands)))
        self._count += len(commands)

    def take(self, at_most: int = COMMANDS_A_TURN) -> list[Spoken]:
        """Take the first commands; fewer than *at_most* only when no more wait."""
        taken: list[Spoken] = []
        while self._frames and len(taken) < at_most:
            commands, count = self._frames.popleft()
            some = list(islice(commands, at_most - len(taken)))
            taken += some
            self._count -= count
            left = count - len(some)
            if left > 0 and (following := next(commands, None)) is not None:
                self._frames.appendleft((chain((following,), commands), left))
                self._count += left
        return taken
