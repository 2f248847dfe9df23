"""Bad tokens: one refusal for all of them, in one class of time, and nothing of them anywhere."""

from __future__ import annotations

import json
import traceback
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

import gateway.access.keys
import gateway.access.tokens
from gateway.access.control import AccessControl
from gateway.access.keys import VerificationKey
from gateway.credentials import Secret
from gateway.errors import CredentialRefused
from gateway.telemetry import REGISTRY
from tests.support.tokens import NOW, Signer, access_file, b64, hs256, key_set

RS = Signer("RS256", "https://rs", kid="r1")
RS_NEXT = Signer("RS256", "https://rs", kid="r2", name="next")
EC_OF_RS = Signer("ES256", "https://rs", kid="e1", name="beside")
ES = Signer("ES256", "https://es")
ED = Signer("EdDSA", "https://ed")
HS = Signer("HS256", "https://hs")
STRANGER = Signer("RS256", "https://rs", kid="r1", name="stranger")
EC_STRANGER = Signer("ES256", "https://es", name="stranger")

FILE = """
[[issuer]]
issuer = "https://rs"
audience = "nsq"
jwks_file = "rs.json"
grants_claim = "nsq"
[[issuer]]
issuer = "https://es"
audience = ["nsq", "other"]
key_file = "es.pem"
[[issuer]]
issuer = "https://ed"
audience = "nsq"
key_file = "ed.pem"
subject_claim = "email"
[[issuer]]
issuer = "https://hs"
audience = "nsq"
key_file = "hs.pem"
algorithms = ["HS256"]
[[key]]
name = "ended"
sha256 = "51a2bf3b9c53a4b0cdf1b2b9b9a0ba4c9e1a8b7c9d1f0e2b3a4c5d6e7f809101"
expires_at = 2020-01-01T00:00:00Z
grants = [{ topic = ".*", permissions = ["publish"] }]
[[rule]]
issuer = "https://es"
grants = [{ topic = "^orders$", permissions = ["publish"] }]
"""
GRANT = {"topic": "^a$", "channels": [".*"], "permissions": ["publish"]}
MARK = "sub-mark-8271"
"""In the subject of most tokens, and nowhere else."""


@pytest.fixture(scope="module")
def control(tmp_path_factory: pytest.TempPathFactory) -> AccessControl:
    folder: Path = tmp_path_factory.mktemp("access")
    keys = key_set(RS.jwk(), RS_NEXT.jwk(), EC_OF_RS.jwk())
    path = access_file(folder, FILE, rs_json=keys, es_pem=ES.pem, ed_pem=ED.pem, hs_pem=HS.pem)
    made = AccessControl(path, clock=lambda: NOW)
    made.load()
    return made


def changed(token: bytes, place: int, part: bytes) -> bytes:
    """Return *token* with another *part* at *place*."""
    parts = token.split(b".")
    parts[place] = part
    return b".".join(parts)


def payload(signer: Signer, text: str) -> bytes:
    """Return a token whose claims end with *text*."""
    return signer.raw(signer.header(), json.dumps(signer.claims(sub=MARK))[:-1] + "," + text + "}")


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


_ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
GOOD_ES = ES.token(sub=MARK)

