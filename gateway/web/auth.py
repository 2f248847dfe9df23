"""
Read secrets from requests, identify callers, and control access to the admin routes.

With --access-file, a secret is a token or an API key, and the file says what its owner may do.
Without it, nsqd decides about the secret.

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
from typing import NamedTuple

from gateway.access.control import AccessControl
from gateway.access.rights import Identity, Permission
from gateway.credentials import Secret, parse_bearer
from gateway.errors import AuthRequired, Forbidden, InvalidRequest, PermissionDenied
from gateway.session.auth import MAX_SECRET_BYTES

AUTH_SUBPROTOCOL = "nsq.auth."
"""Prefix of a subprotocol that carries a secret, in base64url without padding."""

_BASE64URL = re.compile(r"[A-Za-z0-9_-]+")


class Principal(NamedTuple):
    """Who sends a request."""

    secret: Secret | None = None
    """The secret that it presented, or that is used for callers without one; None for neither."""
    identity: Identity | None = None
    """Its identity by the access file; None without such a file."""

    def check_publish(self, topic: str) -> None:
        """Check that it may publish to *topic*; raises PermissionDenied."""
        identity = self.identity
        if identity is not None and not identity.rights.allows(Permission.PUBLISH, topic):
            raise _denied(identity, f'publish to topic "{topic}"', Permission.PUBLISH)

    def check_subscribe(self, topic: str, channel: str) -> None:
        """Check that it may subscribe to *topic* and *channel*; raises PermissionDenied."""
        identity = self.identity
        # WATCH is not enough for the name of a viewer's channel: see `Rights.allows_viewer`.
        if identity is not None and not identity.rights.allows(
            Permission.SUBSCRIBE, topic, channel
        ):
            raise _denied(
                identity,
                f'subscribe to topic "{topic}", channel "{channel}"',
                Permission.SUBSCRIBE,
            )

    def check_watch(self, topic: str) -> None:
        """Check that it may watch *topic* without a channel of its own; raises PermissionDenied."""
        identity = self.identity
        if identity is not None and not identity.rights.allows_viewer(topic):
            raise _denied(identity, f'watch topic "{topic}"', Permission.WATCH)

    def check_admin(self, topic: str, channel: str | None = None) -> None:
        """
        Check that it may administer *topic*, or its *channel*; raises PermissionDenied.

        Callers without an identity may: see `AdminAccess.check`.
        """
        identity = self.identity
        if identity is None or identity.rights.allows(Permission.ADMIN, topic, channel):
            return
        where = f'topic "{topic}"' + ("" if channel is None else f', channel "{channel}"')
        raise _denied(identity, f"administer {where}", Permission.ADMIN)

    def check_stats(self, topic: str | None) -> None:
        """
        Check that it may read the statistics of *topic*; None: of some topic, and of the nodes.

        Raises:
            PermissionDenied: It may not.
        """
        identity = self.identity
        if identity is None:
            return
        rights = identity.rights
        if topic is not None and not rights.allows_stats(topic):
            raise _denied(identity, f'read the statistics of topic "{topic}"', Permission.WATCH)
        if not (rights.has(Permission.WATCH) or rights.has(Permission.ADMIN)):
            raise _denied(identity, "read statistics", Permission.WATCH)

    def sees_stats_of(self) -> Callable[[str], bool] | None:
        """Return a function that tells whose statistics it may read; None: those of all topics."""
        identity = self.identity
        if identity is None or identity.rights.allows_all_stats:
            return None
        return identity.rights.allows_stats

    @property
    def quota_key(self) -> Secret | tuple[str, str] | None:
        """The key under which limits count this caller; None for a caller without a secret."""
        return self.secret if self.identity is None else self.identity.subject

    @property
    def span_attributes(self) -> dict[str, str]:
        """The attributes of a span that tell who this is; empty without an identity."""
        return {} if self.identity is None else {"enduser.id": self.identity.name}

    @property
    def log_fields(self) -> dict[str, str]:
        """The fields that tell callers apart in a log event, without any secret."""
        fields = {} if self.secret is None else {"secret": self.secret.fingerprint}
        if self.identity is not None:
            fields["identity"] = self.identity.name
        return fields


ANONYMOUS = Principal()


def _denied(identity: Identity, what: str, permission: Permission) -> PermissionDenied:
    return PermissionDenied(
        f'"{identity.name}" may not {what}: it needs the permission {permission} in the access file'
    )


@dataclass(frozen=True, kw_only=True)
class AccessPolicy:
    """The rules for callers' secrets."""

    control: AccessControl | None = None
    """Identifies callers by the access file; None: nsqd decides whether a secret is valid."""
    nsqd_secret: Secret | None = None
    """With *control*: the secret for nsqds that require AUTH; None: the caller's own."""
    require_auth: bool = False
    """True to refuse callers without a secret, even if nsqd does not require AUTH."""
    anonymous_secret: Secret | None = None
    """Used at nsqd for callers that present no secret; None if they have none."""
    reauth_interval_s: float = 60.0
    """Interval between checks that the secret of an open socket is still valid."""
    unauthenticated_share: float = 0.1
    """Maximum share of the socket limit that may wait for AUTH at the same time."""

    def identify(self, presented: Secret | None) -> Principal:
        """
        Return who presented the secret *presented*; None is a caller without a secret.

        Raises:
            AuthRequired: A secret is required, and the caller presented none.
            CredentialRefused: It is no valid token or key of the access file.
        """
        if self.control is not None:
            if presented is None:
                raise AuthRequired("a token or an API key is required")
            return Principal(presented, self.control.identify(presented))
        if presented is None and self.require_auth:
            raise AuthRequired("a secret is required")
        return Principal(presented or self.anonymous_secret)

    def secret_for_nsqd(self, principal: Principal, *, requires_auth: bool) -> Secret | None:
        """
        Return the secret for connections to nsqd that serve *principal*; None for none.

        *requires_auth* is True if a known nsqd requires AUTH. Without that, callers of the access
        file share connections.
        """
        if principal.identity is None:
            return principal.secret
        return (self.nsqd_secret or principal.secret) if requires_auth else None


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
        policy: With an access file, its `control` decides, and neither of the two is called; the
            administrator's secret grants everything.
    """

    def __init__(
        self,
        secret: Secret | None,
        *,
        is_closed: Callable[[], bool],
        probe_auth: Callable[[], Awaitable[bool]],
        policy: AccessPolicy | None = None,
    ) -> None:
        self._secret = secret
        self._is_closed = is_closed
        self._probe_auth = probe_auth
        self._policy = policy or AccessPolicy()

    async def check(self, headers: Iterable[tuple[bytes, bytes]]) -> Principal:
        """
        Check that a request with *headers* may use the admin routes; return its caller.

        With an access file, the caller's identity says which topics and channels it may administer:
        the routes check that. It is None for the administrator.

        Raises:
            AuthRequired: A secret is required and none was presented.
            CredentialRefused: The token or key is not valid.
            Forbidden: Another secret was presented, or no secret is configured and nsqd requires
                AUTH.
            InvalidRequest: The header is invalid (INVALID_AUTHORIZATION).
            LimitReached: *probe_auth* found that too many requests to nsqds are running.
        """
        has_file = self._policy.control is not None
        if self._secret is None and not has_file:
            # In this order, since `probe_auth` may have to ask every nsqd.
            if self._is_closed() or await self._probe_auth():
                raise Forbidden(
                    "administration is disabled because AUTH is required; "
                    "set --admin-secret-file to allow it"
                )
            return ANONYMOUS
        presented = bearer_secret(authorization_values(headers))
        # In constant time: the duration must not reveal how many bytes match.
        if (
            presented is not None
            and self._secret is not None
            and hmac.compare_digest(presented.reveal(), self._secret.reveal())
        ):
            return ANONYMOUS
        if has_file:
            return self._policy.identify(presented)
        if presented is None:
            raise AuthRequired("the secret in --admin-secret-file is required")
        raise Forbidden("wrong secret: administration requires the one in --admin-secret-file")
