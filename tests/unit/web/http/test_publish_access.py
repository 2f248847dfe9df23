"""Publishes by the access file: who may, how long a head is remembered, and whose rate counts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from gateway.credentials import Secret
from gateway.protocol.wire import Limits
from gateway.web.auth import AccessPolicy
from gateway.web.rate_limit import PublishBuckets
from tests.support.gateways.access_file import TokenIssuer, api_key, grant, grant_claim
from tests.support.gateways.moved_control import EPOCH, MovedControl
from tests.support.gateways.public_http import PublicHttp, public_http
from tests.support.http.raw_http import read_response
from tests.support.http.recording_publisher import RecordingPublisher
from tests.support.websocket.raw_socket import RawSocket, raw_socket

SMALL = Limits(max_msg_size_bytes=10, max_body_size_bytes=40)
ALICE = api_key("alice", "alice-key", grant("^t$", "publish"))
BOB = api_key("bob", "bob-key", grant("^b$", "publish"), grant(".*", "subscribe", "watch"))
ALICE_ELSEWHERE = api_key("alice", "alice-key", grant("^u$", "publish"))


@pytest.fixture
def publisher() -> RecordingPublisher:
    return RecordingPublisher()


@pytest.fixture
def issuer(tmp_path: Path) -> TokenIssuer:
    return TokenIssuer(tmp_path)


@pytest.fixture
def control(tmp_path: Path, issuer: TokenIssuer) -> MovedControl:
    return MovedControl(tmp_path, issuer.entry, ALICE, BOB)


@pytest_asyncio.fixture
async def served(publisher: RecordingPublisher, control: MovedControl) -> AsyncIterator[PublicHttp]:
    async with public_http(publisher, SMALL, access=AccessPolicy(control=control)) as served:
        yield served


def head(secret: str, path: str = "/pub?topic=t", size: int = 2, more: str = "") -> bytes:
    lines = [
        *(f"POST {path} HTTP/1.1", "Host: gateway", f"Authorization: Bearer {secret}"),
        f"Content-Length: {size}",
    ]
    return ("\r\n".join(lines) + f"\r\n{more}\r\n").encode()


async def status_of(raw: RawSocket, request: bytes) -> int:
    await raw.send(request)
    return (await read_response(raw)).status


# Who may


@pytest.mark.parametrize("route", ["/pub", "/mpub"])
@pytest.mark.parametrize(
    "secret,topic,status,token",
    [
        ("alice-key", "t", 200, None),
        ("alice-key", "t2", 403, "UNAUTHORIZED"),
        ("bob-key", "t", 403, "UNAUTHORIZED"),
        ("bob-key", "b", 200, None),
        ("carol-key", "t", 401, "AUTH_FAILED"),
        (None, "t", 401, "AUTH_REQUIRED"),
        ("alice-key", "no topic", 400, "INVALID_TOPIC"),
        ("alice key", "t", 400, "INVALID_AUTHORIZATION"),
    ],
)
async def test_a_publish_needs_the_right(
    route: str, secret: str | None, topic: str, status: int, token: str | None, served: PublicHttp
) -> None:
    headers = {} if secret is None else {"Authorization": f"Bearer {secret}"}
    answer = await served.http.post(route, params={"topic": topic}, content=b"x", headers=headers)

    assert status == answer.status_code
    if token is not None:
        assert token == answer.json()["message"]
    challenge = {"AUTH_FAILED": 'Bearer error="invalid_token"', "AUTH_REQUIRED": "Bearer"}
    assert challenge.get(token or "") == answer.headers.get("www-authenticate")


async def test_connections_to_nsqd_are_shared_unless_it_wants_auth(
    served: PublicHttp, publisher: RecordingPublisher
) -> None:
    """A cached head, too, decides by what nsqd wants now."""
    async with raw_socket(served.address) as raw:
        for requires_auth in (False, False, True, True):
            publisher.requires_auth = requires_auth
            assert 200 == await status_of(raw, head("alice-key") + b"ab")

    assert [None, None, *[Secret(b"alice-key")] * 2] == publisher.secrets


@pytest.mark.parametrize("path", ["/pub?topic=t2", "/mpub?topic=t2"])
async def test_the_right_is_checked_before_the_body(path: str, served: PublicHttp) -> None:
    """A client that waits for 100 Continue is refused instead."""
    async with raw_socket(served.address) as raw:
        await raw.send(head("alice-key", path, more="Expect: 100-continue\r\n"))
        refused = (await read_response(raw)).status
    async with raw_socket(served.address) as raw:
        await raw.send(head("alice-key", path, size=9))

        assert (403, 403) == (refused, (await read_response(raw)).status)


async def test_the_right_is_checked_before_the_size_of_the_body(served: PublicHttp) -> None:
    """What a caller may not do at all is not discussed in detail."""
    async with raw_socket(served.address) as raw:
        await raw.send(head("alice-key", "/pub?topic=t2", size=10_000))

        assert 403 == (await read_response(raw)).status


# Cached heads


async def test_a_cached_head_ends_with_its_token(
    served: PublicHttp, control: MovedControl, issuer: TokenIssuer
) -> None:
    """The clock is compared at each use, so that a step of it counts in both directions."""
    token = issuer.token("carol", grant_claim("^t$", "publish"), life_s=60, now=EPOCH)
    request = head(token) + b"ab"
    async with raw_socket(served.address) as raw:
        found = []
        for step_s in (0, 59, 0.999, 0.001, 3_600, -3_660, 61):
            control.now += step_s
            found.append(await status_of(raw, request))

    assert [200, 200, 200, 401, 401, 200, 401] == found


async def test_a_head_is_cached_for_a_caller_of_the_file(
    served: PublicHttp, control: MovedControl
) -> None:
    """Or else the next test would show nothing."""
    async with raw_socket(served.address) as raw:
        for _ in range(5):
            assert 200 == await status_of(raw, head("alice-key") + b"ab")

    assert 1 == control.identified


@pytest.mark.parametrize(
    "after,status", [((BOB,), 401), ((ALICE_ELSEWHERE,), 403), ((ALICE, BOB), 200)]
)
async def test_a_change_drops_cached_heads(
    after: tuple[str, ...], status: int, served: PublicHttp, control: MovedControl
) -> None:
    async with raw_socket(served.address) as raw:
        for _ in range(2):
            assert 200 == await status_of(raw, head("alice-key") + b"ab")
        control.change(*after)

        assert status == await status_of(raw, head("alice-key") + b"ab")
    assert 2 == control.identified


async def test_a_change_before_the_body_leaves_nothing_cached(
    served: PublicHttp, control: MovedControl
) -> None:
    """The request that was admitted goes on; the next one with the same head is looked at anew."""
    async with raw_socket(served.address) as raw:
        await raw.send(head("alice-key", more="Expect: 100-continue\r\n"))
        assert 100 == (await read_response(raw)).status
        control.change(BOB)
        await raw.send(b"ab")
        admitted = (await read_response(raw)).status
    async with raw_socket(served.address) as raw:
        await raw.send(head("bob-key", "/pub?topic=b", size=2) + b"a")
        await served.http.get("/ping")  # what was sent before has been read
        control.change(ALICE)
        assert 200 == await status_of(raw, b"b")
        again = await status_of(raw, head("bob-key", "/pub?topic=b", size=2) + b"ab")

    assert (200, 401) == (admitted, again)


# The rate


async def test_the_rate_counts_an_identity(
    publisher: RecordingPublisher, control: MovedControl, issuer: TokenIssuer
) -> None:
    """Whatever token it brings, and not those of others at the same address."""
    carol = grant_claim("^t$", "publish")
    tokens = [issuer.token("carol", carol, life_s=each, now=EPOCH) for each in (60, 61)]
    dave = issuer.token("dave", carol, now=EPOCH)
    limit = PublishBuckets(0.001, burst=1)
    access = AccessPolicy(control=control)

    async with public_http(publisher, SMALL, access=access, rate_limit=limit) as served:

        async def publish(secret: str, topic: str = "t") -> int:
            headers = {"Authorization": f"Bearer {secret}"}
            url = f"/pub?topic={topic}"
            return (await served.http.post(url, content=b"x", headers=headers)).status_code

        found = [await publish(secret) for secret in (*tokens, dave, "alice-key", "alice-key")]
        refused = [await publish("wrong") for _ in range(3)]

    assert [200, 429, 200, 200, 429] == found
    assert [401] * 3 == refused


async def test_a_request_without_the_right_costs_no_rate(
    publisher: RecordingPublisher, control: MovedControl
) -> None:
    limit = PublishBuckets(0.001, burst=1)
    access = AccessPolicy(control=control)
    async with public_http(publisher, SMALL, access=access, rate_limit=limit) as served:
        http: httpx.AsyncClient = served.http
        headers = {"Authorization": "Bearer alice-key"}
        found = [
            (await http.post(f"/pub?topic={topic}", content=b"x", headers=headers)).status_code
            for topic in ("t2", "t2", "t", "t2")
        ]

    assert [403, 403, 200, 429] == found
