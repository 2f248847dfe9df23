"""Settings as flags: nsqd's spelling, and values that begin with a dash."""

import json

import pytest

from gateway.cli.main import commands
from gateway.cli.options import as_json_values, flags_given, format_value
from gateway.credentials import Secret
from gateway.errors import SettingsError
from gateway.settings.loader import load
from gateway.settings.serve import ServeSettings

SNAPPY: dict[str, object] = {"snappy": True}


def parsed(*args: str) -> dict[str, object]:
    """Return the flags that `broker` parses from *args*."""
    broker = commands.commands["broker"]
    return flags_given(broker.make_context("broker", list(args)).params)


@pytest.mark.parametrize(
    "args,expected",
    [
        (["-tcp-address=a:1"], {"tcp_address": "a:1"}),
        (["-tcp-address", "a:1"], {"tcp_address": "a:1"}),
        (
            ["--tcp-address", "a:1", "-max-rdy-count", "-50"],
            {"tcp_address": "a:1", "max_rdy_count": "-50"},
        ),
        (["--broadcast-address", "-tcp-address"], {"broadcast_address": "-tcp-address"}),
        (
            ["-broadcast-address", "-x", "-msg-timeout=1s"],
            {"broadcast_address": "-x", "msg_timeout": "1s"},
        ),
        (["-snappy=false", "--deflate=T"], {"snappy": False, "deflate": True}),
        (["-snappy", "-no-deflate"], {"snappy": True, "deflate": False}),
        (["-snappy", "-broadcast-address=-deflate"], SNAPPY | {"broadcast_address": "-deflate"}),
        (["-tls-required", "-snappy"], SNAPPY | {"tls_required": "true"}),
        (["-tls-required=tcp-https", "-snappy"], SNAPPY | {"tls_required": "tcp-https"}),
        (
            ["-lookupd-tcp-address=a:1", "--lookupd-tcp-address", "b:1"],
            {"lookupd_tcp_address": ("a:1", "b:1")},
        ),
        (["-worker-id", "-verbose=1"], {"worker_id": True, "verbose": True}),
    ],
)
def test_a_flag_may_have_one_dash_and_a_value_too(
    args: list[str], expected: dict[str, object]
) -> None:
    """The argument after a flag is its value and stays unchanged."""
    assert expected == parsed(*args)


def test_a_boolean_that_is_none_in_go_is_refused() -> None:
    """The flag is named, and what it may be."""
    with pytest.raises(SettingsError, match="--snappy is 'maybe'; allowed: true, false"):
        parsed("-snappy=maybe")


@pytest.mark.parametrize(
    "value,text",
    [
        (None, "none"),
        ("", "none"),
        ((), "none"),
        (("a:1", "b:2"), "a:1,b:2"),
        (True, "true"),
        (0.25, "0.25"),
        (5, "5"),
        (Secret(b"word"), f"hidden ({Secret(b'word').fingerprint})"),
    ],
)
def test_a_value_is_shown_as_it_is_written(value: object, text: str) -> None:
    """Values are shown as on the command line, except secrets."""
    assert text == format_value(value)


def test_only_secrets_are_hidden_from_programs() -> None:
    """In JSON all other values keep their type."""
    values = as_json_values(
        load(ServeSettings, {"auth_secret": "word", "auth_anonymous": True}).settings
    )

    assert (f"hidden ({Secret(b'word').fingerprint})", True, None, 60.0) == (
        values["auth_secret"],
        values["auth_anonymous"],
        values["auth_secret_file"],
        values["auth_recheck_s"],
    )


def test_a_folder_is_text_for_programs() -> None:
    values = as_json_values(load(ServeSettings, {"broker_data_path": "/srv/messages"}).settings)

    assert "/srv/messages" == json.loads(json.dumps(values))["broker_data_path"]
