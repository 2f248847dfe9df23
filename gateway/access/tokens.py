"""
Verify tokens: JWTs in compact form (RFC 7515, RFC 7519). PURE.

The parser is strict, so that no two programs can read one token differently. Each refusal, whatever
its reason, makes one check of a signature: the time that it takes does not tell the reason.
"""

from __future__ import annotations

import base64
import binascii
import enum
import json
import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn

from gateway.access.keys import KeySet, VerificationKey, is_signed_by, stand_in_key
from gateway.access.policy import MAX_NAME_CHARACTERS, Issuer
from gateway.errors import CredentialRefused

MAX_TOKEN_BYTES = 4_096
LEEWAY_S = 30.0
"""Difference of clocks that `nbf` and `iat` allow. `exp` has none: its bound is a promise."""

_MAX_DEPTH = 16
_MAX_TIME = 253_402_300_799
"""The last second of the year 9999, in seconds since 1970."""
_PARTS = 3
_BASE64URL = re.compile(rb"[A-Za-z0-9_-]+")
_BRACKETS = re.compile(r"[\[\]{}]")
_REFUSED_HEADERS = ("crit", "b64")


class Refusal(enum.StrEnum):
    """Why a credential is refused: the text for the log. Names are labels of a metric."""

    UNKNOWN_KEY = "no API key has this SHA-256, and it is no token"
    MALFORMED = "the token is malformed, or has more than 4096 bytes"
    UNKNOWN_ISSUER = "the token's issuer (iss) is not in the access file"
    ALGORITHM = "the token's algorithm (alg) is not one of its issuer, or not that of the key"
    UNKNOWN_SIGNING_KEY = "the issuer has no key with the token's kid, or several without one"
    SIGNATURE = "the token's signature is wrong"
    EXPIRED = "it has expired"
    NOT_YET_VALID = "the token is not valid yet (nbf, iat)"
    TIMES = "the token has no exp, or exp, nbf or iat is not a time"
    AUDIENCE = "the token is not for this audience (aud)"
    SUBJECT = "the token has no subject, or one that is not a printable text of 1 to 256 characters"
    GRANTS = "the grants in the token are not valid"


class TokenRefused(CredentialRefused):
    """A credential is not valid, for the reason *refusal*; *issuer* is its issuer, if known."""

    def __init__(self, refusal: Refusal, issuer: str | None = None) -> None:
        super().__init__(refusal.value)
        self.refusal = refusal
        self.issuer = issuer


class VerifiedToken(NamedTuple):
    """What a valid token says."""

    issuer: Issuer
    subject: str
    claims: Mapping[str, Any]
    valid_from: float
    """Seconds since 1970; `-math.inf` if the token does not say."""
    expires_at: float

    def __repr__(self) -> str:
        """Show the subject, not the claims."""
        return f"VerifiedToken({self.issuer.name!r}, {self.subject!r})"


class TokenIssuer(NamedTuple):
    """An issuer with its present keys."""

    issuer: Issuer
    keys: KeySet


def spend_a_signature_check(issuers: Mapping[str, TokenIssuer], name: str | None = None) -> None:
    """
    Check a signature that is wrong, with a key of the issuer *name*, or of another one.

    Call it before a refusal that needs no check, see the module.
    """
    found = None if name is None else issuers.get(name)
    keys: tuple[VerificationKey, ...] = found.keys.keys if found else ()
    if not keys:
        keys = next((each.keys.keys for each in issuers.values() if each.keys.keys), ())
    key = keys[0] if keys else stand_in_key()
    # Not zeros: a signature of zeros is refused before anything is calculated.
    signature = base64.urlsafe_b64encode(b"\x01" * key.signature_bytes).rstrip(b"=")
    header = base64.urlsafe_b64encode(b'{"alg":"%s"}' % key.algorithm.encode()).rstrip(b"=")
    is_signed_by(b"%s.e30.%s" % (header, signature), key)


def verify_token(token: bytes, issuers: Mapping[str, TokenIssuer], *, now: float) -> VerifiedToken:
    """
    Return what *token* says, if it is valid at *now*, in seconds since 1970.

    Raises:
        TokenRefused: It is not valid.
    """
    refused: TokenRefused | None = None
    try:
        parsed = _Parsed(token, issuers)
    except TokenRefused as error:
        refused = error
    if refused is not None:
        spend_a_signature_check(issuers, refused.issuer)
        # Outside of `except`, so that the error does not bring a context along.
        raise refused
    if not is_signed_by(token, parsed.key):
        raise TokenRefused(Refusal.SIGNATURE, parsed.issuer.name)
    return _verified(parsed.issuer, parsed.claims, now)


