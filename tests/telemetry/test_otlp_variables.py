"""OpenTelemetry's variables: what would fail at each batch is refused at the start."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.errors import SettingsError
from gateway.telemetry.otlp_variables import check_otlp_variables

FILE = str(Path(__file__))


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": ""},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "https://[::1]:4318/of/mine"},
        {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"},
        {"OTEL_EXPORTER_OTLP_CERTIFICATE": FILE, "OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY": FILE},
        # The one for traces is the one that counts.
        {
            "OTEL_EXPORTER_OTLP_ENDPOINT": "collector:4317",
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://collector:4318/v1/traces",
        },
    ],
)
def test_what_can_be_used_is(environment: dict[str, str]) -> None:
    """Nothing, too: the exporter has defaults."""
    check_otlp_variables(environment)


@pytest.mark.parametrize(
    "name,value,allowed",
    [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4317", "http://HOST:PORT"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://", "http://HOST:PORT"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:high", "http://HOST:PORT"),
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "grpc://collector:4317", "http://HOST:PORT"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "http/protobuf"),
        ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/json", "http/protobuf"),
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/no/such/file", "a file"),
        ("OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY", "/no/such/file", "a file"),
    ],
)
def test_what_cannot_is_named(name: str, value: str, allowed: str) -> None:
    """With its value, and with what is allowed."""
    with pytest.raises(SettingsError) as refused:
        check_otlp_variables({name: value})

    for part in (name, value, allowed):
        assert part in str(refused.value)
