"""Tests of client options from settings, with an nsqd that requires TLS and AUTH."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
import trustme

from gateway.client.from_settings import read_access, read_admin_secret
from gateway.credentials import Secret
from gateway.errors import SettingsError
from gateway.listener import HttpListener
from gateway.settings.loader import load
from gateway.settings.nsqd import NsqdSettings
from gateway.settings.serve import ServeSettings
from gateway.tls import TlsOptions
from tests.support.brokers.nsqd import RealNsqd, real_nsqd
from tests.support.gateways.gateway import gateway_with_nsqd
from tests.support.gateways.shell import Settings, run, topic_stats

TOPIC = "orders"
RIGHT, WRONG = "the-right-secret", "the-wrong-secret"


def access_of(**settings: Any) -> Any:  # noqa: ANN401 - a test names any setting
    return read_access(load(NsqdSettings, settings).settings)


def test_what_nsqd_is_told_is_what_the_settings_say() -> None:
    """IDENTIFY has the values of the settings, under NSQ's names."""
    offer = access_of(
        client_id="c",
        hostname="h",
        user_agent="u",
        heartbeat_interval_ms=5_000,
        nsqd_deflate=True,
        nsqd_deflate_level=3,
        topology_region="r",
        topology_zone="z",
    ).connection.offer

    assert ("c", "h", "u", 5_000, True, 3, "r", "z") == (
        offer.client_id,
        offer.hostname,
        offer.user_agent,
        offer.heartbeat_interval,
        offer.deflate,
        offer.deflate_level,
        offer.topology_region,
        offer.topology_zone,
    )


def test_our_secret_is_for_our_own_work() -> None:
    """nsqlookupd gets it; connections to nsqd choose their secret themselves."""
    access = access_of(auth_secret=RIGHT, lookupd_http_address="a:1")

    secret = Secret(RIGHT.encode())
    assert (secret, secret, None) == (
        access.secret,
        access.lookup.secret,
        access.connection.secret,
    )


def test_a_file_of_tls_that_cannot_be_used_is_told_at_the_start(tmp_path: Path) -> None:
    """The error is raised at the start, instead of an unreachable nsqd later."""
    nothing = str(tmp_path / "ca.pem")

    with pytest.raises(SettingsError, match="nsqd_tls_root_ca_file"):
        access_of(nsqd_tls_v1=True, nsqd_tls_root_ca_file=nothing)


def test_without_tls_there_is_none() -> None:
    """With TLS, the minimum version is that of the settings."""
    with_tls = access_of(nsqd_tls_v1=True, nsqd_tls_min_version="tls1.3").connection.tls

    assert None is access_of().connection.tls
    assert TlsOptions(min_version="tls1.3") == with_tls


async def authorize(
    scope: dict[str, Any], _receive: object, send: Callable[[object], Awaitable[None]]
) -> None:
    """Answer nsqd's auth request: the right secret may do everything with the topic."""
    secret = parse_qs(scope["query_string"].decode())["secret"][0]
    grants = [{"topic": TOPIC, "channels": [".*"], "permissions": ["publish", "subscribe"]}]
    answer = {"ttl": 60, "authorizations": grants if secret == RIGHT else [], "identity": "us"}
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": json.dumps(answer).encode()})


