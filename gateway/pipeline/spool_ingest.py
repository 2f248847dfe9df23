"""
What `ackMode=spool` does with what comes: groups that become durable, and then are finished.

What comes within some milliseconds is one group. While the disk takes one, the next one gathers.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from gateway.errors import GatewayError
from gateway.nsqd_access import NsqdAccess
from gateway.pipeline.ingest_base import IngestBase
from gateway.pipeline.intake import Source
from gateway.pipeline.ledger import Chunk
from gateway.pipeline.spool_files import free_bytes
from gateway.pipeline.spool_records import Names
from gateway.pipeline.spool_store import Group, SpoolStore
from gateway.settings_pipeline import SourceSettings
from gateway.telemetry import get_logger, spawn

logger = get_logger()

_GATHER_S = 0.010
_GROUP_BYTES = 16 * 1_048_576
_GROUP_MESSAGES = 2**62
_RECORD_BYTES = 1_048_576
"""A record is no longer, unless what came at once is."""
_SAME_US = 1_000
"""What came within so long stands in one record, as received at one time."""
_FIRST_RETRY_S = 0.5
_LONGEST_RETRY_S = 30.0
_LAST_WRITE_S = 3.0
_CLOSE_S = 1.0


class SpoolUnwritable(GatewayError):
    """The disk takes nothing; the text says where, and what it has left."""


class SpoolIngest(IngestBase):
    """Brings messages into a spool; `start` first, `stop` last."""

    def __init__(self, settings: SourceSettings, access: NsqdAccess, store: SpoolStore) -> None:
        super().__init__(settings, access)
        self._store = store
        self._disk = ThreadPoolExecutor(1, "nsq spool")
        self._gathering: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[None] | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._retry_s = _FIRST_RETRY_S
        self._trouble: SpoolUnwritable | None = None
        self._bug: BaseException | None = None

    # What Spark's thread calls

    def stop(self) -> None:
        """Stop, and let go of the spool once the disk has taken what it is at."""
        if self._is_stopping:
            return
        try:
            super().stop()
        finally:
            # Not before: the next process must not find the folder while this one writes there.
            closed = self._disk.submit(self._store.close)
            self._disk.shutdown(wait=False)
            with contextlib.suppress(TimeoutError):
                closed.result(_CLOSE_S)

    def room_made(self) -> None:
        """Learn that segments have gone: there may be room again."""
        self.loop.call_soon_threadsafe(self._see_to_bound)

    def check(self) -> None:
        """Raise what ended the writing, if anything did."""
        if self._bug is not None:
            raise self._bug

    # The same in the event loop

    def came(self) -> None:
        """Gather it."""
        super().came()
        self._gather()

    def _gather(self) -> None:
        is_idle = self._gathering is None and self._writing is None
        if is_idle and self.ledger.buffered and self._trouble is None:
            self._gathering = self.loop.call_later(_GATHER_S, self._begin_group)

    def _begin_group(self) -> None:
        self._gathering = None
        self._writing = spawn("write a group", self._write_group())
        self._writing.add_done_callback(self._group_ended)

    def _group_ended(self, task: asyncio.Task[None]) -> None:
        self._writing = None
        if not task.cancelled() and (error := task.exception()) is not None:
            self._bug = error
            return
        self._see_to_bound()
        self._gather()

    async def _write_group(self) -> None:
        number = self.ledger.seal(_GROUP_MESSAGES, about_bytes=_GROUP_BYTES)
        if number is None:
            return  # its source was lost meanwhile
        groups = list(groups_of(self.ledger.chunks(number - 1, number)))
        try:
            await self.loop.run_in_executor(self._disk, self._store.append, groups)
        except OSError as error:
            self._failed(error)
            return
        self._retry_s = _FIRST_RETRY_S
        self.finish_now(number)

    async def _is_over(self) -> bool:
        self.check()
        is_over = await super()._is_over() and not self.ledger.held
        if is_over and self._trouble is not None:
            raise self._trouble
        return is_over

    # A disk that takes nothing

    def _failed(self, error: OSError) -> None:
        """Give back what is not durable, ask for nothing, and try the disk again later."""
        assert self.settings.spool_dir is not None  # noqa: S101 - read_settings sees to it
        path, left_bytes = str(self.settings.spool_dir), free_bytes(self.settings.spool_dir)
        self._trouble = SpoolUnwritable(
            f"the spool {path} cannot be written ({error.strerror}), its disk has {left_bytes} "
            "bytes free; nothing was finished that is not durable. Make room, or name another "
            "folder (spoolDir) with a new checkpoint once this one is read"
        )
        logger.error(
            "the spool cannot be written",
            path=path,
            reason=error.strerror,
            free_bytes=left_bytes,
            retry_in_s=self._retry_s,
        )
        self.hold("disk", gives_back=True)
        self.hand_back()
        if not self._is_stopping:
            self._retry = self.loop.call_later(self._retry_s, self._begin_retry)
        self._retry_s = min(2 * self._retry_s, _LONGEST_RETRY_S)

    def _begin_retry(self) -> None:
        self._retry = None
        self._writing = spawn("try the disk", self._try_disk())
        self._writing.add_done_callback(self._group_ended)

    async def _try_disk(self) -> None:
        try:
            await self.loop.run_in_executor(self._disk, self._store.try_room)
        except OSError as error:
            self._failed(error)
            return
        logger.info("the spool can be written again", path=str(self.settings.spool_dir))
        self._trouble = None
        self.go_on("disk")

    # Its bound

    def _see_to_bound(self) -> None:
        """Ask for nothing while the spool is full."""
        is_full = self._store.is_full
        if is_full == ("full" in self._reasons):
            return
        size_bytes, limit_bytes = self._store.size_bytes, self.settings.max_spool_bytes
        if is_full:
            logger.warning("the spool is full", size_bytes=size_bytes, limit_bytes=limit_bytes)
            self.hold("full", gives_back=False)
        else:
            logger.info("the spool has room again", size_bytes=size_bytes, limit_bytes=limit_bytes)
            self.go_on("full")

    # The end

    async def _stop(self) -> None:
        for timer in (self._gathering, self._retry):
            if timer is not None:
                timer.cancel()
        self.hold("stop", gives_back=True)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WRITE_S):
                if self._writing is not None:
                    await asyncio.wait([self._writing])
                if self._trouble is None and self._bug is None:
                    await self._write_group()
        await super()._stop()


def groups_of(chunks: Sequence[Chunk[Source]]) -> Iterator[Group]:
    """Give what is to stand in one record each: what one source brought at one time."""
    by_source: dict[Source, list[Chunk[Source]]] = {}
    for chunk in chunks:
        by_source.setdefault(chunk.source, []).append(chunk)
    for source, mine in by_source.items():
        names = Names(source.topic, source.nsqd)
        parts: list[bytes] = []
        count = size_bytes = 0
        received_us = mine[0].received_us
        for chunk in mine:
            data = chunk.messages.data
            is_later = chunk.received_us - received_us > _SAME_US
            if parts and (is_later or size_bytes + len(data) > _RECORD_BYTES):
                yield names, received_us, parts, count
                parts, count, size_bytes = [], 0, 0
            if not parts:
                received_us = chunk.received_us
            parts.append(data)
            count += chunk.count
            size_bytes += len(data)
        yield names, received_us, parts, count
