"""Settings of `serve` and `broker`: valid values and combinations, and errors."""

from pathlib import Path
from typing import Any

import pytest
from pydantic_settings import BaseSettings

from gateway.errors import SettingsError
from gateway.settings.broker import BrokerSettings
from gateway.settings.loader import all_settings, load
from gateway.settings.serve import ServeSettings


@pytest.mark.parametrize(
    "flags,parts",
    [
        (
            {"max_in_flight_limit": "2501"},
            ["--max-in-flight-limit", "flag", "'2501'", "1 to 2 500"],
        ),
        ({"publish_timeout_ms": "0"}, ["--publish-timeout-ms", "'0'", "1 to 600 000 ms"]),
        (
            {"max_req_timeout": "soon"},
            ["--max-req-timeout", "'soon'", "0 to 86 400 000 ms", "1h30m"],
        ),
        ({"listen": "8080"}, ["--listen", "'8080'", "host:port"]),
        ({"nsqd_tcp_address": ("a:1", "b")}, ["--nsqd-tcp-address", "'b'", "host:port"]),
        ({"allow_origin": "https://a/b"}, ["--allow-origin", "https://a/b", "without a path"]),
        ({"allow_origin": "https://a:65536"}, ["--allow-origin", "https://a:65536"]),
        (
            {"allow_origin": "https://*.a"},
            ["--allow-origin", "https://*.a", "wildcards are not supported"],
        ),
        ({"allow_origin": "https://bücher.de"}, ["--allow-origin", "ASCII"]),
        ({"allow_origin": "https://me@a"}, ["--allow-origin", "https://me@a"]),
        ({"allow_origin": "null"}, ["--allow-origin", "null", "scheme://host"]),
        ({"allow_origin": "a.example.org"}, ["--allow-origin", "scheme://host:port"]),
        ({"request_timeout_s": "0"}, ["--request-timeout-s", "'0'", "0.1 to 3 600 s"]),
        ({"socket_max_age_s": "0.5"}, ["--socket-max-age-s 0.5", "1 s", "0 for no limit"]),
        ({"drain_in_flight_s": "-1"}, ["--drain-in-flight-s", "'-1'", "0 to 3 600 s"]),
        ({"log_level": "loud"}, ["--log-level", "'loud'", "debug, info, warning, error"]),
        ({"nsqd_tcp_address": "a:0"}, ["--nsqd-tcp-address", "'a:0'", "only valid for listening"]),
        ({"lookupd_http_address": "b"}, ["--lookupd-http-address", "'b'", "host:port"]),
        ({"nsqd_http_address": "a:1"}, ["--nsqd-tcp-address", "--nsqd-http-address"]),
        (
            {"max_sockets": True},
            ["--max-sockets", "True", "1 to 1 000 000", "a boolean is not a number"],
        ),
        (
            {"publish_timeout_ms": False},
            ["--publish-timeout-ms", "False", "a boolean is not a number"],
        ),
        ({"listen": "0.0.0.0:1"}, ["--listen 0.0.0.0:1", "--embedded-broker"]),
        (
            {"listen": "0.0.0.0:1", "nsqd_tcp_address": "a:1"},
            ["--listen 0.0.0.0:1", "--require-auth", "--insecure"],
        ),
        (
            {"listen": "0.0.0.0:1", "embedded_broker": True, "require_auth": True},
            ["--listen 0.0.0.0:1", "--require-auth", "accepts any secret", "--insecure"],
        ),
        ({"nsqd_tls_v1": True}, ["--nsqd-tls-v1", "embedded broker", "--nsqd-tcp-address"]),
        ({"broadcast_address": "gw:80"}, ["--broadcast-address", "'gw:80'", "host name or an IP"]),
        ({"broadcast_address": "http://gw"}, ["--broadcast-address", "host name or an IP address"]),
        ({"broadcast_address": "[::1]"}, ["--broadcast-address", "'[::1]'", "IP address"]),
        ({"auth_anonymous": True}, ["--auth-anonymous", "--auth-secret", "--auth-secret-file"]),
        (
            {"auth_anonymous": True, "auth_secret": "x", "require_auth": True},
            ["--auth-anonymous", "--require-auth"],
        ),
    ],
)
def test_a_wrong_value_names_setting_source_value_and_range(
    flags: dict[str, Any], parts: list[str]
) -> None:
    """The error alone is enough to correct the value."""
    with pytest.raises(SettingsError) as caught:
        load(ServeSettings, flags)

    assert [] == [part for part in parts if part not in str(caught.value)]


