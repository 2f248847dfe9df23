"""Tests of `Discovery`: merge the answers of several nsqlookupds and keep them up to date."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import httpx
import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from gateway.client.discovery import Discovery, LookupOptions, TopicWatch
from gateway.client.nsqd_http import NsqdHttp
from gateway.credentials import Secret
from gateway.errors import InvalidRequest, SettingsError
from tests.support.brokers.nsqd import real_nsqd, real_nsqlookupd
from tests.support.brokers.scripted_lookupd import (
    ScriptedLookupd,
    respond,
    scripted_lookupd,
    silent,
)
from tests.support.manual_clock import ManualClock, turn, until

_WAIT_S = 60.0

FIXED = "127.0.0.1:4150"
A = "10.0.0.1:4150"
B = "10.0.0.2:4150"
C = "10.0.0.3:4150"

INTERVAL_S = 60.0
JITTER = 0.3
TIMEOUT_S = 5.0


class Changes(asyncio.Queue[frozenset[str]]):
    """Records the callbacks of a watch."""

    def tell(self, addresses: frozenset[str]) -> None:
        """Record *addresses*."""
        self.put_nowait(addresses)

    async def next(self) -> frozenset[str]:
        """Return the next recorded set of addresses."""
        async with asyncio.timeout(_WAIT_S):
            return await self.get()

    async def until(self, *addresses: str) -> None:
        """Wait until the recorded set is exactly *addresses*."""
        while await self.next() != frozenset(addresses):
            pass


@pytest_asyncio.fixture
async def lookupd() -> AsyncIterator[ScriptedLookupd]:
    """Return an nsqlookupd without any nsqd."""
    async with scripted_lookupd() as lookupd:
        yield lookupd


@pytest_asyncio.fixture
async def other() -> AsyncIterator[ScriptedLookupd]:
    """Return a second nsqlookupd."""
    async with scripted_lookupd() as other:
        yield other


@pytest.fixture
def changes() -> Changes:
    """Return a recorder of callbacks."""
    return Changes()


@asynccontextmanager
async def discovery(
    *lookupds: ScriptedLookupd | str,
    fixed: tuple[str, ...] = (),
    poll_interval_s: float = INTERVAL_S,
    poll_jitter: float = JITTER,
) -> AsyncIterator[Discovery]:
    addresses = tuple(it if isinstance(it, str) else it.address for it in lookupds)
    options = LookupOptions(
        lookupd_http_addresses=addresses,
        poll_interval_s=poll_interval_s,
        poll_jitter=poll_jitter,
        timeout_s=TIMEOUT_S,
    )
    discovery = Discovery(fixed, options)
    await discovery.start()
    try:
        yield discovery
    finally:
        await discovery.stop()


def ignore(addresses: frozenset[str]) -> None:
    del addresses


async def answered(lookupd: ScriptedLookupd, count: int) -> None:
    """Wait until *count* requests in total are answered and their answers merged."""
    await until(lambda: len(lookupd.questions) == count)
    await lookupd.questions[-1].gone.wait()
    await turn(5)


# What is found


async def test_without_a_lookupd_the_fixed_addresses_are_all() -> None:
    """They are available at once, without waiting."""
    async with discovery(fixed=(FIXED, A)) as found:
        watch = found.watch_nodes(ignore)

        assert {FIXED, A} == watch.addresses
        assert await watch.first_answer()
        watch.refresh()
        watch.close()


async def test_what_a_lookupd_knows_is_added(lookupd: ScriptedLookupd, changes: Changes) -> None:
    """The poll starts at once; the first callback includes the fixed addresses."""
    lookupd.knows(A, B)
    async with discovery(lookupd, fixed=(FIXED,)) as found:
        watch = found.watch_topic("t", changes.tell)

        assert {FIXED} == watch.addresses
        assert {FIXED, A, B} == await changes.next()
        assert {FIXED, A, B} == watch.addresses
        assert await watch.first_answer()

    assert ["/lookup?topic=t"] == [question.target for question in lookupd.questions]


async def test_what_was_known_is_not_told(lookupd: ScriptedLookupd, changes: Changes) -> None:
    """An nsqlookupd that returns a fixed address changes nothing."""
    lookupd.knows(FIXED)
    async with discovery(lookupd, fixed=(FIXED,)) as found:
        watch = found.watch_nodes(changes.tell)
        assert await watch.first_answer()
        await turn(3)

    assert changes.empty()


async def test_several_lookupds_know_more_than_one(
    lookupd: ScriptedLookupd, other: ScriptedLookupd, changes: Changes
) -> None:
    """Their answers are merged; an nsqd in both answers appears once."""
    lookupd.knows(A, B)
    other.knows(B, C)
    async with discovery(lookupd, other) as found:
        watch = found.watch_nodes(changes.tell)
        await changes.until(A, B, C)

        assert {A, B, C} == watch.addresses

    assert ["/nodes", "/nodes"] == [it.target for it in lookupd.questions + other.questions]


async def test_a_lookupd_that_is_named_twice_is_asked_once(lookupd: ScriptedLookupd) -> None:
    """Two spellings of one address are the same nsqlookupd, too."""
    async with discovery(lookupd, f"http://{lookupd.address}", lookupd) as found:
        watch = found.watch_nodes(ignore)
        assert await watch.first_answer()
        await turn(5)

    assert 1 == len(lookupd.questions)


async def test_a_topic_that_nobody_has_yet_is_an_answer(
    lookupd: ScriptedLookupd, changes: Changes
) -> None:
    """TOPIC_NOT_FOUND is no failure, so nothing is logged."""
    async with discovery(lookupd) as found:
        with capture_logs() as lines:
            watch = found.watch_topic("t", changes.tell)
            assert await watch.first_answer()

        assert frozenset() == watch.addresses
    assert [] == lines
    assert changes.empty()


# Lookupds that fail


async def test_the_first_answer_is_false_when_all_have_failed(
    lookupd: ScriptedLookupd, other: ScriptedLookupd
) -> None:
    """The fixed addresses remain."""
    lookupd.rule = other.rule = respond(500, b"")
    async with discovery(lookupd, other, fixed=(FIXED,)) as found:
        watch = found.watch_topic("t", ignore)

        assert not await watch.first_answer()
        assert {FIXED} == watch.addresses


async def test_one_that_answers_is_enough(
    lookupd: ScriptedLookupd, other: ScriptedLookupd, changes: Changes
) -> None:
    """Its answer is used at once, without waiting for an nsqlookupd that hangs."""
    ManualClock()
    lookupd.rule = silent
    other.knows(A)
    async with discovery(lookupd, other) as found:
        watch = found.watch_topic("t", changes.tell)
        await lookupd.question()

        assert await watch.first_answer()
        assert {A} == await changes.next()


async def test_an_nsqd_goes_only_when_a_lookupd_that_answers_says_so(
    lookupd: ScriptedLookupd, other: ScriptedLookupd, changes: Changes
) -> None:
    """The last answer of an nsqlookupd stays valid while it fails."""
    lookupd.knows(A, B)
    other.knows(C)
    async with discovery(lookupd, other) as found:
        clock = ManualClock()
        watch = found.watch_topic("t", changes.tell)
        await changes.until(A, B, C)

        lookupd.rule = respond(500, b"")
        await clock.advance(INTERVAL_S)
        await answered(lookupd, 2)
        assert {A, B, C} == watch.addresses

        lookupd.knows(B)
        await clock.advance(INTERVAL_S)
        assert {B, C} == await changes.next()

        lookupd.rule = respond(404, b'{"message":"TOPIC_NOT_FOUND"}')
        await clock.advance(INTERVAL_S)
        assert {C} == await changes.next()


async def test_an_answer_that_httpx_cannot_read_does_not_end_the_poll(
    lookupd: ScriptedLookupd, other: ScriptedLookupd, changes: Changes
) -> None:
    """After a `Location` that is no URL, the next poll includes both nsqlookupds."""
    lookupd.rule = respond(301, b"", f"Location: {'a' * 65_520}")
    other.knows(A)
    async with discovery(lookupd, other) as found:
        clock = ManualClock()
        found.watch_topic("t", changes.tell)
        await changes.until(A)
        await answered(lookupd, 1)
        lookupd.knows(B)

        await clock.advance(INTERVAL_S)

        await changes.until(A, B)


async def test_a_question_that_fails_by_a_bug_does_not_end_the_poll(
    lookupd: ScriptedLookupd,
    other: ScriptedLookupd,
    changes: Changes,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The exception is logged; the other answer is used, and both are polled again."""
    other.knows(A)
    async with discovery(lookupd, other) as found:
        clock = ManualClock()
        broken = found.lookupds[0]
        with monkeypatch.context() as patch, capture_logs() as lines:
            patch.setattr(broken, "_fetch", _fail)
            found.watch_topic("t", changes.tell)
            await changes.until(A)
            await until(lambda: bool(lines))
        lookupd.knows(B)

        await clock.advance(INTERVAL_S)

        await changes.until(A, B)
    assert ["nsqlookupd poll failed"] == [line["event"] for line in lines]