# By what is wrong with it; every token that can be is correctly signed.
BAD: dict[str, bytes] = {
    # Form.
    "empty": b"",
    "a word": b"hello",
    "an unknown API key": b"nsq_" + b"A" * 43,
    "only dots": b"..",
    "two parts": GOOD_ES.rpartition(b".")[0],
    "four parts": GOOD_ES + b".e30",
    "five parts, as JWE has": b"e30.e30.e30.e30.e30",
    "JSON serialization": b'{"payload":"e30","signatures":[]}',
    "a space before it": b" " + GOOD_ES,
    "a newline after it": GOOD_ES + b"\n",
    "a NUL after it": GOOD_ES + b"\0",
    "a percent sign": GOOD_ES.replace(b".", b"%2E"),
    "4097 bytes": ES.token(pad="x" * 2_900)[:4_097].ljust(4_097, b"A"),
    "correctly signed, above 4096 bytes": ES.token(sub=MARK, pad="x" * 4_000),
    "64 KiB": b"A" * 65_536,
    "64 KiB of dots": b"." * 65_536,
    "padding": ES.signed(b64(ES.header()) + b"=." + b64(json.dumps(ES.claims()))),
    "padding of the signature": GOOD_ES + b"==",
    "standard base64": changed(GOOD_ES, 2, b"+/" + GOOD_ES.split(b".")[2][2:]),
    "bits that belong to no byte": GOOD_ES[:-1]
    + bytes([_ALPHABET[_ALPHABET.index(GOOD_ES[-1]) ^ 1]]),
    "a length that base64 cannot have": changed(GOOD_ES, 0, b"abcde"),
    "no header": changed(GOOD_ES, 0, b""),
    "no payload": changed(GOOD_ES, 1, b""),
    "bad UTF-8 in the header": ES.raw(b'{"alg":"ES256","x":"\xff"}', json.dumps(ES.claims())),
    "bad UTF-8 in the payload": ES.raw(ES.header(), b'{"iss":"https://es","sub":"\xff\xfe"}'),
    "UTF-16": ES.raw(ES.header(), json.dumps(ES.claims()).encode("utf-16")),
    "a byte order mark": ES.raw(ES.header(), b"\xef\xbb\xbf" + json.dumps(ES.claims()).encode()),
    "a header that is no JSON": ES.raw("alg=ES256", json.dumps(ES.claims())),
    "a payload that is no JSON": ES.raw(ES.header(), "iss=https://es"),
    "a header that is a list": ES.raw('["ES256"]', json.dumps(ES.claims())),
    "a payload that is a list": ES.raw(ES.header(), json.dumps([ES.claims()])),
    "a payload that is a text": ES.raw(ES.header(), '"https://es"'),
    "a payload that is a token": ES.raw(ES.header(cty="JWT"), GOOD_ES),
    "data after the payload": ES.raw(ES.header(), json.dumps(ES.claims()) + "{}"),
    "NaN": payload(ES, '"x":NaN'),
    "Infinity": payload(ES, '"x":-Infinity'),
    "a number of 2000 digits": payload(ES, '"exp":' + "9" * 2_000),
    "nested 17 deep": payload(ES, '"x":' + nested(17)),
    "nested 1400 deep": payload(ES, '"x":' + nested(1_400)),
    "objects nested 300 deep": payload(ES, '"x":' + '{"x":' * 300 + "1" + "}" * 300),
    "never closed": ES.raw(ES.header(), '{"x":' * 500),
    "1400 escaped quotes": ES.raw(ES.header(), '{"' + '\\"' * 1_400),
    # Names that occur twice.
    "two subjects": payload(ES, '"sub":"root"'),
    "two issuers": payload(ES, '"iss":"https://es"'),
    "two audiences": payload(ES, '"aud":"nsq"'),
    "two names in a nested object": payload(ES, '"x":{"a":1,"a":2}'),
    "two names, one escaped": payload(ES, '"s\\u0075b":"root"'),
    "two algorithms": ES.raw('{"alg":"ES256","alg":"none"}', json.dumps(ES.claims())),
    # Algorithms, and what the header asks for.
    "no signature": GOOD_ES.rpartition(b".")[0] + b".",
    "none": b64('{"alg":"none"}') + b"." + b64(json.dumps(ES.claims())) + b".",
    "none with a signature": changed(GOOD_ES, 0, b64('{"alg":"none"}')),
    "nOnE": b64('{"alg":"nOnE"}') + b"." + b64(json.dumps(ES.claims())) + b".AAAA",
    "no algorithm": ES.raw('{"typ":"JWT"}', json.dumps(ES.claims())),
    "an algorithm that is null": ES.raw('{"alg":null}', json.dumps(ES.claims())),
    "an algorithm that is a list": ES.raw('{"alg":["ES256"]}', json.dumps(ES.claims())),
    "an empty algorithm": ES.raw('{"alg":""}', json.dumps(ES.claims())),
    "es256": ES.raw('{"alg":"es256"}', json.dumps(ES.claims())),
    "HS256 with the public key": hs256(ES.pem, '{"alg":"HS256"}', json.dumps(ES.claims(sub=MARK))),
    "HS256 with the public key of RS256": hs256(
        RS.pem, '{"alg":"HS256","kid":"r1"}', json.dumps(RS.claims(sub=MARK))
    ),
    "HS256 with an empty key": hs256(b"", '{"alg":"HS256"}', json.dumps(HS.claims())),
    "HS512": ES.raw('{"alg":"HS512"}', json.dumps(HS.claims())),
    "RS512": RS.raw('{"alg":"RS512","kid":"r1"}', json.dumps(RS.claims())),
    "PS256": RS.raw('{"alg":"PS256","kid":"r1"}', json.dumps(RS.claims())),
    "ES256 with the kid of an RSA key": EC_OF_RS.token({"kid": "r1"}, sub=MARK),
    "RS256 with the kid of an EC key": RS.token({"kid": "e1"}, sub=MARK),
    "EdDSA for an EC key": ED.raw('{"alg":"EdDSA"}', json.dumps(ES.claims())),
    "a jwk of its own": STRANGER.token({"jwk": STRANGER.jwk()}, sub=MARK),
    "a jku of its own": STRANGER.token({"jku": "http://127.0.0.1:1/keys"}, sub=MARK),
    "an x5u of its own": STRANGER.token({"x5u": "http://127.0.0.1:1/x"}, sub=MARK),
    "an x5c of its own": STRANGER.token({"x5c": ["MIIB"]}, sub=MARK),
    "crit": ES.token({"crit": ["exp"]}, sub=MARK),
    "an empty crit": ES.token({"crit": []}, sub=MARK),
    "b64": ES.token({"b64": True}, sub=MARK),
    "a detached payload": ES.token({"b64": False, "crit": ["b64"]}, sub=MARK),
    # Key ids.
    "an unknown kid": RS.token({"kid": "r9"}, sub=MARK),
    "no kid, and two keys": RS.token({"kid": None}, sub=MARK),
    "an empty kid": RS.token({"kid": ""}, sub=MARK),
    "a kid in capitals": RS.token({"kid": "R1"}, sub=MARK),
    "a kid with a path": RS.token({"kid": "../../../../dev/null"}, sub=MARK),
    "a kid with SQL": RS.token({"kid": "r1' OR '1'='1"}, sub=MARK),
    "a kid with a command": RS.token({"kid": "r1|/bin/true"}, sub=MARK),
    "a kid with a NUL": RS.token({"kid": "r1\0"}, sub=MARK),
    "a kid with an address": RS.token({"kid": "http://127.0.0.1:1/"}, sub=MARK),
    "a kid that is a number": RS.token({"kid": 1}, sub=MARK),
    "a kid that is a list": ES.token({"kid": ["r1"]}, sub=MARK),
    "the kid of the other key": RS.token({"kid": "r2"}, sub=MARK),
    # Signatures.
    "another key": EC_STRANGER.token(sub=MARK),
    "another key with the same kid": STRANGER.token(sub=MARK),
    "zeros": changed(GOOD_ES, 2, b64(b"\0" * 64)),
    "a short signature": changed(GOOD_ES, 2, b64(b"\1" * 63)),
    "a long signature": changed(GOOD_ES, 2, b64(b"\1" * 1_000)),
    "a signature in DER": changed(GOOD_ES, 2, b64(b"\x30\x44" + b"\1" * 68)),
    "a changed payload": changed(GOOD_ES, 1, b64(json.dumps(ES.claims(sub="root")))),
    "a changed header": changed(GOOD_ES, 0, b64('{"alg":"ES256"}')),
    "another token's signature": changed(GOOD_ES, 2, ES.token(sub="bob").split(b".")[2]),
    # Issuers.
    "no issuer": ES.token(iss=None),
    "an unknown issuer": ES.token(iss="https://unknown"),
    "an issuer with a slash more": ES.token(iss="https://es/"),
    "an issuer in capitals": ES.token(iss="HTTPS://ES"),
    "an issuer that is a list": ES.token(iss=["https://es"]),
    "the issuer of API keys": ES.token(iss="key"),
    "another issuer's key": ES.token(iss="https://ed"),
    # Audiences.
    "no audience": ES.token(aud=None, sub=MARK),
    "a wrong audience": ES.token(aud="nsq2", sub=MARK),
    "an audience in capitals": ES.token(aud="NSQ", sub=MARK),
    "an empty list of audiences": ES.token(aud=[], sub=MARK),
    "the audience of another issuer": RS.token(aud="other", sub=MARK),
    "audiences that are not all texts": ES.token(aud=["nsq", 1], sub=MARK),
    "an audience that is an object": ES.token(aud={"nsq": True}, sub=MARK),
    # Times.
    "no exp": ES.token(exp=None, sub=MARK),
    "expired by 1 s": ES.token(exp=NOW - 1, sub=MARK),
    "expired just now": ES.token(exp=NOW, sub=MARK),
    "exp that is a text": ES.token(exp=str(int(NOW + 60)), sub=MARK),
    "exp that is true": ES.token(exp=True, sub=MARK),
    "exp that is a list": ES.token(exp=[NOW + 60], sub=MARK),
    "exp beyond every date": ES.token(exp=10**300, sub=MARK),
    "nbf that is infinite": payload(ES, '"nbf":1e999'),
    "exp in milliseconds": ES.token(exp=NOW * 1_000_000, sub=MARK),
    "negative exp": ES.token(exp=-1, sub=MARK),
    "not valid for 31 s": ES.token(nbf=NOW + 31, sub=MARK),
    "issued in 31 s": ES.token(iat=NOW + 31, sub=MARK),
    "nbf that is a text": ES.token(nbf="now", sub=MARK),
    "iat that is true": ES.token(iat=True, sub=MARK),
    # Subjects.
    "no subject": ES.token(sub=None),
    "an empty subject": ES.token(sub=""),
    "a subject of 257 characters": ES.token(sub="x" * 257),
    "a subject that is a number": ES.token(sub=1),
    "a subject that is an object": ES.token(sub={"name": "alice"}),
    "a subject with a newline": ES.token(sub="alice\nadmin"),
    "a subject with an escape sequence": ES.token(sub="\x1b[2Jalice"),
    "half a surrogate pair": ES.token(sub="\ud800"),
    "no subject where the issuer has another claim": ED.token(sub=MARK),
    # Grants.
    "grants that are a text": RS.token(nsq="publish", sub=MARK),
    "a grant that is a text": RS.token(nsq=["publish"], sub=MARK),
    "a grant with an unknown key": RS.token(nsq=[{**GRANT, "topics": 1}], sub=MARK),
    "a grant with an unknown permission": RS.token(
        nsq=[{**GRANT, "permissions": ["publish", "root"]}], sub=MARK
    ),
    "a grant without permissions": RS.token(nsq=[{**GRANT, "permissions": []}], sub=MARK),
    "a grant without a topic": RS.token(nsq=[{"permissions": ["publish"]}], sub=MARK),
    "a pattern that is not valid": RS.token(nsq=[{**GRANT, "topic": "("}], sub=MARK),
    "a pattern with look-around": RS.token(nsq=[{**GRANT, "topic": "(?=a)"}], sub=MARK),
    "a pattern that is too large": RS.token(
        nsq=[{**GRANT, "topic": "((((a{100}){100}){100}){100})"}], sub=MARK
    ),
    "a pattern with half a surrogate pair": RS.token(nsq=[{**GRANT, "topic": "\ud800"}], sub=MARK),
    "a subscription without channels": RS.token(
        nsq=[{"topic": "^a$", "permissions": ["subscribe"]}], sub=MARK
    ),
    "one grant of two is not valid": RS.token(nsq=[GRANT, {**GRANT, "topic": "["}], sub=MARK),
}


