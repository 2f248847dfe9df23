"""The commands that show and change topics and channels, by a gateway."""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest

from tests.support.gateways.gateway import RunningGateway
from tests.support.gateways.scripted_gateway import ScriptedResponse, problem, scripted_gateway
from tests.support.gateways.shell import run, shell
from tests.support.terminal import Terminal, terminal

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def done(gateway: RunningGateway, *arguments: str) -> str:
    """Run a command that must succeed; return its output."""
    status, output, errors = await run(*arguments, settings={"url": gateway.url})
    assert (0, "") == (status, errors)
    return output.decode()


async def rows(gateway: RunningGateway, *arguments: str) -> list[dict[str, Any]]:
    """Return the rows that a command with --json prints."""
    output = await done(gateway, *arguments, "--json")
    return [json.loads(line) for line in output.splitlines()]


async def test_topics_channels_and_nodes_are_listed(gateway: RunningGateway, topic: str) -> None:
    assert f"created topic {topic}\n" == await done(gateway, "create", topic)
    created = await done(gateway, "create", topic, "c")
    await gateway.publish(topic, b"hello")

    (channel,) = await rows(gateway, "channels", topic)
    (node,) = await rows(gateway, "nodes")
    topics = {row["topic"]: row for row in await rows(gateway, "topics", "--match", "t-*")}
    assert f"created channel c of topic {topic}\n" == created
    assert (topic, "c", 1, 0) == tuple(
        channel[name] for name in ("topic", "channel", "depth", "consumers")
    )
    assert (1, 1, 1) == tuple(topics[topic][name] for name in ("depth", "messages", "channels"))
    assert ("OK", True) == (node["health"], node["depth"] >= 1)


async def test_a_pause_stops_deliveries_until_it_is_undone(
    gateway: RunningGateway, topic: str
) -> None:
    await done(gateway, "create", topic, "c")
    paused = await done(gateway, "pause", topic, "c")
    (while_paused,) = await rows(gateway, "channels", topic)
    await done(gateway, "unpause", topic, "c")
    (after,) = await rows(gateway, "channels", topic)

    assert f"paused channel c of topic {topic}\n" == paused
    assert [True, False] == [while_paused["paused"], after["paused"]]


async def test_nothing_is_destroyed_where_nobody_can_be_asked(
    gateway: RunningGateway, topic: str
) -> None:
    """The refusal says what would be lost, and which option goes without a question."""
    await done(gateway, "create", topic, "c")
    await gateway.publish(topic, b"hello")

    status, _, errors = await run("empty", topic, "c", settings={"url": gateway.url})
    (channel,) = await rows(gateway, "channels", topic)
    emptied = await done(gateway, "empty", topic, "c", "--yes")
    (after,) = await rows(gateway, "channels", topic)

    assert 2 == status
    assert "--yes" in errors
    assert f"empty channel c of topic {topic}: 1 message on 1 nsqd" in errors
    assert f"emptied channel c of topic {topic}\n" == emptied
    assert [1, 0] == [channel["depth"], after["depth"]]


async def answered(gateway: RunningGateway, answer: str, *arguments: str) -> tuple[int, str]:
    """Run a command on a terminal that types *answer*; return its status and what it showed."""
    with terminal() as typed:
        async with shell(
            *arguments,
            stdin=typed.descriptor,
            stdout=typed.descriptor,
            stderr=typed.descriptor,
            settings={"url": gateway.url},
        ) as command:
            await typed.shows("to confirm")
            typed.type(f"{answer}\n")
            status = await command.process.wait()
            text = await _shown(typed, "deleted" if status == 0 else "not confirmed")
    return status, text


async def _shown(typed: Terminal, pattern: str) -> str:
    await typed.shows(pattern)
    return typed.text


async def test_a_name_that_is_typed_confirms(gateway: RunningGateway, topic: str) -> None:
    """Anything else changes nothing."""
    await done(gateway, "create", topic, "c")
    await gateway.publish(topic, b"hello")

    refused, refusal = await answered(gateway, "yes", "delete", topic)
    between = await rows(gateway, "channels", topic)
    status, text = await answered(gateway, topic, "delete", topic)
    after = await rows(gateway, "channels", topic)

    assert (1, True) == (refused, "nothing was changed" in refusal)
    assert 1 == len(between)
    assert 0 == status
    assert f"delete topic {topic}: 1 channel and 1 message on 1 nsqd" in text
    assert [] == after


@pytest.mark.parametrize("action", ["pause", "unpause", "empty", "delete"])
async def test_what_is_not_there_is_an_error(gateway: RunningGateway, action: str) -> None:
    yes = ["--yes"] if action in {"empty", "delete"} else []

    status, output, errors = await run(action, "never-created", *yes, settings={"url": gateway.url})

    assert (1, b"") == (status, output)
    assert "no nsqd has the topic" in errors


