"""Every known nsqd is asked, and none of them can hurt: not by time, by bytes or by number."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from gateway.client.lookup import Discovery, LookupOptions
from gateway.client.node_answers import Question, Reached, Unreachable
from gateway.client.nsqd_http import NsqdHttp, NsqdHttpOptions
from gateway.errors import Full, NoKnownNsqd
from tests.support.manual_clock import until
from tests.support.mortal_broker import free_port
from tests.support.nsqd import real_nsqd, real_nsqlookupd
from tests.support.scripted_lookupd import (
    Rule,
    ScriptedLookupd,
    answering,
    endless,
    saying,
    scripted_lookupd,
    silent,
)

INFO = Question(method="GET", path="/info")
ALONE = Discovery(())


@asynccontextmanager
async def asking(
    *addresses: str, options: NsqdHttpOptions | None = None, discovery: Discovery = ALONE
) -> AsyncIterator[NsqdHttp]:
    """Ask the nsqds at *addresses*."""
    nsqds = NsqdHttp(addresses, discovery, options)
    await nsqds.start()
    try:
        yield nsqds
    finally:
        await nsqds.stop()


@asynccontextmanager
async def nodes(count: int) -> AsyncIterator[list[ScriptedLookupd]]:
    """Run what answers "yes"; any HTTP will do."""
    async with AsyncExitStack() as life:
        servers = [await life.enter_async_context(scripted_lookupd()) for _ in range(count)]
        for server in servers:
            server.rule = answering(200, b"yes")
        yield sorted(servers, key=lambda server: server.address)


async def test_each_node_gives_its_answer_in_order_of_address() -> None:
    """Status and body, whatever the status is."""
    async with nodes(3) as servers:
        servers[1].rule = answering(500, b"no")
        async with asking(*(server.address for server in reversed(servers))) as nsqds:
            answers = await nsqds.ask(INFO)

    expected = [(200, b"yes"), (500, b"no"), (200, b"yes")]
    assert [
        Reached(node=server.address, status=status, body=body)
        for server, (status, body) in zip(servers, expected, strict=True)
    ] == answers


async def test_a_question_is_asked_as_go_nsq_does() -> None:
    """Today's form, bytes as they are, nothing else of ours."""
    async with nodes(1) as (server,), asking(server.address) as nsqds:
        await nsqds.ask(Question(method="POST", path="/topic/pause", query=[("topic", b"a#e")]))
        question = await server.question()

    assert "/topic/pause?topic=a%23e" == question.target
    assert "application/vnd.nsq; version=1.0" == question.headers["accept"]
    assert "identity" == question.headers["accept-encoding"]
    assert "0" == question.headers["content-length"]
    assert not {"cookie", "authorization"} & question.headers.keys()


async def test_of_several_questions_the_first_that_fails_is_the_last() -> None:
    """What comes after it would rest on it."""
    async with nodes(2) as servers, asking(*(server.address for server in servers)) as nsqds:
        servers[0].rule = answering(404, b"no")
        answers = await nsqds.ask(INFO, Question(method="GET", path="/ping"))
        asked = [[question.target for question in server.questions] for server in servers]

    assert [404, 200] == [answer.status for answer in answers if isinstance(answer, Reached)]
    assert [["/info"], ["/info", "/ping"]] == asked


