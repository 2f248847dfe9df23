"""
What `ackMode=commit` does with what comes: batches in memory, finished once Spark is.

It lives in the one process that Spark keeps for a source, from its first batch to its end.
"""

from __future__ import annotations

import asyncio
import contextlib

from gateway.nsqd_access import NsqdAccess
from gateway.pipeline.ingest_base import IngestBase
from gateway.pipeline.intake import Source
from gateway.pipeline.ledger import Chunk
from gateway.settings_pipeline import SourceSettings


class Ingest(IngestBase):
    """The messages of one stream; `start` first, `stop` last, all of it from any one thread."""

    def __init__(self, settings: SourceSettings, access: NsqdAccess) -> None:
        super().__init__(settings, access)
        self._something_came = asyncio.Event()

    def came(self) -> None:
        """Let who waits for messages see them, too."""
        super().came()
        self._something_came.set()

    # What Spark's thread calls

    def seal(self, limit: int) -> int | None:
        """
        Make a batch of at most *limit* messages; return its number.

        None: none has come within poll_ms.
        """
        return self.call(self._seal(limit))

    def finish(self, up_to: int) -> None:
        """Finish the messages of the batches up to number *up_to*; idempotent."""
        self.call(self._finish(up_to))

    def chunks(self, after: int, up_to: int) -> list[Chunk[Source]]:
        """Return what is in the batches behind number *after*, up to *up_to*."""
        return self.call(self._chunks(after, up_to))

    # The same in the event loop

    async def _seal(self, limit: int) -> int | None:
        if not self.ledger.buffered:
            self._something_came.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.settings.poll_ms / 1_000):
                    while not self.ledger.buffered:
                        await self._something_came.wait()
                        self._something_came.clear()
        return self.ledger.seal(limit)

    async def _finish(self, up_to: int) -> None:
        self.finish_now(up_to)

    async def _chunks(self, after: int, up_to: int) -> list[Chunk[Source]]:
        return self.ledger.chunks(after, up_to)