async def test_stats_show_totals_and_continue_until_a_signal(
    gateway: RunningGateway, topic: str
) -> None:
    """From the second reading on, there are rates."""
    await done(gateway, "create", topic, "c")
    arguments = ("stats", "--watch", "--interval-s", "0.5", "--json", "--match", topic)
    async with shell(*arguments, settings={"url": gateway.url}) as command:
        first = json.loads(await command.line())
        await gateway.publish(topic, b"hello")
        second = json.loads(await command.line())
        while not second["first_channels"][0]["depth"]:
            second = json.loads(await command.line())
        command.signal(signal.SIGINT)
        status, _, errors = await command.end()

    (channel,) = second["first_channels"]
    assert (130, "") == (status, errors)
    assert (None, 1, True) == (
        first["first_channels"][0]["messages_per_s"],
        channel["depth"],
        channel["messages_per_s"] > 0,
    )
    assert 1 == second["nodes"]


async def test_stats_are_a_table_for_people(gateway: RunningGateway, topic: str) -> None:
    await done(gateway, "create", topic, "c")

    lines = (await done(gateway, "stats", "--match", topic)).splitlines()

    assert ["nodes", "nodes", "lost", "topics"] == lines[0].split()[:4]
    assert ["topic", "channel", "depth"] == lines[3].split()[:3]
    assert [topic, "c", "0"] == lines[4].split()[:3]


async def test_tail_writes_what_comes_and_takes_nothing_from_others(
    gateway: RunningGateway, topic: str
) -> None:
    """Its channel is gone afterwards."""
    await done(gateway, "create", topic, "c")
    async with shell("tail", topic, "-n", "1", settings={"url": gateway.url}) as command:
        while len(await rows(gateway, "channels", topic)) < 2:
            pass
        await gateway.publish(topic, b"hello")
        outcome = await command.end()

    assert (0, b"hello\n", "") == outcome
    assert (1, 0, 0) == await gateway.counts_become(topic, "c", (1, 0, 0))


@pytest.mark.parametrize(
    "answer,expected",
    [
        (problem(403), "in so many words"),
        (problem(401), "in so many words"),
        (problem(429), "in so many words"),
        (problem(502), "in so many words"),
        (problem(503), "in so many words"),
        (ScriptedResponse(200, b"<html>"), "check --url"),
        (ScriptedResponse(404, b"<html>"), "check --url"),
    ],
)
async def test_an_answer_that_is_no_use_is_one_line(
    answer: ScriptedResponse, expected: str
) -> None:
    async with scripted_gateway(answer) as scripted:
        status, output, errors = await run("topics", settings={"url": scripted.url})

    assert (1, b"", 1) == (status, output, errors.count("\n"))
    assert expected in errors


async def test_a_name_that_nsq_does_not_allow_is_a_usage_error(gateway: RunningGateway) -> None:
    status, _, errors = await run("create", "a b", settings={"url": gateway.url})

    assert (2, True) == (status, "TOPIC" in errors)


async def test_no_gateway_is_an_error_that_names_its_address() -> None:
    status, _, errors = await run("topics", settings={"url": "http://127.0.0.1:1"})

    assert (1, True) == (status, "http://127.0.0.1:1" in errors)


@pytest.mark.parametrize("command", ["topics", "channels", "nodes", "stats"])
async def test_an_nsqd_that_does_not_answer_is_named(
    gateway: RunningGateway, topic: str, command: str
) -> None:
    """What the others have is shown; the exit status tells that it is not all."""
    await done(gateway, "create", topic, "c")
    addresses = f"{gateway.broker_http_address},127.0.0.1:1"
    name = gateway.broker_http_address if command == "nodes" else topic

    status, output, errors = await run(
        command, "--match", name, settings={"nsqd_http_address": addresses}
    )

    assert (1, True) == (status, name in output.decode())
    assert "nsqd 127.0.0.1:1 did not answer: Connection refused" in errors


async def test_a_watch_survives_an_answer_that_is_missing() -> None:
    """A gateway that restarts does not end it; a first answer has to be there."""
    good = ScriptedResponse(200, json.dumps({"nodes": [], "topics": None}).encode())
    arguments = ("stats", "--watch", "--interval-s", "0.5", "--json")
    async with (
        scripted_gateway(good, problem(503), good) as scripted,
        shell(*arguments, settings={"url": scripted.url}) as command,
    ):
        lines = [await command.line(), await command.line()]
        command.signal(signal.SIGINT)
        status, _, errors = await command.end()

    assert (130, [0, 0]) == (status, [json.loads(line)["topics"] for line in lines])
    assert "answered 503: in so many words; trying again in 0.5 s" in errors
