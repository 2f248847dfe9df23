"""The keys of issuers: which ones are read, and for what."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from gateway.access.keys import KeySet, KeysRefused, is_signed_by, parse_jwks, read_key_file
from gateway.access.policy import PUBLIC_KEY_ALGORITHMS, Algorithm
from tests.support.tokens import Signer, b64, key_set

RS, ES, ED = Signer("RS256", kid="r"), Signer("ES256", kid="e"), Signer("EdDSA", kid="d")
HS = Signer("HS256", kid="h")
ALL: tuple[Algorithm, ...] = (*PUBLIC_KEY_ALGORITHMS, "HS256")


def kids(content: bytes, *, allow_secrets: bool = False) -> list[str | None]:
    return [key.kid for key in parse_jwks(content, ALL, allow_secrets=allow_secrets).keys]


@pytest.mark.parametrize("signer", [RS, ES, ED, HS], ids=lambda signer: signer.algorithm)
def test_a_key_verifies_what_its_issuer_signs(signer: Signer) -> None:
    found = parse_jwks(key_set(signer.jwk()), ALL, allow_secrets=True)
    key = found.find(signer.algorithm, signer.kid)

    assert key is not None
    assert is_signed_by(signer.token(), key)
    assert not is_signed_by(signer.token()[:-4] + b"AAAA", key)
    algorithms: tuple[Algorithm, ...] = ("HS256",) if signer is HS else PUBLIC_KEY_ALGORITHMS
    of_file = read_key_file(signer.pem + b"\n", algorithms).find(signer.algorithm, "any")
    assert of_file is not None
    assert is_signed_by(signer.token(), of_file)


def test_keys_that_are_not_usable_are_ignored() -> None:
    small = Signer("RS256", kid="small", rsa_bits=1_024)
    other_curve = Signer("ES256", kid="p384")
    other_curve.private = ec.generate_private_key(ec.SECP384R1())

    assert ["r", "e", "d"] == kids(
        key_set(
            RS.jwk(use="enc"),
            RS.jwk(key_ops=["encrypt"]),
            RS.jwk(alg="RS512"),
            RS.jwk(alg="RSA-OAEP"),
            RS.jwk(kid=7),
            RS.jwk(kid="x" * 257),
            RS.jwk(n=None),
            RS.jwk(n="AQAB"),
            RS.jwk(e=1),
            RS.jwk(e=b64(b"\xff" * 8).decode()),
            RS.jwk(kty="rsa"),
            RS.jwk(kty=["RSA"]),
            small.jwk(),
            ES.jwk(x="AAAA"),
            ES.jwk(y=b64(b"\1" * 32).decode()),
            ES.jwk(crv="P-521"),
            other_curve.jwk(),
            ED.jwk(crv="X25519"),
            ED.jwk(x="AAAA"),
            HS.jwk(),
            {},
            RS.jwk(use="sig", alg="RS256", key_ops=["verify"], x5c=["MIIB"], unknown=1),
            ES.jwk(),
            ED.jwk(),
        )
    )


def test_private_parts_of_a_key_are_not_read() -> None:
    """The key of an issuer that published too much still only verifies."""
    (key,) = parse_jwks(key_set(ES.jwk(d=b64(b"\1" * 32).decode())), ALL).keys

    assert not hasattr(key.material, "sign")


def test_a_secret_is_read_from_a_file_only() -> None:
    with pytest.raises(KeysRefused, match="none of its 1 keys is usable: a key is a secret"):
        kids(key_set(HS.jwk()))
    assert ["h"] == kids(key_set(HS.jwk()), allow_secrets=True)
    with pytest.raises(KeysRefused, match="another algorithm"):
        parse_jwks(key_set(HS.jwk()), PUBLIC_KEY_ALGORITHMS, allow_secrets=True)
    with pytest.raises(KeysRefused, match="its secret has 31 bytes; allowed: 32 bytes or more"):
        kids(key_set(HS.jwk(k=b64(b"x" * 31).decode())), allow_secrets=True)


def test_entries_that_are_no_objects_are_ignored() -> None:
    keys: list[Any] = [1, None, [], "x", RS.jwk()]

    assert ["r"] == kids(json.dumps({"keys": keys}).encode())


@pytest.mark.parametrize(
    "content,reason",
    [
        (b"", "it is not JSON"),
        (b"<html>", "it is not JSON"),
        (b'{"keys":"\xff"}', "it is not JSON"),
        (b"[" * 100_000, "it is not JSON"),
        (b"[]", 'it is no JSON Web Key Set: it has no list "keys"'),
        (b'{"keys":{}}', 'it is no JSON Web Key Set: it has no list "keys"'),
        (b'{"keys":[]}', "none of its 0 keys is usable"),
        (b'{"keys":[1,{}]}', "none of its 2 keys is usable: an entry is not an object, a key has"),
    ],
)
def test_what_is_no_key_set_is_refused(content: bytes, reason: str) -> None:
    with pytest.raises(KeysRefused) as caught:
        kids(content)

    assert reason in str(caught.value)


def test_of_ten_thousand_keys_a_hundred_are_kept() -> None:
    content = key_set(*(ED.jwk(kid=str(number)) for number in range(10_000)))

    assert [str(number) for number in range(100)] == kids(content)


def test_ten_thousand_keys_that_are_not_usable_are_not_all_looked_at() -> None:
    content = key_set(*[ES.jwk(x="AAAA")] * 5_000, ED.jwk())

    with pytest.raises(KeysRefused, match="none of its 5001 keys is usable"):
        kids(content)


@pytest.mark.parametrize(
    "algorithm,kid,found",
    [
        ("RS256", "r", "r"),
        ("RS256", "r2", "r2"),
        ("RS256", "R", None),
        ("RS256", "e", None),
        ("RS256", None, None),
        ("ES256", None, "e"),
        ("ES256", "", None),
        ("none", None, None),
    ],
)
def test_a_kid_is_matched_exactly(algorithm: str, kid: str | None, found: str | None) -> None:
    """Without one, the only key of the algorithm is meant, and no other."""
    keys = parse_jwks(key_set(RS.jwk(), RS.jwk(kid="r2"), ES.jwk()), ALL)

    key = keys.find(algorithm, kid)
    assert found == (key and key.kid)


def test_the_first_of_two_keys_with_one_kid_is_used() -> None:
    other = Signer("ES256", kid="e", name="other")
    key = parse_jwks(key_set(ES.jwk(), other.jwk()), ALL).find("ES256", "e")

    assert key is not None
    assert is_signed_by(ES.token(), key)


def test_equal_sets_are_equal() -> None:
    """So that an answer without news changes nothing."""
    content = key_set(RS.jwk(), ES.jwk())

    assert parse_jwks(content, ALL) == parse_jwks(content, ALL)
    assert parse_jwks(content, ALL) != parse_jwks(key_set(RS.jwk()), ALL)
    assert parse_jwks(key_set(ES.jwk()), ALL) != parse_jwks(
        key_set(Signer("ES256", kid="e", name="other").jwk()), ALL
    )
    assert len(set(parse_jwks(content, ALL).keys)) == 2


def certificate() -> bytes:
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "x")])

    begin = datetime(2026, 1, 1, tzinfo=UTC)
    builder = x509.CertificateBuilder(name, name, RS.public, 1, begin, begin.replace(year=2036))
    return builder.sign(RS.private, SHA256()).public_bytes(Encoding.PEM)


@pytest.mark.parametrize(
    "content,algorithms,reason",
    [
        (RS.private_pem, PUBLIC_KEY_ALGORITHMS, "it has a private key, which only the issuer"),
        (certificate(), PUBLIC_KEY_ALGORITHMS, "openssl x509 -in certificate.pem -noout -pubkey"),
        (RS.pem + ES.pem, PUBLIC_KEY_ALGORITHMS, "more than one key; for several keys use jwks_f"),
        (b"x" * 40, PUBLIC_KEY_ALGORITHMS, 'for a secret, set algorithms = ["HS256"]'),
        (b"", PUBLIC_KEY_ALGORITHMS, "it has no public key in PEM"),
        (RS.pem.replace(b"M", b"x", 2), PUBLIC_KEY_ALGORITHMS, "it has no public key in PEM"),
        (RS.pem, ("ES256", "EdDSA"), "its key is for RS256, and the issuer's algorithms are ES256"),
        (Signer("RS256", rsa_bits=1_024).pem, ("RS256",), "an RSA key has 1024 bits; allowed: 20"),
        (b"x" * 31 + b"\r\n", ("HS256",), "its secret has 31 bytes; allowed: 32 bytes or more"),
        (RS.pem, ("HS256",), "it has a key in PEM, which is no secret"),
    ],
)
def test_an_unusable_key_file_says_what_to_do(
    content: bytes, algorithms: tuple[Algorithm, ...], reason: str
) -> None:
    with pytest.raises(KeysRefused) as caught:
        read_key_file(content, algorithms)

    assert reason in str(caught.value)
    assert "PRIVATE" not in str(caught.value)


def test_a_public_key_of_another_kind_is_refused() -> None:
    pem = (
        ec.generate_private_key(ec.SECP384R1())
        .public_key()
        .public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    )

    with pytest.raises(KeysRefused, match="a key is neither RSA, EC on P-256, nor Ed25519"):
        read_key_file(pem, PUBLIC_KEY_ALGORITHMS)


def test_a_key_shows_nothing_of_a_secret() -> None:
    (key,) = read_key_file(HS.pem, ("HS256",)).keys

    assert "VerificationKey(HS256, kid=None)" == repr(key)
    assert repr(HS.private)[2:-1] not in repr(KeySet((key,)))
