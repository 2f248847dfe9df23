"""Settings of publishing: defaults and combinations."""

from typing import Any

import pytest

from gateway.errors import SettingsError
from gateway.settings.loader import load
from gateway.settings.serve import PublishSettings, ServeSettings


def test_no_caller_is_limited_unless_it_is_asked_for() -> None:
    """Usually one program publishes everything."""
    settings = load(PublishSettings, {}).settings

    assert (None, None, None) == (
        settings.publish_rate_limit,
        settings.publish_rate_burst,
        settings.publish_body_limit_bytes,
    )


@pytest.mark.parametrize(
    "flags,parts",
    [
        ({"publish_rate_limit": "0"}, ["--publish-rate-limit", "'0'", "messages a second"]),
        ({"publish_rate_limit": "inf"}, ["--publish-rate-limit", "'inf'", "10 000 000 messages"]),
        ({"publish_rate_limit": "nan"}, ["--publish-rate-limit", "'nan'", "10 000 000 messages"]),
        (
            {"publish_rate_limit": "5", "publish_rate_burst": "0.5"},
            ["--publish-rate-burst", "'0.5'", "1 to 100 000 000 messages"],
        ),
        ({"publish_rate_burst": "5"}, ["--publish-rate-burst", "--publish-rate-limit"]),
        ({"publish_body_limit_bytes": "0"}, ["--publish-body-limit-bytes", "'0'", "bytes"]),
        (
            {"publish_buffer_bytes": "5242879"},
            ["--publish-buffer-bytes", "5242879 bytes", "5242880 bytes", "--max-body-size"],
        ),
        (
            {"publish_buffer_per_nsqd_bytes": "5242879"},
            ["--publish-buffer-per-nsqd-bytes", "5242880 bytes", "--max-body-size", "503"],
        ),
        (
            {"publish_body_limit_bytes": "2000", "publish_buffer_bytes": "1999"},
            ["--publish-buffer-bytes", "1999 bytes", "2000 bytes", "--publish-body-limit-bytes"],
        ),
    ],
)
def test_what_cannot_work_is_told_with_the_other_setting(
    flags: dict[str, Any], parts: list[str]
) -> None:
    """The error alone is enough to correct the value."""
    with pytest.raises(SettingsError) as caught:
        load(ServeSettings, flags)

    assert [] == [part for part in parts if part not in str(caught.value)]


@pytest.mark.parametrize(
    "flags",
    [
        {"publish_buffer_bytes": "5242880", "publish_buffer_per_nsqd_bytes": "5242880"},
        {"publish_buffer_bytes": "60000", "publish_buffer_per_nsqd_bytes": "60000"}
        | {"max_body_size": "60000"},
        {"publish_buffer_bytes": "2000", "publish_buffer_per_nsqd_bytes": "2000"}
        | {"publish_body_limit_bytes": "2000"},
        {"publish_body_limit_bytes": "1000000000"},
        {"publish_rate_limit": "0.5", "publish_rate_burst": "1"},
    ],
)
def test_what_fits_together_is_taken(flags: dict[str, Any]) -> None:
    """A buffer may be as small as one body; a limit above nsqd's is valid."""
    settings = load(ServeSettings, flags).settings

    assert {name: float(value) for name, value in flags.items()} == settings.model_dump(
        include=set(flags)
    )
