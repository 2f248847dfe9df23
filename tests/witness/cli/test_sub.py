"""`nsq-gateway sub` as a process: written messages are finished, all others requeued."""

from __future__ import annotations

import json
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from tests.support.brokers.killable_broker import free_port, killable_broker
from tests.support.brokers.nsqd import RealNsqd, real_nsqd, real_nsqlookupd
from tests.support.gateways.gateway import gateway_with_nsqd, poll_until
from tests.support.gateways.shell import TopicStats, run, shell, topic_stats

pytestmark = pytest.mark.nsqd

TOPIC = "orders"
SUB = ("sub", TOPIC, "c")
NOTHING_LEFT = {"depth": 0, "in_flight_count": 0, "deferred_count": 0, "requeue_count": 0}
PIPE_BYTES = 65_536
"""Capacity of a pipe on Linux."""


class Place:
    """A message source: settings of the command, and nsqd's counts of the channel."""

    def __init__(self, settings: dict[str, str], nsqd: RealNsqd, account: TopicStats) -> None:
        self.settings = settings
        self.nsqd = nsqd
        self.account = account

    async def becomes(self, **counts: int) -> dict[str, int]:
        """Return nsqd's counts of the channel, once they are *counts* or the time is up."""
        return await poll_until(self.account.counts, NOTHING_LEFT | counts)

    async def in_flight(self) -> int:
        """Return how many messages nsqd has in flight."""
        return (await self.account.counts())["in_flight_count"]


@pytest.fixture(params=["nsqd", "gateway", "pull"])
async def place(request: pytest.FixtureRequest) -> AsyncIterator[Place]:
    """Yield an nsqd by its address, an nsqd found by nsqlookupd, and a gateway in two ways."""
    async with AsyncExitStack() as life:
        enter = life.enter_async_context
        flags = []
        if request.param == "lookupd":
            lookupd = await enter(real_nsqlookupd())
            flags = [f"--lookupd-tcp-address={lookupd.tcp_address}"]
        nsqd = await enter(real_nsqd(*flags))
        settings = {"nsqd_tcp_address": nsqd.tcp_address}
        account = await enter(topic_stats(nsqd.http_address, TOPIC))
        if request.param == "lookupd":
            settings = {"lookupd_http_address": lookupd.http_address}
            await lookupd.log.match(f"REGISTER category:channel key:{TOPIC} subkey:c")
        if request.param == "gateway":
            gateway = await enter(gateway_with_nsqd([nsqd.tcp_address], [nsqd.http_address]))
            settings = {"url": gateway.websocket_url}
        if request.param == "pull":
            gateway = await enter(gateway_with_nsqd([nsqd.tcp_address], [nsqd.http_address]))
            settings = {"url": gateway.url, "pull": "true"}
        yield Place(settings, nsqd, account)


@pytest.fixture
async def nsqd() -> AsyncIterator[Place]:
    """Yield an nsqd by its address."""
    async with real_nsqd() as nsqd, topic_stats(nsqd.http_address, TOPIC) as account:
        yield Place({"nsqd_tcp_address": nsqd.tcp_address}, nsqd, account)


@pytest.mark.parametrize("place", ["nsqd", "lookupd", "gateway", "pull"], indirect=True)
async def test_each_message_is_a_line_and_is_finished(place: Place) -> None:
    """Lines have the order in which the messages arrived."""
    await place.account.publish(b"one", b"two", b"\xff")

    outcome = await run(*SUB, "-n", "3", settings=place.settings)

    assert (0, b"one\ntwo\n\xff\n", "") == outcome
    assert NOTHING_LEFT == await place.becomes()


async def test_a_line_is_written_when_its_message_comes(place: Place) -> None:
    async with shell(*SUB, settings=place.settings) as command:
        await place.account.publish(b"one")
        first = await command.line()
        await place.account.publish(b"two")
        second = await command.line()

        command.signal(signal.SIGTERM)
        outcome = await command.end()

    assert (b"one\n", b"two\n", (0, b"", "")) == (first, second, outcome)


