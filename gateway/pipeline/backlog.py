"""
PURE. The backlog of a stream: messages left to read, the end of a run, the size of a batch.

If every nsqd reports its depth, an available-now run ends when that many messages have arrived,
whichever they are. Otherwise the run ends at the first message published after its start; earlier
messages that other connections deliver in the same moment still belong to it. In both cases the run
ends sooner if messages stop arriving.

Spark spends a fixed time on each batch besides the time for its rows. Larger batches therefore
carry more rows a second, until the fixed time no longer matters. Beyond that they only cost memory
and latency.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from gateway.client.nsqd_answers import NodeAnswer, NodeRequest, NodeResponse, is_ok
from gateway.protocol.frames import RawMessages, split_messages
from gateway.protocol.wire import MESSAGE_FRAME_HEAD


class ChannelBacklog(NamedTuple):
    """Number of messages of some channels, summed over nsqds, by state."""

    waiting: int
    """Messages in the channels' queues, or still in their topics' queues."""
    in_flight: int
    """Messages that nsqd has sent to a consumer, which has not finished them yet."""
    deferred: int

    @property
    def total(self) -> int:
        """Number of messages that are not finished."""
        return self.waiting + self.in_flight + self.deferred


# The parts of nsqd's /stats that are needed here; msgspec skips all other fields.


class _Channel(msgspec.Struct):
    channel_name: str
    depth: int
    in_flight_count: int
    deferred_count: int


class _Topic(msgspec.Struct):
    topic_name: str
    depth: int
    channels: list[_Channel] | None = None


class _Stats(msgspec.Struct):
    topics: list[_Topic] | None = None


_stats = msgspec.json.Decoder(_Stats)


def depth_request(topic: str) -> NodeRequest:
    """
    Return the /stats request for *topic*, with all its channels.

    The query names no channel: nsqd would omit a topic that does not have that channel.
    """
    return NodeRequest(
        method="GET",
        path="/stats",
        query=[
            ("format", b"json"),
            ("topic", topic.encode()),
            ("include_clients", b"false"),
            ("include_mem", b"false"),
        ],
    )


def read_depth(answers: Iterable[NodeAnswer], topic: str, channel: str) -> ChannelBacklog | None:
    """
    Return the backlog of *channel*, summed over *answers*, one from each nsqd; None if unknown.

    It is unknown if any answer to `depth_request` is an error or cannot be parsed. Messages in the
    topic's own queue count too: nsqd moves them to the channel, once the channel exists.
    """
    waiting = in_flight = deferred = 0
    for answer in answers:
        if not isinstance(answer, NodeResponse) or not is_ok(answer):
            return None
        try:
            stats = _stats.decode(answer.body)
        except (ValueError, RecursionError):
            return None
        for each in stats.topics or ():
            if each.topic_name != topic:
                continue
            waiting += each.depth
            for of_channel in each.channels or ():
                if of_channel.channel_name == channel:
                    waiting += of_channel.depth
                    in_flight += of_channel.in_flight_count
                    deferred += of_channel.deferred_count
    return ChannelBacklog(waiting, in_flight, deferred)


_POLL_INTERVAL_S = 0.25
"""Time between two polls that check whether the channel is empty."""
_EMPTY_ANSWERS_NEEDED = 2
"""
Number of consecutive empty answers that end a run. One is not enough: nsqd counts a message nowhere
while it moves from a queue to a consumer.
"""
_QUIET_S = 0.25
"""Time without arrivals after which no connection is expected to deliver more."""
_TIMEOUT_SCAN_S = 6.0
"""
Time that nsqd may take to notice a message timeout, with a margin of 1 s: nsqd lists the channels
to scan every 5 s only (nsqd.go, queueScanLoop).
"""


class AvailableNowTarget:
    """Decide which messages belong to an available-now run: those present at its start."""

    def __init__(self, count: int | None, started_ns: int = 0) -> None:
        """Expect *count* messages; if None, those published up to *started_ns* (ns since 1970)."""
        self._left = count
        self._started_ns = started_ns
        self._is_past = False
        """True once a message published after the start has arrived."""

    @property
    def is_reached(self) -> bool:
        """
        True once the run has received all its messages.

        False again after `expect_again`, because some of them were lost and have to arrive again.
        """
        return self._is_past if self._left is None else self._left <= 0

    def admit(self, messages: RawMessages) -> tuple[RawMessages | None, RawMessages | None]:
        """
        Split *messages* into those of this run, which count as received, and the rest.

        A part without messages is None.
        """
        count = len(messages.ids)
        belongs = self._count_of(messages, count)
        if self._left is not None:
            self._left -= belongs
        if belongs == count:
            return messages, None
        self._is_past = self._left is None
        return split_messages(messages, belongs) if belongs else (None, messages)

    def _count_of(self, messages: RawMessages, count: int) -> int:
        """Return how many of the *count* messages, counted from the first, belong to this run."""
        if self._left is not None:
            return min(count, self._left)
        data, offset = messages.data, 0
        for index in range(count):
            size, _, timestamp_ns, _, _ = MESSAGE_FRAME_HEAD.unpack_from(data, offset)
            # The first message published after the start ends the run, also for those behind it.
            if timestamp_ns > self._started_ns:
                return index
            offset += 4 + size
        return count

    def expect_again(self, count: int) -> None:
        """
        Expect *count* messages once more: this process has lost them, and nsqd sends them again.

        This has no effect on a run that ends at a time instead of a number of messages.
        """
        if self._left is not None:
            self._left += count


class ArrivalDeadline:
    """
    Decide when an available-now run stops waiting for messages that have not arrived.

    All times are monotonic seconds.
    """

    def __init__(self, idle_s: float, msg_timeout_s: float) -> None:
        """
        Wait *idle_s* after the last arrival.

        While another consumer has messages in flight, wait for *msg_timeout_s* and a margin if that
        is longer: nsqd sends them to this consumer if the other one is dead.
        """
        self._idle_s = idle_s
        self._msg_timeout_s = msg_timeout_s
        self._arrived_at = 0.0
        self._polled_at = 0.0
        self._empty_answers = 0
        self._is_elsewhere = False
        """True if another consumer has messages in flight."""

    def on_messages(self, now: float) -> None:
        """Called when messages arrive."""
        self._arrived_at = now
        self._empty_answers = 0

    def is_quiet(self, now: float) -> bool:
        """Return True if no message has arrived for 0.25 s."""
        return now - self._arrived_at >= _QUIET_S

    def is_poll_due(self, now: float) -> bool:
        """Return True if it is time to poll nsqd's backlog."""
        return now - max(self._arrived_at, self._polled_at) >= _POLL_INTERVAL_S

    def on_backlog(self, backlog: ChannelBacklog | None, held: int, now: float) -> None:
        """
        Called with nsqd's *backlog*, or None if nsqd did not answer.

        *held* is how many of the messages in *backlog* are in flight to this consumer.
        """
        self._polled_at = now
        # nsqd counts the messages held here as in flight; only the others can still arrive.
        has_nothing = backlog is not None and backlog.total <= held
        self._empty_answers = self._empty_answers + 1 if has_nothing else 0
        self._is_elsewhere = backlog is not None and backlog.in_flight > held

    def has_passed(self, now: float) -> bool:
        """
        Return True if the run should end.

        Messages in flight to another consumer return after their timeout if that consumer is dead.
        Their timeout is assumed to equal ours. Deferred messages get no extra time.
        """
        if self._empty_answers >= _EMPTY_ANSWERS_NEEDED:
            return True
        wait_s = self._idle_s
        if self._is_elsewhere:
            wait_s = max(wait_s, self._msg_timeout_s + _TIMEOUT_SCAN_S)
        return now - self._arrived_at >= wait_s


