"""
Settings of connections to nsqd: addresses, TLS, compression, AUTH, identity.

`serve`, `pub`, `sub` and the pipeline share them, so that one environment or file serves all.
"""

from __future__ import annotations

from typing import Any

from pydantic import model_validator

from gateway.errors import SettingRefused
from gateway.settings.fields import (
    ADDRESSES,
    HiddenText,
    LookupdAddresses,
    RemoteAddresses,
    Settings,
    flag_name,
    number,
    setting,
    switch,
)
from gateway.tls import TlsVersion

_PEM = "the path of a PEM file"
_TEXT = "any text"

_NEEDED_BY = {
    "nsqd_tls_root_ca_file": "nsqd_tls_v1",
    "nsqd_tls_cert": "nsqd_tls_v1",
    "nsqd_tls_key": "nsqd_tls_cert",
    "nsqd_tls_min_version": "nsqd_tls_v1",
    "nsqd_tls_insecure_skip_verify": "nsqd_tls_v1",
    "nsqd_deflate_level": "nsqd_deflate",
}
"""Settings without effect unless another one is set: ignoring them would hide a mistake."""

_CONTRADICTIONS = (
    ("nsqd_snappy", "nsqd_deflate", "nsqd uses one compression at a time"),
    ("auth_secret", "auth_secret_file", "the secret must have one source"),
)


class NsqdSettings(Settings):
    """Settings of connections to nsqd."""

    nsqd_tcp_address: RemoteAddresses = setting((), "TCP address of an nsqd.", ADDRESSES)
    lookupd_http_address: LookupdAddresses = setting(
        (),
        "HTTP address of an nsqlookupd. Every nsqlookupd is queried.",
        "host:port, http://…, https://…; repeat the flag, or separate with commas",
    )
    lookupd_poll_interval_s: float = number(
        60, "Maximum time between requests to nsqlookupd.", (0.01, 300), "s"
    )
    lookupd_poll_jitter: float = number(
        0.3, "Each poll interval is shortened at random, by up to this share of it.", (0, 1)
    )
    dial_timeout_ms: int = number(
        2_000,
        "Time limit for the TCP connection to nsqd, and for each response of its handshake.",
        (1, 300_000),
        "ms",
    )
    heartbeat_interval_ms: int = number(
        30_000,
        "Heartbeat interval requested from nsqd. A connection without data for two intervals is "
        "closed.",
        (1_000, 60_000),
        "ms",
    )
    nsqd_tls_v1: bool = switch("Require TLS for connections to nsqd.")
    nsqd_tls_root_ca_file: str | None = setting(
        None,
        "Root certificates to verify nsqd's certificate with; without them, the system's.",
        _PEM,
    )
    nsqd_tls_cert: str | None = setting(None, "Client certificate for nsqd (mutual TLS).", _PEM)
    nsqd_tls_key: str | None = setting(
        None, "Private key of --nsqd-tls-cert; none: it is in the same file.", _PEM
    )
    nsqd_tls_min_version: TlsVersion = setting(
        "tls1.2",
        "Lowest TLS version with nsqd. The first two work only if OpenSSL still supports them.",
        "tls1.0, tls1.1, tls1.2, tls1.3",
    )
    nsqd_tls_insecure_skip_verify: bool = switch(
        "Do not verify nsqd's certificate; for tests only."
    )
    nsqd_snappy: bool = switch("Request snappy compression from nsqd, if it supports it.")
    nsqd_deflate: bool = switch("Request deflate compression from nsqd, if it supports it.")
    nsqd_deflate_level: int = number(6, "Compression level of deflate; nsqd may lower it.", (1, 9))
    auth_secret: HiddenText | None = setting(
        None,
        "Secret for nsqd's AUTH, and Bearer token for nsqlookupd. Other users of this machine "
        "can read a flag: prefer the file, or the environment variable.",
        _TEXT,
    )
    auth_secret_file: str | None = setting(
        None,
        "File with the secret. Read once at start, without its last newline.",
        "the path of a file",
    )
    client_id: str = setting("nsq-gateway", "Client id in nsqd's /stats.", _TEXT)
    hostname: str | None = setting(
        None, "Host name in nsqd's /stats. If not set, this host's.", _TEXT
    )
    user_agent: str | None = setting(
        None, "User agent in nsqd's /stats. If not set, nsq-gateway and its version.", _TEXT
    )
    topology_region: str = setting(
        "", "Region of this process; an nsqd may prefer consumers of its own region.", _TEXT
    )
    topology_zone: str = setting(
        "", "Zone of this process; an nsqd may prefer consumers of its own zone.", _TEXT
    )

    @property
    def has_nsqd_address(self) -> bool:
        """True if an nsqd or an nsqlookupd is configured."""
        return bool(self.nsqd_tcp_address or self.lookupd_http_address)

    @model_validator(mode="after")
    def _nsqd_settings_are_consistent(self) -> NsqdSettings:
        for name, needed in _NEEDED_BY.items():
            if self._is_set(name) and not self._is_set(needed):
                raise SettingRefused(
                    flag_name(name), f"it has no effect without {flag_name(needed)}"
                )
        for name, other, reason in _CONTRADICTIONS:
            if self._is_set(name) and self._is_set(other):
                raise SettingRefused(
                    flag_name(name), f"it cannot be combined with {flag_name(other)}: {reason}"
                )
        return self

    def _is_set(self, name: str) -> bool:
        """Return whether the value of the setting *name* differs from the default."""
        # Given values that equal the default have no effect either: they hide no mistake.
        default: Any = type(self).model_fields[name].default
        return bool(getattr(self, name) != default)
