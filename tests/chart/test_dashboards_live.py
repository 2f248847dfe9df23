"""Dashboards with a real Prometheus that reads a real gateway and a job, which have a lot to do."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import signal
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import pytest

from gateway.pipeline.jobs.compact import CompactionResult
from gateway.pipeline.jobs.metrics_export import run_exported
from gateway.settings.loader import load
from gateway.settings.pipeline import CompactSettings
from tests.support.brokers.nsqd import real_nsqd, real_nsqlookupd
from tests.support.chart.prometheus import Prometheus, prometheus
from tests.support.gateways.gateway import RunningGateway, gateway_by_lookup
from tests.support.spark.pipeline_job import pipeline_job
from tests.support.websocket.raw_socket import raw_websocket
from tests.support.websocket.subscriber_client import SubscriberClient, refused_upgrade
from tools.make_dashboards import FOLDER

pytestmark = [pytest.mark.promtool, pytest.mark.nsqd]

# What this load does not bring about, and why.
WITHOUT_DATA = {
    "Worker restarts": "there is one process, and no supervisor",
    "Secrets": "this nsqd asks for no AUTH",
    "nsqd errors": "what nsqd would refuse the gateway refuses before",
    "Time until certificates expire": "the gateway speaks no TLS here",
    "Query restarts": "no query fails",
}
JOBS = "Jobs on Spark"
"""The row that a job fills."""
BY_A_DRAIN = ("Sockets asked to reconnect", "Aborted at the end of a drain")
Json = dict[str, Any]
VIEWERS = 110
_WAIT_S = 120.0
_PUBLISH_EACH_S, _LOOK_EACH_S = 0.02, 0.3
_DRAIN_WINDOW_S = 30
_BODY = b"x" * 500_000


def _panels(dashboard: Json, *, of_jobs: bool) -> Iterator[Json]:
    """Yield the panels of the row of jobs, or those of the other rows, which have data here."""
    row = ""
    for panel in dashboard["panels"]:
        if panel["type"] == "row":
            row = panel["title"]
        elif of_jobs == (row == JOBS) and panel["title"] not in WITHOUT_DATA:
            yield panel


def _queries(*, of_jobs: bool) -> dict[str, str]:
    """Return by title what panels ask for, everything chosen."""
    return {
        f"{dashboard['uid']}: {panel['title']}: {target['legendFormat']}": target["expr"]
        .replace("$__rate_interval", "15s")
        .replace("$__range", "30s")
        .replace("$namespace", ".*")
        .replace("$job", "tested")
        .replace("$pod", "a-pod")
        for dashboard in map(json.loads, (path.read_text() for path in FOLDER.glob("*.json")))
        for panel in _panels(dashboard, of_jobs=of_jobs)
        for target in panel["targets"]
    }


def _queries_of_a_gateway() -> tuple[dict[str, str], dict[str, str]]:
    """Return by title what panels ask of a gateway: those of a drain, and the others."""
    queries = _queries(of_jobs=False)
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
        await refused_upgrade(gateway.sub_url("t"))
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
        of_drain, others = _queries_of_a_gateway()
        with _at_the_same_time(
            _publish_for_ever(gateway), _answer_for_ever(consumer), _refuse_for_ever(gateway)
        ):
            missing = await _without_data(seen, others)
        gateway.program.signal(signal.SIGTERM)
        missing |= await _without_data(seen, of_drain)

    assert {} == missing


async def _publish_to(http: httpx.AsyncClient, address: str) -> None:
    """Publish to an nsqd without end."""
    while True:
        await http.post(f"http://{address}/mpub?topic=t", content=b"one\ntwo\nthree")
        await _pause(_PUBLISH_EACH_S)


@contextlib.contextmanager
def _served(folder: Path) -> Iterator[str]:
    """Give the address that shows the files of *folder*, as node_exporter does."""
    handler = partial(SimpleHTTPRequestHandler, directory=folder)
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.java
async def test_the_row_of_the_jobs_shows_data(tmp_path: Path) -> None:
    """Of an archive that runs, and of a compaction that has told how it went."""
    told = tmp_path / "textfiles" / "metrics.prom"
    told.parent.mkdir()
    run_exported(
        load(CompactSettings, {"metrics_textfile": told}).settings, "compact", CompactionResult
    )
    told.rename(told.with_suffix(""))
    async with asyncio.timeout(240), AsyncExitStack() as life:
        http = await life.enter_async_context(httpx.AsyncClient(trust_env=False))
        nsqd = await life.enter_async_context(real_nsqd())
        flags = (
            *("archive", "--topic=t", "--trigger-s=1", "--management-listen=127.0.0.1:0"),
            *(f"--nsqd-tcp-address={nsqd.tcp_address}", f"--nsqd-http-address={nsqd.http_address}"),
            *(f"--output={tmp_path / 'archive'}", f"--checkpoint={tmp_path / 'checkpoint'}"),
        )
        job = await life.enter_async_context(pipeline_job(tmp_path, *flags))
        listens = await job.said(r'"address": "([^"]+)", "event": "management port')
        targets = [listens[1], life.enter_context(_served(told.parent))]
        seen = await life.enter_async_context(prometheus(targets, namespace="here", pod="a-pod"))
        with _at_the_same_time(_publish_to(http, nsqd.http_address)):
            await job.said('"event": "rows written"')
            missing = await _without_data(seen, _queries(of_jobs=True))

    assert {} == missing
