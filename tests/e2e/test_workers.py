"""`serve --workers 2`: one address, one broker, shared metrics, and workers that may die."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
import pytest_asyncio

from gateway.listener import listen_tcp
from tests.support.gateways.gateway import RunningGateway, poll_until
from tests.support.gateways.workers import (
    TWO,
    counts,
    gateway_with_two_workers,
    get_management,
    is_gone,
    pid_of,
    publish_on_new_connection,
    published,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

LONG = "--drain-window-s=60"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pair() -> AsyncIterator[RunningGateway]:
    """Return a gateway of two workers that tests do not harm."""
    async with gateway_with_two_workers() as gateway:
        yield gateway


async def reach_both(gateway: RunningGateway, topic: str) -> dict[str, float]:
    """Publish until both workers have had one; return how many each has had."""

    async def both_have() -> bool:
        await publish_on_new_connection(gateway, topic)
        counted = await published(gateway)
        return all(counted.get(worker, 0) for worker in TWO)

    assert await poll_until(both_have, expected=True)
    return await published(gateway)


async def test_two_workers_share_one_port(pair: RunningGateway, topic: str) -> None:
    """Both get connections, and each sample of /metrics says which of them counted."""
    counted = await reach_both(pair, topic)

    assert {*TWO, "supervisor"} == {*counted, "supervisor"}
    assert {*TWO, "supervisor"} == {*await counts(pair, "sockets_open")}


async def test_two_workers_share_the_embedded_broker(pair: RunningGateway, topic: str) -> None:
    """Messages published at one worker reach sockets of the other."""
    async with pair.subscribe(topic, "c", max_in_flight=100) as client:
        before = await published(pair)
        after = await reach_both(pair, topic)
        # Both had publishes before this test, too: count only those that this socket has to get.
        both = {worker: after[worker] - before.get(worker, 0) for worker in TWO}
        while not all(both.values()):
            assert 200 == await publish_on_new_connection(pair, topic)
            now = await published(pair)
            both = {worker: now[worker] - before.get(worker, 0) for worker in TWO}

        assert {"x"} == {each["body"] for each in await client.messages(int(sum(both.values())))}


async def test_the_gateway_is_ready_when_all_workers_are(pair: RunningGateway) -> None:
    """The management port answers for all of them."""
    ready = await poll_until(lambda: get_management(pair, "/readyz"), (200, "ready"))

    assert ((200, "ready"), (200, "alive")) == (ready, await get_management(pair, "/livez"))


async def test_a_killed_worker_is_replaced_and_no_client_is_refused(topic: str) -> None:
    """Connections meanwhile are served by the other worker, or by the next one."""
    async with gateway_with_two_workers() as gateway:
        killed = await pid_of(gateway.program, 0)
        os.kill(killed, signal.SIGKILL)
        await gateway.program.said(r'"worker ended"')
        status, words = await get_management(gateway, "/readyz")
        statuses = await asyncio.gather(
            *(publish_on_new_connection(gateway, topic) for _ in range(30))
        )
        await pid_of(gateway.program, 0, other_than=killed)

        assert {200} == set(statuses)
        assert (503, True) == (status, "worker 0 does not answer" in words)
        assert (200, "ready") == await poll_until(
            lambda: get_management(gateway, "/readyz"), (200, "ready")
        )
        assert {"0": 1.0, "1": 0.0} == await counts(gateway, "worker_restarts_total")


async def test_sigterm_ends_all_and_frees_the_port() -> None:
    """The status is 0, no process is left, and the address can be had again."""
    async with gateway_with_two_workers("--drain-window-s=0") as gateway:
        pids = [await pid_of(gateway.program, worker) for worker in (0, 1)]
        gateway.program.signal(signal.SIGTERM)

        assert 0 == await gateway.program.ended()
        for pid in pids:
            await is_gone(pid)
        listen_tcp("again", gateway.address).close()


async def test_a_supervisor_that_is_killed_takes_its_workers_along(topic: str) -> None:
    """They end at once, whatever the drain window, and their sockets are closed."""
    async with gateway_with_two_workers(LONG) as gateway, gateway.subscribe(topic, "c") as client:
        pids = [await pid_of(gateway.program, worker) for worker in (0, 1)]
        gateway.program.signal(signal.SIGKILL)
        await client.closed()
        for pid in pids:
            await is_gone(pid)

        listen_tcp("again", gateway.address).close()


async def test_all_workers_drain_together(topic: str) -> None:
    """Sockets of both are notified and closed with 1012; the management port reports the drain."""
    async with (
        gateway_with_two_workers("--drain-window-s=0.5") as gateway,
        AsyncExitStack() as sockets,
    ):
        clients = []

        async def both_have_one() -> bool:
            clients.append(await sockets.enter_async_context(gateway.subscribe(topic, "c")))
            opened = await counts(gateway, "sockets_open")
            return all(opened.get(worker) for worker in TWO)

        assert await poll_until(both_have_one, expected=True)
        gateway.program.signal(signal.SIGTERM)
        told = [(await client.receive())["data"]["state"] for client in clients]
        codes = [(await client.closed())[0] for client in clients]

        assert {"CLOSE_WAIT"} == set(told)
        assert {1012} == set(codes)
        assert 0 == await gateway.program.ended()


async def test_a_second_signal_ends_the_drain_of_all(topic: str) -> None:
    async with gateway_with_two_workers(LONG) as gateway, gateway.subscribe(topic, "c") as client:
        gateway.program.signal(signal.SIGTERM)
        await client.receive()
        draining = await get_management(gateway, "/readyz")
        gateway.program.signal(signal.SIGTERM)
        code, _ = await client.closed()

        assert ((503, "draining"), 1012, 0) == (draining, code, await gateway.program.ended())


async def test_all_workers_serve_on_until_the_delay_is_over(topic: str) -> None:
    """The management port says not ready at once; the second signal is for all of them, too."""
    async with gateway_with_two_workers(LONG, "--drain-delay-s=600") as gateway:
        async with gateway.subscribe(topic, "c") as client:
            gateway.program.signal(signal.SIGTERM)
            await gateway.program.said("not ready, draining after a delay")
            draining = await get_management(gateway, "/readyz")
            statuses = [await publish_on_new_connection(gateway, topic) for _ in range(10)]
            answer = await client.messages(1)
            gateway.program.signal(signal.SIGTERM)
            code, _ = await client.closed()

        assert ((503, "draining"), {200}) == (draining, set(statuses))
        assert ("x", 1012) == (answer[0]["body"], code)
        assert 0 == await gateway.program.ended()


async def test_signals_to_a_worker_drain_it_and_never_force_it(topic: str) -> None:
    """A service manager sends its signal to every process: that is not a second one."""
    async with gateway_with_two_workers(LONG) as gateway, gateway.subscribe(topic, "c") as client:
        for worker in (0, 1):
            pid = await pid_of(gateway.program, worker)
            os.kill(pid, signal.SIGTERM)
            os.kill(pid, signal.SIGINT)
        gateway.program.signal(signal.SIGTERM)
        told = await client.receive()
        answer = await client.ask({"cmd": "NOP", "ref": "here still"})

        assert ("CLOSE_WAIT", "here still") == (told["data"]["state"], answer["ref"])
        gateway.program.signal(signal.SIGTERM)
        assert 0 == await gateway.program.ended()


async def test_a_worker_that_does_not_answer_holds_up_nothing() -> None:
    """It is not ready, its metrics are left out, and the second signal ends it by force."""
    async with gateway_with_two_workers("--drain-window-s=0") as gateway:
        frozen = await pid_of(gateway.program, 1)
        os.kill(frozen, signal.SIGSTOP)
        status, words = await get_management(gateway, "/readyz")
        open_sockets = await counts(gateway, "sockets_open")
        gateway.program.signal(signal.SIGTERM)
        await gateway.program.said('"drained"')
        gateway.program.signal(signal.SIGTERM)

        assert 0 == await gateway.program.ended()
        await is_gone(frozen)
        assert (503, True) == (status, "worker 1 does not answer" in words)
        assert {"supervisor", "0"} == set(open_sockets)
