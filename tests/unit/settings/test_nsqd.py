"""Settings of connections to nsqd: valid and invalid combinations."""

from typing import Any

import pytest

from gateway.errors import SettingRefused
from gateway.settings.commands import PubSettings, SubSettings
from gateway.settings.loader import load
from gateway.settings.nsqd import NsqdSettings
from gateway.settings.serve import ServeSettings

ALL = {
    "nsqd_tcp_address": ("a:1", "b:2"),
    "lookupd_http_address": "c:3,https://d/lookup",
    "lookupd_poll_interval_s": "0.5",
    "nsqd_tls_v1": True,
    "nsqd_tls_root_ca_file": "ca.pem",
    "nsqd_tls_cert": "cert.pem",
    "nsqd_tls_key": "key.pem",
    "nsqd_tls_min_version": "tls1.3",
    "nsqd_deflate": True,
    "nsqd_deflate_level": "9",
    "auth_secret_file": "secret",
    "topology_zone": "z",
}


@pytest.mark.parametrize("kind", [NsqdSettings, ServeSettings, PubSettings, SubSettings])
def test_what_fits_together_is_taken(kind: type[NsqdSettings]) -> None:
    """Every program that connects to nsqd accepts it."""
    settings = load(kind, ALL).settings

    assert (("a:1", "b:2"), ("c:3", "https://d/lookup"), 9, "tls1.3") == (
        settings.nsqd_tcp_address,
        settings.lookupd_http_address,
        settings.nsqd_deflate_level,
        settings.nsqd_tls_min_version,
    )


@pytest.mark.parametrize(
    "flags,names",
    [
        ({"nsqd_tls_root_ca_file": "x"}, ["--nsqd-tls-root-ca-file", "--nsqd-tls-v1"]),
        ({"nsqd_tls_cert": "x"}, ["--nsqd-tls-cert", "--nsqd-tls-v1"]),
        ({"nsqd_tls_v1": True, "nsqd_tls_key": "x"}, ["--nsqd-tls-key", "--nsqd-tls-cert"]),
        ({"nsqd_tls_min_version": "tls1.3"}, ["--nsqd-tls-min-version", "--nsqd-tls-v1"]),
        (
            {"nsqd_tls_insecure_skip_verify": True},
            ["--nsqd-tls-insecure-skip-verify", "--nsqd-tls-v1"],
        ),
        ({"nsqd_deflate_level": "9"}, ["--nsqd-deflate-level", "--nsqd-deflate"]),
        ({"nsqd_snappy": True, "nsqd_deflate": True}, ["--nsqd-snappy", "--nsqd-deflate"]),
        (
            {"auth_secret": "x", "auth_secret_file": "y"},
            ["--auth-secret", "--auth-secret-file"],
        ),
    ],
)
def test_what_does_not_go_together_names_both(flags: dict[str, Any], names: list[str]) -> None:
    """An unused TLS file would mean plain text although the operator expects TLS."""
    with pytest.raises(SettingRefused) as caught:
        load(NsqdSettings, flags)

    assert [] == [name for name in names if name not in str(caught.value)]


@pytest.mark.parametrize(
    "flags", [{"nsqd_tls_min_version": "tls1.2"}, {"nsqd_deflate_level": "6"}, {"nsqd_snappy": "0"}]
)
def test_a_default_in_so_many_words_needs_nothing_beside_it(flags: dict[str, Any]) -> None:
    """Templates may set every default explicitly."""
    assert load(NsqdSettings, {}).settings == load(NsqdSettings, flags).settings
