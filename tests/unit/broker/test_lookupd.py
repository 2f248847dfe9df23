"""What the broker tells an nsqlookupd, and what it does with any answer of it."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.broker import lookupd
from gateway.broker.broker import Broker, BrokerOptions
from gateway.broker.server import Server
from gateway.broker.topics import TopicRegistry
from tests.support.brokers.embedded_broker import embedded_broker
from tests.support.brokers.lookupd_peer import (
    Answer,
    LookupdPeer,
    as_nsqlookupd,
    framed,
    lookupd_peer,
)
from tests.support.manual_clock import until

PLAIN = BrokerOptions()


@asynccontextmanager
async def registered(
    answer: Answer | None = None, options: BrokerOptions = PLAIN
) -> AsyncIterator[tuple[LookupdPeer, Broker, TopicRegistry]]:
    """Run a broker that registers with a scripted nsqlookupd."""
    async with lookupd_peer(answer) as (peer, address):
        given = replace(options, broadcast_address="broker.example", lookupd_tcp_address=(address,))
        async with embedded_broker(given, has_http=True) as broker:
            assert broker._server is not None
            yield peer, broker, broker._server.registry


async def test_identify_says_where_consumers_find_the_broker() -> None:
    async with registered(options=BrokerOptions(broadcast_http_port=8151)) as (peer, broker, _):
        await peer.commands(1)

        (identity,) = peer.identities
        port = int(broker.tcp_address.rpartition(":")[2])
        assert ("broker.example", port, 8151, "1.3.0") == (
            identity["broadcast_address"],
            identity["tcp_port"],
            identity["http_port"],
            identity["version"],
        )


@pytest.fixture(params=["in memory", "on disk"])
def options(request: pytest.FixtureRequest, tmp_path: Path) -> BrokerOptions:
    """Options of a broker in memory, and of one with a data path."""
    return PLAIN if request.param == "in memory" else BrokerOptions(data_path=tmp_path)


async def test_every_topic_and_channel_is_registered_when_it_is_created(
    options: BrokerOptions,
) -> None:
    async with registered(options=options) as (peer, _, registry):
        await peer.commands(1)

        registry.get_topic("t")
        registry.get_topic("t").get_channel("c#ephemeral", now=0.0)

        assert [b"REGISTER t", b"REGISTER t c#ephemeral"] == await peer.commands(2)


async def test_a_deleted_topic_is_unregistered_after_its_channels(options: BrokerOptions) -> None:
    async with registered(options=options) as (peer, _, registry):
        await peer.commands(1)
        registry.get_topic("t").get_channel("c", now=0.0)
        await peer.commands(2)

        registry.delete_topic("t")

        assert [b"UNREGISTER t c", b"UNREGISTER t"] == await peer.commands(2)


async def test_a_deleted_channel_is_unregistered(options: BrokerOptions) -> None:
    async with registered(options=options) as (peer, _, registry):
        await peer.commands(1)
        registry.get_topic("t").get_channel("c", now=0.0)
        await peer.commands(2)

        registry.delete_channel("t", "c")

        assert [b"UNREGISTER t c"] == await peer.commands(1)


async def test_a_topic_of_the_data_path_is_registered_at_the_start(tmp_path: Path) -> None:
    options = BrokerOptions(data_path=tmp_path)
    async with embedded_broker(options) as broker:
        assert broker._server is not None
        broker._server.registry.get_topic("t").get_channel("c", now=0.0)

    async with registered(options=options) as (peer, _, _registry):
        assert [b"IDENTIFY", b"REGISTER t", b"REGISTER t c"] == await peer.commands(3)


async def test_a_topic_that_is_deleted_and_created_again_is_unregistered_first() -> None:
    async with registered() as (peer, _, registry):
        await peer.commands(1)
        registry.get_topic("t")
        await peer.commands(1)

        registry.delete_topic("t")
        registry.get_topic("t")

        assert [b"UNREGISTER t", b"REGISTER t"] == await peer.commands(2)


async def test_a_topic_that_is_gone_before_it_was_registered_is_not_mentioned() -> None:
    async with registered() as (peer, _, registry):
        await peer.commands(1)

        registry.get_topic("gone")
        registry.delete_topic("gone")
        registry.get_topic("there")

        assert [b"REGISTER there"] == await peer.commands(1)


async def test_thousands_of_topics_are_registered_in_batches() -> None:
    async with registered() as (peer, _, registry):
        names = [f"t{number}" for number in range(2_000)]
        for name in names:
            registry.get_topic(name)

        commands = await peer.commands(1 + len(names))

        assert {b"REGISTER %b" % name.encode() for name in names} == set(commands[1:])


async def test_a_ping_keeps_the_connection_while_nothing_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lookupd, "PING_INTERVAL_S", 0.01)
    async with registered() as (peer, _, _registry):
        assert [b"IDENTIFY", b"PING", b"PING"] == await peer.commands(3)


async def test_everything_is_registered_again_after_the_connection_is_lost() -> None:
    async with registered() as (peer, _, registry):
        registry.get_topic("t").get_channel("c", now=0.0)
        await peer.commands(3)

        peer.cut()

        assert [b"IDENTIFY", b"REGISTER t", b"REGISTER t c"] == await peer.commands(3)


@pytest.mark.parametrize(
    "answer",
    [
        framed(b"E_BAD_BODY IDENTIFY missing fields"),
        framed(b"no JSON"),
        framed(b'{"broadcast_address": 1}'),
        framed(b'{"broadcast_address": "a b", "http_port": 1}'),
        struct.pack(">i", -1),
        struct.pack(">i", 2**31 - 1),
    ],
    ids=["an error", "no JSON", "wrong type", "no host", "negative size", "too big"],
)
async def test_after_a_bad_answer_the_broker_serves_and_tries_again(answer: bytes) -> None:
    async with registered(lambda _command: answer) as (peer, _, registry):
        await peer.commands(2)

        peer.answer = as_nsqlookupd()
        registry.get_topic("t")

        while b"REGISTER t" not in await peer.commands(1):
            pass


async def test_a_refused_registration_is_tried_again_on_a_new_connection() -> None:
    def refuse(command: bytes) -> bytes:
        return framed(b"E_INVALID no") if command.startswith(b"REG") else as_nsqlookupd()(command)

    async with registered(refuse) as (peer, _, registry):
        registry.get_topic("t")

        expected = [b"IDENTIFY", b"REGISTER t", b"IDENTIFY", b"REGISTER t"]
        assert expected == await peer.commands(4)


async def test_bytes_that_nobody_asked_for_end_the_connection() -> None:
    async with registered() as (peer, _, registry):
        registry.get_topic("t")
        await peer.commands(2)

        peer.say(b"unasked")

        assert [b"IDENTIFY", b"REGISTER t"] == await peer.commands(2)


@asynccontextmanager
async def http_of_lookupd(answer: bytes | None) -> AsyncIterator[bytes]:
    """Answer every HTTP request with *answer*, or never; yield what IDENTIFY says of it."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if answer is None:
            await reader.read()  # until the broker gives up
        else:
            head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(answer)
            writer.write(head + answer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield json.dumps({"broadcast_address": "127.0.0.1", "http_port": port}).encode()
    finally:
        server.close()


async def ready_to_ask(broker: Broker) -> Server:
    """Return the broker's server once it knows where nsqlookupd answers HTTP."""
    registration, server = broker._lookupd, broker._server
    assert registration is not None
    assert server is not None
    await until(lambda: len(registration.http_urls) == 1)
    return server


async def test_a_new_topic_gets_known_channels_before_its_messages(
    options: BrokerOptions,
) -> None:
    known = b'{"channels": ["b", "a", "passing#ephemeral", "not a name"]}'
    async with (
        http_of_lookupd(known) as info,
        registered(as_nsqlookupd(info), options) as (_, broker, registry),
    ):
        server = await ready_to_ask(broker)
        topic = registry.get_topic("t")

        topic.publish([b"first"], server.read_clocks())

        assert topic.is_held
        await until(lambda: [1, 1] == [each.depth for each in topic.channels.values()])
        assert (False, {"a", "b"}, 0) == (topic.is_held, set(topic.channels), topic.depth)


async def test_a_topic_is_not_held_after_a_start(tmp_path: Path) -> None:
    options = BrokerOptions(data_path=tmp_path)
    async with (
        http_of_lookupd(None) as info,
        registered(as_nsqlookupd(info), options) as (_, broker, registry),
    ):
        server = await ready_to_ask(broker)
        topic = registry.get_topic("t")
        topic.get_channel("c", now=0.0)
        topic.publish([b"first"], server.read_clocks())
        await until(lambda: topic.depth == 1)
        assert topic.is_held

    async with embedded_broker(options) as broker:
        assert broker._server is not None
        topic = broker._server.registry.topics["t"]
        assert (False, 0, 1) == (topic.is_held, topic.depth, topic.channels["c"].depth)


@pytest.mark.parametrize(
    "answer", [None, b"no JSON", b"[]", b'{"channels": null}'], ids=["none", "text", "list", "null"]
)
async def test_a_topic_is_released_whatever_nsqlookupd_answers(answer: bytes | None) -> None:
    hasty = BrokerOptions(http_client_connect_timeout=10, http_client_request_timeout=10)
    async with (
        http_of_lookupd(answer) as info,
        registered(as_nsqlookupd(info), hasty) as (_, broker, registry),
    ):
        server = await ready_to_ask(broker)
        topic = registry.get_topic("t")
        topic.get_channel("c", now=0.0)
        topic.publish([b"first"], server.read_clocks())
        assert topic.is_held

        await until(lambda: not topic.is_held)

        assert (0, 1) == (topic.depth, topic.channels["c"].depth)


async def test_a_topic_that_is_deleted_meanwhile_gets_no_channels() -> None:
    async with (
        http_of_lookupd(b'{"channels": ["c"]}') as info,
        registered(as_nsqlookupd(info)) as (_, broker, registry),
    ):
        await ready_to_ask(broker)
        topic = registry.get_topic("t")
        registry.delete_topic("t")
        assert topic.is_held

        await until(lambda: not topic.is_held)

        assert ({}, {}) == (topic.channels, registry.topics)
