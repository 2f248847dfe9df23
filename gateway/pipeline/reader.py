"""
The streaming reader of the format `nsq`.

Spark keeps one process for the reader as long as a query runs, and makes one call at a time.
Executors get only the base class that decodes a partition (`FramesReader`).

A batch may be finished at nsqd once Spark's commit log contains it. The earliest evidence is
Spark's request for the next batch: the *start* of `latestOffset` is the end of the last committed
batch. Spark calls `commit` only together with the next batch, so perhaps never.
"""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import uuid4

from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import (
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from gateway.errors import SettingRefused, SettingsError
from gateway.pipeline.backlog import BatchSizer
from gateway.pipeline.jobs.failures import without_traceback
from gateway.pipeline.schema import Frames, FramesReader, pack_partitions
from gateway.settings.pipeline import MAX_ROWS, SourceSettings

if TYPE_CHECKING:
    from gateway.pipeline.source_consumer import CommitConsumer

Offset: TypeAlias = dict[str, Any]

OFFSET_VERSION = 1
_UNLIMITED = 2**62


class NsqStreamReader(FramesReader, SupportsTriggerAvailableNow):
    """Base class of the streaming readers of both ack modes."""

    def __init__(self, settings: SourceSettings) -> None:
        self.settings = settings
        self.is_available_now = False
        """True for `trigger(availableNow=True)`: read only the messages present at the start."""
        self.sizer = BatchSizer(
            settings.first_rows,
            target_s=None if settings.max_rows_per_batch else settings.batch_target_s,
            batch_bytes=settings.batch_bytes,
        )
        self._last_batch_at = -math.inf
        """When the last batch was cut, monotonic seconds."""
        self._is_stopping = False
        self._is_terminated = False
        """True once SIGTERM has arrived."""

    # Spark's names from here on

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the row limit of a batch. Spark calls this once, before the first batch."""
        return ReadMaxRows(self.settings.max_rows_per_batch or MAX_ROWS)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Read only the messages present at the start; called just before reading starts."""
        self.is_available_now = True

    def stop(self) -> None:
        """Disconnect from nsqd; after SIGTERM also exit the process."""
        self._is_stopping = True
        try:
            self.close()
        finally:
            self._is_stopping = False
            if self._is_terminated:
                # Our handler has replaced SIGTERM's default action: nothing else ends the process.
                os._exit(0)

    def close(self) -> None:
        """Requeue unfinished messages and disconnect; idempotent."""
        raise NotImplementedError

    # In the source's process

    def is_due(self, *, is_full: bool) -> bool:
        """
        Return True if a batch may be cut now.

        That is the case once the setting `batch_s` has passed since the last batch, and always if
        *is_full*. Otherwise wait for `poll_ms` and return False: Spark would poll in a busy loop.
        """
        batch_s = 0.0 if self.is_available_now or is_full else self.settings.batch_s
        if time.monotonic() - self._last_batch_at >= batch_s:
            return True
        threading.Event().wait(self.settings.poll_ms / 1_000)
        return False

    def record_batch_start(self, rows: int, size_bytes: int = 0) -> None:
        """Called when a batch of *rows* has been cut; *size_bytes* is 0 if unknown."""
        self._last_batch_at = time.monotonic()
        self.sizer.batch_started(rows, size_bytes, self._last_batch_at)

    def max_rows(self, limit: ReadLimit) -> int:
        """Return the row limit of the next batch."""
        if isinstance(limit, ReadMaxRows):
            return min(limit.max_rows, self.sizer.rows)
        return _UNLIMITED  # ReadAllAvailable: everything in one batch

    def handle_sigterm(self) -> None:
        """Install a SIGTERM handler that calls `stop`: Spark ends this process by SIGTERM alone."""
        if (
            threading.current_thread() is threading.main_thread()
        ):  # signals can be handled in the main thread only
            signal.signal(signal.SIGTERM, self._on_sigterm)

    def _on_sigterm(self, number: int, frame: FrameType | None) -> None:
        del frame
        signal.signal(number, signal.SIG_IGN)  # Spark sends it more than once
        self._is_terminated = True
        # `stop` also ends the process, now that `_is_terminated` is set.
        if (
            not self._is_stopping
        ):  # `stop` may already run below this handler: entering it again would cut it short
            self.stop()


class RefusedReader(NsqStreamReader):
    """A reader whose offset methods raise *error*, so that the query fails with it."""

    def __init__(self, error: SettingsError) -> None:
        super().__init__(SourceSettings.model_construct())
        self._error = error

    def close(self) -> None:
        """Do nothing: no message is held."""

    # Spark's names from here on

    @without_traceback()
    def initialOffset(self) -> Offset:  # noqa: N802
        """Raise the error."""
        raise self._error

    @without_traceback()
    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """Raise the error."""
        del start, limit
        raise self._error


class CommitReader(NsqStreamReader):
    """Read with ``ackMode=commit``: finish messages once Spark has committed their batch."""

    def __init__(self, settings: SourceSettings) -> None:
        super().__init__(settings)
        self._consumer: CommitConsumer | None = None
        self._epoch = ""
        """Id of this process in offsets: only this process has the messages of its batches."""

    def initialOffset(self) -> Offset:  # noqa: N802
        """Return the offset of a new query."""
        # No process has this epoch, so nothing is finished for this offset.
        return {"v": OFFSET_VERSION, "epoch": "", "seq": 0}

    @without_traceback()
    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """
        Finish the messages up to *start* at nsqd, because Spark has committed them.

        Return the end of the next batch, or *start* if there is no batch yet.
        """
        require_ack_mode(start, "epoch", "commit")
        consumer = self._consumer or self._start_consumer()
        if start["epoch"] == self._epoch:
            consumer.finish(start["seq"])
            self._resize_batches(consumer)
        max_rows, target_bytes = self.max_rows(limit), self.settings.batch_bytes
        if not self.is_due(
            is_full=consumer.is_batch_ready(
                self._full_rows(max_rows, consumer.capacity), target_bytes
            )
        ):
            return start
        number = consumer.cut_batch(max_rows, target_bytes)
        # An available-now run ends at the first empty batch, so wait until nothing is left.
        while number is None and self.is_available_now and not consumer.is_exhausted():
            number = consumer.cut_batch(max_rows, target_bytes)
        if number is None:
            return start
        # Earlier batches are finished by now, so the messages in batches are those of this one.
        pending = consumer.pending
        self.record_batch_start(pending.in_batches, pending.size_bytes - pending.waiting_bytes)
        return {**start, "epoch": self._epoch, "seq": number}

    def _resize_batches(self, consumer: CommitConsumer) -> None:
        """Adapt the row limit of a batch, and max_in_flight, to how long the last batch took."""
        changed = self.sizer.batch_finished(
            time.monotonic(),
            waiting=consumer.waiting,
            full_rows=self._full_rows(self.sizer.rows, consumer.capacity),
            max_rows=consumer.max_window // 2,  # the next batch arrives while one is processed
        )
        if changed:
            consumer.set_window(self.settings.window_for(self.sizer.rows))

    def _full_rows(self, max_rows: int, in_flight: int) -> int:
        """
        Return the number of messages at which a batch is cut at once.

        That is half of one topic's share of *in_flight*: if only one topic has messages, the
        unfinished last batch may hold the other half, so no more can arrive.
        """
        return min(max_rows, max(1, in_flight // len(self.settings.topic) // 2))

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802
        """Return the source's fields for Spark's progress report; None if not available in time."""
        if self._consumer is None:
            return None
        backlog = self._consumer.backlog()
        if backlog is None:
            return None
        return {
            "epoch": self._epoch,
            "buffered": backlog.buffered,
            "in_flight": backlog.buffered + backlog.in_batches,
            "depth": backlog.depth,
            "refused": backlog.refused,
            "sources": backlog.sources,
            "oldest_unfinished_s": round(backlog.oldest_s, 3),
            "max_rows": self.sizer.rows,
        }

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """
        Return the messages of the batch from *start* to *end*, in partitions for Spark's tasks.

        A batch that an earlier process has cut is empty: its messages were lost with that process,
        and nsqd sends them again, in a later batch.
        """
        require_ack_mode(end, "epoch", "commit")
        if self._consumer is None or end["epoch"] != self._epoch or start == end:
            return []
        after = start["seq"] if start["epoch"] == self._epoch else 0
        frames = [
            Frames(chunk.source.topic, chunk.source.nsqd, chunk.received_us, chunk.messages.data)
            for chunk in self._consumer.chunks(after, end["seq"])
        ]
        return pack_partitions(frames, self.settings.partitions)

    def commit(self, end: Offset) -> None:
        """Finish the messages up to *end* at nsqd, because Spark has committed them."""
        if self._consumer is not None and end["epoch"] == self._epoch:
            self._consumer.finish(end["seq"])

    def close(self) -> None:
        """Requeue unfinished messages and disconnect."""
        if self._consumer is not None:
            self._consumer.stop()

    def _start_consumer(self) -> CommitConsumer:
        # Imported here: processes that only plan a batch do not need the NSQ client.
        from gateway.client.from_settings import read_access  # noqa: PLC0415
        from gateway.pipeline.source_consumer import CommitConsumer  # noqa: PLC0415

        self._consumer = consumer = CommitConsumer(self.settings, read_access(self.settings))
        self._epoch = uuid4().hex
        self.handle_sigterm()
        consumer.start(available_now=self.is_available_now)
        return consumer


def require_ack_mode(offset: Offset, key: str, mode: str) -> Offset:
    """
    Return *offset* if it has the field *key*, which only the ackMode *mode* writes.

    Raises:
        SettingRefused: The checkpoint was written with another ackMode.
    """
    if key not in offset:
        reason = f"the checkpoint was not written with ackMode={mode}; use a new checkpointLocation"
        raise SettingRefused("ackMode", reason)
    return offset
