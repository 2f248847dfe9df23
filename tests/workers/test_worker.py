"""A worker in this process: what it tells its supervisor, and what ends it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import httpx
import pytest

from gateway.listener import bind_tcp
from gateway.nsqd_access import Nsqds
from gateway.settings import ServeSettings
from gateway.telemetry import spawn
from gateway.workers.channel import Channel, Order, order_message
from gateway.workers.worker import DONE, FAILED, work
from tests.support.logging_kept import logging_kept

# An nsqlookupd that is not there: no nsqd is known, and none is needed.
SETTINGS = ServeSettings(lookupd_http_address=("127.0.0.1:1",), drain_window_s=60)


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """Give the process its logging back."""
    with logging_kept():
        yield


@asynccontextmanager
async def worker(
    settings: ServeSettings = SETTINGS,
) -> AsyncIterator[tuple[Channel, str, asyncio.Task[int]]]:
    """Give the supervisor's end, where the worker listens, and the task that is the worker."""
    ours, theirs = socket.socketpair()
    listener = bind_tcp("test", "127.0.0.1:0")
    address = f"127.0.0.1:{listener.getsockname()[1]}"
    supervisor = await Channel.open(ours)
    order = Order(worker=3, settings=settings, nsqds=Nsqds(settings.nsqd_tcp_address, ()))
    supervisor.send(order_message(order, listener.detach()))
    task = spawn("worker", work(theirs))
    try:
        yield supervisor, address, task
    finally:
        await supervisor.close()
        await asyncio.wait({task})


async def test_it_says_what_there_is_to_tell_once_it_answers() -> None:
    """The lines are for the person who started the supervisor."""
    async with worker() as (supervisor, address, _):
        message = await supervisor.receive()
        async with httpx.AsyncClient(trust_env=False) as client:
            answer = await client.get(f"http://{address}/ping")

    told = ["no nsqd is known yet; publishes answer 503 until nsqlookupd names one"]
    assert ({"ready": told}, 200) == (message, answer.status_code)


async def test_it_answers_questions() -> None:
    """Its phase in a word, its metrics as families; each answer has the question's number."""
    async with worker() as (supervisor, _, _task):
        await supervisor.receive()
        supervisor.send({"ask": "phase", "id": 1})
        supervisor.send({"ask": "metrics", "id": 2})
        phase, metrics = await supervisor.receive(), await supervisor.receive()

    assert {"id": 1, "answer": "ready"} == phase
    assert metrics is not None
    assert (2, True) == (
        metrics["id"],
        "nsq_gateway_sockets_open" in {family[0] for family in metrics["answer"]},
    )


@pytest.mark.parametrize("word", ["end", "hurry"])
async def test_it_ends_when_it_is_told(word: str) -> None:
    """The channel is closed with it."""
    async with worker() as (supervisor, _, task):
        await supervisor.receive()
        supervisor.send({word: True})

        assert (None, DONE) == (await supervisor.receive(), await task)


async def test_it_ends_when_the_supervisor_is_gone() -> None:
    """Nobody is left who would tell it to."""
    async with worker() as (supervisor, _, task):
        await supervisor.receive()
        await supervisor.close()

        assert DONE == await task


async def test_it_ends_when_the_supervisor_was_gone_before_its_order() -> None:
    """There is nothing to do."""
    ours, theirs = socket.socketpair()
    ours.close()

    assert DONE == await work(theirs)


async def test_a_start_that_fails_is_told() -> None:
    """The sentence goes to the supervisor, the status to whoever looks."""
    settings = ServeSettings.model_validate(
        {
            "nsqd_tcp_address": "127.0.0.1:1",
            "nsqd_tls_v1": True,
            "nsqd_tls_root_ca_file": "/nowhere",
        }
    )
    async with worker(settings) as (supervisor, _, task):
        message = await supervisor.receive()

        assert FAILED == await task
        assert message is not None
        assert "/nowhere" in message["failed"]