_MAX_GROWTH = 2
"""Largest factor by which the row limit grows or shrinks from one batch to the next."""
_FAST, _SLOW = 0.8, 1.25
"""
Bounds of a batch's duration, relative to the target: between them the row limit stays as it is, so
that it does not oscillate.
"""
_BACKLOG_RATIO = 0.9
"""
The limit grows only if at least this share of the last batch's rows is waiting: otherwise a larger
batch would not fill.
"""


class BatchSizer:
    """
    Choose the row limit of the next batch from the time, rows and bytes of the last one.

    The limit grows if the last batch took less than the target time and about as many rows as that
    batch had are waiting. It shrinks if a batch took longer, but never below its first value.
    """

    def __init__(self, first_rows: int, *, target_s: float | None, batch_bytes: int) -> None:
        """
        Create a sizer whose first limit is *first_rows*.

        Args:
            first_rows: First and lowest row limit.
            target_s: How long a batch should take, in seconds; None: the limit never changes.
            batch_bytes: Maximum bytes of one batch's frames; the limit stops growing there.
        """
        self.rows = first_rows
        """Row limit of the next batch."""
        self._first_rows = first_rows
        self._target_s = target_s
        self._batch_bytes = batch_bytes
        self._last: tuple[int, int, float] | None = None
        """Rows, bytes and start of the batch in progress."""

    def batch_started(self, rows: int, size_bytes: int, now: float) -> None:
        """Called when a batch starts at *now*; *size_bytes* is 0 if unknown."""
        self._last = rows, size_bytes, now

    def batch_finished(self, now: float, *, waiting: int, full_rows: int, max_rows: int) -> bool:
        """
        Adapt the limit to the batch that has finished; return True if the limit changed.

        Args:
            now: Monotonic seconds, as for `batch_started`.
            waiting: Number of rows that wait for the next batch.
            full_rows: Number of rows at which a batch is cut without further waiting. Smaller
                batches than half of this are ignored: fixed costs dominate their duration.
            max_rows: The highest useful limit.
        """
        if self._last is None or self._target_s is None:
            return False
        (rows, size_bytes, started_at), self._last = self._last, None
        before, is_large = self.rows, rows >= max(1, full_rows // 2)
        took = (now - started_at) / self._target_s  # 1.0 is exactly the target
        in_time = int(rows / took) if took > 0 else rows * _MAX_GROWTH
        if is_large and took < _FAST and waiting >= _BACKLOG_RATIO * rows:
            # Rows that fit into batch_bytes, at the average size of the last batch's rows.
            in_bytes = rows * self._batch_bytes // size_bytes if size_bytes else in_time
            wanted = min(_MAX_GROWTH * before, in_time, in_bytes)
            self.rows = max(before, wanted)
        elif is_large and took > _SLOW:
            # To the rows that would have fitted into the target time, but not below half.
            self.rows = max(before // _MAX_GROWTH, in_time)
        self.rows = max(self._first_rows, min(self.rows, max_rows))
        return self.rows != before
