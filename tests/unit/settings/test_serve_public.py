"""Settings of the public port: TLS, proxies, limits, and access without a secret."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.errors import SettingsError
from gateway.settings.loader import load
from gateway.settings.serve import ServeSettings

NSQD = {"nsqd_tcp_address": "127.0.0.1:4150"}


@pytest.mark.parametrize(
    "flags,parts",
    [
        ({"tls_cert": "a.pem"}, ["--tls-cert", "--tls-key"]),
        ({"tls_key": "a.pem"}, ["--tls-key", "--tls-cert"]),
        ({"tls_min_version": "tls1.3"}, ["--tls-min-version", "--tls-cert"]),
        (
            {"tls_cert": "a", "tls_key": "b", "tls_min_version": "ssl3"},
            ["--tls-min-version", "'ssl3'", "tls1.2"],
        ),
        ({"trusted_proxy": "10.0.0.1/8"}, ["--trusted-proxy", "host bits", "10.0.0.0/8"]),
        ({"trusted_proxy": "proxy.example"}, ["--trusted-proxy", "proxy.example"]),
        ({"trusted_proxy": "*"}, ["--trusted-proxy"]),
        ({"max_http_connections": "0"}, ["--max-http-connections", "1 to 1 000 000"]),
        ({"response_timeout_s": "0"}, ["--response-timeout-s", "0.1 to 3 600 s"]),
        ({"max_sockets_per_secret": "-1"}, ["--max-sockets-per-secret", "0 to 1 000 000"]),
    ],
    ids=repr,
)
def test_what_cannot_work_is_told_with_what_to_do(flags: dict[str, Any], parts: list[str]) -> None:
    """The error alone is enough to correct the value."""
    with pytest.raises(SettingsError) as caught:
        load(ServeSettings, flags)

    assert [] == [part for part in parts if part not in str(caught.value)]


def test_proxies_are_a_list() -> None:
    """It may contain IPv4 and IPv6 addresses and networks."""
    settings = load(ServeSettings, {"trusted_proxy": "10.0.0.0/8, ::1,192.0.2.7"}).settings

    assert ("10.0.0.0/8", "::1", "192.0.2.7") == settings.trusted_proxy


ELSEWHERE = [
    "0.0.0.0:0",
    "0.0.0.0:8080",
    "[::]:8080",
    "[::ffff:127.0.0.1]:8080",
    "[::ffff:0.0.0.0]:8080",
    "[::ffff:192.0.2.1]:8080",
    "192.0.2.1:8080",
    "0:8080",
    "127.1:8080",
    "2130706433:8080",
    "0x7f000001:8080",
    "example.org:8080",
    "localhost.example:8080",
    "localhost.:8080",
    "127.0.0.1.example.org:8080",
]


@pytest.mark.parametrize("listen", ELSEWHERE)
@pytest.mark.parametrize("source", ["flag", "environment", "file"])
@pytest.mark.parametrize("more", [{}, {"workers": 2}], ids=["alone", "workers"])
def test_a_port_for_others_is_asked_for_in_so_many_words(
    listen: str,
    source: str,
    more: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However an address is written: if it is not loopback, access must be configured."""
    flags: dict[str, Any] = {**NSQD, **more}
    config = None
    if source == "flag":
        flags["listen"] = listen
    elif source == "environment":
        monkeypatch.setenv("NSQ_GATEWAY_LISTEN", listen)
    else:
        config = tmp_path / "gateway.toml"
        config.write_text(f'listen = "{listen}"\n')

    with pytest.raises(SettingsError, match="--require-auth") as caught:
        load(ServeSettings, flags, config)
    assert "--insecure" in str(caught.value)


@pytest.mark.parametrize("setting", ["broker_tcp_address", "broker_http_address"])
def test_a_broker_for_others_is_asked_for_in_so_many_words(setting: str) -> None:
    """The embedded broker accepts every client, so it needs --insecure."""
    flags = {setting: "0.0.0.0:4150"}

    with pytest.raises(SettingsError, match="--insecure"):
        load(ServeSettings, flags)
    assert load(ServeSettings, {**flags, "insecure": True}).settings.insecure
    assert load(ServeSettings, {**flags, **NSQD}).settings.nsqd_tcp_address
