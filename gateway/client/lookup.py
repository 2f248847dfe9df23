"""
Discovery: which nsqds there are, and which have a topic, as several nsqlookupds know it.

Every nsqlookupd is asked, and what they say is put together: they do not tell each other what they
know. An nsqlookupd that fails says nothing: what it said last still holds, so that the end of an
nsqlookupd takes no nsqd away.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import httpx

from gateway.bearer import bearer_headers
from gateway.client.lookup_answers import FoundNsqds
from gateway.client.lookupd import Lookupd, lookupd_url
from gateway.secret import Secret
from gateway.telemetry import get_logger, spawn

logger = get_logger()

_REFRESH_INTERVAL_S = 1.0
"""The least time between the beginnings of two rounds that a refresh asks for."""


@dataclass(frozen=True, kw_only=True)
class LookupOptions:
    """Whom to ask, and how often."""

    lookupd_http_addresses: tuple[str, ...]
    """Each host:port, or http(s)://host:port with what stands before /lookup and /nodes."""
    poll_interval_s: float = 60.0
    """The longest time from one round of questions to the next."""
    poll_jitter: float = 0.3
    """
    How much shorter it is at random, 0 to 1 of the interval, drawn for each round.

    go-nsq makes its first interval longer by as much. Shorter, so that what changes is known
    within one interval; each round, so that clients that a lost nsqd brought into step leave it.
    """
    timeout_s: float = 5.0
    """From a question to the last byte of its answer."""
    max_answer_bytes: int = 5 * 1_048_576
    """Reading stops there, and the answer does not count."""
    max_nsqds: int = 1_000
    """So many of those found are counted on, the first by address; each is a few connections."""
    secret: Secret | None = None
    """Sent as ``Authorization: Bearer``, for a proxy before nsqlookupd, as go-nsq does."""


class Watch:
    """The nsqds that have a topic, or all of them, kept up to date until `close`."""

    __slots__ = ("_changed", "_fixed", "_is_closed", "_poll", "_told")

    def __init__(
        self,
        fixed: frozenset[str],
        poll: _Poll | None,
        changed: Callable[[frozenset[str]], None],
    ) -> None:
        self._fixed = fixed
        self._poll = poll
        self._changed = changed
        self._told = self.addresses
        self._is_closed = False

    @property
    def addresses(self) -> frozenset[str]:
        """
        Each nsqd's host:port: the fixed ones and what each nsqlookupd said last.

        One that is not there any more is no reason to close a connection.
        """
        return self._fixed if self._poll is None else self._poll.addresses

    @property
    def http_addresses(self) -> frozenset[str]:
        """Where those of `addresses` that an nsqlookupd named answer HTTP, host:port."""
        found = {} if self._poll is None else self._poll.found
        return frozenset(address for address in found.values() if address is not None)

    async def first_answer(self) -> bool:
        """
        Return True once an nsqlookupd has answered, False once all of them have failed.

        That the topic is not known yet is an answer. True at once without any nsqlookupd, False
        when discovery stops before an answer.
        """
        return self._poll is None or await self._poll.first_answer()

    def refresh(self) -> None:
        """Ask again soon, for an nsqd was lost; what is asked within a second is asked once."""
        if self._poll is not None and not self._is_closed:
            self._poll.refresh()

    def close(self) -> None:
        """Tell nothing any more; the last watch of a topic ends its questions."""
        if not self._is_closed:
            self._is_closed = True
            if self._poll is not None:
                self._poll.leave(self)

    def tell(self) -> None:
        """Tell of `addresses`, unless they are what was told last."""
        if not self._is_closed and self.addresses != self._told:
            self._told = self.addresses
            self._changed(self._told)