async def _fail(topic: str | None) -> None:
    raise ZeroDivisionError(topic)


@pytest.mark.parametrize("several", ["127.0.0.1:4150", b"127.0.0.1:4150"])
def test_a_text_in_place_of_a_list_of_addresses_is_refused(several: str) -> None:
    """The error text shows what to write instead."""
    sentence = f"is {several!r}; allowed: a list of addresses, [{several!r}]"

    with pytest.raises(SettingsError, match=re.escape(f"nsqd_tcp_addresses {sentence}")):
        Discovery(several)
    with pytest.raises(SettingsError, match=re.escape(f"lookupd_http_addresses {sentence}")):
        LookupOptions(lookupd_http_addresses=several)  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match=re.escape(f"nsqd_http_addresses {sentence}")):
        NsqdHttp(several, Discovery(()))


@pytest.mark.parametrize("topic", ["a b", "a\nPUB b", "", "x" * 65])
async def test_a_topic_that_is_no_name_is_not_looked_up(topic: str) -> None:
    async with discovery() as found:
        with pytest.raises(InvalidRequest, match="not a valid topic name"):
            found.watch_topic(topic, ignore)


async def test_a_hanging_round_ends_with_its_timeout(
    lookupd: ScriptedLookupd, changes: Changes
) -> None:
    """The next poll starts on time, as after an answer."""
    clock = ManualClock()
    lookupd.rule = silent
    async with discovery(lookupd, poll_jitter=0.0) as found:
        watch = found.watch_topic("t", changes.tell)
        await lookupd.question()
        await clock.advance(TIMEOUT_S)
        assert not await watch.first_answer()

        lookupd.knows(A)
        await clock.advance(INTERVAL_S - TIMEOUT_S)

        assert {A} == await changes.next()
        assert await watch.first_answer()


