"""NSQ's own programs work with `nsq-gateway broker` as with nsqd."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from tests.support.brokers.auth_server import Grant, auth_server
from tests.support.brokers.nsq_clients import (
    BrokerAddresses,
    broker_program,
    nsqadmin,
    run_app,
    running_app,
)
from tests.support.brokers.nsqd import (
    RealNsqd,
    RealNsqlookupd,
    is_older_nsqd,
    real_nsqd,
    real_nsqlookupd,
)
from tests.support.brokers.v2_peer import multi_publish, v2_peer
from tests.support.certificates import certificates
from tests.support.http.raw_http import exchange

pytestmark = [
    pytest.mark.nsq_apps,
    pytest.mark.nsqd,
]

_WAIT_S = 60.0
LINES = [f"line {number:02}" for number in range(100)]


@dataclass(frozen=True)
class Pair:
    """Both brokers, as processes."""

    nsqd: RealNsqd
    broker: BrokerAddresses

    @property
    def http_addresses(self) -> tuple[str, str]:
        """The HTTP ports of nsqd and of the embedded broker."""
        return self.nsqd.http_address, self.broker.http_address


@pytest_asyncio.fixture
async def pair() -> AsyncIterator[Pair]:
    """Run both, with no topics."""
    async with real_nsqd() as nsqd, broker_program("--broadcast-address=127.0.0.1") as broker:
        yield Pair(nsqd, broker)


async def test_lines_pass_from_program_to_program(pair: Pair, tmp_path: Path) -> None:
    """to_nsq → nsq_to_nsq → nsq_tail and nsq_to_file: every line arrives once."""
    tcp = f"--nsqd-tcp-address={pair.broker.tcp_address}"
    await check_pipeline(pair.broker, tmp_path, (tcp,))


async def test_lines_pass_by_nsqlookupd_with_tls_snappy_and_a_secret(tmp_path: Path) -> None:
    """The same where nsqlookupd names the broker, and all is encrypted, compressed and allowed."""
    with certificates() as made:
        async with real_nsqlookupd() as lookupd, auth_server() as allows:
            allows.grant("s3cret", Grant())
            flags = (
                "--broadcast-address=127.0.0.1",
                f"--lookupd-tcp-address={lookupd.tcp_address}",
                f"--auth-http-address={allows.address}",
                *made.server.nsqd_flags,
                "--https-address=127.0.0.1:0",
                "--tls-required=tcp-https",
            )
            options = (
                *("tls_v1,true", f"tls_root_ca_file,{made.root_ca_file}"),
                *("snappy,true", "auth_secret,s3cret"),
            )
            found = f"--lookupd-http-address={lookupd.http_address}"
            async with broker_program(*flags) as broker:
                await check_pipeline(broker, tmp_path, (found,), options)


async def check_pipeline(
    broker: BrokerAddresses, folder: Path, source: tuple[str, ...], options: tuple[str, ...] = ()
) -> None:
    """Send lines through four programs that find topics by *source*, and connect with *options*."""
    consumer = (*source, *(f"--consumer-opt={option}" for option in options))
    producer = tuple(f"--producer-opt={option}" for option in options)
    copied = (*consumer, *producer, f"--destination-nsqd-tcp-address={broker.tcp_address}")
    kept = (f"--output-dir={folder}", "--filename-format=kept.log", "--sync-interval=100ms")
    for target in (
        "/topic/create?topic=copied",
        *(f"/channel/create?topic=copied&channel={channel}" for channel in ("tail", "file")),
    ):
        await exchange(broker.http_address, "POST", target)

    text = "".join(f"{line}\n" for line in LINES)
    nsqd = f"--nsqd-tcp-address={broker.tcp_address}"
    await run_app("to_nsq", nsqd, *producer, "--topic=lines", standard_input=text.encode())
    async with (
        running_app("nsq_to_nsq", *copied, "--topic=lines", "--destination-topic=copied"),
        running_app("nsq_to_file", *consumer, "--topic=copied", "--channel=file", *kept),
    ):
        shown = await run_app("nsq_tail", *consumer, "--topic=copied", "--channel=tail", "-n=100")
        await emptied(broker.http_address, "copied", "file")

    kept_lines = (folder / "kept.log").read_text()
    assert [LINES, LINES] == [sorted(text.splitlines()) for text in (shown, kept_lines)]


async def emptied(http_address: str, topic: str, channel: str) -> None:
    """Wait until *channel* has had all lines, and none is queued or in flight."""
    query = {"format": "json", "topic": topic, "channel": channel}
    async with (
        asyncio.timeout(_WAIT_S),
        httpx.AsyncClient(base_url=f"http://{http_address}", trust_env=False) as http,
    ):
        while True:
            found = (await http.get("/stats", params=query)).json()["topics"][0]["channels"][0]
            left = found["depth"] + found["in_flight_count"]
            if left == 0 and found["message_count"] == len(LINES):
                return


async def test_nsq_stat_prints_the_same(pair: Pair) -> None:
    """Depth, in flight, deferred, requeued, timed out, messages and connections."""
    printed = []
    for tcp, http in (
        (pair.nsqd.tcp_address, pair.nsqd.http_address),
        (pair.broker.tcp_address, pair.broker.http_address),
    ):
        async with busy(tcp, "counted"):
            printed.append(
                await run_app(
                    "nsq_stat",
                    "--topic=counted",
                    "--channel=channel",
                    f"--nsqd-http-address={http}",
                    "--interval=100ms",
                    "--count=2",
                )
            )

    assert printed[0] == printed[1]
    assert "3" in printed[1]


@asynccontextmanager
async def busy(tcp_address: str, topic: str) -> AsyncIterator[None]:
    """Give *topic* a producer, and a consumer with one of three messages in flight."""
    name = topic.encode()
    async with v2_peer(tcp_address) as consumer, v2_peer(tcp_address) as producer:
        await consumer.ask(b"SUB %b channel\n" % name)
        await producer.ask(multi_publish(name, b"a", b"b", b"c"))
        await consumer.send(b"RDY 1\n")
        await consumer.frame()
        yield


ADMIN_READS = [
    "/api/topics",
    "/api/topics/administered",
    "/api/topics/administered/channel",
    "/api/topics/nowhere",
    "/api/nodes",
    "/api/nodes/NODE",
    "/api/counter",
]
ADMIN_CHANGES = [
    ("POST", "/api/topics/administered/channel", {"action": "pause"}),
    ("POST", "/api/topics/administered/channel", {"action": "unpause"}),
    ("POST", "/api/topics/administered/channel", {"action": "empty"}),
    ("POST", "/api/topics/administered", {"action": "pause"}),
    ("POST", "/api/topics/administered", {"action": "unpause"}),
    ("POST", "/api/topics/administered", {"action": "empty"}),
    ("DELETE", "/api/topics/administered/channel", None),
    ("DELETE", "/api/topics/administered", None),
]


@pytest.mark.skipif(is_older_nsqd, reason="the embedded broker follows the current version")
async def test_nsqadmin_shows_and_does_the_same(pair: Pair) -> None:
    """All that nsqadmin reads, before and after each of its changes."""
    told: list[list[Any]] = []
    for tcp, http in (
        (pair.nsqd.tcp_address, pair.nsqd.http_address),
        (pair.broker.tcp_address, pair.broker.http_address),
    ):
        async with busy(tcp, "administered"), nsqadmin(f"--nsqd-http-address={http}") as admin:
            answers = [await ask(admin, "GET", path, http) for path in ADMIN_READS]
            for method, path, body in ADMIN_CHANGES:
                answers.append(await ask(admin, method, path, http, body))
                answers.append(await ask(admin, "GET", "/api/topics/administered", http))
        told.append(answers)

    assert told[0] == told[1]


@pytest.mark.skipif(is_older_nsqd, reason="the embedded broker follows the current version")
async def test_nsqadmin_does_the_same_by_nsqlookupd() -> None:
    """It finds the node, makes a channel there, hides it for a topic, and deletes both."""
    told: list[list[Any]] = []
    for start in (real_nsqd, broker_program):
        async with real_nsqlookupd() as lookupd:
            flags = (
                "--broadcast-address=127.0.0.1",
                f"--lookupd-tcp-address={lookupd.tcp_address}",
            )
            async with start(*flags) as node, nsqadmin_by(lookupd) as admin:
                http = node.http_address
                # nsqadmin makes channels on the nodes that nsqlookupd names for their topic.
                await exchange(http, "POST", "/topic/create?topic=t")
                await registered(lookupd, "lookup?topic=t", "tcp_port")
                made = {"topic": "t", "channel": "c"}
                answers: list[Any] = [await ask(admin, "POST", "/api/topics", http, made)]
                assert 200 == (await ask(admin, "GET", "/api/topics/t/c", http))[0]
                for method, path, body in (
                    ("GET", "/api/topics", None),
                    ("GET", "/api/topics/t", None),
                    ("GET", "/api/nodes", None),
                    ("DELETE", "/api/nodes/NODE", {"topic": "t"}),
                    ("GET", "/api/nodes", None),
                    ("DELETE", "/api/topics/t/c", None),
                    ("DELETE", "/api/topics/t", None),
                    ("GET", "/api/topics", None),
                ):
                    answers.append(await ask(admin, method, path, http, body))
        told.append(answers)

    assert told[0] == told[1]


async def registered(lookupd: RealNsqlookupd, target: str, text: str) -> None:
    """Wait until the answer of *lookupd* to *target* has *text*."""
    async with asyncio.timeout(_WAIT_S):
        while text not in (await exchange(lookupd.http_address, "GET", f"/{target}")).body.decode():
            pass


def nsqadmin_by(lookupd: RealNsqlookupd) -> AbstractAsyncContextManager[httpx.AsyncClient]:
    """Run nsqadmin in front of what *lookupd* knows."""
    return nsqadmin(f"--lookupd-http-address={lookupd.http_address}")


async def ask(
    admin: httpx.AsyncClient, method: str, path: str, node: str, body: dict[str, str] | None = None
) -> tuple[int, str]:
    """Return status and text of an answer, without what differs between two processes."""
    answer = await admin.request(method, path.replace("NODE", node), json=body)
    text = answer.text.replace(node, "<node>")
    for name in ("connect_ts", "connected", "start_time", "tcp_port", "http_port", "gc_total_runs"):
        text = re.sub(rf'"{name}":\s*\d+', f'"{name}":0', text)
    text = re.sub(r'"(heap|gc|next_gc)_\w+":\s*\d+', "<memory>", text)
    return answer.status_code, re.sub(r"127\.0\.0\.1:\d+", "<address>", text)
