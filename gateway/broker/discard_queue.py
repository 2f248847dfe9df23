"""
Release the memory of removed messages in steps, so that a million of them do not block the loop.

A queue that is emptied or deleted hands over its whole container, in constant time; its messages
can then no longer be delivered. A small number is released at once. The rest is released by a
generator, one step in each turn of the event loop, and counts as used memory until then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from typing import TypeAlias

from gateway.broker.message import OVERHEAD_BYTES, MemoryBudget, StoredMessage
from gateway.protocol.commands import STEP_MESSAGES

STEP_BYTES = 4 * 1_048_576
"""Maximum bytes of bodies that one step releases: freeing large objects is slow."""

Deferred: TypeAlias = tuple[float, bytes, StoredMessage]
"""Due time, id and message: an entry of a channel's heap of deferred messages."""
Contents: TypeAlias = "deque[StoredMessage] | list[Deferred] | dict[bytes, StoredMessage]"
"""A queue, a heap of deferred messages, or the messages in flight."""


class DiscardQueue:
    """The messages that were removed since the last `take_steps` and still occupy memory."""

    __slots__ = ("_memory", "_now", "_pending")

    def __init__(self, memory: MemoryBudget) -> None:
        self._memory = memory
        self._pending: deque[Contents] = deque()
        # The budget for an immediate release, shared by all calls of `add` until `take_steps`.
        self._now = _Step()

    def add(self, messages: Contents) -> None:
        """
        Release as many of *messages* as one step may; `take_steps` returns the steps for the rest.

        The caller must not use the container any more: its messages are removed from it.
        """
        if messages:
            self._pending.append(messages)
            self._release(self._pending, self._now)

    def take_steps(self) -> Generator[None, None, None] | None:
        """
        Return a generator that releases one step per `next()`.

        Return None instead if `add` has released everything.
        """
        # Called after each request or read: the next `add` may release a whole step again.
        self._now = _Step()
        if not self._pending:
            return None
        pending, self._pending = self._pending, deque()
        return self._release_in_steps(pending)

    def _release_in_steps(self, pending: deque[Contents]) -> Generator[None, None, None]:
        while pending:
            yield  # before the first step, because `add` has already used one in this turn
            self._release(pending, _Step())

    def _release(self, pending: deque[Contents], step: _Step) -> None:
        """Release *pending* until the budget of *step* is spent."""
        while pending and step.has_room:
            messages = pending[0]
            if not messages:
                pending.popleft()
                step.messages_left -= 1  # or a step could meet thousands of small containers
                continue
            message = _pop(messages)
            size_bytes = len(message.body)
            step.messages_left -= 1
            step.bytes_left -= size_bytes
            self._memory.used_bytes -= OVERHEAD_BYTES + size_bytes


class _Step:
    """The remaining budget of one step."""

    __slots__ = ("bytes_left", "messages_left")

    def __init__(self) -> None:
        self.messages_left = STEP_MESSAGES
        self.bytes_left = STEP_BYTES

    @property
    def has_room(self) -> bool:
        return self.messages_left > 0 and self.bytes_left > 0


def _pop(messages: Contents) -> StoredMessage:
    """Remove and return a message in constant time: from the end of its container."""
    if isinstance(messages, dict):
        return messages.popitem()[1]
    if isinstance(messages, list):
        return messages.pop()[2]
    return messages.pop()
