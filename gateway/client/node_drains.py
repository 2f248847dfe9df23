"""
Drain nsqds: new messages go elsewhere, while consumers take what is there.

An nsqd that drains is marked by a paused topic of its own, `DRAIN_TOPIC`. So every process of every
gateway finds the mark, whoever set it, and no restart loses it, since nsqd keeps its topics. An
unpaused topic is no mark: whoever may publish can create one, but only an administrator pauses it.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping

import httptools

from gateway.addresses import join_address, split_address
from gateway.aio import spawn
from gateway.client.discovery import Discovery, TopicWatch
from gateway.client.http import HEADERS
from gateway.client.node_report import DRAIN_TOPIC, is_drain_mark
from gateway.client.nsqd_answers import (
    INFO,
    NodeAnswer,
    NodeRequest,
    NodeResponse,
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

_STATS = stats_request(DRAIN_TOPIC)

_MIN_WAIT_S, _MAX_WAIT_S = 0.25, 5.0
"""Bounds of the time limit of a poll, which otherwise is the interval between two."""
_RETRY_S = 5.0
"""How long after a connect that has timed out there is another one."""
_MAX_ANSWER_BYTES = 1_048_576
_READ_BYTES = 65_536

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
        for answer in await self._nsqds.request_all(_STATS):
            if (is_marked := _is_marked(answer)) is not None:
                marks[answer.node] = is_marked
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


class _Answer:
    """The callbacks of httptools for one response."""

    def __init__(self) -> None:
        self.body = bytearray()
        self.is_complete = False

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        self.is_complete = True


class MarkReader:
    """
    Ask one nsqd again and again whether it is marked.

    On a connection that stays open, and without an HTTP client: that takes 0.15 ms of CPU a
    request, instead of 2 ms. A poll several times a second needs it.
    """

    def __init__(self, node: str) -> None:
        self._node = node
        """HTTP host:port of the nsqd."""
        names = {"Host": node, **HEADERS}
        head = "".join(f"{name}: {value}\r\n" for name, value in names.items())
        self._request = f"{_STATS.method} {_STATS.target} HTTP/1.1\r\n{head}\r\n".encode()
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._retry_at = -math.inf

    async def read(self, timeout_s: float) -> bool | None:
        """Return whether the nsqd is marked; None if it does not answer within *timeout_s*."""
        loop = asyncio.get_running_loop()
        if loop.time() < self._retry_at:
            return None
        is_reused = self._streams is not None
        try:
            async with asyncio.timeout(timeout_s):
                try:
                    return await self._ask()
                except OSError:
                    if not is_reused:
                        raise
                # nsqd, or what is in between, has closed the connection meanwhile.
                self.close()
                return await self._ask()
        except (OSError, httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if self._streams is None and isinstance(error, TimeoutError):
                # The thread that looks up its name may be busy with that for much longer.
                self._retry_at = loop.time() + _RETRY_S
            self.close()
            return None
        except BaseException:
            # Cancelled: a later request must not read the response to this one.
            self.close()
            raise

    async def _ask(self) -> bool | None:
        if self._streams is None:
            self._streams = await asyncio.open_connection(*split_address(self._node))
        reader, writer = self._streams
        writer.write(self._request)
        answer = _Answer()
        parser = httptools.HttpResponseParser(answer)
        while not answer.is_complete:
            data = await reader.read(_READ_BYTES)
            if not data or len(answer.body) + len(data) > _MAX_ANSWER_BYTES:
                raise ConnectionError("no complete response")
            parser.feed_data(data)
        if not parser.should_keep_alive():
            self.close()
        status, body = parser.get_status_code(), bytes(answer.body)
        return _is_marked(NodeResponse(node=self._node, status=status, body=body))

    def close(self) -> None:
        """Close the connection; idempotent."""
        streams, self._streams = self._streams, None
        if streams is not None:
            streams[1].close()


def _is_marked(answer: NodeAnswer) -> bool | None:
    """Return whether the nsqd is marked; None if *answer* does not tell."""
    stats = parse_stats(answer)
    return None if stats is None else any(map(is_drain_mark, stats.topics or ()))


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
        self._wait_s = min(max(poll_interval_s, _MIN_WAIT_S), _MAX_WAIT_S)
        self._marks = DrainMarks(nsqds, discovery)
        self._readers: dict[str, MarkReader] = {}
        """By HTTP address of the nsqd."""
        self._watch: TopicWatch | None = None
        self._draining: dict[str, frozenset[str]] = {}
        """TCP addresses of each draining nsqd, by its HTTP address."""
        self._changing = asyncio.Lock()
        """Held from reading the marks to using them, so that no older reading is used last."""
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Read the marks once, and then at each interval."""
        self._watch = self._discovery.watch_nodes(lambda _: None)
        await self._poll(self._marks.read)
        self._task = spawn("poll for draining nsqds", self._poll_forever())

    async def stop(self) -> None:
        """Stop polling; idempotent."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        for reader in self._readers.values():
            reader.close()
        self._readers.clear()
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
        loop = asyncio.get_running_loop()
        due_at = loop.time()
        while True:
            # From begin to begin: a poll that waits for an nsqd does not delay the next one.
            due_at = max(due_at + self._poll_interval_s, loop.time())
            await asyncio.sleep(due_at - loop.time())
            await self._poll(self._read_marks)

    async def _poll(self, read: Callable[[], Awaitable[Mapping[str, bool]]]) -> None:
        """Take the marks that *read* returns."""
        # The only nsqd cannot be drained: its log is spared a line for each poll.
        count = len(self._nsqds.http_addresses)
        if not count or (count == 1 and not self._draining):
            return
        try:
            async with self._changing:
                await self._take(await read())
        except GatewayError as error:
            logger.debug("draining nsqds not read", reason=str(error))
        except Exception:
            # A bug: without a next poll, a drain elsewhere would never be seen.
            logger.exception("poll for draining nsqds failed")

    async def _read_marks(self) -> Mapping[str, bool]:
        """Return the marks as `DrainMarks.read` does, of nsqds that answer in time."""
        known = self._nsqds.http_addresses
        for node in self._readers.keys() - {*known}:
            self._readers.pop(node).close()
        for node in {*known} - self._readers.keys():
            self._readers[node] = MarkReader(node)
        marks = await asyncio.gather(*(self._readers[node].read(self._wait_s) for node in known))
        return {
            node: is_marked
            for node, is_marked in zip(known, marks, strict=True)
            if is_marked is not None
        }

    async def _take(self, marks: Mapping[str, bool]) -> None:
        draining = {}
        for node in self._nsqds.http_addresses:
            before = self._draining.get(node)
            if marks.get(node):
                found = self._discovery.tcp_addresses_of(node) or before
                draining[node] = found or await self._tcp_addresses_of(node)
            elif node not in marks and before is not None:
                # An nsqd that does not answer stays as it is.
                draining[node] = before
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
