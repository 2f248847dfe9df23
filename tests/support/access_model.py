"""
A reference model of the access file: random policies, their callers, and who may do what.

It shares no code with `gateway.access`: patterns are matched by `re`, which treats those of
`_FRAGMENTS` as RE2 does, since no name has a line end.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.gateways.access_file import TokenIssuer, api_key, grant

BASE32 = "abcdefghijklmnopqrstuvwxyz234567"
VIEWERS = tuple(f"gw.{character * 26}#ephemeral" for character in BASE32)
"""Channels that the gateway may choose for a socket without a channel."""
TOPICS = (
    *("orders", "orders.eu", "orders_failed", "order", "o-1", "events", "events#ephemeral"),
    "x" * 64,
)
CHANNELS = ("billing", "billing2", "bill.ing", "audit#ephemeral", "-", "gw.short#ephemeral")
PERMISSIONS = ("publish", "subscribe", "watch", "admin")
_FRAGMENTS = (
    *("orders", "order", r"\.eu", "[._]", "events", "o-1", "x{64}", "s+$", "^[eo]", "(?i:ORDERS)"),
    *("bill.*", "billing", r"billing\d", "-", "#ephemeral", "^gw", r"^gw\.", "audit|-", "[^a-z]"),
)
_EVERYTHING = (".*", "^.*", ".*$", "^.*$")
"""Topic patterns that stand for all topics, and so for the statistics of the nodes."""
_GROUPS, _TEAMS, _ROLES = ("ops", "dev", "qa"), ("red", "blue"), ("reader", "writer")


class Grant(NamedTuple):
    """One grant; fields as in the access file."""

    topic: str
    permissions: tuple[str, ...]
    channels: tuple[str, ...]

    @property
    def claim(self) -> dict[str, Any]:
        """The grant as in a token."""
        return {"topic": self.topic, "permissions": self.permissions, "channels": self.channels}

    @property
    def toml(self) -> str:
        """The grant as in the file."""
        return grant(self.topic, *self.permissions, channels=self.channels)

    def covers(self, permission: str, topic: str) -> bool:
        return permission in self.permissions and re.search(self.topic, topic) is not None

    def covers_channel(self, permission: str, topic: str, channel: str) -> bool:
        return self.covers(permission, topic) and any(
            re.search(pattern, channel) for pattern in self.channels
        )


@dataclass(frozen=True)
class Caller:
    """A caller: what it brings, who it is, and what it has."""

    secret: str | None
    name: str = ""
    grants: tuple[Grant, ...] = ()
    refusal: str | None = None
    """Why it is nobody: AUTH_REQUIRED or AUTH_FAILED; None for a valid credential."""

    def may_publish(self, topic: str) -> bool:
        return any(each.covers("publish", topic) for each in self.grants)

    def may_subscribe(self, topic: str, channel: str) -> bool:
        return any(each.covers_channel("subscribe", topic, channel) for each in self.grants)

    def may_subscribe_at_nsqd(self, topic: str, channel: str) -> bool:
        """Nsqd cannot tell who chose the name of a viewer's channel."""
        return self.may_subscribe(topic, channel) or (
            re.fullmatch("gw[.][a-z2-7]{26}#ephemeral", channel) is not None
            and any(each.covers("watch", topic) for each in self.grants)
        )

    def may_watch(self, topic: str) -> bool:
        """Whatever channel the gateway chooses."""
        return all(self.may_subscribe_at_nsqd(topic, channel) for channel in VIEWERS)

    def may_administer(self, topic: str, channel: str = "") -> bool:
        return any(each.covers_channel("admin", topic, channel) for each in self.grants)

    def sees(self, topic: str) -> bool:
        return any(
            each.covers("watch", topic) or each.covers("admin", topic) for each in self.grants
        )

    @property
    def sees_something(self) -> bool:
        return any({"watch", "admin"} & {*each.permissions} for each in self.grants)

    @property
    def sees_everything(self) -> bool:
        return any(
            each.topic in _EVERYTHING and {"watch", "admin"} & {*each.permissions}
            for each in self.grants
        )


@dataclass
class RandomPolicy:
    """A random access file, and callers that it knows or does not know."""

    entries: list[str] = field(default_factory=list)
    """The entries of the file."""
    callers: list[Caller] = field(default_factory=list)


class _Rule(NamedTuple):
    when: Mapping[str, object]
    issuer: str | None
    grants: tuple[Grant, ...]

    @property
    def toml(self) -> str:
        lines = ["[[rule]]"]
        if self.when:
            pairs = (f"{json.dumps(name)} = {json.dumps(want)}" for name, want in self.when.items())
            lines.append(f"when = {{ {', '.join(pairs)} }}")
        if self.issuer is not None:
            lines.append(f"issuer = {json.dumps(self.issuer)}")
        lines.append(f"grants = [{', '.join(each.toml for each in self.grants)}]")
        return "\n".join(lines)

    def holds(self, issuer: str, claims: Mapping[str, Any]) -> bool:
        return self.issuer in (None, issuer) and all(
            _has(claims, name, wanted) for name, wanted in self.when.items()
        )


def _has(claims: Mapping[str, Any], name: str, wanted: object) -> bool:
    found: Any = claims
    for part in name.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    if name == "scope" and found is not None:
        found = found.split()
    values = found if isinstance(found, list) else [found]
    return any(type(each) is type(wanted) and each == wanted for each in values)


