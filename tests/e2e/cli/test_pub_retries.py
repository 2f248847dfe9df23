"""`nsq-gateway pub` after failed requests: retries, errors and the final report."""

from __future__ import annotations

import re
import signal
from contextlib import AsyncExitStack

import pytest

from tests.support.brokers.killable_broker import KillableBroker, free_port, killable_broker
from tests.support.brokers.nsqd import real_nsqd
from tests.support.brokers.toxiproxy import toxiproxy
from tests.support.gateways.gateway import gateway_with_nsqd, poll_until
from tests.support.gateways.scripted_gateway import OK, ScriptedResponse, problem, scripted_gateway
from tests.support.gateways.shell import Shell, bodies_of, run, shell, topic_stats
from tests.support.terminal import terminal

BROKERS = pytest.mark.parametrize(
    "kind", [pytest.param("nsqd", marks=pytest.mark.nsqd), "embedded"]
)
TOPIC = "orders"
PUB = ("pub", TOPIC)

NO_BROKER = problem(503, "NO_BROKER", retryable=True)
UNKNOWN = problem(504, "OUTCOME_UNKNOWN")
LOST = "lines 1 to 2 may or may not be published"


# Scripted answers


@pytest.mark.parametrize(
    "refusal",
    [
        NO_BROKER,
        problem(429, "RATE_LIMITED", retryable=True),
        problem(408, "REQUEST_TIMEOUT", retryable=True),
        ScriptedResponse(503, b'{"message":"EXITING"}'),
    ],
)
async def test_what_is_not_published_for_now_is_tried_again(refusal: ScriptedResponse) -> None:
    """The same batch is retried before later messages are sent."""
    async with scripted_gateway(refusal, refusal, OK) as gateway:
        outcome = await run(*PUB, given=b"one\ntwo\n", settings={"url": gateway.url})

    assert (0, b"", "") == outcome
    assert [b"one\ntwo"] * 3 == gateway.bodies


@pytest.mark.parametrize("status", [429, 503])
async def test_retry_after_is_waited_for(status: int) -> None:
    """The delay is at least the one second of the Retry-After header."""
    refusal = problem(status, retryable=True, Retry_After="1")
    async with scripted_gateway(refusal, OK) as gateway:
        outcome = await run(*PUB, given=b"one\n", settings={"url": gateway.url})

    assert (0, b"", "") == outcome
    assert gateway.asked[1].at - gateway.asked[0].at >= 1.0


async def test_a_time_to_wait_that_is_longer_than_ours_is_not_waited_for() -> None:
    """The error contains the Retry-After of the response."""
    refusal = problem(429, "RATE_LIMITED", Retry_After="3600")
    async with scripted_gateway(refusal) as gateway:
        status, _, errors = await run(*PUB, given=b"one\n", settings={"url": gateway.url})

    assert (1, 1) == (status, len(gateway.asked))
    assert "line 1 not published: " in errors
    assert "retry after 3600 s" in errors


@pytest.mark.parametrize("status", [400, 401, 403, 404])
async def test_what_is_refused_is_not_tried_again(status: int) -> None:
    """Even with --at-least-once: a retry would be refused as well."""
    flags = ("--at-least-once",)
    async with scripted_gateway(problem(status)) as gateway:
        outcome = await run(*PUB, *flags, given=b"one\n", settings={"url": gateway.url})

    assert (1, [b"one"]) == (outcome[0], gateway.bodies)
    assert f"line 1 not published: {gateway.url} answered {status}: " in outcome[2]


async def test_one_message_that_is_refused_is_found_in_its_batch() -> None:
    """The batch is halved, because the error does not name the message; order is kept."""
    too_big = problem(413, "MSG_TOO_BIG")
    async with scripted_gateway(too_big, OK, too_big, OK, too_big) as gateway:
        outcome = await run(*PUB, given=b"1\n2\n3\n4\n", settings={"url": gateway.url})

    assert [b"1\n2\n3\n4", b"1\n2", b"3\n4", b"3", b"4"] == gateway.bodies
    assert (1, True) == (outcome[0], "line 4 not published: " in outcome[2])
    assert "3 messages published; resume with: tail -n +4\n" in outcome[2]


