"""Settings of `broker`: what nsqd takes, and what contradicts itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.broker.broker import IGNORED_OPTIONS, BrokerOptions, to_nsqd_options
from gateway.errors import SettingsError
from gateway.server.broker import broker_options
from gateway.settings.broker import IGNORED, BrokerSettings
from gateway.settings.loader import load

PEM = {"tls_cert": "cert.pem", "tls_key": "key.pem"}


def test_the_defaults_of_the_settings_are_those_of_the_broker() -> None:
    options = broker_options(load(BrokerSettings, {}).settings)

    assert options == BrokerOptions(ignored_options=options.ignored_options)
    assert to_nsqd_options(options) == to_nsqd_options(BrokerOptions())


def test_what_config_shows_of_an_option_without_effect_is_what_was_given() -> None:
    given = {"sync_every": "1", "sync_timeout": "10ms", "statsd_prefix": "x.%s"}

    shown = to_nsqd_options(broker_options(load(BrokerSettings, given).settings))

    assert (1, 10_000_000, "x.%s") == (
        shown["sync_every"],
        shown["sync_timeout"],
        shown["statsd_prefix"],
    )


def test_every_setting_without_effect_says_so() -> None:
    fields = BrokerSettings.model_fields

    assert [] == [
        name for name, why in IGNORED.items() if fields[name].description != f"No effect: {why}."
    ]
    assert IGNORED_OPTIONS.keys() <= IGNORED.keys()


@pytest.mark.parametrize(
    "name,given,value",
    [
        ("tcp_address", ":4150", "0.0.0.0:4150"),
        ("http_address", "", ""),
        ("https_address", "", ""),
        ("log_level", "WARN", "warning"),
        ("log_level", "fatal", "fatal"),
        ("max_req_timeout", "720h", 2_592_000_000),
        ("msg_timeout", "100ms", 100),
        ("mem_queue_size", "0", 0),
        ("data_path", "messages", Path("messages")),
        ("tls_min_version", "", "tls1.0"),
        ("tls_min_version", "TLS1.2", "tls1.2"),
        ("e2e_processing_latency_percentile", ("1.0,0.99", "0.5"), (1.0, 0.99, 0.5)),
        ("auth_http_address", ("a:1", "https://b/auth?x=1"), ("a:1", "https://b/auth?x=1")),
    ],
)
def test_a_value_of_nsqd_is_taken(name: str, given: object, value: object) -> None:
    assert value == getattr(load(BrokerSettings, {name: given}).settings, name)


@pytest.mark.parametrize("word,value", [("1", "true"), ("F", "false"), ("TCP-HTTPS", "tcp-https")])
def test_tls_may_be_required_in_gos_words(word: str, value: str) -> None:
    assert value == load(BrokerSettings, {**PEM, "tls_required": word}).settings.tls_required


@pytest.mark.parametrize("line,value", [("true", "true"), ("false", "false"), ('"0"', "false")])
def test_tls_may_be_required_in_a_file(line: str, value: str, tmp_path: Path) -> None:
    path = tmp_path / "nsqd.toml"
    path.write_text(f"tls_required = {line}\n")

    assert value == load(BrokerSettings, PEM, path).settings.tls_required


@pytest.mark.parametrize(
    "given,words",
    [
        ({"tls_required": "maybe"}, "--tls-required .* 'maybe'; allowed: true, false, tcp-https"),
        ({"tls_required": "true"}, "--tls-required: .*--tls-cert and --tls-key"),
        ({"tls_client_auth_policy": "require"}, "--tls-client-auth-policy: .*--tls-cert"),
        ({"tls_cert": "cert.pem"}, "--tls-cert: .*--tls-key"),
        ({"tls_key": "key.pem"}, "--tls-cert: .*--tls-key"),
        ({"e2e_processing_latency_percentile": "1.5"}, "1.5 is not above 0 and at most 1"),
        ({"e2e_processing_latency_percentile": "0"}, "0 is not above 0 and at most 1"),
        ({"node_id": "1024"}, "0 to 1 023"),
        ({"max_deflate_level": "10"}, "1 to 9"),
        ({"auth_http_address": "here"}, "--auth-http-address .*host:port"),
        ({"lookupd_tcp_address": "here:0"}, "port 0 is only valid for listening"),
        ({"log_level": "warned"}, "debug, info, warning or warn, error, fatal"),
    ],
)
def test_what_cannot_be_is_refused_with_what_can(given: dict[str, str], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        load(BrokerSettings, given)
