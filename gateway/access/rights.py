"""
What a caller may do: grants, and the identity that has them. PURE.

A grant has the form of nsqd's auth servers, with two more permissions:

| permission | allows |
| --- | --- |
| publish | PUB, MPUB and DPUB to topics that match |
| subscribe | a consumer, on topics and channels that match |
| watch | viewers of topics that match, and their statistics; no message is taken from a channel |
| admin | administration of topics and channels that match, and their statistics |

Patterns match as in nsqd, see `gateway.name_patterns`. In one point a grant is wider than nsqd's: a
publish needs no channel pattern, whereas nsqd wants one that matches the empty name.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from gateway.name_patterns import matches

VIEWER_CHANNELS = r"^gw\.[a-z2-7]{26}#ephemeral$"
"""Matches the channels that the gateway makes for sockets that name none."""
VIEWER_CHANNEL = f"gw.{'a' * 26}#ephemeral"
"""A name that stands for all of them, when a grant is asked about viewers."""

_EVERY_NAME = frozenset({"", ".*", "^.*", ".*$", "^.*$"})
_MAX_VERDICTS = 128


class Permission(enum.StrEnum):
    """What a grant allows; the first two are nsqd's."""

    PUBLISH = "publish"
    SUBSCRIBE = "subscribe"
    WATCH = "watch"
    ADMIN = "admin"


class Grant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Permissions on the topics and channels that match; keys as in the access file."""

    topic: str
    """A pattern."""
    permissions: tuple[Permission, ...]
    channels: tuple[str, ...] = ()
    """Patterns; without any, no channel matches."""

    def allows(self, permission: Permission, topic: str, channel: str | None) -> bool:
        """Return whether this allows *permission* on *topic*; see `Rights.allows`."""
        if permission not in self.permissions or not matches(self.topic, topic):
            return False
        if permission is Permission.PUBLISH or permission is Permission.WATCH:
            return True
        # As in nsqd: the topic itself has the empty channel name, which `.*` matches.
        return any(matches(pattern, channel or "") for pattern in self.channels)

    @property
    def is_for_every_topic(self) -> bool:
        """True if the pattern obviously matches every topic."""
        return self.topic in _EVERY_NAME


class _Question(NamedTuple):
    permission: Permission
    topic: str
    channel: str | None


class Rights:
    """
    The grants of a caller, with the verdicts that were asked for most recently.

    Callers with the same grants share one object.
    """

    def __init__(self, grants: Iterable[Grant] = ()) -> None:
        self.grants: Sequence[Grant] = tuple(grants)
        self._verdicts: dict[_Question, bool] = {}

    def allows(self, permission: Permission, topic: str, channel: str | None = None) -> bool:
        """
        Return whether *permission* is granted on *topic* and *channel*.

        Without a *channel*, ADMIN means the topic itself, and SUBSCRIBE is not granted.
        """
        question = _Question(permission, topic, channel)
        verdict = self._verdicts.get(question)
        if verdict is None:
            verdict = any(grant.allows(*question) for grant in self.grants)
            if permission is Permission.SUBSCRIBE and not channel:
                verdict = False
            if len(self._verdicts) >= _MAX_VERDICTS:
                del self._verdicts[next(iter(self._verdicts))]  # the oldest
            self._verdicts[question] = verdict
        return verdict

    def allows_viewer(self, topic: str) -> bool:
        """
        Return whether viewers of *topic* are granted: by WATCH, or by SUBSCRIBE on their channels.

        A client that names such a channel itself is no viewer, and needs SUBSCRIBE: it would take a
        part of somebody else's messages.
        """
        return self.allows(Permission.WATCH, topic) or self.allows(
            Permission.SUBSCRIBE, topic, VIEWER_CHANNEL
        )

    def allows_stats(self, topic: str) -> bool:
        """Return whether the statistics of *topic* are granted: by WATCH, or by ADMIN."""
        return self.allows(Permission.WATCH, topic) or any(
            Permission.ADMIN in grant.permissions and matches(grant.topic, topic)
            for grant in self.grants
        )

    @property
    def allows_all_stats(self) -> bool:
        """True if the statistics of every topic are granted, and so those of the nodes."""
        return any(
            grant.is_for_every_topic
            and (Permission.WATCH in grant.permissions or Permission.ADMIN in grant.permissions)
            for grant in self.grants
        )

    def has(self, permission: Permission) -> bool:
        """Return whether *permission* is granted on anything."""
        return any(permission in grant.permissions for grant in self.grants)


class Identity(NamedTuple):
    """Who a caller is, and what it may do."""

    issuer: str
    """The issuer of its token; for an API key `KEY_ISSUER`."""
    name: str
    """The subject of its token, or the name of its API key."""
    rights: Rights
    expires_at: float = math.inf
    """Seconds since 1970; `math.inf` for an API key without an end."""

    @property
    def subject(self) -> tuple[str, str]:
        """The key under which quotas count this caller, whatever token it brings."""
        return self.issuer, self.name


KEY_ISSUER = "key"
"""The issuer of API keys; the access file cannot have an issuer of this name."""
