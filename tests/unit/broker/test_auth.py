"""Auth servers are asked as nsqd asks them, and within time and size limits."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import pytest

from gateway.broker.auth import AuthClient, AuthFailed, AuthOptions, Question
from gateway.broker.authorization import Authorization
from tests.support.brokers.killable_broker import free_port
from tests.support.certificates import Certificates, certificates

GRANTED = json.dumps(
    {
        "ttl": 60,
        "identity": "me",
        "authorizations": [{"topic": "t", "channels": [""], "permissions": ["publish"]}],
    }
).encode()
QUESTION = Question(secret=b"a b&\xff\xc3\xa4", remote_ip="::1", is_tls=True, common_name="c n")


class Server:
    """An HTTP server that records requests, and sends what it was told to."""

    def __init__(self) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        self.requests: list[bytes] = []
        self.answers: list[bytes | None] = []
        """Answers in order, the last one again and again; None stays silent."""
        self.serving: list[asyncio.Task[None] | None] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        self.serving.append(asyncio.current_task())
        head = await reader.readuntil(b"\r\n\r\n")
        _, _, length = head.lower().partition(b"content-length: ")
        body = await reader.readexactly(int(length.split(b"\r\n")[0] or 0))
        self.requests.append(head + body)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer is None:
            await reader.read()
        else:
            writer.write(answer)
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


def http(body: bytes, status: str = "200 OK", *headers: str) -> bytes:
    """Return an HTTP response."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close", *headers]
    return "\r\n".join((*lines, "", "")).encode() + body


@asynccontextmanager
async def running(
    *answers: bytes | None, context: ssl.SSLContext | None = None
) -> AsyncIterator[Server]:
    """Run a server with these *answers*, with *context* over TLS."""
    server = Server()
    server.answers = list(answers)
    host, _, port = server.address.rpartition(":")
    listener = await asyncio.start_server(server.serve, host, int(port), ssl=context)
    try:
        yield server
    finally:
        listener.close()
        await asyncio.gather(*filter(None, server.serving))


async def ask(*addresses: str, **changes: object) -> Authorization:
    """Ask the auth servers at *addresses*, with *changes* of the options."""
    options = replace(AuthOptions(addresses=addresses, request_timeout_ms=20_000), **changes)  # type: ignore[arg-type]
    client = AuthClient(options)
    try:
        return await client.ask(QUESTION)
    finally:
        await client.close()


async def failure(*addresses: str, **changes: object) -> str:
    """Return why asking failed."""
    with pytest.raises(AuthFailed) as caught:
        await ask(*addresses, **changes)
    return str(caught.value)


async def test_get_has_nsqds_parameters_and_header() -> None:
    async with running(http(GRANTED)) as server:
        holds = await ask(server.address)

    head = server.requests[0]
    parameters = b"common_name=c+n&remote_ip=%3A%3A1&secret=a+b%26%FF%C3%A4&tls=true"
    assert b"GET /auth?" + parameters + b" HTTP/1.1" == head.split(b"\r\n")[0]
    assert b"\r\naccept: application/vnd.nsq; version=1.0\r\n" in head.lower()
    assert ("me", True) == (holds.identity, holds.allows("t", ""))


async def test_post_has_lists_in_json() -> None:
    async with running(http(GRANTED)) as server:
        await ask(server.address, method="post")

    head, _, body = server.requests[0].partition(b"\r\n\r\n")
    assert b"POST /auth HTTP/1.1" == head.split(b"\r\n")[0]
    assert {
        "common_name": ["c n"],
        "remote_ip": ["::1"],
        "secret": ["a b&\ufffdä"],
        "tls": ["true"],
    } == json.loads(body)


async def test_a_url_is_used_as_it_is() -> None:
    async with running(http(GRANTED)) as server:
        await ask(f"http://{server.address}/check")

    assert server.requests[0].startswith(b"GET /check?common_name=")


async def test_the_next_server_is_asked_when_one_fails() -> None:
    """In any order, whatever is wrong with the others."""
    async with (
        running(http(b"", "403 Forbidden")) as refusing,
        running(http(b"{}")) as wrong,
        running(http(GRANTED)) as right,
    ):
        dead = f"127.0.0.1:{free_port()}"
        for _ in range(10):
            holds = await ask(refusing.address, dead, wrong.address, right.address)
            assert "me" == holds.identity


async def test_a_failure_names_every_server_and_its_reason() -> None:
    async with running(http(b"no", "500 Internal Server Error")) as broken, running(None) as silent:
        dead = f"127.0.0.1:{free_port()}"
        text = await failure(broken.address, dead, silent.address, request_timeout_ms=200)

    reasons = (
        f"http://{broken.address}/auth: status 500",
        f"http://{dead}/auth: ConnectError",
        f"http://{silent.address}/auth: no answer within 200 ms",
    )
    assert [True] * 3 == [reason in text for reason in reasons]
    assert "a+b" not in text


@pytest.mark.parametrize(
    "answer, reason",
    [
        (http(b" " * 1_048_577 + GRANTED), "more than 1048576 bytes"),
        (http(b"x"), "not JSON as agreed"),
        (b"nonsense\r\n\r\n", "RemoteProtocolError"),
        (http(GRANTED, "302 Found", "Location: http://[broken"), "Error"),
        (http(b'{"https_port":"x"}', "403 Forbidden"), "status 403"),
        (http(b'{"https_port":1}', "403 Forbidden"), "ConnectError"),
    ],
    ids=["too long", "not JSON", "not HTTP", "broken redirect", "no port", "closed port"],
)
async def test_a_bad_answer_is_a_failure(answer: bytes, reason: str) -> None:
    async with running(answer) as server:
        assert reason in await failure(server.address)


async def test_a_redirect_is_followed() -> None:
    moved = http(b"", "302 Found", "Location: /there?secret=x")
    async with running(moved, http(GRANTED)) as server:
        await ask(server.address)

    assert server.requests[1].startswith(b"GET /there?secret=x ")


@pytest.fixture(scope="module")
def certs() -> Iterator[Certificates]:
    """Return certificates for all tests of this module."""
    with certificates() as made:
        yield made


def serving(certs: Certificates) -> ssl.SSLContext:
    """Return the context of a server."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certs.server.cert_file, certs.server.key_file)
    return context


async def test_an_https_server_is_verified_with_the_brokers_authorities(
    certs: Certificates,
) -> None:
    async with running(http(GRANTED), context=serving(certs)) as server:
        url = f"https://{server.address}/auth"
        holds = await ask(url, root_ca_file=certs.root_ca_file)
        reasons = [await failure(url, root_ca_file=certs.stranger_ca_file), await failure(url)]

    assert "me" == holds.identity
    assert [f"{url}: ConnectError"] * 2 == reasons


async def test_a_server_that_wants_https_is_asked_there(certs: Certificates) -> None:
    """As nsqd's HTTP client does: a 403 names the port."""
    async with running(http(GRANTED), context=serving(certs)) as secure:
        port = secure.address.rpartition(":")[2]
        moved = http(b'{"message":"TLS_REQUIRED","https_port":%b}' % port.encode(), "403 Forbidden")
        async with running(moved) as plain:
            holds = await ask(plain.address, root_ca_file=certs.root_ca_file)

    assert "me" == holds.identity
    assert plain.requests[0].split()[1] == secure.requests[0].split()[1]


def test_a_question_does_not_show_its_secret() -> None:
    assert "a b" not in repr(QUESTION)
