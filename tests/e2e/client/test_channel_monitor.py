"""Tests of `ChannelMonitor.is_gone` with real brokers and with unusable answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from email.utils import formatdate

import pytest

from gateway.client.channel_monitor import ChannelMonitor, ChannelMonitorOptions
from gateway.client.discovery import Discovery, LookupOptions
from gateway.client.nsqd_answers import NodeRequest, is_ok
from gateway.client.nsqd_http import NsqdHttp, NsqdHttpOptions
from tests.support.brokers.embedded_broker import embedded_broker
from tests.support.brokers.killable_broker import free_port, killable_broker
from tests.support.brokers.nsqd import real_nsqd, real_nsqlookupd
from tests.support.brokers.restartable_nsqd import restartable_nsqd
from tests.support.brokers.scripted_lookupd import (
    LookupRequest as Asked,
)
from tests.support.brokers.scripted_lookupd import (
    Rule,
    ScriptedLookupd,
    endless,
    respond,
    scripted_lookupd,
    send_raw,
    silent,
)
from tests.support.manual_clock import until

KINDS = pytest.mark.parametrize("kind", [pytest.param("nsqd", marks=pytest.mark.nsqd), "embedded"])
"""Runs a test with nsqd and with the embedded broker."""
ALONE = Discovery(())
ANY = [("topic", b"t"), ("channel", b"c")]
STARTED_AT = 1_700_000_000
RAN_FOR_S = 3_600


@asynccontextmanager
async def monitor(
    *http_addresses: str, discovery: Discovery = ALONE, timeout_s: float = 10.0
) -> AsyncIterator[ChannelMonitor]:
    options = ChannelMonitorOptions(timeout_s=timeout_s)
    nodes = NsqdHttp(http_addresses, discovery, NsqdHttpOptions(max_answer_bytes=1_000_000))
    await nodes.start()
    monitor = ChannelMonitor(nodes, discovery, options)
    try:
        yield monitor
    finally:
        await monitor.stop()
        await nodes.stop()


@asynccontextmanager
async def broker_of(kind: str) -> AsyncIterator[tuple[str, str]]:
    """Run a broker of *kind* with HTTP; yield its TCP and HTTP addresses."""
    async with AsyncExitStack() as life:
        if kind == "nsqd":
            nsqd = await life.enter_async_context(real_nsqd())
            yield nsqd.tcp_address, nsqd.http_address
        else:
            broker = await life.enter_async_context(embedded_broker(has_http=True))
            yield broker.tcp_address, broker.http_address


async def post(http_address: str, path: str, *query: tuple[str, bytes]) -> None:
    nodes = NsqdHttp([http_address], ALONE)
    await nodes.start()
    (answer,) = await nodes.request_all(NodeRequest(method="POST", path=path, query=query))
    await nodes.stop()
    assert is_ok(answer), answer


async def make_channel(http_address: str) -> None:
    """Create channel c of topic t."""
    await post(http_address, "/topic/create", *ANY[:1])
    await post(http_address, "/channel/create", *ANY)


class Named(Discovery):
    """A discovery with fixed HTTP addresses of nsqds."""

    named: dict[str, str]

    def http_address_of(self, address: str) -> str | None:
        """Return the HTTP address of *address*."""
        return self.named.get(address)


def long_ago() -> float:
    """Return a time before any process of this test was started."""
    return asyncio.get_running_loop().time() - 100.0


def long_running() -> float:
    """Return a time when all processes have run for seconds, the resolution of their clocks."""
    return asyncio.get_running_loop().time() + 100.0


# What real brokers say


@KINDS
@pytest.mark.parametrize(
    "path,query", [("/channel/delete", ANY), ("/topic/delete", ANY[:1])], ids=["channel", "topic"]
)
async def test_a_channel_that_was_deleted_is_gone(
    kind: str, path: str, query: list[tuple[str, bytes]]
) -> None:
    """The process that had the channel still runs and no longer has it, alone or with its topic."""
    async with broker_of(kind) as (tcp, http), monitor(http) as asked:
        await make_channel(http)
        before = await asked.is_gone(tcp, "t", "c", long_running())
        await post(http, path, *query)

        after = await asked.is_gone(tcp, "t", "c", long_running())

    assert (False, True) == (before, after)


@KINDS
async def test_a_process_that_was_started_since_knows_of_no_deletion(kind: str) -> None:
    """A broker that lost its data lacks the channel, too, and nobody deleted it."""
    async with broker_of(kind) as (tcp, http), monitor(http) as asked:
        assert False is await asked.is_gone(tcp, "t", "c", long_ago())


@pytest.mark.nsqd
async def test_a_restart_without_its_data_is_no_deletion() -> None:
    async with killable_broker("nsqd") as broker, monitor(broker.http_address) as asked:
        await make_channel(broker.http_address)
        since_s = asyncio.get_running_loop().time()
        await broker.kill()
        while_away = await asked.is_gone(broker.tcp_address, "t", "c", since_s)
        await broker.start()

        assert not while_away
        assert not await asked.is_gone(broker.tcp_address, "t", "c", since_s)


@pytest.mark.nsqd
async def test_a_restart_with_its_data_is_no_deletion() -> None:
    """The channel exists, and subscribing again finds it."""
    async with restartable_nsqd() as nsqd, monitor(nsqd.http_address) as asked:
        await make_channel(nsqd.http_address)
        since_s = asyncio.get_running_loop().time()
        await nsqd.end()
        await nsqd.start()

        assert not await asked.is_gone(nsqd.tcp_address, "t", "c", since_s)
        assert not await asked.is_gone(nsqd.tcp_address, "t", "c", long_running())


@pytest.mark.nsqd
async def test_an_nsqd_that_nsqlookupd_names_is_asked_where_it_says() -> None:
    """The HTTP address is not in the settings."""
    async with AsyncExitStack() as life:
        lookupd = await life.enter_async_context(real_nsqlookupd())
        nsqd = await life.enter_async_context(
            real_nsqd(f"--lookupd-tcp-address={lookupd.tcp_address}")
        )
        lookup = LookupOptions(lookupd_http_addresses=(lookupd.http_address,), poll_interval_s=0.05)
        discovery = Discovery((), lookup)
        await discovery.start()
        life.push_async_callback(discovery.stop)
        asked = await life.enter_async_context(monitor(discovery=discovery))
        await until(lambda: discovery.http_address_of(nsqd.tcp_address) is not None)

        assert await asked.is_gone(nsqd.tcp_address, "t", "c", long_running())


@pytest.mark.nsqd
async def test_of_several_on_one_host_the_one_with_its_port_is_asked() -> None:
    """The answer of the nsqd with the right port counts, not that of its neighbour."""
    async with (
        real_nsqd() as one,
        real_nsqd() as other,
        monitor(one.http_address, other.http_address) as asked,
    ):
        await make_channel(one.http_address)

        at_one = await asked.is_gone(one.tcp_address, "t", "c", long_running())
        at_other = await asked.is_gone(other.tcp_address, "t", "c", long_running())

    assert (False, True) == (at_one, at_other)


# What says nothing


@pytest.mark.nsqd
@pytest.mark.parametrize("address", ["127.0.0.1:1", "localhost:4150", "[::1]:4150", "nsqd:4150"])
async def test_an_nsqd_whose_http_is_not_known_is_taken_to_have_it(address: str) -> None:
    """An nsqd on another port or host is a different one, so its answer is ignored."""
    async with real_nsqd() as nsqd, monitor(nsqd.http_address) as asked:
        assert not await asked.is_gone(address, "t", "c", long_running())


async def test_without_any_http_nobody_is_asked() -> None:
    """The result is False and no error."""
    async with monitor() as asked:
        assert not await asked.is_gone("127.0.0.1:4150", "t", "c", long_running())


async def test_an_ephemeral_channel_is_never_gone() -> None:
    """It ends with its last consumer and is created by the next; no request is sent."""
    async with scripted_lookupd() as node, monitor(node.address) as asked:
        assert not await asked.is_gone(node.address, "t", "c#ephemeral", long_running())

        assert [] == node.questions


def of_a_process(stats: object, *, port: int = 4150, date: str | None = None) -> Rule:
    """Answer as an nsqd that has run for an hour, with a clock that is years slow."""

    async def rule(asked: Asked) -> None:
        said = stats
        if asked.target == "/info":
            said = {"tcp_port": port, "start_time": STARTED_AT}
        date_now = formatdate(STARTED_AT + RAN_FOR_S, usegmt=True) if date is None else date
        await respond(200, json.dumps(said).encode(), f"Date: {date_now}")(asked)

    return rule


NOTHING = {"start_time": STARTED_AT, "topics": None}
TOPIC_ONLY = {"start_time": STARTED_AT, "topics": [{"topic_name": "t", "channels": None}]}
OTHERS = {
    "start_time": STARTED_AT,
    "topics": [
        {"topic_name": "t", "channels": [{"channel_name": "other"}]},
        {"topic_name": "other", "channels": [{"channel_name": "c"}]},
    ],
}


@pytest.mark.parametrize("stats", [NOTHING, TOPIC_ONLY, OTHERS])
@pytest.mark.parametrize("ago_s,is_gone", [(RAN_FOR_S - 2, True), (RAN_FOR_S, False)])
async def test_since_when_a_process_runs_is_told_by_its_own_clock(
    stats: object, ago_s: int, *, is_gone: bool
) -> None:
    """Only the uptime counts, so our clock may be years ahead."""
    async with scripted_lookupd() as node, monitor(node.address) as asked:
        node.rule = of_a_process(stats)
        since_s = asyncio.get_running_loop().time() - ago_s

        assert is_gone is await asked.is_gone("127.0.0.1:4150", "t", "c", since_s)


@pytest.mark.parametrize(
    "rule",
    [
        respond(200, b"no JSON"),
        respond(200, b"[" * 100_000),
        respond(200, b'{"status_code":200,"data":{"tcp_port":4150,"start_time":1}}'),
        respond(403, b'{"message": "TLS_REQUIRED", "https_port": 1}'),
        send_raw(b""),
        endless,
        of_a_process({}, date=""),
        of_a_process({}, date="yesterday"),
        of_a_process({"topics": []}),
        of_a_process({"start_time": 1, "topics": [{"channels": []}]}),
        of_a_process({"start_time": STARTED_AT + 1, "topics": None}),
    ],
)
async def test_an_answer_that_cannot_be_used_says_nothing(rule: Rule) -> None:
    """The channel counts as existing, also after an answer of another process."""
    async with scripted_lookupd() as node, monitor(node.address) as asked:
        node.rule = rule

        assert not await asked.is_gone("127.0.0.1:4150", "t", "c", long_running())


@pytest.mark.parametrize("its_neighbour", [of_a_process({}), respond(500, b"")])
async def test_a_neighbour_that_may_be_the_one_is_not_believed(its_neighbour: Rule) -> None:
    """Two containers of a host may use the same port, and one may be down."""
    async with (
        scripted_lookupd() as one,
        scripted_lookupd() as other,
        monitor(one.address, other.address) as asked,
    ):
        one.rule = of_a_process(NOTHING)
        other.rule = of_a_process({}, port=4152)
        alone = await asked.is_gone("127.0.0.1:4150", "t", "c", long_running())
        other.rule = its_neighbour

        assert alone
        assert not await asked.is_gone("127.0.0.1:4150", "t", "c", long_running())


async def test_a_node_that_does_not_answer_takes_no_longer_than_is_allowed() -> None:
    """A subscriber that waits to reconnect continues after the time limit."""
    async with scripted_lookupd() as node, monitor(node.address, timeout_s=0.05) as asked:
        node.rule = silent

        async with asyncio.timeout(5.0):
            assert not await asked.is_gone("127.0.0.1:4150", "t", "c", long_running())


async def test_a_node_that_is_away_is_no_error() -> None:
    """The connection is refused at once."""
    port = free_port()
    async with monitor(f"127.0.0.1:{port}") as asked:
        assert not await asked.is_gone("127.0.0.1:4150", "t", "c", long_running())


# Many at a time


@pytest.fixture
async def node() -> AsyncIterator[ScriptedLookupd]:
    """Return a server that answers as an nsqd without channels."""
    async with scripted_lookupd() as node:
        node.rule = of_a_process(NOTHING)
        yield node


async def test_what_many_ask_at_once_goes_out_once(node: ScriptedLookupd) -> None:
    """A thousand consumers that lost one channel cause two requests."""
    async with monitor(node.address) as asked:
        gone = await asyncio.gather(
            *(asked.is_gone("127.0.0.1:4150", "t", "c", long_running()) for _ in range(1_000))
        )

    assert [True] * 1_000 == gone
    assert 2 == len(node.questions)


async def test_all_channels_of_a_topic_are_one_question(node: ScriptedLookupd) -> None:
    async with monitor(node.address) as asked:
        gone = await asyncio.gather(
            *(
                asked.is_gone("127.0.0.1:4150", "t", f"c{each}", long_running())
                for each in range(1_000)
            )
        )

    assert [True] * 1_000 == gone
    assert 2 == len(node.questions)


async def test_a_node_that_hangs_keeps_nobody_from_asking_another() -> None:
    """Requests to other nodes proceed, however many wait for this one."""
    async with scripted_lookupd() as hangs, scripted_lookupd() as node:
        hangs.rule = silent
        node.rule = of_a_process(NOTHING)
        discovery = Named(())
        discovery.named = {"10.0.0.1:4150": hangs.address, "10.0.0.2:4150": node.address}
        async with monitor(discovery=discovery) as asked:
            waiting = [
                asyncio.ensure_future(
                    asked.is_gone("10.0.0.1:4150", "t", f"c{each}", long_running())
                )
                for each in range(100)
            ]
            await hangs.question()

            assert await asked.is_gone("10.0.0.2:4150", "t", "c", long_running())
            for each in waiting:
                each.cancel()


async def test_a_process_that_was_started_since_is_asked_for_no_channel(
    node: ScriptedLookupd,
) -> None:
    """The answer to /info suffices, so consumers of all channels cause one request."""
    async with monitor(node.address) as asked:
        since_s = long_ago() - RAN_FOR_S
        await asyncio.gather(
            *(asked.is_gone("127.0.0.1:4150", "t", f"c{each}", since_s) for each in range(1_000))
        )

    assert ["/info"] == [each.target for each in node.questions]


async def test_an_answer_that_was_on_its_way_is_not_for_who_asks_later(
    node: ScriptedLookupd,
) -> None:
    """The deletion may have happened after the first request was sent."""
    async with monitor(node.address) as asked:
        node.rule = silent
        earlier = asyncio.ensure_future(asked.is_gone("127.0.0.1:4150", "t", "c", long_running()))
        await node.question()
        node.rule = of_a_process(NOTHING)

        assert await asked.is_gone("127.0.0.1:4150", "t", "c", long_running())
        earlier.cancel()


async def test_whoever_waits_for_an_answer_hears_false_at_the_end(node: ScriptedLookupd) -> None:
    """After a stop, no caller waits and no request is pending."""
    node.rule = silent
    async with monitor(node.address) as asked:
        waiting = asyncio.ensure_future(asked.is_gone("127.0.0.1:4150", "t", "c", long_running()))
        await node.question()

        await asked.stop()

        assert not await waiting
