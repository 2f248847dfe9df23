"""
One subscription over several brokers: messages in as lists, finish, requeue and touch out.

A *source* is one connection that has subscribed; its number is never used again. What a source
delivered is answered on that source or not at all: NSQ knows a message only on its connection.
Every broker that is lost is tried again, for ever, with growing jittered delays.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from gateway.client.backoff import Backoff
from gateway.client.connection import BrokerConnection, ConnectionOptions, open_connection
from gateway.client.ready import changes, shares
from gateway.errors import BrokerRefused, BrokerUnreachable, NoBroker
from gateway.protocol.frames import ErrorFrame, Message
from gateway.protocol.identify import Answer
from gateway.telemetry import spawn

_TAKE_TURNS_S = 5.0
"""How long a connection keeps its RDY while there are more connections than window (go-nsq)."""


@dataclass(frozen=True, kw_only=True)
class SubscriptionOptions:
    """What is subscribed to, and how."""

    topic: str
    channel: str
    connection: ConnectionOptions = field(default_factory=ConnectionOptions)


class SubscriptionListener(Protocol):
    """Who is told what a subscription brings."""

    def messages_arrived(self, source: int, messages: list[Message]) -> None:
        """Take *messages*, all that one read of *source* brought, in order."""

    def answer_refused(self, source: int, frame: ErrorFrame) -> None:
        """Learn that the broker refused an earlier finish, requeue or touch."""

    def source_opened(self, source: int, answer: Answer) -> None:
        """Learn of a new source, and what its broker answered to IDENTIFY."""

    def source_lost(self, source: int, error: BrokerUnreachable) -> None:
        """Learn that *source* is gone; what it delivered will be delivered again."""


class _Source:
    """The place of one broker in a subscription: its connection, or the tries to get one."""

    def __init__(self, subscriber: Subscription, address: str) -> None:
        self._subscriber = subscriber
        self.address = address
        self.number = 0
        self.last_error = "not connected yet"
        self.connection: BrokerConnection | None = None
        self._backoff = Backoff(random.random)

    async def connect_once(self) -> bool:
        """Try to connect and subscribe; True when messages can come."""
        subscriber = self._subscriber
        options = subscriber.options
        try:
            connection = await open_connection(self.address, options.connection, self)
            # Known before SUB is answered: a message could follow the answer in the same read.
            self.number = subscriber.next_number()
            self.connection = connection
            await connection.subscribe(options.topic, options.channel)
        except BrokerUnreachable as error:
            return self._failed(error.reason)
        except BrokerRefused as error:
            return self._failed(f"refused SUB: {error}")
        except BaseException:
            if self.connection is not None:
                self.connection.abort()
            raise
        subscriber.source_opened(self.number, connection)
        return True

    def _failed(self, reason: str) -> bool:
        self.connection = None
        self.last_error = reason
        return False

    async def connect_for_ever(self) -> bool:
        """Try until messages can come."""
        while True:
            await asyncio.sleep(self._backoff.next_delay_s())
            if await self.connect_once():
                return True

    def messages_arrived(self, connection: BrokerConnection, messages: list[Message]) -> None:
        """Hand on what came; what was on its way when the subscription ended goes back at once."""
        if self._subscriber.is_closing:
            connection.requeue([message.id for message in messages], delay_ms=0)
            return
        self._subscriber.listener.messages_arrived(self.number, messages)

    def command_refused(self, connection: BrokerConnection, frame: ErrorFrame) -> None:
        """Hand on that an answer was refused."""
        del connection
        self._subscriber.listener.answer_refused(self.number, frame)

    def connection_ended(self, connection: BrokerConnection, error: BrokerUnreachable) -> None:
        """Tell the subscription, once it had counted on this connection."""
        if connection is self.connection and self._subscriber.has_source(self.number):
            self.connection = None
            held_s = asyncio.get_running_loop().time() - connection.opened_at
            self._backoff.connection_held(held_s)
            self._subscriber.source_lost(self, error)


class Subscription:
    """A consumer of one channel on several brokers; `start` first, `close` last."""

    def __init__(
        self, addresses: Sequence[str], options: SubscriptionOptions, listener: SubscriptionListener
    ) -> None:
        self.options = options
        self.listener = listener
        self.is_closing = False
        self._places = [_Source(self, address) for address in addresses]
        self._open: dict[int, BrokerConnection] = {}
        """By number of the source, in the order in which they were opened."""
        self._ready: dict[int, int] = {}
        self._window = 0
        self._turn = 0
        self._last_number = 0
        self._is_reading = True
        self._turn_timer: asyncio.TimerHandle | None = None
        self._tries: set[asyncio.Task[bool]] = set()

    # Opening

    async def start(self) -> None:
        """
        Subscribe on every broker; return once one of them said OK, and go on with the others.

        Raises:
            NoBroker: None of them can be subscribed to now; nothing is left open.
        """
        tries = {self._try(place, place.connect_once()): place for place in self._places}
        try:
            is_subscribed = await _first_success(tries)
        except BaseException:
            await self.close()
            raise
        if not is_subscribed:
            self.is_closing = True
            raise NoBroker(self._why_none())
        for task, place in tries.items():
            task.add_done_callback(partial(self._after_first_try, place))

    def _why_none(self) -> str:
        reasons = {place.address: f"{place.address}: {place.last_error}" for place in self._places}
        text = "; ".join(reasons.values()) or "no address of an nsqd is known"
        return f"no nsqd can be subscribed to ({text})"

    def _try(self, place: _Source, work: Coroutine[None, None, bool]) -> asyncio.Task[bool]:
        task = spawn(f"subscribe on {place.address}", work)
        self._tries.add(task)
        task.add_done_callback(self._tries.discard)
        return task

    def _after_first_try(self, place: _Source, done: asyncio.Task[bool]) -> None:
        if not done.cancelled() and done.exception() is None and not done.result():
            self._retry(place)

    def _retry(self, place: _Source) -> None:
        if not self.is_closing:
            self._try(place, place.connect_for_ever())

    # What the sources tell

    def next_number(self) -> int:
        """Return the number of the next source."""
        self._last_number += 1
        return self._last_number

    def has_source(self, number: int) -> bool:
        """Tell whether *number* is a source that is open."""
        return number in self._open

    def source_opened(self, number: int, connection: BrokerConnection) -> None:
        """Count on a new source and give it its share of the window."""
        self._open[number] = connection
        if not self._is_reading:
            connection.pause_reading()
        self.listener.source_opened(number, connection.answer)
        self._share_window()

    def source_lost(self, source: _Source, error: BrokerUnreachable) -> None:
        """Count on *source* no more, share its window out, and try to get it back."""
        del self._open[source.number]
        self.listener.source_lost(source.number, error)
        self._share_window()
        self._retry(source)

    # The window

    def set_window(self, count: int) -> None:
        """Let at most *count* messages be in flight over all brokers; 0 stops them."""
        self._window = count
        self._share_window()

    def _share_window(self) -> None:
        ceilings = [connection.answer.max_rdy_count for connection in self._open.values()]
        counts = shares(self._window, ceilings, turn=self._turn)
        wanted = dict(zip(self._open, counts, strict=True))
        current, self._ready = self._ready, wanted
        for number, count in changes(current, wanted):
            self._open[number].ready(count)
        some_wait = 0 < self._window < len(self._open)
        if some_wait and self._turn_timer is None:
            loop = asyncio.get_running_loop()
            self._turn_timer = loop.call_later(_TAKE_TURNS_S, self._next_turn)

    def _next_turn(self) -> None:
        self._turn_timer = None
        self._turn += 1
        self._share_window()

    def pause_reading(self) -> None:
        """Leave what comes in the sockets."""
        self._is_reading = False
        for connection in self._open.values():
            connection.pause_reading()

    def resume_reading(self) -> None:
        """Read again."""
        self._is_reading = True
        for connection in self._open.values():
            connection.resume_reading()

    # Answers

    def finish(self, source: int, ids: Sequence[bytes]) -> None:
        """Finish *ids*, at least one, on the source that delivered them, if it is there still."""
        if connection := self._open.get(source):
            connection.finish(ids)

    def requeue(self, source: int, ids: Sequence[bytes], *, delay_ms: int) -> None:
        """Give *ids* back after *delay_ms*, on the source that delivered them."""
        if connection := self._open.get(source):
            connection.requeue(ids, delay_ms=delay_ms)

    def touch(self, source: int, ids: Sequence[bytes]) -> None:
        """Start the timeouts of *ids* anew, on the source that delivered them."""
        if connection := self._open.get(source):
            connection.touch(ids)

    # The end

    async def close(self) -> None:
        """Leave every broker with CLS, and leave nothing open; idempotent."""
        self.is_closing = True
        if self._turn_timer is not None:
            self._turn_timer.cancel()
        tries = set(self._tries)
        for task in tries:
            task.cancel()
        connections = list(self._open.values())
        self._open.clear()
        await asyncio.gather(*(connection.close() for connection in connections))
        if tries:
            await asyncio.wait(tries)


async def _first_success(tries: Iterable[asyncio.Task[bool]]) -> bool:
    """Wait until one of *tries* is true, or all have ended."""
    for done in asyncio.as_completed(tries):
        if await done:
            return True
    return False
