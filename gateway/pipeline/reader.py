"""
The reader of a stream of the format `nsq`.

Spark calls it in one process for as long as a query runs, and one call at a time; to executors goes
only what reads a task (`tasks`). A batch is finished when Spark's log of commits
holds it, and Spark says so by asking for what comes behind it: `latestOffset(start)` has the end of
the last batch that is in the log, while `commit` comes with the next batch, or never.
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

from gateway.errors import SettingRefused
from gateway.pipeline.schema import Frames
from gateway.pipeline.tasks import FramesReader, packed
from gateway.settings_pipeline import SourceSettings

if TYPE_CHECKING:
    from gateway.pipeline.ingest import Ingest

Offset: TypeAlias = dict[str, Any]

OFFSET_VERSION = 1
_UNLIMITED = 2**62


class NsqStreamReader(FramesReader, SupportsTriggerAvailableNow):
    """What both ways of finishing messages have in common."""

    def __init__(self, settings: SourceSettings) -> None:
        self.settings = settings
        self.reads_to_an_end = False
        """Whether the run ends with what was there at its start."""
        self._batch_at = -math.inf
        """When the last batch was made, of the monotonic clock."""
        self._is_stopping = False
        self._is_told_to_end = False

    # Spark's names from here on

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return how much one batch has at most."""
        return ReadMaxRows(self.settings.max_rows_per_batch)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Read what is there when the reading begins, which is a moment later."""
        self.reads_to_an_end = True

    def stop(self) -> None:
        """Leave nsqd; ends the process too, where it has had SIGTERM."""
        self._is_stopping = True
        try:
            self.leave()
        finally:
            self._is_stopping = False
            if self._is_told_to_end:
                os._exit(0)

    def leave(self) -> None:
        """Hand back what is not finished; idempotent."""
        raise NotImplementedError

    # The process of the source

    def is_due(self, *, is_full: bool) -> bool:
        """Tell whether it is time for the next batch (batch_s); else, after poll_ms, that not."""
        batch_s = 0.0 if self.reads_to_an_end or is_full else self.settings.batch_s
        if time.monotonic() - self._batch_at >= batch_s:
            return True
        threading.Event().wait(self.settings.poll_ms / 1_000)
        return False

    def made_batch(self) -> None:
        """Know that a batch was made now."""
        self._batch_at = time.monotonic()

    def watch_for_the_end(self) -> None:
        """Call `stop` when Spark ends this process: it does not call it, it sends SIGTERM."""
        if threading.current_thread() is threading.main_thread():  # as in Spark's own process
            signal.signal(signal.SIGTERM, self._terminated)

    def _terminated(self, number: int, frame: FrameType | None) -> None:
        del frame
        signal.signal(number, signal.SIG_IGN)  # it comes more than once
        self._is_told_to_end = True
        if not self._is_stopping:  # or it would be cut short here, by the one that it waits for
            self.stop()


class CommitReader(NsqStreamReader):
    """Reads with ``ackMode=commit``: messages are held until Spark has finished their batch."""

    def __init__(self, settings: SourceSettings) -> None:
        super().__init__(settings)
        self._ingest: Ingest | None = None
        self._epoch = ""
        """Of the process that holds the messages; its ranges mean nothing to another one."""

    def initialOffset(self) -> Offset:  # noqa: N802
        """Return where a new query begins."""
        return {"v": OFFSET_VERSION, "epoch": "", "seq": 0}

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """Finish what *start* says is done; return the end of the next batch, *start* for none."""
        of_mode(start, "epoch", "commit")
        ingest = self._ingest or self._begin()
        if start["epoch"] == self._epoch:
            ingest.finish(start["seq"])
        most = most_rows(limit)
        if not self.is_due(is_full=ingest.holds(self._enough(most))):
            return start
        number = ingest.seal(most)
        while number is None and self.reads_to_an_end and not ingest.is_over():
            number = ingest.seal(most)
        if number is None:
            return start
        self.made_batch()
        return {**start, "epoch": self._epoch, "seq": number}

    def _enough(self, most: int) -> int:
        """Return for how many messages a batch is made at once: one topic alone may have them."""
        return min(most, max(1, self.settings.window // len(self.settings.topic) // 2))

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802
        """Return what progress shows of the source."""
        if self._ingest is None:
            return None
        standing = self._ingest.standing()
        if standing is None:
            return None
        return {
            "epoch": self._epoch,
            "buffered": standing.buffered,
            "in_flight": standing.buffered + standing.in_batches,
            "depth": standing.depth,
            "refused": standing.refused,
            "sources": standing.sources,
            "oldest_unfinished_s": round(standing.oldest_s, 3),
        }

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Return what is between, in tasks; nothing of another process, for nsqd sends it again."""
        of_mode(end, "epoch", "commit")
        if self._ingest is None or end["epoch"] != self._epoch or start == end:
            return []
        after = start["seq"] if start["epoch"] == self._epoch else 0
        frames = [
            Frames(chunk.source.topic, chunk.source.nsqd, chunk.received_us, chunk.messages.data)
            for chunk in self._ingest.chunks(after, end["seq"])
        ]
        return packed(frames, self.settings.partitions)

    def commit(self, end: Offset) -> None:
        """Finish what is done up to *end*."""
        if self._ingest is not None and end["epoch"] == self._epoch:
            self._ingest.finish(end["seq"])

    def leave(self) -> None:
        """Hand back what is not finished."""
        if self._ingest is not None:
            self._ingest.stop()

    def _begin(self) -> Ingest:
        # Who only plans a batch does not wait for what speaks with nsqd.
        from gateway.nsqd_access import read_access  # noqa: PLC0415
        from gateway.pipeline.ingest import Ingest  # noqa: PLC0415

        self._ingest = ingest = Ingest(self.settings, read_access(self.settings))
        self._epoch = uuid4().hex
        self.watch_for_the_end()
        ingest.start(to_an_end=self.reads_to_an_end)
        return ingest


def of_mode(offset: Offset, key: str, mode: str) -> Offset:
    """Return *offset*; raises SettingRefused where the checkpoint was written in another mode."""
    if key not in offset:
        reason = f"the checkpoint was not written with ackMode={mode}; begin with a new one"
        raise SettingRefused("ackMode", reason)
    return offset


def most_rows(limit: ReadLimit) -> int:
    """Return how many messages a batch may have."""
    return limit.max_rows if isinstance(limit, ReadMaxRows) else _UNLIMITED