# When it is asked


@pytest.mark.parametrize("drawn", [0.0, 0.5, 0.999])
async def test_the_next_round_comes_within_the_interval(
    lookupd: ScriptedLookupd, drawn: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The jitter makes a poll early, never late."""
    monkeypatch.setattr("random.random", lambda: drawn)
    due_s = INTERVAL_S * (1 - JITTER * drawn)
    async with discovery(lookupd) as found:
        clock = ManualClock()
        found.watch_topic("t", ignore)
        await answered(lookupd, 1)

        await clock.advance(due_s - 0.01)
        assert 1 == len(lookupd.questions)

        await clock.advance(0.02)
        await answered(lookupd, 2)


async def test_a_thousand_watches_ask_once(lookupd: ScriptedLookupd) -> None:
    """Each poll sends one request per topic, and every watch is called."""
    everybody = [Changes() for _ in range(1000)]
    lookupd.knows(A)
    async with discovery(lookupd) as found:
        clock = ManualClock()
        for changes in everybody:
            found.watch_topic("t", changes.tell)
        assert [{A}] * 1000 == [await changes.next() for changes in everybody]

        lookupd.knows(B)
        await clock.advance(INTERVAL_S)
        assert [{B}] * 1000 == [await changes.next() for changes in everybody]

    assert 2 == len(lookupd.questions)


async def test_every_topic_has_its_own_question(lookupd: ScriptedLookupd) -> None:
    """Each topic has a request of its own, and so has the list of all nsqds."""
    async with discovery(lookupd) as found:
        watches = [found.watch_topic("a", ignore), found.watch_topic("b", ignore)]
        watches.append(found.watch_nodes(ignore))
        assert [True] * 3 == [await watch.first_answer() for watch in watches]

    targets = sorted(question.target for question in lookupd.questions)
    assert ["/lookup?topic=a", "/lookup?topic=b", "/nodes"] == targets


async def test_a_refresh_asks_soon_and_at_most_once_a_second(lookupd: ScriptedLookupd) -> None:
    """The loss of a thousand connections to one nsqd causes one poll."""
    async with discovery(lookupd) as found:
        clock = ManualClock()
        watch = found.watch_topic("t", ignore)
        await answered(lookupd, 1)

        for _ in range(1000):
            watch.refresh()
        await clock.advance(0.9)
        assert 1 == len(lookupd.questions)
        await clock.advance(0.1)
        await answered(lookupd, 2)

        await clock.advance(5.0)
        assert 2 == len(lookupd.questions)
        watch.refresh()
        await answered(lookupd, 3)


async def test_a_refresh_during_a_round_asks_again_after_it(
    lookupd: ScriptedLookupd, changes: Changes
) -> None:
    """The pending answer may be older than the loss."""
    clock = ManualClock()
    lookupd.rule = silent
    async with discovery(lookupd) as found:
        watch = found.watch_topic("t", changes.tell)
        await lookupd.question()
        watch.refresh()
        lookupd.knows(A)

        await clock.advance(TIMEOUT_S)

        assert {A} == await changes.next()


# Watches that come and go


async def test_a_newcomer_knows_at_once_what_is_known(
    lookupd: ScriptedLookupd, changes: Changes
) -> None:
    """A second watch needs no request, and its callback is not called."""
    lookupd.knows(A)
    async with discovery(lookupd) as found:
        clock = ManualClock()
        first = found.watch_topic("t", ignore)
        assert await first.first_answer()

        second = found.watch_topic("t", changes.tell)

        assert {A} == second.addresses
        assert await second.first_answer()
        await clock.advance(2.0)
        assert 1 == len(lookupd.questions)
        assert changes.empty()


async def test_a_newcomer_asks_again_where_nothing_is_known(
    lookupd: ScriptedLookupd, changes: Changes
) -> None:
    """The topic may exist by now; a new subscriber must not wait for the whole interval."""
    async with discovery(lookupd) as found:
        clock = ManualClock()
        assert await found.watch_topic("t", ignore).first_answer()
        await clock.advance(10.0)
        lookupd.knows(A)

        found.watch_topic("t", changes.tell)

        assert {A} == await changes.next()


async def test_an_old_failure_is_not_a_newcomers(lookupd: ScriptedLookupd) -> None:
    """The new watch waits for the answer to a request sent after it was opened."""
    lookupd.rule = respond(500, b"")
    async with discovery(lookupd) as found:
        clock = ManualClock()
        assert not await found.watch_topic("t", ignore).first_answer()
        await clock.advance(10.0)
        lookupd.knows(A)

        newcomer = found.watch_topic("t", ignore)

        assert await newcomer.first_answer()
        assert {A} == newcomer.addresses


async def test_who_has_left_is_told_nothing(lookupd: ScriptedLookupd, changes: Changes) -> None:
    """Other watches of the topic are called."""
    told = Changes()
    lookupd.knows(A)
    async with discovery(lookupd) as found:
        clock = ManualClock()
        watch = found.watch_topic("t", changes.tell)
        found.watch_topic("t", told.tell)
        assert {A} == await changes.next()
        assert {A} == await told.next()

        watch.close()
        watch.close()
        lookupd.knows(B)
        await clock.advance(INTERVAL_S)

        assert {B} == await told.next()
    assert changes.empty()


async def test_who_leaves_in_the_same_moment_is_told_nothing(lookupd: ScriptedLookupd) -> None:
    """Two callbacks close each other's watch; only the first is called."""
    told = Changes()
    watches: list[TopicWatch] = []

    def end_all(addresses: frozenset[str]) -> None:
        told.tell(addresses)
        for watch in watches:
            watch.close()

    lookupd.knows(A)
    async with discovery(lookupd) as found:
        watches += [found.watch_topic("t", end_all), found.watch_topic("t", end_all)]
        assert {A} == await told.next()
        await turn(3)

    assert told.empty()


async def test_the_last_watch_ends_the_questions(lookupd: ScriptedLookupd) -> None:
    """A pending request is cancelled, and a new watch starts another poll."""
    clock = ManualClock()
    lookupd.rule = silent
    async with discovery(lookupd) as found:
        first, second = found.watch_topic("t", ignore), found.watch_topic("t", ignore)
        question = await lookupd.question()

        first.close()
        await turn(3)
        assert not question.gone.is_set()
        second.close()
        await question.gone.wait()
        assert not await second.first_answer()
        second.refresh()
        await clock.advance(2 * INTERVAL_S)
        assert 1 == len(lookupd.questions)

        lookupd.knows(A)
        third = found.watch_topic("t", ignore)
        assert await third.first_answer()
        assert {A} == third.addresses


async def test_a_listener_that_fails_stops_nothing(
    lookupd: ScriptedLookupd, changes: Changes
) -> None:
    """The other watches are called, and the next poll takes place."""
    failed: list[str] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: failed.append(str(context["exception"])))

    def fail(addresses: frozenset[str]) -> None:
        raise ValueError(addresses)

    lookupd.knows(A)
    async with discovery(lookupd) as found:
        clock = ManualClock()
        found.watch_topic("t", fail)
        found.watch_topic("t", changes.tell)
        assert {A} == await changes.next()
        lookupd.knows(B)
        await clock.advance(INTERVAL_S)
        assert {B} == await changes.next()
        await turn(3)

    assert ["frozenset({'10.0.0.1:4150'})", "frozenset({'10.0.0.2:4150'})"] == failed


