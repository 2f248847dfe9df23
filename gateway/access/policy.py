"""
The access file: issuers of tokens, API keys, and rules. PURE.

`read_policy` checks all of it, so that `Policy` needs no further checks. Errors name the line, the
value, what is allowed, and what to do.
"""

from __future__ import annotations

import difflib
import hashlib
import math
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, NoReturn, TypeAlias, get_args
from urllib.parse import urlsplit

import msgspec

from gateway.access.rights import KEY_ISSUER, Grant, Identity, Permission, Rights
from gateway.access.toml_lines import TomlLines
from gateway.addresses import has_loopback_host, join_address
from gateway.errors import SettingRefused
from gateway.name_patterns import PatternRefused, check_pattern

Algorithm: TypeAlias = Literal["RS256", "ES256", "EdDSA", "HS256"]
"""The algorithms of signatures, as in the headers of tokens."""

PUBLIC_KEY_ALGORITHMS: tuple[Algorithm, ...] = ("RS256", "ES256", "EdDSA")
"""The algorithms of an issuer that lists none."""

UNKNOWN_ISSUER = "unknown"
"""Stands for any issuer that the file does not have, in metrics."""

MAX_NAME_CHARACTERS = 256
"""Maximum length of the names of issuers, keys and subjects."""
MAX_ISSUERS, MAX_KEYS, MAX_RULES, MAX_GRANTS = 32, 10_000, 1_000, 1_000

_MAX_SHOWN = 80
_MAX_PATTERN_WARNINGS = 20
_MAX_SHARED_RIGHTS = 4_096
_ADVICE = "correct the file, and check it with: nsq-gateway access check"
_SOURCES = ("jwks_url", "jwks_file", "key_file")
_ISSUER_KEYS = ("issuer", "audience", *_SOURCES, "algorithms", "grants_claim", "subject_claim")
_KEY_KEYS = ("name", "sha256", "grants", "expires_at")
_RULE_KEYS = ("when", "issuer", "grants")
_GRANT_KEYS = ("topic", "channels", "permissions")

Scalar: TypeAlias = str | int | bool
Path: TypeAlias = tuple[str | int, ...]


class AccessFileRefused(SettingRefused):
    """The access file is not valid; the text names the line, and what to do."""

    def __init__(self, name: str, line: int, problem: str) -> None:
        super().__init__(f"{name}, line {line}", f"{problem}; {_ADVICE}")
        self.line = line
        self.problem = problem
        """What is wrong, and what is allowed."""
        self.advice = _ADVICE


class GrantsRefused(Exception):
    """The grants in a token are not valid; the text says why, with values of the token."""


class Issuer(NamedTuple):
    """An issuer of tokens, and where its keys are: in one of three places."""

    name: str
    """The claim `iss` of its tokens."""
    audiences: frozenset[str]
    """A token must be for one of them (`aud`)."""
    algorithms: tuple[Algorithm, ...]
    subject_claim: str
    grants_claim: str | None
    """A claim with a list of grants; None: tokens have grants by rules only."""
    jwks_url: str | None
    jwks_file: str | None
    key_file: str | None
    """A public key in PEM, or a secret for HS256."""
    line: int


class ApiKey(NamedTuple):
    """An API key."""

    identity: Identity
    line: int


class Condition(NamedTuple):
    """A claim that a token must have: with *value*, or a list that contains it."""

    path: tuple[str, ...]
    value: Scalar

    def holds(self, claims: Mapping[str, Any]) -> bool:
        """Return whether *claims* fulfil this."""
        found = find_claim(claims, self.path)
        if self.path == ("scope",) and isinstance(found, str):
            found = found.split(" ")  # RFC 8693 §4.2: a list of words in one text
        if isinstance(found, list):
            return any(_is_same(each, self.value) for each in found)
        return _is_same(found, self.value)


class Rule(NamedTuple):
    """Grants for tokens with some claims."""

    conditions: tuple[Condition, ...]
    issuer: str | None
    """None: tokens of all issuers."""
    grants: tuple[Grant, ...]
    line: int


