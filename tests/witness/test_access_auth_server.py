"""A real nsqd, and the embedded broker, ask the gateway's auth server about their clients."""

from __future__ import annotations

import asyncio
import random
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

import httpx
import pytest

from gateway.access.control import AccessControl
from gateway.access.rights import VIEWER_CHANNELS, Permission
from gateway.credentials import Secret
from gateway.name_patterns import matches
from tests.support.brokers.killable_broker import free_port
from tests.support.brokers.nsq_clients import (
    BrokerAddresses,
    broker_program,
    client_command,
    client_program,
)
from tests.support.brokers.nsqd import RealNsqd, real_nsqd
from tests.support.brokers.v2_peer import ERROR, OK, length_prefixed, publish, v2_peer
from tests.support.certificates import Certificates, certificates
from tests.support.gateways.access_file import TokenIssuer, access_file, api_key, grant, grant_claim
from tests.support.gateways.gateway import (
    ON_FREE_PORTS,
    WITH_EMBEDDED_BROKER,
    gateway_with_nsqd,
    poll_until,
)
from tests.support.gateways.programs import nsq_gateway

pytestmark = pytest.mark.nsqd

_WAIT_S = 60.0
WORKER, VIEWER, OPERATOR = "worker-7f3a", "viewer-91c2", "operator-55d0"
VIEWERS_OWN = f"gw.{'a' * 26}#ephemeral"
ENTRIES = (
    api_key("worker", WORKER, grant("^jobs$", "publish", "subscribe", channels=["^channel$"])),
    api_key("viewer", VIEWER, grant("^jobs$", "watch", channels=[])),
    api_key("operator", OPERATOR, grant(".*", "admin")),
)


@pytest.fixture(scope="module")
def certs() -> Iterator[Certificates]:
    with certificates() as certs:
        yield certs


@pytest.fixture
def file(tmp_path: Path) -> str:
    return access_file(tmp_path, *ENTRIES)


@asynccontextmanager
async def nsqd_flag(file: str, *flags: str) -> AsyncIterator[str]:
    """Run a gateway; yield the flag that its banner has for nsqd."""
    arguments = (*ON_FREE_PORTS, *WITH_EMBEDDED_BROKER, f"--access-file={file}")
    async with nsq_gateway("serve", *arguments, "--auth-listen=127.0.0.1:0", *flags) as program:
        yield (await program.said(r"auth server: nsqd (\S+)"))[1]


async def verdict(address: str, secret: str, command: bytes) -> str:
    """Return OK, or the code of nsqd's error, for one command after AUTH."""
    async with v2_peer(address) as peer:
        kind, data = await peer.ask(b"AUTH\n" + length_prefixed(secret.encode()))
        if kind != ERROR:
            kind, data = await peer.ask(command)
    return "OK" if (kind, data) == OK else data.decode().split()[0]


async def verdicts(address: str) -> dict[str, str]:
    """Return the verdicts about all that this file's callers try."""
    jobs = publish(b"jobs", b"x")
    tries = {
        "publish": (WORKER, jobs),
        "publish elsewhere": (WORKER, publish(b"jobs2", b"x")),
        "subscribe": (WORKER, b"SUB jobs channel\n"),
        "subscribe another channel": (WORKER, b"SUB jobs channels\n"),
        "watch": (VIEWER, f"SUB jobs {VIEWERS_OWN}\n".encode()),
        "watch to consume": (VIEWER, b"SUB jobs channel\n"),
        "watch to publish": (VIEWER, jobs),
        "admin": (OPERATOR, jobs),
        "unknown": ("wrong", jobs),
    }
    return {name: await verdict(address, *each) for name, each in tries.items()}


EXPECTED = {
    "publish": "OK",
    "publish elsewhere": "E_UNAUTHORIZED",
    "subscribe": "OK",
    "subscribe another channel": "E_UNAUTHORIZED",
    "watch": "OK",
    "watch to consume": "E_UNAUTHORIZED",
    "watch to publish": "E_UNAUTHORIZED",
    "admin": "E_AUTH_FAILED",
    "unknown": "E_AUTH_FAILED",
}


async def test_nsqd_lets_in_whom_the_file_lets_in(file: str) -> None:
    async with nsqd_flag(file) as flag, real_nsqd(flag) as nsqd:
        assert EXPECTED == await verdicts(nsqd.tcp_address)