@asynccontextmanager
async def strict_nsqd(folder: Path) -> AsyncIterator[tuple[RealNsqd, Settings]]:
    """Run an nsqd with mutual TLS and AUTH; yield it and the matching settings."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    ours, theirs = authority.issue_cert("nsq-gateway"), authority.issue_cert("127.0.0.1")
    for name, issued in (("ours", ours), ("theirs", theirs)):
        issued.private_key_and_cert_chain_pem.write_to_path(str(folder / f"{name}.pem"))
    (folder / "secret").write_text(RIGHT + "\n")
    (folder / "secret").chmod(0o600)
    auth = HttpListener("auth", "127.0.0.1:0")
    await auth.start(authorize)
    flags = (
        f"--auth-http-address={auth.address}",
        "--tls-required=tcp-https",  # HTTP in clear text gives account
        "--https-address=127.0.0.1:0",
        "--tls-client-auth-policy=require-verify",
        f"--tls-root-ca-file={folder}/ca.pem",
        f"--tls-cert={folder}/theirs.pem",
        f"--tls-key={folder}/theirs.pem",
    )
    try:
        async with real_nsqd(*flags) as nsqd:
            yield (
                nsqd,
                {
                    "nsqd_tcp_address": nsqd.tcp_address,
                    "nsqd_tls_v1": "true",
                    "nsqd_tls_root_ca_file": f"{folder}/ca.pem",
                    "nsqd_tls_cert": f"{folder}/ours.pem",
                    "nsqd_snappy": "true",
                    "auth_secret_file": f"{folder}/secret",
                },
            )
    finally:
        await auth.stop()


@pytest.fixture
async def strict(tmp_path: Path) -> AsyncIterator[tuple[RealNsqd, Settings]]:
    """Return an nsqd with mutual TLS and AUTH, and the matching settings."""
    async with strict_nsqd(tmp_path) as nsqd:
        yield nsqd


@pytest.mark.nsqd
async def test_pub_and_sub_satisfy_a_strict_nsqd(strict: tuple[RealNsqd, Settings]) -> None:
    """Mutual TLS, snappy and a secret from a file."""
    nsqd, settings = strict
    async with topic_stats(nsqd.http_address, TOPIC):
        published = await run("pub", TOPIC, given=b"one\ntwo\n", settings=settings)
        received = await run("sub", TOPIC, "c", "-n", "2", settings=settings)

    assert ((0, b"", ""), (0, b"one\ntwo\n", "")) == (published, received)


@pytest.mark.nsqd
@pytest.mark.parametrize("command", [["pub", TOPIC], ["sub", TOPIC, "c"]])
@pytest.mark.parametrize(
    "changes,words",
    [
        ({"nsqd_tls_root_ca_file": ""}, ["certificate", "not trusted"]),
        ({"auth_secret_file": ""}, ["AUTH", "no secret"]),
        ({"auth_secret_file": "", "auth_secret": WRONG}, ["E_UNAUTHORIZED"]),
    ],
)
async def test_what_nsqd_or_we_insist_on_is_told(
    command: list[str],
    changes: Settings,
    words: list[str],
    strict: tuple[RealNsqd, Settings],
) -> None:
    """The exit status is that of a failure, and no log level shows a secret."""
    settings = {**strict[1], **changes, "log_level": "debug", "retry_for_s": "0"}

    status, output, errors = await run(*command, given=b"one\n", settings=settings)

    assert (1, b"", []) == (status, output, [word for word in words if word not in errors])
    assert (False, False) == (RIGHT in errors, WRONG in errors)


@pytest.mark.nsqd
async def test_a_gateway_passes_secrets_on(strict: tuple[RealNsqd, Settings]) -> None:
    """The gateway has no secret here; clients send theirs, and nsqd decides."""
    nsqd, settings = strict
    flags = [
        f"--{name.replace('_', '-')}={value}"
        for name, value in settings.items()
        if name.startswith(("nsqd_tls_r", "nsqd_tls_c"))
    ]
    async with AsyncExitStack() as life:
        enter = life.enter_async_context
        await enter(topic_stats(nsqd.http_address, TOPIC))
        gateway = await enter(
            gateway_with_nsqd([nsqd.tcp_address], [nsqd.http_address], "--nsqd-tls-v1", *flags)
        )
        right = {"url": gateway.url, "auth_secret": RIGHT, "log_level": "debug"}
        outcomes = [
            await run("pub", TOPIC, given=b"one\n", settings=right | changes)
            for changes in ({}, {"auth_secret": WRONG}, {"auth_secret": ""})
        ]
        received = await run("sub", TOPIC, "c", "-n", "1", settings=right)

    assert [0, 1, 1] == [status for status, _, _ in outcomes]
    assert [True, True] == ["403" in outcomes[1][2], "401" in outcomes[2][2]]
    assert (0, b"one\n") == received[:2]
    shown = "".join([errors for _, _, errors in outcomes] + [received[2]])
    assert (False, False) == (RIGHT in shown, WRONG in shown)


@pytest.mark.nsqd
@pytest.mark.parametrize(
    "flags,expected",
    [([], 401), (["--auth-anonymous"], 200), (["--require-auth"], 401)],
)
async def test_serve_lends_its_secret_only_when_told(
    flags: list[str], expected: int, strict: tuple[RealNsqd, Settings]
) -> None:
    """--auth-secret alone is for the gateway's own connections."""
    nsqd, settings = strict
    given = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
    given = [flag.replace("=true", "") for flag in given if "tcp-address" not in flag]
    async with gateway_with_nsqd(
        [nsqd.tcp_address], [nsqd.http_address], *given, *flags
    ) as running:
        answer = await running.http.post("/pub", params={"topic": TOPIC}, content=b"one")

    assert expected == answer.status_code


# The administrator's secret


def admin_secret_of(path: Path, text: bytes) -> Secret | None:
    """Return the secret read from a file at *path* with the content *text*."""
    path.write_bytes(text)
    path.chmod(0o600)
    return read_admin_secret(load(ServeSettings, {"admin_secret_file": str(path)}).settings)


def test_the_secret_of_the_administrator_is_in_its_file(tmp_path: Path) -> None:
    """A final newline is removed; without a file there is no secret."""
    assert Secret(b"word") == admin_secret_of(tmp_path / "secret", b"word\n")
    assert None is read_admin_secret(load(ServeSettings, {}).settings)


@pytest.mark.parametrize("text", [b"", b"two words", b"\xff", b"word\n\n", b"x" * 4_097])
def test_a_secret_of_the_administrator_that_no_header_carries_is_refused(
    text: bytes, tmp_path: Path
) -> None:
    """No client could send it."""
    with pytest.raises(SettingsError, match="--admin-secret-file") as caught:
        admin_secret_of(tmp_path / "secret", text)

    assert "two words" not in str(caught.value)
