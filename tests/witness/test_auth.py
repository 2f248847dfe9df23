"""A gateway in front of a real nsqd that requires TLS and AUTH for every secret."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import httpx
import pytest
import pytest_asyncio
from prometheus_client.parser import text_string_to_metric_families

from tests.support.brokers.auth_server import AuthServer, Grant, auth_server
from tests.support.brokers.nsqd import RealNsqd, real_nsqd, real_nsqlookupd
from tests.support.certificates import Certificates, certificates
from tests.support.gateways.gateway import (
    RunningGateway,
    gateway_by_lookup,
    gateway_with_nsqd,
    poll_until,
)
from tests.support.websocket.subscriber_client import Json, open_socket, refused_upgrade

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.nsqd]

RECHECK_S = 1.0
REVOKED_WITHIN_S = 2 * RECHECK_S + 1.0
ALICE, BOB, OURS, DOOMED = "alice-7f3a", "bob-91c2", "ours-55d0", "doomed-0b1e"


@dataclass(frozen=True, kw_only=True)
class Guarded:
    """A gateway, the nsqd behind it, and the auth server behind that."""

    gateway: RunningGateway
    nsqd: RealNsqd
    server: AuthServer


@pytest.fixture(scope="module")
def certs() -> Iterator[Certificates]:
    """Certificates for nsqd, and the authority that the gateway trusts."""
    with certificates() as certs:
        yield certs


def tls_flags(certs: Certificates) -> tuple[str, ...]:
    """Return what makes the gateway speak TLS with nsqd."""
    return ("--nsqd-tls-v1", f"--nsqd-tls-root-ca-file={certs.root_ca_file}")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def guarded(certs: Certificates) -> AsyncIterator[Guarded]:
    """Return all three; nsqd's own HTTP stays open, for its account."""
    async with (
        auth_server() as server,
        real_nsqd(
            f"--auth-http-address={server.address}",
            "--tls-required=tcp-https",
            *certs.server.nsqd_flags,
        ) as nsqd,
        gateway_with_nsqd(
            [nsqd.tcp_address],
            [nsqd.http_address],
            f"--auth-recheck-s={RECHECK_S}",
            *tls_flags(certs),
        ) as gateway,
    ):
        for secret in (ALICE, BOB, OURS):
            server.grant(secret, Grant(topic="^t-"), identity=secret.split("-")[0])
        yield Guarded(gateway=gateway, nsqd=nsqd, server=server)


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


def auth(secret: str) -> Json:
    return {"cmd": "AUTH", "secret": secret, "ref": 1}


async def posted(gateway: RunningGateway, topic: str, **headers: str) -> tuple[int, str]:
    """Publish; return the status and the code of the response."""
    answer = await gateway.http.post("/pub", content=b"x", params={"topic": topic}, headers=headers)
    return answer.status_code, answer.text if answer.is_success else answer.json()["message"]


async def test_a_publish_without_a_secret_is_401(guarded: Guarded, topic: str) -> None:
    """And says how to bring one; nothing was published."""
    answer = await guarded.gateway.http.post("/pub", content=b"x", params={"topic": topic})

    assert (401, "AUTH_REQUIRED") == (answer.status_code, answer.json()["message"])
    assert "Bearer" == answer.headers["www-authenticate"]
    assert [] == await guarded.gateway.channels_become(topic, [])


@pytest.mark.parametrize(
    "secret,topic,expected",
    [
        (ALICE, "t-right", (200, "OK")),
        ("wrong", "t-right", (403, "AUTH_FAILED")),
        (ALICE, "u-not-granted", (403, "UNAUTHORIZED")),
    ],
    ids=["right", "wrong", "another topic"],
)
async def test_nsqd_decides_about_a_publish(
    guarded: Guarded, secret: str, topic: str, expected: tuple[int, str]
) -> None:
    """200 when it may, 403 when not."""
    assert expected == await posted(guarded.gateway, topic, **bearer(secret))


