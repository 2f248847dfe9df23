"""
Publish batches from a Spark worker process, over connections that outlive a task.

An event loop in a thread of its own serves the sockets, so that heartbeats are answered between
tasks and while a task waits for Spark. If a connection is lost, the outcome of its unanswered
batches is unknown. They are published again, to another nsqd if there is one.

`gateway.client.Producer` does not fit here. It never repeats a publish whose outcome is unknown,
has one command in flight per connection instead of `max_unanswered`, and has fixed limits. The sink
learns nsqd's limits from its refusals and then splits rows again.
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
from gateway.client.discovery import Discovery, TopicWatch
from gateway.client.from_settings import read_access
from gateway.client.handshake import open_connection
from gateway.errors import BrokerRefused, BrokerUnreachable, GatewayError, NoBroker, OutcomeUnknown
from gateway.pipeline.sink_rows import RowLimits, Rows, commands, fits
from gateway.protocol.frames import OK, ErrorFrame, Message
from gateway.settings.pipeline import NsqSinkSettings
from gateway.telemetry import get_logger

logger = get_logger()

T = TypeVar("T")

_ATTEMPTS = 3
"""Attempts to publish a batch; each has a third of answer_timeout_ms."""
_MAX_CONNECTIONS = 16
"""Connections of one worker. If there are more nsqds, each worker uses a random range of them."""
_RETRY_CEILING_S = 5.0
_STOP_TIMEOUT_S = 3.0
_MAX_PRODUCERS = 8
"""Producers per process: a query that changes an option for each batch creates one each time."""
_LIMITS = (
    ("max_msg_size_bytes", re.compile(r"message too big \d+ > (\d+)")),
    ("max_body_size_bytes", re.compile(r"body too big \d+ > (\d+)")),
    ("max_defer_ms", re.compile(r"timeout -?\d+ out of range 0-(\d+)")),
)
"""Texts by which nsqd refuses and states a limit (nsqd/protocol_v2.go); TCP has no other way."""


class LimitLearned(GatewayError):
    """
    The batch exceeds a limit that nsqd has stated since the batch was split.

    None of its rows is published; if they are deferred, the first ones may be.
    """


class SinkConnection:
    """One nsqd, with the connection to it if one is open."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.unanswered = 0
        self.last_used = 0
        """Value of the producer's pick counter when this connection was last picked."""
        self.retry_at = 0.0
        """Event loop time from which a connection attempt is allowed."""
        self.broker: BrokerConnection | None = None
        self.open_lock = asyncio.Lock()
        self._backoff = Backoff(random.random, max_delay_s=_RETRY_CEILING_S)

    @property
    def is_open(self) -> bool:
        """True if a command can be written now."""
        return self.broker is not None and self.broker.is_open

    def mark_failed(self, now: float) -> None:
        """Delay the next attempt to connect, by a backoff that grows with each failure."""
        self.retry_at = now + self._backoff.next_delay_s()

    def mark_working(self) -> None:
        """Called after an answer of OK: reset the backoff."""
        self._backoff = Backoff(random.random, max_delay_s=_RETRY_CEILING_S)

    # Callbacks of the connection

    def on_messages(self, broker: BrokerConnection, messages: list[Message]) -> None:
        """Never called: the sink does not subscribe."""

    def on_ack_refused(self, broker: BrokerConnection, frame: ErrorFrame) -> None:
        """Never called: the sink sends no FIN, REQ or TOUCH."""

    def on_connection_lost(self, broker: BrokerConnection, error: BrokerUnreachable) -> None:
        """Drop the connection; the next batch opens a new one."""
        del error
        # The loss of an earlier connection must not drop the one that has replaced it.
        if self.broker is broker:
            self.broker = None