async def test_nsqd_asks_over_tls(file: str, certs: Certificates) -> None:
    """nsqd trusts the authorities of its --tls-root-ca-file."""
    async with (
        nsqd_flag(file, *certs.server.nsqd_flags) as flag,
        real_nsqd(flag, f"--tls-root-ca-file={certs.root_ca_file}") as nsqd,
    ):
        assert EXPECTED == await verdicts(nsqd.tcp_address)


async def test_the_auth_server_of_the_supervisor_answers_nsqd(file: str) -> None:
    async with nsqd_flag(file, "--workers=2") as flag, real_nsqd(flag) as nsqd:
        assert EXPECTED == await verdicts(nsqd.tcp_address)


@pytest.mark.parametrize("method", ["get", "post"])
async def test_the_embedded_broker_asks_by_either_method(file: str, method: str) -> None:
    async with (
        nsqd_flag(file) as flag,
        broker_program(flag, f"--auth-http-request-method={method}") as broker,
    ):
        assert EXPECTED == await verdicts(broker.tcp_address)


@pytest.mark.nsq_clients
@pytest.mark.parametrize("client", ["go-nsq", "pynsq", "nsqjs"])
async def test_a_client_of_nsqd_works_with_a_key_of_the_file(file: str, client: str) -> None:
    """PUB, MPUB, DPUB and SUB; nsqd knows the caller by the name in the file."""
    async with (
        nsqd_flag(file) as flag,
        real_nsqd(flag) as nsqd,
        client_program(client, nsqd.tcp_address, "jobs", ["--secret", WORKER]) as program,
    ):
        bodies = {body for body, _ in await program.deliveries(5)}
        names = await consumer_names(nsqd)

    assert {"finish", "requeue", "touch", "deferred"} == bodies
    assert ["worker"] == names


async def consumer_names(nsqd: RealNsqd | BrokerAddresses) -> list[str]:
    async with httpx.AsyncClient(trust_env=False) as http:
        answer = await http.get(f"http://{nsqd.http_address}/stats?format=json&topic=jobs")
    (channel,) = answer.json()["topics"][0]["channels"]
    return [each["auth_identity"] for each in channel["clients"]]


@pytest.mark.nsq_clients
@pytest.mark.parametrize(
    "secret,topic,code",
    [(WORKER, "jobs2", "E_UNAUTHORIZED"), ("wrong", "jobs", "E_AUTH_FAILED")],
    ids=["another topic", "another secret"],
)
async def test_go_nsq_is_refused(file: str, secret: str, topic: str, code: str) -> None:
    async with nsqd_flag(file) as flag, real_nsqd(flag) as nsqd:
        process = await asyncio.create_subprocess_exec(
            *client_command("go-nsq"),
            *("--secret", secret, nsqd.tcp_address, topic),
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
        )
        async with asyncio.timeout(_WAIT_S):
            printed, said = await process.communicate()

    assert (1, b"") == (process.returncode, printed)
    assert code in said.decode()
    assert secret not in said.decode()


async def test_a_removed_key_can_be_used_no_longer(tmp_path: Path) -> None:
    """A new connection is refused as soon as the gateway has read the file again."""
    path = access_file(tmp_path, *ENTRIES)
    async with nsqd_flag(path) as flag, real_nsqd(flag) as nsqd:
        jobs = publish(b"jobs", b"x")
        before = await verdict(nsqd.tcp_address, WORKER, jobs)
        access_file(tmp_path, *ENTRIES[1:])
        after = await poll_until(lambda: verdict(nsqd.tcp_address, WORKER, jobs), "E_AUTH_FAILED")

    assert ("OK", "E_AUTH_FAILED") == (before, after)


@pytest.mark.nsq_clients
@pytest.mark.parametrize("algorithm", ["RS256", "EdDSA"])
async def test_go_nsq_works_with_a_token_of_an_issuer(
    tmp_path: Path, algorithm: Literal["RS256", "EdDSA"]
) -> None:
    """And is refused with it for another topic."""
    issuer = TokenIssuer(tmp_path, algorithm=algorithm)
    path = access_file(tmp_path, issuer.entry)
    token = issuer.token(
        "ann", grant_claim("^jobs$", "publish", "subscribe", channels=["^channel$"])
    )
    async with (
        nsqd_flag(path) as flag,
        real_nsqd(flag) as nsqd,
        client_program("go-nsq", nsqd.tcp_address, "jobs", ["--secret", token]) as program,
    ):
        bodies = {body for body, _ in await program.deliveries(5)}
        names = await consumer_names(nsqd)
        elsewhere = await verdict(nsqd.tcp_address, token, publish(b"jobs2", b"x"))

    assert {"finish", "requeue", "touch", "deferred"} == bodies
    assert (["ann"], "E_UNAUTHORIZED") == (names, elsewhere)