@pytest.mark.parametrize("path", ["/pub", "/mpub"])
@pytest.mark.parametrize("secret", [ALICE, "unknown"])
async def test_a_refusal_names_the_topic(guarded: Guarded, path: str, secret: str) -> None:
    """nsqd names it when a secret is not good enough, the gateway when it is not known."""
    answer = await guarded.gateway.http.post(
        path, content=b"x\ny", params={"topic": "u-named"}, headers=bearer(secret)
    )

    assert 403 == answer.status_code
    assert '"u-named"' in answer.json()["detail"]


async def test_a_header_subscribes(guarded: Guarded, topic: str) -> None:
    """Messages published with one secret are read with another, both over TLS."""
    url = guarded.gateway.sub_url(topic, "c")
    async with open_socket(url, headers=bearer(ALICE)) as client:
        subscribed = await client.receive()
        published = await posted(guarded.gateway, topic, **bearer(BOB))
        delivery = await client.message()
        await client.finish(delivery)

    assert ("SUB", (200, "OK"), "x") == (subscribed["cmd"], published, delivery["body"])


async def test_a_frame_subscribes(guarded: Guarded, topic: str) -> None:
    """The response to AUTH is nsqd's; then the socket subscribes."""
    async with open_socket(guarded.gateway.sub_url(topic, "c")) as client:
        answer = await client.ask(auth(ALICE))
        subscribed = await client.receive()
        await posted(guarded.gateway, topic, **bearer(BOB))
        delivery = await client.message()

    said = {"identity": "alice", "identity_url": "", "permission_count": 1}
    assert ("AUTH", 1, said) == (answer["cmd"], answer["ref"], answer["data"])
    assert ("SUB", "x") == (subscribed["cmd"], delivery["body"])


@pytest.mark.parametrize(
    "secret,topic,token", [("wrong", "t-a", "AUTH_FAILED"), (ALICE, "u-a", "UNAUTHORIZED")]
)
async def test_a_header_that_is_refused_is_403(
    guarded: Guarded, secret: str, topic: str, token: str
) -> None:
    """The text names topic and channel."""
    url = guarded.gateway.sub_url(topic, "c")

    status, problem = await refused_upgrade(url, headers=bearer(secret))

    assert (403, token) == (status, problem["message"])
    assert f'"{topic}"' in problem["detail"]
    assert '"c"' in problem["detail"]


@pytest.mark.parametrize(
    "secret,topic,code", [("wrong", "t-b", "E_AUTH_FAILED"), (ALICE, "u-b", "E_UNAUTHORIZED")]
)
async def test_a_frame_that_is_refused_is_4503(
    guarded: Guarded, secret: str, topic: str, code: str
) -> None:
    async with open_socket(guarded.gateway.sub_url(topic, "c")) as client:
        error = await client.ask(auth(secret))
        closed, _ = await client.closed()

    assert (code, 4503) == (error["code"], closed)


async def test_another_command_before_auth_is_4501(guarded: Guarded, topic: str) -> None:
    """E_AUTH_FIRST first."""
    async with open_socket(guarded.gateway.sub_url(topic, "c")) as client:
        error = await client.ask({"cmd": "NOP", "ref": 1})
        closed, _ = await client.closed()

    assert ("E_AUTH_FIRST", 4501) == (error["code"], closed)


async def test_a_viewer_needs_a_grant_for_its_own_channel(guarded: Guarded, topic: str) -> None:
    """Its name is random, so the pattern has to match every one of them."""
    viewer = "viewer-3d77"
    guarded.server.grant(viewer, Grant(topic="^t-", channels=(r"^gw\.[a-z2-7]{26}#ephemeral$",)))
    url = guarded.gateway.sub_url(topic)
    async with open_socket(url, headers=bearer(viewer)) as client:
        subscribed = await client.receive()

    assert "SUB" == subscribed["cmd"]


