"""Whether a channel was deleted: what real brokers say, and what says nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from email.utils import formatdate

import pytest

from gateway.client.channel_survey import ChannelSurvey, ChannelSurveyOptions
from gateway.client.lookup import Discovery, LookupOptions
from gateway.client.node_answers import Question, is_done
from gateway.client.nsqd_http import NsqdHttp, NsqdHttpOptions
from tests.support.embedded_broker import embedded_broker
from tests.support.lasting_nsqd import lasting_nsqd
from tests.support.manual_clock import until
from tests.support.mortal_broker import free_port, mortal_broker
from tests.support.nsqd import real_nsqd, real_nsqlookupd
from tests.support.scripted_lookupd import (
    Question as Asked,
)
from tests.support.scripted_lookupd import (
    Rule,
    ScriptedLookupd,
    answering,
    endless,
    saying,
    scripted_lookupd,
    silent,
)

KINDS = pytest.mark.parametrize("kind", [pytest.param("nsqd", marks=pytest.mark.nsqd), "embedded"])
"""With both brokers."""
ALONE = Discovery(())
ANY = [("topic", b"t"), ("channel", b"c")]
STARTED_AT = 1_700_000_000
RAN_FOR_S = 3_600


@asynccontextmanager
async def survey(
    *http_addresses: str, discovery: Discovery = ALONE, timeout_s: float = 10.0
) -> AsyncIterator[ChannelSurvey]:
    """Run a survey that knows these addresses, and those of *discovery*."""
    options = ChannelSurveyOptions(timeout_s=timeout_s)
    nodes = NsqdHttp(http_addresses, discovery, NsqdHttpOptions(max_answer_bytes=1_000_000))
    await nodes.start()
    survey = ChannelSurvey(nodes, discovery, options)
    try:
        yield survey
    finally:
        await survey.stop()
        await nodes.stop()


@asynccontextmanager
async def broker_of(kind: str) -> AsyncIterator[tuple[str, str]]:
    """Run a broker of *kind* with HTTP; yield where it is: TCP, HTTP."""
    async with AsyncExitStack() as life:
        if kind == "nsqd":
            nsqd = await life.enter_async_context(real_nsqd())
            yield nsqd.tcp_address, nsqd.http_address
        else:
            broker = await life.enter_async_context(embedded_broker(has_http=True))
            yield broker.tcp_address, broker.http_address


async def post(http_address: str, path: str, *query: tuple[str, bytes]) -> None:
    """Have a broker do what *path* says."""
    nodes = NsqdHttp([http_address], ALONE)
    await nodes.start()
    (answer,) = await nodes.ask(Question(method="POST", path=path, query=query))
    await nodes.stop()
    assert is_done(answer), answer


async def make_channel(http_address: str) -> None:
    """Have channel c of topic t."""
    await post(http_address, "/topic/create", *ANY[:1])
    await post(http_address, "/channel/create", *ANY)


class Named(Discovery):
    """A discovery to which somebody has named nsqds."""

    named: dict[str, str]

    def http_address_of(self, address: str) -> str | None:
        """Return what was named."""
        return self.named.get(address)


def long_ago() -> float:
    """Return a moment before every process here was started."""
    return asyncio.get_running_loop().time() - 100.0


def long_running() -> float:
    """Return a moment at which every process here has run for long: they tell whole seconds."""
    return asyncio.get_running_loop().time() + 100.0


# What real brokers say


@KINDS
@pytest.mark.parametrize(
    "path,query", [("/channel/delete", ANY), ("/topic/delete", ANY[:1])], ids=["channel", "topic"]
)
async def test_a_channel_that_was_deleted_is_gone(
    kind: str, path: str, query: list[tuple[str, bytes]]
) -> None:
    """Alone or with its topic: the process that had it runs still, and has it no more."""
    async with broker_of(kind) as (tcp, http), survey(http) as asked:
        await make_channel(http)
        before = await asked.is_gone(tcp, "t", "c", long_running())
        await post(http, path, *query)

        after = await asked.is_gone(tcp, "t", "c", long_running())

    assert (False, True) == (before, after)


@KINDS
async def test_a_process_that_was_started_since_knows_of_no_deletion(kind: str) -> None:
    """A broker that lost its memory has no channel either, and nobody has deleted it."""
    async with broker_of(kind) as (tcp, http), survey(http) as asked:
        assert False is await asked.is_gone(tcp, "t", "c", long_ago())


@pytest.mark.nsqd
async def test_a_restart_without_its_data_is_no_deletion() -> None:
    """The same addresses, another process."""
    async with mortal_broker("nsqd") as broker, survey(broker.http_address) as asked:
        await make_channel(broker.http_address)
        since_s = asyncio.get_running_loop().time()
        await broker.kill()
        while_away = await asked.is_gone(broker.tcp_address, "t", "c", since_s)
        await broker.start()

        assert not while_away
        assert not await asked.is_gone(broker.tcp_address, "t", "c", since_s)


@pytest.mark.nsqd
async def test_a_restart_with_its_data_is_no_deletion() -> None:
    """The channel is there, and so it is for whoever asks as if nothing had happened."""
    async with lasting_nsqd() as nsqd, survey(nsqd.http_address) as asked:
        await make_channel(nsqd.http_address)
        since_s = asyncio.get_running_loop().time()
        await nsqd.end()
        await nsqd.start()

        assert not await asked.is_gone(nsqd.tcp_address, "t", "c", since_s)
        assert not await asked.is_gone(nsqd.tcp_address, "t", "c", long_running())


@pytest.mark.nsqd
async def test_an_nsqd_that_nsqlookupd_names_is_asked_where_it_says() -> None:
    """Nobody has said its HTTP address to us."""
    async with AsyncExitStack() as life:
        lookupd = await life.enter_async_context(real_nsqlookupd())
        nsqd = await life.enter_async_context(
            real_nsqd(f"--lookupd-tcp-address={lookupd.tcp_address}")
        )
        lookup = LookupOptions(lookupd_http_addresses=(lookupd.http_address,), poll_interval_s=0.05)
        discovery = Discovery((), lookup)
        await discovery.start()
        life.push_async_callback(discovery.stop)
        asked = await life.enter_async_context(survey(discovery=discovery))
        await until(lambda: discovery.http_address_of(nsqd.tcp_address) is not None)

        assert await asked.is_gone(nsqd.tcp_address, "t", "c", long_running())


@pytest.mark.nsqd
async def test_of_several_on_one_host_the_one_with_its_port_is_asked() -> None:
    """One that was subscribed to has the channel, its neighbour has not, or the other way round."""
    async with (
        real_nsqd() as one,
        real_nsqd() as other,
        survey(one.http_address, other.http_address) as asked,
    ):
        await make_channel(one.http_address)

        at_one = await asked.is_gone(one.tcp_address, "t", "c", long_running())
        at_other = await asked.is_gone(other.tcp_address, "t", "c", long_running())

    assert (False, True) == (at_one, at_other)


# What says nothing


@pytest.mark.nsqd
@pytest.mark.parametrize("address", ["127.0.0.1:1", "localhost:4150", "[::1]:4150", "nsqd:4150"])
async def test_an_nsqd_whose_http_is_not_known_is_taken_to_have_it(address: str) -> None:
    """Another port, another host: what somebody else says is nothing about this one."""
    async with real_nsqd() as nsqd, survey(nsqd.http_address) as asked:
        assert not await asked.is_gone(address, "t", "c", long_running())


async def test_without_any_http_nobody_is_asked() -> None:
    """It is not known, and that is no error."""
    async with survey() as asked:
        assert not await asked.is_gone("127.0.0.1:4150", "t", "c", long_running())


async def test_an_ephemeral_channel_is_never_gone() -> None:
    """It ends with its last consumer, and comes with the next one; nobody is asked."""
    async with scripted_lookupd() as node, survey(node.address) as asked:
        assert not await asked.is_gone(node.address, "t", "c#ephemeral", long_running())

        assert [] == node.questions


def of_a_process(stats: object, *, port: int = 4150, date: str | None = None) -> Rule:
    """Answer as an nsqd that has run for an hour on a clock that is years behind."""

    async def rule(asked: Asked) -> None:
        said = stats
        if asked.target == "/info":
            said = {"tcp_port": port, "start_time": STARTED_AT}
        date_now = formatdate(STARTED_AT + RAN_FOR_S, usegmt=True) if date is None else date
        await answering(200, json.dumps(said).encode(), f"Date: {date_now}")(asked)

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
    """Ours may be years ahead; only how long it has been running counts."""
    async with scripted_lookupd() as node, survey(node.address) as asked:
        node.rule = of_a_process(stats)
        since_s = asyncio.get_running_loop().time() - ago_s

        assert is_gone is await asked.is_gone("127.0.0.1:4150", "t", "c", since_s)


@pytest.mark.parametrize(
    "rule",
    [
        answering(200, b"no JSON"),
        answering(200, b"[" * 100_000),
        answering(200, b'{"status_code":200,"data":{"tcp_port":4150,"start_time":1}}'),
        answering(403, b'{"message": "TLS_REQUIRED", "https_port": 1}'),
        saying(b""),
        endless,
        of_a_process({}, date=""),
        of_a_process({}, date="yesterday"),
        of_a_process({"topics": []}),
        of_a_process({"start_time": 1, "topics": [{"channels": []}]}),
        of_a_process({"start_time": STARTED_AT + 1, "topics": None}),
    ],
)
async def test_an_answer_that_cannot_be_used_says_nothing(rule: Rule) -> None:
    """Whatever it is, be it that of another process: the channel counts as there."""
    async with scripted_lookupd() as node, survey(node.address) as asked:
        node.rule = rule

        assert not await asked.is_gone("127.0.0.1:4150", "t", "c", long_running())


@pytest.mark.parametrize("its_neighbour", [of_a_process({}), answering(500, b"")])
async def test_a_neighbour_that_may_be_the_one_is_not_believed(its_neighbour: Rule) -> None:
    """In containers two of one host listen on the same port, and one of them may be away."""
    async with (
        scripted_lookupd() as one,
        scripted_lookupd() as other,
        survey(one.address, other.address) as asked,
    ):
        one.rule = of_a_process(NOTHING)
        other.rule = of_a_process({}, port=4152)
        alone = await asked.is_gone("127.0.0.1:4150", "t", "c", long_running())
        other.rule = its_neighbour

        assert alone
        assert not await asked.is_gone("127.0.0.1:4150", "t", "c", long_running())


async def test_a_node_that_does_not_answer_takes_no_longer_than_is_allowed() -> None:
    """Whoever waits to subscribe again goes on."""
    async with scripted_lookupd() as node, survey(node.address, timeout_s=0.05) as asked:
        node.rule = silent

        async with asyncio.timeout(5.0):
            assert not await asked.is_gone("127.0.0.1:4150", "t", "c", long_running())


async def test_a_node_that_is_away_is_no_error() -> None:
    """It is refused at once."""
    port = free_port()
    async with survey(f"127.0.0.1:{port}") as asked:
        assert not await asked.is_gone("127.0.0.1:4150", "t", "c", long_running())


# Many at a time


@pytest.fixture
async def node() -> AsyncIterator[ScriptedLookupd]:
    """Return what answers as an nsqd without any channel."""
    async with scripted_lookupd() as node:
        node.rule = of_a_process(NOTHING)
        yield node


async def test_what_many_ask_at_once_goes_out_once(node: ScriptedLookupd) -> None:
    """A thousand consumers that lost one channel ask two questions."""
    async with survey(node.address) as asked:
        gone = await asyncio.gather(
            *(asked.is_gone("127.0.0.1:4150", "t", "c", long_running()) for _ in range(1_000))
        )

    assert [True] * 1_000 == gone
    assert 2 == len(node.questions)


async def test_all_channels_of_a_topic_are_one_question(node: ScriptedLookupd) -> None:
    """Whoever deletes a topic deletes them all."""
    async with survey(node.address) as asked:
        gone = await asyncio.gather(
            *(
                asked.is_gone("127.0.0.1:4150", "t", f"c{each}", long_running())
                for each in range(1_000)
            )
        )

    assert [True] * 1_000 == gone
    assert 2 == len(node.questions)


async def test_a_node_that_hangs_keeps_nobody_from_asking_another() -> None:
    """However many ask about it, again and again."""
    async with scripted_lookupd() as hangs, scripted_lookupd() as node:
        hangs.rule = silent
        node.rule = of_a_process(NOTHING)
        discovery = Named(())
        discovery.named = {"10.0.0.1:4150": hangs.address, "10.0.0.2:4150": node.address}
        async with survey(discovery=discovery) as asked:
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
    """However many consumers of however many channels it lost: one question."""
    async with survey(node.address) as asked:
        since_s = long_ago() - RAN_FOR_S
        await asyncio.gather(
            *(asked.is_gone("127.0.0.1:4150", "t", f"c{each}", since_s) for each in range(1_000))
        )

    assert ["/info"] == [each.target for each in node.questions]


async def test_an_answer_that_was_on_its_way_is_not_for_who_asks_later(
    node: ScriptedLookupd,
) -> None:
    """The deletion may have come between."""
    async with survey(node.address) as asked:
        node.rule = silent
        earlier = asyncio.ensure_future(asked.is_gone("127.0.0.1:4150", "t", "c", long_running()))
        await node.question()
        node.rule = of_a_process(NOTHING)

        assert await asked.is_gone("127.0.0.1:4150", "t", "c", long_running())
        earlier.cancel()


async def test_whoever_waits_for_an_answer_hears_false_at_the_end(node: ScriptedLookupd) -> None:
    """A survey that stops leaves nobody waiting, and no question."""
    node.rule = silent
    async with survey(node.address) as asked:
        waiting = asyncio.ensure_future(asked.is_gone("127.0.0.1:4150", "t", "c", long_running()))
        await node.question()

        await asked.stop()

        assert not await waiting
