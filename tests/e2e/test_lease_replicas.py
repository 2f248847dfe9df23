"""Leases behind a balancer without stickiness: any replica takes the ack of any lease."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from tests.support.brokers.embedded_broker import embedded_broker
from tests.support.brokers.killable_broker import free_port
from tests.support.gateways.gateway import RunningGateway, gateway_with_nsqd
from tests.support.gateways.pulls import PullClient, pull_client

pytestmark = pytest.mark.asyncio(loop_scope="session")

KEY = b"0123456789abcdef0123456789abcdef"


@asynccontextmanager
async def replicas(
    count: int, folder: Path
) -> AsyncIterator[tuple[list[RunningGateway], list[PullClient]]]:
    """Run gateways that share a key, in front of one broker."""
    key = folder / "key"
    key.write_bytes(KEY)
    key.chmod(0o600)
    async with AsyncExitStack() as life:
        enter = life.enter_async_context
        broker = await enter(embedded_broker(has_http=True))
        gateways, clients = [], []
        for _ in range(count):
            management = f"127.0.0.1:{free_port()}"
            flags = (
                f"--management-listen={management}",
                f"--advertise-address={management}",
                f"--lease-key-file={key}",
                "--drain-in-flight-s=0",
            )
            gateway = await enter(
                gateway_with_nsqd([broker.tcp_address], [broker.http_address], *flags)
            )
            gateways.append(gateway)
            clients.append(await enter(pull_client(gateway.url)))
        yield gateways, clients


async def filled(gateway: RunningGateway, count: int) -> None:
    names = {"topic": "t", "channel": "c"}
    (await gateway.http.post("/channel/create", params=names)).raise_for_status()
    for number in range(count):
        await gateway.publish("t", b"%d" % number)


async def test_an_ack_goes_to_any_replica(tmp_path: Path) -> None:
    """FIN, REQ and TOUCH; leases of several owners in one ack; each is answered once."""
    async with replicas(3, tmp_path) as (gateways, clients):
        await filled(gateways[0], 9)
        pulled = [await client.pull("t", "c", max=3, wait_ms=5_000) for client in clients]
        leases = [[each["lease"] for each in messages] for messages in pulled]
        result = await clients[0].ack(
            fin=[of_one[0] for of_one in leases],
            req=[{"lease": of_one[1], "timeout_ms": 60_000} for of_one in leases],
            touch=[{"lease": of_one[2], "lease_ms": 30_000} for of_one in leases],
        )
        assert {"done": 9, "refused": []} == result
        assert (0, 3, 3) == await gateways[0].counts_become("t", "c", (0, 3, 3))
        results = await asyncio.gather(*(client.ack(fin=[leases[1][2]]) for client in clients))

        assert [0, 0, 1] == sorted(each["done"] for each in results)


async def test_a_dead_owner_is_told_at_once(tmp_path: Path) -> None:
    """kill -9: LEASE_LOST within a second; nsqd delivers the message after its timeout."""
    async with replicas(2, tmp_path) as (gateways, clients):
        await filled(gateways[0], 1)
        [message] = await clients[0].pull("t", "c", wait_ms=5_000)
        gateways[0].program.signal(signal.SIGKILL)
        await gateways[0].program.ended()
        began_at = time.monotonic()
        result = await clients[1].ack(fin=[message["lease"]])
        assert time.monotonic() - began_at < 1.5
        assert ["LEASE_LOST"] == [each["code"] for each in result["refused"]]


async def test_a_stalled_owner_is_an_unknown_outcome(tmp_path: Path) -> None:
    """Within the limit of 1 s; the same ack again has its result once the owner goes on."""
    async with replicas(2, tmp_path) as (gateways, clients):
        await filled(gateways[0], 1)
        [message] = await clients[0].pull("t", "c", wait_ms=5_000)
        gateways[0].program.signal(signal.SIGSTOP)
        try:
            result = await clients[1].ack(fin=[message["lease"]])
        finally:
            gateways[0].program.signal(signal.SIGCONT)
        [refused] = result["refused"]
        assert ("OUTCOME_UNKNOWN", True) == (refused["code"], refused["retryable"])
        again = await clients[1].ack(fin=[message["lease"]])
        # The owner may have read the first one after all.
        assert {each["code"] for each in again["refused"]} <= {"E_FIN_FAILED"}

        assert (0, 0, 0) == await gateways[1].counts_become("t", "c", (0, 0, 0))


async def test_a_drained_owner_has_handed_back(tmp_path: Path) -> None:
    """Its messages are at once for the others, with --drain-in-flight-s 0."""
    async with replicas(2, tmp_path) as (gateways, clients):
        await filled(gateways[0], 2)
        messages = await clients[0].pull("t", "c", wait_ms=5_000)
        waiting = asyncio.create_task(clients[1].pull("t", "c", wait_ms=30_000))
        await gateways[1].ready_becomes("t", "c", 0, 10)
        gateways[0].program.signal(signal.SIGTERM)
        await gateways[0].program.ended()
        again = await waiting
        result = await clients[1].ack(fin=[each["lease"] for each in messages])

        assert {2} == {each["attempts"] for each in again}
        assert {"LEASE_LOST"} == {each["code"] for each in result["refused"]}


async def test_only_replicas_send_acks_on(tmp_path: Path) -> None:
    """The management port takes none without their signature."""
    async with replicas(1, tmp_path) as ([gateway], [client]):
        await filled(gateway, 1)
        [message] = await client.pull("t", "c", wait_ms=5_000)
        body = {"verb": "FIN", "time_ms": 0, "leases": [message["lease"]]}
        for signature in ("", "00" * 16, "x"):
            async with pull_client(gateway.management_url) as other:
                headers = {"nsq-gateway-signature": signature}
                answer = await other.http.post("/leases/ack", json=body, headers=headers)
            assert 403 == answer.status_code

        assert (0, 1, 0) == await gateway.counts_become("t", "c", (0, 1, 0))
