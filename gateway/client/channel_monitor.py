"""
Detect over nsqd's HTTP API that subscribed channels were deleted or paused.

V2 reports neither to a consumer. When a channel is deleted, nsqd closes its connections without a
reason, and subscribing again creates the channel. When it is paused, messages just stop. Requests
take `timeout_s` at most, and concurrent equal requests are sent once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Generic, NamedTuple, TypeVar
from weakref import WeakValueDictionary

from gateway.addresses import split_address
from gateway.aio import spawn
from gateway.client.discovery import Discovery
from gateway.client.nsqd_answers import (
    INFO,
    Channel,
    NodeAnswer,
    NodeRequest,
    NodeResponse,
    parse_info,
    parse_pauses,
    parse_stats,
    stats_request,
)
from gateway.client.nsqd_http import NsqdHttp
from gateway.errors import LimitReached, NoNsqdHttpAddress
from gateway.protocol.wire import is_ephemeral
from gateway.telemetry import get_logger

logger = get_logger()

_MAX_PER_NSQD = 2
"""Maximum concurrent requests to one nsqd, which administration and the console use too."""
_STEP_CHANNELS = 512
"""Number of channels processed in one turn of the event loop."""
_CLOCK_STEP_S = 1.0
"""Resolution of start_time and the Date header, in seconds."""

Answer = TypeVar("Answer")
OnPause = Callable[[bool], None]


@dataclass(frozen=True, kw_only=True)
class ChannelMonitorOptions:
    """Time limit and poll interval of a `ChannelMonitor`."""

    timeout_s: float = 2.0
    """
    Time limit of `ChannelMonitor.is_gone`; after it the channel counts as not deleted.

    Also the time limit of each nsqd's answer to a poll for pauses; the others' answers count.
    """
    poll_interval_s: float = 5.0
    """Interval between polls for pauses, while any channel is watched."""


class _Process(NamedTuple):
    """A running nsqd process."""

    node: str
    """HTTP host:port."""
    start_time: int
    """start_time in /info; another value is another process."""
    running_since_s: float
    """A time at which the process was already running, on the event loop's clock."""


class _Channels(NamedTuple):
    """The channels of a topic at an nsqd process."""

    start_time: int
    """start_time in /stats, to be compared with that of `_Process`."""
    names: Collection[Channel]


