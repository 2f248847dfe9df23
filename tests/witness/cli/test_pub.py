"""`nsq-gateway pub` as a process: messages, their order, and the output."""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from functools import partial

import pytest

from tests.support.brokers.killable_broker import free_port
from tests.support.brokers.nsqd import RealNsqd, real_nsqd, real_nsqlookupd
from tests.support.gateways.gateway import gateway_with_nsqd, poll_until
from tests.support.gateways.shell import TopicStats, bodies_of, run, shell, topic_stats
from tests.support.terminal import terminal

pytestmark = pytest.mark.nsqd

TOPIC = "orders"


def prefixed(*bodies: bytes) -> bytes:
    return b"".join(len(body).to_bytes(4, "big") + body for body in bodies)


class Place:
    """A publish target: settings of the command, and nsqd's counts of the topic."""

    def __init__(self, settings: dict[str, str], nsqd: RealNsqd, account: TopicStats) -> None:
        self.settings = settings
        self.nsqd = nsqd
        self.account = account

    async def bodies(self) -> list[bytes]:
        """Return the bodies of all messages, read by another command."""
        count = await self.account.message_count()
        return await bodies_of(self.nsqd.tcp_address, TOPIC, count)


@pytest.fixture(params=["nsqd", "gateway"])
async def place(request: pytest.FixtureRequest) -> AsyncIterator[Place]:
    """Yield an nsqd by its address, an nsqd found by nsqlookupd, and a gateway."""
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
        yield Place(settings, nsqd, await enter(topic_stats(nsqd.http_address, TOPIC)))


@pytest.fixture
async def nsqd() -> AsyncIterator[Place]:
    """Yield an nsqd by its address."""
    async with real_nsqd() as nsqd, topic_stats(nsqd.http_address, TOPIC) as account:
        yield Place({"nsqd_tcp_address": nsqd.tcp_address}, nsqd, account)


@pytest.mark.parametrize("place", ["nsqd", "lookupd", "gateway"], indirect=True)
async def test_each_line_is_a_message(place: Place) -> None:
    """Empty lines are skipped, only newlines are removed, the last line needs none."""
    outcome = await run("pub", TOPIC, given=b"one\n\ntwo \r\n\xff\nlast", settings=place.settings)

    assert (0, b"", "") == outcome
    assert [b"one", b"two \r", b"\xff", b"last"] == await place.bodies()


async def test_a_message_behind_its_length_holds_what_it_likes(place: Place) -> None:
    """A length-prefixed body may contain newlines, for every target."""
    bodies = [b"one\ntwo", b"\n", b"\0\xff", b"last"]
    flags = ("--framing", "length-prefixed")

    outcome = await run(
        "pub", TOPIC, *flags, given=prefixed(*bodies, b"\n" * 1_048_576), settings=place.settings
    )

    assert (0, b"", "") == outcome
    assert [*bodies, b"\n" * 1_048_576] == await place.bodies()


async def test_another_byte_may_end_a_line(nsqd: Place) -> None:
    """A NUL delimiter, as `find -print0` writes it."""
    flags = ("--delimiter", r"\0")

    outcome = await run("pub", TOPIC, *flags, given=b"a\nb\0\0c", settings=nsqd.settings)

    assert (0, b"", "") == outcome
    assert [b"a\nb", b"c"] == await nsqd.bodies()


@pytest.mark.parametrize(
    "end,complaint",
    [
        (b"\0\0\0\x05abcd", "its length is 5 bytes, and the input ends after 4 of them"),
        (b"\0\x10\0\x01", "its length is 1048577 bytes; allowed: 1 to 1048576 (--max-msg-size)"),
    ],
)
async def test_what_is_no_message_is_named_and_those_before_it_are_published(
    end: bytes, complaint: str, nsqd: Place
) -> None:
    """The error has number, offset, value and limit, and the tail command to resume."""
    flags = ("--framing", "length-prefixed")

    status, _, errors = await run(
        "pub", TOPIC, *flags, given=prefixed(b"one", b"two") + end, settings=nsqd.settings
    )

    assert (1, f"nsq-gateway: message 3 at offset 14 not published: {complaint}\n") == (
        status,
        errors.splitlines(keepends=True)[0],
    )
    assert "2 messages published; resume with: tail -c +15\n" in errors
    assert [b"one", b"two"] == await nsqd.bodies()


@pytest.mark.parametrize(
    "flags,complaint",
    [
        (("--delimiter", "ab"), "--delimiter is 'ab'; allowed: one byte, or"),
        (
            ("--delimiter", ",", "--framing", "length-prefixed"),
            "--delimiter: it only applies to",
        ),
        (("--framing", "xml"), "'xml' is not one of 'lines', 'length-prefixed'"),
        (("--retry-for-s", "-1"), "allowed: 0 to 86 400 s"),
    ],
)
async def test_wrong_use_is_told_before_anything_is_read(
    flags: tuple[str, ...], complaint: str
) -> None:
    """The error contains the allowed values."""
    status, _, errors = await run("pub", TOPIC, *flags)

    assert (2, True) == (status, complaint in errors)


