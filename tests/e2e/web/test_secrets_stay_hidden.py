"""No secret or token is told: not in a log, a metric, an answer, a frame or a close."""

from __future__ import annotations

import base64
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Literal

import httpx
import pytest
import pytest_asyncio
from prometheus_client.exposition import generate_latest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from gateway.access.control import AccessControl
from gateway.client.producer import Producer
from gateway.credentials import Secret
from gateway.telemetry import REGISTRY, configure_logging
from gateway.web.auth import AccessPolicy
from gateway.web.subscribe.upstream import DedicatedUpstream
from tests.support.brokers.auth_broker import AuthBroker
from tests.support.brokers.embedded_broker import embedded_broker
from tests.support.gateways.access_file import TokenIssuer, api_key, grant, grant_claim
from tests.support.gateways.moved_control import EPOCH, MovedControl
from tests.support.gateways.public_port import public_port
from tests.support.websocket.raw_socket import handshake, raw_socket
from tests.support.websocket.subscriber_client import Json, open_socket, sub_url

GOOD = ("0good-pub", "1good-header", "2good-frame", "3good-entry", "4good-doomed")
BAD = ("5bad-pub", "6bad-header", "7bad-frame", "8bad-entry", "9bad-grant")
WRONG = ("awrong two words", "bwrong-padded", "cwrong-in-query", "dwrong-broken", "ewrong-second")
SECRETS = (*GOOD, *BAD, *WRONG)


class Told:
    """Everything that anybody was told."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def answer(self, answer: httpx.Response) -> int:
        """Keep an answer, headers too; return its status."""
        self.texts.append(f"{answer.headers} {answer.text}")
        return answer.status_code

    def leaks(self, text: str, secrets: Iterable[str] = SECRETS) -> list[str]:
        """Return which of *secrets* were told, here or in *text*, plain or encoded."""
        everything = "\n".join([*self.texts, text])
        return [
            secret
            for secret in secrets
            if any(form in everything for form in (secret, encoded(secret), repr(secret.encode())))
        ]


def encoded(secret: str) -> str:
    """Return *secret* in base64url without padding."""
    return base64.urlsafe_b64encode(secret.encode()).decode().rstrip("=")


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


@pytest.fixture(params=["json", "console"])
def logged(
    request: pytest.FixtureRequest, capfd: pytest.CaptureFixture[str]
) -> pytest.CaptureFixture[str]:
    """Log at debug in either form, what uvicorn and websockets say too."""
    log_format: Literal["json", "console"] = request.param
    configure_logging(log_format, "debug")
    logging.getLogger("uvicorn").setLevel(logging.DEBUG)
    # The test's own clients, which are no part of the gateway.
    logging.getLogger("websockets").setLevel(logging.WARNING)
    return capfd


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[AuthBroker]:
    """A broker that knows the good secrets, and one that is good for nothing here."""
    broker = AuthBroker()
    broker.grants = {secret.encode(): {"t"} for secret in GOOD}
    broker.grants[b"9bad-grant"] = {"elsewhere"}
    await broker.start()
    yield broker
    await broker.stop()


async def test_no_secret_is_told(
    broker: AuthBroker,
    logged: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Header, frame and subprotocol entry; taken, refused, malformed, revoked, and in a failure."""
    told = Told()
    access = AccessPolicy(reauth_interval_s=0.1)
    async with public_port([broker.address], access=access) as port:
        await publish(told, port)
        await subscribe(told, port)
        await be_revoked(told, port, broker)
        await break_down(told, port, monkeypatch)
        async with raw_socket(port.removeprefix("http://")) as raw:
            entry = f"nsq.auth.{encoded('bwrong-padded')}=, nsq.json.v1".encode()
            request = handshake("gateway", "/sub?topic=t")
            head = b"Sec-WebSocket-Protocol: " + entry + b"\r\n\r\n"
            await raw.send(request.removesuffix(b"\r\n") + head)
            malformed = (await raw.read_to_end()).decode()
    told.texts += [malformed, generate_latest(REGISTRY).decode()]
    captured = logged.readouterr()

    assert "subscriber connected" in captured.err
    assert 2 == captured.err.count("ValueError: a bug")
    assert "Sec-WebSocket-Protocol is malformed" in malformed
    assert [] == told.leaks(captured.out + captured.err)


async def publish(told: Told, port: str) -> None:
    """Publish with secrets in the header, right and wrong, and one in the address."""
    async with httpx.AsyncClient(base_url=port, trust_env=False) as http:
        assert [200, 403, 403, 400, 400, 401] == [
            told.answer(await http.post(f"/pub?topic=t{query}", content=b"x", headers=headers))
            for query, headers in (
                ("", [("Authorization", "Bearer 0good-pub")]),
                ("", [("Authorization", "Bearer 5bad-pub")]),
                ("", [("Authorization", "Bearer 9bad-grant")]),
                ("", [("Authorization", "Bearer awrong two words")]),
                (
                    "",
                    [
                        ("Authorization", "Bearer 0good-pub"),
                        ("Authorization", "Bearer ewrong-second"),
                    ],
                ),
                ("&secret=cwrong-in-query", []),
            )
        ]