class ChannelMonitor:
    """Monitor channels over HTTP. Call `stop` before `nsqd_http.stop`."""

    def __init__(
        self,
        nsqd_http: NsqdHttp,
        discovery: Discovery,
        options: ChannelMonitorOptions | None = None,
    ) -> None:
        self._nsqd_http = nsqd_http
        self._discovery = discovery
        self._options = options or ChannelMonitorOptions()
        self._processes = _SharedRequests(self._find_process)
        self._channels = _SharedRequests(self._find_channels)
        self._watched: dict[Channel, _WatchedChannel] = {}
        self._polling: asyncio.Task[None] | None = None

    # Deletion

    async def is_gone(self, address: str, topic: str, channel: str, since_s: float) -> bool:
        """
        Return True if *channel* was deleted at the nsqd at *address*; False if that is uncertain.

        *since_s* is when the lost subscription began (event loop's clock). Only an nsqd process
        that was running then can be relied on, because a process started later may lack a channel
        that was never deleted. Clocks have a resolution of a second, so that a process must have
        run for two seconds before *since_s*.

        Always False for an ephemeral channel: nsqd deletes it itself when its last consumer leaves.
        Also False without an HTTP address or without an answer within `timeout_s`.
        """
        if is_ephemeral(channel):
            return False
        try:
            async with asyncio.timeout(self._options.timeout_s):
                process = await self._processes.request(address, "")
                if process is None or process.running_since_s > since_s:
                    return False
                channels = await self._channels.request(process.node, topic)
        except TimeoutError:
            return False
        # nsqd may have restarted between the two requests.
        if channels is None or channels.start_time != process.start_time:
            return False
        return (topic, channel) not in channels.names

    async def _find_process(self, address: str, _: str) -> _Process | None:
        """Return the nsqd process at *address*, or None if it cannot be identified for certain."""
        named = self._discovery.http_address_of(address)
        nodes = self._nodes_on_host(address) if named is None else [named]
        infos = [(answer, parse_info(answer)) for answer in await self._request(INFO, nodes)]
        if named is None:
            if any(info is None for _, info in infos):
                return None  # the nsqd at *address* may be one that did not answer
            port = split_address(address)[1]
            infos = [each for each in infos if each[1] is not None and each[1].tcp_port == port]
        # Behind a proxy, an nsqd's own port differs from the one in its address, so that two nsqds
        # may report the same port.
        if len(infos) != 1:
            return None
        ((answer, info),) = infos
        if info is None or not isinstance(answer, NodeResponse):
            return None
        return self._process(answer, info.start_time)

    def _nodes_on_host(self, address: str) -> list[str]:
        """Return the known HTTP addresses on the host of *address*."""
        host = split_address(address)[0]
        return [node for node in self._nsqd_http.http_addresses if split_address(node)[0] == host]

    @staticmethod
    def _process(answer: NodeResponse, start_time: int) -> _Process | None:
        """Return the process that gave *answer*; None without a valid Date header."""
        # Its age comes from two values of its own clock, so that clocks need not agree.
        try:
            answered_at = parsedate_to_datetime(answer.date).timestamp()
        except (ValueError, OverflowError):
            return None
        age_s = answered_at - start_time - _CLOCK_STEP_S
        return _Process(answer.node, start_time, asyncio.get_running_loop().time() - age_s)

    async def _find_channels(self, node: str, topic: str) -> _Channels | None:
        """Return all channels of *topic* at *node*, or None without an answer."""
        # All of them: after the deletion of a topic, `is_gone` is called for each channel, and
        # equal requests are sent once.
        stats = [
            parse_stats(answer) for answer in await self._request(stats_request(topic), [node])
        ]
        if not stats or stats[0] is None:
            return None
        return _Channels(stats[0].start_time, stats[0].channels().keys())

    async def _request(self, request: NodeRequest, nodes: list[str]) -> list[NodeAnswer]:
        """Send *request* to *nodes*; return their answers, or [] if they are not there in time."""
        try:
            async with asyncio.timeout(self._options.timeout_s):
                return await self._nsqd_http.request_all(request, nodes=nodes)
        except (NoNsqdHttpAddress, LimitReached, TimeoutError):
            return []

    # Pauses

    def watch(self, topic: str, channel: str, on_change: OnPause) -> PauseWatch:
        """
        Call *on_change* with True when *channel* or its topic is paused, with False when unpaused.

        *on_change* is never called before this returns, and not for a channel that is not paused
        at first. A channel on several nsqds counts as paused if it is paused on all of them.
        """
        key = topic, channel
        watched = self._watched.get(key)
        if watched is None:
            watched = self._watched[key] = _WatchedChannel(key)
        watch = PauseWatch(self, watched, on_change)
        if watched.is_paused:
            asyncio.get_running_loop().call_soon(watch.notify, True)  # noqa: FBT003 - the callback's parameter
        if self._polling is None or self._polling.done():
            self._polling = spawn("poll for paused channels", self._poll())
        return watch

    def on_unwatched(self, watched: _WatchedChannel) -> None:
        """Called when the last watch of *watched* was closed: stop polling for its channel."""
        if self._watched.get(watched.channel) is watched:
            del self._watched[watched.channel]

    async def _poll(self) -> None:
        while self._watched:
            try:
                await self._poll_pauses()
            except Exception:
                # A bug, which must not end the polling for all channels.
                logger.exception("pause poll failed")
            await asyncio.sleep(self._options.poll_interval_s)

    async def _poll_pauses(self) -> None:
        topics = {topic for topic, _ in self._watched}
        request = stats_request(next(iter(topics))) if len(topics) == 1 else stats_request()
        with suppress(NoNsqdHttpAddress, LimitReached):
            # An nsqd that hangs must not hide the pauses at others, so the limit is for each.
            # No limit for `_update`: with many channels it takes long, and it must come to its end.
            await self._nsqd_http.request_and_parse(
                request, self._update, timeout_s=self._options.timeout_s
            )

    def _update(self, answers: Sequence[NodeAnswer]) -> Generator[None, None, None]:
        """Report changes to the watches; yield between steps, as thousands may be watched."""
        watched_now = dict(self._watched)  # a channel watched from now on is not in all answers
        # An nsqd without an answer is left out: its pauses are unknown, not ended.
        nodes = []
        for answer in answers:
            yield
            pauses = yield from parse_pauses(answer, watched_now)
            if pauses is not None:
                nodes.append(pauses)
        if not nodes:
            return
        # A channel that none of them has does not count as paused.
        for number, (channel, watched) in enumerate(watched_now.items(), 1):
            paused = [node[channel] for node in nodes if channel in node]
            watched.update(is_paused=bool(paused) and all(paused))
            if number % _STEP_CHANNELS == 0:
                yield

    async def stop(self) -> None:
        """Stop polling and callbacks; idempotent."""
        self._watched.clear()
        polling, self._polling = self._polling, None
        if polling is not None:
            polling.cancel()
            await asyncio.wait({polling})
        await self._processes.stop()
        await self._channels.stop()


