"""`work` in this process: messages to the supervisor, and shutdown."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from gateway.aio import spawn
from gateway.client.from_settings import NsqdAddresses
from gateway.listener import listen_tcp
from gateway.server.workers.process import WorkerChannel, WorkerConfig, config_message
from gateway.server.workers.worker import DONE, FAILED, work
from gateway.settings.serve import ServeSettings

# An nsqlookupd that does not respond: the tests need no nsqd.
SETTINGS = ServeSettings(lookupd_http_address=("127.0.0.1:1",), drain_window_s=60)


@asynccontextmanager
async def worker(
    settings: ServeSettings = SETTINGS,
) -> AsyncIterator[tuple[WorkerChannel, str, asyncio.Task[int]]]:
    """Yield the supervisor's end of the channel, the worker's address and its task."""
    ours, theirs = socket.socketpair()
    listener = listen_tcp("test", "127.0.0.1:0")
    address = f"127.0.0.1:{listener.getsockname()[1]}"
    supervisor = await WorkerChannel.open(ours)
    order = WorkerConfig(
        worker=3, settings=settings, nsqds=NsqdAddresses(settings.nsqd_tcp_address, ())
    )
    supervisor.send(config_message(order, listener.detach()))
    task = spawn("worker", work(theirs))
    try:
        yield supervisor, address, task
    finally:
        await supervisor.close()
        await asyncio.wait({task})


async def test_it_says_what_there_is_to_tell_once_it_answers() -> None:
    """The ready message has the warnings, which the supervisor prints."""
    async with worker() as (supervisor, address, _):
        message = await supervisor.receive()
        async with httpx.AsyncClient(trust_env=False) as client:
            answer = await client.get(f"http://{address}/ping")

    told = ["no nsqd is known yet; publishes get 503 until nsqlookupd returns one"]
    assert ({"ready": told}, 200) == (message, answer.status_code)


async def test_it_answers_questions() -> None:
    """It returns its state, and its metrics as families, with the id of the request."""
    async with worker() as (supervisor, _, _task):
        await supervisor.receive()
        supervisor.send({"get": "state", "id": 1})
        supervisor.send({"get": "metrics", "id": 2})
        phase, metrics = await supervisor.receive(), await supervisor.receive()

    assert {"id": 1, "result": "ready"} == phase
    assert metrics is not None
    assert (2, True) == (
        metrics["id"],
        "nsq_gateway_sockets_open" in {family[0] for family in metrics["result"]},
    )


@pytest.mark.parametrize("word", ["shutdown", "force"])
async def test_it_ends_when_it_is_told(word: str) -> None:
    async with worker() as (supervisor, _, task):
        await supervisor.receive()
        supervisor.send({word: True})

        assert (None, DONE) == (await supervisor.receive(), await task)


async def test_it_ends_when_the_supervisor_is_gone() -> None:
    """No other process would end it."""
    async with worker() as (supervisor, _, task):
        await supervisor.receive()
        await supervisor.close()

        assert DONE == await task


async def test_it_ends_when_the_supervisor_was_gone_before_its_order() -> None:
    """The channel ends before the configuration, so the worker exits with 0."""
    ours, theirs = socket.socketpair()
    ours.close()

    assert DONE == await work(theirs)


async def test_a_start_that_fails_is_told() -> None:
    """The supervisor gets the error text, and the exit status is 1."""
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
