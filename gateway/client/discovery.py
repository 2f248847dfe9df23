"""
Find nsqds through nsqlookupd: all of them, or those that have a topic.

Every nsqlookupd is polled and the answers are merged, because they do not replicate each other.
If one fails, its last answer stays valid, so that losing an nsqlookupd loses no nsqd.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import httpx

from gateway.aio import spawn
from gateway.client.lookupd import FoundNsqds, Lookupd, lookupd_url
from gateway.credentials import Secret, bearer_headers
from gateway.errors import SettingsError
from gateway.protocol.wire import check_topic
from gateway.telemetry import get_logger

logger = get_logger()

_REFRESH_INTERVAL_S = 1.0
"""Minimum seconds from the start of a poll to the start of a poll requested by `refresh`."""


def check_addresses(name: str, addresses: Iterable[str]) -> None:
    """
    Raise SettingsError for a string in place of a list of addresses.

    Raises:
        SettingsError: *addresses*, the value of the parameter *name*, is a string.
    """
    if isinstance(addresses, str | bytes):
        raise SettingsError(name, addresses, allowed=f"a list of addresses, [{addresses!r}]")


@dataclass(frozen=True, kw_only=True)
class LookupOptions:
    """The nsqlookupds to poll, how often, and limits on their answers."""

    lookupd_http_addresses: tuple[str, ...]
    """Each host:port, or http(s)://host:port and a path that is put before /lookup and /nodes."""
    poll_interval_s: float = 60.0
    """Maximum time from one poll to the next."""
    poll_jitter: float = 0.3
    """
    Maximum fraction of the interval, 0 to 1, by which each poll is early at random.

    Polls are never late, so that a change is known within one interval. Each poll is jittered, so
    that clients that were synchronized by the loss of an nsqd drift apart. go-nsq only delays its
    first poll.
    """
    timeout_s: float = 5.0
    """Time limit for a request, including the last byte of its answer."""
    max_answer_bytes: int = 5 * 1_048_576
    """Maximum size of an answer; a larger one is discarded."""
    max_nsqds: int = 1_000
    """Maximum number of nsqds to use, sorted by address; each costs a few connections."""
    secret: Secret | None = None
    """Sent as ``Authorization: Bearer``, for a proxy in front of nsqlookupd, as in go-nsq."""

    def __post_init__(self) -> None:
        """Raise SettingsError for a string in place of several addresses."""
        check_addresses("lookupd_http_addresses", self.lookupd_http_addresses)


class TopicWatch:
    """The nsqds that have a topic, or all nsqds, kept up to date until `close`."""

    __slots__ = ("_fixed", "_is_closed", "_on_change", "_poll", "_reported")

    def __init__(
        self,
        fixed: frozenset[str],
        poll: _Poll | None,
        on_change: Callable[[frozenset[str]], None],
    ) -> None:
        self._fixed = fixed
        self._poll = poll
        self._on_change = on_change
        # The caller reads the first addresses itself; only later changes are reported.
        self._reported = self.addresses
        self._is_closed = False

    @property
    def addresses(self) -> frozenset[str]:
        """
        TCP host:port of the configured nsqds, and of those in the nsqlookupds' last answers.

        Do not close a working connection because its address is missing here.
        """
        return self._fixed if self._poll is None else self._poll.addresses

    @property
    def http_addresses(self) -> frozenset[str]:
        """HTTP host:port of the nsqds in the nsqlookupds' last answers."""
        found = {} if self._poll is None else self._poll.found
        return frozenset(address for address in found.values() if address is not None)

    async def first_answer(self) -> bool:
        """
        Return True once an nsqlookupd has answered, False once all of them have failed.

        TOPIC_NOT_FOUND is an answer too. Without nsqlookupds, return True at once; if discovery
        stops first, return False.
        """
        return self._poll is None or await self._poll.first_answer()

    def refresh(self) -> None:
        """Request a poll soon, at most once a second; call this after losing an nsqd."""
        if self._poll is not None and not self._is_closed:
            self._poll.refresh()

    def close(self) -> None:
        """Stop the callbacks; closing the last watch of a topic ends its polls."""
        if not self._is_closed:
            self._is_closed = True
            if self._poll is not None:
                self._poll.leave(self)

    def notify(self) -> None:
        """Pass `addresses` to the caller's callback if it has changed since the last call."""
        if not self._is_closed and self.addresses != self._reported:
            self._reported = self.addresses
            self._on_change(self._reported)


