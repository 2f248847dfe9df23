"""The certificate of the public port: read, read again when it changes, kept when it is wrong."""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from structlog.testing import capture_logs

from gateway.errors import SettingsError
from gateway.listener import HttpListener
from gateway.telemetry import REGISTRY
from gateway.tls import CHECK_INTERVAL_S, Certificate, certificate_expiry, export_certificate_expiry
from tests.support.certificates import Certificates, Identity, certificates
from tests.support.manual_clock import ManualClock

EXPIRY = "nsq_gateway_certificate_expiry_timestamp_seconds"


@pytest.fixture(scope="module")
def pem() -> Iterator[Certificates]:
    with certificates() as made:
        yield made


@pytest.fixture
def files(pem: Certificates, tmp_path: Path) -> Identity:
    """The pair of the server, in files that a test may write over."""
    return copied(pem.server, tmp_path)


def copied(identity: Identity, folder: Path) -> Identity:
    folder.mkdir(exist_ok=True)
    return Identity(
        cert_file=shutil.copy(identity.cert_file, str(folder / "cert.pem")),
        key_file=shutil.copy(identity.key_file, str(folder / "key.pem")),
    )


async def hello(
    _scope: object, _receive: object, send: Callable[[object], Awaitable[None]]
) -> None:
    """Answer every request with one word."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"hello"})


@asynccontextmanager
async def listening(files: Identity, *, min_version: str = "tls1.2") -> AsyncIterator[str]:
    """Answer with the pair in *files*; return host and port."""
    certificate = Certificate(files.cert_file, files.key_file, min_version=min_version)
    listener = HttpListener(
        "test", "127.0.0.1:0", certificate=certificate, timeout_keep_alive=3_600
    )
    await listener.start(hello)
    try:
        yield listener.address
    finally:
        await listener.stop()


def trusting(pem: Certificates) -> httpx.AsyncClient:
    context = ssl.create_default_context(cafile=pem.root_ca_file)
    return httpx.AsyncClient(verify=context, trust_env=False)


async def served_serial(address: str) -> int:
    """Return the serial number of the certificate that a new connection sees."""
    host, port = address.split(":")
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    _, writer = await asyncio.open_connection(host, int(port), ssl=context)
    der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    return x509.load_der_x509_certificate(der).serial_number


def serial_of(identity: Identity) -> int:
    """Return the serial number of the first certificate in the file."""
    return x509.load_pem_x509_certificate(Path(identity.cert_file).read_bytes()).serial_number


async def test_it_is_answered_by_tls(pem: Certificates, files: Identity) -> None:
    """A client that trusts the authority gets its answer, over HTTP/1.1."""
    async with listening(files) as address, trusting(pem) as http:
        answer = await http.get(f"https://{address}/")

    assert ("hello", "HTTP/1.1") == (answer.text, answer.http_version)


async def test_a_pair_that_changed_is_read_again(pem: Certificates, files: Identity) -> None:
    """New connections see it, and who is connected stays."""
    async with listening(files) as address, trusting(pem) as http:
        clock = ManualClock()
        before = await http.get(f"https://{address}/")
        copied(pem.misnamed, Path(files.cert_file).parent)
        await clock.advance(CHECK_INTERVAL_S)
        clock.run_on()
        after = await served_serial(address)
        same = await http.get(f"https://{address}/")

    assert serial_of(pem.misnamed) == after
    assert ["hello", "hello"] == [before.text, same.text]


async def test_a_secret_of_kubernetes_is_read_again(pem: Certificates, tmp_path: Path) -> None:
    """There a symbolic link is turned to another folder, and the files are links through it."""
    copied(pem.server, tmp_path / "old")
    copied(pem.misnamed, tmp_path / "new")
    (tmp_path / "..data").symlink_to("old")
    for name in ("cert.pem", "key.pem"):
        (tmp_path / name).symlink_to(f"..data/{name}")
    files = Identity(cert_file=str(tmp_path / "cert.pem"), key_file=str(tmp_path / "key.pem"))
    async with listening(files) as address:
        clock = ManualClock()
        (tmp_path / "..next").symlink_to("new")
        (tmp_path / "..next").rename(tmp_path / "..data")
        await clock.advance(CHECK_INTERVAL_S)
        clock.run_on()

        assert serial_of(pem.misnamed) == await served_serial(address)


def spoil(path: str, wrong: str, other: str) -> None:
    """Make the file at *path* one that cannot be used."""
    if wrong == "another's":
        shutil.copy(other, path)
    elif wrong == "garbage":
        Path(path).write_text("no PEM")
    else:
        Path(path).unlink(missing_ok=True)


@pytest.mark.parametrize("which", ["key", "cert"])
@pytest.mark.parametrize("wrong", ["another's", "garbage", "gone"])
async def test_a_pair_that_became_wrong_is_told_and_not_used(
    which: str, wrong: str, pem: Certificates, files: Identity
) -> None:
    """The one before it stays; once both files are right they are used, without a restart."""
    path = files.key_file if which == "key" else files.cert_file
    other = pem.misnamed.key_file if which == "key" else pem.misnamed.cert_file
    async with listening(files) as address:
        clock = ManualClock()
        spoil(path, wrong, other)
        with capture_logs() as lines:
            await clock.advance(CHECK_INTERVAL_S)
            await clock.advance(CHECK_INTERVAL_S)
        clock.run_on()
        meanwhile = await served_serial(address)
        clock = ManualClock()
        copied(pem.misnamed, Path(path).parent)
        await clock.advance(CHECK_INTERVAL_S)
        clock.run_on()
        at_last = await served_serial(address)

    assert [serial_of(pem.server), serial_of(pem.misnamed)] == [meanwhile, at_last]
    [line] = lines
    assert ("error", True) == (line["log_level"], path in line["reason"])


async def test_files_that_could_not_be_opened_are_read_later(
    pem: Certificates, files: Identity
) -> None:
    """A process that has no file left has one again, and the pair has not changed meanwhile."""
    async with listening(files) as address:
        clock = ManualClock()
        copied(pem.misnamed, Path(files.cert_file).parent)
        with no_file_left(), capture_logs() as lines:
            await clock.advance(CHECK_INTERVAL_S)
            await clock.advance(CHECK_INTERVAL_S)
        await clock.advance(CHECK_INTERVAL_S)
        clock.run_on()

        assert serial_of(pem.misnamed) == await served_serial(address)
    [line] = lines
    assert "Too many open files" in line["reason"]


@contextmanager
def no_file_left() -> Iterator[None]:
    """Let this process open nothing."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_another_reason_is_told_again(files: Identity) -> None:
    """What is wrong now stands in the log, once."""
    async with listening(files):
        clock = ManualClock()
        with capture_logs() as lines:
            for wrong in ("garbage", "garbage", "gone", "gone"):
                spoil(files.cert_file, wrong, "")
                await clock.advance(CHECK_INTERVAL_S)
        clock.run_on()

    no_certificate, is_gone = [line["reason"] for line in lines]
    assert "it contains no certificate" in no_certificate
    assert "No such file" in is_gone


