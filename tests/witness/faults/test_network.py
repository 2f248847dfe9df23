"""The network between gateway and nsqd is silent or slow, or a certificate is wrong."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from tests.support.brokers.killable_broker import KillableBroker, free_port, killable_broker
from tests.support.brokers.nsqd import real_nsqd
from tests.support.brokers.toxiproxy import toxiproxy
from tests.support.certificates import Certificates, Identity, certificates
from tests.support.gateways.gateway import RunningGateway, gateway_with_nsqd, poll_until

pytestmark = pytest.mark.asyncio(loop_scope="session")

HEARTBEAT_S = 1.0
PUBLISH_TIMEOUT_S = 0.5
LATENCY_S = 0.2
SMALL = ("--max-msg-size=2000", "--max-body-size=2000", "--publish-buffer-per-nsqd-bytes=50000")
A_MOMENT_S = 2.0
"""What a busy machine may take beyond what is promised."""


async def status_of_publish(gateway: RunningGateway, topic: str, body: bytes = b"x") -> int:
    answer = await gateway.http.post("/pub", content=body, params={"topic": topic})
    return answer.status_code


# F6


@pytest.mark.toxiproxy
async def test_silence_is_found_within_two_heartbeats_and_publishes_go_elsewhere(
    kind: str, topic: str
) -> None:
    """One of two nsqds falls silent without closing: sockets are notified, publishes avoid it."""
    async with (
        killable_broker(kind) as one,
        killable_broker(kind) as other,
        toxiproxy() as proxy,
    ):
        way = await proxy.in_front_of(other.tcp_address)
        async with (
            gateway_with_nsqd(
                [one.tcp_address, way.address],
                [one.http_address],
                "--nsqd-connections=1",
                f"--heartbeat-interval-ms={HEARTBEAT_S * 1000:.0f}",
                f"--publish-timeout-ms={PUBLISH_TIMEOUT_S * 1000:.0f}",
            ) as gateway,
            gateway.subscribe(topic, "c") as client,
        ):
            assert 2 == (await client.receive())["data"]["nsqds"]
            silent_at = time.monotonic()
            await way.fall_silent()
            answers: Counter[int] = Counter()
            slowest_s = 0.0
            told = asyncio.create_task(client.connection.recv())
            # On this topic's connection at first, then on the other one.
            for _ in range(20):
                posted_at = time.monotonic()
                answers[await status_of_publish(gateway, f"{topic}-else")] += 1
                slowest_s = max(slowest_s, time.monotonic() - posted_at)
            lost = await told
            told_s = time.monotonic() - silent_at
            afterwards = {await status_of_publish(gateway, f"{topic}-else") for _ in range(20)}
            await way.heal()

    assert '"nsqds":1' in str(lost)
    assert told_s < 2 * HEARTBEAT_S + A_MOMENT_S
    assert set(answers) <= {200, 504}
    assert answers[504] <= 2
    assert slowest_s < PUBLISH_TIMEOUT_S + A_MOMENT_S
    assert {200} == afterwards


# F7


@pytest.mark.toxiproxy
async def test_a_slow_nsqd_slows_publishes_then_they_get_503_and_accepted_ones_are_stored(
    shared_broker: KillableBroker, topic: str
) -> None:
    """The queue is bounded: beyond it, 503 OVERLOADED at once, and nothing is published."""
    async with toxiproxy() as proxy:
        way = await proxy.in_front_of(shared_broker.tcp_address)
        flags = ("--nsqd-connections=1", "--publish-buffer-bytes=50000", *SMALL)
        async with (
            gateway_with_nsqd([way.address], [shared_broker.http_address], *flags) as gateway,
            gateway.subscribe(topic, "c", max_in_flight=2_000) as client,
        ):
            await way.delay(int(LATENCY_S * 1000))
            alone_at = time.monotonic()
            await gateway.publish(topic, b"alone")
            alone_s = time.monotonic() - alone_at
            bodies = [b"%04d" % number + b"x" * 1_000 for number in range(400)]
            statuses = await asyncio.gather(
                *(status_of_publish(gateway, topic, body) for body in bodies)
            )
            await way.heal()
            taken = {
                body.decode()
                for body, status in zip(bodies, statuses, strict=True)
                if status == 200
            }
            stored = {each["body"] for each in await client.messages(1 + len(taken))}
            assert "no more" == (await client.ask({"cmd": "NOP", "ref": "no more"}))["ref"]

    assert LATENCY_S <= alone_s
    assert {200, 503} == set(statuses)
    assert taken | {"alone"} == stored


# F24


@asynccontextmanager
async def secured(port: int, identity: Identity) -> AsyncIterator[str]:
    """Run an nsqd on *port* that serves with *identity*; return where it answers HTTP."""
    flags = (f"--tcp-address=127.0.0.1:{port}", *identity.nsqd_flags)
    async with real_nsqd(*flags) as nsqd:
        yield nsqd.http_address


def trusting(path: str) -> tuple[str, str]:
    """Return what makes a gateway speak TLS with an nsqd that the authority at *path* signed."""
    return "--nsqd-tls-v1", f"--nsqd-tls-root-ca-file={path}"


@pytest.mark.nsqd
@pytest.mark.parametrize(
    "name,reason",
    [("expired", "certificate has expired"), ("misnamed", "IP address mismatch")],
)
async def test_a_wrong_certificate_is_reported_and_not_accepted(
    topic: str, name: str, reason: str
) -> None:
    """The gateway starts, says why there is no nsqd, and answers 503."""
    port = free_port()
    with certificates() as certs:
        identity: Identity = getattr(certs, name)
        async with (
            secured(port, identity) as http,
            gateway_with_nsqd(
                [f"127.0.0.1:{port}"], [http], *trusting(certs.root_ca_file)
            ) as gateway,
        ):
            await gateway.program.said(f"the certificate is not trusted: .*{reason}")
            assert 503 == await status_of_publish(gateway, topic)


@pytest.mark.nsqd
async def test_authorities_that_changed_are_read_without_a_restart(
    topic: str, tmp_path: Path
) -> None:
    """nsqd comes back with a certificate of another authority, whose file is there later."""
    port, trusted = free_port(), tmp_path / "ca.pem"
    with ExitStack() as life:
        before: Certificates = life.enter_context(certificates())
        after: Certificates = life.enter_context(certificates())
        shutil.copy(before.root_ca_file, trusted)
        async with secured(port, before.server) as http:
            gateway_life = gateway_with_nsqd([f"127.0.0.1:{port}"], [http], *trusting(str(trusted)))
            gateway = await gateway_life.__aenter__()
            assert 200 == await status_of_publish(gateway, topic)
        try:
            async with secured(port, after.server):
                assert 503 == await poll_until(partial(status_of_publish, gateway, topic), 503)
                trusted.write_text("half of a file")  # as somebody who writes it slowly
                assert 503 == await status_of_publish(gateway, topic)
                shutil.copy(after.root_ca_file, trusted)
                assert 200 == await poll_until(partial(status_of_publish, gateway, topic), 200)
        finally:
            await gateway_life.__aexit__(None, None, None)
