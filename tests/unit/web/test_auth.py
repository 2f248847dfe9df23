"""Where a caller's secret may stand, what is wrong with one, and who is let in without."""

from __future__ import annotations

import base64

import pytest

from gateway.credentials import Secret
from gateway.errors import AuthRequired, InvalidRequest
from gateway.session.auth import MAX_SECRET_BYTES
from gateway.web.auth import (
    ANONYMOUS,
    AccessPolicy,
    Principal,
    authorization_values,
    bearer_secret,
    single_secret,
    take_subprotocol_secret,
)

ALICE, OURS = Secret(b"alice"), Secret(b"ours")
SPOKEN = "nsq.json.v1"


def entry(secret: bytes) -> str:
    return "nsq.auth." + base64.urlsafe_b64encode(secret).decode().rstrip("=")


# The header


@pytest.mark.parametrize(
    "value,secret",
    [
        (b"Bearer alice", b"alice"),
        (b"bearer alice", b"alice"),
        (b"BEARER   alice \t", b"alice"),
        (b" Bearer alice", b"alice"),
        (b"Bearer a.b-c_d~e+f/g==", b"a.b-c_d~e+f/g=="),
        (b"Bearer s3cr3t!{:,}", b"s3cr3t!{:,}"),
        (b"Bearer " + b"s" * MAX_SECRET_BYTES, b"s" * MAX_SECRET_BYTES),
    ],
    ids=lambda value: str(value[:24]),
)
def test_a_bearer_token_is_the_secret(value: bytes, secret: bytes) -> None:
    """As it stands, whatever the letter case of the scheme and the spaces around it."""
    assert Secret(secret) == bearer_secret([value])


@pytest.mark.parametrize(
    "value", [b"Basic YWxpY2U6eA==", b"Digest a=b", b"alice", b"Bearers x", b""]
)
def test_another_scheme_is_no_secret(value: bytes) -> None:
    """A proxy in front may have asked for it; NSQ says when a secret is missing."""
    assert bearer_secret([value]) is None


def test_no_header_is_no_secret() -> None:
    """Who brings nothing is let on."""
    assert bearer_secret([]) is None


@pytest.mark.parametrize(
    "values,words",
    [
        ([b"Bearer"], "empty"),
        ([b"Bearer "], "empty"),
        ([b"Bearer alice smith"], "visible ASCII"),
        ([b"Bearer alice\tsmith"], "visible ASCII"),
        ([b"Bearer ali\x00ce"], "visible ASCII"),
        ([b"Bearer alic\xc3\xa9"], "visible ASCII"),
        ([b"Bearer " + b"s" * (MAX_SECRET_BYTES + 1)], "4097 bytes; allowed: 1 to 4096"),
        ([b"Bearer alice", b"Bearer alice"], "2 Authorization headers"),
        ([b"Bearer alice", b"Basic bob"], "2 Authorization headers"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_header_that_cannot_be_used_is_refused(values: list[bytes], words: str) -> None:
    """Before anything is asked of NSQ, and without showing any of it."""
    with pytest.raises(InvalidRequest, match=words) as caught:
        bearer_secret(values)

    assert "INVALID_AUTHORIZATION" == caught.value.token
    assert "alic" not in str(caught.value)


def test_the_header_is_found_among_others() -> None:
    """Names stand in small letters, as ASGI has them."""
    headers = [(b"host", b"a"), (b"authorization", b"b"), (b"x", b"c"), (b"authorization", b"d")]

    assert [b"b", b"d"] == authorization_values(headers)


# The subprotocol entry


@pytest.mark.parametrize(
    "secret", [b"a", b"al", b"ali", b"alice", b"\xfb\xff\x00\xfe", "é".encode(), b"s" * 4_096]
)
def test_a_subprotocol_entry_brings_any_bytes(secret: bytes) -> None:
    """It is taken out, wherever it stands, and the others are left."""
    first = take_subprotocol_secret([entry(secret), SPOKEN, "mqtt"])
    last = take_subprotocol_secret([SPOKEN, "mqtt", entry(secret)])

    assert (Secret(secret), [SPOKEN, "mqtt"]) == first == last


@pytest.mark.parametrize("offered", [[], [SPOKEN], ["mqtt", SPOKEN], ["nsq.authority"]])
def test_without_an_entry_there_is_no_secret(offered: list[str]) -> None:
    assert (None, offered) == take_subprotocol_secret(offered)


@pytest.mark.parametrize(
    "offered,token",
    [
        ([entry(b"alice")], "INVALID_SUBPROTOCOL"),
        ([entry(b"alice"), entry(b"bob")], "INVALID_SUBPROTOCOL"),
        ([entry(b"alice"), entry(b"alice"), SPOKEN], "INVALID_AUTHORIZATION"),
        (["nsq.auth.", SPOKEN], "INVALID_AUTHORIZATION"),
        (["nsq.auth.YWxpY2U=", SPOKEN], "INVALID_AUTHORIZATION"),
        (["nsq.auth.YWxp+2U", SPOKEN], "INVALID_AUTHORIZATION"),
        (["nsq.auth.YWxpY", SPOKEN], "INVALID_AUTHORIZATION"),
        (["nsq.auth.YWxpé2U", SPOKEN], "INVALID_AUTHORIZATION"),
        ([entry(b"s" * 8_193), SPOKEN], "INVALID_AUTHORIZATION"),
    ],
    ids=["alone", "two alone", "two", "empty", "padded", "plus", "a digit over", "é", "too long"],
)
def test_an_entry_that_cannot_be_used_is_refused(offered: list[str], token: str) -> None:
    """Alone it is no subprotocol; none of it is shown."""
    with pytest.raises(InvalidRequest) as caught:
        take_subprotocol_secret(offered)

    assert token == caught.value.token
    assert "YWxp" not in str(caught.value)


@pytest.mark.parametrize(
    "header,subprotocol,expected", [(ALICE, None, ALICE), (None, ALICE, ALICE), (None, None, None)]
)
def test_a_secret_comes_in_one_place(
    header: Secret | None, subprotocol: Secret | None, expected: Secret | None
) -> None:
    assert expected == single_secret(header, subprotocol)


def test_a_secret_in_two_places_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="one is allowed"):
        single_secret(ALICE, ALICE)


# Who is let in


def test_what_a_caller_brings_is_used() -> None:
    policies = [AccessPolicy(require_auth=required) for required in (False, True)]
    policies.append(AccessPolicy(anonymous_secret=OURS))

    assert [Principal(ALICE)] * 3 == [policy.identify(ALICE) for policy in policies]


def test_a_caller_without_a_secret_is_let_on() -> None:
    assert ANONYMOUS == AccessPolicy().identify(None)


def test_a_caller_without_a_secret_may_be_lent_ours() -> None:
    assert Principal(OURS) == AccessPolicy(anonymous_secret=OURS).identify(None)


def test_a_caller_without_a_secret_may_be_refused() -> None:
    """Even where a secret could be lent: the stricter word counts."""
    with pytest.raises(AuthRequired):
        AccessPolicy(require_auth=True, anonymous_secret=OURS).identify(None)


def test_a_policy_shows_no_secret() -> None:
    """Its repr names the fingerprint."""
    assert "ours" not in repr(AccessPolicy(anonymous_secret=OURS))
