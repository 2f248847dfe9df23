"""
OpenTelemetry's variables for where spans go, looked at before anything is sent.

Its exporter takes what it is given and fails at each batch, long after the start and on its own
log: an address without http://, a protocol that it does not speak, a certificate that is not there.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from gateway.errors import SettingsError

_PREFIX = "OTEL_EXPORTER_OTLP_"
_PROTOCOL = "http/protobuf"
_FILES = ("CERTIFICATE", "CLIENT_CERTIFICATE", "CLIENT_KEY")


def check_otlp_variables(environment: Mapping[str, str]) -> None:
    """
    See that what *environment* says of the collector can be used; empty is as good as unset.

    Raises:
        SettingsError: It cannot; the name of the variable is that of the setting.
    """
    name, endpoint = _said(environment, "ENDPOINT")
    if endpoint and not _is_http(endpoint):
        raise SettingsError(name, endpoint, allowed="http://HOST:PORT or https://HOST:PORT")
    name, protocol = _said(environment, "PROTOCOL")
    if protocol and protocol != _PROTOCOL:
        allowed = f"{_PROTOCOL}, the only one spoken here; port 4318 of most collectors takes it"
        raise SettingsError(name, protocol, allowed=allowed)
    for what in _FILES:
        name, path = _said(environment, what)
        if path and not Path(path).is_file():
            raise SettingsError(name, path, allowed="the path of a file that can be read")


def _said(environment: Mapping[str, str], what: str) -> tuple[str, str]:
    """Return the variable that counts for traces and its value, the one for all signals last."""
    for name in (f"{_PREFIX}TRACES_{what}", f"{_PREFIX}{what}"):
        if value := environment.get(name, "").strip():
            return name, value
    return f"{_PREFIX}{what}", ""


def _is_http(address: str) -> bool:
    try:
        parts = urlsplit(address)
        port = parts.port
    except ValueError:
        return False
    return parts.scheme in {"http", "https"} and bool(parts.hostname) and port != 0