class _WatchedChannel:
    """A watched channel, its watches, and its last known pause."""

    __slots__ = ("channel", "is_paused", "watches")

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.is_paused = False
        self.watches: list[PauseWatch] = []
        """In no particular order; each watch knows its index, so that closing it is O(1)."""

    def update(self, *, is_paused: bool) -> None:
        """Call the watches if *is_paused* has changed."""
        if is_paused != self.is_paused:
            self.is_paused = is_paused
            loop = asyncio.get_running_loop()
            for watch in self.watches:
                # Not called directly: a failing callback must not end the poll.
                loop.call_soon(watch.notify, is_paused)


class PauseWatch:
    """One caller's callback for pauses of a channel, called until `close`."""

    __slots__ = ("_monitor", "_on_change", "_watched", "index")

    def __init__(
        self, monitor: ChannelMonitor, watched: _WatchedChannel, on_change: OnPause
    ) -> None:
        self._monitor = monitor
        self._watched = watched
        self._on_change: OnPause | None = on_change
        self.index = len(watched.watches)
        """Index of this watch in the list of its channel."""
        watched.watches.append(self)

    def notify(self, is_paused: bool) -> None:  # noqa: FBT001 - the callback's parameter
        """Call `on_change` with *is_paused*, unless this watch was closed meanwhile."""
        if self._on_change is not None:
            self._on_change(is_paused)

    def close(self) -> None:
        """Stop the callbacks; idempotent."""
        if self._on_change is None:
            return
        self._on_change = None
        # The last watch takes this one's place: `list.remove` would be O(n).
        watches = self._watched.watches
        last = watches.pop()
        if last is not self:
            watches[self.index] = last
            last.index = self.index
        if not watches:
            self._monitor.on_unwatched(self._watched)


class _SharedRequests(Generic[Answer]):
    """
    Send one request for all callers that ask for the same before it is sent.

    A caller that asks later causes a new request: the answer to the earlier one may be older than
    the event that the caller asks about. A node that hangs does not delay requests to others.
    """

    def __init__(self, request: Callable[[str, str], Awaitable[Answer]]) -> None:
        self._request = request
        self._slots: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        """By node, while requests to it are pending."""
        self._waiting: dict[tuple[str, str], asyncio.Task[Answer]] = {}
        self._tasks: set[asyncio.Task[Answer]] = set()

    async def request(self, node: str, what: str) -> Answer | None:
        """Return the answer to a request that is sent after this call; None after `stop`."""
        task = self._waiting.get((node, what))
        if task is None:
            task = spawn("ask about a channel", self._send(node, what))
            self._waiting[node, what] = task
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        # Not `await task`: cancelling one caller would cancel the request that others share.
        await asyncio.wait({task})
        return None if task.cancelled() else task.result()

    async def _send(self, node: str, what: str) -> Answer:
        slots = self._slots.get(node)
        if slots is None:
            slots = self._slots[node] = asyncio.Semaphore(_MAX_PER_NSQD)
        async with slots:
            # From here on the request is being sent, so that new callers must not share it.
            del self._waiting[node, what]
            return await self._request(node, what)

    async def stop(self) -> None:
        """Cancel all requests."""
        tasks = set(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._waiting.clear()