class Discovery:
    """Find nsqds: configured ones and those of nsqlookupds. Call `start` first, `stop` last."""

    def __init__(
        self, nsqd_tcp_addresses: Sequence[str], options: LookupOptions | None = None
    ) -> None:
        """
        Check the addresses; polling begins with the first watch.

        Raises:
            SettingsError: The address of an nsqlookupd is invalid, the secret cannot be sent in a
                header, or *nsqd_tcp_addresses* is a string and not a list.
        """
        check_addresses("nsqd_tcp_addresses", nsqd_tcp_addresses)
        self._fixed = frozenset(nsqd_tcp_addresses)
        self._options = options or LookupOptions(lookupd_http_addresses=())
        urls = map(lookupd_url, self._options.lookupd_http_addresses)
        # Each nsqlookupd once, in the order of the settings.
        self._urls = list(dict.fromkeys(urls))
        if self._urls:
            # Raises now if a header cannot carry the secret, and not at the first poll.
            bearer_headers(self._options.secret)
        self.lookupds: tuple[Lookupd, ...] = ()
        """Clients of the nsqlookupds; empty before `start` and after `stop`."""
        self._polls: dict[str | None, _Poll] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def has_lookups(self) -> bool:
        """True if any nsqlookupd is configured."""
        return bool(self._urls)

    async def start(self) -> None:
        """Create the clients of the nsqlookupds."""
        self.lookupds = tuple(self._lookupd(url) for url in self._urls)

    def _lookupd(self, url: httpx.URL) -> Lookupd:
        options = self._options
        return Lookupd(
            url,
            timeout_s=options.timeout_s,
            max_answer_bytes=options.max_answer_bytes,
            secret=options.secret,
        )

    async def stop(self) -> None:
        """End every poll; watches keep their addresses, and their callbacks end."""
        # Emptied first, so that a watch opened meanwhile starts no poll.
        lookupds, self.lookupds = self.lookupds, ()
        polls, self._polls = self._polls, {}
        for poll in polls.values():
            poll.end()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        # After the polls, which use these clients until they have ended.
        for lookupd in lookupds:
            await lookupd.close()

    def http_address_of(self, address: str) -> str | None:
        """Return the HTTP address of the nsqd at TCP *address*; None if no nsqlookupd knows it."""
        poll = self._polls.get(None)
        return None if poll is None else poll.found.get(address)

    def tcp_addresses_of(self, http_address: str) -> frozenset[str]:
        """Return the TCP addresses of the nsqd at *http_address*; empty if it was not found."""
        poll = self._polls.get(None)
        found = {} if poll is None else poll.found
        return frozenset(tcp for tcp, http in found.items() if http == http_address)

    def watch_nodes(self, on_change: Callable[[frozenset[str]], None]) -> TopicWatch:
        """
        Watch every known nsqd. Producers need all: a lookup by a new topic would find none.

        *on_change* is called from the event loop with each new set of addresses, never before this
        returns.
        """
        return self._watch(None, on_change)

    def watch_topic(self, topic: str, on_change: Callable[[frozenset[str]], None]) -> TopicWatch:
        """
        Watch the nsqds that have *topic*; *on_change* as in `watch_nodes`.

        Raises:
            InvalidRequest: *topic* is invalid.
        """
        check_topic(topic)
        return self._watch(topic, on_change)

    def topic_seen(self, topic: str, address: str) -> None:
        """
        Record that the nsqd at *address* has *topic*, because it has just accepted a publish.

        Watches of the topic are called at once, before any nsqlookupd returns the nsqd. Without a
        watch of the topic this costs one dict lookup.
        """
        poll = self._polls.get(topic)
        # This runs for every publish, and almost always the nsqd is known already.
        if poll is not None and address not in poll.found and address not in self._fixed:
            poll.add_seen(address)

    def _watch(self, topic: str | None, on_change: Callable[[frozenset[str]], None]) -> TopicWatch:
        if not self._urls:
            return TopicWatch(self._fixed, None, on_change)
        poll = self._polls.get(topic)
        if poll is None:
            poll = self._begin(topic)
        elif not poll.found:
            # The topic may exist by now: a new subscriber does not wait for the next interval.
            poll.restart()
        watch = TopicWatch(self._fixed, poll, on_change)
        poll.watches.add(watch)
        return watch

    def _begin(self, topic: str | None) -> _Poll:
        poll = _Poll(topic, self.lookupds, self._options, self._end)
        poll.fix(self._fixed)
        if not self.lookupds:
            # Not started, or stopped: such a watch has the configured addresses for ever.
            poll.end()
            return poll
        self._polls[topic] = poll
        task = poll.begin()
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return poll

    def _end(self, poll: _Poll) -> None:
        """End *poll*, whose last watch was closed."""
        poll.end()
        if self._polls.get(poll.topic) is poll:
            del self._polls[poll.topic]


