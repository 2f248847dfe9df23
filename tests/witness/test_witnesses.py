"""The rules for outside witnesses, and the programs and servers as tests start them."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from tests.support.brokers.auth_server import AuthRequest, Grant, auth_server
from tests.support.brokers.nsqd import NSQD_VERSION, real_nsqd, real_nsqlookupd
from tests.support.brokers.restartable_nsqd import restartable_nsqd
from tests.support.brokers.toxiproxy import FaultyNetwork, toxiproxy
from tests.support.brokers.v2_peer import OK, V2Peer, body_and_attempts, identify, publish, v2_peer
from tests.support.gateways.leaks import no_leaks
from tests.support.manual_clock import turn
from tests.support.websocket.raw_socket import raw_socket
from tests.support.witnesses import Witness, require_witnesses

ABSENT = Witness(name="oracle", find=lambda: None, remedy="ask at Delphi")
PRESENT = Witness(name="oracle", find=lambda: Path("oracle"), remedy="ask at Delphi")


WITH_AUTH = identify(b'{"feature_negotiation":true}')


def auth(secret: bytes) -> bytes:
    return b"AUTH\n" + len(secret).to_bytes(4, "big") + secret


# What is missing


def test_a_missing_witness_skips_its_tests() -> None:
    with pytest.raises(pytest.skip.Exception, match="oracle is missing: ask at Delphi"):
        require_witnesses(["oracle"], ci=False, witnesses=[ABSENT])


def test_a_missing_witness_fails_its_tests_in_ci() -> None:
    with pytest.raises(pytest.fail.Exception, match="oracle is missing: ask at Delphi"):
        require_witnesses(["oracle"], ci=True, witnesses=[ABSENT])


def test_a_witness_that_is_there_stops_nothing() -> None:
    """A marked test runs when its witness is found, in CI as elsewhere."""
    require_witnesses(["oracle"], ci=True, witnesses=[PRESENT])


def test_a_test_without_the_marker_needs_no_witness() -> None:
    """A test that does not name the witness runs without it, in CI as elsewhere."""
    require_witnesses(["parametrize"], ci=True, witnesses=[ABSENT])


# nsqd


@pytest.mark.nsqd
async def test_the_real_nsqd_answers_until_the_block_ends() -> None:
    """real_nsqd gives an nsqd that answers on HTTP, and ends it at the end of the block."""
    async with httpx.AsyncClient() as http, real_nsqd() as nsqd:
        info = (await http.get(f"http://{nsqd.http_address}/info")).json()

    assert (NSQD_VERSION, 0) == (info["version"], nsqd.process.returncode)


@pytest.mark.nsqd
async def test_a_real_nsqd_registers_with_a_real_nsqlookupd() -> None:
    """A topic that is made on an nsqd becomes known to the nsqlookupd it was given."""
    async with (
        httpx.AsyncClient() as http,
        real_nsqlookupd() as lookupd,
        real_nsqd(f"--lookupd-tcp-address={lookupd.tcp_address}") as nsqd,
    ):
        await http.post(f"http://{nsqd.http_address}/topic/create?topic=greetings")
        await lookupd.log.match("REGISTER category:topic key:greetings")
        found = (await http.get(f"http://{lookupd.http_address}/lookup?topic=greetings")).json()

    assert [nsqd.tcp_address] == [f"127.0.0.1:{node['tcp_port']}" for node in found["producers"]]


@pytest.mark.nsqd
async def test_an_nsqd_that_cannot_start_shows_its_log() -> None:
    """An address that nsqd cannot listen on ends in an error with nsqd's own words."""
    with pytest.raises(RuntimeError, match=r"before the log ended:(.|\n)*99999"):
        async with real_nsqd("--tcp-address=127.0.0.1:99999"):
            pytest.fail("nsqd listened on a port that there is not")


@pytest.mark.nsqd
@pytest.mark.parametrize("elsewhere", [False, True])
async def test_a_killed_nsqd_comes_back_with_its_disk(*, elsewhere: bool) -> None:
    async with restartable_nsqd("--mem-queue-size=0", "--sync-every=1") as nsqd:
        first_address = nsqd.tcp_address
        async with v2_peer(nsqd.tcp_address) as publisher:
            await publisher.send(publish(b"t", b"kept") + publish(b"t", b"behind it"))
            published = await publisher.frames(2)

        await nsqd.kill()
        await nsqd.start(elsewhere=elsewhere)

        async with v2_peer(nsqd.tcp_address) as consumer:
            subscribed = await consumer.ask(b"SUB t c\n")
            body, _ = body_and_attempts(await consumer.ask(b"RDY 1\n"))

    assert ([OK, OK], OK, b"kept") == (published, subscribed, body)
    assert elsewhere is (first_address != nsqd.tcp_address)


