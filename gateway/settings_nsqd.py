"""
The settings of everything that talks to nsqd: where it is, TLS, compression, AUTH, who we are.

`serve`, `pub` and `sub` share them, so that one environment or file serves all three.
"""

from __future__ import annotations

from typing import Any

from pydantic import model_validator

from gateway.errors import SettingRefused
from gateway.settings_common import (
    ADDRESSES,
    HiddenText,
    LookupdAddresses,
    RemoteAddresses,
    Settings,
    flag_of,
    number,
    setting,
    switch,
)
from gateway.tls_versions import TlsVersion

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
"""Alone it would do nothing, and whoever gave it believes that it does."""

_CONTRADICTIONS = (
    ("nsqd_snappy", "nsqd_deflate", "nsqd takes one kind of compression"),
    ("auth_secret", "auth_secret_file", "name the secret in one place"),
)


class NsqdSettings(Settings):
    """How nsqd is reached."""

    nsqd_tcp_address: RemoteAddresses = setting(
        (), "An nsqd to publish to and to subscribe on, by its TCP port.", ADDRESSES
    )
    lookupd_http_address: LookupdAddresses = setting(
        (),
        "An nsqlookupd, by its HTTP port; all of them are asked where nsqd is.",
        "host:port, http://…, https://…; repeat it, or separate with commas",
    )
    lookupd_poll_interval_s: float = number(
        60, "Longest time from one question to nsqlookupd to the next.", (0.01, 300), "s"
    )
    lookupd_poll_jitter: float = number(
        0.3, "Share of the poll interval by which it is shortened at random, each time.", (0, 1)
    )
    dial_timeout_ms: int = number(
        2_000,
        "Time for the TCP connection to nsqd, and again for each answer that opens it.",
        (1, 300_000),
        "ms",
    )
    heartbeat_interval_ms: int = number(
        30_000, "Heartbeats asked of nsqd; silence of two means it is dead.", (1_000, 60_000), "ms"
    )
    nsqd_tls_v1: bool = switch("Speak TLS with nsqd; an nsqd that does not is not talked to.")
    nsqd_tls_root_ca_file: str | None = setting(
        None, "The authorities that may have signed nsqd's certificate; none: the system's.", _PEM
    )
    nsqd_tls_cert: str | None = setting(
        None, "Our certificate, for an nsqd that asks for one (mutual TLS).", _PEM
    )
    nsqd_tls_key: str | None = setting(
        None, "The key of --nsqd-tls-cert; none: it stands in the same file.", _PEM
    )
    nsqd_tls_min_version: TlsVersion = setting(
        "tls1.2",
        "The oldest TLS that is spoken with nsqd; the first two where OpenSSL has them still.",
        "tls1.0, tls1.1, tls1.2, tls1.3",
    )
    nsqd_tls_insecure_skip_verify: bool = switch(
        "Take any certificate from nsqd, under any name: only to try things out."
    )
    nsqd_snappy: bool = switch("Ask nsqd for snappy; one that has none is spoken to without.")
    nsqd_deflate: bool = switch("Ask nsqd for deflate; one that has none is spoken to without.")
    nsqd_deflate_level: int = number(6, "How hard deflate tries; nsqd may lower it.", (1, 9))
    auth_secret: HiddenText | None = setting(
        None,
        "The secret for an nsqd that asks for AUTH, and the Bearer for nsqlookupd. Everybody on "
        "this machine sees a flag: prefer the file, or the environment.",
        _TEXT,
    )
    auth_secret_file: str | None = setting(
        None,
        "A file that holds the secret; read once at the start, without its last newline.",
        "the path of a file",
    )
    client_id: str = setting("nsq-gateway", "What nsqd shows in /stats as client id.", _TEXT)
    hostname: str | None = setting(
        None, "What nsqd shows in /stats as host name; none: this host's.", _TEXT
    )
    user_agent: str | None = setting(
        None, "What nsqd shows in /stats as user agent; none: nsq-gateway and its version.", _TEXT
    )
    topology_region: str = setting(
        "", "Our region, for an nsqd that prefers consumers nearby.", _TEXT
    )
    topology_zone: str = setting(
        "", "Our zone in the region, for an nsqd that prefers consumers nearby.", _TEXT
    )

    @property
    def names_an_nsqd(self) -> bool:
        """Whether it is said where an nsqd is, or who knows it."""
        return bool(self.nsqd_tcp_address or self.lookupd_http_address)

    @model_validator(mode="after")
    def _nsqd_settings_fit_together(self) -> NsqdSettings:
        for name, needed in _NEEDED_BY.items():
            if self._is_set(name) and not self._is_set(needed):
                raise SettingRefused(flag_of(name), f"it does nothing without {flag_of(needed)}")
        for name, other, reason in _CONTRADICTIONS:
            if self._is_set(name) and self._is_set(other):
                raise SettingRefused(flag_of(name), f"not beside {flag_of(other)}: {reason}")
        return self

    def _is_set(self, name: str) -> bool:
        """Tell whether the setting *name* has another value than its default."""
        default: Any = type(self).model_fields[name].default
        return bool(getattr(self, name) != default)