@pytest.mark.parametrize(
    "cert,key,name",
    [
        ("server.cert_file", "misnamed.key_file", "--tls-key"),
        ("server.key_file", "server.key_file", "--tls-cert"),
        ("nowhere", "server.key_file", "--tls-cert"),
        ("server.cert_file", "nowhere", "--tls-key"),
        ("server.cert_file", "server.cert_file", "--tls-key"),
    ],
)
def test_a_pair_that_is_wrong_at_the_start_is_refused(
    cert: str, key: str, name: str, pem: Certificates
) -> None:
    """The error names the flag."""

    def path(of: str) -> str:
        who, _, which = of.partition(".")
        return getattr(getattr(pem, who), which) if which else "/nowhere"

    with pytest.raises(SettingsError, match=f"^{name} is"):
        Certificate(path(cert), path(key)).load()


@pytest.mark.parametrize(
    "kind,reason", [("pipe", "not a regular file"), ("huge", "limit 1048576 bytes")]
)
def test_a_file_that_would_hold_up_everybody_is_not_opened(
    kind: str, reason: str, pem: Certificates, tmp_path: Path
) -> None:
    """It is read where all connections are served."""
    path = tmp_path / "cert.pem"
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.touch()
        os.truncate(path, 2_000_000)

    with pytest.raises(SettingsError, match=reason):
        Certificate(str(path), pem.server.key_file).load()


def test_a_key_with_a_passphrase_is_refused(pem: Certificates, tmp_path: Path) -> None:
    """Nobody is asked on the terminal."""
    key = serialization.load_pem_private_key(Path(pem.server.key_file).read_bytes(), None)
    locked = tmp_path / "locked.pem"
    locked.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"open"),
        )
    )

    with pytest.raises(SettingsError, match="without a passphrase"):
        Certificate(pem.server.cert_file, str(locked)).load()


@pytest.mark.parametrize(
    "not_after", [datetime(2049, 12, 31, 23, 59, 59, tzinfo=UTC), datetime(2051, 2, 3, tzinfo=UTC)]
)
def test_the_end_of_a_certificate_is_told(not_after: datetime, tmp_path: Path) -> None:
    """X.509 writes years from 2050 on in another form."""
    path = tmp_path / "cert.pem"
    issued = trustme.CA().issue_cert("localhost", not_after=not_after)
    issued.cert_chain_pems[0].write_to_path(str(path))

    assert not_after.timestamp() == certificate_expiry(str(path))


def test_a_file_without_a_certificate_is_not_taken_for_that_of_the_listener(
    pem: Certificates,
) -> None:
    """The error names what was asked for."""
    with pytest.raises(SettingsError, match=r"^the certificate is .*it contains no certificate"):
        certificate_expiry(pem.server.key_file)


def test_the_end_of_the_one_that_is_used_is_a_metric(pem: Certificates) -> None:
    """An alert asks it whether somebody has forgotten to renew."""
    Certificate(pem.expired.cert_file, pem.expired.key_file).load()

    seen = REGISTRY.get_sample_value(EXPIRY, {"use": "listener"})
    assert certificate_expiry(pem.expired.cert_file) == seen


def test_the_end_of_another_one_is_read_when_it_is_asked_for(
    pem: Certificates, tmp_path: Path
) -> None:
    """That for nsqd is read by each new connection, so its file is what counts."""
    path = tmp_path / "cert.pem"
    export_certificate_expiry("nsqd", str(path))
    before = REGISTRY.get_sample_value(EXPIRY, {"use": "nsqd"})
    shutil.copy(pem.client.cert_file, str(path))

    assert 0 == before
    assert certificate_expiry(str(path)) == REGISTRY.get_sample_value(EXPIRY, {"use": "nsqd"})


async def test_an_older_tls_is_refused(files: Identity) -> None:
    """The listener speaks what it was told to, and nothing below."""
    old = ssl.create_default_context()
    old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    async with listening(files, min_version="tls1.3") as address:
        host, port = address.split(":")

        with pytest.raises((ssl.SSLError, ConnectionError)):
            await asyncio.open_connection(host, int(port), ssl=old)