class SinkProducer:
    """
    Publish to several nsqds, on an event loop in a thread of its own, until `close`.

    Methods may be called from any thread. `limits` shrink when an nsqd states lower ones.
    """

    def __init__(self, settings: NsqSinkSettings) -> None:
        """Read the secret and the TLS files; connect at the first batch."""
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
        self._watch: TopicWatch | None = None
        self._connections: dict[str, SinkConnection] = {}
        self._pick_count = 0
        self._offset = random.random()  # noqa: S311 - which range of many nsqds to use
        self._start_lock: asyncio.Lock
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="nsq sink", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._start_lock = asyncio.Lock()
        self._loop.run_forever()

    def _submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    # Called by a task's thread

    def publish(self, rows: Rows) -> Future[None]:
        """
        Publish *rows*, made by `sink_rows.split_rows`; the future is done when nsqd answers OK.

        Raises:
            NoBroker: No nsqd accepted the rows within answer_timeout_ms; none is published.
            OutcomeUnknown: The rows were sent, but not answered within answer_timeout_ms.
            BrokerRefused, AuthRequired: nsqd refused the rows; a retry would be refused too.
            LimitLearned: The rows exceed a limit that nsqd has just stated; split them again.
        """
        return self._submit(self._publish(rows))

    @property
    def is_open(self) -> bool:
        """True until `close`."""
        return self._thread.is_alive()

    def close(self) -> None:
        """Close all connections and end the thread; idempotent."""
        if self._thread.is_alive():
            with contextlib.suppress(TimeoutError):
                self._submit(self._stop()).result(_STOP_TIMEOUT_S)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_STOP_TIMEOUT_S)

    # On the event loop

    async def _publish(self, rows: Rows) -> None:
        deadline = self._loop.time() + self._timeout_s
        error: GatewayError | None = None
        was_written = False
        while True:
            # Another batch may have learned a lower limit since these rows were split.
            if not fits(rows, self.limits):
                raise LimitLearned("nsqd has lower limits than assumed")
            connection = await self._pick_connection(deadline)
            if connection is None:
                raise self._timeout_error(rows, error, was_written=was_written)
            try:
                async with asyncio.timeout_at(deadline):
                    broker = await self._open(connection)
            except (BrokerUnreachable, TimeoutError) as why:
                # Nothing was sent to this nsqd, so another attempt cannot publish twice.
                connection.mark_failed(self._loop.time())
                error = why if isinstance(why, BrokerUnreachable) else error
                continue
            # nsqd may have published rows of the last attempt: possible duplicates.
            if was_written:
                self.repeated_rows += len(rows.bodies)
                logger.warning(
                    "republishing batch",
                    nsqd=connection.address,
                    topic=rows.topic,
                    rows=len(rows.bodies),
                    reason=str(error),
                )
            was_written = True
            error = await self._try(connection, broker, rows, deadline)
            if error is None:
                return

    async def _try(
        self, connection: SinkConnection, broker: BrokerConnection, rows: Rows, deadline: float
    ) -> GatewayError | None:
        """
        Send *rows* once; return None if nsqd answered OK, or an error after which a retry may help.

        Any other error is raised.
        """
        connection.unanswered += 1
        try:
            # A part of the time, so that a silent nsqd leaves time to try another one.
            wait_s = min(self._timeout_s / _ATTEMPTS, max(0.001, deadline - self._loop.time()))
            await _send(broker, rows, wait_s)
        except BrokerUnreachable as error:
            connection.mark_failed(self._loop.time())
            return error
        except BrokerRefused as error:
            # nsqd publishes nothing of a refused command, and closes the connection after it. Of an
            # MPUB that it cannot store (E_MPUB_FAILED), however, a part may be published.
            if error.is_storage_error:
                connection.mark_failed(self._loop.time())
                return error
            self._learn_limit(error)
            if not fits(rows, self.limits):
                if rows.defers_ms is not None:
                    # Each row is a DPUB of its own: those before the refused one are published.
                    self.repeated_rows += len(rows.bodies)
                raise LimitLearned(str(error)) from error
            what = f"{error.description} (nsqd at {connection.address}, topic {rows.topic})"
            raise BrokerRefused(error.code, what) from error
        finally:
            connection.unanswered -= 1
        connection.mark_working()
        return None

    def _learn_limit(self, error: BrokerRefused) -> None:
        """Lower `limits` if nsqd's *error* states a lower one."""
        for name, pattern in _LIMITS:
            if found := pattern.search(error.description):
                lower = min(int(found[1]), getattr(self.limits, name))
                self.limits = self.limits._replace(**{name: lower})

    async def _pick_connection(self, deadline: float) -> SinkConnection | None:
        """
        Return the connection with the fewest unanswered batches, open or to be opened.

        Wait until an nsqd is known, and no backoff forbids to connect. Return None at *deadline*.
        """
        await self._discover(deadline)
        while (now := self._loop.time()) < deadline:
            self._update_connections()
            connections = list(self._connections.values())
            ready = [
                connection
                for connection in connections
                if connection.is_open or connection.retry_at <= now
            ]
            if ready:
                # Of equally loaded connections the one used longest ago: all take their turn.
                self._pick_count += 1
                connection = min(
                    ready, key=lambda connection: (connection.unanswered, connection.last_used)
                )
                connection.last_used = self._pick_count
                return connection
            # Check again after 1 s at most: discovery may have found another nsqd.
            assert self._watch is not None  # noqa: S101 - `_discover` came before
            self._watch.refresh()
            until = min([deadline, now + 1, *(connection.retry_at for connection in connections)])
            await asyncio.sleep(until - now)
        return None

    def _timeout_error(
        self, rows: Rows, error: GatewayError | None, *, was_written: bool
    ) -> GatewayError:
        what = f"{len(rows.bodies)} rows for topic {rows.topic}"
        why = f"within {self.settings.answer_timeout_ms} ms ({error or 'no nsqd is known'})"
        if was_written:
            return OutcomeUnknown(f"no OK to {what} {why}; they may or may not be published")
        return NoBroker(f"no nsqd could take {what} {why}; they are not published")

    async def _discover(self, deadline: float) -> None:
        """Start discovery at the first call; wait for its first answer, or until *deadline*."""
        # Batches are concurrent tasks: only the first one starts discovery.
        async with self._start_lock:
            if self._watch is None:
                await self._discovery.start()
                self._watch = self._discovery.watch_nodes(lambda _addresses: None)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                await self._watch.first_answer()

    def _update_connections(self) -> None:
        """
        Add and remove `SinkConnection`s, so that each nsqd that discovery returns has one.

        Of more than 16 nsqds, a range has them; it starts at random in each process, so that the
        processes together use all nsqds.
        """
        assert self._watch is not None  # noqa: S101 - `_discover` came before
        known = sorted(self._watch.addresses)
        start = int(self._offset * len(known))
        wanted = (known[start:] + known[:start])[:_MAX_CONNECTIONS]
        for address in wanted:
            if address not in self._connections:
                self._connections[address] = SinkConnection(address)
        # An open connection stays even if discovery has lost its nsqd: it may await answers.
        for address in self._connections.keys() - set(wanted):
            if not self._connections[address].is_open:
                del self._connections[address]

    async def _open(self, connection: SinkConnection) -> BrokerConnection:
        """Return the open connection, after connecting if needed; raises BrokerUnreachable."""
        # Concurrent batches share one attempt to connect.
        async with connection.open_lock:
            if not connection.is_open:
                if connection.retry_at > self._loop.time():
                    # Another batch has just failed to connect.
                    raise BrokerUnreachable(connection.address, "it could not be connected to")
                connection.broker = await open_connection(
                    connection.address, self._connection, connection
                )
            assert connection.broker is not None  # noqa: S101 - it is open
            return connection.broker

    async def _stop(self) -> None:
        # Publishes first: each would otherwise open another connection when it loses its own.
        for task in asyncio.all_tasks():
            if task is not asyncio.current_task():
                task.cancel()
        if self._watch is not None:
            self._watch.close()
            await self._discovery.stop()
        for connection in self._connections.values():
            if connection.broker is not None:
                await connection.broker.close()