async def test_a_stop_ends_every_question(lookupd: ScriptedLookupd) -> None:
    """`first_answer` returns, and a watch opened later sends no request."""
    lookupd.rule = silent
    async with discovery(lookupd, fixed=(FIXED,)) as found:
        watches = [found.watch_nodes(ignore), found.watch_topic("t", ignore)]
        waiting = [asyncio.create_task(watch.first_answer()) for watch in watches]
        await lookupd.question()
        await lookupd.question()

        await found.stop()

        assert [False, False] == [await each for each in waiting]
        late: TopicWatch = found.watch_topic("t", ignore)
        assert not await late.first_answer()
        assert {FIXED} == late.addresses
        for watch in (*watches, late):
            watch.close()
        for question in lookupd.questions:
            await question.gone.wait()
    assert 2 == len(lookupd.questions)


# Settings


def test_what_cannot_be_asked_is_refused_before_anything_starts() -> None:
    """Invalid addresses and a secret that no header can carry; the error hides any password."""
    with pytest.raises(SettingsError, match=r"^lookupd_http_address is 'host'"):
        Discovery([], LookupOptions(lookupd_http_addresses=("host",)))
    hidden = LookupOptions(lookupd_http_addresses=("host:1",), secret=Secret(b"two words"))
    with pytest.raises(
        SettingsError, match=r"^--auth-secret: a Bearer token consists of visible ASCII"
    ):
        Discovery([], hidden)
    assert "two words" not in repr(hidden)