async def test_json_has_what_a_line_cannot_hold(place: Place) -> None:
    """Bodies that are not UTF-8 are base64, and newlines in a body are escaped."""
    await place.account.post("/pub", b"two\nlines")
    await place.account.post("/pub", b"\xff\x00")

    status, output, errors = await run(*SUB, "--json", "-n", "2", settings=place.settings)

    records = [json.loads(line) for line in output.split(b"\n")[:-1]]
    known = [record.pop("nsqd", None) for record in records]
    stamps = [(record.pop("id"), record.pop("timestamp_ns")) for record in records]
    assert (0, "") == (status, errors)
    assert [
        {"attempts": 1, "body": "two\nlines"},
        {"attempts": 1, "body_base64": "/wA="},
    ] == records
    assert [True, True] == [len(stamp) == 19 and stamp.isdigit() for _, stamp in stamps]
    assert [True, True] == [16 <= len(message_id) for message_id, _ in stamps]
    expected = None if "url" in place.settings else place.nsqd.tcp_address
    assert [expected, expected] == known


async def test_what_is_beyond_the_count_is_not_taken(place: Place) -> None:
    """Other consumers get the remaining messages with attempts 1."""
    await place.account.publish(*(b"%d" % number for number in range(50)))

    outcome = await run(*SUB, "-n", "7", settings=place.settings)

    assert (0, b"0\n1\n2\n3\n4\n5\n6\n", "") == outcome
    assert NOTHING_LEFT | {"depth": 43} == await place.becomes(depth=43)


