"""Tests of `NsqdHttp`: requests to all nsqds, limited in time, bytes and number."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from gateway.client.discovery import Discovery, LookupOptions
from gateway.client.nsqd_answers import NodeAnswer, NodeRequest, NodeResponse, NodeUnreachable
from gateway.client.nsqd_http import NsqdHttp, NsqdHttpOptions
from gateway.errors import LimitReached, NoNsqdHttpAddress
from tests.support.brokers.killable_broker import free_port
from tests.support.brokers.nsqd import real_nsqd, real_nsqlookupd
from tests.support.brokers.scripted_lookupd import (
    Rule,
    ScriptedLookupd,
    endless,
    respond,
    scripted_lookupd,
    send_raw,
    silent,
)
from tests.support.manual_clock import ManualClock, run_on, turn, until

INFO = NodeRequest(method="GET", path="/info")
ALONE = Discovery(())


@asynccontextmanager
async def asking(
    *addresses: str, options: NsqdHttpOptions | None = None, discovery: Discovery = ALONE
) -> AsyncIterator[NsqdHttp]:
    """Return a client of the nsqds at *addresses*."""
    nsqds = NsqdHttp(addresses, discovery, options)
    await nsqds.start()
    try:
        yield nsqds
    finally:
        await nsqds.stop()


@asynccontextmanager
async def nodes(count: int) -> AsyncIterator[list[ScriptedLookupd]]:
    """Run HTTP servers that answer "yes"."""
    async with AsyncExitStack() as life:
        servers = [await life.enter_async_context(scripted_lookupd()) for _ in range(count)]
        for server in servers:
            server.rule = respond(200, b"yes")
        yield sorted(servers, key=lambda server: server.address)


async def test_each_node_gives_its_answer_in_order_of_address() -> None:
    """An answer has status and body, whatever the status."""
    async with nodes(3) as servers:
        servers[1].rule = respond(500, b"no")
        async with asking(*(server.address for server in reversed(servers))) as nsqds:
            answers = await nsqds.request_all(INFO)

    expected = [(200, b"yes"), (500, b"no"), (200, b"yes")]
    assert [
        NodeResponse(node=server.address, status=status, body=body)
        for server, (status, body) in zip(servers, expected, strict=True)
    ] == answers


async def test_a_question_is_asked_as_go_nsq_does() -> None:
    """The request has go-nsq's headers and no others of ours."""
    async with nodes(1) as (server,), asking(server.address) as nsqds:
        await nsqds.request_all(
            NodeRequest(method="POST", path="/topic/pause", query=[("topic", b"a#e")])
        )
        question = await server.question()

    assert "/topic/pause?topic=a%23e" == question.target
    assert "application/vnd.nsq; version=1.0" == question.headers["accept"]
    assert "identity" == question.headers["accept-encoding"]
    assert "0" == question.headers["content-length"]
    assert not {"cookie", "authorization"} & question.headers.keys()


async def test_of_several_questions_the_first_that_fails_is_the_last() -> None:
    """A request after a failed one would depend on it."""
    async with nodes(2) as servers, asking(*(server.address for server in servers)) as nsqds:
        servers[0].rule = respond(404, b"no")
        answers = await nsqds.request_all(INFO, NodeRequest(method="GET", path="/ping"))
        asked = [[question.target for question in server.questions] for server in servers]

    assert [404, 200] == [answer.status for answer in answers if isinstance(answer, NodeResponse)]
    assert [["/info"], ["/info", "/ping"]] == asked


