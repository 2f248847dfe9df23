"""Dashboards with a real Prometheus that reads a real gateway, which has a lot to do."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import signal
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from tests.support.gateway import RunningGateway, gateway_by_lookup
from tests.support.nsqd import real_nsqd, real_nsqlookupd
from tests.support.prometheus import Prometheus, prometheus
from tests.support.raw_socket import raw_websocket
from tests.support.subscriber_client import SubscriberClient, refusal
from tools.make_dashboards import FOLDER

pytestmark = [pytest.mark.promtool, pytest.mark.nsqd]

# What this load does not bring about, and why.
WITHOUT_DATA = {
    "Restarts of workers": "there is one process, and no supervisor",
    "Secrets": "this nsqd asks for no AUTH",
    "Errors of nsqd": "what nsqd would refuse the gateway refuses before",
    "Until certificates expire": "the gateway speaks no TLS here",
}
BY_A_DRAIN = ("Sockets told to come back", "Cut at the end of a drain")
VIEWERS = 110
_WAIT_S = 60.0
_PUBLISH_EACH_S, _LOOK_EACH_S = 0.02, 0.3
_DRAIN_WINDOW_S = 30
_BODY = b"x" * 500_000


def _queries() -> tuple[dict[str, str], dict[str, str]]:
    """Return by title what panels ask for, everything chosen: those of a drain, and the others."""
    queries = {
        f"{dashboard['uid']}: {panel['title']}: {target['legendFormat']}": target["expr"]
        .replace("$__rate_interval", "15s")
        .replace("$__range", "30s")
        .replace("$namespace", ".*")
        .replace("$job", "tested")
        .replace("$pod", "a-pod")
        for dashboard in map(json.loads, (path.read_text() for path in FOLDER.glob("*.json")))
        for panel in dashboard["panels"]
        if panel["type"] != "row" and panel["title"] not in WITHOUT_DATA
        for target in panel["targets"]
    }
    of_drain = {
        title: query
        for title, query in queries.items()
        if any(panel in title for panel in BY_A_DRAIN)
    }
    return of_drain, {title: queries[title] for title in queries.keys() - of_drain.keys()}


@contextlib.contextmanager
def _at_the_same_time(*work: Coroutine[None, None, None]) -> Iterator[None]:
    """Do *work* until the block ends."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()


async def _without_data(prometheus: Prometheus, queries: dict[str, str]) -> dict[str, str]:
    """Ask again and again until each query has had data once; return those that had none."""
    missing = dict(queries)
    deadline = asyncio.get_running_loop().time() + _WAIT_S
    while missing and asyncio.get_running_loop().time() < deadline:
        answers = await asyncio.gather(*map(prometheus.query, missing.values()))
        missing = {
            title: query
            for (title, query), answer in zip(missing.items(), answers, strict=True)
            if not answer
        }
        await _pause(_LOOK_EACH_S)
    return missing


async def _publish_for_ever(gateway: RunningGateway) -> None:
    """Publish what is taken, what is too much, and what nsqd would not take."""
    for number in itertools.count():
        topic = "t" if number % 10 else "no%20topic"
        path = f"/mpub?topic={topic}" if number % 3 else f"/pub?topic={topic}"
        await gateway.http.post(path, content=b"body")
        await _pause(_PUBLISH_EACH_S)


async def _refuse_for_ever(gateway: RunningGateway) -> None:
    """Ask for subscriptions that there is no room for."""
    while True:
        await refusal(gateway.sub_url("t"))
        await _pause(_LOOK_EACH_S)


async def _pause(for_s: float) -> None:
    """Let so much time pass: a load of a constant rate is what is wanted."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(for_s):
            await asyncio.Event().wait()


async def _answer_for_ever(client: SubscriberClient) -> None:
    """Publish by socket, requeue the first, let some time out, and finish the others."""
    await client.send({"cmd": "PUB", "topic": "t", "body": "from a socket", "ref": 1})
    for number in itertools.count():
        received = await client.receive()
        if received["type"] == "message":
            command = "FIN" if number % 5 else "REQ"
            await client.send({"cmd": command, "id": received["id"]})


@asynccontextmanager
async def _gateway() -> AsyncIterator[RunningGateway]:
    async with real_nsqlookupd() as lookupd:
        flags = ("--broadcast-address=127.0.0.1", f"--lookupd-tcp-address={lookupd.tcp_address}")
        async with (
            real_nsqd(*flags) as nsqd,
            gateway_by_lookup(
                lookupd.http_address,
                nsqd.http_address,
                f"--nsqd-tcp-address={nsqd.tcp_address}",
                "--lookupd-http-address=127.0.0.1:1",
                "--lookupd-poll-interval-s=0.5",
                "--publish-rate-limit=5",
                "--publish-rate-burst=40",
                f"--max-sockets={VIEWERS + 3}",
                "--socket-buffer-bytes=100000",
                "--slow-consumer-s=1",
                "--drain-in-flight-s=0.1",
                f"--drain-window-s={_DRAIN_WINDOW_S}",
            ) as gateway,
        ):
            yield gateway


async def test_dashboards_show_data() -> None:
    """Every query of every panel has an answer, but those that WITHOUT_DATA names."""
    async with asyncio.timeout(180), AsyncExitStack() as life:
        gateway = await life.enter_async_context(_gateway())
        target = gateway.management_url.removeprefix("http://")
        seen = await life.enter_async_context(prometheus([target], namespace="here", pod="a-pod"))
        consumer = await life.enter_async_context(gateway.subscribe("t", "c", msg_timeout_ms=1000))
        # Takes messages and answers none: they time out.
        await life.enter_async_context(gateway.subscribe("t", "late", msg_timeout_ms=1000))
        slow_url = gateway.sub_url("large", "slow", max_in_flight=50)
        await life.enter_async_context(raw_websocket(slow_url, has_small_buffer=True))
        for _ in range(20):
            await gateway.http.post("/pub?topic=large", content=_BODY)
        for _ in range(VIEWERS):
            await life.enter_async_context(gateway.subscribe("quiet"))
        of_drain, others = _queries()
        with _at_the_same_time(
            _publish_for_ever(gateway), _answer_for_ever(consumer), _refuse_for_ever(gateway)
        ):
            missing = await _without_data(seen, others)
        gateway.program.signal(signal.SIGTERM)
        missing |= await _without_data(seen, of_drain)

    assert {} == missing
