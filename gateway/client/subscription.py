"""
One subscription over several brokers: messages in as lists, finish, requeue and touch out.

A *source* is one connection that has subscribed; its number is never used again. What a source
delivered is answered on that source or not at all: NSQ knows a message only on its connection.
Every broker that is lost is tried again with growing jittered delays, for as long as it is named;
a connection that works is never dropped because a lookup no longer names its broker.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from gateway.client.connection import BrokerConnection
from gateway.client.lookup import Discovery, Watch
from gateway.client.mark import Mark
from gateway.client.place import Place, PlaceOptions, SourceListener
from gateway.client.ready import ReadyOptions, ReadyPlan
from gateway.errors import AuthRequired, BrokerRefused, BrokerUnreachable, GatewayError, NoBroker
from gateway.protocol.authorization import Authorization
from gateway.protocol.frames import ErrorFrame
from gateway.protocol.identify import Answer
from gateway.telemetry import spawn

_AS_GO_NSQ = ReadyOptions()


@dataclass(frozen=True, kw_only=True, slots=True)
class SubscriptionOptions(PlaceOptions):
    """What is subscribed to, and how."""

    ready: ReadyOptions = _AS_GO_NSQ


class SubscriptionListener(SourceListener, Protocol):
    """Who is told what a subscription brings."""

    def answer_refused(self, source: int, frame: ErrorFrame) -> None:
        """Learn that the broker refused an earlier finish, requeue or touch."""

    def source_opened(self, source: int, answer: Answer) -> None:
        """Learn of a new source, and what its broker answered to IDENTIFY."""

    def source_lost(self, source: int, error: BrokerUnreachable) -> None:
        """Learn that *source* is gone; what it delivered will be delivered again."""

    def channel_gone(self, address: str) -> None:
        """
        Learn that the channel was deleted at the broker at *address*, whose source was lost.

        It is not subscribed to there any more, unless the broker ceases to be named and then is
        again. Told only where the options have an `is_gone`.
        """

    def auth_required(self) -> None:
        """Learn that a broker that came later asks for a secret, and there is none."""


class Subscription:
    """A consumer of one channel on several brokers; `start` first, `close` last."""

    __slots__ = (
        "_discovery",
        "_first_source",
        "_is_reading",
        "_is_started",
        "_last_number",
        "_open",
        "_places",
        "_timer",
        "_wakes_at",
        "_watch",
        "is_closing",
        "listener",
        "options",
        "plan",
    )

    def __init__(
        self, discovery: Discovery, options: SubscriptionOptions, listener: SubscriptionListener
    ) -> None:
        self.options = options
        self.listener = listener
        self.is_closing = False
        self.plan = ReadyPlan(0, options.ready, random=random.random)
        """How the window is split into RDY."""
        self._discovery = discovery
        self._watch: Watch | None = None
        self._places: dict[str, Place] = {}
        self._open: dict[int, Place] = {}
        """By number of the source, in the order in which they were opened."""
        self._last_number = 0
        self._is_started = False
        self._is_reading = True
        self._first_source = Mark()
        self._timer: asyncio.TimerHandle | None = None
        self._wakes_at = 0.0
        """When the timer ends: uvloop has none to ask for what is due within a millisecond."""

    # Opening

    async def start(self) -> None:
        """
        Subscribe on every broker; return once one of them said OK, and go on with the others.

        It returns without a source when the lookups answered and know no broker of the topic yet.

        Raises:
            AuthRequired: Brokers ask for a secret, and there is none.
            BrokerRefused: Brokers refuse the subscription (E_AUTH_FAILED, E_UNAUTHORIZED, …).
            NoBroker: None of them can be reached now. Nothing is left open in all three cases.
        """
        try:
            await self._start()
        except BaseException:
            await self.close()
            raise
        self._is_started = True

    async def _start(self) -> None:
        """Try every broker; raise why there is no subscription."""
        watch = self._watch = self._discovery.watch_topic(self.options.topic, self._found)
        self._found(watch.addresses)
        opened = spawn("wait for a first source", self._first_source.wait())
        all_tried = spawn("try every broker once", self._try_all(watch))
        try:
            await asyncio.wait({opened, all_tried}, return_when=asyncio.FIRST_COMPLETED)
            if self._first_source.is_set():
                return
            is_answered = all_tried.result()
        finally:
            opened.cancel()
            all_tried.cancel()
            await asyncio.wait({opened, all_tried})
        # "Not yet" is an answer: the topic's first message will bring its broker.
        is_early = is_answered and self._discovery.has_lookups and not self._places
        if not is_early:
            raise self._why_none()

    async def _try_all(self, watch: Watch) -> bool:
        """Wait for the lookups and for a first try on each broker; True when a lookup answered."""
        is_answered = await watch.first_answer()
        self._found(watch.addresses)
        for place in list(self._places.values()):
            await place.tried.wait()
        return is_answered

    def _why_none(self) -> GatewayError:
        """Return why no broker is subscribed to; a refusal says more than one that is away."""
        errors = {place.address: place.error for place in self._places.values()}
        for error in errors.values():
            if isinstance(error, AuthRequired | BrokerRefused):
                return error
        text = "; ".join(map(str, errors.values())) or "no address of an nsqd is known"
        return NoBroker(f"no nsqd can be subscribed to ({text})")

    def _found(self, addresses: frozenset[str]) -> None:
        """Subscribe on the brokers that are new, and try no more to reach those not named."""
        for address in sorted(addresses - self._places.keys()):
            place = self._places[address] = Place(self, address)
            place.open()
        for address in self._places.keys() - addresses:
            place = self._places[address]
            if not (place.is_open or place.is_in_question):
                self._places.pop(address).cancel()

    # What the places tell

    def next_number(self) -> int:
        """Return the number of the next source."""
        self._last_number += 1
        return self._last_number

    def source_opened(self, place: Place) -> None:
        """Count on a new source and give it its share of the window."""
        connection = place.connection
        assert connection is not None  # noqa: S101 - it has just been opened
        self._open[place.number] = place
        if not self._is_reading:
            connection.pause_reading()
        self._first_source.set()
        self.listener.source_opened(place.number, connection.answer)
        max_rdy_count = connection.answer.max_rdy_count
        now = self._now()
        changes = self.plan.source_opened(place.number, max_rdy_count=max_rdy_count, now=now)
        place.row = self.plan.row(place.number)
        self.write_ready(changes)

    def source_lost(self, place: Place, error: BrokerUnreachable) -> None:
        """Count on *place* no more, share its window out, and try to get it back."""
        place.row = None
        if self._open.pop(place.number, None) is None:
            return
        self.listener.source_lost(place.number, error)
        self.write_ready(self.plan.source_lost(place.number, self._now()))
        if self.is_closing or self._watch is None:
            return
        self._watch.refresh()
        # An nsqlookupd that is told of a deletion first does not name the broker any more.
        if self.options.is_gone is not None or self.is_wanted(place):
            place.reopen()

    def channel_gone(self, place: Place) -> None:
        """Leave *place* closed; while its broker is named, that is no reason to subscribe again."""
        self.is_wanted(place)
        self.listener.channel_gone(place.address)

    def is_wanted(self, place: Place) -> bool:
        """Tell whether the broker of *place* is named still; where it is not, forget it."""
        if self._watch is None or place.address not in self._watch.addresses:
            self._places.pop(place.address, None)
            return False
        return True

    def try_failed(self, error: GatewayError) -> None:
        """Tell the listener when a later broker asks for a secret that is not there."""
        if self._is_started and isinstance(error, AuthRequired):
            self.listener.auth_required()

    def answer_refused(self, source: int, frame: ErrorFrame) -> None:
        """Hand on that an answer was refused."""
        self.listener.answer_refused(source, frame)

    # The window

    def set_window(self, count: int) -> None:
        """Let at most *count* messages be in flight over all brokers; 0 stops them."""
        self.write_ready(self.plan.set_window(count, self._now()))

    def write_ready(self, changes: Sequence[tuple[int, int]]) -> None:
        """Write RDY as the plan says, (source, count) by (source, count), and see to its timer."""
        for source, count in changes:
            if connection := self._connection(source):
                connection.ready(count)
        self.see_to_timer()

    def see_to_timer(self) -> None:
        """Keep one timer for the plan, never later than it asks for."""
        due = None if self.is_closing else self.plan.next_wake()
        if self._timer is not None:
            if due is not None and self._wakes_at <= due:
                return
            self._timer.cancel()
            self._timer = None
        if due is not None:
            self._wakes_at = due
            self._timer = asyncio.get_running_loop().call_at(due, self._wake)

    def _wake(self) -> None:
        self._timer = None
        self.write_ready(self.plan.wake(self._now()))

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def pause_reading(self) -> None:
        """Leave what comes in the sockets."""
        self._is_reading = False
        for place in self._open.values():
            if place.connection is not None:
                place.connection.pause_reading()

    def resume_reading(self) -> None:
        """Read again."""
        self._is_reading = True
        for place in self._open.values():
            if place.connection is not None:
                place.connection.resume_reading()

    # Answers

    def _connection(self, source: int) -> BrokerConnection | None:
        place = self._open.get(source)
        return None if place is None else place.connection

    def address_of(self, source: int) -> str:
        """Return the broker of a source that is open, host:port."""
        return self._open[source].address

    def authorization_of(self, source: int) -> Authorization | None:
        """Return what the broker of *source* said to AUTH; None where it asked for none."""
        connection = self._connection(source)
        return None if connection is None else connection.authorization

    def finish(self, source: int, ids: Sequence[bytes]) -> None:
        """Finish *ids*, at least one, on the source that delivered them, if it is there still."""
        place = self._open.get(source)
        if place is not None and place.connection is not None:
            place.connection.finish(ids)

    def requeue(self, source: int, ids: Sequence[bytes], *, delay_ms: int) -> None:
        """Give *ids* back after *delay_ms*, on the source that delivered them."""
        if connection := self._connection(source):
            connection.requeue(ids, delay_ms=delay_ms)

    def touch(self, source: int, ids: Sequence[bytes]) -> None:
        """Start the timeouts of *ids* anew, on the source that delivered them."""
        if connection := self._connection(source):
            connection.touch(ids)

    # The end

    async def close(self) -> None:
        """Leave every broker with CLS, and leave nothing open; idempotent."""
        self.is_closing = True
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.close()
        if self._timer is not None:
            self._timer.cancel()
        for place in self._open.values():
            place.row = None  # what comes still goes back
        self._open.clear()
        places, self._places = self._places, {}
        # Tasks of their own: a caller that is cancelled meanwhile leaves nothing open either.
        leaving = [spawn("leave a broker", place.close()) for place in places.values()]
        if leaving:
            await asyncio.wait(leaving)
