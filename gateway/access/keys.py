"""
The keys that verify tokens: read from files and JSON Web Key Sets (RFC 7517), and used.

Each key has its algorithm from the moment it is read. Nothing in the header of a token chooses the
kind of a key, or another source of keys. PyJWT is imported on use, because it takes as long to
import as a broker to start.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from gateway.access.policy import MAX_NAME_CHARACTERS, Algorithm
from gateway.errors import GatewayError

if TYPE_CHECKING:
    import jwt

MAX_KEYS = 100
"""Maximum keys of an issuer; others are ignored."""
MIN_RSA_BITS, MAX_RSA_BITS = 2_048, 8_192
MIN_SECRET_BYTES = 32
"""RFC 7518 §3.2: not below the size of the hash."""
_MAX_ENTRIES = 1_000
"""Maximum entries of a key set that are looked at."""
_MAX_RSA_EXPONENT = 2**32
"""Larger exponents make a check of a signature slow."""
_ECDSA_BYTES = 64


class KeysRefused(GatewayError):
    """A file or an answer has no usable key; the text says why, without any part of a secret."""


class VerificationKey:
    """A key with its algorithm; its repr shows neither a secret nor a public key."""

    __slots__ = ("_digest", "algorithm", "kid", "material", "signature_bytes")

    def __init__(
        self,
        kid: str | None,
        algorithm: Algorithm,
        material: Any,  # noqa: ANN401 - bytes, or a key object of cryptography
        *,
        encoded: bytes,
        signature_bytes: int,
    ) -> None:
        self.kid = kid
        self.algorithm = algorithm
        self.material = material
        """As PyJWT takes it."""
        self.signature_bytes = signature_bytes
        """Size of a signature by this key."""
        self._digest = hashlib.sha256(encoded).digest()

    def __repr__(self) -> str:
        """Show the algorithm and the key id."""
        return f"VerificationKey({self.algorithm}, kid={self.kid!r})"

    def __eq__(self, other: object) -> bool:
        """Compare the values."""
        return isinstance(other, VerificationKey) and self._values == other._values

    def __hash__(self) -> int:
        """Return the hash of the values."""
        return hash(self._values)

    @property
    def _values(self) -> tuple[str | None, str, bytes]:
        return self.kid, self.algorithm, self._digest


class KeySet(NamedTuple):
    """The keys of an issuer."""

    keys: tuple[VerificationKey, ...] = ()
    is_for_any_kid: bool = False
    """True if there is one key, from a file that has no place for its `kid`."""

    def find(self, algorithm: str, kid: str | None) -> VerificationKey | None:
        """
        Return the key for a token with *algorithm* and *kid* in its header.

        Without a *kid*, this is the only key of that algorithm.
        """
        found = [key for key in self.keys if key.algorithm == algorithm]
        if kid is not None and not self.is_for_any_kid:
            # A kid that occurs twice is the first one's: the order is the issuer's.
            return next((key for key in found if key.kid == kid), None)
        return found[0] if len(found) == 1 else None

    def has_kid(self, kid: str) -> bool:
        """Return whether there is a key with *kid*, of whatever algorithm."""
        return any(key.kid == kid for key in self.keys)


def is_signed_by(token: bytes, key: VerificationKey) -> bool:
    """Return whether the signature of *token*, a JWT in compact form, is valid for *key*."""
    import jwt  # noqa: PLC0415

    try:
        _jws().decode_complete(token, key.material, algorithms=[key.algorithm])
    except (jwt.PyJWTError, ValueError):
        return False
    return True


@functools.cache
def _jws() -> jwt.PyJWS:
    import jwt  # noqa: PLC0415

    return jwt.PyJWS(algorithms=["RS256", "ES256", "EdDSA", "HS256"])


@functools.cache
def stand_in_key() -> VerificationKey:
    """Return a public key that signs nothing, for checks that shall only take their time."""
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415

    found = _bind(None, ec.generate_private_key(ec.SECP256R1()).public_key())
    assert isinstance(found, VerificationKey)  # noqa: S101 - it is an EC key on the right curve
    return found


def read_key_file(content: bytes, algorithms: Sequence[Algorithm]) -> KeySet:
    """
    Return the key in *content*: a public key in PEM or, for HS256 alone, a secret.

    Raises:
        KeysRefused: It has no such key.
    """
    if tuple(algorithms) == ("HS256",):
        # Editors end the last line with a newline, which is no part of the secret.
        secret = content.removesuffix(b"\n").removesuffix(b"\r")
        return KeySet((_bind_secret(None, secret),), is_for_any_kid=True)
    found = _bind(None, _public_key_in(content))
    if isinstance(found, str):
        raise KeysRefused(found)
    if found.algorithm not in algorithms:
        raise KeysRefused(
            f"its key is for {found.algorithm}, and the issuer's algorithms are "
            f"{', '.join(algorithms)}; change one of them"
        )
    return KeySet((found,), is_for_any_kid=True)


def _public_key_in(content: bytes) -> object:
    from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415
    from cryptography.hazmat.primitives.serialization import load_pem_public_key  # noqa: PLC0415

    if b"PRIVATE KEY" in content:
        raise KeysRefused(
            "it has a private key, which only the issuer may have; make the public one with "
            "openssl pkey -in private.pem -pubout"
        )
    if b"BEGIN CERTIFICATE" in content:
        raise KeysRefused(
            "it has a certificate; make the public key with "
            "openssl x509 -in certificate.pem -noout -pubkey"
        )
    if content.count(b"-----BEGIN ") > 1:
        raise KeysRefused("it has more than one key; for several keys use jwks_file")
    try:
        return load_pem_public_key(content)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise KeysRefused(
            "it has no public key in PEM (-----BEGIN PUBLIC KEY-----); for a secret, set "
            'algorithms = ["HS256"]'
        ) from error


def parse_jwks(
    content: bytes, algorithms: Sequence[Algorithm], *, allow_secrets: bool = False
) -> KeySet:
    """
    Return the usable keys of *content*, a JSON Web Key Set.

    Keys for other algorithms or for encryption are ignored, as RFC 7517 §5 wants.

    Raises:
        KeysRefused: It is not valid, or no key is usable.
    """
    try:
        document = msgspec.json.decode(content)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise KeysRefused("it is not JSON") from error
    entries = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(entries, list):
        raise KeysRefused('it is no JSON Web Key Set: it has no list "keys"')
    keys: list[VerificationKey] = []
    reasons: dict[str, None] = {}
    for entry in entries[:_MAX_ENTRIES]:
        found = _read_jwk(entry, algorithms, allow_secrets=allow_secrets)
        if isinstance(found, str):
            reasons[found] = None
            continue
        keys.append(found)
        if len(keys) == MAX_KEYS:
            break
    if not keys:
        raise KeysRefused(
            f"none of its {len(entries)} keys is usable"
            + (f": {', '.join(reasons)}" if reasons else "")
        )
    return KeySet(tuple(keys))


_MEMBERS = {"RSA": ("n", "e"), "EC": ("crv", "x", "y"), "OKP": ("crv", "x"), "oct": ("k",)}
"""The members of a JWK that are read, by its type: never those of a private key."""


def _read_jwk(
    entry: object, algorithms: Sequence[Algorithm], *, allow_secrets: bool
) -> VerificationKey | str:
    """Return the key in *entry*, or why it is ignored."""
    if not isinstance(entry, dict):
        return "an entry is not an object"
    kty, kid, use, operations = (entry.get(name) for name in ("kty", "kid", "use", "key_ops"))
    names = _MEMBERS.get(kty, ()) if isinstance(kty, str) else ()
    members = {name: entry.get(name) for name in names}
    problems = {
        "a key has an unknown type (kty)": not names,
        f"a kid is not a text of at most {MAX_NAME_CHARACTERS} characters": not (
            kid is None or (isinstance(kid, str) and len(kid) <= MAX_NAME_CHARACTERS)
        ),
        "a key is not for signatures (use)": use not in (None, "sig"),
        "a key is not for verifying (key_ops)": not (
            operations is None or (isinstance(operations, list) and "verify" in operations)
        ),
        "a key is a secret (oct), which no address may give": kty == "oct" and not allow_secrets,
        "a key is not complete": not all(isinstance(value, str) for value in members.values()),
    }
    found = next((text for text, is_found in problems.items() if is_found), None)
    bound = found or _bind_jwk(kid, str(kty), members)
    if isinstance(bound, str):
        return bound
    if entry.get("alg", bound.algorithm) != bound.algorithm or bound.algorithm not in algorithms:
        return "a key is for another algorithm"
    return bound


def _bind_jwk(kid: str | None, kty: str, members: Mapping[str, Any]) -> VerificationKey | str:
    import jwt  # noqa: PLC0415

    kind = {"RSA": "RS256", "EC": "ES256", "OKP": "EdDSA", "oct": "HS256"}[kty]
    try:
        algorithm: Any = jwt.get_algorithm_by_name(kind)
        material = algorithm.from_jwk({"kty": kty, **members})
        return _bind_secret(kid, material) if kty == "oct" else _bind(kid, material)
    except KeysRefused as error:
        return str(error)
    # ValueError: of base64 and of cryptography, such as a point that is not on its curve.
    except (jwt.PyJWTError, ValueError, TypeError, OverflowError):
        return f"a key of type {kty} is not valid"


def _bind(kid: str | None, key: object) -> VerificationKey | str:
    """Return the public *key* with its algorithm, or why it cannot be used."""
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa  # noqa: PLC0415
    from cryptography.hazmat.primitives.serialization import (  # noqa: PLC0415
        Encoding,
        PublicFormat,
    )

    algorithm: Algorithm
    if isinstance(key, rsa.RSAPublicKey):
        algorithm, size = "RS256", key.key_size // 8 + (key.key_size % 8 > 0)
        if not MIN_RSA_BITS <= key.key_size <= MAX_RSA_BITS:
            return (
                f"an RSA key has {key.key_size} bits; allowed: {MIN_RSA_BITS} to "
                f"{MAX_RSA_BITS} bits"
            )
        if key.public_numbers().e > _MAX_RSA_EXPONENT:
            return "an RSA key has an exponent above 2**32"
    elif isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1):
        algorithm, size = "ES256", _ECDSA_BYTES
    elif isinstance(key, ed25519.Ed25519PublicKey):
        algorithm, size = "EdDSA", _ECDSA_BYTES
    else:
        return "a key is neither RSA, EC on P-256, nor Ed25519"
    encoded = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return VerificationKey(kid, algorithm, key, encoded=encoded, signature_bytes=size)


def _bind_secret(kid: str | None, secret: bytes) -> VerificationKey:
    if b"-----BEGIN " in secret:
        raise KeysRefused("it has a key in PEM, which is no secret; remove HS256 from algorithms")
    if len(secret) < MIN_SECRET_BYTES:
        raise KeysRefused(
            f"its secret has {len(secret)} bytes; allowed: {MIN_SECRET_BYTES} bytes or more"
        )
    size = hashlib.sha256().digest_size
    return VerificationKey(kid, "HS256", secret, encoded=secret, signature_bytes=size)