def refusal(control: AccessControl, token: bytes) -> CredentialRefused:
    with pytest.raises(CredentialRefused) as caught:
        control.identify(Secret(token))
    return caught.value


def test_there_are_more_than_eighty() -> None:
    assert len(BAD) > 80
    assert len(set(BAD.values())) == len(BAD)


@pytest.mark.parametrize(
    "signer,changes",
    [
        (RS, {"nsq": [GRANT]}),
        (RS_NEXT, {"aud": ["a", "nsq"]}),
        (EC_OF_RS, {"nsq": None}),
        (ES, {"exp": NOW + 0.5, "nbf": NOW + 29, "iat": NOW + 30}),
        (ES, {"iat": None, "aud": "other", "sub": "x" * 256, "x": [[[[{"y": [1e3]}]]]]}),
        (ED, {"email": "alice@example.com"}),
        (HS, {}),
    ],
)
def test_good_tokens_are_accepted(
    control: AccessControl, signer: Signer, changes: dict[str, Any]
) -> None:
    """What the bad ones are made of."""
    identity = control.identify(Secret(signer.token(**changes)))

    assert signer.issuer == identity.issuer
    assert changes.get("email", changes.get("sub", "alice")) == identity.name


def test_what_a_header_says_about_other_keys_is_ignored(control: AccessControl) -> None:
    header = {"jwk": STRANGER.jwk(), "jku": "http://127.0.0.1:1/", "x5u": "x", "x5c": ["x"]}

    assert "alice" == control.identify(Secret(RS.token(header))).name


