"""
The streaming reader for `ackMode=spool`: a message is finished once it is durable in the spool.

An offset is a position in the spool, so any process reads the same bytes if a batch is requested
again. From the spool on, delivery is exactly once to a sink that recognizes repeated batches.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadLimit

from gateway.errors import GatewayError
from gateway.pipeline.jobs.failures import without_traceback
from gateway.pipeline.reader import OFFSET_VERSION, NsqStreamReader, Offset, require_ack_mode
from gateway.pipeline.schema import now_us, pack_partitions
from gateway.pipeline.spool.records import Position
from gateway.settings.pipeline import MAX_ROWS, SourceSettings

if TYPE_CHECKING:
    from gateway.pipeline.spool.consumer import SpoolConsumer
    from gateway.pipeline.spool.store import SpoolStore


class SpoolReader(NsqStreamReader):
    """Read with ``ackMode=spool``: finish messages once they are durable in the spool."""

    def __init__(self, settings: SourceSettings) -> None:
        super().__init__(settings)
        self._opened: SpoolStore | None = None
        self._consumer: SpoolConsumer | None = None
        self._last_end: Position | None = None
        """End of the last batch."""
        self._was_full = False
        """True if more rows waited than fitted into the last batch."""

    def initialOffset(self) -> Offset:  # noqa: N802
        """Return the offset of a new query, which stands for the start of the spool."""
        return {"v": OFFSET_VERSION, "seg": 0, "byte": 0}

    @without_traceback()
    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """
        Return the end of the next batch, or *start* if there is no batch yet.

        Spark has committed the messages before *start*, so the spool may remove them from its disk.

        Raises:
            SpoolDamaged, SpoolLost: *start* is no longer a position in the spool.
        """
        store = self._store()
        position = self._last_end = self._position(start)
        store.check(position)
        consumer = self._consumer or self._start_consumer(store)
        consumer.check()
        self._release(position)
        self.sizer.batch_finished(
            time.monotonic(),
            waiting=store.count_after(position),
            full_rows=self.sizer.rows,
            max_rows=MAX_ROWS,
        )
        is_full = self._was_full or store.is_full
        if not self.is_due(is_full=is_full) or not self._wait_for_messages(
            store, consumer, position
        ):
            return start
        end = store.cut(position, self.max_rows(limit), self.settings.batch_bytes)
        self._last_end = end
        self._was_full = store.wait_after(end, 0)
        self.record_batch_start(store.count_between(position, end))
        return {**start, "seg": end.segment, "byte": end.byte}

    def _wait_for_messages(
        self, store: SpoolStore, consumer: SpoolConsumer, position: Position
    ) -> bool:
        """
        Wait up to `poll_ms` for durable messages after *position*; return True if there are any.

        In an available-now run, wait until there are some or no more are expected.
        """
        poll_s = self.settings.poll_ms / 1_000
        has_some = store.wait_after(position, poll_s)
        while not has_some and self.is_available_now:
            is_exhausted = consumer.is_exhausted()
            # A message may have arrived between the two checks.
            has_some = store.wait_after(position, 0 if is_exhausted else poll_s)
            if is_exhausted:
                break
        return has_some

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802
        """Return the source's fields for Spark's progress report; None if not available in time."""
        store = self._opened
        if store is None or self._consumer is None:
            return None
        backlog = self._consumer.backlog()
        if backlog is None:
            return None
        try:
            oldest_us = store.oldest_needed_us
        except (GatewayError, OSError):
            oldest_us = None  # the next read raises this error
        spooled_s = 0.0 if oldest_us is None else (now_us() - oldest_us) / 1_000_000
        return {
            "epoch": "",
            "buffered": 0 if self._last_end is None else store.count_after(self._last_end),
            "in_flight": backlog.buffered + backlog.in_batches,
            "depth": backlog.depth,
            "refused": backlog.refused,
            "sources": backlog.sources,
            "oldest_unfinished_s": round(max(backlog.oldest_s, spooled_s, 0), 3),
            "max_rows": self.sizer.rows,
            "spool_bytes": store.size_bytes,
            "segments": store.segments,
        }

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """
        Return the messages of the batch from *start* to *end*, in partitions for Spark's tasks.

        A partition contains the messages themselves: executors cannot read the spool's disk, which
        belongs to the driver.

        Raises:
            SpoolDamaged, SpoolLost: The messages are missing, or are not as they were written.
        """
        if start == end:
            return []
        store = self._store()
        frames = store.read(self._position(start), self._position(end))
        return pack_partitions(frames, self.settings.partitions)

    def commit(self, end: Offset) -> None:
        """Let the spool remove the messages before *end*, because Spark has committed them."""
        self._release(self._position(end))

    def close(self) -> None:
        """Requeue messages that are not durable yet, disconnect, and unlock the spool's folder."""
        if self._consumer is not None:
            self._consumer.stop()
        elif self._opened is not None:
            self._opened.close()

    # In the source's process

    def _release(self, position: Position) -> None:
        """Let the spool remove the messages before *position*; a full spool may have room again."""
        store = self._store()
        store.check(position)
        store.release(position)
        if self._consumer is not None:
            self._consumer.on_space_freed()

    def _position(self, offset: Offset) -> Position:
        """Return *offset* as a position; segment 0 stands for the start of the spool."""
        require_ack_mode(offset, "seg", "spool")
        store = self._store()
        return Position(offset["seg"], offset["byte"]) if offset["seg"] else store.start

    def _store(self) -> SpoolStore:
        if self._opened is None:
            from gateway.pipeline.spool.store import SpoolOptions, SpoolStore  # noqa: PLC0415

            assert self.settings.spool_dir is not None  # noqa: S101 - checked by read_settings
            store = SpoolStore(
                SpoolOptions(
                    folder=Path(self.settings.spool_dir).absolute(),
                    max_bytes=self.settings.max_spool_bytes,
                    retention_s=self.settings.spool_retention_s,
                )
            )
            store.open(now_us() // 1_000)
            self._opened = store
        return self._opened

    def _start_consumer(self, store: SpoolStore) -> SpoolConsumer:
        # Imported here: processes that only plan a batch do not need the NSQ client.
        from gateway.client.from_settings import read_access  # noqa: PLC0415
        from gateway.pipeline.spool.consumer import SpoolConsumer  # noqa: PLC0415

        self._consumer = consumer = SpoolConsumer(self.settings, read_access(self.settings), store)
        self.handle_sigterm()
        consumer.start(available_now=self.is_available_now)
        return consumer
