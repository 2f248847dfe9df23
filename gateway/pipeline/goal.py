"""
PURE. Where a run ends that reads what is there now.

Where nsqd tells how much it has, the run ends when so many messages have come, whichever they are.
Where it does not, it ends at the first message that was published after its start; those before it
that other connections bring in that moment still belong to it. In both cases it ends earlier where
nothing comes any more.
"""

from __future__ import annotations

from gateway.pipeline.depth_account import Account
from gateway.protocol.raw_messages import RawMessages, split_messages
from gateway.protocol.wire import MESSAGE_FRAME_HEAD

_ASK_AGAIN_S = 0.25
"""Between two questions to nsqd whether it has nothing left."""
_SURE = 2
"""So many answers in a row: between its queue and a consumer nsqd has a message in its hand."""
_STRAGGLERS_S = 0.25
"""How long what other connections have in hand may take to come."""
_SCAN_S = 6.0
"""nsqd sees that a message has timed out 5 s late where the channel is new to it (nsqd.go)."""


class Goal:
    """What is to come; give it every arrival."""

    def __init__(self, count: int | None, started_ns: int = 0) -> None:
        """Expect *count* messages; None: those that were published up to *started_ns*."""
        self._left = count
        self._started_ns = started_ns
        self._is_past = False
        """Whether one has come that was published later."""

    @property
    def is_reached(self) -> bool:
        """Whether nothing more is to come; not for ever, where something is forgotten."""
        return self._is_past if self._left is None else self._left <= 0

    def admit(self, messages: RawMessages) -> tuple[RawMessages | None, RawMessages | None]:
        """Return what of *messages* belongs to the run, and what does not; None for none."""
        count = len(messages.ids)
        belongs = self._count_of(messages, count)
        if self._left is not None:
            self._left -= belongs
        if belongs == count:
            return messages, None
        self._is_past = self._left is None
        return split_messages(messages, belongs) if belongs else (None, messages)

    def _count_of(self, messages: RawMessages, count: int) -> int:
        if self._left is not None:
            return min(count, self._left)
        data, offset = messages.data, 0
        for index in range(count):
            size, _, timestamp_ns, _, _ = MESSAGE_FRAME_HEAD.unpack_from(data, offset)
            if timestamp_ns > self._started_ns:
                return index
            offset += 4 + size
        return count

    def forgot(self, count: int) -> None:
        """Expect *count* messages once more that had come: nsqd sends them again."""
        if self._left is not None:
            self._left += count


class Patience:
    """How long to wait for what has not come; times are monotonic seconds."""

    def __init__(self, idle_s: float, msg_timeout_s: float) -> None:
        self._idle_s = idle_s
        self._msg_timeout_s = msg_timeout_s
        self._came_at = 0.0
        self._asked_at = 0.0
        self._nothing_left = 0
        self._is_elsewhere = False

    def came(self, now: float) -> None:
        """Learn that something has come."""
        self._came_at = now
        self._nothing_left = 0

    def is_quiet(self, now: float) -> bool:
        """Tell whether nothing has come for a moment."""
        return now - self._came_at >= _STRAGGLERS_S

    def is_time_to_ask(self, now: float) -> bool:
        """Tell whether nsqd should be asked what it has left."""
        return now - max(self._came_at, self._asked_at) >= _ASK_AGAIN_S

    def told(self, account: Account | None, held: int, now: float) -> None:
        """Learn what nsqd has, *held* of it in flight to us; None: it does not tell."""
        self._asked_at = now
        has_nothing = account is not None and account.total <= held
        self._nothing_left = self._nothing_left + 1 if has_nothing else 0
        self._is_elsewhere = account is not None and account.in_flight > held

    def is_over(self, now: float) -> bool:
        """
        Tell whether to wait no more.

        What is in flight to somebody else comes after its timeout, if that one is dead; we take it
        that its timeout is ours. A message that is deferred is not waited for any longer than any.
        """
        if self._nothing_left >= _SURE:
            return True
        wait_s = self._idle_s
        if self._is_elsewhere:
            wait_s = max(wait_s, self._msg_timeout_s + _SCAN_S)
        return now - self._came_at >= wait_s
