"""
The connections by which a worker of Spark publishes; it keeps them from one task to the next.

The sockets live in a thread of their own, so that heartbeats are answered between two tasks, and
while a task waits for Spark. An nsqd that goes leaves it unknown what became of the batches that
it had not answered: they are published again, to another one where there is one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import threading
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, TypeVar

import uvloop

from gateway.client.backoff import Backoff
from gateway.client.connection import BrokerConnection, Reply
from gateway.client.lookup import Discovery, Watch
from gateway.client.opening import open_connection
from gateway.errors import (
    BrokerRefused,
    BrokerUnreachable,
    GatewayError,
    NoBroker,
    OutcomeUnknown,
)
from gateway.nsqd_access import read_access
from gateway.pipeline.sink_rows import RowLimits, Rows, commands, fits
from gateway.protocol.frames import OK, ErrorFrame, Message
from gateway.settings_sink import SinkSettings
from gateway.telemetry import get_logger

logger = get_logger()

T = TypeVar("T")

_TRIES = 3
"""Each has so much of the time for an answer."""
_MOST_LINES = 16
"""Connections of one worker: with more nsqds than that each worker takes some of them."""
_RETRY_CEILING_S = 5.0
_STOP_S = 3.0
_MOST_OUTLETS = 8
"""Of a process; a topic of its own for each batch makes another one each time."""
_LIMITS = (
    ("max_msg_size_bytes", re.compile(r"message too big \d+ > (\d+)")),
    ("max_body_size_bytes", re.compile(r"body too big \d+ > (\d+)")),
    ("max_defer_ms", re.compile(r"timeout -?\d+ out of range 0-(\d+)")),
)
"""How nsqd tells a limit when it refuses (nsqd/protocol_v2.go); it has no other way over TCP."""
_MAY_WORK_ELSEWHERE = frozenset({"E_PUB_FAILED", "E_MPUB_FAILED", "E_DPUB_FAILED"})
"""nsqd is about to exit, or its disk failed; a part of an MPUB may be published."""


class LimitLearned(GatewayError):
    """A batch is not one under the limits that nsqd has told meanwhile; nothing was published."""


class Line:
    """One nsqd, and the connection to it while there is one."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.unanswered = 0
        self.used = 0
        """When it was last chosen, as a count of choices."""
        self.not_before = 0.0
        """On the event loop's clock: when it may be tried again."""
        self.connection: BrokerConnection | None = None
        self.opening = asyncio.Lock()
        self._backoff = Backoff(random.random, ceiling_s=_RETRY_CEILING_S)

    @property
    def is_open(self) -> bool:
        """Whether a command could be written now."""
        return self.connection is not None and self.connection.is_open

    def failed(self, now: float) -> None:
        """Leave it alone for a while."""
        self.not_before = now + self._backoff.next_delay_s()

    def worked(self) -> None:
        """Count on it again."""
        self._backoff = Backoff(random.random, ceiling_s=_RETRY_CEILING_S)

    # What the connection tells

    def messages_arrived(self, connection: BrokerConnection, messages: list[Message]) -> None:
        """Never happens: nobody subscribes here."""

    def command_refused(self, connection: BrokerConnection, frame: ErrorFrame) -> None:
        """Never happens: nobody finishes, requeues or touches here."""

    def connection_ended(self, connection: BrokerConnection, error: BrokerUnreachable) -> None:
        """Open another one when there is something to publish."""
        del error
        if self.connection is connection:
            self.connection = None


