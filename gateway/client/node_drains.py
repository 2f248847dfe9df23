"""
Drain nsqds: new messages go elsewhere, while consumers take what is there.

An nsqd that drains is marked by a paused topic of its own, `DRAIN_TOPIC`. So every process of every
gateway finds the mark, whoever set it, and no restart loses it, since nsqd keeps its topics. An
unpaused topic is no mark: whoever may publish can create one, but only an administrator pauses it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from gateway.addresses import join_address, split_address
from gateway.aio import spawn
from gateway.client.discovery import Discovery, TopicWatch
from gateway.client.node_report import DRAIN_TOPIC, is_drain_mark
from gateway.client.nsqd_answers import (
    INFO,
    NodeRequest,
    parse_info,
    parse_stats,
    raise_for_results,
    stats_request,
)
from gateway.client.nsqd_http import NsqdHttp, check_known
from gateway.errors import DrainRefused, GatewayError, InvalidRequest
from gateway.telemetry import gauge, get_logger

logger = get_logger()

_NAMES = [("topic", DRAIN_TOPIC.encode())]
_CREATE = NodeRequest(method="POST", path="/topic/create", query=_NAMES)
_PAUSE = NodeRequest(method="POST", path="/topic/pause", query=_NAMES)
_DELETE = NodeRequest(method="POST", path="/topic/delete", query=_NAMES)

_DRAINING = gauge(
    "draining_nsqds", "nsqds that this process publishes to only if there is no other one."
)


class DrainMarks:
    """The marks at the nsqds themselves."""

    def __init__(self, nsqds: NsqdHttp, discovery: Discovery) -> None:
        self._nsqds = nsqds
        self._discovery = discovery

    async def read(self) -> Mapping[str, bool]:
        """
        Return for each nsqd that answers, by HTTP address, whether it is marked.

        Raises:
            NoNsqdHttpAddress: No nsqd is known.
            LimitReached: See `NsqdHttp.request_all`.
        """
        marks = {}
        for answer in await self._nsqds.request_all(stats_request(DRAIN_TOPIC)):
            stats = parse_stats(answer)
            if stats is not None:
                marks[answer.node] = any(map(is_drain_mark, stats.topics or ()))
        return marks

    async def add(self, node: str) -> None:
        """
        Mark the nsqd at HTTP address *node*; nothing changes if it is marked already.

        Raises:
            NodeUnknown: No such nsqd is known.
            DrainRefused: No other nsqd answers that is not draining itself.
            PartialFailure: The nsqd did not do it.
            GatewayError: See `read`.
        """
        check_known(node, self._nsqds)
        marks = await self.read()
        others = [other for other, is_marked in marks.items() if other != node and not is_marked]
        if not others:
            raise DrainRefused(
                f"{node} is not drained: no other nsqd could take the messages; of "
                f"{len(self._nsqds.http_addresses)} known, {len(marks)} answered, and "
                f"{sum(marks.values())} are draining"
            )
        raise_for_results(await self._nsqds.request_all(_CREATE, _PAUSE, nodes=[node]))

    async def remove(self, node: str) -> None:
        """Remove the mark of *node*; nothing changes without one. Raises as `add` does."""
        check_known(node, self._nsqds)
        try:
            raise_for_results(await self._nsqds.request_all(_DELETE, nodes=[node]))
        except InvalidRequest:
            return  # there is no such topic
        # nsqd leaves the name behind at its nsqlookupds, without a node. Only when no node has the
        # mark: the request would make them forget the others.
        if not any((await self.read()).values()):
            await asyncio.gather(*(each.request(_DELETE) for each in self._discovery.lookupds))


class NodeDrains:
    """
    Tell a producer which nsqds are draining. Call `start` first and `stop` last.

    *on_change* is called with the TCP addresses of all draining nsqds whenever these change.
    """

    def __init__(
        self,
        nsqds: NsqdHttp,
        discovery: Discovery,
        on_change: Callable[[frozenset[str]], None],
        *,
        poll_interval_s: float,
    ) -> None:
        self._nsqds = nsqds
        self._discovery = discovery
        self._on_change = on_change
        self._poll_interval_s = poll_interval_s
        self._marks = DrainMarks(nsqds, discovery)
        self._watch: TopicWatch | None = None
        self._draining: dict[str, frozenset[str]] = {}
        """TCP addresses of each draining nsqd, by its HTTP address."""
        self._changing = asyncio.Lock()
        """Held from reading the marks to using them, so that no older reading is used last."""
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Read the marks once, and then at each interval."""
        self._watch = self._discovery.watch_nodes(lambda _: None)
        await self._poll()
        self._task = spawn("poll for draining nsqds", self._poll_forever())

    async def stop(self) -> None:
        """Stop polling; idempotent."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.close()

    async def drain(self, node: str) -> None:
        """
        Drain the nsqd at HTTP address *node*: this process publishes elsewhere from now on.

        Raises:
            NodeUnknown: No such nsqd is known.
            DrainRefused: There is no other one, or its TCP address is unknown.
            GatewayError: See `DrainMarks.add`.
        """
        async with self._changing:
            check_known(node, self._nsqds)
            addresses = await self._tcp_addresses_of(node)
            if not addresses:
                raise DrainRefused(
                    f"{node} is not drained: none of the TCP addresses that this gateway publishes "
                    "to is known to belong to it; give both addresses the same host, or use "
                    "nsqlookupd"
                )
            await self._marks.add(node)
            self._use({**self._draining, node: addresses})

    async def undrain(self, node: str) -> None:
        """End the drain of *node*; nothing changes if it is not draining. Raises as `drain`."""
        async with self._changing:
            await self._marks.remove(node)
            self._use({each: tcp for each, tcp in self._draining.items() if each != node})

    async def _poll_forever(self) -> None:
        while True:
            await asyncio.sleep(self._poll_interval_s)
            await self._poll()

    async def _poll(self) -> None:
        # The only nsqd cannot be drained: its log is spared a line for each poll.
        if len(self._nsqds.http_addresses) < 2 and not self._draining:  # noqa: PLR2004
            return
        try:
            async with self._changing:
                await self._read()
        except GatewayError as error:
            logger.debug("draining nsqds not read", reason=str(error))
        except Exception:
            # A bug: without a next poll, a drain elsewhere would never be seen.
            logger.exception("poll for draining nsqds failed")

    async def _read(self) -> None:
        marks = await self._marks.read()
        known = self._nsqds.http_addresses
        draining = {}
        for node in known:
            # An nsqd that does not answer stays as it is.
            if marks.get(node, node in self._draining):
                draining[node] = await self._tcp_addresses_of(node) or self._draining.get(
                    node, frozenset()
                )
        self._use(draining)

    def _use(self, draining: dict[str, frozenset[str]]) -> None:
        before, self._draining = self._draining, draining
        for node in draining.keys() - before.keys():
            logger.info("nsqd drain begun", nsqd=node, tcp_addresses=sorted(draining[node]))
        for node in before.keys() - draining.keys():
            logger.info("nsqd drain ended", nsqd=node)
        _DRAINING.set(len(draining))
        addresses = frozenset[str]().union(*draining.values())
        if addresses != frozenset[str]().union(*before.values()):
            self._on_change(addresses)

    async def _tcp_addresses_of(self, node: str) -> frozenset[str]:
        """Return the TCP addresses of the nsqd at *node* that publishes may use."""
        known = frozenset[str]() if self._watch is None else self._watch.addresses
        return await find_tcp_addresses(node, self._nsqds, self._discovery, known)


async def find_tcp_addresses(
    node: str, nsqds: NsqdHttp, discovery: Discovery, known: frozenset[str]
) -> frozenset[str]:
    """
    Return the TCP addresses of the nsqd at HTTP address *node*; empty if there is none in *known*.

    nsqlookupd names both addresses. Otherwise it is the address with the same host and the TCP port
    that nsqd itself names.
    """
    if found := discovery.tcp_addresses_of(node):
        return found
    (answer,) = await nsqds.request_all(INFO, nodes=[node])
    info = parse_info(answer)
    if info is None:
        return frozenset()
    return known & {join_address(split_address(node)[0], info.tcp_port)}
