"""TLS on the public port of the running program: pages, publishing, sockets, workers."""

from __future__ import annotations

import json
import shutil
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus
from websockets.typing import Origin

from tests.support.certificates import Certificates, certificates
from tests.support.gateways.gateway import ON_FREE_PORTS, WITH_EMBEDDED_BROKER
from tests.support.gateways.programs import Program, nsq_gateway
from tests.support.gateways.shell import run

_ANNOUNCED = r"listening on (https://\S+) \(management"


@pytest.fixture(scope="module")
def pem() -> Iterator[Certificates]:
    with certificates() as made:
        yield made


@asynccontextmanager
async def serving(cert: str, key: str, *flags: str) -> AsyncIterator[tuple[Program, str]]:
    """Run a gateway with TLS and its embedded broker; return it with its https:// address."""
    tls = (f"--tls-cert={cert}", f"--tls-key={key}")
    arguments = ("serve", *ON_FREE_PORTS, *WITH_EMBEDDED_BROKER, *tls, *flags)
    async with nsq_gateway(*arguments) as program:
        yield program, (await program.said(_ANNOUNCED))[1]


@pytest.mark.parametrize("workers", [1, 2])
async def test_messages_go_both_ways_by_tls(workers: int, pem: Certificates) -> None:
    """Messages published over https arrive over wss."""
    trust = ssl.create_default_context(cafile=pem.root_ca_file)
    flag = f"--workers={workers}"
    async with (
        serving(pem.server.cert_file, pem.server.key_file, flag) as (_, url),
        httpx.AsyncClient(base_url=url, verify=trust, trust_env=False) as http,
        connect(
            f"{url.replace('https', 'wss')}/sub?topic=t&channel=c&ack=auto",
            ssl=trust,
            max_size=None,
        ) as socket,
    ):
        for body in (b"one", b"two", b"x" * 1_000_000):
            answer = await http.post("/pub", params={"topic": "t"}, content=body)
            assert (200, "OK") == (answer.status_code, answer.text)
        bodies: list[str] = []
        while len(bodies) < 3:
            told = [json.loads(line) for line in str(await socket.recv()).split("\n")]
            bodies += [each["body"] for each in told if each["type"] == "message"]

    assert {"one", "two", "x" * 1_000_000} == set(bodies)


async def test_a_page_loaded_without_tls_is_another_origin(pem: Certificates) -> None:
    """It could have been modified on the way; the same page over TLS is same-origin."""
    trust = ssl.create_default_context(cafile=pem.root_ca_file)
    async with (
        serving(pem.server.cert_file, pem.server.key_file) as (_, url),
        httpx.AsyncClient(base_url=url, verify=trust, trust_env=False) as http,
    ):
        answers = [
            await http.post("/pub?topic=t", content=b"x", headers={"Origin": page})
            for page in (url, url.replace("https", "http"))
        ]
        with pytest.raises(InvalidStatus) as refused:
            await connect(
                f"{url.replace('https', 'wss')}/sub?topic=t&channel=c",
                ssl=trust,
                origin=Origin(url.replace("https", "http")),
            )

    assert [200, 403] == [answer.status_code for answer in answers]
    assert 403 == refused.value.response.status_code


async def test_the_program_reads_a_renewed_certificate(pem: Certificates, tmp_path: Path) -> None:
    cert, key = str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")
    shutil.copy(pem.misnamed.cert_file, cert)
    shutil.copy(pem.misnamed.key_file, key)
    trust = ssl.create_default_context(cafile=pem.root_ca_file)
    async with (
        serving(cert, key, "--log-format=json") as (program, url),
        httpx.AsyncClient(base_url=url, verify=trust, trust_env=False) as http,
    ):
        with pytest.raises(httpx.ConnectError):
            await http.get("/ping")
        shutil.copy(pem.server.cert_file, cert)
        shutil.copy(pem.server.key_file, key)
        await program.said("certificate reloaded")

        assert "OK" == (await http.get("/ping")).text


async def test_a_wrong_certificate_is_wrong_use(pem: Certificates) -> None:
    """The program says which file, and ends with 2, several workers or one."""
    tls = (f"--tls-cert={pem.server.cert_file}", f"--tls-key={pem.misnamed.key_file}")
    arguments = ("serve", *ON_FREE_PORTS, *WITH_EMBEDDED_BROKER, *tls)
    for workers in (1, 2):
        async with nsq_gateway(*arguments, f"--workers={workers}") as program:
            await program.said(r"--tls-key is .*misnamed")

            assert 2 == await program.ended()


@pytest.mark.parametrize("command", [("pub", "t"), ("sub", "t", "c")], ids=["pub", "sub"])
async def test_an_untrusted_certificate_is_reported_at_once(
    command: tuple[str, ...], pem: Certificates
) -> None:
    """A retry would not help; the error says what would."""
    async with serving(pem.server.cert_file, pem.server.key_file) as (_, url):
        status, _, told = await run(*command, given=b"one\n", settings={"url": url})

    assert 1 == status
    assert f"the certificate of {url} is not trusted" in told, told
    assert "SSL_CERT_FILE" in told