class _Parsed:
    """A token whose signature is not checked yet, and the key to check it."""

    __slots__ = ("claims", "issuer", "key")

    def __init__(self, token: bytes, issuers: Mapping[str, TokenIssuer]) -> None:
        parts = token.split(b".", _PARTS)
        if len(token) > MAX_TOKEN_BYTES or len(parts) != _PARTS:
            raise TokenRefused(Refusal.MALFORMED)
        header = _json_object(_decode_base64url(parts[0]))
        self.claims = _json_object(_decode_base64url(parts[1]))
        signature = _decode_base64url(parts[2])
        name = self.claims.get("iss")
        found = issuers.get(name) if isinstance(name, str) else None
        if found is None:
            raise TokenRefused(Refusal.UNKNOWN_ISSUER)
        self.issuer = found.issuer
        self.key = self._key_for(header, found)
        if len(signature) != self.key.signature_bytes:
            self._refuse(Refusal.SIGNATURE)

    def _key_for(self, header: Mapping[str, Any], found: TokenIssuer) -> VerificationKey:
        if any(name in header for name in _REFUSED_HEADERS):
            self._refuse(Refusal.MALFORMED)
        algorithm, kid = header.get("alg"), header.get("kid")
        if kid is not None and not isinstance(kid, str):
            self._refuse(Refusal.MALFORMED)
        if algorithm not in found.issuer.algorithms:
            self._refuse(Refusal.ALGORITHM)
        key = found.keys.find(algorithm, kid)
        if key is None:
            is_other_kind = kid is not None and found.keys.has_kid(kid)
            self._refuse(Refusal.ALGORITHM if is_other_kind else Refusal.UNKNOWN_SIGNING_KEY)
        return key

    def _refuse(self, refusal: Refusal) -> NoReturn:
        raise TokenRefused(refusal, self.issuer.name)


def _verified(issuer: Issuer, claims: Mapping[str, Any], now: float) -> VerifiedToken:
    """Check *claims*, whose signature is valid."""

    def refuse(refusal: Refusal) -> NoReturn:
        raise TokenRefused(refusal, issuer.name)

    times = [_time_of(claims.get(name)) for name in ("exp", "nbf", "iat")]
    expires_at, not_before, issued_at = times
    if expires_at is None or any(each is not None and math.isnan(each) for each in times):
        refuse(Refusal.TIMES)
    if now >= expires_at:
        refuse(Refusal.EXPIRED)
    begins = [each for each in (not_before, issued_at) if each is not None]
    valid_from = max(begins, default=-math.inf) - LEEWAY_S
    if now < valid_from:
        refuse(Refusal.NOT_YET_VALID)
    audience = claims.get("aud")
    audiences = [audience] if isinstance(audience, str) else audience
    if (
        not isinstance(audiences, list)
        or not all(isinstance(each, str) for each in audiences)
        or issuer.audiences.isdisjoint(audiences)
    ):
        refuse(Refusal.AUDIENCE)
    subject = claims.get(issuer.subject_claim)
    if (
        not isinstance(subject, str)
        or not 1 <= len(subject) <= MAX_NAME_CHARACTERS
        or not subject.isprintable()
    ):
        refuse(Refusal.SUBJECT)
    return VerifiedToken(issuer, subject, claims, valid_from, expires_at)


def _time_of(value: object) -> float | None:
    """Return a claim in seconds since 1970; None if there is none, NaN if it is no time."""
    if value is None:
        return None
    # JSON's true is no number, although Python's is. A null claim is one that is not there.
    if isinstance(value, bool) or not isinstance(value, int | float):
        return math.nan
    return float(value) if abs(value) <= _MAX_TIME else math.nan


def _decode_base64url(part: bytes) -> bytes:
    """Return *part* decoded, if it is base64url in its one canonical form, without padding."""
    if _BASE64URL.fullmatch(part):
        try:
            decoded = base64.urlsafe_b64decode(part + b"=" * (-len(part) % 4))
        except binascii.Error:
            decoded = b""
        # The last character may have bits that belong to no byte; they have to be zero.
        if base64.urlsafe_b64encode(decoded).rstrip(b"=") == part:
            return decoded
    raise TokenRefused(Refusal.MALFORMED)


def _json_object(data: bytes) -> dict[str, Any]:
    """Return the JSON object in *data*; no name may occur twice in an object."""
    found: object = None
    try:
        # Decoded here, because json.loads guesses the encoding of bytes.
        text = data.decode()
        if _depth(text) <= _MAX_DEPTH:
            found = json.loads(text, object_pairs_hook=_object, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):  # UnicodeDecodeError and JSONDecodeError are ValueErrors
        pass
    if not isinstance(found, dict):
        raise TokenRefused(Refusal.MALFORMED)
    return found


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a name occurs twice")
    return made


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _depth(text: str) -> int:
    """Return how deeply arrays and objects of *text* are nested."""
    # Without escapes, each second part between quotes is a string. In linear time: the token is
    # not verified yet.
    outside = text.replace("\\\\", "").replace('\\"', "").split('"')[::2]
    depth = deepest = 0
    for bracket in _BRACKETS.findall("".join(outside)):
        depth += 1 if bracket in "[{" else -1
        deepest = max(deepest, depth)
    return deepest