class Outlet:
    """
    The connections of a process; methods may be called from any thread, and `close` ends it.

    *limits* become smaller when an nsqd tells that its own are.
    """

    def __init__(self, settings: SinkSettings) -> None:
        """Read the secret and the files of TLS; nothing is connected to before there is work."""
        self._access = read_access(settings)
        self.settings = settings
        self.repeated_rows = 0
        """Rows that may have been published twice."""
        self.limits = RowLimits(
            settings.max_msg_size,
            settings.max_body_size,
            settings.max_req_timeout,
            settings.batch_rows,
            settings.batch_bytes,
        )
        self._timeout_s = settings.answer_timeout_ms / 1_000
        self._connection = replace(self._access.connection, secret=self._access.secret)
        self._discovery = Discovery(settings.nsqd_tcp_address, self._access.lookup)
        self._watch: Watch | None = None
        self._lines: dict[str, Line] = {}
        self._choices = 0
        self._start = random.random()  # noqa: S311 - which of many nsqds are taken
        self._starting: asyncio.Lock
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="nsq outlet", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._starting = asyncio.Lock()
        self._loop.run_forever()

    def _begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    # What a task's thread calls

    def publish(self, rows: Rows) -> Future[None]:
        """
        Publish a part that `sink_rows.batches` has made; the future is done when nsqd has said OK.

        It raises NoBroker or OutcomeUnknown after answer_timeout_ms, BrokerRefused or AuthRequired
        for what no other try would change, and LimitLearned for rows to be sifted again.
        """
        return self._begin(self._publish(rows))

    @property
    def is_open(self) -> bool:
        """Whether it was not closed yet."""
        return self._thread.is_alive()

    def close(self) -> None:
        """Close every connection and end the thread; idempotent."""
        if self._thread.is_alive():
            with contextlib.suppress(TimeoutError):
                self._begin(self._stop()).result(_STOP_S)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_STOP_S)

    # The same in the event loop

    async def _publish(self, rows: Rows) -> None:
        deadline = self._loop.time() + self._timeout_s
        error: GatewayError | None = None
        was_written = False
        while True:
            if not fits(rows, self.limits):
                raise LimitLearned("nsqd takes less than it was taken to")
            line = await self._line(deadline)
            if line is None:
                raise self._given_up(rows, error, was_written=was_written)
            try:
                async with asyncio.timeout_at(deadline):
                    connection = await self._open(line)
            except (BrokerUnreachable, TimeoutError) as why:
                line.failed(self._loop.time())
                error = why if isinstance(why, BrokerUnreachable) else error
                continue
            if was_written:
                self.repeated_rows += len(rows.bodies)
                logger.warning(
                    "batch is published again",
                    nsqd=line.address,
                    topic=rows.topic,
                    rows=len(rows.bodies),
                    reason=str(error),
                )
            was_written = True
            error = await self._try(line, connection, rows, deadline)
            if error is None:
                return

    async def _try(
        self, line: Line, connection: BrokerConnection, rows: Rows, deadline: float
    ) -> GatewayError | None:
        """Return None for OK, or why to try again; raises what no other try would change."""
        line.unanswered += 1
        try:
            wait_s = min(self._timeout_s / _TRIES, max(0.001, deadline - self._loop.time()))
            await _ask(connection, rows, wait_s)
        except BrokerUnreachable as error:
            line.failed(self._loop.time())
            return error
        except BrokerRefused as error:
            # nsqd closes behind a refusal, and has published nothing of that command.
            if error.code in _MAY_WORK_ELSEWHERE:
                line.failed(self._loop.time())
                return error
            self._learn(error)
            if not fits(rows, self.limits):
                if rows.defers_ms is not None:
                    # Each has a command of its own, and those before the refused one had their OK.
                    self.repeated_rows += len(rows.bodies)
                raise LimitLearned(str(error)) from error
            what = f"{error.description} (nsqd at {line.address}, topic {rows.topic})"
            raise BrokerRefused(error.code, what) from error
        finally:
            line.unanswered -= 1
        line.worked()
        return None

    def _learn(self, error: BrokerRefused) -> None:
        for name, pattern in _LIMITS:
            if found := pattern.search(error.description):
                lower = min(int(found[1]), getattr(self.limits, name))
                self.limits = self.limits._replace(**{name: lower})

    async def _line(self, deadline: float) -> Line | None:
        """Return the nsqd that has least to do, once one may be tried; None: none until then."""
        await self._find(deadline)
        while (now := self._loop.time()) < deadline:
            self._meet()
            lines = list(self._lines.values())
            ready = [line for line in lines if line.is_open or line.not_before <= now]
            if ready:
                self._choices += 1
                line = min(ready, key=lambda line: (line.unanswered, line.used))
                line.used = self._choices
                return line
            # No longer than a second, for another nsqd may be found.
            assert self._watch is not None  # noqa: S101 - `_find` came before
            self._watch.refresh()
            until = min([deadline, now + 1, *(line.not_before for line in lines)])
            await asyncio.sleep(until - now)
        return None

    def _given_up(
        self, rows: Rows, error: GatewayError | None, *, was_written: bool
    ) -> GatewayError:
        what = f"{len(rows.bodies)} rows for topic {rows.topic}"
        why = f"within {self.settings.answer_timeout_ms} ms ({error or 'no nsqd is known'})"
        if was_written:
            return OutcomeUnknown(f"no OK to {what} {why}; they may or may not be published")
        return NoBroker(f"no nsqd could take {what} {why}; they are not published")

    async def _find(self, deadline: float) -> None:
        """Know where nsqd is, if somebody tells in time."""
        async with self._starting:
            if self._watch is None:
                await self._discovery.start()
                self._watch = self._discovery.watch_nodes(lambda _addresses: None)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                await self._watch.first_answer()

    def _meet(self) -> None:
        """Have a line to each nsqd that is known now, or to some where there are many."""
        assert self._watch is not None  # noqa: S101 - `_find` came before
        known = sorted(self._watch.addresses)
        start = int(self._start * len(known))
        mine = (known[start:] + known[:start])[:_MOST_LINES]
        for address in mine:
            if address not in self._lines:
                self._lines[address] = Line(address)
        for address in self._lines.keys() - set(mine):
            if not self._lines[address].is_open:
                del self._lines[address]

    async def _open(self, line: Line) -> BrokerConnection:
        async with line.opening:
            if not line.is_open:
                if line.not_before > self._loop.time():
                    # Another batch has just tried it.
                    raise BrokerUnreachable(line.address, "it could not be connected to")
                line.connection = await open_connection(line.address, self._connection, line)
            assert line.connection is not None  # noqa: S101 - it is open
            return line.connection

    async def _stop(self) -> None:
        for task in asyncio.all_tasks():
            if task is not asyncio.current_task():
                task.cancel()
        if self._watch is not None:
            self._watch.close()
            await self._discovery.stop()
        for line in self._lines.values():
            if line.connection is not None:
                await line.connection.close()


