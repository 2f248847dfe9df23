"""
What nsqd's HTTP says about channels that are subscribed to: deleted, or paused.

nsqd tells a consumer neither. A channel's end closes its connections without a word, and whoever
subscribes again makes it anew; a pause is silence. A question takes `timeout_s` at most; what many
ask at the same time goes out once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Generic, NamedTuple, TypeVar
from weakref import WeakValueDictionary

from gateway.addresses import split_address
from gateway.client.channel_stats import INFO, read_info, read_stats, stats_question
from gateway.client.lookup import Discovery
from gateway.client.node_answers import NodeAnswer, Question, Reached
from gateway.client.nsqd_http import NsqdHttp
from gateway.errors import Full, NoKnownNsqd
from gateway.protocol.wire import is_ephemeral
from gateway.telemetry import spawn

_AT_A_TIME = 2
"""Questions to one nsqd at a time; others may ask nsqd too."""
_CLOCK_STEP_S = 1.0
"""Both times that a process tells of itself are whole seconds."""

Answer = TypeVar("Answer")
Told = Callable[[bool], None]
Channel = tuple[str, str]
"""Topic and channel."""


@dataclass(frozen=True, kw_only=True)
class ChannelSurveyOptions:
    """How long, and how often."""

    timeout_s: float = 2.0
    """For the answer whether a channel is gone; without one in time it counts as there."""
    poll_interval_s: float = 5.0
    """From one look at the pauses to the next, while anybody watches one."""


class _Process(NamedTuple):
    """A running nsqd."""

    node: str
    """Host:port of its HTTP."""
    start_time: int
    """Which one it is: what it says of itself."""
    runs_since_s: float
    """It has been running at this moment, on the event loop's clock."""


class _Channels(NamedTuple):
    """What a running nsqd has of a topic."""

    start_time: int
    """Which process it is, as in `_Process`."""
    names: Collection[Channel]


class ChannelSurvey:
    """Asks the nsqds over HTTP; `stop` last, before that of *nsqd_http*."""

    def __init__(
        self,
        nsqd_http: NsqdHttp,
        discovery: Discovery,
        options: ChannelSurveyOptions | None = None,
    ) -> None:
        self._nsqd_http = nsqd_http
        self._discovery = discovery
        self._options = options or ChannelSurveyOptions()
        self._processes = _AskedOnce(self._find_process)
        self._channels = _AskedOnce(self._find_channels)
        self._watched: dict[Channel, _Watched] = {}
        self._polling: asyncio.Task[None] | None = None

    # Deleted

    async def is_gone(self, address: str, topic: str, channel: str, since_s: float) -> bool:
        """
        Return whether *channel* was deleted at the nsqd at *address*, where it was subscribed to.

        The same process must say so that had the subscription, which began at *since_s* (event
        loop's clock): one that was started since knows nothing of a channel that nobody deleted.
        A process that had run for less than two seconds then is not told from a later one.

        False for a channel that is ephemeral, and ends with its last consumer; False wherever it
        is not known, and no later than `timeout_s`: no HTTP address, no answer.
        """
        if is_ephemeral(channel):
            return False
        try:
            async with asyncio.timeout(self._options.timeout_s):
                process = await self._processes.ask(address, "")
                if process is None or process.runs_since_s > since_s:
                    return False
                channels = await self._channels.ask(process.node, topic)
        except TimeoutError:
            return False
        # Between the two questions it may have been started anew.
        if channels is None or channels.start_time != process.start_time:
            return False
        return (topic, channel) not in channels.names

    async def _find_process(self, address: str, _: str) -> _Process | None:
        """Return which process is at *address* now, None where that cannot be known."""
        named = self._discovery.http_address_of(address)
        nodes = self._neighbours(address) if named is None else [named]
        told = [(answer, read_info(answer)) for answer in await self._ask(INFO, nodes)]
        if named is None:
            if any(info is None for _, info in told):
                return None  # it may be the one that does not answer
            port = split_address(address)[1]
            told = [each for each in told if each[1] is not None and each[1].tcp_port == port]
        # Behind a proxy of its own an nsqd listens on another port than it is reached on: two may
        # say the same one, and one whose address is named any.
        if len(told) != 1:
            return None
        ((answer, info),) = told
        if info is None or not isinstance(answer, Reached):
            return None
        return self._process(answer, info.start_time)

    def _neighbours(self, address: str) -> list[str]:
        """Return where HTTP is answered on the host of *address*."""
        host = split_address(address)[0]
        return [node for node in self._nsqd_http.nodes if split_address(node)[0] == host]

    @staticmethod
    def _process(answer: Reached, start_time: int) -> _Process | None:
        """Return since when the one who gave *answer* runs, by its own clock, not by ours."""
        try:
            told_at = parsedate_to_datetime(answer.date).timestamp()
        except (ValueError, OverflowError):
            return None
        runs_for_s = told_at - start_time - _CLOCK_STEP_S
        return _Process(answer.node, start_time, asyncio.get_running_loop().time() - runs_for_s)

    async def _find_channels(self, node: str, topic: str) -> _Channels | None:
        """Return the channels of *topic*: one who deletes it asks for all of them here."""
        stats = [read_stats(answer) for answer in await self._ask(stats_question(topic), [node])]
        if not stats or stats[0] is None:
            return None
        return _Channels(stats[0].start_time, stats[0].channels().keys())

    async def _ask(self, question: Question, nodes: list[str]) -> list[NodeAnswer]:
        """Return an answer of each, or nothing; within the time that whoever waits for it has."""
        try:
            async with asyncio.timeout(self._options.timeout_s):
                return await self._nsqd_http.ask(question, nodes=nodes)
        except (NoKnownNsqd, Full, TimeoutError):
            return []

    # Paused

    def watch(self, topic: str, channel: str, told: Told) -> PauseWatch:
        """
        Call *told* with True when *channel* or its *topic* is paused, and with False when no more.

        Both are as they were subscribed to; at first no pause is assumed, and *told* is not called
        before this returns. With several nsqds a pause is one that all have who have the channel.
        """
        key = topic, channel
        watched = self._watched.get(key)
        if watched is None:
            watched = self._watched[key] = _Watched(key)
        watch = PauseWatch(self, watched, told)
        if watched.is_paused:
            asyncio.get_running_loop().call_soon(watch.tell, True)  # noqa: FBT003 - as told takes it
        if self._polling is None or self._polling.done():
            self._polling = spawn("look for paused channels", self._poll())
        return watch

    def unwatched(self, watched: _Watched) -> None:
        """Look no more at what nobody watches."""
        if self._watched.get(watched.channel) is watched:
            del self._watched[watched.channel]

    async def _poll(self) -> None:
        while self._watched:
            await self._look_for_pauses()
            await asyncio.sleep(self._options.poll_interval_s)

    async def _look_for_pauses(self) -> None:
        topics = {topic for topic, _ in self._watched}
        question = stats_question(next(iter(topics))) if len(topics) == 1 else stats_question()
        answers = await self._ask(question, self._nsqd_http.nodes)
        nodes = [stats.channels() for stats in map(read_stats, answers) if stats is not None]
        if not nodes:
            return
        for channel, watched in list(self._watched.items()):
            paused = [node[channel] for node in nodes if channel in node]
            watched.learn(is_paused=bool(paused) and all(paused))

    async def stop(self) -> None:
        """Ask no more, and tell nobody of a pause any more; idempotent."""
        self._watched.clear()
        polling, self._polling = self._polling, None
        if polling is not None:
            polling.cancel()
            await asyncio.wait({polling})
        await self._processes.stop()
        await self._channels.stop()


