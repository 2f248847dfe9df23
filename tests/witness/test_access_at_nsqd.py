"""An access file in front of a real nsqd that requires AUTH: whose secret nsqd gets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path

import pytest

from tests.support.brokers.auth_server import AuthServer, Grant, auth_server
from tests.support.brokers.nsqd import real_nsqd
from tests.support.brokers.restartable_nsqd import restartable_nsqd
from tests.support.gateways.access_file import (
    TokenIssuer,
    access_file,
    api_key,
    grant,
    grant_claim,
    key_of,
)
from tests.support.gateways.gateway import RunningGateway, gateway_with_nsqd
from tests.support.websocket.subscriber_client import open_socket

pytestmark = pytest.mark.nsqd

KEY, OURS = key_of("alice"), "ours-55d0"
GRANT = grant("^t$", "publish", "subscribe")


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


async def publish(gateway: RunningGateway, secret: str, topic: str = "t") -> int:
    answer = await gateway.http.post(
        "/pub", params={"topic": topic}, content=b"x", headers=bearer(secret)
    )
    return answer.status_code


@asynccontextmanager
async def guarded(folder: Path, server: AuthServer, *flags: str) -> AsyncIterator[RunningGateway]:
    """Run a gateway with an access file in front of an nsqd that asks *server*."""
    file = access_file(folder, api_key("alice", KEY, GRANT))
    async with (
        real_nsqd(f"--auth-http-address={server.address}") as nsqd,
        gateway_with_nsqd(
            [nsqd.tcp_address], [nsqd.http_address], f"--access-file={file}", *flags
        ) as gateway,
    ):
        yield gateway


@pytest.mark.parametrize("auth,sent", [("own", OURS), ("caller", KEY)])
async def test_nsqd_gets_the_secret_of_the_setting(tmp_path: Path, auth: str, sent: str) -> None:
    """On publishes, consumers and viewers alike, and the caller's rights are the file's."""
    own = (f"--nsqd-auth={auth}", f"--auth-secret={OURS}")
    async with auth_server() as server:
        server.grant(sent, Grant())
        async with guarded(tmp_path, server, *own) as gateway:
            consumer = gateway.sub_url("t", "c")
            async with (
                open_socket(consumer, headers=bearer(KEY)) as client,
                open_socket(gateway.sub_url("t"), headers=bearer(KEY)) as viewer,
            ):
                assert ["SUB", "SUB"] == [
                    (await each.receive())["cmd"] for each in (client, viewer)
                ]
                statuses = [await publish(gateway, KEY), await publish(gateway, KEY, "other")]
                seen = [(await each.message())["body"] for each in (client, viewer)]
                asked = {secret for secret, count in server.counts.items() if count}

    assert [HTTPStatus.OK, HTTPStatus.FORBIDDEN] == statuses
    assert ["x", "x"] == seen
    assert sent in asked
    assert asked <= {sent, OURS}  # the gateway's own connection, for its monitoring


async def test_a_renewed_token_is_the_one_for_an_nsqd_that_comes_back(tmp_path: Path) -> None:
    issuer = TokenIssuer(tmp_path)
    old, fresh = (
        issuer.token("bob", grant_claim("^t$", "publish", "subscribe"), life_s=life_s)
        for life_s in (3_600, 7_200)
    )
    file = access_file(tmp_path, issuer.entry)
    async with auth_server() as server:
        server.grant(old, Grant())
        server.grant(fresh, Grant())
        async with (
            restartable_nsqd(f"--auth-http-address={server.address}") as nsqd,
            gateway_with_nsqd(
                [nsqd.tcp_address], [nsqd.http_address], f"--access-file={file}"
            ) as gateway,
            open_socket(gateway.sub_url("t", "c"), headers=bearer(old)) as client,
        ):
            assert "SUB" == (await client.receive())["cmd"]
            await client.send({"cmd": "AUTH", "secret": fresh, "ref": "renewed"})
            renewed = (await client.receive_until("renewed"))[-1]
            server.revoke(old)
            await nsqd.end()
            await nsqd.start()
            states = [(await client.receive())["data"]["state"]]
            while states[-1] != "connected":
                states.append((await client.receive())["data"]["state"])
            status = await publish(gateway, fresh)
            message = await client.message()

    assert "response" == renewed["type"]
    assert "disconnected" in states
    assert (HTTPStatus.OK, "x") == (status, message["body"])
