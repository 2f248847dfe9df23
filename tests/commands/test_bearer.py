"""A secret on its way to a gateway: in a header, or not at all."""

import pytest

from gateway.commands.bearer import bearer_headers
from gateway.errors import SettingRefused
from gateway.secret import Secret


def test_a_secret_is_a_bearer() -> None:
    """And none is no header."""
    assert {"Authorization": "Bearer w0rd!"} == bearer_headers(Secret(b"w0rd!"))
    assert {} == bearer_headers(None)


@pytest.mark.parametrize("secret", [b"two words", b"w\xc3\xb6rd", b"line\r\nX: y", b"word\x00"])
def test_what_no_header_holds_is_refused_without_being_shown(secret: bytes) -> None:
    """HTTP libraries would show it in their errors."""
    with pytest.raises(SettingRefused) as caught:
        bearer_headers(Secret(secret))

    assert (True, False) == ("--auth-secret" in str(caught.value), "ord" in str(caught.value))
