"""
A worker process and its channel to the supervisor.

The channel is a socket pair. Each message is a JSON object after its length in 4 bytes, big-endian.
The end of the stream means that the other process has ended.

From the supervisor: first the configuration (`config_message`), then ``{"get": "state", "id": 1}``,
``{"get": "metrics", "id": 2}``, ``{"get": "ack", "id": 3, "body": …, "signature": …}``,
``{"shutdown": true}``, ``{"force": true}``. From the worker: once
``{"ready": [line, …]}`` or ``{"failed": reason}``, and ``{"id": 1, "result": …}``.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import socket
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

from gateway.aio import spawn
from gateway.client.from_settings import NsqdAddresses
from gateway.credentials import Secret
from gateway.errors import StartError
from gateway.settings.serve import ServeSettings

Message: TypeAlias = dict[str, Any]

_LENGTH_BYTES = 4


class WorkerChannel:
    """One end of the channel between the supervisor and a worker."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, end: socket.socket) -> WorkerChannel:
        """Return a channel that uses the socket *end*; `close` also closes the socket."""
        return cls(*await asyncio.open_unix_connection(sock=end))

    def send(self, message: Message) -> None:
        """Send *message* to the other process; do nothing if that process has ended."""
        if not self._writer.is_closing():
            body = json.dumps(message).encode()
            self._writer.write(len(body).to_bytes(_LENGTH_BYTES, "big") + body)

    async def receive(self) -> Message | None:
        """Return the next message; None if the other process has ended."""
        try:
            length = int.from_bytes(await self._reader.readexactly(_LENGTH_BYTES), "big")
            message: Message = json.loads(await self._reader.readexactly(length))
        except (asyncio.IncompleteReadError, OSError):
            return None
        return message

    async def close(self) -> None:
        """Send what is buffered, and close this end of the channel."""
        self._writer.close()
        try:
            await self._writer.wait_closed()
        except OSError:
            return  # the other end is closed already


@dataclass(frozen=True, kw_only=True)
class WorkerConfig:
    """The configuration of a worker."""

    worker: int
    """Number of the worker, from 0."""
    settings: ServeSettings
    """The same for all workers. Has the secret in place of its file, which may change meanwhile."""
    nsqds: NsqdAddresses
    """The nsqds to use, or the supervisor's embedded broker."""
    lease_key: str = ""
    """The key of leases that all workers share, in hexadecimal digits."""
    management_address: str = ""
    """host:port of the supervisor's management port, which passes acks on to other workers."""


def config_message(config: WorkerConfig, listener: int) -> Message:
    """Return the message with *config* and *listener*, the descriptor of the listening socket."""
    given = {field.name: getattr(config, field.name) for field in fields(config)}
    values = {name: _as_json(value) for name, value in config.settings}
    return {**given, "settings": values, "nsqds": config.nsqds, "listener": listener}


def parse_config(message: Mapping[str, Any]) -> tuple[WorkerConfig, int]:
    """Return what a `config_message` has: the configuration, and the listener's descriptor."""
    config = WorkerConfig(
        worker=message["worker"],
        # The message has every setting, so that none is read from the environment again.
        settings=ServeSettings.model_validate(message["settings"]),
        nsqds=NsqdAddresses(*map(tuple, message["nsqds"])),
        lease_key=message["lease_key"],
        management_address=message["management_address"],
    )
    return config, message["listener"]


def _as_json(value: object) -> object:
    # As in the environment: bytes that are not UTF-8 survive as surrogates.
    return os.fsdecode(value.reveal()) if isinstance(value, Secret) else value