async def _send(broker: BrokerConnection, rows: Rows, timeout_s: float) -> None:
    """Send the commands for *rows*, and wait until nsqd has answered OK to each."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()
    sent = commands(rows)
    left = len(sent)

    def on_reply(reply: Reply) -> None:
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
            broker.abort(reason)
            done.set_exception(BrokerUnreachable(broker.address, reason))

    for command in sent:
        broker.send_request(command, on_reply)
    try:
        async with asyncio.timeout(timeout_s):
            await done
    except TimeoutError:
        # Replies come in order, so no later command on this connection can be answered either.
        reason = f"no answer to a publish within {timeout_s:.3g} s"
        broker.abort(reason)
        raise BrokerUnreachable(broker.address, reason) from None


# The producers of this process

_producers: dict[tuple[tuple[str, str], ...], SinkProducer] = {}
_owner_pid = os.getpid()


def producer_for(options: Mapping[str, str], make: Callable[[], SinkProducer]) -> SinkProducer:
    """
    Return this process's producer for *options*, created by *make* if there is none.

    With too many producers, the least recently used one is closed. Call this from tasks only: a
    process runs one task at a time, so no other task can still use that producer.
    """
    global _owner_pid  # noqa: PLW0603 - module state outlives a task
    if _owner_pid != os.getpid():
        # A forked child inherits the table, but not the threads.
        _producers.clear()
        _owner_pid = os.getpid()
    key = tuple(sorted(options.items()))
    # The table is ordered by last use.
    producer = _producers.pop(key, None) or make()
    _producers[key] = producer
    while len(_producers) > _MAX_PRODUCERS:
        discard_producer(next(iter(_producers.values())))
    return producer


def discard_producer(producer: SinkProducer) -> None:
    """Close *producer*, and remove it here, so that `producer_for` creates a new one next time."""
    for key, other in list(_producers.items()):
        if other is producer:
            del _producers[key]
    producer.close()
