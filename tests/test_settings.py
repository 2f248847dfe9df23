"""Settings: what is allowed alone and together, and what an operator reads when it is not."""

from typing import Any

import pytest

from gateway.errors import SettingsError
from gateway.settings import BrokerSettings, ServeSettings, parse_duration_ms
from gateway.settings_sources import load


@pytest.mark.parametrize(
    "text,expected",
    [
        ("60s", 60_000),
        ("1h0m", 3_600_000),
        ("1h30m", 5_400_000),
        ("250ms", 250),
        ("1.5s", 1_500),
        ("2000000us", 2_000),
        ("1500000µs", 1_500),
        ("1000000000ns", 1_000),
        ("60000", "60000"),
        ("s", "s"),
        ("1 s", "1 s"),
        (7, 7),
    ],
)
def test_a_duration_is_spelled_as_in_go(text: object, expected: object) -> None:
    """A Go duration becomes milliseconds; anything else is left for the next check."""
    assert expected == parse_duration_ms(text)


@pytest.mark.parametrize(
    "flags,parts",
    [
        (
            {"max_in_flight_limit": "2501"},
            ["--max-in-flight-limit", "flag", "'2501'", "1 to 2 500"],
        ),
        ({"publish_timeout_ms": "0"}, ["--publish-timeout-ms", "'0'", "1 to 600 000 ms"]),
        ({"max_req_timeout": "soon"}, ["--max-req-timeout", "'soon'", "0 to 86 400 000 ms"]),
        ({"listen": "8080"}, ["--listen", "'8080'", "host:port"]),
        ({"nsqd_tcp_address": ("a:1", "b")}, ["--nsqd-tcp-address", "'b'", "host:port"]),
        ({"allow_origin": "https://a/b"}, ["--allow-origin", "https://a/b", "without a path"]),
        ({"log_level": "loud"}, ["--log-level", "'loud'", "debug, info, warning, error"]),
        ({"nsqd_http_address": "a:1"}, ["--nsqd-tcp-address", "--nsqd-http-address"]),
        ({"listen": "0.0.0.0:1"}, ["--listen 0.0.0.0:1", "--embedded-broker"]),
        (
            {"listen": "0.0.0.0:1", "nsqd_tcp_address": "a:1"},
            ["--listen", "'0.0.0.0:1'", "--insecure"],
        ),
    ],
)
def test_a_wrong_value_names_setting_source_value_and_range(
    flags: dict[str, Any], parts: list[str]
) -> None:
    """An operator can mend the value without reading anything else."""
    with pytest.raises(SettingsError) as caught:
        load(ServeSettings, flags)

    assert [] == [part for part in parts if part not in str(caught.value)]


@pytest.mark.parametrize(
    "flags",
    [
        {"listen": "0.0.0.0:1", "embedded_broker": True, "insecure": True},
        {"listen": "0.0.0.0:1", "nsqd_tcp_address": "a:1", "insecure": True},
        {"listen": "[::1]:1"},
    ],
)
def test_what_is_not_loopback_is_taken_when_it_is_meant(flags: dict[str, Any]) -> None:
    """In so many words, or on loopback, everything goes."""
    assert flags["listen"] == load(ServeSettings, flags).settings.listen


def test_lists_are_split_at_commas_wherever_they_come_from() -> None:
    """A repeated flag and commas may stand together."""
    loaded = load(ServeSettings, {"nsqd_tcp_address": ("a:1,b:2", " c:3 ,")})

    assert ("a:1", "b:2", "c:3") == loaded.settings.nsqd_tcp_address


def test_the_embedded_broker_is_used_when_no_nsqd_is_named() -> None:
    """Naming one nsqd is enough to start none."""
    with_none = load(ServeSettings, {}).settings
    with_one = load(ServeSettings, {"nsqd_tcp_address": "a:1"}).settings

    assert (True, False) == (with_none.uses_embedded_broker, with_one.uses_embedded_broker)


@pytest.mark.parametrize("kind", [ServeSettings, BrokerSettings])
def test_every_setting_says_what_it_is_for_and_what_is_allowed(
    kind: type[ServeSettings | BrokerSettings],
) -> None:
    """--help and the page of settings have nothing else to draw on."""
    without = [
        name
        for name, field in kind.model_fields.items()
        if not field.description or not isinstance(field.json_schema_extra, dict)
    ]

    assert [] == without


@pytest.mark.parametrize("kind", [ServeSettings, BrokerSettings])
def test_every_default_is_allowed(kind: type[ServeSettings | BrokerSettings]) -> None:
    """The defaults, given as flags, are taken."""
    defaults = {
        name: field.default
        for name, field in kind.model_fields.items()
        if field.default not in (None, ())
    }

    assert load(kind, {}).settings == load(kind, defaults).settings