class _Watched:
    """A channel that is watched."""

    __slots__ = ("channel", "is_paused", "watches")

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.is_paused = False
        self.watches: list[PauseWatch] = []
        """In any order; each knows its place."""

    def learn(self, *, is_paused: bool) -> None:
        """Tell of a change."""
        if is_paused != self.is_paused:
            self.is_paused = is_paused
            loop = asyncio.get_running_loop()
            for watch in self.watches:
                # Not from here: what a listener does, and how it fails, is not our business.
                loop.call_soon(watch.tell, is_paused)


class PauseWatch:
    """Somebody who is told of the pauses of a channel, until `close`."""

    __slots__ = ("_survey", "_told", "_watched", "index")

    def __init__(self, survey: ChannelSurvey, watched: _Watched, told: Told) -> None:
        self._survey = survey
        self._watched = watched
        self._told: Told | None = told
        self.index = len(watched.watches)
        """Its place among the watches of its channel."""
        watched.watches.append(self)

    def tell(self, is_paused: bool) -> None:  # noqa: FBT001 - as told takes it
        """Tell, unless it is closed."""
        if self._told is not None:
            self._told(is_paused)

    def close(self) -> None:
        """Be told nothing any more; idempotent."""
        if self._told is None:
            return
        self._told = None
        watches = self._watched.watches
        last = watches.pop()
        if last is not self:
            watches[self.index] = last
            last.index = self.index
        if not watches:
            self._survey.unwatched(self._watched)


class _AskedOnce(Generic[Answer]):
    """
    Questions of many, each on its way once for all who asked before it went.

    Whoever asks later asks anew: an answer that was on its way may not know what led to this one.
    A node that hangs keeps nobody from asking another.
    """

    def __init__(self, question: Callable[[str, str], Awaitable[Answer]]) -> None:
        self._question = question
        self._turns: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        """By node, as long as somebody asks it."""
        self._waiting: dict[tuple[str, str], asyncio.Task[Answer]] = {}
        self._tasks: set[asyncio.Task[Answer]] = set()

    async def ask(self, node: str, what: str) -> Answer | None:
        """Return the answer to a question that goes out from now on; None once stopped."""
        task = self._waiting.get((node, what))
        if task is None:
            task = spawn("ask about a channel", self._ask(node, what))
            self._waiting[node, what] = task
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        await asyncio.wait({task})
        return None if task.cancelled() else task.result()

    async def _ask(self, node: str, what: str) -> Answer:
        turns = self._turns.get(node)
        if turns is None:
            turns = self._turns[node] = asyncio.Semaphore(_AT_A_TIME)
        async with turns:
            del self._waiting[node, what]
            return await self._question(node, what)

    async def stop(self) -> None:
        """End every question."""
        tasks = set(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._waiting.clear()
