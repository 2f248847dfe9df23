"""
`nsq-gateway sub`: write the messages of a channel to standard output, one line each.

A message is finished once its line is written. When the command ends, for any reason, it requeues
the other messages at once, so that another consumer, or the next run, receives them.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

import msgspec

from gateway.aio import spawn
from gateway.cli.options import check_topic_and_channel_names
from gateway.cli.stdio import OutputStream, reader_is_gone, watch_signals
from gateway.cli.sub_sources import (
    GatewaySource,
    MessageSource,
    NsqdSource,
    PullSource,
    ReceivedMessage,
)
from gateway.client.from_settings import read_access
from gateway.errors import GatewayError, SettingRefused
from gateway.settings.commands import SubSettings

_LAST_WRITE_S = 0.2
"""Time for the write in progress when the command ends."""


@dataclass(frozen=True, kw_only=True)
class SubTask:
    """Arguments of one run of the command."""

    topic: str
    channel: str
    as_json: bool = False
    count: int | None = None
    """Number of messages after which the command ends; None: no limit."""
    output: int
    """The file descriptor to write to."""


class OutputFailed(GatewayError):
    """Writing failed for another reason than a closed pipe."""


async def run_sub(settings: SubSettings, task: SubTask) -> signal.Signals | None:
    """
    Write messages until the count is reached, the reader closes the pipe, or a signal arrives.

    Return the signal, or None.

    Raises:
        SettingsError: A topic or channel name is invalid, or a file named by the settings is.
        OutputFailed: Writing failed; the message was requeued.
        GatewayError: The subscription was refused, or ended by an error that a reconnect does not
            resolve.
    """
    check_topic_and_channel_names(topic=task.topic, channel=task.channel)
    interruption = watch_signals(signal.SIGINT, signal.SIGTERM)
    async with _open_source(settings, task) as source:
        writer = _MessageWriter(source, task, settings.max_in_flight)
        run = spawn("write messages", writer.run())
        endings: set[asyncio.Future[Any]] = {run, interruption, writer.reader_gone}
        try:
            await asyncio.wait(endings, return_when=asyncio.FIRST_COMPLETED)
        finally:
            # Wait for the cancelled task: it still finishes what is written, and requeues the rest.
            run.cancel()
            await asyncio.wait({run})
        if not run.cancelled() and (error := run.result()) is not None:
            raise error
    return interruption.result() if interruption.done() else None


def _open_source(
    settings: SubSettings, task: SubTask
) -> AbstractAsyncContextManager[MessageSource]:
    """Return the source in *settings*: a gateway if a URL is configured, otherwise nsqd."""
    names = task.topic, task.channel
    window = settings.max_in_flight
    # Other consumers should not wait for messages beyond the count.
    if task.count is not None:
        window = min(window, task.count)
    access = read_access(settings)
    url = settings.gateway_url
    if url is None:
        if settings.pull:
            raise SettingRefused("--pull", "it needs a gateway; set --url")
        return NsqdSource(names, settings, access, window=window)
    if settings.pull:
        return PullSource(url, names, access, window=window)
    return GatewaySource(url, names, settings, access, window=window)


class _MessageWriter:
    """Writes the messages of one run of the command, and finishes those that are written."""

    def __init__(self, source: MessageSource, task: SubTask, max_in_flight: int) -> None:
        self._source = source
        self._output = OutputStream(task.output)
        self._line_of = _json_line if task.as_json else _body_line
        self._max_in_flight = max_in_flight
        self._remaining = task.count
        self.reader_gone = self._output.reader_gone
        """Done when the reader has closed the pipe, even if nothing is being written."""

    async def run(self) -> GatewayError | None:
        """
        Write messages until the count is reached or the pipe is closed.

        Return the error that ended the run before, or None.
        """
        try:
            async for batch in self._source.batches():
                # Leave out the messages beyond the count: closing the source requeues them.
                if not await self._write(batch[: self._remaining]) or self._remaining == 0:
                    break
        except GatewayError as error:
            return error
        return None

    async def _write(self, batch: Sequence[ReceivedMessage]) -> bool:
        """Write *batch*, finish what is written, requeue the rest; False if the pipe is closed."""
        write = self._output.write([self._line_of(message) for message in batch])
        try:
            # Shielded: a cancelled future would lose the number of written lines.
            written, error = await asyncio.shield(write)
        except asyncio.CancelledError:
            # The write runs in a thread. It may be complete, with its result on the way to this
            # loop, or blocked by a reader that does not read: wait briefly for the result.
            self._output.stop()
            await asyncio.wait({write}, timeout=_LAST_WRITE_S)
            await self._finish_or_requeue(batch, written=write.result()[0] if write.done() else 0)
            raise
        await self._finish_or_requeue(batch, written=written)
        if error is not None and not reader_is_gone(error):
            raise OutputFailed(f"standard output: {error.strerror}") from error
        return error is None

    async def _finish_or_requeue(self, batch: Sequence[ReceivedMessage], *, written: int) -> None:
        """Finish the first *written* messages of *batch*, and requeue the others."""
        window = self._max_in_flight
        if self._remaining is not None:
            self._remaining -= written
            window = min(window, self._remaining)
        if written < len(batch):
            # Otherwise nsqd would deliver the requeued messages to this command again.
            window = 0
        # Before FIN: it frees a place in the window, and nsqd would deliver one message too many.
        await self._source.set_window(window)
        if written:
            await self._source.finish(batch[:written])
        if written < len(batch):
            await self._source.requeue(batch[written:])


def _body_line(message: ReceivedMessage) -> bytes:
    return message.body + b"\n"


def _json_line(message: ReceivedMessage) -> bytes:
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