class GrantSource(NamedTuple):
    """A grant, and where it comes from, such as ``rule 2 (line 14)``."""

    grant: Grant
    source: str


class Policy:
    """What a valid access file says."""

    def __init__(
        self,
        issuers: Mapping[str, Issuer] = {},
        keys: Mapping[bytes, ApiKey] = {},
        rules: Sequence[Rule] = (),
        warnings: Sequence[str] = (),
    ) -> None:
        self.issuers = issuers
        """By name."""
        self.keys = keys
        """By the SHA-256 of the key."""
        self.rules = rules
        self.warnings = warnings
        """What is valid, but probably not meant."""
        self._shared: dict[tuple[Grant, ...], Rights] = {}

    def rights(self, issuer: Issuer, claims: Mapping[str, Any]) -> Rights:
        """
        Return what a token of *issuer* with *claims* may do.

        Raises:
            GrantsRefused: The token has grants that are not valid.
        """
        grants = tuple(dict.fromkeys(each.grant for each in self.grants_of(issuer, claims)))
        found = self._shared.get(grants)
        if found is None:
            if len(self._shared) >= _MAX_SHARED_RIGHTS:
                del self._shared[next(iter(self._shared))]  # the oldest
            found = self._shared[grants] = Rights(grants)
        return found

    def grants_of(self, issuer: Issuer, claims: Mapping[str, Any]) -> Iterator[GrantSource]:
        """Yield the grants of a token with their sources; raises GrantsRefused."""
        if issuer.grants_claim is not None:
            found = find_claim(claims, (issuer.grants_claim,))
            if found is not None:
                for grant in _grants_in_token(found):
                    yield GrantSource(grant, f"the claim {issuer.grants_claim} of the token")
        for number, rule in enumerate(self.rules, 1):
            if rule.issuer in (None, issuer.name) and all(
                condition.holds(claims) for condition in rule.conditions
            ):
                for grant in rule.grants:
                    yield GrantSource(grant, f"rule {number} (line {rule.line})")


def find_claim(claims: Mapping[str, Any], path: Sequence[str]) -> object:
    """
    Return the claim at *path*; None if there is none.

    A name with dots is the claim of that name or, if there is none, leads into objects:
    ``realm_access.roles`` is the member ``roles`` of ``realm_access``.
    """
    found: object = claims
    for part in path:
        names = [part] if isinstance(found, dict) and part in found else part.split(".")
        for name in names:
            if not isinstance(found, dict) or name not in found:
                return None
            found = found[name]
    return found


def _is_same(found: object, wanted: Scalar) -> bool:
    # In Python True == 1 and 1 == 1.0; in JSON they differ.
    return type(found) is type(wanted) and found == wanted


def _grants_in_token(value: object) -> list[Grant]:
    if isinstance(value, list) and len(value) > MAX_GRANTS:
        raise GrantsRefused(f"it has {len(value)} grants; limit {MAX_GRANTS} grants")
    try:
        grants = msgspec.convert(value, list[Grant])
        for grant in grants:
            problem = _problem_of(grant)
            if problem is not None:
                raise GrantsRefused(problem[1])
            for pattern in (grant.topic, *grant.channels):
                check_pattern(pattern)
    # UnicodeEncodeError: JSON can contain half of a surrogate pair.
    except (msgspec.ValidationError, PatternRefused, UnicodeEncodeError) as error:
        raise GrantsRefused(str(error)) from error
    return grants


def _problem_of(grant: Grant) -> tuple[str, str] | None:
    """Return the key of *grant* that is missing, and why it is needed; None: it is complete."""
    if not grant.permissions:
        return "permissions", f"it is empty; allowed: one or more of {', '.join(Permission)}"
    needing = [
        each for each in (Permission.SUBSCRIBE, Permission.ADMIN) if each in grant.permissions
    ]
    if needing and not grant.channels:
        return "channels", (
            f"it is missing, and without it {' and '.join(needing)} would allow nothing; add "
            'channels = [".*"] for all channels'
        )
    return None


