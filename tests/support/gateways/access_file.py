"""Access files (``--access-file``) with API keys and issuers, and the tokens of these issuers."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from tests.support.gateways.gateway import RunningGateway, gateway_alone


def grant(topic: str, *permissions: str, channels: Sequence[str] = (".*",)) -> str:
    """Return a grant as TOML."""
    texts = [f"topic = {json.dumps(topic)}", f"permissions = {json.dumps(list(permissions))}"]
    if channels:
        texts.append(f"channels = {json.dumps(list(channels))}")
    return f"{{ {', '.join(texts)} }}"


def api_key(name: str, secret: str, *grants: str) -> str:
    """Return the entry of an API key as TOML; *grants* as `grant` returns them."""
    lines = [
        "[[key]]",
        f"name = {json.dumps(name)}",
        f'sha256 = "{hashlib.sha256(secret.encode()).hexdigest()}"',
        f"grants = [{', '.join(grants)}]",
    ]
    return "\n".join(lines)


Claims: TypeAlias = dict[str, Any]
Algorithm: TypeAlias = Literal["RS256", "ES256", "EdDSA"]


def grant_claim(topic: str, *permissions: str, channels: Sequence[str] = (".*",)) -> Claims:
    """Return a grant as a token has it."""
    return {"topic": topic, "channels": [*channels], "permissions": [*permissions]}


class TokenIssuer:
    """
    An issuer with a key of its own, whose tokens have their grants in the claim ``nsq``.

    *folder* gets the file with its public key.
    """

    def __init__(
        self,
        folder: Path,
        url: str = "https://id.example.com",
        *,
        algorithm: Algorithm = "EdDSA",
    ) -> None:
        self.url = url
        self._algorithm = algorithm
        self._key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey
        if algorithm == "RS256":
            self._key = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
        elif algorithm == "ES256":
            self._key = ec.generate_private_key(ec.SECP256R1())
        else:
            self._key = ed25519.Ed25519PrivateKey.generate()
        public = self._key.public_key()
        self._file = folder / f"{url.rpartition('/')[2]}.pem"
        self._file.write_bytes(public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))

    @property
    def entry(self) -> str:
        """The issuer's entry of an access file in its folder, as TOML."""
        values = {
            "issuer": self.url,
            "audience": "nsq",
            "key_file": self._file.name,
            "grants_claim": "nsq",
        }
        lines = [f"{name} = {json.dumps(value)}" for name, value in values.items()]
        return "\n".join(["[[issuer]]", *lines])

    def token(
        self,
        subject: str,
        *grants: Claims,
        life_s: float = 3_600.0,
        now: float | None = None,
        **claims: object,
    ) -> str:
        """Return a token of *subject* that ends *life_s* after *now* (default: after now)."""
        payload = {
            "iss": self.url,
            "aud": "nsq",
            "sub": subject,
            "exp": (time.time() if now is None else now) + life_s,
            "nsq": list(grants),
            **claims,
        }
        return jwt.encode(payload, self._key, self._algorithm)


def access_file(folder: Path, *entries: str) -> str:
    """Write a file with *entries* into *folder*; return its path."""
    path = folder / "access.toml"
    path.write_text("\n\n".join(entries))
    return str(path)


class KeyGrant(NamedTuple):
    """One grant of a key, as in the access file."""

    topic: str
    permissions: Sequence[str]
    channels: Sequence[str] = ()


def key_of(name: str) -> str:
    """Return the API key of *name* in the files of `write_access_file`."""
    return f"key-of-{name}"


def write_access_file(path: Path, keys: Mapping[str, Sequence[KeyGrant]]) -> Path:
    """Write an access file to *path* that has a key for each name; return *path*."""
    entries = [
        api_key(
            name,
            key_of(name),
            *(grant(each.topic, *each.permissions, channels=each.channels) for each in grants),
        )
        for name, grants in keys.items()
    ]
    path.write_text("\n\n".join(entries))
    return path


@asynccontextmanager
async def gateway_for_alice(folder: Path) -> AsyncIterator[RunningGateway]:
    """Run a gateway at which only the API key of Alice may publish and subscribe, and use it."""
    alice = api_key("alice", key_of("alice"), grant(".*", "publish"), grant(".*", "subscribe"))
    async with gateway_alone(f"--access-file={access_file(folder, alice)}") as gateway:
        gateway.http.headers["Authorization"] = f"Bearer {key_of('alice')}"
        yield gateway
