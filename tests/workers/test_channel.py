"""Messages between two processes, whole or not at all; and the order that a worker begins with."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gateway.nsqd_access import Nsqds
from gateway.secret import Secret
from gateway.settings import ServeSettings
from gateway.workers.channel import Channel, Message, Order, order_message, read_order


@asynccontextmanager
async def channels() -> AsyncIterator[tuple[Channel, Channel]]:
    """Give both ends of one channel."""
    one, two = socket.socketpair()
    here, there = await Channel.open(one), await Channel.open(two)
    yield here, there
    await here.close()
    await there.close()


@pytest.mark.parametrize("message", [{}, {"a": ["é", None, 1.5]}, {"long": "x" * 1_000_000}])
async def test_a_message_comes_out_as_it_went_in(message: Message) -> None:
    """Whatever its length, and in order."""
    async with channels() as (here, there):
        here.send(message)
        here.send({"next": 1})

        assert [message, {"next": 1}] == [await there.receive(), await there.receive()]


async def test_an_end_that_is_closed_is_told_once_all_is_read() -> None:
    """What was sent before arrives; what is sent to nobody is lost without an error."""
    async with channels() as (here, there):
        here.send({"last": 1})
        await here.close()
        here.send({"never": 1})
        there.send({"never": 1})

        assert [{"last": 1}, None, None] == [await there.receive() for _ in range(3)]


async def test_a_message_that_is_cut_off_is_none() -> None:
    """A process that is killed in mid-sentence said nothing."""
    one, two = socket.socketpair()
    there = await Channel.open(two)
    one.sendall(b"\x00\x00\x00\x09{")
    one.close()

    assert await there.receive() is None
    await there.close()


@pytest.mark.parametrize("secret", [b"hunter2", b"\xff\x00,;"])
def test_an_order_arrives_whole(secret: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every setting is in it, bytes of a secret that are no text too; the environment is not."""
    settings = ServeSettings.model_validate(
        {"workers": 3, "nsqd_tcp_address": "a:1,b:2", "auth_secret": os.fsdecode(secret)}
    )
    order = Order(worker=2, settings=settings, nsqds=Nsqds(("a:1", "b:2"), ("a:3",)))

    message = order_message(order, 7)
    monkeypatch.setenv("NSQ_GATEWAY_CLIENT_ID", "another")

    assert (order, 7) == read_order(message)
    assert Secret(secret) == read_order(message)[0].settings.auth_secret