@pytest.mark.parametrize(
    "flags",
    [
        {"listen": "0.0.0.0:1", "embedded_broker": True, "insecure": True},
        {"listen": "0.0.0.0:1", "nsqd_tcp_address": "a:1", "insecure": True},
        {"listen": "0.0.0.0:1", "nsqd_tcp_address": "a:1", "require_auth": True},
        {"listen": "0.0.0.0:1", "lookupd_http_address": "a:1", "require_auth": True},
        {"listen": "[::1]:1"},
    ],
)
def test_what_is_not_loopback_is_taken_when_it_is_meant(flags: dict[str, Any]) -> None:
    """An address other than loopback is accepted with an explicit flag."""
    assert flags["listen"] == load(ServeSettings, flags).settings.listen


@pytest.mark.parametrize(
    "origin",
    [
        "*",
        "http://localhost:5173",
        "https://App.example.org",
        "http://[::1]:8080",
        "moz-extension://0b6c-4d",
        "tauri://localhost",
    ],
)
def test_an_origin_is_taken_as_browsers_write_it(origin: str) -> None:
    """Origins of pages, extensions and embedded browsers are valid, and *."""
    assert (origin,) == load(ServeSettings, {"allow_origin": origin}).settings.allow_origin


def test_lists_are_split_at_commas_wherever_they_come_from() -> None:
    """Repeated flags and commas may be combined."""
    loaded = load(ServeSettings, {"nsqd_tcp_address": ("a:1,b:2", " c:3 ,")})

    assert ("a:1", "b:2", "c:3") == loaded.settings.nsqd_tcp_address


@pytest.mark.parametrize(
    "flags,expected",
    [({}, True), ({"nsqd_tcp_address": "a:1"}, False), ({"lookupd_http_address": "a:1"}, False)],
)
def test_the_embedded_broker_is_used_when_no_nsqd_is_named(
    flags: dict[str, Any], *, expected: bool
) -> None:
    """One nsqd or one nsqlookupd is enough to disable it."""
    assert expected is load(ServeSettings, flags).settings.uses_embedded_broker


@pytest.mark.parametrize("kind", all_settings())
def test_every_setting_says_what_it_is_for_and_what_is_allowed(kind: type[BaseSettings]) -> None:
    """--help and docs/configuration.md show these texts."""
    without = [
        name
        for name, field in kind.model_fields.items()
        if not field.description or not isinstance(field.json_schema_extra, dict)
    ]

    assert [] == without


@pytest.mark.parametrize("kind", all_settings())
def test_every_default_is_allowed(kind: type[BaseSettings]) -> None:
    defaults = {
        name: field.default
        for name, field in kind.model_fields.items()
        if field.default not in (None, ())
    }

    assert load(kind, {}).settings == load(kind, defaults).settings


def test_the_durations_of_nsqd_are_kept_in_milliseconds() -> None:
    settings = load(BrokerSettings, {"msg_timeout": "1m30s", "max_msg_timeout": "120000"}).settings

    assert (90_000, 120_000) == (settings.msg_timeout, settings.max_msg_timeout)


@pytest.mark.parametrize(
    "flag,variable,line,expected",
    [
        (None, None, None, (True, "default")),
        (None, None, "console = false", (False, "file")),
        (None, "false", "console = true", (False, "environment")),
        (True, "false", "console = false", (True, "flag")),
        (False, "true", None, (False, "flag")),
        (None, "", "console = false", (False, "file")),
    ],
)
def test_what_is_on_can_be_taken_away_by_flag_variable_and_file(
    flag: bool | None,  # noqa: FBT001 - what is parametrized
    variable: str | None,
    line: str | None,
    expected: tuple[bool, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The console can be turned off by each source, in the usual order."""
    config = tmp_path / "gateway.toml"
    config.write_text(line or "")
    if variable is not None:
        monkeypatch.setenv("NSQ_GATEWAY_CONSOLE", variable)

    loaded = load(ServeSettings, {} if flag is None else {"console": flag}, config)

    assert expected == (loaded.settings.console, loaded.origins["console"])
