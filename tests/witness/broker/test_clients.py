"""Clients of other people work with `nsq-gateway broker` as with nsqd, in each of their modes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import pytest_asyncio

from tests.support.brokers.auth_server import Grant, auth_server
from tests.support.brokers.nsq_clients import BrokerAddresses, broker_program, client_program
from tests.support.certificates import certificates

pytestmark = [pytest.mark.nsq_clients, pytest.mark.asyncio(loop_scope="module")]

_WAIT_S = 60.0
CLIENTS = ("go-nsq", "pynsq", "gnsq", "ansq", "nsqjs")
MODES_OF = {"ansq": ("plain",)}
DELIVERED = [("deferred", 1), ("finish", 1), ("requeue", 1), ("requeue", 2), ("touch", 1)]


TLS, SNAPPY, DEFLATE = ("--root-ca-file", "CA"), ("--snappy",), ("--deflate",)
SECRET = ("--secret", "s3cret")
MODES = {
    "plain": (),
    "TLS": TLS,
    "snappy": SNAPPY,
    "deflate": DEFLATE,
    "TLS and snappy": TLS + SNAPPY,
    "TLS and deflate": TLS + DEFLATE,
    "AUTH": SECRET,
    "AUTH under TLS": TLS + SECRET,
}
"""What a client asks for; ansq has nothing of it."""


@dataclass(frozen=True)
class Brokers:
    """Two brokers with TLS and compression; one of them asks for AUTH."""

    open_to_all: BrokerAddresses
    with_auth: BrokerAddresses
    root_ca_file: str


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def brokers() -> AsyncIterator[Brokers]:
    """Run both for all clients; each case has a topic of its own."""
    with certificates() as made:
        flags = (*made.server.nsqd_flags, "--https-address=127.0.0.1:0")
        async with auth_server() as server:
            server.grant(SECRET[1], Grant())
            asks = f"--auth-http-address={server.address}"
            async with broker_program(*flags) as plain, broker_program(*flags, asks) as strict:
                yield Brokers(plain, strict, made.root_ca_file)


@pytest.mark.parametrize(
    "client,mode", [(client, mode) for client in CLIENTS for mode in MODES_OF.get(client, MODES)]
)
async def test_a_client_publishes_finishes_requeues_and_touches(
    brokers: Brokers, client: str, mode: str
) -> None:
    """PUB, MPUB and DPUB arrive; REQ brings one back; all are finished in the end."""
    topic = f"{client}-{mode.replace(' ', '-')}"
    broker = brokers.with_auth if "AUTH" in mode else brokers.open_to_all
    options = [each.replace("CA", brokers.root_ca_file) for each in MODES[mode]]
    async with client_program(client, broker.tcp_address, topic, options) as program:
        assert DELIVERED == sorted(await program.deliveries(len(DELIVERED)))
        channel = await finished_channel(broker.http_address, topic)

    assert (1, 0, 4) == (
        channel["requeue_count"],
        channel["timeout_count"],
        channel["message_count"],
    )
    (connection,) = channel["clients"]
    asked = [name for name in ("tls", "snappy", "deflate") if name.lower() in mode.lower()]
    assert asked == [name for name in ("tls", "snappy", "deflate") if connection[name]]
    assert ("AUTH" in mode) == connection.get("authed", False)


async def finished_channel(http_address: str, topic: str) -> dict[str, Any]:
    """Return /stats of the one channel of *topic*, once its client has finished four messages."""
    query = {"format": "json", "topic": topic}
    async with (
        asyncio.timeout(_WAIT_S),
        httpx.AsyncClient(base_url=f"http://{http_address}", trust_env=False) as http,
    ):
        while True:
            answer = await http.get("/stats", params=query)
            channel: dict[str, Any] = answer.json()["topics"][0]["channels"][0]
            if sum(client["finish_count"] for client in channel["clients"]) == 4:
                return channel