@pytest.mark.parametrize("name", BAD)
def test_a_bad_token_is_refused_as_all_others(
    control: AccessControl, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    One text, one signature check, and nothing of the token in the error, its traceback or the log.

    Each time: a refused token is never kept.
    """
    checks: list[VerificationKey] = []
    check = gateway.access.keys.is_signed_by

    def counted(token: bytes, key: VerificationKey) -> bool:
        checks.append(key)
        return check(token, key)

    monkeypatch.setattr(gateway.access.tokens, "is_signed_by", counted)
    for _ in range(2):
        checks.clear()
        with capture_logs() as lines:
            error = refusal(control, BAD[name])

        assert "the token or key is not valid here, or no longer; nothing was done" == str(error)
        assert 1 == len(checks)
        assert (None, None) == (error.__cause__, error.__context__)
        shown = repr(error) + "".join(traceback.format_exception(error)) + repr(lines)
        assert MARK not in shown
        parts = [part for part in BAD[name].split(b".") if len(part) > 8]
        assert [] == [part for part in parts if part.decode("latin-1") in shown]


def test_no_metric_has_anything_of_a_token(control: AccessControl) -> None:
    for token in BAD.values():
        refusal(control, token)

    labels = {
        tuple(sample.labels.values())
        for metric in REGISTRY.collect()
        if metric.name == "nsq_gateway_access_checks"
        for sample in metric.samples
    }
    issuers = {"https://rs", "https://es", "https://ed", "https://hs", "key", "unknown"}
    assert {"malformed", "signature", "expired", "audience"} <= {result for _, result in labels}
    assert {issuer for issuer, _ in labels} >= issuers
    assert not any(MARK in value for values in labels for value in values)


def test_identities_and_keys_show_no_secret(control: AccessControl) -> None:
    """Their `repr` is what a log of a whole object would have."""
    shown = repr(control._issuers) + repr(control.policy) + repr(control._identities)

    assert repr(HS.private)[2:-1] not in shown
    assert "alice" not in repr(Secret(GOOD_ES))