@pytest.mark.parametrize(
    "rule,reason",
    [
        (silent, "no complete answer within 1 s"),
        (endless, "answers more than 1000 bytes"),
        (respond(200, b"x" * 1_001), "answers more than 1000 bytes"),
        (send_raw(b""), "Server disconnected without sending a response."),
        (send_raw(b"nonsense\r\n\r\n"), "illegal status line"),
        (send_raw(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nyes"), "peer closed connection"),
    ],
)
async def test_a_node_that_does_its_worst_is_a_node_with_a_reason(rule: Rule, reason: str) -> None:
    """The other nodes' answers are returned."""
    async with nodes(2) as servers:
        servers[0].rule = rule
        options = NsqdHttpOptions(timeout_s=1.0, max_answer_bytes=1_000)
        async with asking(*(server.address for server in servers), options=options) as nsqds:
            bad, good = await nsqds.request_all(INFO)

    assert isinstance(bad, NodeUnreachable)
    assert reason in bad.reason
    assert NodeResponse(node=servers[1].address, status=200, body=b"yes") == good


async def test_a_node_that_is_not_there_is_told_in_the_words_of_the_system() -> None:
    """The reason is the system's message, "Connection refused"."""
    address = f"127.0.0.1:{free_port()}"
    async with asking(address) as nsqds:
        answers = await nsqds.request_all(INFO)

    assert [NodeUnreachable(node=address, reason="Connection refused")] == answers


async def test_all_answers_together_are_bounded() -> None:
    """Answers of several nodes are in memory at the same time."""
    options = NsqdHttpOptions(max_answer_bytes=1_000, max_answers_bytes=1_500)
    async with nodes(2) as servers:
        for server in servers:
            server.rule = respond(200, b"x" * 1_000)
        async with asking(*(server.address for server in servers), options=options) as nsqds:
            answers = await nsqds.request_all(INFO)

    reasons = [answer.reason for answer in answers if isinstance(answer, NodeUnreachable)]
    assert ["answers more than 1500 bytes"] == reasons


async def test_more_nodes_than_connections_are_asked_in_turn() -> None:
    """A thousand nsqds do not need a thousand sockets."""
    async with nodes(3) as servers:
        options = NsqdHttpOptions(max_connections=1)
        async with asking(*(server.address for server in servers), options=options) as nsqds:
            answers = await nsqds.request_all(INFO)

    assert 3 == len([answer for answer in answers if isinstance(answer, NodeResponse)])


async def test_who_waits_too_long_for_a_turn_is_told_so() -> None:
    """The number of concurrent requests limits the answers in memory."""
    options = NsqdHttpOptions(timeout_s=0.05, max_requests=1)
    async with asking("127.0.0.1:1", options=options) as nsqds, nsqds._slot(1.0):
        with pytest.raises(LimitReached, match="1 requests to nsqd are pending"):
            await nsqds.request_all(INFO)


async def test_a_turn_is_given_back() -> None:
    """The slot is released, whatever the answers."""
    options = NsqdHttpOptions(timeout_s=1.0, max_requests=1)
    async with nodes(1) as (server,), asking(server.address, options=options) as nsqds:
        server.rule = silent
        await nsqds.request_all(INFO)
        server.rule = respond(200, b"yes")
        (answer,) = await nsqds.request_all(INFO)

    assert isinstance(answer, NodeResponse)


async def test_nobody_to_ask_is_told_with_what_to_do() -> None:
    """The error names the settings for nsqd addresses."""
    async with asking() as nsqds:
        with pytest.raises(NoNsqdHttpAddress, match="--nsqd-http-address"):
            await nsqds.request_all(INFO)


async def test_after_the_stop_nobody_is_asked() -> None:
    """A second `stop` does nothing."""
    async with asking("127.0.0.1:1") as nsqds:
        await nsqds.stop()
        answers = await nsqds.request_all(INFO)

    assert [NodeUnreachable(node="127.0.0.1:1", reason="the gateway is stopping")] == answers


async def test_a_proxy_of_the_environment_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """An HTTP proxy from the environment is not used for nsqd."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    async with nodes(1) as (server,), asking(server.address) as nsqds:
        (answer,) = await nsqds.request_all(INFO)

    assert isinstance(answer, NodeResponse)


@pytest.mark.nsqd
async def test_what_nsqlookupd_names_is_asked_too() -> None:
    """nsqd's broadcast address is used, from the poll that discovery performs anyway."""
    async with (
        real_nsqlookupd() as lookupd,
        real_nsqd(f"--lookupd-tcp-address={lookupd.tcp_address}") as found,
        real_nsqd() as named,
    ):
        options = LookupOptions(
            lookupd_http_addresses=(lookupd.http_address,), poll_interval_s=0.05
        )
        discovery = Discovery((), options)
        await discovery.start()
        async with asking(named.http_address, discovery=discovery) as nsqds:
            await until(lambda: len(nsqds.http_addresses) == 2)
            answers = await nsqds.request_all(INFO)
            polls = len(discovery._polls)
        await discovery.stop()

    assert sorted([found.http_address, named.http_address]) == [each.node for each in answers]
    assert [200, 200] == [each.status for each in answers if isinstance(each, NodeResponse)]
    assert 1 == polls


async def test_answers_are_read_a_step_in_each_turn() -> None:
    """The slot is held until *read* has finished, which limits concurrent processing."""
    options = NsqdHttpOptions(max_requests=1)
    turns: list[str] = []

    def reading(name: str) -> Callable[[Sequence[NodeAnswer]], Generator[None, None, int]]:
        def read(answers: Sequence[NodeAnswer]) -> Generator[None, None, int]:
            for _ in range(3):
                turns.append(name)
                asyncio.get_running_loop().call_soon(turns.append, "others")
                yield
            return len(answers)

        return read

    async with nodes(2) as both, asking(*(each.address for each in both), options=options) as nsqds:
        counts = await asyncio.gather(
            *(nsqds.request_and_parse(INFO, reading(name)) for name in "ab")
        )

    assert [2, 2] == counts
    assert ["a", "others"] * 3 + ["b", "others"] * 3 == turns


async def test_a_time_limit_of_a_request_does_not_hold_for_the_reading() -> None:
    """Reading takes as long as the answers are large."""
    clock = ManualClock()
    advanced = asyncio.Event()
    reading = asyncio.Event()

    def read(answers: Sequence[NodeAnswer]) -> Generator[None, None, int]:
        reading.set()
        while not advanced.is_set():
            yield
        return len(answers)

    async with nodes(1) as (node,), asking(node.address) as nsqds:
        task = asyncio.ensure_future(nsqds.request_and_parse(INFO, read, timeout_s=2.0))
        await reading.wait()
        await clock.advance(2.5)
        advanced.set()

        assert 1 == await task
        run_on()


async def test_a_time_limit_of_a_request_holds_for_each_node() -> None:
    """It is shorter than the limit of the options; the answers of other nodes are there."""
    clock = ManualClock()

    def read(answers: Sequence[NodeAnswer]) -> Generator[None, None, list[NodeAnswer]]:
        yield
        return list(answers)

    async with nodes(2) as (slow, quick), asking(slow.address, quick.address) as nsqds:
        slow.rule, quick.rule = silent, respond(200, b"yes")
        nodes_in_order = [slow.address, quick.address]
        task = asyncio.ensure_future(
            nsqds.request_and_parse(INFO, read, nodes=nodes_in_order, timeout_s=2.0)
        )
        await slow.question()
        await until(lambda: nsqds._connections._value == 31)
        await clock.advance(2.0)
        missing, there = await task
        run_on()

    assert NodeUnreachable(node=slow.address, reason="no complete answer within 2 s") == missing
    assert isinstance(there, NodeResponse)


async def test_a_time_limit_of_a_request_holds_for_the_wait_for_a_slot() -> None:
    clock = ManualClock()
    async with (
        nodes(1) as (node,),
        asking(node.address, options=NsqdHttpOptions(max_requests=1)) as nsqds,
    ):
        node.rule = silent
        first = asyncio.ensure_future(nsqds.request_all(INFO))
        await node.question()
        second = asyncio.ensure_future(nsqds.request_and_parse(INFO, never_read, timeout_s=2.0))
        await turn(2)
        await clock.advance(2.0)
        with pytest.raises(LimitReached, match="1 requests to nsqd are pending"):
            await second
        await clock.advance(3.0)
        answers = await first
        run_on()

    assert [NodeUnreachable] == [type(answer) for answer in answers]


def never_read(answers: Sequence[NodeAnswer]) -> Generator[None, None, None]:
    yield from ()
    raise AssertionError(answers)
