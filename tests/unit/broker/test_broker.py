"""The broker as a part of a service: started, found, stopped."""

from __future__ import annotations

from contextlib import suppress

import pytest

from gateway.broker.broker import Broker, BrokerOptions
from gateway.errors import StartError
from tests.support.brokers.embedded_broker import embedded_broker
from tests.support.brokers.v2_peer import OK, publish, v2_peer
from tests.support.http.raw_http import exchange


async def test_port_zero_is_replaced_by_the_port_that_was_chosen() -> None:
    """Both addresses can be used as they are told."""
    async with embedded_broker(has_http=True) as broker:
        async with v2_peer(broker.tcp_address) as peer:
            assert OK == await peer.ask(publish(b"t", b"x"))
        assert b"OK" == (await exchange(broker.http_address, "GET", "/ping")).body


async def test_without_an_http_address_there_is_no_http() -> None:
    """The TCP door alone is enough for most tests."""
    async with embedded_broker() as broker:
        assert "" == broker.http_address


@pytest.mark.parametrize("door", ["tcp", "http"])
async def test_an_address_in_use_is_a_start_error(door: str) -> None:
    """In one sentence with the address; nothing is left listening."""
    async with embedded_broker() as first:
        taken, free = first.tcp_address, "127.0.0.1:0"
        second = Broker(
            BrokerOptions(
                tcp_address=taken if door == "tcp" else free,
                http_address=taken if door == "http" else free,
            )
        )

        with pytest.raises(StartError, match=f"{taken}: Address already in use"):
            await second.start()

        with suppress(OSError):
            async with v2_peer(second.tcp_address) as peer:
                assert door == "tcp"
                assert OK == await peer.ask(publish(b"t", b"x"))
        await second.stop()


async def test_a_broker_can_be_started_again() -> None:
    """On the same address, at once; its memory is empty."""
    async with embedded_broker(has_http=True) as first:
        options = BrokerOptions(tcp_address=first.tcp_address, http_address=first.http_address)
        async with v2_peer(first.tcp_address) as peer:
            await peer.ask(publish(b"t", b"x"))
        await first.stop()

        again = Broker(options)
        await again.start()

        stats = await exchange(again.http_address, "GET", "/stats?format=json")
        await again.stop()
    assert b'"topics":[]' in stats.body


async def test_stopping_a_broker_that_never_started_does_nothing() -> None:
    """A service stops all its parts, whichever came up."""
    await Broker(BrokerOptions()).stop()


async def test_messages_of_one_broker_have_its_node_id() -> None:
    """Bits 12 to 21 of every id."""
    async with (
        embedded_broker(BrokerOptions(node_id=321)) as broker,
        v2_peer(broker.tcp_address) as peer,
    ):
        await peer.ask(publish(b"t", b"x"))
        await peer.ask(b"SUB t c\nRDY 1\n")
        await peer.frame()

    assert 321 == int(peer.message_ids[0], 16) >> 12 & 1023