class _Poll:
    """Repeated requests for one topic to all nsqlookupds; *topic* None means all nsqds."""

    def __init__(
        self,
        topic: str | None,
        lookupds: Iterable[Lookupd],
        options: LookupOptions,
        on_unwatched: Callable[[_Poll], None],
    ) -> None:
        self.topic = topic
        self.watches: set[TopicWatch] = set()
        self.found: FoundNsqds = {}
        """The last answers of the nsqlookupds, merged."""
        self.addresses: frozenset[str] = frozenset()
        """TCP addresses of `found` and the configured ones, in one set for all watches."""
        self._fixed: frozenset[str] = frozenset()
        self._options = options
        self._on_unwatched = on_unwatched
        self._answers: dict[Lookupd, FoundNsqds] = {}
        self._seen: dict[str, float] = {}
        """Expiry by address of nsqds that accepted a publish and are not in an answer yet."""
        self._lookupds = tuple(lookupds)
        self._random = random.random
        self._has_answer = False
        self._is_settled = asyncio.Event()
        """Set when one nsqlookupd has answered, or all have failed."""
        self._refresh_requested = asyncio.Event()
        """Set to poll before the interval has elapsed."""
        self._task: asyncio.Task[None] | None = None

    def fix(self, addresses: frozenset[str]) -> None:
        """Set the configured *addresses*, to which the nsqds of every answer are added."""
        self._fixed = self.addresses = addresses

    def begin(self) -> asyncio.Task[None]:
        """Start the task that polls at once and then at each interval."""
        name = "poll for all nsqds" if self.topic is None else f"poll for topic {self.topic}"
        self._task = spawn(name, self._poll_forever())
        return self._task

    def end(self) -> None:
        """Stop polling, and wake callers of `first_answer`."""
        self._is_settled.set()
        if self._task is not None:
            self._task.cancel()

    def leave(self, watch: TopicWatch) -> None:
        """Remove *watch*; removing the last one ends the poll."""
        self.watches.discard(watch)
        if not self.watches:
            self._on_unwatched(self)

    async def first_answer(self) -> bool:
        """Wait until an nsqlookupd has answered (return True), or all have failed (False)."""
        await self._is_settled.wait()
        return self._has_answer

    def refresh(self) -> None:
        """Request another poll soon: `_REFRESH_INTERVAL_S` after the start of the last one."""
        self._refresh_requested.set()

    def restart(self) -> None:
        """Request a poll soon, for a new watch."""
        if not self._has_answer:
            # `first_answer` of the new watch waits for this poll, and not for an old failure.
            self._is_settled.clear()
        self.refresh()

    async def _poll_forever(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                begun_at = loop.time()
                # Before the requests: a refresh during them needs another poll.
                self._refresh_requested.clear()
                # `_poll` never raises, or one nsqlookupd would cancel the requests to the others.
                async with asyncio.TaskGroup() as group:
                    for lookupd in self._lookupds:
                        group.create_task(self._poll(lookupd))
                self._is_settled.set()
                await self._wait_for_next(begun_at)
        finally:
            # However the poll ended, `first_answer` must return.
            self._is_settled.set()
            for lookupd in self._lookupds:
                lookupd.forget(self.topic)

    def add_seen(self, address: str) -> None:
        """Include *address* in `found` until an answer has it, or the next poll must have ended."""
        if len(self.found) < self._options.max_nsqds:
            now = asyncio.get_running_loop().time()
            self._seen[address] = now + self._options.poll_interval_s + self._options.timeout_s
            self._merge()

    async def _wait_for_next(self, begun_at: float) -> None:
        """Wait until the next poll is due."""
        # From the start of the last poll, so that slow answers do not extend the interval.
        shorter = self._options.poll_jitter * self._random()
        interval_s = self._options.poll_interval_s * (1 - shorter)
        try:
            async with asyncio.timeout_at(begun_at + interval_s):
                await self._refresh_requested.wait()
                # All connections to a lost nsqd request a refresh at once; one a second suffices.
                now = asyncio.get_running_loop().time()
                await asyncio.sleep(begun_at + _REFRESH_INTERVAL_S - now)
        except TimeoutError:
            return

    def _bounded(self, nsqds: FoundNsqds) -> FoundNsqds:
        """Return *nsqds*, at most `max_nsqds` of them."""
        limit = self._options.max_nsqds
        if len(nsqds) <= limit:
            return nsqds
        logger.warning("too many nsqds found", found=len(nsqds), limit=limit)
        # Sorted, so that every poll uses the same ones and connections stay.
        return {address: nsqds[address] for address in sorted(nsqds)[:limit]}

    async def _poll(self, lookupd: Lookupd) -> None:
        """Poll one nsqlookupd, and merge its answer without waiting for the others."""
        try:
            nsqds = await lookupd.fetch(self.topic)
        except Exception:
            # A bug, which must not cancel the requests to the others, nor end the poll.
            logger.exception("nsqlookupd poll failed", lookupd=lookupd.address)
            return
        if nsqds is None:
            # Failed: its last answer stays valid, so that no working nsqd disappears.
            return
        self._answers[lookupd] = nsqds
        self._merge()
        # One answer is enough: callers need not wait for another nsqlookupd that hangs.
        self._has_answer = True
        self._is_settled.set()

    def _merge(self) -> None:
        """Merge the last answers of all nsqlookupds; notify the watches of a new result."""
        # In the order of the settings, not of arrival: if two nsqlookupds disagree about an HTTP
        # address, the result must not change with every poll.
        answers = [self._answers[each] for each in self._lookupds if each in self._answers]
        named = {key: each[key] for each in answers for key in each}
        now = asyncio.get_running_loop().time()
        # Once an answer has had an nsqd, only answers count: without it they mean that it is gone.
        seen = {each: until for each, until in self._seen.items() if each not in named}
        self._seen = {each: until for each, until in seen.items() if now < until}
        found = self._bounded(dict.fromkeys(self._seen) | named)
        if found != self.found:
            self.found = found
            self.addresses = self._fixed.union(found)
            loop = asyncio.get_running_loop()
            for watch in self.watches:
                # Not called directly: a failing callback must not end the poll.
                loop.call_soon(watch.notify)
