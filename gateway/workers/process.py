"""One worker's process, from outside: started, asked, told to end, reaped."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import socket
import sys
from asyncio.subprocess import DEVNULL, Process
from typing import Any

from gateway.errors import StartError
from gateway.telemetry import spawn
from gateway.workers.channel import Channel, Message, Order, order_message


class WorkerProcess:
    """A process, the channel to it, and the questions that it has not answered yet."""

    def __init__(self, number: int, process: Process, channel: Channel) -> None:
        self.pid = process.pid
        self._number = number
        self._process = process
        self._channel = channel
        self._ready: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()
        self._questions: dict[int, asyncio.Future[Any]] = {}
        self._ids = itertools.count(1)
        self._listening = spawn(f"listen to process {self.pid}", self._listen())

    @classmethod
    async def start(cls, order: Order, listener: socket.socket) -> WorkerProcess:
        """
        Start a worker that answers on *listener*, of which it has a copy; see `ready`.

        Raises:
            StartError: The system has no room for another process or descriptor.
        """
        try:
            ours, theirs = socket.socketpair()
            try:
                with theirs:
                    process = await _spawned(theirs.fileno(), listener.fileno())
                channel = await Channel.open(ours)
            except BaseException:
                ours.close()
                raise
        except OSError as error:
            raise StartError(f"worker {order.worker} cannot be started: {error}") from error
        worker = cls(order.worker, process, channel)
        channel.send(order_message(order, listener.fileno()))
        return worker

    async def ready(self) -> list[str]:
        """Return what the worker tells, once it answers; raises StartError when it ends before."""
        return await asyncio.shield(self._ready)

    async def ask(self, question: str, timeout_s: float) -> Any | None:  # noqa: ANN401 - as JSON
        """Return its answer; None when it gives none within *timeout_s*."""
        number = next(self._ids)
        answer = self._questions[number] = asyncio.get_running_loop().create_future()
        self._channel.send({"ask": question, "id": number})
        try:
            async with asyncio.timeout(timeout_s):
                return None if self._listening.done() else await answer
        except TimeoutError:
            return None
        finally:
            del self._questions[number]

    def end(self) -> None:
        """Tell it to drain and end."""
        self._channel.send({"end": True})

    def hurry(self) -> None:
        """Tell it to end at once."""
        self._channel.send({"hurry": True})

    def kill(self) -> None:
        """End it, whatever it does."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    async def ended(self) -> int:
        """Return the exit status once it has ended, with nothing of it left; below 0 a signal."""
        status = await self._process.wait()
        await asyncio.wait({self._listening})
        await self._channel.close()
        return status

    async def _listen(self) -> None:
        while (message := await self._channel.receive()) is not None:
            self._take(message)
        self._fail("it ended before it was ready; its log says why")
        for answer in self._questions.values():
            if not answer.done():
                answer.set_result(None)

    def _take(self, message: Message) -> None:
        if "ready" in message:
            self._ready.set_result(message["ready"])
        elif "failed" in message:
            self._fail(message["failed"])
        # A question that was given up is not there any more.
        elif (answer := self._questions.get(message["id"])) is not None and not answer.done():
            answer.set_result(message["answer"])

    def _fail(self, reason: str) -> None:
        if not self._ready.done():
            self._ready.set_exception(StartError(f"worker {self._number}: {reason}"))
            self._ready.exception()  # seen: nobody may be waiting any more


async def _spawned(channel: int, listener: int) -> Process:
    """Return a new interpreter that finds what this one found, and holds both descriptors."""
    # -P and our own path: neither the folder where we stand nor anything else comes before it.
    path = os.pathsep.join(entry or os.curdir for entry in sys.path)
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",
        "-m",
        "gateway.workers",
        str(channel),
        stdin=DEVNULL,
        env={**os.environ, "PYTHONPATH": path},
        pass_fds=(channel, listener),
        # Ctrl-C on a terminal is for the supervisor, which passes it on.
        start_new_session=True,
    )
