"""Messages between supervisor and worker, and the configuration message."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gateway.client.from_settings import NsqdAddresses
from gateway.credentials import Secret
from gateway.server.workers.process import (
    Message,
    WorkerChannel,
    WorkerConfig,
    config_message,
    parse_config,
)
from gateway.settings.serve import ServeSettings


@asynccontextmanager
async def channels() -> AsyncIterator[tuple[WorkerChannel, WorkerChannel]]:
    one, two = socket.socketpair()
    here, there = await WorkerChannel.open(one), await WorkerChannel.open(two)
    yield here, there
    await here.close()
    await there.close()


@pytest.mark.parametrize("message", [{}, {"a": ["é", None, 1.5]}, {"long": "x" * 1_000_000}])
async def test_a_message_comes_out_as_it_went_in(message: Message) -> None:
    """Messages of any length arrive in order."""
    async with channels() as (here, there):
        here.send(message)
        here.send({"next": 1})

        assert [message, {"next": 1}] == [await there.receive(), await there.receive()]


async def test_an_end_that_is_closed_is_told_once_all_is_read() -> None:
    """Earlier messages still arrive; sending to a closed end is not an error."""
    async with channels() as (here, there):
        here.send({"last": 1})
        await here.close()
        here.send({"never": 1})
        there.send({"never": 1})

        assert [{"last": 1}, None, None] == [await there.receive() for _ in range(3)]


async def test_a_message_that_is_cut_off_is_none() -> None:
    """A process that is killed within a message ends the stream."""
    one, two = socket.socketpair()
    there = await WorkerChannel.open(two)
    one.sendall(b"\x00\x00\x00\x09{")
    one.close()

    assert await there.receive() is None
    await there.close()


@pytest.mark.parametrize("secret", [b"hunter2", b"\xff\x00,;"])
def test_an_order_arrives_whole(secret: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has every setting, and secrets that are not UTF-8, without the environment."""
    settings = ServeSettings.model_validate(
        {"workers": 3, "nsqd_tcp_address": "a:1,b:2", "auth_secret": os.fsdecode(secret)}
    )
    order = WorkerConfig(worker=2, settings=settings, nsqds=NsqdAddresses(("a:1", "b:2"), ("a:3",)))

    message = config_message(order, 7)
    monkeypatch.setenv("NSQ_GATEWAY_CLIENT_ID", "another")

    assert (order, 7) == parse_config(message)
    assert Secret(secret) == parse_config(message)[0].settings.auth_secret