async def _ask(connection: BrokerConnection, rows: Rows, timeout_s: float) -> None:
    """Write what publishes *rows*, and wait for each OK."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()
    asked = commands(rows)
    left = len(asked)

    def answered(reply: Reply) -> None:
        nonlocal left
        left -= 1
        if done.done():
            return
        if reply == OK:
            if not left:
                done.set_result(None)
        elif isinstance(reply, ErrorFrame):
            done.set_exception(BrokerRefused(reply.code, reply.description))
        elif isinstance(reply, BrokerUnreachable):
            done.set_exception(reply)
        else:
            reason = f"answered {reply.data[:64]!r} to a publish, which is not OK"
            connection.abort(reason)
            done.set_exception(BrokerUnreachable(connection.address, reason))

    for command in asked:
        connection.ask(command, answered)
    try:
        async with asyncio.timeout(timeout_s):
            await done
    except TimeoutError:
        # Answers come in order: behind this one nothing could be answered either.
        reason = f"no answer to a publish within {timeout_s:.3g} s"
        connection.abort(reason)
        raise BrokerUnreachable(connection.address, reason) from None


# The outlets of this process

_outlets: dict[tuple[tuple[str, str], ...], Outlet] = {}
_owner = os.getpid()


def outlet_of(options: Mapping[str, str], make: Callable[[], Outlet]) -> Outlet:
    """
    Return the outlet of this process for *options*; *make* makes the first one.

    The one that was longest not asked for is closed when there are too many. To be called by tasks,
    of which a process has one at a time.
    """
    global _owner  # noqa: PLW0603 - a module is what outlives a task
    if _owner != os.getpid():
        # A child has the table and not the threads.
        _outlets.clear()
        _owner = os.getpid()
    key = tuple(sorted(options.items()))
    # The last in the table is the one that was used last.
    outlet = _outlets.pop(key, None) or make()
    _outlets[key] = outlet
    while len(_outlets) > _MOST_OUTLETS:
        discard(next(iter(_outlets.values())))
    return outlet


def discard(outlet: Outlet) -> None:
    """Close *outlet*, with which something was wrong: the next task makes another one."""
    for key, other in list(_outlets.items()):
        if other is outlet:
            del _outlets[key]
    outlet.close()
