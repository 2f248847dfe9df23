"""`nsq-gateway pub` as a process: what becomes a message, in which order, and what is told."""

from __future__ import annotations

import asyncio
import os
import pty
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from functools import partial

import pytest

from tests.support.gateway import become, gateway_with_nsqd
from tests.support.mortal_broker import free_port
from tests.support.nsqd import RealNsqd, real_nsqd, real_nsqlookupd
from tests.support.shell import Account, account_of, run, shell

pytestmark = pytest.mark.nsqd

TOPIC = "orders"


class Place:
    """Somewhere to publish: how the command is told, and what nsqd says of it."""

    def __init__(self, settings: dict[str, str], nsqd: RealNsqd, account: Account) -> None:
        self.settings = settings
        self.nsqd = nsqd
        self.account = account

    async def bodies(self) -> list[bytes]:
        """Return every message, by another command."""
        count = str(await self.account.message_count())
        status, output, errors = await run(
            "sub", TOPIC, "c", "-n", count, settings={"nsqd_tcp_address": self.nsqd.tcp_address}
        )
        assert (0, "") == (status, errors)
        return output.removesuffix(b"\n").split(b"\n")


@pytest.fixture(params=["nsqd", "lookupd", "gateway"])
async def place(request: pytest.FixtureRequest) -> AsyncIterator[Place]:
    """Return nsqd by its address, nsqd as nsqlookupd knows it, and a gateway in front of one."""
    async with AsyncExitStack() as life:
        enter = life.enter_async_context
        flags = []
        if request.param == "lookupd":
            lookupd = await enter(real_nsqlookupd())
            flags = [f"--lookupd-tcp-address={lookupd.tcp_address}"]
        nsqd = await enter(real_nsqd(*flags))
        settings = {"nsqd_tcp_address": nsqd.tcp_address}
        if request.param == "lookupd":
            settings = {"lookupd_http_address": lookupd.http_address}
            await nsqd.log.match("LOOKUPD.*peer info")
        if request.param == "gateway":
            gateway = await enter(gateway_with_nsqd([nsqd.tcp_address], [nsqd.http_address]))
            settings = {"url": gateway.url}
        yield Place(settings, nsqd, await enter(account_of(nsqd.http_address, TOPIC)))


@pytest.fixture
async def nsqd() -> AsyncIterator[Place]:
    """Return nsqd by its address."""
    async with real_nsqd() as nsqd, account_of(nsqd.http_address, TOPIC) as account:
        yield Place({"nsqd_tcp_address": nsqd.tcp_address}, nsqd, account)


async def test_each_line_is_a_message(place: Place) -> None:
    """Empty ones are left out, only the newline is cut off, and the last one needs none."""
    outcome = await run("pub", TOPIC, given=b"one\n\ntwo \r\n\xff\nlast", settings=place.settings)

    assert (0, b"", "") == outcome
    assert [b"one", b"two \r", b"\xff", b"last"] == await place.bodies()


async def test_many_lines_are_all_published(place: Place) -> None:
    """More than one batch, in the time of a few answers."""
    outcome = await run("pub", TOPIC, given=(b"x" * 99 + b"\n") * 30_000, settings=place.settings)

    assert (0, b"", "") == outcome
    assert 30_000 == await place.account.message_count()


async def test_a_line_is_published_when_it_is_there(place: Place) -> None:
    """The input of `tail -f` never ends."""
    async with shell("pub", TOPIC, settings=place.settings) as command:
        await command.write(b"first\n")

        assert 1 == await become(place.account.message_count, 1)
        assert (0, b"", "") == await command.end(b"second")
    assert 2 == await place.account.message_count()


async def test_a_deferred_message_waits_at_nsqd(place: Place) -> None:
    """For as long as was said."""
    flags = ("--defer-ms", "3600000")

    outcome = await run("pub", TOPIC, *flags, given=b"one\ntwo\n", settings=place.settings)

    assert (0, b"", "") == outcome
    counts = partial(place.account.counts)
    expected = {"depth": 0, "in_flight_count": 0, "deferred_count": 2, "requeue_count": 0}
    assert expected == await become(counts, expected)


async def test_a_line_that_is_refused_is_named_and_those_before_it_are_published(
    place: Place,
) -> None:
    """Alone they get answers of their own; so it can be said from where to go on."""
    lines = [b"one", b"two", b"x" * 1_048_577, b"four"]

    # A larger limit of our own: it is the broker that refuses.
    limits = {"max_msg_size": "2000000", "max_body_size": "5000000"}
    status, _, errors = await run(
        "pub", TOPIC, given=b"\n".join(lines), settings=place.settings | limits
    )

    assert (1, True, True) == (
        status,
        errors.startswith("nsq-gateway: line 3 not published: "),
        errors.endswith("\n2 messages before are published; to go on from there: tail -n +3\n"),
    )
    assert [b"one", b"two"] == await place.bodies()


async def test_a_line_without_end_is_refused_at_the_limit(nsqd: Place) -> None:
    """It is not gathered until memory runs out."""
    async with shell("pub", TOPIC, settings=nsqd.settings | {"max_msg_size": "1000"}) as command:
        await command.write(b"fits\n" + b"x" * 1_001)
        async with asyncio.timeout(20):
            assert command.process.stderr is not None
            errors = await command.process.stderr.read()

    assert errors.startswith(b"nsq-gateway: line 2 not published: it is longer than --max-msg-size")
    assert 1 == await nsqd.account.message_count()


@pytest.mark.parametrize("setting", ["nsqd_tcp_address", "lookupd_http_address", "url"])
async def test_where_nobody_answers_nothing_is_published(setting: str) -> None:
    """The address is told, and the status says that it failed."""
    address = f"127.0.0.1:{free_port()}"
    where = f"http://{address}" if setting == "url" else address

    status, _, errors = await run("pub", TOPIC, given=b"one\n", settings={setting: where})

    assert (1, True) == (status, "line 1 not published: " in errors)
    assert address in errors


async def test_another_server_is_no_gateway(nsqd: Place) -> None:
    """What answers OK to nobody's publish is told from one that does."""
    url = f"http://{nsqd.nsqd.http_address}/nowhere"

    status, _, errors = await run("pub", TOPIC, given=b"one\n", settings={"url": url})

    assert (1, True) == (status, f"{url} answered 404" in errors)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_an_interruption_leaves_what_is_answered(
    number: signal.Signals, place: Place
) -> None:
    """The status tells that the input was cut short."""
    async with shell("pub", TOPIC, settings=place.settings) as command:
        await command.write(b"one\ntwo\npart")
        await become(place.account.message_count, 2)

        command.signal(number)
        status, _, errors = await command.end()

    assert (130, "nsq-gateway: interrupted; 2 messages are published\n") == (status, errors)
    assert 2 == await place.account.message_count()


async def test_a_person_at_a_terminal_sees_how_far_it_is(nsqd: Place) -> None:
    """And nobody else: what a script logs has no progress in it."""
    ours, theirs = pty.openpty()

    async with shell("pub", TOPIC, settings=nsqd.settings, stderr=theirs) as command:
        await command.end(b"hello\n" * 10)

    assert b"10 messages, 50 B, " in os.read(ours, 10_000)
    os.close(ours)
    os.close(theirs)


async def test_an_empty_input_is_done() -> None:
    """Nothing to do is no failure, wherever it would have gone."""
    assert (0, b"", "") == await run(
        "pub", TOPIC, settings={"url": f"http://127.0.0.1:{free_port()}"}
    )
