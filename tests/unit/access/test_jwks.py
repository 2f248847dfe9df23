"""Keys of issuers with a `jwks_url`: rotation, failures, and what an address may answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gateway.access.control import AccessControl
from gateway.access.jwks import JwksClient, JwksOptions
from gateway.access.policy import read_policy
from gateway.credentials import Secret
from gateway.errors import CredentialRefused
from gateway.telemetry import REGISTRY
from tests.support.key_server import KeyServer, http_response, key_server
from tests.support.manual_clock import ManualClock, until
from tests.support.tokens import NOW, Signer, access_file, key_set

OLD, NEW = Signer("ES256", kid="old"), Signer("ES256", kid="new", name="new")
ISSUER = OLD.issuer


def file_for(url: str, more: str = "") -> str:
    return f'[[issuer]]\nissuer = "{ISSUER}"\naudience = "nsq"\njwks_url = "{url}"\n{more}'


@pytest.fixture
async def server() -> AsyncIterator[KeyServer]:
    async with key_server() as made:
        made.serve_keys(key_set(OLD.jwk()))
        yield made


@pytest.fixture
async def control(server: KeyServer, tmp_path: Path) -> AsyncIterator[AccessControl]:
    made = AccessControl(
        access_file(tmp_path, file_for(server.url)),
        clock=lambda: NOW,
        jwks=JwksOptions(refresh_s=300, max_stale_s=3_600),
    )
    made.load()
    yield made
    await made.stop()


def is_accepted(control: AccessControl, signer: Signer) -> bool:
    try:
        control.identify(Secret(signer.token()))
    except CredentialRefused:
        return False
    return True


def changes(control: AccessControl) -> list[int]:
    """Return a list that grows with each change."""
    found: list[int] = []
    control.on_change(lambda: found.append(len(found)))
    return found


def metric(name: str, **labels: str) -> float | None:
    return REGISTRY.get_sample_value(f"nsq_gateway_{name}", labels)


async def test_keys_are_fetched_at_the_start(control: AccessControl, server: KeyServer) -> None:
    assert not is_accepted(control, OLD)
    told = changes(control)

    assert not any("not available" in line for line in await control.start())

    assert is_accepted(control, OLD)
    assert [0] == told
    (request,) = server.requests
    assert b"accept-encoding: identity" in request.lower()
    assert metric("jwks_last_success_timestamp_seconds", issuer=ISSUER)


async def test_a_new_key_is_known_without_a_restart(
    control: AccessControl, server: KeyServer
) -> None:
    """An unknown kid asks for keys at once, but at most once in 10 s."""
    clock = ManualClock()
    await control.start()
    server.serve_keys(key_set(OLD.jwk(), NEW.jwk()))
    told = changes(control)

    for _ in range(100):
        assert not is_accepted(control, NEW)
        await clock.advance(0.09)
    assert 1 == len(server.requests)
    await clock.advance(1.1)
    await until(lambda: is_accepted(control, NEW))

    assert is_accepted(control, OLD)
    assert 2 == len(server.requests)
    assert [0] == told


async def test_a_flood_of_unknown_keys_asks_once_in_ten_seconds(
    control: AccessControl, server: KeyServer
) -> None:
    clock = ManualClock()
    await control.start()

    for second in range(100):
        for number in range(10):
            assert not is_accepted(control, Signer("ES256", kid=f"{second}-{number}"))
        await clock.advance(1)
        # The answer comes through a real socket.
        await asyncio.wait_for(server.wait_for_requests(1 + second // 10), None)
        for _ in range(20):
            await clock.advance(0)

    assert 9 <= len(server.requests) <= 11


async def test_a_key_that_is_gone_ends_its_tokens(
    control: AccessControl, server: KeyServer
) -> None:
    """At the next request, after 300 s at most."""
    clock = ManualClock()
    await control.start()
    assert is_accepted(control, OLD)
    server.serve_keys(key_set(NEW.jwk()))

    await clock.advance(300)
    await until(lambda: is_accepted(control, NEW))

    assert not is_accepted(control, OLD)


async def test_an_answer_without_news_changes_nothing(
    control: AccessControl, server: KeyServer
) -> None:
    clock = ManualClock()
    await control.start()
    told = changes(control)

    for number in range(2, 5):
        await clock.advance(300)
        await until(lambda: len(server.requests) == number)  # noqa: B023
        await until(lambda: metric_ok() == number)  # noqa: B023

    assert [] == told


def metric_ok() -> float:
    value = metric("jwks_fetches_total", issuer=ISSUER, result="ok")
    assert value is not None
    return value - metric_ok_before


metric_ok_before = 0.0


@pytest.fixture(autouse=True)
def _count_from_here() -> None:
    global metric_ok_before  # noqa: PLW0603
    metric_ok_before = metric("jwks_fetches_total", issuer=ISSUER, result="ok") or 0.0


async def test_known_keys_hold_while_the_issuer_fails(
    control: AccessControl, server: KeyServer
) -> None:
    """For 3600 s after the last answer; then they are dropped, and those who stayed are told."""
    clock = ManualClock()
    await control.start()
    server.answer = http_response(b"", "503 Service Unavailable")
    told = changes(control)
    client = control._clients[ISSUER]

    with capture_logs() as lines:
        for _ in range(3_599 // 10):
            await clock.advance(10)
            # What is under way is answered before the clock goes on, and so before its limit.
            await until(lambda: not client.is_asking)
        assert is_accepted(control, OLD)
        assert [] == told
        await clock.advance(10)
        assert not is_accepted(control, OLD)
    assert [0] == told
    events = [line["event"] for line in lines]
    assert 1 == events.count("keys of an issuer not available")
    assert 1 == events.count("keys of an issuer dropped: too old")
    assert len(server.requests) > 10

    server.serve_keys(key_set(OLD.jwk()))
    await clock.advance(300)
    await until(lambda: is_accepted(control, OLD))
    assert [0, 1] == told


@pytest.mark.parametrize(
    "answer,reason",
    [
        (
            http_response(b"", "302 Found", "Location: http://127.0.0.1:1/"),
            "a redirect (status 302",
        ),
        (http_response(b"", "308 Permanent Redirect", "Location: /x"), "a redirect (status 308)"),
        (http_response(b"", "401 Unauthorized"), "it answers with status 401"),
        (http_response(b"", "204 No Content"), "it answers with status 204"),
        (http_response(b"<html>sign in</html>", "200 OK", "Content-Type: text/html"), "not JSON"),
        (http_response(b'{"keys":[{"kid":"\xff"}]}'), "it is not JSON"),
        (http_response(b'{"keys":{}}'), "it is no JSON Web Key Set"),
        (http_response(b'{"keys":[]}'), "none of its 0 keys is usable"),
        (http_response(key_set(Signer("HS256").jwk())), "a key is a secret (oct)"),
        (http_response(b" " * 1_048_577), "it answers more than 1048576 bytes"),
        (
            http_response(b"\x1f\x8b", "200 OK", "Content-Encoding: gzip"),
            "its answer is compressed",
        ),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{", ""),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", ""),
        (b"SSH-2.0-x\r\n", ""),
        (b"", ""),
    ],
)
async def test_a_bad_answer_leaves_the_keys(
    control: AccessControl, server: KeyServer, answer: bytes, reason: str
) -> None:
    """The reason is in the log, once."""
    clock = ManualClock()
    await control.start()
    server.answer = answer

    with capture_logs() as lines:
        await clock.advance(300)
        await until(lambda: bool(lines))

    (line,) = lines
    assert "keys of an issuer not available" == line["event"]
    assert reason in line["reason"]
    assert line["reason"]
    assert is_accepted(control, OLD)


async def test_a_server_that_hangs_is_left_after_five_seconds(
    control: AccessControl, server: KeyServer
) -> None:
    """At the start too: the gateway starts without the keys, and says so."""
    clock = ManualClock()
    server.answer = None

    starting = asyncio.ensure_future(control.start())
    await server.wait_for_requests(1)
    assert not starting.done()
    await clock.advance(5)

    (warning,) = [line for line in await starting if "not available" in line]
    assert server.url in warning
    server.serve_keys(key_set(OLD.jwk()))
    await clock.advance(10)
    await until(lambda: is_accepted(control, OLD))


async def test_a_server_that_sends_a_byte_a_second_is_left(
    control: AccessControl, server: KeyServer
) -> None:
    clock = ManualClock()
    server.answer = b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n{"
    starting = asyncio.ensure_future(control.start())
    await server.wait_for_requests(1)
    await clock.advance(5)

    assert any("not available" in line for line in await starting)


async def test_ten_thousand_keys_are_cut_to_a_hundred(
    control: AccessControl, server: KeyServer
) -> None:
    keys = [OLD.jwk(kid=f"k{number}") for number in range(5_000)]
    server.serve_keys(key_set(*keys))

    await control.start()

    assert is_accepted(control, Signer("ES256", kid="k99"))
    assert not is_accepted(control, Signer("ES256", kid="k100"))


async def test_no_server_is_a_warning(tmp_path: Path) -> None:
    control = AccessControl(access_file(tmp_path, file_for("http://127.0.0.1:1/keys")))
    control.load()

    warnings = await control.start()
    await control.stop()

    assert any("keys of https://id.example.com are not available" in line for line in warnings)


async def test_keys_stay_when_the_file_changes_and_their_issuer_does_not(
    control: AccessControl, server: KeyServer, tmp_path: Path
) -> None:
    clock = ManualClock()
    await control.start()
    server.answer = http_response(b"", "503 Service Unavailable")
    changed = asyncio.Event()
    control.on_change(changed.set)
    rule = '[[rule]]\nwhen = { a = 1 }\ngrants = [{ topic = "^a$", permissions = ["publish"] }]\n'

    access_file(tmp_path, file_for(server.url, rule))
    await clock.advance(1)
    clock.run_on()
    await changed.wait()

    assert 1 == len(control.policy.rules)
    assert is_accepted(control, OLD)
    assert 1 == len(server.requests)


async def test_a_new_address_of_the_keys_is_asked_at_once(
    control: AccessControl, server: KeyServer, tmp_path: Path
) -> None:
    """And the old one no longer."""
    await control.start()
    async with key_server() as second:
        second.serve_keys(key_set(NEW.jwk()))
        access_file(tmp_path, file_for(second.url))
        await second.wait_for_requests(1)
        await until(lambda: is_accepted(control, NEW))

    assert not is_accepted(control, OLD)
    assert 1 == len(control._clients)
    access_file(tmp_path, "")
    changed = asyncio.Event()
    control.on_change(changed.set)
    await changed.wait()
    assert None is metric("jwks_last_success_timestamp_seconds", issuer=ISSUER)
    assert 1 == len(server.requests)


async def test_a_client_without_an_address_is_a_mistake() -> None:
    found = read_policy(file_for("https://a").encode()).issuers[ISSUER]

    with pytest.raises(ValueError, match="no jwks_url"):
        JwksClient(found._replace(jwks_url=None), JwksOptions(), lambda: None)