class PolicyMaker:
    """
    Makes random policies.

    Args:
        folder: The access file's folder, which gets the issuers' keys.
        now: The time at which callers are valid or not, in seconds since 1970.
    """

    def __init__(self, chance: random.Random, folder: Path, now: float) -> None:
        self._chance = chance
        self._now = now
        self._issuers = [
            TokenIssuer(folder, f"https://id{number}.example.com") for number in (1, 2)
        ]
        (folder / "elsewhere").mkdir()
        # It has the same name as the first, and another key.
        self._impostor = TokenIssuer(folder / "elsewhere", self._issuers[0].url)
        self._stranger = TokenIssuer(folder / "elsewhere", "https://stranger.example.com")
        self._made = 0

    def policy(self) -> RandomPolicy:
        """Return the next policy; no two have a credential in common."""
        self._made += 1
        made = RandomPolicy(entries=[issuer.entry for issuer in self._issuers])
        for number in range(self._chance.randint(1, 3)):
            self._add_key(made, f"key-{self._made}-{number}")
        rules = [self._rule() for _ in range(self._chance.randint(0, 4))]
        made.entries += [rule.toml for rule in rules]
        for number in range(self._chance.randint(2, 4)):
            made.callers.append(self._token_caller(f"user-{self._made}-{number}", rules))
        made.callers += self._nobodies()
        return made

    def _add_key(self, made: RandomPolicy, name: str) -> None:
        grants = self._grants(1)
        secret = f"secret-of-{name}"
        entry = api_key(name, secret, *(each.toml for each in grants))
        refusal = None
        if self._chance.random() < 0.3:
            life_s = self._chance.choice([-3_600, -1, 1, 3_600])
            ends = datetime.fromtimestamp(self._now + life_s, UTC)
            entry += f"\nexpires_at = {ends:%Y-%m-%dT%H:%M:%SZ}"
            refusal = "AUTH_FAILED" if life_s < 0 else None
        made.entries.append(entry)
        made.callers.append(
            Caller(secret, refusal=refusal) if refusal else Caller(secret, name, grants)
        )

    def _token_caller(self, name: str, rules: Sequence[_Rule]) -> Caller:
        chance = self._chance
        issuer = chance.choice(self._issuers)
        own = self._grants(0)
        claims: dict[str, Any] = {"nsq": [each.claim for each in own]}
        claims |= {
            "groups": chance.sample(_GROUPS, chance.randint(0, 2)),
            "team": chance.choice(_TEAMS),
            "level": chance.choice([1, 2]),
            "staff": chance.random() < 0.5,
            "scope": " ".join(chance.sample(["pub", "sub"], chance.randint(0, 2))),
            "realm": {"roles": chance.sample(_ROLES, chance.randint(0, 2))},
        }
        if chance.random() < 0.2:
            claims["nbf"] = self._now + 29  # within the leeway
        token = issuer.token(name, life_s=chance.choice([1, 60, 3_600]), now=self._now, **claims)
        granted = [each for rule in rules if rule.holds(issuer.url, claims) for each in rule.grants]
        return Caller(token, name, (*own, *granted))

    def _nobodies(self) -> list[Caller]:
        """Return callers that the file refuses."""
        every: dict[str, Any] = {
            "nsq": [Grant(".*", PERMISSIONS, (".*",)).claim],
            "now": self._now,
        }
        issuer = self._chance.choice(self._issuers)
        refused = (
            "no-such-key",
            issuer.token("expired", life_s=-1, **every),
            issuer.token("expired just now", life_s=0, **every),
            issuer.token("early", nbf=self._now + 31, **every),
            issuer.token("of others", aud="others", **every),
            self._impostor.token("forged", **every),
            self._stranger.token("stranger", **every),
        )
        secret = self._chance.choice(refused)
        return [Caller(secret, refusal="AUTH_FAILED"), Caller(None, refusal="AUTH_REQUIRED")]

    def _rule(self) -> _Rule:
        chance = self._chance
        choices: list[tuple[str, object]] = [
            ("groups", chance.choice(_GROUPS)),
            ("team", chance.choice(_TEAMS)),
            ("level", chance.choice([1, 2])),
            ("staff", True),
            ("scope", chance.choice(["pub", "sub"])),
            ("realm.roles", chance.choice(_ROLES)),
        ]
        when = dict(chance.sample(choices, chance.choice([1, 1, 2])))
        issuer = chance.choice([None, None, self._issuers[0].url])
        return _Rule(when, issuer, self._grants(1))

    def _grants(self, least: int) -> tuple[Grant, ...]:
        return tuple(self._grant() for _ in range(self._chance.randint(least, 3)))

    def _grant(self) -> Grant:
        chance = self._chance
        permissions = tuple(chance.sample(PERMISSIONS, chance.choice([1, 2, 2, 3])))
        least = 1 if {"subscribe", "admin"} & {*permissions} else 0
        channels = [self._pattern(CHANNELS) for _ in range(chance.randint(least, 2))]
        return Grant(self._pattern(TOPICS), permissions, tuple(channels))

    def _pattern(self, names: Sequence[str]) -> str:
        """Return a pattern: everything, a whole name, a part of one, or something odd."""
        chance = self._chance
        kind = chance.random()
        if kind < 0.35:
            return chance.choice(_EVERYTHING)
        if kind < 0.65:
            return f"^{re.escape(chance.choice(names))}$"
        fragment = chance.choice(_FRAGMENTS)
        return fragment if kind < 0.9 else f"({fragment}|^{chance.choice(names)}$)"