async def test_two_secrets_never_share_a_connection(guarded: Guarded, topic: str) -> None:
    """nsqd's own account names one identity on each, publishing and subscribed."""
    url = guarded.gateway.sub_url(topic, "c")
    async with (
        open_socket(url, headers=bearer(ALICE)) as alice,
        open_socket(url, headers=bearer(BOB)) as bob,
    ):
        await alice.receive()
        await bob.receive()
        await asyncio.gather(
            *(
                posted(guarded.gateway, topic, **bearer(secret))
                for secret in (ALICE, BOB)
                for _ in range(8)
            )
        )
        stats = (await guarded.gateway._broker_http.get("/stats?format=json")).json()

    clients = stats["topics"][[each["topic_name"] for each in stats["topics"]].index(topic)]
    # A look at whether a secret still holds is one more, at RDY 0, for that moment.
    consumers = [
        each["auth_identity"]
        for each in clients["channels"][0]["clients"]
        if each["ready_count"] > 0
    ]
    assert ["alice", "bob"] == sorted(consumers)
    identities = {each["auth_identity"] for each in stats["producers"]}
    assert {"alice", "bob"} <= identities
    addresses = [each["remote_address"] for each in stats["producers"]]
    assert len(addresses) == len(set(addresses))


async def test_a_revoked_secret_ends_its_socket_and_only_that(guarded: Guarded, topic: str) -> None:
    """Within twice the interval and a second: an error frame, then 4003."""
    guarded.server.grant(DOOMED, Grant(topic="^t-"))
    url = guarded.gateway.sub_url(topic, "c")
    async with (
        open_socket(url, headers=bearer(ALICE)) as alice,
        open_socket(url) as doomed,
    ):
        await alice.receive()
        await doomed.ask(auth(DOOMED))
        await doomed.receive()
        guarded.server.revoke(DOOMED)
        revoked_at = asyncio.get_running_loop().time()
        error = await doomed.receive()
        took_s = asyncio.get_running_loop().time() - revoked_at
        closed, _ = await doomed.closed()

        assert ("error", "E_AUTH_FAILED", 4003) == (error["type"], error["code"], closed)
        assert took_s < REVOKED_WITHIN_S
        assert "nothing came" == (await alice.next_delivery())["ref"]
        assert [1] == await poll_until(lambda: consumers_of(guarded, topic), [1])


async def consumers_of(guarded: Guarded, topic: str) -> list[int]:
    query = {"format": "json", "topic": topic}
    stats = (await guarded.gateway._broker_http.get("/stats", params=query)).json()
    return [each["client_count"] for each in stats["topics"][0]["channels"]]


async def test_an_auth_server_that_is_down_for_one_check_closes_no_socket(
    guarded: Guarded, topic: str
) -> None:
    """nsqd says the same as to a secret that was revoked; the next look is good again."""
    alone = "alone-c4e8"
    guarded.server.grant(alone, Grant(topic="^t-"))
    url = guarded.gateway.sub_url(topic, "c")
    async with open_socket(url, headers=bearer(alone)) as client:
        await client.receive()
        await asked_about(guarded, alone)
        await guarded.server.go_down()
        await guarded.gateway.program.said(f"{topic}.*secret refused at re-check")
        await guarded.server.come_back()
        await asked_about(guarded, alone)
        await asked_about(guarded, alone)

        assert "nothing came" == (await client.next_delivery())["ref"]


async def asked_about(guarded: Guarded, secret: str) -> None:
    """Return when nsqd asks about *secret* the next time."""
    while (await guarded.server.asked()).secret != secret:
        pass


async def test_require_auth_requires_a_secret_of_every_caller(
    certs: Certificates, topic: str
) -> None:
    """--require-auth, although this nsqd takes everybody."""
    async with (
        real_nsqd(*certs.server.nsqd_flags) as nsqd,
        gateway_with_nsqd(
            [nsqd.tcp_address], [nsqd.http_address], "--require-auth", *tls_flags(certs)
        ) as gateway,
    ):
        refused = await posted(gateway, topic)
        taken = await posted(gateway, topic, **bearer("anything"))
        async with open_socket(gateway.sub_url(topic, "c")) as client:
            answer = await client.ask(auth("anything"))
            subscribed = await client.receive()

    assert ((401, "AUTH_REQUIRED"), (200, "OK")) == (refused, taken)
    assert ("OK", "SUB") == (answer["data"], subscribed["cmd"])


