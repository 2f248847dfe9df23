"""
The reader of a stream with `ackMode=spool`: a message is finished once it is durable in a file.

An offset is a place in that file, so a batch that is asked for again is read byte for byte, by
whatever process: from the spool on, rows come exactly once into a sink that knows its batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadLimit

from gateway.errors import GatewayError
from gateway.pipeline.clock import now_us
from gateway.pipeline.reader import (
    OFFSET_VERSION,
    NsqStreamReader,
    Offset,
    most_rows,
    of_mode,
)
from gateway.pipeline.spool_records import Position
from gateway.pipeline.tasks import packed
from gateway.settings_pipeline import SourceSettings

if TYPE_CHECKING:
    from gateway.pipeline.spool_ingest import SpoolIngest
    from gateway.pipeline.spool_store import SpoolStore


class SpoolReader(NsqStreamReader):
    """Reads with ``ackMode=spool``; see the module."""

    def __init__(self, settings: SourceSettings) -> None:
        super().__init__(settings)
        self._opened: SpoolStore | None = None
        self._ingest: SpoolIngest | None = None
        self._reached: Position | None = None
        """Where the last batch ended."""
        self._was_full = False
        """Whether there was more than the last batch could have."""

    def initialOffset(self) -> Offset:  # noqa: N802
        """Return where a new query begins: with the oldest that the spool has."""
        return {"v": OFFSET_VERSION, "seg": 0, "byte": 0}

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """
        Let go of what *start* says is done; return the end of the next batch, *start* for none.

        Raises:
            SpoolDamaged, SpoolLost: *start* is no place in the spool any more.
        """
        store = self._store()
        position = self._reached = self._position(start)
        store.check(position)
        ingest = self._ingest or self._begin(store)
        ingest.check()
        self._release(position)
        is_full = self._was_full or store.is_full
        if not self.is_due(is_full=is_full) or not self._waited(store, ingest, position):
            return start
        end = store.cut(position, most_rows(limit), self.settings.max_buffer_bytes)
        self._reached = end
        self._was_full = store.wait_behind(end, 0)
        self.made_batch()
        return {**start, "seg": end.segment, "byte": end.byte}

    def _waited(self, store: SpoolStore, ingest: SpoolIngest, position: Position) -> bool:
        """Return whether there is something behind *position*."""
        poll_s = self.settings.poll_ms / 1_000
        has_some = store.wait_behind(position, poll_s)
        while not has_some and self.reads_to_an_end:
            is_over = ingest.is_over()
            # It may have come between the two looks.
            has_some = store.wait_behind(position, 0 if is_over else poll_s)
            if is_over:
                break
        return has_some

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802
        """Return what progress shows of the source."""
        store = self._opened
        if store is None or self._ingest is None:
            return None
        standing = self._ingest.standing()
        if standing is None:
            return None
        try:
            oldest_us = store.oldest_needed_us
        except (GatewayError, OSError):
            oldest_us = None  # whoever reads it is told
        spooled_s = 0.0 if oldest_us is None else (now_us() - oldest_us) / 1_000_000
        return {
            "epoch": "",
            "buffered": 0 if self._reached is None else store.count_behind(self._reached),
            "in_flight": standing.buffered + standing.in_batches,
            "depth": standing.depth,
            "refused": standing.refused,
            "sources": standing.sources,
            "oldest_unfinished_s": round(max(standing.oldest_s, spooled_s, 0), 3),
            "spool_bytes": store.size_bytes,
            "segments": store.segments,
        }

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """
        Return what is between, in tasks, with its bytes: executors may not see the disk.

        Raises:
            SpoolDamaged, SpoolLost: It is not there any more, or not as it was.
        """
        if start == end:
            return []
        store = self._store()
        frames = store.read(self._position(start), self._position(end))
        return packed(frames, self.settings.partitions)

    def commit(self, end: Offset) -> None:
        """Let go of what is done up to *end*."""
        self._release(self._position(end))

    def leave(self) -> None:
        """Hand back what is not durable, and let go of the folder."""
        if self._ingest is not None:
            self._ingest.stop()
        elif self._opened is not None:
            self._opened.close()

    # The process of the source

    def _release(self, position: Position) -> None:
        store = self._store()
        store.check(position)
        store.release(position)
        if self._ingest is not None:
            self._ingest.room_made()

    def _position(self, offset: Offset) -> Position:
        of_mode(offset, "seg", "spool")
        store = self._store()
        return Position(offset["seg"], offset["byte"]) if offset["seg"] else store.begin

    def _store(self) -> SpoolStore:
        if self._opened is None:
            from gateway.pipeline.spool_store import SpoolOptions, SpoolStore  # noqa: PLC0415

            assert self.settings.spool_dir is not None  # noqa: S101 - read_settings sees to it
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

    def _begin(self, store: SpoolStore) -> SpoolIngest:
        # Who only plans a batch does not wait for what speaks with nsqd.
        from gateway.nsqd_access import read_access  # noqa: PLC0415
        from gateway.pipeline.spool_ingest import SpoolIngest  # noqa: PLC0415

        self._ingest = ingest = SpoolIngest(self.settings, read_access(self.settings), store)
        self.watch_for_the_end()
        ingest.start(to_an_end=self.reads_to_an_end)
        return ingest
