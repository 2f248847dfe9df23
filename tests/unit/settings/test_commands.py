"""Settings of `pub` and `sub`: target, log level and retries."""

from typing import Any

import pytest

from gateway.errors import SettingsError
from gateway.settings.commands import CommandSettings, PubSettings, SubSettings
from gateway.settings.loader import load


@pytest.mark.parametrize(
    "flags,expected",
    [
        ({}, "http://127.0.0.1:8080"),
        ({"url": "ws://a:1"}, "http://a:1"),
        ({"url": "wss://a/behind/"}, "https://a/behind"),
        ({"url": "http://[::1]:8080"}, "http://[::1]:8080"),
        ({"nsqd_tcp_address": "a:1"}, None),
        ({"lookupd_http_address": "a:1"}, None),
        ({"url": "http://a:1", "nsqd_tcp_address": "b:1"}, "http://a:1"),
    ],
)
def test_a_url_goes_before_addresses_of_nsqd(flags: dict[str, Any], expected: str | None) -> None:
    """--url wins over nsqd's addresses; without both the default is serve's address."""
    assert expected == load(CommandSettings, flags).settings.gateway_url


@pytest.mark.parametrize(
    "url",
    [
        "a:1",
        "ftp://a:1",
        "http://",
        "http://user:word@a:1",
        "http://a:1/?topic=t",
        "http://a:b:c",
        "http://[::1",
        "http://a:0",
    ],
)
def test_what_is_no_url_of_a_gateway_is_refused(url: str) -> None:
    """The error contains the allowed forms."""
    with pytest.raises(SettingsError, match="http://host:port"):
        load(CommandSettings, {"url": url})


def test_only_warnings_are_logged_unless_told() -> None:
    """Standard error of a command in a pipe is for its user."""
    assert ("warning", "warning") == (
        load(PubSettings, {}).settings.log_level,
        load(SubSettings, {}).settings.log_level,
    )


def test_tries_are_bounded_unless_told() -> None:
    """The default is 30 s, and no retry after an unknown outcome."""
    settings = load(PubSettings, {}).settings

    assert (30.0, False) == (settings.retry_for_s, settings.at_least_once)


@pytest.mark.parametrize("value", ["-1", "86401", "true", "5s"])
def test_a_time_for_tries_that_is_none_is_refused(value: str) -> None:
    """The error contains the unit."""
    with pytest.raises(SettingsError, match="0 to 86 400 s"):
        load(PubSettings, {"retry_for_s": value})
