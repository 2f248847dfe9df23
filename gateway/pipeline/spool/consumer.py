"""
The consumer for `ackMode=spool`: write messages to the spool in groups, and then finish them.

Messages that arrive within 10 ms form a group, so that they share one fdatasync. While the disk
writes a group, the next one accumulates.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from gateway.aio import spawn
from gateway.client.from_settings import NsqdAccess
from gateway.errors import GatewayError
from gateway.pipeline.pending_batches import Chunk
from gateway.pipeline.source_consumer import NsqdSubscription, SourceConsumer
from gateway.pipeline.spool.records import Names
from gateway.pipeline.spool.segments import free_bytes
from gateway.pipeline.spool.store import Group, SpoolStore
from gateway.settings.pipeline import SourceSettings
from gateway.telemetry import get_logger

logger = get_logger()

_GROUP_DELAY_S = 0.010
_GROUP_BYTES = 16 * 1_048_576
_GROUP_MESSAGES = 2**62
"""No limit: only `_GROUP_BYTES` limits a group."""
_RECORD_BYTES = 1_048_576
"""Maximum size of a record, unless a single read from a socket is larger."""
_RECORD_SPAN_US = 1_000
"""Messages that arrive within this time may share a record, and so one `received` time."""
_FIRST_RETRY_S = 0.5
_LONGEST_RETRY_S = 30.0
_LAST_WRITE_S = 3.0
_CLOSE_S = 1.0


class SpoolUnwritable(GatewayError):
    """The spool cannot be written; the text has the path and the free space."""


class SpoolConsumer(SourceConsumer):
    """Consume the messages of a stream, and write them to a spool."""

    def __init__(self, settings: SourceSettings, access: NsqdAccess, store: SpoolStore) -> None:
        super().__init__(settings, access)
        self._store = store
        self._disk = ThreadPoolExecutor(1, "nsq spool")
        self._group_timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[None] | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._retry_s = _FIRST_RETRY_S
        self._disk_error: SpoolUnwritable | None = None
        self._error: BaseException | None = None

    # Called by Spark's thread

    def stop(self) -> None:
        """Requeue messages that are not durable, disconnect from nsqd, and close the spool."""
        if self._is_stopping:
            return
        try:
            super().stop()
        finally:
            # On the disk's own thread, so after the write in progress: this unlocks the folder, and
            # the next process must not open it while this one still writes.
            closed = self._disk.submit(self._store.close)
            self._disk.shutdown(wait=False)
            with contextlib.suppress(TimeoutError):
                closed.result(_CLOSE_S)

    def on_space_freed(self) -> None:
        """Called when the spool may have removed segments: restore RDY if it has room again."""
        self.loop.call_soon_threadsafe(self._check_size)

    def check(self) -> None:
        """Raise the exception, if any, that has ended writing to the spool for good."""
        if self._error is not None:
            raise self._error

    # On the event loop

    def on_messages_added(self) -> None:
        """Called when messages have been added; write them to the spool as a group, 10 ms later."""
        super().on_messages_added()
        self._schedule_group()

    def _schedule_group(self) -> None:
        # After a disk error the retry comes first; `_group_ended` calls this again when it is over.
        is_idle = self._group_timer is None and self._writing is None
        if is_idle and self.pending.buffered and self._disk_error is None:
            self._group_timer = self.loop.call_later(_GROUP_DELAY_S, self._begin_group)

    def _begin_group(self) -> None:
        self._group_timer = None
        self._writing = spawn("write a group", self._write_group())
        self._writing.add_done_callback(self._group_ended)

    def _group_ended(self, task: asyncio.Task[None]) -> None:
        self._writing = None
        # An OSError is handled where it is raised. Any other error ends writing: `check` raises it
        # in Spark's thread, so that the query fails.
        if not task.cancelled() and (error := task.exception()) is not None:
            self._error = error
            return
        self._check_size()
        self._schedule_group()

    async def _write_group(self) -> None:
        number = self.pending.cut_batch(_GROUP_MESSAGES, target_bytes=_GROUP_BYTES)
        if number is None:
            return  # the messages were dropped with a lost connection
        groups = list(group_into_records(self.pending.chunks(number - 1, number)))
        try:
            await self.loop.run_in_executor(self._disk, self._store.append, groups)
        except OSError as error:
            self._on_disk_error(error)
            return
        self._retry_s = _FIRST_RETRY_S
        # Only now: after FIN, the spool has the only copy.
        self.finish_batches(number)

    async def _is_exhausted(self) -> bool:
        self.check()
        # Spark reads from the spool, so a message counts only once it is durable.
        is_exhausted = await super()._is_exhausted() and not self.pending.held_messages
        if is_exhausted and self._disk_error is not None:
            raise self._disk_error
        return is_exhausted

    # A disk that cannot be written

    def _on_disk_error(self, error: OSError) -> None:
        """Requeue the messages that are not durable, set RDY to 0, and retry the disk later."""
        assert self.settings.spool_dir is not None  # noqa: S101 - checked by read_settings
        path, left_bytes = str(self.settings.spool_dir), free_bytes(self.settings.spool_dir)
        self._disk_error = SpoolUnwritable(
            f"the spool {path} cannot be written ({error.strerror}), its disk has {left_bytes} "
            "bytes free; only durable messages were finished. Free some space, or name another "
            "folder (spoolDir) with a new checkpoint once this spool is read"
        )
        logger.error(
            "spool not writable",
            path=path,
            reason=error.strerror,
            free_bytes=left_bytes,
            retry_in_s=self._retry_s,
        )
        # RDY 0 before the REQs, or nsqd sends the messages again at once.
        self.pause("disk", requeue=True)
        self.requeue_all()
        if not self._is_stopping:
            self._retry = self.loop.call_later(self._retry_s, self._begin_retry)
        self._retry_s = min(2 * self._retry_s, _LONGEST_RETRY_S)

    def _begin_retry(self) -> None:
        self._retry = None
        self._writing = spawn("try the disk", self._try_disk())
        self._writing.add_done_callback(self._group_ended)

    async def _try_disk(self) -> None:
        try:
            await self.loop.run_in_executor(self._disk, self._store.check_space)
        except OSError as error:
            self._on_disk_error(error)
            return
        logger.info("spool writable again", path=str(self.settings.spool_dir))
        self._disk_error = None
        self.resume("disk")

    # The size limit

    def _check_size(self) -> None:
        """
        Set RDY to 0 if the spool is full; restore RDY if it no longer is.

        Messages that nsqd has sent already are still written to the spool, beyond its limit.
        """
        is_full = self._store.is_full
        if is_full == ("full" in self._pause_reasons):
            return
        size_bytes, limit_bytes = self._store.size_bytes, self.settings.max_spool_bytes
        if is_full:
            logger.warning("spool full", size_bytes=size_bytes, limit_bytes=limit_bytes)
            self.pause("full", requeue=False)
        else:
            logger.info(
                "spool below its limit again", size_bytes=size_bytes, limit_bytes=limit_bytes
            )
            self.resume("full")

    # The end

    async def _stop(self) -> None:
        for timer in (self._group_timer, self._retry):
            if timer is not None:
                timer.cancel()
        self.pause("stop", requeue=True)
        with contextlib.suppress(TimeoutError):
            # A hanging disk must not block the end: what is not durable is requeued below. `wait`
            # does not cancel the write, whose thread would go on in any case.
            async with asyncio.timeout(_LAST_WRITE_S):
                if self._writing is not None:
                    await asyncio.wait([self._writing])
                if self._disk_error is None and self._error is None:
                    await self._write_group()
        await super()._stop()


def group_into_records(chunks: Sequence[Chunk[NsqdSubscription]]) -> Iterator[Group]:
    """
    Group *chunks* into records.

    The messages of a record came on one connection, within 1 ms. Those of one connection stay in
    order.
    """
    by_source: dict[NsqdSubscription, list[Chunk[NsqdSubscription]]] = {}
    for chunk in chunks:
        by_source.setdefault(chunk.source, []).append(chunk)
    for source, mine in by_source.items():
        names = Names(source.topic, source.nsqd)
        parts: list[bytes] = []
        count = size_bytes = 0
        received_us = mine[0].received_us
        for chunk in mine:
            data = chunk.messages.data
            is_later = chunk.received_us - received_us > _RECORD_SPAN_US
            if parts and (is_later or size_bytes + len(data) > _RECORD_BYTES):
                yield names, received_us, parts, count
                parts, count, size_bytes = [], 0, 0
            if not parts:
                received_us = chunk.received_us
            parts.append(data)
            count += chunk.count
            size_bytes += len(data)
        yield names, received_us, parts, count
