"""
PURE. A secret in an HTTP header: ``Authorization: Bearer …`` (RFC 6750), written and read.

What is wrong with a secret is told without showing any of it.
"""

from __future__ import annotations

import re

from gateway.errors import InvalidRequest, SettingRefused
from gateway.secret import Secret

_SCHEME = b"bearer"
_SENDABLE = re.compile(rb"[!-~]+")


def is_bearer(secret: Secret) -> bool:
    """Tell whether a header can hold *secret*: visible ASCII without spaces, and not nothing."""
    return _SENDABLE.fullmatch(secret.reveal()) is not None


def bearer_headers(secret: Secret | None) -> dict[str, str]:
    """
    Return the header that brings *secret*; none where there is none.

    Raises:
        SettingRefused: A header cannot hold it. Said here, for HTTP libraries show what they
            refuse.
    """
    if secret is None:
        return {}
    if not is_bearer(secret):
        reason = "it goes over HTTP in a header: visible ASCII, without spaces"
        raise SettingRefused("--auth-secret", reason)
    return {"Authorization": f"Bearer {secret.reveal().decode('ascii')}"}


def read_bearer(value: bytes) -> bytes | None:
    """
    Return the secret in the *value* of a header ``Authorization``; None for another scheme.

    Raises:
        InvalidRequest: It is empty, or not of visible ASCII (INVALID_AUTHORIZATION).
    """
    scheme, _, rest = value.strip(b" \t").partition(b" ")
    if scheme.lower() != _SCHEME:
        return None
    token = rest.strip(b" \t")
    if not _SENDABLE.fullmatch(token):
        text = "the secret behind Bearer is empty, or not of visible ASCII"
        raise InvalidRequest("INVALID_AUTHORIZATION", text)
    return token
