"""The versions of TLS by the names that NSQ gives them."""

from __future__ import annotations

import ssl
from typing import Literal, TypeAlias, get_args

TlsVersion: TypeAlias = Literal["tls1.0", "tls1.1", "tls1.2", "tls1.3"]
"""By nsqd's spelling of its own --tls-min-version, the oldest first."""

_VERSIONS = (
    ssl.TLSVersion.TLSv1,
    ssl.TLSVersion.TLSv1_1,
    ssl.TLSVersion.TLSv1_2,
    ssl.TLSVersion.TLSv1_3,
)

MIN_VERSIONS: dict[str, ssl.TLSVersion] = dict(zip(get_args(TlsVersion), _VERSIONS, strict=True))
"""What OpenSSL calls them."""
