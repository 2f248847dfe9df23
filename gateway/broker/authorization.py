"""
What an auth server grants to a secret, and how its patterns match.

Source: internal/auth/authorizations.go.
"""

from __future__ import annotations

import msgspec

from gateway.errors import GatewayError
from gateway.name_patterns import PatternRefused, check_pattern, matches

PUBLISH, SUBSCRIBE = "publish", "subscribe"


class AnswerRefused(GatewayError):
    """The answer of an auth server is not valid; the text says why."""


class Grant(msgspec.Struct, frozen=True):
    """Permissions on the topics and channels that match; keys as in the auth server's JSON."""

    topic: str = ""
    channels: list[str] | None = None
    permissions: list[str] | None = None

    def allows(self, topic: str, channel: str) -> bool:
        """Return whether *topic* may be published to or, with a *channel*, subscribed to."""
        permission = SUBSCRIBE if channel else PUBLISH
        if permission not in (self.permissions or ()):
            return False
        # As in nsqd, a publish needs a channel pattern that matches the empty text.
        return matches(self.topic, topic) and any(
            matches(pattern, channel) for pattern in self.channels or ()
        )


class _Answer(msgspec.Struct, frozen=True):
    """The JSON answer of an auth server."""

    ttl: int = 0
    """Seconds."""
    authorizations: list[Grant] | None = None
    identity: str | None = None
    identity_url: str | None = None


class Authorization(msgspec.Struct, frozen=True):
    """What an auth server granted to a client, until a time."""

    grants: list[Grant]
    identity: str
    identity_url: str
    expires_at: float
    """Monotonic seconds; after that, the auth server must be asked again."""

    def allows(self, topic: str, channel: str) -> bool:
        """Return whether *topic* may be published to or, with a *channel*, subscribed to."""
        return any(grant.allows(topic, channel) for grant in self.grants)


_decoder = msgspec.json.Decoder(_Answer)


def parse_answer(body: bytes, *, now: float) -> Authorization:
    """
    Return what the auth server's answer *body* grants from *now* on.

    Raises:
        AnswerRefused: The answer is not valid; nsqd refuses the whole of it, too.
    """
    try:
        answer = _decoder.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise AnswerRefused(f"it is not JSON as agreed: {error}") from error
    grants = answer.authorizations or []
    for grant in grants:
        for permission in grant.permissions or ():
            if permission not in (PUBLISH, SUBSCRIBE):
                raise AnswerRefused(
                    f"it has the permission {permission!r}; allowed: {PUBLISH}, {SUBSCRIBE}"
                )
        for pattern in (grant.topic, *(grant.channels or ())):
            try:
                check_pattern(pattern)
            except PatternRefused as error:
                raise AnswerRefused(str(error)) from error
    if answer.ttl <= 0:
        raise AnswerRefused(f"its ttl is {answer.ttl} s; allowed: 1 s or more")
    return Authorization(
        grants=grants,
        identity=answer.identity or "",
        identity_url=answer.identity_url or "",
        expires_at=now + answer.ttl,
    )
