"""
The HTTP of every known nsqd: one question to all of them, an answer or a reason from each.

Known are those that the settings name, and those that an nsqlookupd names: discovery asks for
them anyway, for publishing. A question is bounded in time and in bytes, and so are all together.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx

from gateway.client.http_question import (
    HEADERS,
    Allowance,
    AnswerTooBig,
    http_client,
    read_body,
    what_happened,
)
from gateway.client.lookup import Discovery, Watch
from gateway.client.node_answers import NodeAnswer, Question, Reached, Unreachable, is_done
from gateway.errors import Full, NoKnownNsqd


@dataclass(frozen=True, kw_only=True)
class NsqdHttpOptions:
    """How long, how much and how many at a time."""

    timeout_s: float = 5.0
    """From a question to the last byte of a node's answer, with its wait for a connection."""
    max_answer_bytes: int = 32 * 1_048_576
    """Of one node; /stats has about 1 KB for each connection."""
    max_answers_bytes: int = 64 * 1_048_576
    """Of all nodes to one question."""
    max_questions: int = 4
    """At a time; so many times the bytes above may be held. More wait, for timeout_s."""
    max_connections: int = 32
    """To all nodes at a time."""


class NsqdHttp:
    """Asks all known nsqds; `start` first, `stop` last."""

    def __init__(
        self,
        nsqd_http_addresses: Sequence[str],
        discovery: Discovery,
        options: NsqdHttpOptions | None = None,
    ) -> None:
        """Ask those at *nsqd_http_addresses* (host:port), and those that *discovery* finds."""
        self._fixed = frozenset(nsqd_http_addresses)
        self._discovery = discovery
        self._options = options or NsqdHttpOptions()
        self._questions = asyncio.Semaphore(self._options.max_questions)
        # A crowd waits here: the library looks at all who wait for each that goes.
        self._connections = asyncio.Semaphore(self._options.max_connections)
        self._http: httpx.AsyncClient | None = None
        self._watch: Watch | None = None

    async def start(self) -> None:
        """Get ready to ask."""
        self._http = http_client(max_connections=self._options.max_connections)
        self._watch = self._discovery.watch_nodes(lambda _addresses: None)

    async def stop(self) -> None:
        """Close what is open; questions under way end as not answered. Idempotent."""
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.close()
        http, self._http = self._http, None
        if http is not None:
            await http.aclose()

    @property
    def nodes(self) -> list[str]:
        """Where the known nsqds answer HTTP, host:port, in order."""
        found = frozenset[str]() if self._watch is None else self._watch.http_addresses
        return sorted(self._fixed | found)

    async def ask(
        self, *questions: Question, nodes: Sequence[str] | None = None
    ) -> list[NodeAnswer]:
        """
        Ask every known nsqd, or *nodes*, one question after another; an answer each, in order.

        The answer of a node is the one to the last question, or the first that is not 200.

        Raises:
            NoKnownNsqd: There is nobody to ask.
            Full: Too many ask, and those before did not end in time.
        """
        nodes = self.nodes if nodes is None else nodes
        if not nodes:
            raise NoKnownNsqd
        async with self._turn():
            allowance = Allowance(self._options.max_answers_bytes)
            return await asyncio.gather(
                *(self._ask_in_turn(node, questions, allowance) for node in nodes)
            )

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self._options.timeout_s):
                await self._questions.acquire()
        except TimeoutError:
            limit = self._options.max_questions
            raise Full(
                f"at most {limit} questions to nsqd at a time are taken; try again later"
            ) from None
        try:
            yield
        finally:
            self._questions.release()

    async def _ask_in_turn(
        self, node: str, questions: Sequence[Question], allowance: Allowance
    ) -> NodeAnswer:
        answer: NodeAnswer = Unreachable(node=node, reason="was not asked")
        for question in questions:
            answer = await self._ask(node, question, allowance)
            if not is_done(answer):
                break
        return answer

    async def _ask(self, node: str, question: Question, allowance: Allowance) -> NodeAnswer:
        timeout_s = self._options.timeout_s
        try:
            async with asyncio.timeout(timeout_s), self._connections:
                return await self._request(node, question, allowance)
        except TimeoutError:
            return Unreachable(node=node, reason=f"no complete answer within {timeout_s:g} s")
        except AnswerTooBig as error:
            return Unreachable(node=node, reason=str(error))
        except (httpx.HTTPError, httpx.StreamError, httpx.InvalidURL, OSError) as error:
            return Unreachable(node=node, reason=what_happened(error))

    async def _request(self, node: str, question: Question, allowance: Allowance) -> NodeAnswer:
        if self._http is None:
            return Unreachable(node=node, reason="the gateway is stopping")
        url = f"http://{node}{question.target}"
        async with self._http.stream(question.method, url, headers=dict(HEADERS)) as answer:
            body = await read_body(answer, allowance, Allowance(self._options.max_answer_bytes))
            date = answer.headers.get("date", "")
            return Reached(node=node, status=answer.status_code, body=body, date=date)
