"""Types of settings: valid values, and hidden secrets."""

import os

import pytest

from gateway.credentials import Secret
from gateway.errors import SettingRefused
from gateway.settings.fields import environment_name, flag_name, parse_duration_ms
from gateway.settings.loader import load
from gateway.settings.nsqd import NsqdSettings


def test_one_name_has_three_forms() -> None:
    """Flag and environment variable follow from the name."""
    assert ("--max-sockets", "NSQ_GATEWAY_MAX_SOCKETS") == (
        flag_name("max_sockets"),
        environment_name("max_sockets"),
    )


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
    """A Go duration becomes milliseconds; other values are left to the next check."""
    assert expected == parse_duration_ms(text)


def test_a_secret_is_kept_as_its_bytes() -> None:
    """Bytes of the environment and the command line need not be UTF-8."""
    settings = load(NsqdSettings, {"auth_secret": os.fsdecode(b"p\xe4ss")}).settings

    assert Secret(b"p\xe4ss") == settings.auth_secret


def test_no_repr_of_the_settings_shows_the_secret() -> None:
    """A repr in a log line or a traceback does not reveal it."""
    settings = load(NsqdSettings, {"auth_secret": "hunter2"}).settings

    assert "hunter2" not in repr(settings) + str(settings) + str(settings.model_dump())


@pytest.mark.parametrize("value", ["", 70707, ["70707"], True])
def test_a_secret_that_cannot_be_used_is_not_shown(value: object) -> None:
    """An invalid secret in TOML, such as a number, is not part of the error."""
    with pytest.raises(SettingRefused) as caught:
        load(NsqdSettings, {"auth_secret": value})

    error = caught.value
    shown = f"{error} {error!r} {error.__cause__} {error.__cause__!r}"
    assert (True, False) == ("--auth-secret (flag)" in shown, "70707" in shown)