async def test_many_lines_are_all_published(place: Place) -> None:
    """The input is more than one batch, and batches take few round trips."""
    outcome = await run("pub", TOPIC, given=(b"x" * 99 + b"\n") * 30_000, settings=place.settings)

    assert (0, b"", "") == outcome
    assert 30_000 == await place.account.message_count()


async def test_a_line_is_published_when_it_is_there(place: Place) -> None:
    """A line is published before the input ends, as with `tail -f`."""
    async with shell("pub", TOPIC, settings=place.settings) as command:
        await command.write(b"first\n")

        assert 1 == await poll_until(place.account.message_count, 1)
        assert (0, b"", "") == await command.end(b"second")
    assert 2 == await place.account.message_count()


async def test_a_deferred_message_waits_at_nsqd(place: Place) -> None:
    """nsqd counts it as deferred."""
    flags = ("--defer-ms", "3600000")

    outcome = await run("pub", TOPIC, *flags, given=b"one\ntwo\n", settings=place.settings)

    assert (0, b"", "") == outcome
    counts = partial(place.account.counts)
    expected = {"depth": 0, "in_flight_count": 0, "deferred_count": 2, "requeue_count": 0}
    assert expected == await poll_until(counts, expected)


async def test_a_line_that_is_refused_is_named_and_those_before_it_are_published(
    place: Place,
) -> None:
    """The batch is halved until the refused line is alone; the error says where to resume."""
    lines = [b"one", b"two", b"x" * 1_048_577, b"four"]

    # Raise the limit of the command, so that nsqd refuses the message.
    limits = {"max_msg_size": "2000000", "max_body_size": "5000000"}
    status, _, errors = await run(
        "pub", TOPIC, given=b"\n".join(lines), settings=place.settings | limits
    )

    assert (1, True, True) == (
        status,
        errors.startswith("nsq-gateway: line 3 not published: "),
        errors.endswith("\n2 messages published; resume with: tail -n +3\n"),
    )
    assert [b"one", b"two"] == await place.bodies()


async def test_a_line_without_end_is_refused_at_the_limit(nsqd: Place) -> None:
    """The line is not held in memory beyond the limit."""
    async with shell("pub", TOPIC, settings=nsqd.settings | {"max_msg_size": "1000"}) as command:
        await command.write(b"fits\n" + b"x" * 1_001)
        async with asyncio.timeout(20):
            assert command.process.stderr is not None
            errors = await command.process.stderr.read()

    assert errors.startswith(b"nsq-gateway: line 2 not published: it is longer than --max-msg-size")
    assert 1 == await nsqd.account.message_count()


@pytest.mark.parametrize("setting", ["nsqd_tcp_address", "lookupd_http_address", "url"])
async def test_where_nobody_answers_nothing_is_published(setting: str) -> None:
    """The error contains the address, and the exit status is 1."""
    address = f"127.0.0.1:{free_port()}"
    where = f"http://{address}" if setting == "url" else address

    status, _, errors = await run(
        "pub", TOPIC, "--retry-for-s", "0", given=b"one\n", settings={setting: where}
    )

    assert (1, True) == (status, "line 1 not published: " in errors)
    assert address in errors


async def test_another_server_is_no_gateway(nsqd: Place) -> None:
    """A server that responds with 404 is reported with its URL."""
    url = f"http://{nsqd.nsqd.http_address}/nowhere"

    status, _, errors = await run("pub", TOPIC, given=b"one\n", settings={"url": url})

    assert (1, True) == (status, f"{url} answered 404" in errors)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_an_interruption_leaves_what_is_answered(
    number: signal.Signals, place: Place
) -> None:
    """Status 130 tells that the input was not published completely."""
    async with shell("pub", TOPIC, settings=place.settings) as command:
        await command.write(b"one\ntwo\npart")
        await poll_until(place.account.message_count, 2)

        command.signal(number)
        status, _, errors = await command.end()

    told = "interrupted; 2 messages published; resume with: tail -n +3"
    assert (130, f"nsq-gateway: {told}\n") == (status, errors)
    assert 2 == await place.account.message_count()


async def test_a_person_at_a_terminal_sees_how_far_it_is(nsqd: Place) -> None:
    with terminal() as screen:
        async with shell("pub", TOPIC, settings=nsqd.settings, stderr=screen.descriptor) as command:
            await command.write(b"hello\n" * 9)
            await screen.shows(r"\r\x1b\[K9 messages, 45 B, [0-9.]+/s, 0:0\d\r")
            await command.end(b"hello")
        await screen.shows(r"\r\x1b\[K10 messages, 50 B, [0-9.]+/s, 0:0\d\r?\n")


async def test_who_asks_is_told_the_sum(nsqd: Place) -> None:
    """--verbose prints one line with the totals, terminal or not."""
    outcome = await run("pub", TOPIC, "-v", given=b"one\ntwo\n", settings=nsqd.settings)

    status, _, errors = outcome
    assert 0 == status
    assert re.fullmatch(r"nsq-gateway: 2 messages, 6 B, [0-9.]+/s, 0:0\d\n", errors)


async def test_an_empty_input_is_done() -> None:
    """An empty input is a success, even if the target does not exist."""
    assert (0, b"", "") == await run(
        "pub", TOPIC, settings={"url": f"http://127.0.0.1:{free_port()}"}
    )