async def test_auth_anonymous_uses_our_secret_for_callers_without_one(
    guarded: Guarded, certs: Certificates, topic: str
) -> None:
    """--auth-anonymous: who brings none is nsqd's "ours"; who brings one is who they are."""
    nsqd = guarded.nsqd
    async with gateway_with_nsqd(
        [nsqd.tcp_address],
        [nsqd.http_address],
        f"--auth-secret={OURS}",
        "--auth-anonymous",
        *tls_flags(certs),
    ) as gateway:
        without = await posted(gateway, topic)
        wrong = await posted(gateway, topic, **bearer("wrong"))
        async with gateway.subscribe(topic, "c") as client:
            delivery = await client.message()

    assert ((200, "OK"), (403, "AUTH_FAILED"), "x") == (without, wrong, delivery["body"])


async def test_auth_secret_alone_is_not_used_for_callers(
    guarded: Guarded, certs: Certificates, topic: str
) -> None:
    nsqd = guarded.nsqd
    async with gateway_with_nsqd(
        [nsqd.tcp_address], [nsqd.http_address], f"--auth-secret={OURS}", *tls_flags(certs)
    ) as gateway:
        assert (401, "AUTH_REQUIRED") == await posted(gateway, topic)


async def test_an_nsqd_found_later_gets_the_secret(
    guarded: Guarded, certs: Certificates, topic: str
) -> None:
    """Nobody has the topic yet: AUTH and the subscription are answered, and hold later."""
    async with (
        real_nsqlookupd() as lookupd,
        gateway_by_lookup(
            lookupd.http_address,
            lookupd.http_address,
            "--lookupd-poll-interval-s=0.1",
            *tls_flags(certs),
        ) as gateway,
        open_socket(gateway.sub_url(topic, "c")) as client,
    ):
        subscribed = await client.receive()
        answer = await client.ask(auth(ALICE))
        async with (
            real_nsqd(
                f"--auth-http-address={guarded.server.address}",
                f"--lookupd-tcp-address={lookupd.tcp_address}",
                "--tls-required=tcp-https",
                *certs.server.nsqd_flags,
            ) as nsqd,
            httpx.AsyncClient(base_url=f"http://{nsqd.http_address}", trust_env=False) as http,
        ):
            await http.post("/pub", content=b"x", params={"topic": topic})
            connected = await client.receive()
            delivery = await client.message()

    assert ("SUB", "AUTH", "OK") == (subscribed["cmd"], answer["cmd"], answer["data"])
    assert ("connected", "x") == (connected["data"]["state"], delivery["body"])


async def shown(gateway: RunningGateway, name: str) -> dict[str, float]:
    """Return the values of a metric, by its labels in the order of their names."""
    async with httpx.AsyncClient(trust_env=False) as http:
        text = (await http.get(f"{gateway.management_url}/metrics")).text
    return {
        "/".join(value for _, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == f"nsq_gateway_{name}"
    }


async def test_the_gateways_own_connections_bring_its_own_secret(
    guarded: Guarded, certs: Certificates, topic: str
) -> None:
    """With --require-auth too; missing counts callers that brought none, and nobody else."""
    nsqd = guarded.nsqd
    own = "own-0f77"
    guarded.server.grant(own, Grant(topic="^none$"), identity="own")
    async with gateway_with_nsqd(
        [nsqd.tcp_address],
        [nsqd.http_address],
        "--require-auth",
        f"--auth-secret={own}",
        *tls_flags(certs),
    ) as gateway:
        before = await shown(gateway, "auth_total")
        connections = await shown(gateway, "nsqd_connections")
        refused = [await posted(gateway, topic) for _ in range(3)]
        async with open_socket(gateway.sub_url(topic, "c")) as client:
            await client.ask({"cmd": "NOP", "ref": 1})
            await client.closed()
        after = await shown(gateway, "auth_total")

    assert [(401, "AUTH_REQUIRED")] * 3 == refused
    assert {"ok": 1.0, "refused": 0.0, "missing": 0.0, "unanswered": 0.0} == before
    assert {**before, "missing": 4.0} == after
    assert 1.0 == connections[f"{nsqd.tcp_address}/publisher"]