_SHA256_OF_NOTHING = hashlib.sha256().hexdigest()
_LONG_NUMBER = re.compile(r"[0-9_]{4000}")


def read_policy(content: bytes, name: str = "access file") -> Policy:
    """
    Return what *content*, the access file, says; errors call it *name*.

    Raises:
        AccessFileRefused: It is not valid.
    """
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        problem = f"byte {error.start} is not UTF-8; save the file as UTF-8"
        raise AccessFileRefused(name, line, problem) from error
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _syntax_error(name, text, error) from error
    except RecursionError as error:
        raise AccessFileRefused(name, 1, "arrays or tables are nested too deeply") from error
    except ValueError as error:
        # Python refuses to convert integers of more digits than it is told to.
        long = _LONG_NUMBER.search(text)
        line = 1 if long is None else text.count("\n", 0, long.start()) + 1
        raise AccessFileRefused(name, line, "a number has too many digits") from error
    try:
        # As tomllib does; it counts lines by \n.
        return _Reader(text.replace("\r\n", "\n"), name).policy(document)
    except RecursionError as error:
        # Dotted keys nest tables without a limit.
        raise AccessFileRefused(name, 1, "arrays or tables are nested too deeply") from error


def _syntax_error(name: str, text: str, error: tomllib.TOMLDecodeError) -> AccessFileRefused:
    message = str(error)
    found = re.search(r" \(at (?:line (\d+), column \d+|end of document)\)$", message)
    line = int(found[1]) if found and found[1] else text.rstrip("\n").count("\n") + 1
    return AccessFileRefused(name, line, f"it is not valid TOML: {message}")


