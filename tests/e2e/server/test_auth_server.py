"""The port of the auth server: `--auth-listen`, in one process and with workers."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from structlog.testing import capture_logs

from gateway.access import auth_server
from gateway.access.auth_server import CONNECTION_TIMEOUT_S
from gateway.errors import SettingsError, StartError
from gateway.server.service import Service
from gateway.server.workers.supervisor import Supervisor
from tests.support.certificates import Certificates, certificates
from tests.support.gateways.access_file import access_file, api_key, grant
from tests.support.gateways.free_port_settings import FREE, serve_settings
from tests.support.manual_clock import ManualClock

SECRET = "billing-7f3a"


@pytest.fixture
def file(tmp_path: Path) -> str:
    return access_file(tmp_path, api_key("billing", SECRET, grant("^t$", "publish")))


@pytest.fixture(scope="module")
def certs() -> Iterator[Certificates]:
    with certificates() as certs:
        yield certs


@asynccontextmanager
async def serving(service: Service | Supervisor) -> AsyncIterator[tuple[str, list[str]]]:
    """Start *service*; yield the address of its auth server, and its banner."""
    try:
        lines = await service.start()
        assert service.auth_address is not None
        yield service.auth_address, lines
    finally:
        await service.stop()


async def status_of(url: str, secret: str, trust: ssl.SSLContext | None = None) -> int:
    async with httpx.AsyncClient(trust_env=False, verify=trust or False) as http:
        return (await http.get(f"{url}/auth", params={"secret": secret})).status_code


@pytest.mark.parametrize("workers", [1, 2])
async def test_it_answers_beside_the_gateway(file: str, workers: int) -> None:
    """The banner has the flag for nsqd."""
    settings = serve_settings(access_file=file, auth_listen=FREE, workers=workers)
    service = Service(settings) if workers == 1 else Supervisor(settings)

    async with serving(service) as (address, lines):
        statuses = [await status_of(f"http://{address}", each) for each in (SECRET, "wrong")]

    assert [200, 403] == statuses
    assert f"auth server: nsqd --auth-http-address={address}" == lines[-1]


async def test_without_auth_listen_there_is_none(file: str) -> None:
    service = Service(serve_settings(access_file=file))

    lines = await service.start()
    await service.stop()

    assert service.auth_address is None
    assert not any("auth server" in line for line in lines)


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_missing_access_file_ends_the_start(tmp_path: Path, workers: int) -> None:
    settings = serve_settings(access_file=str(tmp_path / "none"), workers=workers)
    service = Service(settings) if workers == 1 else Supervisor(settings)

    with pytest.raises((SettingsError, OSError)):
        await service.start()


async def test_an_address_in_use_ends_the_start(file: str) -> None:
    async with serving(Service(serve_settings(access_file=file, auth_listen=FREE))) as (address, _):
        second = Service(serve_settings(access_file=file, auth_listen=address))

        with pytest.raises(StartError, match=r"the auth server \(--auth-listen\) cannot listen"):
            await second.start()


@pytest.mark.parametrize("workers", [1, 2])
async def test_it_has_tls_if_the_public_port_has(
    file: str, certs: Certificates, workers: int
) -> None:
    settings = serve_settings(
        access_file=file,
        auth_listen=FREE,
        workers=workers,
        tls_cert=certs.server.cert_file,
        tls_key=certs.server.key_file,
    )
    trust = ssl.create_default_context(cafile=certs.root_ca_file)
    service = Service(settings) if workers == 1 else Supervisor(settings)

    async with serving(service) as (address, lines):
        status = await status_of(f"https://{address}", SECRET, trust)

    assert 200 == status
    assert f"auth server: nsqd --auth-http-address=https://{address}/auth" == lines[-1]


async def test_other_machines_without_tls_are_a_warning(file: str) -> None:
    # To the system this is 127.0.0.1; to the gateway it is not a loopback address.
    settings = serve_settings(access_file=file, auth_listen="[::ffff:127.0.0.1]:0")

    with capture_logs() as log:
        async with serving(Service(settings)):
            pass

    assert "auth server without TLS" in [entry["event"] for entry in log]


async def connect(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    place = urlsplit(f"//{address}")
    return await asyncio.open_connection(place.hostname, place.port)


async def read_all(reader: asyncio.StreamReader) -> bytes:
    """Return what arrives until the connection ends, or is reset."""
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""


@pytest.mark.parametrize(
    "sent",
    [b"", b"GET /auth", b"POST /auth HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n{"],
    ids=["silent", "half a head", "half a body"],
)
async def test_a_slow_client_is_cut(file: str, sent: bytes) -> None:
    async with serving(Service(serve_settings(access_file=file, auth_listen=FREE))) as (address, _):
        reader, writer = await connect(address)
        writer.write(sent)
        # The answer to another client: the server has read what the first one sent.
        await status_of(f"http://{address}", SECRET)
        clock = ManualClock()
        await clock.advance(CONNECTION_TIMEOUT_S - 1)
        is_open = not reader.at_eof()
        await clock.advance(1)
        clock.run_on()
        left = await read_all(reader)
        writer.close()

    assert (True, b"") == (is_open, left)


async def test_too_many_connections_are_cut(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that were there first stay, and get their answers."""
    monkeypatch.setattr(auth_server, "auth_connections_limit", lambda: 2)
    async with serving(Service(serve_settings(access_file=file, auth_listen=FREE))) as (address, _):
        connections = [await connect(address) for _ in range(2)]
        third, third_writer = await connect(address)
        refused = await read_all(third)
        for reader, writer in connections:
            writer.write(f"GET /auth?secret={SECRET} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
            assert (await read_all(reader)).startswith(b"HTTP/1.1 200 OK\r\n")
            writer.close()
        third_writer.close()
        again = await status_of(f"http://{address}", SECRET)

    assert (b"", 200) == (refused, again)


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /auth?secret=" + b"x" * 100_000,
        b"GET /auth HTTP/1.1\r\nX: " + b"x" * 100_000,
        b"\x16\x03\x01\x02\x00\x01\x00" + b"\xff" * 600,
    ],
    ids=["query", "header", "TLS on a port without"],
)
async def test_nonsense_gets_400_and_harms_nobody(file: str, sent: bytes) -> None:
    async with serving(Service(serve_settings(access_file=file, auth_listen=FREE))) as (address, _):
        reader, writer = await connect(address)
        writer.write(sent)
        answer = await read_all(reader)
        writer.close()
        after = await status_of(f"http://{address}", SECRET)

    assert not answer or answer.startswith(b"HTTP/1.1 400 ")
    assert 200 == after
