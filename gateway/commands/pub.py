"""
`nsq-gateway pub`: what comes on standard input to messages.

One batch is on its way at a time, made of what had come when the one before it was answered, and
the next one waits until it is published. So messages keep their order whatever is tried again, and
when something fails it can be said from where to go on.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TextIO, TypeAlias

from gateway.client.batch import COUNT_BYTES, MAX_BATCH_BYTES
from gateway.commands.framing import NEWLINE, Framing, LengthPrefixed, Lines, Run
from gateway.commands.interruption import watch_signals
from gateway.commands.names import check_names
from gateway.commands.progress import Progress
from gateway.commands.publish_target import Target, open_target
from gateway.commands.retries import Retries, in_short
from gateway.commands.streams import InputStream
from gateway.errors import BrokerRefused, GatewayError, InvalidRequest, OutcomeUnknown
from gateway.nsqd_access import read_access
from gateway.settings_commands import PubSettings
from gateway.words import counted

FramingName: TypeAlias = Literal["lines", "length-prefixed"]

_AT_LEAST_ONCE = "what may be published is not tried again, unless --at-least-once is given"


@dataclass(frozen=True, kw_only=True)
class PubTask:
    """What is to be done."""

    topic: str
    defer_ms: int = 0
    framing: FramingName = "lines"
    delimiter: bytes = NEWLINE
    """Of lines: one byte."""
    is_verbose: bool = False
    """Whether the sum is told at the end where there is no terminal, too."""
    input: int
    """The file descriptor to read."""
    report: TextIO
    """Where a person reads how far it is."""


class RecordsFailed(GatewayError):
    """Messages of the input are not published, or nobody knows whether they are."""


class InputFailed(GatewayError):
    """Standard input gives no more, and not because it has ended."""


class Interrupted(GatewayError):
    """A signal ended the command before its input did; the text says from where to go on."""


async def run_pub(settings: PubSettings, task: PubTask) -> signal.Signals | None:
    """
    Publish every message of the input; return the signal that ended it early, or None.

    Raises:
        SettingsError: The topic is none, or a file that the settings name cannot be used.
        RecordsFailed: Something was not answered with OK; the text says from where to go on.
        InputFailed: Standard input cannot be read.
    """
    check_names(topic=task.topic)
    access = read_access(settings)
    interruption = watch_signals(signal.SIGINT, signal.SIGTERM)
    async with open_target(settings, access) as target:
        publishing = _Publishing(target, settings, task, interruption)
        try:
            await publishing.run()
        except Interrupted as told:
            publishing.end(str(told))
            return interruption.result()
        finally:
            publishing.end()
    return None


class _Publishing:
    """One run of the command."""

    def __init__(
        self,
        target: Target,
        settings: PubSettings,
        task: PubTask,
        interruption: asyncio.Future[signal.Signals],
    ) -> None:
        self._target = target
        self._task = task
        self._interruption = interruption
        self._batch_bytes = min(MAX_BATCH_BYTES, settings.max_body_size) - COUNT_BYTES
        self._framing = _framing(task, max_bytes=settings.max_msg_size)
        self._retry_for_s = settings.retry_for_s
        self._retries = Retries(
            random.random,
            retry_for_s=settings.retry_for_s,
            at_least_once=settings.at_least_once,
        )
        self._progress = Progress(
            task.report, is_verbose=task.is_verbose, is_typed=os.isatty(task.input)
        )
        self._next = (1, 0)
        """Number and start of the first message that is not published."""
        self._doubled_count = 0
        """Messages that may be published more than once."""
        self._has_ended = False

    def end(self, told: str = "") -> None:
        """Tell the sum, what may be doubled, and then what is *told*; once."""
        if self._has_ended:
            return
        self._has_ended = True
        self._progress.end()
        if self._doubled_count:
            text = f"{counted(self._doubled_count, 'message')} may be published more than once"
            self._progress.tell(text)
        if told:
            self._progress.tell(told)

    # From input to batches

    async def run(self) -> None:
        """Publish message by message until the input ends."""
        source = InputStream(self._task.input)
        while True:
            data = await self._read(source)
            for batch in self._batches(self._framing.feed(data)):
                await self._publish(batch, is_unknown=False)
                if self._interruption.done():
                    raise self._interrupted()
            if refusal := self._framing.refusal:
                self._next = (refusal.number, refusal.start)
                where = self._framing.name(refusal.number, refusal.number, refusal.start)
                raise RecordsFailed(f"{where} not published: {refusal.error}\n{self._so_far()}")
            if not data:
                return

    async def _read(self, source: InputStream) -> bytes:
        try:
            data = await source.read(until=self._interruption)
        except OSError as error:
            text = f"standard input cannot be read: {error.strerror}; {self._so_far()}"
            raise InputFailed(text) from error
        if data is None:
            raise self._interrupted()
        return data

    def _batches(self, run: Run) -> list[Run]:
        """Split *run* into what goes together; what is deferred goes alone, as DPUB does."""
        return run.batches(1 if self._task.defer_ms else self._batch_bytes)

    # From a batch to its answer

    async def _publish(self, run: Run, *, is_unknown: bool) -> None:
        """
        Publish *run*, all of one batch; return once it is.

        *is_unknown* says that an earlier try may have published it.
        """
        bodies = run.bodies
        while True:
            try:
                await self._send(bodies)
            except GatewayError as error:
                is_unknown = is_unknown or isinstance(error, OutcomeUnknown)
                is_final = not self._retries.may_repeat(error)
                if len(bodies) > 1 and is_final and _may_be_one_of_them(error):
                    break
                await self._wait_after(error, run, is_unknown=is_unknown)
            else:
                self._published(run, bodies, is_unknown=is_unknown)
                return
        # Those before the one to blame are published, and it gets an answer of its own.
        count = len(run.pieces)
        for part in (run.between(0, count // 2), run.between(count // 2, count)):
            if part.pieces:
                await self._publish(part, is_unknown=is_unknown)

    async def _send(self, bodies: Sequence[bytes]) -> None:
        task = self._task
        if task.defer_ms:
            await self._target.publish_deferred(task.topic, bodies[0], task.defer_ms)
        else:
            await self._target.publish(task.topic, bodies)

    def _published(self, run: Run, bodies: Sequence[bytes], *, is_unknown: bool) -> None:
        self._next = (run.last_number + 1, run.end)
        self._retries.succeeded()
        self._doubled_count += len(bodies) if is_unknown else 0
        self._progress.add(messages=len(bodies), size_bytes=sum(map(len, bodies)))

    async def _wait_after(self, error: GatewayError, run: Run, *, is_unknown: bool) -> None:
        """
        Wait until it is time for another try.

        Raises:
            RecordsFailed: There is no other try.
            Interrupted: A signal came.
        """
        now = asyncio.get_running_loop().time()
        delay_s = self._retries.next_delay_s(error, now)
        if delay_s is None:
            raise self._failed(run, error, is_unknown=is_unknown) from error
        self._progress.wait(in_short(error), now + delay_s)
        await asyncio.wait([self._interruption], timeout=delay_s)
        self._progress.go_on()
        if self._interruption.done():
            raise self._interrupted(run if is_unknown else None)

    # What is told

    def _failed(self, run: Run, error: GatewayError, *, is_unknown: bool) -> RecordsFailed:
        fate = "may or may not be published" if is_unknown else "not published"
        more = self._retries.count_of_batch
        tried = f" (tried {1 + more} times)" if more else ""
        hint = "" if self._retries.may_repeat(error) or not is_unknown else f"\n{_AT_LEAST_ONCE}"
        text = f"{self._named(run)} {fate}{tried}: {error}"
        return RecordsFailed(f"{text}\n{self._so_far()}{hint}")

    def _interrupted(self, unknown: Run | None = None) -> Interrupted:
        fate = f"{self._named(unknown)} may or may not be published; " if unknown else ""
        return Interrupted(f"interrupted; {fate}{self._so_far()}")

    def _named(self, run: Run) -> str:
        return self._framing.name(run.number, run.last_number, run.start)

    def _so_far(self) -> str:
        count = self._progress.messages
        verb = "is" if count == 1 else "are"
        command = self._framing.resume(*self._next)
        return (
            f"{counted(count, 'message')} before {verb} published; to go on from there: {command}"
        )


def _framing(task: PubTask, *, max_bytes: int) -> Framing:
    if task.framing == "length-prefixed":
        return LengthPrefixed(max_bytes=max_bytes)
    return Lines(max_bytes=max_bytes, delimiter=task.delimiter)


def _may_be_one_of_them(error: GatewayError) -> bool:
    """Tell whether *error* may be the fault of one message, with none of them published."""
    if isinstance(error, BrokerRefused):
        return not error.is_about_access
    return isinstance(error, InvalidRequest)
