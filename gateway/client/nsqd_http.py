"""
HTTP client for every known nsqd, with limits in time and bytes.

It returns an answer of each nsqd, or the reason why there is none. The known nsqds are those of
the settings and those found by nsqlookupds.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

import httpx

from gateway.aio import run_in_steps
from gateway.client.discovery import Discovery, TopicWatch, check_addresses
from gateway.client.http import (
    HEADERS,
    AnswerTooBig,
    ByteBudget,
    http_client,
    read_body,
    unreachable_on_failure,
)
from gateway.client.nsqd_answers import (
    NodeAnswer,
    NodeRequest,
    NodeResponse,
    NodeUnreachable,
    is_ok,
)
from gateway.errors import BrokerUnreachable, LimitReached, NodeUnknown, NoNsqdHttpAddress

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class NsqdHttpOptions:
    """Limits of HTTP requests to nsqds."""

    timeout_s: float = 5.0
    """Time limit per node, including the wait for a connection and the last byte of the answer."""
    max_answer_bytes: int = 32 * 1_048_576
    """Maximum size of one node's answer; /stats has about 1 KB for each connection."""
    max_answers_bytes: int = 64 * 1_048_576
    """Maximum total size of all nodes' answers to one request."""
    max_requests: int = 4
    """Maximum concurrent requests, each with those sizes. Others wait for timeout_s at most."""
    max_connections: int = 32
    """Maximum connections to all nodes."""


