"""
The settings of the public port that are about who stands at its other end.

TLS, the proxies in front, how many may come, and how long they may take.
"""

from __future__ import annotations

import ipaddress
from typing import Annotated, TypeAlias

from pydantic import AfterValidator, BeforeValidator, model_validator
from pydantic_settings import NoDecode

from gateway.errors import SettingRefused
from gateway.settings_common import Settings, number, setting, split_commas
from gateway.tls_versions import TlsVersion

_PEM = "the path of a PEM file"


def _checked_network(value: str) -> str:
    try:
        ipaddress.ip_network(value)
    except ValueError as error:
        raise ValueError(
            f"{error}; a network is written with no bit set behind its length, as 10.0.0.0/8"
        ) from None
    return value


Networks: TypeAlias = Annotated[
    tuple[Annotated[str, AfterValidator(_checked_network)], ...],
    NoDecode,
    BeforeValidator(split_commas),
]


class PublicPortSettings(Settings):
    """What holds for everybody who connects to ``--listen``."""

    tls_cert: str | None = setting(
        None,
        "The certificate of --listen, with those that lead to its authority behind it; none: no "
        "TLS. A file that changes is read again within seconds.",
        _PEM,
    )
    tls_key: str | None = setting(None, "The key of --tls-cert; without a passphrase.", _PEM)
    tls_min_version: TlsVersion = setting(
        "tls1.2",
        "The oldest TLS that is spoken at --listen; the first two where OpenSSL has them still.",
        "tls1.0, tls1.1, tls1.2, tls1.3",
    )
    trusted_proxy: Networks = setting(
        (),
        "A proxy in front of --listen that tells, in X-Forwarded-For and X-Forwarded-Proto, who "
        "calls; what anybody else says there is not believed.",
        "an address, or a network as 10.0.0.0/8; repeat it, or separate with commas",
    )
    max_http_connections: int = number(
        10_000,
        "HTTP connections at a time, WebSockets not counted; one more is answered 503.",
        (1, 1_000_000),
    )
    max_sockets_per_secret: int = number(
        0,
        "WebSockets at a time that bring one and the same secret; 0 is any number.",
        (0, 1_000_000),
    )
    response_timeout_s: float = number(
        30,
        "How long a client may take nothing of an answer that waits for it; then it is cut.",
        (0.1, 3_600),
        "s",
    )

    @model_validator(mode="after")
    def _public_settings_fit_together(self) -> PublicPortSettings:
        if self.tls_cert is not None and self.tls_key is None:
            raise SettingRefused("--tls-cert", "it needs --tls-key beside it, the file of its key")
        if self.tls_key is not None and self.tls_cert is None:
            raise SettingRefused("--tls-key", "it does nothing without --tls-cert")
        if self.tls_min_version != "tls1.2" and self.tls_cert is None:
            raise SettingRefused("--tls-min-version", "it does nothing without --tls-cert")
        return self