async def subscribe(told: Told, port: str) -> None:
    """Subscribe with each way to bring a secret, right and wrong."""
    url = sub_url(port, "t", "c")
    spoken = "nsq.json.v1"
    await visit(told, url, headers=bearer("1good-header"))
    await visit(told, url, headers=bearer("6bad-header"))
    await visit(told, url, headers=bearer("awrong two words"))
    await visit(told, url, subprotocols=[f"nsq.auth.{encoded('3good-entry')}", spoken])
    await visit(told, url, subprotocols=[f"nsq.auth.{encoded('8bad-entry')}", spoken])
    await visit(told, url, subprotocols=[f"nsq.auth.{encoded('8bad-entry')}"])
    await visit(told, url, subprotocols=[f"nsq.auth.{encoded('8bad-entry')}", "mqtt"])
    await visit(told, url, {"cmd": "AUTH", "secret": "2good-frame"})
    await visit(told, url, {"cmd": "AUTH", "secret": "7bad-frame"})
    await visit(told, url, {"cmd": "AUTH", "secret": "2good-frame"}, {"cmd": "AUTH", "secret": "x"})
    await visit(told, url, {"cmd": "AUTH", "secret": ["7bad-frame"]}, {"cmd": "NOP"})


async def visit(told: Told, url: str, *commands: Json, **options: object) -> None:
    """Open a socket, say *commands* and CLS, and keep all that is said until the close."""
    try:
        async with open_socket(url, **options) as client:  # type: ignore[arg-type]
            await client.send(*commands, {"cmd": "CLS"})
            with contextlib.suppress(ConnectionClosed):
                while True:
                    told.texts.append(str(await client.connection.recv()))
            told.texts.append(str(client.connection.close_reason))
            told.texts.append(str(client.connection.subprotocol))
    except InvalidStatus as error:
        told.texts.append(f"{error.response.headers} {error.response.body!r}")


async def be_revoked(told: Told, port: str, broker: AuthBroker) -> None:
    """Subscribe with a secret, and be sent away for it."""
    async with open_socket(sub_url(port, "t", "c"), headers=bearer("4good-doomed")) as client:
        await client.receive()
        del broker.grants[b"4good-doomed"]
        told.texts.append(json.dumps(await client.receive()))
        told.texts.append(str(await client.closed()))


async def break_down(told: Told, port: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Find a bug in the gateway, with a secret at hand: it is logged with its traceback."""
    monkeypatch.setattr(Producer, "begin", fail)
    async with httpx.AsyncClient(base_url=port, trust_env=False) as http:
        headers = bearer("dwrong-broken")
        answer = await http.post("/pub?topic=t", content=b"x", headers=headers)
        assert 500 == told.answer(answer)
    join = DedicatedUpstream.subscribe

    async def join_or_fail(self: DedicatedUpstream, secret: Secret | None) -> None:
        if secret is not None:
            fail()
        await join(self, secret)

    monkeypatch.setattr(DedicatedUpstream, "subscribe", join_or_fail)
    await visit(told, sub_url(port, "t", "c"), {"cmd": "AUTH", "secret": "dwrong-broken"})


async def test_no_token_is_told(
    tmp_path: Path, logged: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor a part of one: by the access file, taken, renewed, refused, ended, and in a failure."""
    told = Told()
    issuer = TokenIssuer(tmp_path)
    mine = grant_claim("^t$", "publish", "subscribe")
    good, fresh, ended, early, elsewhere, doomed = (
        issuer.token("alice", mine, now=EPOCH, **claims)
        for claims in (
            {"life_s": 60},
            {"life_s": 120},
            {"life_s": -1},
            {"nbf": EPOCH + 600},
            {"aud": "elsewhere"},
            {"life_s": 30, "jti": "doomed"},
        )
    )
    stranger = TokenIssuer(tmp_path, "https://stranger.example.com").token("x", mine, now=EPOCH)
    head, payload, _ = good.split(".")
    cut, unsigned = good[:-9], f"{head}.{payload}."
    key, wrong_key = "fkey-of-a-worker", "gkey-of-nobody"
    refused = (ended, early, elsewhere, stranger, cut, unsigned, wrong_key, f"{good}.{payload}")
    entry = api_key("worker", key, grant(".*", "publish"))
    control = MovedControl(tmp_path, issuer.entry, entry)
    async with (
        embedded_broker() as broker,
        public_port([broker.tcp_address], access=AccessPolicy(control=control)) as port,
        httpx.AsyncClient(base_url=port, trust_env=False) as http,
    ):
        url = sub_url(port, "t", "c")
        for secret in (good, key, *refused):
            for topic in ("t", "u"):
                told.answer(await http.post(f"/pub?topic={topic}", headers=bearer(secret)))
            await visit(told, url, headers=bearer(secret))
            await visit(told, url, subprotocols=[f"nsq.auth.{encoded(secret)}", "nsq.json.v1"])
            await visit(told, url, {"cmd": "AUTH", "secret": secret})
            await visit(told, url, auth(good), auth(secret))
        await visit(told, url, auth(good), auth(fresh))
        async with open_socket(url, headers=bearer(doomed)) as client:
            await client.receive()
            control.now += 31
            told.texts += [json.dumps(await client.receive()), str(await client.closed())]
        monkeypatch.setattr(AccessControl, "identify", fail)
        answer = await http.post("/pub?topic=t", content=b"x", headers=bearer(fresh))
        assert httpx.codes.INTERNAL_SERVER_ERROR == told.answer(answer)
        await visit(told, url, auth(fresh))
    told.texts += [generate_latest(REGISTRY).decode(), repr(control), repr(Secret(good.encode()))]
    captured = logged.readouterr()

    assert "credential refused" in captured.err
    assert any("the token has expired" in text for text in told.texts)
    secrets = (good, fresh, doomed, key, *refused)
    parts = {part for secret in secrets for part in secret.split(".")[1:] if part}
    assert [] == told.leaks(captured.out + captured.err, {*secrets, *parts})


def auth(secret: str) -> Json:
    return {"cmd": "AUTH", "secret": secret}


def fail(*_: object, **__: object) -> None:
    raise ValueError("a bug")
