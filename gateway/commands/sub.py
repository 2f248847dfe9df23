"""
`nsq-gateway sub`: messages to lines of standard output.

A message is finished once its line is written. What is not written goes back at once, whichever
way the command ends, so that another consumer, or the next run, gets it.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

import msgspec

from gateway.commands.feed import Feed, Received
from gateway.commands.gateway_feed import GatewayFeed
from gateway.commands.interruption import watch_signals
from gateway.commands.names import check_names
from gateway.commands.nsqd_feed import NsqdFeed
from gateway.commands.streams import OutputStream, reader_is_gone
from gateway.errors import GatewayError
from gateway.nsqd_access import read_access
from gateway.settings_commands import SubSettings
from gateway.telemetry import spawn

_LAST_WRITE_S = 0.2
"""What the last write gets to end when the command does."""


@dataclass(frozen=True, kw_only=True)
class SubTask:
    """What is to be done."""

    topic: str
    channel: str
    as_json: bool = False
    count: int | None = None
    """How many messages to write; None: until something ends it."""
    output: int
    """The file descriptor to write to."""


class OutputFailed(GatewayError):
    """Standard output takes no more, and not because its reader has gone."""


async def run_sub(settings: SubSettings, task: SubTask) -> signal.Signals | None:
    """
    Write messages until enough are written or the reader has gone; return the signal that ended it.

    Raises:
        SettingsError: A name is none, or a file that the settings name cannot be used.
        OutputFailed: A message could not be written; it was given back.
        GatewayError: The subscription cannot be had, or was taken away for good.
    """
    check_names(topic=task.topic, channel=task.channel)
    interruption = watch_signals(signal.SIGINT, signal.SIGTERM)
    async with _open_feed(settings, task) as feed:
        writing = _Writing(feed, task, settings.max_in_flight)
        run = spawn("write messages", writing.run())
        ends: set[asyncio.Future[Any]] = {run, interruption, writing.reader_gone}
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            run.cancel()
            await asyncio.wait({run})
        if not run.cancelled() and (error := run.result()) is not None:
            raise error
    return interruption.result() if interruption.done() else None


def _open_feed(settings: SubSettings, task: SubTask) -> AbstractAsyncContextManager[Feed]:
    """Return what *settings* name: a gateway where there is a URL, else nsqd."""
    names = task.topic, task.channel
    window = settings.max_in_flight
    if task.count is not None:
        window = min(window, task.count)
    access = read_access(settings)
    url = settings.gateway_url
    if url is None:
        return NsqdFeed(names, settings, access, window=window)
    return GatewayFeed(url, names, settings, access, window=window)


class _Writing:
    """One run of the command."""

    def __init__(self, feed: Feed, task: SubTask, max_in_flight: int) -> None:
        self._feed = feed
        self._output = OutputStream(task.output)
        self._line_of = _json_line if task.as_json else _body_line
        self._max_in_flight = max_in_flight
        self._left = task.count
        self.reader_gone = self._output.reader_gone
        """Done when nobody reads what is written, though nothing is written now."""

    async def run(self) -> GatewayError | None:
        """Write until the count is reached or the reader has gone, or return what went wrong."""
        try:
            async for batch in self._feed.batches():
                # What is beyond the count goes back with the end of the feed.
                if not await self._write(batch[: self._left]) or self._left == 0:
                    break
        except GatewayError as error:
            return error
        return None

    async def _write(self, batch: Sequence[Received]) -> bool:
        """Write *batch* and finish what is written; False when nobody reads any more."""
        write = self._output.write([self._line_of(message) for message in batch])
        try:
            written, error = await asyncio.shield(write)
        except asyncio.CancelledError:
            # It may be done, and its outcome on the way; or the reader stands still.
            await asyncio.wait({write}, timeout=_LAST_WRITE_S)
            await self._settle(batch, written=write.result()[0] if write.done() else 0)
            raise
        await self._settle(batch, written=written)
        if error is not None and not reader_is_gone(error):
            raise OutputFailed(f"standard output: {error.strerror}") from error
        return error is None

    async def _settle(self, batch: Sequence[Received], *, written: int) -> None:
        """Finish the first *written* of *batch*, and give back the others."""
        window = self._max_in_flight
        if self._left is not None:
            self._left -= written
            window = min(window, self._left)
        if written < len(batch):
            # What goes back would come here again.
            window = 0
        # Before the FIN, which would let one more come than is wanted.
        await self._feed.set_window(window)
        if written:
            await self._feed.finish(batch[:written])
        if written < len(batch):
            await self._feed.requeue(batch[written:])


def _body_line(message: Received) -> bytes:
    return message.body + b"\n"


def _json_line(message: Received) -> bytes:
    """Return a message as one JSON object; a body that is not UTF-8 is in base64."""
    record: dict[str, object] = {
        "id": message.id,
        "attempts": message.attempts,
        "timestamp_ns": message.timestamp_ns,
    }
    if message.nsqd is not None:
        record["nsqd"] = message.nsqd
    try:
        record["body"] = message.body.decode()
    except UnicodeDecodeError:
        # msgspec writes bytes as base64.
        record["body_base64"] = message.body
    return msgspec.json.encode(record) + b"\n"
