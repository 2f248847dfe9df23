"""
Read secrets from requests, and control access to the admin routes.

Clients send a secret in ``Authorization: Bearer`` (RFC 6750). Browsers cannot set headers of a
WebSocket, so they send it in a subprotocol or in the first frame. Secrets in URLs are not
supported, since URLs are logged.
No error text contains any part of a secret.

nsqd's HTTP API has no authentication. If nsqd's TCP port requires AUTH, open admin routes would
bypass it, so only the administrator may use them.
"""

from __future__ import annotations

import base64
import hmac
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass

from gateway.credentials import Secret, parse_bearer
from gateway.errors import AuthRequired, Forbidden, InvalidRequest
from gateway.session.auth import MAX_SECRET_BYTES

AUTH_SUBPROTOCOL = "nsq.auth."
"""Prefix of a subprotocol that carries a secret, in base64url without padding."""

_BASE64URL = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True, kw_only=True)
class AccessPolicy:
    """The rules for callers' secrets; nsqd decides whether a secret is valid."""

    require_auth: bool = False
    """True to refuse callers without a secret, even if nsqd does not require AUTH."""
    anonymous_secret: Secret | None = None
    """Used at nsqd for callers that present no secret; None if they have none."""
    reauth_interval_s: float = 60.0
    """Interval between checks that the secret of an open socket is still valid."""
    unauthenticated_share: float = 0.1
    """Maximum share of the socket limit that may wait for AUTH at the same time."""

    def effective_secret(self, presented: Secret | None) -> Secret | None:
        """
        Return the secret to use at nsqd for a caller that presented *presented*, or None.

        Raises:
            AuthRequired: `require_auth` is set and the caller presented none.
        """
        if presented is None and self.require_auth:
            raise AuthRequired("a secret is required")
        return presented or self.anonymous_secret


def bearer_secret(values: Sequence[bytes]) -> Secret | None:
    """
    Return the Bearer secret among the ``Authorization`` values, or None if there is none.

    Schemes other than Bearer are ignored, since they may be meant for a proxy in front.

    Raises:
        InvalidRequest: There are several headers, or the secret is empty, too long, or not visible
            ASCII (INVALID_AUTHORIZATION).
    """
    if not values:
        return None
    if len(values) > 1:
        raise _invalid_authorization(f"{len(values)} Authorization headers; at most one is allowed")
    token = parse_bearer(values[0])
    return None if token is None else _bounded(token)


def authorization_values(headers: Iterable[tuple[bytes, bytes]]) -> list[bytes]:
    """Return the ``Authorization`` values of *headers*, whose names are lower case."""
    return [value for name, value in headers if name == b"authorization"]


def take_subprotocol_secret(offered: Sequence[str]) -> tuple[Secret | None, list[str]]:
    """
    Split the *offered* subprotocols into the secret, or None, and the subprotocols without it.

    Raises:
        InvalidRequest: There are several secrets, or the secret is too long or not base64url
            (INVALID_AUTHORIZATION); or no other subprotocol is offered (INVALID_SUBPROTOCOL).
    """
    entries = [name for name in offered if name.startswith(AUTH_SUBPROTOCOL)]
    others = [name for name in offered if not name.startswith(AUTH_SUBPROTOCOL)]
    if not entries:
        return None, others
    if not others:
        text = f"{AUTH_SUBPROTOCOL}… carries only a secret; offer the subprotocol to use as well"
        raise InvalidRequest("INVALID_SUBPROTOCOL", text)
    if len(entries) > 1:
        raise _invalid_authorization(
            f"{len(entries)} subprotocols carry a secret; at most one is allowed"
        )
    encoded = entries[0].removeprefix(AUTH_SUBPROTOCOL)
    # Four digits encode three bytes; a remainder of one digit encodes no byte, and is invalid.
    if not _BASE64URL.fullmatch(encoded) or len(encoded) % 4 == 1:
        raise _invalid_authorization(
            f"the value after {AUTH_SUBPROTOCOL} is not base64url without padding"
        )
    return _bounded(base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4))), others


def single_secret(header: Secret | None, subprotocol: Secret | None) -> Secret | None:
    """Return the secret that is given, None if neither is; raises InvalidRequest if both are."""
    if header is not None and subprotocol is not None:
        raise _invalid_authorization(
            "a secret in the header and in a subprotocol; at most one is allowed"
        )
    return header or subprotocol


def _bounded(secret: bytes) -> Secret:
    if len(secret) > MAX_SECRET_BYTES:
        raise _invalid_authorization(
            f"the secret has {len(secret)} bytes; allowed: 1 to {MAX_SECRET_BYTES}"
        )
    return Secret(secret)


def _invalid_authorization(text: str) -> InvalidRequest:
    return InvalidRequest("INVALID_AUTHORIZATION", text)


class AdminAccess:
    """
    Control access to the admin routes.

    Args:
        secret: The administrator's secret; if set, it is always required. If None, the routes are
            open to everybody, unless one of the next two returns True.
        is_closed: Returns True if --require-auth is set, or if a TCP connection has found that its
            nsqd requires AUTH.
        probe_auth: Asks the nsqds over HTTP, and returns True if one of them requires AUTH. Called
            only if *is_closed* returns False.
    """

    def __init__(
        self,
        secret: Secret | None,
        *,
        is_closed: Callable[[], bool],
        probe_auth: Callable[[], Awaitable[bool]],
    ) -> None:
        self._secret = secret
        self._is_closed = is_closed
        self._probe_auth = probe_auth

    async def check(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """
        Check that a request with *headers* may use the admin routes.

        Raises:
            AuthRequired: The administrator's secret is required and none was presented.
            Forbidden: Another secret was presented, or no secret is configured and nsqd requires
                AUTH.
            InvalidRequest: The header is invalid (INVALID_AUTHORIZATION).
            LimitReached: *probe_auth* found that too many requests to nsqds are running.
        """
        if self._secret is None:
            # In this order, since `probe_auth` may have to ask every nsqd.
            if self._is_closed() or await self._probe_auth():
                raise Forbidden(
                    "administration is disabled because AUTH is required; "
                    "set --admin-secret-file to allow it"
                )
            return
        presented = bearer_secret(authorization_values(headers))
        if presented is None:
            raise AuthRequired("the secret in --admin-secret-file is required")
        # In constant time: the duration must not reveal how many bytes match.
        if not hmac.compare_digest(presented.reveal(), self._secret.reveal()):
            raise Forbidden("wrong secret: administration requires the one in --admin-secret-file")