@pytest.mark.parametrize("number,status", [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
async def test_a_signal_hands_back_what_is_not_written(
    number: signal.Signals, status: int, place: Place
) -> None:
    """At once, even if the reader blocks; not after the message timeout."""
    await place.account.publish(*[b"x" * 50_000] * 40)
    async with shell(*SUB, settings=place.settings) as command:
        await command.line()
        while (await place.account.counts())["depth"]:
            pass  # all of them are on their way, and most of them stay there

        command.signal(number)
        returned, output, errors = await command.end()

    if "pull" in place.settings:
        # What has come to the gateway after the answer to a pull waits there for another one.
        await poll_until(place.in_flight, 0)
    counts = await place.account.counts()
    assert (status, "", 0) == (returned, errors, counts["in_flight_count"])
    # Messages that were being written to the pipe at the signal may be delivered again.
    assert 40 <= 1 + output.count(b"\n") + counts["depth"]
    assert 20 <= counts["depth"]


async def test_a_reader_that_goes_ends_it(place: Place) -> None:
    """A closed pipe, as by `head`, ends it before the next message."""
    await place.account.publish(b"one")
    async with shell(*SUB, settings=place.settings) as command:
        first = await command.line()

        command.close_output()
        status, _, errors = await command.end()

    assert (b"one\n", 0, "") == (first, status, errors)
    assert NOTHING_LEFT == await place.becomes()


async def test_what_the_reader_did_not_take_goes_back(place: Place) -> None:
    """A partly written line is not finished."""
    await place.account.publish(b"x" * (10 * PIPE_BYTES))
    async with shell(*SUB, settings=place.settings) as command:
        await place.becomes(in_flight_count=1)

        command.close_output()
        status, _, errors = await command.end()

    expected = NOTHING_LEFT | {"depth": 1, "requeue_count": 1}
    assert (0, "") == (status, errors)
    assert expected == await place.becomes(depth=1, requeue_count=1)


async def test_a_full_disk_is_told_and_the_message_goes_back(nsqd: Place) -> None:
    """A full disk is an error, unlike a closed pipe."""
    await nsqd.account.publish(b"one")
    with open("/dev/full", "wb") as full:  # noqa: ASYNC230, PTH123 - a device, at once
        async with shell(*SUB, settings=nsqd.settings, stdout=full.fileno()) as command:
            outcome = await command.end()

    message = "nsq-gateway: standard output: No space left on device\n"
    assert (1, b"", message) == outcome
    expected = NOTHING_LEFT | {"depth": 1, "requeue_count": 1}
    assert expected == await nsqd.becomes(depth=1, requeue_count=1)


@pytest.mark.parametrize("setting", ["nsqd_tcp_address", "url"])
async def test_where_nobody_answers_it_fails(setting: str) -> None:
    """At the start, a wrong address is more likely than an outage."""
    address = f"127.0.0.1:{free_port()}"
    where = f"ws://{address}" if setting == "url" else address

    status, _, errors = await run(*SUB, settings={setting: where})

    assert (1, True) == (status, address in errors and "Connection refused" in errors)


async def test_a_topic_that_nobody_has_yet_is_waited_for() -> None:
    """nsqlookupd returns an nsqd once the topic exists."""
    async with real_nsqlookupd() as lookupd:
        settings = {"lookupd_http_address": lookupd.http_address, "lookupd_poll_interval_s": "0.1"}
        async with (
            shell(*SUB, settings=settings) as command,
            real_nsqd(f"--lookupd-tcp-address={lookupd.tcp_address}") as nsqd,
            topic_stats(nsqd.http_address, TOPIC) as account,
        ):
            await account.publish(b"one")

            assert b"one\n" == await command.line()


async def test_a_gateway_that_comes_back_is_found_again() -> None:
    """A drain announces the time of the reconnect; later messages are written."""
    where = [f"--listen=127.0.0.1:{free_port()}", "--drain-window-s=0", "--drain-in-flight-s=0.2"]
    async with real_nsqd() as nsqd, topic_stats(nsqd.http_address, TOPIC) as account:
        addresses = [nsqd.tcp_address], [nsqd.http_address]
        async with AsyncExitStack() as life:
            gateway = await life.enter_async_context(gateway_with_nsqd(*addresses, *where))
            command = await life.enter_async_context(shell(*SUB, settings={"url": gateway.url}))
            await account.publish(b"one")
            first = await command.line()
            # Otherwise the drain may requeue the message before its FIN arrives.
            assert NOTHING_LEFT == await poll_until(account.counts, NOTHING_LEFT)
            gateway.program.signal(signal.SIGTERM)
            await gateway.program.ended()

            async with gateway_with_nsqd(*addresses, *where):
                await account.publish(b"two")
                second = await command.line()
                command.signal(signal.SIGINT)
                status, _, errors = await command.end()

    assert (b"one\n", b"two\n", 130) == (first, second, status)
    assert "gateway connection lost" in errors


async def test_an_nsqd_that_comes_back_is_found_again() -> None:
    """Messages in its memory are lost; later messages are written."""
    async with (
        killable_broker("nsqd") as broker,
        shell(*SUB, settings={"nsqd_tcp_address": broker.tcp_address}) as command,
    ):
        async with topic_stats(broker.http_address, TOPIC) as account:
            await account.publish(b"one")
            first = await command.line()
        await broker.kill()
        await broker.start()
        async with topic_stats(broker.http_address, TOPIC) as account:
            await account.publish(b"two")
            second = await command.line()

    assert (b"one\n", b"two\n") == (first, second)


async def test_what_a_gateway_refuses_is_told_in_its_words() -> None:
    """The error contains the response, here for a max_in_flight above the limit."""
    async with real_nsqd() as nsqd:
        addresses = [nsqd.tcp_address], [nsqd.http_address]
        async with gateway_with_nsqd(*addresses, "--max-in-flight-limit=5") as gateway:
            status, _, errors = await run(*SUB, settings={"url": gateway.url, "max_in_flight": "6"})

    assert (1, True, True) == (status, "answered 400" in errors, "max_in_flight" in errors)