class Discovery:
    """Finds nsqds; `start` first, `stop` last."""

    def __init__(
        self, nsqd_tcp_addresses: Sequence[str], options: LookupOptions | None = None
    ) -> None:
        """
        Keep what is known; nothing is asked before a watch begins.

        Raises:
            SettingsError: The address of an nsqlookupd is none, or the secret fits no header.
        """
        self._fixed = frozenset(nsqd_tcp_addresses)
        self._options = options or LookupOptions(lookupd_http_addresses=())
        urls = map(lookupd_url, self._options.lookupd_http_addresses)
        self._urls = list(dict.fromkeys(urls))
        if self._urls:
            bearer_headers(self._options.secret)
        self.lookupds: tuple[Lookupd, ...] = ()
        """Each nsqlookupd, from `start` to `stop`."""
        self._polls: dict[str | None, _Poll] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def has_lookups(self) -> bool:
        """Whether nsqds are looked for, beside those that are given."""
        return bool(self._urls)

    async def start(self) -> None:
        """Get ready to ask."""
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
        """End every question; the watches keep what they know and are told nothing more."""
        lookupds, self.lookupds = self.lookupds, ()
        polls, self._polls = self._polls, {}
        for poll in polls.values():
            poll.end()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for lookupd in lookupds:
            await lookupd.close()

    def http_address_of(self, address: str) -> str | None:
        """Return where the nsqd at *address* answers HTTP, if an nsqlookupd has named both."""
        poll = self._polls.get(None)
        return None if poll is None else poll.found.get(address)

    def watch_nodes(self, changed: Callable[[frozenset[str]], None]) -> Watch:
        """
        Watch every nsqd that is known, for publishing: a new topic is nowhere yet.

        *changed* is called on the event loop with each new set of addresses, not before this
        returns.
        """
        return self._watch(None, changed)

    def watch_topic(self, topic: str, changed: Callable[[frozenset[str]], None]) -> Watch:
        """Watch the nsqds that have *topic*; *changed* as in `watch_nodes`."""
        return self._watch(topic, changed)

    def topic_seen(self, topic: str, address: str) -> None:
        """
        Count the nsqd at *address* among those that have *topic*: it has just taken a publish.

        Whoever watches the topic learns it at once, and not when an nsqlookupd names it. Without
        a watch of the topic this is one look into a table.
        """
        poll = self._polls.get(topic)
        if poll is not None and address not in poll.found and address not in self._fixed:
            poll.saw(address)

    def _watch(self, topic: str | None, changed: Callable[[frozenset[str]], None]) -> Watch:
        if not self._urls:
            return Watch(self._fixed, None, changed)
        poll = self._polls.get(topic)
        if poll is None:
            poll = self._begin(topic)
        elif not poll.found:
            poll.ask_for_newcomer()
        watch = Watch(self._fixed, poll, changed)
        poll.watches.add(watch)
        return watch

    def _begin(self, topic: str | None) -> _Poll:
        poll = _Poll(topic, self.lookupds, self._options, self._end)
        poll.fix(self._fixed)
        if not self.lookupds:
            poll.end()
            return poll
        self._polls[topic] = poll
        task = poll.begin()
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return poll

    def _end(self, poll: _Poll) -> None:
        """End *poll*, which nobody watches any more."""
        poll.end()
        if self._polls.get(poll.topic) is poll:
            del self._polls[poll.topic]


