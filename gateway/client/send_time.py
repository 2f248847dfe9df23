"""
PURE. Compute when nsqd may have sent the messages of a read.

nsqd starts a message's timeout when it sends the message, and V2 does not transmit that time. A
message may have waited in nsqd's output buffer, and in the socket buffers of both sides while this
process did not read. Measurements: docs/decisions/0014-deadlines.md.
"""

from __future__ import annotations

_STALL_S = 0.5
"""Time without a poll after which the process counts as stopped: two intervals of `ReadClock`."""
_QUIET_S = 0.05
"""Time without bytes after which nsqd's socket buffer counts as empty."""
_CATCH_UP_S = 1.0
"""
Duration of uninterrupted reading after which the buffers of both sockets (10 MB on Linux by
default) count as read, if the last read left nothing behind.
"""


class SendTime:
    """
    Track the earliest time at which nsqd may have sent the messages of a read.

    All times are monotonic seconds; everything received by *polled_at* has been read
    (`gateway.aio.ReadClock`).

    - While the connection keeps up, that time is *polled_at*, or that of the last read that left
      nothing behind.
    - After a pause in reading, or a stop of this process, it is the beginning of that pause until
      everything older has been read. That is the case after as many messages as may have been sent
      and not read, after a moment of silence, or after a second of reading.
    """

    __slots__ = (
        "_behind_since",
        "_caught_up_at",
        "_empty_at",
        "_left",
        "_read_at",
        "_resumed_at",
        "_was_full",
    )
    _behind_since: float | None

    def __init__(self, now: float) -> None:
        self._empty_at = now
        """Everything sent before this moment has been read."""
        self._read_at = now
        """When bytes were last read, or reading resumed."""
        self._behind_since = None
        """`_left` messages sent before this time come first; None: the connection keeps up."""
        self._left = 0
        """How many messages from before `_behind_since` may still be unread."""
        self._resumed_at = now
        """When reading last resumed, or this process was last found to have stopped."""
        self._caught_up_at = now
        """From this time on, a read that leaves nothing behind ends the catching up."""
        self._was_full = False
        """True if the last read filled its buffer."""

    def on_read(self, now: float, polled_at: float, max_ready: int, *, is_full: bool) -> float:
        """
        Return the earliest time at which nsqd can have sent the messages of a read at time *now*.

        *max_ready* is the highest RDY so far: up to that many messages can be sent and not yet
        read. *is_full* is True if the read filled its buffer: the socket may hold more bytes.
        """
        if self._behind_since is not None:
            self._catch_up(now, polled_at, max_ready)
        if self._behind_since is not None:
            self._read_at = now
            self._was_full = is_full
            return self._empty_at
        since = self._since(polled_at)
        self._was_full = is_full
        if now - since > _STALL_S:
            # The process was stopped: later reads may have messages from that time, too.
            self._empty_at = since
            self._fall_behind(now, max_ready)
        elif not is_full:
            self._empty_at = now
        self._read_at = now
        return since

    def count(self, messages: int) -> None:
        """Record that the last read had *messages* messages."""
        self._left -= messages

    def pause(self, polled_at: float) -> None:
        """Called when reading pauses; *polled_at* as in `on_read`."""
        if self._behind_since is None:
            self._empty_at = self._since(polled_at)

    def on_reading_resumed(self, now: float, max_ready: int) -> None:
        """Called when reading resumes; *max_ready* as in `on_read`."""
        self._read_at = now
        if self._behind_since is None:
            self._fall_behind(now, max_ready)
        self._resumed_at = now
        self._caught_up_at = now + _CATCH_UP_S

    def _since(self, polled_at: float) -> float:
        """Return the earliest time at which this read's bytes arrived, if none older are unread."""
        # A later poll proves that a full read has left nothing behind.
        is_drained = not self._was_full or polled_at > self._read_at
        return max(self._empty_at, polled_at) if is_drained else self._empty_at

    def _fall_behind(self, now: float, max_ready: int) -> None:
        """Expect up to *max_ready* messages that nsqd sent before *now* and were not read."""
        self._behind_since = self._resumed_at = now
        self._left = max_ready
        self._caught_up_at = now + _CATCH_UP_S

    def _catch_up(self, now: float, polled_at: float, max_ready: int) -> None:
        """Before the read of *now*: stop being behind if everything older has been read."""
        assert self._behind_since is not None  # noqa: S101 - checked by the caller
        is_quiet = polled_at >= self._read_at + _QUIET_S
        if is_quiet or (now >= self._caught_up_at and not self._was_full):
            # Silence proves it up to the last poll; a second of reading, only up to its start.
            self._empty_at = max(self._empty_at, polled_at if is_quiet else self._resumed_at)
            self._behind_since = None
        elif self._left <= 0:
            # At most the highest RDY of messages were unread, and as many have been read since.
            self._empty_at = self._behind_since
            if self._resumed_at > self._behind_since:
                # Reading paused again meanwhile: messages sent during that pause come next.
                self._behind_since = self._resumed_at
                self._left = max_ready
            else:
                self._behind_since = None
