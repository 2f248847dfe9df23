"""Make keys and tokens, valid and not, and the access file of their issuers."""

from __future__ import annotations

import base64
import functools
import hashlib
import hmac
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from jwt.algorithms import ECAlgorithm, HMACAlgorithm, OKPAlgorithm, RSAAlgorithm

NOW = 1_800_000_000.0
"""The time at which tokens of `Signer.token` are valid, for 60 s more."""

_JWK: dict[str, Any] = {
    "RS256": RSAAlgorithm,
    "ES256": ECAlgorithm,
    "EdDSA": OKPAlgorithm,
    "HS256": HMACAlgorithm,
}


def b64(data: bytes | str) -> bytes:
    """Return *data* as base64url without padding."""
    text = data if isinstance(data, bytes) else data.encode()
    return base64.urlsafe_b64encode(text).rstrip(b"=")


@functools.cache
def _private_key(algorithm: str, name: str, size: int) -> Any:  # noqa: ANN401
    """Return a key; the same one each time, because RSA keys take long to make."""
    if algorithm == "RS256":
        return rsa.generate_private_key(65_537, size)
    if algorithm == "ES256":
        return ec.generate_private_key(ec.SECP256R1())
    if algorithm == "EdDSA":
        return ed25519.Ed25519PrivateKey.generate()
    return hashlib.sha256(name.encode()).digest()


class Signer:
    """An issuer of tokens: its name, and one key."""

    def __init__(
        self,
        algorithm: str,
        issuer: str = "https://id.example.com",
        *,
        kid: str | None = None,
        name: str = "",
        rsa_bits: int = 2_048,
    ) -> None:
        self.algorithm = algorithm
        self.issuer = issuer
        self.kid = kid
        self.private = _private_key(algorithm, name, rsa_bits)

    @property
    def public(self) -> Any:  # noqa: ANN401
        return self.private if self.algorithm == "HS256" else self.private.public_key()

    @property
    def pem(self) -> bytes:
        """The key for `key_file`."""
        if self.algorithm == "HS256":
            secret: bytes = self.private
            return secret
        pem: bytes = self.public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        return pem

    @property
    def private_pem(self) -> bytes:
        pem: bytes = self.private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        return pem

    def jwk(self, **changes: object) -> dict[str, Any]:
        """Return the key for a key set; a change to None removes a member."""
        made = json.loads(_JWK[self.algorithm].to_jwk(self.public))
        for unwanted in ("key_ops", "alg"):
            made.pop(unwanted, None)
        members = {**made, "kid": self.kid, **changes}
        return {name: value for name, value in members.items() if value is not None}

    def claims(self, **changes: object) -> dict[str, Any]:
        """Return valid claims; a change to None removes one."""
        made = {
            "iss": self.issuer,
            "aud": "nsq",
            "sub": "alice",
            "exp": NOW + 60,
            "iat": NOW,
            **changes,
        }
        return {name: value for name, value in made.items() if value is not None}

    def token(self, header: Mapping[str, object] | None = None, **changes: object) -> bytes:
        """Return a valid token, unless *header* or *changes* of its claims say otherwise."""
        return self.raw(self.header(**(header or {})), json.dumps(self.claims(**changes)))

    def header(self, **changes: object) -> str:
        made = {"alg": self.algorithm, "typ": "JWT", "kid": self.kid, **changes}
        return json.dumps({name: value for name, value in made.items() if value is not None})

    def raw(self, header: bytes | str, payload: bytes | str) -> bytes:
        """Return a token with any header and payload, correctly signed."""
        return self.signed(b64(header) + b"." + b64(payload))

    def signed(self, signing_input: bytes) -> bytes:
        return signing_input + b"." + b64(self.signature(signing_input))

    def signature(self, signing_input: bytes) -> bytes:
        algorithm = jwt.get_algorithm_by_name(self.algorithm)
        return algorithm.sign(signing_input, self.private)


def hs256(secret: bytes, header: bytes | str, payload: bytes | str) -> bytes:
    """Return a token signed with any *secret*, which PyJWT refuses for a public key."""
    signing_input = b64(header) + b"." + b64(payload)
    return signing_input + b"." + b64(hmac.digest(secret, signing_input, "sha256"))


def key_set(*keys: Mapping[str, Any]) -> bytes:
    return json.dumps({"keys": keys}).encode()


def access_file(folder: Path, text: str, **files: bytes) -> str:
    """Write an access file, and *files* beside it (`key_pem` is key.pem); return its path."""
    for name, content in files.items():
        (folder / name.replace("_", ".")).write_bytes(content)
    path = folder / "access.toml"
    path.write_text(text)
    return str(path)