async def test_what_may_be_published_is_not_tried_again() -> None:
    """A retry could duplicate messages; the error mentions --at-least-once."""
    async with scripted_gateway(UNKNOWN) as gateway:
        status, _, errors = await run(*PUB, given=b"one\ntwo\n", settings={"url": gateway.url})

    assert (1, 1) == (status, len(gateway.asked))
    assert f"nsq-gateway: {LOST}: {gateway.url} answered 504: " in errors
    assert "0 messages published; resume with: tail -n +1\n" in errors
    assert "add --at-least-once" in errors


async def test_who_takes_doubled_messages_is_told_how_many_there_may_be() -> None:
    """The messages of the batch are counted once, however many retries there were."""
    async with scripted_gateway(UNKNOWN, UNKNOWN, OK) as gateway:
        outcome = await run(
            *PUB, "--at-least-once", given=b"one\ntwo\n", settings={"url": gateway.url}
        )

    assert (0, b"", "nsq-gateway: 2 messages may be published more than once\n") == outcome
    assert [b"one\ntwo"] * 3 == gateway.bodies


async def test_what_was_unknown_once_stays_so() -> None:
    """A later failure without a publish says nothing about the first attempt."""
    flags = ("--at-least-once", "--retry-for-s", "0.5")
    async with scripted_gateway(UNKNOWN, NO_BROKER) as gateway:
        status, _, errors = await run(
            *PUB, *flags, given=b"one\ntwo\n", settings={"url": gateway.url}
        )

    assert 1 == status
    assert re.search(rf"nsq-gateway: {LOST} \(tried \d+ times\): \S+ answered 503: ", errors)


async def test_tries_end_with_their_time() -> None:
    """The error contains the number of attempts."""
    async with scripted_gateway(NO_BROKER) as gateway:
        status, _, errors = await run(
            *PUB, "--retry-for-s", "0.5", given=b"one\n", settings={"url": gateway.url}
        )

    assert 1 == status
    assert f"line 1 not published (tried {len(gateway.asked)} times): " in errors
    assert gateway.asked[-1].at - gateway.asked[0].at >= 0.4


@pytest.mark.parametrize("refusal,fate", [(NO_BROKER, ""), (UNKNOWN, f"{LOST}; ")])
async def test_an_interruption_ends_the_wait_for_the_next_try(
    refusal: ScriptedResponse, fate: str
) -> None:
    """It ends at once, with the command to resume."""
    slow = ScriptedResponse(refusal.status, refusal.body, {"Retry-After": "20"})
    with terminal() as screen:
        async with (
            scripted_gateway(slow) as gateway,
            shell(
                *(*PUB, "--at-least-once"),
                settings={"url": gateway.url},
                stderr=screen.descriptor,
            ) as command,
        ):
            await command.write(b"one\ntwo\n")
            await screen.shows(r"waiting: [^,]+, next try in \d")

            command.signal(signal.SIGINT)
            status, _, _ = await command.end()

        told = "0 messages published; resume with: tail -n +1"
        await screen.shows(re.escape(f"nsq-gateway: interrupted; {fate}{told}"))
    assert 130 == status


async def test_an_interruption_waits_for_the_answer_that_is_on_its_way() -> None:
    """The response determines where to resume."""
    async with (
        scripted_gateway(OK) as gateway,
        shell(*PUB, settings={"url": gateway.url}) as command,
    ):
        gateway.may_answer.clear()
        await command.write(b"one\ntwo\n")
        await gateway.was_asked.wait()

        command.signal(signal.SIGTERM)
        gateway.may_answer.set()
        status, _, errors = await command.end()

    told = "2 messages published; resume with: tail -n +3"
    assert (130, f"nsq-gateway: interrupted; {told}\n") == (status, errors)


# Brokers that go and come back