class _Poll:
    """One question, to all nsqlookupds, again and again; *topic* None asks for all nsqds."""

    def __init__(
        self,
        topic: str | None,
        lookupds: Iterable[Lookupd],
        options: LookupOptions,
        unwatched: Callable[[_Poll], None],
    ) -> None:
        self.topic = topic
        self.watches: set[Watch] = set()
        self.found: FoundNsqds = {}
        """What each nsqlookupd said last, together."""
        self.addresses: frozenset[str] = frozenset()
        """Those, and the ones that are given: one set for all who watch."""
        self._fixed: frozenset[str] = frozenset()
        self._options = options
        self._unwatched = unwatched
        self._answers: dict[Lookupd, FoundNsqds] = {}
        self._seen: dict[str, float] = {}
        """Who had the topic though no nsqlookupd had named it, and up to when that counts."""
        self._lookupds = tuple(lookupds)
        self._random = random.random
        self._has_answer = False
        self._is_settled = asyncio.Event()
        """Set when one has answered, or all have failed."""
        self._is_wanted = asyncio.Event()
        """Set when somebody does not want to wait for the next round."""
        self._task: asyncio.Task[None] | None = None

    def fix(self, addresses: frozenset[str]) -> None:
        """Count *addresses* in, whatever the nsqlookupds say."""
        self._fixed = self.addresses = addresses

    def begin(self) -> asyncio.Task[None]:
        """Ask for the first time now, and go on."""
        name = "poll for all nsqds" if self.topic is None else f"poll for topic {self.topic}"
        self._task = spawn(name, self._ask_for_ever())
        return self._task

    def end(self) -> None:
        """Ask no more; whoever waits for the first answer waits no longer."""
        self._is_settled.set()
        if self._task is not None:
            self._task.cancel()

    def leave(self, watch: Watch) -> None:
        """Tell *watch* nothing any more."""
        self.watches.discard(watch)
        if not self.watches:
            self._unwatched(self)

    async def first_answer(self) -> bool:
        """Return whether one has answered, once it is known."""
        await self._is_settled.wait()
        return self._has_answer

    def refresh(self) -> None:
        """Begin the next round soon."""
        self._is_wanted.set()

    def ask_for_newcomer(self) -> None:
        """Ask soon, and let a new watch not take an old failure for its own."""
        if not self._has_answer:
            self._is_settled.clear()
        self.refresh()

    async def _ask_for_ever(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                begun_at = loop.time()
                self._is_wanted.clear()
                async with asyncio.TaskGroup() as group:
                    for lookupd in self._lookupds:
                        group.create_task(self._ask(lookupd))
                self._is_settled.set()
                await self._pause(begun_at)
        finally:
            # Whatever ended it: nobody is to wait for an answer that does not come.
            self._is_settled.set()
            for lookupd in self._lookupds:
                lookupd.forget(self.topic)

    def saw(self, address: str) -> None:
        """Count *address* in until it is named, or the next round has had its time to end."""
        if len(self.found) < self._options.max_nsqds:
            now = asyncio.get_running_loop().time()
            self._seen[address] = now + self._options.poll_interval_s + self._options.timeout_s
            self._put_together()

    async def _pause(self, begun_at: float) -> None:
        """Return when the next round is due."""
        shorter = self._options.poll_jitter * self._random()
        interval_s = self._options.poll_interval_s * (1 - shorter)
        try:
            async with asyncio.timeout_at(begun_at + interval_s):
                await self._is_wanted.wait()
                # A broker that goes is lost by all its connections at once.
                now = asyncio.get_running_loop().time()
                await asyncio.sleep(begun_at + _REFRESH_INTERVAL_S - now)
        except TimeoutError:
            return

    def _bounded(self, nsqds: FoundNsqds) -> FoundNsqds:
        """Return as many of *nsqds* as may be counted on."""
        limit = self._options.max_nsqds
        if len(nsqds) <= limit:
            return nsqds
        logger.warning("too many nsqds found", found=len(nsqds), limit=limit)
        return {address: nsqds[address] for address in sorted(nsqds)[:limit]}

    async def _ask(self, lookupd: Lookupd) -> None:
        """Ask one; its answer counts at once, whatever the others do."""
        nsqds = await lookupd.ask(self.topic)
        if nsqds is None:
            return
        self._answers[lookupd] = nsqds
        self._put_together()
        self._has_answer = True
        self._is_settled.set()

    def _put_together(self) -> None:
        """Find out who there is now, and tell the watches of a change."""
        # Not in order of the answers: where two of them differ, it is to stay with one.
        answers = [self._answers[each] for each in self._lookupds if each in self._answers]
        named = {key: each[key] for each in answers for key in each}
        now = asyncio.get_running_loop().time()
        # What has been named is seen no more: it is gone once it is named no more.
        seen = {each: until for each, until in self._seen.items() if each not in named}
        self._seen = {each: until for each, until in seen.items() if now < until}
        found = self._bounded(dict.fromkeys(self._seen) | named)
        if found != self.found:
            self.found = found
            self.addresses = self._fixed.union(found)
            loop = asyncio.get_running_loop()
            for watch in self.watches:
                # Not from here: what a listener does, and how it fails, is not our business.
                loop.call_soon(watch.tell)