# The auth server


async def authenticated(peer: V2Peer, secret: bytes) -> bytes:
    """Return what nsqd says to *secret*, which it is asked for."""
    _, answer = await peer.ask(WITH_AUTH)
    assert b'"auth_required":true' in answer
    return (await peer.ask(auth(secret)))[1]


@pytest.mark.nsqd
async def test_nsqd_takes_what_the_auth_server_grants() -> None:
    """Identity and count of permissions reach the client; the server has seen the question."""
    async with (
        auth_server() as auths,
        real_nsqd(f"--auth-http-address={auths.address}") as nsqd,
        v2_peer(nsqd.tcp_address) as peer,
    ):
        auths.grant("s3cret &=", Grant(topic="^orders$"), Grant(), identity="Ann")
        said = await authenticated(peer, b"s3cret &=")
        question = await auths.asked()

    expected = b'{"identity":"Ann","identity_url":"","permission_count":2}'
    assert expected == said
    assert AuthRequest(secret="s3cret &=", common_name="", remote_ip="127.0.0.1", tls="false") == (
        question
    )


@pytest.mark.nsqd
async def test_a_revoked_secret_is_refused_at_the_next_question() -> None:
    """nsqd asks again when the ttl is over, which an auth server alone can say."""
    async with (
        auth_server() as auths,
        real_nsqd(f"--auth-http-address={auths.address}") as nsqd,
        v2_peer(nsqd.tcp_address) as first,
        v2_peer(nsqd.tcp_address) as second,
    ):
        auths.grant("s3cret", Grant())
        taken = await authenticated(first, b"s3cret")
        auths.revoke("s3cret")
        refused = await authenticated(second, b"s3cret")

    assert b'{"identity":"","identity_url":"","permission_count":1}' == taken
    assert (b"E_AUTH_FAILED AUTH failed", 2) == (refused, auths.counts["s3cret"])


@pytest.mark.nsqd
async def test_a_secret_without_grants_may_do_nothing() -> None:
    """nsqd has another word for it than for a secret that nobody knows."""
    async with (
        auth_server() as auths,
        real_nsqd(f"--auth-http-address={auths.address}") as nsqd,
        v2_peer(nsqd.tcp_address) as peer,
    ):
        auths.grant("s3cret")
        refused = await authenticated(peer, b"s3cret")

    assert b"E_UNAUTHORIZED AUTH no authorizations found" == refused


@pytest.mark.nsqd
async def test_an_auth_server_that_is_down_comes_back_where_it_was() -> None:
    """While it is down nsqd refuses everybody; what it knew it knows again."""
    async with (
        auth_server() as auths,
        real_nsqd(f"--auth-http-address={auths.address}") as nsqd,
        v2_peer(nsqd.tcp_address) as first,
        v2_peer(nsqd.tcp_address) as second,
    ):
        auths.grant("s3cret", Grant())
        await auths.go_down()
        refused = await authenticated(first, b"s3cret")
        asked = auths.counts.total()
        await auths.come_back()
        taken = await authenticated(second, b"s3cret")

    assert (b"E_AUTH_FAILED AUTH failed", 0) == (refused, asked)
    assert b"permission_count" in taken


# What is left behind


def _leave_a_task(life: ExitStack) -> None:
    life.callback(asyncio.create_task(asyncio.Event().wait()).cancel)


def _leave_a_timer(life: ExitStack) -> None:
    life.callback(asyncio.get_running_loop().call_later(3600, print).cancel)


def _leave_a_socket(life: ExitStack) -> None:
    life.enter_context(socket.socket())


async def _left_behind(leave: Callable[[ExitStack], None], life: ExitStack) -> None:
    async with no_leaks():
        leave(life)


@pytest.mark.parametrize(
    "leave, name",
    [(_leave_a_task, "Task"), (_leave_a_timer, "TimerHandle"), (_leave_a_socket, "descriptor")],
)
async def test_what_is_left_behind_is_found(leave: Callable[[ExitStack], None], name: str) -> None:
    """It is named, so that one sees whose it is."""
    with ExitStack() as life, pytest.raises(AssertionError, match=f"left behind:\n.*{name}"):
        await _left_behind(leave, life)