@BROKERS
async def test_nothing_is_lost_or_doubled_by_a_broker_that_is_killed_and_comes_back(
    kind: str,
) -> None:
    """The terminal shows the reason of the delay; then each message arrives once."""
    with terminal() as screen:
        async with killable_broker(kind) as broker:
            settings = {"nsqd_tcp_address": broker.tcp_address}
            async with shell(*PUB, settings=settings, stderr=screen.descriptor) as command:
                await _published(broker, command, 2)
                await broker.kill()
                await screen.shows("publisher disconnected")
                await command.write(b"3\n")
                await screen.shows(r"waiting: nsqd unreachable, next try in \d+\.\d s")
                await broker.start()

                status, _, _ = await command.end(b"4\n")
            assert (0, [b"3", b"4"]) == (status, await _bodies(broker))
        await screen.shows(r"\x1b\[K4 messages, 4 B, ")


@BROKERS
async def test_nothing_is_lost_or_doubled_behind_a_gateway_whose_broker_comes_back(
    kind: str,
) -> None:
    """Meanwhile the gateway responds with 503, so retries are safe."""
    with terminal() as screen:
        async with (
            killable_broker(kind) as broker,
            gateway_with_nsqd([broker.tcp_address], [broker.http_address]) as gateway,
        ):
            settings = {"url": gateway.url}
            async with shell(*PUB, settings=settings, stderr=screen.descriptor) as command:
                await _published(broker, command, 2)
                await broker.kill()
                await gateway.program.said("publisher disconnected")
                await command.write(b"3\n")
                await screen.shows("waiting: gateway answers 503 NO_BROKER, next try in ")
                await broker.start()

                status, _, _ = await command.end(b"4\n")
            assert (0, [b"3", b"4"]) == (status, await _bodies(broker))


async def test_a_gateway_that_is_not_there_yet_is_waited_for() -> None:
    """A script may start both at the same time."""
    address = f"127.0.0.1:{free_port()}"
    with terminal() as screen:
        async with AsyncExitStack() as life:
            settings = {"url": f"http://{address}"}
            command = await life.enter_async_context(
                shell(*PUB, settings=settings, stderr=screen.descriptor)
            )
            await command.write(b"one\n")
            await screen.shows("waiting: gateway unreachable, next try in ")
            gateway = await life.enter_async_context(scripted_gateway(OK, listen=address))
            status, _, _ = await command.end(b"two")

    assert (0, [b"one", b"two"]) == (status, gateway.bodies)


@pytest.mark.nsqd
@pytest.mark.toxiproxy
async def test_no_message_is_lost_on_a_network_that_fails_again_and_again() -> None:
    """With --at-least-once each message arrives, and duplicates are reported."""
    count, outages = 6_000, 3
    lines = [b"%d\n" % number for number in range(count)]
    async with (
        toxiproxy() as proxy,
        real_nsqd() as nsqd,
        topic_stats(nsqd.http_address, TOPIC) as account,
    ):
        network = await proxy.in_front_of(nsqd.tcp_address)
        settings = {"nsqd_tcp_address": network.address, "log_level": "error"}
        async with shell(*PUB, "--at-least-once", settings=settings) as command:
            for part in range(outages):
                # Cut the connection during a batch, or between two batches.
                await command.write(b"".join(lines[part :: outages + 1]))
                await network.go_down()
                await network.come_back()
            status, _, errors = await command.end(b"".join(lines[outages :: outages + 1]))

        found = re.fullmatch(r"(?:nsq-gateway: (\d+) messages? may be .*\n)?", errors)
        assert (0, True) == (status, found is not None)
        told = int((found and found[1]) or 0)
        bodies = await bodies_of(nsqd.tcp_address, TOPIC, await account.message_count())
        assert {line.strip() for line in lines} == set(bodies)
        assert told >= len({body for body in bodies if bodies.count(body) > 1})


async def _published(broker: KillableBroker, command: Shell, count: int) -> None:
    """Return once the numbers from 1 to *count* are at *broker*."""
    async with topic_stats(broker.http_address, TOPIC) as account:
        await command.write(b"".join(b"%d\n" % number for number in range(1, count + 1)))
        assert count == await poll_until(account.message_count, count)


async def _bodies(broker: KillableBroker) -> list[bytes]:
    async with topic_stats(broker.http_address, TOPIC) as account:
        count = await account.message_count()
    return await bodies_of(broker.tcp_address, TOPIC, count)