@pytest.mark.parametrize(
    "rule,reason",
    [
        (silent, "no complete answer within 1 s"),
        (endless, "answers more than 1000 bytes"),
        (answering(200, b"x" * 1_001), "answers more than 1000 bytes"),
        (saying(b""), "Server disconnected without sending a response."),
        (saying(b"nonsense\r\n\r\n"), "illegal status line"),
        (saying(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nyes"), "peer closed connection"),
    ],
)
async def test_a_node_that_does_its_worst_is_a_node_with_a_reason(rule: Rule, reason: str) -> None:
    """And the others answer all the same."""
    async with nodes(2) as servers:
        servers[0].rule = rule
        options = NsqdHttpOptions(timeout_s=1.0, max_answer_bytes=1_000)
        async with asking(*(server.address for server in servers), options=options) as nsqds:
            bad, good = await nsqds.ask(INFO)

    assert isinstance(bad, Unreachable)
    assert reason in bad.reason
    assert Reached(node=servers[1].address, status=200, body=b"yes") == good


async def test_a_node_that_is_not_there_is_told_in_the_words_of_the_system() -> None:
    """Nobody listens."""
    address = f"127.0.0.1:{free_port()}"
    async with asking(address) as nsqds:
        answers = await nsqds.ask(INFO)

    assert [Unreachable(node=address, reason="Connection refused")] == answers


async def test_all_answers_together_are_bounded() -> None:
    """What several nodes say is held at one time."""
    options = NsqdHttpOptions(max_answer_bytes=1_000, max_answers_bytes=1_500)
    async with nodes(2) as servers:
        for server in servers:
            server.rule = answering(200, b"x" * 1_000)
        async with asking(*(server.address for server in servers), options=options) as nsqds:
            answers = await nsqds.ask(INFO)

    reasons = [answer.reason for answer in answers if isinstance(answer, Unreachable)]
    assert ["answers more than 1500 bytes"] == reasons


async def test_more_nodes_than_connections_are_asked_in_turn() -> None:
    """A thousand nsqds are no thousand sockets."""
    async with nodes(3) as servers:
        options = NsqdHttpOptions(max_connections=1)
        async with asking(*(server.address for server in servers), options=options) as nsqds:
            answers = await nsqds.ask(INFO)

    assert 3 == len([answer for answer in answers if isinstance(answer, Reached)])


async def test_who_waits_too_long_for_a_turn_is_told_so() -> None:
    """What is held of answers is bounded by how many ask."""
    options = NsqdHttpOptions(timeout_s=0.05, max_questions=1)
    async with asking("127.0.0.1:1", options=options) as nsqds, nsqds._turn():
        with pytest.raises(Full, match="at most 1 questions"):
            await nsqds.ask(INFO)


async def test_a_turn_is_given_back() -> None:
    """Whatever the answers were."""
    options = NsqdHttpOptions(timeout_s=1.0, max_questions=1)
    async with nodes(1) as (server,), asking(server.address, options=options) as nsqds:
        server.rule = silent
        await nsqds.ask(INFO)
        server.rule = answering(200, b"yes")
        (answer,) = await nsqds.ask(INFO)

    assert isinstance(answer, Reached)


async def test_nobody_to_ask_is_told_with_what_to_do() -> None:
    """The settings that name an nsqd are named."""
    async with asking() as nsqds:
        with pytest.raises(NoKnownNsqd, match="--nsqd-http-address"):
            await nsqds.ask(INFO)


async def test_after_the_stop_nobody_is_asked() -> None:
    """And a second stop is none."""
    async with asking("127.0.0.1:1") as nsqds:
        await nsqds.stop()
        answers = await nsqds.ask(INFO)

    assert [Unreachable(node="127.0.0.1:1", reason="the gateway is stopping")] == answers


async def test_a_proxy_of_the_environment_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy for the web is none for nsqd."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    async with nodes(1) as (server,), asking(server.address) as nsqds:
        (answer,) = await nsqds.ask(INFO)

    assert isinstance(answer, Reached)


@pytest.mark.nsqd
async def test_what_nsqlookupd_names_is_asked_too() -> None:
    """By the address that nsqd broadcasts; discovery asks for it anyway, and only once."""
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
            await until(lambda: len(nsqds.nodes) == 2)
            answers = await nsqds.ask(INFO)
            polls = len(discovery._polls)
        await discovery.stop()

    assert sorted([found.http_address, named.http_address]) == [each.node for each in answers]
    assert [200, 200] == [each.status for each in answers if isinstance(each, Reached)]
    assert 1 == polls