class _Reader:
    """Check the values of the access file, and find their lines."""

    def __init__(self, text: str, name: str) -> None:
        self._lines = TomlLines(text)
        self._name = name
        self._warnings: dict[str, None] = {}
        self._unanchored = 0
        """Number of patterns that match anywhere in a name; the first ones have warnings."""
        self._checked: set[str] = set()
        """The patterns that are valid."""

    def policy(self, document: Mapping[str, Any]) -> Policy:
        self._refuse_unknown((), document, ("issuer", "key", "rule"))
        issuers: dict[str, Issuer] = {}
        for path, values in self._tables(document, "issuer", MAX_ISSUERS):
            issuer = self._issuer(path, values)
            if issuer.name in issuers:
                self._fail(
                    (*path, "issuer"),
                    f"the issuer {issuer.name!r} has an entry in line "
                    f"{issuers[issuer.name].line}; write one, with a list of audiences",
                )
            issuers[issuer.name] = issuer
        keys: dict[bytes, ApiKey] = {}
        lines_by_name: dict[str, int] = {}
        for path, values in self._tables(document, "key", MAX_KEYS):
            digest, key = self._key(path, values)
            for what, line in (
                ("sha256", keys[digest].line if digest in keys else None),
                ("name", lines_by_name.get(key.identity.name)),
            ):
                if line is not None:
                    self._fail(
                        (*path, what),
                        f"the key in line {line} has the same {what}; each key needs its own",
                    )
            keys[digest] = key
            lines_by_name[key.identity.name] = key.line
        rules = [
            self._rule(path, values, issuers)
            for path, values in self._tables(document, "rule", MAX_RULES)
        ]
        if (more := self._unanchored - _MAX_PATTERN_WARNINGS) > 0:
            self._warnings[f"{self._name}: {more} more patterns match anywhere in a name"] = None
        self._warn_without_grants(issuers.values(), rules)
        return Policy(issuers, keys, rules, tuple(self._warnings))

    def _issuer(self, path: Path, values: Mapping[str, Any]) -> Issuer:
        self._refuse_unknown(path, values, _ISSUER_KEYS)
        name = self._text(path, values, "issuer")
        if name in (KEY_ISSUER, UNKNOWN_ISSUER):
            self._fail((*path, "issuer"), f"{name!r} has another meaning in metrics and logs")
        sources = [each for each in _SOURCES if each in values]
        if len(sources) != 1:
            self._fail(
                (*path, sources[1]) if sources else path,
                f"{self._named(path)} has {' and '.join(sources) or 'no keys'}; allowed: one of "
                f"{', '.join(_SOURCES)}",
            )
        grants_claim = None
        if "grants_claim" in values:
            grants_claim = self._text(path, values, "grants_claim")
        return Issuer(
            name=name,
            audiences=frozenset(self._texts(path, values, "audience", is_one_allowed=True)),
            algorithms=self._algorithms(path, values, sources[0]),
            subject_claim=self._text(path, values, "subject_claim", default="sub"),
            grants_claim=grants_claim,
            jwks_url=self._jwks_url(path, values) if "jwks_url" in values else None,
            jwks_file=self._file(path, values, "jwks_file"),
            key_file=self._file(path, values, "key_file"),
            line=self._lines.line(*path),
        )

    def _algorithms(
        self, path: Path, values: Mapping[str, Any], source: str
    ) -> tuple[Algorithm, ...]:
        if "algorithms" not in values:
            return PUBLIC_KEY_ALGORITHMS
        known: dict[str, Algorithm] = {each: each for each in get_args(Algorithm)}
        at = (*path, "algorithms")
        found = []
        for each in self._texts(path, values, "algorithms"):
            if each not in known:
                self._refuse(at, each, allowed=", ".join(known))
            found.append(known[each])
        if "HS256" in found and source == "jwks_url":
            self._fail(at, "HS256 needs a secret, which no jwks_url may have; use key_file")
        if "HS256" in found and source == "key_file" and len(found) > 1:
            self._fail(
                at,
                "HS256 and others with a key_file; allowed: HS256 alone, because the file is "
                "either a secret or a public key",
            )
        return tuple(found)

    def _jwks_url(self, path: Path, values: Mapping[str, Any]) -> str:
        url = self._text(path, values, "jwks_url", max_characters=2_048)
        at = (*path, "jwks_url")
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port or 0
            is_loopback = bool(host) and has_loopback_host(join_address(host or "", port))
        except ValueError:
            self._refuse(at, url, allowed="an address such as https://id.example.com/jwks.json")
        # Logs have the address.
        if parts.username is not None or parts.password is not None:
            self._fail(at, "it has a user or password in it, which logs would show; remove them")
        if not host or parts.scheme not in ("https", "http"):
            self._refuse(at, url, allowed="an address such as https://id.example.com/jwks.json")
        if parts.scheme == "http" and not is_loopback:
            self._refuse(
                at, url, allowed="https, because whoever can change the answer can sign tokens"
            )
        return url

    def _file(self, path: Path, values: Mapping[str, Any], key: str) -> str | None:
        return self._text(path, values, key, max_characters=4_096) if key in values else None

    def _key(self, path: Path, values: Mapping[str, Any]) -> tuple[bytes, ApiKey]:
        self._refuse_unknown(path, values, _KEY_KEYS)
        name = self._text(path, values, "name")
        digest = values.get("sha256")
        if not isinstance(digest, str) or not re.fullmatch(r"[0-9A-Fa-f]{64}", digest):
            # Not the value: it may be the key itself.
            self._fail(
                (*path, "sha256"),
                f"the sha256 of the key {name!r} is not a SHA-256; allowed: 64 hexadecimal "
                "digits, as `nsq-gateway access key` prints them",
            )
        if digest.lower() == _SHA256_OF_NOTHING:
            self._fail(
                (*path, "sha256"),
                f"the sha256 of the key {name!r} is that of an empty text, which everybody has; "
                "make a key with `nsq-gateway access key`",
            )
        expires_at = math.inf
        if "expires_at" in values:
            expires_at = self._time(path, values, "expires_at")
        rights = Rights(self._grants(path, values, f"of the key {name!r}"))
        identity = Identity(KEY_ISSUER, name, rights, expires_at)
        return bytes.fromhex(digest), ApiKey(identity, self._lines.line(*path))

    def _time(self, path: Path, values: Mapping[str, Any], key: str) -> float:
        value = values[key]
        # A date or a time of day has no timestamp; a time without an offset has one by chance.
        if not hasattr(value, "timestamp") or value.tzinfo is None:
            self._refuse(
                (*path, key),
                value if isinstance(value, str | int | float) else str(value),
                allowed="a time with an offset, such as 2027-01-31T00:00:00Z, without quotes",
            )
        return float(value.timestamp())

    def _rule(self, path: Path, values: Mapping[str, Any], issuers: Mapping[str, Issuer]) -> Rule:
        self._refuse_unknown(path, values, _RULE_KEYS)
        when = values.get("when", {})
        if not isinstance(when, dict):
            self._refuse((*path, "when"), when, allowed='claims, such as { groups = "ops" }')
        issuer = None
        if "issuer" in values:
            issuer = self._text(path, values, "issuer")
            if issuer not in issuers:
                allowed = f"an issuer of this file: {', '.join(issuers) or 'it has none'}"
                self._refuse((*path, "issuer"), issuer, allowed=allowed)
        if not when and issuer is None:
            self._fail(
                path,
                f"{self._named(path)} has no `when`, and so would hold for every token; add "
                "`when`, or `issuer` if all its tokens are meant",
            )
        conditions = tuple(self._conditions((*path, "when"), (), when))
        grants = self._grants(path, values, f"of {self._named(path)}")
        return Rule(conditions, issuer, grants, self._lines.line(*path))

    def _conditions(
        self, at: Path, names: tuple[str, ...], when: Mapping[str, Any]
    ) -> Iterator[Condition]:
        """Yield the conditions of *when*; nested tables are objects within claims."""
        for name, value in when.items():
            if isinstance(value, dict) and value:
                yield from self._conditions((*at, name), (*names, name), value)
            elif isinstance(value, str | bool | int):
                yield Condition((*names, name), value)
            else:
                self._refuse(
                    (*at, name),
                    value,
                    allowed="a text, a whole number, true or false; for several values write "
                    "several [[rule]] entries",
                )

    def _grants(self, path: Path, values: Mapping[str, Any], whose: str) -> tuple[Grant, ...]:
        at = (*path, "grants")
        entries = values.get("grants")
        if not isinstance(entries, list) or not entries:
            self._fail(
                at,
                f"the grants {whose} are missing; allowed: a list such as "
                '[{ topic = "^orders$", channels = ["^billing$"], permissions = ["subscribe"] }]',
            )
        if len(entries) > MAX_GRANTS:
            self._fail(at, f"{len(entries)} grants {whose}; limit {MAX_GRANTS} grants")
        return tuple(self._grant((*at, place), entry, whose) for place, entry in enumerate(entries))

    def _grant(self, path: Path, values: object, whose: str) -> Grant:
        if not isinstance(values, dict):
            self._refuse(path, values, allowed=f"a table with {', '.join(_GRANT_KEYS)}")
        self._refuse_unknown(path, values, _GRANT_KEYS)
        topic = self._text(path, values, "topic", max_characters=4_096)
        channels: tuple[str, ...] = ()
        if "channels" in values:
            channels = self._texts(path, values, "channels")
        permissions = []
        for each in self._texts(path, values, "permissions"):
            if each not in list(Permission):
                self._refuse((*path, "permissions"), each, allowed=", ".join(Permission))
            permissions.append(Permission(each))
        grant = Grant(topic=topic, channels=channels, permissions=tuple(permissions))
        problem = _problem_of(grant)
        if problem is not None:
            key, text = problem
            self._fail((*path, key), f"{key} of a grant {whose}: {text}")
        self._check_pattern((*path, "topic"), topic, "topic", whose)
        for channel in channels:
            self._check_pattern((*path, "channels"), channel, "channel", whose)
        return grant

    def _check_pattern(self, path: Path, pattern: str, what: str, whose: str) -> None:
        if pattern in self._checked:
            return
        try:
            check_pattern(pattern)
        except PatternRefused as error:
            self._fail(path, f"{error}; allowed: a pattern in the syntax of RE2")
        self._checked.add(pattern)
        # As in nsqd, a pattern matches anywhere in a name.
        if pattern == ".*" or "^" in pattern or "$" in pattern:
            return
        self._unanchored += 1
        if self._unanchored <= _MAX_PATTERN_WARNINGS:
            self._warnings[
                f"{self._name}, line {self._lines.line(*path)}: the pattern {_shown(pattern)} "
                f"{whose} matches every {what} that contains it; for exactly one {what}, write "
                f"{_shown(f'^{pattern}$')}"
            ] = None

    def _warn_without_grants(self, issuers: Iterable[Issuer], rules: Sequence[Rule]) -> None:
        for issuer in issuers:
            if issuer.grants_claim is None and not any(
                rule.issuer in (None, issuer.name) for rule in rules
            ):
                self._warnings[
                    f"{self._name}, line {issuer.line}: tokens of the issuer {issuer.name} have "
                    "no rights; add grants_claim, or a [[rule]]"
                ] = None

    # Values, and errors about them.

    def _tables(
        self, document: Mapping[str, Any], kind: str, limit: int
    ) -> Iterator[tuple[Path, Mapping[str, Any]]]:
        entries = document.get(kind, [])
        if not isinstance(entries, list) or not all(isinstance(each, dict) for each in entries):
            self._fail((kind,), f"{kind} is not a list of tables; write [[{kind}]]")
        if len(entries) > limit:
            self._fail((kind, limit), f"{len(entries)} entries [[{kind}]]; limit {limit} entries")
        for place, entry in enumerate(entries):
            yield (kind, place), entry

    def _text(
        self,
        path: Path,
        values: Mapping[str, Any],
        key: str,
        *,
        default: str | None = None,
        max_characters: int = MAX_NAME_CHARACTERS,
    ) -> str:
        value = values.get(key, default)
        at = (*path, key)
        if value is None:
            self._fail(path, f"{self._named(path)} has no `{key}`; add it")
        if not isinstance(value, str) or not value or not value.isprintable():
            self._refuse(at, value, allowed="a text in quotes, not empty, in printable characters")
        if len(value) > max_characters:
            self._fail(at, f"{key} has {len(value)} characters; limit {max_characters} characters")
        return value

    def _texts(
        self, path: Path, values: Mapping[str, Any], key: str, *, is_one_allowed: bool = False
    ) -> tuple[str, ...]:
        value = values.get(key)
        if is_one_allowed and isinstance(value, str):
            value = [value]
        if value is None:
            self._fail(path, f"{self._named(path)} has no `{key}`; add it")
        if (
            not isinstance(value, list)
            or not 1 <= len(value) <= MAX_GRANTS
            or not all(isinstance(each, str) and each and each.isprintable() for each in value)
        ):
            allowed = f"a list of 1 to {MAX_GRANTS} texts in quotes, none of them empty"
            self._refuse((*path, key), value, allowed=allowed)
        return tuple(value)

    def _refuse_unknown(self, path: Path, values: Mapping[str, Any], known: Sequence[str]) -> None:
        for key in values:
            if key not in known:
                near = difflib.get_close_matches(key, known, 1)
                hint = f" (did you mean {near[0]}?)" if near else ""
                self._fail(
                    (*path, key), f"unknown key {_shown(key)}{hint}; allowed: {', '.join(known)}"
                )

    def _refuse(self, path: Path, value: object, *, allowed: str) -> NoReturn:
        key = next(each for each in reversed(path) if isinstance(each, str))
        self._fail(path, f"{key} is {_shown(value)}; allowed: {allowed}")

    def _fail(self, path: Path, problem: str) -> NoReturn:
        raise AccessFileRefused(self._name, self._lines.line(*path), problem)

    @staticmethod
    def _named(path: Path) -> str:
        """Return ``rule 2`` for the path of the second rule, ``grant 1 of key 2`` for a grant."""
        pairs = [
            f"{str(name).removesuffix('s')} {int(place) + 1}"
            for name, place in zip(path[::2], path[1::2], strict=True)
        ]
        return " of ".join(reversed(pairs))


def _shown(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= _MAX_SHOWN else f"{shown[:_MAX_SHOWN]}…"
