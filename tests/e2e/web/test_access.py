"""Tokens and keys on open sockets: when they end, when they go on, and what they may do."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from uuid import uuid4

import pytest
import pytest_asyncio
from websockets.exceptions import InvalidStatus

from tests.support.gateways.access_file import (
    TokenIssuer,
    access_file,
    api_key,
    grant,
    grant_claim,
    key_of,
)
from tests.support.gateways.gateway import RunningGateway, gateway_alone
from tests.support.websocket.subscriber_client import Json, SubscriberClient, open_socket

pytestmark = pytest.mark.asyncio(loop_scope="session")

LIFE_S = 3.0
ENDS_WITHIN_S = 2.0
PUBLISHER = key_of("publisher")
AS_PUBLISHER = {"Authorization": f"Bearer {PUBLISHER}"}


@dataclass
class Guarded:
    """A gateway with an access file, and the issuer that it trusts."""

    gateway: RunningGateway
    issuer: TokenIssuer
    folder: Path

    def token(self, subject: str, *, life_s: float = 3_600, topic: str = "^orders") -> str:
        return self.issuer.token(subject, grant_claim(topic, "subscribe"), life_s=life_s)

    def write(self, *more: str) -> str:
        """Write the access file: the issuer, a publisher, and *more* entries."""
        publisher = api_key("publisher", PUBLISHER, grant(".*", "publish"))
        return access_file(self.folder, self.issuer.entry, publisher, *more)

    async def publish(self, topic: str, body: bytes) -> None:
        answer = await self.gateway.http.post(
            "/pub", params={"topic": topic}, content=body, headers=AS_PUBLISHER
        )
        assert HTTPStatus.OK == answer.status_code


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def guarded(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Guarded]:
    folder = tmp_path_factory.mktemp("access")
    issuer = TokenIssuer(folder)
    guarded = Guarded(None, issuer, folder)  # type: ignore[arg-type]
    async with gateway_alone(
        f"--access-file={guarded.write()}", "--max-sockets-per-secret=2"
    ) as gateway:
        guarded.gateway = gateway
        yield guarded


@pytest.fixture
def topic() -> str:
    """A topic of this test alone, whose name begins with orders."""
    return f"orders-{uuid4().hex}"


def auth(secret: str, ref: str = "auth") -> Json:
    return {"cmd": "AUTH", "secret": secret, "ref": ref}


async def signed_in(client: SubscriberClient, secret: str) -> Json:
    """Send AUTH; return the data of its response, once SUB has come, too."""
    answer = await client.ask(auth(secret))
    assert ("response", "AUTH") == (answer["type"], answer["cmd"]), answer
    assert "SUB" == (await client.receive())["cmd"]
    data: Json = answer["data"]
    return data


@pytest.mark.parametrize("channel", ["c-ends", None], ids=["consumer", "viewer"])
async def test_a_stream_ends_within_two_seconds_of_its_token(
    guarded: Guarded, topic: str, channel: str | None
) -> None:
    permission = "watch" if channel is None else "subscribe"
    ends_at = time.time() + LIFE_S
    token = guarded.issuer.token("dora", grant_claim("^orders", permission), life_s=LIFE_S)
    url = guarded.gateway.sub_url(topic, channel)
    async with open_socket(url) as client:
        data = await signed_in(client, token)
        code, _ = await client.closed()
        late_s = time.time() - ends_at

    assert ("dora", 1) == (data["identity"], data["permission_count"])
    assert 0 < data["expires_in_ms"] <= LIFE_S * 1000
    assert 4003 == code
    assert 0 <= late_s <= ENDS_WITHIN_S


async def test_a_fresher_token_of_the_same_subject_extends_the_stream(
    guarded: Guarded, topic: str
) -> None:
    """A socket beside it with the first token shows when that has ended."""
    first = guarded.token("erin", life_s=LIFE_S)
    url = guarded.gateway.sub_url(topic, "c-renewed")
    async with open_socket(url) as renewed, open_socket(url) as other:
        await signed_in(renewed, first)
        await signed_in(other, first)
        answer = await renewed.ask(auth(guarded.token("erin"), "again"))
        assert 4003 == (await other.closed())[0]
        await guarded.publish(topic, b"after the first token")
        message = await renewed.message()
        await renewed.finish(message)

    assert ("response", "again") == (answer["type"], answer["ref"])
    assert answer["data"]["expires_in_ms"] > 3_000_000
    assert ("after the first token", 1) == (message["body"], message["attempts"])


@pytest.mark.parametrize(
    "subject,life_s,pattern,code",
    [
        ("mallory", 3_600, "^orders", "E_INVALID"),
        (None, 60, "^orders", "E_INVALID"),
        (None, 7_200, "^other$", "E_UNAUTHORIZED"),
        (None, -1, "^orders", "E_AUTH_FAILED"),
    ],
    ids=["another subject", "an earlier end", "fewer rights", "expired"],
)
async def test_a_renewal_that_is_refused_leaves_the_stream(
    guarded: Guarded, topic: str, subject: str | None, life_s: float, pattern: str, code: str
) -> None:
    async with open_socket(guarded.gateway.sub_url(topic, "c-kept")) as client:
        own = f"user of {topic}"
        await signed_in(client, guarded.token(own))
        refused = await client.ask(
            auth(guarded.token(subject or own, life_s=life_s, topic=pattern), "2")
        )
        await guarded.publish(topic, b"still here")
        message = await client.message()
        await client.finish(message)

    assert ("error", "2", code) == (refused["type"], refused["ref"], refused["code"])
    assert "still here" == message["body"]


async def test_a_key_that_leaves_the_file_ends_its_stream(guarded: Guarded, topic: str) -> None:
    secret = key_of("leaver")
    guarded.write(api_key("leaver", secret, grant("^orders", "subscribe")))
    await guarded.gateway.program.said("access file reloaded")
    url = guarded.gateway.sub_url(topic, "c-left")
    async with open_socket(url, headers={"Authorization": f"Bearer {secret}"}) as client:
        assert "SUB" == (await client.receive())["cmd"]
        guarded.write()
        code, _ = await client.closed()

    assert 4003 == code
    with pytest.raises(InvalidStatus) as refused:
        async with open_socket(url, headers={"Authorization": f"Bearer {secret}"}):
            pass
    assert HTTPStatus.UNAUTHORIZED == refused.value.response.status_code


async def test_sockets_count_by_subject_whatever_the_token(guarded: Guarded, topic: str) -> None:
    url = guarded.gateway.sub_url(topic, "c-many")
    tokens = [guarded.token("gina", life_s=life_s) for life_s in (100, 200, 300)]
    async with open_socket(url) as first, open_socket(url) as second:
        await signed_in(first, tokens[0])
        await signed_in(second, tokens[1])
        with pytest.raises(InvalidStatus) as refused:
            async with open_socket(url, headers={"Authorization": f"Bearer {tokens[2]}"}):
                pass
        async with open_socket(url) as other:
            await signed_in(other, guarded.token("hugo"))

    assert HTTPStatus.SERVICE_UNAVAILABLE == refused.value.response.status_code


async def test_a_viewers_channel_is_not_for_those_who_may_only_watch(
    guarded: Guarded, topic: str
) -> None:
    """They would take a part of its messages."""
    token = guarded.issuer.token("kim", grant_claim("^orders", "watch"))
    async with open_socket(guarded.gateway.sub_url(topic)) as viewer:
        await viewer.send(auth(token))
        (subscribed,) = [
            each
            for each in (await viewer.receive(), await viewer.receive())
            if each["cmd"] == "SUB"
        ]
        channel = subscribed["data"]["channel"]
        async with open_socket(guarded.gateway.sub_url(topic, channel)) as thief:
            refused = await thief.ask(auth(token))
            code, _ = await thief.closed()

    assert channel.startswith("gw.")
    assert ("error", "E_UNAUTHORIZED", 4503) == (refused["type"], refused["code"], code)


async def test_a_publish_on_a_socket_needs_the_permission(guarded: Guarded, topic: str) -> None:
    async with open_socket(guarded.gateway.sub_url(topic, "c-pub")) as client:
        await signed_in(client, guarded.token("ivan"))
        refused = await client.ask({"cmd": "PUB", "topic": topic, "body": "x", "ref": 1})
        token = guarded.issuer.token(
            "ivan", grant_claim("^orders", "subscribe", "publish"), life_s=7_200
        )
        await client.ask(auth(token, "more rights"))
        published = await client.ask({"cmd": "PUB", "topic": topic, "body": "y", "ref": 2})
        message = await client.message() if published["type"] == "response" else published
        await client.finish(message)

    assert ("error", "E_UNAUTHORIZED") == (refused["type"], refused["code"])
    assert "y" == message["body"]


async def test_a_keep_alive_connection_does_not_outlive_its_token(
    guarded: Guarded, topic: str
) -> None:
    """Its head is cached until then."""
    token = guarded.issuer.token("judy", grant_claim("^orders", "publish"), life_s=LIFE_S)
    headers = {"Authorization": f"Bearer {token}"}
    statuses: list[int] = []
    while not statuses or statuses[-1] == HTTPStatus.OK:
        answer = await guarded.gateway.http.post(
            "/pub", params={"topic": topic}, content=b"x", headers=headers
        )
        statuses.append(answer.status_code)

    assert HTTPStatus.UNAUTHORIZED == statuses[-1]
    assert len(statuses) > 2
    assert "AUTH_FAILED" == answer.json()["message"]
