"""
`nsq-gateway pub`: lines of standard input to messages.

One batch is on its way at a time, made of what had come when the one before it was answered. So
messages keep their order, and when something fails it can be said from which line to go on.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TextIO, TypeAlias

from gateway.commands.interruption import watch_signals
from gateway.commands.names import check_names
from gateway.commands.progress import Progress
from gateway.commands.publish_target import Target, open_target
from gateway.commands.streams import InputStream, Lines
from gateway.errors import BrokerRefused, GatewayError, InvalidRequest, OutcomeUnknown
from gateway.nsqd_access import read_access
from gateway.settings_commands import PubSettings

_MAX_BATCH_BYTES = 1_048_576
_COUNT_BYTES = _SIZE_BYTES = 4

Line: TypeAlias = tuple[int, bytes]
"""Its number in the input, from 1, and what is in it."""


@dataclass(frozen=True, kw_only=True)
class PubTask:
    """What is to be done."""

    topic: str
    defer_ms: int = 0
    input: int
    """The file descriptor to read."""
    report: TextIO
    """Where a person reads how far it is."""


class LinesFailed(GatewayError):
    """Lines of the input are not published, or nobody knows whether they are."""

    def __init__(self, lines: Sequence[Line], error: GatewayError, *, published: int) -> None:
        first, last = lines[0][0], lines[-1][0]
        name = f"line {first}" if first == last else f"lines {first} to {last}"
        fate = (
            "may or may not be published" if isinstance(error, OutcomeUnknown) else "not published"
        )
        super().__init__(
            f"{name} {fate}: {error}\n"
            f"{published} messages before are published; to go on from there: tail -n +{first}"
        )


async def run_pub(settings: PubSettings, task: PubTask) -> signal.Signals | None:
    """
    Publish every line of the input; return the signal that ended it early, or None.

    Raises:
        SettingsError: The topic is none, or a file that the settings name cannot be used.
        LinesFailed: Something was not answered with OK; the text says from which line to go on.
    """
    check_names(topic=task.topic)
    access = read_access(settings)
    interruption = watch_signals(signal.SIGINT, signal.SIGTERM)
    async with open_target(settings, access) as target:
        publishing = _Publishing(target, settings, task)
        try:
            await publishing.run(interruption)
        finally:
            publishing.progress.end()
    if not interruption.done():
        return None
    count = publishing.progress.messages
    task.report.write(f"nsq-gateway: interrupted; {count} messages are published\n")
    return interruption.result()


class InputFailed(GatewayError):
    """Standard input gives no more, and not because it has ended."""


class _Publishing:
    """One run of the command."""

    def __init__(self, target: Target, settings: PubSettings, task: PubTask) -> None:
        self.progress = Progress(task.report)
        self._target = target
        self._task = task
        self._max_msg_size = settings.max_msg_size
        self._batch_bytes = min(_MAX_BATCH_BYTES, settings.max_body_size) - _COUNT_BYTES

    async def run(self, interruption: asyncio.Future[signal.Signals]) -> None:
        """Publish line by line until the input ends, or *interruption* is done."""
        source = InputStream(self._task.input)
        lines = Lines(max_bytes=self._max_msg_size)
        while (data := await self._read(source, interruption)) is not None:
            for batch in self._batches(lines.feed(data)):
                await self._publish(batch)
                if interruption.done():
                    return
            if not data:
                return

    async def _read(
        self, source: InputStream, interruption: asyncio.Future[signal.Signals]
    ) -> bytes | None:
        try:
            return await source.read(until=interruption)
        except OSError as error:
            count = self.progress.messages
            text = f"standard input cannot be read: {error.strerror}; {count} lines are published"
            raise InputFailed(text) from error

    def _batches(self, lines: Sequence[Line]) -> Iterator[list[Line]]:
        """Split *lines* into what goes together; what is deferred goes alone, as DPUB does."""
        batch: list[Line] = []
        size_bytes = 0
        for line in lines:
            line_bytes = _SIZE_BYTES + len(line[1])
            if batch and (self._task.defer_ms or size_bytes + line_bytes > self._batch_bytes):
                yield batch
                batch, size_bytes = [], 0
            batch.append(line)
            size_bytes += line_bytes
        if batch:
            yield batch

    async def _publish(self, lines: Sequence[Line]) -> None:
        bodies = [body for _, body in lines]
        try:
            self._check(bodies)
            await self._target.publish(self._task.topic, bodies, defer_ms=self._task.defer_ms)
        except GatewayError as error:
            if not (len(lines) > 1 and _may_be_one_of_them(error)):
                raise LinesFailed(lines, error, published=self.progress.messages) from error
        else:
            self.progress.add(messages=len(bodies), size_bytes=sum(map(len, bodies)))
            return
        # Alone each gets an answer of its own, and those before the one to blame are published.
        for line in lines:
            await self._publish([line])

    def _check(self, bodies: Sequence[bytes]) -> None:
        """Refuse what no broker takes, and what may be the mere beginning of a line."""
        longest_bytes = max(map(len, bodies))
        if longest_bytes > self._max_msg_size:
            text = f"it is longer than --max-msg-size, {self._max_msg_size} bytes"
            raise InvalidRequest("MSG_TOO_BIG", text)


def _may_be_one_of_them(error: GatewayError) -> bool:
    """Tell whether *error* may be the fault of one message, with none of them published."""
    if isinstance(error, BrokerRefused):
        return not error.is_about_access
    return isinstance(error, InvalidRequest)
