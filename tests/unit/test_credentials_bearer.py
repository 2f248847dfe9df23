"""A secret in an HTTP header: written and read the same, and never shown."""

from __future__ import annotations

import pytest

from gateway.credentials import Secret, bearer_headers, is_valid_bearer, parse_bearer
from gateway.errors import InvalidRequest, SettingRefused


def test_a_secret_is_a_bearer() -> None:
    assert {"Authorization": "Bearer w0rd!"} == bearer_headers(Secret(b"w0rd!"))
    assert {} == bearer_headers(None)
    assert is_valid_bearer(Secret(b"w0rd!"))


@pytest.mark.parametrize(
    "secret", [b"", b"two words", b"w\xc3\xb6rd", b"line\r\nX: y", b"word\x00", b"word\n"]
)
def test_what_no_header_holds_is_refused_without_being_shown(secret: bytes) -> None:
    """HTTP libraries would show it in their errors."""
    with pytest.raises(SettingRefused) as caught:
        bearer_headers(Secret(secret))

    assert not is_valid_bearer(Secret(secret))
    assert (True, False) == ("--auth-secret" in str(caught.value), "ord" in str(caught.value))


@pytest.mark.parametrize("value", [b"Bearer w0rd!", b"bearer w0rd!", b"\tBEARER   w0rd! "])
def test_what_is_written_is_read(value: bytes) -> None:
    """The scheme in any letters, with any spaces around (RFC 9110, 11.1)."""
    assert b"w0rd!" == parse_bearer(value)


@pytest.mark.parametrize("value", [b"", b"Basic dTpw", b"Bearerword"])
def test_another_scheme_is_none_of_ours(value: bytes) -> None:
    """A proxy in front may have asked for it."""
    assert None is parse_bearer(value)


@pytest.mark.parametrize("value", [b"Bearer", b"Bearer ", b"Bearer two words", b"Bearer w\x00rd"])
def test_a_bearer_that_holds_no_secret_is_refused_without_being_shown(value: bytes) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_bearer(value)

    assert ("INVALID_AUTHORIZATION", False) == (caught.value.token, "rd" in str(caught.value))
