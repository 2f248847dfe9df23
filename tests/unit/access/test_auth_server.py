"""The auth server's answers to nsqd, without a server."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlencode

import pytest
from structlog.testing import capture_logs

from gateway.access.auth_server import (
    KEY_TTL_S,
    MAX_BODY_BYTES,
    MAX_QUERY_BYTES,
    MAX_TTL_S,
    AuthApp,
    authorizations_of,
    ttl_s,
)
from gateway.access.control import AccessControl
from gateway.access.rights import KEY_ISSUER, VIEWER_CHANNELS, Grant, Identity, Permission, Rights
from gateway.broker.auth import Question
from gateway.broker.authorization import parse_answer
from tests.support.gateways.access_file import TokenIssuer, access_file, api_key, grant, grant_claim
from tests.support.http.asgi import Exchange, http_scope

SECRET, VIEWER, ADMIN = "billing-7f3a", "viewer-91c2", "admin-55d0"


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def __call__(self) -> float:
        """Return the time in seconds since 1970."""
        return time.time() + self.ahead_s


@pytest.fixture
def app(tmp_path: Path) -> AuthApp:
    path = access_file(
        tmp_path,
        api_key("billing", SECRET, grant("^orders$", "publish", "subscribe", channels=["^b"])),
        api_key("screen", VIEWER, grant("^orders$", "watch", channels=[])),
        api_key("operator", ADMIN, grant(".*", "admin")),
        api_key("binary", "a b&\xe4", grant(".*", "publish")),
    )
    access = AccessControl(path)
    access.load()
    return AuthApp(access)


async def answer_to(
    app: AuthApp,
    method: str = "GET",
    path: str = "/auth",
    *,
    query: bytes = b"",
    body: Sequence[bytes] = (b"",),
    headers: Sequence[tuple[bytes, bytes]] = (),
) -> tuple[int, dict[bytes, bytes], bytes]:
    """Return status, headers and body of the response."""
    events = [{"type": "http.request", "body": part, "more_body": True} for part in body]
    events[-1]["more_body"] = False
    scope = http_scope(method, path, query=query, headers=headers)
    start, end = (await Exchange(scope, events).run(app)).sent
    return start["status"], dict(start["headers"]), end["body"]


def asked_by_get(secret: str | bytes) -> bytes:
    """Return the query that nsqd sends."""
    given = secret.encode() if isinstance(secret, str) else secret
    question = Question(secret=given, remote_ip="127.0.0.1", is_tls=False, common_name="")
    return urlencode(question.parameters()).encode()


def asked_by_post(secret: str) -> bytes:
    """Return the body that nsqd sends after 1.3.0."""
    return json.dumps(
        {"common_name": [""], "remote_ip": ["::1"], "secret": [secret], "tls": ["true"]}
    ).encode()


async def granted(app: AuthApp, secret: str) -> Any:  # noqa: ANN401 - as JSON
    status, _, body = await answer_to(app, query=asked_by_get(secret))
    assert 200 == status
    return json.loads(body)


async def test_the_answer_has_nsqds_form(app: AuthApp) -> None:
    assert {
        "ttl": 60,
        "authorizations": [
            {"topic": "^orders$", "channels": [".*"], "permissions": ["publish"]},
            {"topic": "^orders$", "channels": ["^b"], "permissions": ["subscribe"]},
        ],
        "identity": "billing",
        "identity_url": "",
    } == await granted(app, SECRET)


async def test_get_and_post_get_the_same_answer(app: AuthApp) -> None:
    by_get = await answer_to(app, query=asked_by_get(SECRET))
    whole = asked_by_post(SECRET)
    by_post = await answer_to(app, "POST", body=[whole[:7], whole[7:]])

    assert by_get == by_post


async def test_the_embedded_brokers_client_understands_the_answer(app: AuthApp) -> None:
    _, _, body = await answer_to(app, query=asked_by_get(SECRET))

    authorization = parse_answer(body, now=100.0)

    assert 160.0 == authorization.expires_at
    assert authorization.allows("orders", "")
    assert authorization.allows("orders", "billing")
    assert not authorization.allows("orders", "archive")
    assert not authorization.allows("orders2", "")


async def test_a_viewer_subscribes_the_gateways_own_channels_only(app: AuthApp) -> None:
    (only,) = (await granted(app, VIEWER))["authorizations"]

    assert {
        "topic": "^orders$",
        "channels": [VIEWER_CHANNELS],
        "permissions": ["subscribe"],
    } == only


@pytest.mark.parametrize("algorithm", ["RS256", "ES256", "EdDSA"])
async def test_a_tokens_ttl_is_the_rest_of_its_life(
    tmp_path: Path, algorithm: Literal["RS256", "ES256", "EdDSA"]
) -> None:
    """And then it is refused as any other secret; it does not matter how often nsqd asked."""
    issuer, clock = TokenIssuer(tmp_path, algorithm=algorithm), Clock()
    access = AccessControl(access_file(tmp_path, issuer.entry), clock=clock)
    access.load()
    app = AuthApp(access)
    token = issuer.token("ann", grant_claim("^jobs$", "publish", "watch"), life_s=100.5)

    first = await granted(app, token)
    clock.ahead_s = 60
    second = await granted(app, token)
    clock.ahead_s = 100.4
    last = await granted(app, token)
    clock.ahead_s = 101
    status, _, _ = await answer_to(app, query=asked_by_get(token))

    assert [100, 40, 1, 403] == [first["ttl"], second["ttl"], last["ttl"], status]
    assert "ann" == first["identity"]
    assert [["publish"], ["subscribe"]] == [each["permissions"] for each in first["authorizations"]]


async def test_any_bytes_may_be_in_a_secret(app: AuthApp) -> None:
    answers = [
        await answer_to(app, query=asked_by_get("a b&\xe4")),
        await answer_to(app, "POST", body=[asked_by_post("a b&\xe4")]),
        await answer_to(app, query=b"secret=a+b%26%c3%a4"),
    ]

    assert [200, 200, 200] == [status for status, _, _ in answers]


REFUSED = {
    "unknown": {"query": asked_by_get("wrong")},
    "only admin": {"query": asked_by_get(ADMIN)},
    "none": {},
    "empty": {"query": b"secret="},
    "twice": {"query": f"secret={SECRET}&secret={SECRET}".encode()},
    "not UTF-8": {"query": asked_by_get(b"\xff\xfe")},
    "raw bytes": {"query": b"secret=\xff"},
    "broken escape": {"query": b"secret=%zz"},
    "many parameters": {"query": b"&".join([b"a=b"] * 17) + f"&secret={SECRET}".encode()},
    "no JSON": {"method": "POST", "body": [b"secret=" + SECRET.encode()]},
    "no list": {"method": "POST", "body": [json.dumps({"secret": SECRET}).encode()]},
    "two": {"method": "POST", "body": [json.dumps({"secret": [SECRET, SECRET]}).encode()]},
    "an empty list": {"method": "POST", "body": [b'{"secret":[]}']},
    "numbers": {"method": "POST", "body": [b'{"secret":[1]}']},
    "nested": {"method": "POST", "body": [b'{"secret":' + b"[" * 8_000]},
    "bad UTF-8": {"method": "POST", "body": [b'{"secret":["\xff"]}']},
    "a lone surrogate": {"method": "POST", "body": [b'{"secret":["\\ud800"]}']},
    "nothing": {"method": "POST"},
    "in the query of a POST": {"method": "POST", "query": asked_by_get(SECRET)},
}


@pytest.mark.parametrize("request_", REFUSED.values(), ids=REFUSED)
async def test_every_refusal_is_the_same(app: AuthApp, request_: dict[str, Any]) -> None:
    status, headers, body = await answer_to(app, **request_)

    assert (403, b"refused: this secret grants nothing here\n") == (status, body)
    assert b"no-store" == headers[b"cache-control"]
    assert b"close" == headers[b"connection"]


SECRET_QUERY = asked_by_get(SECRET)
INVALID: dict[str, tuple[int, dict[str, Any]]] = {
    "another path": (404, {"path": "/", "query": SECRET_QUERY}),
    "a path below": (404, {"path": "/auth/", "query": SECRET_QUERY}),
    "HEAD": (405, {"method": "HEAD", "query": SECRET_QUERY}),
    "PUT": (405, {"method": "PUT", "query": SECRET_QUERY}),
    "a browser": (403, {"query": SECRET_QUERY, "headers": [(b"origin", b"null")]}),
    "a long query": (414, {"query": b"secret=" + b"x" * MAX_QUERY_BYTES}),
    "a long body": (413, {"method": "POST", "body": [b"x" * MAX_BODY_BYTES, b"x"]}),
}


@pytest.mark.parametrize("status,request_", INVALID.values(), ids=INVALID)
async def test_a_request_that_is_not_nsqds_gets_its_own_status(
    app: AuthApp, status: int, request_: dict[str, Any]
) -> None:
    found, headers, body = await answer_to(app, **request_)

    assert status == found
    assert b"text/plain; charset=utf-8" == headers[b"content-type"]
    assert SECRET.encode() not in body
    assert (status == 405) == (b"allow" in headers)


async def test_a_body_at_the_limit_is_read(app: AuthApp) -> None:
    body = asked_by_post(SECRET)

    status, _, _ = await answer_to(
        app, "POST", body=[body + b" " * (MAX_BODY_BYTES - len(body)), b""]
    )

    assert 200 == status


async def test_a_peer_that_leaves_gets_no_answer_and_does_no_harm(app: AuthApp) -> None:
    exchange = Exchange(http_scope("POST", "/auth"), [{"type": "http.disconnect"}])

    assert 400 == (await exchange.run(app)).sent[0]["status"]


async def test_no_secret_is_logged(app: AuthApp) -> None:
    with capture_logs() as log:
        for secret in (SECRET, "wrong-secret", ADMIN):
            await answer_to(app, query=asked_by_get(secret))

    assert not any(secret in str(log) for secret in (SECRET, "wrong-secret", ADMIN))


@pytest.mark.parametrize(
    "issuer,left_s,expected",
    [
        ("https://id.example", 300.9, 300),
        ("https://id.example", 0.4, 1),
        ("https://id.example", -5.0, 1),
        ("https://id.example", 1e12, MAX_TTL_S),
        ("https://id.example", math.inf, MAX_TTL_S),
        (KEY_ISSUER, math.inf, KEY_TTL_S),
        (KEY_ISSUER, 1e6, KEY_TTL_S),
        (KEY_ISSUER, 7.5, 7),
    ],
)
def test_the_ttl_is_the_rest_of_a_tokens_life(issuer: str, left_s: float, expected: int) -> None:
    identity = Identity(issuer, "me", Rights(), expires_at=1_000.0 + left_s)

    assert expected == ttl_s(identity, 1_000.0)


def test_a_grant_without_a_channel_means_no_subscription() -> None:
    grants = [
        Grant("^a$", (Permission.SUBSCRIBE, Permission.PUBLISH)),
        Grant("^a$", (Permission.PUBLISH,), (".*",)),
        Grant("^a$", (Permission.ADMIN,), (".*",)),
    ]

    (only,) = authorizations_of(grants)

    assert ("publish",) == only.permissions