async def test_what_ends_with_the_block_or_soon_is_not_left_behind() -> None:
    """A task that needs a few turns to end, a timer that was cancelled, a socket that is closed."""
    async with no_leaks():
        asyncio.get_running_loop().call_later(3600, print).cancel()
        asyncio.create_task(turn(10))  # noqa: RUF006 - what is checked is that it ends
        socket.socket().close()


# The fault proxy


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65_536):
            writer.write(data)
    except ConnectionError:
        pass
    finally:
        writer.close()


@pytest_asyncio.fixture
async def echo() -> AsyncIterator[FaultyNetwork]:
    """Return a way to a server that says what it hears."""
    async with toxiproxy() as proxy, await asyncio.start_server(_echo, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        yield await proxy.in_front_of(f"{host}:{port}")


@pytest.mark.toxiproxy
async def test_without_a_toxic_everything_comes_through(echo: FaultyNetwork) -> None:
    """The proxy itself changes nothing."""
    async with raw_socket(echo.address) as raw:
        await raw.send(b"x" * 1_000_000)
        echoed = await raw.read_exactly(1_000_000)

    assert True is (b"x" * 1_000_000 == echoed)


@pytest.mark.toxiproxy
async def test_a_delay_is_felt(echo: FaultyNetwork) -> None:
    """What comes back has been on its way for so long."""
    await echo.delay(100)

    async with raw_socket(echo.address) as raw:
        started = time.monotonic()
        await raw.send(b"x")
        await raw.read_exactly(1)

    assert 0.1 <= time.monotonic() - started


@pytest.mark.toxiproxy
async def test_a_narrow_way_takes_its_time(echo: FaultyNetwork) -> None:
    """200 kB at 1,000 kB/s are a fifth of a second."""
    await echo.narrow(1_000, stream="upstream")

    async with raw_socket(echo.address) as raw:
        started = time.monotonic()
        await raw.send(bytes(200_000))
        await raw.read_exactly(200_000)

    assert 0.15 <= time.monotonic() - started


@pytest.mark.toxiproxy
@pytest.mark.parametrize("size_bytes", [0, 1, 7])
async def test_a_cut_is_at_its_byte(echo: FaultyNetwork, size_bytes: int) -> None:
    """So many bytes come, then the end."""
    await echo.cut_after(size_bytes)

    async with raw_socket(echo.address) as raw:
        await raw.send(b"0123456789")

        assert b"0123456789"[:size_bytes] == await raw.read_to_end()


@pytest.mark.toxiproxy
async def test_a_connection_can_end_by_reset(echo: FaultyNetwork) -> None:
    """Behind its last byte comes RST; a cut that is said later holds for what is open."""
    await echo.end_by_reset()

    async with raw_socket(echo.address) as raw:
        await raw.send(b"open")
        opened = await raw.read_exactly(4)
        await echo.cut_after(3)
        await raw.send(b"0123")
        last = await raw.read_exactly(3)
        with pytest.raises(ConnectionResetError):
            await raw.read_exactly(1)

    assert (b"open", b"012") == (opened, last)


@pytest.mark.toxiproxy
async def test_silence_is_no_end(echo: FaultyNetwork) -> None:
    """Nothing comes and nothing closes, until it heals; then the connection is closed."""
    async with raw_socket(echo.address) as raw:
        await raw.send(b"x")
        await raw.read_exactly(1)
        await echo.fall_silent()
        await raw.send(b"lost")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await raw.read_exactly(1)

        await echo.heal()

        assert b"" == await raw.read_to_end()


@pytest.mark.toxiproxy
async def test_a_way_goes_down_and_comes_back(echo: FaultyNetwork) -> None:
    """Open connections end, new ones are refused, later ones are served on the same port."""
    async with raw_socket(echo.address) as raw:
        await raw.send(b"x")
        await raw.read_exactly(1)
        await echo.go_down()
        ended = await raw.read_to_end()

    with pytest.raises(ConnectionRefusedError):
        async with raw_socket(echo.address):
            pass
    await echo.come_back()
    async with raw_socket(echo.address) as raw:
        await raw.send(b"y")

        assert (b"", b"y") == (ended, await raw.read_exactly(1))
