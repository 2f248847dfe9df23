"""
NSQ's side of a stream, whatever is done with what comes: sockets in a thread of their own.

It lives in the one process that Spark keeps for a source, from its first batch to its end.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import msgspec
import uvloop

from gateway.client.lookup import Discovery
from gateway.errors import GatewayError
from gateway.nsqd_access import NsqdAccess
from gateway.pipeline.clock import now_us
from gateway.pipeline.depth import DepthSurvey
from gateway.pipeline.goal import Goal, Patience
from gateway.pipeline.intake import Intake, Source
from gateway.pipeline.ledger import Ledger
from gateway.settings_pipeline import SourceSettings
from gateway.telemetry import get_logger, spawn

logger = get_logger()

T = TypeVar("T")

_MOST_CONNECTIONS = 64
"""To each nsqd for each topic: each has at most max_rdy_count messages in flight."""
_OUTPUT_BUFFER_BYTES = 65_536
"""What nsqd gathers: the most that it allows by itself; a message takes a seventh less CPU here."""
_TOUCHES = 3
"""How often in a message timeout what is held is touched."""
_LOOK_S = 1.0
"""What a look at it may take."""
_STOP_S = 8.0
"""What all of the end may take."""


class Standing(NamedTuple):
    """How much of a stream is where, in messages."""

    buffered: int
    in_batches: int
    refused: int
    """Answers that nsqd refused since the start: they came too late."""
    sources: int
    """Connections that are open."""
    depth: int | None
    """What waits at all nsqd, a moment ago; None: not all of them tell."""
    oldest_s: float
    """For how long the oldest message is held; 0: none is."""


class IngestBase:
    """What comes for one stream; `start` first, `stop` last, all of it from any one thread."""

    def __init__(self, settings: SourceSettings, access: NsqdAccess) -> None:
        self.settings = settings
        self.ledger: Ledger[Source] = Ledger()
        self.goal: Goal | None = None
        """Up to where it reads; None: for ever."""
        self._discovery = Discovery(settings.nsqd_tcp_address, access.lookup)
        self._depth = DepthSurvey(settings, self._discovery)
        offer = msgspec.structs.replace(
            access.connection.offer,
            msg_timeout=settings.msg_timeout_ms,
            output_buffer_timeout=25,
        )
        self._connection = replace(
            access.connection,
            offer=offer,
            output_buffer_wish_bytes=_OUTPUT_BUFFER_BYTES,
            secret=access.secret,
        )
        self._intakes: list[Intake] = []
        self._growing: set[asyncio.Task[None]] = set()
        self._patience = Patience(settings.idle_s, settings.msg_timeout_ms / 1_000)
        self._is_reading = True
        self._is_late = False
        """Whether something waits for a batch that nsqd would soon take back."""
        self._reasons: dict[str, bool] = {}
        """Why nothing is asked for, and whether what still comes goes back."""
        self._is_stopping = False
        self._timer: asyncio.TimerHandle | None = None
        self.loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="nsq ingest", daemon=True)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def call(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Return what *work* comes to in the event loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout_s)

    # What Spark's thread calls

    def start(self, *, to_an_end: bool = False) -> None:
        """
        Subscribe to every topic; return once each has an nsqd, or waits for its first message.

        *to_an_end*: read what is there now, and then no more.

        Raises:
            AuthRequired, BrokerRefused, NoBroker: As `Subscription.start` does.
        """
        self._thread.start()
        self.call(self._start(to_an_end=to_an_end))

    def is_over(self) -> bool:
        """Tell whether what was there at the start has come, or does not come."""
        return self.call(self._is_over())

    def holds(self, count: int) -> bool:
        """Tell whether *count* messages wait for a batch, or as much, or as long, as can be."""
        return self.ledger.buffered >= count or not self._is_reading or self._is_late

    def standing(self) -> Standing | None:
        """Return how much is where; None where that is not known within a moment."""
        try:
            return self.call(self._standing(), _LOOK_S)
        except TimeoutError:
            return None

    def stop(self) -> None:
        """Hand back what is not finished, leave nsqd, and end the thread; idempotent."""
        if self._is_stopping:
            return
        self._is_stopping = True
        if not self._thread.is_alive():
            return
        try:
            with contextlib.suppress(TimeoutError):
                self.call(self._stop(), _STOP_S)
        finally:
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(_STOP_S)
            if not self._thread.is_alive():
                self.loop.close()

    # The same in the event loop

    async def _start(self, *, to_an_end: bool) -> None:
        await self._discovery.start()
        await self._depth.start()
        if to_an_end:
            started_ns = now_us() * 1_000
            account = await self._depth.ask_at_start()
            self.goal = Goal(None if account is None else account.total, started_ns)
        self._patience.came(self.loop.time())
        for topic in self.settings.topic:
            await self._add_intake(topic)
        self.see_to_goal()
        self._share()
        self._wait_to_touch()

    async def _add_intake(self, topic: str) -> None:
        names = topic, self.settings.channel
        intake = Intake(self.ledger, self._discovery, names, self._connection, self)
        intake.is_leaving = any(self._reasons.values())
        if not self._is_reading:
            intake.subscription.pause_reading()
        await intake.subscription.start()
        self._intakes.append(intake)
        if self._is_reading:  # that may have changed meanwhile
            intake.subscription.resume_reading()
        else:
            intake.subscription.pause_reading()

    # The window

    def hold(self, reason: str, *, gives_back: bool) -> None:
        """Ask for nothing while *reason* holds; *gives_back*: what still comes goes back."""
        self._reasons[reason] = gives_back
        self._share()

    def go_on(self, reason: str) -> None:
        """Ask again, unless there is another reason not to."""
        if self._reasons.pop(reason, None) is not None and not self._is_stopping:
            self._share()

    def _share(self) -> None:
        """Give each topic an even part of the window, over as many connections as that needs."""
        window = 0 if self._reasons else self.settings.window // len(self.settings.topic)
        for intake in self._intakes:
            intake.is_leaving = any(self._reasons.values())
        for topic in self.settings.topic:
            mine = [intake for intake in self._intakes if intake.topic == topic]
            if not mine:
                continue  # at the start, the ones before it are told of their sources already
            for intake in mine:
                share = max(1, window // len(mine)) if window else 0
                intake.subscription.set_window(share)
            if len(mine) < self._wanted(mine[0], window) and not self._growing:
                task = spawn("open more connections", self._grow(topic))
                self._growing.add(task)
                task.add_done_callback(self._growing.discard)

    @staticmethod
    def _wanted(intake: Intake, window: int) -> int:
        """Return over how many subscriptions *window* is to be spread."""
        capacity = sum(source.answer.max_rdy_count for source in intake.sources.values())
        return min(_MOST_CONNECTIONS, -(-window // capacity)) if capacity else 1

    async def _grow(self, topic: str) -> None:
        try:
            await self._add_intake(topic)
        except GatewayError as error:
            logger.warning("no further connection", topic=topic, reason=str(error))
            return
        self._growing.clear()
        if not self._is_stopping:
            self._share()

    def came(self) -> None:
        """Count what has come; read no more than may be held."""
        self._patience.came(self.loop.time())
        self.regulate()

    def see_to_goal(self) -> None:
        """Ask for nothing more while all has come that was there at the start."""
        if self.goal is None:
            return
        if not self.goal.is_reached:
            self.go_on("goal")  # what had come was lost, and comes again
        elif "goal" not in self._reasons:
            self.hold("goal", gives_back=False)  # the goal knows what does not belong

    def sources_changed(self) -> None:
        """Share the window out anew; what a lost one had brought is not held any more."""
        self.see_to_goal()
        if not self._is_stopping:
            self._share()
        self.regulate()

    def regulate(self) -> None:
        """Read while there is room."""
        size_bytes, limit_bytes = self.ledger.size_bytes, self.settings.max_buffer_bytes
        if size_bytes > limit_bytes and self._is_reading:
            self._is_reading = False
            for intake in self._intakes:
                intake.subscription.pause_reading()
        elif not self._is_reading and size_bytes <= limit_bytes // 2:
            self._is_reading = True
            for intake in self._intakes:
                intake.subscription.resume_reading()

    # Answers

    def finish_now(self, up_to: int) -> None:
        """Finish the messages of the ledger's batches up to number *up_to*."""
        for source, ids in self.ledger.finished(up_to).items():
            source.intake.subscription.finish(source.number, ids)
        self.regulate()

    def hand_back(self) -> None:
        """Give everything back that is held."""
        self._forgot(self.ledger.in_flight)
        for source, ids in self.ledger.hand_back().items():
            source.intake.subscription.requeue(source.number, ids, delay_ms=0)
        self.regulate()

    def _forgot(self, count: int) -> None:
        """Know that *count* messages that had come are not held any more, and come again."""
        if self.goal is not None:
            self.goal.forgot(count)
            self.see_to_goal()

    async def _is_over(self) -> bool:
        if self.goal is None or self.ledger.buffered:
            return False
        now = self.loop.time()
        if self.goal.is_reached:
            return self._patience.is_quiet(now)
        if self._patience.is_time_to_ask(now):
            held, account = self.ledger.in_flight, await self._depth.ask()
            self._patience.told(account, held, self.loop.time())
        return self._patience.is_over(self.loop.time()) and self.ledger.buffered == 0

    async def _standing(self) -> Standing:
        self._depth.refresh()
        oldest = self.ledger.oldest_at
        account = self._depth.last
        return Standing(
            buffered=self.ledger.buffered,
            in_batches=self.ledger.in_batches,
            refused=sum(intake.refused for intake in self._intakes),
            sources=len(self._sources()),
            depth=None if account is None else account.waiting,
            oldest_s=0.0 if oldest is None else self.loop.time() - oldest,
        )

    def _wait_to_touch(self) -> None:
        interval_s = self.settings.msg_timeout_ms / 1_000 / _TOUCHES
        self._timer = self.loop.call_later(interval_s / 2, self._touch, interval_s)

    def _touch(self, interval_s: float) -> None:
        """Keep what is held from timing out; what nsqd would not let be kept is forgotten."""
        self._wait_to_touch()
        now = self.loop.time()
        for source, ids in self.ledger.to_touch(now, interval_s / 2).items():
            source.intake.subscription.touch(source.number, ids)
        ceilings = [source.answer.max_msg_timeout for source in self._sources()]
        if not ceilings:
            return
        ceiling_s = min(ceilings) / 1_000
        if dropped := self.ledger.drop_older_than(now - ceiling_s):
            self._forgot(dropped)
            self.regulate()
        since = self.ledger.waits_since
        self._is_late = since is not None and now - since >= ceiling_s / 2

    def _sources(self) -> Sequence[Source]:
        return [source for intake in self._intakes for source in intake.sources.values()]

    # The end

    async def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        growing = tuple(self._growing)
        for task in growing:
            task.cancel()
        self.hold("stop", gives_back=True)
        self.hand_back()
        await asyncio.gather(
            *growing,
            *(intake.subscription.close() for intake in self._intakes),
            return_exceptions=True,  # spawn has logged what growing came to
        )
        await self._depth.stop()
        await self._discovery.stop()