def test_a_secret_that_fits_no_header_is_fine_where_nobody_is_asked() -> None:
    """NSQ's AUTH accepts any bytes."""
    Discovery([FIXED], LookupOptions(lookupd_http_addresses=(), secret=Secret(b"two words")))


# The real ones


async def publish(http_address: str, topic: str) -> None:
    async with httpx.AsyncClient() as http:
        answer = await http.post(f"http://{http_address}/pub?topic={topic}", content=b"1")
        answer.raise_for_status()


@pytest.mark.nsqd
async def test_a_real_topic_is_found_once_it_is_published_to(changes: Changes) -> None:
    """Before that nsqlookupd answers 404; the list of all nsqds has it from the start."""
    async with (
        real_nsqlookupd() as lookupd,
        real_nsqd(f"--lookupd-tcp-address={lookupd.tcp_address}") as nsqd,
        discovery(lookupd.http_address, poll_interval_s=0.05) as found,
    ):
        nodes = Changes()
        found.watch_nodes(nodes.tell)
        await nodes.until(nsqd.tcp_address)
        watch = found.watch_topic("t", changes.tell)
        assert await watch.first_answer()
        assert frozenset() == watch.addresses

        await publish(nsqd.http_address, "t")

        assert {nsqd.tcp_address} == await changes.next()


@pytest.mark.nsqd
async def test_a_real_nsqd_comes_back_on_another_port(changes: Changes) -> None:
    """It is dropped once nsqlookupd no longer returns it, and found at its new address."""
    async with (
        real_nsqlookupd() as lookupd,
        discovery(lookupd.http_address, poll_interval_s=0.05) as found,
    ):
        flag = f"--lookupd-tcp-address={lookupd.tcp_address}"
        found.watch_topic("t", changes.tell)
        async with real_nsqd(flag) as nsqd:
            await publish(nsqd.http_address, "t")
            assert {nsqd.tcp_address} == await changes.next()
        assert frozenset() == await changes.next()

        async with real_nsqd(flag) as again:
            await publish(again.http_address, "t")
            assert {again.tcp_address} == await changes.next()
            assert nsqd.tcp_address != again.tcp_address


@pytest.mark.nsqd
async def test_real_lookupds_with_an_nsqd_each_are_put_together(changes: Changes) -> None:
    """After one nsqlookupd has died, both nsqds stay known, and a third one is found."""
    async with AsyncExitStack() as stack:
        lookupds = [await stack.enter_async_context(real_nsqlookupd()) for _ in range(2)]
        flags = [f"--lookupd-tcp-address={lookupd.tcp_address}" for lookupd in lookupds]
        nsqds = [await stack.enter_async_context(real_nsqd(flag)) for flag in flags]
        addresses = [lookupd.http_address for lookupd in lookupds]
        found = await stack.enter_async_context(discovery(*addresses, poll_interval_s=0.05))
        watch = found.watch_nodes(changes.tell)
        await changes.until(*(nsqd.tcp_address for nsqd in nsqds))

        lookupds[0].process.kill()
        await lookupds[0].process.wait()
        third = await stack.enter_async_context(real_nsqd(flags[1]))
        await changes.until(*(nsqd.tcp_address for nsqd in (*nsqds, third)))

        assert 3 == len(watch.addresses)
