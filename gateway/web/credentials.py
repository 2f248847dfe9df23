"""
The caller's secret: where it may stand, and who is let in without one.

A header (RFC 6750, ``Authorization: Bearer``), or for browsers, which cannot set headers on a
WebSocket, a subprotocol entry or the first frame. Never the address: addresses end up in logs.
What is wrong with a secret is told without showing any of it.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gateway.bearer import read_bearer
from gateway.errors import AuthRequired, InvalidRequest
from gateway.secret import Secret
from gateway.session.auth import MAX_SECRET_BYTES

AUTH_SUBPROTOCOL = "nsq.auth."
"""Before the secret in base64url without padding; beside a subprotocol that is spoken."""

_BASE64URL = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True, kw_only=True)
class AccessPolicy:
    """What is asked of callers; NSQ decides about their secrets."""

    require_auth: bool = False
    """Whether a caller without a secret is refused, whatever NSQ says."""
    anonymous_secret: Secret | None = None
    """What callers without a secret are lent; None: nothing."""
    recheck_s: float = 60.0
    """Time between two looks at whether the secret of an open socket still holds."""
    waiting_share: float = 0.1
    """How many sockets, of those that may be open, may wait for their AUTH at a time."""

    def secret_of(self, brought: Secret | None) -> Secret | None:
        """
        Return the secret to use for a caller who brought *brought*.

        Raises:
            AuthRequired: The caller brought none, and has to.
        """
        if brought is None and self.require_auth:
            raise AuthRequired("a secret is asked for here, and none was brought")
        return brought or self.anonymous_secret


def bearer_secret(values: Sequence[bytes]) -> Secret | None:
    """
    Return the secret of a request with these ``Authorization`` headers, None where it has none.

    Another scheme is not ours: a proxy in front may have asked for it.

    Raises:
        InvalidRequest: There are several, or the secret is empty, too long, or not of visible
            ASCII (INVALID_AUTHORIZATION).
    """
    if not values:
        return None
    if len(values) > 1:
        raise _unusable(f"there are {len(values)} Authorization headers; one is allowed")
    token = read_bearer(values[0])
    return None if token is None else _bounded(token)


def authorization_headers(headers: Iterable[tuple[bytes, bytes]]) -> list[bytes]:
    """Return the values of ``Authorization`` among *headers*, names in small letters."""
    return [value for name, value in headers if name == b"authorization"]


def take_subprotocol_secret(offered: Sequence[str]) -> tuple[Secret | None, list[str]]:
    """
    Take the secret out of what subprotocols a client offers; return it and the others.

    Raises:
        InvalidRequest: There are several, it is no base64url, too long (INVALID_AUTHORIZATION),
            or stands alone (INVALID_SUBPROTOCOL).
    """
    entries = [name for name in offered if name.startswith(AUTH_SUBPROTOCOL)]
    others = [name for name in offered if not name.startswith(AUTH_SUBPROTOCOL)]
    if not entries:
        return None, others
    if not others:
        text = f"{AUTH_SUBPROTOCOL}… brings a secret; offer the subprotocol to speak beside it"
        raise InvalidRequest("INVALID_SUBPROTOCOL", text)
    if len(entries) > 1:
        raise _unusable(f"{len(entries)} subprotocols bring a secret; one is allowed")
    encoded = entries[0].removeprefix(AUTH_SUBPROTOCOL)
    # Four digits are three bytes; one digit alone is none.
    if not _BASE64URL.fullmatch(encoded) or len(encoded) % 4 == 1:
        raise _unusable(f"what stands behind {AUTH_SUBPROTOCOL} is not base64url without padding")
    return _bounded(base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4))), others


def one_secret(header: Secret | None, subprotocol: Secret | None) -> Secret | None:
    """Return the secret that was brought; raises InvalidRequest where two were."""
    if header is not None and subprotocol is not None:
        raise _unusable("a secret came in the header and in a subprotocol; one is allowed")
    return header or subprotocol


def _bounded(secret: bytes) -> Secret:
    if len(secret) > MAX_SECRET_BYTES:
        raise _unusable(f"the secret has {len(secret)} bytes; allowed: 1 to {MAX_SECRET_BYTES}")
    return Secret(secret)


def _unusable(text: str) -> InvalidRequest:
    return InvalidRequest("INVALID_AUTHORIZATION", text)
