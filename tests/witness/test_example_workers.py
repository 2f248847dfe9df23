"""The workers of examples/, unchanged, as processes."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import TypeAlias

import pytest
import pytest_asyncio

from tests.support.brokers.killable_broker import KillableBroker, free_port
from tests.support.browser.example_workers import Hook, Worker, hook, worker
from tests.support.gateways.gateway import RunningGateway, gateway_alone, gateway_with_nsqd

pytestmark = pytest.mark.asyncio(loop_scope="session")

NOTHING_LEFT = (0, 0, 0)
SECRET = "s3cret-of-alice"

Start: TypeAlias = Callable[..., AbstractAsyncContextManager[Worker]]


@pytest_asyncio.fixture(loop_scope="session")
async def target() -> AsyncIterator[Hook]:
    """Return the web address that workers hand their messages to."""
    async with hook() as taking:
        yield taking


@pytest.fixture(params=[pytest.param("node", marks=pytest.mark.node), "python"])
def start(request: pytest.FixtureRequest, tmp_path: Path) -> Start:
    return partial(worker, request.param, tmp_path)


async def test_a_worker_finishes_what_is_published(
    gateway: RunningGateway, topic: str, start: Start, target: Hook
) -> None:
    """Each message is handed on once, bytes as they are, and NSQ has nothing left."""
    bodies = [b"body %d" % number for number in range(8)] + [b"\xff\x00"]
    async with start((gateway.url, topic, "c"), target.url):
        await gateway.post("/mpub", b"\n".join(bodies), topic=topic)
        tried = await target.tries(len(bodies))
        counts = await gateway.counts_become(topic, "c", NOTHING_LEFT)

    assert sorted(bodies) == tried
    assert NOTHING_LEFT == counts


async def test_a_worker_requeues_what_fails(
    gateway: RunningGateway, topic: str, start: Start, target: Hook
) -> None:
    target.refuse(b"again", 503)
    async with start((gateway.url, topic, "c"), target.url):
        await gateway.post("/mpub", b"again\nfine", topic=topic)
        tried = await target.tries(3)
        counts = await gateway.counts_become(topic, "c", NOTHING_LEFT)

    assert [b"again", b"again", b"fine"] == tried
    assert NOTHING_LEFT == counts


async def test_a_worker_ends_in_good_order(
    gateway: RunningGateway, topic: str, start: Start, target: Hook
) -> None:
    """After SIGTERM nothing new comes, what it works on is finished, and then it exits with 0."""
    target.hold()
    async with start((gateway.url, topic, "c"), target.url) as running:
        await gateway.post("/mpub", b"one\ntwo\nthree", topic=topic)
        await target.tries(3)
        running.terminate()
        await gateway.ready_becomes(topic, "c", 0)
        await gateway.publish(topic, b"for the next one")
        held = await gateway.counts_become(topic, "c", (1, 3, 0))
        target.release()
        status = await running.ended()

    assert ((1, 3, 0), 0, 3) == (held, status, len(target.tried))
    assert (1, 0, 0) == await gateway.counts_become(topic, "c", (1, 0, 0))


async def test_a_worker_survives_a_gateway(
    shared_broker: KillableBroker, topic: str, start: Start, target: Hook
) -> None:
    """One is killed, one drains: the worker comes back, and what it held then comes again."""
    flags = (f"--listen=127.0.0.1:{free_port()}", "--drain-window-s=0.2", "--drain-in-flight-s=0.2")
    another = partial(
        gateway_with_nsqd, [shared_broker.tcp_address], [shared_broker.http_address], *flags
    )
    async with (
        another() as killed,
        start((killed.url, topic, "c"), target.url) as running,
    ):
        await killed.publish(topic, b"before")
        await target.tries(1)
        await killed.counts_become(topic, "c", NOTHING_LEFT)
        killed.program.signal(signal.SIGKILL)
        await killed.program.ended()
        async with another() as drained:
            target.hold()
            await drained.publish(topic, b"held")
            await target.tries(2)
            drained.program.signal(signal.SIGTERM)
            await drained.program.ended()
        target.release()
        async with another() as last:
            await last.publish(topic, b"after")
            tried = await target.tries(4)
            counts = await last.counts_become(topic, "c", NOTHING_LEFT)
            running.terminate()
            status = await running.ended()

    assert [b"after", b"before", b"held", b"held"] == tried
    assert (NOTHING_LEFT, 0) == (counts, status)


async def test_a_worker_that_waits_for_a_gateway_ends_at_once(
    topic: str, start: Start, target: Hook
) -> None:
    """SIGTERM ends it with 0 also while no gateway answers."""
    url = f"http://127.0.0.1:{free_port()}"
    async with start((url, topic, "c"), target.url) as running:
        await running.log.match("reconnecting in|waiting")
        running.terminate()

        assert 0 == await running.ended()


async def test_a_worker_brings_its_secret(topic: str, start: Start, target: Hook) -> None:
    """From its environment, to a gateway that wants one of everybody."""
    async with (
        gateway_alone("--require-auth") as gateway,
        start((gateway.url, topic, "c"), target.url, secret=SECRET),
    ):
        credentials = {"Authorization": f"Bearer {SECRET}"}
        query = {"topic": topic}
        await gateway.http.post("/pub", content=b"x", params=query, headers=credentials)
        tried = await target.tries(1)

    assert [b"x"] == tried


async def test_a_worker_that_is_refused_says_why(
    gateway: RunningGateway, start: Start, target: Hook
) -> None:
    """An invalid name is not retried: the gateway's error, and exit status 1."""
    async with start((gateway.url, "no topic", "c"), target.url) as refused:
        await refused.log.match("no topic")

        assert 1 == await refused.ended()


@pytest.mark.node
async def test_a_permanently_failing_message_goes_to_another_topic(
    gateway: RunningGateway, topic: str, tmp_path: Path, target: Hook
) -> None:
    """Node's worker publishes to another topic what the address will never take."""
    target.refuse(b"hopeless", 422)
    async with (
        worker("node", tmp_path, (gateway.url, topic, "c"), target.url),
        gateway.subscribe(f"{topic}-failed", "c") as aside,
    ):
        await gateway.publish(topic, b"hopeless")
        message = await aside.message()
        counts = await gateway.counts_become(topic, "c", NOTHING_LEFT)

    assert ("hopeless", NOTHING_LEFT, [b"hopeless"]) == (message["body"], counts, target.tried)