class WorkerProcess:
    """A worker process as its supervisor sees it: the channel to it, and pending requests."""

    def __init__(self, number: int, process: Process, channel: WorkerChannel) -> None:
        self.pid = process.pid
        self._number = number
        self._process = process
        self._channel = channel
        self._ready: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()
        self._requests: dict[int, asyncio.Future[Any]] = {}
        self._ids = itertools.count(1)
        self._receiver = spawn(f"receive from worker process {self.pid}", self._receive())

    @classmethod
    async def start(cls, config: WorkerConfig, listener: socket.socket) -> WorkerProcess:
        """
        Start a process that serves a copy of *listener*; to wait until it serves, call `ready`.

        Raises:
            StartError: The system cannot create a process or descriptor.
        """
        try:
            ours, theirs = socket.socketpair()
            try:
                # Close the copy of the worker's end here: while a copy is open, the stream does
                # not end when the worker does.
                with theirs:
                    process = await _spawn_interpreter(theirs.fileno(), listener.fileno())
                channel = await WorkerChannel.open(ours)
            except BaseException:
                ours.close()
                raise
        except OSError as error:
            raise StartError(f"worker {config.worker} cannot be started: {error}") from error
        worker = cls(config.worker, process, channel)
        channel.send(config_message(config, listener.fileno()))
        return worker

    async def ready(self) -> list[str]:
        """Wait until the worker is ready; return its warnings. Raises StartError if it fails."""
        # Shielded: a cancelled caller would cancel the future, which `_on_message` sets later.
        return await asyncio.shield(self._ready)

    async def request(self, name: str, timeout_s: float, **more: object) -> Any | None:  # noqa: ANN401 - as JSON
        """
        Ask the worker for ``state``, ``metrics``, or with *more* ``ack``.

        Returns None if no answer comes in *timeout_s*.
        """
        number = next(self._ids)
        response = self._requests[number] = asyncio.get_running_loop().create_future()
        self._channel.send({"get": name, "id": number, **more})
        try:
            async with asyncio.timeout(timeout_s):
                # Without a receiver, nobody would complete the future.
                return None if self._receiver.done() else await response
        except TimeoutError:
            return None
        finally:
            del self._requests[number]

    def shut_down(self) -> None:
        """Request a graceful shutdown: the worker drains, then stops."""
        self._channel.send({"shutdown": True})

    def force(self) -> None:
        """Request an immediate shutdown."""
        self._channel.send({"force": True})

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    async def wait(self) -> int:
        """Wait until the process ends; return its exit status, negative for a signal."""
        status = await self._process.wait()
        # The channel may still contain the last message, with the reason of a failed start.
        await asyncio.wait({self._receiver})
        await self._channel.close()
        return status

    async def _receive(self) -> None:
        while (message := await self._channel.receive()) is not None:
            self._on_message(message)
        self._fail("the process ended before it was ready; its log has the reason")
        # Answer pending requests at once: otherwise each would wait for its timeout.
        for response in self._requests.values():
            if not response.done():
                response.set_result(None)

    def _on_message(self, message: Message) -> None:
        if "ready" in message:
            self._ready.set_result(message["ready"])
        elif "failed" in message:
            self._fail(message["failed"])
        # A request that timed out is no longer pending.
        elif (response := self._requests.get(message["id"])) is not None and not response.done():
            response.set_result(message["result"])

    def _fail(self, reason: str) -> None:
        if not self._ready.done():
            self._ready.set_exception(StartError(f"worker {self._number}: {reason}"))
            # Retrieve the exception, so that asyncio does not log it if `ready` is not awaited.
            self._ready.exception()


async def _spawn_interpreter(channel: int, listener: int) -> Process:
    """Start a worker's interpreter, with this module search path and copies of both descriptors."""
    # -P keeps the current directory out of sys.path.
    path = os.pathsep.join(entry or os.curdir for entry in sys.path)
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",
        "-m",
        "gateway.server.workers",
        str(channel),
        stdin=DEVNULL,
        env={**os.environ, "PYTHONPATH": path},
        pass_fds=(channel, listener),
        # Ctrl-C on a terminal only reaches the supervisor, which shuts down its workers.
        start_new_session=True,
    )