async def test_nsqd_refuses_a_publisher_whose_token_has_ended(tmp_path: Path) -> None:
    """On the same connection: the time to live is the rest of the token's life."""
    issuer = TokenIssuer(tmp_path)
    path = access_file(tmp_path, issuer.entry)
    async with nsqd_flag(path) as flag, real_nsqd(flag) as nsqd, v2_peer(nsqd.tcp_address) as peer:
        ends_at = time.time() + 2
        token = issuer.token("ann", grant_claim("^jobs$", "publish"), life_s=2)
        await peer.ask(b"AUTH\n" + length_prefixed(token.encode()))
        answer = first = await peer.ask(publish(b"jobs", b"x"))
        async with asyncio.timeout(_WAIT_S):
            while answer == OK:
                answer = await peer.ask(publish(b"jobs", b"x"))
        late_s = time.time() - ends_at

    assert (OK, (ERROR, b"E_AUTH_FAILED AUTH failed")) == (first, answer)
    assert -1 <= late_s <= 5


async def test_the_gateway_publishes_to_an_nsqd_that_asks_it(file: str) -> None:
    """The caller's key is nsqd's secret: both ask the same file."""
    address = f"127.0.0.1:{free_port()}"
    flags = (f"--access-file={file}", f"--auth-listen={address}")
    async with (
        real_nsqd(f"--auth-http-address={address}") as nsqd,
        gateway_with_nsqd([nsqd.tcp_address], [nsqd.http_address], *flags) as gateway,
    ):
        headers = {"Authorization": f"Bearer {WORKER}"}
        statuses = [
            (await gateway.http.post(f"/pub?topic={topic}", content=b"x", headers=headers))
            for topic in ("jobs", "jobs2")
        ]

    assert [200, 403] == [each.status_code for each in statuses]


TOPICS = ("a", "ab", "orders", "orders.eu", "a#ephemeral", "orders_failed")
CHANNELS = ("c", "cc", "billing", "c#ephemeral", VIEWERS_OWN)
PATTERNS = (".*", "^a$", "a", "^orders", "eu$", r"^orders\.eu$", "^(a|ab)$", "#ephemeral$", "[b-d]")


def random_grants(chance: random.Random) -> Sequence[str]:
    return [
        grant(
            chance.choice(PATTERNS),
            *chance.sample(list(Permission), chance.randint(1, 3)),
            channels=chance.sample([*PATTERNS, "^c$", "c", VIEWER_CHANNELS], chance.randint(1, 2)),
        )
        for _ in range(chance.randint(1, 3))
    ]


async def test_nsqd_and_the_gateway_have_the_same_verdicts(tmp_path: Path) -> None:
    """240 requests about 40 random sets of grants."""
    chance = random.Random(21)
    keys = [f"key-{number}" for number in range(40)]
    path = access_file(tmp_path, *(api_key(key, key, *random_grants(chance)) for key in keys))
    access = AccessControl(path)
    access.load()
    async with nsqd_flag(path) as flag, real_nsqd(flag) as nsqd:
        for _ in range(240):
            key, topic = chance.choice(keys), chance.choice(TOPICS)
            channel = chance.choice([None, *CHANNELS])
            rights = access.identify(Secret(key.encode())).rights
            if channel is None:
                command = publish(topic.encode(), b"x")
                allowed = rights.allows(Permission.PUBLISH, topic)
            else:
                command = f"SUB {topic} {channel}\n".encode()
                # To nsqd, a viewer is a subscriber like any other.
                allowed = rights.allows(Permission.SUBSCRIBE, topic, channel) or (
                    rights.allows(Permission.WATCH, topic) and matches(VIEWER_CHANNELS, channel)
                )

            found = await verdict(nsqd.tcp_address, key, command)

            assert allowed == (found == "OK"), (rights.grants, topic, channel, found)