class NsqdHttp:
    """HTTP client for all known nsqds. Call `start` first and `stop` last."""

    def __init__(
        self,
        nsqd_http_addresses: Sequence[str],
        discovery: Discovery,
        options: NsqdHttpOptions | None = None,
    ) -> None:
        """
        Use the nsqds at *nsqd_http_addresses* (host:port) and those that *discovery* finds.

        Raises:
            SettingsError: *nsqd_http_addresses* is a string and not a list.
        """
        check_addresses("nsqd_http_addresses", nsqd_http_addresses)
        self._fixed = frozenset(nsqd_http_addresses)
        self._discovery = discovery
        self._options = options or NsqdHttpOptions()
        self._requests = asyncio.Semaphore(self._options.max_requests)
        # Requests wait here, not in httpx: it scans all waiting requests per freed connection.
        self._connections = asyncio.Semaphore(self._options.max_connections)
        self._http: httpx.AsyncClient | None = None
        self._watch: TopicWatch | None = None

    async def start(self) -> None:
        """Open the HTTP client, and start to watch for nsqds."""
        self._http = http_client(max_connections=self._options.max_connections)
        self._watch = self._discovery.watch_nodes(lambda _addresses: None)

    async def stop(self) -> None:
        """Close the connections; pending requests return `NodeUnreachable`. Idempotent."""
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.close()
        # Before the close: a request that begins meanwhile must find no client.
        http, self._http = self._http, None
        if http is not None:
            await http.aclose()

    @property
    def http_addresses(self) -> list[str]:
        """HTTP host:port of the known nsqds, sorted."""
        found = frozenset[str]() if self._watch is None else self._watch.http_addresses
        return sorted(self._fixed | found)

    async def request_all(
        self, *requests: NodeRequest, nodes: Sequence[str] | None = None
    ) -> list[NodeAnswer]:
        """
        Send *requests* in order to every known nsqd, or to *nodes*; return one answer per node.

        A node that answers anything but 200 gets no further request; its last answer is returned.

        Raises:
            NoNsqdHttpAddress: No nsqd is known.
            LimitReached: Too many requests, and none of them ended in time.
        """
        known = self._known(nodes)
        timeout_s = self._options.timeout_s
        async with self._slot(timeout_s):
            return await self._send_to_all(known, requests, timeout_s)

    async def request_and_parse(
        self,
        request: NodeRequest,
        read: Callable[[Sequence[NodeAnswer]], Generator[None, None, T]],
        *,
        nodes: Sequence[str] | None = None,
        timeout_s: float | None = None,
    ) -> T:
        """
        Send *request* as `request` does; return what the generator *read* makes of the answers.

        *timeout_s* replaces `NsqdHttpOptions.timeout_s`. It does not limit *read*, whose time grows
        with the answers.

        Each of its steps, from yield to yield, runs in a turn of the event loop of its own. The
        request counts against `max_requests` until *read* has finished, which limits the
        answers in memory.

        Raises:
            NoNsqdHttpAddress: No nsqd is known.
            LimitReached: Too many requests, and none of them ended in time.
            Exception: What *read* raises.
        """
        known = self._known(nodes)
        timeout_s = self._options.timeout_s if timeout_s is None else timeout_s
        async with self._slot(timeout_s):
            return await run_in_steps(read(await self._send_to_all(known, [request], timeout_s)))

    def _known(self, nodes: Sequence[str] | None) -> Sequence[str]:
        """Return *nodes*, or all known nsqds for None; raise NoNsqdHttpAddress if there is none."""
        nodes = self.http_addresses if nodes is None else nodes
        if not nodes:
            raise NoNsqdHttpAddress
        return nodes

    async def _send_to_all(
        self, nodes: Sequence[str], requests: Sequence[NodeRequest], timeout_s: float
    ) -> list[NodeAnswer]:
        # One for all nodes: their answers are in memory at the same time.
        budget = ByteBudget(self._options.max_answers_bytes)
        return await asyncio.gather(
            *(self._request_in_order(node, requests, budget, timeout_s) for node in nodes)
        )

    @asynccontextmanager
    async def _slot(self, timeout_s: float) -> AsyncIterator[None]:
        """Context manager: hold one of `max_requests`; raise LimitReached after *timeout_s*."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._requests.acquire()
        except TimeoutError:
            limit = self._options.max_requests
            raise LimitReached(
                f"{limit} requests to nsqd are pending, which is the limit; try again later"
            ) from None
        try:
            yield
        finally:
            self._requests.release()

    async def _request_in_order(
        self,
        node: str,
        requests: Sequence[NodeRequest],
        budget: ByteBudget,
        timeout_s: float,
    ) -> NodeAnswer:
        answer: NodeAnswer = NodeUnreachable(node=node, reason="no request was sent")
        for request in requests:
            answer = await self._request(node, request, budget, timeout_s)
            # The next request builds on this one: a channel is created after its topic.
            if not is_ok(answer):
                break
        return answer

    async def _request(
        self, node: str, request: NodeRequest, budget: ByteBudget, timeout_s: float
    ) -> NodeAnswer:
        try:
            # One limit, the wait for a connection included: the HTTP client itself has none.
            async with asyncio.timeout(timeout_s), self._connections:
                with unreachable_on_failure(node):
                    return await self._send(node, request, budget)
        except TimeoutError:
            return NodeUnreachable(node=node, reason=f"no complete answer within {timeout_s:g} s")
        except AnswerTooBig as error:
            return NodeUnreachable(node=node, reason=str(error))
        except BrokerUnreachable as error:
            return NodeUnreachable(node=node, reason=error.reason)

    async def _send(self, node: str, request: NodeRequest, budget: ByteBudget) -> NodeAnswer:
        if self._http is None:
            return NodeUnreachable(node=node, reason="the gateway is stopping")
        url = f"http://{node}{request.target}"
        async with self._http.stream(request.method, url, headers=dict(HEADERS)) as answer:
            body = await read_body(answer, budget, ByteBudget(self._options.max_answer_bytes))
            date = answer.headers.get("date", "")
            return NodeResponse(node=node, status=answer.status_code, body=body, date=date)


def check_known(node: str, nsqds: NsqdHttp) -> None:
    """
    Check that *node* is the HTTP address of a known nsqd.

    Raises:
        NodeUnknown: It is not; the text has the known ones.
    """
    known = nsqds.http_addresses
    if node not in known:
        raise NodeUnknown(node, known)
